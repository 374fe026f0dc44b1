//! `POST /rerank` and `POST /v1/rerank`: documents in the order of their relevance.

use axum::extract::State;
use axum::response::Response;
use ntl_api::{RerankRequest, RerankResponse};

use super::body::ApiRequest;
use super::{classify, decisions, resolve};
use crate::apis::decisions::rerank::{decision, scores};
use crate::apis::rerank::{Reranking, relevance_label, reranking, shortened};
use crate::error::AppError;
use crate::paths::{RERANK, RERANK_V1};
use crate::served::ServedModel;
use crate::state::AppState;

/// Sorts documents by their relevance for a query.
#[utoipa::path(post, path = RERANK, tag = "completions", request_body = RerankRequest, responses(
    (status = 200, description = "The most relevant documents", body = RerankResponse),
    AppError,
))]
pub(crate) async fn rerank(
    State(app): State<AppState>,
    request: ApiRequest<RerankRequest>,
) -> Result<Response, AppError> {
    respond(&app, request).await
}

/// Sorts documents by their relevance for a query, like `/rerank`.
#[utoipa::path(post, path = RERANK_V1, tag = "completions", request_body = RerankRequest, responses(
    (status = 200, description = "The most relevant documents", body = RerankResponse),
    AppError,
))]
pub(crate) async fn rerank_v1(
    State(app): State<AppState>,
    request: ApiRequest<RerankRequest>,
) -> Result<Response, AppError> {
    respond(&app, request).await
}

async fn respond(
    app: &AppState,
    ApiRequest { body, requester, memory }: ApiRequest<RerankRequest>,
) -> Result<Response, AppError> {
    let model = resolve(app, body.model.as_deref(), &requester.record)?;
    model.profile.check_tokens()?;
    let reranking = reranking(body)?;
    let documents = documents(&model, requester.client.id, &reranking).await?;
    let Some(labels) = &model.info().labels else {
        let decision = decision(&reranking.query, &documents, &model.profile)?;
        let outcome = decisions::answer(&model, decision, requester, memory).await?;
        return outcome
            .respond(model, |name, answers| {
                reranking.response(name, scores(&answers.figures), answers.tokens.input)
            })
            .await;
    };
    let label = relevance_label(labels)?;
    let (request, size) = (reranking.pairs(documents), reranking.response_size());
    let predicted = classify::predict(model, request, size, requester, memory).await?;
    predicted
        .respond_whole(move |model, _, values, usage| {
            let scores = values.iter().map(|values| values[label]).collect();
            reranking.response(model.to_owned(), scores, usage.prompt_tokens)
        })
        .await
}

/// Returns the documents as the model reads them.
async fn documents(model: &ServedModel, client: u64, request: &Reranking) -> Result<Vec<String>, AppError> {
    let documents = request.documents.clone();
    let Some(tokens_max) = request.document_tokens_max else { return Ok(documents) };
    let bytes = documents.iter().map(String::len).sum();
    model
        .with_tokenizer(client, bytes, move |tokenizer, profile| {
            shortened(documents, tokens_max, tokenizer, profile)
        })
        .await
}
