//! Compares the estimates of predicted distributions: the number metrics of each estimate, and whether each
//! differs from the mode, which greedy decoding writes if the number is one token.
//!
//! All estimates are computed over the same items: those whose distribution has every estimate. Resamples are
//! paired: every estimate sees the same draws of the items.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::numbers::{NumberColumns, Prediction};
use super::registry::{Better, MetricInfo, Statistic, better, find};
use super::{Draw, Estimates, Influence, Metric, RESAMPLES, Row, influence, same};
use crate::stats::bootstrap::Bootstrap;
use crate::stats::difference::{Contrast, DifferenceTest, PValue, Spread, test_contrasts};
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
    /// The first one is the mode, which all others are tested against.
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
    /// The estimates that equal the best one on every item, as the trimmed mean equals the mean without a
    /// trim.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub equal_to_best: Vec<String>,
    /// The difference of each other estimate from the mode, by name.
    pub against_mode: IndexMap<String, AgainstMode>,
}

impl EstimateScores {
    /// Returns the best estimate and all that equal it on every item.
    pub fn best_names(&self) -> Vec<&str> {
        std::iter::once(self.best.as_str()).chain(self.equal_to_best.iter().map(String::as_str)).collect()
    }
}

/// Metric of an estimate minus the metric of the mode, over paired resamples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgainstMode {
    pub difference: f64,
    /// 95% interval. Missing if there are too few items, or if too few resamples have the metric.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Two-sided p-value of no difference, not corrected. Missing if the interval is.
    pub p: Option<f64>,
    /// Whether `p` is only an upper bound, because no resample was as extreme as the items.
    pub p_is_bound: bool,
    /// `p`, corrected for the number of metrics by which this estimate is tested (Holm).
    pub p_holm: Option<f64>,
    pub p_holm_is_bound: bool,
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
    let of_judges: &[&str] = if is_judged { &COMPARED_OF_JUDGES } else { &[] };
    let compared = COMPARED.iter().chain(of_judges);
    let metrics: Vec<MeasuredMetric<'_>> =
        compared.filter_map(|name| MeasuredMetric::of(name, &columns, items.len())).collect();
    let bootstrap = Bootstrap { resamples: if items.len() < 2 { 0 } else { RESAMPLES }, seed };
    let drawn = bootstrap.resample_in_parallel(items.len(), |weights| {
        metrics.iter().map(|metric| metric.draw(weights)).collect::<Vec<_>>()
    });
    let mut scores: IndexMap<String, EstimateScores> = IndexMap::new();
    for (index, metric) in metrics.iter().enumerate() {
        let drawn: Vec<&[Draw]> = drawn.iter().map(|metrics| metrics[index].as_slice()).collect();
        let mut equal_to_best = Vec::new();
        for (which, name) in AllEstimates::NAMES.into_iter().enumerate() {
            if which != metric.best && differing(&items, metric.best, which).is_empty() {
                equal_to_best.push(name.to_owned());
            }
        }
        let of_metric = EstimateScores {
            values: metric.values(&columns, &drawn),
            best: AllEstimates::NAMES[metric.best].to_owned(),
            equal_to_best,
            against_mode: IndexMap::new(),
        };
        scores.insert(metric.info.name.to_owned(), of_metric);
    }
    for (which, name) in AllEstimates::NAMES.into_iter().enumerate().skip(1) {
        let found = against_mode(&items, &metrics, &columns, which, bootstrap);
        for (scores, found) in scores.values_mut().zip(found) {
            if let Some(found) = found {
                scores.against_mode.insert(name.to_owned(), found);
            }
        }
    }
    scores
}

