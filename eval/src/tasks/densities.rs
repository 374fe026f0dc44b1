//! Questions about random experiments whose distribution is known. A model that understands the experiment
//! gives every possible result its probability.
//!
//! The true answer of an item is drawn from the distribution; the scores against the distribution itself do
//! not depend on that draw. Modules are the kinds of experiments.

use std::num::NonZeroUsize;

use rand::seq::index;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, json};

use super::splits::limited;
use super::{Entry, Origin, Suite, Traits, check_generated};
use crate::data::Item;
use crate::metrics::law::Law;
use crate::settings::RunSettings;
use crate::stats::Interval;

pub const ENTRY: Entry = Entry {
    name: "densities",
    about: "random experiments with known distributions: dice, coins, urns, waiting times and more",
    origin: Origin::Seed,
};

/// Larger results of unbounded experiments are left out once they have this probability together.
const TAIL: f64 = 1e-12;

/// A random experiment with an integer as its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Experiment {
    /// The sum of fair dice.
    Dice { count: u32, sides: u32 },
    /// An integer, all equally likely.
    Uniform { low: u32, high: u32 },
    /// The number of successes in independent trials.
    Binomial { trials: u32, percent: u32 },
    /// The number of trials up to the first success.
    Geometric { percent: u32 },
    /// The number of events in an hour, with a mean in tenths.
    Poisson { tenths: u32 },
    /// The number of red balls that are drawn without replacement.
    Hypergeometric { red: u32, blue: u32, drawn: u32 },
    /// A normally distributed number, rounded to an integer.
    Normal { mean: u32, sd: u32 },
}

/// All experiments of one kind.
type Experiments = fn() -> Vec<Experiment>;

/// The names of the modules and their experiments.
const KINDS: [(&str, Experiments); 7] = [
    ("dice", || {
        let all = (1..=8).flat_map(|count| (4..=20).map(move |sides| Experiment::Dice { count, sides }));
        all.collect()
    }),
    ("uniform", || {
        let all = (0..=20).flat_map(|low| (2..=50).map(move |width| (low, low + width)));
        all.map(|(low, high)| Experiment::Uniform { low, high }).collect()
    }),
    ("binomial", || {
        let all = (2..=30).flat_map(|trials| (1..=19).map(move |twentieth| (trials, 5 * twentieth)));
        all.map(|(trials, percent)| Experiment::Binomial { trials, percent }).collect()
    }),
    ("geometric", || (5..=95).map(|percent| Experiment::Geometric { percent }).collect()),
    ("poisson", || (5..=200).map(|tenths| Experiment::Poisson { tenths }).collect()),
    ("hypergeometric", || {
        let urns = (2..=12).flat_map(|red| (2..=12).map(move |blue| (red, blue)));
        let all = urns.flat_map(|(red, blue)| (2..red + blue).map(move |drawn| (red, blue, drawn)));
        all.map(|(red, blue, drawn)| Experiment::Hypergeometric { red, blue, drawn }).collect()
    }),
    ("normal", || {
        let all = (5..=100).flat_map(|mean| (1..=10).map(move |sd| Experiment::Normal { mean, sd }));
        all.collect()
    }),
];

/// The metrics that a run shows first.
const FIRST_METRICS: [&str; 7] =
    ["crps_excess", "kl", "total_variation", "true_coverage", "sharpness", "crps", "mae"];

/// `per_module`: generated items of each kind, or all if there are fewer.
pub fn suites(per_module: NonZeroUsize, run: &RunSettings) -> anyhow::Result<Vec<Suite>> {
    check_generated(ENTRY.name, run)?;
    let mut items = items(per_module.get(), run.seed);
    if let Some(limit) = run.limit {
        items = limited(items, limit.get(), run.seed);
    }
    Ok(vec![Suite {
        task: ENTRY.name,
        split: "test".to_owned(),
        items,
        settings: Map::from_iter([
            ("data".to_owned(), json!("generated")),
            ("per_module".to_owned(), json!(per_module)),
        ]),
        traits: Traits { first_metrics: &FIRST_METRICS, ..Traits::default() },
        ..Suite::default()
    }])
}

/// Distinct experiments of each kind.
fn items(per_module: usize, seed: u64) -> Vec<Item> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut items = Vec::new();
    for (name, experiments) in KINDS {
        let experiments = experiments();
        let chosen = index::sample(&mut rng, experiments.len(), per_module.min(experiments.len()));
        for index in chosen {
            items.push(item(name, experiments[index], &mut rng));
        }
    }
    items
}

fn item(module: &str, experiment: Experiment, rng: &mut ChaCha8Rng) -> Item {
    let law = experiment.law();
    let result = law.quantile(rng.random());
    Item {
        question: experiment.question(),
        answer: result.to_string(),
        truth: Some(result),
        module: Some(module.to_owned()),
        baselines: vec![("true_distribution".to_owned(), law.clone())],
        law: Some(law),
        ..Item::default()
    }
}

