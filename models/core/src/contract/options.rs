//! The probability of each of several whole answers, as a tree of their prefixes.
//!
//! In: the tokens of each option, and the ids that end an answer. Out: closed mass per option, and open mass
//! with the options that it may belong to. Invariant: bounds contain the values that the complete search
//! would find.

use std::collections::HashMap;
use std::sync::Arc;

use crate::numbers::{Interval, Mass, sorted_unique};
use crate::samples::OptionSamples;
use crate::token::Token;

/// Options to read. An option's probability is that of its tokens, followed by one of the ids that end an
/// answer.
#[derive(Debug, Clone, PartialEq)]
pub struct OptionsJob {
    rows: Vec<OptionRow>,
    options: usize,
    tokens_max: usize,
    ends: Arc<[u32]>,
    tolerance: f64,
}

/// A prefix of some options.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct OptionRow {
    /// The row of the prefix without its last token; `None` for the empty prefix, which is the first row.
    pub(crate) parent: Option<u32>,
    /// The last token of the prefix; for the empty prefix, the model's first token.
    pub(crate) token: Option<Token>,
    /// The rows that extend it by one token.
    pub(crate) next: Vec<u32>,
    /// The option that is complete.
    pub(crate) complete: Option<u32>,
    /// All options that begin with the prefix.
    pub(crate) options: Arc<[u32]>,
}

/// Two options have the same tokens, of which the model has one probability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the options {first} and {second} have the same tokens")]
pub struct EqualOptions {
    pub first: usize,
    pub second: usize,
}

impl OptionsJob {
    /// `ends` are the ids that end an answer. The search stops when the open mass is at most `tolerance`
    /// times the closed mass, so that it is precise even if the model rarely writes any of the options.
    ///
    /// # Errors
    /// If two options have the same tokens.
    pub fn new(options: &[Vec<Token>], ends: &[u32], tolerance: f64) -> Result<Self, EqualOptions> {
        let mut rows = vec![OptionRow::default()];
        let mut reached: Vec<Vec<u32>> = vec![Vec::new()];
        let mut children: HashMap<(u32, u32), u32> = HashMap::new();
        for (index, option) in options.iter().enumerate() {
            let mut row = 0_u32;
            reached[0].push(index as u32);
            for &token in option {
                row = *children.entry((row, token.id)).or_insert_with(|| {
                    let child = rows.len() as u32;
                    rows[row as usize].next.push(child);
                    rows.push(OptionRow { parent: Some(row), token: Some(token), ..OptionRow::default() });
                    reached.push(Vec::new());
                    child
                });
                reached[row as usize].push(index as u32);
            }
            if let Some(first) = rows[row as usize].complete.replace(index as u32) {
                return Err(EqualOptions { first: first as usize, second: index });
            }
        }
        for (row, options) in rows.iter_mut().zip(reached) {
            row.options = options.into();
        }
        let tokens_max = options.iter().map(Vec::len).max().unwrap_or(0);
        let ends = sorted_unique(ends.iter());
        Ok(Self { rows, options: options.len(), tokens_max, ends, tolerance })
    }

    /// The prefixes, each after its parent.
    pub(crate) fn rows(&self) -> &[OptionRow] {
        &self.rows
    }

    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    pub(crate) fn tolerance(&self) -> f64 {
        self.tolerance
    }

    /// Number of options.
    pub fn options(&self) -> usize {
        self.options
    }

    /// Number of prefixes, which is the maximum number of nodes that it needs.
    pub fn nodes_max(&self) -> usize {
        self.rows.len()
    }

    /// Number of tokens of the longest option.
    pub fn tokens_max(&self) -> usize {
        self.tokens_max
    }
}

/// Mass that was not resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenMass {
    pub mass: f64,
    /// The options that it may belong to, ascending. It may also belong to none.
    pub options: Arc<[u32]>,
}

