//! Numeric settings that change a model's bits.

use serde::{Deserialize, Serialize};

use std::{fmt, str::FromStr};

/// A setting's value that is not one of those it takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is no {setting}; use one of {allowed}")]
pub struct ParseSettingError {
    setting: &'static str,
    value: String,
    allowed: &'static str,
}

/// The precision of the activations that enter a product with quantized weights.
///
/// Each has a measured error against a float64 forward pass. Attention, norms and float weights
/// always use f32 activations.
#[derive(Debug, Clone, Serialize, Deserialize, Copy, PartialEq, Eq, Hash, Default)]
pub enum ActivationPrecision {
    /// 32-bit float: the reference.
    F32,
    /// A high and a low int8 part per value: nearly the reference, at int8 kernels' speed in decode.
    Split,
    /// int8 with one scale for each 32 values of a token.
    #[default]
    Int8,
}

impl FromStr for ActivationPrecision {
    type Err = ParseSettingError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "f32" => Ok(Self::F32),
            "split" => Ok(Self::Split),
            "int8" => Ok(Self::Int8),
            _ => Err(ParseSettingError {
                setting: "activation precision",
                value: s.into(),
                allowed: "f32, split, int8",
            }),
        }
    }
}

impl fmt::Display for ActivationPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Split => "split",
            Self::Int8 => "int8",
        })
    }
}

/// How keys and values are stored.
#[derive(Debug, Clone, Serialize, Deserialize, Copy, PartialEq, Eq, Hash, Default)]
pub enum KvType {
    /// 32-bit float: the reference.
    F32,
    /// 16-bit IEEE float.
    #[default]
    F16,
    /// int8 with a scale for each token, head and group of features.
    Int8,
}

impl FromStr for KvType {
    type Err = ParseSettingError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "int8" => Ok(Self::Int8),
            _ => Err(ParseSettingError {
                setting: "KV type",
                value: s.into(),
                allowed: "f32, f16, int8",
            }),
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        })
    }
}
