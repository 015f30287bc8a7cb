//! A forward pass as a list of einsums, with the operations and bytes that each costs.
//!
//! Every product of the model is one [`Einsum`]: its equation, how often a step runs it, and what it
//! costs for each unit of the step (a token, a sampled row, a pair of a query and a key). Sums over
//! the list are the step's operations and bytes; a roofline turns them into time. A multiply-add
//! counts as two operations. What is no product (norms, activations, RoPE, softmax) is left out: it
//! is below a hundredth of the operations.
//!
//! Letters: `t` tokens of the step, `s` positions read, `r` sampled rows, `d` model width, `h` query
//! heads, `g` KV heads, `k` features of a head, `f` hidden width, `e` experts, `v` vocabulary.

use dunlin_spec::{AttnSpec, FfnSpec, ModelSpec};

use crate::{Phase, StepShape, expected_distinct};

/// What an einsum's cost grows with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Tokens of the step.
    Token,
    /// Rows that need the head.
    Sampled,
    /// Pairs of a query and a position that it attends to; bytes of KV grow with positions read,
    /// each once a sequence. Within the window, where there is one.
    Attention {
        /// Positions that a query sees.
        window: Option<usize>,
    },
    /// Tokens, each meeting some experts; weights are read of those in use.
    Expert {
        /// Experts of the layer.
        experts: u32,
        /// Those that a token uses.
        used: u32,
    },
}

/// One product of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Einsum {
    /// What it computes.
    pub name: &'static str,
    /// Which indices meet, are summed and stay.
    pub equation: &'static str,
    /// How often a step runs it: layers that have it.
    pub count: u32,
    /// What its cost grows with.
    pub unit: Unit,
    /// Operations for each unit.
    pub flops: f64,
    /// Weights, read once a step; of one expert, where there are experts.
    pub weights: f64,
    /// Values read and written for each token or row (inputs and outputs).
    pub values: f64,
    /// KV values read for each position of each sequence.
    pub kv_values: f64,
}

/// The einsums of a model, those that are equal over layers as one.
pub fn einsums(model: &ModelSpec) -> Vec<Einsum> {
    let d = model.d_model as f64;
    let mut list: Vec<Einsum> = Vec::new();
    for layer in &model.layers {
        attention(&layer.attn, d, &mut list);
        feed_forward(&layer.ffn, d, &mut list);
    }
    let vocabulary = model.vocab_size as f64;
    push(&mut list, dense("head", "rd,vd->rv", Unit::Sampled, d, vocabulary));
    list
}

fn attention(a: &AttnSpec, d: f64, list: &mut Vec<Einsum>) {
    let (heads, kv_heads) = (a.n_heads as f64, a.n_kv_heads as f64);
    let (k, v) = (a.head_dim as f64, a.v_head_dim as f64);
    push(list, dense("query", "td,hkd->thk", Unit::Token, d, heads * k));
    push(list, dense("key", "td,gkd->tgk", Unit::Token, d, kv_heads * k));
    push(list, dense("value", "td,gkd->tgk", Unit::Token, d, kv_heads * v));
    let unit = Unit::Attention { window: a.window };
    for (name, equation, features) in
        [("scores", "thk,sgk->ths", k), ("mixture", "ths,sgk->thk", v)]
    {
        let (flops, kv_values) = (2.0 * heads * features, kv_heads * features);
        let values = heads * features;
        push(
            list,
            Einsum { name, equation, count: 1, unit, flops, weights: 0.0, values, kv_values },
        );
    }
    push(list, dense("output", "thk,dhk->td", Unit::Token, heads * v, d));
}

