//! Calibration files of decisions: which options a set, or which levels an interval, must contain.
//!
//! In: the samples of a run of `decisions` with one type of question. The score of a predicate or choice is 1
//! minus the probability of the correct option. The score of a score is the distance of the correct level
//! from the interval between two quantiles. `ntl-server` makes the sets and intervals in the same way.

use std::io::Write;

use ntl_api::{CalibratedDecision, CalibratedKind, CalibratedTask, DecisionCalibration, ReadName};
use ntl_core::numbers::{Interval, NumberValues, Scale, conformal_interval, conformity_score};
use serde_json::{Value, json};

use super::{
    CalibrateError, CalibrateSettings, CalibrationResult, Drawn, HeldOut, IntervalFigures, Wording, column,
    created, draw, meaning, model, offset, print, write,
};
use crate::format::number;
use crate::metrics::decision::most_probable;
use crate::metrics::distribution::IntervalScore;
use crate::store::report::Report;
use crate::store::sample::Sample;
use crate::store::saved::Run;

/// The probabilities of a question's options, and the index of the correct one.
struct LabelledDecision {
    probabilities: Vec<f64>,
    expected: usize,
}

impl LabelledDecision {
    /// Returns `None` for a question of another type or without an answer.
    fn of(sample: &Sample, kind: CalibratedKind) -> Option<Self> {
        let probabilities: Vec<f64> = column(sample, "probabilities")?;
        let expected: usize = column(sample, "expected_index")?;
        let is_of_kind = sample.more.get("question_type") == Some(&json!(kind));
        (is_of_kind && expected < probabilities.len()).then_some(Self { probabilities, expected })
    }

    fn score(&self, kind: CalibratedKind, alpha: f64) -> f64 {
        match kind {
            CalibratedKind::Score => conformity_score(self.interval(alpha), self.expected as f64),
            CalibratedKind::Predicate | CalibratedKind::Choice => 1.0 - self.probabilities[self.expected],
        }
    }

    /// The levels between the quantiles `alpha / 2` and `1 - alpha / 2`.
    fn interval(&self, alpha: f64) -> Interval {
        Interval { low: self.quantile(alpha / 2.0), high: self.quantile(1.0 - alpha / 2.0) }
    }

    fn quantile(&self, q: f64) -> f64 {
        let mut sum = 0.0;
        for (index, probability) in self.probabilities.iter().enumerate() {
            sum += probability;
            if sum >= q {
                return index as f64;
            }
        }
        self.probabilities.len().saturating_sub(1) as f64
    }

    /// Returns whether the interval has the correct level, and how many levels it has.
    fn levels(&self, Interval { low, high }: Interval) -> IntervalScore {
        let expected = self.expected as f64;
        IntervalScore { covers: (low..=high).contains(&expected), width: high - low + 1.0 }
    }

    /// The most probable options or levels that together have the coverage.
    fn uncalibrated(&self, kind: CalibratedKind, alpha: f64) -> IntervalScore {
        if kind == CalibratedKind::Score {
            return self.levels(self.interval(alpha));
        }
        let mut order: Vec<usize> = (0..self.probabilities.len()).collect();
        order.sort_by(|&a, &b| self.probabilities[b].total_cmp(&self.probabilities[a]));
        let mut set = IntervalScore { covers: false, width: 0.0 };
        let mut sum = 0.0;
        for index in order {
            set.covers |= index == self.expected;
            set.width += 1.0;
            sum += self.probabilities[index];
            if sum >= 1.0 - alpha {
                break;
            }
        }
        set
    }

    fn conformal(&self, kind: CalibratedKind, alpha: f64, offset: f64) -> IntervalScore {
        if kind == CalibratedKind::Score {
            let last = self.probabilities.len().saturating_sub(1) as f64;
            let levels = Scale::new(0.0, last, 1.0).map_or(NumberValues::All, NumberValues::Scale);
            return self.levels(conformal_interval(self.interval(alpha), offset, levels));
        }
        let best = most_probable(&self.probabilities);
        let mut members = Vec::new();
        for (index, probability) in self.probabilities.iter().enumerate() {
            if *probability >= 1.0 - offset || Some(index) == best {
                members.push(index);
            }
        }
        IntervalScore { covers: members.contains(&self.expected), width: members.len() as f64 }
    }
}

pub(super) fn run(run: &Run, settings: &CalibrateSettings, out: &mut dyn Write) -> anyhow::Result<()> {
    let alpha = settings.alpha;
    let kind = kind_of(run, settings.kind)?;
    let items: Vec<LabelledDecision> =
        run.samples.iter().filter_map(|sample| LabelledDecision::of(sample, kind)).collect();
    let Drawn { own, rest, left_out } = draw(items, run.samples.len(), settings)?;
    let scores: Vec<f64> = own.iter().map(|item| item.score(kind, alpha)).collect();
    let figures = offset(&scores, alpha)?;
    let calibration = DecisionCalibration {
        created: Some(created()),
        ..DecisionCalibration::new(
            model(&run.report),
            task(&run.report),
            decision(kind, &run.report),
            figures,
        )
        .map_err(CalibrateError::Refused)?
    };
    write(&settings.out, &calibration, settings.overwrite)?;
    let mut before = Vec::with_capacity(rest.len());
    let mut after = Vec::with_capacity(rest.len());
    for item in &rest {
        before.push(item.uncalibrated(kind, alpha));
        after.push(item.conformal(kind, alpha, figures.offset));
    }
    let held_out = (!rest.is_empty()).then(|| HeldOut {
        n: rest.len(),
        quantiles: IntervalFigures::of(&before),
        conformal: IntervalFigures::of(&after),
    });
    let outcome = CalibrationResult {
        file: &settings.out,
        calibration: &calibration,
        seed: settings.seed,
        left_out,
        held_out,
    };
    let set_meaning =
        format!("a set has every option with a probability of at least {}", number(1.0 - figures.offset));
    let is_score = kind == CalibratedKind::Score;
    let wording = Wording {
        meaning: if is_score { meaning(figures.offset, alpha) } else { set_meaning },
        uncalibrated: "probabilities",
        size: "mean size",
        left_out: "are of another type or have no answer",
    };
    print(&outcome, figures, &wording, run, settings.json, out)
}

/// Returns the requested type, or the only one whose questions have options.
fn kind_of(run: &Run, requested: Option<CalibratedKind>) -> Result<CalibratedKind, CalibrateError> {
    let mut found = vec![CalibratedKind::Predicate, CalibratedKind::Choice, CalibratedKind::Score];
    found.retain(|kind| run.samples.iter().any(|sample| LabelledDecision::of(sample, *kind).is_some()));
    match (requested, found.as_slice()) {
        (Some(kind), found) if found.contains(&kind) => Ok(kind),
        (None, [kind]) => Ok(*kind),
        _ => Err(CalibrateError::Types { found: json!(found).to_string() }),
    }
}

fn decision(kind: CalibratedKind, report: &Report) -> CalibratedDecision {
    let request = report.settings.get("request").unwrap_or(&Value::Null);
    CalibratedDecision {
        kind,
        read: if request["x_read"] == "texts" { ReadName::Texts } else { ReadName::Labels },
        orders: request["x_orders"].as_u64().unwrap_or(1),
    }
}

fn task(report: &Report) -> CalibratedTask {
    CalibratedTask {
        name: format!("{} {}", report.task, report.split),
        route: format!("/v1/{}", report.mode),
        template: None,
        system: None,
        shots: 0,
    }
}
