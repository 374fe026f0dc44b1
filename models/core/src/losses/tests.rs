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
fn a_position_tells_probabilities_expectation_and_mass() {
    let (tokens, logits) = (numbers(), unsure());
    let position = Position::new(&logits, &tokens).unwrap();
    assert_near(position.log_probability(ZERO), 0.2_f64.ln());
    assert_near(position.number_mass(), 0.4);
    assert_near(position.expectation().unwrap(), 0.25 * 4.0 + 0.25);
    assert!(position.log_probability(99).is_infinite());
    for broken in [&[][..], &[f32::NAN, 0.0], &[f32::INFINITY, 0.0], &[f32::NEG_INFINITY]] {
        assert_eq!(Position::new(broken, &tokens).unwrap_err(), LossError::NotADistribution);
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
        (NumberLossKind::WasCdf(Smoothing::NONE), 0.5 + 0.25, 2.0),
        // 1 is nearest (1), 3 costs 1 + 2 * 2 / 3, the farthest 3.
        (NumberLossKind::SquashedWas(Squash::new(3.0).unwrap()), 0.5 + 0.25 * 7.0 / 3.0, 3.0),
    ] {
        assert_near(loss(kind, false, &unsure(), ONE).unwrap(), want);
        assert_near(loss(kind, true, &unsure(), ONE).unwrap(), 0.4 * want + 0.6 * 1.01 * max);
        assert_eq!(loss(kind, false, &unsure(), WORD), None, "a word has no number loss");
    }
    assert_near(loss(NumberLossKind::Huber, false, &unsure(), FOUR).unwrap(), 2.75 - 0.5);
}

#[test]
fn where_no_number_is_possible_the_loss_is_the_largest_and_not_nan() {
    let words = logits([0.0, 0.7, 0.0, 0.0, 0.3]);
    for (kind, max) in [
        (NumberLossKind::Mse, 16.0),
        (NumberLossKind::Was, 4.0),
        (NumberLossKind::WasCdf(Smoothing::NONE), 2.0),
    ] {
        assert_near(loss(kind, false, &words, ONE).unwrap(), max);
        assert_near(loss(kind, true, &words, ONE).unwrap(), 1.01 * max);
    }
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
    let kind = NumberLoss::of(NumberLossKind::WasCdf(Smoothing::NONE));
    let at = |tokens: &NumberTokens| kind.at(&Position::new(&logits, tokens).unwrap(), 0).unwrap();
    assert_near(at(&ones), 1.0);
    // What an unstable sort may make of it.
    assert_near(at(&ones.in_order(&[0, 2, 1])), 2.0);
}

#[test]
fn a_squash_of_two_values_is_one_step_where_the_original_divides_by_zero() {
    let tokens = NumberTokens::new([(0, 3.0), (1, 8.0)]);
    let logits = [0.5_f32.ln(), 0.5_f32.ln()];
    let position = Position::new(&logits, &tokens).unwrap();
    let squash = NumberLossKind::SquashedWas(Squash::new(5.0).unwrap());
    assert_near(NumberLoss::of(squash).at(&position, 0).unwrap(), 0.5);
    for factor in [1.0, 0.5, -2.0, f64::NAN, f64::INFINITY] {
        assert!(Squash::new(factor).is_err(), "{factor}");
    }
}

#[test]
fn gaussian_smoothing_spreads_a_number_label_and_leaves_words_alone() {
    let (tokens, logits) = (numbers(), unsure());
    let position = Position::new(&logits, &tokens).unwrap();
    // Around 1 with sigma 2: 0 is half a deviation away, 4 one and a half.
    let weights = [(-0.125_f64).exp(), 1.0, (-1.125_f64).exp()];
    let total: f64 = weights.iter().sum::<f64>() + 1e-8;
    let want = -(weights[0] * 0.2_f64.ln() + (weights[1] + weights[2]) * 0.1_f64.ln()) / total;
    let smoothing = Smoothing::new(2.0).unwrap();
    assert_near(position.cross_entropy(ONE, smoothing), want);
    assert_near(position.cross_entropy(WORD, smoothing), -0.5_f64.ln());
    assert_near(position.cross_entropy(ONE, Smoothing::NONE), -0.1_f64.ln());
    // CDF of the shares: 0.5, 0.75, 1.
    let target: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
    let want = (0.5 - target[0]).abs() + (0.75 - target[0] - target[1]).abs();
    let kind = NumberLossKind::WasCdf(smoothing);
    assert_near(NumberLoss::of(kind).at(&position, ONE).unwrap(), want);
    for sigma in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(Smoothing::new(sigma).is_err(), "{sigma}");
    }
}

