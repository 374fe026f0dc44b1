//! `GET /v1/models`, `GET /v1/models/{id}`, `GET /health`, `GET /get_load` and `GET /version`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A served model.
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
    /// Kind of checkpoint: `t5`, `t5-rt`, `t5-xval` or `t5-regression-head`.
    pub kind: String,
    /// How numbers are written: `text`, `digits`, `rt` or `xval`.
    pub number_encoding: String,
    /// Maximum number of prompt tokens.
    pub context_length: u64,
    /// The same under vLLM's name.
    pub max_model_len: u64,
    /// Element type of the weights in memory.
    pub dtype: String,
    /// Element type of keys and values in memory, where the backend says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_dtype: Option<String>,
    /// Number of parameters.
    pub parameters: u64,
    /// `native`.
    pub backend: String,
    /// Whether the checkpoint has a chat template, so that it answers `/v1/chat/completions`.
    #[serde(default)]
    pub chat: bool,
    /// A hash of weights, configuration and tokenizer, which names a checkpoint in calibration files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Prompts that show what the model can do, from `ntl.json` of the checkpoint; empty where it lists none.
    #[serde(default)]
    pub examples: Vec<String>,
}

/// All served models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// The models.
    pub data: Vec<Model>,
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
    /// Texts and numbers that are being decoded.
    pub running: u64,
    /// Texts and numbers in the queues.
    pub waiting: u64,
    /// The sum of both.
    pub load: u64,
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
    /// Where models run, such as `cpu`.
    pub device: String,
}
