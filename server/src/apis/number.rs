//! The `number` object of an answer: the requested estimate, its text, and the distribution around it.
//!
//! Invariants: no NaN, no infinity and no negative zero leaves this module; the three masses add up to 1.
//! Masses and bounds are exact: only estimates use draws of the open mass.

use ntl_api::{
    Bounds, EstimateName, FieldProbability, IntervalMethod, LocatedChoice, LocatedField, LocatedNumber,
    MethodName, Number, NumberDraws, NumberInterval, NumberMass, ObjectiveName, ObjectiveOption, Quantile,
    SpecialMass, SupportPoint,
};
use ntl_core::contract::{self, NumberOutcome, RefusedText};
use ntl_core::guide::FieldValues;
use ntl_core::numbers::{
    self, Distribution, Estimation, Interval, ListedValues, NumberValues, SampledDistribution, SchemaNumbers,
    conformal_interval,
};
use ntl_core::samples::{CONFIDENCE, NumberSamples};

use crate::request::{AnswerSampling, number_bytes};

/// The mass on the scale that a model is expected to give a rating at least.
const MASS_EXPECTED: f64 = 0.5;

/// How a number is shown.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NumberFormat {
    /// Which estimate is the answer.
    pub(super) objective: ObjectiveOption,
    pub(super) method: MethodName,
    pub(super) estimation: Estimation,
    /// Whether only the values of a scale count.
    pub(super) is_rating: bool,
    /// Minimum closed mass of an answer with a value.
    pub(super) mass_min: f64,
    pub(super) quantiles: Vec<f64>,
    /// How many of the most probable values to show.
    pub(super) support: usize,
    /// Number of numbers in an answer.
    pub(super) outputs: usize,
    /// Whether the model has tokens for values that are not finite numbers.
    pub(super) has_special_values: bool,
    /// Decimals of the text; `None` for the shortest text that reads back.
    pub(super) decimals: Option<usize>,
    pub(super) interval: Option<IntervalFormat>,
    /// Whether it is for the fields of a structured text.
    pub(super) is_of_fields: bool,
    /// How whole answers are sampled, if they are.
    pub(super) sampling: Option<AnswerSampling>,
}

/// How an interval is shown.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct IntervalFormat {
    pub(super) coverage: f64,
    /// The values that its ends can be.
    pub(super) values: NumberValues,
    pub(super) ends: IntervalEnds,
}

impl IntervalFormat {
    /// The quantiles at its ends.
    pub(super) fn quantiles(&self) -> [f64; 2] {
        central_quantiles(self.coverage)
    }
}

