//! Chat templates: Jinja programs in model files that turn messages into a prompt.
//!
//! Rendering agrees with what Python's transformers does, white space and `tojson` included. The
//! program comes from a file nobody vouches for, so its work, memory and nesting are bounded in
//! proportion to its input, and it sees nothing but what [`ChatInput`] holds: there is no clock
//! here either.

mod add;
mod json;
mod time;

use minijinja::machinery::{CompiledTemplate, TemplateConfig, eval, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

use std::sync::Arc;

use crate::TokenizerError;
pub use time::LocalTime;

/// Templates longer than this are refused.
const SOURCE_LIMIT: usize = 128 << 10;
/// Messages and tools nested deeper than this are refused.
const DEPTH_LIMIT: usize = 100;
/// Work any template may do, in instructions or 64-byte units of data.
const BASE_FUEL: u64 = 200_000;
/// More work for each message, tool or variable.
const FUEL_PER_ITEM: u64 = 2_000;
/// Input larger than this, in bytes, is refused.
const INPUT_LIMIT: u64 = 64 << 20;
/// Stack per unit of fuel. A template can nest lists about as deep as its fuel goes, and the engine
/// walks and frees them by recursion. The memory is reserved, not used.
const STACK_PER_FUEL: u64 = 256;
/// Stack per byte of source: the engine parses by recursion, and `-----x` nests once a byte.
const STACK_PER_BYTE: u64 = 2048;
const BASE_STACK: u64 = 4 << 20;

/// What a template is rendered with.
#[derive(Debug, Clone, Default)]
pub struct ChatInput<'a> {
    /// The conversation: objects with `role` and `content` and whatever else the template knows.
    /// Content is a string, a list of parts, or null. Where the template knows no parts, those of
    /// type `text` are joined by newlines.
    pub messages: &'a [serde_json::Value],
    /// Descriptions of the tools the model may call; none when empty.
    pub tools: &'a [serde_json::Value],
    /// Whether the prompt ends with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The text of the token that begins a text; empty where there is none.
    pub bos_token: &'a str,
    /// The text of the token that ends a text; empty where there is none.
    pub eos_token: &'a str,
    /// The time `strftime_now` tells. Without it, templates that ask for the time fail.
    pub now: Option<LocalTime>,
    /// Further variables, such as `enable_thinking`. They replace variables of the same name.
    pub variables: Option<&'a serde_json::Map<String, serde_json::Value>>,
}

