//! `dunlin bench grammar`: what it costs that an answer fits a JSON schema. Masks are timed alone, on
//! the tokens of answers that fit; and decoding under the schema, without and with drafts of what the
//! schema leaves no choice about, stands beside free decoding.

use std::{
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use dunlin_engine::{DrafterKind, Engine, Event, Request, Speculate};
use dunlin_executor::sampler::SamplingParams;
use dunlin_model::CpuModel;
use dunlin_tokenizer::grammar::{Grammar, GrammarCompiler, GrammarSource};
use serde::Serialize;

use super::{
    summary::median,
    workload::{Bench, Setting, ms, prompt, quantile},
};
use crate::{model_args::ModelArgs, note};

/// Objects with texts, numbers, names from a list, and lists: what requests ask for, and no end before
/// all tokens are generated.
const SCHEMA: &str = r#"{
    "type": "array", "minItems": 100, "items": {
        "type": "object", "additionalProperties": false,
        "required": ["name", "age", "kind", "tags", "place"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 24},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "kind": {"enum": ["person", "animal", "plant", "other"]},
            "tags": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 12}},
            "place": {"type": "object", "required": ["city", "known"], "properties": {
                "city": {"type": "string", "maxLength": 24}, "known": {"type": "boolean"}}}
        }
    }
}"#;

/// Sequences that decode together.
const SEQUENCES: [usize; 2] = [1, 16];
const PROMPT: usize = 64;
const OUTPUT: usize = 128;

/// Times of masks, in microseconds.
#[derive(Debug, Serialize)]
struct Masks {
    tokens: usize,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl Masks {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let at = |part| quantile(&times, part).map_or(f64::NAN, us);
        let sum: Duration = times.iter().sum();
        Self {
            tokens: times.len(),
            mean_us: us(sum) / times.len().max(1) as f64,
            p50_us: at(0.5),
            p99_us: at(0.99),
            max_us: at(1.0),
        }
    }
}

/// Decoding with the schema and without.
#[derive(Debug, Serialize)]
struct Decoding {
    sequences: usize,
    /// Milliseconds a step, medians of each repetition.
    free_step_ms: Vec<f64>,
    constrained_step_ms: Vec<f64>,
    /// What the schema adds to a step, as a share of it: the median over repetitions, each of which
    /// decodes in all ways one after the other.
    overhead: f64,
    /// Milliseconds from one token of a sequence to its next, means of each repetition.
    free_token_ms: Vec<f64>,
    constrained_token_ms: Vec<f64>,
    /// With drafts of what is forced. The answers are those without.
    drafted_token_ms: Vec<f64>,
    /// As `overhead`, of the time between tokens.
    drafted_overhead: f64,
    /// Tokens of a sequence in a step with drafts.
    drafted_tokens: f64,
    /// Microseconds a token of choosing it, masks that were not ready in time included.
    free_sample_us: f64,
    constrained_sample_us: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    setting: Setting,
    schema: &'static str,
    compiler_ms: f64,
    compile_ms: f64,
    /// On tables that nobody has filled.
    first_masks: Masks,
    /// Of other answers, on tables that the first ones have filled.
    later_masks: Masks,
    /// The mean of later masks over a free step of one sequence.
    mask_share_of_step: f64,
    decoding: Vec<Decoding>,
}

/// What came of some requests.
#[derive(Default)]
struct Ran {
    answers: Vec<Vec<u32>>,
    step_ms: f64,
    token_ms: f64,
    /// Tokens of a sequence in a step.
    step_tokens: f64,
    sample_us: f64,
}

