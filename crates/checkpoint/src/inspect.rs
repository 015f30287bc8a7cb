//! What there is to know about a model file, as data to print or to serialize.

use std::collections::BTreeMap;

use dunlin_spec::{FfnSpec, KvType, ModelSpec};
use serde::Serialize;

use crate::{
    ModelFile, Role,
    arch::Datum,
    gguf::{Value, ValueType},
};

/// Facts about a model file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// The path that was opened.
    pub path: String,
    /// "gguf" or "safetensors".
    pub format: &'static str,
    /// The architecture's name in the file.
    pub architecture: String,
    /// The model's name, where the file has one.
    pub name: Option<String>,
    /// Sizes of the model.
    pub sizes: Sizes,
    /// Weights, embeddings and head included.
    pub parameters: u64,
    /// Of these, the weights that one token meets: of the experts, those that are used; of a head
    /// that is not tied, the head and not the embedding.
    pub active_parameters: u64,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Bits per weight over all tensors.
    pub bits_per_weight: f64,
    /// Bytes of weights that a decoded token reads (one row of the embedding; of the experts,
    /// those that are used).
    pub decode_bytes: u64,
    /// KV bytes that one token adds, for each KV type.
    pub kv_bytes_per_token: KvBytes,
    /// Tensors and bytes of each type, the most bytes first.
    pub types: Vec<TypeTotal>,
    /// Metadata in the order of the file, long values shortened.
    pub metadata: Vec<MetadataEntry>,
    /// Tensors in the order of the file.
    pub tensors: Vec<TensorEntry>,
}

/// Sizes of a model; those of layers are the largest that any layer has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "as in ModelSpec")]
pub struct Sizes {
    pub vocab_size: usize,
    pub d_model: usize,
    pub n_layers: usize,
    pub context_length: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub d_ff: usize,
    /// Zero for a model without experts.
    pub n_experts: usize,
    pub n_experts_used: usize,
    /// Layers that attend to a window only.
    pub windowed_layers: usize,
    pub tied_head: bool,
}

/// KV bytes for each way of storing them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct KvBytes {
    /// 32-bit float.
    pub f32: u64,
    /// 16-bit float.
    pub f16: u64,
    /// int8, with a 16-bit scale for every 32 features of a head.
    pub int8: u64,
}

impl KvBytes {
    /// The bytes for one type.
    pub fn of(&self, kv: KvType) -> u64 {
        match kv {
            KvType::F32 => self.f32,
            KvType::F16 => self.f16,
            KvType::Int8 => self.int8,
        }
    }
}

/// How much of a model one tensor type makes up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TypeTotal {
    /// The type's name.
    pub ty: &'static str,
    /// Tensors of it.
    pub tensors: usize,
    /// Weights in them.
    pub parameters: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A metadata key and its value as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MetadataEntry {
    /// The key.
    pub key: String,
    /// The value; long strings and lists are cut, and say how long they are.
    pub value: String,
}

/// A tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// The type's name.
    pub ty: &'static str,
    /// Sizes, the slowest-varying first.
    pub shape: Vec<usize>,
    /// Its length in bytes.
    pub bytes: u64,
}

/// What a run will need, by estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryEstimate {
    /// Tokens of context that the estimate is for.
    pub context: usize,
    /// Bytes of weights, mapped once. Packed for the kernels they take about as much.
    pub weights: u64,
    /// Bytes of KV at the full context. Layers with a window are counted in full.
    pub kv: u64,
    /// Bytes of activations and logits of a step.
    pub working: u64,
}

impl MemoryEstimate {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.working
    }
}

/// Tokens of a prefill step that working memory is estimated for.
const STEP_TOKENS: u64 = 512;

/// KV bytes that one token adds, over all layers.
pub fn kv_bytes_per_token(spec: &ModelSpec) -> KvBytes {
    let mut bytes = KvBytes { f32: 0, f16: 0, int8: 0 };
    for a in spec.layers.iter().map(|l| &l.attn) {
        let values = a.kv_values_per_token() as u64;
        let groups = a.n_kv_heads * (a.head_dim.div_ceil(32) + a.v_head_dim.div_ceil(32));
        bytes.f32 += 4 * values;
        bytes.f16 += 2 * values;
        bytes.int8 += values + 2 * groups as u64;
    }
    bytes
}

