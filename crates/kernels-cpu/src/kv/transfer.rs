//! KV that leaves a pool and comes back: bytes with a layout of their own.
//!
//! # The layout
//! Version 1. Tokens follow each other, each a record of [`KvPool::token_bytes`] bytes. A record
//! holds the layers in order, a layer its KV heads in order, and a head, without padding:
//!
//! | what | shape | type |
//! |---|---|---|
//! | key | `[head_dim]` | the layer's type of keys: f32, half floats or int8 |
//! | key scales | `[ceil(head_dim / 16)]` | half floats, where keys are int8 |
//! | value | `[v_head_dim]` | the pool's type |
//! | value scales | `[ceil(v_head_dim / 32)]` | half floats, where values are int8 |
//!
//! Numbers have the bits that the pool stores, in the machine's byte order; keys have had RoPE
//! applied. Nothing else is converted, so a token that comes back is the same to the last bit, in
//! any block of any pool of the same [`KvPool::layout_fingerprint`].
//!
//! A pool keeps keys transposed, `[head_dim][32]`. They are turned in tiles of 16 features by 32
//! tokens: interleaving the halves of an array rotates the bits of its index by one, so that four
//! times is one direction and five times the other.

use super::{BLOCK_TOKENS, HeadPtr, KEY_GROUP, KvPool, LayerLayout, VALUE_GROUP, bytes_of};
use dunlin_spec::KvType;

/// The layout's version; part of every fingerprint.
const VERSION: u8 = 1;

/// Features of a tile.
const TILE: usize = 16;
/// Values of a tile.
const TILE_LEN: usize = TILE * BLOCK_TOKENS;
/// Interleavings from `[TILE][32]` to `[32][TILE]`, and back.
const TO_TOKENS: u32 = TILE.trailing_zeros();
const TO_FEATURES: u32 = BLOCK_TOKENS.trailing_zeros();

const _: () = assert!(TILE.is_power_of_two() && BLOCK_TOKENS.is_power_of_two());

impl KvPool {
    /// Bytes of one token's KV outside the pool, over all layers.
    pub fn token_bytes(&self) -> usize {
        self.layers.iter().map(|l| l.geometry.n_kv_heads * l.record_bytes()).sum()
    }

    /// A hash of all that the meaning of exported bytes depends on: the layout's version, byte
    /// order, types, layers, heads, features and groups. Not of the model that computed them.
    pub fn layout_fingerprint(&self) -> u64 {
        let mut hash = Fnv::new();
        hash.add(u64::from(VERSION));
        hash.add(u64::from(cfg!(target_endian = "big")));
        hash.add(KEY_GROUP as u64);
        hash.add(VALUE_GROUP as u64);
        hash.add(self.layers.len() as u64);
        for layer in &self.layers {
            let g = layer.geometry;
            for n in [g.n_kv_heads, g.head_dim, g.v_head_dim] {
                hash.add(n as u64);
            }
            hash.add(type_code(layer.k_type));
            hash.add(type_code(layer.v_type));
        }
        hash.0
    }

    /// Appends the KV of the first `tokens` positions of a block, `[tokens][token_bytes]`.
    ///
    /// # Panics
    /// Where the block does not exist or `tokens` is above [`BLOCK_TOKENS`].
    pub fn export_block(&self, block: u32, tokens: usize, to: &mut Vec<u8>) {
        let block = block as usize;
        assert!(block < self.n_blocks && tokens <= BLOCK_TOKENS);
        let stride = self.token_bytes();
        let start = to.len();
        to.resize(start + tokens * stride, 0);
        // SAFETY: one record for each token has been made room for.
        let records = unsafe { to.as_mut_ptr().add(start) };
        self.each_head(block, |layer, head, offset| {
            // SAFETY: the head exists and its part of the records lies within them; lanes that were
            // never written hold some bits all the same.
            unsafe { Run { layer, head, stride, tokens }.export(records.add(offset)) }
        });
    }

