//! `POST /v1/score`: log-probabilities and training losses of given targets, or probabilities of labels.

use axum::extract::State;
use axum::response::Response;
use ntl_api::{ScoreAnswer, ScoreBody, ScoreRequest};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::body::{ApiRequest, RawRequest};
use super::{labels, resolve};
use crate::apis::labels::LabelForm;
use crate::apis::score::{response, score_request};
use crate::error::AppError;
use crate::json_body::{self, JsonBody};
use crate::paths::SCORE;
use crate::request::{ScoreInput, ScoreTokens, score_size};
use crate::served::ServedModel;
use crate::state::AppState;

/// Log-probabilities and training losses of given targets, or probabilities of labels.
///
/// A body with `query` or `label_token_ids` is a request for labels, as in SGLang.
#[utoipa::path(post, path = SCORE, tag = "completions", request_body = ScoreBody, responses(
    (status = 200, description = "The items, scored", body = ScoreAnswer),
    AppError,
))]
pub(crate) async fn score(State(app): State<AppState>, request: RawRequest) -> Result<Response, AppError> {
    if has_labels(request.bytes()) {
        return labels::respond(&app, request.parse().await?, LabelForm::Sglang).await;
    }
    let ApiRequest { body, requester, memory } = request.parse::<ScoreRequest>().await?;
    let model = resolve(&app, body.model.as_deref(), &requester.record)?;
    let (items, losses) = score_request(body, model.info())?;
    let items = tokenized(&model, requester.client.id, items).await?;
    let reserved = memory.into_response(score_size(&items, losses.losses_per_token()))?;
    let jobs = losses.jobs(&items, &model.number_tokens, requester.client.cache_salt(None))?;
    let mut events = model.submit("items", jobs, requester)?;
    let outcomes = events.scores().await?;
    let engine = events.engine_work();
    json_body::respond(reserved, move || {
        let scored = losses.scored(&items, &outcomes, &*model.decoder);
        JsonBody::with_items(&response(&model.name, &items, engine), "data", scored)
    })
    .await
}

async fn tokenized(
    model: &ServedModel,
    client: u64,
    items: Vec<ScoreInput>,
) -> Result<Vec<ScoreTokens>, AppError> {
    let bytes = items.iter().map(ScoreInput::text_bytes).sum();
    model
        .with_tokenizer(client, bytes, move |tokenizer, profile| {
            items.into_iter().map(|item| item.into_tokens(tokenizer, profile)).collect()
        })
        .await
}

/// The fields that only a request for labels has.
#[derive(Deserialize)]
struct LabelFields {
    query: Option<IgnoredAny>,
    label_token_ids: Option<IgnoredAny>,
}

/// Returns whether a body requests labels. A body that is not understood does not.
fn has_labels(body: &[u8]) -> bool {
    serde_json::from_slice(body)
        .is_ok_and(|LabelFields { query, label_token_ids }| query.is_some() || label_token_ids.is_some())
}
