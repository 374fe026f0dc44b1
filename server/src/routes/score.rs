//! `POST /v1/score`: log-probabilities and training losses of given targets.

use axum::extract::State;
use axum::response::Response;
use ntl_api::{ScoreRequest, ScoreResponse};
use ntl_core::contract::{Event, Job};

use super::body::ApiRequest;
use super::resolve;
use crate::adapters::score::{score_request, usage};
use crate::error::AppError;
use crate::json_body::{self, JsonBody};
use crate::paths::SCORE;
use crate::request::{ScoreInput, ScoreTokens, score_size};
use crate::state::AppState;

/// Log-probabilities and training losses of given targets.
#[utoipa::path(post, path = SCORE, tag = "completions", request_body = ScoreRequest, responses(
    (status = 200, description = "The items, scored", body = ScoreResponse),
    AppError,
))]
pub(crate) async fn score(
    State(app): State<AppState>,
    ApiRequest { body, requester, memory }: ApiRequest<ScoreRequest>,
) -> Result<Response, AppError> {
    let model = resolve(&app, body.model.as_deref(), &requester.record)?;
    let (items, losses) = score_request(body, model.info())?;
    let bytes = items.iter().map(ScoreInput::text_bytes).sum();
    let items: Vec<ScoreTokens> = model
        .with_tokenizer(bytes, move |tokenizer, profile| {
            items.into_iter().map(|item| item.into_tokens(tokenizer, profile)).collect()
        })
        .await?;
    let size = score_size(&items, losses.losses_per_token());
    let estimate = size.bytes;
    let reserved = memory.into_response(size)?;
    losses.check_tokens(&items)?;
    let usage = usage(&items);
    let job = |(index, item): (usize, &ScoreTokens)| {
        let request = losses.request(index, &item.targets, &model.number_tokens);
        Job { cache_salt: requester.client.cache_salt(None), ..Job::new(item.prompt.clone(), request) }
    };
    let jobs = items.iter().enumerate().map(job).collect();
    let mut events = model.submit(jobs, requester)?;
    let mut outcomes = Vec::new();
    while let Some((index, event)) = events.next().await? {
        if let Event::Scored(outcome) = event {
            outcomes.push((index, outcome));
        }
    }
    outcomes.sort_unstable_by_key(|&(index, _)| index);
    json_body::build(estimate, move || {
        let item = |(index, outcome): (usize, _)| {
            losses.item(index, &items[index].targets, &outcome, &*model.decoder)
        };
        let (object, name) = ("list".to_owned(), model.name.to_string());
        let whole = ScoreResponse { object, model: name, data: Vec::new(), usage };
        Ok(JsonBody::with_items(&whole, "data", outcomes.into_iter().map(item))?.into_response(reserved))
    })
    .await
}
