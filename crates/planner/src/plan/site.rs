//! Where machines stand: what the place adds to their energy, and what its electricity and cooling
//! cost the air and the water.
//!
//! - Facility energy is that of the machines times PUE.
//! - Carbon is facility energy times the grid's intensity, by the hour of the day, and the machines'
//!   embodied share.
//! - Water is machines' energy times WUE (evaporated on site, litres a kWh; The Green Grid's metric)
//!   and facility energy times the water of the electricity (EWIF), as in Li and others, "Making AI
//!   less thirsty", CACM 2025.

use dunlin_costmodel::find_place;
use serde::{Deserialize, Serialize};

use super::PlanError;

/// Joules of a kilowatt-hour.
const KWH: f64 = 3.6e6;

/// A place, described.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteConfig {
    /// What it is called.
    pub name: String,
    /// Energy at the meter over that of the machines.
    #[serde(default = "one")]
    pub pue: f64,
    /// Grams of CO2-equivalent a kWh: one number, or one for each hour of the day. Zero where neither
    /// this nor `grid` is given.
    #[serde(default)]
    pub gco2_per_kwh: Vec<f64>,
    /// The country (ISO 3166-1 alpha-3 or its name) or region of a cloud (`gcp/europe-north1`) whose
    /// yearly mean `gco2_per_kwh` is, instead of a number.
    #[serde(default)]
    pub grid: Option<String>,
    /// Litres that evaporate on site for a kWh of the machines.
    #[serde(default)]
    pub wue_litres_per_kwh: f64,
    /// Litres that the electricity takes, a kWh.
    #[serde(default)]
    pub grid_litres_per_kwh: f64,
    /// Money for a kWh.
    #[serde(default)]
    pub price_per_kwh: f64,
    /// Milliseconds to users and back.
    #[serde(default)]
    pub network_ms: f64,
    /// Watts that the place can deliver, at its meter; without limit where not given.
    #[serde(default)]
    pub watts: Option<f64>,
    /// Devices that stand there; without limit where not given.
    #[serde(default)]
    pub devices: Option<u32>,
    /// Output tokens an hour that it serves at most, where regions send to several places.
    #[serde(default)]
    pub tokens_per_hour: Option<f64>,
}

const fn one() -> f64 {
    1.0
}

impl Default for SiteConfig {
    fn default() -> Self {
        Self {
            name: "here".into(),
            pue: 1.0,
            gco2_per_kwh: vec![0.0],
            grid: None,
            wue_litres_per_kwh: 0.0,
            grid_litres_per_kwh: 0.0,
            price_per_kwh: 0.0,
            network_ms: 0.0,
            watts: None,
            devices: None,
            tokens_per_hour: None,
        }
    }
}

/// What energy comes to at a place.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Footprint {
    /// Joules at the meter.
    pub joules: f64,
    /// Grams of CO2-equivalent of the electricity.
    pub gco2: f64,
    /// Litres.
    pub litres: f64,
    /// Money for the electricity.
    pub price: f64,
}

impl SiteConfig {
    /// Looks up the intensity where the place is named instead.
    pub(super) fn look_up(&mut self) -> Result<(), PlanError> {
        match (&self.grid, self.gco2_per_kwh.as_slice()) {
            (Some(name), []) => {
                let found = find_place(name).map_err(|e| PlanError::value("grid", e))?;
                self.gco2_per_kwh = vec![found.gco2_per_kwh];
            }
            (Some(_), _) => {
                let problem = "give one of `grid` and `gco2_per_kwh`";
                return Err(PlanError::value("grid", problem));
            }
            (None, []) => self.gco2_per_kwh = vec![0.0],
            (None, _) => {}
        }
        Ok(())
    }

