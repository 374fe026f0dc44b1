//! `POST /classify` and `POST /pooling`: the values of labels, from models with a head.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use ntl_api::{ClassificationRequest, ClassificationResponse, PoolingResponse, Usage};
use ntl_core::contract::{Event, Job, Request};
use ntl_core::labels::Labels;
use serde::Serialize;

use super::body::ApiRequest;
use super::resolve;
use crate::apis::classify::{INPUT, classification, head_request, labels, pooled, shown};
use crate::error::AppError;
use crate::json_body::{self, JsonBody};
use crate::paths::{CLASSIFY, POOLING};
use crate::request::classify_size;
use crate::response_budget::ReservedResponse;
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
    let predicted = predict(&app, request).await?;
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
    let predicted = predict(&app, request).await?;
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

fn id(kind: &str) -> String {
    format!("{kind}-{}", uuid::Uuid::new_v4().simple())
}

/// The values of all labels of each input.
struct Predicted {
    model: Arc<ServedModel>,
    values: Vec<Vec<f32>>,
    use_activation: bool,
    usage: Usage,
    reserved: ReservedResponse,
}

async fn predict(
    app: &AppState,
    ApiRequest { body, requester, memory }: ApiRequest<ClassificationRequest>,
) -> Result<Predicted, AppError> {
    let model = resolve(app, body.model.as_deref(), &requester.record)?;
    let names = &labels(model.info())?.names;
    let request = head_request(body, &model.profile)?;
    let use_activation = request.use_activation;
    let prompts = model
        .with_tokenizer(requester.client.id, request.text_bytes(), move |tokenizer, profile| {
            request.into_prompts(tokenizer, profile)
        })
        .await?;
    let reserved = memory.into_response(classify_size(prompts.len(), names))?;
    let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
    let cache_salt = requester.client.cache_salt(None);
    let mut values = vec![Vec::new(); prompts.len()];
    let jobs =
        prompts.into_iter().map(|prompt| Job { cache_salt, ..Job::new(prompt, Request::Labels) }).collect();
    let mut events = model.submit(INPUT, jobs, requester)?;
    while let Some((index, event)) = events.next().await? {
        if let Event::Labels(predicted) = event {
            values[index] = predicted;
        }
    }
    let usage = Usage { prompt_tokens, total_tokens: prompt_tokens, ..Usage::default() };
    Ok(Predicted { model, values, use_activation, usage, reserved })
}

impl Predicted {
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
