//! The `number` object of requests and responses.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_with::skip_serializing_none;
use utoipa::openapi::schema::OneOfBuilder;
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::whole::whole;

/// `true`, `false` or an object of options.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum NumberRequest {
    /// All defaults, or no number.
    Switch(bool),
    /// Options.
    Options(Box<NumberOptions>),
}

/// Implemented by hand: the errors of an untagged enum name neither an unknown option nor a duplicate one.
impl<'de> Deserialize<'de> for NumberRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SwitchOrOptions;

        impl<'de> Visitor<'de> for SwitchOrOptions {
            type Value = NumberRequest;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("true, false or an object of number options")
            }

            fn visit_bool<E>(self, on: bool) -> Result<NumberRequest, E> {
                Ok(NumberRequest::Switch(on))
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<NumberRequest, M::Error> {
                let options = NumberOptions::deserialize(MapAccessDeserializer::new(map))?;
                Ok(NumberRequest::Options(Box::new(options)))
            }
        }

        deserializer.deserialize_any(SwitchOrOptions)
    }
}

impl PartialSchema for NumberRequest {
    fn schema() -> RefOr<Schema> {
        let options = Ref::from_schema_name(NumberOptions::name());
        let about = Some("`true` for all defaults, or an object of options.");
        OneOfBuilder::new().item(bool::schema()).item(options).description(about).into()
    }
}

impl ToSchema for NumberRequest {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((NumberOptions::name().into_owned(), NumberOptions::schema()));
        NumberOptions::schemas(schemas);
    }
}

/// An objective without a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ObjectiveName {
    /// Minimises the squared error: the (trimmed) mean.
    Mean,
    /// Minimises the absolute error.
    Median,
    /// Maximises the probability of being exact.
    Mode,
    /// The mode if one value has more than half of the closed mass, otherwise the (trimmed) mean.
    Auto,
}

/// The error that the printed value minimises.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "\"mean\", \"median\", \"mode\", \"auto\" or {\"quantile\": q}"
)]
#[schema(as = Objective)]
pub enum ObjectiveOption {
    /// `"mean"`, `"median"`, `"mode"` or `"auto"`.
    Named(ObjectiveName),
    /// `{"quantile": q}`: minimises the pinball loss.
    Quantile {
        /// In (0, 1).
        quantile: f64,
    },
}

/// A terminator without a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TerminatorName {
    /// Any token that does not continue the number.
    Any,
    /// Only the end of the sequence.
    Eos,
}

/// The text or token that ends a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "\"any\", \"eos\" or a list of strings")]
#[schema(as = Terminator)]
pub enum TerminatorOption {
    /// `"any"` or `"eos"`.
    Named(TerminatorName),
    /// The end of the sequence, or a token that starts with one of these.
    Texts(Vec<String>),
}

/// The method that finds the distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MethodName {
    /// Exact expansion of the tree of all texts that are numbers.
    Tree,
    /// Numbers drawn from the model: at temperature 1 or, in dedicated tokens, with the sampling fields of
    /// the request. If another engine computes the model and reports no probabilities: whole answers, which
    /// begin with the number.
    Sample,
    /// The most probable complete numbers of a beam search.
    Beam,
    /// Expectation token by token along the greedy path. A diagnostic: it is wrong if a carry is uncertain.
    Token,
    /// Only for xVal checkpoints: the value of the number head at the number token.
    Xval,
    /// Only for regression heads: the value of the head.
    Head,
}

impl MethodName {
    /// All methods.
    pub const ALL: [Self; 6] = [Self::Tree, Self::Sample, Self::Beam, Self::Token, Self::Xval, Self::Head];

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Sample => "sample",
            Self::Beam => "beam",
            Self::Token => "token",
            Self::Xval => "xval",
            Self::Head => "head",
        }
    }
}

