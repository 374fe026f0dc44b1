//! Trees whose open mass is sampled, compared with the exact distributions of the same models.

use std::collections::HashMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::property_tests::random;
use super::tests::{PIECES, model, number, number_job, steps_of, tree, trim};
use crate::contract::{AfterMarker, Job, NumberJob, NumberMethod, NumberOutcome, OpenDraws, Request};
use crate::numbers::{
    Decimal, Distribution, Estimation, GrammarLimits, Interval, NumberValue, NumberValues, Objective,
};
use crate::sampling::SamplingParams;

const DRAWS: u32 = 16;
const SEEDS: u64 = 400;

/// Numbers of one to four digits, of which low first digits and short numbers are more probable. Some texts
/// are not numbers.
fn wide(text: &str) -> Vec<(&'static str, f64)> {
    let length = text.len();
    // No two numbers are equally probable.
    let mut rng = ChaCha8Rng::seed_from_u64(text.bytes().fold(7, |hash, byte| 31 * hash + u64::from(byte)));
    let mut next = |digit: usize| (0.5 + rng.random::<f64>()) / (digit + 1 + length) as f64;
    let digits = (0..10).map(|digit| (PIECES[digit + 2], if length < 4 { next(digit) } else { 0.0 }));
    let end = if length == 0 { 0.0 } else { 0.2 * length as f64 };
    let next: Vec<_> = digits.chain([("", end), ("x", 0.1)]).collect();
    let total: f64 = next.iter().map(|(_, weight)| weight).sum();
    next.into_iter().map(|(piece, weight)| (piece, weight / total)).collect()
}

fn open_draws(search_nodes_max: usize, draws: u32, seed: u64) -> Option<OpenDraws> {
    Some(OpenDraws { search_nodes_max, draws, seed })
}

fn job() -> NumberJob {
    NumberJob { values: NumberValues::Range(Interval { low: 0.0, high: 9999.0 }), ..number_job() }
}

/// The distribution of the numbers that begin with `text`, which has this probability.
fn enumerate(text: &str, probability: f64, closed: &mut HashMap<Decimal, f64>) {
    for (piece, given) in wide(text) {
        let probability = probability * given;
        match (piece, text.parse()) {
            ("", Ok(value)) => {
                *closed.entry(Decimal::shortest_f64(value).unwrap()).or_default() += probability;
            }
            ("" | "x", _) => {}
            _ if probability > 0.0 => enumerate(&format!("{text}{piece}"), probability, closed),
            _ => {}
        }
    }
}

fn exact() -> Distribution {
    let mut closed = HashMap::new();
    enumerate("", 1.0, &mut closed);
    let mass: f64 = closed.values().sum();
    Distribution::new(&closed, 1.0 - mass, 0.0)
}

fn sampled(search_nodes_max: usize, draws: u32, seed: u64) -> NumberOutcome {
    let open_draws = open_draws(search_nodes_max, draws, seed);
    number(model(wide), NumberJob { open_draws, ..job() }, 64)
}

fn steps_aside(outcome: NumberOutcome) -> NumberOutcome {
    NumberOutcome { forward_passes: 0, ..outcome }
}

#[test]
fn a_tree_that_ends_within_its_budget_is_the_same_with_draws() {
    for seed in 0..30 {
        let search = |open_draws| {
            let job = NumberJob { method: tree(1e-3, 4096), open_draws, ..number_job() };
            steps_aside(number(model(move |text| random(seed, text)), job, 16))
        };
        let alone = search(None);
        assert_eq!(search(open_draws(alone.nodes + 1, DRAWS, 5)), alone, "seed {seed}");
    }
}