fn feed_forward(ffn: &FfnSpec, d: f64, list: &mut Vec<Einsum>) {
    match ffn {
        FfnSpec::Gated { d_ff, .. } => {
            let f = *d_ff as f64;
            push(list, dense("gate", "td,fd->tf", Unit::Token, d, f));
            push(list, dense("up", "td,fd->tf", Unit::Token, d, f));
            push(list, dense("down", "tf,df->td", Unit::Token, f, d));
        }
        FfnSpec::Moe(m) => {
            push(list, dense("router", "td,ed->te", Unit::Token, d, m.n_experts as f64));
            let f = m.d_ff as f64;
            let used = m.n_used as f64;
            let unit = Unit::Expert { experts: m.n_experts as u32, used: m.n_used as u32 };
            for (name, equation, rows, columns) in [
                ("expert gate", "ted,efd->tef", d, f),
                ("expert up", "ted,efd->tef", d, f),
                ("expert down", "tef,edf->td", f, d),
            ] {
                let one = dense(name, equation, unit, rows, columns);
                push(list, Einsum { flops: one.flops * used, values: one.values * used, ..one });
            }
        }
    }
}

fn dense(
    name: &'static str,
    equation: &'static str,
    unit: Unit,
    inputs: f64,
    outputs: f64,
) -> Einsum {
    Einsum {
        name,
        equation,
        count: 1,
        unit,
        flops: 2.0 * inputs * outputs,
        weights: inputs * outputs,
        values: inputs + outputs,
        kv_values: 0.0,
    }
}

/// Adds an einsum, to its equal where there is one.
fn push(list: &mut Vec<Einsum>, new: Einsum) {
    let same = |e: &&mut Einsum| Einsum { count: 1, ..(**e).clone() } == new;
    match list.iter_mut().find(same) {
        Some(equal) => equal.count += 1,
        None => list.push(new),
    }
}

/// What a step asks of one kind of unit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Units {
    /// Tokens, rows or pairs.
    pub units: f64,
    /// KV positions read, each once a sequence.
    pub positions: f64,
    /// Tokens or rows whose values come and go.
    pub rows: f64,
    /// How many times the weights are read: 1, or experts in use.
    pub reads: f64,
}

impl Unit {
    /// What a step has of this unit.
    pub fn of(self, shape: &StepShape) -> Units {
        let tokens = || shape.seqs.iter().map(|s| f64::from(s.new_tokens)).sum::<f64>();
        match self {
            Self::Token => {
                let tokens = tokens();
                Units { units: tokens, rows: tokens, reads: once(tokens), ..Units::default() }
            }
            Self::Sampled => {
                let rows = f64::from(shape.sampled);
                Units { units: rows, rows, reads: once(rows), ..Units::default() }
            }
            Self::Expert { experts, used } => {
                let tokens = tokens();
                let active = shape.experts.map_or_else(
                    || expected_distinct(experts, used, tokens),
                    |load| f64::from(load.active),
                );
                Units { units: tokens, rows: tokens, reads: active, ..Units::default() }
            }
            Self::Attention { window } => {
                let mut sum = Units::default();
                for seq in &shape.seqs {
                    let (pairs, positions) = seen(seq.new_tokens, seq.context, window);
                    sum.units += pairs;
                    // A kernel that verifies a draft or fills a prompt reads each position once.
                    sum.positions += positions;
                    sum.rows += f64::from(seq.new_tokens);
                    debug_assert!(seq.phase != Phase::Decode || seq.new_tokens <= 1);
                }
                sum
            }
        }
    }
}

fn once(units: f64) -> f64 {
    if units > 0.0 { 1.0 } else { 0.0 }
}

/// Of `new` tokens behind `context` positions: pairs of a token and a position that it sees, and
/// positions that any of them sees.
fn seen(new: u32, context: u32, window: Option<usize>) -> (f64, f64) {
    let (n, c) = (f64::from(new), f64::from(context));
    let all = n * c + n * (n + 1.0) / 2.0;
    let Some(window) = window else { return (all, c + n) };
    let w = window as f64;
    // The i-th token (from 1) would see c + i positions; those beyond w are cut off.
    let first_cut = (w - c).clamp(0.0, n);
    let cut = n - first_cut;
    // Token first_cut + j loses c + first_cut + j - w positions.
    let lost = cut * (c + first_cut - w) + cut * (cut + 1.0) / 2.0;
    (all - lost, (c + n).min(w + n - 1.0))
}

/// Operations of a step, over all einsums.
pub fn step_flops(list: &[Einsum], shape: &StepShape) -> f64 {
    list.iter().map(|e| f64::from(e.count) * e.flops * e.unit.of(shape).units).sum()
}

