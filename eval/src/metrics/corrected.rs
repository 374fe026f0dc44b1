//! Figures of a judge that people's scores of a part of the items correct: the mean score and the share of
//! items that pass.
//!
//! In: the scores of the judge and of people. Out: the figures of the judge alone and the corrected ones.
//! People's scores have to belong to a random part of the items.

use serde::{Deserialize, Serialize};

use super::{Metric, Row};
use crate::stats::Interval;
use crate::stats::difference::ITEMS_MIN;
use crate::stats::prediction_powered::{Labelled, PredictionPowered};
use crate::stats::rogan_gladen::{PassCounts, TrueShare};
use crate::stats::wilson::wilson;

/// Distance between the judge's means over the labelled and over the other items, in standard errors, above
/// which the labelled items were hardly drawn at random: chance alone exceeds it once in 370 runs.
const SELECTED: f64 = 3.0;

/// The scores of an item that the judge scored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JudgedScore {
    pub judge: f64,
    /// People's score, if they gave one.
    pub human: Option<f64>,
}

/// The figures of a judge's run, corrected by people's scores.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Corrections {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<CorrectedMean>,
    /// With `--pass-from`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass_rate: Option<CorrectedPassRate>,
}

/// A mean of the judge's scores, and an estimate of people's mean over the same items.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CorrectedMean {
    /// The mean of the judge's scores.
    pub naive: f64,
    pub value: f64,
    /// 95% interval of the estimate. Missing, like `high` and `gain`, if people's scores do not vary.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Factor of the judge's scores in the estimate; 0 if they do not help.
    pub tuning: f64,
    /// Number of items with a score of people.
    pub labels: usize,
    /// Number of items with a score of the judge.
    pub items: usize,
    /// How many labels without the judge one label is worth.
    pub gain: Option<f64>,
    /// Whether the judge scores the labelled items clearly better or worse than the others.
    pub is_selected: bool,
    /// With `--width`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_width: Option<ForWidth>,
}

/// How many labels an interval of some width needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ForWidth {
    pub width: f64,
    /// Missing if labels of all items do not suffice.
    pub labels: Option<usize>,
    /// The width with labels of all items.
    pub width_min: f64,
}

