//! Where each value stands in a block.

use crate::KernelError;
use crate::simd::LANES;
use dunlin_spec::{AttnSpec, KvType};

/// Positions in a block.
pub const BLOCK_TOKENS: usize = 32;

/// Features that share a scale where keys are int8. Scores feel the error of keys much more than
/// outputs that of values: groups of 32 double the error of a long prompt's logits.
pub const KEY_GROUP: usize = 16;

/// Features that share a scale where values are int8.
pub const VALUE_GROUP: usize = 32;

/// The shape of a layer's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGeometry {
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Features of a key.
    pub head_dim: usize,
    /// Features of a value.
    pub v_head_dim: usize,
    /// Where the pool is int8, keys of this layer are half floats all the same. See
    /// [`needs_wide_keys`].
    pub wide_keys: bool,
}

/// Biases of key channels above this make int8 keys too coarse.
const WIDE_KEY_BIAS: f32 = 16.0;

/// Whether a layer's keys should stay half floats in an int8 pool, by the bias of its key
/// projection, `[n_kv_heads * head_dim]`.
///
/// Qwen2's first layers have key biases in the hundreds on a few channels. They carry no
/// information, being the same for every token, but an int8 scale that must hold them leaves the
/// other channels, and the small differences on their own, with a rounding error that ruins the
/// scores. Few layers are so, and they cost less in half floats than finer scales would cost
/// everywhere. The size of a channel's bias is taken over its RoPE pair, `(i, i + rope_dim / 2)`,
/// which rotation leaves alone.
pub fn needs_wide_keys(bias: &[f32], head_dim: usize, rope_dim: usize) -> bool {
    let half = rope_dim.min(head_dim) / 2;
    let pair = |head: &[f32], i: usize| {
        let other = match i {
            i if i < half && i + half < head.len() => head[i + half],
            i if i < 2 * half => head[i - half],
            _ => 0.0,
        };
        head[i] * head[i] + other * other
    };
    let limit = WIDE_KEY_BIAS * WIDE_KEY_BIAS;
    bias.chunks(head_dim.max(1)).any(|head| (0..head.len()).any(|i| pair(head, i) > limit))
}

impl From<&AttnSpec> for KvGeometry {
    fn from(spec: &AttnSpec) -> Self {
        KvGeometry {
            n_kv_heads: spec.n_kv_heads,
            head_dim: spec.head_dim,
            v_head_dim: spec.v_head_dim,
            wide_keys: false,
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
    /// How keys and values are stored.
    pub(crate) k_type: KvType,
    pub(crate) v_type: KvType,
    /// Values between the rows of two tokens' values: whole vectors.
    pub(crate) v_stride: usize,
    /// Offsets within a head; keys stand at zero.
    k_scales_at: usize,
    v_at: usize,
    v_scales_at: usize,
}

/// The keys and values of one head in one block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadPtr {
    /// `[head_dim][32]`.
    pub(crate) k: *mut u8,
    /// `[ceil(head_dim / KEY_GROUP)][32]` half floats, int8 only.
    pub(crate) k_scales: *mut u16,
    /// `[32][v_stride]`.
    pub(crate) v: *mut u8,
    /// `[ceil(v_head_dim / VALUE_GROUP)][32]` half floats, int8 only.
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
        let KvGeometry { n_kv_heads, head_dim, v_head_dim, wide_keys } = geometry;
        if [n_kv_heads, head_dim, v_head_dim].iter().any(|n| !(1..=LARGEST).contains(n)) {
            return None;
        }
        let wide = wide_keys && kv_type == KvType::Int8;
        let (k_type, v_type) = (if wide { KvType::F16 } else { kv_type }, kv_type);
        let v_stride = v_head_dim.next_multiple_of(LANES);
        let k_scales_at = (head_dim * BLOCK_TOKENS * bytes_of(k_type)).next_multiple_of(64);
        let v_at = k_scales_at + scale_bytes(k_type, head_dim, KEY_GROUP);
        let v_scales_at = v_at + v_stride * BLOCK_TOKENS * bytes_of(v_type);
        let head_bytes = v_scales_at + scale_bytes(v_type, v_head_dim, VALUE_GROUP);
        let end = offset.checked_add(n_kv_heads.checked_mul(head_bytes)?)?;
        let layer = LayerLayout {
            geometry,
            offset,
            head_bytes,
            k_type,
            v_type,
            v_stride,
            k_scales_at,
            v_at,
            v_scales_at,
        };
        Some((layer, end))
    }

    /// Bytes of a head's keys and their scales, which come before its values.
    #[inline(always)]
    pub(crate) fn key_bytes(&self) -> usize {
        self.v_at
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
        let KvGeometry { head_dim, v_head_dim, .. } = self.geometry;
        let (k_bytes, v_bytes) = (bytes_of(self.k_type), bytes_of(self.v_type));
        let mut runs = vec![
            TokenRun {
                offset: 0,
                count: head_dim,
                stride: BLOCK_TOKENS * k_bytes,
                bytes: tokens * k_bytes,
            },
            TokenRun {
                offset: self.v_at,
                count: 1,
                stride: 0,
                bytes: tokens * self.v_stride * v_bytes,
            },
        ];
        let scales = [
            (self.k_type, self.k_scales_at, head_dim.div_ceil(KEY_GROUP)),
            (self.v_type, self.v_scales_at, v_head_dim.div_ceil(VALUE_GROUP)),
        ];
        for (kv_type, offset, count) in scales {
            if kv_type == KvType::Int8 {
                runs.push(TokenRun { offset, count, stride: BLOCK_TOKENS * 2, bytes: tokens * 2 });
            }
        }
        runs
    }
}

/// Bytes of one stored value.
pub(crate) const fn bytes_of(kv_type: KvType) -> usize {
    match kv_type {
        KvType::F32 => 4,
        KvType::F16 => 2,
        KvType::Int8 => 1,
    }
}

/// Bytes of a block's scales for one head.
const fn scale_bytes(kv_type: KvType, features: usize, group: usize) -> usize {
    match kv_type {
        KvType::F32 | KvType::F16 => 0,
        KvType::Int8 => features.div_ceil(group) * BLOCK_TOKENS * 2,
    }
}
