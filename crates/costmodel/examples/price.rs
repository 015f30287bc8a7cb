//! How long pricing a step takes: `cargo run --release -p dunlin-costmodel --example price FILE...`
//! with `cost.toml` files, for steps of 1, 64 and 256 sequences that decode, and 256 with a prompt.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a measurement looks at the clock and writes"
)]

use std::{hint::black_box, time::Instant};

use dunlin_costmodel::{CostFile, Phase, SeqShape, StepCost, StepShape};

fn main() {
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path).expect("the file can be read");
        let file: CostFile = toml::from_str(&text).expect("a cost model");
        let model = file.build().expect("a model that makes sense");
        for (decodes, prefill) in [(1u32, 0u32), (64, 0), (256, 0), (255, 512)] {
            let mut shape = StepShape::default();
            for i in 0..decodes {
                let context = 100 + i * 37 % 3000;
                shape.seqs.push(SeqShape { new_tokens: 1, context, phase: Phase::Decode });
            }
            if prefill > 0 {
                let (new_tokens, phase) = (prefill, Phase::Prefill);
                shape.seqs.push(SeqShape { new_tokens, context: 0, phase });
            }
            shape.sampled = shape.seqs.len() as u32;
            let mut times: Vec<u128> = (0..201)
                .map(|_| {
                    let begin = Instant::now();
                    for _ in 0..100 {
                        black_box(model.price(black_box(&shape)));
                    }
                    begin.elapsed().as_nanos() / 100
                })
                .collect();
            times.sort_unstable();
            println!("{path}: {decodes} decodes and {prefill} of a prompt: {} ns", times[100]);
        }
    }
}
