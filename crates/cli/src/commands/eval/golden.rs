//! `dunlin eval golden`: logits against those of an exact reference, from golden files.
//!
//! A golden file is a JSON list of prompts, or one prompt, each with its `ids`, `probe_ids` and
//! `probe_logits`: the reference's logits of some tokens of the vocabulary, at every position or at
//! the last few. A prompt may also have a greedy continuation (`greedy`, `margins`) or the best
//! tokens of its last positions (`argmax`, `margins`).

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::{forward::Scorer, kv_type_or_f32, open::open, print, stats::argmax};
use crate::{model_args::ModelArgs, outcome::unusable};

/// Compare logits with golden files of exact ones
///
/// The error of a prompt is the relative L2 norm over all of its probe logits. Along the golden
/// continuation, the best token must be the golden one at every step whose margin exceeds twice the
/// largest error of any logit; exit code 1 says that it was not. Keys and values are f32 unless
/// --kv-type says otherwise.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Golden files
    #[arg(required = true, value_name = "GOLDEN")]
    golden: Vec<PathBuf>,

    /// Fail (exit code 1) where a prompt's error is above this
    #[arg(long, value_name = "RELATIVE")]
    max_error: Option<f64>,

    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

/// A prompt of a golden file; see the testkit's README for the fields.
#[derive(Debug, Clone, Deserialize)]
struct Prompt {
    ids: Vec<u32>,
    probe_ids: Vec<u32>,
    probe_logits: Vec<Vec<f64>>,
    #[serde(default)]
    greedy: Vec<u32>,
    #[serde(default)]
    argmax: Vec<u32>,
    #[serde(default)]
    margins: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum GoldenFile {
    Prompts(Vec<Prompt>),
    One(Box<Prompt>),
}

/// What came out.
#[derive(Debug, Serialize)]
struct Report {
    mean_error: f64,
    worst_error: f64,
    /// The largest error of any probe logit, of all prompts.
    max_abs_error: f64,
    /// Steps whose margin exceeds twice that, and how many of them had the golden best token.
    decided_steps: usize,
    agreeing_steps: usize,
    /// The same of all steps.
    all_steps: usize,
    all_agreeing: usize,
    activations: String,
    kv_type: String,
    prompts: Vec<PromptReport>,
}

#[derive(Debug, Serialize)]
struct PromptReport {
    prompt: String,
    tokens: usize,
    relative_l2: f64,
    max_abs: f64,
    /// One for each step along the golden continuation: whether the best token is the golden one.
    agrees: Vec<bool>,
    #[serde(skip)]
    margins: Vec<f64>,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut prompts = Vec::new();
    for path in &args.golden {
        prompts.extend(read(path)?);
    }
    let longest = prompts.iter().map(|(_, p)| p.ids.len() + p.greedy.len()).max().unwrap_or(0);
    let kv_type = kv_type_or_f32(&args.model)?;
    let mut opened = open(&args.model, args.model.activations, kv_type, longest)?;
    let mut scorer = Scorer::new(&mut *opened.backend);
    let mut reports = Vec::new();
    for (name, prompt) in &prompts {
        reports.push(measure(&mut scorer, name, prompt)?);
    }
    let report = Report::new(reports, args.model.activations.to_string(), kv_type.to_string());
    let failed = report.agreeing_steps < report.decided_steps
        || args.max_error.is_some_and(|most| report.worst_error > most);
    print(args.json, &report, &report.text())?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The prompts of a file, named.
fn read(path: &Path) -> anyhow::Result<Vec<(String, Prompt)>> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let file: GoldenFile = serde_json::from_slice(&text)
        .map_err(|e| unusable(format!("{} is no golden file: {e}", path.display())))?;
    let prompts = match file {
        GoldenFile::Prompts(prompts) => prompts,
        GoldenFile::One(prompt) => vec![*prompt],
    };
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let named = prompts.into_iter().enumerate();
    let named: Vec<_> = named.map(|(i, p)| (format!("{stem}#{i}"), p)).collect();
    for (name, prompt) in &named {
        prompt.check().map_err(|problem| unusable(format!("{name}: {problem}")))?;
    }
    Ok(named)
}

impl Prompt {
    /// Whether the lists' lengths fit together.
    fn check(&self) -> Result<(), &'static str> {
        let probed = self.probe_logits.len();
        let steps = self.greedy.len() + self.argmax.len();
        if self.ids.is_empty() || probed == 0 || probed > self.ids.len() {
            Err("probe_logits must have a row for each token, or for each of the last ones")
        } else if self.probe_logits.iter().any(|row| row.len() != self.probe_ids.len()) {
            Err("a row of probe_logits and probe_ids differ in length")
        } else if !self.greedy.is_empty() && !self.argmax.is_empty() {
            Err("there are both a greedy continuation and best tokens")
        } else if self.argmax.len() > self.ids.len() || self.margins.len() != steps {
            Err("every best token needs a position and a margin")
        } else {
            Ok(())
        }
    }

