//! Times steps of one sequence by their new tokens, which is what verifying a draft costs:
//! `verify_cost MODEL [PREFIX] [THREADS] [MOST]`. All columns have logits.
use dunlin_model::{LoadOptions, load};
use dunlin_tensor::{Backend, LogitsWanted, SequenceInput};
use std::collections::BTreeMap;
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, usual: usize| args.get(i).map_or(usual, |a| a.parse().unwrap());
    let (prefix, most) = (number(2, 300), number(4, 24));
    let options = LoadOptions {
        threads: args.get(3).map(|t| t.parse().unwrap()),
        kv_tokens: Some((prefix + most).next_multiple_of(32)),
        ..LoadOptions::default()
    };
    let mut model = load(args[1].as_ref(), &options).unwrap().backend;
    model.set_profile(true);
    let vocab = model.spec().vocab_size as u32;
    let token = |i: usize| (i as u32).wrapping_mul(2_654_435_761) % vocab;
    let tokens: Vec<u32> = (0..prefix + most).map(token).collect();
    let table: Vec<u32> = (0..((prefix + most).div_ceil(32)) as u32).collect();
    let mut logits = Vec::new();
    let mut run = |from: usize, to: usize, logits_wanted| {
        let input = SequenceInput {
            tokens: &tokens[from..to],
            first_position: from,
            block_table: &table,
            logits: logits_wanted,
            branch_of: None,
        };
        let start = Instant::now();
        model.forward(&[input], &mut logits).unwrap();
        let (times, ops) = model.times();
        let mut sums = BTreeMap::<String, u64>::new();
        for (ns, op) in times.op_ns.iter().zip(ops) {
            let name = format!("{op:?}").split([' ', '{']).next().unwrap().to_owned();
            *sums.entry(name).or_default() += ns;
        }
        (start.elapsed().as_secs_f64(), sums)
    };
    let mut at = 0;
    while at < prefix {
        let to = (at + 128).min(prefix);
        run(at, to, LogitsWanted::None);
        at = to;
    }
    let mut times: BTreeMap<usize, Vec<(f64, BTreeMap<String, u64>)>> = BTreeMap::new();
    for _ in 0..15 {
        for n in 1..=most {
            times.entry(n).or_default().push(run(prefix, prefix + n, LogitsWanted::All));
        }
    }
    let mut one = 0.0f64;
    for (n, mut times) in times {
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (median, parts) = &times[times.len() / 2];
        if n == 1 {
            one = *median;
        }
        let part = |name: &str| *parts.get(name).unwrap_or(&0) as f64 / 1e6;
        println!(
            "{n:3} tokens: {:7.2} ms, {:.2} of one; products {:.2}, attention {:.2}",
            median * 1e3,
            median / one,
            part("MatMul"),
            part("Attend")
        );
    }
}
