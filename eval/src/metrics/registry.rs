//! The metrics by name: how reports and gates call them, what they are, which way is better, and how each is computed.

use serde::Serialize;

use self::Better::{Higher, Lower, Unknown};
use super::distribution::IntervalScore;
use super::judgement::{Orders, Rating};
use super::likelihood::{Likelihood, perplexity, token_accuracy};
use super::numbers::NumberColumns;
use super::texts::{TextScores, corpus_bleu};
use super::{Outcome, Row};
use crate::stats::weighted::{kappa, pearson, r2, spearman};

/// What is known about a metric.
#[derive(Debug)]
pub struct MetricInfo {
    /// The name in reports and gates.
    pub name: &'static str,
    pub better: Better,
    /// `None` where no number takes part.
    pub estimate: Option<Estimate>,
    /// What it is, in a few words.
    pub about: &'static str,
    pub(crate) statistic: Statistic,
}

/// Which way a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Larger values.
    Higher,
    /// Smaller values.
    Lower,
    /// Neither as such: the best value is one that was asked for, or the metric is not known.
    Unknown,
}

/// Which of [`super::Estimates`] a metric is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Estimate {
    Mean,
    Median,
    Mode,
}

/// Of the columns of all items with a number, and the weights of the items.
pub(crate) type NumberStatistic = fn(&NumberColumns, &[f64]) -> Option<f64>;

/// How a metric is computed from items and, except for shares, from weights that say how often each item counts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Statistic {
    /// Share of the items that are hits, without those for which `hit` is `None`. Measured if it applies to any item.
    Share { applies: fn(&Row) -> bool, hit: fn(&Row) -> Option<bool> },
    /// Mean over the items that have a value.
    Mean(fn(&Row) -> Option<f64>),
    /// Of the items with a number.
    Number(NumberStatistic),
    /// Of the items with a number, without those whose true number is 0.
    RelativeNumber(NumberStatistic),
    /// Of the items with a number, where the numbers are those of judges.
    Rating(NumberStatistic),
    /// Of the items whose texts are compared.
    Text(fn(&[&TextScores], &[f64]) -> Option<f64>),
    /// Of the items whose true answer was scored.
    Likelihood(fn(&[&Likelihood], &[f64]) -> Option<f64>),
    /// Mean of the loss that the server calls by the metric's name.
    Loss,
    /// Computed by paper mode.
    Paper,
}

