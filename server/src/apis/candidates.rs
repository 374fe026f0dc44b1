//! The candidates of a score request: how probable each is, and losses over candidates that are numbers.

use std::collections::HashMap;

use ntl_api::{CandidateLosses, CandidateScore, CandidateScores, ScoreItem, TextOrIds};
use ntl_core::contract::{ScoreOutcome, TokenScore};
use ntl_core::losses::{dist2, log_softmax, raft};
use ntl_core::text::TextDecoder;

use super::number::plain;
use super::tokens::finite_logprob;
use crate::error::{AppError, check};
use crate::request::TargetTokens;

const CANDIDATES_MAX: usize = 1000;

/// How the candidates of one item are shown.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CandidatesFormat {
    /// The texts of the request; `None` for token ids.
    texts: Vec<Option<String>>,
    normalize_by_length: bool,
    grid: Option<Grid>,
}

/// Candidates that are numbers, and the true one.
#[derive(Debug, Clone, PartialEq)]
struct Grid {
    values: Vec<f64>,
    truth: f64,
    tau: f64,
}

/// The options of a request for all its candidates.
#[derive(Debug, Clone, Copy)]
pub(super) struct CandidateOptions {
    pub(super) normalize_by_length: bool,
    /// The width of DIST2's target distribution.
    pub(super) tau: f64,
    /// Whether different numbers are different tokens.
    pub(super) has_number_tokens: bool,
}

impl CandidatesFormat {
    /// Validates the candidates of the item at this index.
    pub(super) fn new(
        index: usize,
        candidates: &[TextOrIds],
        item: &ScoreItem,
        options: CandidateOptions,
    ) -> Result<Self, AppError> {
        let param = |field: &str| format!("items[{index}].{field}");
        check(&param("candidates"), item.target.is_none(), "is not allowed with `target`")?;
        let count = candidates.len();
        let message = format!("must be a list of 1 to {CANDIDATES_MAX} texts or lists of ids, not {count}");
        check(&param("candidates"), (1..=CANDIDATES_MAX).contains(&count), message)?;
        let mut texts = Vec::with_capacity(count);
        for candidate in candidates {
            texts.push(match candidate {
                TextOrIds::Text(text) => Some(text.clone()),
                TextOrIds::Ids(_) => None,
            });
        }
        let grid = item.value.map(|truth| {
            let message = "must be a finite number";
            check(&param("value"), truth.is_finite(), message)?;
            let message = "needs a model that writes numbers as text; `number_encoding` of this one is xval, so that candidates \
                           do not differ in probability, or one of dedicated tokens, which `number` reads";
            check(&param("value"), options.has_number_tokens, message)?;
            let mut values = Vec::with_capacity(texts.len());
            for (place, text) in texts.iter().enumerate() {
                match text.as_ref().and_then(|text| text.trim().parse::<f64>().ok()) {
                    Some(number) if number.is_finite() => values.push(number),
                    _ => {
                        let message = "must be the text of a number: the item has a `value`";
                        return Err(AppError::field(&param(&format!("candidates[{place}]")), message));
                    }
                }
            }
            Ok::<_, AppError>(Grid { values, truth, tau: options.tau })
        });
        let grid = grid.transpose()?;
        Ok(Self { texts, normalize_by_length: options.normalize_by_length, grid })
    }