#[test]
fn draws_leave_masses_and_bounds_as_they_are() {
    let estimation = Estimation { range: Some(Interval { low: 0.0, high: 9999.0 }), ..trim(0.0) };
    let exact = exact();
    for nodes in [1, 5, 40] {
        let method = tree(1e-9, nodes);
        let alone = number(model(wide), NumberJob { method: method.clone(), ..job() }, 64);
        let open_draws = open_draws(nodes, DRAWS, 3);
        let outcome = number(model(wide), NumberJob { method, open_draws, ..job() }, 64);
        assert!(outcome.truncated && outcome.nodes > nodes, "{nodes}: {}", outcome.nodes);
        assert_eq!(outcome.distribution, alone.distribution);
        assert_eq!(outcome.sampled[0].draws(), DRAWS);
        let mass = outcome.estimated().mass();
        assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-9 && mass.open < 1e-3, "{mass:?}");
        for objective in [Objective::Mean, Objective::Median, Objective::Quantile(0.9)] {
            let bounds = outcome.distribution.estimate_bounds(objective, &estimation).unwrap();
            for found in [&exact, outcome.estimated()] {
                let value = found.estimate(objective, &estimation).unwrap();
                let is_inside = bounds.low - 1e-9 <= value && value <= bounds.high + 1e-9;
                assert!(is_inside, "{nodes} nodes, {objective:?}: {value} is not in {bounds:?}");
            }
        }
    }
}

#[test]
fn the_memory_of_a_search_includes_its_draws() {
    for draws in [16, 256] {
        let request = NumberJob { open_draws: open_draws(5, draws, 1), ..job() };
        let job = Job::new(vec![2, 1], Request::Number(request));
        let (outcome, steps) = steps_of(&job, wide, 64);
        let bytes = steps.last().unwrap().bytes - outcome.distribution.bytes();
        // Each draw completes at least one number, and the search notes which number of an answer it is.
        let least = draws as usize * (size_of::<NumberValue>() + size_of::<usize>());
        let most = job.host_bytes(job.nodes_max()) as usize;
        assert!((least..=most).contains(&bytes), "{bytes} bytes of {draws} draws, not {least} to {most}");
    }
}

#[test]
fn equal_seeds_draw_equal_numbers_at_any_width() {
    for nodes in [1, 20] {
        let draw = |seed, rows_max| {
            let open_draws = open_draws(nodes, 64, seed);
            steps_aside(number(model(wide), NumberJob { open_draws, ..job() }, rows_max))
        };
        let wide = draw(7, 64);
        assert_eq!(draw(7, 1), wide);
        assert_eq!(draw(7, 5), wide);
        assert_ne!(draw(8, 64).sampled, wide.sampled);
    }
}

/// Means over many seeds, of estimates with one estimation.
struct Simulation {
    mean: f64,
    variance: f64,
    /// Mean of the squared standard errors.
    stated: f64,
    /// Share of the estimates whose distance to the exact one is at most 1.96 standard errors.
    coverage: f64,
}

fn simulate(nodes: usize, draws: u32, objective: Objective, estimation: &Estimation) -> Simulation {
    let exact = exact().estimate(objective, estimation).unwrap();
    let (mut sum, mut squares, mut stated, mut covered) = (0.0, 0.0, 0.0, 0);
    for seed in 0..SEEDS {
        let outcome = sampled(nodes, draws, seed);
        let estimate = outcome.estimated().estimate(objective, estimation).unwrap();
        let error = outcome.sampled[0].standard_error(objective, estimation).unwrap();
        sum += estimate - exact;
        squares += (estimate - exact).powi(2);
        stated += error.powi(2);
        covered += u64::from((estimate - exact).abs() <= 1.96 * error);
    }
    let seeds = SEEDS as f64;
    let mean = sum / seeds;
    let variance = squares / seeds - mean.powi(2);
    Simulation { mean, variance, stated: stated / seeds, coverage: covered as f64 / seeds }
}

