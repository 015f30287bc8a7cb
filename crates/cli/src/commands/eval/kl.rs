//! `dunlin eval kl`: how far given settings, or another file, are from a reference.

use std::{path::PathBuf, process::ExitCode};

use dunlin_spec::{ActivationPrecision, KvType};
use serde::Serialize;

use super::{
    bootstrap::mean_interval,
    corpus::{Corpus, CorpusArgs, first_scored},
    forward::Scorer,
    open::open,
    print,
    stats::{Interval, Moments, argmax, kl_divergence, margin},
};
use crate::{model_args::ModelArgs, note, outcome::unusable};

const DEFAULT_CONTEXT: usize = 512;
/// Draws of the intervals are the same every time.
const SEED: u64 = 1;

/// Measure KL divergence and top-1 agreement with a reference
///
/// The model with the given --activations and --kv-type is compared with the same model in f32
/// throughout, or with another file of the same vocabulary. Text is cut as for `perplexity`; every
/// position of a chunk's second half is compared.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    corpus: CorpusArgs,

    /// The reference's file [default: the same]
    #[arg(long, value_name = "PATH", help_heading = "Reference")]
    reference_model: Option<PathBuf>,

    /// The reference's activations
    #[arg(long, value_name = "TYPE", default_value = "f32", help_heading = "Reference")]
    reference_activations: ActivationPrecision,

    /// The reference's keys and values
    #[arg(long, value_name = "TYPE", default_value = "f32", help_heading = "Reference")]
    reference_kv_type: KvType,

    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

/// What came out.
#[derive(Debug, Serialize)]
struct Report {
    /// Mean divergence of a position, in nats.
    mean_kl: f64,
    standard_error: Option<f64>,
    /// 95%, from drawing blocks of neighbouring positions anew.
    ci95: Option<Interval>,
    median_kl: f64,
    p99_kl: f64,
    max_kl: f64,
    /// The share of positions with the same best token.
    top1_agreement: f64,
    top1_ci95: Option<Interval>,
    positions: usize,
    context: usize,
    chunks: usize,
    activations: String,
    kv_type: String,
    reference: Reference,
    /// Positions whose best token differs.
    flips: Vec<Flip>,
}

#[derive(Debug, Serialize)]
struct Reference {
    model: Option<PathBuf>,
    activations: String,
    kv_type: String,
}

/// A position at which the best token differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Flip {
    chunk: usize,
    /// In the chunk.
    position: usize,
    /// The reference's best token.
    reference_token: u32,
    /// The best token of what is measured.
    token: u32,
    /// By how much the reference preferred its token to its second best, in logits.
    reference_margin: f32,
    kl: f64,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let context = args.model.context.filter(|&c| c > 0).unwrap_or(DEFAULT_CONTEXT);
    let kv_type = args.model.kv_type()?;
    let mut model = open(&args.model, args.model.activations, kv_type, context)?;
    let other = args.reference_model.clone().or_else(|| args.model.model.clone());
    let other = ModelArgs { model: other, ..args.model.clone() };
    let mut reference = open(&other, args.reference_activations, args.reference_kv_type, context)?;
    let (ours, theirs) = (model.backend.spec().vocab_size, reference.backend.spec().vocab_size);
    if ours != theirs {
        return Err(unusable(format!(
            "the models cannot be compared: one has {ours} tokens, the other {theirs}"
        )));
    }
    let corpus = Corpus::read(&args.corpus, &model.tokenizer, context)?;
    let mut model = Scorer::new(&mut *model.backend);
    let mut reference = Scorer::new(&mut *reference.backend);
    let mut found = Comparison::default();
    for (i, chunk) in corpus.chunks.iter().enumerate() {
        found.add(i, chunk, &mut reference, &mut model)?;
        note!("chunk {} of {}", i + 1, corpus.chunks.len());
    }
    let report = report(args, kv_type, context, &corpus, found);
    print(args.json, &report, &report.text())
}

/// Both models' distributions, position by position.
#[derive(Debug, Default)]
struct Comparison {
    /// Divergences in the order of the positions.
    kl: Vec<f64>,
    /// 1 for the same best token, 0 for another.
    agree: Vec<f64>,
    flips: Vec<Flip>,
}

impl Comparison {
    fn add(
        &mut self,
        index: usize,
        chunk: &[u32],
        reference: &mut Scorer<'_>,
        model: &mut Scorer<'_>,
    ) -> anyhow::Result<()> {
        // A chunk's logits would fill hundreds of megabytes, so the two advance together.
        const STRIDE: usize = 64;
        let first = first_scored(chunk.len());
        let mut at = 0;
        while at < chunk.len() {
            let end = if at < first { first } else { (at + STRIDE).min(chunk.len()) };
            let mut wanted: Vec<Vec<f32>> = Vec::with_capacity(STRIDE);
            reference.run(&chunk[at..end], at, first, |_, logits| {
                wanted.push(logits.to_vec());
                Ok(())
            })?;
            let mut wanted = wanted.iter();
            model.run(&chunk[at..end], at, first, |position, logits| {
                if let Some(reference) = wanted.next() {
                    self.compare(index, position, reference, logits);
                }
                Ok(())
            })?;
            at = end;
        }
        Ok(())
    }

