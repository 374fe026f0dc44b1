//! `POST /tokenize` and `POST /detokenize`.

use axum::Json;
use axum::extract::{Extension, State};
use ntl_api::{DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse};
use ntl_core::engine::Prompt;
use ntl_core::text::TextDecoder;

use crate::error::AppError;
use crate::extract::ApiJson;
use crate::models::ServedModel;
use crate::routes::{DETOKENIZE, TOKENIZE};
use crate::state::AppState;
use crate::track::ModelLabel;

/// Text to tokens, with the value of each token that is a number.
#[utoipa::path(post, path = TOKENIZE, tag = "models", request_body = TokenizeRequest, responses(
    (status = 200, description = "The tokens", body = TokenizeResponse),
    AppError,
))]
pub(crate) async fn tokenize(
    State(app): State<AppState>,
    Extension(label): Extension<ModelLabel>,
    ApiJson(request): ApiJson<TokenizeRequest>,
) -> Result<Json<TokenizeResponse>, AppError> {
    let model = app.models.resolve(request.model.as_deref(), &label)?;
    let missing = || AppError::invalid("prompt", "`prompt` is missing");
    let text = request.prompt.or(request.content).ok_or_else(missing)?;
    let tokens = model.encode(text, request.add_special_tokens.unwrap_or(true)).await?;
    Ok(Json(describe(&model, tokens)))
}

/// Tokens to text.
#[utoipa::path(post, path = DETOKENIZE, tag = "models", request_body = DetokenizeRequest, responses(
    (status = 200, description = "The text", body = DetokenizeResponse),
    AppError,
))]
pub(crate) async fn detokenize(
    State(app): State<AppState>,
    Extension(label): Extension<ModelLabel>,
    ApiJson(request): ApiJson<DetokenizeRequest>,
) -> Result<Json<DetokenizeResponse>, AppError> {
    let model = app.models.resolve(request.model.as_deref(), &label)?;
    let tokens = model.rules(&app.settings).known("tokens", request.tokens)?;
    let text = model.decode(tokens).await?;
    Ok(Json(DetokenizeResponse { prompt: text.clone(), content: text }))
}

fn describe(model: &ServedModel, prompt: Prompt) -> TokenizeResponse {
    let (tokenizer, Prompt { ids: tokens, numbers, .. }) = (model.tokenizer(), prompt);
    let beside = numbers.into_iter().map(|number| number.to_string().parse().ok());
    let number_value = |(&id, beside): (&u32, Option<f64>)| match tokenizer.number_token() {
        Some(number_token) => beside.filter(|_| id == number_token),
        None => tokenizer.number_value(id),
    };
    TokenizeResponse {
        token_strs: tokens.iter().map(|&id| tokenizer.token_text(id)).collect(),
        number_values: tokens.iter().zip(beside.chain(std::iter::repeat(None))).map(number_value).collect(),
        count: tokens.len() as u64,
        max_model_len: model.info().prompt_tokens_max as u64,
        tokens,
    }
}
