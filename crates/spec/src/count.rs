//! Parameters of a model, counted from its architecture.

use crate::{AttnSpec, FfnSpec, LayerSpec, ModelSpec};

impl AttnSpec {
    /// Weights of the query, key, value and output projections.
    pub fn matrix_weights(&self, d_model: usize) -> u64 {
        let rows = self.n_heads * (self.head_dim + self.v_head_dim)
            + self.n_kv_heads * (self.head_dim + self.v_head_dim);
        rows as u64 * d_model as u64
    }
}

impl FfnSpec {
    /// Weights of the matrices, all experts and the router included.
    pub fn matrix_weights(&self, d_model: usize) -> u64 {
        let d = d_model as u64;
        match self {
            Self::Gated { d_ff, .. } => 3 * d * *d_ff as u64,
            Self::Moe(m) => d * m.n_experts as u64 * (3 * m.d_ff as u64 + 1),
        }
    }

    /// Of those, the weights that one token meets.
    pub fn matrix_weights_used(&self, d_model: usize) -> u64 {
        let d = d_model as u64;
        match self {
            Self::Gated { .. } => self.matrix_weights(d_model),
            Self::Moe(m) => d * (3 * (m.n_used * m.d_ff) as u64 + m.n_experts as u64),
        }
    }
}

impl LayerSpec {
    /// Weights of all of the layer's matrices.
    pub fn matrix_weights(&self, d_model: usize) -> u64 {
        self.attn.matrix_weights(d_model) + self.ffn.matrix_weights(d_model)
    }
}

impl ModelSpec {
    /// Weights of all matrices: layers, embedding and head (once where they are one). Norms and
    /// biases, which are a thousandth of that, are left out.
    pub fn matrix_weights(&self) -> u64 {
        let layers: u64 = self.layers.iter().map(|l| l.matrix_weights(self.d_model)).sum();
        let embedding = self.vocab_size as u64 * self.d_model as u64;
        layers + embedding * if self.tied_head { 1 } else { 2 }
    }

    /// Of those, the weights that one token's forward pass multiplies with, the head included and
    /// the embedding's look-up not.
    pub fn matrix_weights_used(&self) -> u64 {
        let layers = self.layers.iter();
        let used = layers
            .map(|l| l.attn.matrix_weights(self.d_model) + l.ffn.matrix_weights_used(self.d_model));
        used.sum::<u64>() + self.vocab_size as u64 * self.d_model as u64
    }
}

#[cfg(test)]
mod tests {
    use crate::ModelShape;

    fn shape(text: (&str, [usize; 7], [usize; 2])) -> ModelShape {
        let (name, [layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab_size], moe) = text;
        ModelShape {
            name: name.into(),
            layers,
            d_model,
            n_heads,
            n_kv_heads,
            head_dim,
            d_ff,
            vocab_size,
            n_experts: moe[0],
            n_experts_used: moe[1],
            window: None,
            global_every: 0,
            tied_head: false,
            context_length: 4096,
        }
    }

    /// Against the totals that the models' makers publish.
    #[test]
    fn published_sizes_are_met() {
        let llama = shape(("Llama-3.1-8B", [32, 4096, 32, 8, 128, 14336, 128_256], [0, 0]));
        let llama = llama.spec().unwrap();
        // 8,030,261,248 parameters, of which 65 norms of 4,096.
        assert_eq!(llama.matrix_weights(), 8_030_261_248 - 65 * 4096);
        let moe = shape(("Qwen3-30B-A3B", [48, 2048, 32, 4, 128, 768, 151_936], [128, 8]));
        let moe = moe.spec().unwrap();
        // 30.5 billion parameters, 3.3 billion of them active.
        assert!((30.4e9..30.6e9).contains(&(moe.matrix_weights() as f64)));
        assert!((3.0e9..3.4e9).contains(&(moe.matrix_weights_used() as f64)));
    }
}