    fn compare(&mut self, chunk: usize, position: usize, reference: &[f32], logits: &[f32]) {
        let kl = kl_divergence(reference, logits);
        let (best, ours) = (argmax(reference), argmax(logits));
        self.kl.push(kl);
        self.agree.push(if best == ours { 1.0 } else { 0.0 });
        if best != ours {
            self.flips.push(Flip {
                chunk,
                position,
                // Indices of a vocabulary fit.
                reference_token: best as u32,
                token: ours as u32,
                reference_margin: margin(reference),
                kl,
            });
        }
    }
}

fn report(
    args: &Args,
    kv_type: KvType,
    context: usize,
    corpus: &Corpus,
    found: Comparison,
) -> Report {
    let mut moments = Moments::default();
    found.kl.iter().for_each(|&kl| moments.add(kl));
    let mut sorted = found.kl.clone();
    sorted.sort_by(f64::total_cmp);
    let quantile = |q: f64| {
        let at = (sorted.len().saturating_sub(1)) as f64 * q;
        sorted.get(at.round() as usize).copied().unwrap_or_default()
    };
    Report {
        mean_kl: moments.mean,
        standard_error: moments.standard_error(),
        ci95: mean_interval(&found.kl, SEED),
        median_kl: quantile(0.5),
        p99_kl: quantile(0.99),
        max_kl: quantile(1.0),
        top1_agreement: found.agree.iter().sum::<f64>() / found.agree.len().max(1) as f64,
        top1_ci95: mean_interval(&found.agree, SEED),
        positions: found.kl.len(),
        context,
        chunks: corpus.chunks.len(),
        activations: args.model.activations.to_string(),
        kv_type: kv_type.to_string(),
        reference: Reference {
            model: args.reference_model.clone(),
            activations: args.reference_activations.to_string(),
            kv_type: args.reference_kv_type.to_string(),
        },
        flips: found.flips,
    }
}

impl Report {
    fn text(&self) -> String {
        let interval = |ci: Option<Interval>| match ci {
            Some(Interval(low, high)) => format!(" (95%: {low:.3e} to {high:.3e})"),
            None => String::new(),
        };
        let share = |ci: Option<Interval>| match ci {
            Some(Interval(low, high)) => {
                format!(" (95%: {:.2}% to {:.2}%)", low * 100.0, high * 100.0)
            }
            None => String::new(),
        };
        let mut text = format!(
            "KL divergence {:.3e} nats a position{}\nmedian {:.3e}, 99th percentile {:.3e}, largest \
             {:.3e}\nsame best token {:.2}%{}: {} of {} positions differ\n",
            self.mean_kl,
            interval(self.ci95),
            self.median_kl,
            self.p99_kl,
            self.max_kl,
            self.top1_agreement * 100.0,
            share(self.top1_ci95),
            self.flips.len(),
            self.positions
        );
        text += &format!(
            "activations {}, KV {}; reference: activations {}, KV {}",
            self.activations, self.kv_type, self.reference.activations, self.reference.kv_type
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::forward::tests::Fake;
    use super::*;

    #[test]
    fn positions_are_compared_with_their_own() {
        let logit = |_: u32, p: usize, v: usize| if v == p % 3 { 2.0 } else { 0.0 };
        // The same but at position 40 the second token is preferred to the first of three.
        let changed = move |t: u32, p: usize, v: usize| {
            if p == 40 { [0.0, 0.0, 5.0][v] } else { logit(t, p, v) }
        };
        let (mut reference, mut model) = (Fake::new(3, logit), Fake::new(3, changed));
        let chunk = vec![1; 60];
        let mut found = Comparison::default();
        found
            .add(7, &chunk, &mut Scorer::new(&mut reference), &mut Scorer::new(&mut model))
            .unwrap();
        assert_eq!(found.kl.len(), 30);
        assert_eq!(found.agree.iter().sum::<f64>(), 29.0);
        let [flip] = &found.flips[..] else { panic!("{:?}", found.flips) };
        assert_eq!((flip.chunk, flip.position), (7, 40));
        assert_eq!((flip.reference_token, flip.token, flip.reference_margin), (1, 2, 2.0));
        for (i, &kl) in found.kl.iter().enumerate() {
            let position = 30 + i;
            assert_eq!(kl > 0.0, position == 40, "{position}: {kl}");
        }
    }
}
