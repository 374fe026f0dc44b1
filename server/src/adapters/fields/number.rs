//! The `number` object of a request: the engine's job, and how to show the number. Errors name `number.FIELD`.

use ntl_api::{MethodName, NumberOptions, Objective, ObjectiveName, Terminator, TerminatorName, Thousands};
use ntl_core::engine::{self, NumberJob};
use ntl_core::numbers::{Estimation, GrammarLimits, Interval};

use super::number_method::{self, TextBefore};
use crate::adapters::number::{NumberFormat, engine_objective};
use crate::error::{AppError, check, in_range};
use crate::request::NumberDecoding;

const DIGITS_MAX: u64 = 20;
const SUPPORT_MAX: u64 = 1000;
const QUANTILES_MAX: usize = 1000;
const TERMINATORS_MAX: usize = 16;

const QUANTILES: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];

/// Validates the options and fills in the defaults. `text` and `seed` are those of the request around them; `head` is the
/// only method of a model with a number head.
pub(super) fn number_decoding(
    options: NumberOptions,
    text: TextBefore,
    seed: Option<u64>,
    head: Option<MethodName>,
) -> Result<(NumberDecoding, NumberFormat), AppError> {
    let name = number_method::name(&options, head)?;
    let format = number_format(&options, name)?;
    number_method::check_rationales(&options)?;
    let objective = engine_objective(format.objective);
    let job = NumberJob {
        method: number_method::method(&options, name, objective, format.estimation)?,
        limits: limits(&options)?,
        range: format.estimation.range,
        after: number_method::after(&options, text)?,
        terminator: terminator(options.terminator)?,
    };
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

fn estimation(options: &NumberOptions) -> Result<Estimation, AppError> {
    let trim = in_range("number.trim", options.trim, 0.005, 0.0..=0.49)?;
    let range = options.range.map(|[low, high]| Interval { low, high });
    let fits =
        range.is_none_or(|ends| ends.low.is_finite() && ends.high.is_finite() && ends.low <= ends.high);
    check("number.range", fits, "must be two finite numbers, the first not above the second")?;
    Ok(Estimation { trim, normalize: options.normalize.unwrap_or(true), range })
}

fn number_format(options: &NumberOptions, method: MethodName) -> Result<NumberFormat, AppError> {
    let inside = |q: f64| q > 0.0 && q < 1.0;
    let objective = options.objective.unwrap_or(Objective::Named(ObjectiveName::Mean));
    if let Objective::Quantile { quantile } = objective {
        check("number.objective", inside(quantile), "must have a quantile above 0 and below 1")?;
    }
    let mass_min = in_range("number.mass_min", options.mass_min, 0.0, 0.0..=1.0)?;
    let quantiles = options.quantiles.clone().unwrap_or_else(|| QUANTILES.to_vec());
    let fit = quantiles.len() <= QUANTILES_MAX && quantiles.iter().all(|&q| inside(q));
    check("number.quantiles", fit, format!("must be at most {QUANTILES_MAX} numbers above 0 and below 1"))?;
    let support = in_range("number.support", options.support, 20, 0..=SUPPORT_MAX)?;
    let decimals = options
        .decimals
        .map(|count| in_range("number.decimals", Some(count), 0, 0..=DIGITS_MAX))
        .transpose()?;
    Ok(NumberFormat {
        objective,
        method,
        estimation: estimation(options)?,
        mass_min,
        quantiles,
        support: support as usize,
        decimals: decimals.map(|count| count as usize),
    })
}

#[cfg(test)]
mod tests {
    use ntl_api::{CompletionRequest, NumberRequest};
    use ntl_core::engine::{AfterMarker, NumberMethod, Precision};
    use ntl_core::numbers;
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
        number_decoding(parse(options)?, TEXT, Some(5), None)
    }

    fn job(options: &Value) -> NumberJob {
        read(options).unwrap().0.job()
    }

    #[test]
    fn a_number_head_has_no_method_but_its_own() {
        let read = |options: Value, head| number_decoding(parse(&options).unwrap(), TEXT, None, head);
        for head in [MethodName::Xval, MethodName::Head] {
            for options in [json!({}), json!({"method": head})] {
                let (number, format) = read(options, Some(head)).unwrap();
                assert_eq!(format.method, head);
                assert!(matches!(number.job().method, NumberMethod::Tree { .. }));
            }
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
                range: None,
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
            range: Some(range),
            after: None,
        };
        assert_eq!(number.job(), want);
        assert_eq!(
            (format.objective, format.estimation),
            (Objective::Quantile { quantile: 0.9 }, estimation)
        );
        assert_eq!((format.quantiles.len(), format.support, format.decimals), (0, 0, Some(2)));
        assert_eq!(job(&json!({"terminator": "eos"})).terminator, engine::Terminator::Eos);
        assert_eq!(job(&json!({"range": [2, 2]})).range, Some(Interval { low: 2.0, high: 2.0 }));
        let beam = job(&json!({"method": "beam", "beams": 64}));
        assert_eq!(beam.method, NumberMethod::Beam { beams: 64 });
        let sample = job(&json!({"method": "sample", "samples": 4096}));
        assert_eq!(sample.method, NumberMethod::Sample { samples: 4096, seed: 5 });
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
        let random = number_decoding(after_mark.clone(), TEXT, None, None).unwrap().0;
        assert_ne!(random.job().after.unwrap().sampling.seed, random.job().after.unwrap().sampling.seed);
        let mute = TextBefore { max_tokens: 0, ..TEXT };
        let error = number_decoding(after_mark, mute, None, None).unwrap_err();
        assert_eq!(error.body().error.param.as_deref(), Some("max_tokens"));
        assert!(number_decoding(NumberOptions::default(), mute, None, None).is_ok());
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
            ("quantiles", vec![json!([0]), json!([1]), json!([0.5, 2]), json!(vec![0.5; 1001]), json!(0.5)]),
            ("support", vec![json!(1001)]),
            ("decimals", vec![json!(21)]),
            ("after", vec![json!(""), json!("x".repeat(1025)), json!(["#"]), json!(true)]),
            ("rationales", vec![json!(2), json!(0), json!(65), json!(-1), json!(1.5)]),
            (
                "range",
                vec![json!([1, 0]), json!([1]), json!([0, 1, 2]), json!(5), json!([null, 1]), json!("x")],
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
            ("nodes_max", json!({"after": "#", "rationales": 5, "nodes_max": 65_536})),
        ] {
            assert_refused(field, &options);
        }
        assert!(read(&json!({"after": "#", "rationales": 4, "nodes_max": 65_536})).is_ok());
        let message = read(&json!({"beams": 4})).unwrap_err().to_string();
        assert_eq!(message, "`number.beams` is only allowed with `number.method` \"beam\", not \"tree\"");
    }
}
