//! The completions API: `POST /v1/completions`.

use std::collections::BTreeMap;

use ntl_api::{
    Choice, CompletionRequest, CompletionResponse, Logprobs, Prompt, PromptLogprob, PromptLogprobs,
};
use ntl_core::engine::{NumberOutcome, TokenText};
use ntl_core::text::TextDecoder;

use super::number::NumberFormat;
use super::tokens::{finite_logprob, number_of};
use super::{AnswerAdapter, AnswerContext, fields, finish_reason, usage};
use crate::answer::{Piece, PromptReport, TokenCounts, TokenReport};
use crate::engine::ServedModel;
use crate::error::AppError;
use crate::request::{GenerationRequest, ModelProfile, PromptInput};

/// Validates a request. The second value says how to show the number, where the request asks for one.
pub(crate) fn generation_request(
    mut request: CompletionRequest,
    profile: &ModelProfile,
) -> Result<(GenerationRequest, Option<NumberFormat>), AppError> {
    let prompts = match request.prompt.take() {
        None => None,
        Some(Prompt::Text(text)) => Some(vec![PromptInput::Text(text)]),
        Some(Prompt::Ids(ids)) => Some(vec![PromptInput::Ids(ids)]),
        Some(Prompt::Texts(texts)) => Some(texts.into_iter().map(PromptInput::Text).collect()),
        Some(Prompt::IdLists(lists)) => Some(lists.into_iter().map(PromptInput::Ids).collect()),
    };
    fields::check_completion(&request.others)?;
    fields::generation_request(prompts, request, profile)
}

/// Writes answers as completions.
pub(crate) struct CompletionAnswers(AnswerContext);

impl CompletionAnswers {
    pub(crate) fn new(
        model: &ServedModel,
        request: &GenerationRequest,
        number: Option<NumberFormat>,
    ) -> Self {
        Self(AnswerContext::new("cmpl", model, request.decoding.report(), number))
    }

    fn body(&self, choices: Vec<Choice>, counts: Option<TokenCounts>) -> CompletionResponse {
        CompletionResponse {
            id: self.0.id.clone(),
            object: "text_completion".to_owned(),
            created: self.0.created,
            model: self.0.model.clone(),
            choices,
            usage: counts.map(usage),
        }
    }

    /// A whole choice has the lists that were asked for, even if they are empty; a piece only where it adds to them.
    fn choice(&self, mut piece: Piece, is_whole: bool) -> Choice {
        let report = self.0.report;
        let (text, number) = self.0.text_and_number(&mut piece);
        let echoed = piece.prompt.as_ref().filter(|_| report.echo);
        let has_tokens = is_whole || !piece.tokens.is_empty();
        let logprobs = report.logprobs.filter(|_| has_tokens || echoed.is_some());
        let prompt = piece.prompt.as_ref();
        Choice {
            index: piece.index,
            text: echoed.map(|prompt| prompt.text.as_str()).unwrap_or("").to_owned() + &text,
            logprobs: logprobs.map(|count| self.logprobs(count, echoed, &piece.tokens)),
            finish_reason: piece.finish_reason.map(finish_reason),
            cumulative_logprob: piece.cumulative_logprob.map(finite_logprob),
            number,
            token_ids: (report.token_ids && has_tokens)
                .then(|| piece.tokens.iter().map(|token| token.token.token.id).collect()),
            prompt_token_ids: prompt.filter(|_| report.token_ids).map(|prompt| prompt.ids.clone()),
            prompt_logprobs: prompt
                .zip(report.prompt_logprobs)
                .map(|(prompt, count)| self.prompt_logprobs(count, prompt)),
        }
    }

    /// The parallel arrays of an echoed prompt and the tokens behind it, with `count` alternatives to each token. The
    /// first token of a prompt has no log-probability, since nothing comes before it.
    fn logprobs(&self, count: usize, echoed: Option<&PromptReport>, tokens: &[TokenReport]) -> Logprobs {
        let mut arrays = Logprobs::default();
        let (mut top, mut values, mut masses) = (Vec::new(), Vec::new(), Vec::new());
        let mut push = |id: u32, offset: u64, position: Option<&TokenText>| {
            let number = position.and_then(number_of);
            arrays.tokens.push(self.0.tokenizer.token_text(id));
            arrays.token_logprobs.push(position.map(|token| finite_logprob(token.token.logprob)));
            arrays.text_offset.push(offset);
            top.push(position.map(|token| self.top(count, token)));
            values.push(number.map(|number| number.value));
            masses.push(number.map(|number| number.mass));
        };
        if let Some(PromptReport { ids, offsets, tokens, .. }) = echoed {
            let positions = std::iter::once(None).chain(tokens.iter().map(Some));
            for ((&id, &offset), position) in ids.iter().zip(offsets).zip(positions) {
                push(id, offset, position);
            }
        }
        for TokenReport { token, offset } in tokens {
            push(token.token.id, *offset, Some(token));
        }
        let with_numbers = self.0.report.number_tokens;
        Logprobs {
            top_logprobs: Some(top),
            number_values: with_numbers.then_some(values),
            number_mass: with_numbers.then_some(masses),
            ..arrays
        }
    }

    /// By text. Tokens that read alike share an entry: the chosen one's, else that of the most probable one.
    fn top(&self, count: usize, token: &TokenText) -> BTreeMap<String, f64> {
        let mut top = BTreeMap::new();
        for entry in std::iter::once(&token.token).chain(token.top.iter().take(count)) {
            top.entry(self.0.tokenizer.token_text(entry.id)).or_insert(finite_logprob(entry.logprob));
        }
        top
    }

    /// vLLM's form: by token id, the most probable tokens and the token itself.
    fn prompt_logprobs(&self, count: usize, prompt: &PromptReport) -> PromptLogprobs {
        let entry = |token: &TokenText| {
            let ranked = (1_u64..).zip(token.top.iter().take(count));
            let top = ranked.map(|(rank, entry)| (entry, Some(rank)));
            let mut by_id = BTreeMap::new();
            for (entry, rank) in top.chain([(&token.token, token.rank.map(|rank| rank as u64))]) {
                let decoded_token = self.0.tokenizer.token_text(entry.id);
                let logprob = finite_logprob(entry.logprob);
                by_id.entry(entry.id.to_string()).or_insert(PromptLogprob { logprob, rank, decoded_token });
            }
            by_id
        };
        let first = prompt.ids.first().map(|_| None);
        first.into_iter().chain(prompt.tokens.iter().map(|token| Some(entry(token)))).collect()
    }
}

impl AnswerAdapter for CompletionAnswers {
    type Whole = CompletionResponse;
    type Chunk = CompletionResponse;

    fn number_tokens(&self, outcome: &NumberOutcome) -> usize {
        self.0.number_tokens(outcome)
    }

    fn chunk(&mut self, piece: Piece) -> CompletionResponse {
        self.body(vec![self.choice(piece, false)], None)
    }

    fn usage_chunk(&self, counts: TokenCounts) -> CompletionResponse {
        self.body(Vec::new(), Some(counts))
    }

    fn whole(&self, choices: Vec<Piece>, counts: TokenCounts) -> CompletionResponse {
        self.body(choices.into_iter().map(|choice| self.choice(choice, true)).collect(), Some(counts))
    }
}
