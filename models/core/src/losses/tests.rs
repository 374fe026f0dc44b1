//! Losses by hand: three number tokens 0, 1 and 4 and two words, whose probabilities are written down.

use super::*;

/// Ids of the number tokens, in no order of value.
const FOUR: u32 = 0;
const ZERO: u32 = 2;
const ONE: u32 = 3;
const WORD: u32 = 1;

fn numbers() -> NumberTokens {
    NumberTokens::new([(FOUR, 4.0), (ZERO, 0.0), (ONE, 1.0)])
}

fn logits(probabilities: [f64; 5]) -> Vec<f32> {
    probabilities.iter().map(|probability| probability.ln() as f32).collect()
}

/// 4 with 0.1, 0 with 0.2, 1 with 0.1; half of the numbers' mass is on 0.
fn unsure() -> Vec<f32> {
    logits([0.1, 0.5, 0.2, 0.1, 0.1])
}

fn loss(kind: NumberLossKind, reweigh: bool, logits: &[f32], label: u32) -> Option<f64> {
    let tokens = numbers();
    NumberLoss { kind, reweigh }.at(&Position::new(logits, &tokens).unwrap(), label)
}

#[track_caller]
fn assert_near(got: f64, want: f64) {
    assert!((got - want).abs() < 1e-6, "{got} instead of {want}");
}

#[test]
fn a_position_has_probabilities_an_expectation_and_a_mass() {
    let tokens = numbers();
    let logits = unsure();
    let position = Position::new(&logits, &tokens).unwrap();
    assert_near(position.log_probability(ZERO), 0.2_f64.ln());
    assert_near(position.number_mass(), 0.4);
    assert_near(position.expectation().unwrap(), 0.25 * 4.0 + 0.25);
    assert!(position.log_probability(99).is_infinite());
    for broken in [&[][..], &[f32::NAN, 0.0], &[f32::INFINITY, 0.0], &[f32::NEG_INFINITY]] {
        assert!(Position::new(broken, &tokens).is_none());
    }
}

#[test]
fn every_kind_of_loss_is_its_formula() {
    // Label 1; shares: 0 has 0.5, 1 and 4 have 0.25; expectation 1.25; ranks 0, 1, 2.
    for (kind, want, max) in [
        (NumberLossKind::Mse, 0.0625, 16.0),
        (NumberLossKind::Mae, 0.25, 4.0),
        (NumberLossKind::Huber, 0.03125, 3.5),
        (NumberLossKind::Was, 0.5 + 0.75, 4.0),
        // The distances 1, 3 and 4 count as 1, 1 + 2 * 2 / 3 and 3.
        (NumberLossKind::SquashedWas(3.0), 0.5 + 0.25 * 7.0 / 3.0, 3.0),
        (NumberLossKind::WasCdf, 0.5 + 0.25, 2.0),
    ] {
        assert_near(loss(kind, false, &unsure(), ONE).unwrap(), want);
        assert_near(loss(kind, true, &unsure(), ONE).unwrap(), 0.4 * want + 0.6 * 1.01 * max);
        assert_eq!(loss(kind, false, &unsure(), WORD), None, "a word has no number loss");
    }
    assert_near(loss(NumberLossKind::Huber, false, &unsure(), FOUR).unwrap(), 2.75 - 0.5);
}

#[test]
fn without_a_possible_number_the_loss_is_the_largest_and_not_nan() {
    let words = logits([0.0, 0.7, 0.0, 0.0, 0.3]);
    for (kind, max) in
        [(NumberLossKind::Mse, 16.0), (NumberLossKind::Was, 4.0), (NumberLossKind::WasCdf, 2.0)]
    {
        assert_near(loss(kind, false, &words, ONE).unwrap(), max);
        assert_near(loss(kind, true, &words, ONE).unwrap(), 1.01 * max);
    }
}

#[test]
fn squashed_distances_of_two_values_are_1_and_not_nan() {
    let tokens = NumberTokens::new([(0, 2.0), (1, 5.0)]);
    let logits = logits([0.25, 0.75, 0.0, 0.0, 0.0]);
    let position = Position::new(&logits, &tokens).unwrap();
    assert_near(NumberLoss::of(NumberLossKind::SquashedWas(9.0)).at(&position, 0).unwrap(), 0.75);
}

