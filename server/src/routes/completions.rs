//! `POST /v1/completions`: texts or numbers, at once or as a stream.

use std::time::Instant;

use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use axum::{Json, body::Body};
use ntl_api::{CompletionRequest, CompletionResponse, StreamEvent};
use ntl_core::engine::{Job, Prompt};

use crate::answers::Answers;
use crate::client::Client;
use crate::convert::{self, ChoiceWriter, Plan, PromptShown, Transcript, Wanted};
use crate::error::AppError;
use crate::extract::ApiJson;
use crate::models::ServedModel;
use crate::reply::{self, Head};
use crate::routes::COMPLETIONS;
use crate::sse;
use crate::state::AppState;
use crate::track::ModelLabel;

/// Texts or numbers that continue a prompt.
///
/// With `stream`, server-sent events of the same shape, `[DONE]` last.
#[utoipa::path(post, path = COMPLETIONS, tag = "completions", request_body = CompletionRequest, responses(
    (status = 200, description = "The answers", content(
        (CompletionResponse = "application/json"),
        (StreamEvent = "text/event-stream"),
    )),
    AppError,
))]
pub(crate) async fn complete(
    State(app): State<AppState>,
    Extension(label): Extension<ModelLabel>,
    client: Client,
    ApiJson(request): ApiJson<CompletionRequest>,
) -> Result<Response<Body>, AppError> {
    let model = app.models.resolve(request.model.as_deref(), &label)?;
    answer(&app, &model, (request, client), Head::new(&model)).await
}

/// Answers a completion, or what became one, under a head that says how.
pub(super) async fn answer(
    app: &AppState,
    model: &ServedModel,
    (request, client): (CompletionRequest, Client),
    head: Head,
) -> Result<Response<Body>, AppError> {
    let plan = convert::plan(request, &model.rules(&app.settings))?;
    let (answers, writer, plan) = begin(app, model, (plan, client)).await?;
    if plan.stream {
        return sse::respond(head, answers, writer, plan.include_usage).await;
    }
    let transcript = Transcript::new(plan.prompt_count, &plan.wanted);
    Ok(Json(reply::whole(head, answers, writer, transcript).await?).into_response())
}

/// What is left of a plan once its prompts are with the engine.
struct Begun {
    prompt_count: usize,
    wanted: Wanted,
    stream: bool,
    include_usage: bool,
}

/// Gives one job a prompt to the engine.
async fn begin(
    app: &AppState,
    model: &ServedModel,
    (plan, Client(client)): (Plan, Client),
) -> Result<(Answers, ChoiceWriter, Begun), AppError> {
    let started = Instant::now();
    let Plan { prompts, wanted, stream, include_usage, paper_decoding } = plan;
    let guide = match wanted.guided() {
        Some(guided) => Some(model.guide(guided).await?),
        None => None,
    };
    let shows_prompt = wanted.shown().shows_prompt();
    let texts: Vec<Option<String>> =
        prompts.iter().filter(|_| shows_prompt).map(|prompt| prompt.text().map(str::to_owned)).collect();
    let prompts = model.prompts(prompts, model.rules(&app.settings)).await?;
    let (prompt_count, prompt_tokens) = (prompts.len(), prompts.iter().map(|one| one.len() as u64).sum());
    let shown = prompts
        .iter()
        .zip(texts)
        .map(|(prompt, text)| PromptShown::new(prompt.ids().collect(), text))
        .collect();
    let job = |prompt: Prompt| Job { paper_decoding, ..Job::new(prompt, wanted.request(guide.as_ref())) };
    let jobs = prompts.into_iter().map(job).collect();
    let answers = model.submit(jobs, (started, client), app)?;
    let writer = ChoiceWriter::new(model.tokenizer().clone(), &wanted, prompt_tokens, shown);
    Ok((answers, writer, Begun { prompt_count, wanted, stream, include_usage }))
}
