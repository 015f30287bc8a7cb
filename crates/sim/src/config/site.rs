//! Where the cluster stands, described.

use dunlin_costmodel::{GridIntensity, Site, find_place};
use serde::Deserialize;

use super::ConfigFileError;

/// Where the cluster stands: what the place makes of the machines' energy.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteConfig {
    /// Energy at the meter over that of the machines.
    #[serde(default = "one")]
    pub pue: f64,
    /// The country (ISO 3166-1 alpha-3 or its name) or region of a cloud (`gcp/europe-north1`) whose
    /// yearly mean the grid has, instead of `gco2_per_kwh`.
    #[serde(default)]
    pub grid: Option<String>,
    /// Grams of CO2-equivalent a kWh, one after another from the run's begin on, and again from the
    /// first after the last.
    #[serde(default)]
    pub gco2_per_kwh: Vec<f64>,
    /// How long each of them holds.
    #[serde(default = "hour")]
    pub step_s: f64,
    /// Litres that evaporate on site for a kWh of the machines.
    #[serde(default)]
    pub wue_litres_per_kwh: f64,
    /// Litres that the electricity takes, a kWh at the meter.
    #[serde(default)]
    pub grid_litres_per_kwh: f64,
}

const fn one() -> f64 {
    1.0
}

const fn hour() -> f64 {
    3600.0
}

impl SiteConfig {
    /// The place.
    ///
    /// # Errors
    /// A value that makes no sense; a grid that is not known, with those that may be meant.
    pub fn build(&self) -> Result<Site, ConfigFileError> {
        let gco2_per_kwh = match (&self.grid, self.gco2_per_kwh.as_slice()) {
            (Some(name), []) => {
                let found = find_place(name);
                vec![found.map_err(|e| ConfigFileError::value("site.grid", e))?.gco2_per_kwh]
            }
            (None, values @ [_, ..]) => values.to_vec(),
            _ => {
                let problem = "give one of `grid` and `gco2_per_kwh`";
                return Err(ConfigFileError::value("site.grid", problem));
            }
        };
        let site = Site {
            pue: self.pue,
            wue_litres_per_kwh: self.wue_litres_per_kwh,
            grid_litres_per_kwh: self.grid_litres_per_kwh,
            grid: GridIntensity { step_s: self.step_s, gco2_per_kwh },
        };
        site.validate()
            .map_err(|e| ConfigFileError::value(format!("site.{}", e.field), e.problem))?;
        Ok(site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(text: &str) -> Result<Site, String> {
        let config: SiteConfig = toml::from_str(text).map_err(|e| e.to_string())?;
        config.build().map_err(|e| e.to_string())
    }

    #[test]
    fn a_grid_is_named_or_given() {
        assert_eq!(built("grid = 'fra'").unwrap().grid.gco2_per_kwh, [56.039]);
        let site = built("gco2_per_kwh = [1.0, 2.5]\nstep_s = 60\npue = 1.1").unwrap();
        assert_eq!((site.grid.step_s, site.pue), (60.0, 1.1));
        assert_eq!(site.grid.gco2_per_kwh, [1.0, 2.5]);
    }

    #[test]
    fn bad_places_are_refused_with_the_key() {
        for (text, key) in [
            ("", "site.grid"),
            ("grid = 'FRA'\ngco2_per_kwh = [1.0]", "site.grid"),
            ("grid = 'Atlantis'", "site.grid"),
            ("grid = 'FRA'\npue = 0.5", "site.pue"),
            ("gco2_per_kwh = [-1.0]", "site.gco2_per_kwh"),
            ("gco2_per_kwh = [nan]", "site.gco2_per_kwh"),
            ("grid = 'FRA'\nstep_s = 0", "site.step_s"),
            ("grid = 'FRA'\nwue_litres_per_kwh = inf", "site.wue_litres_per_kwh"),
            ("grid = 'FRA'\nplace = 3", "unknown field"),
        ] {
            let error = built(text).unwrap_err();
            assert!(error.contains(key), "{text}: {error}");
        }
    }
}
