//! The estimates of predicted distributions side by side: the number metrics of each, and how sure it is that the best one leads.
//!
//! All are over the same items, those whose distribution has every estimate. Resamples are paired: every estimate sees the
//! same draws of the items.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::numbers::{NumberColumns, Prediction};
use super::registry::{Better, Statistic, better, find};
use super::{Estimates, Metric, RESAMPLES, Row, bootstrap_interval, same};
use crate::stats::bootstrap::{Bootstrap, test_resampled};
use crate::stats::weighted::{Weighted, mean_in_lanes};

/// One number for each way to reduce a distribution to one. All finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllEstimates {
    /// Most probable number.
    pub mode: f64,
    pub median: f64,
    /// Mean without the trimmed tails, or the server's value in its place.
    pub trimmed_mean: f64,
    /// Mean of all closed numbers.
    pub mean: f64,
    /// Sum of p(v) v, not divided by the closed mass: texts that are not numbers count as 0 (RAIL, TRACT).
    pub weighted_sum: f64,
}

impl AllEstimates {
    pub const NAMES: [&'static str; 5] = ["mode", "median", "trimmed_mean", "mean", "weighted_sum"];

    /// In the order of [`Self::NAMES`].
    fn values(self) -> [f64; 5] {
        [self.mode, self.median, self.trimmed_mean, self.mean, self.weighted_sum]
    }
}

/// The metrics that are computed of every estimate, in the order of tables.
const COMPARED: [&str; 9] =
    ["accuracy", "mae", "rmse", "r2", "median_ae", "log_mae", "pearson", "spearman", "mape"];

/// As well where the numbers are those of judges.
const COMPARED_OF_JUDGES: [&str; 2] = ["kendall", "kappa"];

/// A metric of every estimate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EstimateScores {
    /// By name of the estimate.
    pub values: IndexMap<String, Metric>,
    /// The estimate with the best value; the first of equal ones.
    pub best: String,
    /// How far the others are from the best, by their name.
    pub behind: IndexMap<String, Behind>,
}

impl EstimateScores {
    /// The estimate next to the best one, and how far it is behind.
    /// Estimates that are the best one under another name, as the trimmed mean is the mean without a trim, are passed over.
    pub fn runner_up(&self) -> Option<(&str, Behind)> {
        let behind = self.behind.iter().map(|(name, behind)| (name.as_str(), *behind));
        let behind = behind.filter(|(_, behind)| !behind.is_nothing());
        behind.min_by(|(_, a), (_, b)| a.difference.abs().total_cmp(&b.difference.abs()))
    }
}

/// The metric of an estimate less that of the best one, over paired resamples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Behind {
    pub difference: f64,
    /// 95% interval; missing where too few resamples have the metric.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Two-sided, of no difference.
    pub p: Option<f64>,
}

impl Behind {
    /// Whether no resample tells the two apart.
    fn is_nothing(self) -> bool {
        let ends = self.low.zip(self.high);
        ends.is_some_and(|(low, high)| [self.difference, low, high].iter().all(|end| end.abs() < 1e-12))
    }
}

/// By name of the metric. Empty where no item has a distribution and a true number.
pub fn compare_estimates(rows: &[&Row], seed: u64) -> IndexMap<String, EstimateScores> {
    let items: Vec<(f64, [f64; 5])> =
        rows.iter().filter_map(|row| Some((row.truth?, row.estimates?.values()))).collect();
    if items.is_empty() {
        return IndexMap::new();
    }
    let columns: Vec<Columns> = (0..AllEstimates::NAMES.len())
        .map(|which| Columns::of(items.iter().map(|(truth, values)| (values[which], *truth))))
        .collect();
    let is_judged = rows.iter().any(|row| row.judgement.is_some());
    let compared = COMPARED.iter().chain(COMPARED_OF_JUDGES.iter().filter(|_| is_judged));
    let metrics: Vec<Measured<'_>> =
        compared.filter_map(|name| Measured::of(name, &columns, items.len())).collect();
    let resamples = if items.len() < 2 { 0 } else { RESAMPLES };
    let drawn = Bootstrap { resamples, seed }.resample_in_parallel(items.len(), |weights| {
        metrics.iter().map(|metric| metric.at(weights)).collect::<Vec<_>>()
    });
    let scores = metrics.iter().enumerate().map(|(index, metric)| {
        let drawn: Vec<&[Option<f64>]> = drawn.iter().map(|metrics| metrics[index].as_slice()).collect();
        (metric.name.to_owned(), metric.scores(items.len(), &drawn))
    });
    scores.collect()
}

