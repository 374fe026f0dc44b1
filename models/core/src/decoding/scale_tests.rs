//! Scales and ranges: trees leave out prefixes that lead to no admitted value, and find the same
//! probabilities.

use std::collections::BTreeMap;

use super::property_tests::random;
use super::tests::{model, number, number_job, small, tree};
use crate::contract::{NumberJob, NumberMethod, NumberOutcome, Terminator};
use crate::numbers::{Distribution, Estimation, GrammarLimits, Interval, NumberValues, Scale};

fn scale(low: f64, high: f64, step: f64) -> NumberValues {
    NumberValues::Scale(Scale::new(low, high, step).unwrap())
}

/// The mass of an outcome on admitted values, and on each of them.
fn on_values(found: &Distribution, values: NumberValues) -> Vec<(f64, f64)> {
    let admits = |value: f64| match values {
        NumberValues::All => true,
        NumberValues::Range(Interval { low, high }) => (low..=high).contains(&value),
        NumberValues::Scale(scale) => scale.values().any(|own| (own - value).abs() < 1e-9),
    };
    let leaves = found.leaves().iter().filter(|leaf| admits(leaf.value));
    leaves.map(|leaf| (leaf.value, leaf.probability)).collect()
}

fn assert_same(restricted: &NumberOutcome, whole: &NumberOutcome, values: NumberValues) {
    let got = on_values(&restricted.distribution, NumberValues::All);
    let want = on_values(&whole.distribution, values);
    let mass = restricted.distribution.mass();
    let slack = mass.open + whole.distribution.mass().open + 1e-9;
    let probability = |of: &[(f64, f64)], value: f64| {
        of.iter().find(|(own, _)| (own - value).abs() < 1e-9).map_or(0.0, |(_, probability)| *probability)
    };
    for (value, _) in got.iter().chain(&want) {
        let got = probability(&got, *value);
        let want = probability(&want, *value);
        assert!((got - want).abs() <= slack, "{value}: {got} instead of {want} ({values:?})");
    }
    assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-6, "{mass:?}");
}

#[test]
fn the_distribution_over_a_scale_is_the_whole_trees_restricted_to_it() {
    let (mut compared, mut saved) = (0, 0);
    for seed in 0..60 {
        let all = [
            scale(1.0, 5.0, 1.0),
            scale(0.0, 20.0, 0.5),
            scale(-12.0, 12.0, 12.0),
            NumberValues::Range(Interval { low: -3.5, high: 15.0 }),
        ];
        for terminator in [Terminator::Eos, Terminator::Any] {
            let job = |values| NumberJob {
                values,
                terminator: terminator.clone(),
                method: tree(1e-12, 65_536),
                ..number_job()
            };
            let find = |values| number(model(move |text| random(seed, text)), job(values), 16);
            let whole = find(NumberValues::All);
            for values in all {
                let restricted = find(values);
                assert_same(&restricted, &whole, values);
                assert!(restricted.nodes <= whole.nodes);
                compared += on_values(&restricted.distribution, NumberValues::All).len();
                saved += whole.nodes - restricted.nodes;
            }
        }
    }
    assert!(compared > 500 && saved > 10_000, "{compared} values compared, {saved} nodes saved");
}

#[test]
fn other_methods_find_no_value_off_the_scale() {
    for seed in 0..20 {
        for method in [NumberMethod::sample(256, 1), NumberMethod::Beam { beams: 8 }] {
            let values = scale(1.0, 5.0, 1.0);
            let job = NumberJob { values, method, ..number_job() };
            let found = number(model(move |text| random(seed, text)), job, 16).distribution;
            assert_eq!(on_values(&found, values), on_values(&found, NumberValues::All));
        }
    }
}

/// After every text, another digit is likely, so the tree over all numbers is infinite.
fn endless(text: &str) -> Vec<(&'static str, f64)> {
    match text.len() {
        0 => ["1", "2", "3", "4", "5", "6", "7", "8", "9", "12"].iter().map(|&digit| (digit, 0.1)).collect(),
        _ => {
            let digits = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
            digits.iter().map(|&digit| (digit, 0.05)).chain([("", 0.4), (".", 0.1)]).collect()
        }
    }
}

