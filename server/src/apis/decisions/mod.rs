//! Decisions: typed questions about one text, with a probability for every allowed answer.
//!
//! In: bodies of [`openai`], [`systemone`] and [`rerank`], which become one [`Decision`]. [`prompt`] makes a
//! prompt of each question and order of its options, and [`figures`] the probabilities of its answer.
//! Invariant: a question's prompts and figures depend on nothing but the question and the text.

mod figures;
mod number;
pub(crate) mod openai;
mod prompt;
pub(crate) mod rerank;
pub(crate) mod systemone;

use std::collections::HashMap;

use ntl_api::{
    CalibratedDecision, CalibratedKind, DecisionCalibration, IntervalMethod, MethodName, Number,
    NumberInterval, NumberMass, NumberOptions, OptionSet, OptionValue, ReadName, SetMethod,
};
use ntl_core::contract::{Event, NumberOutcome, OptionsOutcome};
use ntl_core::numbers::{Interval, Mass, NumberValues, Scale, conformal_interval};

use crate::apis::number::{central_quantiles, mass};
use crate::error::{AppError, check, in_range};
use crate::request::{EngineWork, ModelProfile};
use crate::response_budget::ResponseSize;
pub(crate) use figures::OptionFigures;
use figures::{MASS_MIN, above, ends, most_probable, quantile};
use number::NumberQuestion;
pub(crate) use prompt::{PreparedChat, PreparedPrompt, prepare, prepare_chats};

/// Maximum number of questions of a request.
const QUESTIONS_MAX: usize = 400;

/// Maximum number of options of a question.
const OPTIONS_MAX: usize = 255;

/// Maximum number of prompts of a request: questions times orders.
const PROMPTS_MAX: usize = 4096;

const TOLERANCE: f64 = 0.001;

/// Number of sampled answers of a question and an order, and its maximum.
const SAMPLES: u64 = NumberOptions::SAMPLES;
const SAMPLES_MAX: u64 = 4096;

/// Maximum number of sampled answers of a request.
const ALL_SAMPLES_MAX: usize = 16_384;

/// The reading of options if a request does not choose. Labels need the fewest steps of the model.
const READ: ReadName = ReadName::Labels;

/// The rest of an answer in a response, in bytes.
const ANSWER_BYTES: usize = 512;

/// An option in a response with its bounds, without its text, in bytes.
const OPTION_BYTES: usize = 160;

/// Questions about one text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decision {
    /// The field of the request that lists the questions.
    pub(crate) field: &'static str,
    pub(crate) state: String,
    pub(crate) questions: Vec<Question>,
    /// Return the prompts instead of answers.
    pub(crate) is_dry_run: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Question {
    /// Its field in the request.
    param: String,
    /// Its field with the options.
    options_param: String,
    instructions: String,
    kind: QuestionKind,
    reading: Reading,
    /// The offset of the calibration that applies, or why none does where the model has some.
    offset: Result<f64, Option<String>>,
}

#[derive(Debug, Clone, PartialEq)]
enum QuestionKind {
    /// The options are yes and no.
    Predicate([AnswerOption; 2]),
    Choice(Vec<AnswerOption>),
    /// The options are levels, the lowest one first.
    Score(Vec<AnswerOption>),
    Number(Box<NumberQuestion>),
}

impl QuestionKind {
    fn options(&self) -> &[AnswerOption] {
        match self {
            Self::Predicate(options) => options,
            Self::Choice(options) | Self::Score(options) => options,
            Self::Number(_) => &[],
        }
    }

    /// The options of a predicate with their descriptions: yes, then no.
    fn yes_or_no(descriptions: [Option<String>; 2]) -> Self {
        let [yes, no] = descriptions;
        Self::Predicate([
            AnswerOption { text: "Yes".to_owned(), description: yes },
            AnswerOption { text: "No".to_owned(), description: no },
        ])
    }

