//! The `number` object of a request: the engine's job, and how to show the number. Errors name
//! `number.FIELD`.

use ntl_api::{
    MethodName, NumberOptions, ObjectiveName, ObjectiveOption, TerminatorName, TerminatorOption, Thousands,
};
use ntl_core::contract::NumberJob;
use ntl_core::numbers::{self, Estimation, GrammarLimits, Interval, NumberValues, Terminator, TokenNotation};
use ntl_core::sampling::SamplingParams;

use super::interval::interval;
use super::number_method::{self, TextBefore};
use super::number_scale::{check_scale, scale};
use crate::apis::number::{IntervalFormat, NumberFormat, engine_objective};
use crate::error::{AppError, check, in_range};
use crate::request::ModelProfile;

const DIGITS_MAX: u64 = 20;
const SUPPORT: u64 = 20;
const SUPPORT_MAX: u64 = 1000;
const QUANTILES_MAX: usize = 1000;
const TERMINATORS_MAX: usize = 16;

const QUANTILES: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];

/// The names of options that decisions call differently.
#[derive(Debug, Clone, Copy)]
pub(in crate::apis) struct NumberNames<'a> {
    pub(in crate::apis) scale: &'a str,
    pub(in crate::apis) objective: &'a str,
}

impl NumberNames<'_> {
    pub(super) const DEFAULT: Self = Self { scale: "number.scale", objective: "number.objective" };
}

/// Validates the options and fills in the defaults. `text` comes from the enclosing request. The seeds are 0
/// until a job is made.
pub(super) fn number_job(
    options: NumberOptions,
    names: NumberNames<'_>,
    text: TextBefore,
    profile: &ModelProfile,
) -> Result<(NumberJob, NumberFormat), AppError> {
    let name = number_method::name(&options, profile)?;
    let values = values(&options, name, names.scale)?;
    let mut format = number_format(&options, name, values, names.objective)?;
    format.outputs = profile.notation.as_ref().map_or(1, |notation| notation.outputs());
    format.has_special_values =
        profile.notation.as_ref().is_some_and(|notation| notation.has_special_values());
    format.sampling = profile.sampling;
    number_method::check_rationales(&options, profile)?;
    let objective = engine_objective(format.objective);
    let draws = match &profile.notation {
        Some(notation) => {
            check_notation(&options, name, notation)?;
            text.sampling
        }
        None => SamplingParams::PLAIN,
    };
    let job = NumberJob {
        method: number_method::method(&options, name, objective, format.estimation, draws, profile)?,
        limits: limits(&options)?,
        values,
        is_masked: format.estimation.normalize,
        reports_refused: format.is_rating || format.mass_min > 0.0,
        time_max: number_method::time_max(&options)?,
        open_draws: number_method::open_draws(&options, name),
        after: number_method::after(&options, text)?,
        terminator: terminator(options.terminator.clone())?,
    };
    format.interval = interval(&options, &format, &job, &profile.calibrations)?;
    let ends = format.interval.iter().flat_map(IntervalFormat::quantiles);
    Ok((job.with_precise(ends.map(numbers::Objective::Quantile)), format))
}

/// Rejects options that have no effect on dedicated number tokens.
fn check_notation(
    options: &NumberOptions,
    method: MethodName,
    notation: &TokenNotation,
) -> Result<(), AppError> {
    for (param, is_given) in [
        ("number.digits_max", options.digits_max.is_some()),
        ("number.decimals_max", options.decimals_max.is_some()),
        ("number.sign", options.sign.is_some()),
        ("number.thousands", options.thousands.is_some()),
        ("number.terminator", options.terminator.is_some()),
        ("number.after", options.after.is_some()),
    ] {
        check(param, !is_given, "is not allowed with this model, which writes numbers in dedicated tokens")?;
    }
    let is_token = method == MethodName::Token;
    check("number.method", !is_token, "must not be \"token\" with this model, whose tokens have no values")?;
    let is_beam = method == MethodName::Beam;
    let fits = !is_beam || notation.outputs() == 1;
    check("number.method", fits, "must not be \"beam\" with this model, which writes several numbers")
}