/// The quantiles at the ends of an interval with this coverage.
pub(super) fn central_quantiles(coverage: f64) -> [f64; 2] {
    [f64::midpoint(0.0, 1.0 - coverage), f64::midpoint(1.0, coverage)]
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum IntervalEnds {
    /// Two quantiles; `reason` says why no calibration is used where the model has some.
    Quantiles { reason: Option<String> },
    /// Two quantiles, moved outwards.
    Conformal { offset: f64 },
}

/// The value of an answer.
pub(super) struct NumberAnswer {
    /// The estimate that `value` is.
    name: EstimateName,
    value: Option<f64>,
    /// The printed value. Empty after a text that ended without the marker `after`.
    pub(super) text: String,
    /// Whether the distribution answers the request at all; bounds of a refused answer are left out.
    has_estimate: bool,
    reason: Option<String>,
}

const DEFAULT_TEMPERATURE: &str = "the engine takes no temperature: its answers are sampled at its default";

const IMPLAUSIBLE: &str =
    "the regression head predicts more than 1e12: check --log-scale-embeddings, which must be as in training";

impl NumberFormat {
    /// Estimates the size of a number in the response, in bytes.
    pub(super) fn bytes(&self) -> usize {
        // The first of several numbers is shown twice, and each of a structured text.
        let shown = if self.outputs > 1 { self.outputs + 1 } else { 1 + usize::from(self.is_of_fields) };
        shown.saturating_mul(number_bytes(self.support, self.quantiles.len()))
    }

    pub(super) fn method(&self) -> MethodName {
        self.method
    }

    pub(super) fn is_of_fields(&self) -> bool {
        self.is_of_fields
    }

    /// A field of a structured text.
    pub(super) fn show_field(&self, field: &contract::FieldOutcome) -> LocatedField {
        match &field.field.values {
            FieldValues::Numbers(numbers) => {
                LocatedField::Number(Box::new(self.located_number(field, numbers)))
            }
            FieldValues::Listed(values) => LocatedField::Choice(located_choice(field, values)),
        }
    }

    /// A number of a structured text. Its value is the number in the text.
    fn located_number(&self, field: &contract::FieldOutcome, numbers: &SchemaNumbers) -> LocatedNumber {
        let range = numbers.interval();
        let estimation = Estimation { range, ..self.estimation };
        let (_, number) = Self { estimation, ..self.clone() }.show(&field.outcome);
        let unwritten = (number.value.is_some() && field.value.is_none()).then(|| {
            "the text cannot have the estimate here, and the model has written the number".to_owned()
        });
        let reasons: Vec<String> = number.reason.into_iter().chain(unwritten).collect();
        let number = Number {
            value: field.value.and_then(plain),
            estimate: if field.value.is_some() { number.estimate } else { None },
            reason: (!reasons.is_empty()).then(|| reasons.join("; ")),
            ..number
        };
        let token_range = [field.tokens.start as u64, field.tokens.end as u64];
        LocatedNumber { path: field.field.path.clone(), token_range, number }
    }

    /// The printed value and the object.
    pub(super) fn show(&self, outcome: &NumberOutcome) -> (String, Number) {
        let distribution = &outcome.distribution;
        let estimated = outcome.estimated();
        let NumberAnswer { name, value, text, has_estimate, reason } = self.answer(outcome);
        // `token` finds only the greedy number, whose mean would look like an estimate.
        let estimates = if self.method == MethodName::Token { None } else { Some(estimated) };
        let number = Number {
            value,
            objective: self.objective,
            estimate: value.map(|_| name),
            method: self.method.as_str().to_owned(),
            mean: estimates.and_then(|distribution| distribution.mean(&self.estimation)).and_then(plain),
            trimmed_mean: estimates
                .and_then(|distribution| distribution.trimmed_mean(&self.estimation))
                .and_then(plain),
            median: estimates.and_then(|distribution| distribution.quantile(0.5)).and_then(plain),
            mode: estimated.mode().and_then(plain),
            std: estimates.and_then(Distribution::std).and_then(plain),
            quantiles: self
                .quantiles
                .iter()
                .map(|&q| Quantile {
                    q,
                    value: estimates.and_then(|distribution| distribution.quantile(q)).and_then(plain),
                })
                .collect(),
            interval: match &self.interval {
                Some(format) if has_estimate => self.interval(format, outcome),
                _ => None,
            },
            support: support(estimated.most_probable(self.support), outcome.answers.as_deref()),
            mass: NumberMass {
                special: self.has_special_values.then(|| special(distribution.special())),
                samples: outcome.answers.as_ref().map(|answers| answers.samples() as u64),
                ..mass(distribution.mass())
            },
            bounds: self.bounds(outcome, has_estimate),
            sampled: outcome.sampled.first().map(|sampled| self.draws(sampled, has_estimate)),
            nodes: outcome.nodes as u64,
            forward_passes: outcome.forward_passes as u64,
            truncated: outcome.truncated,
            reason,
        };
        (text, number)
    }

    /// Returns whether a regression head predicts a number that its targets hardly contained.
    fn is_implausible(&self, distribution: &Distribution, value: Option<f64>) -> bool {
        const PLAUSIBLE_MAX: f64 = 1e12;
        let is_large =
            distribution.mass().open > 0.0 || value.is_some_and(|value| value.abs() > PLAUSIBLE_MAX);
        self.method == MethodName::Head && is_large
    }

    /// Returns the value with its text and the notes about it.
    pub(super) fn answer(&self, outcome: &NumberOutcome) -> NumberAnswer {
        let distribution = &outcome.distribution;
        let refusal = self.refusal(outcome);
        let has_estimate = refusal.is_none();
        let is_unbounded =
            has_estimate && self.must_be_bounded(outcome) && self.value_bounds(distribution).is_none();
        let estimated = outcome.estimated();
        let name = if is_unbounded { EstimateName::Median } else { self.estimate_name(estimated) };
        let value = if has_estimate { self.value(outcome).and_then(plain) } else { None };
        let text = match value {
            Some(value) if outcome.first_text_end.is_none() => printed(value, self.decimals),
            _ => String::new(),
        };
        let off_scale = if has_estimate { self.off_scale(outcome) } else { None };
        let missed = if has_estimate { missed_rationales(outcome) } else { None };
        let unbounded = is_unbounded.then(|| self.unbounded(distribution, value.is_some()));
        let no_interval =
            self.interval.as_ref().filter(|format| has_estimate && self.interval(format, outcome).is_none());
        let no_interval = no_interval.map(|format| self.no_interval(format, distribution));
        let implausible = self.is_implausible(distribution, value).then(|| IMPLAUSIBLE.to_owned());
        let unreported = unreported(outcome);
        let is_default = self.sampling == Some(AnswerSampling::EngineDefault);
        let temperature = is_default.then(|| DEFAULT_TEMPERATURE.to_owned());
        let reasons =
            [refusal, off_scale, unbounded, no_interval, unreported, missed, implausible, temperature];
        let reasons: Vec<String> = reasons.into_iter().flatten().collect();
        let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
        NumberAnswer { name, value, text, has_estimate, reason }
    }

    fn value(&self, outcome: &NumberOutcome) -> Option<f64> {
        match self.method {
            MethodName::Token => outcome.token_value,
            _ if self.knows_open_mass() && outcome.sampled.is_empty() => {
                let objective = engine_objective(self.objective);
                outcome.distribution.bounded_estimate(objective, &self.estimation)
            }
            _ => outcome.estimated().estimate(engine_objective(self.objective), &self.estimation),
        }
    }

    fn draws(&self, sampled: &SampledDistribution, has_estimate: bool) -> NumberDraws {
        let standard_error = if has_estimate {
            sampled.standard_error(engine_objective(self.objective), &self.estimation).and_then(plain)
        } else {
            None
        };
        NumberDraws { draws: sampled.draws().into(), standard_error }
    }

    /// Returns which estimate answers the objective.
    fn estimate_name(&self, distribution: &Distribution) -> EstimateName {
        match (self.method, self.objective) {
            (MethodName::Token, _) => EstimateName::Expectation,
            (_, ObjectiveOption::Named(ObjectiveName::Mean)) => EstimateName::TrimmedMean,
            (_, ObjectiveOption::Named(ObjectiveName::Median)) => EstimateName::Median,
            (_, ObjectiveOption::Named(ObjectiveName::Mode)) => EstimateName::Mode,
            (_, ObjectiveOption::Named(ObjectiveName::Auto)) => match distribution.majority() {
                Some(_) => EstimateName::Mode,
                None => EstimateName::TrimmedMean,
            },
            (_, ObjectiveOption::Quantile { .. }) => EstimateName::Quantile,
        }
    }

    /// Returns whether an estimate without bounds is unusable. A mode is always a number that the model
    /// wrote, draws stand for the open mass, and methods that draw or drop numbers bound nothing.
    fn must_be_bounded(&self, outcome: &NumberOutcome) -> bool {
        self.knows_open_mass()
            && outcome.sampled.is_empty()
            && self.objective != ObjectiveOption::Named(ObjectiveName::Mode)
    }

    /// Explains why the objective's estimate is unusable. The open mass is rounded up where it would
    /// otherwise read as if it were small enough.
    fn unbounded(&self, distribution: &Distribution, has_median: bool) -> String {
        let mass = distribution.mass();
        let trim = self.estimation.trim;
        let open = rounded_above(mass.open, trim);
        let also = if has_median { "" } else { ", and so is the median" };
        let estimate = match self.objective {
            ObjectiveOption::Named(ObjectiveName::Mean | ObjectiveName::Auto) if mass.open > trim => {
                format!("open mass {open} exceeds trim {trim}: the trimmed mean")
            }
            ObjectiveOption::Named(ObjectiveName::Mean | ObjectiveName::Auto) => {
                let share = rounded_above(mass.open / (mass.open + mass.closed), trim);
                format!(
                    "open mass {open}, as a share of closed and open mass {share}, exceeds trim {trim}: the trimmed mean"
                )
            }
            ObjectiveOption::Quantile { quantile } => format!("open mass {open}: the quantile {quantile}"),
            ObjectiveOption::Named(ObjectiveName::Median) => {
                return format!("open mass {open}: the median is unbounded");
            }
            ObjectiveOption::Named(ObjectiveName::Mode) => format!("open mass {open}: the mode"),
        };
        format!("{estimate} is unbounded{also}")
    }

    fn knows_open_mass(&self) -> bool {
        [MethodName::Tree, MethodName::Xval, MethodName::Head].contains(&self.method)
    }

    /// Only a tree knows the mass that it did not expand: draws can miss anything, and beams drop what they
    /// do not follow.
    fn bounds(&self, outcome: &NumberOutcome, has_estimate: bool) -> Bounds {
        let distribution = &outcome.distribution;
        if let Some(answers) = &outcome.answers {
            return self.confidence_bounds(answers, has_estimate);
        }
        if !self.knows_open_mass() {
            return Bounds { quantiles: vec![None; self.quantiles.len()], ..Bounds::default() };
        }
        Bounds {
            value: if has_estimate { self.value_bounds(distribution) } else { None },
            trimmed_mean: distribution.trimmed_mean_bounds(&self.estimation).and_then(ends),
            median: self.quantile_bounds(distribution, 0.5),
            quantiles: self.quantiles.iter().map(|&q| self.quantile_bounds(distribution, q)).collect(),
            confidence: None,
        }
    }

    fn confidence_bounds(&self, samples: &NumberSamples, has_estimate: bool) -> Bounds {
        let objective = engine_objective(self.objective);
        let range = self.estimation.range;
        let value = samples.estimate_bounds(objective, &self.estimation).and_then(ends);
        let mut quantiles = Vec::with_capacity(self.quantiles.len());
        for &q in &self.quantiles {
            quantiles.push(samples.quantile_bounds(q, range).and_then(ends));
        }
        Bounds {
            value: if has_estimate { value } else { None },
            trimmed_mean: samples.mean_bounds(&self.estimation).and_then(ends),
            median: samples.quantile_bounds(0.5, range).and_then(ends),
            quantiles,
            confidence: Some(CONFIDENCE),
        }
    }

    fn value_bounds(&self, distribution: &Distribution) -> Option<[f64; 2]> {
        distribution.estimate_bounds(engine_objective(self.objective), &self.estimation).and_then(ends)
    }

    fn quantile_bounds(&self, distribution: &Distribution, q: f64) -> Option<[f64; 2]> {
        distribution.quantile_bounds(q, self.estimation.range).and_then(ends)
    }

    /// Returns whether a head predicts the number, without a distribution.
    fn is_predicted(&self) -> bool {
        matches!(self.method, MethodName::Head | MethodName::Xval)
    }

    /// Explains why there is no interval.
    fn no_interval(&self, format: &IntervalFormat, distribution: &Distribution) -> String {
        match &format.ends {
            IntervalEnds::Quantiles { reason } if self.is_predicted() => {
                let reason = reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
                format!(
                    "the model predicts one value without a distribution: the interval needs a calibration{reason}"
                )
            }
            _ => format!("open mass {}: the interval is unbounded", distribution.mass().open),
        }
    }

    /// `None` if the open mass can move an end beyond all bounds, and if a head predicts the number and no
    /// calibration applies: the interval would have no width.
    fn interval(&self, format: &IntervalFormat, outcome: &NumberOutcome) -> Option<NumberInterval> {
        if self.is_predicted() && matches!(format.ends, IntervalEnds::Quantiles { .. }) {
            return None;
        }
        let coverage = format.coverage;
        let [low, high] = format.quantiles();
        let distribution = outcome.estimated();
        let needs_bounds = self.knows_open_mass() && outcome.sampled.is_empty();
        if needs_bounds {
            self.quantile_bounds(distribution, low)?;
            self.quantile_bounds(distribution, high)?;
        }
        let quantiles = Interval { low: distribution.quantile(low)?, high: distribution.quantile(high)? };
        let (ends, method, reason) = match &format.ends {
            IntervalEnds::Quantiles { reason } => (quantiles, IntervalMethod::Quantiles, reason.clone()),
            IntervalEnds::Conformal { offset } => {
                let ends = conformal_interval(quantiles, *offset, format.values);
                (ends, IntervalMethod::Conformal, None)
            }
        };
        let [low, high] = [plain(ends.low)?, plain(ends.high)?];
        Some(NumberInterval { low, high, coverage, method, reason })
    }

    /// The reason for a missing value.
    fn refusal(&self, outcome: &NumberOutcome) -> Option<String> {
        if outcome.reached == 0 {
            return Some(
                "no text contained the marker `after` before it ended or reached max_tokens".to_owned(),
            );
        }
        if self.method == MethodName::Token && outcome.token_value.is_none() {
            let reason = if outcome.unreported > 0.0 {
                "the method `token` needs the probabilities of all number tokens"
            } else {
                "the greedy path is not a number"
            };
            return Some(reason.to_owned());
        }
        let distribution = outcome.estimated();
        let closed = distribution.mass().closed;
        let written = written_instead(&outcome.refused);
        if distribution.leaves().is_empty() || closed <= 0.0 {
            return Some(format!("no closed mass{written}"));
        }
        let shown = shown_below(closed);
        let least = self.mass_min;
        (closed < least).then(|| format!("closed mass {shown} is below mass_min {least}{written}"))
    }

    /// Says that the model rather writes something else than a rating. Its value is conditional on the scale,
    /// like any rating.
    fn off_scale(&self, outcome: &NumberOutcome) -> Option<String> {
        let NumberMass { closed, open, .. } = mass(outcome.estimated().mass());
        let verb = if closed + open < MASS_EXPECTED { "is" } else { "was found" };
        let written = written_instead(&outcome.refused);
        let is_low = self.is_rating && closed < MASS_EXPECTED;
        is_low.then(|| {
            format!("less than half of the mass, {}, {verb} on the scale{written}", shown_below(closed))
        })
    }
}

/// A mass with four decimals, or with one digit if it is smaller. It is rounded down, so that it never reads
/// as if it were enough.
fn shown_below(mass: f64) -> f64 {
    let tens = 10_f64.powf((-mass.log10()).ceil().clamp(4.0, 18.0));
    (mass * tens).floor() / tens
}

/// The text that the model is more likely to write.
fn written_instead(refused: &[RefusedText]) -> String {
    let mut texts = Vec::new();
    for RefusedText { text, probability } in refused {
        texts.push(format!("{text:?} ({})", (probability * 1e4).round() / 1e4));
    }
    if texts.is_empty() { String::new() } else { format!("; the model would write {}", texts.join(", ")) }
}

/// A note about open mass that no search can reduce.
fn unreported(outcome: &NumberOutcome) -> Option<String> {
    /// The default tolerance of a tree.
    const NOTED_MIN: f64 = 1e-3;
    let unreported = (outcome.unreported * 1e4).round() / 1e4;
    (unreported > NOTED_MIN)
        .then(|| format!("the engine does not report {unreported} of the mass, which stays open"))
}

/// A note about the rationales without a number, which the response leaves out.
fn missed_rationales(outcome: &NumberOutcome) -> Option<String> {
    let NumberOutcome { reached, missed, .. } = *outcome;
    (missed > 0).then(|| {
        format!(
            "{missed} of {} rationales ended without the marker `after` and do not count",
            reached + missed
        )
    })
}

pub(super) fn engine_objective(objective: ObjectiveOption) -> numbers::Objective {
    match objective {
        ObjectiveOption::Named(ObjectiveName::Mean) => numbers::Objective::Mean,
        ObjectiveOption::Named(ObjectiveName::Median) => numbers::Objective::Median,
        ObjectiveOption::Named(ObjectiveName::Mode) => numbers::Objective::Mode,
        ObjectiveOption::Named(ObjectiveName::Auto) => numbers::Objective::Auto,
        ObjectiveOption::Quantile { quantile } => numbers::Objective::Quantile(quantile),
    }
}

/// Rounds a share to four decimals, up if it would otherwise not exceed `trim`.
fn rounded_above(share: f64, trim: f64) -> f64 {
    let rounded = (share * 1e4).round() / 1e4;
    if rounded > trim { rounded } else { (share * 1e4).ceil() / 1e4 }
}

/// A number that JSON can carry, without the sign of zero.
pub(super) fn plain(value: f64) -> Option<f64> {
    value.is_finite().then_some(value + 0.0)
}

fn ends(interval: Interval) -> Option<[f64; 2]> {
    Some([plain(interval.low)?, plain(interval.high)?])
}

fn support(leaves: Vec<&numbers::Leaf>, answers: Option<&NumberSamples>) -> Vec<SupportPoint> {
    let mut support = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        let bounds = answers.map(|answers| answers.probability_bounds(leaf.value));
        support.push(SupportPoint {
            value: leaf.value + 0.0,
            text: leaf.text.clone(),
            probability: leaf.probability,
            bounds: bounds.and_then(ends),
        });
    }
    support
}

