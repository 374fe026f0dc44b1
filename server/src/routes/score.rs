//! `POST /v1/score`: what given targets cost.

use std::time::Instant;

use axum::Json;
use axum::extract::{Extension, State};
use ntl_api::{ScoreRequest, ScoreResponse, Usage};
use ntl_core::engine::{Event, Job, Request};

use crate::answers::Answers;
use crate::client::Client;
use crate::convert::{ScoreIds, ScorePrint, score_plan};
use crate::error::AppError;
use crate::extract::ApiJson;
use crate::models::ServedModel;
use crate::routes::SCORE;
use crate::state::AppState;
use crate::track::ModelLabel;

/// What given targets cost: log-probabilities, and losses of training.
#[utoipa::path(post, path = SCORE, tag = "completions", request_body = ScoreRequest, responses(
    (status = 200, description = "The items, scored", body = ScoreResponse),
    AppError,
))]
pub(crate) async fn score(
    State(app): State<AppState>,
    Extension(label): Extension<ModelLabel>,
    client: Client,
    ApiJson(request): ApiJson<ScoreRequest>,
) -> Result<Json<ScoreResponse>, AppError> {
    let started = Instant::now();
    let model = app.models.resolve(request.model.as_deref(), &label)?;
    let plan = score_plan(request, model.info())?;
    let print = plan.print.clone();
    let items = model.score_ids(plan, model.rules(&app.settings)).await?;
    let usage = usage(&items);
    // One job an item.
    let job = |ids: ScoreIds| {
        Job::new(ids.prompt, Request::Score(print.job(ids.target.tokens, model.number_tokens())))
    };
    let answers = model.submit(items.into_iter().map(job).collect(), (started, client.0), &app)?;
    whole(&model, answers, &print, usage).await.map(Json)
}

async fn whole(
    model: &ServedModel,
    mut answers: Answers,
    print: &ScorePrint,
    usage: Usage,
) -> Result<ScoreResponse, AppError> {
    let mut data = Vec::new();
    while let Some((index, event)) = answers.next().await? {
        if let Event::Scored(outcome) = event {
            data.push(print.show(index, &outcome, &**model.tokenizer()));
        }
    }
    data.sort_unstable_by_key(|score| score.index);
    Ok(ScoreResponse { object: "list".to_owned(), model: model.name().to_string(), data, usage })
}

fn usage(items: &[ScoreIds]) -> Usage {
    let count = |of: fn(&ScoreIds) -> usize| items.iter().map(|item| of(item) as u64).sum::<u64>();
    let (prompt_tokens, completion_tokens) =
        (count(|item| item.prompt.len()), count(|item| item.target.len()));
    Usage { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
}