    /// The tokens to compute: the prompt and its continuation but for the last token.
    fn tokens(&self) -> Vec<u32> {
        let mut tokens = self.ids.clone();
        tokens.extend(self.greedy.iter().take(self.greedy.len().saturating_sub(1)));
        tokens
    }

    /// The best tokens with the position of the first: after the prompt for a continuation, its
    /// last positions otherwise.
    fn best(&self) -> (usize, &[u32]) {
        if self.greedy.is_empty() {
            (self.ids.len() - self.argmax.len(), &self.argmax)
        } else {
            (self.ids.len() - 1, &self.greedy)
        }
    }
}

fn measure(scorer: &mut Scorer<'_>, name: &str, prompt: &Prompt) -> anyhow::Result<PromptReport> {
    let vocab_size = scorer.vocab_size();
    if prompt.probe_ids.iter().any(|&id| id as usize >= vocab_size) {
        return Err(unusable(format!("{name}: a probe id is outside the vocabulary")));
    }
    let first_probe = prompt.ids.len() - prompt.probe_logits.len();
    let (first_best, best) = prompt.best();
    let (mut error, mut norm, mut max_abs) = (0.0, 0.0, 0.0_f64);
    let mut agrees = Vec::new();
    let from = first_probe.min(first_best);
    scorer.run(&prompt.tokens(), 0, from, |position, logits| {
        let probes = position.checked_sub(first_probe).and_then(|i| prompt.probe_logits.get(i));
        for (&id, &want) in prompt.probe_ids.iter().zip(probes.into_iter().flatten()) {
            let difference = f64::from(logits[id as usize]) - want;
            error += difference * difference;
            norm += want * want;
            max_abs = max_abs.max(difference.abs());
        }
        if let Some(&want) = position.checked_sub(first_best).and_then(|i| best.get(i)) {
            agrees.push(argmax(logits) == want as usize);
        }
        Ok(())
    })?;
    Ok(PromptReport {
        prompt: name.into(),
        tokens: prompt.ids.len(),
        relative_l2: (error / norm).sqrt(),
        max_abs,
        agrees,
        margins: prompt.margins.clone(),
    })
}

