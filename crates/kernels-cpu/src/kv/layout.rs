//! Where each value stands in a block.

use crate::KernelError;
use crate::simd::LANES;
use dunlin_spec::{AttnSpec, KvType};

/// Positions in a block.
pub const BLOCK_TOKENS: usize = 32;

/// Features that share a scale where keys and values are int8.
pub const KV_GROUP: usize = 32;

/// The shape of a layer's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGeometry {
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Features of a key.
    pub head_dim: usize,
    /// Features of a value.
    pub v_head_dim: usize,
}

impl From<&AttnSpec> for KvGeometry {
    fn from(spec: &AttnSpec) -> Self {
        KvGeometry {
            n_kv_heads: spec.n_kv_heads,
            head_dim: spec.head_dim,
            v_head_dim: spec.v_head_dim,
        }
    }
}

/// Where one layer's keys and values stand within a block. Everything is aligned to 64 bytes.
#[derive(Debug, Clone)]
pub(crate) struct LayerLayout {
    pub(crate) geometry: KvGeometry,
    /// The layer's first byte in a block.
    pub(crate) offset: usize,
    /// Bytes of a head.
    pub(crate) head_bytes: usize,
    /// Bytes of one stored value.
    pub(crate) value_bytes: usize,
    /// Values between the rows of two tokens' values: whole vectors.
    pub(crate) v_stride: usize,
    /// Offsets within a head; keys stand at zero.
    k_scales_at: usize,
    v_at: usize,
    v_scales_at: usize,
    scaled: bool,
}

/// The keys and values of one head in one block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadPtr {
    /// `[head_dim][32]`.
    pub(crate) k: *mut u8,
    /// `[ceil(head_dim / KV_GROUP)][32]` half floats, int8 only.
    pub(crate) k_scales: *mut u16,
    /// `[32][v_stride]`.
    pub(crate) v: *mut u8,
    /// `[ceil(v_head_dim / KV_GROUP)][32]` half floats, int8 only.
    pub(crate) v_scales: *mut u16,
}

/// `count` pieces of `bytes` bytes, `stride` apart, from `offset` in a head.
pub(crate) struct TokenRun {
    pub(crate) offset: usize,
    pub(crate) count: usize,
    pub(crate) stride: usize,
    pub(crate) bytes: usize,
}

impl LayerLayout {
    /// The layouts of all layers, one after another, and the bytes of a block.
    pub(super) fn of_model(
        geometry: &[KvGeometry],
        kv_type: KvType,
    ) -> Result<(Vec<Self>, usize), KernelError> {
        let mut at = 0usize;
        let mut layers = Vec::with_capacity(geometry.len());
        for (i, &g) in geometry.iter().enumerate() {
            let layer = Self::new(g, kv_type, at);
            let (layer, end) = layer.ok_or_else(|| KernelError::BadShape {
                what: "KV geometry",
                problem: format!("layer {i} has an empty or too large dimension: {g:?}"),
            })?;
            layers.push(layer);
            at = end;
        }
        Ok((layers, at))
    }

    /// One layer that starts at `offset`, and where it ends.
    fn new(geometry: KvGeometry, kv_type: KvType, offset: usize) -> Option<(Self, usize)> {
        // Far above any model, far below overflow.
        const LARGEST: usize = 1 << 16;
        let KvGeometry { n_kv_heads, head_dim, v_head_dim } = geometry;
        if [n_kv_heads, head_dim, v_head_dim].iter().any(|n| !(1..=LARGEST).contains(n)) {
            return None;
        }
        let value_bytes = match kv_type {
            KvType::F32 => 4,
            KvType::F16 => 2,
            KvType::Int8 => 1,
        };
        let scaled = kv_type == KvType::Int8;
        let scales = |features: usize| {
            if scaled { features.div_ceil(KV_GROUP) * BLOCK_TOKENS * 2 } else { 0 }
        };
        let v_stride = v_head_dim.next_multiple_of(LANES);
        let k_scales_at = (head_dim * BLOCK_TOKENS * value_bytes).next_multiple_of(64);
        let v_at = k_scales_at + scales(head_dim);
        let v_scales_at = v_at + v_stride * BLOCK_TOKENS * value_bytes;
        let head_bytes = v_scales_at + scales(v_head_dim);
        let end = offset.checked_add(n_kv_heads.checked_mul(head_bytes)?)?;
        let layer = LayerLayout {
            geometry,
            offset,
            head_bytes,
            value_bytes,
            v_stride,
            k_scales_at,
            v_at,
            v_scales_at,
            scaled,
        };
        Some((layer, end))
    }

    /// The parts of a head that starts at `at`.
    #[inline(always)]
    pub(super) fn head_ptr(&self, at: *mut u8) -> HeadPtr {
        // SAFETY: a head has these parts, and the caller's pointer is to a whole head.
        unsafe {
            HeadPtr {
                k: at,
                k_scales: at.add(self.k_scales_at).cast(),
                v: at.add(self.v_at),
                v_scales: at.add(self.v_scales_at).cast(),
            }
        }
    }

    /// The bytes that hold the first `tokens` positions of a head.
    pub(super) fn token_runs(&self, tokens: usize) -> Vec<TokenRun> {
        let each = self.value_bytes;
        let mut runs = vec![
            TokenRun {
                offset: 0,
                count: self.geometry.head_dim,
                stride: BLOCK_TOKENS * each,
                bytes: tokens * each,
            },
            TokenRun {
                offset: self.v_at,
                count: 1,
                stride: 0,
                bytes: tokens * self.v_stride * each,
            },
        ];
        if self.scaled {
            let scales = |offset, features: usize| TokenRun {
                offset,
                count: features.div_ceil(KV_GROUP),
                stride: BLOCK_TOKENS * 2,
                bytes: tokens * 2,
            };
            runs.push(scales(self.k_scales_at, self.geometry.head_dim));
            runs.push(scales(self.v_scales_at, self.geometry.v_head_dim));
        }
        runs
    }
}