#[test]
fn smoothing_towards_impossible_tokens_is_infinite_and_never_nan() {
    let (tokens, logits) = (numbers(), logits([0.0, 0.5, 0.0, 0.5, 0.0]));
    let position = Position::new(&logits, &tokens).unwrap();
    assert!(position.cross_entropy(ONE, Smoothing::new(1.0).unwrap()).is_infinite());
    // So narrow that 0 and 4 have a share of exactly 0, which costs nothing.
    assert_near(position.cross_entropy(ONE, Smoothing::new(1e-3).unwrap()), -0.5_f64.ln());
}

#[test]
fn a_reduction_weighs_positions_and_is_zero_without_any() {
    let losses = [Some(2.0), None, Some(4.0)];
    let all = |weights: &[f64], reduction| match reduce_weighted(&losses, weights, reduction).unwrap() {
        ReducedLoss::All(loss) => loss,
        ReducedLoss::Each(losses) => panic!("{losses:?}"),
    };
    assert_near(all(&[1.0; 3], Reduction::Mean), 3.0);
    assert_near(all(&[1.0; 3], Reduction::Sum), 6.0);
    assert_near(all(&[1.0, 9.0, 3.0], Reduction::Mean), 14.0 / 4.0);
    assert_near(all(&[1.0, 9.0, 3.0], Reduction::Sum), 14.0);
    assert_near(all(&[0.0, 1.0, 0.0], Reduction::Mean), 0.0);
    let each = reduce_weighted(&losses, &[0.5, 1.0, 1.0], Reduction::None).unwrap();
    assert_eq!(each, ReducedLoss::Each(vec![1.0, 0.0, 4.0]));
    for nothing in [&[][..], &[None]] {
        let ReducedLoss::All(zero) = reduce(nothing, Reduction::Mean) else { panic!("a mean is one value") };
        assert!(zero.abs() <= 0.0 && zero.is_sign_positive());
    }
    assert_eq!(reduce(&losses, Reduction::None), ReducedLoss::Each(vec![2.0, 0.0, 4.0]));
    let infinite = reduce_weighted(&[Some(f64::INFINITY)], &[0.0], Reduction::Sum);
    assert_eq!(infinite.unwrap(), ReducedLoss::All(0.0));
}

#[test]
fn wrong_weights_are_refused() {
    let wrong = |weights: &[f64]| reduce_weighted(&[None, None], weights, Reduction::Sum).unwrap_err();
    assert_eq!(wrong(&[1.0]), LossError::WeightCount { weights: 1, losses: 2 });
    assert_eq!(wrong(&[1.0, -1.0]), LossError::Weight(-1.0));
    assert!(matches!(wrong(&[f64::NAN, 1.0]), LossError::Weight(_)));
}

/// Digits, `.` and words of a target, with what is expected there.
fn digits(target: &str, expected: &[f64]) -> Vec<Digit> {
    let digit = |(label, &expectation): (char, &f64)| {
        let value = label.to_digit(10).map(f64::from);
        Digit { value, expectation, mass: 0.5, is_point: label == '.' }
    };
    target.chars().zip(expected).map(digit).collect()
}

#[test]
fn whole_numbers_have_one_relative_loss_at_their_first_digit() {
    let target = digits("a12.5b7", &[9.0, 1.5, 3.0, 9.0, 4.0, 9.0, 7.0]);
    let parts = NumberLevel::default().losses(&target);
    assert_eq!(
        parts.iter().map(Option::is_some).collect::<Vec<_>>(),
        [false, true, false, false, true, false, true]
    );
    assert_near(parts[1].unwrap(), (18.0 - 12.0) / (18.0 + 12.0));
    assert_near(parts[4].unwrap(), 1.0 / 9.0);
    assert_near(parts[6].unwrap(), 0.0);
    let whole = NumberLevel { float_level: true, reweigh: true, ..NumberLevel::default() }.losses(&target);
    assert_eq!(whole.iter().filter(|loss| loss.is_some()).count(), 2);
    assert_near(whole[1].unwrap(), (184.0 - 125.0) / (184.0 + 125.0) * 0.5 + 1.01 * 0.5);
}

#[test]
fn a_point_belongs_to_a_number_only_between_its_digits() {
    let level = NumberLevel { float_level: true, ..NumberLevel::default() };
    for (target, numbers) in [
        (".5", vec![1]),
        ("5.", vec![0]),
        ("1.2.3", vec![0]),
        ("1..2", vec![0, 3]),
        (".", vec![]),
        ("", vec![]),
    ] {
        let losses = level.losses(&digits(target, &[1.0; 8]));
        let at: Vec<usize> = (0..losses.len()).filter(|&at| losses[at].is_some()).collect();
        assert_eq!(at, numbers, "{target:?}");
    }
}

#[test]
fn digits_beyond_the_longest_number_share_its_first_place() {
    let level = NumberLevel { max_number_length: 2, ..NumberLevel::default() };
    let loss = level.losses(&digits("111", &[2.0, 1.0, 1.0]))[0].unwrap();
    assert_near(loss, (31.0 - 21.0) / (31.0 + 21.0));
}
