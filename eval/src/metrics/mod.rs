//! Metrics of answers.
//!
//! In: one [`Row`] per item. Out: every metric of the [`registry`] that the rows have data for, with its
//! interval and the number of rows that it covers. Invariant: values are finite or missing, never NaN.

pub mod corrected;
pub mod cost;
pub mod decision;
pub mod digits;
pub mod distribution;
pub mod drift;
pub mod estimates;
pub mod forms;
pub mod judgement;
pub mod law;
pub mod likelihood;
pub mod numbers;
pub mod registry;
pub mod texts;

use std::collections::BTreeMap;
use std::sync::Arc;

use indexmap::IndexMap;
use ntl_paper::numpy::quantile;
use serde::{Deserialize, Serialize, Serializer};

use self::decision::{DecisionScores, OptionScores};
use self::digits::DigitScores;
use self::distribution::{Crps, DistributionScores, IntervalScore};
use self::estimates::AllEstimates;
use self::judgement::Judgement;
use self::law::{Law, LawScores};
use self::likelihood::{Likelihood, loss};
use self::numbers::{NumberColumns, Prediction};
use self::registry::{METRICS, MetricInfo, NumberStatistic, Statistic, in_table_order};
use self::texts::TextScores;
use crate::stats::Interval;
use crate::stats::bootstrap::{Bootstrap, percentile_interval};
use crate::stats::difference::ITEMS_MIN;
use crate::stats::studentised::{Scale, Studied, deviation, share_of_largest};
use crate::stats::weighted::{Weighted, mean_in_order};
use crate::stats::wilson::wilson;

/// Number of bootstrap resamples for the intervals of a run.
pub const RESAMPLES: u32 = 1_000;

/// The largest twentieth of the values decides a mean if it has more than this share of their sum.
const DECIDED_BY_LARGEST: f64 = 0.5;

/// Two numbers are the same if they differ by at most this share of the truth. This is wider than the
/// rounding of `f64` and narrower than the distance between any two decimals of up to nine digits. Unlike the
/// `1e-5` of `numpy.isclose`, it does not accept 1000009 for 1000000.
pub const EXACT_TOLERANCE: f64 = 1e-9;

/// Returns `true` if a number is the true one, within [`EXACT_TOLERANCE`].
pub fn same(value: f64, truth: f64) -> bool {
    (value - truth).abs() <= EXACT_TOLERANCE * truth.abs()
}

/// A predicted number: the best estimate for each of three kinds of metric. All are equal if only one number
/// is known, and all are finite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimates {
    /// For squared errors and correlations.
    pub mean: f64,
    /// For absolute errors.
    pub median: f64,
    /// For exact matches.
    pub mode: f64,
}

impl Estimates {
    /// Uses one number for all three.
    pub fn point(value: f64) -> Self {
        Self { mean: value, median: value, mode: value }
    }
}

/// The result for one item.
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
    pub outcome: Outcome,
    /// The true number, which is finite; `None` if the true answer is not a number.
    pub truth: Option<f64>,
    /// Whether the answer is correct.
    pub correct: bool,
    /// Whether the answer is correct by lm-eval's two rules, strict and flexible.
    pub lm_eval_matches: Option<[bool; 2]>,
    /// Only for tasks whose answers are text, and in paper mode.
    pub text_scores: Option<TextScores>,
    /// Every estimate of the distribution, if the server returns them all.
    pub estimates: Option<AllEstimates>,
    /// Only if the answer is a distribution.
    pub distribution: Option<DistributionScores>,
    /// Only for tasks that prescribe the form of the answer.
    pub digits: Option<DigitScores>,
    /// Only if the true distribution is known and the answer has a number.
    pub law: Option<LawScores>,
    /// Only with `--score`, and in paper mode.
    pub likelihood: Option<Likelihood>,
    /// Present for every item that is judged, even without a score.
    pub judgement: Option<Judgement>,
    /// Present for every question of a decision model.
    pub decision: Option<DecisionScores>,
}

impl Row {
    /// Returns the row of a known distribution as the prediction, such as that of a simple method.
    pub fn of_law(predicted: &Law, truth: f64, true_law: Option<&Law>) -> Self {
        let estimates = predicted.estimates();
        let crps = predicted.crps(truth);
        let inside = IntervalScore::of(predicted.outer_interval(), truth).covers;
        Self {
            outcome: Outcome::Read(estimates),
            truth: Some(truth),
            correct: same(estimates.mode, truth),
            lm_eval_matches: None,
            text_scores: None,
            estimates: None,
            distribution: Some(DistributionScores {
                crps: Some(Crps { value: crps, low: crps, high: Some(crps) }),
                inside: Some(inside),
                ..DistributionScores::default()
            }),
            digits: None,
            law: true_law.map(|law| LawScores::of_law(law, predicted)),
            likelihood: None,
            judgement: None,
            decision: None,
        }
    }