    fn calibrated(&self) -> Option<CalibratedKind> {
        match self {
            Self::Predicate(_) => Some(CalibratedKind::Predicate),
            Self::Choice(_) => Some(CalibratedKind::Choice),
            Self::Score(_) => Some(CalibratedKind::Score),
            Self::Number(_) => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Predicate(_) => "predicate",
            Self::Choice(_) => "choice",
            Self::Score(_) => "score",
            Self::Number(_) => "number",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct AnswerOption {
    /// Distinct within a question.
    text: String,
    description: Option<String>,
}

/// How the options of a question are read.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Reading {
    read: ReadName,
    /// Number of rotations of the options to average over.
    orders: usize,
    /// The coverage of an interval or a set.
    coverage: Option<f64>,
    tolerance: f64,
    /// Number of answers for each order, if they are sampled.
    samples: usize,
}

/// The fields of a request or a question about reading.
#[derive(Debug, Clone, Copy, Default)]
struct ReadingFields {
    read: Option<ReadName>,
    orders: Option<u64>,
    coverage: Option<f64>,
    tolerance: Option<f64>,
    samples: Option<u64>,
}

impl Reading {
    const DEFAULT: Self =
        Self { read: READ, orders: 1, coverage: None, tolerance: TOLERANCE, samples: SAMPLES as usize };

    /// Returns this reading with the fields that are set. `path` is the path of their object, with its point.
    fn with(self, path: &str, fields: ReadingFields, profile: &ModelProfile) -> Result<Self, AppError> {
        let param = |name: &str| format!("{path}{name}");
        let is_sampled = profile.sampling.is_some();
        let message = "is only for models whose engine reports no probabilities";
        check(&param("x_samples"), is_sampled || fields.samples.is_none(), message)?;
        let message = "is not for this model, whose answers are sampled; see `x_samples`";
        check(&param("x_tolerance"), !is_sampled || fields.tolerance.is_none(), message)?;
        let samples = in_range(&param("x_samples"), fields.samples, self.samples as u64, 1..=SAMPLES_MAX)?;
        let orders = in_range(&param("x_orders"), fields.orders, self.orders as u64, 1..=OPTIONS_MAX as u64)?;
        let coverage = fields.coverage.or(self.coverage);
        let tolerance = fields.tolerance.unwrap_or(self.tolerance);
        check(&param("x_coverage"), coverage.is_none_or(is_inner_share), "must be above 0 and below 1")?;
        check(&param("x_tolerance"), is_inner_share(tolerance), "must be above 0 and below 1")?;
        let read = fields.read.unwrap_or(self.read);
        Ok(Self { read, orders: orders as usize, coverage, tolerance, samples: samples as usize })
    }
}

/// Returns whether a share is neither 0 nor 1.
fn is_inner_share(share: f64) -> bool {
    share > 0.0 && share < 1.0
}

impl Question {
    fn new(
        param: String,
        options_param: String,
        instructions: String,
        kind: QuestionKind,
        reading: Reading,
    ) -> Self {
        Self { param, options_param, instructions, kind, reading, offset: Err(None) }
    }

    /// The value of the label `type` in metrics.
    pub(crate) fn kind_name(&self) -> &'static str {
        self.kind.name()
    }

    /// Finds the calibration that applies.
    fn calibrate(&mut self, calibrations: &[DecisionCalibration]) {
        let (Some(coverage), Some(kind)) = (self.reading.coverage, self.kind.calibrated()) else { return };
        let decision =
            CalibratedDecision { kind, read: self.reading.read, orders: self.reading.orders as u64 };
        for calibration in calibrations {
            if calibration.decision == decision && (calibration.coverage() - coverage).abs() <= 1e-9 {
                self.offset = Ok(calibration.offset);
                return;
            }
        }
        if !calibrations.is_empty() {
            let reason =
                "the calibrations of this model are for another type, coverage, `x_read` or `x_orders`";
            self.offset = Err(Some(reason.to_owned()));
        }
    }

    /// Number of its prompts. More rotations than options would repeat the first ones.
    fn prompts(&self) -> usize {
        self.reading.orders.clamp(1, self.kind.options().len().max(1))
    }

    /// Rejects a question that asks nothing: empty instructions, and no options with a meaning.
    fn check_asks(&self) -> Result<(), AppError> {
        let states_options = match &self.kind {
            QuestionKind::Predicate(options) => options.iter().any(|option| option.description.is_some()),
            QuestionKind::Choice(_) | QuestionKind::Score(_) => true,
            QuestionKind::Number(_) => false,
        };
        let is_blank = self.instructions.trim().is_empty();
        check(&format!("{}.instructions", self.param), states_options || !is_blank, "must not be empty")
    }

    /// Rejects options that are empty or equal.
    fn check_options(&self) -> Result<(), AppError> {
        let mut places = HashMap::new();
        for (index, option) in self.kind.options().iter().enumerate() {
            let is_blank = option.text.trim().is_empty();
            let message = format!("has an option, number {index}, that is empty or only spaces");
            check(&self.options_param, !is_blank, message)?;
            if let Some(first) = places.insert(&option.text, index) {
                return Err(self.equal_options(first, index));
            }
        }
        Ok(())
    }

    /// The set of options with the coverage that the request states.
    fn set(&self, figures: &OptionFigures, values: &[OptionValue]) -> Option<OptionSet> {
        let coverage = self.reading.coverage?;
        let probabilities = figures.or_uniform();
        let (members, method, reason) = match &self.offset {
            Ok(offset) => (above(&probabilities, 1.0 - offset), SetMethod::Conformal, None),
            Err(reason) => {
                (most_probable(&probabilities, coverage), SetMethod::Probabilities, reason.clone())
            }
        };
        let members = values.iter().zip(members).filter(|(_, is_member)| *is_member);
        let values = members.map(|(value, _)| value.clone()).collect();
        Some(OptionSet { values, coverage, method, reason })
    }

    /// The interval of a score with the coverage that the request states.
    fn interval(&self, figures: &OptionFigures) -> Option<NumberInterval> {
        let coverage = self.reading.coverage?;
        let probabilities = figures.or_uniform();
        let [low, high] = central_quantiles(coverage).map(|q| quantile(&probabilities, q) as f64);
        let quantiles = Interval { low, high };
        let (interval, method, reason) = match &self.offset {
            Ok(offset) => {
                let last = probabilities.len().saturating_sub(1) as f64;
                let levels = Scale::new(0.0, last, 1.0).map_or(NumberValues::All, NumberValues::Scale);
                (conformal_interval(quantiles, *offset, levels), IntervalMethod::Conformal, None)
            }
            Err(reason) => (quantiles, IntervalMethod::Quantiles, reason.clone()),
        };
        let [low, high] = ends(interval);
        Some(NumberInterval { low, high, coverage, method, reason })
    }

    fn equal_options(&self, first: usize, second: usize) -> AppError {
        let message = format!("has two equal options, numbers {first} and {second}, counted from 0");
        AppError::field(&self.options_param, message)
    }
}

impl Decision {
    fn new(
        field: &'static str,
        state: String,
        mut questions: Vec<Question>,
        is_dry_run: bool,
        profile: &ModelProfile,
    ) -> Result<Self, AppError> {
        for question in &mut questions {
            question.check_asks()?;
            question.check_options()?;
            question.calibrate(&profile.decision_calibrations);
        }
        let prompts: usize = questions.iter().map(Question::prompts).sum();
        let message = format!(
            "and `x_orders` make {prompts} prompts, one for each question and order; at most {PROMPTS_MAX} are allowed"
        );
        check(field, prompts <= PROMPTS_MAX, message)?;
        let samples: usize = questions.iter().map(|one| one.prompts() * one.reading.samples).sum();
        let message = format!(
            "and `x_samples` ask for {samples} sampled answers; at most {ALL_SAMPLES_MAX} are allowed"
        );
        check(field, profile.sampling.is_none() || samples <= ALL_SAMPLES_MAX, message)?;
        Ok(Self { field, state, questions, is_dry_run })
    }

