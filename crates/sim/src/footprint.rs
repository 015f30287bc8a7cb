//! What a run's energy and machines come to where the cluster stands.

use dunlin_costmodel::Site;
use serde::Serialize;

use crate::Report;

/// What a run cost its surroundings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct SiteFootprint {
    /// Of the machines: steps, and replicas that are on.
    pub machine_joules: f64,
    /// At the meter.
    pub meter_joules: f64,
    /// Grams of CO2-equivalent of the electricity, by the grid's intensity when it was drawn.
    pub operational_gco2: f64,
    /// Of making the machines, as far as it falls to the time that replicas were on.
    pub embodied_gco2: f64,
    /// Evaporated on site, and taken by power plants.
    pub water_litres: f64,
    /// Both kinds of carbon, a million output tokens.
    pub gco2_per_mtok: f64,
    pub water_litres_per_mtok: f64,
    /// Both kinds of carbon, a request that ended with its tokens.
    pub gco2_per_request: f64,
}

/// Nanoseconds of an hour.
const HOUR_NS: u128 = 3_600_000_000_000;

impl Report {
    /// What the run comes to at a place. Energy is drawn when a step ends, to a bin of the
    /// [timeline](crate::metrics::Timeline), and while a replica is on.
    pub fn footprint(&self, site: &Site) -> SiteFootprint {
        let m = &self.metrics;
        let width = m.timeline.width_ns();
        // Whole microjoules, so that all bins together have those of the run.
        let mut idle_e9 = 0u128;
        let energy = m.timeline.bins().iter().zip(0u64..).map(|(bin, index)| {
            let before = idle_e9 / 1_000_000_000;
            idle_e9 += bin.idle_uj_e9;
            let idle = (idle_e9 / 1_000_000_000 - before) as u64;
            (index * width, (index + 1) * width, bin.energy_uj + idle)
        });
        let of = site.footprint(energy);
        let operational_gco2 = of.operational_ugco2 as f64 / 1e6;
        let embodied_gco2 = (m.embodied_ugco2_hours / HOUR_NS) as f64 / 1e6;
        let (gco2, water_litres) = (operational_gco2 + embodied_gco2, of.water_ul as f64 / 1e6);
        let each = |what: f64, of: u64| if of > 0 { what / of as f64 } else { 0.0 };
        SiteFootprint {
            machine_joules: of.machine_uj as f64 / 1e6,
            meter_joules: of.meter_uj as f64 / 1e6,
            operational_gco2,
            embodied_gco2,
            water_litres,
            gco2_per_mtok: each(gco2 * 1e6, m.output_tokens),
            water_litres_per_mtok: each(water_litres * 1e6, m.output_tokens),
            gco2_per_request: each(gco2, m.finished),
        }
    }
}
