//! Architectures as data: one table row for each, from a file's metadata and tensor names to a
//! [`ModelSpec`](dunlin_spec::ModelSpec) and roles.
//!
//! `gguf_table` and `hf_table` hold the rows; `build` turns a row and a file's metadata into a spec
//! without ever asking which architecture it is. A new architecture is a new row; new mathematics
//! needs a field here and one in the spec.

mod build;
mod gguf_table;
mod hf_table;
mod meta;
mod rope;

pub(crate) use build::{Built, build};
pub(crate) use meta::{Datum, Lookup, MAX_LIST, Meta};

use dunlin_spec::Activation;

use crate::{CheckpointError, Role, error::Result};

/// One architecture in one kind of file.
pub(crate) struct Architecture {
    /// Its name in the file: `general.architecture`, or the class in `config.json`.
    pub name: &'static str,
    /// Where the numbers are.
    pub keys: &'static Keys,
    /// Where the tensors are; of several rules for a role, the first whose tensor exists.
    pub tensors: &'static [NameRule],
    /// Tensors that need not be used, by how their names begin and end.
    pub ignored: &'static [(&'static str, &'static str)],
    /// Query and key rows are stored for interleaved pairs (2i, 2i+1) and must be permuted.
    pub interleaved_rope: bool,
    /// Added to every norm's weight (Gemma stores them minus one).
    pub norm_offset: f32,
    /// The gate's activation function where the file does not name one.
    pub activation: Activation,
    /// Embeddings are multiplied by `sqrt(d_model)`.
    pub scaled_embeddings: bool,
    /// Query and key heads are normed.
    pub qk_norm: bool,
    /// Attention's and the feed-forward network's outputs are normed.
    pub post_norms: bool,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: Presence,
    /// Whether the output projection has one.
    pub out_bias: Presence,
    /// Which layers have a sliding window.
    pub window: WindowRule,
    /// RoPE's base in layers with a window, where it is not that of the others: its key and its
    /// default.
    pub local_rope_base: Option<(&'static str, f64)>,
    /// How many features a head has where the file does not say; `None`: `d_model / n_heads`.
    pub default_head_dim: Option<usize>,
    /// The layer count of the one size of the family whose scores are scaled by
    /// `1/sqrt(d_model / n_heads)` although no key says so.
    pub score_by_width_at_layers: Option<usize>,
    /// Whether the chosen experts' weights are divided by their sum where no key says so.
    pub renormalize: bool,
    /// How it is known whether the head is tied.
    pub tied_head: Tied,
}

/// Whether a tensor belongs to an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    Never,
    Required,
    /// A layer has it where the file does.
    IfInFile,
}

/// How it is known that the head is the embedding matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tied {
    /// The file has no head.
    IfHeadAbsent,
    /// By the key; where that is missing, this, or true where the file has no head.
    ByKey(bool),
}

/// Which layers attend to a window only.
pub(crate) struct WindowRule {
    /// The window's length; "" for none. No key or a zero: no windows.
    pub key: &'static str,
    /// Whether the key must be there.
    pub required: bool,
    /// A bool that must be true for windows to apply; "" for none.
    pub switch: &'static str,
    /// Either a period n (every n-th layer is global) or a list of bools (true: a window); ""
    /// for none.
    pub pattern: &'static str,
    /// A list of "sliding_attention" and "full_attention"; "" for none.
    pub types: &'static str,
    /// The first layer with a window; "" for none.
    pub first: &'static str,
    /// The period where no key says otherwise; `None`: all layers have the window.
    pub every: Option<usize>,
}

impl WindowRule {
    pub const NONE: WindowRule = WindowRule {
        key: "",
        required: false,
        switch: "",
        pattern: "",
        types: "",
        first: "",
        every: None,
    };
}

/// The names of metadata keys. `{a}` stands for the architecture's name; alternatives are separated
/// by `|`; "" means that there is no such key.
pub(crate) struct Keys {
    pub model_name: &'static str,
    pub vocab_size: &'static str,
    pub n_layers: &'static str,
    pub context_length: &'static str,
    pub d_model: &'static str,
    pub d_ff: &'static str,
    pub n_heads: &'static str,
    pub n_kv_heads: &'static str,
    pub head_dim: &'static str,
    pub v_head_dim: &'static str,
    pub norm_eps: &'static str,
    pub activation: &'static str,
    pub tied_head: &'static str,
    pub logit_scale: &'static str,
    pub logit_softcap: &'static str,
    pub score_softcap: &'static str,
    /// Scores are multiplied by it.
    pub score_scale: &'static str,
    /// Scores are divided by its square root.
    pub score_divisor_squared: &'static str,
    pub n_experts: &'static str,
    pub n_experts_used: &'static str,
    pub d_ff_expert: &'static str,
    pub renormalize: &'static str,
    /// Only every n-th layer has experts.
    pub sparse_step: &'static str,
    /// A list of layers without experts.
    pub dense_layers: &'static str,
    pub rope: rope::RopeKeys,
    /// Features that would change the result: a key, and what it must be where it is there.
    pub refused: &'static [(&'static str, Must)],
}

/// What the value of a key must be for a model to be computed rightly.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Must {
    /// False, zero, null or an empty list.
    BeOff,
    /// True.
    BeOn,
}

/// Where a role's values lie in the tensor that a name rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// They are the tensor.
    Whole,
    /// The rows of queries, keys and values are stacked in this order.
    Qkv,
    /// The rows of gate and up are stacked in this order.
    GateUp,
    /// The experts are stacked along the outermost dimension.
    ExpertStack,
}

/// The name of a role's tensor; `{l}` is the layer, `{e}` the expert.
pub(crate) struct NameRule {
    pub role: Role,
    pub pattern: &'static str,
    pub part: Part,
}

impl NameRule {
    const fn whole(role: Role, pattern: &'static str) -> Self {
        Self { role, pattern, part: Part::Whole }
    }

    const fn part(role: Role, pattern: &'static str, part: Part) -> Self {
        Self { role, pattern, part }
    }

    pub fn name(&self, layer: usize, expert: usize) -> String {
        self.pattern.replace("{l}", &layer.to_string()).replace("{e}", &expert.to_string())
    }
}

/// The kind of file that a table is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Gguf,
    HuggingFace,
}

/// The table's row for a name.
///
/// # Errors
/// An architecture that has no row; the message lists those that have.
pub(crate) fn lookup(format: Format, name: &str) -> Result<&'static Architecture> {
    let (table, refused): (&'static [Architecture], &[(&str, &'static str)]) = match format {
        Format::Gguf => (&gguf_table::TABLE, &gguf_table::REFUSED),
        Format::HuggingFace => (&hf_table::TABLE, &hf_table::REFUSED),
    };
    table.iter().find(|a| a.name == name).ok_or_else(|| {
        let supported: Vec<_> = table.iter().map(|a| a.name).collect();
        CheckpointError::UnsupportedArchitecture {
            name: name.into(),
            reason: refused.iter().find(|(n, _)| *n == name).map(|(_, why)| *why),
            supported: supported.join(", "),
        }
    })
}
