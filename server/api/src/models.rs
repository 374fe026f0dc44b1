//! `GET /v1/models`, `GET /v1/models/{id}`, `GET /health`, `GET /get_load` and `GET /version`.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

/// The header of responses that names the [fingerprint](Model::fingerprint) of the model that computed them.
pub const FINGERPRINT_HEADER: &str = "ntl-model-fingerprint";

/// The end at which a prompt that is too long loses tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TruncationSide {
    /// Drops the first tokens.
    #[default]
    Left,
    /// Drops the last tokens.
    Right,
}

/// The tokens whose probabilities an engine reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Alternatives {
    /// So many of the most probable tokens.
    Best(u64),
    /// `ids` or `all`.
    Any(String),
}

/// A served model.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Model {
    /// The name in requests.
    pub id: String,
    /// `model`.
    pub object: String,
    /// When the model was loaded, as Unix time in seconds.
    pub created: u64,
    /// `ntl-server`.
    pub owned_by: String,
    /// Kind of checkpoint: `t5`, `t5-rt`, `t5-xval`, `t5-regression-head`, `t5gemma`, `t5gemma2`,
    /// `regresslm`, `regresslm-head`, a decoder-only architecture such as `llama`, or a model with a head
    /// such as `llama-head`.
    pub kind: String,
    /// Whether an encoder processes the prompt and a decoder the answer. If not, both form one sequence.
    #[serde(default)]
    pub encoder_decoder: bool,
    /// How numbers are written: `text`, `digits`, `rt` or `xval`, or in dedicated tokens: `ieee`, `p10` or
    /// `normalized`.
    pub number_encoding: String,
    /// With dedicated tokens: number of numbers in an answer. The model writes nothing else.
    pub outputs: Option<u64>,
    /// With a head: the names of the labels whose values the model predicts. It writes no tokens.
    pub labels: Option<Vec<String>>,
    /// With a head: how the values of labels become probabilities: `identity`, `sigmoid` or `softmax`.
    pub activation: Option<String>,
    /// Maximum number of prompt tokens.
    pub context_length: u64,
    /// The same as `context_length`, under vLLM's name.
    pub max_model_len: u64,
    /// The end at which `truncate_prompt_tokens` drops tokens, unless a request states another one.
    #[serde(default)]
    pub truncation_side: TruncationSide,
    /// Element type of the weights in memory.
    pub dtype: String,
    /// Element type of keys and values in memory, if the backend reports it.
    pub kv_cache_dtype: Option<String>,
    /// Number of parameters; 0 if it is not known.
    pub parameters: u64,
    /// The backend of the model: `native`, `mistralrs`, or `remote` for another engine.
    pub backend: String,
    /// With `remote`: the engine, `vllm`, `llama-cpp`, `ntl`, `sglang`, `openai` or
    /// `openai-chat`.
    pub engine: Option<String>,
    /// With `remote`: the version of the engine, if it reports one.
    pub engine_version: Option<String>,
    /// With `remote`: the tokens whose probabilities the engine reports: `ids` (any given ones), `all`, or
    /// how many of the most probable ones it returned, or `none` if its answers are sampled.
    pub alternatives: Option<Alternatives>,
    /// Whether `/v1/chat/completions` works: the checkpoint has a chat template, or the engine answers chats.
    #[serde(default)]
    pub chat: bool,
    /// A hash of weights, configuration and tokenizer, which identifies a checkpoint. Calibration files
    /// contain it, and so do the header `ntl-model-fingerprint` and the field `system_fingerprint` of
    /// responses. With `remote`: the engine's fingerprint if it has one, otherwise `probe-` and what fixed
    /// prompts show about the weights.
    pub fingerprint: Option<String>,
    /// With `hf:`: the commit of the repository on the Hugging Face hub.
    pub revision: Option<String>,
    /// Prompts that show what the model can do, from `ntl.json` of the checkpoint; empty if it lists none.
    #[serde(default)]
    pub examples: Vec<String>,
    /// With an adapter: its directory.
    pub root: Option<String>,
    /// With an adapter: the name of the model without it.
    pub parent: Option<String>,
}

/// All served models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// The models.
    pub data: Vec<Model>,
    /// The same models, in the form of TypeSafe.
    #[serde(default)]
    pub models: Vec<NamedModel>,
}

/// A served model in the form of TypeSafe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamedModel {
    /// The name in requests.
    pub name: String,
    /// Kind, weights and backend of the model.
    pub description: String,
    /// The day when the model was loaded, such as `2026-11-27`.
    pub release_date: String,
}

/// The server is healthy. Any other state is an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
}

impl Health {
    pub fn ok() -> Self {
        Self { status: "ok".to_owned() }
    }
}

/// How busy the server is, over all models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Load {
    /// Number of texts and numbers that are being decoded.
    pub running: u64,
    /// Number of texts and numbers in the queues.
    pub waiting: u64,
    /// The sum of both.
    pub load: u64,
}

/// How busy the server is, in the form of vLLM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerLoad {
    /// Number of requests that the server is processing, except for health, load, metrics and documentation.
    pub server_load: u64,
}

/// Version and build of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// `ntl-server`.
    pub name: String,
    /// Semantic version.
    pub version: String,
    /// Source revision, or `unknown`.
    pub commit: String,
    /// Cargo features that were compiled in.
    pub features: Vec<String>,
    /// The device that runs the models, such as `cpu`.
    pub device: String,
}
