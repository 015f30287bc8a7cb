//! Sessions: contexts that stay between requests, to be continued, copied, cut back, saved and
//! asked, over `/v1/sessions`.
//!
//! Not of any standard: they are what this engine can do beyond one prompt and one answer. A session
//! belongs to the tenant that made it, and no other can learn that it is there.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, Path, Query, Request, State, rejection::PathRejection},
    http::request::Parts,
    response::Response,
};
use dunlin_scheduler::Keep;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    app::{App, json},
    error::ApiError,
    openai::{
        completions::{self, Completion, CompletionRequest, Prompt},
        types::ErrorBody,
    },
    service::{Generate, InSession, Input, ModelInfo, SessionCall, SessionState},
};

/// The most bytes of a session's name and of a file's.
const NAME_BYTES: usize = 64;

/// Which model a session is of.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct OfModel {
    /// The model's id; the default model's where it is missing.
    model: Option<String>,
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
pub struct Session {
    /// Its name.
    id: String,
    /// Always `session`.
    object: &'static str,
    /// The model that it is of.
    model: String,
    /// Tokens that it holds; those of a request that is extending it come at its end.
    tokens: usize,
    /// Whether a request is extending it.
    busy: bool,
}

/// A tenant's sessions.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionList {
    /// Always `list`.
    object: &'static str,
    /// By name.
    data: Vec<Session>,
}

/// A session to be made.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSession {
    /// Its name: letters, digits, `-`, `_` and `.`; made up where it is missing.
    id: Option<String>,
    /// The model's id; the default model's where it is missing.
    model: Option<String>,
}

/// What is to follow what a session holds.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppendSession {
    /// A text, or the ids of its tokens.
    input: Prompt,
}

/// A copy to be made; both share what they have in common.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSession {
    /// The copy's name; made up where it is missing.
    to: Option<String>,
}

/// Where a session is to be cut off.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RewindSession {
    /// Tokens that stay.
    tokens: usize,
}

/// What of a session is to go; what follows is computed again without it, unless it is to be kept.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneSession {
    /// The first token that goes.
    from: usize,
    /// The first token that stays.
    to: usize,
    /// Whether the keys and values of what follows are kept as they are, which is quick, and no
    /// longer what they would be without the removed tokens.
    keep_kv: Option<bool>,
}

/// A file in the server's folder of sessions.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionFile {
    /// Its name: letters, digits, `-`, `_` and `.`.
    file: String,
}

/// A question that is answered ahead of time.
#[derive(Debug, Serialize, ToSchema)]
pub struct Question {
    /// Its name.
    id: String,
    /// Always `session.question`.
    object: &'static str,
    /// Whether its answer is there.
    answered: bool,
}

/// How an answer is wanted.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// Whether it is streamed as server-sent events.
    stream: Option<bool>,
}

/// What a session keeps of a query.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeepOf {
    /// The prompt and the answer.
    #[default]
    All,
    /// The prompt.
    Prompt,
    /// Nothing.
    None,
}

impl From<KeepOf> for Keep {
    fn from(keep: KeepOf) -> Self {
        match keep {
            KeepOf::All => Self::All,
            KeepOf::Prompt => Self::Prompt,
            KeepOf::None => Self::Nothing,
        }
    }
}

/// A name that is one, and no path.
fn checked_name(name: String, field: &str) -> Result<String, ApiError> {
    let fit = |c: char| c.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&c);
    if name.is_empty() || name.len() > NAME_BYTES || name.starts_with('.') || !name.chars().all(fit)
    {
        let problem = format!(
            "it must be up to {NAME_BYTES} letters, digits, -, _ and ., and not begin with a ."
        );
        return Err(ApiError::field(field, problem));
    }
    Ok(name)
}

/// The session that a request's path names, and the model that it is of.
pub(crate) struct Named {
    model: ModelInfo,
    id: String,
}

impl FromRequestParts<Arc<App>> for Named {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let Path(id) = Path::<String>::from_request_parts(parts, app).await.map_err(no_name)?;
        Ok(Self { model: model_of(parts, app).await?, id: checked_name(id, "id")? })
    }
}

/// The question that a request's path names.
pub(crate) struct NamedQuestion {
    model: ModelInfo,
    session: String,
    number: u64,
}

