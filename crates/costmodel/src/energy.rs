//! Power and energy: what devices draw by what they do, clocks and caps.
//!
//! A device draws `idle`, and more in proportion to the time in which arithmetic, memory and links are
//! busy. Arithmetic's share depends on the clock: its rate is proportional to it and its power to the
//! clock times the square of the voltage, which is taken to be a floor plus a part in proportion to
//! the clock. Memory has a clock of its own, which stays.
//!
//! So a power cap, which lowers the clock until the power meets it, does nothing to a step that is
//! bound by memory and draws less anyway, while a lower clock saves a part of its power at next to no
//! cost in time: what "Power capping is illusory in decode" measures, as a model.

use dunlin_spec::HardwareSpec;
use serde::{Deserialize, Serialize};

use crate::error::{CostError, above_zero, not_negative};

/// What a device draws.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerSpec {
    /// Always, in watts.
    pub idle_watts: f64,
    /// While arithmetic is busy, at the full clock.
    pub compute_watts: f64,
    /// While memory is busy.
    pub memory_watts: f64,
    /// While links are busy.
    #[serde(default)]
    pub link_watts: f64,
    /// What clocks, caches and schedulers draw during any step, at the full clock.
    #[serde(default)]
    pub active_watts: f64,
    /// Of the full voltage, what remains at a clock of zero.
    #[serde(default = "voltage_floor")]
    pub voltage_floor: f64,
    /// The lowest clock, of the full one.
    #[serde(default = "lowest_clock")]
    pub lowest_clock: f64,
}

const fn voltage_floor() -> f64 {
    0.6
}

const fn lowest_clock() -> f64 {
    0.2
}

/// The shares of a time in which parts of a device are busy, each from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Busy {
    /// Arithmetic.
    pub compute: f64,
    /// Memory.
    pub memory: f64,
    /// Links.
    pub link: f64,
}

/// Work, as the time that it takes of each part at the full clock.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Nanoseconds of arithmetic.
    pub compute_ns: f64,
    /// Nanoseconds of memory.
    pub memory_ns: f64,
}

/// How a piece of work goes at a clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AtClock {
    /// The clock, of the full one.
    pub clock: f64,
    /// Nanoseconds.
    pub time_ns: f64,
    /// Watts on average.
    pub watts: f64,
}

impl AtClock {
    /// Joules.
    pub fn joules(&self) -> f64 {
        self.time_ns * 1e-9 * self.watts
    }
}