pub(super) fn limits(options: &NumberOptions) -> Result<GrammarLimits, AppError> {
    let digits_max =
        in_range("number.digits_max", options.digits_max, NumberOptions::DIGITS_MAX, 1..=DIGITS_MAX)?;
    let decimals_max =
        in_range("number.decimals_max", options.decimals_max, NumberOptions::DECIMALS_MAX, 0..=DIGITS_MAX)?;
    let limits = GrammarLimits::new(digits_max as u8, decimals_max as u8, options.sign.unwrap_or(true))
        .ok_or_else(|| AppError::invalid("number.digits_max", "the limits of digits cannot be served"))?;
    let separator = match options.thousands {
        None | Some(Thousands::Switch(false)) => return Ok(limits),
        Some(Thousands::Switch(true)) => ',',
        Some(Thousands::Separator(separator)) => separator,
    };
    limits.with_thousands(separator).ok_or_else(|| {
        let message = r#"`number.thousands` must be true, false or one of "," "_" "'" and " ""#;
        AppError::invalid("number.thousands", message)
    })
}

fn terminator(wanted: Option<TerminatorOption>) -> Result<Terminator, AppError> {
    match wanted {
        None | Some(TerminatorOption::Named(TerminatorName::Any)) => Ok(Terminator::Any),
        Some(TerminatorOption::Named(TerminatorName::Eos)) => Ok(Terminator::Eos),
        Some(TerminatorOption::Texts(texts)) => {
            let fits =
                (1..=TERMINATORS_MAX).contains(&texts.len()) && texts.iter().all(|text| !text.is_empty());
            let message = format!("must list 1 to {TERMINATORS_MAX} strings, none of them empty");
            check("number.terminator", fits, message)?;
            Ok(Terminator::Texts(texts))
        }
    }
}

/// `param` is the name of the scale.
fn values(options: &NumberOptions, method: MethodName, param: &str) -> Result<NumberValues, AppError> {
    if let Some(option) = &options.scale {
        check(param, options.range.is_none(), "is not allowed with `number.range`")?;
        let scale = scale(param, option)?;
        check_scale(param, &scale, limits(options)?, method)?;
        return Ok(NumberValues::Scale(scale));
    }
    let Some([low, high]) = options.range else { return Ok(NumberValues::All) };
    let fits = low.is_finite() && high.is_finite() && low <= high;
    check("number.range", fits, "must be two finite numbers, the first not above the second")?;
    Ok(NumberValues::Range(Interval { low, high }))
}

/// A rating has no far values to trim.
fn estimation(options: &NumberOptions, values: NumberValues) -> Result<Estimation, AppError> {
    let default = if options.scale.is_some() { 0.0 } else { 0.005 };
    let trim = in_range("number.trim", options.trim, default, 0.0..=0.49)?;
    Ok(Estimation { trim, normalize: options.normalize.unwrap_or(true), range: values.interval() })
}

/// `param` is the name of the objective.
pub(super) fn number_format(
    options: &NumberOptions,
    method: MethodName,
    values: NumberValues,
    param: &str,
) -> Result<NumberFormat, AppError> {
    let objective = options.objective.unwrap_or(ObjectiveOption::Named(ObjectiveName::Mean));
    if let ObjectiveOption::Quantile { quantile } = objective {
        check(param, is_quantile(quantile), "must have a quantile above 0 and below 1")?;
    }
    let (is_rating, support) = match values {
        NumberValues::Scale(scale) => (true, SUPPORT.max(scale.count() as u64)),
        NumberValues::All | NumberValues::Range(_) => (false, SUPPORT),
    };
    let mass_min = in_range("number.mass_min", options.mass_min, 0.0, 0.0..=1.0)?;
    let quantiles = options.quantiles.clone().unwrap_or_else(|| QUANTILES.to_vec());
    let fit = quantiles.len() <= QUANTILES_MAX && quantiles.iter().all(|&q| is_quantile(q));
    check("number.quantiles", fit, format!("must be at most {QUANTILES_MAX} numbers above 0 and below 1"))?;
    let support = in_range("number.support", options.support, support, 0..=SUPPORT_MAX)?;
    let decimals = options
        .decimals
        .map(|count| in_range("number.decimals", Some(count), 0, 0..=DIGITS_MAX))
        .transpose()?;
    Ok(NumberFormat {
        objective,
        method,
        estimation: estimation(options, values)?,
        is_rating,
        mass_min,
        quantiles,
        outputs: 1,
        has_special_values: false,
        support: support as usize,
        decimals: decimals.map(|count| count as usize),
        interval: None,
        is_of_fields: false,
        sampling: None,
    })
}

