//! Regression from examples in the prompt: the three functions of Friedman (1991), with scikit-learn's
//! definitions, and linear functions.
//!
//! Every item has new examples and a new question, all with normal noise, so that the distribution of the
//! answer is known. The best known predictions from the same examples are the baselines: their mean, least
//! squares, and the function itself.

use std::f64::consts::PI;
use std::num::{NonZeroU8, NonZeroUsize};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, json};
use strum::IntoStaticStr;

use super::{Entry, Origin, Suite, Traits, check_generated};
use crate::data::Item;
use crate::metrics::law::Law;
use crate::settings::RunSettings;
use crate::settings::values::{at_least_one, not_negative};
use crate::stats::least_squares;

pub const ENTRY: Entry = Entry {
    name: "regression-in-context",
    about: "Friedman's functions 1 to 3 and linear ones, from noisy examples in the prompt",
    origin: Origin::Seed,
};

/// Which function the examples follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Function {
    /// 10 sin(pi x1 x2) + 20 (x3 - 0.5)^2 + 10 x4 + 5 x5, each x uniform from 0 to 1; noise 1.
    Friedman1,
    /// sqrt(x1^2 + z^2) with z = x2 x3 - 1 / (x2 x4), x1 from 0 to 100, x2 from 40 pi to 560 pi, x3 from 0 to
    /// 1, x4 from 1 to 11; noise 125.
    Friedman2,
    /// atan(z / x1), with z and x as in `friedman2`; noise 0.1.
    Friedman3,
    /// w1 x1 + w2 x2 + w3 x3, with standard normal x and new weights from 0 to 100 for each item; noise 10.
    Linear,
}

impl Function {
    fn name(self) -> &'static str {
        self.into()
    }

    /// Standard deviation of the noise.
    fn noise(self) -> f64 {
        match self {
            Self::Friedman1 => 1.0,
            Self::Friedman2 => 125.0,
            Self::Friedman3 => 0.1,
            Self::Linear => 10.0,
        }
    }

    /// Decimals of the features, as they are written.
    fn feature_decimals(self) -> &'static [usize] {
        match self {
            Self::Friedman1 => &[2; 5],
            Self::Friedman2 | Self::Friedman3 => &[1, 0, 2, 1],
            Self::Linear => &[2; 3],
        }
    }

    /// Decimals of the values, as they are written.
    fn value_decimals(self) -> usize {
        match self {
            Self::Friedman1 => 2,
            Self::Friedman2 | Self::Linear => 1,
            Self::Friedman3 => 3,
        }
    }

    /// Returns the value without noise. Only linear functions have weights.
    pub fn value(self, x: &[f64], weights: &[f64]) -> f64 {
        match self {
            Self::Friedman1 => {
                10.0 * (PI * x[0] * x[1]).sin() + 20.0 * (x[2] - 0.5).powi(2) + 10.0 * x[3] + 5.0 * x[4]
            }
            Self::Friedman2 => x[0].hypot(x[1] * x[2] - 1.0 / (x[1] * x[3])),
            Self::Friedman3 => ((x[1] * x[2] - 1.0 / (x[1] * x[3])) / x[0]).atan(),
            Self::Linear => x.iter().zip(weights).map(|(x, weight)| x * weight).sum(),
        }
    }
}

/// Which items are generated.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct RegressionTask {
    /// Functions, each of which gets a report. Default: all four.
    #[arg(
        long = "split",
        value_enum,
        value_name = "FUNCTION,...",
        env = "NTL_EVAL_SPLIT",
        value_delimiter = ','
    )]
    #[arg(default_values_t = [Function::Friedman1, Function::Friedman2, Function::Friedman3, Function::Linear], hide_default_value = true)]
    pub functions: Vec<Function>,
    /// Examples before each question.
    #[arg(long, value_name = "N", env = "NTL_EVAL_EXAMPLES", default_value = "20", value_parser = at_least_one::<NonZeroU8>)]
    pub examples: NonZeroU8,
    /// Factor of the noise, at least 0.
    #[arg(long, value_name = "FACTOR", env = "NTL_EVAL_NOISE", default_value = "1", value_parser = not_negative)]
    pub noise: f64,
    /// Items of each function.
    #[arg(long, value_name = "N", env = "NTL_EVAL_PER_FUNCTION", default_value = "100", value_parser = at_least_one::<NonZeroUsize>)]
    pub per_function: NonZeroUsize,
}