#[test]
fn a_scale_needs_a_handful_of_nodes_although_the_whole_tree_is_infinite() {
    let find = |values, tolerance| {
        let method = tree(tolerance, 4096);
        number(model(endless), NumberJob { values, method, ..number_job() }, 16)
    };
    assert!(find(NumberValues::All, 1e-3).truncated);
    let five = find(scale(1.0, 5.0, 1.0), 1e-3);
    let ten = find(scale(1.0, 10.0, 1.0), 1e-3);
    assert!(!five.truncated && five.nodes <= 20, "{} nodes", five.nodes);
    assert!(!ten.truncated && ten.nodes <= 40, "{} nodes", ten.nodes);
    // "1" to "5" end with 0.4 each; only a zero or nothing follows a point.
    for leaf in five.distribution.leaves() {
        assert!((leaf.probability - 0.04).abs() < 1e-3, "{leaf:?}");
    }
}

#[test]
fn numbers_beyond_the_limits_are_open_only_if_they_may_be_on_the_scale() {
    // One digit before the point, none after it.
    let limits = GrammarLimits::new(1, 0, true).unwrap();
    let script = |text: &str| match text {
        "" => vec![("12", 0.3), ("0", 0.2), ("4", 0.5)],
        "0" => vec![("12", 0.5), ("3", 0.5)],
        "4" => vec![(".", 1.0)],
        "4." => vec![("5", 0.5), ("0", 0.5)],
        _ => vec![("", 1.0)],
    };
    let job = NumberJob { limits, values: scale(1.0, 5.0, 1.0), ..number_job() };
    let mass = number(model(script), job, 16).distribution.mass();
    // 03 and 4.0 could be on the scale; 12, 012 and 4.5 could not.
    assert!((mass.open - 0.35).abs() < 1e-6 && (mass.invalid - 0.65).abs() < 1e-6, "{mass:?}");
}

#[test]
fn a_tree_over_a_scale_resolves_the_mass_on_the_scale_however_small_it_is() {
    for share in [0.1, 1e-3, 1e-6, 1e-9] {
        let script = move |text: &str| match text {
            "" => vec![("4", 0.75 * share), ("5", 0.25 * share), ("x", 1.0 - share)],
            _ => vec![("", 1.0)],
        };
        let job = NumberJob { values: scale(1.0, 5.0, 1.0), method: tree(1e-3, 4096), ..number_job() };
        let found = number(model(script), job, 16).distribution;
        let mass = found.mass();
        assert!((mass.closed / share - 1.0).abs() < 1e-3 && mass.open <= 1e-3 * mass.closed, "{mass:?}");
        let mean = found.mean(&Estimation::default()).unwrap();
        assert!((mean - 4.25).abs() < 1e-3, "{share}: {mean}");
    }
}

/// The reported probabilities by text.
fn refused(job: NumberJob) -> BTreeMap<String, f64> {
    let outcome = number(model(small), job, 16);
    let rounded = |probability: f64| (probability * 1e4).round() / 1e4;
    outcome.refused.into_iter().map(|refused| (refused.text, rounded(refused.probability))).collect()
}

#[test]
fn a_tree_reports_the_most_probable_texts_that_are_not_numbers_if_the_job_requests_them() {
    let texts = |texts: &[(&str, f64)]| texts.iter().map(|&(text, share)| (text.to_owned(), share)).collect();
    assert_eq!(refused(number_job()), BTreeMap::new());
    let job = NumberJob { reports_refused: true, ..number_job() };
    let want: BTreeMap<String, f64> = texts(&[("", 0.05), ("-x", 0.05), ("x", 0.05)]);
    assert_eq!(refused(job.clone()), want);
    // -3 and 12 are not on the scale.
    let values = scale(1.0, 5.0, 1.0);
    let found = refused(NumberJob { values, ..job.clone() });
    assert_eq!((found.get("-"), found.get("12"), found.len()), (Some(&0.2), Some(&0.2), 3));
    // If any token ends a number, the refused text after digits is the number itself.
    let job = NumberJob { values: scale(1.0, 3.0, 1.0), terminator: Terminator::Any, ..job };
    assert_eq!(refused(job).get("4"), Some(&0.5));
}