impl PowerSpec {
    /// By the data sheet alone: arithmetic takes all that there is between idling and the most, and
    /// memory and links 35% and 10% of it.
    pub fn of(hardware: &HardwareSpec) -> Self {
        let most = hardware.peak_watts - hardware.idle_watts;
        Self {
            idle_watts: hardware.idle_watts,
            compute_watts: most * 0.65,
            memory_watts: most * 0.35,
            link_watts: most * 0.1,
            active_watts: 0.0,
            voltage_floor: voltage_floor(),
            lowest_clock: lowest_clock(),
        }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The first that is wrong.
    pub fn validate(&self) -> Result<(), CostError> {
        for (name, value) in [
            ("idle_watts", self.idle_watts),
            ("compute_watts", self.compute_watts),
            ("memory_watts", self.memory_watts),
            ("link_watts", self.link_watts),
            ("active_watts", self.active_watts),
            ("voltage_floor", self.voltage_floor),
        ] {
            not_negative(name, value)?;
        }
        above_zero("lowest_clock", self.lowest_clock)?;
        if self.voltage_floor > 1.0 || self.lowest_clock > 1.0 {
            return Err(CostError::new("voltage_floor", "it and lowest_clock are shares of 1"));
        }
        Ok(())
    }

    /// Watts at the full clock.
    pub fn watts(&self, busy: &Busy) -> f64 {
        self.watts_at(busy, 1.0)
    }

    fn watts_at(&self, busy: &Busy, clock: f64) -> f64 {
        let voltage = self.voltage_floor + (1.0 - self.voltage_floor) * clock;
        let core = clock * voltage * voltage;
        self.idle_watts
            + core * (self.active_watts + self.compute_watts * busy.compute.min(1.0))
            + self.memory_watts * busy.memory.min(1.0)
            + self.link_watts * busy.link.min(1.0)
    }

    /// How work goes at a clock that is locked. Arithmetic and memory overlap fully.
    pub fn locked(&self, work: &Work, clock: f64) -> AtClock {
        let clock = clock.clamp(self.lowest_clock, 1.0);
        let compute_ns = work.compute_ns / clock;
        let time_ns = compute_ns.max(work.memory_ns);
        let busy =
            Busy { compute: compute_ns / time_ns, memory: work.memory_ns / time_ns, link: 0.0 };
        AtClock { clock, time_ns, watts: self.watts_at(&busy, clock) }
    }

    /// How work goes under a power cap: at the highest clock whose power meets it, or the lowest
    /// clock where none does.
    pub fn capped(&self, work: &Work, cap_watts: f64) -> AtClock {
        let full = self.locked(work, 1.0);
        if full.watts <= cap_watts {
            return full;
        }
        // Power rises with the clock, so halving finds it.
        let (mut low, mut high) = (self.lowest_clock, 1.0);
        for _ in 0..50 {
            let middle = 0.5 * (low + high);
            if self.locked(work, middle).watts <= cap_watts {
                low = middle;
            } else {
                high = middle;
            }
        }
        self.locked(work, low)
    }

    /// The clock that takes the least energy, `around_watts` more being drawn by what stands around
    /// the device, among those that are at most `slowdown` times as slow as the full clock. Found
    /// over hundredths of the clock.
    pub fn thriftiest(&self, work: &Work, around_watts: f64, slowdown: f64) -> AtClock {
        let full = self.locked(work, 1.0);
        let joules = |at: &AtClock| at.time_ns * (at.watts + around_watts);
        let clocks = (1..100).map(|percent| self.locked(work, f64::from(percent) / 100.0));
        let allowed = clocks.filter(|at| at.time_ns <= full.time_ns * slowdown);
        allowed.fold(full, |best, at| if joules(&at) < joules(&best) { at } else { best })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: PowerSpec = PowerSpec {
        idle_watts: 75.0,
        compute_watts: 450.0,
        memory_watts: 110.0,
        link_watts: 0.0,
        active_watts: 65.0,
        voltage_floor: 0.6,
        lowest_clock: 0.2,
    };
    const DECODE: Work = Work { compute_ns: 1e5, memory_ns: 1e6 };
    const PREFILL: Work = Work { compute_ns: 1e6, memory_ns: 1e5 };

    #[test]
    fn power_follows_the_closed_form() {
        let at = SPEC.locked(&DECODE, 0.5);
        // Arithmetic takes twice as long and is busy a fifth of the time; the voltage is 0.8.
        let wanted = 75.0 + 0.5 * 0.64 * (65.0 + 450.0 * 0.2) + 110.0;
        assert!((at.watts - wanted).abs() < 1e-9);
        assert_eq!(at.time_ns, 1e6);
        assert_eq!(SPEC.locked(&PREFILL, 0.5).time_ns, 2e6);
        assert!((SPEC.locked(&PREFILL, 1.0).watts - (75.0 + 65.0 + 450.0 + 11.0)).abs() < 1e-9);
    }

    #[test]
    fn a_cap_above_the_draw_of_decode_changes_nothing_and_a_locked_clock_does() {
        let free = SPEC.locked(&DECODE, 1.0);
        for cap in [300.0, 400.0, 700.0] {
            assert!(cap > free.watts);
            assert_eq!(SPEC.capped(&DECODE, cap), free);
        }
        let locked = SPEC.locked(&DECODE, 0.4);
        assert_eq!(locked.time_ns, free.time_ns, "memory sets the pace");
        assert!(locked.joules() < 0.85 * free.joules());
        // The same cap slows prefill down.
        let capped = SPEC.capped(&PREFILL, 300.0);
        assert!((capped.watts - 300.0).abs() < 1e-6 && capped.time_ns > 1.2e6, "{capped:?}");
    }

    #[test]
    fn the_thriftiest_clock_is_the_best_of_all_tried() {
        for work in [DECODE, PREFILL, Work { compute_ns: 8e5, memory_ns: 1e6 }] {
            let best = SPEC.thriftiest(&work, 50.0, 1.1);
            for percent in 20..=100 {
                let at = SPEC.locked(&work, f64::from(percent) / 100.0);
                let slower = at.time_ns > 1.1 * SPEC.locked(&work, 1.0).time_ns;
                assert!(
                    slower
                        || at.time_ns * (at.watts + 50.0)
                            >= best.time_ns * (best.watts + 50.0) - 1e-6
                );
            }
        }
        // Decode at a fifth of the clock would be twice as slow; it stays where memory hides it.
        assert!(SPEC.thriftiest(&DECODE, 0.0, 1.0).clock <= 0.21);
    }
}
