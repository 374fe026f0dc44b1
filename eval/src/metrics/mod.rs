//! Metrics of answers.
//!
//! In: one [`Row`] per item. Out: every metric of the [`registry`] that the rows have data for, with its interval and the
//! number of rows behind it. Invariant: values are finite or missing, never NaN.

pub mod bleu;
pub mod distribution;
pub mod estimates;
pub mod judgement;
pub mod likelihood;
pub mod numbers;
mod porter;
pub mod registry;
pub mod rouge;
pub mod texts;

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize, Serializer};

use self::distribution::DistributionScores;
use self::estimates::AllEstimates;
use self::judgement::Judgement;
use self::likelihood::{Likelihood, mean_loss};
use self::numbers::{NumberColumns, Prediction};
use self::registry::{METRICS, MetricInfo, Statistic, in_table_order};
use self::texts::TextScores;
use crate::stats::Interval;
use crate::stats::bootstrap::{Bootstrap, percentile_interval, quantile};
use crate::stats::weighted::{Weighted, mean_in_order};
use crate::stats::wilson::wilson;

/// Of the bootstrap behind the intervals of a run.
pub const RESAMPLES: u32 = 1_000;

/// Two numbers count as the same when they differ by at most this share of the truth. Wider than the rounding of
/// `f64`, and narrower than any two decimals of up to nine digits: unlike the `1e-5` of `numpy.isclose`, it does not
/// take 1000009 for 1000000.
pub const EXACT_TOLERANCE: f64 = 1e-9;

/// Whether a number is the true one, within [`EXACT_TOLERANCE`].
pub fn same(value: f64, truth: f64) -> bool {
    (value - truth).abs() <= EXACT_TOLERANCE * truth.abs()
}

/// How many of the predicted tokens or n-grams are in the reference, each at most as often as there.
fn overlap<T: Eq + Hash>(predicted: impl Iterator<Item = T>, reference: impl Iterator<Item = T>) -> usize {
    let mut left: HashMap<T, usize> = HashMap::new();
    for token in reference {
        *left.entry(token).or_default() += 1;
    }
    let is_left = |token: &T| {
        let Some(count) = left.get_mut(token).filter(|count| **count > 0) else { return false };
        *count -= 1;
        true
    };
    predicted.filter(is_left).count()
}

/// A predicted number: the best answers to three questions, all equal where only one number is known. All finite.
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
    pub outcome: Outcome,
    /// The finite number that was asked for; `None` where the answer is no number.
    pub truth: Option<f64>,
    /// Whether the answer is right.
    pub correct: bool,
    /// Whether it is right as lm-eval's two rules read it: strict and flexible.
    pub lm_eval_matches: Option<[bool; 2]>,
    /// For tasks whose answers are text, and in paper mode.
    pub text_scores: Option<TextScores>,
    /// Every estimate of the distribution, where the server gives them all.
    pub estimates: Option<AllEstimates>,
    /// Where the answer is a distribution.
    pub distribution: Option<DistributionScores>,
    /// With `--score`, and in paper mode.
    pub likelihood: Option<Likelihood>,
    /// Of every item that is judged, also without a score.
    pub judgement: Option<Judgement>,
}

impl Row {
    /// Whether the answer has to be a number.
    pub fn asks_number(&self) -> bool {
        self.truth.is_some() || self.judgement.is_some()
    }

    /// Whether `correct` means something: a judgement that people did not make as well is neither right nor wrong.
    pub fn has_right_answer(&self) -> bool {
        self.truth.is_some() || self.judgement.is_none()
    }

    /// The number that was read, where one was asked for.
    fn prediction(&self) -> Option<Prediction> {
        match self.outcome {
            Outcome::Read(estimates) => Some(Prediction::new(self.truth?, estimates)),
            Outcome::Unparsed | Outcome::Failed => None,
        }
    }
}

/// A value with its 95% interval and the number of rows behind it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metric {
    /// Missing where it is not defined.
    pub value: Option<f64>,
    /// Missing, as is `high`, where there are too few rows.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// How many rows it is over.
    pub n: usize,
}

impl Metric {
    pub fn interval(&self) -> Option<Interval> {
        self.low.zip(self.high).map(|(low, high)| Interval { low, high })
    }

    /// Without an interval. NaN and infinities become missing.
    pub fn plain(value: Option<f64>, n: usize) -> Self {
        Self { value: value.filter(|value| value.is_finite()), low: None, high: None, n }
    }

    /// The interval is widened to the value. Without a value there is no interval.
    pub fn with_interval(self, interval: Option<Interval>) -> Self {
        let interval = interval.zip(self.value).map(|(interval, value)| interval.including(value));
        Self {
            low: interval.map(|interval| interval.low),
            high: interval.map(|interval| interval.high),
            ..self
        }
    }

    /// A share with its Wilson interval.
    pub fn share(hits: usize, n: usize) -> Self {
        Self::plain((n > 0).then(|| hits as f64 / n as f64), n).with_interval(wilson(hits, n))
    }
}

/// The 95% interval of the values that [`RESAMPLES`] resamples have; `None` where more than a tenth has none.
pub fn bootstrap_interval(drawn: &mut [f64]) -> Option<Interval> {
    let enough = drawn.len() >= (RESAMPLES - RESAMPLES / 10) as usize;
    enough.then(|| percentile_interval(drawn, 0.025)).flatten()
}