/// Returns the difference of an estimate from the mode by each metric that both have. The p-values are
/// corrected together.
fn against_mode(
    items: &Items,
    metrics: &[MeasuredMetric<'_>],
    columns: &[Columns],
    which: usize,
    bootstrap: Bootstrap,
) -> Vec<Option<AgainstMode>> {
    let both = Columns::of(items, &[0, which]);
    let contrasts: Vec<Contrast<'_>> =
        metrics.iter().map(|metric| contrast(metric.info, [&columns[0], &columns[which], &both])).collect();
    let tests = test_contrasts(&contrasts, items.len(), &differing(items, 0, which), bootstrap);
    let p_values: Vec<PValue> = tests.iter().flatten().map(|test| test.p).collect();
    let mut corrected = holm(&p_values).into_iter();
    let mut found = Vec::new();
    for (metric, test) in metrics.iter().zip(tests) {
        let corrected = test.and_then(|_| corrected.next());
        let sides = metric.plain[which].zip(metric.plain[0]);
        found.push(sides.map(|(value, mode)| AgainstMode {
            p_holm: corrected.map(|p| p.value),
            p_holm_is_bound: corrected.is_some_and(|p| p.is_bound),
            ..AgainstMode::of(value - mode, test)
        }));
    }
    found
}

/// Returns the indices of the items on which two estimates differ.
fn differing(items: &Items, one: usize, other: usize) -> Vec<usize> {
    let mut differing = Vec::new();
    for (index, (_, values)) in items.iter().enumerate() {
        if values[one].total_cmp(&values[other]).is_ne() {
            differing.push(index);
        }
    }
    differing
}

/// True numbers with the estimates of each item, in the order of [`AllEstimates::NAMES`].
type Items = Vec<(f64, [f64; 5])>;

impl AgainstMode {
    fn of(difference: f64, test: Option<DifferenceTest>) -> Self {
        Self {
            difference,
            low: test.map(|test| test.interval.low),
            high: test.map(|test| test.interval.high),
            p: test.map(|test| test.p.value),
            p_is_bound: test.is_some_and(|test| test.p.is_bound),
            ..Self::default()
        }
    }
}

/// A metric of two estimates. `both` holds the columns of `a` followed by the columns of `b`.
fn contrast<'a>(info: &MetricInfo, [a, b, both]: [&'a Columns; 3]) -> Contrast<'a> {
    let spread = match info.statistic {
        Statistic::Number(_) | Statistic::RelativeNumber(_) | Statistic::Rating(_) => {
            info.difference_spread(&a.numbers, &b.numbers)
        }
        _ => Spread::of_means(&a.hits, &b.hits),
    };
    Contrast { a: a.weighted(info), b: b.weighted(info), both: both.weighted(info), spread }
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
        let mut predictions = Vec::with_capacity(estimates.len() * items.len());
        let mut hits = Vec::with_capacity(predictions.capacity());
        for &which in estimates {
            for (truth, values) in items {
                predictions.push(Prediction::new(*truth, Estimates::point(values[which])));
                hits.push(f64::from(u8::from(same(values[which], *truth))));
            }
        }
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
}

/// A metric of each estimate.
struct MeasuredMetric<'a> {
    info: &'static MetricInfo,
    /// There are no influences on statistics that are not functions of means, nor on accuracy, whose
    /// intervals are Wilson's.
    statistics: Vec<(Weighted<'a>, Option<Influence<'a>>)>,
    /// Number of items that the metric covers.
    n: usize,
    /// Values over all items. An estimate that is always the same has no correlation.
    plain: Vec<Option<f64>>,
    /// The estimate with the best value. Ties go to the first.
    best: usize,
}

impl<'a> MeasuredMetric<'a> {
    /// `None` if no estimate has the metric.
    fn of(name: &str, columns: &'a [Columns], items: usize) -> Option<Self> {
        let info = find(name)?;
        let n = match info.statistic {
            Statistic::RelativeNumber(_) => columns.first()?.numbers.nonzero(),
            _ => items,
        };
        let statistics: Vec<_> = columns
            .iter()
            .map(|columns| (columns.weighted(info), influence(info, &columns.numbers)))
            .collect();
        let ones = vec![1.0; items];
        let plain: Vec<Option<f64>> = statistics.iter().map(|(statistic, _)| statistic(&ones)).collect();
        let is_higher_better = better(name) == Better::Higher;
        let mut best: Option<(usize, f64)> = None;
        for (which, value) in plain.iter().enumerate() {
            let Some(value) = *value else { continue };
            let is_best =
                best.is_none_or(|(_, most)| if is_higher_better { value > most } else { value < most });
            if is_best {
                best = Some((which, value));
            }
        }
        let (best, _) = best?;
        Some(Self { info, statistics, n, plain, best })
    }

