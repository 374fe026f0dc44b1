//! `POST /v1/score`: log-probabilities and training losses of given targets.

use axum::Json;
use axum::extract::State;
use ntl_api::{ScoreRequest, ScoreResponse, ScoredItem};
use ntl_core::contract::{Event, Job};

use super::body::ApiRequest;
use super::resolve;
use crate::adapters::score::{score_request, usage};
use crate::error::AppError;
use crate::paths::SCORE;
use crate::request::{ScoreInput, ScoreTokens};
use crate::state::AppState;

/// Log-probabilities and training losses of given targets.
#[utoipa::path(post, path = SCORE, tag = "completions", request_body = ScoreRequest, responses(
    (status = 200, description = "The items, scored", body = ScoreResponse),
    AppError,
))]
pub(crate) async fn score(
    State(app): State<AppState>,
    ApiRequest { body, requester, share }: ApiRequest<ScoreRequest>,
) -> Result<Json<ScoreResponse>, AppError> {
    let model = resolve(&app, body.model.as_deref(), &requester.record)?;
    let (items, losses) = score_request(body, model.info())?;
    let bytes = items.iter().map(ScoreInput::text_bytes).sum();
    let items: Vec<ScoreTokens> = model
        .with_tokenizer(bytes, move |tokenizer, profile| {
            items.into_iter().map(|item| item.into_tokens(tokenizer, profile)).collect()
        })
        .await?;
    drop(share);
    losses.check_tokens(&items)?;
    let usage = usage(&items);
    let job = |(index, item): (usize, &ScoreTokens)| {
        let request = losses.request(index, &item.targets, &model.number_tokens);
        Job { cache_salt: requester.client.cache_salt(None), ..Job::new(item.prompt.clone(), request) }
    };
    let jobs = items.iter().enumerate().map(job).collect();
    let mut events = model.submit(jobs, requester)?;
    let mut data = Vec::new();
    while let Some((index, event)) = events.next().await? {
        if let Event::Scored(outcome) = event {
            data.push(losses.item(index, &items[index].targets, &outcome, &*model.tokenizer));
        }
    }
    data.sort_unstable_by_key(ScoredItem::index);
    let model = model.name.to_string();
    Ok(Json(ScoreResponse { object: "list".to_owned(), model, data, usage }))
}
