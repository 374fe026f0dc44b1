//! The metrics by which two runs are compared.
//!
//! Number metrics are computed as in the runs themselves. Scores in other columns of the samples (`strict`,
//! `f1`, ...) are compared by their means.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::pairs::Pairs;
use crate::metrics::decision::calibration_error;
use crate::metrics::numbers::{NumberColumns, Prediction};
use crate::metrics::registry::{METRICS, MetricInfo, NumberStatistic, Statistic, in_table_order};
use crate::stats::difference::{Contrast, Spread};
use crate::stats::weighted::{Weighted, mean_in_lanes};

/// A metric of both sides.
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) contrast: Contrast<'static>,
}

/// Metrics over the same `n` pairs, in table order.
pub(super) struct Group {
    pub(super) n: usize,
    /// Indices of the pairs whose sides differ.
    pub(super) differing: Vec<usize>,
    pub(super) measured: Vec<Measured>,
}

/// Returns all metrics that the pairs have data for.
pub(super) fn groups(pairs: &Pairs<'_>) -> Vec<Group> {
    let own = ["accuracy", "absolute_error"];
    let columns = pairs.answered().flat_map(|(a, _)| a.metrics.iter().map(String::as_str));
    let columns: BTreeSet<&str> = columns.filter(|name| !own.contains(name)).collect();
    let scores = std::iter::once("accuracy").chain(in_table_order(columns.into_iter()));
    let mut groups: Vec<Group> = scores.map(|name| mean_score(name, pairs)).collect();
    if pairs.are_of_systems {
        // How well a judge agrees with people says nothing about the systems.
        groups
            .retain(|group| group.n > 0 && group.measured.iter().all(|measured| measured.name != "accuracy"));
        return groups;
    }
    let read: Vec<[Prediction; 2]> = pairs.read().collect();
    let are_judged = pairs.answered().any(|(a, _)| a.is_judged());
    let are_decisions = pairs.answered().any(|(a, _)| a.is_decision());
    groups.push(numbers(&read, |metric| match metric.statistic {
        Statistic::Number(of) if !are_decisions || metric.is_of_decisions() => Some(of),
        Statistic::Rating(of) if are_judged => Some(of),
        _ => None,
    }));
    let nonzero: Vec<[Prediction; 2]> = read.into_iter().filter(|[a, _]| a.truth.abs() > 0.0).collect();
    groups.push(numbers(&nonzero, |metric| match metric.statistic {
        Statistic::RelativeNumber(of) if !are_decisions || metric.is_of_decisions() => Some(of),
        _ => None,
    }));
    groups.push(calibration_errors(pairs));
    groups.retain(|group| group.n > 0);
    groups
}

/// Returns the indices of the pairs that differ.
fn differing<T: PartialEq>(pairs: impl Iterator<Item = [T; 2]>) -> Vec<usize> {
    pairs.enumerate().filter(|(_, [a, b])| a != b).map(|(index, _)| index).collect()
}

/// Returns the mean of a column over the pairs that have it on both sides.
fn mean_score(name: &str, pairs: &Pairs<'_>) -> Group {
    let scores = pairs.answered().filter_map(|(a, b)| a.score(name).zip(b.score(name)));
    let (a, b): (Vec<f64>, Vec<f64>) = scores.unzip();
    Group {
        n: a.len(),
        differing: differing(a.iter().zip(&b).map(|(a, b)| [a, b])),
        measured: vec![Measured { name: name.to_owned(), contrast: Contrast::of_means(a, b) }],
    }
}

/// Returns the calibration error over the pairs whose options have probabilities on both sides.
fn calibration_errors(pairs: &Pairs<'_>) -> Group {
    let mut a = Vec::new();
    let mut b = Vec::new();
    for (sample_a, sample_b) in pairs.answered() {
        let confidences = (sample_a.score("confidence"), sample_b.score("confidence"));
        if let (Some(confidence_a), Some(confidence_b)) = confidences {
            a.push((confidence_a, sample_a.right()));
            b.push((confidence_b, sample_b.right()));
        }
    }
    let both = weighted_error([&*a, &*b].concat());
    Group {
        n: a.len(),
        differing: differing(a.iter().zip(&b).map(|(a, b)| [a, b])),
        measured: vec![Measured {
            name: "calibration_error".to_owned(),
            contrast: Contrast {
                a: weighted_error(a),
                b: weighted_error(b),
                both,
                spread: Spread::Percentiles,
            },
        }],
    }
}

/// Returns the calibration error of confidences, and whether each answer is correct.
fn weighted_error(answers: Vec<(f64, bool)>) -> Weighted<'static> {
    Box::new(move |weights| {
        let answers = answers.iter().zip(weights);
        calibration_error(answers.map(|((confidence, right), weight)| (*confidence, *right, *weight)))
    })
}

/// Returns the number metrics whose statistic `choose` returns.
fn numbers(read: &[[Prediction; 2]], choose: impl Fn(&MetricInfo) -> Option<NumberStatistic>) -> Group {
    let [side_a, side_b] = [0, 1].map(|side| read.iter().map(|pair| pair[side]).collect::<Vec<_>>());
    let both = [&*side_a, &*side_b].concat();
    let [a, b, both] =
        [side_a, side_b, both].map(|predictions| Arc::new(NumberColumns::new(&predictions, mean_in_lanes)));
    let mut measured = Vec::new();
    for metric in &METRICS {
        if let Some(of) = choose(metric) {
            let spread = metric.difference_spread(&a, &b);
            let [a, b, both] = [&a, &b, &both].map(|columns| weighted_statistic(of, columns));
            let contrast = Contrast { a, b, both, spread };
            measured.push(Measured { name: metric.name.to_owned(), contrast });
        }
    }
    Group { n: read.len(), differing: differing(read.iter().copied()), measured }
}

fn weighted_statistic(of: NumberStatistic, columns: &Arc<NumberColumns>) -> Weighted<'static> {
    let columns = Arc::clone(columns);
    Box::new(move |weights| of(&columns, weights))
}