/// The metrics that a run shows first.
const FIRST_METRICS: [&str; 9] =
    ["rmse", "mae", "spearman", "r2", "crps", "crps_excess", "coverage", "true_coverage", "sharpness"];

pub fn suites(task: &RegressionTask, run: &RunSettings) -> anyhow::Result<Vec<Suite>> {
    check_generated(ENTRY.name, run)?;
    let count = run.limit.map_or(task.per_function, |limit| limit.min(task.per_function)).get();
    let mut suites = Vec::with_capacity(task.functions.len());
    for &function in &task.functions {
        suites.push(Suite {
            task: ENTRY.name,
            split: function.name().to_owned(),
            items: items(function, task, count, run.seed),
            settings: Map::from_iter([
                ("data".to_owned(), json!("generated")),
                ("examples".to_owned(), json!(task.examples)),
                ("noise_sd".to_owned(), json!(function.noise() * task.noise)),
            ]),
            traits: Traits { first_metrics: &FIRST_METRICS, stop: &["\n\n"], ..Traits::default() },
            ..Suite::default()
        });
    }
    Ok(suites)
}

/// Returns items. The first k of n are the same for every n.
fn items(function: Function, task: &RegressionTask, count: usize, seed: u64) -> Vec<Item> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(function as u64);
    (0..count).map(|_| item(function, task, &mut rng)).collect()
}

/// Features, the distribution of their value, and a value that was drawn from it.
struct Example {
    features: Vec<f64>,
    law: Law,
    value: f64,
}

fn item(function: Function, task: &RegressionTask, rng: &mut ChaCha8Rng) -> Item {
    let sd = function.noise() * task.noise;
    let weights: Vec<f64> =
        function.feature_decimals().iter().map(|_| rng.random_range(0.0..100.0)).collect();
    let mut drawn: Vec<Example> =
        (0..=task.examples.get()).map(|_| example(function, &weights, sd, rng)).collect();
    let mut question = String::from("Predict y from the examples.\n\n");
    for Example { features, value, .. } in &drawn[1..] {
        question += &format!("{} {}\n", worded(function, features), written(function, *value));
    }
    let asked = drawn.swap_remove(0);
    question += &worded(function, &asked.features);
    let rows: Vec<Vec<f64>> = drawn.iter().map(|example| example.features.clone()).collect();
    let values: Vec<f64> = drawn.iter().map(|example| example.value).collect();
    let fitted = [
        ("mean_of_examples", least_squares::predict(&vec![Vec::new(); rows.len()], &values, &[])),
        ("least_squares", least_squares::predict(&rows, &values, &asked.features)),
    ];
    let laws = fitted.into_iter().filter_map(|(name, fitted)| {
        let prediction = fitted?;
        Some((name.to_owned(), Law::Normal { mean: prediction.value, sd: prediction.sd }))
    });
    let baselines = laws.chain([("true_function".to_owned(), asked.law.clone())]).collect();
    Item {
        question,
        answer: written(function, asked.value),
        truth: Some(asked.value),
        law: Some(asked.law),
        baselines,
        ..Item::default()
    }
}

fn example(function: Function, weights: &[f64], sd: f64, rng: &mut ChaCha8Rng) -> Example {
    let features: Vec<f64> = function
        .feature_decimals()
        .iter()
        .enumerate()
        .map(|(index, decimals)| rounded(feature(function, index, rng), *decimals))
        .collect();
    let law = Law::Normal { mean: function.value(&features, weights), sd };
    let value = rounded(law.quantile(level(rng)), function.value_decimals());
    Example { features, law, value }
}

