//! Does any set of skipped layers draft well enough to pay? For each number of layers the set is searched
//! that agrees best with the whole model, and judged on another text than it was searched on.
//!
//! ```text
//! cargo run -p dunlin-model --example layer_skip -- MODEL.gguf [tokens] [most skipped]
//! ```
//!
//! The search takes away one layer after the other, each time the one whose loss costs the least
//! agreement: the share of places at which the largest logit is that of the whole model, all places of
//! a text in one pass (as SWIFT does, arXiv 2410.06916). What that is worth is a bound: the share of the
//! weights' bytes that a pass still reads stands for its cost, verification costs one step, and the draft
//! has the best of all lengths.

use dunlin_model::{LoadOptions, load};
use dunlin_tensor::{Backend, Best, LogitsWanted, SequenceInput};
use dunlin_tokenizer::EncodeOptions;

const SEARCHED: &str = "The history of bread begins with the first farmers. They ground grain between \
                        stones, mixed it with water and";
const JUDGED: &str =
    "def quicksort(items):\n    \"\"\"Sorts a list.\"\"\"\n    if len(items) <= 1:\n";

type Problem = Box<dyn std::error::Error>;

/// The best token at each place of these tokens, the first of which stands at `first_position`.
fn best(
    model: &mut impl Backend,
    tokens: &[u32],
    first_position: usize,
) -> Result<Vec<u32>, Problem> {
    let blocks: Vec<u32> = (0..model.block_count() as u32).collect();
    let input = SequenceInput {
        tokens,
        first_position,
        block_table: &blocks,
        logits: LogitsWanted::All,
        branch_of: None,
    };
    let (mut logits, mut best) = (Vec::new(), Vec::<Best>::new());
    model.forward_best(&[input], &[true], &mut logits, &mut best)?;
    Ok(best.iter().map(|best| best.token).collect())
}

/// A prompt with the whole model's greedy answer of `count` tokens.
fn answer(model: &mut impl Backend, prompt: &[u32], count: usize) -> Result<Vec<u32>, Problem> {
    let mut tokens = prompt.to_vec();
    let mut known = 0;
    for _ in 0..count {
        let said = best(model, &tokens[known..], known)?;
        known = tokens.len();
        tokens.push(*said.last().ok_or("a prompt without tokens")?);
    }
    Ok(tokens)
}

/// Of the answer's tokens, the share that a model without some layers says.
fn agreement(model: &mut impl Backend, text: &[u32], prompt: usize) -> Result<f64, Problem> {
    let said = best(model, &text[..text.len() - 1], 0)?;
    let places = said[prompt - 1..].iter().zip(&text[prompt..]);
    let right = places.filter(|(a, b)| a == b).count();
    Ok(right as f64 / (text.len() - prompt) as f64)
}

/// The most times as fast as plain decoding, where each draft token is right with `rate` and a pass
/// costs `cost` of a step; and the length of draft that gives it.
fn bound(rate: f64, cost: f64) -> (f64, u32) {
    let speed = |length: u32| {
        let tokens: f64 = (0..=length).map(|i| rate.powi(i as i32)).sum();
        tokens / (1.0 + f64::from(length) * cost)
    };
    let best = (0..=16).max_by(|&a, &b| speed(a).total_cmp(&speed(b))).unwrap_or(0);
    (speed(best), best)
}

fn main() -> Result<(), Problem> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("which model?")?;
    let count: usize = args.next().map_or(Ok(48), |n| n.parse())?;
    let most: usize = args.next().map_or(Ok(usize::MAX), |n| n.parse())?;
    let path = std::path::Path::new(&path);
    let options = LoadOptions { context: Some(256), ..LoadOptions::default() };
    let whole = load(path, &options)?;
    let mut model = whole.backend;
    let encode = |text| {
        whole.tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: false })
    };
    let prompts = [encode(SEARCHED)?, encode(JUDGED)?];
    let mut texts = Vec::new();
    for prompt in &prompts {
        texts.push(answer(&mut model, prompt, count)?);
    }
    let layers = model.spec().layers.len();
    let all = model.weight_bytes_per_step().ok_or("a model that reads nothing")? as f64;
    println!("{layers} layers; answers of {count} tokens");
    println!("skipped  bytes  agreement (searched)  (another text)  at most times plain  tokens");
    let mut skipped: Vec<usize> = Vec::new();
    while skipped.len() < most.min(layers - 1) {
        let mut found: Option<(f64, f64, usize)> = None;
        for layer in (0..layers).filter(|layer| !skipped.contains(layer)) {
            let skip_layers = [&skipped[..], &[layer]].concat();
            let mut drafter = load(path, &LoadOptions { skip_layers, ..options.clone() })?.backend;
            let bytes = drafter.weight_bytes_per_step().unwrap_or(0) as f64 / all;
            let rate = agreement(&mut drafter, &texts[0], prompts[0].len())?;
            if found.is_none_or(|(best, ..)| rate > best) {
                found = Some((rate, bytes, layer));
            }
        }
        let Some((rate, bytes, layer)) = found else { break };
        skipped.push(layer);
        let without = LoadOptions { skip_layers: skipped.clone(), ..options.clone() };
        let mut drafter = load(path, &without)?.backend;
        let judged = agreement(&mut drafter, &texts[1], prompts[1].len())?;
        let (speed, length) = bound(judged, bytes);
        println!(
            "{:7}  {:4.0}%  {:19.0}%  {:13.0}%  {speed:19.2}  {length:6}   without {skipped:?}",
            skipped.len(),
            bytes * 100.0,
            rate * 100.0,
            judged * 100.0,
        );
        if judged < 0.05 {
            break;
        }
    }
    Ok(())
}
