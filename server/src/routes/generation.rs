//! Runs a generation request and answers it in the style of an API: one body, or a stream.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::response::{IntoResponse, Response};
use ntl_core::Prompt;
use ntl_core::engine::Job;
use ntl_core::text::TextDecoder;

use super::client::Client;
use super::piece::piece;
use super::stream;
use crate::adapters::AnswerAdapter;
use crate::answer::{Assembler, PromptReport, Transcript};
use crate::engine::{ServedModel, Submission};
use crate::error::AppError;
use crate::parsed_budget::ParsedShare;
use crate::request::{GenerationRequest, PromptInput};
use crate::state::AppState;

pub(super) async fn answer(
    app: &AppState,
    model: &ServedModel,
    Client(client): Client,
    request: GenerationRequest,
    share: ParsedShare,
    adapter: impl AnswerAdapter,
) -> Result<Response, AppError> {
    let started = Instant::now();
    let GenerationRequest { prompts: inputs, decoding, stream, paper_decoding } = request;
    let guide = match decoding.guided() {
        Some(guided) => Some(model.guide(guided).await?),
        None => None,
    };
    let report = decoding.report();
    let echoed = |input: &PromptInput| input.text().filter(|_| report.echo).map(str::to_owned);
    let texts: Vec<Option<String>> = inputs.iter().map(echoed).collect();
    let bytes = inputs.iter().map(PromptInput::text_bytes).sum();
    let profile = model.profile(&app.settings);
    let prompts: Vec<Prompt> = model
        .with_tokenizer(bytes, move |tokenizer| {
            inputs.into_iter().map(|input| input.into_prompt(tokenizer, &profile)).collect()
        })
        .await?;
    drop(share);
    let prompt_tokens = prompts.iter().map(Prompt::len).sum();
    let reports = if report.includes_prompt() {
        let decoder: Arc<dyn TextDecoder> = model.tokenizer.clone();
        let prompts = prompts.iter().zip(texts);
        prompts.map(|(prompt, text)| PromptReport::new(prompt, text, report, &decoder)).collect()
    } else {
        Vec::new()
    };
    let mut assembler = Assembler::new(&decoding, prompt_tokens, reports);
    let mut transcript = Transcript::new(prompts.len(), decoding.choices_per_prompt());
    let job = |prompt: Prompt| Job { paper_decoding, ..Job::new(prompt, decoding.job(guide.as_ref())) };
    let jobs = prompts.into_iter().map(job).collect();
    let time_max = app.settings.request_time_max;
    let mut events = model.submit(Submission { jobs, client, started, time_max })?;
    if let Some(options) = stream {
        return stream::respond(adapter, events, assembler, options).await;
    }
    while let Some((prompt, event)) = events.next().await? {
        if let Some(piece) = piece(&adapter, &mut assembler, &events, prompt, event) {
            transcript.add(piece);
        }
    }
    Ok(Json(adapter.whole(transcript.into_choices(), assembler.token_counts())).into_response())
}
