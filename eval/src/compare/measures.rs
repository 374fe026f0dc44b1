//! Which figures two runs are compared by, as functions of how often each item is there.
//!
//! Squared errors, R² and correlations go by the mean of each prediction, absolute errors by its median, as in the
//! runs themselves. Scores that samples carry under other names (`strict`, `f1`, ...) are compared by their means.

use std::collections::BTreeSet;

use super::pairs::{Pairs, Read};
use crate::metrics::{Better, Name};
use crate::stats::signed_log;
use crate::stats::weighted::{Sorted, mean, pearson, r2, spearman};
use crate::store::saved::{Estimates, Sample};

/// A figure of one side.
#[derive(Debug, Clone, PartialEq)]
pub enum Measure {
    /// The mean.
    Mean(Vec<f64>),
    /// The square root of the mean.
    RootMean(Vec<f64>),
    /// The median.
    Median(Sorted),
    /// 1 less the share of squared errors in the variance of labels.
    R2 {
        /// One per item.
        squared_errors: Vec<f64>,
        /// One per item.
        labels: Vec<f64>,
    },
    /// Correlation.
    Pearson(Vec<f64>, Vec<f64>),
    /// Correlation of ranks.
    Spearman(Sorted, Sorted),
}

impl Measure {
    /// The figure where item `i` is there `weights[i]` times; `None` where it is not defined.
    pub fn at(&self, weights: &[f64]) -> Option<f64> {
        match self {
            Self::Mean(values) => mean(values, weights),
            Self::RootMean(values) => mean(values, weights).map(f64::sqrt),
            Self::Median(values) => values.median(weights),
            Self::R2 { squared_errors, labels } => r2(squared_errors, labels, weights),
            Self::Pearson(x, y) => pearson(x, y, weights),
            Self::Spearman(x, y) => spearman(x, y, weights),
        }
    }
}

/// A figure of both sides.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Name of the metric.
    pub name: String,
    /// Which way it is better.
    pub better: Better,
    /// Of A.
    pub a: Measure,
    /// Of B.
    pub b: Measure,
}

impl Measured {
    fn new(name: &str, a: Measure, b: Measure) -> Self {
        let better = Name::parse(name).map_or(Better::Unknown, Name::better);
        Self { name: name.to_owned(), better, a, b }
    }

    /// B less A, with the same weights on both.
    pub fn difference(&self, weights: &[f64]) -> Option<f64> {
        Some(self.b.at(weights)? - self.a.at(weights)?)
    }
}

/// Figures over the same pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// How many pairs.
    pub n: usize,
    /// In the order of tables.
    pub measured: Vec<Measured>,
}

/// All figures that the pairs have data for.
pub fn groups(pairs: &Pairs<'_>) -> Vec<Group> {
    let mut groups: Vec<Group> = std::iter::once(accuracy(pairs)).chain(scores(pairs)).collect();
    let read: Vec<Read> = pairs.read().collect();
    groups.extend([errors(&read), shares(&read)]);
    groups.retain(|group| group.n > 0);
    groups
}

fn accuracy(pairs: &Pairs<'_>) -> Group {
    score("accuracy", pairs, |sample| sample.accuracy)
}

/// Scores of items beside accuracy and absolute error.
fn scores<'a>(pairs: &Pairs<'a>) -> impl Iterator<Item = Group> {
    let own = ["accuracy", "absolute_error"];
    let names: BTreeSet<&'a str> = pairs
        .answered()
        .flat_map(|(a, _)| a.metrics.iter().map(String::as_str))
        .filter(|name| !own.contains(name))
        .collect();
    let names = Name::in_order(names.into_iter());
    names
        .into_iter()
        .map(|name| score(name, pairs, |sample| sample.score(name)))
        .collect::<Vec<_>>()
        .into_iter()
}

/// The mean of a score over the pairs that have it on both sides.
fn score(name: &str, pairs: &Pairs<'_>, of: impl Fn(&Sample) -> Option<f64>) -> Group {
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.answered().filter_map(|(a, b)| of(a).zip(of(b))).unzip();
    Group { n: a.len(), measured: vec![Measured::new(name, Measure::Mean(a), Measure::Mean(b))] }
}

fn errors(read: &[Read]) -> Group {
    let side = |estimates: fn(&Read) -> Estimates, error: fn(&Read) -> f64| {
        side(read.iter().map(|read| (read.truth, estimates(read), error(read))).collect())
    };
    let (a, b) = (side(|read| read.a, |read| read.errors.0), side(|read| read.b, |read| read.errors.1));
    let measured = a.into_iter().zip(b).map(|((name, a), (_, b))| Measured::new(name, a, b)).collect();
    Group { n: read.len(), measured }
}

/// Errors as shares of the truth, where it is not 0.
fn shares(read: &[Read]) -> Group {
    let (a, b): (Vec<f64>, Vec<f64>) = read
        .iter()
        .filter(|read| read.truth.abs() > 0.0)
        .map(|read| (read.errors.0 / read.truth.abs(), read.errors.1 / read.truth.abs()))
        .unzip();
    Group { n: a.len(), measured: vec![Measured::new("mape", Measure::Mean(a), Measure::Mean(b))] }
}

/// The figures of one side, from truth, estimates and absolute error of every item.
fn side(items: Vec<(f64, Estimates, f64)>) -> [(&'static str, Measure); 9] {
    let of = |value: &dyn Fn(f64, Estimates, f64) -> f64| -> Vec<f64> {
        items.iter().map(|&(truth, read, error)| value(truth, read, error)).collect()
    };
    let labels = of(&|truth, _, _| truth);
    let means = of(&|_, read, _| read.mean);
    let squares = of(&|truth, read, _| (read.mean - truth).powi(2));
    let errors = of(&|_, _, error| error);
    let log_r2 = Measure::R2 {
        squared_errors: of(&|truth, read, _| (signed_log(read.mean) - signed_log(truth)).powi(2)),
        labels: of(&|truth, _, _| signed_log(truth)),
    };
    [
        ("mae", Measure::Mean(errors.clone())),
        ("mse", Measure::Mean(squares.clone())),
        ("rmse", Measure::RootMean(squares.clone())),
        ("r2", Measure::R2 { squared_errors: squares, labels: labels.clone() }),
        ("median_ae", Measure::Median(Sorted::new(&errors))),
        ("log_mae", Measure::Mean(of(&|truth, read, _| (signed_log(read.median) - signed_log(truth)).abs()))),
        ("log_r2", log_r2),
        ("pearson", Measure::Pearson(means.clone(), labels.clone())),
        ("spearman", Measure::Spearman(Sorted::new(&means), Sorted::new(&labels))),
    ]
}