/// The share of items that the judge passes, and an estimate of the share that people would pass.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CorrectedPassRate {
    /// The lowest score that passes.
    pub pass_from: f64,
    pub naive: f64,
    /// 95% interval of the judge's share.
    pub naive_low: f64,
    pub naive_high: f64,
    /// Missing, like its interval, if the share cannot be corrected.
    pub value: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Share of the items that people pass which the judge passes.
    pub sensitivity: Option<f64>,
    /// Share of the items that people fail which the judge fails.
    pub specificity: Option<f64>,
    pub labels: usize,
    pub items: usize,
    /// Why there is no corrected share, if people scored any item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Corrections {
    /// `pass_from`: the lowest score that passes. `width`: the interval whose labels are to be counted.
    pub fn of(rows: &[&Row], pass_from: Option<f64>, width: Option<f64>) -> Self {
        let mut scores = Vec::new();
        for row in rows {
            if let Some(rating) = row.judgement.as_ref().and_then(|judgement| judgement.rating.as_ref()) {
                scores.push(JudgedScore { judge: rating.score, human: row.truth });
            }
        }
        Self {
            score: CorrectedMean::of(&scores, width),
            pass_rate: pass_from.and_then(|pass_from| CorrectedPassRate::of(&scores, pass_from)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.score.is_none() && self.pass_rate.is_none()
    }

    /// Returns the figures as metrics, by name.
    pub fn metrics(&self) -> Vec<(&'static str, Metric)> {
        let mut metrics = Vec::new();
        if let Some(mean) = &self.score {
            let metric = Metric::plain(Some(mean.value), mean.items).with_interval(mean.interval());
            metrics.push(("corrected_score", metric));
        }
        if let Some(rate) = &self.pass_rate {
            let naive_interval = Interval { low: rate.naive_low, high: rate.naive_high };
            let naive = Metric::plain(Some(rate.naive), rate.items).with_interval(Some(naive_interval));
            metrics.push(("pass_rate", naive));
            if rate.labels > 0 {
                let metric = Metric::plain(rate.value, rate.items).with_interval(rate.interval());
                metrics.push(("corrected_pass_rate", metric));
            }
        }
        metrics
    }
}

impl CorrectedMean {
    /// Returns `None` for fewer than [`ITEMS_MIN`] labels.
    pub fn of(scores: &[JudgedScore], width: Option<f64>) -> Option<Self> {
        let mut labelled = Vec::new();
        let mut others = Vec::new();
        for score in scores {
            match score.human {
                Some(human) => labelled.push(Labelled { human, judge: score.judge }),
                None => others.push(score.judge),
            }
        }
        if labelled.len() < ITEMS_MIN {
            return None;
        }
        let powered = PredictionPowered::new(&labelled, &others)?;
        let mean = powered.mean();
        let sum: f64 = scores.iter().map(|score| score.judge).sum();
        Some(Self {
            naive: sum / scores.len() as f64,
            value: mean.value,
            low: mean.interval.map(|interval| interval.low),
            high: mean.interval.map(|interval| interval.high),
            tuning: mean.tuning,
            labels: labelled.len(),
            items: scores.len(),
            gain: mean.gain,
            is_selected: powered.shift_in_standard_errors() > SELECTED,
            for_width: width.map(|width| ForWidth {
                width,
                labels: powered.labels_needed(width),
                width_min: powered.width_with(scores.len()),
            }),
        })
    }

    pub fn interval(&self) -> Option<Interval> {
        Some(Interval { low: self.low?, high: self.high? })
    }
}

impl CorrectedPassRate {
    /// Returns `None` without scores.
    fn of(scores: &[JudgedScore], pass_from: f64) -> Option<Self> {
        let mut counts = PassCounts::default();
        for score in scores {
            counts.add(score.judge >= pass_from, score.human.map(|human| human >= pass_from));
        }
        let naive_interval = wilson(counts.passed, counts.items)?;
        let labels = counts.human_passed + counts.human_failed;
        let corrected = if labels == counts.items {
            // People scored every item: nothing has to be estimated.
            let value = counts.human_passed as f64 / labels as f64;
            Some(Ok(TrueShare { value, interval: wilson(counts.human_passed, labels)? }))
        } else if labels > 0 {
            Some(counts.true_share())
        } else {
            None
        };
        let share = corrected.and_then(Result::ok);
        Some(Self {
            pass_from,
            naive: counts.passed as f64 / counts.items as f64,
            naive_low: naive_interval.low,
            naive_high: naive_interval.high,
            value: share.map(|share| share.value),
            low: share.map(|share| share.interval.low),
            high: share.map(|share| share.interval.high),
            sensitivity: counts.sensitivity(),
            specificity: counts.specificity(),
            labels,
            items: counts.items,
            reason: corrected.and_then(Result::err).map(|reason| reason.to_string()),
        })
    }

    pub fn interval(&self) -> Option<Interval> {
        Some(Interval { low: self.low?, high: self.high? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forty scores from 0 to 9; people give the first `labels` of them a point less.
    fn scores(labels: usize) -> Vec<JudgedScore> {
        let mut scores = Vec::new();
        for index in 0..40 {
            let judge = (index * 7 % 10) as f64 + (index % 3) as f64 / 10.0;
            let human = (index < labels).then(|| (judge - 1.0).round());
            scores.push(JudgedScore { judge, human });
        }
        scores
    }

    #[test]
    fn a_mean_needs_six_labels() {
        assert_eq!((CorrectedMean::of(&[], None), CorrectedMean::of(&scores(5), Some(1.0))), (None, None));
        let mean = CorrectedMean::of(&scores(20), Some(0.5)).unwrap();
        assert!((mean.value - mean.naive + 1.1).abs() < 0.2, "{mean:?}");
        assert!(mean.gain.unwrap() > 1.5 && mean.low.unwrap() < mean.value, "{mean:?}");
        assert_eq!((mean.labels, mean.items, mean.is_selected), (20, 40, false));
        // The 40 scores vary too much for such an interval.
        let for_width = mean.for_width.unwrap();
        assert_eq!(for_width.labels, None);
        assert!(for_width.width_min > 0.5, "{for_width:?}");
        let all = CorrectedMean::of(&scores(40), None).unwrap();
        assert_eq!((all.labels, all.tuning), (40, 0.0));
    }

    #[test]
    fn labels_of_the_best_items_only_are_noticed() {
        let mut best = scores(0);
        best.sort_by(|a, b| b.judge.total_cmp(&a.judge));
        for score in best.iter_mut().take(12) {
            score.human = Some(score.judge - 1.0);
        }
        assert!(CorrectedMean::of(&best, None).unwrap().is_selected);
    }

    #[test]
    fn a_pass_rate_without_labels_is_only_the_judges() {
        let rate = CorrectedPassRate::of(&scores(0), 5.0).unwrap();
        assert_eq!((rate.naive, rate.value, rate.reason, rate.labels), (0.5, None, None, 0));
        let rate = CorrectedPassRate::of(&scores(20), 5.0).unwrap();
        // The judge passes all that people pass, and one score in ten more.
        assert_eq!((rate.sensitivity, rate.specificity), (Some(1.0), Some(10.0 / 12.0)));
        assert!((rate.value.unwrap() - 0.4).abs() < 1e-12, "{rate:?}");
        let all = CorrectedPassRate::of(&scores(40), 5.0).unwrap();
        assert_eq!((all.value, all.reason), (Some(0.4), None));
        let none = CorrectedPassRate::of(&scores(20), 100.0).unwrap();
        assert_eq!(none.value, None);
        assert!(none.reason.unwrap().starts_with("people passed no labelled item"));
        assert_eq!(CorrectedPassRate::of(&[], 5.0), None);
    }
}
