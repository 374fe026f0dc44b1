//! `POST /v1/decisions` and `POST /v1/systemone`: probabilities of all allowed answers to questions about one
//! text.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use ntl_api::{
    AnswersOrPrompts, DecisionPrompt, DecisionPrompts, DecisionsRequest, DecisionsResponse, SystemOneError,
    SystemOneRequest, SystemOneResponse,
};
use ntl_core::contract::Job;
use ntl_remote::ChatJob;
use serde::Serialize;

use super::body::ApiRequest;
use super::resolve;
use crate::apis::decisions::{
    Decision, DecisionTokens, Figures, PreparedChat, PreparedPrompt, Results, openai, prepare, prepare_chats,
    systemone,
};
use crate::blocking::run_blocking;
use crate::error::AppError;
use crate::json_body::{self, JsonBody};
use crate::paths::{DECISIONS, SYSTEMONE};
use crate::request::{EngineWork, MODEL_ALIASES, RequestRecord, Requester};
use crate::response_budget::{RequestMemory, ReservedResponse};
use crate::served::{RequestEvents, ServedModel};
use crate::state::AppState;

/// Probabilities of all allowed answers to questions, in the form of OpenAI.
#[utoipa::path(post, path = DECISIONS, tag = "decisions", request_body = DecisionsRequest, responses(
    (status = 200, description = "The answers, or the prompts of a dry run", body = AnswersOrPrompts<DecisionsResponse>),
    AppError,
))]
pub(crate) async fn decide(
    State(app): State<AppState>,
    ApiRequest { body, requester, memory }: ApiRequest<DecisionsRequest>,
) -> Result<Response, AppError> {
    let model = model(&app, body.model.as_deref(), &requester.record)?;
    let (decision, forms) = openai::decision(body, &model.profile)?;
    let outcome = answer(&model, decision, requester, memory).await?;
    outcome
        .respond(model, |name, Answers { decision, figures, tokens }| {
            forms.response(name, &decision, &figures, tokens)
        })
        .await
}

/// Probabilities of all allowed answers to questions, in the form of TypeSafe (System One).
#[utoipa::path(post, path = SYSTEMONE, tag = "decisions", request_body = SystemOneRequest, responses(
    (status = 200, description = "The answers, or the prompts of a dry run", body = AnswersOrPrompts<SystemOneResponse>),
    (status = 422, description = "The request is invalid; `loc` names the field", body = SystemOneError),
    (status = 401, description = "No valid API key", body = SystemOneError),
    (status = 404, description = "No model of this name", body = SystemOneError),
    (status = 408, description = "The body did not arrive in time", body = SystemOneError),
    (status = 413, description = "The body is too large, or the response may be", body = SystemOneError),
    (status = 415, description = "The body is not plain JSON", body = SystemOneError),
    (status = 429, description = "The queue is full, or the API key has used up its quota; `Retry-After` says when to try again", body = SystemOneError),
    (status = 500, description = "The server or the model failed", body = SystemOneError),
    (status = 502, description = "The engine that serves the model is unreachable, or its response is not understood", body = SystemOneError),
    (status = 503, description = "Loading, draining, short of memory or out of order", body = SystemOneError),
    (status = 504, description = "The answer took too long", body = SystemOneError),
))]
pub(crate) async fn system_one(
    State(app): State<AppState>,
    ApiRequest { body, requester, memory }: ApiRequest<SystemOneRequest>,
) -> Result<Response, AppError> {
    let model = model(&app, body.model.as_deref(), &requester.record)?;
    let (decision, forms) = systemone::decision(body, &model.profile)?;
    let outcome = answer(&model, decision, requester, memory).await?;
    outcome
        .respond(model, |name, Answers { decision, figures, tokens }| {
            forms.response(name, &decision, &figures, tokens)
        })
        .await
}

/// The model of a request. Names of hosted models stand for the first model, unless a model has this name.
fn model(app: &AppState, name: Option<&str>, record: &RequestRecord) -> Result<Arc<ServedModel>, AppError> {
    let all = app.models.all();
    let is_alias = name
        .is_some_and(|name| MODEL_ALIASES.contains(&name) && all.iter().all(|model| *model.name != *name));
    match all.first() {
        Some(first) if is_alias => resolve(app, Some(&first.name), record),
        _ => resolve(app, name, record),
    }
}

/// The result of a request.
pub(super) struct Outcome {
    kind: OutcomeKind,
    reserved: ReservedResponse,
}

enum OutcomeKind {
    DryRun(Vec<DecisionPrompt>),
    Answers(Answers),
}

pub(super) struct Answers {
    decision: Decision,
    pub(super) figures: Vec<Figures>,
    pub(super) tokens: DecisionTokens,
}

/// Tokenizes the prompts of a decision, and computes them unless it is a dry run.
pub(super) async fn answer(
    model: &ServedModel,
    decision: Decision,
    requester: Requester,
    memory: RequestMemory,
) -> Result<Outcome, AppError> {
    if model.profile.sampling.is_some() {
        return sampled(model, decision, requester, memory).await;
    }
    let template = Arc::clone(&model.decision_template);
    // A template is a program: it never runs on a thread of the runtime, even if the texts are short.
    let (decision, prompts) = model
        .with_tokenizer(requester.client.id, usize::MAX, move |tokenizer, profile| {
            let prompts = prepare(&decision, &template, tokenizer, profile)?;
            Ok((decision, prompts))
        })
        .await?;
    let shown_bytes = prompts.iter().map(PreparedPrompt::shown_bytes).sum();
    let reserved = memory.into_response(decision.response_size(shown_bytes))?;
    let kind = if decision.is_dry_run {
        OutcomeKind::DryRun(prompts.into_iter().map(PreparedPrompt::into_shown).collect())
    } else {
        OutcomeKind::Answers(run(model, decision, prompts, requester).await?)
    };
    Ok(Outcome { kind, reserved })
}