/// KV values that a step reads, over all einsums.
pub fn step_kv_values(list: &[Einsum], shape: &StepShape) -> f64 {
    list.iter().map(|e| f64::from(e.count) * e.kv_values * e.unit.of(shape).positions).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeqShape;
    use dunlin_spec::ModelShape;

    fn shape(window: Option<usize>, global_every: usize, n_experts: usize) -> ModelShape {
        ModelShape {
            name: "x".into(),
            layers: 6,
            d_model: 32,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 8,
            d_ff: 48,
            vocab_size: 100,
            n_experts,
            n_experts_used: n_experts / 4,
            window,
            global_every,
            tied_head: false,
            context_length: 1 << 20,
        }
    }

    #[test]
    fn a_windows_pairs_equal_those_counted() {
        for window in [1u32, 3, 8, 100] {
            for (new, context) in [(1u32, 0u32), (1, 50), (5, 0), (7, 2), (9, 6), (4, 30)] {
                let (mut pairs, mut positions) = (0u32, std::collections::BTreeSet::new());
                for i in 0..new {
                    let end = context + i + 1;
                    let range = end.saturating_sub(window)..end;
                    pairs += range.len() as u32;
                    positions.extend(range);
                }
                let found = seen(new, context, Some(window as usize));
                assert_eq!(found, (f64::from(pairs), positions.len() as f64), "{window} {new}");
            }
        }
    }

    /// The forward pass spelled out as loops over layers, sequences and tokens.
    #[test]
    fn sums_equal_those_of_a_naive_pass() {
        for (window, experts) in [(None, 0), (Some(16), 0), (None, 8)] {
            let model = shape(window, 3, experts).spec().unwrap();
            let step = StepShape {
                seqs: vec![
                    SeqShape { new_tokens: 10, context: 20, phase: Phase::Prefill },
                    SeqShape { new_tokens: 1, context: 60, phase: Phase::Decode },
                ],
                sampled: 2,
                experts: None,
            };
            let (mut flops, mut kv) = (0usize, 0usize);
            for layer in &model.layers {
                let a = &layer.attn;
                for seq in &step.seqs {
                    let mut read = std::collections::BTreeSet::new();
                    for i in 0..seq.new_tokens {
                        flops += 2 * layer.attn.matrix_weights(model.d_model) as usize;
                        flops += 2 * layer.ffn.matrix_weights_used(model.d_model) as usize;
                        let end = (seq.context + i + 1) as usize;
                        let sees = end.saturating_sub(a.window.unwrap_or(usize::MAX))..end;
                        flops += 2 * a.n_heads * (a.head_dim + a.v_head_dim) * sees.len();
                        read.extend(sees);
                    }
                    kv += read.len() * a.kv_values_per_token();
                }
            }
            flops += 2 * 2 * model.vocab_size * model.d_model;
            let list = einsums(&model);
            assert_eq!(step_flops(&list, &step), flops as f64);
            assert_eq!(step_kv_values(&list, &step), kv as f64);
        }
    }

    /// Decode traffic by the kind of attention: proportional to KV heads, flat beyond a window.
    #[test]
    fn kv_bytes_follow_the_kind_of_attention() {
        let kv = |n_kv_heads, window, context: u32| {
            let model = ModelShape { n_kv_heads, ..shape(window, 0, 0) }.spec().unwrap();
            let decode = SeqShape { new_tokens: 1, context: context - 1, phase: Phase::Decode };
            let step = StepShape { seqs: vec![decode], sampled: 1, experts: None };
            step_kv_values(&einsums(&model), &step)
        };
        for context in [1, 100, 10_000] {
            assert_eq!(kv(4, None, context), 4.0 * kv(1, None, context));
            assert_eq!(kv(2, None, 2 * context), 2.0 * kv(2, None, context));
        }
        assert_eq!(kv(2, Some(512), 512), kv(2, Some(512), 100_000));
        assert_eq!(kv(2, Some(512), 100), kv(2, None, 100));
    }
}
