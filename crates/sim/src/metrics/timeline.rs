//! What happened when, over a run of unknown length, in bounded memory: bins of one width, which
//! doubles when they no longer reach.

use dunlin_units::Time;

/// Bins at most.
pub const MAX_BINS: usize = 512;

/// The first width of a bin: 2^20 ns, about a millisecond. Widths are powers of two.
const FIRST_WIDTH_LOG2: u32 = 20;

/// One bin. Integrals are over the bin's time, in units times nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bin {
    /// Requests that became ready.
    pub arrived: u64,
    /// Requests that ended.
    pub finished: u64,
    /// Tokens chosen.
    pub output_tokens: u64,
    /// Tokens that went through the model, all of them.
    pub computed_tokens: u64,
    /// Of requests that wait.
    pub waiting_ns: u128,
    /// Of requests that run.
    pub running_ns: u128,
    /// Of KV blocks in use.
    pub blocks_ns: u128,
    /// Nanoseconds, over replicas, in which a step ran.
    pub busy_ns: u128,
    /// Energy of steps in microjoules, by when they end.
    pub energy_uj: u64,
    /// Energy of replicas that are on, whether they work or not, in microjoules times 10^9.
    pub idle_uj_e9: u128,
}

impl Bin {
    fn add(&mut self, other: &Self) {
        self.arrived += other.arrived;
        self.finished += other.finished;
        self.output_tokens += other.output_tokens;
        self.computed_tokens += other.computed_tokens;
        self.waiting_ns += other.waiting_ns;
        self.running_ns += other.running_ns;
        self.blocks_ns += other.blocks_ns;
        self.busy_ns += other.busy_ns;
        self.energy_uj += other.energy_uj;
        self.idle_uj_e9 += other.idle_uj_e9;
    }
}

/// The state of a replica over a span of time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Level {
    /// Requests that wait.
    pub waiting: u64,
    /// Requests that run.
    pub running: u64,
    /// KV blocks in use.
    pub blocks: u64,
    /// Whether a step runs.
    pub busy: bool,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Timeline {
    width_log2: u32,
    bins: Vec<Bin>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { width_log2: FIRST_WIDTH_LOG2, bins: Vec::new() }
    }
}

impl Timeline {
    /// The bins, the first from time zero.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// A bin's width in nanoseconds.
    pub const fn width_ns(&self) -> u64 {
        1 << self.width_log2
    }

    /// The bin of a moment.
    #[inline]
    pub fn at(&mut self, at: Time) -> &mut Bin {
        let mut place = (at.0 >> self.width_log2) as usize;
        if place >= self.bins.len() {
            while place >= MAX_BINS {
                self.double();
                place = (at.0 >> self.width_log2) as usize;
            }
            if place >= self.bins.len() {
                self.bins.resize(place + 1, Bin::default());
            }
        }
        &mut self.bins[place]
    }

    fn double(&mut self) {
        self.width_log2 += 1;
        for pair in 0..self.bins.len().div_ceil(2) {
            let mut sum = self.bins[2 * pair];
            if let Some(second) = self.bins.get(2 * pair + 1) {
                sum.add(second);
            }
            self.bins[pair] = sum;
        }
        self.bins.truncate(self.bins.len().div_ceil(2));
    }

    /// Adds a level that held from `from` to `to`.
    #[inline]
    pub fn level(&mut self, from: Time, to: Time, level: Level) {
        self.spread(from, to, |bin, ns| {
            bin.waiting_ns += u128::from(level.waiting) * ns;
            bin.running_ns += u128::from(level.running) * ns;
            bin.blocks_ns += u128::from(level.blocks) * ns;
            bin.busy_ns += u128::from(level.busy) * ns;
        });
    }

    /// Adds the energy of a replica that was on from `from` to `to` and drew so many microwatts.
    pub fn idle(&mut self, from: Time, to: Time, microwatts: u64) {
        self.spread(from, to, |bin, ns| bin.idle_uj_e9 += u128::from(microwatts) * ns);
    }

    /// Calls `add` with each bin that a time has a part in, and the nanoseconds of it.
    #[inline]
    fn spread(&mut self, from: Time, to: Time, mut add: impl FnMut(&mut Bin, u128)) {
        let mut begin = from.0;
        while begin < to.0 {
            // The last bin first: it decides the width.
            self.at(Time(to.0 - 1));
            let end = (((begin >> self.width_log2) + 1) << self.width_log2).min(to.0);
            add(self.at(Time(begin)), u128::from(end - begin));
            begin = end;
        }
    }

    /// Adds all that another one has.
    pub fn merge(&mut self, mut other: Self) {
        while self.width_log2 < other.width_log2 {
            self.double();
        }
        while other.width_log2 < self.width_log2 {
            other.double();
        }
        if self.bins.len() < other.bins.len() {
            self.bins.resize(other.bins.len(), Bin::default());
        }
        for (own, more) in self.bins.iter_mut().zip(&other.bins) {
            own.add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_bins_widen_and_merge() {
        let (mut a, mut b, mut both) =
            (Timeline::default(), Timeline::default(), Timeline::default());
        let mut now = 0u64;
        let mut busy = 0u128;
        for i in 0..3000u64 {
            let until = now + i * 1_000_003;
            let level = Level { waiting: i % 5, running: 1, blocks: 7, busy: i % 3 == 0 };
            busy += u128::from(until - now) * u128::from(i % 3 == 0);
            // The second one ends early and has narrower bins.
            let part = if i < 700 && i % 2 == 0 { &mut b } else { &mut a };
            for line in [part, &mut both] {
                line.level(Time(now), Time(until), level);
                line.at(Time(until)).output_tokens += i;
            }
            now = until;
        }
        assert!(b.width_ns() < a.width_ns());
        a.merge(b);
        assert_eq!((a.width_ns(), a.bins()), (both.width_ns(), both.bins()));
        assert!(a.bins().len() <= MAX_BINS);
        let sum = |f: fn(&Bin) -> u128| a.bins().iter().map(f).sum::<u128>();
        assert_eq!(sum(|b| b.running_ns), u128::from(now));
        assert_eq!(sum(|b| b.busy_ns), busy);
        assert_eq!(sum(|b| u128::from(b.output_tokens)), 2999 * 3000 / 2);
    }
}
