//! `dunlin run`: generates text from one prompt, in a chat, or for a file of prompts.

mod batch;
mod chat;
mod single;

use std::{
    io::{IsTerminal as _, Read as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use dunlin_engine::{ContextOverflow, Request, TextOptions};
use dunlin_executor::sampler::SamplingParams;
use dunlin_tokenizer::grammar::{GrammarCompiler, GrammarSource};

use crate::{
    engine_args::EngineArgs, interrupt, load::Model, model_args::ModelArgs, outcome::unusable,
    sampling_args::SamplingArgs,
};

/// Generate text: from a prompt, in a chat, or for a file of prompts
///
/// With --prompt or --file, or a prompt on standard input, it answers that. In a terminal and with
/// no prompt it is a chat. Text goes to standard output as it is made, and nothing else does.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// The prompt
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,

    /// A file that holds the prompt; - is standard input
    #[arg(short, long, value_name = "PATH", conflicts_with = "prompt")]
    file: Option<PathBuf>,

    /// Continue the prompt as it is, without the model's chat template
    #[arg(long)]
    raw: bool,

    /// A system message for the chat template
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,

    /// A file with a chat template (Jinja) to use instead of the model's
    #[arg(long, value_name = "PATH", conflicts_with = "raw", env = "DUNLIN_CHAT_TEMPLATE")]
    chat_template: Option<PathBuf>,

    /// One JSON object instead of text: text, token_ids, logprobs, timings, bill
    #[arg(long)]
    json: bool,

    /// A file of prompts, one JSON line each, run together; - is standard input. A line is a string
    /// or an object with `prompt` or `messages`, and optionally `id`, `max_tokens`, `n`,
    /// `temperature`, `seed`, `stop` and the other sampling fields
    #[arg(long, value_name = "PATH", conflicts_with_all = ["prompt", "file", "json"])]
    batch: Option<PathBuf>,

    /// Where the results of --batch go, one JSON line each in the order of the prompts [default:
    /// standard output]. Results that are there already are kept, and the run goes on after them
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,

    /// Start --out anew
    #[arg(long, requires = "batch")]
    fresh: bool,

    /// A bad line of --batch ends the run before it begins, instead of being reported and skipped
    #[arg(long, requires = "batch")]
    strict: bool,

    /// How many full contexts the KV memory of --batch holds: the samples that run at once, or more
    /// where --max-tokens bounds them
    #[arg(long, env = "DUNLIN_PARALLEL", default_value_t = 16, value_name = "N")]
    parallel: usize,

    /// Tell on standard error what was loaded and how fast it went
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    sampling: SamplingArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

/// When an answer ends, and what is told about it.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output")]
struct OutputArgs {
    /// The most tokens of an answer [default: to the end of the context]
    #[arg(short = 'n', long = "max-tokens", visible_alias = "predict", env = "DUNLIN_MAX_TOKENS")]
    #[arg(value_name = "TOKENS")]
    max_tokens: Option<usize>,

    /// Samples of each prompt; they share its prefill
    #[arg(long = "n", visible_alias = "samples", default_value_t = 1, value_name = "SAMPLES")]
    samples: u32,

    /// A string that ends an answer, which stops before it. May be given many times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// A token that ends an answer, besides the model's own. May be given many times
    #[arg(long, value_name = "ID")]
    stop_token_ids: Vec<u32>,

    /// Go on past the model's end tokens
    #[arg(long)]
    ignore_eos: bool,

    /// Show the names of control tokens in the text
    #[arg(long)]
    show_special: bool,

    /// A file with a JSON schema that answers must fit; - is standard input
    #[arg(long, value_name = "PATH", group = "constraint")]
    json_schema: Option<PathBuf>,

    /// A regular expression (Rust's syntax) that answers must match as a whole
    #[arg(long, value_name = "REGEX", group = "constraint")]
    regex: Option<String>,

    /// A file with a grammar, in Lark or in GBNF, of which answers must be sentences; - is standard
    /// input
    #[arg(long, value_name = "PATH", group = "constraint")]
    grammar: Option<PathBuf>,

    /// With --json, this many best alternatives of each token
    #[arg(long, default_value_t = 0, value_name = "N")]
    logprobs: usize,

    /// When prompt and --max-tokens exceed the context: an error, or stop where it ends
    #[arg(long, value_enum, default_value_t, env = "DUNLIN_CONTEXT_OVERFLOW")]
    #[arg(value_name = "POLICY")]
    context_overflow: Overflow,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Overflow {
    #[default]
    Error,
    Stop,
}

impl OutputArgs {
    /// Compiles what answers must be, for this model's vocabulary.
    ///
    /// # Errors
    /// Files that cannot be read, and what is no schema, expression or grammar.
    fn constrain(&self, model: &mut Model) -> anyhow::Result<()> {
        let (flag, source) = if let Some(path) = &self.json_schema {
            ("--json-schema", GrammarSource::JsonSchema(read_text(path)?))
        } else if let Some(path) = &self.grammar {
            ("--grammar", GrammarSource::Grammar(read_text(path)?))
        } else if let Some(regex) = &self.regex {
            ("--regex", GrammarSource::Regex(regex.clone()))
        } else {
            return Ok(());
        };
        if self.ignore_eos {
            return Err(unusable(format!(
                "--ignore-eos: with {flag} an answer ends where it is complete"
            )));
        }
        let compiler = GrammarCompiler::new(&model.tokenizer);
        let grammar = compiler.and_then(|compiler| compiler.compile(&source));
        let problem = |error| unusable(format!("{flag} cannot be used: {error}"));
        model.grammar = Some(grammar.map_err(problem)?);
        Ok(())
    }

    /// A request for these tokens. `begins_text` says that the answer is a text of its own and
    /// does not continue the prompt's.
    fn request(
        &self,
        model: &Model,
        prompt: Vec<u32>,
        sampling: SamplingParams,
        begins_text: bool,
    ) -> Request {
        let mut stop_tokens = self.stop_token_ids.clone();
        if !self.ignore_eos {
            stop_tokens.extend(model.tokenizer.end_ids());
        }
        Request {
            choices: self.samples,
            overflow: match self.context_overflow {
                Overflow::Error => ContextOverflow::Refuse,
                Overflow::Stop => ContextOverflow::Stop,
            },
            stop_tokens,
            stop_strings: self.stop.clone(),
            text: TextOptions { show_special: self.show_special, begins_text },
            speculate: model.about.speculate,
            max_draft: model.max_draft,
            max_branches: model.max_branches,
            acceptance: model.acceptance,
            grammar: model.grammar.clone(),
            ..Request::new(prompt, sampling, self.max_tokens)
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    // What can be refused without a model is refused before one is loaded.
    let sampling = args.sampling.params()?;
    // The parser would not ask for --batch where something that conflicts with it is given.
    if args.out.is_some() && args.batch.is_none() {
        return Err(unusable("--out is for the results of --batch"));
    }
    let template = args.chat_template.as_deref().map(read_text).transpose()?;
    interrupt::listen();
    if let Some(path) = &args.batch {
        let lines = read_text(path)?;
        return batch::run(&args, &sampling, template, &lines);
    }
    let prompt = match (&args.prompt, &args.file) {
        (Some(prompt), _) => Some(prompt.clone()),
        (None, Some(path)) => Some(read_text(path)?),
        (None, None) if std::io::stdin().is_terminal() => None,
        (None, None) => Some(read_text(Path::new("-"))?),
    };
    match prompt {
        Some(prompt) => single::run(&args, sampling, template, &prompt),
        None if args.json => {
            Err(unusable("--json needs a prompt: -p, -f, or one on standard input"))
        }
        None => chat::run(&args, sampling, template),
    }
}

/// The text in a file, or on standard input where the path is `-`.
fn read_text(path: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let name = if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
        "standard input".to_string()
    } else {
        bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        path.display().to_string()
    };
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        unusable(format!("{name} is not UTF-8: byte {at} begins no character"))
    })
}
