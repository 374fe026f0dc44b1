//! Text before a number. It is used only once it is complete, so that a failover never changes it.

use std::sync::Arc;

use futures::Stream;
use ntl_core::contract::EngineError;
use ntl_core::text::TextDecoder;
use serde_json::Value;
use tokio::time::Instant;

use super::row::{Row, with_prompt};
use super::{EngineKind, Upstream};
use crate::client::{BaseUrl, UpstreamError};
use crate::engine::{EngineUsage, QueryContext, TextDelta, TextEnd, TextQuery};
use crate::replicas::Purpose;
use crate::wire::written::{self, TextFields, Written};
use crate::wire::{WireError, sglang};

/// Maximum size of a token of text in a response, as JSON, with its id.
const TOKEN_BYTES_MAX: usize = 1 << 10;

/// Maximum size of the rest of a response.
const BODY_BYTES_MAX: usize = 1 << 20;

impl Upstream {
    /// Returns the text as one delta.
    pub(super) fn text(
        &self,
        context: QueryContext,
        query: TextQuery,
    ) -> impl Stream<Item = Result<TextDelta, EngineError>> + Send {
        futures::stream::once(async move {
            let writing = self.written(&context, &query);
            let written = match context.deadline {
                Some(deadline) => tokio::time::timeout_at(Instant::from_std(deadline), writing).await,
                None => Ok(writing.await),
            };
            let Ok(written) = written else {
                let message = "the engine did not write the text within the deadline";
                return Err(EngineError::UpstreamTimeout(message.to_owned()));
            };
            Ok(written?)
        })
    }

    async fn written(&self, context: &QueryContext, query: &TextQuery) -> Result<TextDelta, UpstreamError> {
        let kind = self.facts.kind;
        let model = &self.facts.model;
        // Before the body is made, so that no more bodies exist than requests are sent.
        let _permit = self.written_texts.acquire(context.client).await;
        let row = Row::new(Arc::clone(&query.prompt), query.path.clone());
        let (route, body) = match kind {
            EngineKind::LlamaCpp => ("/completion", written::llama_cpp_body(query)),
            EngineKind::Vllm | EngineKind::Ntl => {
                let extended = TextFields::Extended { cache_salt: context.cache_salt };
                ("/v1/completions", written::completion_body(model, query, extended))
            }
            EngineKind::Sglang => ("/generate", sglang::text_body(query, context.cache_salt)),
            EngineKind::OpenAi | EngineKind::OpenAiChat => {
                ("/v1/completions", written::completion_body(model, query, TextFields::OpenAi))
            }
        };
        let body = if self.facts.accepts_ids {
            with_prompt(&body, self.facts.prompt_field(), |json| row.write(json))
        } else {
            let text = Value::from(self.spelled(&row)?).to_string();
            with_prompt(&body, self.facts.prompt_field(), |json| json.extend_from_slice(text.as_bytes()))
        };
        let bytes_max = BODY_BYTES_MAX + query.max_tokens.saturating_mul(TOKEN_BYTES_MAX);
        // The deadline of the request ends it.
        let client = &self.client().without_timeout();
        let body = &body;
        let asked = EngineUsage {
            requests: 1,
            prompt_tokens: row.len() as u64,
            completion_tokens: query.max_tokens as u64,
            ..EngineUsage::default()
        };
        let charge = context.meter.charge(asked);
        let written = self.replicas.request(Purpose::Tree(context.affinity), |base: BaseUrl| async move {
            let bytes = client.post_bytes(&base, route, body.clone(), bytes_max).await?;
            let read = match kind {
                EngineKind::LlamaCpp => written::read_llama_cpp(&bytes),
                EngineKind::Sglang => sglang::read_text(&bytes),
                _ => written::read_completion(&bytes),
            };
            let read = read.map_err(|error| client.not_understood(&base, &error))?;
            let reported = read.usage;
            let written = Written { text: client.without_key(&read.text), ..read };
            let delta = self.delta(written, query).map_err(|error| client.not_understood(&base, &error))?;
            let completion_tokens = delta.ids.len() as u64;
            let usage = reported.unwrap_or(EngineUsage { completion_tokens, ..asked });
            Ok((delta, usage))
        });
        charge.settle(written.await)
    }

    /// The text of a row for an engine that accepts texts only.
    fn spelled(&self, row: &Row) -> Result<String, UpstreamError> {
        row.text(&self.tokenizer).ok_or_else(|| UpstreamError::Rejected {
            replica: self.replicas.pool.base(0).to_string(),
            message: "it accepts texts only, and no text has the token ids of this prompt".to_owned(),
            param: None,
        })
    }

    fn delta(&self, written: Written, query: &TextQuery) -> Result<TextDelta, WireError> {
        let Written { mut text, ids, end, .. } = written;
        let Some(ids) = ids else {
            let found = query.stop.as_ref().and_then(|stop| Some((text.find(stop)?, stop)));
            let mut whole = text.clone();
            if let Some((at, stop)) = found {
                text.truncate(at);
                whole = format!("{text}{stop}");
            }
            let Ok(ids) = self.tokenizer.encode(&whole, false) else {
                return Err(WireError::Text("its text cannot be tokenized"));
            };
            let end = found.map_or(end.unwrap_or(TextEnd::EndOfSequence), |_| TextEnd::StopString);
            return Ok(TextDelta { text, ids, end: Some(end) });
        };
        if ids.len() > query.max_tokens || ids.iter().any(|&id| id as usize >= self.tokenizer.len()) {
            return Err(WireError::Text("its text has wrong token ids"));
        }
        let end = match (end, &query.stop) {
            (Some(end), _) => end,
            (None, Some(stop)) if self.tokenizer.decode(&ids).contains(stop) => TextEnd::StopString,
            (None, _) => TextEnd::EndOfSequence,
        };
        Ok(TextDelta { text, ids, end: Some(end) })
    }
}
