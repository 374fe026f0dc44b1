//! The next token's distribution as another engine reports it: log-probabilities of some ids.
//!
//! Invariants: ids are ascending and distinct, no log-probability is NaN or above 0, and the reported
//! probabilities do not exceed 1 by more than [`EXCESS_MAX`], or [`MERGED_EXCESS_MAX`] if they are merged.

use crate::token::TokenLogprob;

/// Engines round log-probabilities, so that their probabilities may add up to a little more than 1.
const EXCESS_MAX: f64 = 1e-3;

/// Several passes of an engine over the same tokens round differently, so that the probabilities of their
/// parts may add up to still more.
const MERGED_EXCESS_MAX: f64 = 0.2;

/// Log-probabilities above 0 by at most this are rounding.
const POSITIVE_MAX: f64 = 1e-4;

/// The log-probabilities of some ids over the whole vocabulary. All other probability is unreported.
#[derive(Debug, Clone, PartialEq)]
pub struct NextTokenReport {
    tokens: Vec<TokenLogprob>,
    /// The sum of the reported probabilities.
    sum: f64,
    cut: Option<f64>,
    /// The part of the rest that may belong to reported ids.
    uncertain: f64,
}

/// A response of an engine that is not a distribution.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReportError {
    #[error("token id {0} is reported twice with different log-probabilities")]
    Ambiguous(u32),
    #[error("the log-probability {logprob} of token id {id} is not a number of at most 0")]
    NotALogprob { id: u32, logprob: f64 },
    #[error("the reported probabilities add up to {0}")]
    MoreThanOne(f64),
    #[error("the bound {0} of the other log-probabilities is not a number")]
    Cut(f64),
}

impl NextTokenReport {
    /// * `tokens`: reported log-probabilities (natural logarithm), in any order. Minus infinity is a
    ///   probability of 0. An id may be repeated with the same log-probability.
    /// * `cut`: an upper bound of the log-probability of every unreported id, if known. If the K best are
    ///   reported, it is the smallest of them. If the best id and given other ids are reported, it is the
    ///   log-probability of the best id.
    ///
    /// # Errors
    /// If this is not a part of a distribution.
    pub fn new(
        tokens: impl IntoIterator<Item = TokenLogprob>,
        cut: Option<f64>,
    ) -> Result<Self, ReportError> {
        Self::within(tokens, cut, EXCESS_MAX)
    }