/// One of the values that a schema lists. The numbers of its distribution are their indices.
fn located_choice(field: &contract::FieldOutcome, values: &ListedValues) -> LocatedChoice {
    let distribution = &field.outcome.distribution;
    let own_mass = distribution.mass();
    let count = values.texts().len();
    let mut probabilities = Vec::with_capacity(count);
    for text in values.texts() {
        // The text is JSON that serde has written.
        let value = serde_json::from_str(text).unwrap_or_default();
        let probability = if own_mass.closed > 0.0 { 0.0 } else { 1.0 / count as f64 };
        probabilities.push(FieldProbability { value, probability });
    }
    for leaf in distribution.leaves() {
        if let Some(entry) = probabilities.get_mut(leaf.value as usize) {
            entry.probability = leaf.probability / own_mass.closed;
        }
    }
    LocatedChoice {
        path: field.field.path.clone(),
        token_range: [field.tokens.start as u64, field.tokens.end as u64],
        probabilities,
        mass: mass(own_mass),
        nodes: field.outcome.nodes as u64,
        truncated: field.outcome.truncated,
    }
}

/// Sums of many products may miss 0 by rounding, or be -0.
pub(super) fn mass(mass: numbers::Mass) -> NumberMass {
    let [closed, invalid, open] =
        [mass.closed, mass.invalid, mass.open].map(|share| share.clamp(0.0, 1.0) + 0.0);
    NumberMass { closed, invalid, open, special: None, samples: None }
}

