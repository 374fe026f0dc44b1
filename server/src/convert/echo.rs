//! The prompt as an answer shows it: in front of the text, with its log-probabilities, or as token ids.

use std::collections::BTreeMap;
use std::sync::Arc;

use ntl_api::{Choice, Logprobs, PromptLogprob, PromptLogprobs};
use ntl_core::engine::TokenText;
use ntl_core::text::{TextDecoder, TextStream};

use super::choices::{TokenWriter, finite};
use super::text::Shown;

/// A prompt, as far as the answer shows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PromptShown {
    /// Its token ids.
    pub(crate) ids: Vec<u32>,
    /// Its text as it was sent, where it was sent as text.
    pub(crate) text: Option<String>,
    /// What the engine says of its tokens from the second one on.
    pub(super) tokens: Vec<TokenText>,
}

impl PromptShown {
    /// A prompt of which nothing is known yet but what was sent.
    pub(crate) fn new(ids: Vec<u32>, text: Option<String>) -> Self {
        Self { ids, text, tokens: Vec::new() }
    }

    /// What every choice of this prompt begins with; the text may be empty.
    pub(super) fn beginning(&self, shown: Shown, writer: &TokenWriter) -> Choice {
        let text = match (shown.echo, &self.text) {
            (false, _) => String::new(),
            (true, Some(text)) => text.clone(),
            (true, None) => writer.decoder.decode(&self.ids),
        };
        let logprobs = shown.logprobs.filter(|_| shown.echo).map(|count| self.logprobs(count, writer));
        Choice {
            text,
            logprobs,
            prompt_token_ids: shown.token_ids.then(|| self.ids.clone()),
            prompt_logprobs: shown.prompt_logprobs.map(|count| self.by_id(count, writer)),
            ..Choice::default()
        }
    }

    /// The prompt's own part of the arrays: its first token has no log-probability, since nothing comes before it.
    fn logprobs(&self, count: usize, writer: &TokenWriter) -> Logprobs {
        let offsets = offsets(&self.ids, &writer.decoder);
        let first = self.ids.first().map(|&id| writer.without_logprob(id));
        let others = self.tokens.iter().map(|token| writer.write(token, count));
        let mut all = writer.empty();
        for (mut one, offset) in first.into_iter().chain(others).zip(offsets) {
            one.text_offset = vec![offset];
            super::transcript::append_logprobs(&mut all, one);
        }
        all
    }

    /// vLLM's form: by id, the most probable ones and the token itself.
    fn by_id(&self, count: usize, writer: &TokenWriter) -> PromptLogprobs {
        let first = self.ids.first().map(|_| None);
        let entry = |token: &TokenText| {
            let ranked = (1u64..).zip(token.top.iter().take(count));
            let top = ranked.map(|(rank, top)| (top.id, (top.logprob, Some(rank))));
            let all = top.chain([(token.token.id, (token.token.logprob, None))]);
            let mut by_id = BTreeMap::new();
            for (id, (logprob, rank)) in all {
                let decoded_token = writer.decoder.token_text(id);
                let logprob = finite(logprob);
                by_id.entry(id.to_string()).or_insert(PromptLogprob { logprob, rank, decoded_token });
            }
            Some(by_id)
        };
        first.into_iter().chain(self.tokens.iter().map(entry)).collect()
    }
}

/// Where each token begins in the text, in characters.
fn offsets(ids: &[u32], decoder: &Arc<dyn TextDecoder>) -> Vec<u64> {
    let mut stream = TextStream::new(Arc::clone(decoder), Arc::from([]));
    let mut chars = 0;
    let offset = |&id: &u32| {
        let begins = chars;
        chars += stream.push(id).chars().count() as u64;
        begins
    };
    ids.iter().map(offset).collect()
}
