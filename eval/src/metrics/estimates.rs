//! Compares the estimates of predicted distributions: the number metrics of each estimate, and whether the
//! lead of the best one is significant.
//!
//! All estimates are computed over the same items: those whose distribution has every estimate. Resamples are
//! paired: every estimate sees the same draws of the items.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::numbers::{NumberColumns, Prediction};
use super::registry::{Better, MetricInfo, Statistic, better, find};
use super::{Estimates, Metric, RESAMPLES, Row, bootstrap_interval, same};
use crate::stats::bootstrap::Bootstrap;
use crate::stats::difference::{Contrast, DifferenceTest, PValue, Terms, test_contrasts};
use crate::stats::holm::holm;
use crate::stats::weighted::{Weighted, mean_in_lanes};

/// The different ways to reduce a distribution to one number. All are finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllEstimates {
    /// The most probable number.
    pub mode: f64,
    pub median: f64,
    /// Mean without the trimmed tails, or the value that the server returns instead.
    pub trimmed_mean: f64,
    /// Mean of all closed numbers.
    pub mean: f64,
    /// Sum of p(v) v, not divided by the closed mass: texts that are not numbers count as 0 (RAIL, TRACT).
    pub weighted_sum: f64,
}

impl AllEstimates {
    pub const NAMES: [&'static str; 5] = ["mode", "median", "trimmed_mean", "mean", "weighted_sum"];

    /// Returns the values in the order of [`Self::NAMES`].
    fn values(self) -> [f64; 5] {
        [self.mode, self.median, self.trimmed_mean, self.mean, self.weighted_sum]
    }
}

/// The metrics that are computed for every estimate, in table order.
const COMPARED: [&str; 9] =
    ["accuracy", "mae", "rmse", "r2", "median_ae", "log_mae", "pearson", "spearman", "mape"];

/// Metrics that are also computed if the numbers are judges' scores.
const COMPARED_OF_JUDGES: [&str; 2] = ["kendall", "kappa"];

/// A metric for every estimate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EstimateScores {
    /// Values by the name of the estimate.
    pub values: IndexMap<String, Metric>,
    /// The estimate with the best value. Ties go to the first.
    pub best: String,
    /// The distance of each other estimate from the best, by name.
    pub behind: IndexMap<String, Behind>,
    /// p-value of the lead over [`Self::runner_up`], corrected for the number of metrics (Holm). Missing if
    /// the runner-up has no p-value.
    pub p_holm: Option<f64>,
    /// Whether `p_holm` is only an upper bound, because no resample was as extreme as the items.
    pub p_holm_is_bound: bool,
}

impl EstimateScores {
    /// Returns the best estimate and all that equal it on every item, as the trimmed mean equals the mean
    /// without a trim.
    pub fn best_names(&self) -> Vec<&str> {
        let equal = self.behind.iter().filter(|(_, behind)| behind.is_equal).map(|(name, _)| name.as_str());
        std::iter::once(self.best.as_str()).chain(equal).collect()
    }

    /// Returns the nearest estimate that does not equal the best one on every item, and its distance from the
    /// best one.
    pub fn runner_up(&self) -> Option<(&str, Behind)> {
        let behind = self.behind.iter().map(|(name, behind)| (name.as_str(), *behind));
        let behind = behind.filter(|(_, behind)| !behind.is_equal);
        behind.min_by(|(_, a), (_, b)| a.difference.abs().total_cmp(&b.difference.abs()))
    }
}

/// Metric of an estimate minus the metric of the best estimate, over paired resamples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Behind {
    pub difference: f64,
    /// 95% interval. Missing if there are too few items, or if too few resamples have the metric.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Two-sided p-value of no difference, not corrected. Missing if the interval is.
    pub p: Option<f64>,
    /// Whether `p` is only an upper bound, because no resample was as extreme as the items.
    pub p_is_bound: bool,
    /// Whether the estimate equals the best one on every item.
    pub is_equal: bool,
}

