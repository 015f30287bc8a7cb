//! One call of a tool, read from a model's JSON.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// The arguments: the text of a JSON object, as the model wrote it.
    pub arguments: String,
}

#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, alias = "parameters")]
    arguments: Option<&'a RawValue>,
}

impl ToolCall {
    /// A call from its name and the text of its arguments, if they are a JSON object (or a string
    /// that holds one, as some models write).
    pub fn new(name: &str, arguments: &str) -> Option<Self> {
        let arguments = arguments.trim();
        if arguments.starts_with('"') {
            let inner: String = serde_json::from_str(arguments).ok()?;
            return inner.trim().starts_with('{').then(|| Self::new(name, &inner))?;
        }
        let object = arguments.starts_with('{');
        // Any JSON passes here, so that numbers stay as they were written.
        serde_json::from_str::<&RawValue>(arguments).ok().filter(|_| object)?;
        let known = !name.is_empty();
        known.then(|| Self { name: name.to_string(), arguments: arguments.to_string() })
    }

    /// A call from `{"name": ..., "arguments": {...}}`; without arguments they are empty.
    pub fn from_json(text: &str) -> Option<Self> {
        Self::from_written(&serde_json::from_str(text).ok()?)
    }

    /// Calls from a list of such objects, of which there is at least one.
    pub fn list_from_json(text: &str) -> Option<Vec<Self>> {
        let list: Vec<Written<'_>> = serde_json::from_str(text).ok()?;
        let calls: Vec<Self> = list.iter().map(Self::from_written).collect::<Option<_>>()?;
        (!calls.is_empty()).then_some(calls)
    }

    fn from_written(written: &Written<'_>) -> Option<Self> {
        Self::new(&written.name, written.arguments.map_or("{}", RawValue::get))
    }
}
