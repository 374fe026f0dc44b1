//! Scoring: what a given target costs, token by token. A job goes in, a [`ScoreOutcome`] comes out.

use std::sync::Arc;

use super::{TokenLogprob, TokenNumber};
use crate::Token;
use crate::losses::{NumberLoss, NumberTokens};

/// A target whose tokens are scored, all of them in as few steps as they fit in.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreJob {
    /// Its tokens, an end of sequence included where it is to be scored.
    pub target: Vec<Token>,
    /// The number tokens of the losses.
    pub number_tokens: Arc<NumberTokens>,
    /// Losses at the labels that are number tokens.
    pub losses: Vec<NumberLoss>,
}

/// One token of a scored target.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenScore {
    /// The token; its log-probability is what cross entropy counts.
    pub token: TokenLogprob,
    /// What its position says about numbers, where any number token is possible.
    pub number: Option<TokenNumber>,
    /// The losses of the job in their order; `None` where the token is no number.
    pub losses: Vec<Option<f64>>,
}

/// The result of a [`ScoreJob`].
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreOutcome {
    /// The tokens of the target.
    pub tokens: Vec<TokenScore>,
}
