//! Physical storage of keys and values on the CPU.
//!
//! A [`KvPool`] holds all KV blocks of one model. A block is [`BLOCK_TOKENS`] consecutive positions
//! of one sequence, in all layers; which blocks belong to whom is the caller's business. For each
//! layer and KV head a block holds
//!
//! - keys transposed, `[head_dim][32]`, so that one SIMD lane is one token;
//! - values, `[32][v_head_dim]`, so that one lane is one feature (rows padded to whole vectors);
//! - for int8, one scale for each token and each [`KEY_GROUP`] features of a key or [`VALUE_GROUP`]
//!   of a value, `[groups][32]`.
//!
//! What a token's stored form is depends on that token alone: never on its neighbours in the block.
//! Blocks leave a pool and come back in a layout of their own: see [`KvPool::export_block`].
//! Memory comes straight from the system, in huge pages where it has them, and is touched only when
//! a block is written.

mod codec;
mod layout;
mod memory;
mod moves;
mod store;
mod transfer;

pub(crate) use codec::{Codec, F16Codec, F32Codec, Int8Codec, SCALE_UNIT};
pub use layout::{BLOCK_TOKENS, KEY_GROUP, KvGeometry, VALUE_GROUP, needs_wide_keys};
pub(crate) use layout::{HeadPtr, LayerLayout, bytes_of};
pub use store::KvRows;

use crate::{CpuFeatures, KernelError};
use dunlin_spec::{KvType, ModelSpec};
pub(crate) use memory::Memory;

/// All KV blocks of one model.
#[derive(Debug)]
pub struct KvPool {
    kv_type: KvType,
    n_blocks: usize,
    block_bytes: usize,
    layers: Vec<LayerLayout>,
    memory: Memory,
}

impl KvPool {
    /// Room for `n_blocks` blocks of the layers that `geometry` describes, nothing stored yet.
    ///
    /// # Errors
    /// A geometry out of range, or no memory.
    pub fn new(
        geometry: &[KvGeometry],
        kv_type: KvType,
        n_blocks: usize,
    ) -> Result<Self, KernelError> {
        let (layers, block_bytes) = LayerLayout::of_model(geometry, kv_type)?;
        let bytes = block_bytes.checked_mul(n_blocks).filter(|&b| b <= isize::MAX as usize);
        let Some(bytes) = bytes else {
            return Err(KernelError::KvMemory { bytes: usize::MAX, reason: "too large".into() });
        };
        let memory = Memory::new(bytes)?;
        Ok(KvPool { kv_type, n_blocks, block_bytes, layers, memory })
    }

    /// Room for `n_blocks` blocks of a model none of whose layers has wide keys.
    ///
    /// # Errors
    /// As [`KvPool::new`].
    pub fn for_model(
        spec: &ModelSpec,
        kv_type: KvType,
        n_blocks: usize,
    ) -> Result<Self, KernelError> {
        let geometry: Vec<_> = spec.layers.iter().map(|l| KvGeometry::from(&l.attn)).collect();
        Self::new(&geometry, kv_type, n_blocks)
    }

    /// Bytes of one block of a model, over all layers.
    ///
    /// # Errors
    /// A geometry out of range.
    pub fn bytes_per_block(geometry: &[KvGeometry], kv_type: KvType) -> Result<usize, KernelError> {
        Ok(LayerLayout::of_model(geometry, kv_type)?.1)
    }

    /// How keys and values are stored.
    pub fn kv_type(&self) -> KvType {
        self.kv_type
    }

    /// Blocks; ids are `0..n_blocks`.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Layers.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Bytes of one block, over all layers.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// The shape of a layer's keys and values.
    ///
    /// # Panics
    /// Where there is no such layer.
    pub fn geometry(&self, layer: usize) -> KvGeometry {
        self.layers[layer].geometry
    }

    pub(crate) fn layer(&self, layer: usize) -> &LayerLayout {
        &self.layers[layer]
    }

    /// Where the keys and values of a head stand in a block.
    #[inline(always)]
    pub(crate) fn head(&self, layer: &LayerLayout, block: usize, head: usize) -> HeadPtr {
        debug_assert!(block < self.n_blocks && head < layer.geometry.n_kv_heads);
        let at = block * self.block_bytes + layer.offset + head * layer.head_bytes;
        // SAFETY: the block and the head exist, so the offset lies within the memory.
        layer.head_ptr(unsafe { self.memory.ptr().add(at) })
    }

    /// Stores the keys `[n_kv_heads * head_dim]` and values `[n_kv_heads * v_head_dim]` of one
    /// token in lane `lane` of a block of a layer.
    ///
    /// # Panics
    /// Where the layer, block or lane does not exist or a length is wrong.
    pub fn store(
        &mut self,
        cpu: CpuFeatures,
        layer: usize,
        block: u32,
        lane: usize,
        k: &[f32],
        v: &[f32],
    ) {
        let rows = KvRows { k, k_stride: k.len(), v, v_stride: v.len(), n: 1 };
        // SAFETY: `&mut self` excludes every other access.
        unsafe { self.store_rows(cpu, layer, block, lane, rows) }
    }

    /// Reads back what a token's queries see, as f32, exactly. `k` is `[n_kv_heads * head_dim]`,
    /// `v` `[n_kv_heads * v_head_dim]`. Storing it again, in any pool of the same type, gives the
    /// same stored bits.
    ///
    /// # Panics
    /// As [`KvPool::store`].
    pub fn export(&self, layer: usize, block: u32, lane: usize, k: &mut [f32], v: &mut [f32]) {
        store::export(self, layer, block as usize, lane, k, v);
    }

    /// Copies the first `tokens` positions of a block to another block, in all layers.
    ///
    /// # Panics
    /// Where a block does not exist or `tokens` is above [`BLOCK_TOKENS`].
    pub fn copy_block(&mut self, from: u32, to: u32, tokens: usize) {
        let (from, to) = (from as usize, to as usize);
        assert!(from < self.n_blocks && to < self.n_blocks && tokens <= BLOCK_TOKENS);
        if from == to || tokens == 0 {
            return;
        }
        let base = self.memory.ptr();
        for layer in &self.layers {
            for head in 0..layer.geometry.n_kv_heads {
                let at = layer.offset + head * layer.head_bytes;
                for run in layer.token_runs(tokens) {
                    let (start, each) = (at + run.offset, run.bytes);
                    for i in 0..run.count {
                        let at = start + i * run.stride;
                        // SAFETY: both blocks exist and differ, and runs lie within a head.
                        unsafe {
                            let from = base.add(from * self.block_bytes + at);
                            from.copy_to_nonoverlapping(base.add(to * self.block_bytes + at), each);
                        }
                    }
                }
            }
        }
    }

    /// Fills all memory with one byte: what tests use to show that unwritten lanes are never read.
    #[cfg(test)]
    pub(crate) fn fill(&mut self, byte: u8) {
        // SAFETY: this is all of the memory, and `&mut self` excludes other access.
        unsafe { self.memory.ptr().write_bytes(byte, self.block_bytes * self.n_blocks) }
    }
}

#[cfg(test)]
mod tests;
