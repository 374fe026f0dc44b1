//! Properties of the tests of differences: their error rates, and the differences that they find.

use super::*;

/// The mean of a column of each side.
fn means(a: &[f64], b: &[f64]) -> Contrast<'static> {
    let mean =
        |values: Vec<f64>| -> Weighted<'static> { Box::new(move |weights| mean_in_lanes(&values, weights)) };
    Contrast {
        a: mean(a.to_vec()),
        b: mean(b.to_vec()),
        both: mean([a, b].concat()),
        spread: Spread::of_means(a, b),
    }
}

/// Tests A, which is 0 everywhere, against B, which is these differences.
fn test(differences: &[f64], bootstrap: Bootstrap) -> Option<DifferenceTest> {
    let a = vec![0.0; differences.len()];
    let differing: Vec<usize> =
        (0..differences.len()).filter(|&index| differences[index].abs() > 0.0).collect();
    test_contrasts(&[means(&a, differences)], differences.len(), &differing, bootstrap)[0]
}

const MANY: Bootstrap = Bootstrap { resamples: 20_000, seed: 7 };
const FEW: Bootstrap = Bootstrap { resamples: 99, seed: 7 };

fn p(differences: &[f64]) -> f64 {
    test(differences, MANY).unwrap().p.value
}

/// Random draws for simulations.
struct Draws(ChaCha8Rng);

