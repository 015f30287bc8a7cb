//! A file of prompts, run together; results come out in the order of the prompts.
//!
//! Results in a file are a beginning of the whole at any time, line by line, so that a run that was
//! ended goes on where it was.

mod line;
mod resume;

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Context as _;
use dunlin_engine::{CancelFlag, Event, Request};
use dunlin_executor::sampler::SamplingParams;
use dunlin_units::RequestId;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::Value;

use super::Args;
use crate::{
    interrupt,
    load::{self, Model},
    note,
    outcome::{INTERRUPTED, unusable},
    prompt::{conversation, encode_prompt},
    report::Report,
};
use line::{Line, Stop, line_sampling, parse_line};

/// Prompts that the engine is given ahead of their turn: enough for its policy to choose from.
const AHEAD: usize = 4096;

/// One line of output.
#[derive(Debug, Serialize)]
struct OutLine {
    /// Number of the prompt, from 0.
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Value>,
    #[serde(flatten)]
    result: LineResult,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum LineResult {
    Done {
        /// The first sample's tokens, a stop token included.
        ids: Vec<u32>,
        #[serde(flatten)]
        report: Box<Report>,
    },
    Refused {
        error: String,
        finish_reason: &'static str,
    },
}

/// A prompt that waits: its number, the id that it was given, and the line or what is wrong with it.
struct Waiting {
    index: usize,
    id: Option<Value>,
    line: Result<Line, String>,
}

/// A prompt under way.
struct Running {
    index: usize,
    id: Option<Value>,
    seed: u64,
    /// Whether alternatives are told.
    top: bool,
}

pub(super) fn run(
    args: &Args,
    sampling: &SamplingParams,
    template: Option<String>,
    text: &str,
) -> anyhow::Result<ExitCode> {
    let mut waiting = read_lines(text, args.strict)?;
    let ids: Vec<Option<Value>> = waiting.iter().map(|w| w.id.clone()).collect();
    let (out, done): (Box<dyn Write>, usize) = match &args.out {
        None => (Box::new(io::stdout().lock()), 0),
        Some(path) => {
            let (file, done) = resume::open(path, &ids, args.fresh)?;
            (Box::new(file), done)
        }
    };
    if done > 0 {
        note!("dunlin: {done} of {} results are there already", ids.len());
    }
    waiting.drain(..done);
    // No more KV than all samples can use, and at least what the widest prompt needs.
    let lines = waiting.iter().filter_map(|w| w.line.as_ref().ok());
    let samples = lines.map(|line| line.n.unwrap_or(args.output.samples).max(1) as usize);
    let widest = samples.clone().max().unwrap_or(1);
    let parallel = args.parallel.min(samples.sum()).max(widest);
    let mut model = load::model(&args.model, &args.engine, parallel, template, args.verbose)?;
    args.output.constrain(&mut model)?;
    let batch = Batch {
        args,
        sampling,
        model,
        cancel: CancelFlag::new(),
        results: Ordered { ready: BTreeMap::new(), next: done, failed: false },
        running: BTreeMap::new(),
        out,
        progress: progress(ids.len(), done),
    };
    interrupt::arm(Some(&batch.cancel));
    batch.run(waiting)
}

/// All prompts. Lines that are none are kept with what is wrong, unless that is fatal.
fn read_lines(text: &str, strict: bool) -> anyhow::Result<VecDeque<Waiting>> {
    let mut waiting = VecDeque::new();
    for (number, text) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line = parse_line(text).map_err(|e| format!("line {}: {e}", number + 1));
        if let Err(problem) = &line {
            if strict {
                return Err(unusable(problem));
            }
            note!("dunlin: {problem}");
        }
        let id = match &line {
            Ok(line) => line.id.clone(),
            // What can be told of a bad line.
            Err(_) => serde_json::from_str::<Value>(text)
                .ok()
                .and_then(|value| value.get("id").cloned())
                .filter(|id| !id.is_null()),
        };
        waiting.push_back(Waiting { index: waiting.len(), id, line });
    }
    Ok(waiting)
}

/// A bar on standard error, where that is a terminal.
fn progress(total: usize, done: usize) -> ProgressBar {
    let bar = ProgressBar::new(total as u64).with_position(done as u64);
    let style = ProgressStyle::with_template(
        "{wide_bar} {pos} of {len} prompts, {msg} [{elapsed} + {eta}]",
    );
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

struct Batch<'a> {
    args: &'a Args,
    sampling: &'a SamplingParams,
    model: Model,
    cancel: CancelFlag,
    results: Ordered,
    running: BTreeMap<RequestId, Running>,
    out: Box<dyn Write>,
    progress: ProgressBar,
}

