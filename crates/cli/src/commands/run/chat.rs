//! A chat in the terminal.

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use dunlin_engine::Event;
use dunlin_executor::sampler::SamplingParams;
use dunlin_scheduler::{Keep, SessionUse};
use dunlin_units::SessionId;
use rustyline::{DefaultEditor, error::ReadlineError};
use serde_json::Value;

use super::{
    Args,
    single::{Stream, ending},
};
use crate::{
    interrupt,
    load::{self, Model},
    note,
    prompt::message,
    report::Timings,
};

const HELP: &str = "\
/help          this
/system TEXT   sets the system message and starts anew; without TEXT it takes it away
/clear         starts anew
/save FILE     writes the conversation as JSON messages
/exit          leaves (also Ctrl-D)
A line that ends in a backslash goes on in the next one. Ctrl-C stops an answer.";

/// The session whose KV the turns of the chat share.
const SESSION: SessionId = SessionId(0);

/// What a typed line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Input<'a> {
    Nothing,
    Say(&'a str),
    Help,
    Clear,
    System(&'a str),
    Save(&'a str),
    Exit,
    Unknown(&'a str),
}

impl<'a> Input<'a> {
    fn parse(line: &'a str) -> Self {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match word {
            "" => Self::Nothing,
            "/help" | "/?" => Self::Help,
            "/clear" => Self::Clear,
            "/system" => Self::System(rest.trim()),
            "/save" => Self::Save(rest.trim()),
            "/exit" | "/quit" | "/bye" => Self::Exit,
            _ if word.starts_with('/') && !word[1..].contains('/') => Self::Unknown(word),
            _ => Self::Say(line),
        }
    }
}

/// A conversation and what it is held with.
struct Chat<'a> {
    args: &'a Args,
    sampling: SamplingParams,
    model: Model,
    messages: Vec<Value>,
}

pub(super) fn run(
    args: &Args,
    sampling: SamplingParams,
    template: Option<String>,
) -> anyhow::Result<ExitCode> {
    let mut model = load::model(&args.model, &args.engine, 1, template, args.verbose)?;
    args.output.constrain(&mut model)?;
    let mut chat = Chat { args, sampling, model, messages: Vec::new() };
    chat.set_system(args.system.as_deref().unwrap_or_default());
    let mut editor = DefaultEditor::new().context("cannot use this terminal")?;
    let history = history_path();
    if let Some(path) = &history {
        // There is none the first time.
        let _ = editor.load_history(path);
    }
    note!("Chat with {}. /help shows the commands, Ctrl-D leaves.", chat.model.name);
    let result = chat.converse(&mut editor);
    if let Some(path) = &history
        && let Err(error) = save_history(&mut editor, path)
    {
        note!("dunlin: cannot save the history to {}: {error}", path.display());
    }
    result?;
    chat.model.engine.flush_record().context("the record of the run is not complete")?;
    Ok(ExitCode::SUCCESS)
}

impl Chat<'_> {
    fn converse(&mut self, editor: &mut DefaultEditor) -> anyhow::Result<()> {
        loop {
            let line = match read_lines(editor) {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => {
                    note!("(Ctrl-D or /exit leaves)");
                    continue;
                }
                Err(ReadlineError::Eof) => return Ok(()),
                Err(error) => return Err(error).context("cannot read from this terminal"),
            };
            match Input::parse(&line) {
                Input::Nothing => {}
                Input::Say(text) => self.answer(text)?,
                Input::Help => note!("{HELP}"),
                Input::Clear => self.clear(),
                Input::System(text) => self.set_system(text),
                Input::Save(path) => self.save(path),
                Input::Exit => return Ok(()),
                Input::Unknown(word) => note!("{word} is no command; /help shows them all"),
            }
        }
    }

    /// Answers a message. What goes wrong is told, and the message taken back; only a closed
    /// standard output is an error.
    fn answer(&mut self, text: &str) -> anyhow::Result<()> {
        self.messages.push(message("user", text));
        let tokens = match self.model.encode_chat(&self.messages) {
            Ok(tokens) => tokens,
            Err(error) => return self.take_back(&format!("{error:#}")),
        };
        let mut request =
            self.args.output.request(&self.model, tokens, self.sampling.clone(), true);
        request.choices = 1;
        // What the conversation has in common with what was said before is computed already.
        request.prompt = self.model.engine.align_session(SESSION, &request.prompt)?;
        request.session = Some(SessionUse { session: SESSION, keep: Keep::All });
        let cancel = request.cancel.clone();
        interrupt::arm(Some(&cancel));
        let mut stream = Stream::new(io::stdout().lock());
        let result = self.model.engine.complete(request, |event| {
            if let Event::Token { text, .. } = event
                && !stream.show(text)
            {
                cancel.cancel();
            }
        });
        interrupt::arm(None);
        let mut out = stream.finish(result.as_ref().ok().map(|c| &c.choices[0].text[..]))?;
        let completion = match result {
            Ok(completion) => completion,
            Err(error) => {
                return self.take_back(&format!("{error}; /clear starts anew"));
            }
        };
        out.write_all(b"\n")?;
        out.flush()?;
        ending(&completion, self.model.engine.context());
        if self.args.verbose {
            let timings = Timings::new(&completion.bill, 1, self.model.about.load_ns);
            note!("{}", timings.summary(&completion.bill));
        }
        self.messages.push(message("assistant", &completion.choices[0].text));
        Ok(())
    }

    fn take_back(&mut self, problem: &str) -> anyhow::Result<()> {
        self.messages.pop();
        note!("dunlin: {problem}");
        Ok(())
    }

    /// Forgets all but the system message.
    fn clear(&mut self) {
        self.messages.retain(|m| m["role"] == "system");
    }

    fn set_system(&mut self, text: &str) {
        self.messages.clear();
        if !text.is_empty() {
            self.messages.push(message("system", text));
        }
    }

    fn save(&self, path: &str) {
        if path.is_empty() {
            note!("/save needs the name of a file");
            return;
        }
        let saved = serde_json::to_vec_pretty(&self.messages)
            .map_err(io::Error::from)
            .and_then(|json| fs::write(path, json));
        match saved {
            Ok(()) => note!("saved {} messages to {path}", self.messages.len()),
            Err(error) => note!("dunlin: cannot write {path}: {error}"),
        }
    }
}

