//! Traces of requests: what each was for, how long it waited and was computed, and how it ended.
//!
//! With the feature `otel` they go to a collector of OpenTelemetry; without it a [`Trace`] is
//! nothing. Handlers do not see it: it belongs to the task that serves the request.

use std::future::Future;

#[cfg(feature = "otel")]
mod exporter;
#[cfg(not(feature = "otel"))]
mod off;
#[cfg(feature = "otel")]
mod otel;

#[cfg(feature = "otel")]
pub use exporter::{Telemetry, TelemetryError};
#[cfg(not(feature = "otel"))]
pub(crate) use off::Trace;
#[cfg(feature = "otel")]
pub(crate) use otel::Trace;

tokio::task_local! {
    /// The trace of the request that a handler serves.
    static CURRENT: Trace;
}

impl Trace {
    /// Runs what serves the request.
    pub async fn scope<F: Future>(&self, serve: F) -> F::Output {
        CURRENT.scope(self.clone(), serve).await
    }

    /// That of the request which is being served.
    pub fn current() -> Self {
        CURRENT.try_with(Clone::clone).unwrap_or_default()
    }
}