fn is_quantile(q: f64) -> bool {
    q > 0.0 && q < 1.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ntl_api::{CompletionRequest, NumberRequest};
    use ntl_core::contract::{AfterMarker, NumberMethod, OpenDraws, Precision};
    use ntl_core::numbers::Scale;
    use ntl_core::sampling::SamplingParams;
    use serde_json::{Value, json};

    use super::*;
    use crate::json::from_value;
    use crate::request::AnswerSampling;

    const TEXT: TextBefore = TextBefore {
        sampling: SamplingParams { temperature: 0.5, top_p: 0.75, ..SamplingParams::PLAIN },
        max_tokens: 9,
    };

    /// The options as the request has them.
    fn parse(options: &Value) -> Result<NumberOptions, AppError> {
        let request: CompletionRequest = from_value(json!({ "number": options }))?;
        match request.number {
            Some(NumberRequest::Options(options)) => Ok(*options),
            other => panic!("{other:?}"),
        }
    }

    fn read(options: &Value) -> Result<(NumberJob, NumberFormat), AppError> {
        number_job(parse(options)?, NumberNames::DEFAULT, TEXT, &ModelProfile::for_tests())
    }

    fn job(options: &Value) -> NumberJob {
        read(options).unwrap().0
    }

    #[test]
    fn a_number_head_has_no_method_but_its_own() {
        let read = |options: Value, head| {
            let profile = ModelProfile { number_head: head, ..ModelProfile::for_tests() };
            number_job(parse(&options).unwrap(), NumberNames::DEFAULT, TEXT, &profile)
        };
        for head in [MethodName::Xval, MethodName::Head] {
            for options in [json!({}), json!({"method": head})] {
                let (number, format) = read(options, Some(head)).unwrap();
                assert_eq!(format.method, head);
                assert!(matches!(number.method, NumberMethod::Tree { .. }));
            }
            let error = read(json!({"scale": [1, 5]}), Some(head)).unwrap_err();
            assert_eq!(error.body().error.param.as_deref(), Some("number.scale"));
            for options in [json!({"method": "tree"}), json!({"method": "token"})] {
                let error = read(options, Some(head)).unwrap_err();
                assert_eq!(error.body().error.param.as_deref(), Some("number.method"));
            }
            let error = read(json!({"method": head}), None).unwrap_err();
            assert_eq!(error.body().error.param.as_deref(), Some("number.method"));
        }
        assert!(read(json!({"tolerance": 0.1}), Some(MethodName::Xval)).is_ok());
        for (field, options) in [("tolerance", json!({"tolerance": 0.1})), ("after", json!({"after": "x"}))] {
            let error = read(options, Some(MethodName::Head)).unwrap_err();
            assert_eq!(error.body().error.param, Some(format!("number.{field}")));
        }
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        for options in [
            json!({}),
            json!({"objective": null, "method": "tree", "normalize": true, "rationales": 1, "thousands": false}),
            json!({"method": null, "samples": null, "beams": null, "precision": null, "after": null, "range": null,
                "normalize": null, "rationales": null, "thousands": null, "tolerance": null, "nodes_max": null,
                "time_max": null, "sampling": null}),
        ] {
            let (number, format) = read(&options).unwrap();
            let want = NumberJob {
                method: NumberMethod::Tree { tolerance: 0.001, nodes_max: 4096, precision: None },
                limits: GrammarLimits::new(12, 6, true).unwrap(),
                terminator: Terminator::Any,
                values: NumberValues::All,
                is_masked: true,
                reports_refused: false,
                time_max: None,
                open_draws: Some(OpenDraws { search_nodes_max: 320, draws: 64, seed: 0 }),
                after: None,
            };
            assert_eq!(number, want);
            let want = NumberFormat {
                objective: ObjectiveOption::Named(ObjectiveName::Mean),
                method: MethodName::Tree,
                estimation: Estimation { trim: 0.005, normalize: true, range: None },
                is_rating: false,
                mass_min: 0.0,
                quantiles: QUANTILES.to_vec(),
                support: 20,
                outputs: 1,
                has_special_values: false,
                decimals: None,
                interval: None,
                is_of_fields: false,
                sampling: None,
            };
            assert_eq!(format, want);
        }
        for (name, want) in [
            ("sample", NumberMethod::sample(64, 0)),
            ("beam", NumberMethod::Beam { beams: 4 }),
            ("token", NumberMethod::Token),
        ] {
            assert_eq!(job(&json!({"method": name, "precision": null})).method, want);
        }
    }

    #[test]
    fn options_reach_the_job() {
        let options = json!({"objective": {"quantile": 0.9}, "tolerance": 0.5, "nodes_max": 1, "digits_max": 20,
            "decimals_max": 0, "sign": false, "terminator": ["\n"], "quantiles": [], "support": 0, "decimals": 2,
            "mass_min": 1, "trim": 0, "precision": 0, "range": [-1, 1], "normalize": false, "thousands": "_",
            "time_max": 0.5});
        let (number, format) = read(&options).unwrap();
        let range = Interval { low: -1.0, high: 1.0 };
        let estimation = Estimation { trim: 0.0, normalize: false, range: Some(range) };
        let objectives = vec![numbers::Objective::Quantile(0.9)];
        let precision = Precision { width: 0.0, objectives, estimation };
        let want = NumberJob {
            method: NumberMethod::Tree { tolerance: 0.5, nodes_max: 1, precision: Some(precision) },
            limits: GrammarLimits::new(20, 0, false).unwrap().with_thousands('_').unwrap(),
            terminator: Terminator::Texts(vec!["\n".into()]),
            values: NumberValues::Range(range),
            is_masked: false,
            reports_refused: true,
            time_max: Some(Duration::from_millis(500)),
            open_draws: Some(OpenDraws { search_nodes_max: 1, draws: 64, seed: 0 }),
            after: None,
        };
        assert_eq!(number, want);
        assert_eq!(
            (format.objective, format.estimation),
            (ObjectiveOption::Quantile { quantile: 0.9 }, estimation)
        );
        assert_eq!((format.quantiles.len(), format.support, format.decimals), (0, 0, Some(2)));
        assert_eq!(job(&json!({"sampling": false})).open_draws, None);
        assert_eq!(job(&json!({"terminator": "eos"})).terminator, Terminator::Eos);
        let only = NumberValues::Range(Interval { low: 2.0, high: 2.0 });
        assert_eq!(job(&json!({"range": [2, 2]})).values, only);
        assert_eq!(job(&json!({"time_max": 1e300})).time_max, None);
        let beam = job(&json!({"method": "beam", "beams": 64}));
        assert_eq!(beam.method, NumberMethod::Beam { beams: 64 });
        let sample = job(&json!({"method": "sample", "samples": 4096}));
        assert_eq!(sample.method, NumberMethod::sample(4096, 0));
    }

    #[test]
    fn a_scale_has_defaults_of_its_own() {
        for (scale, low, high, step) in [
            (json!([1, 5]), 1.0, 5.0, 1.0),
            (json!([1, 10, 0.5]), 1.0, 10.0, 0.5),
            (json!({"low": 0, "high": 100}), 0.0, 100.0, 1.0),
            (json!({"low": -1, "high": 1, "step": 0.25}), -1.0, 1.0, 0.25),
        ] {
            let (number, format) = read(&json!({"scale": scale})).unwrap();
            let want = Scale::new(low, high, step).unwrap();
            assert_eq!(number.values, NumberValues::Scale(want));
            assert!(number.reports_refused);
            let range = Some(Interval { low, high });
            assert_eq!(format.estimation, Estimation { trim: 0.0, normalize: true, range });
            let support = usize::try_from(want.count().max(20)).unwrap();
            assert_eq!((format.mass_min.to_bits(), format.support), (0.0_f64.to_bits(), support));
        }
        let given = json!({"scale": [1, 5], "mass_min": 0.25, "trim": 0.1, "support": 2});
        let (number, format) = read(&given).unwrap();
        assert!((format.mass_min - 0.25).abs() <= 0.0 && number.reports_refused);
        assert_eq!((format.estimation.trim.to_bits(), format.support), (0.1_f64.to_bits(), 2));
    }

    #[test]
    fn each_separator_of_thousands_is_read_and_true_is_a_comma() {
        let limits = GrammarLimits::new(12, 6, true).unwrap();
        for separator in GrammarLimits::THOUSANDS {
            let want = limits.with_thousands(separator).unwrap();
            assert_eq!(job(&json!({"thousands": separator})).limits, want);
        }
        assert_eq!(job(&json!({"thousands": true})).limits, limits.with_thousands(',').unwrap());
    }

    #[test]
    fn the_text_before_a_number_is_that_of_the_request() {
        let marker = "#### ".to_owned();
        let sampling = SamplingParams { temperature: 0.5, top_p: 0.75, ..SamplingParams::PLAIN };
        let want = AfterMarker { marker, rationales: 64, sampling, max_tokens: 9 };
        let found = job(&json!({"after": "#### ", "rationales": 64}));
        assert_eq!(found.after, Some(want));
    }

    #[test]
    fn a_model_without_probabilities_is_sampled_and_may_stop_early() {
        let profile = ModelProfile { sampling: Some(AnswerSampling::Plain), ..ModelProfile::for_tests() };
        let read =
            |options: &Value| number_job(parse(options).unwrap(), NumberNames::DEFAULT, TEXT, &profile);
        let (number, format) = read(&json!({})).unwrap();
        assert_eq!(number.method, NumberMethod::sample(64, 0));
        assert_eq!((format.method, format.sampling), (MethodName::Sample, Some(AnswerSampling::Plain)));
        let options =
            json!({"scale": [1, 5], "samples": 400, "precision": 0.5, "time_max": 2, "interval": 0.9});
        let (number, format) = read(&options).unwrap();
        let NumberMethod::Sample { samples: 400, precision: Some(precision), .. } = number.method else {
            panic!("{:?}", number.method);
        };
        assert_eq!((precision.width, precision.estimation), (0.5, format.estimation));
        assert_eq!(precision.objectives.len(), 3, "the ends of the interval are to be precise, too");
        assert_eq!(number.time_max, Some(Duration::from_secs(2)));
        for (field, options) in [
            ("method", json!({"method": "tree"})),
            ("tolerance", json!({"tolerance": 0.1})),
            ("nodes_max", json!({"nodes_max": 5})),
            ("precision", json!({"precision": -1})),
            ("rationales", json!({"after": "#", "rationales": 2})),
        ] {
            let param = read(&options).unwrap_err().body().error.param;
            assert_eq!(param, Some(format!("number.{field}")));
        }
    }

    fn assert_refused(field: &str, options: &Value) {
        let error = read(options).unwrap_err();
        let param = error.body().error.param.unwrap();
        let name = format!("number.{field}");
        let first = format!("number.{field}[0]");
        assert!(param == name || param == first, "{param}: {options}");
        assert!(error.to_string().contains(field), "{error}");
    }

    #[test]
    fn wrong_options_are_refused_by_name() {
        for (field, values) in [
            (
                "objective",
                vec![json!("average"), json!({"quantile": 1}), json!(5), json!({"quantile": null})],
            ),
            ("method", vec![json!("forest"), json!("head"), json!(1)]),
            ("trim", vec![json!(-0.1), json!(0.5)]),
            ("tolerance", vec![json!(0), json!(1), json!("0.1")]),
            ("nodes_max", vec![json!(0), json!(65_537), json!(1.5), json!(-1)]),
            ("precision", vec![json!(-0.1), json!("0"), json!([0])]),
            ("time_max", vec![json!(0), json!(-1), json!("1")]),
            ("digits_max", vec![json!(0), json!(21)]),
            ("decimals_max", vec![json!(21)]),
            ("sign", vec![json!(1)]),
            ("terminator", vec![json!("newline"), json!([]), json!([""]), json!(vec!["x"; 17])]),
            ("mass_min", vec![json!(-0.1), json!(1.1)]),
            ("interval", vec![json!(0), json!(1), json!(90), json!("0.9"), json!([0.05, 0.95])]),
            ("quantiles", vec![json!([0]), json!([1]), json!([0.5, 2]), json!(vec![0.5; 1001]), json!(0.5)]),
            ("support", vec![json!(1001)]),
            ("decimals", vec![json!(21)]),
            ("after", vec![json!(""), json!("x".repeat(1025)), json!(["#"]), json!(true)]),
            ("rationales", vec![json!(2), json!(0), json!(65), json!(-1), json!(1.5)]),
            (
                "range",
                vec![json!([1, 0]), json!([1]), json!([0, 1, 2]), json!(5), json!([null, 1]), json!("x")],
            ),
            (
                "scale",
                vec![
                    json!([1]),
                    json!([1, 2, 3, 4]),
                    json!([5, 1]),
                    json!([1, 5, 0]),
                    json!([1, 5.5]),
                    json!([1, 1001]),
                    json!([1, 2, 0.000_000_1]),
                    json!([0, 1e13, 1e12]),
                    json!({"low": 1}),
                    json!({"low": 1, "high": 2, "steps": 1}),
                    json!("1-5"),
                    json!(5),
                ],
            ),
            ("normalize", vec![json!(1), json!("true")]),
            ("samples", vec![json!(64), json!("x")]),
            ("beams", vec![json!(4), json!(1.5)]),
            ("thousands", vec![json!("."), json!(",,"), json!(""), json!(1), json!([","])]),
            ("tolerence", vec![json!(0.1)]),
        ] {
            for value in values {
                assert_refused(field, &json!({ field: value }));
            }
        }
    }

    #[test]
    fn options_that_do_not_go_together_are_refused_by_name() {
        for (field, options) in [
            ("tolerance", json!({"method": "sample", "tolerance": 0.1})),
            ("nodes_max", json!({"method": "beam", "nodes_max": 5})),
            ("precision", json!({"method": "token", "precision": 0})),
            ("time_max", json!({"method": "sample", "time_max": 1})),
            ("sampling", json!({"method": "beam", "sampling": false})),
            ("samples", json!({"method": "tree", "samples": 5})),
            ("samples", json!({"method": "beam", "samples": 5})),
            ("samples", json!({"method": "sample", "samples": 0})),
            ("samples", json!({"method": "sample", "samples": 4097})),
            ("beams", json!({"method": "sample", "beams": 5})),
            ("beams", json!({"method": "beam", "beams": 0})),
            ("beams", json!({"method": "beam", "beams": 65})),
            ("rationales", json!({"method": "sample", "rationales": 2})),
            ("rationales", json!({"after": "#", "rationales": 65})),
            ("scale", json!({"scale": [1, 5], "range": [1, 5]})),
            ("interval", json!({"method": "token", "interval": 0.9})),
            ("decimals_max", json!({"scale": [1, 5, 0.25], "decimals_max": 1})),
            ("digits_max", json!({"scale": [1, 100], "digits_max": 2})),
            ("sign", json!({"scale": [-1, 1], "sign": false})),
            ("nodes_max", json!({"after": "#", "rationales": 5, "nodes_max": 65_536})),
        ] {
            assert_refused(field, &options);
        }
        assert!(read(&json!({"after": "#", "rationales": 4, "nodes_max": 65_536})).is_ok());
        let message = read(&json!({"beams": 4})).unwrap_err().to_string();
        assert_eq!(message, "`number.beams` is only allowed with `number.method` \"beam\", not \"tree\"");
    }
}