    /// Size of the text that the questions are about, in all prompts together, in bytes.
    fn state_bytes(&self) -> usize {
        let prompts: usize = self.questions.iter().map(Question::prompts).sum();
        prompts * self.state.len()
    }

    /// Estimates the response; `shown_bytes` is the size of the prompts of a dry run.
    pub(crate) fn response_size(&self, shown_bytes: usize) -> ResponseSize {
        let mut bytes = shown_bytes;
        for question in &self.questions {
            bytes += ANSWER_BYTES + question.instructions.len();
            for option in question.kind.options() {
                // A text is in the probabilities, the bounds, and the set or the legend.
                bytes += OPTION_BYTES + 3 * option.text.len();
            }
            if let QuestionKind::Number(number) = &question.kind {
                bytes += number.format.bytes();
            }
        }
        ResponseSize { bytes, fields: vec![self.field] }
    }
}

/// Rejects a question that the model cannot answer, because it writes no texts.
fn check_writes(kind: &QuestionKind, profile: &ModelProfile) -> Result<(), AppError> {
    let is_number = matches!(kind, QuestionKind::Number(_));
    let writes_texts = profile.writes_tokens() && profile.notation.is_none();
    check(
        "model",
        is_number || writes_texts,
        "writes no texts, so that it answers questions of the type `number` only",
    )?;
    let has_numbers = profile.spells_numbers || profile.labels == Some(1);
    check("model", !is_number || has_numbers, "writes no numbers")
}

/// The text of an option: as JSON if it begins or ends with white space or has control characters, which a
/// model could not repeat.
fn option_text(text: &str) -> String {
    let is_plain = text.trim() == text && !text.contains(char::is_control);
    if is_plain || text.trim().is_empty() {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string()
    }
}

fn check_count(param: &str, count: usize) -> Result<(), AppError> {
    let message = format!("must have 1 to {QUESTIONS_MAX} questions, not {count}");
    check(param, (1..=QUESTIONS_MAX).contains(&count), message)
}

/// The results of the prompts of one question, in the order of the prompts.
#[derive(Debug, Default)]
pub(crate) struct Results {
    options: Vec<OptionsOutcome>,
    number: Option<NumberOutcome>,
    /// Whether the prompt could not list the options.
    pub(crate) is_unlisted: bool,
}

impl Results {
    /// Adds the result of the next prompt.
    pub(crate) fn add(&mut self, event: Event) {
        match event {
            Event::Options(outcome) => self.options.push(outcome),
            Event::Number(outcome) => self.number = Some(outcome),
            _ => {}
        }
    }
}

/// An answer in figures.
pub(crate) enum Figures {
    Options(OptionFigures),
    Number(Box<NumberFigures>),
}

/// A number as the response shows it.
pub(crate) struct NumberFigures {
    number: Number,
    unit: Option<String>,
    mass: Mass,
    /// For the metrics about numbers.
    pub(crate) method: MethodName,
    pub(crate) outcome: NumberOutcome,
}

impl Figures {
    pub(crate) fn mass(&self) -> Mass {
        match self {
            Self::Options(figures) => figures.mass,
            Self::Number(shown) => shown.mass,
        }
    }

