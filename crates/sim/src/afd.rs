//! Attention on some devices, feed-forward networks on others.
//!
//! A step's sequences are cut into micro-batches, which go to and fro between the two, layer by
//! layer: while one is with the feed-forward networks, attention works on the next. Three forms of
//! the same model, which tests hold equal: a closed form for equal micro-batches
//! ([`equal_step_ns`]), a recurrence for any ([`step_ns`]), and, in the tests, an event queue.

use dunlin_costmodel::{Link, StepCost, StepPrice, StepShape};

use crate::replica::SharedCost;

/// What the layers of one micro-batch take, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroBatch {
    /// Attention of one layer.
    pub attention_ns: u64,
    /// The feed-forward network of one layer.
    pub ffn_ns: u64,
    /// One way between the two.
    pub hop_ns: u64,
}

/// The time of a step of `count` equal micro-batches through `layers` layers.
///
/// With M the longer of the two parts and S = attention + ffn + 2 hops: micro-batches follow each
/// other at a distance of M, and a layer repeats after S, or after `count` times M where the busier
/// side never rests: `(layers - 1) max(count M, S) + (count - 1) M + S`.
pub fn equal_step_ns(each: MicroBatch, count: u64, layers: u64) -> u64 {
    if count == 0 || layers == 0 {
        return 0;
    }
    let longer = each.attention_ns.max(each.ffn_ns);
    let once = each.attention_ns + each.ffn_ns + 2 * each.hop_ns;
    (layers - 1) * (count * longer).max(once) + (count - 1) * longer + once
}

/// The same for micro-batches that differ. Each side takes them in turn.
pub fn step_ns(batches: &[MicroBatch], layers: u64) -> u64 {
    let (mut attention_free, mut ffn_free) = (0u64, 0u64);
    let mut ready = vec![0u64; batches.len()];
    for _ in 0..layers {
        for (batch, ready) in batches.iter().zip(&mut ready) {
            attention_free = attention_free.max(*ready) + batch.attention_ns;
            let there = attention_free + batch.hop_ns;
            ffn_free = ffn_free.max(there) + batch.ffn_ns;
            *ready = ffn_free + batch.hop_ns;
        }
    }
    ready.into_iter().max().unwrap_or(0)
}

/// A pipeline of stages that `batches` equal micro-batches pass: the slowest stage sets the pace,
/// and the others are filled once.
pub fn pipeline_ns(stage_ns: &[u64], batches: u64) -> u64 {
    let slowest = stage_ns.iter().copied().max().unwrap_or(0);
    if batches == 0 { 0 } else { stage_ns.iter().sum::<u64>() + (batches - 1) * slowest }
}

/// Prices steps of a replica whose attention and feed-forward networks are on different devices.
#[derive(Clone)]
pub struct AfdCost {
    /// Attention of all layers, of one of its devices.
    pub attention: SharedCost,
    /// The feed-forward networks of all layers, of one of their devices.
    pub ffn: SharedCost,
    /// Layers.
    pub layers: u32,
    /// Micro-batches.
    pub micro_batches: u32,
    /// Devices with attention; sequences are dealt to them.
    pub attention_devices: u32,
    /// Devices with feed-forward networks; tokens are dealt to them.
    pub ffn_devices: u32,
    /// Bytes of a token's row, one way.
    pub row_bytes: f64,
    /// Between the two.
    pub link: Link,
}

impl std::fmt::Debug for AfdCost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AfdCost").field("layers", &self.layers).finish_non_exhaustive()
    }
}

impl AfdCost {
    /// The part of a step that the busiest of `devices` has, of micro-batch `batch`.
    fn part(&self, shape: &StepShape, batch: usize, devices: u32) -> StepShape {
        let stride = self.micro_batches as usize * devices as usize;
        let seqs: Vec<_> = shape.seqs.iter().skip(batch).step_by(stride).copied().collect();
        let sampled = (f64::from(shape.sampled) * seqs.len() as f64
            / shape.seqs.len().max(1) as f64)
            .ceil() as u32;
        StepShape { seqs, sampled, experts: shape.experts }
    }
}

