//! `POST /classify`, `POST /pooling` and `POST /predict`: the values of labels, from models with a head.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use ntl_api::{
    ClassificationRequest, ClassificationResponse, PoolingResponse, PredictRequest, PredictResponse, Usage,
};
use ntl_core::contract::{Job, Request};
use ntl_core::labels::Labels;
use serde::Serialize;

use super::body::ApiRequest;
use super::resolve;
use crate::apis::classify::{
    HeadRequest, classification, head_request, labels, pooled, predict_request, predict_response, shown,
};
use crate::error::AppError;
use crate::json_body::{self, JsonBody};
use crate::paths::{CLASSIFY, POOLING, PREDICT};
use crate::request::{Requester, classify_size, predictions_size};
use crate::response_budget::{RequestMemory, ReservedResponse, ResponseSize};
use crate::served::ServedModel;
use crate::state::AppState;

/// Predicts the labels of texts or of a conversation, with a checkpoint that has a head.
#[utoipa::path(post, path = CLASSIFY, tag = "completions", request_body = ClassificationRequest, responses(
    (status = 200, description = "The labels and their probabilities", body = ClassificationResponse),
    AppError,
))]
pub(crate) async fn classify(
    State(app): State<AppState>,
    request: ApiRequest<ClassificationRequest>,
) -> Result<Response, AppError> {
    let predicted = predict_inputs(&app, request).await?;
    let whole = ClassificationResponse {
        id: id("classify"),
        object: "list".to_owned(),
        created: crate::unix_seconds(),
        model: predicted.model.name.to_string(),
        data: Vec::new(),
        usage: predicted.usage,
    };
    predicted.respond(whole, classification).await
}

/// Predicts the values of the labels of texts or of a conversation, with a checkpoint that has a head.
#[utoipa::path(post, path = POOLING, tag = "completions", request_body = ClassificationRequest, responses(
    (status = 200, description = "The values", body = PoolingResponse),
    AppError,
))]
pub(crate) async fn pool(
    State(app): State<AppState>,
    request: ApiRequest<ClassificationRequest>,
) -> Result<Response, AppError> {
    let predicted = predict_inputs(&app, request).await?;
    let whole = PoolingResponse {
        id: id("pool"),
        object: "list".to_owned(),
        created: crate::unix_seconds(),
        model: predicted.model.name.to_string(),
        data: Vec::new(),
        usage: predicted.usage,
    };
    predicted.respond(whole, |_, index, values| pooled(index, values)).await
}

/// Predicts the labels of a text, a pair of texts, or a list of these, in the shape of
/// text-embeddings-inference.
#[utoipa::path(post, path = PREDICT, tag = "completions", request_body = PredictRequest, responses(
    (status = 200, description = "The labels with their scores", body = PredictResponse),
    AppError,
))]
pub(crate) async fn predict_labels(
    State(app): State<AppState>,
    ApiRequest { body, requester, memory }: ApiRequest<PredictRequest>,
) -> Result<Response, AppError> {
    let model = resolve(&app, body.model.as_deref(), &requester.record)?;
    let names = &labels(model.info())?.names;
    let (request, is_one) = predict_request(body, &model.profile)?;
    let size = predictions_size(request.field(), request.len(), names);
    let predicted = predict(model, request, size, requester, memory).await?;
    predicted.respond_whole(move |_, labels, values, _| predict_response(labels, values, is_one)).await
}

fn id(kind: &str) -> String {
    format!("{kind}-{}", uuid::Uuid::new_v4().simple())
}

/// The values of all labels of each input.
pub(super) struct Predicted {
    model: Arc<ServedModel>,
    values: Vec<Vec<f32>>,
    use_activation: bool,
    usage: Usage,
    reserved: ReservedResponse,
}

async fn predict_inputs(
    app: &AppState,
    ApiRequest { body, requester, memory }: ApiRequest<ClassificationRequest>,
) -> Result<Predicted, AppError> {
    let model = resolve(app, body.model.as_deref(), &requester.record)?;
    let names = &labels(model.info())?.names;
    let request = head_request(body, &model.profile)?;
    let size = classify_size(request.field(), request.len(), names);
    predict(model, request, size, requester, memory).await
}

/// Predicts the labels of all inputs of a request with a response of this size.
pub(super) async fn predict(
    model: Arc<ServedModel>,
    request: HeadRequest,
    size: ResponseSize,
    requester: Requester,
    memory: RequestMemory,
) -> Result<Predicted, AppError> {
    let use_activation = request.use_activation;
    let field = request.field();
    let prompts = model
        .with_tokenizer(requester.client.id, request.text_bytes(), move |tokenizer, profile| {
            request.into_prompts(tokenizer, profile)
        })
        .await?;
    let reserved = memory.into_response(size)?;
    let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
    let cache_salt = requester.client.cache_salt(None);
    let jobs =
        prompts.into_iter().map(|prompt| Job { cache_salt, ..Job::new(prompt, Request::Labels) }).collect();
    let values = model.submit(field, jobs, requester)?.values().await?;
    let usage = Usage { prompt_tokens, total_tokens: prompt_tokens, ..Usage::default() };
    Ok(Predicted { model, values, use_activation, usage, reserved })
}

impl Predicted {
    /// Writes the response that `write` makes from the model's name and labels, the values of each input as
    /// responses show them, and the token counts.
    pub(super) async fn respond_whole<T: Serialize>(
        self,
        write: impl FnOnce(&str, &Labels, Vec<Vec<f64>>, Usage) -> T + Send + 'static,
    ) -> Result<Response, AppError> {
        let Self { model, values, use_activation, usage, reserved } = self;
        json_body::respond(reserved, move || {
            let labels = labels(model.info())?;
            let values = values.iter().map(|values| shown(labels, values, use_activation)).collect();
            JsonBody::of(&write(&model.name, labels, values, usage))
        })
        .await
    }

    /// Writes the response `whole` with an item for each input.
    async fn respond<T: Serialize>(
        self,
        whole: impl Serialize + Send + 'static,
        item: impl Fn(&Labels, usize, Vec<f64>) -> T + Send + 'static,
    ) -> Result<Response, AppError> {
        let Self { model, values, use_activation, reserved, .. } = self;
        let numbers = values.iter().map(Vec::len).sum::<usize>();
        json_body::build(reserved.client(), numbers * size_of::<f64>(), move || {
            let labels = labels(model.info())?;
            let items = values
                .iter()
                .enumerate()
                .map(|(index, values)| item(labels, index, shown(labels, values, use_activation)));
            Ok(JsonBody::with_items(&whole, "data", items)?.into_response(reserved))
        })
        .await
    }
}