    /// Puts KV that was exported from a pool of the same layout at the first positions of a block.
    /// Other positions keep what they hold.
    ///
    /// # Errors
    /// What does not fit: the block does not exist, or the bytes are not a whole number of records,
    /// or more than a block holds. Nothing is written then.
    pub fn import_block(&mut self, block: u32, from: &[u8]) -> Result<(), String> {
        let (block, stride) = (block as usize, self.token_bytes());
        if block >= self.n_blocks {
            return Err(format!("there are {} blocks", self.n_blocks));
        }
        if !from.len().is_multiple_of(stride.max(1)) || from.len() > BLOCK_TOKENS * stride {
            return Err(format!(
                "{} bytes are not up to {BLOCK_TOKENS} tokens of {stride} bytes",
                from.len()
            ));
        }
        let tokens = from.len() / stride.max(1);
        self.each_head(block, |layer, head, offset| {
            // SAFETY: the head exists, `&mut self` excludes other access, and its part of each of
            // the `tokens` records lies within the bytes.
            unsafe {
                Run { layer, head, stride, tokens }.import(from.as_ptr().wrapping_add(offset))
            }
        });
        Ok(())
    }

    /// Calls `f` for all heads of a block, with the offset of the head's bytes in a record.
    fn each_head(&self, block: usize, mut f: impl FnMut(&LayerLayout, HeadPtr, usize)) {
        let mut offset = 0;
        for layer in &self.layers {
            for head in 0..layer.geometry.n_kv_heads {
                f(layer, self.head(layer, block, head), offset);
                offset += layer.record_bytes();
            }
        }
    }
}

impl LayerLayout {
    /// Bytes of each part of a head's record: key, key scales, value, value scales.
    fn record_parts(&self) -> [usize; 4] {
        let scales = |kv_type, features: usize, group| match kv_type {
            KvType::F32 | KvType::F16 => 0,
            KvType::Int8 => 2 * features.div_ceil(group),
        };
        let (d, v) = (self.geometry.head_dim, self.geometry.v_head_dim);
        [
            d * bytes_of(self.k_type),
            scales(self.k_type, d, KEY_GROUP),
            v * bytes_of(self.v_type),
            scales(self.v_type, v, VALUE_GROUP),
        ]
    }

    /// Bytes of a head's record.
    fn record_bytes(&self) -> usize {
        self.record_parts().iter().sum()
    }
}

/// The first tokens of one head of a block.
struct Run<'a> {
    layer: &'a LayerLayout,
    head: HeadPtr,
    /// Bytes between the records of two tokens.
    stride: usize,
    tokens: usize,
}