impl FromRequestParts<Arc<App>> for NamedQuestion {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let names = Path::<(String, String)>::from_request_parts(parts, app).await;
        let Path((session, question)) = names.map_err(no_name)?;
        let number = question.strip_prefix("q_").and_then(|digits| digits.parse().ok());
        let number = number.ok_or_else(|| ApiError::not_found("there is no such question"))?;
        let session = checked_name(session, "id")?;
        Ok(Self { model: model_of(parts, app).await?, session, number })
    }
}

/// The model that a request's query names, or the default one.
pub(crate) struct OfThisModel(ModelInfo);

impl FromRequestParts<Arc<App>> for OfThisModel {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        Ok(Self(model_of(parts, app).await?))
    }
}

fn no_name(_: PathRejection) -> ApiError {
    ApiError::field("id", "it is not UTF-8")
}

/// The model that a request's query names.
async fn model_of(parts: &mut Parts, app: &Arc<App>) -> Result<ModelInfo, ApiError> {
    let query = Query::<OfModel>::from_request_parts(parts, app).await;
    let Query(of) = query.map_err(|error| ApiError::field("model", error.body_text()))?;
    app.model(of.model.as_deref())
}

fn body(state: SessionState, model: &ModelInfo) -> Session {
    let SessionState { id, tokens, busy } = state;
    Session { id, object: "session", model: model.id.clone(), tokens, busy }
}

/// Has something done to a session, and tells how it is afterwards.
async fn change(
    app: &App,
    model: ModelInfo,
    id: String,
    call: SessionCall,
) -> Result<Response, ApiError> {
    let (name, tenant) = (model.id.clone(), app.tenant());
    let state = app.call(move |service| service.session(tenant, &name, &id, call)).await?;
    Ok(json(&body(state, &model)))
}

/// Makes a session, which holds nothing yet.
#[utoipa::path(post, path = "/v1/sessions", tag = "Sessions", request_body = CreateSession,
    responses(
        (status = 200, description = "The session", body = Session),
        (status = 400, description = "A field cannot be used", body = ErrorBody),
        (status = 409, description = "There is one of that name", body = ErrorBody),
        (status = 429, description = "There are as many as may be", body = ErrorBody),
    )
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: CreateSession = app.read(request).await?;
    let model = app.model(request.model.as_deref())?;
    let id = match request.id {
        Some(id) => checked_name(id, "id")?,
        None => app.identity.id("session-"),
    };
    change(&app, model, id, SessionCall::Create).await
}

/// The sessions of whoever asks.
#[utoipa::path(get, path = "/v1/sessions", tag = "Sessions", params(OfModel), responses(
    (status = 200, description = "The sessions", body = SessionList),
))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    OfThisModel(model): OfThisModel,
) -> Result<Response, ApiError> {
    let (name, tenant) = (model.id.clone(), app.tenant());
    let sessions = app.call(move |service| service.sessions(tenant, &name)).await?;
    let data = sessions.into_iter().map(|state| body(state, &model)).collect();
    Ok(json(&SessionList { object: "list", data }))
}

/// A session.
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "Sessions",
    params(("id" = String, Path, description = "The session's name"), OfModel),
    responses(
        (status = 200, description = "The session", body = Session),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Named { model, id }: Named,
) -> Result<Response, ApiError> {
    change(&app, model, id, SessionCall::Get).await
}

/// Ends a session and forgets what it holds.
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "Sessions",
    params(("id" = String, Path, description = "The session's name"), OfModel),
    responses(
        (status = 200, description = "What it was", body = Session),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "A request is extending it", body = ErrorBody),
    )
)]
pub(crate) async fn close(
    State(app): State<Arc<App>>,
    Named { model, id }: Named,
) -> Result<Response, ApiError> {
    change(&app, model, id, SessionCall::Close).await
}

/// Puts a text behind what a session holds; answers when it is computed.
#[utoipa::path(post, path = "/v1/sessions/{id}/append", tag = "Sessions",
    params(("id" = String, Path, description = "The session's name"), OfModel),
    request_body = AppendSession,
    responses(
        (status = 200, description = "The session", body = Session),
        (status = 400, description = "A field cannot be used", body = ErrorBody),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "A request is extending it", body = ErrorBody),
    )
)]
pub(crate) async fn append(
    State(app): State<Arc<App>>,
    Named { model, id }: Named,
    request: Request,
) -> Result<Response, ApiError> {
    let request: AppendSession = app.read(request).await?;
    let input = match request.input {
        Prompt::Text(text) => Input::Text(text),
        Prompt::Tokens(tokens) => Input::Tokens(tokens),
    };
    let generate = Generate {
        max_tokens: Some(0),
        session: Some(InSession { id: id.clone(), keep: Keep::Prompt }),
        ..Generate::new(model.id.clone(), input)
    };
    let reply = crate::reply::Reply::start(&app, generate, None).await?;
    crate::reply::whole(reply).await?;
    change(&app, model, id, SessionCall::Get).await
}