/// Computes the prompts of all questions together.
async fn run(
    model: &ServedModel,
    decision: Decision,
    prompts: Vec<PreparedPrompt>,
    requester: Requester,
) -> Result<Answers, AppError> {
    let cache_salt = requester.client.cache_salt(None);
    let mut input_tokens = 0;
    let mut questions = Vec::with_capacity(prompts.len());
    let mut jobs = Vec::with_capacity(prompts.len());
    for PreparedPrompt { question, prompt, request, is_listed, .. } in prompts {
        input_tokens += prompt.len() as u64;
        questions.push((question, is_listed));
        jobs.push(Job { cache_salt, ..Job::new(prompt, request) });
    }
    let events = model.submit(decision.field, jobs, requester)?;
    let (figures, engine) = figures(&decision, &questions, events).await?;
    Ok(Answers { decision, figures, tokens: DecisionTokens { input: input_tokens, engine } })
}

/// Samples answers to all questions.
async fn sampled(
    model: &ServedModel,
    decision: Decision,
    requester: Requester,
    memory: RequestMemory,
) -> Result<Outcome, AppError> {
    let template = Arc::clone(&model.decision_template);
    // A template is a program: it never runs on a thread of the runtime, even if the texts are short.
    let (decision, chats) = run_blocking(requester.client.id, usize::MAX, move || {
        let chats = prepare_chats(&decision, &template)?;
        Ok((decision, chats))
    })
    .await?;
    let shown_bytes = chats.iter().filter_map(|chat| chat.shown.as_ref()).map(|shown| shown.text.len()).sum();
    let reserved = memory.into_response(decision.response_size(shown_bytes))?;
    let kind = if decision.is_dry_run {
        OutcomeKind::DryRun(chats.into_iter().filter_map(|chat| chat.shown).collect())
    } else {
        OutcomeKind::Answers(run_chats(model, decision, chats, requester).await?)
    };
    Ok(Outcome { kind, reserved })
}

/// Samples the answers to all questions together.
async fn run_chats(
    model: &ServedModel,
    decision: Decision,
    chats: Vec<PreparedChat>,
    requester: Requester,
) -> Result<Answers, AppError> {
    let client = requester.client.id;
    let max_tokens = usize::try_from(model.profile.output_tokens_max).unwrap_or(usize::MAX);
    let mut questions = Vec::with_capacity(chats.len());
    let mut jobs = Vec::with_capacity(chats.len());
    for PreparedChat { question, chat, wanted, .. } in chats {
        questions.push((question, true));
        // The same question has the same samples, if the engine takes seeds.
        jobs.push(ChatJob { chat: Arc::new(chat), max_tokens, seed: 0, wanted, deadline: None, client });
    }
    let events = model.submit_chats(decision.field, jobs, requester)?;
    let (figures, engine) = figures(&decision, &questions, events).await?;
    let tokens = DecisionTokens { input: engine.map_or(0, |work| work.usage.prompt_tokens), engine };
    Ok(Answers { decision, figures, tokens })
}

/// Waits for the results of all prompts. `questions` has the question of each prompt, and whether the prompt
/// lists the options. Also returns the work of another engine, if one computes the model.
async fn figures(
    decision: &Decision,
    questions: &[(usize, bool)],
    mut events: RequestEvents,
) -> Result<(Vec<Figures>, Option<EngineWork>), AppError> {
    let mut results: Vec<Option<_>> = questions.iter().map(|_| None).collect();
    while let Some((index, event)) = events.next().await? {
        results[index] = Some(event);
    }
    // In the order of the prompts, so that sums do not depend on which job ended first.
    let mut by_question: Vec<Results> = (0..decision.questions.len()).map(|_| Results::default()).collect();
    for (&(question, is_listed), event) in questions.iter().zip(results) {
        by_question[question].is_unlisted |= !is_listed;
        by_question[question].add(event.ok_or(AppError::Internal)?);
    }
    let figures = decision.figures(by_question)?;
    for (question, figures) in decision.questions.iter().zip(&figures) {
        events.count_decision(question.kind_name(), figures.mass());
        if let Figures::Number(shown) = figures {
            events.count_number(shown.method, &shown.outcome, 0);
        }
    }
    Ok((figures, events.engine_work()))
}

impl Outcome {
    /// Writes the response, whose answers `write` makes.
    pub(super) async fn respond<T: Serialize>(
        self,
        model: Arc<ServedModel>,
        write: impl FnOnce(String, Answers) -> T + Send + 'static,
    ) -> Result<Response, AppError> {
        let Self { kind, reserved } = self;
        json_body::respond(reserved, move || {
            let name = model.name.to_string();
            JsonBody::of(&match kind {
                OutcomeKind::Answers(answers) => AnswersOrPrompts::Answers(write(name, answers)),
                OutcomeKind::DryRun(prompts) => {
                    AnswersOrPrompts::Prompts(DecisionPrompts { model: name, prompts })
                }
            })
        })
        .await
    }
}
