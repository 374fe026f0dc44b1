//! Which metrics two runs are compared by, as functions of how often each item counts.
//!
//! Metrics of numbers are computed as in the runs themselves. Scores that samples carry in other columns (`strict`, `f1`,
//! ...) are compared by their means.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::pairs::Pairs;
use crate::metrics::numbers::{NumberColumns, Prediction};
use crate::metrics::registry::{METRICS, NumberStatistic, Statistic, in_table_order};
use crate::stats::weighted::{Weighted, mean_in_lanes};

/// A metric of both sides.
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) a: Weighted<'static>,
    pub(super) b: Weighted<'static>,
}

impl Measured {
    /// B less A, with the same weights on both.
    pub(super) fn difference(&self, weights: &[f64]) -> Option<f64> {
        Some((self.b)(weights)? - (self.a)(weights)?)
    }
}

/// Metrics over the same `n` pairs, in the order of tables.
pub(super) struct Group {
    pub(super) n: usize,
    pub(super) measured: Vec<Measured>,
}

/// All metrics that the pairs have data for.
pub(super) fn groups(pairs: &Pairs<'_>) -> Vec<Group> {
    let own = ["accuracy", "absolute_error"];
    let columns = pairs.answered().flat_map(|(a, _)| a.metrics.iter().map(String::as_str));
    let columns: BTreeSet<&str> = columns.filter(|name| !own.contains(name)).collect();
    let scores = std::iter::once("accuracy").chain(in_table_order(columns.into_iter()));
    let mut groups: Vec<Group> = scores.map(|name| mean_score(name, pairs)).collect();
    let read: Vec<[Prediction; 2]> = pairs.read().collect();
    let are_judged = pairs.answered().any(|(a, _)| a.is_judged());
    groups.push(numbers(&read, |statistic| match statistic {
        Statistic::Number(of) => Some(of),
        Statistic::Rating(of) if are_judged => Some(of),
        _ => None,
    }));
    let nonzero: Vec<[Prediction; 2]> = read.into_iter().filter(|[a, _]| a.truth.abs() > 0.0).collect();
    groups.push(numbers(&nonzero, |statistic| match statistic {
        Statistic::RelativeNumber(of) => Some(of),
        _ => None,
    }));
    groups.retain(|group| group.n > 0);
    groups
}

/// The mean of a column over the pairs that have it on both sides.
fn mean_score(name: &str, pairs: &Pairs<'_>) -> Group {
    let scores = pairs.answered().filter_map(|(a, b)| a.score(name).zip(b.score(name)));
    let (a, b): (Vec<f64>, Vec<f64>) = scores.unzip();
    let n = a.len();
    let mean =
        |values: Vec<f64>| -> Weighted<'static> { Box::new(move |weights| mean_in_lanes(&values, weights)) };
    Group { n, measured: vec![Measured { name: name.to_owned(), a: mean(a), b: mean(b) }] }
}

/// The metrics of numbers of which `choose` takes the statistic.
fn numbers(read: &[[Prediction; 2]], choose: impl Fn(Statistic) -> Option<NumberStatistic>) -> Group {
    let [a, b] = [0, 1].map(|side| {
        let predictions: Vec<Prediction> = read.iter().map(|pair| pair[side]).collect();
        Arc::new(NumberColumns::new(&predictions, mean_in_lanes))
    });
    let measured = METRICS.iter().filter_map(|metric| {
        let of = choose(metric.statistic)?;
        let weighted = |columns: &Arc<NumberColumns>| -> Weighted<'static> {
            let columns = Arc::clone(columns);
            Box::new(move |weights| of(&columns, weights))
        };
        Some(Measured { name: metric.name.to_owned(), a: weighted(&a), b: weighted(&b) })
    });
    Group { n: read.len(), measured: measured.collect() }
}