impl Run<'_> {
    /// # Safety
    /// `to` is the head's part of the first record; there are `tokens` records.
    unsafe fn export(&self, to: *mut u8) {
        let [key, key_scales, value, value_scales] = self.layer.record_parts();
        let row = self.layer.v_stride * bytes_of(self.layer.v_type);
        // SAFETY: the caller's; the parts add up to the record.
        unsafe {
            match self.layer.k_type {
                KvType::F32 => self.columns_out::<u32>(self.head.k, to),
                KvType::F16 => self.columns_out::<u16>(self.head.k, to),
                KvType::Int8 => self.columns_out::<u8>(self.head.k, to),
            }
            let to = to.add(key);
            self.scales_out(self.head.k_scales, key_scales / 2, to);
            let to = to.add(key_scales);
            for t in 0..self.tokens {
                let from = self.head.v.add(t * row).cast_const();
                from.copy_to_nonoverlapping(to.add(t * self.stride), value);
            }
            self.scales_out(self.head.v_scales, value_scales / 2, to.add(value));
        }
    }

    /// # Safety
    /// `from` is the head's part of the first record; there are `tokens` records. Nothing else
    /// touches the head.
    unsafe fn import(&self, from: *const u8) {
        let [key, key_scales, value, value_scales] = self.layer.record_parts();
        let row = self.layer.v_stride * bytes_of(self.layer.v_type);
        // SAFETY: the caller's; the parts add up to the record.
        unsafe {
            match self.layer.k_type {
                KvType::F32 => self.columns_in::<u32>(from, self.head.k),
                KvType::F16 => self.columns_in::<u16>(from, self.head.k),
                KvType::Int8 => self.columns_in::<u8>(from, self.head.k),
            }
            let from = from.wrapping_add(key);
            self.scales_in(from, key_scales / 2, self.head.k_scales);
            let from = from.wrapping_add(key_scales);
            for t in 0..self.tokens {
                let from = from.wrapping_add(t * self.stride);
                from.copy_to_nonoverlapping(self.head.v.add(t * row), value);
            }
            self.scales_in(from.wrapping_add(value), value_scales / 2, self.head.v_scales);
        }
    }

    /// From `[head_dim][32]` to `head_dim` values in each record.
    unsafe fn columns_out<T: Copy + Default>(&self, from: *const u8, to: *mut u8) {
        let size = size_of::<T>();
        let head_dim = self.layer.geometry.head_dim;
        let mut tile = [T::default(); TILE_LEN];
        for first in (0..head_dim).step_by(TILE) {
            let n = TILE.min(head_dim - first);
            // SAFETY: the head has these `n` rows; a record has these `n` values.
            unsafe {
                let from = from.cast::<T>().add(first * BLOCK_TOKENS);
                tile.as_mut_ptr().copy_from_nonoverlapping(from, n * BLOCK_TOKENS);
                rotate(&mut tile, TO_TOKENS);
                let to = to.add(first * size);
                for (t, column) in tile.chunks_exact(TILE).enumerate().take(self.tokens) {
                    let (from, to) = (column.as_ptr().cast::<u8>(), to.add(t * self.stride));
                    if n == TILE {
                        // A length that is known is a move or two.
                        from.copy_to_nonoverlapping(to, TILE * size);
                    } else {
                        from.copy_to_nonoverlapping(to, n * size);
                    }
                }
            }
        }
    }

    /// From `head_dim` values in each record to `[head_dim][32]`.
    unsafe fn columns_in<T: Copy + Default>(&self, from: *const u8, to: *mut u8) {
        let size = size_of::<T>();
        let head_dim = self.layer.geometry.head_dim;
        let mut tile = [T::default(); TILE_LEN];
        for first in (0..head_dim).step_by(TILE) {
            let n = TILE.min(head_dim - first);
            let from = from.wrapping_add(first * size);
            // SAFETY: a record has these `n` values; the head has these `n` rows.
            unsafe {
                for (t, column) in tile.chunks_exact_mut(TILE).enumerate().take(self.tokens) {
                    let (from, to) = (from.wrapping_add(t * self.stride), column.as_mut_ptr());
                    if n == TILE {
                        from.copy_to_nonoverlapping(to.cast(), TILE * size);
                    } else {
                        from.copy_to_nonoverlapping(to.cast(), n * size);
                    }
                }
                rotate(&mut tile, TO_FEATURES);
                let to = to.cast::<T>().add(first * BLOCK_TOKENS);
                for (d, row) in tile.chunks_exact(BLOCK_TOKENS).enumerate().take(n) {
                    let to = to.add(d * BLOCK_TOKENS);
                    to.copy_from_nonoverlapping(row.as_ptr(), self.tokens);
                }
            }
        }
    }

    /// From `[groups][32]` to `groups` scales in each record, which need not be aligned.
    unsafe fn scales_out(&self, from: *const u16, groups: usize, to: *mut u8) {
        for t in 0..self.tokens {
            for g in 0..groups {
                // SAFETY: the head and the record have this scale.
                unsafe {
                    let to = to.add(t * self.stride + 2 * g).cast::<u16>();
                    to.write_unaligned(from.add(g * BLOCK_TOKENS + t).read());
                }
            }
        }
    }

    /// From `groups` scales in each record to `[groups][32]`.
    unsafe fn scales_in(&self, from: *const u8, groups: usize, to: *mut u16) {
        for t in 0..self.tokens {
            for g in 0..groups {
                let from = from.wrapping_add(t * self.stride + 2 * g).cast::<u16>();
                // SAFETY: the record and the head have this scale.
                unsafe { to.add(g * BLOCK_TOKENS + t).write(from.read_unaligned()) }
            }
        }
    }
}

/// Moves the value at each index to the index with its bits rotated left by `times`.
#[inline(always)]
fn rotate<T: Copy + Default>(tile: &mut [T; TILE_LEN], times: u32) {
    let mut other = [T::default(); TILE_LEN];
    for _ in 0..times {
        let (low, high) = tile.split_at(TILE_LEN / 2);
        for ((pair, low), high) in other.chunks_exact_mut(2).zip(low).zip(high) {
            pair[0] = *low;
            pair[1] = *high;
        }
        *tile = other;
    }
}

fn type_code(kv_type: KvType) -> u64 {
    match kv_type {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Int8 => 2,
    }
}

/// FNV-1a.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, n: u64) {
        for byte in n.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
