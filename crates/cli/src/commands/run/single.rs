//! One prompt, answered as text or as one JSON object.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use dunlin_executor::{
    generate::{Completion, Event, Finish},
    sampler::SamplingParams,
};

use super::Args;
use crate::{
    interrupt, load, note,
    outcome::{INTERRUPTED, unusable},
    prompt::{conversation, encode_prompt},
    report::{Report, Timings},
};

pub(super) fn run(
    args: &Args,
    sampling: SamplingParams,
    template: Option<String>,
    prompt: &str,
) -> anyhow::Result<ExitCode> {
    let samples = args.output.samples.max(1) as usize;
    let mut engine = load::engine(&args.model, samples, template, args.verbose)?;
    let raw = args.raw || !engine.chats();
    if raw && !args.raw {
        note!("dunlin: the model has no chat template; the prompt is continued as it is");
    }
    let tokens = if raw {
        encode_prompt(&engine.tokenizer, prompt)?
    } else {
        engine.encode_chat(&conversation(args.system.as_deref(), prompt))?
    };
    let seed = sampling.seed;
    let mut request = args.output.request(&engine, tokens, sampling, !raw);
    if args.json {
        request.logprobs = Some(args.output.logprobs);
    }
    let cancel = request.cancel.clone();
    interrupt::arm(Some(&cancel));
    let streams = !args.json && args.output.samples == 1;
    let mut written = Ok(());
    let mut out = io::stdout().lock();
    let completion = engine.generator.complete(request, |event| {
        if let Event::Token { text, .. } = event
            && streams
            && written.is_ok()
        {
            written = write_now(&mut out, text);
            if written.is_err() {
                cancel.cancel();
            }
        }
    });
    interrupt::arm(None);
    written?;
    let completion = completion.map_err(unusable)?;
    if args.json {
        let top = args.output.logprobs > 0;
        let report = Report::new(&completion, &engine.tokenizer, top, seed, engine.load_ns);
        serde_json::to_writer(&mut out, &report)?;
        out.write_all(b"\n")?;
    } else if streams {
        out.write_all(b"\n")?;
    } else {
        for (i, choice) in completion.choices.iter().enumerate() {
            note!("[{} of {}]", i + 1, completion.choices.len());
            writeln!(out, "{}", choice.text)?;
        }
    }
    out.flush()?;
    if args.verbose {
        let timings = Timings::new(&completion.bill, completion.choices.len(), engine.load_ns);
        note!("{}", timings.summary(&completion.bill));
    }
    Ok(ending(&completion, engine.generator.context()))
}

/// Writes text so that it is seen at once.
pub(super) fn write_now(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Says on standard error what the text does not show of how it ended, and gives the exit code.
pub(super) fn ending(completion: &Completion, context: usize) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for choice in &completion.choices {
        match &choice.finish {
            Finish::ContextFull => {
                note!("dunlin: the answer ends where the context of {context} tokens does");
            }
            Finish::Cancelled => code = ExitCode::from(INTERRUPTED),
            finish => {
                if let Some(error) = finish.error() {
                    note!("dunlin: {error}");
                    code = ExitCode::FAILURE;
                }
            }
        }
    }
    code
}
