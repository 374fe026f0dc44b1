//! The `number` object of a request, checked.
//!
//! In: its options as JSON. Out: the engine's job and how to present what it finds. Errors name `number.FIELD`.

use ntl_api::{NumberOptions, Objective, ObjectiveName, Terminator, TerminatorName};
use ntl_core::engine::{self, NumberJob};
use ntl_core::numbers::GrammarLimits;
use serde_json::{Map, Value};

use super::unsupported::refuse_in_number;
use super::{NumberPrint, check};
use crate::error::AppError;

/// Exact expansion of the tree of number texts.
pub(crate) const METHOD_TREE: &str = "tree";

const DIGITS_MAX: u64 = 20;
const NODES_MAX: u64 = 65_536;
const SUPPORT_MAX: u64 = 1000;
const QUANTILES_MAX: usize = 1000;
const TERMINATORS_MAX: usize = 16;

const QUANTILES: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];

/// Checks the options and fills in the defaults.
pub(super) fn number_plan(mut options: Map<String, Value>) -> Result<(NumberJob, NumberPrint), AppError> {
    refuse_in_number(&mut options)?;
    let options = parse(options)?;
    let method = options.method.as_deref().unwrap_or(METHOD_TREE);
    check("number.method", method == METHOD_TREE, "is not supported by this version, other than \"tree\"")?;
    Ok((job(&options)?, print(options)?))
}

fn parse(options: Map<String, Value>) -> Result<NumberOptions, AppError> {
    serde_path_to_error::deserialize(Value::Object(options)).map_err(|error| {
        let path = error.path().to_string();
        let param = if path == "." { "number".to_owned() } else { format!("number.{path}") };
        AppError::invalid(param.clone(), format!("`{param}`: {}", error.into_inner()))
    })
}

fn job(options: &NumberOptions) -> Result<NumberJob, AppError> {
    let tolerance = options.tolerance.unwrap_or(0.001);
    check("number.tolerance", tolerance > 0.0 && tolerance < 1.0, "must be above 0 and below 1")?;
    let nodes_max = options.nodes_max.unwrap_or(4096);
    check(
        "number.nodes_max",
        (1..=NODES_MAX).contains(&nodes_max),
        format!("must be from 1 to {NODES_MAX}"),
    )?;
    let digits_max = options.digits_max.unwrap_or(12);
    check(
        "number.digits_max",
        (1..=DIGITS_MAX).contains(&digits_max),
        format!("must be from 1 to {DIGITS_MAX}"),
    )?;
    let decimals_max = options.decimals_max.unwrap_or(6);
    check("number.decimals_max", decimals_max <= DIGITS_MAX, format!("must be from 0 to {DIGITS_MAX}"))?;
    let limits = GrammarLimits::new(digits_max as u8, decimals_max as u8, options.sign.unwrap_or(true))
        .ok_or_else(|| AppError::invalid("number.digits_max", "the limits of digits cannot be served"))?;
    let terminator = terminator(options.terminator.clone())?;
    Ok(NumberJob { tolerance, nodes_max: nodes_max as usize, limits, terminator })
}

fn terminator(wanted: Option<Terminator>) -> Result<engine::Terminator, AppError> {
    match wanted {
        None | Some(Terminator::Named(TerminatorName::Any)) => Ok(engine::Terminator::Any),
        Some(Terminator::Named(TerminatorName::Eos)) => Ok(engine::Terminator::Eos),
        Some(Terminator::Texts(texts)) => {
            let fits =
                (1..=TERMINATORS_MAX).contains(&texts.len()) && texts.iter().all(|text| !text.is_empty());
            check(
                "number.terminator",
                fits,
                format!("must list 1 to {TERMINATORS_MAX} strings, none of them empty"),
            )?;
            Ok(engine::Terminator::Texts(texts))
        }
    }
}