fn feature(function: Function, index: usize, rng: &mut ChaCha8Rng) -> f64 {
    match (function, index) {
        (Function::Linear, _) => Law::Normal { mean: 0.0, sd: 1.0 }.quantile(level(rng)),
        // 0 would be divided by.
        (Function::Friedman2 | Function::Friedman3, 0) => rng.random_range(0.1..100.0),
        (Function::Friedman2 | Function::Friedman3, 1) => rng.random_range(40.0 * PI..560.0 * PI),
        (Function::Friedman2 | Function::Friedman3, 3) => rng.random_range(1.0..11.0),
        _ => rng.random(),
    }
}

/// Returns a level whose quantile is finite.
fn level(rng: &mut ChaCha8Rng) -> f64 {
    rng.random_range(1e-9..1.0 - 1e-9)
}

fn rounded(value: f64, decimals: usize) -> f64 {
    let scale = 10_f64.powi(decimals as i32);
    // Adding 0 turns -0 into 0.
    (value * scale).round() / scale + 0.0
}

fn written(function: Function, value: f64) -> String {
    format!("{value:.decimals$}", decimals = function.value_decimals())
}

fn worded(function: Function, features: &[f64]) -> String {
    let decimals = function.feature_decimals();
    let features = features.iter().zip(decimals).zip(1..);
    let features: Vec<String> =
        features.map(|((value, decimals), index)| format!("x{index} = {value:.decimals$}")).collect();
    format!("{} -> y =", features.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(noise: f64) -> RegressionTask {
        RegressionTask {
            functions: vec![Function::Linear],
            examples: NonZeroU8::new(12).unwrap(),
            noise,
            per_function: NonZeroUsize::MIN,
        }
    }

    fn error(law: &Law, truth: f64) -> f64 {
        (law.estimates().mean - truth).abs()
    }

    #[test]
    fn least_squares_finds_a_linear_function_without_noise() {
        for item in items(Function::Linear, &task(0.0), 50, 1) {
            let [(_, mean), (name, fitted), (_, function)] = &item.baselines[..] else { panic!("{item:?}") };
            let truth = item.truth.unwrap();
            assert_eq!(name, "least_squares");
            // Values are written with one decimal.
            assert!(error(function, truth) <= 0.05 + 1e-9, "{item:?}");
            assert!(error(fitted, truth) < 0.5 && error(mean, truth) > error(fitted, truth), "{item:?}");
        }
    }

    #[test]
    fn the_noise_has_its_distribution() {
        for function in [Function::Friedman1, Function::Friedman2, Function::Friedman3, Function::Linear] {
            let items = items(function, &task(1.0), 2_000, 2);
            let standard = |item: &Item| {
                let Some(Law::Normal { mean, sd }) = item.law else { panic!("{item:?}") };
                (item.truth.unwrap() - mean) / sd
            };
            let squares: f64 = items.iter().map(|item| standard(item).powi(2)).sum::<f64>() / 2_000.0;
            let mean: f64 = items.iter().map(standard).sum::<f64>() / 2_000.0;
            assert!(mean.abs() < 0.08 && (squares - 1.0).abs() < 0.12, "{function:?}: {mean} {squares}");
        }
    }

    #[test]
    fn a_question_shows_its_examples_and_the_seed_decides() {
        let made = items(Function::Friedman1, &task(1.0), 3, 4);
        assert_eq!(made[..2], items(Function::Friedman1, &task(1.0), 2, 4));
        assert_ne!(made, items(Function::Friedman1, &task(1.0), 3, 5));
        let question = &made[0].question;
        assert_eq!(question.matches(" -> y = ").count(), 12, "{question}");
        assert!(
            question.starts_with("Predict y from the examples.\n\nx1 = 0.") && question.ends_with(" -> y =")
        );
        assert!(!question.contains(&format!("{}\n", made[0].answer)), "{question}");
    }
}
