//! More machines behind a breaker than their nameplates allow, held below it by clocks.
//!
//! After POLCA: machines that serve language models draw their peak while they fill prompts and far
//! less while they decode, and peaks of many machines rarely coincide. So a row of machines that its
//! breaker's limit allows by nameplate can hold some more, if clocks are lowered when the sum comes
//! near the limit: first of machines whose work may wait, then of all.
//!
//! Every machine alternates between prefill and decode, of random length; both are [`Work`], whose
//! speed and power at a clock are those of [`PowerSpec`]. Power is measured and clocks are set once a
//! tick, so a rise within a tick is met in the next.

use dunlin_units::{SeedTree, Stream};

use crate::energy::{PowerSpec, Work};

/// A row of machines and how it is kept below its limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerRow {
    /// What a machine draws.
    pub power: PowerSpec,
    /// What its nameplate says.
    pub nameplate_watts: f64,
    /// Machines that the limit allows by nameplate.
    pub provisioned: u32,
    /// Mean seconds of a prefill at the full clock, and its busy shares of arithmetic and memory.
    pub prefill_s: f64,
    /// Mean seconds of the decoding that follows.
    pub decode_s: f64,
    /// Of that time at the full clock, the share in which arithmetic is busy; memory always is.
    pub decode_compute: f64,
    /// Of machines, those whose work may wait.
    pub low_priority: f64,
    /// Of the limit, where those slow down, and their clock.
    pub first: (f64, f64),
    /// Of the limit, where all slow down, and their clock.
    pub second: (f64, f64),
    /// Seconds between measurements.
    pub tick_s: f64,
}

/// What came of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowReport {
    /// The highest draw, of the limit.
    pub peak: f64,
    /// The mean draw, of the limit.
    pub mean: f64,
    /// The share of ticks above the limit.
    pub above: f64,
    /// How much longer work took than at the full clock.
    pub slowdown: f64,
}

/// A machine: what it does, and how much of it is left, in seconds at the full clock.
struct Machine {
    prefill: bool,
    left_s: f64,
    dice: Stream,
    low: bool,
}

impl PowerRow {
    fn work(&self, prefill: bool) -> Work {
        if prefill {
            Work { compute_ns: 1e9, memory_ns: 3e8 }
        } else {
            Work { compute_ns: 1e9 * self.decode_compute, memory_ns: 1e9 }
        }
    }

    /// Runs `machines` machines for some seconds.
    pub fn run(&self, machines: u32, seconds: f64, seed: u64) -> RowReport {
        let limit = self.nameplate_watts * f64::from(self.provisioned);
        let seeds = SeedTree::root(seed).child("power row");
        let low = (f64::from(machines) * self.low_priority) as u32;
        let mut row: Vec<Machine> = (0..machines)
            .map(|i| Machine {
                prefill: false,
                left_s: 0.0,
                dice: seeds.child_at(u64::from(i)).stream(),
                low: i < low,
            })
            .collect();
        // Everyone somewhere in its cycle.
        for machine in &mut row {
            machine.left_s = machine.dice.next_unit() * self.decode_s;
        }
        let (mut peak, mut sum, mut above, mut done) = (0.0f64, 0.0, 0u64, 0.0);
        let ticks = libm::ceil(seconds / self.tick_s) as u64;
        let mut draw = 0.0;
        for _ in 0..ticks {
            let clock = |low: bool| {
                if draw >= self.second.0 * limit {
                    if low { self.second.1.min(self.first.1) } else { self.second.1 }
                } else if draw >= self.first.0 * limit && low {
                    self.first.1
                } else {
                    1.0
                }
            };
            let clocks = [clock(false), clock(true)];
            let mut joules = 0.0;
            for machine in &mut row {
                let (used, work) = self.tick(machine, clocks[usize::from(machine.low)]);
                joules += used;
                done += work;
            }
            draw = joules / self.tick_s;
            peak = peak.max(draw);
            sum += draw;
            above += u64::from(draw > limit);
        }
        RowReport {
            peak: peak / limit,
            mean: sum / ticks as f64 / limit,
            above: above as f64 / ticks as f64,
            slowdown: ticks as f64 * self.tick_s * f64::from(machines) / done - 1.0,
        }
    }

    /// One tick of a machine at a clock: joules drawn, and seconds of work done.
    fn tick(&self, machine: &mut Machine, clock: f64) -> (f64, f64) {
        let (mut left, mut joules, mut done) = (self.tick_s, 0.0, 0.0);
        while left > 0.0 {
            let at = self.power.locked(&self.work(machine.prefill), clock);
            let slower = at.time_ns / 1e9;
            let took = (machine.left_s * slower).min(left);
            joules += at.watts * took;
            done += took / slower;
            machine.left_s -= took / slower;
            left -= took;
            if machine.left_s <= 1e-12 {
                machine.prefill = !machine.prefill;
                let mean = if machine.prefill { self.prefill_s } else { self.decode_s };
                machine.left_s = -libm::log(1.0 - machine.dice.next_unit()) * mean;
            }
        }
        (joules, done)
    }

    /// The most machines, of the provisioned ones and up to twice as many, with which no tick of a run
    /// is above the limit and the slowdown is at most `slowdown`.
    pub fn most_machines(&self, slowdown: f64, seconds: f64, seed: u64) -> u32 {
        let holds = |machines: u32| {
            let report = self.run(machines, seconds, seed);
            report.above == 0.0 && report.slowdown <= slowdown
        };
        let more = (self.provisioned..=2 * self.provisioned).take_while(|&m| holds(m));
        more.last().unwrap_or(self.provisioned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forty machines; power as measured on an H200, by the shares that its kernels draw of 700 W.
    const ROW: PowerRow = PowerRow {
        power: PowerSpec {
            idle_watts: 75.0,
            compute_watts: 480.0,
            memory_watts: 150.0,
            link_watts: 0.0,
            active_watts: 60.0,
            voltage_floor: 0.6,
            lowest_clock: 0.2,
        },
        nameplate_watts: 700.0,
        provisioned: 40,
        prefill_s: 0.5,
        decode_s: 4.0,
        decode_compute: 0.1,
        low_priority: 0.5,
        first: (0.8, 0.7),
        second: (0.9, 0.5),
        tick_s: 0.1,
    };

    #[test]
    fn a_third_more_machines_stay_below_the_limit_and_twice_as_many_do_not() {
        let within = ROW.run(52, 600.0, 1);
        assert!(within.above == 0.0 && within.slowdown < 0.02, "{within:?}");
        let free = PowerRow { first: (9.0, 1.0), second: (9.0, 1.0), ..ROW };
        assert!(free.run(52, 60.0, 1).slowdown.abs() < 1e-9);
        let most = ROW.most_machines(0.05, 300.0, 1);
        assert!((52..80).contains(&most), "{most}");
        assert!(ROW.run(110, 300.0, 1).above > 0.0, "somewhere it breaks");
        // The same seed, the same row.
        assert_eq!(ROW.run(52, 60.0, 7), ROW.run(52, 60.0, 7));
    }

    #[test]
    fn decode_alone_is_slowed_by_no_clock_that_memory_hides() {
        let row = PowerRow { prefill_s: 0.0, first: (0.0, 0.5), second: (0.0, 0.5), ..ROW };
        let report = row.run(40, 60.0, 3);
        assert!(report.slowdown.abs() < 1e-9, "{report:?}");
        let full = PowerRow { first: (9.0, 1.0), second: (9.0, 1.0), ..row }.run(40, 60.0, 3);
        assert!(report.mean < 0.85 * full.mean, "{} {}", report.mean, full.mean);
    }
}
