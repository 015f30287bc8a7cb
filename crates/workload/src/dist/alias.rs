//! Draws from a finite list of weights in constant time: the alias method (Walker 1977), with the
//! table built as Vose has it (IEEE Transactions on Software Engineering 17, 1991).

use std::sync::Arc;

use dunlin_units::Stream;

use super::MAX_TABLE;
use crate::error::{SpecError, not_negative};

/// A table to draw places of a list of weights from.
#[derive(Debug, Clone)]
pub(crate) struct Alias {
    /// For each place: the chance to stay, and where to go otherwise.
    table: Arc<[(f64, u32)]>,
}

impl Alias {
    /// For these weights, which need not sum to 1.
    pub(crate) fn new(weights: &[f64]) -> Result<Self, SpecError> {
        if weights.is_empty() || weights.len() > MAX_TABLE {
            let problem = format!("{} weights; 1 to {MAX_TABLE} are possible", weights.len());
            return Err(SpecError::new("weight", problem));
        }
        for &weight in weights {
            not_negative("weight", weight)?;
        }
        let sum: f64 = weights.iter().sum();
        if sum <= 0.0 || !sum.is_finite() {
            return Err(SpecError::new("weight", format!("they sum to {sum}")));
        }
        let scale = weights.len() as f64 / sum;
        let mut table: Vec<(f64, u32)> =
            weights.iter().enumerate().map(|(i, w)| (w * scale, i as u32)).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..weights.len() as u32).partition(|&i| table[i as usize].0 < 1.0);
        while let (Some(&poor), Some(&rich)) = (small.last(), large.last()) {
            small.pop();
            let lack = 1.0 - table[poor as usize].0;
            table[poor as usize].1 = rich;
            table[rich as usize].0 -= lack;
            if table[rich as usize].0 < 1.0 {
                large.pop();
                small.push(rich);
            }
        }
        // What is left differs from 1 by rounding alone.
        for i in small.into_iter().chain(large) {
            table[i as usize] = (1.0, i);
        }
        Ok(Self { table: table.into() })
    }

    /// A place, with the chance that its weight has.
    #[inline]
    pub(crate) fn draw(&self, random: &mut Stream) -> u32 {
        let u = random.next_unit() * self.table.len() as f64;
        // The product may round up to the length itself.
        let at = (u as usize).min(self.table.len() - 1);
        let (stay, other) = self.table[at];
        if u - (at as f64) < stay { at as u32 } else { other }
    }
}