    /// The mass as a response shows it.
    fn shown_mass(&self) -> NumberMass {
        let samples = match self {
            Self::Options(figures) => figures.samples.map(|samples| samples as u64),
            Self::Number(shown) => shown.number.mass.samples,
        };
        NumberMass { samples, ..mass(self.mass()) }
    }
}

/// The tokens of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DecisionTokens {
    /// Tokens of the prompts of all questions.
    pub(crate) input: u64,
    /// The work of another engine, if one computes the model.
    pub(crate) engine: Option<EngineWork>,
}

impl Decision {
    /// The figures of each question.
    pub(crate) fn figures(&self, results: Vec<Results>) -> Result<Vec<Figures>, AppError> {
        let mut all = Vec::with_capacity(results.len());
        for (question, results) in self.questions.iter().zip(results) {
            all.push(match (&question.kind, results.number) {
                (QuestionKind::Number(number), Some(outcome)) => {
                    Figures::Number(Box::new(number.shown(outcome)))
                }
                (QuestionKind::Number(_), None) => return Err(AppError::Internal),
                (kind, _) => {
                    let by_texts = results.is_unlisted || question.reading.read == ReadName::Texts;
                    let mass_min = match kind {
                        // The probability of a long text is small in any case.
                        QuestionKind::Choice(_) | QuestionKind::Score(_) if by_texts => f64::MIN_POSITIVE,
                        _ => MASS_MIN,
                    };
                    let figures = OptionFigures::average(&results.options, kind.options().len(), mass_min);
                    Figures::Options(OptionFigures { is_unlisted: results.is_unlisted, ..figures })
                }
            });
        }
        Ok(all)
    }
}