/// Returns the metrics of all estimates by the name of the metric. Empty if no item has a distribution and a
/// true number.
pub fn compare_estimates(rows: &[&Row], seed: u64) -> IndexMap<String, EstimateScores> {
    let items: Items = rows.iter().filter_map(|row| Some((row.truth?, row.estimates?.values()))).collect();
    if items.is_empty() {
        return IndexMap::new();
    }
    let columns: Vec<Columns> =
        (0..AllEstimates::NAMES.len()).map(|which| Columns::of(&items, &[which])).collect();
    let is_judged = rows.iter().any(|row| row.judgement.is_some());
    let compared = COMPARED.iter().chain(COMPARED_OF_JUDGES.iter().filter(|_| is_judged));
    let metrics: Vec<Measured<'_>> =
        compared.filter_map(|name| Measured::of(name, &columns, items.len())).collect();
    let bootstrap = Bootstrap { resamples: if items.len() < 2 { 0 } else { RESAMPLES }, seed };
    let drawn = bootstrap.resample_in_parallel(items.len(), |weights| {
        metrics.iter().map(|metric| metric.at(weights)).collect::<Vec<_>>()
    });
    let mut behind = all_behind(&items, &metrics, &columns, bootstrap);
    let scores = metrics.iter().enumerate().map(|(index, metric)| {
        let drawn: Vec<&[Option<f64>]> = drawn.iter().map(|metrics| metrics[index].as_slice()).collect();
        let scores = EstimateScores {
            values: metric.values(&drawn),
            best: AllEstimates::NAMES[metric.best].to_owned(),
            behind: std::mem::take(&mut behind[index]),
            ..EstimateScores::default()
        };
        (metric.info.name.to_owned(), scores)
    });
    let mut scores: IndexMap<String, EstimateScores> = scores.collect();
    correct(&mut scores);
    scores
}

/// Corrects the p-values of all leads together.
fn correct(scores: &mut IndexMap<String, EstimateScores>) {
    let lead = |scores: &EstimateScores| {
        let (_, behind) = scores.runner_up()?;
        Some(PValue { value: behind.p?, is_bound: behind.p_is_bound })
    };
    let corrected = holm(&scores.values().filter_map(lead).collect::<Vec<_>>());
    let tested = scores.values_mut().filter(|scores| lead(scores).is_some());
    for (scores, p) in tested.zip(corrected) {
        (scores.p_holm, scores.p_holm_is_bound) = (Some(p.value), p.is_bound);
    }
}

/// True numbers with the estimates of each item, in the order of [`AllEstimates::NAMES`].
type Items = Vec<(f64, [f64; 5])>;

/// Returns, for each metric, the distance of each other estimate from the best one, by name. A pair of
/// estimates is tested once for all metrics that need the test.
fn all_behind(
    items: &Items,
    metrics: &[Measured<'_>],
    columns: &[Columns],
    bootstrap: Bootstrap,
) -> Vec<IndexMap<String, Behind>> {
    let mut metrics_of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, metric) in metrics.iter().enumerate() {
        metrics_of.entry(metric.best).or_default().push(index);
    }
    let mut behind = vec![IndexMap::new(); metrics.len()];
    for (best, of_best) in metrics_of {
        for other in (0..columns.len()).filter(|other| *other != best) {
            let both = Columns::of(items, &[best, other]);
            let contrasts: Vec<Contrast<'_>> = of_best
                .iter()
                .map(|&index| contrast(metrics[index].info, [&columns[best], &columns[other], &both]))
                .collect();
            let differs = |&(index, (_, values)): &(usize, &(f64, [f64; 5]))| {
                (values[best].total_cmp(&values[other]).is_ne()).then_some(index)
            };
            let differing: Vec<usize> = items.iter().enumerate().filter_map(|item| differs(&item)).collect();
            let tests = test_contrasts(&contrasts, items.len(), &differing, bootstrap);
            for (&index, test) in of_best.iter().zip(tests) {
                let plain = &metrics[index].plain;
                let found =
                    Behind { is_equal: differing.is_empty(), ..Behind::of(plain[other] - plain[best], test) };
                behind[index].insert(AllEstimates::NAMES[other].to_owned(), found);
            }
        }
    }
    behind
}

impl Behind {
    fn of(difference: f64, test: Option<DifferenceTest>) -> Self {
        Self {
            difference,
            low: test.map(|test| test.interval.low),
            high: test.map(|test| test.interval.high),
            p: test.map(|test| test.p.value),
            p_is_bound: test.is_some_and(|test| test.p.is_bound),
            is_equal: false,
        }
    }
}

/// A metric of two estimates. `both` holds the columns of `a` followed by the columns of `b`.
fn contrast<'a>(info: &MetricInfo, [a, b, both]: [&'a Columns; 3]) -> Contrast<'a> {
    let terms = Terms::of(a.terms(info), b.terms(info));
    Contrast { a: a.weighted(info), b: b.weighted(info), both: both.weighted(info), terms }
}

/// The columns that the metrics of an estimate are computed from.
struct Columns {
    numbers: NumberColumns,
    /// 1 for each exact number.
    hits: Vec<f64>,
}

