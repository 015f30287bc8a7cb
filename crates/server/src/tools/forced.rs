//! Calls that are wanted: the grammar of an answer that calls, in the notation of the model's
//! family, with arguments that fit the tool's schema.

use dunlin_tokenizer::grammar::GrammarSource;
use serde_json::{Value, json};

use super::ToolFormat;
use crate::constraint::Constraint;

/// The most calls of an answer that may have several: a small model would go on for ever.
const MOST_CALLS: usize = 8;

/// Which calls an answer must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forced {
    /// The only tool that may be called; any of them where none is named.
    pub only: Option<String>,
    /// Whether there may be more than one call.
    pub several: bool,
}

/// Whether an answer calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// If the model likes to.
    May {
        /// Whether there may be more than one call where the text has a form.
        several: bool,
    },
    /// It must.
    Must(Forced),
}

impl ToolChoice {
    /// What the answer must be: calls where it must call; calls or a text of the form where the text
    /// is to have one.
    pub fn constraint(
        self,
        format: ToolFormat,
        tools: &[Value],
        form: Option<Constraint>,
    ) -> Option<Constraint> {
        match (self, form) {
            (Self::Must(forced), _) => {
                Some(Constraint { source: forced.grammar(format, tools), field: "tools" })
            }
            (Self::May { several }, Some(Constraint { source, field })) => {
                let calls = Forced { only: None, several }.grammar(format, tools);
                Some(Constraint { source: GrammarSource::Either(vec![source, calls]), field })
            }
            (Self::May { .. }, None) => None,
        }
    }
}

impl Forced {
    /// The grammar of such an answer. Tools are described as OpenAI does it, and there is at least
    /// one that may be called.
    pub fn grammar(&self, format: ToolFormat, tools: &[Value]) -> GrammarSource {
        let (mut rules, mut objects) = (String::new(), Vec::new());
        let key = match format {
            ToolFormat::Llama3 => "parameters",
            ToolFormat::Hermes | ToolFormat::Mistral => "arguments",
        };
        for (i, tool) in tools.iter().enumerate() {
            let function = &tool["function"];
            if self.only.as_ref().is_some_and(|only| function["name"] != only.as_str()) {
                continue;
            }
            let begin = format!("{{\"name\": {}, \"{key}\": ", function["name"]);
            objects.push(format!("{} args{i} \"}}\"", Value::from(begin)));
            let schema = arguments(function.get("parameters"));
            rules.push_str(&format!("args{i}: %json {schema}\n"));
        }
        let object = format!("object: {}\n{rules}", objects.join(" | "));
        let most = if self.several { MOST_CALLS - 1 } else { 0 };
        let more = |between: &str, what: &str| match most {
            0 => String::new(),
            most => format!(" ({} {what}){{0,{most}}}", Value::from(between)),
        };
        match format {
            ToolFormat::Hermes => GrammarSource::Grammar(format!(
                "start: call{}\ncall: \"<tool_call>\\n\" object \"\\n</tool_call>\"\n{object}",
                more("\n", "call"),
            )),
            ToolFormat::Llama3 => {
                GrammarSource::Grammar(format!("start: object{}\n{object}", more("; ", "object")))
            }
            ToolFormat::Mistral => GrammarSource::AfterToken {
                token: "[TOOL_CALLS]".into(),
                grammar: format!("rest: \"[\" object{} \"]\"\n{object}", more(", ", "object")),
            },
        }
    }
}

/// The schema of a tool's arguments, which are an object.
fn arguments(parameters: Option<&Value>) -> Value {
    let Some(Value::Object(schema)) = parameters else {
        return json!({"type": "object", "x-guidance": white_space()});
    };
    let mut schema = schema.clone();
    let combined = ["$ref", "anyOf", "oneOf", "allOf", "const", "enum"];
    if !schema.contains_key("type") && !combined.iter().any(|key| schema.contains_key(*key)) {
        schema.insert("type".into(), "object".into());
    }
    schema.entry("x-guidance").or_insert_with(white_space);
    schema.into()
}

/// What may stand between the parts of the arguments: as models write them, on one line.
fn white_space() -> Value {
    json!({"whitespace_pattern": "[ ]"})
}