impl StepCost for AfdCost {
    fn price(&self, shape: &StepShape) -> StepPrice {
        if shape.seqs.is_empty() {
            return StepPrice::default();
        }
        let layers = u64::from(self.layers.max(1));
        let mut batches = Vec::with_capacity(self.micro_batches as usize);
        let mut energy_uj = 0;
        let mut extrapolated = false;
        let mut longest = (0, StepPrice::default());
        for batch in 0..self.micro_batches as usize {
            let part = self.part(shape, batch, self.attention_devices);
            if part.seqs.is_empty() {
                continue;
            }
            let tokens: u32 = part.seqs.iter().map(|s| s.new_tokens).sum();
            let attention = self.attention.price(&part);
            let ffn = self.ffn.price(&self.part(shape, batch, self.ffn_devices));
            for (price, devices) in [(attention, self.attention_devices), (ffn, self.ffn_devices)] {
                energy_uj += price.energy_uj * u64::from(devices);
                extrapolated |= price.extrapolated;
                if price.time_ns > longest.0 {
                    longest = (price.time_ns, price);
                }
            }
            batches.push(MicroBatch {
                attention_ns: attention.time_ns / layers,
                ffn_ns: ffn.time_ns / layers,
                hop_ns: self.link.message_ns(f64::from(tokens) * self.row_bytes) as u64,
            });
        }
        let time_ns = step_ns(&batches, layers);
        StepPrice { time_ns, energy_uj, extrapolated, bound: longest.1.bound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_units::SeedTree;
    use std::{cmp::Reverse, collections::BinaryHeap};

    /// The same by an event queue: two servers, first come, first served (of equals the first by
    /// number), jobs that go to and fro.
    fn by_events(batches: &[MicroBatch], layers: u64) -> u64 {
        // (moment, arrival at attention before ffn, batch): a batch arrives at a side.
        let mut events: BinaryHeap<Reverse<(u64, usize, usize)>> =
            (0..batches.len()).map(|b| Reverse((0, 0, b))).collect();
        let mut free = [0u64; 2];
        let mut done = vec![0u64; batches.len()];
        let mut last = 0;
        while let Some(Reverse((now, side, b))) = events.pop() {
            if side == 0 && done[b] == layers {
                last = last.max(now);
                continue;
            }
            let each = [batches[b].attention_ns, batches[b].ffn_ns][side];
            free[side] = free[side].max(now) + each;
            if side == 1 {
                done[b] += 1;
            }
            events.push(Reverse((free[side] + batches[b].hop_ns, 1 - side, b)));
        }
        last
    }

    #[test]
    fn closed_form_recurrence_and_events_agree() {
        let seed = 17;
        let mut random = SeedTree::root(seed).stream();
        for round in 0..3000 {
            let each = MicroBatch {
                attention_ns: 1 + random.next_below(50),
                ffn_ns: 1 + random.next_below(50),
                hop_ns: random.next_below(60),
            };
            let (count, layers) = (1 + random.next_below(6), 1 + random.next_below(40));
            let batches = vec![each; count as usize];
            let closed = equal_step_ns(each, count, layers);
            let at = format!("seed {seed}, round {round}: {each:?} {count} {layers}");
            assert_eq!(closed, step_ns(&batches, layers), "{at}");
            assert_eq!(closed, by_events(&batches, layers), "{at}");
        }
    }

    #[test]
    fn a_pipeline_fills_once() {
        let seed = 18;
        let mut random = SeedTree::root(seed).stream();
        for _ in 0..500 {
            let stages: Vec<u64> =
                (0..1 + random.next_below(8)).map(|_| 1 + random.next_below(30)).collect();
            let batches = 1 + random.next_below(12);
            let mut free = vec![0u64; stages.len()];
            let mut last = 0;
            for _ in 0..batches {
                let mut ready = 0;
                for (free, ns) in free.iter_mut().zip(&stages) {
                    *free = (*free).max(ready) + ns;
                    ready = *free;
                }
                last = ready;
            }
            assert_eq!(pipeline_ns(&stages, batches), last, "seed {seed}: {stages:?} {batches}");
        }
        // Equal stages: (m + p - 1) t.
        assert_eq!(pipeline_ns(&[7; 4], 9), (9 + 4 - 1) * 7);
    }
}
