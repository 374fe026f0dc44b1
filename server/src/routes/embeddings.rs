//! `POST /v1/embeddings`: vectors of texts, from models that are computed natively.

use axum::extract::State;
use axum::response::Response;
use ntl_api::{EmbeddingRequest, EmbeddingResponse};
use ntl_core::Prompt;
use ntl_core::contract::{Job, Request};

use super::body::ApiRequest;
use super::resolve;
use crate::apis::classify::INPUT;
use crate::apis::embeddings::{EmbeddingInputs, embedding_inputs, response};
use crate::error::AppError;
use crate::json_body::{self, JsonBody};
use crate::paths::EMBEDDINGS;
use crate::request::embeddings_size;
use crate::served::ServedModel;
use crate::state::AppState;

/// Computes a vector for each text: hidden states of the model's last layer.
#[utoipa::path(post, path = EMBEDDINGS, tag = "completions", request_body = EmbeddingRequest, responses(
    (status = 200, description = "The vectors", body = EmbeddingResponse),
    AppError,
))]
pub(crate) async fn embed(
    State(app): State<AppState>,
    ApiRequest { body, requester, memory }: ApiRequest<EmbeddingRequest>,
) -> Result<Response, AppError> {
    let model = resolve(&app, body.model.as_deref(), &requester.record)?;
    let request = embedding_inputs(body, model.info(), &model.profile)?;
    let (job, width, form) = (request.job, request.width, request.form);
    let prompts = tokenized(&model, requester.client.id, request).await?;
    let reserved = memory.into_response(embeddings_size(prompts.len(), width))?;
    let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
    let cache_salt = requester.client.cache_salt(None);
    let jobs = prompts
        .into_iter()
        .map(|prompt| Job { cache_salt, ..Job::new(prompt, Request::Embedding(job)) })
        .collect();
    let vectors = model.submit(INPUT, jobs, requester)?.values().await?;
    json_body::respond(reserved, move || {
        let items = vectors.iter().enumerate().map(|(index, vector)| form.embedding(index, vector));
        JsonBody::with_items(&response(&model.name, prompt_tokens), "data", items)
    })
    .await
}

async fn tokenized(
    model: &ServedModel,
    client: u64,
    request: EmbeddingInputs,
) -> Result<Vec<Prompt>, AppError> {
    let bytes = request.text_bytes();
    model
        .with_tokenizer(client, bytes, move |tokenizer, profile| request.into_prompts(tokenizer, profile))
        .await
}
