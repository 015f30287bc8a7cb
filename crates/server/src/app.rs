//! What all handlers share, and the routes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use axum::{
    Router,
    body::Body,
    extract::{MatchedPath, Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use dunlin_kvcache::TenantId;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::{
    anthropic, auth, body,
    config::Config,
    error::{self, ApiError, Protocol},
    identity::Identity,
    live,
    metrics::Metrics,
    ollama, openai, openapi, ops,
    service::{ModelInfo, Service, ServiceError},
    sessions, text,
    trace::Trace,
    web,
};

tokio::task_local! {
    /// On whose behalf a handler runs.
    static TENANT: TenantId;
}

/// A request's place among those that may generate.
#[derive(Debug)]
pub(crate) struct Permit {
    _all: OwnedSemaphorePermit,
    /// Its place among its tenant's.
    _own: Option<OwnedSemaphorePermit>,
}

/// What all handlers share.
pub struct App {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) config: Config,
    pub(crate) identity: Identity,
    pub(crate) metrics: Metrics,
    keys: auth::Keys,
    /// By the tenants' numbers: one permit for each of its requests, where they are limited.
    tenants: Vec<Option<Arc<Semaphore>>>,
    /// One permit for each request that may generate or wait to.
    admission: Arc<Semaphore>,
    draining: AtomicBool,
}

impl App {
    /// An application over an engine.
    pub fn new(service: Arc<dyn Service>, config: Config, identity: Identity) -> Self {
        Self {
            keys: auth::Keys::new(&config),
            tenants: std::iter::once(None)
                .chain(
                    config.tenants.iter().map(|tenant| {
                        tenant.max_requests.map(|most| Arc::new(Semaphore::new(most)))
                    }),
                )
                .collect(),
            admission: Arc::new(Semaphore::new(config.max_requests)),
            metrics: Metrics::new(),
            draining: AtomicBool::new(false),
            service,
            config,
            identity,
        }
    }

    /// From now on no new requests are taken.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether no new requests are taken.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Requests that hold a place now.
    pub fn requests_under_way(&self) -> usize {
        self.config.max_requests - self.admission.available_permits()
    }

    /// The tenant of the request that is being handled.
    pub(crate) fn tenant(&self) -> TenantId {
        TENANT.try_with(|tenant| *tenant).unwrap_or(TenantId(0))
    }

    /// A place for one more request that generates.
    ///
    /// # Errors
    /// Where the engine is not there, the server is about to stop, or all places are taken, or all
    /// that the tenant may have.
    pub(crate) fn admit(&self) -> Result<Permit, ApiError> {
        if let Some(problem) = self.service.health().problem() {
            return Err(ApiError::unavailable(problem));
        }
        if self.is_draining() {
            return Err(ApiError::unavailable("the server is stopping"));
        }
        let take = |places: &Arc<Semaphore>| {
            places.clone().try_acquire_owned().map_err(|_| ApiError::overloaded())
        };
        let own = self.tenants.get(self.tenant().0 as usize).and_then(|tenant| tenant.as_ref());
        let own = own.map(take).transpose()?;
        Ok(Permit { _all: take(&self.admission)?, _own: own })
    }

    /// The model of this name; the default one where none is named.
    ///
    /// # Errors
    /// 404 for a name that no model has, 503 while there are none.
    pub(crate) fn model(&self, name: Option<&str>) -> Result<ModelInfo, ApiError> {
        let models = self.service.models();
        if models.is_empty() {
            return Err(ApiError::unavailable("the model is being loaded"));
        }
        let wanted = |model: &ModelInfo| {
            name.is_none_or(|name| {
                name == model.id || name.strip_suffix(":latest") == Some(&model.id)
            })
        };
        models.into_iter().find(wanted).ok_or_else(|| ApiError {
            field: Some("model".into()),
            ..ApiError::new(
                StatusCode::NOT_FOUND,
                "model_not_found",
                "model: there is no model of this name; /v1/models lists those that there are",
            )
        })
    }

    /// Calls the engine where blocking is allowed.
    ///
    /// # Errors
    /// Those of the call.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Service) -> Result<T, ServiceError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let service = self.service.clone();
        match tokio::task::spawn_blocking(move || call(&*service)).await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => Err(ApiError::failed("the request could not be handled")),
        }
    }

    /// Reads and decodes a request's body.
    ///
    /// # Errors
    /// As [`body::read_json`].
    pub(crate) async fn read<T: DeserializeOwned>(&self, request: Request) -> Result<T, ApiError> {
        body::read_json(request, &self.config).await
    }
}

