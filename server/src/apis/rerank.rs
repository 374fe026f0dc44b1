//! The relevance of documents for a query: `POST /rerank` and `POST /v1/rerank`.
//!
//! A head with a label for relevance reads the query and a document as a pair. Any other model answers for
//! each document whether it is relevant, as a question of [decisions](super::decisions::rerank).

use std::sync::Arc;

use ntl_api::{RerankDocument, RerankRequest, RerankResponse, RerankResult, RerankText, Usage};
use ntl_core::labels::Labels;
use ntl_core::text::TextDecoder;
use ntl_text::tokenizer::Tokenizer;

use super::classify::{HeadRequest, HeadText};
use crate::blocking::check_wanted;
use crate::error::{AppError, check, required};
use crate::request::ModelProfile;
use crate::response_budget::ResponseSize;

/// The field with the documents.
pub(crate) const DOCUMENTS: &str = "documents";

const DOCUMENTS_MAX: usize = 1024;

/// A result without its document, in bytes.
const RESULT_BYTES: usize = 128;

/// Names of the label that means relevant, if there are two.
const RELEVANT: [&str; 6] = ["relevant", "yes", "true", "positive", "1", "label_1"];

/// A validated request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reranking {
    pub(crate) query: String,
    pub(crate) documents: Vec<String>,
    /// Maximum number of tokens of a document.
    pub(crate) document_tokens_max: Option<usize>,
    results_max: usize,
    returns_documents: bool,
}

/// Validates a request.
pub(crate) fn reranking(request: RerankRequest) -> Result<Reranking, AppError> {
    let query = required("query", request.query)?;
    check("query", !query.is_empty(), "must not be empty")?;
    let given = required(DOCUMENTS, request.documents)?;
    let message = format!("must be a list of 1 to {DOCUMENTS_MAX} documents, not {}", given.len());
    check(DOCUMENTS, (1..=DOCUMENTS_MAX).contains(&given.len()), message)?;
    let mut documents = Vec::with_capacity(given.len());
    for (index, document) in given.into_iter().enumerate() {
        let (RerankDocument::Text(text) | RerankDocument::Object(RerankText { text })) = document;
        check(&format!("{DOCUMENTS}[{index}]"), !text.is_empty(), "must not be empty")?;
        documents.push(text);
    }
    Ok(Reranking {
        query,
        documents,
        document_tokens_max: limit("max_tokens_per_doc", request.max_tokens_per_doc)?,
        results_max: limit("top_n", request.top_n)?.unwrap_or(usize::MAX),
        returns_documents: request.return_documents.unwrap_or(true),
    })
}

/// Returns a maximum, which 0 turns off.
fn limit(field: &str, max: Option<u64>) -> Result<Option<usize>, AppError> {
    let max = max.unwrap_or(0);
    check(field, i64::try_from(max).is_ok(), format!("must be at most {}", i64::MAX))?;
    Ok(match usize::try_from(max) {
        Ok(0) => None,
        Ok(max) => Some(max),
        Err(_) => Some(usize::MAX),
    })
}

/// Returns the index of the label whose value is the relevance of a document.
pub(crate) fn relevance_label(labels: &Labels) -> Result<usize, AppError> {
    let names = &labels.names;
    if names.len() == 1 {
        return Ok(0);
    }
    match names.iter().position(|name| RELEVANT.contains(&name.to_lowercase().as_str())) {
        Some(index) if names.len() == 2 => Ok(index),
        _ => {
            let count = names.len();
            let message = format!(
                "has {count} labels; relevance is one label, or one named `relevant` or `yes` of two"
            );
            Err(AppError::field("model", message))
        }
    }
}

/// Shortens documents to at most `tokens_max` tokens.
pub(crate) fn shortened(
    mut documents: Vec<String>,
    tokens_max: usize,
    tokenizer: &Tokenizer,
    profile: &ModelProfile,
) -> Result<Vec<String>, AppError> {
    let count = documents.len();
    for (index, document) in documents.iter_mut().enumerate() {
        check_wanted()?;
        profile.check_bytes(document).map_err(|error| error.of_prompt(DOCUMENTS, index, count))?;
        let ids = tokenizer.encode(document, false).map_err(|error| {
            let param = format!("{DOCUMENTS}[{index}]");
            AppError::invalid(&param, format!("`{param}`: {error}"))
        })?;
        if ids.len() > tokens_max {
            *document = tokenizer.decode(&ids[..tokens_max]);
        }
    }
    Ok(documents)
}

impl Reranking {
    /// The request for a head that reads the query and a document as a pair.
    pub(crate) fn pairs(&self, documents: Vec<String>) -> HeadRequest {
        let query: Arc<str> = self.query.as_str().into();
        let mut pairs = Vec::with_capacity(documents.len());
        for document in documents {
            pairs.push(HeadText { first: Arc::clone(&query), second: Some(document) });
        }
        HeadRequest::texts(DOCUMENTS, pairs)
    }

    /// Estimates the response.
    pub(crate) fn response_size(&self) -> ResponseSize {
        let texts: usize = self.documents.iter().map(String::len).sum();
        ResponseSize { bytes: self.documents.len() * RESULT_BYTES + texts, fields: vec![DOCUMENTS] }
    }

    /// The response to these scores, one for each document. Equal ones keep the order of the request.
    pub(crate) fn response(self, model: String, scores: Vec<f64>, prompt_tokens: u64) -> RerankResponse {
        let mut results = Vec::with_capacity(scores.len());
        for ((index, text), relevance_score) in (0..).zip(self.documents).zip(scores) {
            let document = self.returns_documents.then_some(RerankText { text });
            results.push(RerankResult { index, document, relevance_score });
        }
        results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
        results.truncate(self.results_max);
        RerankResponse {
            id: format!("rerank-{}", uuid::Uuid::new_v4().simple()),
            model,
            usage: Usage { prompt_tokens, total_tokens: prompt_tokens, ..Usage::default() },
            results,
        }
    }
}

#[cfg(test)]
mod tests {
    use ntl_core::labels::LabelActivation;

    use super::*;

    #[test]
    fn relevance_is_the_only_label_or_the_one_of_two_with_such_a_name() {
        for (names, want) in [
            (&["score"][..], Some(0)),
            (&["LABEL_0", "LABEL_1"], Some(1)),
            (&["Yes", "No"], Some(0)),
            (&["entailment", "not_entailment"], None),
            (&["negative", "neutral", "positive"], None),
        ] {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            let labels = Labels { names, activation: LabelActivation::Softmax };
            assert_eq!(relevance_label(&labels).ok(), want, "{labels:?}");
        }
    }
}
