//! `POST /v1/score`: log-probabilities and training losses of given targets.

use std::time::Instant;

use axum::Json;
use axum::extract::{Extension, State};
use ntl_api::{ScoreRequest, ScoreResponse, ScoredItem};
use ntl_core::engine::{Event, Job};

use super::body::ApiJson;
use super::client::Client;
use super::resolve;
use crate::adapters::score::{score_request, usage};
use crate::engine::Submission;
use crate::error::AppError;
use crate::middleware::track::ModelLabel;
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
    Extension(label): Extension<ModelLabel>,
    Client(client): Client,
    ApiJson(request, share): ApiJson<ScoreRequest>,
) -> Result<Json<ScoreResponse>, AppError> {
    let started = Instant::now();
    let model = resolve(&app, request.model.as_deref(), &label)?;
    let (items, losses) = score_request(request, model.info())?;
    let bytes = items.iter().map(ScoreInput::text_bytes).sum();
    let profile = model.profile(&app.settings);
    let items: Vec<ScoreTokens> = model
        .with_tokenizer(bytes, move |tokenizer| {
            items.into_iter().map(|item| item.into_tokens(tokenizer, &profile)).collect()
        })
        .await?;
    drop(share);
    let usage = usage(&items);
    let job = |(index, item): (usize, &ScoreTokens)| {
        Job::new(item.prompt.clone(), losses.request(index, &item.targets, &model.number_tokens))
    };
    let jobs = items.iter().enumerate().map(job).collect();
    let time_max = app.settings.request_time_max;
    let mut events = model.submit(Submission { jobs, client, started, time_max })?;
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
