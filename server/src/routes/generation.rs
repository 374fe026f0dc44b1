//! Runs a generation request and writes the response in the format of an API: one body, or a stream.

use std::sync::Arc;

use axum::response::Response;
use ntl_core::Prompt;
use ntl_core::contract::{Job, NumberMethod, Request};
use ntl_core::guide::Guide;
use ntl_core::text::TextDecoder;
use ntl_remote::{ChatJob, ChatWanted};
use ntl_text::chat::Conversation;

use super::pieces::Pieces;
use super::stream;
use crate::answer::{Assembler, Piece, PromptReport, choices};
use crate::apis::AnswerWriter;
use crate::apis::chat::prompt_ids;
use crate::apis::sampled::SampledNumber;
use crate::error::AppError;
use crate::json_body::{self, JsonBody};
use crate::request::{GenerationRequest, PromptInput, Requester, into_prompts};
use crate::response_budget::{RequestMemory, ReservedResponse};
use crate::served::ServedModel;

/// The field with the prompts.
const PROMPT: &str = "prompt";

/// The guide of a request, with its rules for tokens.
async fn guide(
    model: &ServedModel,
    client: u64,
    request: &GenerationRequest,
) -> Result<Option<Arc<dyn Guide>>, AppError> {
    let guide = match &request.guided {
        Some(guided) => Some(model.guide(client, guided).await?),
        None => None,
    };
    let rules = &request.token_rules;
    if rules.is_empty() {
        return Ok(guide);
    }
    let bytes = rules.bad_words.iter().map(String::len).sum();
    let rules = rules.clone();
    let guide = model
        .with_tokenizer(client, bytes, move |tokenizer, _| {
            rules
                .guide(tokenizer, guide)
                .map_err(|error| AppError::invalid("bad_words", format!("`bad_words`: {error}")))
        })
        .await?;
    Ok(Some(guide))
}

/// Renders and tokenizes a conversation, whose messages are in the field `field`.
pub(super) async fn chat_prompt(
    model: &ServedModel,
    client: u64,
    field: &'static str,
    conversation: Conversation,
    add_special_tokens: bool,
) -> Result<Vec<u32>, AppError> {
    // A template is a program: it never runs on a thread of the runtime, even if the messages are short.
    model
        .with_tokenizer(client, usize::MAX, move |tokenizer, profile| {
            prompt_ids(field, &conversation, add_special_tokens, tokenizer, profile)
        })
        .await
}

pub(super) async fn answer<A: AnswerWriter>(
    model: &ServedModel,
    requester: Requester,
    mut request: GenerationRequest,
    memory: RequestMemory,
    writer: A,
) -> Result<Response, AppError> {
    let client = requester.client.id;
    let guide = guide(model, client, &request).await?;
    let GenerationRequest { truncation, add_special_tokens, report, .. } = request;
    let inputs = std::mem::take(&mut request.prompts);
    // The text of a truncated prompt is decoded from its tokens.
    let keeps_texts = report.echo && truncation.is_none();
    let texts: Vec<Option<String>> =
        inputs.iter().map(|input| if keeps_texts { input.text().map(str::to_owned) } else { None }).collect();
    let bytes = inputs.iter().map(PromptInput::text_bytes).sum();
    let prompts: Vec<Prompt> = model
        .with_tokenizer(client, bytes, move |tokenizer, profile| {
            into_prompts(inputs, PROMPT, tokenizer, profile, truncation, add_special_tokens)
        })
        .await?;
    let size = request.response_size(&prompts, &texts, writer.context().number_bytes());
    let reserved = memory.into_response(size)?;
    let prompt_tokens = prompts.iter().map(Prompt::len).sum();
    let (prompts, reports) = if report.includes_prompt() {
        let decoder: Arc<dyn TextDecoder> = model.tokenizer.clone();
        json_body::build(client, size_of::<u32>() * prompt_tokens, move || {
            let reports = PromptReport::all(&prompts, texts, report, &decoder);
            Ok((prompts, reports))
        })
        .await?
    } else {
        (prompts, Vec::new())
    };
    let assembler = Assembler::new(&request, prompt_tokens, reports);
    let choices = choices(prompts.len(), request.choices_per_prompt());
    let cache_salt = requester.client.cache_salt(request.cache_salt.as_deref());
    let jobs =
        prompts.into_iter().map(|prompt| Job { cache_salt, ..request.job(prompt, guide.as_ref()) }).collect();
    let events = model.submit(PROMPT, jobs, requester)?;
    respond(&request, choices, Pieces::new(writer, events, assembler), reserved).await
}

/// Runs a request for a number of a model whose engine answers chats only.
pub(super) async fn answer_chat<A: AnswerWriter>(
    model: &ServedModel,
    requester: Requester,
    sampled: SampledNumber,
    memory: RequestMemory,
    writer: A,
) -> Result<Response, AppError> {
    let SampledNumber { request, chat, max_tokens, .. } = sampled;
    let prompt = Prompt::from(Vec::new());
    let prompts = std::slice::from_ref(&prompt);
    let size = request.response_size(prompts, &[None], writer.context().number_bytes());
    let reserved = memory.into_response(size)?;
    let assembler = Assembler::new(&request, 0, Vec::new());
    let job = request.job(prompt, None);
    let Request::Number(number) = job.request else { return Err(AppError::Internal) };
    let NumberMethod::Sample { sampling, .. } = number.method else { return Err(AppError::Internal) };
    let job = ChatJob {
        chat: Arc::new(chat),
        max_tokens,
        seed: sampling.seed,
        wanted: ChatWanted::Number(Box::new(number)),
        deadline: None,
        client: requester.client.id,
    };
    let events = model.submit_chats("messages", vec![job], requester)?;
    respond(&request, choices(1, 1), Pieces::new(writer, events, assembler), reserved).await
}

/// Writes the response as its pieces arrive, or as a whole.
async fn respond<A: AnswerWriter>(
    request: &GenerationRequest,
    mut choices: Vec<Piece>,
    mut pieces: Pieces<A>,
    reserved: ReservedResponse,
) -> Result<Response, AppError> {
    if request.is_streamed {
        return stream::respond(pieces, request.include_usage, reserved).await;
    }
    while let Some(piece) = pieces.next().await? {
        choices[piece.index as usize].append(piece);
    }
    let Pieces { writer, assembler, .. } = pieces;
    let counts = assembler.token_counts();
    json_body::build(reserved.client(), choices.iter().map(Piece::bytes).sum(), move || {
        let whole = writer.whole(&choices, counts);
        let items = choices.into_iter().flat_map(|choice| writer.items(choice));
        Ok(JsonBody::with_items(&whole, A::ITEMS, items)?.into_response(reserved))
    })
    .await
}
