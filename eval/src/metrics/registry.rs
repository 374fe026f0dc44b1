//! The registry of metrics: their names in reports and gates, their meaning, which direction is better, and
//! how each is computed.

use ntl_common::similar::most_similar;
use serde::Serialize;

use self::Better::{Higher, Lower, Unknown};
use super::decision::{OptionScores, calibration_error_of_scores};
use super::distribution::IntervalScore;
use super::judgement::{Orders, Rating};
use super::likelihood::{Likelihood, perplexity, token_accuracy};
use super::numbers::NumberColumns;
use super::texts::{TextScores, corpus_bleu};
use super::{Outcome, Row};
use crate::stats::difference::{Spread, Terms};
use crate::stats::studentised::Scale;
use crate::stats::weighted::{kappa, pearson, pearson_terms, r2, r2_terms, root_mean_terms, spearman};

/// Description of a metric.
#[derive(Debug)]
pub struct MetricInfo {
    /// The name in reports and gates.
    pub name: &'static str,
    pub better: Better,
    /// `None` if the metric does not use a predicted number.
    pub estimate: Option<Estimate>,
    /// Short description for tables.
    pub about: &'static str,
    pub(crate) statistic: Statistic,
    /// The possible values.
    pub(crate) scale: Scale,
    /// Influence of each item on a statistic of numbers. `None` if the statistic is not a function of means.
    pub(crate) terms: Option<NumberTerms>,
}

/// The direction in which a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Larger values are better.
    Higher,
    /// Smaller values are better.
    Lower,
    /// Neither direction is better as such: the best value is a requested one, or the metric is unknown.
    Unknown,
}

/// The member of [`super::Estimates`] that a metric is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Estimate {
    Mean,
    Median,
    Mode,
}

/// A statistic of the columns of all items with a number and the weights of the items.
pub(crate) type NumberStatistic = fn(&NumberColumns, &[f64]) -> Option<f64>;

/// Returns the contribution of each item to a statistic of numbers (its influence function at these weights),
/// up to a constant, or `None` if undefined.
pub(crate) type NumberTerms = fn(&NumberColumns, &[f64]) -> Option<Vec<f64>>;

/// How a metric is computed from items and, except for shares, from weights that give the count of each item.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Statistic {
    /// Share of the items that are hits, without those for which `hit` is `None`. Measured if it applies to
    /// any item, by default to those that `hit` knows.
    Share { hit: fn(&Row) -> Option<bool>, applies: Option<fn(&Row) -> bool> },
    /// Mean over the items that have a value.
    Mean(fn(&Row) -> Option<f64>),
    /// Statistic over the items with a number.
    Number(NumberStatistic),
    /// Statistic over the items with a number, without those whose true number is 0.
    RelativeNumber(NumberStatistic),
    /// Statistic over the items with a number, if the numbers are judges' scores.
    Rating(NumberStatistic),
    /// Statistic over the items whose texts are compared.
    Text(fn(&[&TextScores], &[f64]) -> Option<f64>),
    /// Statistic over the questions of a decision model whose options have probabilities.
    Options(fn(&[&OptionScores], &[f64]) -> Option<f64>),
    /// Statistic over the items whose true answer was scored.
    Likelihood(fn(&[&Likelihood], &[f64]) -> Option<f64>),
    /// Mean of the loss that the server returns under the metric's name.
    Loss,
    /// Computed from other data than the rows: by paper mode, from people's scores, or with another run.
    Separate,
}

