//! `dunlin eval perplexity`: how surprised a model is by a text.

use std::process::ExitCode;

use serde::Serialize;

use super::{
    bootstrap::mean_interval,
    corpus::{Corpus, CorpusArgs, first_scored},
    forward::Scorer,
    open::open,
    print,
    stats::{Interval, LogSum, Moments},
};
use crate::{model_args::ModelArgs, note};

/// The chunk's length where --context does not say.
const DEFAULT_CONTEXT: usize = 512;
/// Draws of the interval are the same every time.
const SEED: u64 = 1;

/// Measure the perplexity of a text
///
/// As llama.cpp does it: the text is cut into chunks of --context tokens (512 unless given), each
/// starts with BOS where the model adds one, and the tokens of its second half are scored.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    corpus: CorpusArgs,

    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

/// What came out.
#[derive(Debug, Serialize)]
struct Report {
    perplexity: f64,
    /// llama.cpp's "+/-": the perplexity times the standard error of the mean, as if tokens were
    /// independent.
    standard_error: Option<f64>,
    /// 95%, from drawing blocks of neighbouring tokens anew.
    ci95: Option<Interval>,
    /// Mean negative log-likelihood of a token, in nats.
    nll: f64,
    scored_tokens: usize,
    text_tokens: usize,
    context: usize,
    chunks: usize,
    /// The perplexity of each chunk alone.
    chunk_perplexities: Vec<f64>,
    activations: String,
    kv_type: String,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let context = args.model.context.filter(|&c| c > 0).unwrap_or(DEFAULT_CONTEXT);
    let kv_type = args.model.kv_type()?;
    let mut opened = open(&args.model, args.model.activations, kv_type, context)?;
    let corpus = Corpus::read(&args.corpus, &opened.tokenizer, context)?;
    let mut scorer = Scorer::new(&mut *opened.backend);
    let mut all = Vec::new();
    let mut chunk_perplexities = Vec::new();
    for (i, chunk) in corpus.chunks.iter().enumerate() {
        let losses = losses(&mut scorer, chunk)?;
        chunk_perplexities.push(perplexity(&losses));
        all.extend(losses);
        note!("chunk {} of {}: {:.4} so far", i + 1, corpus.chunks.len(), perplexity(&all));
    }
    let moments = moments(&all);
    let value = moments.mean.exp();
    let report = Report {
        perplexity: value,
        standard_error: moments.standard_error().map(|e| e * value),
        ci95: mean_interval(&all, SEED).map(|Interval(l, h)| Interval(l.exp(), h.exp())),
        nll: moments.mean,
        scored_tokens: all.len(),
        text_tokens: corpus.text_tokens,
        context,
        chunks: corpus.chunks.len(),
        chunk_perplexities,
        activations: args.model.activations.to_string(),
        kv_type: kv_type.to_string(),
    };
    print(args.json, &report, &report.text())
}

impl Report {
    fn text(&self) -> String {
        let error = self.standard_error.map_or(String::new(), |e| format!(" +/- {e:.4}"));
        let ci = self.ci95.map_or(String::new(), |Interval(l, h)| {
            format!("\n95% interval {l:.4} to {h:.4} (blocks of neighbouring tokens)")
        });
        format!(
            "perplexity {:.4}{error}{ci}\n{} tokens scored in {} chunks of {}; activations {}, KV {}",
            self.perplexity,
            self.scored_tokens,
            self.chunks,
            self.context,
            self.activations,
            self.kv_type
        )
    }
}

/// The negative log-likelihood of each scored token of a chunk: those that positions from the
/// middle on predict.
fn losses(scorer: &mut Scorer<'_>, chunk: &[u32]) -> anyhow::Result<Vec<f64>> {
    let mut losses = Vec::with_capacity(chunk.len() / 2);
    // The last position predicts a token that the chunk does not have.
    let tokens = &chunk[..chunk.len() - 1];
    scorer.run(tokens, 0, first_scored(chunk.len()), |position, logits| {
        let next = chunk[position + 1] as usize;
        losses.push(-LogSum::of(logits).log_probability(logits[next]));
        Ok(())
    })?;
    Ok(losses)
}

fn moments(losses: &[f64]) -> Moments {
    let mut moments = Moments::default();
    losses.iter().for_each(|&loss| moments.add(loss));
    moments
}

fn perplexity(losses: &[f64]) -> f64 {
    moments(losses).mean.exp()
}

#[cfg(test)]
mod tests {
    use super::super::forward::tests::Fake;
    use super::*;

    #[test]
    fn an_ignorant_model_is_as_surprised_as_its_vocabulary_is_large() {
        let mut fake = Fake::new(50, |_, _, _| 0.25);
        let chunk: Vec<u32> = (0..64).map(|i| i * 7 % 50).collect();
        let losses = losses(&mut Scorer::new(&mut fake), &chunk).unwrap();
        assert_eq!(losses.len(), 31, "positions 32 to 62 predict 33 to 63");
        assert!((perplexity(&losses) - 50.0).abs() < 1e-9);
        assert!(moments(&losses).standard_error().unwrap() < 1e-9);
    }

    #[test]
    fn the_next_token_is_what_is_scored() {
        // The model is sure that t is followed by t + 1 (by ln 9: 9 of 9 + 9 others' 1).
        let mut fake =
            Fake::new(10, |t, _, v| if v == (t as usize + 1) % 10 { 9f32.ln() } else { 0.0 });
        let right: Vec<u32> = (0..40).map(|i| i % 10).collect();
        let wrong = vec![3; 40];
        let mut scorer = Scorer::new(&mut fake);
        let value = perplexity(&losses(&mut scorer, &right).unwrap());
        assert!((value - 2.0).abs() < 1e-6, "9 of 18: {value}");
        let value = perplexity(&losses(&mut scorer, &wrong).unwrap());
        assert!((value - 18.0).abs() < 1e-5, "1 of 18: {value}");
    }
}
