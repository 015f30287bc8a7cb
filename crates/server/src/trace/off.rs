//! No traces.

use axum::http::{HeaderMap, Method};

use crate::service::{Finish, Generate, Usage};

/// Nothing; see the feature `otel`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trace;

impl Trace {
    pub fn begin(_: &Method, _: &str, _: &HeaderMap) -> Self {
        Self
    }

    pub fn asked(&self, _: &Generate) {}

    pub fn choice_ended(&self, _: &Finish, _: usize) {}

    pub fn done(&self, _: &Usage) {}

    pub fn failed(&self, _: &str) {}

    pub fn answered(&self, _: u16) {}
}