fn print(options: NumberOptions) -> Result<NumberPrint, AppError> {
    let inside = |q: f64| q > 0.0 && q < 1.0;
    let objective = options.objective.unwrap_or(Objective::Named(ObjectiveName::Mean));
    if let Objective::Quantile { quantile } = objective {
        check("number.objective", inside(quantile), "must have a quantile above 0 and below 1")?;
    }
    let trim = options.trim.unwrap_or(0.005);
    check("number.trim", (0.0..=0.49).contains(&trim), "must be from 0 to 0.49")?;
    let mass_min = options.mass_min.unwrap_or(0.0);
    check("number.mass_min", (0.0..=1.0).contains(&mass_min), "must be from 0 to 1")?;
    let quantiles = options.quantiles.unwrap_or_else(|| QUANTILES.to_vec());
    let fit = quantiles.len() <= QUANTILES_MAX && quantiles.iter().all(|&q| inside(q));
    check("number.quantiles", fit, format!("must be at most {QUANTILES_MAX} numbers above 0 and below 1"))?;
    let support = options.support.unwrap_or(20);
    check("number.support", support <= SUPPORT_MAX, format!("must be from 0 to {SUPPORT_MAX}"))?;
    let decimals = options.decimals;
    let fit = decimals.is_none_or(|count| count <= DIGITS_MAX);
    check("number.decimals", fit, format!("must be from 0 to {DIGITS_MAX}"))?;
    let (support, decimals) = (support as usize, decimals.map(|count| count as usize));
    Ok(NumberPrint { objective, trim, mass_min, quantiles, support, decimals })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(options: &Value) -> Result<(NumberJob, NumberPrint), AppError> {
        number_plan(options.as_object().unwrap().clone())
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        for options in
            [json!({}), json!({"objective": null, "method": "tree", "normalize": true, "rationales": 1})]
        {
            let (job, print) = plan(&options).unwrap();
            let limits = GrammarLimits::new(12, 6, true).unwrap();
            let terminator = engine::Terminator::Any;
            assert_eq!(job, NumberJob { tolerance: 0.001, nodes_max: 4096, limits, terminator });
            let objective = Objective::Named(ObjectiveName::Mean);
            let quantiles = QUANTILES.to_vec();
            let want =
                NumberPrint { objective, trim: 0.005, mass_min: 0.0, quantiles, support: 20, decimals: None };
            assert_eq!(print, want);
        }
    }

    #[test]
    fn options_reach_the_job() {
        let options = json!({"objective": {"quantile": 0.9}, "tolerance": 0.5, "nodes_max": 1, "digits_max": 20,
            "decimals_max": 0, "sign": false, "terminator": ["\n"], "quantiles": [], "support": 0, "decimals": 2,
            "mass_min": 1, "trim": 0});
        let (job, print) = plan(&options).unwrap();
        assert_eq!(job.limits, GrammarLimits::new(20, 0, false).unwrap());
        assert_eq!(job.terminator, engine::Terminator::Texts(vec!["\n".into()]));
        assert_eq!(print.objective, Objective::Quantile { quantile: 0.9 });
        assert_eq!((print.quantiles.len(), print.support, print.decimals), (0, 0, Some(2)));
        assert_eq!(plan(&json!({"terminator": "eos"})).unwrap().0.terminator, engine::Terminator::Eos);
    }

    #[test]
    fn wrong_options_are_refused_by_name() {
        for (field, values) in [
            (
                "objective",
                vec![json!("average"), json!({"quantile": 1}), json!(5), json!({"quantile": null})],
            ),
            ("method", vec![json!("sample"), json!("beam"), json!("token"), json!("forest"), json!(1)]),
            ("trim", vec![json!(-0.1), json!(0.5)]),
            ("tolerance", vec![json!(0), json!(1), json!("0.1")]),
            ("nodes_max", vec![json!(0), json!(65_537), json!(1.5), json!(-1)]),
            ("digits_max", vec![json!(0), json!(21)]),
            ("decimals_max", vec![json!(21)]),
            ("sign", vec![json!(1)]),
            ("terminator", vec![json!("newline"), json!([]), json!([""]), json!(vec!["x"; 17])]),
            ("mass_min", vec![json!(-0.1), json!(1.1)]),
            ("quantiles", vec![json!([0]), json!([1]), json!([0.5, 2]), json!(vec![0.5; 1001]), json!(0.5)]),
            ("support", vec![json!(1001)]),
            ("decimals", vec![json!(21)]),
            ("after", vec![json!("#### ")]),
            ("rationales", vec![json!(2)]),
            ("range", vec![json!([0, 1])]),
            ("normalize", vec![json!(false)]),
            ("precision", vec![json!(0)]),
            ("samples", vec![json!(64)]),
            ("beams", vec![json!(4)]),
            ("thousands", vec![json!(true)]),
            ("tolerence", vec![json!(0.1)]),
        ] {
            for value in values {
                let error = plan(&json!({ field: value })).unwrap_err();
                let param = error.body().error.param.unwrap();
                assert!(
                    param == format!("number.{field}") || param == format!("number.{field}[0]"),
                    "{param}: {value}"
                );
                assert!(error.to_string().contains(field), "{error}");
            }
        }
    }
}
