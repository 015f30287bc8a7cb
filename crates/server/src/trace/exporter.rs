//! Where spans go: to a collector, by OTLP over HTTP.

use std::{
    future::{Future, ready},
    pin::Pin,
    time::Duration,
};

use axum::{
    body::Bytes,
    http::{Request, Response},
};
use opentelemetry::global;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};

/// The longest that a collector may take for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of such an answer.
const MOST_BYTES: u64 = 1 << 20;

/// Spans that cannot be sent.
#[derive(Debug, thiserror::Error)]
#[error("traces cannot be sent: {0}")]
pub struct TelemetryError(String);

/// Spans are sent as long as this is there. What is left is sent when it is dropped.
#[derive(Debug)]
pub struct Telemetry(SdkTracerProvider);

impl Telemetry {
    /// From now on spans go to the collector at this address (`http://HOST:4318`), by a thread of
    /// its own. The variables of OpenTelemetry's specification hold for the rest: `OTEL_SERVICE_NAME`,
    /// `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`, `OTEL_EXPORTER_OTLP_HEADERS`.
    ///
    /// # Errors
    /// An address that is none.
    pub fn start(collector: &str) -> Result<Self, TelemetryError> {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .build();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client(agent.into()))
            .with_endpoint(format!("{}/v1/traces", collector.trim_end_matches('/')))
            .build()
            .map_err(|error| TelemetryError(error.to_string()))?;
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("dunlin");
        }
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_batch_exporter(exporter)
            .build();
        global::set_tracer_provider(provider.clone());
        Ok(Self(provider))
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        // A collector that is not there is no reason to fail.
        let _ = self.0.shutdown_with_timeout(TIMEOUT);
    }
}

/// The client that fetches models, on the exporter's thread, which may block.
#[derive(Debug)]
struct Client(ureq::Agent);

impl Client {
    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let request = Request::from_parts(head, body.to_vec());
        let (head, mut body) = self.0.run(request)?.into_parts();
        let bytes = body.with_config().limit(MOST_BYTES).read_to_vec()?;
        Ok(Response::from_parts(head, bytes.into()))
    }
}

impl HttpClient for Client {
    fn send_bytes<'this, 'future>(
        &'this self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'future>>
    where
        'this: 'future,
        Self: 'future,
    {
        Box::pin(ready(self.send(request)))
    }
}
