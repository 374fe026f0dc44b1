//! What an engine sends back about a job: texts token by token, numbers, scores, or why there is no answer.

use super::{EngineError, NumberOutcome, ScoreOutcome};

/// A token with its log-probability (natural logarithm, over the whole vocabulary, before temperature).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// Token id.
    pub id: u32,
    /// Log-probability.
    pub logprob: f64,
}

/// A generated token, as reported when log-probabilities were asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenText {
    /// The token and its log-probability.
    pub token: TokenLogprob,
    /// The most probable tokens at this position, best first.
    pub top: Vec<TokenLogprob>,
    /// What its position says about numbers, where any number token is possible.
    pub number: Option<TokenNumber>,
}

/// Number tokens at one position, as a Number Token Loss sees them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenNumber {
    /// Sum over number tokens of renormalised probability times value.
    pub value: f64,
    /// Probability of all number tokens together.
    pub mass: f64,
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// End of sequence or a stop string.
    Stop,
    /// `max_tokens` was reached.
    Length,
}

/// What an engine sends back about one job. The last event is `Finished` of every text, `Number`, `Scored` or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The next tokens of the prompt, from its second one on, with their log-probabilities. Comes before all texts.
    Prompt(Vec<TokenText>),
    /// More of one text.
    Text {
        /// Which of the `n` texts.
        choice: u32,
        /// Text that can no longer change. Empty while a stop string or a character is incomplete.
        text: String,
        /// The token that was decoded, when log-probabilities were asked for.
        token: Option<TokenText>,
    },
    /// One text is complete.
    Finished {
        /// Which of the texts: the first `n` are shown.
        choice: u32,
        /// Why it ended.
        reason: FinishReason,
        /// Tokens decoded for it, an end of sequence included.
        tokens: usize,
        /// Log-probability of the whole text, where a beam search found it.
        cumulative_logprob: Option<f64>,
    },
    /// The number distribution.
    Number(NumberOutcome),
    /// The target's tokens, scored.
    Scored(ScoreOutcome),
    /// No answer.
    Failed(EngineError),
}