/// How a repetition decodes.
#[derive(Clone, Copy)]
enum Way<'a> {
    Free,
    Constrained(&'a Grammar),
    Drafted(&'a Grammar),
}

/// Measures, and writes the report.
///
/// # Errors
/// Models that cannot be loaded or computed.
pub fn run(
    args: &ModelArgs,
    path: &Path,
    scale: usize,
    reps: usize,
    json: bool,
) -> anyhow::Result<()> {
    let output = (OUTPUT / scale).max(4);
    let longest = PROMPT + output + 1;
    let most = SEQUENCES.iter().max().copied().unwrap_or(1);
    let mut bench = Bench::open(args, path, longest, most * (longest + 64))?;
    let source = GrammarSource::JsonSchema(SCHEMA.into());
    let started = Instant::now();
    let compiler = GrammarCompiler::new(&bench.tokenizer)?;
    let compiler_ms = ms(started.elapsed());
    let started = Instant::now();
    let grammar = compiler.compile(&source)?;
    let compile_ms = ms(started.elapsed());
    let (mut decoding, mut answers) = (Vec::new(), Vec::new());
    for sequences in SEQUENCES {
        let (mut free, mut constrained, mut drafted) = (Vec::new(), Vec::new(), Vec::new());
        for repetition in 0..reps.max(1) {
            let mut decode = |way| decode(&mut bench, sequences, output, 1000 * repetition, way);
            free.push(decode(Way::Free)?);
            constrained.push(decode(Way::Constrained(&grammar))?);
            drafted.push(decode(Way::Drafted(&grammar))?);
            if drafted.last().map(|ran| &ran.answers) != constrained.last().map(|ran| &ran.answers) {
                anyhow::bail!("drafts have changed an answer");
            }
        }
        decoding.push(Decoding::of(sequences, &free, &constrained, &drafted));
        answers.extend(constrained.into_iter().flat_map(|ran| ran.answers));
    }
    // Other tables than those that decoding has filled.
    let fresh = GrammarCompiler::new(&bench.tokenizer)?.compile(&source)?;
    let half = answers.len() / 2;
    let first_masks = masks(&fresh, &answers[..half])?;
    let later_masks = masks(&fresh, &answers[half..])?;
    let step_ms = decoding.first().and_then(|d| median(&d.free_step_ms)).unwrap_or(f64::NAN);
    let report = Report {
        setting: bench.setting(scale),
        schema: SCHEMA,
        compiler_ms,
        compile_ms,
        mask_share_of_step: later_masks.mean_us / 1e3 / step_ms,
        first_masks,
        later_masks,
        decoding,
    };
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        note!("{}", report.table());
    } else {
        writeln!(out, "{}", report.table())?;
    }
    Ok(out.flush()?)
}

impl Decoding {
    fn of(sequences: usize, free: &[Ran], constrained: &[Ran], drafted: &[Ran]) -> Self {
        let of = |all: &[Ran], value: fn(&Ran) -> f64| all.iter().map(value).collect::<Vec<_>>();
        let middle = |values: &[f64]| median(values).unwrap_or(f64::NAN);
        let over = |ran: &[Ran], value: fn(&Ran) -> f64| {
            let shares = ran.iter().zip(free).map(|(ran, free)| value(ran) / value(free) - 1.0);
            middle(&shares.collect::<Vec<_>>())
        };
        Self {
            sequences,
            free_step_ms: of(free, |ran| ran.step_ms),
            constrained_step_ms: of(constrained, |ran| ran.step_ms),
            overhead: over(constrained, |ran| ran.step_ms),
            free_token_ms: of(free, |ran| ran.token_ms),
            constrained_token_ms: of(constrained, |ran| ran.token_ms),
            drafted_token_ms: of(drafted, |ran| ran.token_ms),
            drafted_overhead: over(drafted, |ran| ran.token_ms),
            drafted_tokens: middle(&of(drafted, |ran| ran.step_tokens)),
            free_sample_us: middle(&of(free, |ran| ran.sample_us)),
            constrained_sample_us: middle(&of(constrained, |ran| ran.sample_us)),
        }
    }
}

/// The time of each mask on the way through answers.
fn masks(grammar: &Grammar, answers: &[Vec<u32>]) -> anyhow::Result<Masks> {
    let mut times = Vec::new();
    for answer in answers {
        let mut matcher = grammar.matcher();
        for at in 0..answer.len() {
            let started = Instant::now();
            matcher.allowed(&answer[..at])?;
            times.push(started.elapsed());
        }
    }
    Ok(Masks::of(times))
}