impl Batch<'_> {
    fn run(mut self, mut waiting: VecDeque<Waiting>) -> anyhow::Result<ExitCode> {
        let started = std::time::Instant::now();
        let mut tokens = 0u64;
        let mut written = Ok(());
        loop {
            self.feed(&mut waiting);
            let mut ended = Vec::new();
            let more = self.model.engine.step(&mut |event| match event {
                Event::Token { .. } => tokens += 1,
                Event::Text { .. } => {}
                Event::Finished { request, completion } => ended.push((request, completion)),
            });
            for (request, completion) in ended {
                let Some(of) = self.running.remove(&request) else { continue };
                self.progress.inc(1);
                let (tokenizer, about) = (&self.model.tokenizer, &self.model.about);
                let report = Report::new(&completion, tokenizer, of.top, of.seed, about);
                let first = &completion.choices[0];
                if first.finish.reason() == "cancelled" && self.args.out.is_some() {
                    // To be done by the run that goes on with this one.
                    continue;
                }
                let failed = completion.choices.iter().any(|c| c.finish.error().is_some());
                let ids = first.token_ids.clone();
                let result = LineResult::Done { ids, report: Box::new(report) };
                self.results.add(of.index, of.id, result, failed);
            }
            if written.is_ok() {
                written = self.results.write_ready(&mut self.out);
                let rate = tokens as f64 / started.elapsed().as_secs_f64();
                self.progress.set_message(format!("{rate:.0} tokens/s"));
            }
            if written.is_err() {
                self.cancel.cancel();
            }
            if !more && (waiting.is_empty() || self.cancel.is_cancelled()) {
                break;
            }
        }
        self.progress.finish_and_clear();
        written?;
        self.out.flush()?;
        self.model.engine.flush_record().context("the record of the run is not complete")?;
        Ok(match (self.cancel.is_cancelled(), self.results.failed) {
            (true, _) => ExitCode::from(INTERRUPTED),
            (false, true) => {
                note!("dunlin: some prompts failed; their lines say why");
                ExitCode::FAILURE
            }
            (false, false) => ExitCode::SUCCESS,
        })
    }

    /// Gives the engine what it may look at.
    fn feed(&mut self, waiting: &mut VecDeque<Waiting>) {
        while self.running.len() < AHEAD && !self.cancel.is_cancelled() {
            let Some(Waiting { index, id, line }) = waiting.pop_front() else { return };
            let submitted = match line {
                Ok(line) => self.submit(line).map_err(|error| format!("{error:#}")),
                Err(problem) => Err(problem),
            };
            match submitted {
                Ok((request, seed, top)) => {
                    self.running.insert(request, Running { index, id, seed, top });
                }
                Err(error) => {
                    self.progress.inc(1);
                    let result = LineResult::Refused { error, finish_reason: "error" };
                    self.results.add(index, id, result, true);
                }
            }
        }
    }

    /// Submits one line; its request, seed, and whether alternatives are told.
    fn submit(&mut self, line: Line) -> anyhow::Result<(RequestId, u64, bool)> {
        let (args, model) = (self.args, &mut self.model);
        let raw = line.messages.is_none() && (args.raw || !model.chats());
        let prompt = line.prompt.as_deref().unwrap_or_default();
        let tokens = match &line.messages {
            Some(messages) => model.encode_chat(messages)?,
            None if raw => encode_prompt(&model.tokenizer, prompt)?,
            None => model.encode_chat(&conversation(args.system.as_deref(), prompt))?,
        };
        let sampling = line_sampling(self.sampling, &line);
        let (seed, top) = (sampling.seed, line.logprobs.unwrap_or(args.output.logprobs));
        let mut output = args.output.clone();
        output.samples = line.n.unwrap_or(output.samples);
        output.max_tokens = line.max_tokens.or(output.max_tokens);
        output.ignore_eos = line.ignore_eos.unwrap_or(output.ignore_eos);
        output.stop_token_ids = line.stop_token_ids.unwrap_or(output.stop_token_ids);
        output.stop = match line.stop {
            None => output.stop,
            Some(Stop::One(stop)) => vec![stop],
            Some(Stop::Many(stops)) => stops,
        };
        let request = Request {
            logprobs: Some(top),
            cancel: self.cancel.clone(),
            ..output.request(model, tokens, sampling, !raw)
        };
        Ok((model.engine.submit(request)?, seed, top > 0))
    }
}

/// Results that wait for those before them.
#[derive(Debug)]
struct Ordered {
    ready: BTreeMap<usize, OutLine>,
    next: usize,
    failed: bool,
}

impl Ordered {
    fn add(&mut self, index: usize, id: Option<Value>, result: LineResult, failed: bool) {
        self.failed |= failed;
        self.ready.insert(index, OutLine { index, id, result });
    }

    /// Writes what nothing is missing before any more.
    fn write_ready(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if !self.ready.contains_key(&self.next) {
            return Ok(());
        }
        while let Some(line) = self.ready.remove(&self.next) {
            self.next += 1;
            serde_json::to_writer(&mut *out, &line)?;
            out.write_all(b"\n")?;
        }
        out.flush()
    }
}
