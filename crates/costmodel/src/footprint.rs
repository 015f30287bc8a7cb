//! From the energy of devices to what a site draws, emits and evaporates.
//!
//! - Energy at the meter: what devices and the machines around them draw, times PUE.
//! - Carbon: energy at the meter times the grid's intensity at that time, beside the share of making
//!   the hardware that falls to the time it was held for the work.
//! - Water: on site for cooling (WUE, litres for each kWh of the machines), and in power plants, for
//!   each kWh at the meter.
//!
//! Sums are whole units (microjoules, micrograms, microlitres), so that shares of requests add up.

use crate::error::{CostError, not_negative};

/// Grams of CO2-equivalent for each kWh, over time.
#[derive(Debug, Clone, PartialEq)]
pub struct GridIntensity {
    /// How long each value holds, in seconds; an hour as a rule.
    pub step_s: f64,
    /// The values, the first from time 0 on. After the last they begin again.
    pub gco2_per_kwh: Vec<f64>,
}

impl GridIntensity {
    /// The mean over a time, in nanoseconds.
    pub fn mean(&self, from_ns: u64, to_ns: u64) -> f64 {
        let step = (self.step_s * 1e9) as u64;
        let value = |index: u64| self.gco2_per_kwh[index as usize % self.gco2_per_kwh.len()];
        let (first, last) = (from_ns / step, to_ns.saturating_sub(1) / step);
        if to_ns <= from_ns || first == last {
            return value(first);
        }
        // Whole rounds of the series have its mean.
        let round = self.gco2_per_kwh.len() as u64;
        let mut sum = 0.0;
        let mut index = first;
        while index <= last {
            if index > first && last - index >= round {
                let rounds = (last - index) / round;
                let whole: f64 = self.gco2_per_kwh.iter().sum();
                sum += whole * rounds as f64 * step as f64;
                index += rounds * round;
                continue;
            }
            let (begin, end) = ((index * step).max(from_ns), ((index + 1) * step).min(to_ns));
            sum += value(index) * (end - begin) as f64;
            index += 1;
        }
        sum / (to_ns - from_ns) as f64
    }
}

/// Where machines stand.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// Energy at the meter for each unit that reaches the machines.
    pub pue: f64,
    /// Litres of water on site for each kWh that reaches the machines.
    pub wue_litres_per_kwh: f64,
    /// Litres of water in power plants for each kWh at the meter.
    pub grid_litres_per_kwh: f64,
    /// The grid.
    pub grid: GridIntensity,
}

/// What work costs its surroundings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Footprint {
    /// Energy that reached the machines.
    pub machine_uj: u64,
    /// Energy at the meter.
    pub meter_uj: u64,
    /// Carbon of that energy, in micrograms of CO2-equivalent.
    pub operational_ugco2: u64,
    /// Water, on site and in power plants, in microlitres.
    pub water_ul: u64,
}

/// Microjoules of a kWh.
const UJ_PER_KWH: f64 = 3.6e12;

impl Site {
    /// Checks every value.
    ///
    /// # Errors
    /// The first that is wrong.
    pub fn validate(&self) -> Result<(), CostError> {
        if !(self.pue.is_finite() && self.pue >= 1.0) {
            let problem =
                format!("{} must be at least 1: the machines' own share is in it", self.pue);
            return Err(CostError::new("pue", problem));
        }
        not_negative("wue_litres_per_kwh", self.wue_litres_per_kwh)?;
        not_negative("grid_litres_per_kwh", self.grid_litres_per_kwh)?;
        let step = self.grid.step_s;
        if !(step.is_finite() && (1e-3..=1e9).contains(&step)) {
            let problem = format!("{step} should be from a millisecond to 10^9 seconds");
            return Err(CostError::new("step_s", problem));
        }
        if self.grid.gco2_per_kwh.is_empty() {
            return Err(CostError::new("gco2_per_kwh", "it is empty; give one value at least"));
        }
        self.grid.gco2_per_kwh.iter().try_for_each(|v| not_negative("gco2_per_kwh", *v))
    }

    /// The footprint of energy that reached the machines in some stretches of time (from and to in
    /// nanoseconds, microjoules).
    pub fn footprint(&self, energy: impl IntoIterator<Item = (u64, u64, u64)>) -> Footprint {
        let (mut machine, mut grams) = (0u64, 0.0);
        for (from, to, uj) in energy {
            machine += uj;
            grams += uj as f64 * self.pue / UJ_PER_KWH * self.grid.mean(from, to);
        }
        let kwh = machine as f64 / UJ_PER_KWH;
        let litres = kwh * (self.wue_litres_per_kwh + self.pue * self.grid_litres_per_kwh);
        Footprint {
            machine_uj: machine,
            meter_uj: libm::round(machine as f64 * self.pue) as u64,
            operational_ugco2: libm::round(grams * 1e6) as u64,
            water_ul: libm::round(litres * 1e6) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn a_scenario_computed_by_hand() {
        let site = Site {
            pue: 1.2,
            wue_litres_per_kwh: 1.8,
            grid_litres_per_kwh: 3.0,
            grid: GridIntensity { step_s: 3600.0, gco2_per_kwh: vec![100.0, 400.0] },
        };
        site.validate().unwrap();
        // Half an hour of 1 kW in the first hour, an hour of 2 kW over the border of the two.
        let kwh = 3_600_000_000_000u64;
        let energy = [(0, HOUR / 2, kwh / 2), (HOUR / 2, HOUR + HOUR / 2, 2 * kwh)];
        let f = site.footprint(energy);
        assert_eq!(f.machine_uj, 5 * kwh / 2);
        assert_eq!(f.meter_uj, 3 * kwh);
        // 0.6 kWh of 100 g and 2.4 kWh of 250 g.
        assert_eq!(f.operational_ugco2, 660_000_000);
        // 2.5 kWh of 1.8 l, and 3 kWh of 3 l.
        assert_eq!(f.water_ul, 13_500_000);
    }

    #[test]
    fn the_mean_over_many_rounds_is_that_of_a_sum_by_seconds() {
        let grid = GridIntensity { step_s: 10.0, gco2_per_kwh: vec![5.0, 1.0, 9.0] };
        let s = 1_000_000_000u64;
        for (from, to) in [(0, 5), (3, 12), (7, 100), (29, 31), (0, 300), (55, 1234)] {
            let sum: f64 = (from..to).map(|t| grid.gco2_per_kwh[(t / 10 % 3) as usize]).sum();
            let mean = grid.mean(from * s, to * s);
            assert!((mean - sum / (to - from) as f64).abs() < 1e-9, "{from} {to}: {mean}");
        }
    }

    #[test]
    fn bad_sites_are_refused() {
        let good = Site {
            pue: 1.1,
            wue_litres_per_kwh: 0.0,
            grid_litres_per_kwh: 0.0,
            grid: GridIntensity { step_s: 3600.0, gco2_per_kwh: vec![50.0] },
        };
        good.validate().unwrap();
        type Change = fn(&mut Site);
        let cases: [(&str, Change); 5] = [
            ("pue", |s| s.pue = 0.9),
            ("pue", |s| s.pue = f64::NAN),
            ("gco2_per_kwh", |s| s.grid.gco2_per_kwh.clear()),
            ("gco2_per_kwh", |s| s.grid.gco2_per_kwh[0] = -1.0),
            ("step_s", |s| s.grid.step_s = 0.0),
        ];
        for (field, change) in cases {
            let mut bad = good.clone();
            change(&mut bad);
            assert_eq!(bad.validate().expect_err(field).field, field);
        }
    }
}
