//! `POST /rerank` and `POST /v1/rerank`: documents in the order of their relevance for a query, in the shapes
//! of Jina and vLLM.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::completions::Usage;
use crate::object::read_from_objects;
use crate::whole::whole;

/// A document with a field `text`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct RerankText {
    /// The text.
    pub text: String,
}

read_from_objects!(RerankText);

/// A document: a text, or an object with a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a string, or an object with the string `text`")]
pub enum RerankDocument {
    Text(String),
    Object(RerankText),
}

/// Body of a request for the relevance of documents. Null means the default in every field; unknown fields
/// are errors.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RerankRequest {
    /// Name of the model; may be omitted if only one model is served.
    pub model: Option<String>,
    /// The query.
    #[schema(value_type = String, required = true)]
    pub query: Option<String>,
    /// The documents, 1 to 1024.
    #[schema(value_type = Vec<RerankDocument>, required = true, min_items = 1, max_items = 1024)]
    pub documents: Option<Vec<RerankDocument>>,
    /// Maximum number of results. Default 0: all.
    #[serde(default, deserialize_with = "whole")]
    pub top_n: Option<u64>,
    /// Whether results repeat their documents. Default true.
    pub return_documents: Option<bool>,
    /// Maximum number of tokens of each document; the last ones are dropped. Default 0: no maximum.
    #[serde(default, deserialize_with = "whole")]
    pub max_tokens_per_doc: Option<u64>,
    /// Accepted, and changes nothing: all requests have the same priority.
    pub priority: Option<i64>,
    /// Name of the user; changes nothing.
    pub user: Option<String>,
}

/// The relevance of one document.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RerankResult {
    /// Index of the document in the request.
    pub index: u64,
    /// The document as it was sent, unless `return_documents` is false.
    pub document: Option<RerankText>,
    /// With a head, the value or the probability of its label, as `/classify` shows it. Otherwise the
    /// probability of yes against no.
    pub relevance_score: f64,
}

/// Response of `/rerank`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RerankResponse {
    /// Id of the response.
    pub id: String,
    /// The model.
    pub model: String,
    /// Token counts of the prompts, each with the query and a document.
    pub usage: Usage,
    /// The most relevant document first.
    pub results: Vec<RerankResult>,
}
