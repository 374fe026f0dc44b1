//! Metrics of answers.
//!
//! In: one [`Row`] per item. Out: every metric that the rows have data for, each with its interval and how many rows
//! it is over. Which estimate of a distribution serves which metric is decided here: [`Estimates::mean`] for squared
//! errors and correlations, [`Estimates::median`] for absolute ones, [`Estimates::mode`] for exactness. Invariant:
//! values are finite or missing, never NaN.

pub mod bleu;
pub mod bootstrap;
pub mod likelihood;
mod name;
pub mod number;
mod porter;
pub mod rouge;
pub mod spread;
pub mod text;

use std::collections::BTreeMap;

use serde::Serialize;

use self::likelihood::Likelihood;
pub use self::name::{Better, Name};
use self::spread::Spread;
use self::text::TextScores;
use crate::stats::Interval;
use crate::stats::wilson::wilson;

/// Two numbers count as the same when they differ by at most this share of the truth. Wider than the rounding of
/// `f64`, and narrower than any two decimals of up to nine digits: unlike the `1e-5` of `numpy.isclose`, it does not
/// take 1000009 for 1000000.
pub const EXACT_TOLERANCE: f64 = 1e-9;

/// Whether a number is the true one, within [`EXACT_TOLERANCE`].
pub fn same(value: f64, truth: f64) -> bool {
    (value - truth).abs() <= EXACT_TOLERANCE * truth.abs()
}

/// A prediction: the best answers to three questions, all equal where only one number is known. All finite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimates {
    /// For squared errors.
    pub mean: f64,
    /// For absolute errors.
    pub median: f64,
    /// For exact matches.
    pub mode: f64,
}

impl Estimates {
    /// One number for everything.
    pub fn point(value: f64) -> Self {
        Self { mean: value, median: value, mode: value }
    }
}

/// What came back for one item.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome {
    /// A number.
    Read(Estimates),
    /// An answer without a number.
    Unparsed,
    /// No answer at all: the request failed.
    Failed,
}

/// One item, as metrics see it.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What came back.
    pub outcome: Outcome,
    /// The finite number that was asked for; `None` where the answer is no number.
    pub truth: Option<f64>,
    /// Whether the answer is right.
    pub correct: bool,
    /// Whether it is right as two other harness rules read it: strict and flexible.
    pub lm_eval_matches: Option<[bool; 2]>,
    /// How the texts compare, for tasks whose answers are text.
    pub text_scores: Option<TextScores>,
    /// How the distribution did, where there is one.
    pub spread: Option<Spread>,
    /// What the model says of the true answer, where it was asked.
    pub likelihood: Option<Likelihood>,
}

impl Row {
    /// A row with a number; right when it is the true one.
    pub fn numeric(outcome: Outcome, truth: f64) -> Self {
        let correct = matches!(outcome, Outcome::Read(numbers) if same(numbers.mode, truth));
        Self {
            outcome,
            truth: Some(truth),
            correct,
            lm_eval_matches: None,
            text_scores: None,
            spread: None,
            likelihood: None,
        }
    }

    /// A row with one predicted number.
    pub fn read(prediction: f64, truth: f64) -> Self {
        Self::numeric(Outcome::Read(Estimates::point(prediction)), truth)
    }
}

/// A value with its interval and the number of rows behind it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Metric {
    /// The value; missing where it is not defined.
    pub value: Option<f64>,
    /// Lower end of the 95% interval; missing where there are too few rows.
    pub low: Option<f64>,
    /// Upper end of it.
    pub high: Option<f64>,
    /// How many rows it is over.
    pub n: usize,
}

impl Metric {
    /// Without an interval. NaN and infinities become missing.
    pub fn plain(value: Option<f64>, n: usize) -> Self {
        Self { value: value.filter(|value| value.is_finite()), low: None, high: None, n }
    }

    /// With the interval of a bootstrap.
    fn drawn(value: Option<f64>, interval: Option<bootstrap::Interval>, n: usize) -> Self {
        let ends = interval.filter(|_| value.is_some());
        Self { low: ends.map(|(low, _)| low), high: ends.map(|(_, high)| high), ..Self::plain(value, n) }
    }

    /// A share with its Wilson score interval.
    pub fn share(hits: usize, n: usize) -> Self {
        let Some(Interval { low, high }) = wilson(hits, n) else { return Self::default() };
        Self { value: Some(hits as f64 / n as f64), low: Some(low), high: Some(high), n }
    }
}

/// Every metric of one set of rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Metrics(BTreeMap<Name, Metric>);

impl Metrics {
    /// Accuracy and the readings are over all rows, `unparsed` over the answered ones, the rest over rows that have
    /// what it takes. Intervals: Wilson for shares, bootstrap with this seed for the rest.
    pub fn of(rows: &[Row], seed: u64) -> Self {
        let mut all = Self::default();
        all.shares(rows);
        if rows.iter().any(|row| row.truth.is_some()) {
            all.numbers(rows, seed);
        }
        let text_scores: Vec<&TextScores> = rows.iter().filter_map(|row| row.text_scores.as_ref()).collect();
        if !text_scores.is_empty() {
            all.0.insert(Name::Exact, share_of(text_scores.iter().map(|text_scores| text_scores.exact)));
            let figures = |times: &[u32]| text::figures(&text_scores, times);
            all.drawn(&text::NAMES, text_scores.len(), seed, figures);
        }
        all.spreads(rows, seed);
        let scored: Vec<&Likelihood> = rows.iter().filter_map(|row| row.likelihood.as_ref()).collect();
        if !scored.is_empty() {
            let figures = |times: &[u32]| likelihood::figures(&scored, times);
            all.drawn(&likelihood::NAMES, scored.len(), seed, figures);
            all.0.retain(|name, metric| !likelihood::NAMES.contains(name) || metric.value.is_some());
        }
        all
    }