impl Report {
    fn new(prompts: Vec<PromptReport>, activations: String, kv_type: String) -> Self {
        let errors = prompts.iter().map(|p| p.relative_l2);
        let max_abs_error = prompts.iter().map(|p| p.max_abs).fold(0.0, f64::max);
        let steps = || prompts.iter().flat_map(|p| p.agrees.iter().zip(&p.margins));
        let decided = || steps().filter(|(_, margin)| **margin > 2.0 * max_abs_error);
        Self {
            mean_error: errors.clone().sum::<f64>() / prompts.len().max(1) as f64,
            worst_error: errors.fold(0.0, f64::max),
            max_abs_error,
            decided_steps: decided().count(),
            agreeing_steps: decided().filter(|(agrees, _)| **agrees).count(),
            all_steps: steps().count(),
            all_agreeing: steps().filter(|(agrees, _)| **agrees).count(),
            activations,
            kv_type,
            prompts,
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for prompt in &self.prompts {
            text += &format!(
                "{:<44} {:>5} tokens  relative L2 {:.3e}  largest {:.3e}\n",
                prompt.prompt, prompt.tokens, prompt.relative_l2, prompt.max_abs
            );
        }
        text += &format!(
            "mean {:.3e}, worst {:.3e}, largest error of a logit {:.3e}\nbest token golden at {} of {} \
             steps with a margin above twice that ({} of {} in all)\nactivations {}, KV {}",
            self.mean_error,
            self.worst_error,
            self.max_abs_error,
            self.agreeing_steps,
            self.decided_steps,
            self.all_agreeing,
            self.all_steps,
            self.activations,
            self.kv_type
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::forward::tests::Fake;
    use super::*;

    /// Logits that the tests can write down: 1 for the token after this one, p/100 for token 0.
    fn logit(t: u32, p: usize, v: usize) -> f32 {
        if v == 0 {
            p as f32 / 100.0
        } else if v == t as usize + 1 {
            1.0
        } else {
            0.0
        }
    }

    fn prompt(json: &str) -> Prompt {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_prompt_with_a_continuation() {
        let p = prompt(
            r#"{"ids": [1, 2, 3], "probe_ids": [0, 2], "greedy": [4, 5, 7], "margins": [1, 0.5, 2],
                "probe_logits": [[0.0, 1.0], [0.01, 0.0], [0.02, 0.1]]}"#,
        );
        p.check().unwrap();
        let mut fake = Fake::new(10, logit);
        let r = measure(&mut Scorer::new(&mut fake), "x", &p).unwrap();
        // All probes are right but the last, whose golden value is 0.1 too high.
        let norm = (1.0 + 0.01f64.powi(2) + 0.02f64.powi(2) + 0.01).sqrt();
        assert!((r.relative_l2 - 0.1 / norm).abs() < 1e-7, "{r:?}");
        assert!((r.max_abs - 0.1).abs() < 1e-12);
        // After 3 comes 4, after 4 5, after 5 6 and not 7.
        assert_eq!(r.agrees, [true, true, false]);
        let report = Report::new(vec![r], "f32".into(), "f32".into());
        assert_eq!((report.decided_steps, report.agreeing_steps), (3, 2));
        assert_eq!((report.all_steps, report.all_agreeing), (3, 2));
    }

    #[test]
    fn a_long_prompt_has_its_last_positions_only() {
        let p = prompt(
            r#"{"ids": [1, 2, 3, 4], "probe_ids": [5], "argmax": [4, 5], "margins": [1, 0.1],
                "probe_logits": [[0.0], [1.0]]}"#,
        );
        p.check().unwrap();
        let mut fake = Fake::new(10, logit);
        let r = measure(&mut Scorer::new(&mut fake), "x", &p).unwrap();
        assert_eq!((r.relative_l2, r.max_abs), (0.0, 0.0));
        assert_eq!(r.agrees, [true, true]);
    }

    #[test]
    fn lists_that_do_not_fit_are_refused() {
        for json in [
            r#"{"ids": [], "probe_ids": [], "probe_logits": []}"#,
            r#"{"ids": [1], "probe_ids": [1], "probe_logits": [[1.0], [2.0]]}"#,
            r#"{"ids": [1], "probe_ids": [1, 2], "probe_logits": [[1.0]]}"#,
            r#"{"ids": [1], "probe_ids": [1], "probe_logits": [[1.0]], "greedy": [1]}"#,
            r#"{"ids": [1], "probe_ids": [1], "probe_logits": [[1.0]], "argmax": [1, 2],
                "margins": [1, 2]}"#,
        ] {
            assert!(prompt(json).check().is_err(), "{json}");
        }
    }
}