impl Draws {
    fn uniform(&mut self) -> f64 {
        // Never returns 0, whose logarithm is infinite.
        1.0 - self.0.random::<f64>()
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    fn exponential(&mut self) -> f64 {
        -self.uniform().ln()
    }

    fn lognormal(&mut self) -> f64 {
        self.normal().exp()
    }
}

/// Returns the share of simulated sets of `n` differences for which p is at most 5%.
fn rejected(n: usize, sets: u64, difference: impl Fn(&mut Draws) -> f64 + Sync) -> f64 {
    let is_rejected = |set: u64| {
        let mut draws = Draws(ChaCha8Rng::seed_from_u64(1_000 * n as u64 + 1_000_000 * set));
        let differences: Vec<f64> = (0..n).map(|_| difference(&mut draws)).collect();
        test(&differences, FEW).unwrap().p.value <= LEVEL
    };
    let rejected = (0..sets).into_par_iter().filter(|&set| is_rejected(set)).count();
    rejected as f64 / sets as f64
}

/// Two sides that only differ by chance. The bound allows for 2.6 standard errors of a simulated share.
#[test]
fn exchangeable_sides_are_called_different_in_at_most_a_twentieth_of_cases() {
    type Difference = fn(&mut Draws) -> f64;
    let distributions: [(&str, Difference); 5] = [
        ("normal", |draws| draws.normal() - draws.normal()),
        ("exponential errors", |draws| draws.exponential() - draws.exponential()),
        ("lognormal errors", |draws| draws.lognormal().powi(2) - draws.lognormal().powi(2)),
        ("t with two degrees of freedom", |draws| draws.normal() / draws.exponential().sqrt()),
        ("exact or not", |draws| {
            let [a, b] = [draws.uniform(), draws.uniform()].map(|draw| f64::from(u8::from(draw < 0.3)));
            b - a
        }),
    ];
    for (name, difference) in distributions {
        for (n, sets) in [(6, 400), (10, 400), (25, 200), (100, 80)] {
            let share = rejected(n, sets, difference);
            let error = (LEVEL * (1.0 - LEVEL) / sets as f64).sqrt();
            assert!(share <= LEVEL + 2.6 * error, "{name}, n = {n}: {share}");
        }
    }
}

/// B is mostly better and rarely much worse, but not on average. The sides therefore cannot be exchanged, and
/// the bootstrap has to hold the level. Over 2,000 sets it rejects 5%, 5%, 4% and 4% of exponential
/// differences and 9%, 8%, 6% and 4% of lognormal ones. Percentiles reject 13%, 9%, 7% and 5%, and 21%, 15%,
/// 12% and 6%. The bounds allow for about three standard errors, because this test has fewer sets.
#[test]
fn skewed_differences_of_mean_zero_are_rarely_called_a_difference() {
    for (n, sets, bounds) in
        [(10, 400, [0.09, 0.13]), (20, 200, [0.09, 0.13]), (50, 100, [0.10, 0.13]), (300, 40, [0.13, 0.13])]
    {
        let exponential = rejected(n, sets, |draws| draws.exponential() - 1.0);
        assert!(exponential <= bounds[0], "exponential, n = {n}: {exponential}");
        let lognormal = rejected(n, sets, |draws| draws.lognormal() - 0.5_f64.exp());
        assert!(lognormal <= bounds[1], "lognormal, n = {n}: {lognormal}");
    }
}

#[test]
fn true_differences_are_found() {
    // Differences are in standard deviations. A t-test finds about 0.8 of the last three.
    for (n, shift, least) in [(6, 2.0, 0.6), (12, 0.9, 0.6), (34, 0.5, 0.6), (150, 0.25, 0.6)] {
        let share = rejected(n, 100, |draws| draws.normal() + shift);
        assert!(share >= least, "n = {n}: {share}");
    }
}

#[test]
fn fewer_items_than_the_smallest_p_value_needs_are_not_tested() {
    // All items are on one side: 2 of the 2^n swaps are as extreme.
    let smallest = |n: usize| 2.0 / 2.0_f64.powi(n as i32);
    assert!(smallest(ITEMS_MIN) <= LEVEL && smallest(ITEMS_MIN - 1) > LEVEL);
    for n in 0..ITEMS_MIN {
        assert_eq!(test(&vec![1.0; n], MANY), None, "{n}");
    }
    assert!((p(&[1.0, 2.0, 3.0, 1.5, 2.5, 2.0]) - smallest(6)).abs() < 1e-12);
}

/// Every sign of (9, 3, 4, -1, 2, 5, 7, 0), with and without the item that does not differ.
#[test]
fn all_swaps_of_a_few_items_are_counted_and_ties_halve_nothing() {
    let differences = [9.0, 3.0, 4.0, -1.0, 2.0, 5.0, 7.0, 0.0];
    let total: f64 = differences.iter().sum();
    let flipped = |signs: u32| -> f64 {
        differences
            .iter()
            .enumerate()
            .map(|(bit, value)| if signs >> bit & 1 == 1 { -value } else { *value })
            .sum()
    };
    let extreme = (0..256).filter(|&signs| flipped(signs).abs() >= total.abs()).count();
    let contrast = [means(&[0.0; 8], &differences)];
    let swaps = Swaps { n: 8, differing: &[0, 1, 2, 3, 4, 5, 6], bootstrap: MANY };
    let exact = swaps.test(&contrast)[0];
    assert!((exact.value - extreme as f64 / 256.0).abs() < 1e-12 && !exact.is_bound, "{exact:?}");
    let drawn = Swaps { bootstrap: Bootstrap { resamples: 63, ..MANY }, ..swaps };
    assert_eq!((swaps.enumerated(), drawn.enumerated()), (Some(64), None));
}

#[test]
fn random_swaps_agree_with_all_of_them() {
    let differences = [9.0, 3.0, 4.0, -1.0, -2.0, 5.0, 7.0, -6.0, 2.0, 1.0, 3.0, -4.0];
    let contrast = [means(&[0.0; 12], &differences)];
    let differing: Vec<usize> = (0..12).collect();
    let with = |resamples| {
        let bootstrap = Bootstrap { resamples, ..MANY };
        Swaps { n: 12, differing: &differing, bootstrap }.test(&contrast)[0].value
    };
    // 2^11 swaps. 2,000 random ones have a standard error of 0.008.
    assert!((with(2_048) - with(2_000)).abs() < 0.03, "{} {}", with(2_048), with(2_000));
}

#[test]
fn a_p_value_that_no_resample_reaches_is_a_bound() {
    let sure: Vec<f64> = (0..40).map(|index| 10.0 + f64::from(index % 7)).collect();
    let found = test(&sure, FEW).unwrap();
    assert!(found.p.is_bound && (found.p.value - 2.0 / 100.0).abs() < 1e-12, "{found:?}");
    assert!(found.interval.low > 11.0 && found.interval.high < 14.0, "{found:?}");
    let constant = test(&[2.0; 40], FEW).unwrap();
    assert_eq!((constant.interval, constant.p.is_bound), (Interval { low: 2.0, high: 2.0 }, true));
}

#[test]
fn equal_sides_have_a_p_value_of_one() {
    let none = test(&[0.0; 30], FEW).unwrap();
    assert!((none.p.value - 1.0).abs() < 1e-12 && !none.p.is_bound && !none.interval.excludes_zero());
}

/// Nine of ten items are on one side. Resamples without the tenth do not vary.
#[test]
fn nearly_constant_differences_are_found() {
    assert!(p(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]) < 0.01);
    assert!(p(&[2.0, 2.0, 2.0, 2.0, 2.0, 1.0]) < 0.04);
}

