//! The events that an engine sends about a job.

use std::ops::Range;

use super::error::EngineError;
use super::options::OptionsOutcome;
use crate::guide::SchemaField;
use crate::losses::DigitScore;
use crate::numbers::{Distribution, SampledDistribution};
use crate::samples::NumberSamples;
use crate::token::TokenLogprob;

/// A token with log-probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenText {
    pub token: TokenLogprob,
    /// The most probable tokens at this position, best first, or the tokens of
    /// [`TextJob::logprob_ids`](super::TextJob::logprob_ids), in their order.
    pub top: Vec<TokenLogprob>,
    /// Its place in the order of `top`, from 1; `None` for beams, which know no other token.
    pub rank: Option<usize>,
    /// `None` if no number token has any probability.
    pub number: Option<TokenNumber>,
}

/// The number tokens at one position, as a Number Token Loss sees them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenNumber {
    /// Sum over number tokens of renormalised probability times value.
    pub value: f64,
    /// Probability of all number tokens together.
    pub mass: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// End of sequence or a stop string.
    Stop,
    /// `max_tokens` was reached.
    Length,
}

/// The stop string or the token id that ended a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// One of [`TextJob::stop`](super::TextJob::stop).
    Text(String),
    /// One of [`TextJob::stop_token_ids`](super::TextJob::stop_token_ids).
    Token(u32),
}

/// An event of one job. The last event is `Finished` of every text, `Number`, `Scored`, `Options`,
/// `Values` or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The next tokens of the prompt, from its second one on. Comes before all texts.
    Prompt(Vec<TokenText>),
    /// More of one text.
    Text {
        /// Which of the `n` texts.
        choice: u32,
        /// Text that can no longer change. Empty while a stop string or a character is incomplete.
        text: String,
        /// Tokens that were decoded since the last event of this text. 0 for the rest of a text, and in texts
        /// that are sent only once they are complete (`best_of`, beams).
        tokens: usize,
        /// The decoded token, when log-probabilities were requested.
        token: Option<TokenText>,
        /// Where the decoded token begins in the whole text, in characters, what is held back or cut by a
        /// stop string included.
        offset: usize,
    },
    /// One text is complete.
    Finished {
        /// Which of the texts: the first `n` are shown.
        choice: u32,
        reason: FinishReason,
        stop_reason: Option<StopReason>,
        /// Tokens decoded for it, an end of sequence included.
        tokens: usize,
        /// Log-probability of the whole text, if a beam search found it.
        cumulative_logprob: Option<f64>,
    },
    /// A field of a structured text, after all of its text.
    Field(FieldOutcome),
    Number(NumberOutcome),
    Scored(ScoreOutcome),
    Options(OptionsOutcome),
    /// The value of each label, without an activation, or the vector of the prompt. All are finite.
    Values(Vec<f32>),
    Failed(EngineError),
}

/// A field of a structured text. See [`TextJob::fields`](super::TextJob::fields).
#[derive(Debug, Clone, PartialEq)]
pub struct FieldOutcome {
    /// Which of the `n` texts.
    pub choice: u32,
    pub field: SchemaField,
    /// Its tokens among the tokens of the text.
    pub tokens: Range<usize>,
    /// The estimate in the text; `None` if there is no usable estimate, and the model has chosen the tokens.
    /// The estimate of listed values is the index of the most probable one.
    pub value: Option<f64>,
    /// The numbers of listed values are their indices.
    pub outcome: NumberOutcome,
}

/// The result of a [`NumberJob`](super::NumberJob).
#[derive(Debug, Clone, PartialEq)]
pub struct NumberOutcome {
    /// The numbers found, with their probabilities, and the invalid and open mass.
    pub distribution: Distribution,
    /// The distributions of the other numbers of the answer, if it consists of several. Each is marginal over
    /// the numbers before it.
    pub further: Vec<Distribution>,
    /// If the open mass was sampled: the distribution of each number of the answer with the draws.
    pub sampled: Vec<SampledDistribution>,
    /// The value of [`NumberMethod::Token`](super::NumberMethod::Token), if the greedy path is a number.
    pub token_value: Option<f64>,
    /// Number of decoder positions that the result uses, including draws and the text before the number.
    pub nodes: usize,
    /// Engine steps that computed them. Fewer rows fit into a busy step, so this depends on load.
    pub forward_passes: usize,
    /// Tokens of all texts before the number.
    pub text_tokens: usize,
    /// Whether `nodes_max` or `time_max` ended an expansion before `tolerance` did.
    pub truncated: bool,
    /// The part of the open mass that another engine does not report. No search can reduce it.
    pub unreported: f64,
    /// The most probable texts that are not admitted numbers, best first, if the job requests them.
    pub refused: Vec<RefusedText>,
    /// Number of texts that reached the marker of [`AfterMarker`](super::AfterMarker); 1 if no text comes
    /// before the number.
    pub reached: u32,
    /// Number of texts that ended without the marker. They do not count unless all texts ended without it.
    pub missed: u32,
    /// The reason why the first text, the one that is sent, ended without the marker; `None` if it reached
    /// the marker.
    pub first_text_end: Option<FinishReason>,
    /// The answers of another engine that the distribution was estimated from.
    pub answers: Option<Box<NumberSamples>>,
}

impl NumberOutcome {
    /// Returns an outcome for each number of the answer.
    pub fn each(&self) -> Vec<Self> {
        let mut each = Vec::with_capacity(1 + self.further.len());
        for (index, distribution) in std::iter::once(&self.distribution).chain(&self.further).enumerate() {
            each.push(Self {
                distribution: distribution.clone(),
                further: Vec::new(),
                sampled: self.sampled.get(index).cloned().into_iter().collect(),
                refused: self.refused.clone(),
                answers: self.answers.clone(),
                ..*self
            });
        }
        each
    }

    /// Returns the distribution for estimates of the first number: with the draws, if there are any.
    pub fn estimated(&self) -> &Distribution {
        self.sampled.first().map_or(&self.distribution, SampledDistribution::distribution)
    }

    /// All mass is invalid, because the text before cannot be followed by a number.
    pub fn not_a_number() -> Self {
        Self::new(Distribution::average(&[]), 0, 0)
    }

    /// A distribution that `nodes` positions and `forward_passes` steps found, within every budget.
    pub fn new(distribution: Distribution, nodes: usize, forward_passes: usize) -> Self {
        Self {
            distribution,
            further: Vec::new(),
            sampled: Vec::new(),
            token_value: None,
            nodes,
            forward_passes,
            text_tokens: 0,
            truncated: false,
            unreported: 0.0,
            refused: Vec::new(),
            reached: 1,
            missed: 0,
            first_text_end: None,
            answers: None,
        }
    }
}

/// A text that the model writes where a number is expected.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedText {
    /// The beginning that could still become a number, and the first token that no number continues with.
    pub text: String,
    pub probability: f64,
}

/// One token of a scored target.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenScore {
    /// Its log-probability is what cross entropy counts.
    pub token: TokenLogprob,
    /// `None` if no number token has any probability.
    pub number: Option<TokenNumber>,
    /// The losses of the job in their order; `None` if the token is not a number.
    pub losses: Vec<Option<f64>>,
    /// `None` if the token is not a digit, or if the job does not request it.
    pub digit: Option<DigitScore>,
}

/// The result of a [`ScoreJob`](super::ScoreJob) or a [`CandidatesJob`](super::CandidatesJob).
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreOutcome {
    /// The tokens of the target, or of all candidates in their order. Tokens of candidates have only a
    /// log-probability.
    pub tokens: Vec<TokenScore>,
}
