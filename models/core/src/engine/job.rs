//! A request as the engine sees it: validated, tokenized, with everything decided.

use std::time::{Duration, Instant};

use super::{EngineError, Prompt, ScoreJob, ScoreOutcome};
use crate::numbers::{Distribution, Estimation, GrammarLimits, Interval, Objective};
use crate::sampling::Sampling;

/// One prompt and what to decode under it.
#[derive(Debug, Clone)]
pub struct Job {
    /// What it is about, as the model expects it.
    pub prompt: Prompt,
    /// What to decode.
    pub request: Request,
    /// When the answer is no longer wanted, and how long that was from the start.
    pub deadline: Option<(Instant, Duration)>,
}

/// What to decode.
#[derive(Debug, Clone)]
pub enum Request {
    /// Ordinary text.
    Text(TextJob),
    /// The most probable texts.
    Beams(BeamJob),
    /// The distribution of the number that the model would write.
    Number(NumberJob),
    /// What a given target costs.
    Score(ScoreJob),
}

impl Request {
    /// How many answers it asks for.
    pub fn sequences(&self) -> u32 {
        match self {
            Self::Text(job) => job.n,
            Self::Beams(job) => job.n,
            Self::Number(_) | Self::Score(_) => 1,
        }
    }
}

/// Ordinary text: greedy or sampled, one or several paths.
#[derive(Debug, Clone)]
pub struct TextJob {
    /// How many independent texts.
    pub n: u32,
    /// Most tokens of each text. 0 ends at once.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// A text ends before the first of these strings.
    pub stop: Vec<String>,
    /// Report each token's log-probability and this many of the most probable alternatives.
    pub logprobs: Option<usize>,
}

/// The most probable texts, found by a beam search.
#[derive(Debug, Clone, PartialEq)]
pub struct BeamJob {
    /// Texts that are followed at once, at least `n`.
    pub beams: usize,
    /// How many of the best are returned.
    pub n: u32,
    /// Most tokens of each text. 0 ends at once.
    pub max_tokens: usize,
    /// Texts are compared by log-probability divided by their number of tokens to this power.
    pub length_penalty: f64,
    /// When the search ends.
    pub early_stopping: EarlyStopping,
}

/// When a beam search with enough finished texts ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EarlyStopping {
    /// When no running text, ended at its present length, would be better.
    #[default]
    No,
    /// At once.
    Yes,
    /// When no running text can become better, whatever its length.
    Never,
}

/// What ends a number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Terminator {
    /// Any token that does not continue it.
    #[default]
    Any,
    /// Only the end of the sequence.
    Eos,
    /// The end of the sequence, or a token that starts with one of these.
    Texts(Vec<String>),
}

/// The distribution of the number that the model would write.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberJob {
    /// How it is found.
    pub method: NumberMethod,
    /// Which numbers are read.
    pub limits: GrammarLimits,
    /// What ends a number.
    pub terminator: Terminator,
    /// Values outside are dropped, their mass is invalid.
    pub range: Option<Interval>,
    /// Text that comes before the number.
    pub after: Option<After>,
}

/// How a number distribution is found.
#[derive(Debug, Clone, PartialEq)]
pub enum NumberMethod {
    /// Exact expansion of the tree of all texts that are numbers, the most probable prefix first.
    Tree {
        /// Stop when the open probability mass is at most this.
        tolerance: f64,
        /// Most decoder positions.
        nodes_max: usize,
        /// Stop earlier, once an estimate is known this well.
        precision: Option<Precision>,
    },
    /// Numbers drawn from the model as it is, at temperature 1.
    Sample {
        /// How many are drawn.
        samples: u32,
        /// Same seed, same draws.
        seed: u64,
    },
    /// The most probable complete numbers of a beam search.
    Beam {
        /// Prefixes that are followed, and numbers that are kept.
        beams: usize,
    },
    /// Expectation token by token along the greedy path: what NTL-MSE trains, and a diagnostic only.
    Token,
}

/// When an estimate is known well enough.
#[derive(Debug, Clone, PartialEq)]
pub struct Precision {
    /// Widest bounds that are narrow enough.
    pub width: f64,
    /// Bounds of which estimate.
    pub objective: Objective,
    /// How it is made.
    pub estimation: Estimation,
}

/// Text that a model writes before its number, such as a chain of thought.
#[derive(Debug, Clone, PartialEq)]
pub struct After {
    /// The number comes right behind this text, whatever white space stands between them.
    pub marker: String,
    /// How many texts are written; the distributions of their numbers are averaged.
    pub rationales: u32,
    /// How their tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens of each text, the marker included.
    pub max_tokens: usize,
}

/// The result of a [`NumberJob`].
#[derive(Debug, Clone, PartialEq)]
pub struct NumberOutcome {
    /// The numbers found, with their probabilities and the mass that is no number or was not looked at.
    pub distribution: Distribution,
    /// The value of [`NumberMethod::Token`], where the greedy path is a number.
    pub token_value: Option<f64>,
    /// Decoder positions that the result rests on, those of the text before the number included.
    pub nodes: usize,
    /// Steps of the engine that computed them (fewer rows fit a busy step, so this depends on load).
    pub forward_passes: usize,
    /// Whether `nodes_max` ended an expansion before `tolerance` did.
    pub truncated: bool,
    /// Texts that came to the marker of [`After`]; 1 where nothing comes before the number.
    pub reached: u32,
}

impl NumberOutcome {
    /// A distribution that `nodes` positions and `forward_passes` steps found, within every budget.
    pub fn new(distribution: Distribution, nodes: usize, forward_passes: usize) -> Self {
        Self { distribution, token_value: None, nodes, forward_passes, truncated: false, reached: 1 }
    }
}

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
        /// Which of the `n` texts.
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