    /// Checks every value.
    pub(super) fn validate(&self) -> Result<(), PlanError> {
        let not_negative = [
            ("wue_litres_per_kwh", self.wue_litres_per_kwh),
            ("grid_litres_per_kwh", self.grid_litres_per_kwh),
            ("price_per_kwh", self.price_per_kwh),
            ("network_ms", self.network_ms),
            ("watts", self.watts.unwrap_or(0.0)),
            ("tokens_per_hour", self.tokens_per_hour.unwrap_or(0.0)),
        ];
        let intensities = self.gco2_per_kwh.iter().map(|g| ("gco2_per_kwh", *g));
        for (name, value) in not_negative.into_iter().chain(intensities) {
            if !(value.is_finite() && value >= 0.0) {
                let problem = format!("{value} should be a number from 0 on");
                return Err(PlanError::value(name, problem));
            }
        }
        if !(self.pue >= 1.0 && self.pue.is_finite()) {
            let problem = format!("{} should be 1 or more: the machines are part of it", self.pue);
            return Err(PlanError::value("pue", problem));
        }
        if ![1, 24].contains(&self.gco2_per_kwh.len()) {
            let problem = format!(
                "there are {} numbers; it is one, or one for each of the 24 hours of the day",
                self.gco2_per_kwh.len()
            );
            return Err(PlanError::value("gco2_per_kwh", problem));
        }
        Ok(())
    }

    /// Grams of CO2-equivalent a kWh in an hour of the day.
    pub fn intensity(&self, hour: usize) -> f64 {
        self.gco2_per_kwh[hour % self.gco2_per_kwh.len()]
    }

    /// The same, on average over the day.
    pub fn mean_intensity(&self) -> f64 {
        self.gco2_per_kwh.iter().sum::<f64>() / self.gco2_per_kwh.len() as f64
    }

    /// What so many joules of the machines come to, at this intensity of the grid.
    pub fn footprint(&self, machine_joules: f64, gco2_per_kwh: f64) -> Footprint {
        let joules = machine_joules * self.pue;
        let (machine_kwh, kwh) = (machine_joules / KWH, joules / KWH);
        Footprint {
            joules,
            gco2: kwh * gco2_per_kwh,
            litres: machine_kwh * self.wue_litres_per_kwh + kwh * self.grid_litres_per_kwh,
            price: kwh * self.price_per_kwh,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_may_be_named() {
        let mut site = SiteConfig { gco2_per_kwh: vec![], ..SiteConfig::default() };
        site.grid = Some("fra".into());
        site.look_up().unwrap();
        assert_eq!(site.mean_intensity(), 56.039);
        assert!(site.look_up().unwrap_err().to_string().contains("one of"));
        let bad = SiteConfig { gco2_per_kwh: vec![], grid: Some("FR".into()), ..site.clone() };
        let error = bad.clone().look_up().unwrap_err().to_string();
        assert!(error.starts_with("grid") && error.contains("FRA (France)"), "{error}");
        let mut none = SiteConfig { gco2_per_kwh: vec![], grid: None, ..site };
        none.look_up().unwrap();
        assert_eq!(none.mean_intensity(), 0.0);
    }

    #[test]
    fn a_footprint_is_the_product_that_it_is_by_hand() {
        let site = SiteConfig {
            pue: 1.25,
            gco2_per_kwh: vec![400.0],
            wue_litres_per_kwh: 1.8,
            grid_litres_per_kwh: 2.0,
            price_per_kwh: 0.2,
            ..SiteConfig::default()
        };
        // 8 kWh of machines are 10 at the meter.
        let found = site.footprint(8.0 * KWH, site.intensity(5));
        assert_eq!(found.joules, 10.0 * KWH);
        assert_eq!((found.gco2, found.litres, found.price), (4000.0, 8.0 * 1.8 + 20.0, 2.0));
    }

    #[test]
    fn hours_have_intensities_of_their_own() {
        let hours: Vec<f64> = (0..24).map(f64::from).collect();
        let site = SiteConfig { gco2_per_kwh: hours, ..SiteConfig::default() };
        assert_eq!((site.intensity(0), site.intensity(23), site.intensity(25)), (0.0, 23.0, 1.0));
        assert_eq!(site.mean_intensity(), 11.5);
    }

    #[test]
    fn bad_places_are_refused_with_the_key() {
        type Change = fn(&mut SiteConfig);
        let cases: [(&str, Change); 5] = [
            ("pue", |s| s.pue = 0.9),
            ("gco2_per_kwh", |s| s.gco2_per_kwh = vec![1.0; 7]),
            ("gco2_per_kwh", |s| s.gco2_per_kwh = vec![f64::NAN]),
            ("price_per_kwh", |s| s.price_per_kwh = -1.0),
            ("network_ms", |s| s.network_ms = f64::INFINITY),
        ];
        for (key, change) in cases {
            let mut bad = SiteConfig::default();
            change(&mut bad);
            let error = bad.validate().expect_err(key).to_string();
            assert!(error.starts_with(key), "{error}");
        }
    }
}