/// Asks a session: a prompt that follows what it holds, and its continuation.
#[utoipa::path(post, path = "/v1/sessions/{id}/query", tag = "Sessions",
    params(("id" = String, Path, description = "The session's name"), OfModel),
    request_body = CompletionRequest,
    responses(
        (status = 200, description = "The text, or its stream", content(
            (Completion = "application/json"), (Completion = "text/event-stream"),
        )),
        (status = 400, description = "A field cannot be used", body = ErrorBody),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "A request is extending it", body = ErrorBody),
    )
)]
pub(crate) async fn query(
    State(app): State<Arc<App>>,
    Named { model, id }: Named,
    request: Request,
) -> Result<Response, ApiError> {
    let request: CompletionRequest = app.read(request).await?;
    completions::answer(&app, model, request, Some(id)).await
}

/// Makes a copy of a session; the two share what they have in common.
#[utoipa::path(post, path = "/v1/sessions/{id}/fork", tag = "Sessions",
    params(("id" = String, Path, description = "The session's name"), OfModel),
    request_body = ForkSession,
    responses(
        (status = 200, description = "The copy", body = Session),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "A request is extending it, or the copy's name is taken",
            body = ErrorBody),
    )
)]
pub(crate) async fn fork(
    State(app): State<Arc<App>>,
    Named { model, id }: Named,
    request: Request,
) -> Result<Response, ApiError> {
    let request: ForkSession = app.read(request).await?;
    let to = match request.to {
        Some(to) => checked_name(to, "to")?,
        None => app.identity.id("session-"),
    };
    change(&app, model, id, SessionCall::Fork { to }).await
}

/// Cuts a session off after its first tokens.
#[utoipa::path(post, path = "/v1/sessions/{id}/rewind", tag = "Sessions",
    params(("id" = String, Path, description = "The session's name"), OfModel),
    request_body = RewindSession,
    responses(
        (status = 200, description = "The session", body = Session),
        (status = 400, description = "It has fewer tokens", body = ErrorBody),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "A request is extending it", body = ErrorBody),
    )
)]
pub(crate) async fn rewind(
    State(app): State<Arc<App>>,
    Named { model, id }: Named,
    request: Request,
) -> Result<Response, ApiError> {
    let RewindSession { tokens } = app.read(request).await?;
    change(&app, model, id, SessionCall::Rewind { tokens }).await
}

/// Removes tokens from the middle of a session.
#[utoipa::path(post, path = "/v1/sessions/{id}/prune", tag = "Sessions",
    params(("id" = String, Path, description = "The session's name"), OfModel),
    request_body = PruneSession,
    responses(
        (status = 200, description = "The session", body = Session),
        (status = 400, description = "They are not within it", body = ErrorBody),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "A request is extending it", body = ErrorBody),
    )
)]
pub(crate) async fn prune(
    State(app): State<Arc<App>>,
    Named { model, id }: Named,
    request: Request,
) -> Result<Response, ApiError> {
    let PruneSession { from, to, keep_kv } = app.read(request).await?;
    let keep_kv = keep_kv.unwrap_or(false);
    change(&app, model, id, SessionCall::Prune { from, to, keep_kv }).await
}

/// Saves a session with its keys and values. Where that fails, what was saved before is there still.
#[utoipa::path(post, path = "/v1/sessions/{id}/save", tag = "Sessions",
    params(("id" = String, Path, description = "The session's name"), OfModel),
    request_body = SessionFile,
    responses(
        (status = 200, description = "The session", body = Session),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "A request is extending it", body = ErrorBody),
        (status = 507, description = "The file could not be written", body = ErrorBody),
    )
)]
pub(crate) async fn save(
    State(app): State<Arc<App>>,
    Named { model, id }: Named,
    request: Request,
) -> Result<Response, ApiError> {
    let SessionFile { file } = app.read(request).await?;
    let file = checked_name(file, "file")?;
    change(&app, model, id, SessionCall::Save { file }).await
}