    /// Returns `true` if the answer has to be a number.
    pub fn asks_number(&self) -> bool {
        self.truth.is_some() || self.judgement.is_some()
    }

    /// Returns `false` if the request failed. Such a row enters no metric.
    pub fn is_answered(&self) -> bool {
        self.outcome != Outcome::Failed
    }

    /// Returns whether a decision model gave none of the allowed answers.
    pub fn is_refused(&self) -> bool {
        self.decision.is_some_and(|decision| decision.is_refused)
    }

    /// Returns whether `correct` means something. Failed requests, judgements without a human rating and
    /// numbers of decision models are neither correct nor incorrect.
    pub fn has_right_answer(&self) -> bool {
        self.is_answered()
            && match self.decision {
                Some(decision) => decision.has_options,
                None => self.truth.is_some() || self.judgement.is_none(),
            }
    }

    /// Returns the predicted number, if the true answer is a number.
    fn prediction(&self) -> Option<Prediction> {
        match self.outcome {
            Outcome::Read(estimates) => Some(Prediction::new(self.truth?, estimates)),
            Outcome::Unparsed | Outcome::Failed => None,
        }
    }
}

/// A value with its 95% interval and the number of rows that it covers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metric {
    /// Missing if the metric is undefined.
    pub value: Option<f64>,
    /// Missing, like `high`, if there are too few rows.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Number of rows that the metric covers.
    pub n: usize,
    /// Only if the largest values decide the metric, so that its interval is too narrow: the share of the sum
    /// that the largest twentieth of the rows has (at least one row).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_largest: Option<f64>,
}

impl Metric {
    pub fn interval(&self) -> Option<Interval> {
        self.low.zip(self.high).map(|(low, high)| Interval { low, high })
    }

    /// Returns a metric without an interval. NaN and infinities become missing.
    pub fn plain(value: Option<f64>, n: usize) -> Self {
        Self { value: value.filter(|value| value.is_finite()), n, ..Self::default() }
    }

    /// Sets the interval, widened to include the value. Without a value there is no interval.
    pub fn with_interval(self, interval: Option<Interval>) -> Self {
        let interval = interval.zip(self.value).map(|(interval, value)| interval.including(value));
        Self {
            low: interval.map(|interval| interval.low),
            high: interval.map(|interval| interval.high),
            ..self
        }
    }

    /// Returns a share with its Wilson interval.
    pub fn share(hits: usize, n: usize) -> Self {
        Self::plain((n > 0).then(|| hits as f64 / n as f64), n).with_interval(wilson(hits, n))
    }
}

/// Returns the interval between the 2.5% and the 97.5% quantile of the values of [`RESAMPLES`] resamples, or
/// `None` if more than a tenth of them have no value.
pub fn bootstrap_interval(drawn: &mut [f64]) -> Option<Interval> {
    let enough = drawn.len() >= (RESAMPLES - RESAMPLES / 10) as usize;
    enough.then(|| percentile_interval(drawn, 0.025)).flatten()
}

/// Metrics by name. Reports of other versions may hold names that this version does not know.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Metrics(BTreeMap<String, Metric>);

/// The influence of each item on a statistic, as a function of the items' weights. `None` if it is undefined.
pub(super) type Influence<'a> = Box<dyn Fn(&[f64]) -> Option<Arc<[f64]>> + Sync + 'a>;

/// A metric over `n` items.
struct Resampled<'a> {
    info: &'static MetricInfo,
    n: usize,
    statistic: Weighted<'a>,
    /// `None` for statistics that are not functions of means.
    influence: Option<Influence<'a>>,
}

/// A statistic of items or of a resample, with the standard deviation of the influences if it is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Draw {
    value: Option<f64>,
    deviation: Option<f64>,
}

impl Draw {
    pub(super) fn of(statistic: &Weighted<'_>, influence: Option<&Influence<'_>>, weights: &[f64]) -> Self {
        let influence = influence.and_then(|influence| influence(weights));
        Self {
            value: statistic(weights),
            deviation: influence.and_then(|influence| deviation(&influence, weights)),
        }
    }

    fn studied(self) -> Option<Studied> {
        Some(Studied { value: self.value?, deviation: self.deviation? })
    }