#[test]
fn a_label_that_is_a_digit_is_compared_with_the_digits_alone() {
    // 4 and 1 are digits, 0 is another number; each digit has 0.1 of the probability.
    let tokens = numbers().with_digits(|id| id != ZERO);
    let logits = unsure();
    let position = Position::new(&logits, &tokens).unwrap();
    let score = position.digit(ONE).unwrap();
    assert_near(score.digit, 1.0);
    assert_near(score.expected.unwrap(), 2.5);
    assert_near(score.mass, 0.2);
    assert_eq!((position.digit(ZERO), position.digit(WORD)), (None, None));
}

#[test]
fn probabilities_too_small_for_single_precision_still_have_an_expectation() {
    let tiny = [-200.0, 0.0, -200.0, -200.0, 0.0];
    assert_near(loss(NumberLossKind::Mae, false, &tiny, ONE).unwrap(), 2.0 / 3.0);
}

#[test]
fn the_rank_distance_depends_on_the_order_of_equal_values_which_is_by_id() {
    let ones = NumberTokens::new([(0, 1.0), (1, 1.0), (2, 1.0)]);
    let logits = logits([0.0, 1.0, 0.0, 0.0, 0.0]);
    let kind = NumberLoss::of(NumberLossKind::WasCdf);
    let at = |tokens: &NumberTokens| kind.at(&Position::new(&logits, tokens).unwrap(), 0).unwrap();
    assert_near(at(&ones), 1.0);
    // A possible result of an unstable sort.
    assert_near(at(&ones.ranked_by(|id, _| [0.0, 2.0, 1.0][id as usize])), 2.0);
}

#[test]
fn a_reduction_counts_positions_with_a_loss_and_is_zero_without_any() {
    let losses = [Some(2.0), None, Some(4.0)];
    assert_eq!(reduce(&losses, Reduction::Mean), ReducedLoss::All(3.0));
    assert_eq!(reduce(&losses, Reduction::Sum), ReducedLoss::All(6.0));
    assert_eq!(reduce(&losses, Reduction::None), ReducedLoss::Each(vec![2.0, 0.0, 4.0]));
    for nothing in [&[][..], &[None]] {
        let ReducedLoss::All(zero) = reduce(nothing, Reduction::Mean) else { panic!("a mean is one value") };
        assert!(zero.abs() <= 0.0 && zero.is_sign_positive());
    }
}

/// The worked example of `docs/losses.md`: 0, 1 and 2 are true with 0.5, 0.3 and 0.2, and NTL-WAS has the
/// weight 1. With `x = mu + 0.7`, the sum of `p / (mu + distance)` is 1 if `x^2 - 0.4 x - 0.48 = 0`.
#[test]
fn cross_entropy_with_ntl_was_is_lowest_at_another_distribution_than_the_true_one() {
    let truth = [0.5, 0.3, 0.2];
    let x = 0.2 + 0.52_f64.sqrt();
    let optimum = [0.5 / x, 0.3 / x, 0.2 / (x + 0.6)];
    assert_near(optimum.iter().sum(), 1.0);
    assert!(optimum[0] > 0.54 && optimum[2] < 0.14, "{optimum:?}");
    let tokens = NumberTokens::new([(0, 0.0), (1, 1.0), (2, 2.0)]);
    let expected = |probabilities: [f64; 3]| -> f64 {
        let logits = probabilities.map(|probability| probability.ln() as f32);
        let position = Position::new(&logits, &tokens).unwrap();
        let loss = |label: u32| {
            let number_loss = NumberLoss::of(NumberLossKind::Was).at(&position, label).unwrap();
            truth[label as usize] * (number_loss - position.log_probability(label))
        };
        (0..3).map(loss).sum()
    };
    let least = expected(optimum);
    assert!(least < expected(truth) - 0.02, "{least}, {}", expected(truth));
    for step in [0.001, 0.01, 0.1] {
        for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            let mut other = optimum;
            other[from] -= step;
            other[to] += step;
            assert!(expected(other) > least, "{other:?}: {} is not above {least}", expected(other));
        }
    }
}
