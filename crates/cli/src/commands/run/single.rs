//! One prompt, answered as text or as one JSON object.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Context as _;
use dunlin_engine::{Completion, Event, Finish};
use dunlin_executor::sampler::SamplingParams;

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
    let mut model = load::model(&args.model, &args.engine, samples, template, args.verbose)?;
    args.output.constrain(&mut model)?;
    let raw = args.raw || !model.chats();
    if raw && !args.raw {
        note!("dunlin: the model has no chat template; the prompt is continued as it is");
    }
    let tokens = if raw {
        encode_prompt(&model.tokenizer, prompt)?
    } else {
        model.encode_chat(&conversation(args.system.as_deref(), prompt))?
    };
    let seed = sampling.seed;
    let mut request = args.output.request(&model, tokens, sampling, !raw);
    if args.json {
        request.logprobs = Some(args.output.logprobs);
    }
    let cancel = request.cancel.clone();
    interrupt::arm(Some(&cancel));
    let streams = !args.json && args.output.samples == 1;
    let mut stream = Stream::new(io::stdout().lock());
    let completion = model.engine.complete(request, |event| {
        if let Event::Token { text, .. } = event
            && streams
            && !stream.show(text)
        {
            cancel.cancel();
        }
    });
    interrupt::arm(None);
    let shown = completion.as_ref().ok().filter(|_| streams).map(|c| &c.choices[0].text[..]);
    let mut out = stream.finish(shown)?;
    let completion = completion.map_err(unusable)?;
    if args.json {
        let top = args.output.logprobs > 0;
        let report = Report::new(&completion, &model.tokenizer, top, seed, &model.about);
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
    model.engine.flush_record().context("the record of the run is not complete")?;
    if args.verbose {
        let timings = Timings::new(&completion.bill, completion.choices.len(), model.about.load_ns);
        note!("{}", timings.summary(&completion.bill));
    }
    Ok(ending(&completion, model.engine.context()))
}

/// Shows an answer as it is made.
pub(super) struct Stream<W> {
    out: W,
    /// Bytes shown.
    shown: usize,
    result: io::Result<()>,
}

impl<W: Write> Stream<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, shown: 0, result: Ok(()) }
    }

    /// Writes the answer's next text so that it is seen at once. False once that has failed.
    pub(super) fn show(&mut self, text: &str) -> bool {
        if self.result.is_ok() {
            self.shown += text.len();
            self.result = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        }
        self.result.is_ok()
    }

    /// Shows what of the `whole` answer has not been: text that was held back because it could have
    /// become a stop string or a character when the answer was stopped. Gives back the output.
    ///
    /// # Errors
    /// What could not be written, now or earlier.
    pub(super) fn finish(mut self, whole: Option<&str>) -> io::Result<W> {
        if let Some(rest) = whole.and_then(|whole| whole.get(self.shown..)) {
            self.show(rest);
        }
        self.result.map(|()| self.out)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_shown_to_its_end() {
        let mut stream = Stream::new(Vec::new());
        assert!(stream.show("held") && stream.show(""));
        assert_eq!(stream.finish(Some("held back \u{FFFD}")).unwrap(), "held back \u{FFFD}".as_bytes());
        assert_eq!(Stream::new(Vec::new()).finish(None).unwrap(), b"");
    }

    #[test]
    fn an_output_that_closes_is_told_of() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut stream = Stream::new(Closed);
        assert!(!stream.show("a") && !stream.show("b"));
        let error = stream.finish(Some("abc")).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