    /// Returns the interval of a metric from the draws of resamples: of percentiles, widened to the
    /// studentised interval if the items vary and most resamples have a standard error. If few items differ
    /// from 0, the studentised interval alone is too narrow.
    pub(super) fn interval(
        self,
        info: &MetricInfo,
        resamples: impl Iterator<Item = Self> + Clone,
    ) -> Option<Interval> {
        let studentised = self.studied().filter(|items| items.deviation > 0.0).and_then(|items| {
            let studied = resamples.clone().filter_map(Self::studied);
            let plausible = studied.map(|resample| info.scale.plausible(items, resample));
            bootstrap_interval(&mut plausible.filter(|value| value.is_finite()).collect::<Vec<_>>())
        });
        let mut values: Vec<f64> = resamples.filter_map(|resample| resample.value).collect();
        let interval = match (studentised, bootstrap_interval(&mut values)) {
            (Some(studentised), Some(Interval { low, high })) => studentised.including(low).including(high),
            (studentised, percentiles) => studentised.or(percentiles)?,
        };
        Some(info.scale.limit(interval))
    }
}

impl Metrics {
    /// Computes all metrics. Shares have Wilson intervals. All others have intervals of a bootstrap from this
    /// seed, which is studentised for functions of means.
    pub fn of(rows: &[&Row], seed: u64) -> Self {
        let predictions: Vec<Prediction> = rows.iter().filter_map(|row| row.prediction()).collect();
        let numbers = NumberColumns::new(&predictions, mean_in_order);
        let asked = rows.iter().any(|row| row.truth.is_some());
        let texts: Vec<&TextScores> = rows.iter().filter_map(|row| row.text_scores.as_ref()).collect();
        let scored: Vec<&Likelihood> = rows.iter().filter_map(|row| row.likelihood.as_ref()).collect();
        let judged = rows.iter().any(|row| row.judgement.is_some());
        let decided = rows.iter().any(|row| row.decision.is_some());
        let options = rows.iter().filter_map(|row| row.decision.as_ref()?.options.as_ref());
        let options: Vec<&OptionScores> = options.collect();
        let numbers = &numbers;
        let texts = &texts;
        let scored = &scored;
        let options = &options;
        let mut all = Self::default();
        let mut resampled: Vec<Resampled<'_>> = Vec::new();
        for info in &METRICS {
            match info.statistic {
                Statistic::Share { hit, applies } => {
                    let hits: Vec<bool> = rows.iter().filter_map(|row| hit(row)).collect();
                    let applies = applies.is_some_and(|applies| rows.iter().any(|row| applies(row)));
                    if applies || !hits.is_empty() {
                        let count = hits.iter().filter(|hit| **hit).count();
                        all.set(info.name, Metric::share(count, hits.len()));
                    }
                }
                Statistic::Mean(value) => {
                    resampled.extend(mean_of(info, rows.iter().filter_map(|row| value(row)).collect()));
                }
                Statistic::Loss => {
                    let losses = scored.iter().filter_map(|item| loss(item, info.name));
                    resampled.extend(mean_of(info, losses.collect()));
                }
                Statistic::Number(of) | Statistic::RelativeNumber(of)
                    if asked && (!decided || info.is_of_decisions()) =>
                {
                    resampled.push(number(info, of, numbers));
                }
                Statistic::Rating(of) if asked && judged => resampled.push(number(info, of, numbers)),
                Statistic::Text(of) if !texts.is_empty() => {
                    let statistic = Box::new(move |weights: &[f64]| of(texts, weights));
                    resampled.push(Resampled { info, n: texts.len(), statistic, influence: None });
                }
                Statistic::Options(of) if !options.is_empty() => {
                    let statistic = Box::new(move |weights: &[f64]| of(options, weights));
                    resampled.push(Resampled { info, n: options.len(), statistic, influence: None });
                }
                Statistic::Likelihood(of) => {
                    let statistic = Box::new(move |weights: &[f64]| of(scored, weights));
                    resampled.push(Resampled { info, n: scored.len(), statistic, influence: None });
                }
                Statistic::Number(_)
                | Statistic::RelativeNumber(_)
                | Statistic::Rating(_)
                | Statistic::Text(_)
                | Statistic::Options(_)
                | Statistic::Separate => {}
            }
        }
        // The resamples only depend on the number of items.
        resampled.sort_by_key(|metric| metric.n);
        for metrics in resampled.chunk_by(|a, b| a.n == b.n) {
            all.bootstrap(metrics, seed);
        }
        if let Some(mape) = all.0.get_mut("mape") {
            mape.n = numbers.nonzero();
        }
        all
    }