/// All metrics, in table order.
pub static METRICS: [MetricInfo; 68] = [
    share("accuracy", Higher, "share of items whose answer is right", |row| {
        row.has_right_answer().then_some(row.correct)
    })
    .from(Estimate::Mode),
    share("strict", Higher, "share of exact numbers, read by lm-eval's strict rule", |row| read(row, 0)),
    share("flexible", Higher, "share of exact numbers, read by lm-eval's flexible rule", |row| read(row, 1)),
    share(
        "exact_digits",
        Higher,
        "share of answers with the requested form and exactly the true digits",
        |row| Some(row.digits?.exact),
    ),
    metric(
        "digit_match",
        Higher,
        "mean share of the true digits at their place",
        Statistic::Mean(|row| Some(row.digits?.matched)),
    )
    .within(Scale::Share),
    metric(
        "length_difference",
        Lower,
        "mean absolute difference between the numbers of digits",
        Statistic::Mean(|row| Some(row.digits?.length_difference)),
    ),
    share("exact", Higher, "share of texts that equal the reference", |row| {
        Some(row.text_scores.as_ref()?.exact)
    }),
    metric("f1", Higher, "token F1", Statistic::Mean(|row| Some(row.text_scores.as_ref()?.f1)))
        .within(Scale::Share),
    number("mae", Lower, "mean absolute error", |n, w| (n.mean)(&n.absolute_errors, w))
        .from(Estimate::Median)
        .with_terms(|n, _| Some(n.absolute_errors.clone())),
    number("mse", Lower, "mean squared error", |n, w| (n.mean)(&n.squared_errors, w))
        .with_terms(|n, _| Some(n.squared_errors.clone())),
    number("rmse", Lower, "root of the mean squared error", |n, w| {
        (n.mean)(&n.squared_errors, w).map(f64::sqrt)
    })
    .with_terms(|n, w| root_mean_terms(&n.squared_errors, w, n.mean)),
    number("r2", Higher, "share of variance explained", |n, w| r2(&n.squared_errors, &n.truths, w, n.mean))
        .within(Scale::AtMostOne)
        .with_terms(|n, w| r2_terms(&n.squared_errors, &n.truths, w, n.mean)),
    number("median_ae", Lower, "median absolute error", |n, w| n.sorted_absolute_errors.median(w))
        .from(Estimate::Median),
    number("log_mae", Lower, "mean absolute error of sign(x) log10(|x|+1)", |n, w| {
        (n.mean)(&n.log_absolute_errors, w)
    })
    .from(Estimate::Median)
    .with_terms(|n, _| Some(n.log_absolute_errors.clone())),
    number("log_r2", Higher, "share of variance explained on the scale of log_mae", |n, w| {
        r2(&n.log_squared_errors, &n.log_truths, w, n.mean)
    })
    .within(Scale::AtMostOne)
    .with_terms(|n, w| r2_terms(&n.log_squared_errors, &n.log_truths, w, n.mean)),
    number("pearson", Higher, "Pearson's correlation", |n, w| pearson(&n.means, &n.truths, w, n.mean))
        .within(Scale::Correlation)
        .with_terms(|n, w| pearson_terms(&n.means, &n.truths, w, n.mean)),
    number("spearman", Higher, "Spearman's rank correlation", |n, w| {
        spearman(&n.sorted_means, &n.sorted_truths, w)
    }),
    number("kendall", Higher, "Kendall's rank correlation (tau-b)", |n, w| n.kendall.tau(w)),
    metric(
        "kappa",
        Higher,
        "agreement beyond chance (quadratic weighted kappa)",
        Statistic::Rating(|n, w| kappa(&n.means, &n.truths, &n.squared_errors, w, n.mean)),
    )
    .from(Estimate::Mean),
    metric(
        "mape",
        Lower,
        "mean absolute error as a share of the truth",
        Statistic::RelativeNumber(NumberColumns::mean_relative_error),
    )
    .from(Estimate::Median)
    .with_terms(NumberColumns::relative_error_terms),
    share("unparsed", Lower, "share of answers without a number", |row| {
        (is_searched_for_number(row) && row.is_answered()).then(|| row.outcome == Outcome::Unparsed)
    })
    .if_any(is_searched_for_number),
    metric("invalid", Lower, "numbers per item that Python cannot parse (paper)", Statistic::Separate),
    metric("no_number", Lower, "share of items without any number (paper)", Statistic::Separate),
    metric(
        "pinball",
        Lower,
        "mean pinball loss of the quantiles",
        Statistic::Mean(|row| row.distribution.as_ref()?.pinball),
    ),
    share("coverage", Unknown, "share of truths within the outer quantiles", inside),
    metric(
        "crps",
        Lower,
        "continuous ranked probability score",
        Statistic::Mean(|row| Some(row.distribution.as_ref()?.crps?.value)),
    ),
    metric(
        "log_score",
        Lower,
        "minus the logarithm of the true value's probability",
        Statistic::Mean(|row| Some(row.distribution.as_ref()?.log_score?.value)),
    ),
    metric(
        "crps_excess",
        Lower,
        "expected crps under the true distribution, relative to the best possible one, minus 1",
        Statistic::Mean(|row| row.law?.crps_excess),
    ),
    metric(
        "kl",
        Lower,
        "Kullback-Leibler divergence from the true distribution, in nats",
        Statistic::Mean(|row| row.law?.kl),
    ),
    metric(
        "total_variation",
        Lower,
        "largest difference from the true probability of any event",
        Statistic::Mean(|row| row.law?.total_variation),
    )
    .within(Scale::Share),
    metric(
        "true_coverage",
        Unknown,
        "true probability of the interval between the outer quantiles",
        Statistic::Mean(|row| row.law?.coverage),
    )
    .within(Scale::Share),
    metric(
        "sharpness",
        Unknown,
        "width between the outer quantiles, relative to the true distribution; below 1 is too certain",
        Statistic::Mean(|row| row.law?.width),
    )
    .within(Scale::Positive),
    metric(
        "winkler",
        Lower,
        "width of the central interval, plus a penalty for truths outside it",
        Statistic::Mean(|row| row.distribution.as_ref()?.winkler),
    ),
    share("interval_coverage", Unknown, "share of truths within the intervals of --interval", |row| {
        Some(interval(row)?.covers)
    }),
    metric(
        "interval_width",
        Unknown,
        "mean width of the intervals of --interval",
        Statistic::Mean(|row| match row.judgement {
            Some(_) => judged(row)?.interval.map(|interval| interval.high - interval.low),
            None => Some(interval(row)?.width),
        }),
    )
    .within(Scale::Positive),
    metric("score", Unknown, "mean of the expected scores", Statistic::Mean(|row| Some(judged(row)?.score))),
    metric(
        "corrected_score",
        Unknown,
        "people's mean score, estimated from the judge's scores and from people's scores of some items",
        Statistic::Separate,
    ),
    metric(
        "pass_rate",
        Unknown,
        "share of items whose expected score is at least --pass-from",
        Statistic::Separate,
    ),
    metric(
        "corrected_pass_rate",
        Unknown,
        "share of items that people would pass, estimated from the judge's share and its mistakes",
        Statistic::Separate,
    ),
    metric(
        "drift",
        Unknown,
        "mean score minus that of the same prompts in the run of --drift",
        Statistic::Separate,
    ),
    metric(
        "drift_distance",
        Lower,
        "mean absolute difference from the scores of the same prompts in the run of --drift",
        Statistic::Separate,
    ),
    metric(
        "mode_score",
        Unknown,
        "mean of the most probable scores",
        Statistic::Mean(|row| Some(judged(row)?.mode)),
    ),
    metric(
        "spread",
        Unknown,
        "mean standard deviation of the scores of one item",
        Statistic::Mean(|row| Some(judged(row)?.spread)),
    )
    .within(Scale::Positive),
    metric(
        "mass_closed",
        Higher,
        "mean total probability of the texts that are a score",
        Statistic::Mean(|row| Some(judged(row)?.mass)),
    )
    .within(Scale::Share),
    share("consistent", Higher, "share of pairs in which both orders prefer the same answer", |row| {
        Some(orders(row)?.agree())
    }),
    metric(
        "order_difference",
        Unknown,
        "mean score of a pair minus its score in the other order; above 0 the judge favours the second answer",
        Statistic::Mean(|row| Some(orders(row)?.difference())),
    ),
    metric(
        "order_distance",
        Lower,
        "mean absolute difference between the scores of both orders",
        Statistic::Mean(|row| Some(orders(row)?.difference().abs())),
    ),
    metric(
        "wins",
        Unknown,
        "share of pairs in which the judge prefers the first answer; ties count half",
        Statistic::Mean(|row| Some(orders(row)?.win())),
    )
    .within(Scale::Share),
    share(
        "preference",
        Higher,
        "share of pairs in which the judge prefers the answer that people prefer",
        preferred,
    ),
    metric(
        "brier",
        Lower,
        "Brier score: sum of the squared errors of the probabilities of all options, 0 to 2",
        Statistic::Mean(|row| Some(row.decision?.options?.brier)),
    ),
    metric(
        "log_loss",
        Lower,
        "minus the logarithm of the correct option's probability, in nats",
        Statistic::Mean(|row| Some(row.decision?.options?.log_loss)),
    ),
    metric(
        "calibration_error",
        Lower,
        "expected calibration error: mean difference between confidence and accuracy",
        Statistic::Options(calibration_error_of_scores),
    )
    .within(Scale::Share),
    share("refused", Lower, "share of questions that the model refused", |row| {
        if row.is_answered() { Some(row.decision?.is_refused) } else { None }
    }),
    metric(
        "order_change",
        Lower,
        "mean of the largest change of a probability in another order of the options",
        Statistic::Mean(|row| row.decision?.changes.order),
    )
    .within(Scale::Share),
    metric(
        "repeat_change",
        Lower,
        "mean of the largest change of a probability in the same request",
        Statistic::Mean(|row| row.decision?.changes.repeat),
    )
    .within(Scale::Share),
    metric(
        "batch_change",
        Lower,
        "mean of the largest change of a probability in a request with other questions",
        Statistic::Mean(|row| row.decision?.changes.batch),
    )
    .within(Scale::Share),
    metric(
        "token_accuracy",
        Higher,
        "share of target tokens that the answer has at the same position",
        Statistic::Likelihood(token_accuracy),
    ),
    metric("perplexity", Lower, "perplexity of the target", Statistic::Likelihood(perplexity)),
    metric("ce", Lower, "cross-entropy of the target", Statistic::Loss),
    metric("ntl-was", Lower, "number token loss, Wasserstein", Statistic::Loss),
    metric(
        "ntl-was-cdf",
        Lower,
        "number token loss, Wasserstein of cumulative distributions",
        Statistic::Loss,
    ),
    metric("ntl-mse", Lower, "number token loss, squared", Statistic::Loss),
    metric("ntl-mae", Lower, "number token loss, absolute", Statistic::Loss),
    metric("ntl-huber", Lower, "number token loss, Huber", Statistic::Loss),
    metric("bleu", Higher, "BLEU", Statistic::Text(corpus_bleu)),
    metric(
        "rouge1",
        Higher,
        "ROUGE-1",
        Statistic::Mean(|row| Some(row.text_scores.as_ref()?.overlap.rouge.one)),
    )
    .within(Scale::Share),
    metric(
        "rouge2",
        Higher,
        "ROUGE-2",
        Statistic::Mean(|row| Some(row.text_scores.as_ref()?.overlap.rouge.two)),
    )
    .within(Scale::Share),
    metric(
        "rougeL",
        Higher,
        "ROUGE-L",
        Statistic::Mean(|row| Some(row.text_scores.as_ref()?.overlap.rouge.longest)),
    )
    .within(Scale::Share),
];

