//! JSON files of a model folder, read within limits.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    CheckpointError,
    arch::{Datum, MAX_LIST},
    error::Result,
};

/// The largest JSON file that is parsed, in bytes. (`tokenizer.json` is not parsed here.)
const MAX_JSON: usize = 64 << 20;

/// Parses a JSON file; fields that `T` does not have are passed over.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let problem = if bytes.len() > MAX_JSON {
        format!("{} bytes of JSON; at most {MAX_JSON} are read", bytes.len())
    } else {
        match serde_json::from_slice(bytes) {
            Ok(value) => return Ok(value),
            Err(e) => format!("cannot be read as JSON: {e}"),
        }
    };
    Err(CheckpointError::Json { problem })
}

/// The value at a dotted path; null is as good as missing.
pub(super) fn find<'a>(root: &'a Value, path: &str) -> Option<&'a Value> {
    let value = path.split('.').try_fold(root, |v, key| v.get(key))?;
    (!value.is_null()).then_some(value)
}

/// A JSON value as architecture metadata.
pub(super) fn datum(value: &Value, lists: bool) -> Datum<'_> {
    match value {
        Value::Null => Datum::Other("null"),
        Value::Bool(b) => Datum::Bool(*b),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(i), _) => Datum::Int(i),
            (None, Some(f)) => Datum::Float(f),
            (None, None) => Datum::Other("a huge number"),
        },
        Value::String(s) => Datum::Str(Cow::Borrowed(s)),
        Value::Array(items) if lists && items.len() <= MAX_LIST => {
            Datum::List(items.iter().map(|v| datum(v, false)).collect())
        }
        Value::Array(_) => Datum::Other("a list"),
        Value::Object(_) => Datum::Other("an object"),
    }
}

/// A token id, or a list of them.
pub(super) fn ids(root: &Value, path: &str) -> Result<Option<Vec<u32>>> {
    let Some(value) = find(root, path) else { return Ok(None) };
    let one = |v: &Value| u32::try_from(v.as_u64()?).ok();
    let ids = match value {
        Value::Array(items) => items.iter().map(one).collect(),
        v => one(v).map(|id| vec![id]),
    };
    ids.map(Some).ok_or_else(|| CheckpointError::BadKey {
        key: path.into(),
        problem: "is neither a token id nor a list of them".into(),
    })
}
