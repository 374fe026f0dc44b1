//! `POST /v1/score`: log-probabilities and training losses of given targets, or probabilities of labels.

use axum::extract::State;
use axum::response::Response;
use ntl_api::{ScoreAnswer, ScoreBody, ScoreRequest, ScoreResponse};
use ntl_core::contract::{Event, Job};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::body::{ApiRequest, RawRequest};
use super::{labels, resolve};
use crate::apis::labels::LabelForm;
use crate::apis::score::{score_request, usage};
use crate::error::AppError;
use crate::json_body::{self, JsonBody};
use crate::paths::SCORE;
use crate::request::{ScoreInput, ScoreTokens, score_size};
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
    let bytes = items.iter().map(ScoreInput::text_bytes).sum();
    let items: Vec<ScoreTokens> = model
        .with_tokenizer(requester.client.id, bytes, move |tokenizer, profile| {
            items.into_iter().map(|item| item.into_tokens(tokenizer, profile)).collect()
        })
        .await?;
    let size = score_size(&items, losses.losses_per_token());
    let estimate = size.bytes;
    let reserved = memory.into_response(size)?;
    losses.check_tokens(&items)?;
    let job = |(index, item): (usize, &ScoreTokens)| {
        let request = losses.request(index, &item.targets, &model.number_tokens);
        Job { cache_salt: requester.client.cache_salt(None), ..Job::new(item.prompt.clone(), request) }
    };
    let jobs = items.iter().enumerate().map(job).collect();
    let mut events = model.submit("items", jobs, requester)?;
    let mut outcomes = Vec::new();
    while let Some((index, event)) = events.next().await? {
        if let Event::Scored(outcome) = event {
            outcomes.push((index, outcome));
        }
    }
    outcomes.sort_unstable_by_key(|&(index, _)| index);
    let usage = usage(&items, events.engine_work());
    json_body::build(reserved.client(), estimate, move || {
        let item = |(index, outcome): (usize, _)| {
            losses.item(index, &items[index].targets, &outcome, &*model.decoder)
        };
        let (object, name) = ("list".to_owned(), model.name.to_string());
        let whole = ScoreResponse { object, model: name, data: Vec::new(), usage };
        Ok(JsonBody::with_items(&whole, "data", outcomes.into_iter().map(item))?.into_response(reserved))
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
