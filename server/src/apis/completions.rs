//! The completions API: `POST /v1/completions`.

use std::collections::BTreeMap;

use ntl_api::{Choice, CompletionRequest, CompletionResponse, Logprobs, Prompts};
use ntl_core::contract::TokenText;

use super::number::NumberFormat;
use super::tokens::{finite_logprob, number_of};
use super::{AnswerContext, AnswerWriter, fields, finish_reason, stop_reason, usage};
use crate::answer::{Piece, PromptReport, TokenCounts, TokenReport};
use crate::error::AppError;
use crate::request::{GenerationRequest, ModelProfile, PromptInput, ReportOptions};
use crate::served::ServedModel;

/// Validates a request. The second value is the format of the number, if the request has one.
pub(crate) fn generation_request(
    mut request: CompletionRequest,
    profile: &ModelProfile,
) -> Result<(GenerationRequest, Option<NumberFormat>), AppError> {
    let prompts = request.prompt.take().map(prompt_inputs);
    fields::check_completion(&request.others)?;
    fields::generation_request(prompts, request, fields::FieldNames::COMPLETIONS, None, profile)
}

/// Returns each prompt of a request.
pub(super) fn prompt_inputs(prompts: Prompts) -> Vec<PromptInput> {
    match prompts {
        Prompts::Text(text) => vec![PromptInput::Text(text)],
        Prompts::Ids(ids) => vec![PromptInput::Ids(ids)],
        Prompts::Texts(texts) => texts.into_iter().map(PromptInput::Text).collect(),
        Prompts::IdLists(lists) => lists.into_iter().map(PromptInput::Ids).collect(),
    }
}

/// Writes answers as completions.
pub(crate) struct CompletionAnswers(AnswerContext);

impl CompletionAnswers {
    pub(crate) fn new(model: &ServedModel, report: ReportOptions, number: Option<NumberFormat>) -> Self {
        Self(AnswerContext::new("cmpl-", model, report, number))
    }

    fn body(&self, choices: Vec<Choice>, counts: Option<TokenCounts>) -> CompletionResponse {
        CompletionResponse {
            id: self.0.id.clone(),
            object: "text_completion".to_owned(),
            created: self.0.created,
            model: self.0.model.clone(),
            system_fingerprint: self.0.fingerprint.clone(),
            choices,
            usage: counts.map(usage),
        }
    }

    /// A whole choice has the requested lists even if they are empty. A piece has them only if it adds to
    /// them; the first one also has the list of numbers.
    fn part(&self, mut piece: Piece, is_whole: bool) -> Choice {
        let report = self.0.report;
        let echoed = if report.echo { piece.prompt.as_ref() } else { None };
        let has_tokens = is_whole || !piece.tokens.is_empty();
        let logprobs = if has_tokens || echoed.is_some() { report.logprobs } else { None };
        Choice {
            index: piece.index,
            text: echoed.map(|prompt| prompt.text.as_str()).unwrap_or("").to_owned() + &piece.text,
            logprobs: logprobs.map(|count| self.logprobs(count, echoed, &piece.tokens)),
            finish_reason: piece.finish_reason.map(|reason| finish_reason(reason, false)),
            stop_reason: piece.stop_reason.take().map(stop_reason),
            cumulative_logprob: piece.cumulative_logprob.map(finite_logprob),
            token_ids: if has_tokens { self.0.token_ids(&piece) } else { None },
            prompt_token_ids: self.0.prompt_token_ids(&piece),
            prompt_logprobs: self.0.prompt_logprobs(&piece),
            numbers: self.0.listed(piece.numbers, is_whole || piece.begins_choice),
            fields: self.0.listed(piece.fields, is_whole || piece.begins_choice),
            number: piece.number,
        }
    }

    /// The parallel arrays of an echoed prompt and the tokens after it, with `count` alternatives to each
    /// token. The first token of a prompt has no log-probability, since nothing comes before it.
    fn logprobs(&self, count: usize, echoed: Option<&PromptReport>, tokens: &[TokenReport]) -> Logprobs {
        let mut arrays = Logprobs::default();
        let mut top = Vec::new();
        let mut values = Vec::new();
        let mut masses = Vec::new();
        let mut positions = Vec::new();
        if let Some(PromptReport { ids, offsets, tokens, .. }) = echoed {
            let tokens = std::iter::once(None).chain(tokens.iter().map(Some));
            for ((&id, &offset), token) in ids.iter().zip(offsets).zip(tokens) {
                positions.push((id, offset, token));
            }
        }
        for TokenReport { token, offset } in tokens {
            positions.push((token.token.id, *offset, Some(token)));
        }
        for (id, offset, token) in positions {
            let number = token.and_then(number_of);
            arrays.tokens.push(self.0.token_name(id));
            arrays.token_logprobs.push(token.map(|token| finite_logprob(token.token.logprob)));
            arrays.text_offset.push(offset);
            top.push(token.map(|token| self.top(count, token)));
            values.push(number.map(|number| number.value));
            masses.push(number.map(|number| number.mass));
        }
        let with_numbers = self.0.report.number_tokens;
        Logprobs {
            top_logprobs: Some(top),
            number_values: with_numbers.then_some(values),
            number_mass: with_numbers.then_some(masses),
            ..arrays
        }
    }

    /// The most probable tokens by their text. Tokens with the same text share an entry, which is for the
    /// chosen token or otherwise the most probable one.
    fn top(&self, count: usize, token: &TokenText) -> BTreeMap<String, f64> {
        let mut top = BTreeMap::new();
        for entry in std::iter::once(&token.token).chain(token.top.iter().take(count)) {
            top.entry(self.0.token_name(entry.id)).or_insert(finite_logprob(entry.logprob));
        }
        top
    }
}

impl AnswerWriter for CompletionAnswers {
    type Whole = CompletionResponse;
    type Item = Choice;
    type Chunk = CompletionResponse;

    fn context(&self) -> &AnswerContext {
        &self.0
    }

    fn chunks(&self, piece: Piece) -> Vec<CompletionResponse> {
        vec![self.body(vec![self.part(piece, false)], None)]
    }

    fn last_chunks(&self, counts: TokenCounts, include_usage: bool) -> Vec<CompletionResponse> {
        include_usage.then(|| self.body(Vec::new(), Some(counts))).into_iter().collect()
    }

    fn whole(&self, _: &[Piece], counts: TokenCounts) -> CompletionResponse {
        self.body(Vec::new(), Some(counts))
    }

    fn items(&self, piece: Piece) -> Vec<Choice> {
        vec![self.part(piece, true)]
    }
}
