//! Runs a generation request and writes the response in the format of an API: one body, or a stream.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use ntl_core::Prompt;
use ntl_core::contract::Job;
use ntl_core::text::TextDecoder;

use super::pieces::Pieces;
use super::stream;
use crate::adapters::AnswerAdapter;
use crate::answer::{Assembler, PromptReport, choices};
use crate::body_budget::ParsedShare;
use crate::error::AppError;
use crate::request::{GenerationRequest, PromptInput, Requester};
use crate::served::ServedModel;

pub(super) async fn answer(
    model: &ServedModel,
    requester: Requester,
    mut request: GenerationRequest,
    share: ParsedShare,
    adapter: impl AnswerAdapter,
) -> Result<Response, AppError> {
    let guide = match &request.guided {
        Some(guided) => Some(model.guide(guided).await?),
        None => None,
    };
    let GenerationRequest { truncation, report, .. } = request;
    let inputs = std::mem::take(&mut request.prompts);
    // The text of a truncated prompt is decoded from its tokens.
    let echoed =
        |input: &PromptInput| input.text().filter(|_| report.echo && truncation.is_none()).map(str::to_owned);
    let texts: Vec<Option<String>> = inputs.iter().map(echoed).collect();
    let bytes = inputs.iter().map(PromptInput::text_bytes).sum();
    let prompts: Vec<Prompt> = model
        .with_tokenizer(bytes, move |tokenizer, profile| {
            inputs.into_iter().map(|input| input.into_prompt(tokenizer, profile, truncation)).collect()
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
    let assembler = Assembler::new(&request, prompt_tokens, reports);
    let mut choices = choices(prompts.len(), request.choices_per_prompt());
    let cache_salt = requester.client.cache_salt(request.cache_salt.as_deref());
    let job = |prompt| Job { cache_salt, ..request.job(prompt, guide.as_ref()) };
    let jobs = prompts.into_iter().map(job).collect();
    let events = model.submit(jobs, requester)?;
    let mut pieces = Pieces { adapter, events, assembler };
    if request.is_streamed {
        return stream::respond(pieces, request.include_usage).await;
    }
    while let Some(piece) = pieces.next().await? {
        choices[piece.index as usize].append(piece);
    }
    Ok(Json(pieces.adapter.whole(choices, pieces.assembler.token_counts())).into_response())
}
