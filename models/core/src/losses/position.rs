//! One row of logits for losses: its softmax over the vocabulary, and its softmax over the number tokens
//! alone.
//!
//! Everything is computed in `f64`, unlike in [`crate::numbers::Softmax`]: a loss may be the logarithm of
//! nearly 1, or the square of a small difference.

use super::tokens::NumberTokens;
use crate::report::NextTokenReport;

/// The distribution of a model at one position.
#[derive(Debug, Clone)]
pub struct Position<'a> {
    source: Source<'a>,
    tokens: &'a NumberTokens,
    /// Softmax over the number tokens alone. Empty if none of them has any probability.
    shares: Vec<f64>,
    mass: f64,
}

#[derive(Debug, Clone, Copy)]
enum Source<'a> {
    Logits { logits: &'a [f32], normaliser: Normaliser },
    Report(&'a NextTokenReport),
}

/// The denominator of a softmax: `exp(max + log_sum)`.
#[derive(Debug, Clone, Copy)]
struct Normaliser {
    /// The largest logit.
    max: f64,
    /// `ln(sum(exp(logit - max)))`.
    log_sum: f64,
}

impl Normaliser {
    /// Returns `None` if the row has no softmax.
    fn of(logits: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let max = logits.clone().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.map(|logit| (logit - max).exp()).sum();
        (max.is_finite() && sum.is_finite()).then(|| Self { max, log_sum: sum.ln() })
    }
}

/// Returns the softmax over the logits of the number tokens alone, and their share of the `whole`.
fn numbers_alone(logits: impl Iterator<Item = f64> + Clone, whole: Normaliser) -> (Vec<f64>, f64) {
    let Some(own) = Normaliser::of(logits.clone()) else { return (Vec::new(), 0.0) };
    let shares = logits.map(|logit| (logit - own.max - own.log_sum).exp()).collect();
    (shares, (own.max - whole.max + own.log_sum - whole.log_sum).exp().min(1.0))
}

/// A label that is a digit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DigitScore {
    pub digit: f64,
    /// Sum over the digits of renormalised probability times value; `None` if no digit has any probability.
    pub expected: Option<f64>,
    /// Probability of all digits together.
    pub mass: f64,
}

impl<'a> Position<'a> {
    /// Reads a row of logits, one for each id of the output layer. Number tokens beyond it have no
    /// probability.
    ///
    /// Returns `None` if the row has no softmax, because it is empty, has a NaN or `+inf`, or has only
    /// `-inf`.
    pub fn new(logits: &'a [f32], tokens: &'a NumberTokens) -> Option<Self> {
        let whole = Normaliser::of(logits.iter().map(|&logit| f64::from(logit)))?;
        let numbers = tokens
            .all()
            .iter()
            .map(|token| logits.get(token.id as usize).map_or(f64::NEG_INFINITY, |&logit| f64::from(logit)));
        let (shares, mass) = numbers_alone(numbers, whole);
        Some(Self { source: Source::Logits { logits, normaliser: whole }, tokens, shares, mass })
    }

    /// Reads a report of another engine. Returns `None` if a number token is not reported.
    pub fn of_report(report: &'a NextTokenReport, tokens: &'a NumberTokens) -> Option<Self> {
        let logprobs: Option<Vec<f64>> = tokens.all().iter().map(|token| report.logprob(token.id)).collect();
        let (shares, mass) = numbers_alone(logprobs?.into_iter(), Normaliser { max: 0.0, log_sum: 0.0 });
        Some(Self { source: Source::Report(report), tokens, shares, mass })
    }

    /// Natural logarithm of the probability of an id over the whole vocabulary; `-inf` for ids beyond the
    /// row, and for ids that another engine does not report.
    pub fn log_probability(&self, id: u32) -> f64 {
        match self.source {
            Source::Logits { logits, normaliser } => {
                let logit = logits.get(id as usize).map_or(f64::NEG_INFINITY, |&logit| f64::from(logit));
                (logit - normaliser.max - normaliser.log_sum).min(0.0)
            }
            Source::Report(report) => report.logprob(id).unwrap_or(f64::NEG_INFINITY),
        }
    }

    /// Sum over the number tokens of renormalised probability times value, ntloss's `predict_numbers`. `None`
    /// if no number token has any probability (ntloss returns NaN).
    pub fn expectation(&self) -> Option<f64> {
        let terms = self.tokens.all().iter().zip(&self.shares).map(|(token, share)| token.value * share);
        (!self.shares.is_empty()).then(|| terms.sum())
    }

    /// Probability of all number tokens together over the whole vocabulary, `nt_mass` of ntloss.
    pub fn number_mass(&self) -> f64 {
        self.mass
    }

    /// Returns what the model expects in place of a label that is a digit.
    pub fn digit(&self, label: u32) -> Option<DigitScore> {
        let label = &self.tokens.all()[self.tokens.index(label)?];
        let (mut share, mut sum) = (0.0, 0.0);
        for (token, token_share) in self.tokens.all().iter().zip(&self.shares) {
            if token.is_digit {
                share += token_share;
                sum += token_share * token.value;
            }
        }
        let expected = (share > 0.0).then_some(sum / share);
        label.is_digit.then_some(DigitScore { digit: label.value, expected, mass: self.mass * share })
    }

    pub(super) fn tokens(&self) -> &'a NumberTokens {
        self.tokens
    }

    /// Returns the softmax over the number tokens alone, sorted by id, or `None` if none of them has any
    /// probability.
    pub(super) fn shares(&self) -> Option<&[f64]> {
        (!self.shares.is_empty()).then_some(&self.shares)
    }
}