/// The result of an [`OptionsJob`].
#[derive(Debug, Clone, PartialEq)]
pub struct OptionsOutcome {
    /// The closed mass of each option.
    pub closed: Vec<f64>,
    pub open: Vec<OpenMass>,
    /// Number of decoder positions that the result uses.
    pub nodes: usize,
    /// The answers of another engine that the masses were estimated from.
    pub answers: Option<OptionSamples>,
}

impl OptionsOutcome {
    /// The shares of answers with this many tokens.
    pub fn of_answers(samples: OptionSamples, tokens: usize) -> Self {
        let total = samples.samples().max(1) as f64;
        let closed: Vec<f64> = samples.counts().iter().map(|&count| count as f64 / total).collect();
        let all: Arc<[u32]> = (0..closed.len() as u32).collect();
        let open = vec![OpenMass { mass: samples.open(), options: all }];
        Self { closed, open, nodes: tokens, answers: Some(samples) }
    }

    /// All mass. Sums of many products may exceed 1 by rounding.
    pub fn mass(&self) -> Mass {
        let closed = self.closed.iter().sum::<f64>().min(1.0);
        let open = self.open_total().min(1.0 - closed);
        Mass { closed, invalid: 1.0 - closed - open, open }
    }

    fn open_total(&self) -> f64 {
        self.open.iter().map(|open| open.mass).sum()
    }

    /// The probability of each option, given that the answer is one of them. `None` if none has any closed
    /// mass.
    pub fn probabilities(&self) -> Option<Vec<f64>> {
        let closed: f64 = self.closed.iter().sum();
        (closed > 0.0).then(|| self.closed.iter().map(|mass| mass / closed).collect())
    }

    /// The smallest and largest probability of each option that the open mass allows. For sampled answers,
    /// confidence bounds.
    pub fn bounds(&self) -> Vec<Interval> {
        if let Some(answers) = &self.answers {
            return answers.probability_bounds();
        }
        let mut reachable = vec![0.0; self.closed.len()];
        for open in &self.open {
            for &option in &*open.options {
                reachable[option as usize] += open.mass;
            }
        }
        let closed: f64 = self.closed.iter().sum();
        let open = self.open_total();
        let mut bounds = Vec::new();
        for (&own, reachable) in self.closed.iter().zip(reachable) {
            let low = share(own, closed + open).unwrap_or(0.0);
            let high = share(own + reachable, closed + reachable).unwrap_or(1.0);
            bounds.push(Interval { low, high });
        }
        bounds
    }

    /// The smallest and largest expected index of an option that the open mass allows. For sampled answers,
    /// confidence bounds.
    pub fn expected_index_bounds(&self) -> Interval {
        if let Some(answers) = &self.answers {
            return answers.expected_index_bounds();
        }
        let last = self.closed.len().saturating_sub(1) as f64;
        let mirrored: Vec<f64> = self.closed.iter().rev().copied().collect();
        let mut lowest = Vec::with_capacity(self.open.len());
        let mut highest = Vec::with_capacity(self.open.len());
        for OpenMass { options, mass } in &self.open {
            lowest.push((options.first().map_or(0.0, |&option| f64::from(option)), *mass));
            highest.push((last - options.last().map_or(last, |&option| f64::from(option)), *mass));
        }
        let low = smallest_mean(&self.closed, lowest);
        let high = smallest_mean(&mirrored, highest);
        Interval { low: low.unwrap_or(0.0), high: last - high.unwrap_or(0.0) }
    }
}

fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| (part / whole).clamp(0.0, 1.0))
}

