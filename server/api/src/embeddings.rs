//! `POST /v1/embeddings`: vectors of texts, in OpenAI's shape with fields of vLLM.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::completions::{Prompts, Usage};
use crate::models::TruncationSide;
use crate::whole::whole;

/// Body of a request for embeddings. Null means the default in every field; unknown fields are errors.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingRequest {
    /// Name of the model; may be omitted if only one model is served.
    pub model: Option<String>,
    /// The texts or token ids, 1 to 1024 of them.
    #[schema(value_type = Prompts, required = true)]
    pub input: Option<Prompts>,
    /// How vectors are written. Default `float`.
    pub encoding_format: Option<EncodingFormat>,
    /// Length of the vectors. Must be the model's width, so it changes nothing: vectors are not shortened.
    #[serde(default, deserialize_with = "whole")]
    pub dimensions: Option<u64>,
    /// The hidden states that become the vector. Default `mean` for models with an encoder, and `last` for
    /// others.
    pub pooling: Option<PoolingName>,
    /// Whether vectors are divided by their length. Default true.
    pub normalize: Option<bool>,
    /// Whether the tokenizer adds special tokens to texts. Default true.
    pub add_special_tokens: Option<bool>,
    /// Maximum number of tokens of each input; the others are dropped. -1 for as many as the model takes.
    #[serde(default, deserialize_with = "whole")]
    pub truncate_prompt_tokens: Option<i64>,
    /// Only with `truncate_prompt_tokens`: the end at which tokens are dropped. Default: the side of the
    /// model.
    pub truncation_side: Option<TruncationSide>,
    /// Name of the user; changes nothing.
    pub user: Option<String>,
}

/// The form of a vector in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    /// A list of numbers.
    Float,
    /// Base64 of little-endian 32-bit floats.
    Base64,
}

/// The hidden states of the last layer that become a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PoolingName {
    /// The mean over all tokens of the input.
    Mean,
    /// The hidden states of the last token.
    Last,
}

/// A vector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum EmbeddingVector {
    Float(Vec<f32>),
    Base64(String),
}

/// The vector of one input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Embedding {
    /// Index of the input in the request.
    pub index: u64,
    /// `embedding`.
    pub object: String,
    /// The vector.
    pub embedding: EmbeddingVector,
}

/// Body of a response of `/v1/embeddings`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EmbeddingResponse {
    /// Id of the response.
    pub id: String,
    /// `list`.
    pub object: String,
    /// When the response was made, as Unix time in seconds.
    pub created: u64,
    /// The model.
    pub model: String,
    /// The inputs in their order.
    pub data: Vec<Embedding>,
    /// Token counts of the inputs.
    pub usage: Usage,
}