/// Has so many answers decoded together.
fn decode(
    bench: &mut Bench,
    sequences: usize,
    output: usize,
    seed: usize,
    way: Way<'_>,
) -> anyhow::Result<Ran> {
    let (vocab_size, seed) = (bench.vocab_size, seed as u64);
    let (grammar, speculate) = match way {
        Way::Free => (None, Speculate::Off),
        Way::Constrained(grammar) => (Some(grammar), Speculate::Off),
        Way::Drafted(grammar) => (Some(grammar), Speculate::Only(DrafterKind::Grammar)),
    };
    bench.with_engine(
        |config| config.prefix_cache = false,
        |engine| {
            let mut ids = Vec::new();
            for i in 0..sequences as u64 {
                let sampling = SamplingParams { seed: seed + i, ..SamplingParams::default() };
                let tokens = prompt(PROMPT, vocab_size, seed + 100 + i);
                let request = Request::new(tokens, sampling, Some(output));
                let grammar = grammar.cloned();
                ids.push(engine.submit(Request { grammar, speculate, ..request })?);
            }
            let mut ran = Ran { answers: vec![Vec::new(); sequences], ..Ran::default() };
            collect(engine, &ids, &mut ran)?;
            Ok(ran)
        },
    )
}

/// Runs an engine until all requests have ended.
fn collect(
    engine: &mut Engine<CpuModel>,
    ids: &[dunlin_units::RequestId],
    ran: &mut Ran,
) -> anyhow::Result<()> {
    let (mut steps, mut sample_ns, mut problem) = (Vec::new(), 0, None);
    let (mut step_tokens, mut told) = (0, vec![0; ids.len()]);
    let place = |id| ids.iter().position(|&known| known == id).unwrap_or_default();
    loop {
        let started = Instant::now();
        told.fill(0);
        let more = engine.step(&mut |event| match event {
            Event::Token { request, token, .. } => {
                ran.answers[place(request)].push(token);
                told[place(request)] += 1;
            }
            Event::Finished { completion, .. } => {
                sample_ns += completion.bill.sample_ns;
                problem = completion.choices.iter().find_map(|c| c.finish.error()).or(problem.take());
            }
            Event::Text { .. } => {}
        });
        // Steps in which every sequence decodes; prompts are no part of it, nor is the end.
        if more && told.iter().all(|&tokens| tokens > 0) {
            steps.push(started.elapsed());
            step_tokens += told.iter().sum::<usize>();
        }
        if !more {
            break;
        }
    }
    if let Some(problem) = problem {
        anyhow::bail!("a request failed: {problem}");
    }
    steps.sort_unstable();
    let tokens: usize = ran.answers.iter().map(Vec::len).sum();
    ran.step_ms = quantile(&steps, 0.5).map_or(f64::NAN, ms);
    let each = step_tokens as f64 / ids.len() as f64;
    ran.token_ms = ms(steps.iter().sum()) / each;
    ran.step_tokens = each / steps.len() as f64;
    ran.sample_us = sample_ns as f64 / 1e3 / tokens.max(1) as f64;
    Ok(())
}

impl Report {
    fn table(&self) -> String {
        let mut lines = vec![
            format!("{}, {} threads", self.setting.model, self.setting.threads),
            format!(
                "vocabulary {:.0} ms, once; the schema {:.1} ms",
                self.compiler_ms, self.compile_ms
            ),
        ];
        for (what, masks) in
            [("first answers", &self.first_masks), ("later answers", &self.later_masks)]
        {
            lines.push(format!(
                "masks of {what}: {:.0} us on average, median {:.0}, p99 {:.0}, longest {:.0} ({} \
                 tokens)",
                masks.mean_us, masks.p50_us, masks.p99_us, masks.max_us, masks.tokens
            ));
        }
        lines.push(format!(
            "a later mask takes {:.1}% of a step of one sequence",
            self.mask_share_of_step * 100.0
        ));
        for d in &self.decoding {
            let middle = |values: &[f64]| median(values).unwrap_or(f64::NAN);
            lines.push(format!(
                "{} sequences: {:.2} ms a step free, {:.2} ms under the schema ({:+.1}%); choosing a \
                 token {:.0} us and {:.0} us",
                d.sequences,
                middle(&d.free_step_ms),
                middle(&d.constrained_step_ms),
                d.overhead * 100.0,
                d.free_sample_us,
                d.constrained_sample_us
            ));
            lines.push(format!(
                "  between tokens: {:.2} ms free, {:.2} ms under the schema, {:.2} ms with drafts of \
                 what is forced ({:+.1}%; {:.2} tokens a step)",
                middle(&d.free_token_ms),
                middle(&d.constrained_token_ms),
                middle(&d.drafted_token_ms),
                d.drafted_overhead * 100.0,
                d.drafted_tokens
            ));
        }
        lines.join("\n")
    }
}