    /// Like [`new`](Self::new), of the reports of several passes over the same tokens. `uncertain`: the
    /// probability that the reported ids may have in addition.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn merged(
        tokens: impl IntoIterator<Item = TokenLogprob>,
        cut: Option<f64>,
        uncertain: f64,
    ) -> Result<Self, ReportError> {
        let report = Self::within(tokens, cut, MERGED_EXCESS_MAX)?;
        Ok(Self { uncertain: uncertain.clamp(0.0, 1.0), ..report })
    }

    fn within(
        tokens: impl IntoIterator<Item = TokenLogprob>,
        cut: Option<f64>,
        excess_max: f64,
    ) -> Result<Self, ReportError> {
        let mut tokens: Vec<TokenLogprob> = tokens.into_iter().collect();
        for token in &mut tokens {
            let TokenLogprob { id, logprob } = *token;
            if logprob.is_nan() || logprob > POSITIVE_MAX {
                return Err(ReportError::NotALogprob { id, logprob });
            }
            token.logprob = logprob.min(0.0);
        }
        tokens.sort_unstable_by_key(|token| token.id);
        for pair in tokens.windows(2) {
            if pair[0].id == pair[1].id && pair[0].logprob.total_cmp(&pair[1].logprob).is_ne() {
                return Err(ReportError::Ambiguous(pair[0].id));
            }
        }
        tokens.dedup_by_key(|token| token.id);
        let sum: f64 = tokens.iter().map(|token| token.logprob.exp()).sum();
        if sum > 1.0 + excess_max {
            return Err(ReportError::MoreThanOne(sum));
        }
        if let Some(cut) = cut.filter(|cut| cut.is_nan()) {
            return Err(ReportError::Cut(cut));
        }
        Ok(Self { tokens, sum, cut, uncertain: 0.0 })
    }

    /// The reported ids, ascending.
    pub fn tokens(&self) -> &[TokenLogprob] {
        &self.tokens
    }

    /// The sum of the reported probabilities: about 1 if all are reported.
    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }

    /// The most probable id of the vocabulary, unless an unreported id may be more probable. Ties go to the
    /// lowest id.
    pub fn best(&self) -> Option<u32> {
        let mut best = *self.tokens.first()?;
        for token in &self.tokens {
            if token.logprob > best.logprob {
                best = *token;
            }
        }
        let unreported_max = (1.0 - self.sum).min(self.cut.map_or(1.0, f64::exp));
        (best.logprob > f64::NEG_INFINITY && best.logprob.exp() >= unreported_max).then_some(best.id)
    }

    /// An upper bound of the log-probability of every unreported id, if known.
    pub(crate) fn cut(&self) -> Option<f64> {
        self.cut
    }

    /// The probability that the reported ids may have in addition.
    pub fn uncertain(&self) -> f64 {
        self.uncertain
    }

    /// The log-probability of an id, if it is reported.
    pub fn logprob(&self, id: u32) -> Option<f64> {
        let place = self.tokens.binary_search_by_key(&id, |token| token.id).ok()?;
        self.tokens.get(place).map(|token| token.logprob)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, probability: f64) -> TokenLogprob {
        TokenLogprob { id, logprob: probability.ln() }
    }

    #[test]
    fn reported_ids_are_sorted_and_repeated_ones_count_once() {
        let tokens = [token(7, 0.25), token(2, 0.5), token(7, 0.25), token(3, 0.0)];
        let report = NextTokenReport::new(tokens, Some(-3.0)).unwrap();
        assert_eq!(report.tokens().iter().map(|token| token.id).collect::<Vec<_>>(), [2, 3, 7]);
        assert_eq!(report.logprob(7), Some(0.25_f64.ln()));
        assert_eq!((report.logprob(3), report.logprob(4)), (Some(f64::NEG_INFINITY), None));
        assert!((report.sum() - 0.75).abs() < 1e-12);
    }

    #[test]
    fn the_best_id_is_known_if_no_unreported_id_can_be_more_probable() {
        let best = |tokens: &[(u32, f64)], cut: Option<f64>| {
            let tokens = tokens.iter().map(|&(id, probability)| token(id, probability));
            NextTokenReport::new(tokens, cut.map(f64::ln)).unwrap().best()
        };
        assert_eq!(best(&[(5, 0.3), (4, 0.3), (1, 0.1)], Some(0.1)), Some(4));
        assert_eq!(best(&[(5, 0.3), (4, 0.2)], Some(0.4)), None);
        assert_eq!(best(&[(5, 0.3), (4, 0.2)], None), None, "half of the mass is unreported");
        assert_eq!(best(&[(5, 0.4), (4, 0.3)], None), Some(5));
        assert_eq!(best(&[], Some(0.1)), None);
        assert_eq!(best(&[(5, 0.0)], Some(0.0)), None);
    }

    #[test]
    fn responses_that_are_not_distributions_are_rejected() {
        let new = |tokens: &[TokenLogprob]| NextTokenReport::new(tokens.iter().copied(), None);
        assert_eq!(new(&[token(1, 0.5), token(1, 0.4)]), Err(ReportError::Ambiguous(1)));
        assert!(matches!(new(&[token(1, f64::NAN)]), Err(ReportError::NotALogprob { id: 1, .. })));
        assert!(matches!(new(&[token(1, 1.5)]), Err(ReportError::NotALogprob { id: 1, .. })));
        assert!(matches!(new(&[token(1, f64::INFINITY)]), Err(ReportError::NotALogprob { .. })));
        assert!(matches!(new(&[token(1, 0.6), token(2, 0.5)]), Err(ReportError::MoreThanOne(_))));
        assert!(matches!(NextTokenReport::new([], Some(f64::NAN)), Err(ReportError::Cut(_))));
        assert!(new(&[token(1, 0.6), token(2, 0.4005)]).is_ok(), "rounding");
        assert!(new(&[TokenLogprob { id: 1, logprob: 1e-5 }]).is_ok(), "rounding");
        let merged = |second| NextTokenReport::merged([token(1, 0.6), token(2, second)], None, 0.01);
        assert!(merged(0.45).is_ok() && matches!(merged(0.7), Err(ReportError::MoreThanOne(_))));
    }
}