    fn draw(&self, weights: &[f64]) -> Vec<Draw> {
        let mut draws = Vec::with_capacity(self.statistics.len());
        for (statistic, influence) in &self.statistics {
            draws.push(Draw::of(statistic, influence.as_ref(), weights));
        }
        draws
    }

    /// Returns the values of all estimates with their intervals. `drawn` has the draws of all estimates for
    /// each resample.
    fn values(&self, columns: &[Columns], drawn: &[&[Draw]]) -> IndexMap<String, Metric> {
        let items = self.draw(&vec![1.0; columns[0].hits.len()]);
        let mut values = IndexMap::new();
        for (which, name) in AllEstimates::NAMES.into_iter().enumerate() {
            let metric = match self.info.statistic {
                Statistic::Share { .. } => {
                    let hits = &columns[which].hits;
                    Metric::share(hits.iter().filter(|hit| **hit > 0.5).count(), hits.len())
                }
                _ => Metric::plain(self.plain[which], self.n)
                    .with_interval(items[which].interval(self.info, drawn.iter().map(|draws| draws[which]))),
            };
            values.insert(name.to_owned(), metric);
        }
        values
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
    fn each_estimate_is_tested_against_the_mode() {
        // The median is closer than the mode on every item, by 1 or by 3.
        let items = (0..40).map(f64::from);
        let rows: Vec<Row> = items
            .map(|truth| row(truth, [truth + 2.0 + truth % 2.0 * 2.0, truth + 1.0, truth + 9.0]))
            .collect();
        let mae = &scores(&rows)["mae"];
        assert_eq!(mae.best, "median");
        let median = mae.against_mode["median"];
        assert!((median.difference + 2.0).abs() < 1e-12);
        assert!(median.low.unwrap() > -3.0 && median.high.unwrap() < -1.0, "{median:?}");
        assert!(median.p.unwrap() < 0.01, "{median:?}");
        let mean = mae.against_mode["trimmed_mean"];
        assert!((mean.difference - 6.0).abs() < 1e-12 && mean.p.unwrap() < 0.01, "{mean:?}");
        assert!(!mae.against_mode.contains_key("mode"));
    }

    /// The best estimate is the trimmed mean, and the mean is nearly the same.
    #[test]
    fn a_nearly_identical_estimate_does_not_hide_the_lead_over_the_mode() {
        let estimates = |truth: f64| AllEstimates {
            mode: truth + 3.0 + truth % 2.0,
            median: truth + 2.0,
            trimmed_mean: truth + 0.5,
            mean: truth + 0.5 + if truth < 1.0 { 1e-6 } else { 0.0 },
            weighted_sum: truth + 1.0,
        };
        let rows: Vec<Row> = (0..60)
            .map(f64::from)
            .map(|truth| Row { estimates: Some(estimates(truth)), ..Row::read(truth, truth) })
            .collect();
        let rmse = &scores(&rows)["rmse"];
        assert_eq!((&*rmse.best, rmse.equal_to_best.len()), ("trimmed_mean", 0));
        for name in ["trimmed_mean", "mean"] {
            let found = rmse.against_mode[name];
            assert!(found.difference < -2.0 && found.p_holm.unwrap() < 0.05, "{name}: {found:?}");
        }
    }

    #[test]
    fn an_estimate_that_is_always_the_same_takes_no_correlation_from_the_others() {
        let rows: Vec<Row> =
            (0..20).map(f64::from).map(|truth| row(truth, [3.0, truth, truth + truth % 3.0])).collect();
        let pearson = &scores(&rows)["pearson"];
        assert_eq!((pearson.values["mode"].value, &*pearson.best), (None, "median"));
        assert!(pearson.values["mean"].value.is_some_and(|value| value > 0.9), "{pearson:?}");
        assert!(pearson.against_mode.is_empty(), "{pearson:?}");
    }

    #[test]
    fn equal_estimates_do_not_differ() {
        let one = AllEstimates { mode: 1.0, median: 1.0, trimmed_mean: 1.0, mean: 1.0, weighted_sum: 1.0 };
        let row = |truth| Row { estimates: Some(one), ..Row::read(1.0, f64::from(truth)) };
        let rows: Vec<Row> = (0..10).map(row).collect();
        let rmse = &scores(&rows)["rmse"];
        assert_eq!((&*rmse.best, rmse.against_mode["median"].p), ("mode", Some(1.0)));
        assert_eq!(rmse.best_names(), AllEstimates::NAMES);
    }

    #[test]
    fn few_items_are_not_tested_and_a_tie_is_named() {
        let lead = |truth: f64| row(truth, [truth, truth, truth + 1.0]);
        let of = |n: usize| scores(&(0..n).map(|truth| lead(truth as f64)).collect::<Vec<_>>());
        for n in [1, 2, 5] {
            let mae = &of(n)["mae"];
            let mean = mae.against_mode["mean"];
            assert_eq!((mae.best_names(), mean.p_holm, mean.p), (vec!["mode", "median"], None, None));
        }
        let mae = &of(40)["mae"];
        assert_eq!(mae.best_names(), ["mode", "median"]);
        assert!(mae.against_mode["trimmed_mean"].p.unwrap() < 0.01, "{mae:?}");
    }

    #[test]
    fn the_tests_of_an_estimate_are_corrected_together() {
        let rows: Vec<Row> = (0..40)
            .map(|index| {
                let truth = f64::from(index);
                let [mode, median, mean] =
                    [index % 5, index % 3, index % 4].map(|off| truth + f64::from(off));
                row(truth, [mode, median, mean])
            })
            .collect();
        let scores = scores(&rows);
        for estimate in ["median", "trimmed_mean"] {
            let found = || scores.values().map(|scores| scores.against_mode[estimate]);
            let smallest = found().filter_map(|found| found.p).fold(1.0, f64::min);
            let tests = found().filter(|found| found.p.is_some()).count() as f64;
            for found in found() {
                let corrected = found.p_holm.unwrap();
                assert!(corrected >= (smallest * tests).min(1.0) - 1e-12, "{estimate}: {found:?}");
                assert!(corrected >= found.p.unwrap(), "{estimate}: {found:?}");
            }
        }
    }

    /// The intervals of an estimate's metrics are computed like those of the run's metrics.
    #[test]
    fn an_estimate_and_a_run_with_the_same_numbers_have_similar_intervals() {
        let rows: Vec<Row> = (0..30)
            .map(|index| {
                let truth = f64::from(index % 7);
                row(truth, [truth + f64::from(index % 3); 3])
            })
            .collect();
        let of_run = crate::metrics::Metrics::of(&rows.iter().collect::<Vec<_>>(), 0);
        let scores = scores(&rows);
        for name in ["accuracy", "rmse", "mae", "pearson"] {
            let one = scores[name].values["mode"].interval().unwrap();
            let other = of_run.get(name).interval().unwrap();
            let distance = (one.low - other.low).abs().max((one.high - other.high).abs());
            assert!(distance < 0.12 * (other.high - other.low), "{name}: {one:?} {other:?}");
        }
    }

    #[test]
    fn items_without_a_distribution_are_left_out() {
        let rows = [Row::read(1.0, 1.0), Row { truth: None, ..row(0.0, [0.0; 3]) }];
        assert!(scores(&rows).is_empty());
        let rows = [Row::read(1.0, 1.0), row(2.0, [2.0, 2.0, 3.0])];
        let accuracy = &scores(&rows)["accuracy"];
        assert_eq!((accuracy.values["mode"].n, accuracy.against_mode["mean"].p), (1, None));
    }
}
