//! Distributions and their estimates.

use std::collections::HashMap;

use super::distribution::*;
use super::state::{GrammarLimits, PieceEffect, TextState};

pub(super) fn distribution(rows: &[(&str, f64)], invalid: f64, open: f64) -> Distribution {
    let limits = GrammarLimits::new(20, 20, true).unwrap();
    let mut closed = HashMap::new();
    for &(text, probability) in rows {
        let PieceEffect::Continues(state) = TextState::START.read(text, limits) else { panic!("{text}") };
        *closed.entry(state.value().unwrap()).or_default() += probability;
    }
    Distribution::new(&closed, invalid, open)
}

const PLAIN: Estimation = Estimation { trim: 0.005, normalize: true, range: None };

fn assert_close(got: Option<f64>, want: f64) {
    let got = got.unwrap();
    assert!((got - want).abs() < 1e-9, "{got} instead of {want}");
}

#[test]
fn spellings_of_one_value_are_one_leaf() {
    let numbers = distribution(&[("7", 0.2), ("07", 0.1), ("7.0", 0.3), ("-0", 0.1), ("0", 0.1)], 0.2, 0.0);
    let leaves: Vec<_> = numbers.leaves().iter().map(|leaf| (leaf.text.as_str(), leaf.probability)).collect();
    assert_eq!(leaves.len(), 2);
    assert!((leaves[0].1 - 0.2).abs() < 1e-12 && leaves[0].0 == "0", "{leaves:?}");
    assert!((leaves[1].1 - 0.6).abs() < 1e-12 && leaves[1].0 == "7", "{leaves:?}");
}

#[test]
fn values_that_share_an_f64_are_one_leaf_with_the_likelier_text() {
    let numbers = distribution(&[("12345678901234567890", 0.2), ("12345678901234567891", 0.7)], 0.1, 0.0);
    assert_eq!(numbers.leaves().len(), 1);
    assert_eq!(numbers.leaves()[0].text, "12345678901234567891");
    assert!((numbers.mass().closed - 0.9).abs() < 1e-12);
}

#[test]
fn estimates_are_conditional_on_the_closed_mass() {
    let numbers = distribution(&[("10", 0.4), ("20", 0.3), ("-5", 0.1)], 0.15, 0.05);
    assert_close(numbers.mean(&PLAIN), (4.0 + 6.0 - 0.5) / 0.8);
    assert_close(numbers.quantile(0.5), 10.0);
    assert_close(numbers.mode(), 10.0);
    assert_close(numbers.quantile(0.01), -5.0);
    assert_close(numbers.quantile(0.99), 20.0);
    let mean = 9.5 / 0.8;
    let variance =
        (0.4 * (10.0_f64 - mean).powi(2) + 0.3 * (20.0 - mean).powi(2) + 0.1 * (-5.0 - mean).powi(2)) / 0.8;
    assert_close(numbers.std(), variance.sqrt());
}

#[test]
fn a_trimmed_mean_ignores_a_little_mass_on_nonsense() {
    let numbers = distribution(&[("4", 0.5), ("5", 0.499), ("99999999", 0.001)], 0.0, 0.0);
    assert!(numbers.mean(&PLAIN).unwrap() > 1e5);
    assert_close(numbers.trimmed_mean(&PLAIN), (0.495 * 4.0 + 0.495 * 5.0) / 0.99);
    let raw = Estimation { trim: 0.0, normalize: false, range: None };
    let half = distribution(&[("4", 0.25), ("8", 0.25)], 0.5, 0.0);
    assert_close(half.trimmed_mean(&raw), 3.0);
    assert_close(half.mean(&PLAIN), 6.0);
}

#[test]
fn an_average_weighs_every_distribution_alike() {
    let (one, other) =
        (distribution(&[("1", 0.8)], 0.2, 0.0), distribution(&[("1", 0.2), ("3", 0.4)], 0.1, 0.3));
    let average = Distribution::average(&[&one, &other]);
    assert_close(average.most_probable(1).first().map(|leaf| leaf.probability), 0.5);
    let mass = average.mass();
    assert!((mass.closed - 0.7).abs() < 1e-12 && (mass.invalid - 0.15).abs() < 1e-12, "{mass:?}");
    let nothing = Distribution::average(&[]).mass();
    assert!((nothing.invalid - 1.0).abs() < 1e-12 && nothing.closed.abs() < 1e-12);
}

#[test]
fn an_empty_distribution_has_no_estimates() {
    let empty = distribution(&[], 1.0, 0.0);
    for objective in [Objective::Mean, Objective::Median, Objective::Mode, Objective::Quantile(0.9)] {
        assert_eq!(empty.estimate(objective, &PLAIN), None);
    }
    assert_eq!((empty.mean(&PLAIN), empty.std()), (None, None));
}