impl Columns {
    /// Builds the columns of these estimates, one after the other.
    fn of(items: &Items, estimates: &[usize]) -> Self {
        let pairs = || {
            estimates
                .iter()
                .flat_map(|&which| items.iter().map(move |(truth, values)| (values[which], *truth)))
        };
        let predictions: Vec<Prediction> =
            pairs().map(|(value, truth)| Prediction::new(truth, Estimates::point(value))).collect();
        let hits = pairs().map(|(value, truth)| f64::from(u8::from(same(value, truth)))).collect();
        Self { numbers: NumberColumns::new(&predictions, mean_in_lanes), hits }
    }

    /// Returns a metric as a function of the item weights.
    fn weighted(&self, info: &MetricInfo) -> Weighted<'_> {
        match info.statistic {
            Statistic::Number(of) | Statistic::RelativeNumber(of) | Statistic::Rating(of) => {
                Box::new(move |weights| of(&self.numbers, weights))
            }
            // The only other metric that is compared is accuracy.
            _ => Box::new(move |weights| mean_in_lanes(&self.hits, weights)),
        }
    }

    fn terms(&self, info: &MetricInfo) -> Option<Vec<f64>> {
        match info.statistic {
            Statistic::Number(_) | Statistic::RelativeNumber(_) | Statistic::Rating(_) => {
                info.terms?(&self.numbers)
            }
            _ => Some(self.hits.clone()),
        }
    }
}

/// A metric of each estimate.
struct Measured<'a> {
    info: &'static MetricInfo,
    statistics: Vec<Weighted<'a>>,
    /// Number of items that the metric covers.
    n: usize,
    /// Values over all items.
    plain: Vec<f64>,
    /// The estimate with the best value. Ties go to the first.
    best: usize,
}

impl<'a> Measured<'a> {
    /// `None` if some estimate does not have the metric.
    fn of(name: &str, columns: &'a [Columns], items: usize) -> Option<Self> {
        let info = find(name)?;
        let n = match info.statistic {
            Statistic::RelativeNumber(_) => columns.first()?.numbers.nonzero(),
            _ => items,
        };
        let statistics: Vec<Weighted<'a>> = columns.iter().map(|columns| columns.weighted(info)).collect();
        let ones = vec![1.0; items];
        let plain: Option<Vec<f64>> = statistics.iter().map(|statistic| statistic(&ones)).collect();
        let plain = plain?;
        let is_higher_better = better(name) == Better::Higher;
        let beats = |a: f64, b: f64| if is_higher_better { a > b } else { a < b };
        let best = (1..plain.len())
            .fold(0, |best, which| if beats(plain[which], plain[best]) { which } else { best });
        Some(Self { info, statistics, n, plain, best })
    }

    fn at(&self, weights: &[f64]) -> Vec<Option<f64>> {
        self.statistics.iter().map(|statistic| statistic(weights)).collect()
    }

