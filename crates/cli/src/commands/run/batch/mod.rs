//! A file of prompts, run together; results come out in the order of the prompts.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use anyhow::Context as _;
use dunlin_executor::{
    generate::{CancelFlag, Event, Request},
    sampler::SamplingParams,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Args;
use crate::{
    interrupt,
    load::{self, Engine},
    note,
    outcome::{INTERRUPTED, unusable},
    prompt::{conversation, encode_prompt},
    report::Report,
};

/// A prompt and what differs for it from the command line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: Option<Value>,
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    max_tokens: Option<usize>,
    n: Option<u32>,
    stop: Option<Stop>,
    stop_token_ids: Option<Vec<u32>>,
    ignore_eos: Option<bool>,
    logprobs: Option<usize>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    #[serde(alias = "repeat_penalty")]
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    /// As OpenAI has it: from token ids, as strings, to biases.
    logit_bias: Option<BTreeMap<u32, f32>>,
    seed: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Many(Vec<String>),
}

/// What a line may be.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum LineForm {
    Prompt(String),
    Full(serde_json::Map<String, Value>),
}

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
    Done(Box<Report>),
    Refused { error: String },
}

pub(super) fn run(
    args: &Args,
    sampling: &SamplingParams,
    template: Option<String>,
    text: &str,
) -> anyhow::Result<ExitCode> {
    let lines: Vec<Line> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| {
            parse_line(line).map_err(|e| unusable(format!("line {}: {e}", number + 1)))
        })
        .collect::<anyhow::Result<_>>()?;
    let mut out: Box<dyn Write> = match &args.out {
        None => Box::new(io::stdout().lock()),
        Some(path) => {
            let file = File::create(path);
            Box::new(BufWriter::new(
                file.with_context(|| format!("cannot write {}", path.display()))?,
            ))
        }
    };
    // No more KV than all samples can use, and at least what the widest prompt needs.
    let samples = lines.iter().map(|line| line.n.unwrap_or(args.output.samples).max(1) as usize);
    let widest = samples.clone().max().unwrap_or(1);
    let parallel = args.parallel.min(samples.sum()).max(widest);
    let mut engine = load::engine(&args.model, parallel, template, args.verbose)?;
    let cancel = CancelFlag::new();
    let mut results = Ordered::default();
    let mut waiting = BTreeMap::new();
    for (index, line) in lines.into_iter().enumerate() {
        let id = line.id.clone();
        match submit(args, sampling, &mut engine, line, &cancel) {
            Ok((request, seed, top)) => {
                waiting.insert(request, (index, id, seed, top));
            }
            Err(error) => results.refuse(index, id, format!("{error:#}")),
        }
    }
    interrupt::arm(Some(&cancel));
    let mut written = results.write_ready(&mut out);
    let (tokenizer, about) = (engine.tokenizer.clone(), engine.about);
    engine.generator.run(|event| {
        if let Event::Finished { request, completion } = event
            && let Some((index, id, seed, top)) = waiting.remove(&request)
        {
            results.failed |= completion.choices.iter().any(|c| c.finish.error().is_some());
            let report = Report::new(&completion, &tokenizer, top, seed, &about);
            results.done(index, id, report);
            if written.is_ok() {
                written = results.write_ready(&mut out);
            }
            if written.is_err() {
                cancel.cancel();
            }
        }
    });
    written?;
    out.flush()?;
    Ok(match (cancel.is_cancelled(), results.failed) {
        (true, _) => ExitCode::from(INTERRUPTED),
        (false, true) => {
            note!("dunlin: some prompts failed; their lines say why");
            ExitCode::FAILURE
        }
        (false, false) => ExitCode::SUCCESS,
    })
}

fn parse_line(line: &str) -> Result<Line, String> {
    let form = serde_json::from_str(line).map_err(|e| match e.classify() {
        serde_json::error::Category::Data => "it is neither a string nor an object".to_string(),
        _ => format!("it is no JSON: {e}"),
    })?;
    let fields = match form {
        LineForm::Full(fields) => fields,
        LineForm::Prompt(prompt) => {
            serde_json::Map::from_iter([("prompt".to_string(), prompt.into())])
        }
    };
    let line: Line = serde_json::from_value(fields.into()).map_err(|e| e.to_string())?;
    match (&line.prompt, &line.messages) {
        (Some(_), Some(_)) => Err("it has both `prompt` and `messages`".into()),
        (None, None) => Err("it has neither `prompt` nor `messages`".into()),
        _ => Ok(line),
    }
}