/// The values of a rating.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "[low, high], [low, high, step] or {\"low\": low, \"high\": high, \"step\": step}"
)]
pub enum NumberScale {
    /// `[low, high]`, whole numbers, or `[low, high, step]`.
    List(Vec<f64>),
    /// `{"low": low, "high": high, "step": step}`; the step is 1 unless given.
    Named {
        /// The first value.
        low: f64,
        /// The last value.
        high: f64,
        /// Default 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<f64>,
    },
}

/// The numbers that define a scale, with the default step filled in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleNumbers {
    pub low: f64,
    pub high: f64,
    pub step: f64,
}

/// The length of a list that is not a scale, because it has neither two nor three numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongScaleLength(pub usize);

impl NumberScale {
    pub fn numbers(&self) -> Result<ScaleNumbers, WrongScaleLength> {
        let (low, high, step) = match self {
            Self::List(list) => match *list.as_slice() {
                [low, high] => (low, high, None),
                [low, high, step] => (low, high, Some(step)),
                _ => return Err(WrongScaleLength(list.len())),
            },
            Self::Named { low, high, step } => (*low, *high, *step),
        };
        Ok(ScaleNumbers { low, high, step: step.unwrap_or(1.0) })
    }
}

/// The separator of groups of three digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "true, false or one of \",\", \"_\", \"'\" and \" \"")]
pub enum Thousands {
    /// `true`: a comma. `false`: nothing.
    Switch(bool),
    /// One of `,` `_` `'` and a space.
    Separator(char),
}