impl ModelFile {
    /// Everything that there is to know, gathered.
    pub fn inspect(&self) -> Inspection {
        let spec = self.spec();
        let tensors: Vec<TensorEntry> = self
            .tensors()
            .into_iter()
            .map(|(name, t)| TensorEntry {
                name: name.into(),
                ty: t.ty.name(),
                shape: t.shape(),
                bytes: t.bytes,
            })
            .collect();
        let parameters = tensors.iter().map(TensorEntry::parameters).sum();
        let tensor_bytes = tensors.iter().map(|t| t.bytes).sum();
        let (active_parameters, decode_bytes) = self.per_token();
        Inspection {
            path: self.path().display().to_string(),
            format: self.format(),
            architecture: spec.architecture.clone(),
            name: spec.name.clone(),
            sizes: sizes(spec),
            parameters,
            active_parameters,
            tensor_bytes,
            bits_per_weight: 8.0 * tensor_bytes as f64 / (parameters as f64).max(1.0),
            decode_bytes,
            kv_bytes_per_token: kv_bytes_per_token(spec),
            types: type_totals(&tensors),
            metadata: self.metadata(),
            tensors,
        }
    }

    /// What a run of up to `context` tokens, in one sequence or several, will need.
    pub fn memory_estimate(&self, context: usize, kv: KvType) -> MemoryEstimate {
        let spec = self.spec();
        let weights = self.tensors().iter().map(|(_, t)| t.bytes).sum();
        let widest = spec.layers.iter().map(|l| match &l.ffn {
            FfnSpec::Gated { d_ff, .. } => *d_ff,
            FfnSpec::Moe(m) => m.d_ff * m.n_used,
        });
        // Per token of a step, in floats: the residual stream and a copy, queries, keys and
        // values with attention's output, and gate with up.
        let attn = spec.layers.iter().map(|l| {
            2 * l.attn.n_heads * l.attn.head_dim.max(l.attn.v_head_dim)
                + l.attn.kv_values_per_token()
        });
        let per_token = 2 * spec.d_model + attn.max().unwrap_or(0) + 2 * widest.max().unwrap_or(0);
        let step = STEP_TOKENS.min(context as u64);
        MemoryEstimate {
            context,
            weights,
            kv: kv_bytes_per_token(spec).of(kv).saturating_mul(context as u64),
            working: 4 * (step * per_token as u64 + spec.vocab_size as u64),
        }
    }

    /// Weights and bytes that one decoded token meets.
    fn per_token(&self) -> (u64, u64) {
        let spec = self.spec();
        let (mut weights, mut bytes) = (0u64, 0u64);
        let mut experts: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for (role, layer, placed) in self.places() {
            let (n, b) = (placed.elements(), placed.bytes());
            match (role, layer) {
                // A row of it, where it is not the head as well.
                (Role::TokenEmbd, _) if !spec.tied_head => {
                    bytes += b / (spec.vocab_size as u64).max(1);
                }
                (role, Some(layer)) if role.is_expert() => {
                    let sum = experts.entry(layer).or_default();
                    *sum = (sum.0 + n, sum.1 + b);
                }
                _ => {
                    weights += n;
                    bytes += b;
                }
            }
        }
        for (layer, (n, b)) in experts {
            if let FfnSpec::Moe(m) = &spec.layers[layer].ffn {
                let share = |x: u64| x / m.n_experts as u64 * m.n_used as u64;
                weights += share(n);
                bytes += share(b);
            }
        }
        (weights, bytes)
    }
}

impl TensorEntry {
    fn parameters(&self) -> u64 {
        self.shape.iter().map(|d| *d as u64).product()
    }
}

