//! A request for the next-token probabilities of some rows, in the format of an engine.

use ntl_text::tokenizer::Tokenizer;
use serde_json::json;

use super::row::{Row, with_prompt, with_rows};
use super::{EngineFacts, EngineKind};
use crate::client::{BaseUrl, Client, UpstreamError};
use crate::engine::EngineUsage;
use crate::wire::texts::TokenTexts;
use crate::wire::{Batch, Rows, check, llama_cpp, openai, sglang, usage, vllm};

pub(super) struct RowRequest<'a> {
    kind: EngineKind,
    batch: Batch<'a>,
    route: &'static str,
    body: Vec<u8>,
    prompt_tokens: u64,
    /// Maximum size of the response.
    bytes_max: usize,
}

impl<'a> RowRequest<'a> {
    /// `slot`: for llama.cpp.
    pub(super) fn new(
        facts: &EngineFacts,
        tokenizer: &Tokenizer,
        batch: Batch<'a>,
        rows: &[Row],
        slot: Option<usize>,
    ) -> Self {
        let EngineFacts { kind, model, accepts_ids, .. } = facts;
        let (route, body, entry_bytes) = match kind {
            EngineKind::Vllm | EngineKind::Ntl => {
                ("/v1/completions", vllm::body(model, &batch), vllm::ENTRY_BYTES)
            }
            EngineKind::LlamaCpp => {
                let body = llama_cpp::body(&batch, facts.probabilities(), slot);
                ("/completion", body, llama_cpp::ENTRY_BYTES)
            }
            EngineKind::Sglang => ("/generate", sglang::body(&batch), sglang::ENTRY_BYTES),
            EngineKind::OpenAi | EngineKind::OpenAiChat => {
                ("/v1/completions", openai::body(model, &batch), openai::ENTRY_BYTES)
            }
        };
        let body = if *accepts_ids {
            with_rows(&body, facts.prompt_field(), rows)
        } else {
            let texts: Vec<_> = rows.iter().map(|row| row.text(tokenizer)).collect();
            with_prompt(&body, facts.prompt_field(), |json| {
                json.extend_from_slice(json!(texts).to_string().as_bytes())
            })
        };
        let prompt_tokens = rows.iter().map(|row| row.len() as u64).sum();
        let bytes_max = batch.bytes_max(entry_bytes);
        Self { kind: *kind, batch, route, body, prompt_tokens, bytes_max }
    }

    /// Sends it to a replica. `texts`: for engines that report texts.
    pub(super) async fn send(
        &self,
        client: &Client,
        base: &BaseUrl,
        texts: &TokenTexts,
    ) -> Result<(Rows, EngineUsage), UpstreamError> {
        let bytes = client.post_bytes(base, self.route, self.body.clone(), self.bytes_max).await?;
        let rows = match self.kind {
            EngineKind::Vllm | EngineKind::Ntl => vllm::read(&bytes, &self.batch),
            EngineKind::LlamaCpp => llama_cpp::read(&bytes, &self.batch),
            EngineKind::Sglang => sglang::read(&bytes, &self.batch),
            EngineKind::OpenAi | EngineKind::OpenAiChat => openai::read(&bytes, &self.batch, texts),
        };
        // A report that is not a distribution becomes an error here, so that another replica gets the
        // request.
        let rows = rows.and_then(|rows| check(&rows).map(|()| rows));
        let rows = rows.map_err(|error| client.not_understood(base, &error))?;
        Ok((rows, self.usage(&bytes)))
    }

    /// The tokens that the engine reports with a response. If it reports none, those that it had to compute.
    fn usage(&self, response: &[u8]) -> EngineUsage {
        let reported = match self.kind {
            EngineKind::LlamaCpp => usage::of_llama_cpp(response),
            EngineKind::Sglang => usage::of_sglang(response),
            _ => usage::of_openai(response),
        };
        reported.unwrap_or(self.computed())
    }

    /// The tokens that the engine has to compute.
    pub(super) fn computed(&self) -> EngineUsage {
        let steps = self.batch.rows * (1 + self.batch.ahead.tokens);
        let (prompt_tokens, completion_tokens) = (self.prompt_tokens, steps as u64);
        EngineUsage { requests: 1, prompt_tokens, completion_tokens, ..EngineUsage::default() }
    }
}