/// What metrics of one estimate are computed from.
struct Columns {
    numbers: NumberColumns,
    /// 1 where the number is exact.
    hits: Vec<f64>,
}

impl Columns {
    /// Of estimates and truths.
    fn of(pairs: impl Iterator<Item = (f64, f64)> + Clone) -> Self {
        let predictions: Vec<Prediction> =
            pairs.clone().map(|(value, truth)| Prediction::new(truth, Estimates::point(value))).collect();
        let hits = pairs.map(|(value, truth)| f64::from(u8::from(same(value, truth)))).collect();
        Self { numbers: NumberColumns::new(&predictions, mean_in_lanes), hits }
    }
}

/// A metric as a function of how often each item counts, for each estimate.
struct Measured<'a> {
    name: &'static str,
    statistics: Vec<Weighted<'a>>,
    /// Items that the metric is over.
    n: usize,
}

impl<'a> Measured<'a> {
    /// `None` where some estimate does not have the metric.
    fn of(name: &'static str, columns: &'a [Columns], items: usize) -> Option<Self> {
        let metric = find(name)?;
        let n = match metric.statistic {
            Statistic::RelativeNumber(_) => columns.first()?.numbers.nonzero(),
            _ => items,
        };
        let statistic = |columns: &'a Columns| -> Weighted<'a> {
            match metric.statistic {
                Statistic::Number(of) | Statistic::RelativeNumber(of) | Statistic::Rating(of) => {
                    Box::new(move |weights| of(&columns.numbers, weights))
                }
                // The only other metric that is compared is accuracy.
                _ => Box::new(move |weights| mean_in_lanes(&columns.hits, weights)),
            }
        };
        let measured = Self { name, statistics: columns.iter().map(statistic).collect(), n };
        measured.at(&vec![1.0; items]).iter().all(Option::is_some).then_some(measured)
    }

    fn at(&self, weights: &[f64]) -> Vec<Option<f64>> {
        self.statistics.iter().map(|statistic| statistic(weights)).collect()
    }

    /// `drawn` has the values of all estimates for each resample.
    fn scores(&self, items: usize, drawn: &[&[Option<f64>]]) -> EstimateScores {
        let values: Vec<f64> = self.at(&vec![1.0; items]).into_iter().flatten().collect();
        let is_higher_better = better(self.name) == Better::Higher;
        let beats = |a: f64, b: f64| if is_higher_better { a > b } else { a < b };
        let best = (1..values.len())
            .fold(0, |best, which| if beats(values[which], values[best]) { which } else { best });
        let metric = |which: usize| {
            let mut drawn: Vec<f64> = drawn.iter().filter_map(|values| values[which]).collect();
            Metric::plain(Some(values[which]), self.n).with_interval(bootstrap_interval(&mut drawn))
        };
        let behind = |which: usize| {
            let difference = values[which] - values[best];
            let resampled = drawn.iter().map(|values| Some(values[which]? - values[best]?));
            let tested = test_resampled(difference, resampled);
            Behind {
                difference,
                low: tested.map(|tested| tested.interval.low),
                high: tested.map(|tested| tested.interval.high),
                p: tested.map(|tested| tested.p),
            }
        };
        let name = |which: usize| AllEstimates::NAMES[which].to_owned();
        EstimateScores {
            values: (0..values.len()).map(|which| (name(which), metric(which))).collect(),
            best: name(best),
            behind: (0..values.len())
                .filter(|which| *which != best)
                .map(|which| (name(which), behind(which)))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row whose estimates are mode, median and, for the other three, means.
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
    fn every_estimate_has_the_metrics_of_its_own_numbers() {
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