/// A metric for which lower is better is an error or a distance, which is at least 0.
const fn metric(name: &'static str, better: Better, about: &'static str, statistic: Statistic) -> MetricInfo {
    let scale = match better {
        Lower => Scale::Positive,
        Higher | Unknown => Scale::Any,
    };
    MetricInfo { name, better, estimate: None, about, statistic, scale, terms: None }
}

const fn share(
    name: &'static str,
    better: Better,
    about: &'static str,
    hit: fn(&Row) -> Option<bool>,
) -> MetricInfo {
    metric(name, better, about, Statistic::Share { hit, applies: None })
}

/// A metric of numbers. Most of them are computed from the mean of a prediction.
const fn number(name: &'static str, better: Better, about: &'static str, of: NumberStatistic) -> MetricInfo {
    metric(name, better, about, Statistic::Number(of)).from(Estimate::Mean)
}

impl MetricInfo {
    /// Returns whether a statistic of numbers is computed for decision models. Levels and numbers have
    /// different units, so that correlations over both mean nothing.
    pub(crate) fn is_of_decisions(&self) -> bool {
        self.name == "mae"
    }

    /// Returns how the interval of a difference between two sides is computed, for a statistic of numbers.
    pub(crate) fn difference_spread(&self, a: &NumberColumns, b: &NumberColumns) -> Spread {
        // Tests of a difference use the influences of all items for every resample. The influences on a
        // correlation change too much with the resample for that.
        if self.scale == Scale::Correlation {
            return Spread::Percentiles;
        }
        let ones = vec![1.0; a.n()];
        let terms = self.terms.and_then(|terms| Terms::of(terms(a, &ones), terms(b, &ones)));
        Spread::of_terms(terms)
    }