#[test]
fn the_interval_excludes_zero_exactly_if_p_is_small() {
    for set in 0..200 {
        let mut draws = Draws(ChaCha8Rng::seed_from_u64(set));
        let differences: Vec<f64> = (0..15).map(|_| draws.exponential() - 0.4).collect();
        let found = test(&differences, FEW).unwrap();
        assert_eq!(found.p.value <= LEVEL, found.interval.excludes_zero(), "{found:?}");
    }
}

/// Two sides of zeros and ones, of which one side alone is 1 on these numbers of items.
fn shares(n: usize, only_a: usize, only_b: usize) -> DifferenceTest {
    let side = |ones: std::ops::Range<usize>| -> Vec<f64> {
        (0..n).map(|item| f64::from(u8::from(ones.contains(&item)))).collect()
    };
    let a = side(0..only_a);
    let b = side(only_a..only_a + only_b);
    let differing: Vec<usize> = (0..only_a + only_b).collect();
    test_contrasts(&[means(&a, &b)], n, &differing, MANY)[0].unwrap()
}

/// The bootstrap excludes 0 in 8% to 19% of such runs if few items differ.
#[test]
fn the_interval_of_an_accuracy_difference_agrees_with_mcnemars_test() {
    for (n, only_a, only_b) in [
        (100, 0, 3),
        (100, 0, 5),
        (100, 0, 6),
        (100, 1, 7),
        (100, 1, 8),
        (20, 2, 9),
        (20, 2, 10),
        (300, 4, 9),
    ] {
        let found = shares(n, only_a, only_b);
        let exact = crate::stats::paired::mcnemar(only_a, only_b).p;
        assert!((found.p.value - exact).abs() < 1e-9, "{only_a} {only_b}: {found:?}, not {exact}");
        assert_eq!(exact <= LEVEL, found.interval.excludes_zero(), "{only_a} {only_b}: {found:?}");
        let observed = (only_b as f64 - only_a as f64) / n as f64;
        assert!(found.interval.low <= observed && observed <= found.interval.high, "{found:?}");
    }
    // By hand: 1/102 and 7/102, half of the interval 1.96 * sqrt((8/102 - (6/102)^2) / 102).
    let found = shares(100, 0, 6).interval;
    assert!((found.low - 0.00571).abs() < 1e-4 && (found.high - 0.11194).abs() < 1e-4, "{found:?}");
}

/// Both sides are right on 90% of the items. The interval of the true difference of 0.1 is tested as well.
#[test]
fn intervals_of_accuracy_differences_cover_the_truth() {
    for (n, [only_a, only_b]) in
        [(20, [0.05, 0.05]), (50, [0.05, 0.05]), (100, [0.02, 0.12]), (20, [0.05, 0.15])]
    {
        let covers = |set: u64| {
            let mut draws = Draws(ChaCha8Rng::seed_from_u64(7_000_000 + 1_000 * n as u64 + set));
            let mut counts = OneSided { only_a: 0, only_b: 0 };
            for _ in 0..n {
                let draw = draws.uniform();
                counts.only_a += usize::from(draw < only_a);
                counts.only_b += usize::from(draw > 1.0 - only_b);
            }
            let Interval { low, high } = counts.interval(n, Z_95);
            (low..=high).contains(&(only_b - only_a))
        };
        let covered = (0..2_000).filter(|&set| covers(set)).count() as f64 / 2_000.0;
        assert!(covered > 0.94, "n = {n}: {covered}");
    }
}

/// `x = [((7 * i) % 31) / 10 - 1 for i in range(200)]` has a mean of 0.497 with a standard error of 0.0634,
/// and hardly any skewness.
#[test]
fn the_interval_of_a_mean_of_many_items_is_the_normal_one() {
    let x: Vec<f64> = (0..200).map(|i| f64::from((7 * i) % 31) / 10.0 - 1.0).collect();
    let found = test(&x, MANY).unwrap();
    assert!((found.interval.low - 0.372).abs() < 0.006, "{found:?}");
    assert!((found.interval.high - 0.622).abs() < 0.006, "{found:?}");
}

#[test]
fn a_statistic_that_most_resamples_lack_is_not_tested() {
    let lacking = || -> Weighted<'static> {
        Box::new(|weights| weights.iter().all(|weight| *weight > 0.0).then_some(1.0))
    };
    let contrast = Contrast { a: lacking(), b: lacking(), both: lacking(), spread: Spread::Percentiles };
    assert_eq!(test_contrasts(&[contrast], 9, &[], FEW), [None]);
}
