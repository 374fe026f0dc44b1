//! Golden values of the Python package, simulated coverage, and edge cases.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// Numbers between 0 and 1 of the generator in the golden script.
struct Congruential(u64);

impl Congruential {
    fn draw(&mut self) -> f64 {
        self.0 = (self.0 * 1_103_515_245 + 12_345) % (1 << 31);
        self.0 as f64 / f64::from(1_u32 << 31)
    }
}

/// One run of `ppi_mean_pointestimate` and `ppi_mean_ci`.
struct Golden {
    seed: u64,
    bias: f64,
    slope: f64,
    noise: f64,
    tuning: f64,
    value: f64,
    low: f64,
    high: f64,
}

/// `ppi-python` 0.2.3 (PyPI) with numpy, 60 labels and 540 other items, `alpha=0.05`. The tuning
/// of the second case is above 1. The package would cut it off at 1, so it was passed as `lam`.
const GOLDEN: [Golden; 2] = [
    Golden {
        seed: 7,
        bias: 2.0,
        slope: 0.8,
        noise: 8.0,
        tuning: 0.5951530566661078,
        value: 5.543169713365675,
        low: 4.938825676612555,
        high: 6.147513750118795,
    },
    Golden {
        seed: 11,
        bias: 4.0,
        slope: 0.3,
        noise: 2.0,
        tuning: 1.9171104997561348,
        value: 5.128566224214628,
        low: 4.687941789957788,
        high: 5.569190658471468,
    },
];

#[test]
fn the_estimate_is_that_of_the_python_package() {
    for Golden { seed, bias, slope, noise, tuning, value, low, high } in GOLDEN {
        let mut generator = Congruential(seed);
        let mut labelled = Vec::new();
        let mut others = Vec::new();
        for index in 0..600 {
            let human = 1.0 + (10.0 * generator.draw()).floor();
            let judge = (bias + slope * human + noise * (generator.draw() - 0.5)).clamp(1.0, 10.0);
            if index < 60 {
                labelled.push(Labelled { human, judge });
            } else {
                others.push(judge);
            }
        }
        let mean = PredictionPowered::new(&labelled, &others).unwrap().mean();
        assert!((mean.tuning - tuning).abs() < 1e-9, "{mean:?}");
        assert!((mean.value - value).abs() < 1e-9, "{mean:?}");
        // The package divides by the number of labels and uses the normal quantile.
        let interval = mean.interval.unwrap();
        let ratio = (interval.high - interval.low) / (high - low);
        assert!((1.0..1.05).contains(&ratio), "{ratio}");
        assert!((f64::midpoint(interval.low, interval.high) - value).abs() < 1e-9);
    }
}

/// Returns the score of a simulated judge. `quality` of the answer and `position` of the item in the data are
/// both from 0 to 1.
type Judge = fn(quality: f64, position: f64, rng: &mut ChaCha8Rng) -> f64;

const REPETITIONS: usize = 2_000;

/// Returns the share of repetitions whose interval contains people's mean, and the share for the judge's own
/// mean and an interval around it.
fn coverage(judge: Judge, labels: usize, others: usize, seed: u64) -> [f64; 2] {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut hits, mut naive_hits) = (0_usize, 0_usize);
    for _ in 0..REPETITIONS {
        let mut labelled = Vec::new();
        let mut unlabelled = Vec::new();
        for index in 0..labels + others {
            // People's scores are skewed: most answers are good.
            let quality = 1.0 - rng.random::<f64>().powi(2);
            let human = 1.0 + (9.0 * quality).round();
            // The labelled items are a random part: their positions are as those of the others.
            let judged = judge(quality, rng.random(), &mut rng);
            if index < labels {
                labelled.push(Labelled { human, judge: judged });
            } else {
                unlabelled.push(judged);
            }
        }
        let interval = PredictionPowered::new(&labelled, &unlabelled).unwrap().mean().interval.unwrap();
        hits += usize::from((interval.low..=interval.high).contains(&TRUE_MEAN));
        let mean = unlabelled.iter().sum::<f64>() / others as f64;
        let squares: f64 = unlabelled.iter().map(|value| (value - mean).powi(2)).sum();
        let half = Z_95 * squares.sqrt() / others as f64;
        naive_hits += usize::from((mean - TRUE_MEAN).abs() <= half);
    }
    [hits, naive_hits].map(|hits| hits as f64 / REPETITIONS as f64)
}

/// The expectation of `1 + round(9 (1 - u²))` for uniform `u`: 1, plus for k from 1 to 9 the probability that
/// 9 (1 - u²) is above k - 1/2.
const TRUE_MEAN: f64 = 7.017_981_963_755_176;

#[test]
fn the_true_mean_of_the_simulation_is_that_of_its_scores() {
    let expected: f64 = 1.0 + (1..=9).map(|k| (1.0 - (f64::from(k) - 0.5) / 9.0).sqrt()).sum::<f64>();
    assert!((expected - TRUE_MEAN).abs() < 1e-12, "{expected:.9}");
}

