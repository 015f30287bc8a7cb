//! Times decode steps of many sequences with a common prefix, once with blocks of their own for it
//! and once with the same ones, and a prefill of the most tokens that a step takes; each with its
//! time by kind of operation: `batch_decode MODEL [SEQUENCES] [PREFIX] [THREADS]`. The environment's
//! `KV` and `ACTIVATIONS` set types. The logits of both ways are compared.
use dunlin_model::{CpuModel, LoadOptions, load};
use dunlin_tensor::{Backend, LogitsWanted, SequenceInput};
use std::collections::BTreeMap;
use std::time::Instant;

const OWN: usize = 64;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, usual| args.get(i).map_or(usual, |a| a.parse().unwrap());
    let (n, prefix) = (number(2, 64), number(3, 1000));
    let setting = |name: &str| std::env::var(name).ok();
    let blocks = (prefix + 2 * OWN).div_ceil(32) + 1;
    let options = LoadOptions {
        threads: args.get(4).map(|t| t.parse().unwrap()),
        activations: setting("ACTIVATIONS").map_or_else(Default::default, |v| v.parse().unwrap()),
        kv_type: setting("KV").map_or_else(Default::default, |v| v.parse().unwrap()),
        kv_tokens: Some(blocks * (n + 1) * 32),
        ..LoadOptions::default()
    };
    let mut model = load(args[1].as_ref(), &options).unwrap().backend;
    model.set_profile(true);
    let vocab = model.spec().vocab_size as u32;
    let token = |i: usize| (i as u32).wrapping_mul(2_654_435_761) % vocab;
    let tokens: Vec<u32> = (0..prefix).map(token).collect();
    let mut logits = Vec::new();

    // The prefix lies in the first blocks, and a copy of it in the blocks of each sequence.
    let common: Vec<u32> = (0..blocks as u32).collect();
    for (i, chunk) in tokens.chunks(model.max_step_tokens()).enumerate() {
        let first_position = i * model.max_step_tokens();
        let input = SequenceInput {
            tokens: chunk,
            first_position,
            block_table: &common,
            logits: LogitsWanted::Last,
            branch_of: None,
        };
        let start = Instant::now();
        model.forward(&[input], &mut logits).unwrap();
        report(&format!("prefill of {}", chunk.len()), start, &model);
    }
    let own: Vec<Vec<u32>> =
        (1..=n).map(|i| (0..blocks).map(|b| (i * blocks + b) as u32).collect()).collect();
    for (from, to) in own.iter().flat_map(|table| common.iter().zip(table)) {
        model.copy_block(*from, *to, 32);
    }
    let whole = prefix / 32;
    let mixed: Vec<Vec<u32>> =
        own.iter().map(|table| [&common[..whole], &table[whole..]].concat()).collect();
    let mut seen: Vec<Vec<f32>> = Vec::new();
    for (name, tables) in [("blocks of their own", &own), ("shared blocks", &mixed)] {
        let (mut best, mut told) = (f64::MAX, String::new());
        // Sequence `i` has up to `i` tokens more.
        for step in 0..OWN {
            let news: Vec<u32> = (0..n).map(|i| token(i * 1000 + step)).collect();
            let batch: Vec<SequenceInput<'_>> = (0..n)
                .filter(|i| step + 1 >= OWN - OWN * i / n)
                .map(|i| SequenceInput {
                    tokens: &news[i..i + 1],
                    first_position: prefix + step + 1 - (OWN - OWN * i / n),
                    block_table: &tables[i],
                    logits: LogitsWanted::Last,
                    branch_of: None,
                })
                .collect();
            if batch.len() < n {
                model.forward(&batch, &mut logits).unwrap();
                continue;
            }
            for _ in 0..8 {
                let start = Instant::now();
                model.forward(&batch, &mut logits).unwrap();
                if start.elapsed().as_secs_f64() < best {
                    best = start.elapsed().as_secs_f64();
                    told = text(&format!("{n} decodes after {prefix}, {name}"), best, &model);
                }
            }
        }
        print!("{told}");
        seen.push(logits.clone());
    }
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&seen[0]), bits(&seen[1]));
}

fn report(what: &str, start: Instant, model: &CpuModel) {
    print!("{}", text(what, start.elapsed().as_secs_f64(), model));
}

/// The last step's time, and its parts.
fn text(what: &str, seconds: f64, model: &CpuModel) -> String {
    let (times, ops) = model.times();
    let mut sums = BTreeMap::<String, (u64, usize)>::new();
    for (ns, op) in times.op_ns.iter().zip(ops) {
        let name = format!("{op:?}").split([' ', '{']).next().unwrap().to_owned();
        let sum = sums.entry(name).or_default();
        *sum = (sum.0 + ns, sum.1 + 1);
    }
    let mut text = format!("{what}: {:.2} ms\n", seconds * 1e3);
    for (name, (ns, count)) in sums {
        text += &format!("   {name:12} {count:4} {:9.3} ms\n", ns as f64 / 1e6);
    }
    text
}
