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
use crate::store::sample::Sample;

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
    let read: Vec<[Prediction; 2]> = pairs.read().collect();
    let are_judged = pairs.answered().any(|(a, _)| a.is_judged());
    let are_decisions = pairs.answered().any(|(a, _)| a.is_decision());
    let is_compared = |metric: &MetricInfo| !are_decisions || metric.is_of_decisions();
    groups.push(numbers(&read, |metric| match metric.statistic {
        Statistic::Number(of) if is_compared(metric) => Some(of),
        Statistic::Rating(of) if are_judged => Some(of),
        _ => None,
    }));
    let nonzero: Vec<[Prediction; 2]> = read.into_iter().filter(|[a, _]| a.truth.abs() > 0.0).collect();
    groups.push(numbers(&nonzero, |metric| match metric.statistic {
        Statistic::RelativeNumber(of) if is_compared(metric) => Some(of),
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
    let mean =
        |values: Vec<f64>| -> Weighted<'static> { Box::new(move |weights| mean_in_lanes(&values, weights)) };
    let both = mean([&*a, &*b].concat());
    let spread = Spread::of_means(&a, &b);
    Group {
        n: a.len(),
        differing: differing(a.iter().zip(&b).map(|(a, b)| [a, b])),
        measured: vec![Measured {
            name: name.to_owned(),
            contrast: Contrast { a: mean(a), b: mean(b), both, spread },
        }],
    }
}

/// Returns the calibration error over the pairs whose options have probabilities on both sides.
fn calibration_errors(pairs: &Pairs<'_>) -> Group {
    let answer = |sample: &Sample| Some((sample.score("confidence")?, sample.right()));
    let mut a = Vec::new();
    let mut b = Vec::new();
    for (sample_a, sample_b) in pairs.answered() {
        if let (Some(answer_a), Some(answer_b)) = (answer(sample_a), answer(sample_b)) {
            a.push(answer_a);
            b.push(answer_b);
        }
    }
    let error = |answers: Vec<(f64, bool)>| -> Weighted<'static> {
        Box::new(move |weights| {
            let answers = answers.iter().zip(weights);
            calibration_error(answers.map(|((confidence, right), weight)| (*confidence, *right, *weight)))
        })
    };
    let both = error([&*a, &*b].concat());
    Group {
        n: a.len(),
        differing: differing(a.iter().zip(&b).map(|(a, b)| [a, b])),
        measured: vec![Measured {
            name: "calibration_error".to_owned(),
            contrast: Contrast { a: error(a), b: error(b), both, spread: Spread::Percentiles },
        }],
    }
}

/// Returns the number metrics whose statistic `choose` returns.
fn numbers(read: &[[Prediction; 2]], choose: impl Fn(&MetricInfo) -> Option<NumberStatistic>) -> Group {
    let side = |side: usize| read.iter().map(move |pair| pair[side]);
    let columns = |predictions: Vec<Prediction>| Arc::new(NumberColumns::new(&predictions, mean_in_lanes));
    let [a, b] = [0, 1].map(|which| columns(side(which).collect()));
    let both = columns(side(0).chain(side(1)).collect());
    let measured = |metric: &MetricInfo| {
        let of = choose(metric)?;
        let weighted = |columns: &Arc<NumberColumns>| -> Weighted<'static> {
            let columns = Arc::clone(columns);
            Box::new(move |weights| of(&columns, weights))
        };
        let spread = metric.difference_spread(&a, &b);
        let contrast = Contrast { a: weighted(&a), b: weighted(&b), both: weighted(&both), spread };
        Some(Measured { name: metric.name.to_owned(), contrast })
    };
    Group {
        n: read.len(),
        differing: differing(read.iter().copied()),
        measured: METRICS.iter().filter_map(measured).collect(),
    }
}
