//! One way to ask for metadata, whether it comes from GGUF keys or from JSON.

use std::borrow::Cow;

use crate::{CheckpointError, error::Result};

/// A metadata value, independent of the kind of file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Datum<'a> {
    /// A whole number.
    Int(i64),
    Float(f64),
    Bool(bool),
    Str(Cow<'a, str>),
    List(Vec<Datum<'a>>),
    /// Anything else; what it is, for messages.
    Other(&'static str),
}

/// Lists longer than this are not metadata of an architecture.
pub(crate) const MAX_LIST: usize = 65_536;

/// The largest integer that metadata may hold where a size or count is asked for.
const MAX_COUNT: i64 = u32::MAX as i64;

/// Where metadata comes from. JSON's null and a missing key are the same.
pub(crate) trait Lookup {
    /// The value of a key.
    fn lookup(&self, key: &str) -> Option<Datum<'_>>;
}

/// Typed access to the metadata of one model.
#[derive(Clone, Copy)]
pub(crate) struct Meta<'a> {
    source: &'a dyn Lookup,
    architecture: &'a str,
}

impl<'a> Meta<'a> {
    pub fn new(source: &'a dyn Lookup, architecture: &'a str) -> Self {
        Self { source, architecture }
    }

    /// The first alternative of a key pattern that the file has, with its value.
    pub fn find(&self, keys: &str) -> Option<(String, Datum<'a>)> {
        keys.split('|').filter(|k| !k.is_empty()).find_map(|k| {
            let key = self.expand(k);
            let value = self.source.lookup(&key)?;
            Some((key, value))
        })
    }

    fn expand(&self, key: &str) -> String {
        key.replace("{a}", self.architecture)
    }

    /// The error for a key that must be there.
    pub fn missing(&self, keys: &str) -> CheckpointError {
        CheckpointError::MissingKey { key: self.expand(keys).replace('|', " or ") }
    }

    fn get<T>(
        &self,
        keys: &str,
        wanted: &str,
        convert: impl Fn(&Datum<'a>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some((key, value)) = self.find(keys) else { return Ok(None) };
        match convert(&value) {
            Some(v) => Ok(Some(v)),
            None => Err(CheckpointError::BadKey { key, problem: value.instead_of(wanted) }),
        }
    }

    /// A size or count.
    pub fn count(&self, keys: &str) -> Result<Option<usize>> {
        self.get(keys, "a whole number from 0 to 4294967295", Datum::as_count)
    }

    /// A size or count that must be there and not be zero.
    pub fn need_count(&self, keys: &str) -> Result<usize> {
        self.get(keys, "a positive whole number", |v| v.as_count().filter(|n| *n > 0))?
            .ok_or_else(|| self.missing(keys))
    }

    /// A finite number.
    pub fn number(&self, keys: &str) -> Result<Option<f64>> {
        self.get(keys, "a finite number", Datum::as_number)
    }

    /// A finite number above zero.
    pub fn positive(&self, keys: &str) -> Result<Option<f64>> {
        self.get(keys, "a finite number above zero", |v| v.as_number().filter(|x| *x > 0.0))
    }

    pub fn flag(&self, keys: &str) -> Result<Option<bool>> {
        self.get(keys, "true or false", Datum::as_bool)
    }

    pub fn string(&self, keys: &str) -> Result<Option<String>> {
        self.get(keys, "a string", |v| match v {
            Datum::Str(s) => Some(s.clone().into_owned()),
            _ => None,
        })
    }

    /// A list of numbers.
    pub fn numbers(&self, keys: &str) -> Result<Option<Vec<f64>>> {
        self.get(keys, "a list of finite numbers", |v| match v {
            Datum::List(items) => items.iter().map(Datum::as_number).collect(),
            _ => None,
        })
    }

    /// A count for each layer: one for all, or a list of as many as there are layers.
    pub fn count_per_layer(&self, keys: &str, n_layers: usize) -> Result<Option<Vec<usize>>> {
        self.get(keys, "a count, or a list of one for each layer", |v| match v {
            Datum::List(items) if items.len() == n_layers => {
                items.iter().map(Datum::as_count).collect()
            }
            one => Some(vec![one.as_count()?; n_layers]),
        })
    }
}

impl Datum<'_> {
    pub fn as_count(&self) -> Option<usize> {
        match self {
            Self::Int(v) if (0..=MAX_COUNT).contains(v) => usize::try_from(*v).ok(),
            _ => None,
        }
    }

    pub fn as_number(&self) -> Option<f64> {
        match self {
            Self::Int(v) if v.unsigned_abs() <= 1 << 53 => Some(*v as f64),
            Self::Float(v) if v.is_finite() => Some(*v),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(v) => Some(*v),
            _ => None,
        }
    }

    /// Whether a feature with this value is off.
    pub fn is_off(&self) -> bool {
        match self {
            Self::Int(v) => *v == 0,
            Self::Float(v) => *v == 0.0,
            Self::Bool(v) => !v,
            Self::List(items) => items.is_empty(),
            Self::Str(_) | Self::Other(_) => false,
        }
    }

    /// The value, short enough for a message.
    pub fn show(&self) -> String {
        match self {
            Self::Int(v) => v.to_string(),
            Self::Float(v) => v.to_string(),
            Self::Bool(v) => v.to_string(),
            Self::Str(s) => format!("{:?}", s.chars().take(80).collect::<String>()),
            Self::List(items) => format!("a list of {}", items.len()),
            Self::Other(what) => (*what).into(),
        }
    }

    fn instead_of(&self, wanted: &str) -> String {
        format!("{} is not {wanted}", self.show())
    }
}
