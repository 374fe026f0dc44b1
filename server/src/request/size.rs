//! Estimates of the sizes of responses, in bytes, from validated requests and their tokens.
//!
//! They cover the JSON and the engine's results that it is made of, of which one is replaced by the other.

use ntl_core::Prompt;
use ntl_core::contract::Request;

use super::{GenerationRequest, ScoreTokens};
use crate::response_budget::ResponseSize;

/// The text of a token. It is usually shorter. The actual size replaces the estimate.
const TEXT_BYTES: usize = 8;

/// A token id.
const ID_BYTES: usize = 8;

/// A position with log-probabilities, without alternatives.
const POSITION_BYTES: usize = 128;

/// An alternative to a token: its id, its text, its rank and its log-probability.
const ALTERNATIVE_BYTES: usize = 72;

/// The rest of a choice or of an item.
const ITEM_BYTES: usize = 256;

/// A scored token: its id, its text, its log-probability and its number.
const SCORE_BYTES: usize = 128;

/// A number.
const NUMBER_BYTES: usize = 24;

fn positions(alternatives: Option<usize>) -> usize {
    alternatives.map_or(0, |count| POSITION_BYTES.saturating_add(count.saturating_mul(ALTERNATIVE_BYTES)))
}

impl GenerationRequest {
    /// Estimates the response to these prompts. `texts` are the texts that are echoed as they were sent.
    /// `number` is the size of the number of each prompt. A streamed response holds only what it reports
    /// about prompts.
    pub(crate) fn response_size(
        &self,
        prompts: &[Prompt],
        texts: &[Option<String>],
        number: usize,
    ) -> ResponseSize {
        let report = self.report;
        let id = if report.token_ids { ID_BYTES } else { 0 };
        let echoed = if report.echo { positions(report.logprobs) } else { 0 };
        let prompt_token = echoed.saturating_add(positions(report.prompt_logprobs)) + id;
        let mut reported = 0_usize;
        for (prompt, text) in prompts.iter().zip(texts) {
            reported = reported.saturating_add(prompt.len().saturating_mul(prompt_token));
            if report.echo {
                let bytes = text.as_ref().map_or(prompt.len() * TEXT_BYTES, String::len);
                reported = reported.saturating_add(bytes);
            }
        }
        let choices = self.choices_per_prompt();
        let numbers = match &self.decoding {
            // A number and what ends it have at least one token each.
            Request::Text(job) if job.fields.is_some() => number.saturating_mul(job.max_tokens.div_ceil(2)),
            _ => number,
        };
        let is_whole = !self.is_streamed;
        let causes = [
            ("prompt_logprobs", report.prompt_logprobs.is_some()),
            ("logprobs", report.logprobs.is_some() && (report.echo || is_whole)),
            ("echo", report.echo),
            ("max_tokens", is_whole && (number == 0 || numbers > number)),
            ("n", is_whole && choices > 1),
            ("number.support", is_whole && number > 0),
            ("number.quantiles", is_whole && number > 0),
            ("prompt", true),
        ];
        let fields = causes.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| field).collect();
        let bytes = if self.is_streamed {
            reported
        } else {
            let token = TEXT_BYTES + positions(report.logprobs) + id;
            let tokens = self.decoding.tokens_max();
            let choice = tokens.saturating_mul(token).saturating_add(numbers).saturating_add(ITEM_BYTES);
            let all = choice.saturating_mul(prompts.len()).saturating_add(reported);
            all.saturating_mul(choices as usize)
        };
        ResponseSize { bytes, fields }
    }
}

/// Estimates the response to scored items. `losses` is the number of losses that each token shows.
pub(crate) fn score_size(items: &[ScoreTokens], losses: usize) -> ResponseSize {
    let mut bytes = 0;
    for target in items.iter().flat_map(|item| &item.targets) {
        bytes += target.tokens.len() * (SCORE_BYTES + losses * NUMBER_BYTES) + ITEM_BYTES;
    }
    let fields = if losses > 0 { vec!["items", "losses", "reduction"] } else { vec!["items"] };
    ResponseSize { bytes, fields }
}

/// Estimates the response with the values of labels with these names for each of `inputs` inputs.
pub(crate) fn classify_size(field: &'static str, inputs: usize, names: &[String]) -> ResponseSize {
    let name = names.iter().map(String::len).max().unwrap_or(0);
    let bytes = inputs.saturating_mul(ITEM_BYTES + name + names.len() * NUMBER_BYTES);
    ResponseSize { bytes, fields: vec![field] }
}

/// Estimates the response with the score and the name of each label for each of `inputs` inputs.
pub(crate) fn predictions_size(field: &'static str, inputs: usize, names: &[String]) -> ResponseSize {
    let labels: usize = names.iter().map(|name| name.len() + 2 * NUMBER_BYTES).sum();
    ResponseSize { bytes: inputs.saturating_mul(labels), fields: vec![field] }
}

/// Estimates the response with a vector of this width for each of `inputs` inputs.
pub(crate) fn embeddings_size(inputs: usize, width: usize) -> ResponseSize {
    let bytes = inputs.saturating_mul(ITEM_BYTES + width * NUMBER_BYTES);
    ResponseSize { bytes, fields: vec!["input"] }
}

/// Estimates the response with the probabilities of labels after prompts.
pub(crate) fn labels_size(prompts: usize, labels: usize) -> ResponseSize {
    let bytes = prompts * (labels * NUMBER_BYTES + ITEM_BYTES);
    ResponseSize { bytes, fields: vec!["items", "label_token_ids"] }
}

/// Estimates the response with these tokens of a text.
pub(crate) fn tokenized_size(tokens: usize) -> ResponseSize {
    ResponseSize { bytes: tokens * (2 * ID_BYTES + TEXT_BYTES), fields: vec!["prompt"] }
}

/// Returns the size of the response with a text, which it has twice.
pub(crate) fn detokenized_size(text: &str) -> ResponseSize {
    ResponseSize { bytes: 2 * text.len(), fields: vec!["tokens"] }
}

/// Estimates a number with this many values and quantiles.
pub(crate) fn number_bytes(support: usize, quantiles: usize) -> usize {
    // A value has its text and its probability, a quantile its bounds.
    4 * ITEM_BYTES + support * 4 * NUMBER_BYTES + quantiles * 5 * NUMBER_BYTES
}
