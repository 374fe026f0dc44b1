//! State machines that turn logits into the next rows until a request is complete.
//!
//! A [`Decoding`] knows one request and no model. The engine requests rows from each decoding, steps the rows
//! of all decodings together and returns the logits to each decoding. So batching is decided in one place,
//! and decodings are tested without an engine.

mod beams;
mod candidates;
mod embedding;
mod labels;
mod number;
mod options;
mod reported;
mod score;
mod text;
mod token_guide;

#[cfg(test)]
mod anytime_tests;
#[cfg(test)]
mod beam_tests;
#[cfg(test)]
mod encoding_tests;
#[cfg(test)]
mod logits_request_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod reported_tests;
#[cfg(test)]
mod scale_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod token_number_tests;

use std::sync::Arc;

use crate::contract::{
    EngineError, Event, Logits, LogitsRow, NodeId, PathRow, Request, TextJob, TokenNumber,
};
use crate::guide::Guide;
use crate::numbers::{NumberGrammar, Softmax};
use crate::sampling::argmax;
use crate::text::TextDecoder;
use crate::token::Token;
use token_guide::TokenGuide;

pub use beams::BeamDecoding;
pub use number::{Rationale, average_rationales};
pub use text::{ReportedText, TextDecoding, TextNeed};

/// The logits of one decoding's rows within a step.
#[derive(Debug, Clone, Copy)]
pub struct StepResult<'a> {
    /// Logits of the whole step.
    pub logits: &'a Logits,
    /// Index of the decoding's first row in the step.
    pub first_row: usize,
    /// The node that the first row became; the others follow in order.
    pub first_node: NodeId,
}

/// The model's result for one row.
#[derive(Debug, Clone, Copy)]
pub struct RowResult<'a> {
    pub logits: LogitsRow<'a>,
    /// The node that the row became.
    pub node: NodeId,
    /// The prediction of the model's number head after the row, if it has one.
    pub head_value: Option<f32>,
}

impl<'a> StepResult<'a> {
    /// The results from the n-th row on.
    fn after_rows(self, n: usize) -> Self {
        let first_node = NodeId(self.first_node.0 + n as u32);
        Self { first_row: self.first_row + n, first_node, ..self }
    }

    /// The result of the n-th row of the decoding.
    pub fn row(&self, n: usize) -> RowResult<'a> {
        RowResult {
            logits: self.logits.get(self.first_row + n),
            node: NodeId(self.first_node.0 + n as u32),
            head_value: self.logits.head_value(self.first_row + n),
        }
    }
}

impl<'a> RowResult<'a> {
    /// The token that was chosen from it.
    fn token(self, id: u32) -> Token {
        Token { id, value: self.head_value }
    }