/// A chat template that compiles.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Compiled again for each prompt, which takes less time than rendering it.
    source: String,
    knows_parts: bool,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`TokenizerError::TemplateSyntax`] with the line; [`TokenizerError::TooLarge`] for a source
    /// of more than 128 KiB.
    pub fn new(source: &str) -> Result<ChatTemplate, TokenizerError> {
        if source.len() > SOURCE_LIMIT {
            let (size, limit) = (source.len(), SOURCE_LIMIT);
            return Err(TokenizerError::TooLarge { what: "the chat template", size, limit });
        }
        let stack = BASE_STACK + STACK_PER_BYTE * source.len() as u64;
        with_stack(stack, || ChatTemplate::compile(source))
    }

    fn compile(source: &str) -> Result<ChatTemplate, TokenizerError> {
        let mut environment = Environment::new();
        environment.set_unknown_method_callback(unknown_method);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise_exception);
        add::register(&mut environment);
        let source = without_generation_tags(source);
        let knows_parts = knows_parts(&source);
        program(&source).map_err(|error| syntax_error(&error))?;
        Ok(ChatTemplate { environment, source, knows_parts })
    }

    /// Whether the template handles content that is a list of parts.
    pub fn knows_parts(&self) -> bool {
        self.knows_parts
    }

    /// Renders a prompt.
    ///
    /// # Errors
    /// [`TokenizerError::TemplateRaised`] with the template's own message when it refuses the
    /// conversation, [`TokenizerError::TemplateLimit`] when it does too much work, and
    /// [`TokenizerError::TemplateRender`] with the line for everything else.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String, TokenizerError> {
        let variables = input.variables.into_iter().flat_map(|map| map.values());
        let (mut size, mut items) = (0, 0);
        for value in input.messages.iter().chain(input.tools).chain(variables) {
            measure(value, 0, &mut size)?;
            items += 1;
        }
        if size > INPUT_LIMIT {
            let (size, limit) = (size as usize, INPUT_LIMIT as usize);
            return Err(TokenizerError::TooLarge { what: "the conversation", size, limit });
        }
        let fuel = BASE_FUEL + FUEL_PER_ITEM * items + size / 2;
        let stack = BASE_STACK + STACK_PER_FUEL * fuel;
        with_stack(stack, || self.render_here(input, fuel))
    }

    fn render_here(&self, input: &ChatInput<'_>, fuel: u64) -> Result<String, TokenizerError> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let now = input.now;
        environment.add_function("strftime_now", move |format: &str| match now {
            Some(now) => now
                .format(format)
                .map_err(|problem| Error::new(ErrorKind::InvalidOperation, problem)),
            None => Err(Error::new(ErrorKind::InvalidOperation, "the time is not given")),
        });
        let program = program(&self.source).map_err(|error| syntax_error(&error))?;
        let mut text = String::new();
        let (code, blocks) = (&program.instructions, &program.blocks);
        let mut output = make_string_output(&mut text);
        let context = self.context(input);
        let done = eval(&environment, code, context, blocks, &mut output, AutoEscape::None);
        done.map(drop).map_err(|error| render_error(&error))?;
        drop(output);
        Ok(text)
    }

    fn context(&self, input: &ChatInput<'_>) -> Value {
        let messages = input.messages.iter().map(|message| {
            if self.knows_parts { to_value(message) } else { to_value(&joined_parts(message)) }
        });
        let none = || Value::from(());
        let tools = match input.tools {
            [] => none(),
            tools => tools.iter().map(to_value).collect(),
        };
        let fixed = [
            ("messages", messages.collect::<Value>()),
            ("tools", tools),
            ("documents", none()),
            ("add_generation_prompt", Value::from(input.add_generation_prompt)),
            ("bos_token", Value::from(input.bos_token)),
            ("eos_token", Value::from(input.eos_token)),
        ];
        let given = input.variables.into_iter().flatten();
        let given = given.map(|(name, value)| (name.as_str(), to_value(value)));
        // Of two equal names the later counts.
        Value::from_pairs(fixed.into_iter().chain(given))
    }
}

/// Compiles a template, as transformers reads it.
fn program(source: &str) -> Result<CompiledTemplate<'_>, Error> {
    let config = TemplateConfig {
        syntax_config: SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?,
        default_auto_escape: Arc::new(|_| AutoEscape::None),
    };
    let mut program = CompiledTemplate::new("chat_template", source, &config)?;
    add::replace(&mut program);
    Ok(program)
}

/// JSON as a template sees it, objects in their given order.
fn to_value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (_, Some(value)) => Value::from(value),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(to_value).collect(),
        serde_json::Value::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), to_value(value))))
        }
    }
}

/// Runs `work` on a thread with at least `stack` bytes of stack.
fn with_stack<T: Send>(
    stack: u64,
    work: impl FnOnce() -> Result<T, TokenizerError> + Send,
) -> Result<T, TokenizerError> {
    let result = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(stack as usize);
        thread.spawn_scoped(scope, work).map(|thread| thread.join())
    });
    match result {
        Ok(Ok(done)) => done,
        Ok(Err(_)) => Err(internal("the template engine panicked")),
        Err(error) => Err(internal(&format!("no thread for the template engine: {error}"))),
    }
}