/// All metrics, in the order of tables.
pub static METRICS: [MetricInfo; 48] = [
    share("accuracy", Higher, "share of items whose number is exact", Row::has_right_answer, |row| {
        row.has_right_answer().then_some(row.correct)
    })
    .from(Estimate::Mode),
    share("strict", Higher, "share exact, read strictly (lm-eval)", is_read, |row| read(row, 0)),
    share("flexible", Higher, "share exact, last number (lm-eval)", is_read, |row| read(row, 1)),
    share(
        "exact",
        Higher,
        "share of equal texts",
        |row| row.text_scores.is_some(),
        |row| Some(row.text_scores.as_ref()?.exact),
    ),
    metric("f1", Higher, "token F1", Statistic::Mean(|row| Some(row.text_scores.as_ref()?.f1))),
    number("mae", Lower, "mean absolute error", |n, w| (n.mean)(&n.absolute_errors, w))
        .from(Estimate::Median),
    number("mse", Lower, "mean squared error", |n, w| (n.mean)(&n.squared_errors, w)),
    number("rmse", Lower, "root of the mean squared error", |n, w| {
        (n.mean)(&n.squared_errors, w).map(f64::sqrt)
    }),
    number("r2", Higher, "share of variance explained", |n, w| r2(&n.squared_errors, &n.truths, w, n.mean)),
    number("median_ae", Lower, "median absolute error", |n, w| n.sorted_absolute_errors.median(w))
        .from(Estimate::Median),
    number("log_mae", Lower, "mean absolute error of sign(x) log10(|x|+1)", |n, w| {
        (n.mean)(&n.log_absolute_errors, w)
    })
    .from(Estimate::Median),
    number("log_r2", Higher, "share of variance explained on that scale", |n, w| {
        r2(&n.log_squared_errors, &n.log_truths, w, n.mean)
    }),
    number("pearson", Higher, "correlation", |n, w| pearson(&n.means, &n.truths, w, n.mean)),
    number("spearman", Higher, "correlation of ranks", |n, w| spearman(&n.sorted_means, &n.sorted_truths, w)),
    number("kendall", Higher, "share of pairs in the same order, less the others (tau-b)", |n, w| {
        n.kendall.tau(w)
    }),
    metric(
        "kappa",
        Higher,
        "agreement beyond chance, by squared distances (quadratic weighted kappa)",
        Statistic::Rating(|n, w| kappa(&n.means, &n.truths, &n.squared_errors, w, n.mean)),
    )
    .from(Estimate::Mean),
    metric(
        "mape",
        Lower,
        "mean absolute error as a share of the truth",
        Statistic::RelativeNumber(NumberColumns::mean_relative_error),
    )
    .from(Estimate::Median),
    share("unparsed", Lower, "share of answers without a number", Row::asks_number, |row| {
        (row.asks_number() && row.outcome != Outcome::Failed).then(|| row.outcome == Outcome::Unparsed)
    }),
    metric("invalid", Lower, "numbers that Python cannot read, per item (paper)", Statistic::Paper),
    metric("no_number", Lower, "share of items without any number (paper)", Statistic::Paper),
    metric(
        "pinball",
        Lower,
        "mean pinball loss of the quantiles",
        Statistic::Mean(|row| row.distribution.as_ref()?.pinball),
    ),
    share(
        "coverage",
        Unknown,
        "share of truths within the outer quantiles",
        |row| inside(row).is_some(),
        inside,
    ),
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
        "winkler",
        Lower,
        "width of the central interval, and a charge for truths outside",
        Statistic::Mean(|row| row.distribution.as_ref()?.winkler),
    ),
    share(
        "interval_coverage",
        Unknown,
        "share of truths within the intervals of --interval",
        |row| interval(row).is_some(),
        |row| Some(interval(row)?.covers),
    ),
    metric(
        "interval_width",
        Unknown,
        "mean width of these intervals",
        Statistic::Mean(|row| match row.judgement {
            Some(_) => judged(row)?.interval.map(|interval| interval.high - interval.low),
            None => Some(interval(row)?.width),
        }),
    ),
    metric("score", Unknown, "mean of the expected scores", Statistic::Mean(|row| Some(judged(row)?.score))),
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
    ),
    metric(
        "mass_closed",
        Higher,
        "mean probability of texts that are a score",
        Statistic::Mean(|row| Some(judged(row)?.mass)),
    ),
    share(
        "consistent",
        Higher,
        "share of pairs in which both orders prefer the same answer",
        |row| orders(row).is_some(),
        |row| Some(orders(row)?.agree()),
    ),
    metric(
        "order_difference",
        Unknown,
        "mean score of a pair less that of the other order; above 0 the judge favours what is shown second",
        Statistic::Mean(|row| Some(orders(row)?.difference())),
    ),
    metric(
        "order_distance",
        Lower,
        "mean distance between the scores of both orders",
        Statistic::Mean(|row| Some(orders(row)?.difference().abs())),
    ),
    metric(
        "wins",
        Unknown,
        "share of pairs in which the first answer is preferred, ties as half",
        Statistic::Mean(|row| Some(orders(row)?.win())),
    ),
    share(
        "preference",
        Higher,
        "share of pairs in which the judge prefers the answer that people prefer",
        |row| preferred(row).is_some(),
        preferred,
    ),
    metric(
        "token_accuracy",
        Higher,
        "share of target tokens that the answer has in the same place",
        Statistic::Likelihood(token_accuracy),
    ),
    metric("perplexity", Lower, "of the target", Statistic::Likelihood(perplexity)),
    metric("ce", Lower, "cross-entropy of the target", Statistic::Loss),
    metric("ntl-was", Lower, "number token loss, Wasserstein", Statistic::Loss),
    metric("ntl-was-cdf", Lower, "number token loss, Wasserstein of cumulative shares", Statistic::Loss),
    metric("ntl-mse", Lower, "number token loss, squared", Statistic::Loss),
    metric("ntl-mae", Lower, "number token loss, absolute", Statistic::Loss),
    metric("ntl-huber", Lower, "number token loss, Huber", Statistic::Loss),
    metric("bleu", Higher, "BLEU", Statistic::Text(corpus_bleu)),
    metric("rouge1", Higher, "ROUGE-1", Statistic::Mean(|row| Some(row.text_scores.as_ref()?.rouge.one))),
    metric("rouge2", Higher, "ROUGE-2", Statistic::Mean(|row| Some(row.text_scores.as_ref()?.rouge.two))),
    metric("rougeL", Higher, "ROUGE-L", Statistic::Mean(|row| Some(row.text_scores.as_ref()?.rouge.longest))),
];

const fn metric(name: &'static str, better: Better, about: &'static str, statistic: Statistic) -> MetricInfo {
    MetricInfo { name, better, estimate: None, about, statistic }
}

const fn share(
    name: &'static str,
    better: Better,
    about: &'static str,
    applies: fn(&Row) -> bool,
    hit: fn(&Row) -> Option<bool>,
) -> MetricInfo {
    metric(name, better, about, Statistic::Share { applies, hit })
}

/// Most of them are computed from the mean of a prediction.
const fn number(name: &'static str, better: Better, about: &'static str, of: NumberStatistic) -> MetricInfo {
    metric(name, better, about, Statistic::Number(of)).from(Estimate::Mean)
}

impl MetricInfo {
    const fn from(mut self, estimate: Estimate) -> Self {
        self.estimate = Some(estimate);
        self
    }
}

/// The metric of that name.
pub fn find(name: &str) -> Option<&'static MetricInfo> {
    METRICS.iter().find(|metric| metric.name == name)
}

pub fn better(name: &str) -> Better {
    find(name).map_or(Unknown, |metric| metric.better)
}

/// Sorts names in the order of tables; unknown ones behind, by the alphabet.
pub fn in_table_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = names.collect();
    let place = |name: &str| METRICS.iter().position(|metric| metric.name == name).unwrap_or(METRICS.len());
    names.sort_by_key(|name| (place(name), *name));
    names
}

fn is_read(row: &Row) -> bool {
    row.lm_eval_matches.is_some()
}

fn read(row: &Row, which: usize) -> Option<bool> {
    Some(row.lm_eval_matches.is_some_and(|readings| readings[which]))
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
    fn every_name_is_found_and_stands_once() {
        for metric in &METRICS {
            assert!(std::ptr::eq(find(metric.name).unwrap(), metric), "{} stands twice", metric.name);
        }
        assert!(find("speed").is_none());
    }

    #[test]
    fn known_metrics_come_first_and_in_their_order() {
        let names = in_table_order(["zeta", "rmse", "alpha", "accuracy"].into_iter());
        assert_eq!(names, ["accuracy", "rmse", "alpha", "zeta"]);
    }
}
