//! `POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::response::Response;
use ntl_api::{
    DetokenizeRequest, DetokenizeResponse, ErrorBody, TokenizeRequest, TokenizeResponse, TokenizerInfo,
    TokenizerInfoQuery,
};
use ntl_core::text::TextDecoder;
use ntl_core::{Prompt, Token};
use ntl_text::tokenizer::Tokenizer;

use super::body::ApiRequest;
use super::resolve;
use crate::apis::tokenize::TextToSplit;
use crate::error::AppError;
use crate::json_body::JsonBody;
use crate::paths::{DETOKENIZE, TOKENIZE, TOKENIZER_INFO};
use crate::request::{ModelProfile, RequestRecord, detokenized_size, tokenized_size};
use crate::state::AppState;

/// The text of a prompt or of a conversation to tokens, with the value of each token that is a number.
#[utoipa::path(post, path = TOKENIZE, tag = "models", request_body = TokenizeRequest, responses(
    (status = 200, description = "The tokens", body = TokenizeResponse),
    AppError,
))]
pub(crate) async fn tokenize(
    State(app): State<AppState>,
    ApiRequest { body, requester, memory }: ApiRequest<TokenizeRequest>,
) -> Result<Response, AppError> {
    let model = resolve(&app, body.model.as_deref(), &requester.record)?;
    let text = TextToSplit::new(body, &model.profile)?;
    let bytes = text.bytes();
    model
        .with_tokenizer(requester.client.id, bytes, move |tokenizer, profile| {
            let tokens = text.into_prompt(tokenizer, profile)?;
            let reserved = memory.into_response(tokenized_size(tokens.len()))?;
            Ok(JsonBody::of(&describe(tokenizer, profile, &tokens))?.into_response(reserved))
        })
        .await
}

/// Tokens to text.
#[utoipa::path(post, path = DETOKENIZE, tag = "models", request_body = DetokenizeRequest, responses(
    (status = 200, description = "The text", body = DetokenizeResponse),
    AppError,
))]
pub(crate) async fn detokenize(
    State(app): State<AppState>,
    ApiRequest { body, requester, memory }: ApiRequest<DetokenizeRequest>,
) -> Result<Response, AppError> {
    let model = resolve(&app, body.model.as_deref(), &requester.record)?;
    let tokens = model.profile.prompt_ids("tokens", body.tokens)?;
    let bytes = tokens.len();
    model
        .with_tokenizer(requester.client.id, bytes, move |tokenizer, _| {
            let text = tokenizer.decode(&tokens);
            let reserved = memory.into_response(detokenized_size(&text))?;
            let response = DetokenizeResponse { prompt: text.clone(), content: text };
            Ok(JsonBody::of(&response)?.into_response(reserved))
        })
        .await
}

/// The properties of a tokenizer that a client uses over HTTP.
#[utoipa::path(get, path = TOKENIZER_INFO, tag = "models", params(TokenizerInfoQuery), responses(
    (status = 200, description = "Special tokens, limits and the chat template", body = TokenizerInfo),
    (status = 400, description = "Several models are served, and none is named", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No model of this name", body = ErrorBody),
    (status = 503, description = "Loading or draining", body = ErrorBody),
))]
pub(crate) async fn info(
    State(app): State<AppState>,
    Extension(record): Extension<Arc<RequestRecord>>,
    query: Result<Query<TokenizerInfoQuery>, QueryRejection>,
) -> Result<Json<TokenizerInfo>, AppError> {
    let Query(query) = query.map_err(|error| AppError::invalid("model", error.body_text()))?;
    let model = resolve(&app, query.model.as_deref(), &record)?;
    model.profile.check_tokens()?;
    let tokenizer = &model.tokenizer;
    Ok(Json(TokenizerInfo {
        model: model.name.to_string(),
        number_encoding: model.info().number_encoding.name().to_owned(),
        bos_token: special_token(tokenizer, "bos_token"),
        eos_token: special_token(tokenizer, "eos_token"),
        pad_token: special_token(tokenizer, "pad_token"),
        unk_token: special_token(tokenizer, "unk_token"),
        model_max_length: model.info().prompt_tokens_max as u64,
        chat_template: tokenizer.chat_template().map(|template| template.source().to_owned()),
    }))
}

fn special_token(tokenizer: &Tokenizer, purpose: &str) -> Option<String> {
    tokenizer.special_token(purpose).map(str::to_owned)
}

fn number_value(tokenizer: &Tokenizer, token: &Token) -> Option<f64> {
    match token.value {
        // The shortest decimal number that reads back as the `f32`.
        Some(value) => value.to_string().parse().ok(),
        None => tokenizer.number_value(token.id),
    }
}

fn describe(tokenizer: &Tokenizer, profile: &ModelProfile, prompt: &Prompt) -> TokenizeResponse {
    let number_values = prompt.tokens.iter().map(|token| number_value(tokenizer, token)).collect();
    let tokens: Vec<u32> = prompt.ids().collect();
    TokenizeResponse {
        token_strs: tokens.iter().map(|&id| tokenizer.token_text(id)).collect(),
        number_values,
        count: tokens.len() as u64,
        max_model_len: profile.prompt_tokens_max as u64,
        tokens,
    }
}
