//! Tiny random models of every architecture, written as GGUF files and as Hugging Face folders.
//!
//! They have a few layers and odd sizes, enough for every block, format and rule of a real model to
//! matter to their logits, and little enough for a float64 script to run them in a second. Weights
//! are random from a fixed seed. Tensors are kept under Hugging Face's names and in its layout;
//! writing GGUF makes the changes that llama.cpp's converter makes.

mod convert;
mod models;
mod tokens;
mod write;

use dunlin_spec::WeightType;
use serde_json::Value;

pub use models::{all, all_types, named};
pub use tokens::VOCAB;
pub use write::MetaList;

/// A tensor; the shape has its outermost dimension first.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its values, the last dimension the fastest.
    pub data: Vec<f32>,
}

/// What a tiny model can be checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// `oracle.py` on the GGUF file, and `extra.py` on the folder.
    Both,
    /// `extra.py` on the folder alone: the oracle does not know the architecture or its scaling.
    Extra,
}

/// A tiny model, not yet written.
#[derive(Debug, Clone)]
pub struct Tiny {
    /// A name for messages and files.
    pub name: String,
    /// GGUF's name of the architecture.
    pub arch: &'static str,
    /// `config.json`.
    pub config: Value,
    /// GGUF's metadata without the tokenizer's.
    pub metadata: MetaList,
    /// The weights, in f32.
    pub tensors: Vec<Tensor>,
    /// How matrices are stored; vectors are F32.
    pub ty: WeightType,
    /// What it can be checked against.
    pub reference: Reference,
    /// Tensors that only a GGUF file has (RoPE factors), under their own names.
    pub gguf_only: Vec<Tensor>,
    /// GGUF's norms are one more than the folder's (Gemma).
    pub norms_plus_one: bool,
    /// GGUF's query and key rows are interleaved (Llama).
    pub interleaved: bool,
}

/// Reproducible numbers (SplitMix64).
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// A nearly normal number of mean 0 and variance 1 (the sum of four uniform ones).
    pub fn normal(&mut self) -> f32 {
        let uniform = |bits: u64| (bits >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        (0..4).map(|_| uniform(self.bits())).sum::<f32>() * 3f32.sqrt()
    }
}

/// The seed of random tests: `DUNLIN_SEED`, or a fixed one. It is printed, so that a failure can be
/// repeated.
pub fn seed() -> u64 {
    let seed = std::env::var("DUNLIN_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("DUNLIN_SEED={seed}");
    seed
}

/// So many token ids of the tiny vocabulary.
pub fn random_tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut rng = Rng(seed);
    (0..count).map(|_| rng.below(VOCAB) as u32).collect()
}