fn sizes(spec: &ModelSpec) -> Sizes {
    let layers = &spec.layers;
    let most = |f: fn(&dunlin_spec::LayerSpec) -> usize| layers.iter().map(f).max().unwrap_or(0);
    Sizes {
        vocab_size: spec.vocab_size,
        d_model: spec.d_model,
        n_layers: layers.len(),
        context_length: spec.context_length,
        n_heads: most(|l| l.attn.n_heads),
        n_kv_heads: most(|l| l.attn.n_kv_heads),
        head_dim: most(|l| l.attn.head_dim),
        d_ff: most(|l| match &l.ffn {
            FfnSpec::Gated { d_ff, .. } => *d_ff,
            FfnSpec::Moe(m) => m.d_ff,
        }),
        n_experts: most(|l| match &l.ffn {
            FfnSpec::Gated { .. } => 0,
            FfnSpec::Moe(m) => m.n_experts,
        }),
        n_experts_used: most(|l| match &l.ffn {
            FfnSpec::Gated { .. } => 0,
            FfnSpec::Moe(m) => m.n_used,
        }),
        windowed_layers: layers.iter().filter(|l| l.attn.window.is_some()).count(),
        tied_head: spec.tied_head,
    }
}

fn type_totals(tensors: &[TensorEntry]) -> Vec<TypeTotal> {
    let mut totals: BTreeMap<&'static str, TypeTotal> = BTreeMap::new();
    for t in tensors {
        let sum = totals.entry(t.ty).or_insert(TypeTotal {
            ty: t.ty,
            tensors: 0,
            parameters: 0,
            bytes: 0,
        });
        sum.tensors += 1;
        sum.parameters += t.parameters();
        sum.bytes += t.bytes;
    }
    let mut totals: Vec<_> = totals.into_values().collect();
    totals.sort_by_key(|t| std::cmp::Reverse(t.bytes));
    totals
}

/// Characters of a string, and elements of a list, that are shown.
const SHOWN_CHARS: usize = 200;
const SHOWN_ITEMS: usize = 8;

/// A GGUF value as text.
pub(crate) fn show_value(value: &Value<'_>) -> String {
    match value {
        Value::U8(v) => v.to_string(),
        Value::I8(v) => v.to_string(),
        Value::U16(v) => v.to_string(),
        Value::I16(v) => v.to_string(),
        Value::U32(v) => v.to_string(),
        Value::I32(v) => v.to_string(),
        Value::F32(v) => v.to_string(),
        Value::U64(v) => v.to_string(),
        Value::I64(v) => v.to_string(),
        Value::F64(v) => v.to_string(),
        Value::Bool(v) => v.to_string(),
        Value::Str(v) => show_bytes(v),
        Value::Array(a) => {
            let shown = a.iter().take(SHOWN_ITEMS).map(|v| match v {
                Value::Str(s) => format!("{:?}", show_bytes(s)),
                // Lists within lists are not opened: they may be many.
                Value::Array(inner) => format!("{inner:?}"),
                v => show_value(&v),
            });
            list(shown.collect(), a.len(), a.elem() == ValueType::Str)
        }
    }
}

/// A JSON value as text.
pub(crate) fn show_datum(value: &Datum<'_>) -> String {
    match value {
        Datum::Str(s) => show_bytes(s.as_bytes()),
        Datum::List(items) => {
            list(items.iter().take(SHOWN_ITEMS).map(Datum::show).collect(), items.len(), false)
        }
        other => other.show(),
    }
}

fn list(shown: Vec<String>, len: usize, strings: bool) -> String {
    let what = if strings { "strings" } else { "values" };
    let more = if len > shown.len() { format!(", ... ({len} {what})") } else { String::new() };
    format!("[{}{more}]", shown.join(", "))
}

fn show_bytes(bytes: &[u8]) -> String {
    // Four bytes are the most that a character takes.
    let head = &bytes[..bytes.len().min(4 * SHOWN_CHARS)];
    let text = String::from_utf8_lossy(head);
    let shown: String = text.chars().take(SHOWN_CHARS).collect();
    if shown.len() < bytes.len() { format!("{shown}... ({} bytes)", bytes.len()) } else { shown }
}
