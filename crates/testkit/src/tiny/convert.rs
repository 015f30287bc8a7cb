//! What llama.cpp's converter does to a tensor: another name, other rows, stacked experts.

use super::{Tensor, Tiny};

/// llama.cpp's names of parts of a Hugging Face tensor's name, in the order in which they are
/// replaced.
const PARTS: [(&str, &str); 18] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate.", "ffn_gate_inp."),
    ("block_sparse_moe.gate.", "ffn_gate_inp."),
    ("block_sparse_moe.experts", "experts"),
    ("mlp.experts", "experts"),
];

/// An expert's projections, in Mixtral's and in Qwen's words.
const EXPERT_PARTS: [(&str, &str); 6] = [
    ("w1", "gate"),
    ("w2", "down"),
    ("w3", "up"),
    ("gate_proj", "gate"),
    ("down_proj", "down"),
    ("up_proj", "up"),
];

impl Tiny {
    /// The tensors as a GGUF file has them.
    pub(super) fn gguf_tensors(&self) -> Vec<Tensor> {
        let mut out: Vec<Tensor> = Vec::new();
        for tensor in &self.tensors {
            let mut t = tensor.clone();
            t.name = self.gguf_name(&tensor.name);
            if self.norms_plus_one && t.shape.len() == 1 {
                t.data.iter_mut().for_each(|w| *w += 1.0);
            }
            if self.interleaved && (t.name.contains("attn_q.") || t.name.contains("attn_k.")) {
                self.interleave(&mut t);
            }
            push_expert(&mut out, t);
        }
        out.extend(self.gguf_only.iter().cloned());
        out
    }

    fn gguf_name(&self, name: &str) -> String {
        let name = name.replace("model.embed_tokens.", "token_embd.");
        let name = name.replace("lm_head.", "output.").replace("model.norm.", "output_norm.");
        let Some(rest) = name.strip_prefix("model.layers.") else { return name };
        let (layer, rest) = rest.split_once('.').expect("a layer's tensor");
        // Gemma's norm of this name comes after attention, everyone else's before what follows.
        let after = if self.norms_plus_one { "post_attention_norm" } else { "ffn_norm" };
        let rest = rest.replace("post_attention_layernorm", after);
        let rest = PARTS.iter().fold(rest, |rest, (from, to)| rest.replace(from, to));
        format!("blk.{layer}.{rest}")
    }

    /// In each head, row `2i + s` of the file is row `i` of half `s`.
    fn interleave(&self, t: &mut Tensor) {
        let head = self.head_dim();
        let columns = t.shape.get(1).copied().unwrap_or(1);
        let old = t.data.clone();
        for (to, row) in t.data.chunks_mut(columns).enumerate() {
            let (first, within) = (to / head * head, to % head);
            let from = first + within % 2 * (head / 2) + within / 2;
            row.copy_from_slice(&old[from * columns..][..columns]);
        }
    }

    fn head_dim(&self) -> usize {
        self.config["head_dim"].as_u64().expect("every tiny model says it") as usize
    }
}

/// Adds a tensor; an expert's to the stack of its layer.
fn push_expert(out: &mut Vec<Tensor>, t: Tensor) {
    let Some((layer, expert)) = t.name.split_once(".experts.") else {
        out.push(t);
        return;
    };
    let part = expert.split('.').nth(1).expect("experts.N.PART.weight");
    let kind = EXPERT_PARTS.iter().find(|(hf, _)| *hf == part).expect("a known projection").1;
    let name = format!("{layer}.ffn_{kind}_exps.weight");
    match out.iter_mut().find(|o| o.name == name) {
        Some(stack) => {
            stack.shape[0] += 1;
            stack.data.extend(t.data);
        }
        None => out.push(Tensor { name, shape: [&[1], &t.shape[..]].concat(), data: t.data }),
    }
}
