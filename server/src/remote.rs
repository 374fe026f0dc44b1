//! Loads a model that another engine computes: finds the engine, opens the tokenizer, and compares it with
//! the engine's.
//!
//! In: a [`RemoteModel`]. Out: a connected model. The tokenizer, the chat template and the number grammar are
//! ours, for a directory without weights.

use std::sync::Arc;
use std::time::Duration;

use ntl_core::contract::{Backend, Dtype, ModelInfo, NumberEncoding};
use ntl_core::decoding::Vocabulary;
use ntl_remote::{
    ClientError, Connecting, DetectError, EngineFacts, EngineKind, TokenizationError, Upstream,
    UpstreamConfig, UpstreamObserver, byte_tokenizer,
};
use ntl_text::checkpoint::{CheckpointFiles, LoadError, eos_ids};
use ntl_text::tokenizer::Tokenizer;

use crate::config::RemoteModel;
use crate::hub::{Contents, HubError};
use crate::request::AnswerSampling;

/// Maximum number of tokens of a model whose engine does not report its own limit.
const CONTEXT_TOKENS_UNKNOWN: usize = 1 << 20;

/// Time between two checks of an available replica.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Detect(#[from] DetectError),
    #[error(
        "{engine} does not report {missing}; give the folder of the model's tokenizer with --tokenizer {name}=DIR{hint}"
    )]
    NoTokenizer { name: String, engine: &'static str, missing: &'static str, hint: String },
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error("the tokenizer cannot be opened")]
    Tokenizer(#[from] LoadError),
    #[error(
        "the tokenizer writes numbers as `{0}`; only the native engine serves such models. Models with a number head, \
         xVal and the Regression Transformer have no distribution that another engine reports"
    )]
    NumberEncoding(&'static str),
    #[error(transparent)]
    Tokenization(#[from] TokenizationError),
}

/// A model whose engine answers.
pub(crate) struct ConnectedModel {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) info: ModelInfo,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) vocabulary: Vocabulary,
    /// Maximum number of concurrent texts.
    pub(crate) texts_max: usize,
    /// See [`RemoteModel::fields`].
    pub(crate) fields: Vec<String>,
    /// How answers are sampled, if the engine reports no probabilities.
    pub(crate) sampling: Option<AnswerSampling>,
}

/// Waits until an engine answers.
pub(crate) async fn connect(
    name: &str,
    model: &RemoteModel,
    observer: Arc<dyn UpstreamObserver>,
) -> Result<ConnectedModel, RemoteError> {
    let connecting = Connecting::new(UpstreamConfig {
        replicas: model.replicas.clone(),
        model: model.model.clone(),
        kind: model.kind,
        api_key: model.api_key.clone(),
        timeout: model.timeout,
        check_interval: CHECK_INTERVAL,
        ca_file: model.ca_file.clone(),
        requests_max: model.concurrency,
    })?;
    let facts = connecting.detect().await?;
    let EngineFacts { kind, reason, version, model: served, reports, .. } = &facts;
    tracing::info!(
        model = name,
        engine = kind.name(),
        reason,
        version,
        upstream_model = connecting.printable(served),
        alternatives = %reports,
        "engine found"
    );
    if facts.slots == Some(1) {
        tracing::info!(
            model = name,
            "this llama.cpp keeps the prompt of one slot: numbers are computed one by one; `--parallel N` makes it keep N"
        );
    }
    let sampling = facts.chat.map(|fields| AnswerSampling::new(fields.temperature));
    if let Some(sampling) = sampling {
        let temperature = sampling.temperature();
        tracing::info!(
            model = name,
            temperature,
            "numbers and decisions are read from sampled answers of chats"
        );
    }
    let files = match &model.tokenizer {
        _ if sampling.is_some() => byte_tokenizer(),
        Some(location) => CheckpointFiles::folder(&location.directory(Contents::Tokenizer).await?.path)?,
        None => return Err(no_tokenizer(name, &facts)),
    };
    let tokenizer = Arc::new(Tokenizer::open(&files)?);
    if tokenizer.number_encoding() != NumberEncoding::Text {
        return Err(RemoteError::NumberEncoding(tokenizer.number_encoding().name()));
    }
    let info = info(&facts, &tokenizer, eos_ids(&files)?);
    let vocabulary = ntl_text::vocabulary(&tokenizer, &info);
    let upstream = connecting.connect(facts, Arc::clone(&tokenizer), observer).await?;
    let (texts_max, fields) = (model.texts_max, model.fields.clone());
    Ok(ConnectedModel { upstream, info, tokenizer, vocabulary, texts_max, fields, sampling })
}

fn no_tokenizer(name: &str, facts: &EngineFacts) -> RemoteError {
    let missing = match facts.kind {
        EngineKind::LlamaCpp => "how its tokenizer splits texts",
        _ => "its vocabulary",
    };
    let hint = facts.root.as_ref().map_or(String::new(), |root| format!(" (the engine loaded `{root}`)"));
    RemoteError::NoTokenizer { name: name.to_owned(), engine: facts.kind.name(), missing, hint }
}

fn info(facts: &EngineFacts, tokenizer: &Tokenizer, eos_ids: Option<Vec<u32>>) -> ModelInfo {
    let max = facts.context_tokens_max.unwrap_or(CONTEXT_TOKENS_UNKNOWN);
    ModelInfo {
        kind: "remote".to_owned(),
        backend: Backend::Remote,
        dtype: Dtype::Other("unknown".to_owned()),
        kv_cache_dtype: None,
        number_encoding: tokenizer.number_encoding(),
        parameters: facts.parameters.unwrap_or(0),
        prompt_tokens_max: max,
        context_tokens_max: Some(max),
        answer_tokens_max: None,
        tokens: tokenizer.len(),
        eos_ids: eos_ids.unwrap_or_else(|| tokenizer.eos_id().into_iter().collect()),
        encoder_decoder: false,
        labels: None,
        hidden_states: None,
    }
}