    /// Adds metrics over the same number of items.
    fn bootstrap(&mut self, metrics: &[Resampled<'_>], seed: u64) {
        let n = metrics.first().map_or(0, |metric| metric.n);
        let bootstrap = Bootstrap { resamples: if n < 2 { 0 } else { RESAMPLES }, seed };
        let ones = vec![1.0; n];
        let items = draws(metrics, &ones);
        let resampled = bootstrap.resample(n, |weights| draws(metrics, weights));
        for (index, (metric, items)) in metrics.iter().zip(items).enumerate() {
            let plain = Metric::plain(items.value, n);
            if matches!(metric.info.statistic, Statistic::Likelihood(_)) && plain.value.is_none() {
                continue;
            }
            let interval = items.interval(metric.info, resampled.iter().map(|draws| draws[index]));
            let mut found = plain.with_interval(interval);
            if n >= ITEMS_MIN
                && metric.info.scale == Scale::Positive
                && let Some(influence) = &metric.influence
            {
                let share = influence(&ones).and_then(|values| share_of_largest(&values));
                found.share_of_largest = share.filter(|share| *share > DECIDED_BY_LARGEST);
            }
            self.set(metric.info.name, found);
        }
    }

    /// Returns a metric, without a value if it was not measured.
    pub fn get(&self, name: &str) -> Metric {
        self.0.get(name).copied().unwrap_or_default()
    }

    pub fn set(&mut self, name: &str, metric: Metric) {
        self.0.insert(name.to_owned(), metric);
    }

    /// Iterates in table order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Metric)> {
        in_table_order(self.0.keys().map(String::as_str)).into_iter().map(|name| (name, self.get(name)))
    }
}

/// Returns the draw of each metric for these weights of the items.
fn draws(metrics: &[Resampled<'_>], weights: &[f64]) -> Vec<Draw> {
    metrics.iter().map(|metric| Draw::of(&metric.statistic, metric.influence.as_ref(), weights)).collect()
}

/// Returns the mean of a metric's values, or `None` without values.
fn mean_of<'a>(info: &'static MetricInfo, values: Vec<f64>) -> Option<Resampled<'a>> {
    let values: Arc<[f64]> = values.into();
    let influence = Arc::clone(&values);
    (!values.is_empty()).then(|| Resampled {
        info,
        n: values.len(),
        statistic: Box::new(move |weights| mean_in_order(&values, weights)),
        influence: Some(Box::new(move |_| Some(Arc::clone(&influence)))),
    })
}

/// Returns a statistic of numbers.
fn number<'a>(info: &'static MetricInfo, of: NumberStatistic, numbers: &'a NumberColumns) -> Resampled<'a> {
    Resampled {
        info,
        n: numbers.n(),
        statistic: Box::new(move |weights| of(numbers, weights)),
        influence: influence(info, numbers),
    }
}

/// Returns the influences on a statistic of numbers, or `None` if it is not a function of means.
fn influence<'a>(info: &MetricInfo, numbers: &'a NumberColumns) -> Option<Influence<'a>> {
    let terms = info.terms?;
    Some(Box::new(move |weights| terms(numbers, weights).map(Arc::from)))
}

impl Serialize for Metrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// The metrics of a constant answer, or of a simple method.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Baseline {
    /// The constant. A method has none.
    pub value: Option<f64>,
    #[serde(flatten)]
    pub metrics: Metrics,
}

/// Returns the baselines that always answer the most frequent truth, the median truth or the mean truth.
/// Empty if no true answer is a number.
pub fn constant_baselines(rows: &[&Row]) -> IndexMap<String, Baseline> {
    let mut truths: Vec<f64> = rows.iter().filter_map(|row| row.truth).collect();
    if truths.is_empty() {
        return IndexMap::new();
    }
    truths.sort_by(f64::total_cmp);
    let mean = mean_in_order(&truths, &vec![1.0; truths.len()]);
    let baselines = [
        ("constant_mode", most_frequent(&truths)),
        ("constant_median", quantile(&truths, 0.5)),
        ("constant_mean", mean),
    ];
    baselines.map(|(name, value)| (name.to_owned(), Baseline::constant(value, &truths))).into()
}

/// Returns the most frequent value; ties go to the smallest. `sorted` is in ascending order.
fn most_frequent(sorted: &[f64]) -> Option<f64> {
    let groups = sorted.chunk_by(|a, b| same(*a, *b));
    // `max_by_key` returns the last of several equal counts.
    groups.rev().max_by_key(|group| group.len()).and_then(|group| group.first().copied())
}

impl Baseline {
    fn constant(value: Option<f64>, truths: &[f64]) -> Self {
        let n = truths.len();
        let mut metrics = Metrics::default();
        let Some(constant) = value else { return Self { value, metrics } };
        let rows: Vec<Prediction> =
            truths.iter().map(|&truth| Prediction::new(truth, Estimates::point(constant))).collect();
        let columns = NumberColumns::new(&rows, mean_in_order);
        for info in METRICS.iter().filter(|info| ["mae", "rmse", "r2"].contains(&info.name)) {
            if let Statistic::Number(of) = info.statistic {
                metrics.set(info.name, Metric::plain(of(&columns, &vec![1.0; n]), n));
            }
        }
        let hits = truths.iter().filter(|truth| same(constant, **truth)).count();
        metrics.set("accuracy", Metric::plain(Some(hits as f64 / n as f64), n));
        Self { value, metrics }
    }
}

#[cfg(test)]
mod tests;