/// One message: a line, and those after it while they end in a backslash.
fn read_lines(editor: &mut DefaultEditor) -> rustyline::Result<String> {
    let mut text = String::new();
    let mut prompt = "> ";
    loop {
        text.push_str(&editor.readline(prompt)?);
        if !text.ends_with('\\') {
            break;
        }
        text.pop();
        text.push('\n');
        prompt = "… ";
    }
    if !text.trim().is_empty() {
        editor.add_history_entry(&text)?;
    }
    Ok(text)
}

/// Where typed lines are kept between chats, by the XDG rules.
fn history_path() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("dunlin/chat_history"))
}

fn save_history(editor: &mut DefaultEditor, path: &Path) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    editor.save_history(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_messages() {
        for (line, expected) in [
            ("  ", Input::Nothing),
            (" hello there ", Input::Say("hello there")),
            ("/help", Input::Help),
            ("/clear ", Input::Clear),
            ("/system", Input::System("")),
            ("/system  be brief ", Input::System("be brief")),
            ("/save a b", Input::Save("a b")),
            ("/exit", Input::Exit),
            ("/quit", Input::Exit),
            ("/frob x", Input::Unknown("/frob")),
            ("/etc/passwd is a file", Input::Say("/etc/passwd is a file")),
            ("what is /help", Input::Say("what is /help")),
        ] {
            assert_eq!(Input::parse(line), expected, "{line:?}");
        }
    }
}
