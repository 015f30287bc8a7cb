//! `GET /openapi.json`: the interface, described by the types that serve it.

use axum::response::Response;
use utoipa::OpenApi;

use crate::{anthropic, app::json, live, ollama, openai, ops, sessions, text};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "dunlin",
        description = "Language models over the protocols of OpenAI, Anthropic and Ollama"
    ),
    paths(
        openai::chat::create,
        openai::completions::create,
        openai::responses::create,
        openai::embeddings::create,
        openai::models::list,
        openai::models::retrieve,
        anthropic::create,
        anthropic::count_tokens,
        ollama::chat::chat,
        ollama::generate::generate,
        ollama::embed::embed,
        ollama::embed::embeddings,
        ollama::models::tags,
        ollama::models::show,
        ollama::models::ps,
        ollama::models::version,
        sessions::create,
        sessions::list,
        sessions::retrieve,
        sessions::close,
        sessions::append,
        sessions::query,
        sessions::fork,
        sessions::rewind,
        sessions::prune,
        sessions::save,
        sessions::restore,
        sessions::register,
        sessions::question,
        sessions::drop_question,
        sessions::ask,
        text::tokenize,
        text::detokenize,
        text::apply_template,
        ops::health,
        ops::ready,
        ops::metrics,
        live::live,
        ops::server_info,
        ops::model_info,
        describe,
    )
)]
struct Description;

/// This description.
#[utoipa::path(get, path = "/openapi.json", tag = "Operation", responses(
    (status = 200, description = "The description", content_type = "application/json"),
))]
pub(crate) async fn describe() -> Response {
    json(&Description::openapi())
}