/// Brings a saved session back under a name that is free.
#[utoipa::path(post, path = "/v1/sessions/{id}/restore", tag = "Sessions",
    params(("id" = String, Path, description = "The session's name"), OfModel),
    request_body = SessionFile,
    responses(
        (status = 200, description = "The session", body = Session),
        (status = 400, description = "The file cannot be used", body = ErrorBody),
        (status = 404, description = "There is no such file", body = ErrorBody),
        (status = 409, description = "There is a session of that name", body = ErrorBody),
    )
)]
pub(crate) async fn restore(
    State(app): State<Arc<App>>,
    Named { model, id }: Named,
    request: Request,
) -> Result<Response, ApiError> {
    let SessionFile { file } = app.read(request).await?;
    let file = checked_name(file, "file")?;
    change(&app, model, id, SessionCall::Restore { file }).await
}

/// Registers a question: it is answered whenever the session has new data and nothing else is to be
/// done, and leaves no trace in it.
#[utoipa::path(post, path = "/v1/sessions/{id}/questions", tag = "Sessions",
    params(("id" = String, Path, description = "The session's name"), OfModel),
    request_body = CompletionRequest,
    responses(
        (status = 200, description = "The question", body = Question),
        (status = 400, description = "A field cannot be used", body = ErrorBody),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(crate) async fn register(
    State(app): State<Arc<App>>,
    Named { model, id }: Named,
    request: Request,
) -> Result<Response, ApiError> {
    let request: CompletionRequest = app.read(request).await?;
    let mut generate = completions::plan(request, &model, &app, Some(id))?;
    if generate.choices != 1 {
        return Err(ApiError::field("n", "a question has one answer"));
    }
    generate.tenant = app.tenant();
    if let Some(session) = &mut generate.session {
        session.keep = Keep::Nothing;
    }
    let number = app.call(move |service| service.register(generate)).await?;
    Ok(json(&question_body(number, false)))
}

fn question_body(number: u64, answered: bool) -> Question {
    Question { id: format!("q_{number}"), object: "session.question", answered }
}

/// A question, and whether it is answered.
#[utoipa::path(get, path = "/v1/sessions/{id}/questions/{question}", tag = "Sessions",
    params(("id" = String, Path, description = "The session's name"),
        ("question" = String, Path, description = "The question's name"), OfModel),
    responses(
        (status = 200, description = "The question", body = Question),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(crate) async fn question(
    State(app): State<Arc<App>>,
    named: NamedQuestion,
) -> Result<Response, ApiError> {
    look_at(&app, named, false).await
}

/// Forgets a question.
#[utoipa::path(delete, path = "/v1/sessions/{id}/questions/{question}", tag = "Sessions",
    params(("id" = String, Path, description = "The session's name"),
        ("question" = String, Path, description = "The question's name"), OfModel),
    responses(
        (status = 200, description = "What it was", body = Question),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(crate) async fn drop_question(
    State(app): State<Arc<App>>,
    named: NamedQuestion,
) -> Result<Response, ApiError> {
    look_at(&app, named, true).await
}

async fn look_at(
    app: &App,
    NamedQuestion { model, session, number }: NamedQuestion,
    forget: bool,
) -> Result<Response, ApiError> {
    let tenant = app.tenant();
    let look = move |service: &dyn crate::service::Service| {
        service.question(tenant, &model.id, &session, number, forget)
    };
    Ok(json(&question_body(number, app.call(look).await?)))
}

/// Asks a registered question. Where it is answered already, nothing is computed.
#[utoipa::path(post, path = "/v1/sessions/{id}/questions/{question}/ask", tag = "Sessions",
    params(("id" = String, Path, description = "The session's name"),
        ("question" = String, Path, description = "The question's name"), OfModel),
    request_body = Ask,
    responses(
        (status = 200, description = "The answer, or its stream", content(
            (Completion = "application/json"), (Completion = "text/event-stream"),
        )),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(crate) async fn ask(
    State(app): State<Arc<App>>,
    NamedQuestion { model, session, number }: NamedQuestion,
    request: Request,
) -> Result<Response, ApiError> {
    let request: Ask = app.read(request).await?;
    let (id, tenant) = (model.id.clone(), app.tenant());
    let reply = crate::reply::Reply::start_with(&app, &model.id, 1, move |service| {
        service.ask(tenant, &id, &session, number)
    });
    let reply = reply.await?;
    completions::respond_with(&app, model, reply, request.stream.unwrap_or(false)).await
}