/// Options of number decoding. Null means the default in every field; unknown names are errors.
#[serde_with::apply(Option<u64> => #[serde(default, deserialize_with = "whole")])]
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NumberOptions {
    /// Default `mean`.
    pub objective: Option<ObjectiveOption>,
    /// Default `tree`; `sample` if another engine computes the model and reports no probabilities.
    pub method: Option<MethodName>,
    /// Share of the closed mass that the mean omits in each tail, 0 to 0.49. Default 0.005; 0 with `scale`.
    #[schema(minimum = 0, maximum = 0.49)]
    pub trim: Option<f64>,
    /// Only `tree`: stop when the open mass is at most this, in (0, 1); with `scale`, when the open mass is
    /// at most this share of the closed mass. Default 0.001.
    #[schema(exclusive_minimum = 0, exclusive_maximum = 1)]
    pub tolerance: Option<f64>,
    /// Only `tree`: maximum number of decoder positions, 1 to 65536; multiplied by `rationales`, at most
    /// 262144. Default 320; with `sampling` false, and in a structured text, 4096. In a structured text, all
    /// numbers share them: each number may use half of those that are left.
    #[schema(minimum = 1, maximum = 65536)]
    pub nodes_max: Option<u64>,
    /// Only `tree`, or if answers are sampled: stop as soon as the bounds of `value` are no wider than this,
    /// 0 or more, and with `interval` also the bounds of both of its ends (except in a structured text).
    /// Sampling looks at 16 answers, 32 and so on, up to `samples`. Default: no such stop.
    #[schema(minimum = 0)]
    pub precision: Option<f64>,
    /// Only `tree`, or if answers are sampled: maximum time of the search of one number in seconds, above 0.
    /// The search stops after the first step of the model that ends later, so the distribution depends on the
    /// load. Sampled answers that are late are open mass. Default: no such stop.
    #[schema(exclusive_minimum = 0)]
    pub time_max: Option<f64>,
    /// Only `tree`: whether the mass that the search leaves open is sampled, if `nodes_max` or `time_max`
    /// ends the search. Estimates then use the drawn numbers, too. Numbers in a structured text are not
    /// sampled. Default true. The same `seed` repeats the draws; without one, it depends on the prompt.
    pub sampling: Option<bool>,
    /// Only `sample`: number of draws, 1 to 4096. Default 64. The same `seed` repeats the draws.
    #[schema(minimum = 1, maximum = 4096)]
    pub samples: Option<u64>,
    /// Only `beam`: number of prefixes that are followed and of numbers that are kept, 1 to 64. Default 4.
    #[schema(minimum = 1, maximum = 64)]
    pub beams: Option<u64>,
    /// Generate text until this marker appears, and read the number directly after it. 1 to 1024 bytes.
    /// Default: no text before the number. The text is sampled with the request's `temperature`, `top_p` and
    /// `seed`, has at most `max_tokens` tokens, and is returned before the printed number.
    #[schema(min_length = 1, max_length = 1024)]
    pub after: Option<String>,
    /// Only with `after`: number of such texts, 1 to 64; multiplied by the number of prompts, at most 1024.
    /// The distributions of their numbers are averaged, and the first text is returned. A text that ends
    /// without the marker does not count, and no number is printed after it; `reason` states how many such
    /// texts there are. Default 1.
    #[schema(minimum = 1, maximum = 64)]
    pub rationales: Option<u64>,
    /// Smallest and largest value, which may be equal; the mass of other values is invalid. Default: all
    /// values.
    #[schema(min_items = 2, max_items = 2)]
    pub range: Option<[f64; 2]>,
    /// The values of a rating, at most 1000, with at most 6 decimals; the mass of other values is invalid.
    /// Not with `range`, and not for models with a number head. `value` is conditional on the scale: if less
    /// than half of the mass is on it, `reason` says so and names the most probable other texts. With a
    /// scale, `trim` is 0 and `support` the number of values, unless given, and `tolerance` is a share of the
    /// mass on the scale. Default: all values.
    pub scale: Option<NumberScale>,
    /// Whether means are divided by the closed mass. Otherwise they are raw sums: texts that are not numbers
    /// count as 0. For dedicated number tokens also whether probabilities are conditional on the tokens that
    /// are allowed at each position. Default true.
    pub normalize: Option<bool>,
    /// Maximum number of digits before the point, 1 to 20. Default 12.
    #[schema(minimum = 1, maximum = 20)]
    pub digits_max: Option<u64>,
    /// Maximum number of digits after the point, 0 to 20. Default 6.
    #[schema(maximum = 20)]
    pub decimals_max: Option<u64>,
    /// Whether a leading minus is allowed. Default true.
    pub sign: Option<bool>,
    /// Separator between groups of three digits. Default: none.
    pub thousands: Option<Thousands>,
    /// Default `any`.
    pub terminator: Option<TerminatorOption>,
    /// Return no value if the closed mass is below this, 0 to 1; `reason` then names the most probable texts
    /// that are not numbers. Default 0.
    #[schema(minimum = 0, maximum = 1)]
    pub mass_min: Option<f64>,
    /// The quantiles to return, each in (0, 1). Default 0.05, 0.25, 0.5, 0.75, 0.95.
    #[schema(max_items = 1000)]
    pub quantiles: Option<Vec<f64>>,
    /// Also return an interval that contains the truth with this probability, in (0, 1).
    #[schema(exclusive_minimum = 0, exclusive_maximum = 1)]
    pub interval: Option<f64>,
    /// Number of most probable values to return, 0 to 1000. Default 20; with `scale` at least all of its
    /// values.
    #[schema(maximum = 1000)]
    pub support: Option<u64>,
    /// Decimals of the printed text, 0 to 20; null prints the shortest text that parses to the same value. In
    /// a structured text: maximum number of decimals, by default `decimals_max`.
    #[schema(maximum = 20)]
    pub decimals: Option<u64>,
}

impl NumberOptions {
    /// Default of `tolerance`.
    pub const TOLERANCE: f64 = 0.001;
    /// Default of `nodes_max` without `sampling`.
    pub const NODES_MAX: u64 = 4096;
    /// Positions after which a search with `sampling` ends by default.
    pub const SEARCH_NODES_MAX: u64 = 320;
    /// Number of draws of the open mass.
    pub const DRAWS: u32 = 64;
    /// Default of `samples`.
    pub const SAMPLES: u64 = 64;
    /// Default of `beams`.
    pub const BEAMS: u64 = 4;
    /// Default of `digits_max`.
    pub const DIGITS_MAX: u64 = 12;
    /// Default of `decimals_max`.
    pub const DECIMALS_MAX: u64 = 6;

