//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Path, State};
use ntl_api::{Alternatives, ErrorBody, Model, ModelList, NamedModel};
use ntl_remote::Reports;
use ntl_text::checkpoint::TruncationSide;

use super::resolve;
use crate::error::AppError;
use crate::paths::{MODEL, MODELS};
use crate::request::RequestRecord;
use crate::served::ServedModel;
use crate::state::AppState;

/// All models, in the order of the command line, then their adapters.
#[utoipa::path(get, path = MODELS, tag = "models", responses(
    (status = 200, description = "The models", body = ModelList),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 503, description = "Loading or draining", body = ErrorBody),
))]
pub(crate) async fn list(State(app): State<AppState>) -> Json<ModelList> {
    let data: Vec<Model> = app.models.all().iter().map(|model| describe(model)).collect();
    let models = data.iter().map(named).collect();
    Json(ModelList { object: "list".to_owned(), data, models })
}

/// One model.
#[utoipa::path(get, path = MODEL, tag = "models",
    params(("id" = String, Path, description = "Its name in requests")),
    responses(
        (status = 200, description = "The model", body = Model),
        (status = 401, description = "No valid API key", body = ErrorBody),
        (status = 404, description = "No model of this name", body = ErrorBody),
        (status = 503, description = "Loading or draining", body = ErrorBody),
))]
pub(crate) async fn one(
    State(app): State<AppState>,
    Extension(record): Extension<Arc<RequestRecord>>,
    Path(id): Path<String>,
) -> Result<Json<Model>, AppError> {
    let model = resolve(&app, Some(&id), &record)?;
    Ok(Json(describe(&model)))
}

/// The model in the form of TypeSafe.
fn named(model: &Model) -> NamedModel {
    let loaded = i64::try_from(model.created).ok().and_then(|at| jiff::Timestamp::from_second(at).ok());
    let date = loaded.map(|at| at.to_zoned(jiff::tz::TimeZone::UTC).date().to_string());
    NamedModel {
        name: model.id.clone(),
        description: format!("{}, {}, {}", model.kind, model.dtype, model.backend),
        release_date: date.unwrap_or_default(),
    }
}

fn describe(model: &ServedModel) -> Model {
    let info = model.info();
    let engine = model.remote_texts().map(|remote| remote.upstream.facts());
    Model {
        id: model.name.to_string(),
        object: "model".to_owned(),
        created: model.created,
        owned_by: "ntl-server".to_owned(),
        kind: info.kind.clone(),
        encoder_decoder: info.encoder_decoder,
        number_encoding: info.number_encoding.name().to_owned(),
        labels: info.labels.as_ref().map(|labels| labels.names.clone()),
        activation: info.labels.as_ref().map(|labels| labels.activation.name().to_owned()),
        outputs: model.profile.notation.as_ref().map(|notation| notation.outputs() as u64),
        context_length: info.prompt_tokens_max as u64,
        max_model_len: info.prompt_tokens_max as u64,
        truncation_side: match model.profile.truncation_side {
            TruncationSide::Left => ntl_api::TruncationSide::Left,
            TruncationSide::Right => ntl_api::TruncationSide::Right,
        },
        dtype: info.dtype.name().to_owned(),
        kv_cache_dtype: info.kv_cache_dtype.as_ref().map(|dtype| dtype.name().to_owned()),
        parameters: info.parameters,
        backend: info.backend.name().to_owned(),
        engine: engine.map(|facts| facts.kind.name().to_owned()),
        engine_version: engine.and_then(|facts| facts.version.clone()),
        alternatives: engine.map(|facts| match facts.reports {
            Reports::Best(count) => Alternatives::Best(count as u64),
            reports => Alternatives::Any(reports.to_string()),
        }),
        chat: model.tokenizer.chat_template().is_some() || model.profile.sampling.is_some(),
        fingerprint: model.fingerprint(),
        revision: match &model.lora {
            Some(lora) => lora.weights.folder.commit().map(str::to_owned),
            None => model.revision.clone(),
        },
        examples: model.examples.clone(),
        root: model.lora.as_ref().map(|lora| lora.weights.folder.path().display().to_string()),
        parent: model.lora.as_ref().map(|lora| lora.parent.to_string()),
    }
}