#[test]
fn intervals_hold_for_biased_skewed_and_drifting_judges() {
    let judges: [(&str, Judge); 5] = [
        ("kind", |quality, _, rng| (3.0 + 8.0 * quality + 2.0 * (rng.random::<f64>() - 0.5)).min(10.0)),
        ("narrow", |quality, _, rng| 6.0 + quality + 0.4 * (rng.random::<f64>() - 0.5)),
        ("skewed", |quality, _, rng| 1.0 + 9.0 * quality.powi(6) * rng.random::<f64>().powf(0.2)),
        ("drifting", |quality, position, rng| 9.0 * quality - 4.0 * position + rng.random::<f64>()),
        ("random", |_, _, rng| 1.0 + 9.0 * rng.random::<f64>()),
    ];
    for (index, (name, judge)) in judges.into_iter().enumerate() {
        for (labels, others) in [(30, 300), (100, 400)] {
            let [corrected, naive] = coverage(judge, labels, others, index as u64);
            assert!((0.93..=0.97).contains(&corrected), "{name} with {labels} labels: {corrected}");
            assert!(naive < 0.6, "{name}: the judge alone covers {naive}");
        }
    }
}

fn labelled(values: &[(f64, f64)]) -> Vec<Labelled> {
    values.iter().map(|&(human, judge)| Labelled { human, judge }).collect()
}

#[test]
fn a_good_judge_is_worth_labels_and_a_bad_one_costs_none() {
    let good = labelled(&[(1.0, 2.1), (2.0, 2.9), (3.0, 4.2), (4.0, 4.8), (5.0, 6.1), (6.0, 7.0)]);
    let others: Vec<f64> = (0..600).map(|index| 2.0 + f64::from(index % 6)).collect();
    let mean = PredictionPowered::new(&good, &others).unwrap().mean();
    assert!(mean.gain.unwrap() > 5.0 && mean.tuning > 0.9, "{mean:?}");
    let constant: Vec<Labelled> = good.iter().map(|item| Labelled { judge: 5.0, ..*item }).collect();
    let mean = PredictionPowered::new(&constant, &[5.0; 600]).unwrap().mean();
    assert_eq!((mean.value, mean.tuning, mean.gain), (3.5, 0.0, Some(1.0)));
    // Student's interval of 1 to 6: 3.5 ± 2.5706 · sqrt(3.5 / 6).
    let interval = mean.interval.unwrap();
    assert!((interval.high - 3.5 - 1.963_3).abs() < 1e-3, "{interval:?}");
}

#[test]
fn too_few_equal_or_complete_labels_have_a_defined_result() {
    let few = labelled(&[(1.0, 2.0), (2.0, 3.0)]);
    assert_eq!(PredictionPowered::new(&few, &[1.0, 2.0]), None);
    let equal = labelled(&[(0.1, 2.0), (0.1, 3.0), (0.1, 4.0), (0.1, 5.0)]);
    let powered = PredictionPowered::new(&equal, &[2.0, 5.0]).unwrap();
    let mean = powered.mean();
    assert!((mean.value - 0.1).abs() < 1e-12);
    assert_eq!((mean.interval, mean.tuning, mean.gain), (None, 0.0, None));
    assert_eq!(powered.labels_needed(1.0), None);
    // With labels of all items the judge adds nothing.
    let all = labelled(&[(1.0, 9.0), (2.0, 8.0), (3.0, 8.0)]);
    let mean = PredictionPowered::new(&all, &[]).unwrap().mean();
    assert_eq!((mean.value, mean.tuning, mean.gain), (2.0, 0.0, Some(1.0)));
}

#[test]
fn the_labels_needed_for_a_width_give_it() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut items = Vec::new();
    for _ in 0..2_000 {
        let human = (10.0 * rng.random::<f64>()).floor();
        items.push(Labelled { human, judge: 0.5 * human + 2.0 * rng.random::<f64>() });
    }
    let with_labels = |labels: usize| {
        let others: Vec<f64> = items[labels..].iter().map(|item| item.judge).collect();
        PredictionPowered::new(&items[..labels], &others).unwrap()
    };
    let pilot = with_labels(200);
    let interval = pilot.mean().interval.unwrap();
    assert!((pilot.width_with(200) / (interval.high - interval.low) - 1.0).abs() < 0.03);
    let needed = pilot.labels_needed(0.4).unwrap();
    assert!(pilot.width_with(needed) <= 0.4 && pilot.width_with(needed - 1) > 0.4, "{needed}");
    let interval = with_labels(needed).mean().interval.unwrap();
    assert!((interval.high - interval.low - 0.4).abs() < 0.04, "{needed}: {interval:?}");
    // Labels of all 2,000 items give 0.25.
    assert_eq!((pilot.labels_needed(0.2), pilot.labels_needed(100.0)), (None, Some(3)));
}
