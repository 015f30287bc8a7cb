//! What an answer must be: the fields of all protocols that say so, as one.

use dunlin_tokenizer::grammar::GrammarSource;
use serde_json::Value;

use crate::error::ApiError;

/// What an answer must be, and the field that says so.
#[derive(Debug, Clone, PartialEq)]
pub struct Constraint {
    /// The schema, expression or grammar.
    pub source: GrammarSource,
    /// The field's name on the wire.
    pub field: &'static str,
}

/// The fields of a request that constrain its answer; at most one may.
#[derive(Debug, Default)]
pub struct Fields(Option<Constraint>);

impl Fields {
    /// Takes a constraint that a field asks for.
    ///
    /// # Errors
    /// Another field asks for one.
    fn add(&mut self, field: &'static str, source: GrammarSource) -> Result<(), ApiError> {
        if let Some(other) = &self.0 {
            let problem = format!("{} constrains the answer already", other.field);
            return Err(ApiError::field(field, problem));
        }
        self.0 = Some(Constraint { source, field });
        Ok(())
    }

    /// OpenAI's `response_format`, with llama-server's `schema` beside `json_object`.
    ///
    /// # Errors
    /// Formats that are unknown or incomplete.
    pub fn response_format(&mut self, value: Option<&Value>) -> Result<(), ApiError> {
        let Some(value) = given(value) else { return Ok(()) };
        match value.get("type").and_then(Value::as_str) {
            Some("text") => Ok(()),
            Some("json_object") => match given(value.get("schema")) {
                None => self.add("response_format", GrammarSource::json_object()),
                Some(schema) => self.add("response_format.schema", schema_of(schema)),
            },
            Some("json_schema") => {
                let field = "response_format.json_schema.schema";
                let named = value.get("json_schema").and_then(|named| named.get("schema"));
                let schema = given(named).ok_or_else(|| ApiError::field(field, "it is missing"))?;
                self.add(field, schema_of(schema))
            }
            _ => {
                let problem = "it must be text, json_object or json_schema";
                Err(ApiError::field("response_format.type", problem))
            }
        }
    }

    /// The `format` of OpenAI's responses (`text.format`) and of Anthropic's messages
    /// (`output_config.format`): the schema is a field of its own.
    ///
    /// # Errors
    /// Formats that are unknown or incomplete.
    pub fn format(
        &mut self,
        value: Option<&Value>,
        type_field: &'static str,
        schema_field: &'static str,
    ) -> Result<(), ApiError> {
        let Some(value) = given(value) else { return Ok(()) };
        match value.get("type").and_then(Value::as_str) {
            Some("text") => Ok(()),
            Some("json_object") => self.add(type_field, GrammarSource::json_object()),
            Some("json_schema") => {
                let schema = given(value.get("schema"));
                let problem = "it is missing";
                let schema = schema.ok_or_else(|| ApiError::field(schema_field, problem))?;
                self.add(schema_field, schema_of(schema))
            }
            _ => {
                let problem = "it must be text, json_object or json_schema";
                Err(ApiError::field(type_field, problem))
            }
        }
    }

    /// A schema as an object or as its text; `json` is any object.
    ///
    /// # Errors
    /// Another field constrains the answer.
    pub fn schema(&mut self, field: &'static str, value: Option<&Value>) -> Result<(), ApiError> {
        match given(value) {
            None => Ok(()),
            Some(Value::String(name)) if name.is_empty() => Ok(()),
            Some(Value::String(name)) if name == "json" => {
                self.add(field, GrammarSource::json_object())
            }
            Some(schema) => self.add(field, schema_of(schema)),
        }
    }

    /// A regular expression or a grammar.
    ///
    /// # Errors
    /// What is no string, or another field that constrains the answer.
    pub fn text(
        &mut self,
        field: &'static str,
        value: Option<&Value>,
        make: impl FnOnce(String) -> GrammarSource,
    ) -> Result<(), ApiError> {
        match given(value) {
            None => Ok(()),
            Some(Value::String(text)) if text.is_empty() => Ok(()),
            Some(Value::String(text)) => self.add(field, make(text.clone())),
            Some(_) => Err(ApiError::field(field, "it must be a string")),
        }
    }

    /// Texts of which one is to be the answer.
    ///
    /// # Errors
    /// What is no list of strings, or another field that constrains the answer.
    pub fn choice(&mut self, field: &'static str, value: Option<&Value>) -> Result<(), ApiError> {
        let Some(value) = given(value) else { return Ok(()) };
        let texts = value.as_array().and_then(|texts| {
            texts.iter().map(|text| text.as_str().map(Into::into)).collect::<Option<Vec<String>>>()
        });
        let problem = "it must be an array of strings";
        let texts = texts.ok_or_else(|| ApiError::field(field, problem))?;
        self.add(field, GrammarSource::Choice(texts))
    }

    /// vLLM's `structured_outputs`: an object with one of `json`, `json_object`, `regex`, `choice`
    /// and `grammar`.
    ///
    /// # Errors
    /// Keys and values that are not such.
    pub fn structured_outputs(&mut self, value: Option<&Value>) -> Result<(), ApiError> {
        let Some(value) = given(value) else { return Ok(()) };
        let Value::Object(object) = value else {
            return Err(ApiError::field("structured_outputs", "it must be an object"));
        };
        for (key, value) in object {
            let value = Some(value);
            match key.as_str() {
                "json" => self.schema("structured_outputs.json", value)?,
                "json_object" if value == Some(&Value::Bool(true)) => {
                    self.add("structured_outputs.json_object", GrammarSource::json_object())?;
                }
                "json_object" if matches!(value, Some(Value::Bool(false) | Value::Null)) => {}
                "regex" => self.text("structured_outputs.regex", value, GrammarSource::Regex)?,
                "grammar" => {
                    self.text("structured_outputs.grammar", value, GrammarSource::Grammar)?;
                }
                "choice" => self.choice("structured_outputs.choice", value)?,
                _ if given(value).is_none() => {}
                _ => {
                    let problem = "it can have json, json_object, regex, choice and grammar";
                    return Err(ApiError::field("structured_outputs", problem));
                }
            }
        }
        Ok(())
    }

    /// What the answer must be.
    pub fn into_constraint(self) -> Option<Constraint> {
        self.0
    }
}

fn given(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| !value.is_null())
}

/// A schema, which may come as its text.
fn schema_of(value: &Value) -> GrammarSource {
    GrammarSource::JsonSchema(match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    })
}