/// By name. Reports of other versions may hold names that this one does not know.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Metrics(BTreeMap<String, Metric>);

/// A metric of `n` items.
struct Resampled<'a> {
    info: &'static MetricInfo,
    n: usize,
    statistic: Weighted<'a>,
}

impl Metrics {
    /// Shares have Wilson intervals, all other metrics bootstrap intervals from this seed.
    pub fn of(rows: &[&Row], seed: u64) -> Self {
        let predictions: Vec<Prediction> = rows.iter().filter_map(|row| row.prediction()).collect();
        let numbers = NumberColumns::new(&predictions, mean_in_order);
        let asked = rows.iter().any(|row| row.truth.is_some());
        let texts: Vec<&TextScores> = rows.iter().filter_map(|row| row.text_scores.as_ref()).collect();
        let scored: Vec<&Likelihood> = rows.iter().filter_map(|row| row.likelihood.as_ref()).collect();
        let judged = rows.iter().any(|row| row.judgement.is_some());
        let (numbers, texts, scored) = (&numbers, &texts, &scored);
        let mut all = Self::default();
        let mut resampled: Vec<Resampled<'_>> = Vec::new();
        for info in &METRICS {
            let mut add = |n, statistic| resampled.push(Resampled { info, n, statistic });
            match info.statistic {
                Statistic::Share { applies, hit } if rows.iter().any(|row| applies(row)) => {
                    let hits: Vec<bool> = rows.iter().filter_map(|row| hit(row)).collect();
                    all.set(info.name, Metric::share(hits.iter().filter(|hit| **hit).count(), hits.len()));
                }
                Statistic::Mean(value) => {
                    let values: Vec<f64> = rows.iter().filter_map(|row| value(row)).collect();
                    if !values.is_empty() {
                        add(values.len(), Box::new(move |weights| mean_in_order(&values, weights)));
                    }
                }
                Statistic::Number(of) | Statistic::RelativeNumber(of) if asked => {
                    add(numbers.n(), Box::new(move |weights| of(numbers, weights)));
                }
                Statistic::Rating(of) if asked && judged => {
                    add(numbers.n(), Box::new(move |weights| of(numbers, weights)));
                }
                Statistic::Text(of) if !texts.is_empty() => {
                    add(texts.len(), Box::new(move |weights| of(texts, weights)));
                }
                Statistic::Likelihood(of) => add(scored.len(), Box::new(move |weights| of(scored, weights))),
                Statistic::Loss => {
                    add(scored.len(), Box::new(move |weights| mean_loss(scored, weights, info.name)));
                }
                Statistic::Share { .. }
                | Statistic::Number(_)
                | Statistic::RelativeNumber(_)
                | Statistic::Rating(_)
                | Statistic::Text(_)
                | Statistic::Paper => {}
            }
        }
        // The resamples depend on the number of items alone.
        resampled.sort_by_key(|metric| metric.n);
        for metrics in resampled.chunk_by(|a, b| a.n == b.n) {
            all.bootstrap(metrics, seed);
        }
        if let Some(mape) = all.0.get_mut("mape") {
            mape.n = numbers.nonzero();
        }
        all
    }

    /// Adds metrics over equally many items.
    fn bootstrap(&mut self, metrics: &[Resampled<'_>], seed: u64) {
        let n = metrics.first().map_or(0, |metric| metric.n);
        let bootstrap = Bootstrap { resamples: if n < 2 { 0 } else { RESAMPLES }, seed };
        let at =
            |weights: &[f64]| metrics.iter().map(|metric| (metric.statistic)(weights)).collect::<Vec<_>>();
        let (values, resampled) = (at(&vec![1.0; n]), bootstrap.resample(n, at));
        for (index, (metric, value)) in metrics.iter().zip(values).enumerate() {
            let plain = Metric::plain(value, n);
            let scored = matches!(metric.info.statistic, Statistic::Likelihood(_) | Statistic::Loss);
            if scored && plain.value.is_none() {
                continue;
            }
            let mut drawn: Vec<f64> = resampled.iter().filter_map(|values| values[index]).collect();
            self.set(metric.info.name, plain.with_interval(bootstrap_interval(&mut drawn)));
        }
    }

    /// Without a value where the metric was not measured.
    pub fn get(&self, name: &str) -> Metric {
        self.0.get(name).copied().unwrap_or_default()
    }

    pub fn set(&mut self, name: &str, metric: Metric) {
        self.0.insert(name.to_owned(), metric);
    }

    /// In the order of tables.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Metric)> {
        in_table_order(self.0.keys().map(String::as_str)).into_iter().map(|name| (name, self.get(name)))
    }
}

impl Serialize for Metrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// The metrics of a constant answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Baseline {
    /// The constant.
    pub value: Option<f64>,
    #[serde(flatten)]
    pub metrics: Metrics,
}

/// Always the most frequent of the truths, always their median, and always their mean. Empty where no number is asked for.
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

/// The smallest of those that are most frequent. `sorted` is rising.
fn most_frequent(sorted: &[f64]) -> Option<f64> {
    let groups = sorted.chunk_by(|a, b| same(*a, *b));
    // Of equal counts `max_by_key` takes the last.
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
