//! The `number` object of a request: the engine's job, and how to show the number. Errors name `number.FIELD`.

use ntl_api::{MethodName, NumberOptions, Objective, ObjectiveName, Terminator, TerminatorName, Thousands};
use ntl_core::engine::{self, NumberJob};
use ntl_core::numbers::{Estimation, GrammarLimits, Interval, NumberValues};

use super::interval::interval;
use super::number_method::{self, TextBefore};
use super::number_scale::{MASS_MIN_OF_SCALE, check_scale, scale};
use crate::adapters::number::{NumberFormat, engine_objective};
use crate::error::{AppError, check, in_range};
use crate::request::{ModelCalibration, NumberDecoding};

const DIGITS_MAX: u64 = 20;
const SUPPORT: u64 = 20;
const SUPPORT_MAX: u64 = 1000;
const QUANTILES_MAX: usize = 1000;
const TERMINATORS_MAX: usize = 16;

const QUANTILES: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];

/// What the options depend on of a model.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NumberModel<'a> {
    /// The only method of a model with a number head.
    pub(super) head: Option<MethodName>,
    pub(super) calibrations: &'a [ModelCalibration],
}

/// Validates the options and fills in the defaults. `text` and `seed` are those of the request around them.
pub(super) fn number_decoding(
    options: NumberOptions,
    text: TextBefore,
    seed: Option<u64>,
    model: NumberModel<'_>,
) -> Result<(NumberDecoding, NumberFormat), AppError> {
    let name = number_method::name(&options, model.head)?;
    let values = values(&options, name)?;
    let mut format = number_format(&options, name, values)?;
    number_method::check_rationales(&options)?;
    let objective = engine_objective(format.objective);
    let job = NumberJob {
        method: number_method::method(&options, name, objective, format.estimation)?,
        limits: limits(&options)?,
        values,
        reports_refused: format.mass_min > 0.0,
        after: number_method::after(&options, text)?,
        terminator: terminator(options.terminator.clone())?,
    };
    format.interval = interval(&options, name, &job, model.calibrations)?;
    Ok((NumberDecoding { job, seed }, format))
}