    /// Returns the same options, and writes out the default of every option that changes the distribution or
    /// decides whether there is a value. The method stays as it is, since its default depends on the model.
    pub fn explicit(self) -> Self {
        let is = |method: MethodName| self.method == Some(method);
        let is_tree = self.method.is_none() || is(MethodName::Tree) || is(MethodName::Xval);
        let sampling = self.sampling.or(is_tree.then_some(true));
        Self {
            tolerance: self.tolerance.or(is_tree.then_some(Self::TOLERANCE)),
            sampling,
            nodes_max: self.nodes_max.or((sampling == Some(false)).then_some(Self::NODES_MAX)),
            samples: self.samples.or(is(MethodName::Sample).then_some(Self::SAMPLES)),
            beams: self.beams.or(is(MethodName::Beam).then_some(Self::BEAMS)),
            rationales: self.rationales.or(self.after.is_some().then_some(1)),
            digits_max: self.digits_max.or(Some(Self::DIGITS_MAX)),
            decimals_max: self.decimals_max.or(Some(Self::DECIMALS_MAX)),
            sign: self.sign.or(Some(true)),
            terminator: self.terminator.or(Some(TerminatorOption::Named(TerminatorName::Any))),
            mass_min: self.mass_min.or(Some(0.0)),
            ..self
        }
    }
}

/// A quantile of the distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Quantile {
    /// The probability level.
    pub q: f64,
    /// The smallest value at which the share of the closed mass reaches `q`; null if there is none.
    pub value: Option<f64>,
}

/// A value with its probability, summed over all spellings of the value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SupportPoint {
    /// The value.
    pub value: f64,
    /// The value in exact decimal notation.
    pub text: String,
    /// Probability, not divided by the closed mass.
    pub probability: f64,
    /// If answers were sampled: exact confidence bounds of the probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<[f64; 2]>,
}

/// How the probability is divided. The three masses add up to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Mass)]
pub struct NumberMass {
    /// Mass of complete numbers.
    pub closed: f64,
    /// Mass of texts that are not numbers, and of values that are not finite.
    pub invalid: f64,
    /// Mass of prefixes that were not expanded.
    pub open: f64,
    /// The mass of each value that is not a finite number, if the model has tokens for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub special: Option<SpecialMass>,
    /// Number of answers of another engine that the masses are shares of, if answers were sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
}

/// The mass of each value that is not a finite number. They are parts of `invalid`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SpecialMass {
    /// Mass of NaN.
    pub nan: f64,
    /// Mass of infinity.
    pub infinity: f64,
    /// Mass of minus infinity.
    pub negative_infinity: f64,
    /// Mass of the token with which training marked values as invalid.
    pub invalid: f64,
}

/// Numbers that were drawn from the open mass.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Sampled)]
pub struct NumberDraws {
    /// Number of draws.
    pub draws: u64,
    /// Standard error of the estimate of the objective: its standard deviation over seeds. Null for a mode,
    /// and without an estimate.
    pub standard_error: Option<f64>,
}

/// The range in which an estimate must lie, wherever the open mass falls; null if it is unbounded. If answers
/// were sampled, each range contains the estimate of the model's own distribution with the probability
/// `confidence`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Bounds {
    /// Bounds of the estimate of the objective.
    pub value: Option<[f64; 2]>,
    /// Bounds of `trimmed_mean`.
    pub trimmed_mean: Option<[f64; 2]>,
    /// Bounds of `median`.
    pub median: Option<[f64; 2]>,
    /// Bounds of `quantiles`, in the same order.
    pub quantiles: Vec<Option<[f64; 2]>>,
    /// If answers were sampled: the probability with which each of the bounds holds at least, by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
}

/// How the ends of an interval are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IntervalMethod {
    /// Quantiles of the distribution: the model's own opinion of its certainty.
    Quantiles,
    /// These quantiles, moved by the offset of a calibration file of the server: the coverage was measured on
    /// items like those of the calibration.
    Conformal,
}