fn special(mass: numbers::SpecialMass) -> SpecialMass {
    SpecialMass {
        nan: mass.nan,
        infinity: mass.infinity,
        negative_infinity: mass.negative_infinity,
        invalid: mass.invalid,
    }
}

fn printed(value: f64, decimals: Option<usize>) -> String {
    let text = match decimals {
        Some(decimals) => format!("{value:.decimals$}"),
        // Numbers in text are never so large or so small.
        None if value.abs() >= 1e21 || (value.abs() < 1e-20 && value != 0.0) => format!("{value:e}"),
        None => value.to_string(),
    };
    // -0.3 without decimals is 0, not -0.
    let is_zero = !text.contains(|character: char| character.is_ascii_digit() && character != '0');
    if is_zero { text.trim_start_matches('-').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use ntl_core::numbers::Decimal;

    use super::*;

    #[test]
    fn numbers_are_printed_short_or_with_fixed_decimals_and_never_as_minus_zero() {
        for (value, decimals, want) in [
            (42.0, None, "42"),
            (0.1, None, "0.1"),
            (-41.97, None, "-41.97"),
            (1e20, None, "100000000000000000000"),
            (-9.9999e99, None, "-9.9999e99"),
            (1e-99, None, "1e-99"),
            (1e-6, None, "0.000001"),
            (41.967, Some(2), "41.97"),
            (42.0, Some(2), "42.00"),
            (-0.3, Some(0), "0"),
            (-0.004, Some(2), "0.00"),
            (-0.0, None, "0"),
            (-0.006, Some(2), "-0.01"),
        ] {
            let text = printed(value, decimals);
            assert_eq!(text, want);
            if decimals.is_none() {
                assert!((text.parse::<f64>().unwrap() - value).abs() <= 0.0, "{text}");
            }
        }
    }

    fn print(method: MethodName) -> NumberFormat {
        NumberFormat {
            objective: ObjectiveOption::Named(ObjectiveName::Mode),
            method,
            estimation: Estimation::default(),
            is_rating: false,
            mass_min: 0.0,
            quantiles: vec![0.5],
            support: 3,
            outputs: 1,
            has_special_values: false,
            decimals: None,
            interval: None,
            is_of_fields: false,
            sampling: None,
        }
    }

    fn nothing(reached: u32) -> NumberOutcome {
        let distribution = Distribution::new(&HashMap::<Decimal, f64>::new(), 1.0, -1e-17);
        NumberOutcome { reached, missed: 1 - reached, ..NumberOutcome::new(distribution, 1, 1) }
    }

    #[test]
    fn an_absurd_number_of_a_regression_head_has_a_hint_about_the_logarithm() {
        for (method, value, hinted) in [
            (MethodName::Head, 3e15, true),
            (MethodName::Head, -3e15, true),
            (MethodName::Head, 1e12, false),
            (MethodName::Tree, 3e15, false),
        ] {
            let closed = HashMap::from([(Decimal::shortest_f64(value).unwrap(), 1.0)]);
            let distribution = Distribution::new(&closed, 0.0, 0.0);
            let (_, number) = print(method).show(&NumberOutcome { distribution, ..nothing(1) });
            assert_eq!(number.value, Some(value));
            let reason = number.reason.unwrap_or_default();
            assert_eq!(reason.contains("--log-scale-embeddings"), hinted, "{method:?} {value}: {reason}");
        }
    }

    #[test]
    fn a_predicted_number_has_an_interval_only_with_a_calibration() {
        let closed = HashMap::from([(Decimal::shortest_f64(4.5).unwrap(), 1.0)]);
        let outcome = NumberOutcome { distribution: Distribution::new(&closed, 0.0, 0.0), ..nothing(1) };
        let shown = |method, ends| {
            let interval = Some(IntervalFormat { coverage: 0.9, values: NumberValues::All, ends });
            let (_, number) = NumberFormat { interval, ..print(method) }.show(&outcome);
            (number.interval.map(|found| [found.low, found.high]), number.reason.unwrap_or_default())
        };
        let other = "the calibration of this model is for an `interval` of 0.8";
        for method in [MethodName::Head, MethodName::Xval] {
            let (interval, reason) = shown(method, IntervalEnds::Quantiles { reason: None });
            assert_eq!(interval, None);
            assert!(reason.ends_with("without a distribution: the interval needs a calibration"), "{reason}");
            let (_, reason) = shown(method, IntervalEnds::Quantiles { reason: Some(other.to_owned()) });
            assert!(reason.ends_with(&format!("needs a calibration ({other})")), "{reason}");
            let calibrated = shown(method, IntervalEnds::Conformal { offset: 1.5 });
            assert_eq!(calibrated, (Some([3.0, 6.0]), String::new()));
        }
        let (interval, _) = shown(MethodName::Tree, IntervalEnds::Quantiles { reason: None });
        assert_eq!(interval, Some([4.5, 4.5]), "a model that writes numbers has a distribution");
    }

    #[test]
    fn mass_that_another_engine_does_not_report_is_named() {
        let unreported = |method, unreported| {
            let (_, number) = print(method).show(&NumberOutcome { unreported, ..nothing(1) });
            number.reason.unwrap_or_default()
        };
        let open = "no closed mass; the engine does not report 0.0312 of the mass, which stays open";
        assert_eq!(unreported(MethodName::Tree, 0.03124), open);
        assert_eq!(unreported(MethodName::Tree, 1e-4), "no closed mass");
        assert!(unreported(MethodName::Token, 0.5).starts_with("the method `token` needs"));
    }

    #[test]
    fn without_numbers_there_is_no_value_but_a_reason() {
        let no_marker = "no text contained the marker `after` before it ended or reached max_tokens";
        for (method, reached, reason) in [
            (MethodName::Tree, 1, "no closed mass"),
            (MethodName::Sample, 1, "no closed mass"),
            (MethodName::Token, 1, "the greedy path is not a number"),
            (MethodName::Tree, 0, no_marker),
            (MethodName::Token, 0, no_marker),
        ] {
            let (text, number) = print(method).show(&nothing(reached));
            let got = (text.as_str(), number.value, number.reason.as_deref());
            assert_eq!(got, ("", None, Some(reason)));
            assert_eq!(number.quantiles, [Quantile { q: 0.5, value: None }]);
            assert_eq!(number.bounds, Bounds { quantiles: vec![None], ..Bounds::default() });
            assert!(number.mass.open >= 0.0 && !number.mass.open.is_sign_negative());
        }
    }
}