/// The smallest mean index of masses, if each further mass may be added at its index or be left out. Adding
/// the smallest indices first lowers the mean until the next one is above it.
fn smallest_mean(masses: &[f64], mut further: Vec<(f64, f64)>) -> Option<f64> {
    let mut total: f64 = masses.iter().sum();
    let mut sum: f64 = masses.iter().enumerate().map(|(index, mass)| index as f64 * mass).sum();
    further.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (index, mass) in further {
        if index * total <= sum || total <= 0.0 {
            total += mass;
            sum += index * mass;
        }
    }
    (total > 0.0).then(|| sum / total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: &[u32]) -> Vec<Token> {
        ids.iter().copied().map(Token::from).collect()
    }

    #[test]
    fn options_that_share_a_prefix_share_rows_and_equal_options_are_rejected() {
        let options = [&[7, 8][..], &[7], &[], &[7, 8, 9]].map(tokens);
        let job = OptionsJob::new(&options, &[1, 0, 1], 0.1).unwrap();
        let complete: Vec<_> = job.rows().iter().map(|row| (row.parent, row.complete)).collect();
        let want = [(None, Some(2)), (Some(0), Some(1)), (Some(1), Some(0)), (Some(2), Some(3))];
        assert_eq!(complete, want);
        assert_eq!((job.nodes_max(), job.tokens_max(), job.options()), (4, 3, 4));
        assert_eq!((job.ends(), &*job.rows()[2].options), (&[0, 1][..], &[0, 3][..]));
        let equal = OptionsJob::new(&[tokens(&[7]), tokens(&[8]), tokens(&[7])], &[1], 0.1);
        assert_eq!(equal, Err(EqualOptions { first: 0, second: 2 }));
    }

    /// Every way to give each open mass to one of its options, or to none.
    fn all_ways(outcome: &OptionsOutcome) -> Vec<Vec<f64>> {
        let mut ways = vec![outcome.closed.clone()];
        for open in &outcome.open {
            let mut more = Vec::new();
            for way in &ways {
                for &option in &*open.options {
                    let mut other = way.clone();
                    other[option as usize] += open.mass;
                    more.push(other);
                }
            }
            ways.extend(more);
        }
        ways
    }

    #[test]
    fn bounds_are_the_extremes_of_all_ways_to_divide_the_open_mass() {
        let open = |mass: f64, options: &[u32]| OpenMass { mass, options: options.into() };
        let outcome = OptionsOutcome {
            closed: vec![0.1, 0.3, 0.0, 0.2],
            open: vec![open(0.1, &[0, 2]), open(0.05, &[3]), open(0.15, &[1, 2, 3])],
            nodes: 5,
            answers: None,
        };
        let ways = all_ways(&outcome);
        assert_eq!(ways.len(), 3 * 2 * 4);
        let total = |way: &[f64]| way.iter().sum::<f64>();
        let mean = |way: &[f64]| way.iter().zip(0..).map(|(mass, at)| mass * f64::from(at)).sum::<f64>();
        let extremes = |of: &dyn Fn(&[f64]) -> f64| {
            let values = ways.iter().map(|way| of(way) / total(way));
            values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
        };
        for (index, bounds) in outcome.bounds().into_iter().enumerate() {
            let (low, high) = extremes(&|way| way[index]);
            assert!(
                bounds.low <= low + 1e-12 && high <= bounds.high + 1e-12,
                "{index}: {bounds:?} {low} {high}"
            );
            assert!((bounds.high - high).abs() < 1e-12, "{index}: {bounds:?} {high}");
        }
        let (low, high) = extremes(&|way| mean(way));
        let bounds = outcome.expected_index_bounds();
        assert!((bounds.low - low).abs() < 1e-12 && (bounds.high - high).abs() < 1e-12, "{bounds:?}");
        let mass = outcome.mass();
        assert!((mass.closed - 0.6).abs() < 1e-12 && (mass.open - 0.3).abs() < 1e-12);
        let probabilities = outcome.probabilities().unwrap();
        assert!((probabilities[1] - 0.5).abs() < 1e-12);
    }

    #[test]
    fn without_closed_mass_nothing_is_known() {
        let open = vec![OpenMass { mass: 0.5, options: [0, 1].into() }];
        let outcome = OptionsOutcome { closed: vec![0.0; 2], open, nodes: 1, answers: None };
        assert_eq!(outcome.probabilities(), None);
        assert_eq!(outcome.bounds(), [Interval { low: 0.0, high: 1.0 }; 2]);
        assert_eq!(outcome.expected_index_bounds(), Interval { low: 0.0, high: 1.0 });
    }
}
