//! Greedy continuation of token ids, with the time of prefill and decode:
//! `greedy MODEL 504,3575,282 N [THREADS]`. With `LOGITS` in the environment all logits are computed,
//! as for a choice with noise.
use dunlin_model::{LoadOptions, load};
use dunlin_tensor::{Backend, Best, LogitsWanted, SequenceInput};
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let ids: Vec<u32> = args[2].split(',').map(|t| t.parse().unwrap()).collect();
    let n: usize = args[3].parse().unwrap();
    let threads = args.get(4).map(|t| t.parse().unwrap());
    let setting = |name: &str| std::env::var(name).ok();
    let options = LoadOptions {
        threads,
        activations: setting("ACTIVATIONS").map_or_else(Default::default, |v| v.parse().unwrap()),
        kv_type: setting("KV").map_or_else(Default::default, |v| v.parse().unwrap()),
        ..LoadOptions::default()
    };
    let mut model = load(args[1].as_ref(), &options).unwrap();
    eprintln!("load {:.1} ms, {:?} {:?}", model.load_ns as f64 / 1e6, model.pack, model.notes);
    let blocks: Vec<u32> = (0..model.backend.block_count() as u32).collect();
    let (mut logits, mut best) = (Vec::new(), Vec::new());
    let profile = std::env::var_os("PROFILE").is_some();
    let full = std::env::var_os("LOGITS").is_some();
    let mut times = Vec::new();
    model.backend.set_profile(profile);
    let mut tokens = ids.clone();
    let mut at = 0;
    for turn in 0..n {
        let start = Instant::now();
        while at < tokens.len() {
            let step = (tokens.len() - at).min(model.backend.max_step_tokens());
            let input = SequenceInput {
                tokens: &tokens[at..at + step],
                first_position: at,
                block_table: &blocks,
                logits: LogitsWanted::Last,
                branch_of: None,
            };
            model.backend.forward_best(&[input], &[!full], &mut logits, &mut best).unwrap();
            if full {
                best = vec![Best::of(&logits)];
            }
            at += step;
        }
        times.push(start.elapsed());
        if turn < 3 || turn + 1 == n {
            eprintln!("turn {turn}: {:.3} ms", start.elapsed().as_nanos() as f64 / 1e6);
            if profile {
                let (times, ops) = model.backend.times();
                let mut sums = std::collections::BTreeMap::<String, (u64, usize)>::new();
                for (t, op) in times.op_ns.iter().zip(ops) {
                    let name = if std::env::var_os("WIDE").is_some() {
                        format!("{op:?}").chars().take(60).collect()
                    } else {
                        format!("{op:?}").split([' ', '{']).next().unwrap().to_owned()
                    };
                    let e = sums.entry(name).or_default();
                    e.0 += t;
                    e.1 += 1;
                }
                for (name, (t, n)) in sums {
                    eprintln!("   {name:12} {n:4} {:9.1} us", t as f64 / 1e3);
                }
            }
        }
        tokens.push(best[0].token);
    }
    times.sort_unstable();
    eprintln!("median turn: {:.3} ms", times[n / 2].as_nanos() as f64 / 1e6);
    if let Some(seen) = model.backend.screening().filter(|s| s.screened > 0) {
        let share = 100.0 * seen.exact as f64 / seen.screened as f64;
        eprintln!("low bits of the head read: {share:.2}%");
    }
    println!("{:?}", &tokens[ids.len()..]);
}