impl Experiment {
    fn question(self) -> String {
        let (experiment, result) = match self {
            Self::Dice { count: 1, sides } => {
                (format!("Roll a fair die with {sides} sides, numbered from 1."), "The number is")
            }
            Self::Dice { count, sides } => (
                format!(
                    "Roll {count} fair dice with {sides} sides each, numbered from 1, and add the numbers."
                ),
                "The sum is",
            ),
            Self::Uniform { low, high } => (
                format!("Draw an integer from {low} to {high}, all of which are equally likely."),
                "The integer is",
            ),
            Self::Binomial { trials, percent } => (
                format!("Toss a coin {trials} times that shows heads with a probability of {percent}%."),
                "The number of heads is",
            ),
            Self::Geometric { percent } => (
                format!("Try until the first success. Each try succeeds with a probability of {percent}%."),
                "The number of tries is",
            ),
            Self::Poisson { tenths } => (
                format!(
                    "Calls arrive independently, {}.{} per hour on average. Count the calls of one hour.",
                    tenths / 10,
                    tenths % 10
                ),
                "The number of calls is",
            ),
            Self::Hypergeometric { red, blue, drawn } => (
                format!(
                    "Draw {drawn} balls without replacement from an urn with {red} red and {blue} blue ones."
                ),
                "The number of red balls that are drawn is",
            ),
            Self::Normal { mean, sd } => (
                format!(
                    "Draw from a normal distribution with mean {mean} and standard deviation {sd}, and round to an integer."
                ),
                "The integer is",
            ),
        };
        format!("{experiment} Write one possible result. {result}")
    }

    /// Returns the distribution of the result.
    pub fn law(self) -> Law {
        match self {
            Self::Dice { count, sides } => {
                let die: Vec<f64> = vec![1.0 / f64::from(sides); sides as usize];
                let sums = (1..count).fold(die.clone(), |sums, _| convolved(&sums, &die));
                from(count, sums)
            }
            Self::Uniform { low, high } => from(low, vec![1.0; (high - low + 1) as usize]),
            Self::Binomial { trials, percent } => {
                let odds = f64::from(percent) / f64::from(100 - percent);
                from(0, weights(trials, |k| odds * f64::from(trials - k) / f64::from(k + 1)))
            }
            Self::Geometric { percent } => {
                let failure = 1.0 - f64::from(percent) / 100.0;
                let count = (TAIL.ln() / failure.ln()).ceil() as u32;
                from(1, weights(count, |_| failure))
            }
            Self::Poisson { tenths } => {
                let mean = f64::from(tenths) / 10.0;
                // Beyond, the tail of means up to 20 is less than `TAIL`.
                let count = (mean + 10.0 * mean.sqrt() + 20.0) as u32;
                from(0, weights(count, |k| mean / f64::from(k + 1)))
            }
            Self::Hypergeometric { red, blue, drawn } => {
                let lowest = drawn.saturating_sub(blue);
                let highest = drawn.min(red);
                let weights = weights(highest - lowest, |step| {
                    let k = lowest + step;
                    f64::from((red - k) * (drawn - k)) / f64::from((k + 1) * (blue + k + 1 - drawn))
                });
                from(lowest, weights)
            }
            Self::Normal { mean, sd } => {
                let exact = Law::Normal { mean: f64::from(mean), sd: f64::from(sd) };
                let reach = 8 * i64::from(sd);
                let mut results = Vec::new();
                for step in -reach..=reach {
                    let result = (i64::from(mean) + step) as f64;
                    let rounded = Interval { low: result - 0.5, high: result + 0.5 };
                    results.push((result, exact.mass_within(rounded)));
                }
                Law::discrete(results)
            }
        }
    }
}

/// Returns the weights of 0 to `last`: 1, `ratio(0)`, `ratio(0) ratio(1)` and so on.
fn weights(last: u32, ratio: impl Fn(u32) -> f64) -> Vec<f64> {
    let mut weights = vec![1.0];
    for k in 0..last {
        weights.push(weights[k as usize] * ratio(k));
    }
    weights
}

/// Returns the distribution of consecutive integers with these weights.
fn from(lowest: u32, weights: Vec<f64>) -> Law {
    Law::discrete(
        weights.into_iter().zip(lowest..).map(|(weight, value)| (f64::from(value), weight)).collect(),
    )
}

/// Returns the distribution of the sum of two independent numbers.
fn convolved(a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; a.len() + b.len() - 1];
    for (i, p) in a.iter().enumerate() {
        for (j, q) in b.iter().enumerate() {
            sums[i + j] += p * q;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;

    #[test]
    fn every_module_has_distinct_questions_and_possible_answers() {
        let items = items(90, 3);
        let questions: HashSet<&str> = items.iter().map(|item| item.question.as_str()).collect();
        assert_eq!(questions.len(), items.len());
        let mut modules: BTreeMap<&str, usize> = BTreeMap::new();
        for item in &items {
            *modules.entry(item.module.as_deref().unwrap()).or_default() += 1;
            let Some(Law::Discrete(points)) = &item.law else { panic!("{item:?}") };
            assert!(points.iter().any(|(value, _)| value.to_string() == item.answer), "{item:?}");
            assert!((points.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-12);
        }
        assert_eq!((modules.len(), modules.values().all(|count| *count == 90)), (7, true), "{modules:?}");
    }

    /// The position of a draw in its distribution is uniform.
    #[test]
    fn answers_are_drawn_from_the_distribution() {
        let items = items(1_000, 5);
        let below = |item: &Item| {
            let Some(Law::Discrete(points)) = &item.law else { panic!("{item:?}") };
            let truth = item.truth.unwrap();
            points
                .iter()
                .map(|(value, p)| {
                    if *value < truth {
                        *p
                    } else if *value > truth {
                        0.0
                    } else {
                        p / 2.0
                    }
                })
                .sum::<f64>()
        };
        let mean = items.iter().map(below).sum::<f64>() / items.len() as f64;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
