//! `POST /v1/embeddings`: vectors of texts, from models that are computed natively.

use axum::extract::State;
use axum::response::Response;
use ntl_api::{EmbeddingRequest, EmbeddingResponse, Usage};
use ntl_core::contract::{Event, Job, Request};

use super::body::ApiRequest;
use super::resolve;
use crate::apis::classify::INPUT;
use crate::apis::embeddings::embedding_inputs;
use crate::error::AppError;
use crate::json_body::{self, JsonBody};
use crate::paths::EMBEDDINGS;
use crate::request::embeddings_size;
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
    let prompts = model
        .with_tokenizer(requester.client.id, request.text_bytes(), move |tokenizer, profile| {
            request.into_prompts(tokenizer, profile)
        })
        .await?;
    let reserved = memory.into_response(embeddings_size(prompts.len(), width))?;
    let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
    let cache_salt = requester.client.cache_salt(None);
    let mut vectors = vec![Vec::new(); prompts.len()];
    let mut jobs = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        jobs.push(Job { cache_salt, ..Job::new(prompt, Request::Embedding(job)) });
    }
    let mut events = model.submit(INPUT, jobs, requester)?;
    while let Some((index, event)) = events.next().await? {
        if let Event::Values(vector) = event {
            vectors[index] = vector;
        }
    }
    let whole = EmbeddingResponse {
        id: format!("embd-{}", uuid::Uuid::new_v4().simple()),
        object: "list".to_owned(),
        created: crate::unix_seconds(),
        model: model.name.to_string(),
        data: Vec::new(),
        usage: Usage { prompt_tokens, total_tokens: prompt_tokens, ..Usage::default() },
    };
    let bytes = vectors.len() * width * size_of::<f32>();
    json_body::build(reserved.client(), bytes, move || {
        let items = vectors.iter().enumerate().map(|(index, vector)| form.embedding(index, vector));
        Ok(JsonBody::with_items(&whole, "data", items)?.into_response(reserved))
    })
    .await
}