    fn softmax(self) -> Result<Softmax<'a>, EngineError> {
        Softmax::of(self.logits).ok_or_else(not_a_distribution)
    }

    /// The logits of a row with [`LogitsRequest::All`](crate::contract::LogitsRequest::All).
    fn full(self) -> Result<&'a [f32], EngineError> {
        match self.logits {
            LogitsRow::Full(logits) => Ok(logits),
            LogitsRow::Summary(_) | LogitsRow::Report(_) => {
                Err(EngineError::Step("the model left out logits of a full row".to_owned()))
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Running,
    /// All events are sent.
    Done,
}

/// The decoding of one request, from the first row to the last event.
pub trait Decoding: Send {
    /// Rows to compute next, the most useful first. At least one while running, at most `rows_max` (never 0).
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow>;

    /// Takes the logits of exactly the rows of the last [`Decoding::next_rows`]. An error when they have no
    /// softmax.
    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError>;

    /// Returns the memory on the host that the prefixes and numbers of a search use now, in bytes.
    fn search_bytes(&self) -> usize {
        0
    }
}

/// The facts about a model and its tokenizer that decodings use.
#[derive(Clone)]
pub struct Vocabulary {
    pub decoder: Arc<dyn TextDecoder>,
    pub grammar: Arc<NumberGrammar>,
    /// Ids that are numbers to a Number Token Loss, with their values.
    pub number_values: Arc<[(u32, f64)]>,
    /// Ids that end a sequence.
    pub eos_ids: Arc<[u32]>,
    /// Ids at and beyond this are padding and never produced.
    pub tokens: usize,
}

impl Vocabulary {
    /// The logits of the ids that are not padding.
    fn known<'a>(&self, logits: &'a [f32]) -> &'a [f32] {
        &logits[..self.tokens.min(logits.len())]
    }

    /// Returns the most probable id that is not padding, or 0 if no id has any probability. Ties go to the
    /// lowest id. Returns `None` if a report of another engine leaves it open.
    fn argmax(&self, row: LogitsRow<'_>) -> Option<u32> {
        match row {
            LogitsRow::Full(logits) => Some(argmax(self.known(logits)) as u32),
            LogitsRow::Summary(summary) => Some(summary.best_id),
            LogitsRow::Report(report) => report.best(),
        }
    }

    /// Like [`Vocabulary::argmax`], but returns an error if no id has any probability.
    fn best(&self, row: LogitsRow<'_>) -> Result<u32, EngineError> {
        let best = self.argmax(row).ok_or_else(not_a_distribution)?;
        let logit = match row {
            LogitsRow::Full(logits) => {
                check_row(logits)?;
                self.known(logits).get(best as usize).copied()
            }
            LogitsRow::Summary(summary) if summary.is_distribution() => summary.logit(best),
            LogitsRow::Summary(_) => None,
            LogitsRow::Report(report) => report.logprob(best).map(|logprob| logprob as f32),
        };
        let possible = logit.is_some_and(|logit| logit > f32::NEG_INFINITY);
        if possible { Ok(best) } else { Err(not_a_distribution()) }
    }

    /// Returns the number head's value with the probability of the number token or, without a head, the
    /// expectation over number tokens. Returns `None` if no number has any probability.
    fn number_at(&self, softmax: &Softmax<'_>, head: Option<f32>) -> Option<TokenNumber> {
        match (self.grammar.head_id(), head) {
            (Some(id), Some(value)) => {
                Some(TokenNumber { value: f64::from(value), mass: softmax.probability(id) })
            }
            _ => number::expectation(softmax, &self.number_values),
        }
    }

    /// Starts decoding a request whose first row holds `first_token`. `before` are the ids before the answer
    /// in the same sequence: the prompt of a decoder-only model, none for an encoder-decoder.
    pub fn decoding(&self, request: &Request, before: &[u32], first_token: u32) -> Box<dyn Decoding> {
        if self.grammar.is_point() && !matches!(request, Request::Embedding(_)) {
            return Box::new(labels::LabelDecoding::new(request.clone(), first_token));
        }
        match request {
            Request::Text(job) => match self.grammar.notation() {
                Some(notation) => {
                    let guide = Some(Arc::new(TokenGuide(Arc::clone(notation))) as Arc<dyn Guide>);
                    let job = TextJob { guide, ..job.clone() };
                    Box::new(TextDecoding::new(&job, self, before, first_token))
                }
                None => Box::new(TextDecoding::new(job, self, before, first_token)),
            },
            Request::Beams(job) => Box::new(BeamDecoding::new(job, self, before, first_token)),
            Request::Number(job) => number::decoding(job, self, before, first_token),
            Request::Score(job) => Box::new(score::ScoreDecoding::new(job, first_token)),
            Request::Candidates(job) => Box::new(candidates::CandidatesDecoding::new(job, first_token)),
            Request::Options(job) => Box::new(options::OptionsDecoding::new(job, first_token)),
            Request::Labels => Box::new(labels::LabelDecoding::new(request.clone(), first_token)),
            Request::Embedding(job) => Box::new(embedding::EmbeddingDecoding::new(*job, before, first_token)),
        }
    }
}

/// An error for a row without a softmax.
fn check_row(logits: &[f32]) -> Result<(), EngineError> {
    let has_best = logits.get(argmax(logits)).is_some_and(|best| best.is_finite());
    // The loop has no early exit, so that the compiler vectorises it.
    let has_nan = logits.iter().fold(false, |has, logit| has | logit.is_nan());
    if has_best && !has_nan { Ok(()) } else { Err(not_a_distribution()) }
}

/// Logits that are NaN or infinite come from broken weights.
fn not_a_distribution() -> EngineError {
    EngineError::Step("the model's logits are not finite".to_owned())
}

fn unreported(id: u32) -> EngineError {
    EngineError::Unsupported(format!(
        "the engine does not report the log-probability of token id {id}, only those of more probable tokens"
    ))
}