    const fn from(mut self, estimate: Estimate) -> Self {
        self.estimate = Some(estimate);
        self
    }

    /// Measures a share if this holds for any item.
    const fn if_any(mut self, applies_to: fn(&Row) -> bool) -> Self {
        if let Statistic::Share { applies, .. } = &mut self.statistic {
            *applies = Some(applies_to);
        }
        self
    }

    const fn within(mut self, scale: Scale) -> Self {
        self.scale = scale;
        self
    }

    const fn with_terms(mut self, terms: NumberTerms) -> Self {
        self.terms = Some(terms);
        self
    }
}

/// Returns the metric with that name.
pub fn find(name: &str) -> Option<&'static MetricInfo> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// Returns the error message for an unknown metric, with the closest name if one is close and otherwise with
/// all names.
pub fn unknown(name: &str) -> String {
    let names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
    match most_similar(&name.to_lowercase(), names.iter().copied()) {
        Some(closest) => format!("there is no metric `{name}`; did you mean `{closest}`?"),
        None => format!("there is no metric `{name}`; there are {}", names.join(", ")),
    }
}

pub fn better(name: &str) -> Better {
    find(name).map_or(Unknown, |metric| metric.better)
}

/// Sorts names in table order. Unknown names come after the known ones, in alphabetical order.
pub fn in_table_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = names.collect();
    names.sort_by_key(|name| {
        let position = METRICS.iter().position(|metric| metric.name == *name);
        (position.unwrap_or(METRICS.len()), *name)
    });
    names
}