fn limits(options: &NumberOptions) -> Result<GrammarLimits, AppError> {
    let digits_max = in_range("number.digits_max", options.digits_max, 12, 1..=DIGITS_MAX)?;
    let decimals_max = in_range("number.decimals_max", options.decimals_max, 6, 0..=DIGITS_MAX)?;
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

fn terminator(wanted: Option<Terminator>) -> Result<engine::Terminator, AppError> {
    match wanted {
        None | Some(Terminator::Named(TerminatorName::Any)) => Ok(engine::Terminator::Any),
        Some(Terminator::Named(TerminatorName::Eos)) => Ok(engine::Terminator::Eos),
        Some(Terminator::Texts(texts)) => {
            let fits =
                (1..=TERMINATORS_MAX).contains(&texts.len()) && texts.iter().all(|text| !text.is_empty());
            let message = format!("must list 1 to {TERMINATORS_MAX} strings, none of them empty");
            check("number.terminator", fits, message)?;
            Ok(engine::Terminator::Texts(texts))
        }
    }
}

fn values(options: &NumberOptions, method: MethodName) -> Result<NumberValues, AppError> {
    if let Some(asked) = &options.scale {
        check("number.scale", options.range.is_none(), "is not allowed with `number.range`")?;
        let scale = scale(asked)?;
        check_scale(&scale, limits(options)?, method)?;
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

fn number_format(
    options: &NumberOptions,
    method: MethodName,
    values: NumberValues,
) -> Result<NumberFormat, AppError> {
    let inside = |q: f64| q > 0.0 && q < 1.0;
    let objective = options.objective.unwrap_or(Objective::Named(ObjectiveName::Mean));
    if let Objective::Quantile { quantile } = objective {
        check("number.objective", inside(quantile), "must have a quantile above 0 and below 1")?;
    }
    let (mass_min, support) = match values {
        NumberValues::Scale(scale) => (MASS_MIN_OF_SCALE, SUPPORT.max(scale.count() as u64)),
        NumberValues::All | NumberValues::Range(_) => (0.0, SUPPORT),
    };
    let mass_min = in_range("number.mass_min", options.mass_min, mass_min, 0.0..=1.0)?;
    let quantiles = options.quantiles.clone().unwrap_or_else(|| QUANTILES.to_vec());
    let fit = quantiles.len() <= QUANTILES_MAX && quantiles.iter().all(|&q| inside(q));
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
        mass_min,
        quantiles,
        support: support as usize,
        decimals: decimals.map(|count| count as usize),
        interval: None,
    })
}

#[cfg(test)]
mod tests {
    use ntl_api::{CompletionRequest, NumberRequest};
    use ntl_core::engine::{AfterMarker, NumberMethod, Precision};
    use ntl_core::numbers::{self, Scale};
    use ntl_core::sampling::SamplingParams;
    use serde_json::{Value, json};

    use super::*;
    use crate::json::from_value;

    const TEXT: TextBefore = TextBefore {
        sampling: SamplingParams { temperature: 0.5, top_p: 0.75, ..SamplingParams::PLAIN },
        max_tokens: 9,
    };

    /// The options, as they stand in a request.
    fn parse(options: &Value) -> Result<NumberOptions, AppError> {
        let request: CompletionRequest = from_value(json!({ "number": options }))?;
        match request.number {
            Some(NumberRequest::Options(options)) => Ok(*options),
            other => panic!("{other:?}"),
        }
    }

    fn read(options: &Value) -> Result<(NumberDecoding, NumberFormat), AppError> {
        number_decoding(parse(options)?, TEXT, Some(5), NumberModel::default())
    }

    fn job(options: &Value) -> NumberJob {
        read(options).unwrap().0.job()
    }

    #[test]
    fn a_number_head_has_no_method_but_its_own() {
        let read = |options: Value, head| {
            let model = NumberModel { head, ..NumberModel::default() };
            number_decoding(parse(&options).unwrap(), TEXT, None, model)
        };
        for head in [MethodName::Xval, MethodName::Head] {
            for options in [json!({}), json!({"method": head})] {
                let (number, format) = read(options, Some(head)).unwrap();
                assert_eq!(format.method, head);
                assert!(matches!(number.job().method, NumberMethod::Tree { .. }));
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
                "normalize": null, "rationales": null, "thousands": null, "tolerance": null, "nodes_max": null}),
        ] {
            let (number, format) = read(&options).unwrap();
            let want = NumberJob {
                method: NumberMethod::Tree { tolerance: 0.001, nodes_max: 4096, precision: None },
                limits: GrammarLimits::new(12, 6, true).unwrap(),
                terminator: engine::Terminator::Any,
                values: NumberValues::All,
                reports_refused: false,
                after: None,
            };
            assert_eq!(number.job(), want);
            let want = NumberFormat {
                objective: Objective::Named(ObjectiveName::Mean),
                method: MethodName::Tree,
                estimation: Estimation { trim: 0.005, normalize: true, range: None },
                mass_min: 0.0,
                quantiles: QUANTILES.to_vec(),
                support: 20,
                decimals: None,
                interval: None,
            };
            assert_eq!(format, want);
        }
        for (name, want) in [
            ("sample", NumberMethod::Sample { samples: 64, seed: 5 }),
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
            "mass_min": 1, "trim": 0, "precision": 0, "range": [-1, 1], "normalize": false, "thousands": "_"});
        let (number, format) = read(&options).unwrap();
        let range = Interval { low: -1.0, high: 1.0 };
        let estimation = Estimation { trim: 0.0, normalize: false, range: Some(range) };
        let precision = Precision { width: 0.0, objective: numbers::Objective::Quantile(0.9), estimation };
        let want = NumberJob {
            method: NumberMethod::Tree { tolerance: 0.5, nodes_max: 1, precision: Some(precision) },
            limits: GrammarLimits::new(20, 0, false).unwrap().with_thousands('_').unwrap(),
            terminator: engine::Terminator::Texts(vec!["\n".into()]),
            values: NumberValues::Range(range),
            reports_refused: true,
            after: None,
        };
        assert_eq!(number.job(), want);
        assert_eq!(
            (format.objective, format.estimation),
            (Objective::Quantile { quantile: 0.9 }, estimation)
        );
        assert_eq!((format.quantiles.len(), format.support, format.decimals), (0, 0, Some(2)));
        assert_eq!(job(&json!({"terminator": "eos"})).terminator, engine::Terminator::Eos);
        let only = NumberValues::Range(Interval { low: 2.0, high: 2.0 });
        assert_eq!(job(&json!({"range": [2, 2]})).values, only);
        let beam = job(&json!({"method": "beam", "beams": 64}));
        assert_eq!(beam.method, NumberMethod::Beam { beams: 64 });
        let sample = job(&json!({"method": "sample", "samples": 4096}));
        assert_eq!(sample.method, NumberMethod::Sample { samples: 4096, seed: 5 });
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
            assert_eq!(number.job().values, NumberValues::Scale(want));
            assert!(number.job().reports_refused);
            let range = Some(Interval { low, high });
            assert_eq!(format.estimation, Estimation { trim: 0.0, normalize: true, range });
            let support = usize::try_from(want.count().max(20)).unwrap();
            assert_eq!((format.mass_min.to_bits(), format.support), (0.5_f64.to_bits(), support));
        }
        let given = json!({"scale": [1, 5], "mass_min": 0, "trim": 0.1, "support": 2});
        let (number, format) = read(&given).unwrap();
        assert!(!number.job().reports_refused);
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
        let sampling = SamplingParams { temperature: 0.5, top_p: 0.75, seed: 5, ..SamplingParams::PLAIN };
        let want = AfterMarker { marker, rationales: 64, sampling, max_tokens: 9 };
        let found = job(&json!({"after": "#### ", "rationales": 64}));
        assert_eq!(found.after, Some(want));
        // Texts and numbers are drawn by different random numbers.
        let sample = job(&json!({"after": "#", "method": "sample"}));
        assert_eq!(sample.method, NumberMethod::Sample { samples: 64, seed: !5 });
        let after_mark = parse(&json!({"after": "#"})).unwrap();
        let random = number_decoding(after_mark.clone(), TEXT, None, NumberModel::default()).unwrap().0;
        assert_ne!(random.job().after.unwrap().sampling.seed, random.job().after.unwrap().sampling.seed);
        let mute = TextBefore { max_tokens: 0, ..TEXT };
        let error = number_decoding(after_mark, mute, None, NumberModel::default()).unwrap_err();
        assert_eq!(error.body().error.param.as_deref(), Some("max_tokens"));
        assert!(number_decoding(NumberOptions::default(), mute, None, NumberModel::default()).is_ok());
    }

    fn assert_refused(field: &str, options: &Value) {
        let error = read(options).unwrap_err();
        let param = error.body().error.param.unwrap();
        let (name, first) = (format!("number.{field}"), format!("number.{field}[0]"));
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