#[test]
fn raw_sums_are_unbiased_and_standard_errors_are_not_too_small() {
    let raw = Estimation { normalize: false, ..trim(0.0) };
    for (nodes, draws) in [(1, 16), (12, 16), (12, 64), (80, 64)] {
        let Simulation { mean, variance, stated, coverage } = simulate(nodes, draws, Objective::Mean, &raw);
        let what = format!("{nodes} nodes, {draws} draws: {mean} {variance} {stated} {coverage}");
        assert!(mean.abs() <= 4.0 * (variance / SEEDS as f64).sqrt(), "{what}");
        assert!(stated >= 0.85 * variance && stated <= 5.0 * variance, "{what}");
        assert!(coverage >= 0.9, "{what}");
    }
}

#[test]
fn ratios_and_trimmed_means_are_nearly_unbiased_and_covered() {
    for (nodes, draws, estimation) in [(12, 64, trim(0.0)), (12, 64, trim(0.05)), (80, 64, trim(0.005))] {
        let found = simulate(nodes, draws, Objective::Mean, &estimation);
        let Simulation { mean, variance, stated, coverage } = found;
        let what = format!("{nodes} nodes, {draws} draws: {mean} {variance} {stated} {coverage}");
        assert!(mean.abs() <= 0.2 * variance.sqrt(), "{what}");
        assert!(stated >= 0.85 * variance && stated <= 5.0 * variance, "{what}");
        assert!(coverage >= 0.9, "{what}");
    }
}

#[test]
fn a_tree_with_draws_has_at_most_half_the_error_of_as_many_positions_of_plain_samples() {
    let estimation = trim(0.0);
    let exact = exact().mean(&estimation).unwrap();
    let anytime = sampled(320, 64, 1);
    let mut samples = 64;
    let plain = |samples, seed| {
        let method = NumberMethod::sample(samples, seed);
        number(model(wide), NumberJob { method, ..job() }, 64)
    };
    while plain(samples, 1).nodes < anytime.nodes {
        samples += 64;
    }
    let (mut squares, mut plain_squares) = (0.0, 0.0);
    for seed in 0..50 {
        let outcome = sampled(320, 64, seed);
        squares += (outcome.estimated().mean(&estimation).unwrap() - exact).powi(2);
        plain_squares += (plain(samples, seed).distribution.mean(&estimation).unwrap() - exact).powi(2);
    }
    assert!(4.0 * squares < plain_squares, "{samples} samples: {squares} {plain_squares}");
}

#[test]
fn numbers_beyond_the_limit_stay_open_if_they_are_drawn() {
    let limits = GrammarLimits::new(3, 0, true).unwrap();
    let job = NumberJob { limits, open_draws: open_draws(1, 64, 1), ..number_job() };
    let outcome = number(model(wide), job, 16);
    let mass = outcome.estimated().mass();
    assert!(mass.open > 0.05 && (mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-9, "{mass:?}");
}

#[test]
fn numbers_after_several_texts_are_averaged_with_their_draws() {
    // Both texts are the same, but the draws after them are different.
    let after =
        AfterMarker { marker: "x".to_owned(), rationales: 2, sampling: SamplingParams::PLAIN, max_tokens: 4 };
    let script = |text: &str| text.strip_prefix('x').map_or_else(|| vec![("x", 1.0)], wide);
    let outcome = |rows_max| {
        let open_draws = open_draws(5, DRAWS, 2);
        let job = NumberJob { after: Some(after.clone()), open_draws, ..job() };
        steps_aside(number(model(script), job, rows_max))
    };
    let found = outcome(64);
    assert_eq!(outcome(3), found);
    assert_eq!((found.reached, found.sampled[0].draws()), (2, 2 * DRAWS));
    let mass = found.estimated().mass();
    assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-9, "{mass:?}");
    let drawn: f64 = found.sampled[0].drawn().iter().map(|drawn| drawn.mass).sum();
    assert!((mass.closed - found.distribution.mass().closed - drawn).abs() < 1e-9, "{drawn}");
    assert!(found.sampled[0].drawn().iter().any(|drawn| drawn.draw >= DRAWS), "{found:?}");
}