/// The routes over an application.
pub fn router(app: Arc<App>) -> Router {
    let cors = cors(&app.config.cors_origins);
    Router::new()
        .route("/v1/chat/completions", post(openai::chat::create))
        .route("/v1/completions", post(openai::completions::create))
        .route("/v1/responses", post(openai::responses::create))
        .route("/v1/embeddings", post(openai::embeddings::create))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{id}", get(openai::models::retrieve))
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/api/chat", post(ollama::chat::chat))
        .route("/api/generate", post(ollama::generate::generate))
        .route("/api/embed", post(ollama::embed::embed))
        .route("/api/embeddings", post(ollama::embed::embeddings))
        .route("/api/tags", get(ollama::models::tags))
        .route("/api/show", post(ollama::models::show))
        .route("/api/ps", get(ollama::models::ps))
        .route("/api/version", get(ollama::models::version))
        .route("/v1/sessions", post(sessions::create).get(sessions::list))
        .route("/v1/sessions/{id}", get(sessions::retrieve).delete(sessions::close))
        .route("/v1/sessions/{id}/append", post(sessions::append))
        .route("/v1/sessions/{id}/query", post(sessions::query))
        .route("/v1/sessions/{id}/fork", post(sessions::fork))
        .route("/v1/sessions/{id}/rewind", post(sessions::rewind))
        .route("/v1/sessions/{id}/prune", post(sessions::prune))
        .route("/v1/sessions/{id}/save", post(sessions::save))
        .route("/v1/sessions/{id}/restore", post(sessions::restore))
        .route("/v1/sessions/{id}/questions", post(sessions::register))
        .route(
            "/v1/sessions/{id}/questions/{question}",
            get(sessions::question).delete(sessions::drop_question),
        )
        .route("/v1/sessions/{id}/questions/{question}/ask", post(sessions::ask))
        .route("/tokenize", post(text::tokenize))
        .route("/detokenize", post(text::detokenize))
        .route("/apply-template", post(text::apply_template))
        .route("/health", get(ops::health))
        .route("/ready", get(ops::ready))
        .route("/metrics", get(ops::metrics))
        .route("/live", get(live::live))
        .route("/server_info", get(ops::server_info))
        .route("/model_info", get(ops::model_info))
        .route("/openapi.json", get(openapi::describe))
        .merge(web::routes())
        .method_not_allowed_fallback(|| async {
            ApiError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this path has other methods",
            )
        })
        .fallback(|| async {
            ApiError::new(StatusCode::NOT_FOUND, "path_not_found", "there is no such path")
        })
        .layer(middleware::from_fn_with_state(app.clone(), guard))
        .layer(cors)
        .with_state(app)
}

/// Refuses those who may not call, shapes errors, and counts.
async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let protocol = Protocol::of_path(request.uri().path());
    // Paths that are not served are counted together, so that they cannot fill the memory.
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("other", |path| path.as_str()).to_string();
    let allowed = auth::check_origin(&app.config.cors_origins, request.headers())
        .and_then(|()| app.keys.check(request.uri().path(), request.headers()));
    let trace = Trace::begin(request.method(), &route, request.headers());
    let response = match allowed {
        Ok(tenant) => TENANT.scope(tenant, trace.scope(next.run(request))).await,
        Err(error) => error.into_response(),
    };
    trace.answered(response.status().as_u16());
    if let Some(error) = response.extensions().get::<ApiError>() {
        trace.failed(error.code.unwrap_or("invalid_request"));
    }
    app.metrics.answered(&route, response.status(), started.elapsed());
    tracing::info!(
        target: "dunlin::http",
        route,
        status = response.status().as_u16(),
        head_ms = started.elapsed().as_secs_f64() * 1e3,
        "answered"
    );
    let mut response = error::shape(response, protocol);
    if app.is_draining() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn cors(origins: &[String]) -> CorsLayer {
    let origin = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| origin.parse().ok()))
    };
    CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST, Method::DELETE, Method::OPTIONS])
        // `*` would leave out Authorization.
        .allow_headers(AllowHeaders::mirror_request())
        .max_age(std::time::Duration::from_secs(3600))
}

/// An answer that is JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => {
            let content_type =
                [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
            (content_type, Body::from(text)).into_response()
        }
        Err(_) => ApiError::failed("the answer could not be written").into_response(),
    }
}