/// Adds up the bytes of a value, and refuses what is nested too deeply to walk.
fn measure(value: &serde_json::Value, depth: usize, size: &mut u64) -> Result<(), TokenizerError> {
    if depth > DEPTH_LIMIT {
        let what = "the nesting of a message or tool";
        return Err(TokenizerError::TooLarge { what, size: depth, limit: DEPTH_LIMIT });
    }
    *size += 16;
    match value {
        serde_json::Value::String(text) => *size += text.len() as u64,
        serde_json::Value::Array(items) => {
            for item in items {
                measure(item, depth + 1, size)?;
            }
        }
        serde_json::Value::Object(map) => {
            for (key, item) in map {
                *size += key.len() as u64;
                measure(item, depth + 1, size)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// A message whose list of parts is replaced by their text.
fn joined_parts(message: &serde_json::Value) -> serde_json::Value {
    let mut message = message.clone();
    if let Some(content) = message.get_mut("content")
        && let serde_json::Value::Array(parts) = content
    {
        let texts = parts.iter().filter_map(|part| match part {
            serde_json::Value::String(text) => Some(text.as_str()),
            _ => part.get("text").and_then(|text| text.as_str()),
        });
        *content = texts.collect::<Vec<_>>().join("\n").into();
    }
    message
}

/// Whether a template looks into the content of messages instead of printing it.
fn knows_parts(source: &str) -> bool {
    let squeezed: String = source.chars().filter(|c| !c.is_whitespace()).collect();
    let squeezed = squeezed.replace("['content']", ".content").replace("[\"content\"]", ".content");
    [
        "message.contentisstring",
        "message.contentisnotstring",
        "contentisstring",
        "contentisiterable",
        "contentissequence",
        "contentismapping",
        "contentisnotstring",
        "inmessage.content%}",
        "inmessage.content-%}",
        "inmessage.content|",
        "incontent%}",
        "incontent-%}",
        ".content[0].",
        ".content[0]['type",
    ]
    .iter()
    .any(|sign| squeezed.contains(sign))
}

/// Training marks parts of a conversation with `{% generation %}`. They print as a block that is
/// always shown, with the same trimming of white space.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        out.push_str(before);
        let Some(close) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(close + 2);
        let inner = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
        match inner {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Marks errors of `raise_exception`, so that their message can be told apart.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: Value) -> Result<Value, Error> {
    let raised = Raised(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(raised))
}

fn to_json(state: &State, value: &Value, options: Kwargs) -> Result<String, Error> {
    let style = json::Style {
        indent: options.get::<Option<Value>>("indent")?.and_then(|v| json::Indent::from_value(&v)),
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: options.get::<Option<Vec<String>>>("separators")?,
    };
    options.assert_all_used()?;
    json::dumps(state, value, &style)
}

/// Methods of Python's values that templates call and the usual set lacks.
fn unknown_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match (value.as_str(), method, args) {
        (Some(text), "removeprefix", [prefix]) => {
            let prefix = prefix.as_str().unwrap_or_default();
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        (Some(text), "removesuffix", [suffix]) => {
            let suffix = suffix.as_str().unwrap_or_default();
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn syntax_error(error: &Error) -> TokenizerError {
    TokenizerError::TemplateSyntax { line: error.line().unwrap_or(0), problem: problem(error) }
}

fn internal(problem: &str) -> TokenizerError {
    TokenizerError::TemplateRender { line: 0, problem: problem.to_string() }
}

fn problem(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn render_error(error: &Error) -> TokenizerError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TokenizerError::TemplateLimit { line: error.line().unwrap_or(0) };
    }
    let mut source = std::error::Error::source(error);
    let mut innermost = error;
    while let Some(cause) = source {
        if let Some(raised) = cause.downcast_ref::<Raised>() {
            return TokenizerError::TemplateRaised { message: raised.0.clone() };
        }
        if let Some(cause) = cause.downcast_ref::<Error>() {
            innermost = cause;
        }
        source = cause.source();
    }
    let line = innermost.line().or(error.line()).unwrap_or(0);
    TokenizerError::TemplateRender { line, problem: problem(innermost) }
}