    fn shares(&mut self, rows: &[Row]) {
        self.0.insert(Name::Accuracy, share_of(rows.iter().map(|row| row.correct)));
        if rows.iter().any(|row| row.lm_eval_matches.is_some()) {
            let read = |which: usize| {
                rows.iter().map(move |row| row.lm_eval_matches.is_some_and(|read| read[which]))
            };
            self.0.insert(Name::Strict, share_of(read(0)));
            self.0.insert(Name::Flexible, share_of(read(1)));
        }
    }

    fn numbers(&mut self, rows: &[Row], seed: u64) {
        let asked = || rows.iter().filter(|row| row.truth.is_some() && row.outcome != Outcome::Failed);
        self.0.insert(Name::Unparsed, share_of(asked().map(|row| row.outcome == Outcome::Unparsed)));
        let columns = number::Columns::of(&rows.iter().filter_map(read_row).collect::<Vec<_>>());
        self.drawn(&number::NAMES, columns.len(), seed, |times| columns.figures(times));
        for (name, metric) in &mut self.0 {
            if number::NAMES.contains(name) {
                metric.n = columns.n(*name);
            }
        }
    }

    fn spreads(&mut self, rows: &[Row], seed: u64) {
        let spreads: Vec<&Spread> = rows.iter().filter_map(|row| row.spread.as_ref()).collect();
        let inside: Vec<bool> = spreads.iter().filter_map(|spread| spread.inside).collect();
        if !inside.is_empty() {
            self.0.insert(Name::Coverage, share_of(inside.into_iter()));
        }
        for (name, get) in [
            (Name::Pinball, (|spread| spread.pinball) as fn(&Spread) -> Option<f64>),
            (Name::Crps, |spread| spread.crps),
        ] {
            let values: Vec<f64> = spreads.iter().filter_map(|spread| get(spread)).collect();
            if !values.is_empty() {
                self.drawn(&[name], values.len(), seed, |times| vec![number::mean(&values, times)]);
            }
        }
    }

    /// Adds figures over `n` rows with bootstrap intervals.
    fn drawn(&mut self, names: &[Name], n: usize, seed: u64, figures: impl Fn(&[u32]) -> Vec<Option<f64>>) {
        let values = figures(&vec![1; n]);
        let intervals = bootstrap::intervals(n, seed, figures);
        for (index, name) in names.iter().enumerate() {
            let value = values.get(index).copied().flatten();
            self.0.insert(*name, Metric::drawn(value, intervals.get(index).copied().flatten(), n));
        }
    }

    /// One of them; without a value where it was not measured.
    pub fn get(&self, name: Name) -> Metric {
        self.0.get(&name).copied().unwrap_or_default()
    }

    /// Puts one in, or in place of the one there.
    pub fn set(&mut self, name: Name, metric: Metric) {
        self.0.insert(name, metric);
    }

    /// All that were measured, in the order of tables.
    pub fn iter(&self) -> impl Iterator<Item = (Name, Metric)> + '_ {
        self.0.iter().map(|(name, metric)| (*name, *metric))
    }
}

fn share_of(hits: impl Iterator<Item = bool>) -> Metric {
    let (hits, n) = hits.fold((0, 0), |(hits, n), hit| (hits + usize::from(hit), n + 1));
    Metric::share(hits, n)
}

fn read_row(row: &Row) -> Option<(Estimates, f64)> {
    match row.outcome {
        Outcome::Read(numbers) => Some((numbers, row.truth?)),
        Outcome::Unparsed | Outcome::Failed => None,
    }
}

/// What constant answers would reach on the same truths.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Baselines {
    /// Always the median of the truths.
    pub constant_median: Constant,
    /// Always their mean.
    pub constant_mean: Constant,
}

/// A constant answer and how good it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Constant {
    /// The constant.
    pub value: Option<f64>,
    /// Its mean absolute error.
    pub mae: Metric,
    /// Its root mean squared error.
    pub rmse: Metric,
}

impl Baselines {
    /// Over all rows with a truth, whatever came back for them.
    pub fn of(rows: &[Row]) -> Self {
        let mut truths: Vec<f64> = rows.iter().filter_map(|row| row.truth).collect();
        truths.sort_by(f64::total_cmp);
        Self {
            constant_median: Constant::of(bootstrap::quantile(&truths, 0.5), &truths),
            constant_mean: Constant::of(number::mean(&truths, &vec![1; truths.len()]), &truths),
        }
    }
}

impl Constant {
    fn of(value: Option<f64>, truths: &[f64]) -> Self {
        let (Some(constant), n) = (value, truths.len()) else {
            return Self { value, mae: Metric::default(), rmse: Metric::default() };
        };
        let mean =
            |error: &dyn Fn(f64) -> f64| truths.iter().map(|y| error(constant - y)).sum::<f64>() / n as f64;
        Self {
            value,
            mae: Metric::plain(Some(mean(&f64::abs)), n),
            rmse: Metric::plain(Some(mean(&|error| error * error).sqrt()), n),
        }
    }
}

#[cfg(test)]
mod tests;
