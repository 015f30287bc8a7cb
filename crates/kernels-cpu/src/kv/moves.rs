//! KV that takes other positions: what a sequence keeps when tokens before it are removed.
//!
//! A key carries its position in the angles of its rotary embedding, and rotations add up: turning
//! it by `by` times each pair's frequency makes it the key of the same token `by` positions later.
//! Values carry no position.

use super::{BLOCK_TOKENS, KvPool};
use crate::CpuFeatures;
use crate::elementwise::{RopeTable, rope_neox};

impl KvPool {
    /// Copies the KV of `tokens` positions from lane `from.1` of block `from.0` on to lane `to.1` of
    /// block `to.0`, in all layers, with keys turned by `by` positions. `ropes[layer]` is the table
    /// of the layer's embedding. Turned keys are rounded to their stored form once more; with `by`
    /// zero every copy has the same bits.
    ///
    /// # Errors
    /// A block or a lane that does not exist, or one block that is both.
    ///
    /// # Panics
    /// Where there are not as many tables as layers.
    pub fn move_tokens(
        &mut self,
        cpu: CpuFeatures,
        from: (u32, usize),
        to: (u32, usize),
        tokens: usize,
        ropes: &[&RopeTable],
        by: i64,
    ) -> Result<(), String> {
        assert_eq!(ropes.len(), self.n_layers(), "one table for each layer");
        for (block, lane) in [from, to] {
            if block as usize >= self.n_blocks() {
                return Err(format!("there are {} blocks", self.n_blocks()));
            }
            if lane.checked_add(tokens).is_none_or(|end| end > BLOCK_TOKENS) {
                return Err(format!("{tokens} positions from {lane} on are not in a block"));
            }
        }
        if from.0 == to.0 {
            return Err("KV moves from one block to another".into());
        }
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for (layer, rope) in ropes.iter().enumerate() {
            let g = self.geometry(layer);
            k.resize(g.n_kv_heads * g.head_dim, 0.0);
            v.resize(g.n_kv_heads * g.v_head_dim, 0.0);
            let (cos, sin) = turn(rope, by);
            for i in 0..tokens {
                self.export(layer, from.0, from.1 + i, &mut k, &mut v);
                if by != 0 {
                    for head in k.chunks_exact_mut(g.head_dim) {
                        rope_neox(cpu, head, &cos, &sin);
                    }
                }
                self.store(cpu, layer, to.0, to.1 + i, &k, &v);
            }
        }
        Ok(())
    }
}

/// Cosines and sines of a rotation by `by` positions. The factor that some embeddings multiply
/// queries and keys by is in the keys already.
fn turn(rope: &RopeTable, by: i64) -> (Vec<f32>, Vec<f32>) {
    let angles = || rope.frequencies().iter().map(|f| by as f64 * f);
    let cos = angles().map(|a| libm::cos(a) as f32).collect();
    (cos, angles().map(|a| libm::sin(a) as f32).collect())
}
