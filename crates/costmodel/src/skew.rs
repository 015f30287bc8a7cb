//! What sequences of unequal length cost a decode's attention beyond as many of the mean length.
//!
//! Attention kernels pay for imbalance: with lengths of mean `m` and maximum `M`, a step takes
//! `t(m) + alpha * (t(M) - t(m))`, where `t(x)` is its time with all lengths equal to `x`. The shares
//! alpha are measured for batches in which some sequences are long and the others short, as
//! LLMServingSim's profiler does (MIT; its `skew_fit.csv`), which has the form of this table.

use serde::{Deserialize, Serialize};

use crate::{
    Totals,
    error::CostError,
    grid::{Axis, Point},
};

/// Alphas by the shape of a batch.
///
/// Two axes have measured points, and are interpolated: prefill tokens beside the decodes, and
/// sequences that decode. Three have bins in which measurements were pooled, told by their upper
/// ends, the last of them open: the spread `(mean - min) / (max - min)`, the longest sequence, and
/// the prefill's context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkewTable {
    /// Prefill tokens; the first point is 0, for decodes alone.
    pub prefill_tokens: Vec<f64>,
    /// Sequences that decode.
    pub decode_seqs: Vec<f64>,
    /// Upper ends of the bins of spread, but for the last bin.
    pub spread: Vec<f64>,
    /// Upper ends of the bins of the longest sequence, but for the last bin.
    pub longest: Vec<f64>,
    /// Upper ends of the bins of prefill context, but for the last bin.
    pub prefill_context: Vec<f64>,
    /// Alphas; the axes in this order, the last running fastest. They may be negative where noise
    /// was larger than the effect.
    pub alpha: Vec<f64>,
}

/// A table that is checked and ready to be asked.
#[derive(Debug, Clone)]
pub(crate) struct Skew {
    table: SkewTable,
    /// Prefill tokens from the first point above 0 on.
    prefill: Axis,
    seqs: Axis,
}

impl Skew {
    pub fn new(table: &SkewTable) -> Result<Self, CostError> {
        let t = table;
        if t.prefill_tokens.first() != Some(&0.0) || t.prefill_tokens.len() < 2 {
            let problem = "the first point must be 0, for decodes alone, and another must follow";
            return Err(CostError::new("prefill_tokens", problem));
        }
        Axis::new("prefill_tokens", &t.prefill_tokens)?;
        let prefill = Axis::new("prefill_tokens", &t.prefill_tokens[1..])?;
        let seqs = Axis::new("decode_seqs", &t.decode_seqs)?;
        for (name, bins) in [
            ("spread", &t.spread),
            ("longest", &t.longest),
            ("prefill_context", &t.prefill_context),
        ] {
            if !bins.is_empty() {
                Axis::new(name, bins)?;
            }
        }
        let cells = t.prefill_tokens.len()
            * t.decode_seqs.len()
            * (t.spread.len() + 1)
            * (t.longest.len() + 1)
            * (t.prefill_context.len() + 1);
        if t.alpha.len() != cells {
            let problem = format!("{} values for {cells} cells", t.alpha.len());
            return Err(CostError::new("alpha", problem));
        }
        if let Some(bad) = t.alpha.iter().find(|a| !a.is_finite()) {
            return Err(CostError::new("alpha", format!("{bad} must be finite")));
        }
        Ok(Self { table: table.clone(), prefill, seqs })
    }

    /// The alpha of a batch, with `context` KV positions before its prefill tokens.
    pub fn alpha(&self, totals: &Totals, context: f64) -> f64 {
        let mean = totals.decode_kv as f64 / totals.decode_seqs as f64;
        let (low, high) = (totals.shortest_decode as f64, totals.longest_decode as f64);
        let spread = bin(&self.table.spread, (mean - low) / (high - low));
        let longest = bin(&self.table.longest, high);
        let context = bin(&self.table.prefill_context, context);
        let within = (spread * (self.table.longest.len() + 1) + longest)
            * (self.table.prefill_context.len() + 1)
            + context;
        let seqs = clamped(self.seqs.at(totals.decode_seqs as f64));
        if totals.prefill_tokens == 0 {
            return self.between_seqs(0, seqs, within);
        }
        let prefill = clamped(self.prefill.at(totals.prefill_tokens as f64));
        let low = self.between_seqs(1 + prefill.low, seqs, within);
        if prefill.share == 0.0 {
            return low;
        }
        low + (self.between_seqs(2 + prefill.low, seqs, within) - low) * prefill.share
    }

    fn between_seqs(&self, prefill: usize, seqs: Point, within: usize) -> f64 {
        let t = &self.table;
        let bins = (t.spread.len() + 1) * (t.longest.len() + 1) * (t.prefill_context.len() + 1);
        let at = |seqs| t.alpha[(prefill * t.decode_seqs.len() + seqs) * bins + within];
        let low = at(seqs.low);
        if seqs.share == 0.0 { low } else { low + (at(seqs.low + 1) - low) * seqs.share }
    }
}

/// Shares do not go on beyond the ends.
fn clamped(point: Point) -> Point {
    Point { share: point.share.min(1.0), ..point }
}

/// The first bin whose upper end is not below `value`.
fn bin(ends: &[f64], value: f64) -> usize {
    ends.partition_point(|end| *end < value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_interpolated_and_bins_are_not() {
        let table = SkewTable {
            prefill_tokens: vec![0.0, 10.0, 20.0],
            decode_seqs: vec![2.0, 4.0],
            spread: vec![0.5],
            longest: vec![100.0],
            prefill_context: vec![0.0],
            // Every index is in the value: prefill, sequences, spread, longest, context.
            alpha: (0..3 * 2 * 2 * 2 * 2).map(|i| f64::from(i) / 100.0).collect(),
        };
        let skew = Skew::new(&table).unwrap();
        let batch = |prefill, seqs, kv, low, high| Totals {
            prefill_tokens: prefill,
            decode_seqs: seqs,
            decode_kv: kv,
            shortest_decode: low,
            longest_decode: high,
            ..Totals::default()
        };
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        // Decodes alone, two of them, spread 0.5, at most 100: the first of all.
        near(skew.alpha(&batch(0, 2, 100, 10, 90), 0.0), 0.0);
        // Longer than 100: the next bin, two cells on.
        near(skew.alpha(&batch(0, 2, 210, 10, 200), 0.0), 0.02);
        // Three sequences lie halfway between two and four: four cells of eight.
        near(skew.alpha(&batch(0, 3, 150, 10, 90), 0.0), 0.04);
        // 15 prefill tokens: halfway between the second and the third part of sixteen.
        near(skew.alpha(&batch(15, 2, 100, 10, 90), 0.0), 0.24);
        // Before the first point and beyond the last one, the ends stay.
        near(skew.alpha(&batch(5, 9, 450, 10, 90), 0.0), 0.24);
        // Prefill behind a context: the next bin, one cell on.
        near(skew.alpha(&batch(10, 2, 100, 10, 90), 7.0), 0.17);
        let bad = SkewTable { alpha: vec![f64::NAN; 48], ..table };
        assert!(Skew::new(&bad).is_err());
    }
}