    /// Returns the values of all estimates with their intervals. `drawn` has the values of all estimates for
    /// each resample.
    fn values(&self, drawn: &[&[Option<f64>]]) -> IndexMap<String, Metric> {
        let metric = |(which, name): (usize, &str)| {
            let mut drawn: Vec<f64> = drawn.iter().filter_map(|values| values[which]).collect();
            let metric = Metric::plain(Some(self.plain[which]), self.n);
            (name.to_owned(), metric.with_interval(bootstrap_interval(&mut drawn)))
        };
        AllEstimates::NAMES.into_iter().enumerate().map(metric).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row with these estimates: mode, median, and a mean that the other three are derived from.
    fn row(truth: f64, [mode, median, mean]: [f64; 3]) -> Row {
        let estimates =
            AllEstimates { mode, median, trimmed_mean: mean, mean: mean + 1.0, weighted_sum: mean / 2.0 };
        Row { estimates: Some(estimates), ..Row::read(mean, truth) }
    }

    fn scores(rows: &[Row]) -> IndexMap<String, EstimateScores> {
        compare_estimates(&rows.iter().collect::<Vec<_>>(), 0)
    }

    fn values(scores: &EstimateScores) -> Vec<f64> {
        scores.values.values().map(|metric| metric.value.unwrap()).collect()
    }

    #[test]
    fn every_estimate_has_the_metrics_of_its_numbers() {
        let rows = [row(4.0, [4.0, 3.0, 3.0]), row(8.0, [8.0, 6.0, 10.0]), row(0.0, [3.0, 1.0, 0.0])];
        let scores = scores(&rows);
        assert_eq!(scores.keys().collect::<Vec<_>>(), COMPARED.iter().collect::<Vec<_>>());
        // Errors of the mode 0, 0, 3; of the median 1, 2, 1; of the means 1, 2, 0; 0, 3, 1 and 2.5, 3, 0.
        assert_eq!(values(&scores["mae"]), [1.0, 4.0 / 3.0, 1.0, 4.0 / 3.0, 5.5 / 3.0]);
        assert_eq!(values(&scores["accuracy"]), [2.0 / 3.0, 0.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0]);
        assert_eq!((&*scores["mae"].best, &*scores["accuracy"].best), ("mode", "mode"));
        assert_eq!(scores["rmse"].best, "trimmed_mean");
        // Without the truth of 0.
        assert_eq!((scores["mape"].values["mode"].n, scores["mae"].values["mode"].n), (2, 3));
        assert!((values(&scores["mape"])[1] - 0.25).abs() < 1e-12);
    }

    #[test]
    fn the_best_estimate_leads_by_the_paired_difference() {
        // The median is closer than the mode on every item, by 1 or by 3.
        let items = (0..40).map(f64::from);
        let rows: Vec<Row> = items
            .map(|truth| row(truth, [truth + 2.0 + truth % 2.0 * 2.0, truth + 1.0, truth + 9.0]))
            .collect();
        let mae = &scores(&rows)["mae"];
        assert_eq!(mae.best, "median");
        let behind = mae.behind["mode"];
        assert!((behind.difference - 2.0).abs() < 1e-12);
        assert!(behind.low.unwrap() > 1.0 && behind.high.unwrap() < 3.0, "{behind:?}");
        assert!(behind.p.unwrap() < 0.01, "{behind:?}");
        assert!(!mae.behind.contains_key("median"));
    }

    #[test]
    fn equal_estimates_do_not_differ() {
        let one = AllEstimates { mode: 1.0, median: 1.0, trimmed_mean: 1.0, mean: 1.0, weighted_sum: 1.0 };
        let row = |truth| Row { estimates: Some(one), ..Row::read(1.0, f64::from(truth)) };
        let rows: Vec<Row> = (0..10).map(row).collect();
        let rmse = &scores(&rows)["rmse"];
        assert_eq!((&*rmse.best, rmse.behind["median"].p), ("mode", Some(1.0)));
        assert_eq!(rmse.best_names(), AllEstimates::NAMES);
        assert_eq!((rmse.runner_up(), rmse.p_holm), (None, None));
    }

    #[test]
    fn a_lead_over_few_items_is_not_tested_and_a_tie_is_named() {
        let lead = |truth: f64| row(truth, [truth, truth, truth + 1.0]);
        let of = |n: usize| scores(&(0..n).map(|truth| lead(truth as f64)).collect::<Vec<_>>());
        for n in [1, 2, 5] {
            let mae = &of(n)["mae"];
            assert_eq!(
                (mae.best_names(), mae.p_holm, mae.behind["mean"].p),
                (vec!["mode", "median"], None, None)
            );
        }
        let mae = &of(40)["mae"];
        let (name, behind) = mae.runner_up().unwrap();
        assert_eq!((mae.best_names(), name), (vec!["mode", "median"], "trimmed_mean"));
        assert!(behind.p.unwrap() < 0.01, "{behind:?}");
    }

    #[test]
    fn leads_on_several_metrics_are_corrected_together() {
        let rows: Vec<Row> = (0..40)
            .map(|index| {
                let truth = f64::from(index);
                row(
                    truth,
                    [
                        truth + f64::from(index % 5),
                        truth + f64::from(index % 3),
                        truth + f64::from(index % 4),
                    ],
                )
            })
            .collect();
        let scores = scores(&rows);
        let p = |scores: &EstimateScores| scores.runner_up().and_then(|(_, behind)| behind.p);
        let smallest = scores.values().filter_map(p).fold(1.0, f64::min);
        let tests = scores.values().filter(|scores| p(scores).is_some()).count() as f64;
        for (name, scores) in &scores {
            let corrected = scores.p_holm.unwrap();
            assert!(corrected >= (smallest * tests).min(1.0) - 1e-12, "{name}: {corrected}");
            assert!(corrected >= p(scores).unwrap(), "{name}");
        }
    }

    #[test]
    fn items_without_a_distribution_are_left_out() {
        let rows = [Row::read(1.0, 1.0), Row { truth: None, ..row(0.0, [0.0; 3]) }];
        assert!(scores(&rows).is_empty());
        let rows = [Row::read(1.0, 1.0), row(2.0, [2.0, 2.0, 3.0])];
        let accuracy = &scores(&rows)["accuracy"];
        assert_eq!((accuracy.values["mode"].n, accuracy.behind["mean"].p), (1, None));
    }
}