/// Submits one line; its request, seed, and whether alternatives are told.
fn submit(
    args: &Args,
    sampling: &SamplingParams,
    engine: &mut Engine,
    line: Line,
    cancel: &CancelFlag,
) -> anyhow::Result<(dunlin_units::RequestId, u64, bool)> {
    let raw = line.messages.is_none() && (args.raw || !engine.chats());
    let prompt = line.prompt.as_deref().unwrap_or_default();
    let tokens = match &line.messages {
        Some(messages) => engine.encode_chat(messages)?,
        None if raw => encode_prompt(&engine.tokenizer, prompt)?,
        None => engine.encode_chat(&conversation(args.system.as_deref(), prompt))?,
    };
    let sampling = line_sampling(sampling, &line);
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
        cancel: cancel.clone(),
        ..output.request(engine, tokens, sampling, !raw)
    };
    Ok((engine.generator.submit(request)?, seed, top > 0))
}

/// The command line's sampling, changed by what the line says.
fn line_sampling(base: &SamplingParams, line: &Line) -> SamplingParams {
    SamplingParams {
        temperature: line.temperature.unwrap_or(base.temperature),
        top_k: line.top_k.unwrap_or(base.top_k),
        top_p: line.top_p.unwrap_or(base.top_p),
        min_p: line.min_p.unwrap_or(base.min_p),
        typical_p: line.typical_p.unwrap_or(base.typical_p),
        repetition_penalty: line.repetition_penalty.unwrap_or(base.repetition_penalty),
        presence_penalty: line.presence_penalty.unwrap_or(base.presence_penalty),
        frequency_penalty: line.frequency_penalty.unwrap_or(base.frequency_penalty),
        penalty_window: base.penalty_window,
        logit_bias: match &line.logit_bias {
            None => base.logit_bias.clone(),
            Some(biases) => biases.iter().map(|(&token, &bias)| (token, bias)).collect(),
        },
        seed: line.seed.unwrap_or(base.seed),
    }
}

/// Results that wait for those before them.
#[derive(Debug, Default)]
struct Ordered {
    ready: BTreeMap<usize, OutLine>,
    next: usize,
    failed: bool,
}

impl Ordered {
    fn done(&mut self, index: usize, id: Option<Value>, report: Report) {
        let result = LineResult::Done(Box::new(report));
        self.ready.insert(index, OutLine { index, id, result });
    }

    fn refuse(&mut self, index: usize, id: Option<Value>, error: String) {
        self.failed = true;
        self.ready.insert(index, OutLine { index, id, result: LineResult::Refused { error } });
    }

    /// Writes what nothing is missing before any more.
    fn write_ready(&mut self, out: &mut dyn Write) -> io::Result<()> {
        while let Some(line) = self.ready.remove(&self.next) {
            self.next += 1;
            serde_json::to_writer(&mut *out, &line)?;
            out.write_all(b"\n")?;
        }
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_strings_or_objects() {
        assert_eq!(parse_line("\"Hi\"").unwrap().prompt.as_deref(), Some("Hi"));
        let line = r#"{"prompt":"a","id":7,"stop":"x","logit_bias":{"5":-1.5},"n":2}"#;
        let line = parse_line(line).unwrap();
        assert_eq!(line.logit_bias, Some(BTreeMap::from([(5, -1.5)])));
        assert_eq!(line.n, Some(2));
        let chat = parse_line(r#"{"messages":[{"role":"user","content":"a"}]}"#).unwrap();
        assert_eq!(chat.messages.unwrap(), [crate::prompt::message("user", "a")]);
        for (bad, says) in [
            ("{", "no JSON"),
            ("5", "neither a string nor an object"),
            ("{}", "neither `prompt` nor `messages`"),
            (r#"{"prompt":"a","messages":[]}"#, "both"),
            (r#"{"promt":"a"}"#, "unknown field `promt`"),
            (r#"{"prompt":"a","temperature":"hot"}"#, "hot"),
        ] {
            let error = parse_line(bad).unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }
}