/// Returns whether an answer may lack the number that it has to have. A decision model refuses instead.
fn is_searched_for_number(row: &Row) -> bool {
    row.asks_number() && row.decision.is_none()
}

fn read(row: &Row, which: usize) -> Option<bool> {
    Some(row.lm_eval_matches?[which])
}

fn judged(row: &Row) -> Option<&Rating> {
    row.judgement.as_ref()?.rating.as_ref()
}

fn orders(row: &Row) -> Option<Orders> {
    row.judgement.as_ref()?.orders()
}

fn preferred(row: &Row) -> Option<bool> {
    row.judgement.as_ref()?.is_as_people_prefer()
}

fn inside(row: &Row) -> Option<bool> {
    row.distribution.as_ref()?.inside
}

fn interval(row: &Row) -> Option<IntervalScore> {
    row.distribution.as_ref()?.interval
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_unique() {
        for metric in &METRICS {
            assert!(std::ptr::eq(find(metric.name).unwrap(), metric), "{} is listed twice", metric.name);
        }
        assert!(find("speed").is_none());
    }

    #[test]
    fn known_metrics_are_sorted_first_in_table_order() {
        let names = in_table_order(["zeta", "rmse", "alpha", "accuracy"].into_iter());
        assert_eq!(names, ["accuracy", "rmse", "alpha", "zeta"]);
    }
}