    /// `targets` are the tokens that `outcome` scores.
    pub(crate) fn scores(
        &self,
        index: usize,
        targets: &[TargetTokens],
        outcome: &ScoreOutcome,
        decoder: &dyn TextDecoder,
    ) -> CandidateScores {
        let scored = by_candidate(targets, outcome);
        let firsts = first_of_equals(targets);
        let mut distinct = Vec::new();
        let mut weights = Vec::new();
        for (place, one) in scored.iter().enumerate() {
            if firsts[place] == place {
                let tokens = if self.normalize_by_length { one.tokens.len().max(1) } else { 1 };
                distinct.push(place);
                weights.push(one.logprob / tokens as f64);
            }
        }
        let log_shares = log_softmax(weights.into_iter());
        let shares: HashMap<usize, f64> = distinct.iter().copied().zip(log_shares).collect();
        let mut candidates = Vec::new();
        for ((one, text), first) in scored.iter().zip(&self.texts).zip(firsts) {
            let token_ids: Vec<u32> = one.tokens.iter().map(|score| score.token.id).collect();
            candidates.push(CandidateScore {
                text: text.clone().unwrap_or_else(|| decoder.decode(&token_ids)),
                token_ids,
                logprob: finite_logprob(one.logprob),
                probability: shares.get(&first).map_or(0.0, |log_share| log_share.exp()),
            });
        }
        let losses = self.grid.as_ref().map(|Grid { values, truth, tau }| {
            let grid: Vec<(f64, f64)> =
                distinct.iter().map(|&place| (values[place], scored[place].logprob)).collect();
            CandidateLosses { raft: plain(raft(&grid, *truth)), dist2: plain(dist2(&grid, *truth, *tau)) }
        });
        CandidateScores { index: index as u64, candidates, losses }
    }

    /// Rejects candidates that are different numbers in the same tokens, of which the model has one
    /// probability.
    pub(super) fn check_tokens(&self, index: usize, targets: &[TargetTokens]) -> Result<(), AppError> {
        let Some(Grid { values, .. }) = &self.grid else { return Ok(()) };
        for (place, first) in first_of_equals(targets).into_iter().enumerate() {
            let is_same = (values[place] - values[first]).abs() <= 0.0;
            let message = format!("has the same tokens as `candidates[{first}]`, which is another number");
            check(&format!("items[{index}].candidates[{place}]"), is_same, message)?;
        }
        Ok(())
    }
}

/// For each candidate, the place of the first one with the same tokens.
fn first_of_equals(targets: &[TargetTokens]) -> Vec<usize> {
    let mut firsts = HashMap::new();
    let mut places = Vec::with_capacity(targets.len());
    for (place, target) in targets.iter().enumerate() {
        let ids: Vec<u32> = target.tokens.iter().map(|token| token.id).collect();
        places.push(*firsts.entry(ids).or_insert(place));
    }
    places
}

/// The tokens of one candidate, without those of the prompt.
struct ScoredTokens<'a> {
    tokens: &'a [TokenScore],
    logprob: f64,
}

/// Takes the tokens of all candidates apart.
fn by_candidate<'a>(targets: &[TargetTokens], outcome: &'a ScoreOutcome) -> Vec<ScoredTokens<'a>> {
    let mut left = outcome.tokens.as_slice();
    let mut scored = Vec::new();
    for target in targets {
        let (own, rest) = left.split_at(target.tokens.len());
        left = rest;
        let tokens = &own[target.of_prompt..];
        scored.push(ScoredTokens { tokens, logprob: tokens.iter().map(|score| score.token.logprob).sum() });
    }
    scored
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_numbers_of_equal_tokens_are_rejected_with_the_field() {
        // A vocabulary without signs reads `+4` and `-4` as the same tokens.
        let target = |ids: [u32; 2]| TargetTokens { tokens: ids.map(Into::into).to_vec(), of_prompt: 0 };
        let targets = [target([5, 4]), target([5, 6]), target([5, 4])];
        assert_eq!(first_of_equals(&targets), [0, 1, 0]);
        for (last, complaint) in [
            (4.0, None),
            (
                -4.0,
                Some(
                    "`items[7].candidates[2]` has the same tokens as `candidates[0]`, which is another number",
                ),
            ),
        ] {
            let grid = Grid { values: vec![4.0, 6.0, last], truth: 4.0, tau: 1.0 };
            let texts = vec![None; 3];
            let format = CandidatesFormat { texts, normalize_by_length: false, grid: Some(grid) };
            let found = format.check_tokens(7, &targets).map_err(|error| error.to_string());
            assert_eq!(found.err().as_deref(), complaint);
        }
    }
}
