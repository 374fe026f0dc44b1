//! What to compute next: state machines that turn logits into rows until a request is answered.
//!
//! A [`Decoding`] knows one request and no model. The engine asks each for rows, steps them all together and
//! hands every decoding the logits of its own; so batching is decided in one place and decoding tested alone.

mod beams;
mod number;
mod point;
mod score;
mod text;

#[cfg(test)]
mod beam_tests;
#[cfg(test)]
mod encoding_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wanted_tests;

use std::sync::Arc;

use crate::engine::{Answer, EngineError, Event, Logits, NodeId, PathRow, Request, TokenNumber, Wanted};
use crate::numbers::{NumberGrammar, NumberRules, Softmax};
use crate::sampling::argmax;
use crate::text::TextDecoder;

pub use beams::BeamDecoding;
pub use text::TextDecoding;

/// The logits of one decoding's rows within a step.
#[derive(Debug, Clone, Copy)]
pub struct StepResult<'a> {
    /// Logits of the whole step.
    pub logits: &'a Logits,
    /// Which of its rows is the decoding's first.
    pub first_row: usize,
    /// The node that the first row became; the others follow in order.
    pub first_node: NodeId,
}

impl<'a> StepResult<'a> {
    /// What the model says at the n-th row that the decoding asked for.
    pub fn answer(&self, n: usize) -> Answer<'a> {
        self.logits.answer(self.first_row + n)
    }

    /// The node that this row became.
    pub fn node(&self, n: usize) -> NodeId {
        NodeId(self.first_node.0 + n as u32)
    }

    /// The probabilities behind it.
    fn softmax(&self, n: usize) -> Result<Softmax<'a>, EngineError> {
        Softmax::of(self.answer(n)).ok_or_else(not_a_distribution)
    }

    /// What the model's number head says at that row, where it has one.
    pub fn number(&self, n: usize) -> Option<f32> {
        self.logits.number(self.first_row + n)
    }
}

/// Whether a decoding wants more rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It does.
    Running,
    /// All its events are out.
    Done,
}

/// One request on its way from the first row to the last event.
pub trait Decoding: Send {
    /// Rows to compute next, each with what is to be known of it, the most useful first. At least one while running, at
    /// most `rows_max` (never 0).
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow>;

    /// Takes the logits of exactly the rows of the last [`Decoding::next_rows`] and says what came of them.
    ///
    /// # Errors
    /// When the logits are no distribution.
    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError>;
}

/// What decodings need to know about a model.
#[derive(Clone)]
pub struct Vocabulary {
    /// Turns ids into text.
    pub decoder: Arc<dyn TextDecoder>,
    /// Which ids spell numbers.
    pub grammar: Arc<NumberGrammar>,
    /// Ids that are numbers to a Number Token Loss, with their values.
    pub number_values: Arc<[(u32, f64)]>,
    /// Ids that end a sequence.
    pub eos_ids: Arc<[u32]>,
    /// Ids at and beyond this are padding and never produced.
    pub tokens: usize,
}

impl Vocabulary {
    /// The logits of the ids that may be produced.
    fn known<'a>(&self, logits: &'a [f32]) -> &'a [f32] {
        &logits[..self.tokens.min(logits.len())]
    }

    /// The most probable id that may be produced, of equals the lowest; 0 where none is possible.
    fn argmax(&self, answer: Answer<'_>) -> u32 {
        match answer {
            Answer::Whole(logits) => argmax(self.known(logits)) as u32,
            Answer::Reduced(reduced) => reduced.best.0,
        }
    }

    /// The same for a greedy text, which needs one that is possible.
    fn best(&self, answer: Answer<'_>) -> Result<u32, EngineError> {
        let best = self.argmax(answer);
        let logit = match answer {
            Answer::Whole(logits) => {
                check_row(logits)?;
                self.known(logits).get(best as usize).copied()
            }
            Answer::Reduced(reduced) => reduced.logit(best).filter(|_| reduced.is_distribution()),
        };
        let possible = logit.is_some_and(|logit| logit > f32::NEG_INFINITY);
        if possible { Ok(best) } else { Err(not_a_distribution()) }
    }

    /// What a search that reads a number by these rules wants to know of its rows. A reduced row says how much is padding
    /// from `tokens` on only.
    fn wanted(&self, rules: &NumberRules) -> Wanted {
        if self.grammar.tokens() == self.tokens {
            Wanted::Ids(Arc::clone(rules.read_ids()))
        } else {
            Wanted::All
        }
    }

    /// What one position says about numbers: the number head's value with the probability of the token that stands
    /// for it, else the expectation over number tokens. `None` where no number is possible.
    fn number_at(&self, softmax: &Softmax<'_>, head: Option<f32>) -> Option<TokenNumber> {
        match (self.grammar.head_id(), head) {
            (Some(id), Some(value)) => {
                Some(TokenNumber { value: f64::from(value), mass: softmax.probability(id) })
            }
            _ => number::expectation(softmax, &self.number_values),
        }
    }

    /// Starts decoding a request whose first row holds `first_token`. `before` is what stands in front of the answer in
    /// the same sequence: the prompt of a decoder-only model, nothing for an encoder-decoder.
    pub fn decoding(&self, request: &Request, before: &[u32], first_token: u32) -> Box<dyn Decoding> {
        if self.grammar.is_point() {
            return Box::new(point::PointDecoding::new(request.clone(), first_token));
        }
        match request {
            Request::Text(job) => Box::new(TextDecoding::new(job, self, before, first_token)),
            Request::Beams(job) => Box::new(BeamDecoding::new(job, self, before, first_token)),
            Request::Number(job) => number::decoding(job, self, before, first_token),
            Request::Score(job) => Box::new(score::ScoreDecoding::new(job, first_token)),
        }
    }
}

/// The logits of a row that wanted all of them.
fn whole(answer: Answer<'_>) -> Result<&[f32], EngineError> {
    match answer {
        Answer::Whole(logits) => Ok(logits),
        Answer::Reduced(_) => Err(EngineError::Step("the model kept logits that were asked for".to_owned())),
    }
}

/// Refuses a row from which no token can be chosen.
fn check_row(logits: &[f32]) -> Result<(), EngineError> {
    let has_best = logits.get(argmax(logits)).is_some_and(|best| best.is_finite());
    // All of them, without a way out: several are looked at at once.
    let has_nan = logits.iter().fold(false, |has, logit| has | logit.is_nan());
    if has_best && !has_nan { Ok(()) } else { Err(not_a_distribution()) }
}

/// Logits that are NaN or infinite come from broken weights; no answer can be read from them.
fn not_a_distribution() -> EngineError {
    EngineError::Step("the model's logits are not finite".to_owned())
}
