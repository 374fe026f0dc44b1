//! Random finite models against their exact distributions, enumerated text by text without any of our code.

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::tests::{PIECES, model, number, number_job, tree, trim};
use crate::contract::{NumberJob, NumberMethod, NumberOutcome, Precision};
use crate::numbers::{Estimation, Interval, Objective};

/// Texts are at most about this long; then they end.
const LENGTH_MAX: usize = 5;

/// The pieces that follow `text` in the random model of this seed: a few, some of them very improbable.
pub(super) fn random(seed: u64, text: &str) -> Vec<(&'static str, f64)> {
    if text.len() >= LENGTH_MAX {
        return vec![("", 1.0)];
    }
    let hash = text.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut rng = ChaCha8Rng::seed_from_u64(hash);
    let mut next: BTreeMap<&'static str, f64> = BTreeMap::from([("", rng.random::<f64>() + 1e-3)]);
    for _ in 0..rng.random_range(2..6) {
        let piece = PIECES[rng.random_range(2..PIECES.len())];
        // Heavy tails: one weight in four is a millionth of the others.
        let weight = if rng.random_range(0..4) == 0 { 1e-6 } else { 1.0 };
        next.insert(piece, rng.random::<f64>() * weight + 1e-9);
    }
    let total: f64 = next.values().sum();
    next.into_iter().map(|(piece, weight)| (piece, weight / total)).collect()
}

/// Returns whether `text` is a number as people write it, or could become one.
fn reads(text: &str) -> (bool, bool) {
    let unspaced = text.strip_prefix(' ').unwrap_or(text);
    let unsigned = unspaced.strip_prefix('-').unwrap_or(unspaced);
    let (integer, fraction) = unsigned.split_once('.').map_or((unsigned, None), |(i, f)| (i, Some(f)));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let begins = digits(integer) && fraction.is_none_or(|part| digits(part) && !integer.is_empty());
    let complete = begins && !integer.is_empty() && fraction.is_none_or(|part| !part.is_empty());
    (complete, begins)
}

#[derive(Default)]
struct Exact {
    /// Probabilities by value in millionths, which is exact for texts this short.
    closed: BTreeMap<i64, f64>,
    invalid: f64,
}

fn enumerate(seed: u64, text: &str, probability: f64, exact: &mut Exact) {
    for (piece, given) in random(seed, text) {
        let longer = format!("{text}{piece}");
        let probability = probability * given;
        match (piece, reads(&longer)) {
            ("", (true, _)) => {
                let value: f64 = longer.trim_start().parse().unwrap();
                *exact.closed.entry((value * 1e6).round() as i64).or_default() += probability;
            }
            ("", (false, _)) | (_, (_, false)) => exact.invalid += probability,
            _ => enumerate(seed, &longer, probability, exact),
        }
    }
}

fn search(seed: u64, method: NumberMethod, rows_max: usize) -> NumberOutcome {
    let job = NumberJob { method, ..number_job() };
    let outcome = number(model(move |text| random(seed, text)), job, rows_max);
    NumberOutcome { forward_passes: 0, ..outcome }
}

#[test]
fn random_models_are_decoded_exactly() {
    for seed in 0..60 {
        let mut exact = Exact::default();
        enumerate(seed, "", 1.0, &mut exact);
        let outcome = search(seed, tree(1e-12, 65_536), 16);
        let mass = outcome.distribution.mass();
        assert!(
            (mass.invalid - exact.invalid).abs() < 1e-6,
            "seed {seed}: {mass:?}, invalid {}",
            exact.invalid
        );
        assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-6, "seed {seed}: {mass:?}");
        for leaf in outcome.distribution.leaves() {
            let want = exact.closed.remove(&((leaf.value * 1e6).round() as i64)).unwrap_or(0.0);
            let close = (leaf.probability - want).abs() <= 1e-5 * want + 1e-12;
            assert!(close, "seed {seed}, {}: {} instead of {want}", leaf.text, leaf.probability);
        }
        let missed: f64 = exact.closed.values().sum();
        assert!(missed < 1e-9, "seed {seed}: missed {missed}");
    }
}

#[test]
fn exact_estimates_lie_within_the_bounds_regardless_of_the_open_mass() {
    let range = Some(Interval { low: -1e6, high: 1e6 });
    // Number of estimates compared, and of those for which the open mass left more than one value possible.
    let mut compared: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for seed in 0..60 {
        let exact = search(seed, tree(1e-12, 65_536), 16).distribution;
        for tolerance in [0.3, 0.05, 1e-3] {
            let outcome = search(seed, tree(tolerance, 65_536), 16);
            assert_eq!(outcome, search(seed, tree(tolerance, 65_536), 3), "seed {seed}: the width shows");
            for estimation in
                [trim(0.1), Estimation { range, ..trim(0.0) }, Estimation { normalize: false, ..trim(0.2) }]
            {
                let fixed = [Objective::Mean, Objective::Median, Objective::Mode, Objective::Auto];
                for objective in fixed.into_iter().chain([Objective::Quantile(0.9)]) {
                    let bounds = outcome.distribution.estimate_bounds(objective, &estimation);
                    let (Some(bounds), Some(value)) = (bounds, exact.estimate(objective, &estimation)) else {
                        continue;
                    };
                    let slack = 1e-6 * value.abs().max(1.0);
                    let within = bounds.low - slack <= value && value <= bounds.high + slack;
                    assert!(
                        within,
                        "seed {seed}, {objective:?}, {estimation:?}: {value} is not in {bounds:?}"
                    );
                    let counts = compared.entry(format!("{objective:?} {estimation:?}")).or_default();
                    counts.0 += 1;
                    counts.1 += usize::from(bounds.high > bounds.low);
                }
            }
        }
    }
    assert_eq!(compared.len(), 15, "{compared:#?}");
    // Without a range, the bounds of a mode are the mode, or none.
    let enough = |(what, &(all, open)): (&String, &(usize, usize))| {
        all >= 60 && (open >= 20) != (what.starts_with("Mode") && what.contains("range: None"))
    };
    assert!(compared.iter().all(enough), "{compared:#?}");
}

#[test]
fn a_precision_ends_the_search_early_and_keeps_the_median_within_its_width() {
    let mut stopped = 0;
    for seed in 0..60 {
        let exact = search(seed, tree(1e-12, 65_536), 16);
        let median = exact.distribution.estimate(Objective::Median, &trim(0.1)).unwrap();
        let objectives = vec![Objective::Median];
        let precision = Precision { width: 0.5, objectives, estimation: trim(0.1) };
        let method = NumberMethod::Tree { tolerance: 1e-12, nodes_max: 65_536, precision: Some(precision) };
        let outcome = search(seed, method, 16);
        let found = outcome.distribution.estimate(Objective::Median, &trim(0.1)).unwrap();
        assert!((found - median).abs() <= 0.5, "seed {seed}: {found} instead of {median}");
        if outcome.nodes < exact.nodes {
            let bounds = outcome.distribution.quantile_bounds(0.5, None).unwrap();
            assert!(bounds.high - bounds.low <= 0.5, "seed {seed}: {bounds:?}");
            assert!(bounds.low <= median && median <= bounds.high, "seed {seed}: {median}, {bounds:?}");
            stopped += 1;
        }
    }
    assert!(stopped >= 30, "{stopped} of 60 searches ended early");
}