/// An interval for the true value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NumberInterval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// The requested probability.
    pub coverage: f64,
    /// How the ends are computed.
    pub method: IntervalMethod,
    /// Why the model's calibration is not used; absent if it is used or the model has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The estimate that `value` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EstimateName {
    /// `trimmed_mean`, for the objectives `mean` and `auto`.
    TrimmedMean,
    /// `median`, for its objective or in place of an unbounded estimate.
    Median,
    /// `mode`, for the objectives `mode` and `auto`.
    Mode,
    /// The quantile of the objective.
    Quantile,
    /// Method `token`: the expectation along the greedy path.
    Expectation,
}

/// One of several numbers of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LocatedNumber {
    /// Its JSONPath in a structured text, such as `$.rooms[0].area`, or its place among the numbers of an
    /// answer: `$[0]` is the first one.
    pub path: String,
    /// The index of its first token among the tokens of the text, and of the first token after it.
    #[schema(value_type = Vec<u64>, min_items = 2, max_items = 2)]
    pub token_range: [u64; 2],
    /// Its distribution. In a structured text, it is conditional on the text before it, and `value` is the
    /// number in the text: the estimate of the objective, as the nearest number that the schema admits. If
    /// `value` is null there, the model has written the number itself, and `reason` states why. Otherwise the
    /// distribution is marginal over the numbers before it.
    pub number: Number,
}

impl LocatedNumber {
    /// The same number in a larger JSON, in which `root` replaces the `$` of its path.
    pub fn below(self, root: &str) -> Self {
        Self { path: self.path.replacen('$', root, 1), ..self }
    }
}

/// A decoded number with its distribution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Number {
    /// The estimate of the objective; for method `token` the expectation along the greedy path. With methods
    /// `tree`, `xval` and `head`: if the open mass leaves that estimate unbounded (`bounds.value` null; not
    /// with objective `mode`) and was not sampled, the median, provided that it is bounded. Otherwise null,
    /// and `reason` states why.
    pub value: Option<f64>,
    /// The objective of the request.
    pub objective: ObjectiveOption,
    /// Which estimate `value` is; null without a value.
    #[serde(default)]
    pub estimate: Option<EstimateName>,
    /// The method that found the distribution. `token` finds only the greedy number, so all estimates except
    /// `mode` are null.
    pub method: String,
    /// Plain mean over all closed numbers, divided by their mass if `normalize`. A little mass on huge
    /// numbers moves it far: see `trimmed_mean`.
    pub mean: Option<f64>,
    /// Mean without the share `trim` of the mass in each tail.
    pub trimmed_mean: Option<f64>,
    /// The median of the closed mass.
    pub median: Option<f64>,
    /// The most probable value.
    pub mode: Option<f64>,
    /// Standard deviation over all closed numbers.
    pub std: Option<f64>,
    /// The requested quantiles.
    pub quantiles: Vec<Quantile>,
    /// The requested interval; absent without `interval`, without a value, and if the open mass leaves it
    /// unbounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<NumberInterval>,
    /// The most probable values, best first.
    pub support: Vec<SupportPoint>,
    /// How the probability is divided, without draws.
    pub mass: NumberMass,
    /// Bounds of the estimates, without draws of open mass; null for all methods except `tree`, `xval` and
    /// `head`, unless whole answers were sampled.
    pub bounds: Bounds,
    /// The draws of the open mass; null if nothing was sampled. Then all estimates, `interval` and `support`
    /// use only exact probabilities.
    #[serde(default)]
    pub sampled: Option<NumberDraws>,
    /// Number of decoder positions that the number is computed from, including those of draws.
    pub nodes: u64,
    /// Number of model steps that computed these positions.
    pub forward_passes: u64,
    /// Whether the number of positions or `time_max` ended the expansion before `tolerance` was reached.
    pub truncated: bool,
    /// Remarks about the number, joined by semicolons; null if there are none. They state why there is no
    /// value, or why `value` is not the estimate of the objective. They also report an unbounded interval,
    /// less than half of the mass on the `scale`, rationales that ended without the marker `after` and do not
    /// count, and an implausible number of a regression head.
    pub reason: Option<String>,
}
