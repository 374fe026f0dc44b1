//! How often bounds contain the truth, over many repetitions of sampling from known distributions.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::looks::Looks;
use super::super::options::{OptionReading, OptionSamples};
use super::*;
use crate::numbers::{GrammarLimits, NumberRules, NumberValues, Terminator};

const REPETITIONS: usize = 2000;

/// The smallest share of 2,000 repetitions that a probability of 0.95 misses less than once in 1,000 tests:
/// 0.95 minus 3.1 standard deviations.
const COVERAGE_MIN: f64 = 0.935;

/// Answers with their probabilities. The answer `x` is not a number.
struct Truth {
    name: &'static str,
    answers: &'static [(&'static str, f64)],
    range: Interval,
}

const TRUTHS: [Truth; 4] = [
    Truth {
        name: "rating",
        answers: &[("1", 0.02), ("2", 0.08), ("3", 0.2), ("4", 0.5), ("5", 0.15), ("x", 0.05)],
        range: Interval { low: 1.0, high: 5.0 },
    },
    Truth {
        name: "nearly certain",
        answers: &[("7", 0.985), ("0", 0.015)],
        range: Interval { low: 0.0, high: 10.0 },
    },
    Truth {
        name: "two ends",
        answers: &[("0", 0.45), ("100", 0.55)],
        range: Interval { low: 0.0, high: 100.0 },
    },
    Truth {
        name: "rarely a number",
        answers: &[("1.5", 0.1), ("2.5", 0.1), ("3", 0.05), ("x", 0.75)],
        range: Interval { low: 0.0, high: 4.0 },
    },
];

impl Truth {
    fn draw(&self, rng: &mut ChaCha8Rng) -> NumberReading {
        let point: f64 = rng.random();
        let mut below = 0.0;
        let mut drawn = "x";
        for (answer, probability) in self.answers {
            below += probability;
            if point < below {
                drawn = answer;
                break;
            }
        }
        read(drawn)
    }

    /// The distribution itself.
    fn distribution(&self) -> Distribution {
        let mut closed = HashMap::new();
        let mut invalid = 0.0;
        for &(answer, probability) in self.answers {
            match read(answer) {
                NumberReading::Number(value) => *closed.entry(value).or_default() += probability,
                _ => invalid += probability,
            }
        }
        Distribution::new(&closed, invalid, 0.0)
    }

    fn estimation(&self, trim: f64) -> Estimation {
        Estimation { trim, normalize: true, range: Some(self.range) }
    }
}

fn read(answer: &str) -> NumberReading {
    let limits = GrammarLimits::default();
    NumberRules::of_answers(limits, Terminator::Any, NumberValues::All).read_answer(answer, false)
}

fn contains(bounds: Option<Interval>, truth: f64) -> bool {
    bounds.is_none_or(|bounds| bounds.low - 1e-9 <= truth && truth <= bounds.high + 1e-9)
}

/// Counts repetitions in which each of several bounds holds.
#[derive(Default)]
struct Coverage(std::collections::BTreeMap<String, usize>);

impl Coverage {
    fn count(&mut self, name: String, holds: bool) {
        *self.0.entry(name).or_default() += usize::from(holds);
    }

    fn assert(self, of: &str) {
        assert!(!self.0.is_empty());
        for (name, holds) in self.0 {
            let share = holds as f64 / REPETITIONS as f64;
            assert!(share >= COVERAGE_MIN, "{of}: the bounds of {name} hold in {share}");
        }
    }
}

/// Counts which bounds hold.
fn check(coverage: &mut Coverage, truth: &Truth, exact: &Distribution, samples: &NumberSamples) {
    for objective in [Objective::Median, Objective::Quantile(0.1), Objective::Quantile(0.9), Objective::Mode]
    {
        let estimation = truth.estimation(0.0);
        let want = exact.estimate(objective, &estimation).unwrap();
        coverage
            .count(format!("{objective:?}"), contains(samples.estimate_bounds(objective, &estimation), want));
    }
    for trim in [0.0, 0.005, 0.2] {
        let estimation = truth.estimation(trim);
        for objective in [Objective::Mean, Objective::Auto] {
            let want = exact.estimate(objective, &estimation).unwrap();
            let bounds = samples.estimate_bounds(objective, &estimation);
            coverage.count(format!("{objective:?} with trim {trim}"), contains(bounds, want));
        }
        let anywhere = Estimation { range: None, ..estimation };
        let bounds = samples.estimate_bounds(Objective::Mean, &anywhere);
        let want = exact.estimate(Objective::Mean, &anywhere).unwrap();
        coverage.count(format!("the mean without a range and trim {trim}"), contains(bounds, want));
    }
    for leaf in exact.leaves() {
        let bounds = Some(samples.probability_bounds(leaf.value));
        coverage.count(format!("the probability of {}", leaf.text), contains(bounds, leaf.probability));
    }
}

#[test]
fn every_bound_holds_in_95_of_100_repetitions_for_any_number_of_samples() {
    for truth in &TRUTHS {
        let exact = truth.distribution();
        for count in [16, 64, 256] {
            let look = Looks::once(count, 1).iter().next().unwrap();
            let mut rng = ChaCha8Rng::seed_from_u64(count as u64);
            let mut coverage = Coverage::default();
            for _ in 0..REPETITIONS {
                let readings: Vec<NumberReading> = (0..count).map(|_| truth.draw(&mut rng)).collect();
                check(&mut coverage, truth, &exact, &NumberSamples::new(&readings, look).0);
            }
            coverage.assert(&format!("{} with {count} samples", truth.name));
        }
    }
}

#[test]
fn bounds_hold_if_sampling_stops_as_soon_as_they_are_narrow() {
    for truth in &TRUTHS {
        let exact = truth.distribution();
        for (objective, width) in [
            (Objective::Mean, 0.25),
            (Objective::Median, 0.2),
            (Objective::Mean, 0.1),
            (Objective::Mode, 0.0),
        ] {
            let mut rng = ChaCha8Rng::seed_from_u64(7);
            let mut coverage = Coverage::default();
            let mut early = 0;
            for _ in 0..REPETITIONS {
                let mut readings = Vec::new();
                let mut found = None;
                for look in Looks::doubling(256).iter() {
                    readings.resize_with(look.samples, || truth.draw(&mut rng));
                    let samples = NumberSamples::new(&readings, look).0;
                    let bounds = samples.estimate_bounds(objective, &truth.estimation(0.0));
                    let range = truth.range.high - truth.range.low;
                    let is_narrow = bounds.is_some_and(|bounds| bounds.high - bounds.low <= width * range);
                    early += usize::from(is_narrow && look.samples < 256);
                    found = Some(samples);
                    if is_narrow {
                        break;
                    }
                }
                check(&mut coverage, truth, &exact, &found.unwrap());
            }
            assert!(truth.name != "nearly certain" || early > 0, "{objective:?}: no repetition ended early");
            coverage.assert(&format!("{} until {objective:?} is known within {width}", truth.name));
        }
    }
}

#[test]
fn bounds_hold_whatever_the_answers_that_were_cut_would_have_been() {
    let truth = &TRUTHS[0];
    let exact = truth.distribution();
    let look = Looks::once(64, 1).iter().next().unwrap();
    // Answers are cut because of their length, which can depend on the number.
    for cut in ["1", "4", "5", "x"] {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut coverage = Coverage::default();
        for _ in 0..REPETITIONS {
            let readings: Vec<NumberReading> = (0..64)
                .map(|_| match truth.draw(&mut rng) {
                    drawn if drawn == read(cut) && rng.random::<f64>() < 0.5 => NumberReading::Open,
                    drawn => drawn,
                })
                .collect();
            check(&mut coverage, truth, &exact, &NumberSamples::new(&readings, look).0);
        }
        coverage.assert(&format!("cut answers of {cut}"));
    }
}

#[test]
fn bounds_of_options_hold_and_those_of_an_average_over_orders_do() {
    let probabilities = [[0.6, 0.3, 0.05], [0.2, 0.7, 0.0]];
    for count in [16, 64, 256] {
        let mut rng = ChaCha8Rng::seed_from_u64(count);
        let look = Looks::once(count as usize, 2).iter().next().unwrap();
        let mut coverage = Coverage::default();
        for _ in 0..REPETITIONS {
            let mut average = [Interval { low: 0.0, high: 0.0 }; 4];
            for order in probabilities {
                let readings: Vec<OptionReading> = (0..count)
                    .map(|_| {
                        let point: f64 = rng.random();
                        let mut below = 0.0;
                        for (index, probability) in order.iter().enumerate() {
                            below += probability;
                            if point < below {
                                return OptionReading::Option(index);
                            }
                        }
                        OptionReading::Invalid
                    })
                    .collect();
                let samples = OptionSamples::new(&readings, 3, look);
                let all = samples.probability_bounds().into_iter().chain([samples.expected_index_bounds()]);
                for (average, own) in average.iter_mut().zip(all) {
                    average.low += own.low / 2.0;
                    average.high += own.high / 2.0;
                }
            }
            let mut truth = [0.0; 4];
            for order in probabilities {
                let total: f64 = order.iter().sum();
                for (index, probability) in order.iter().enumerate() {
                    truth[index] += probability / total / 2.0;
                    truth[3] += index as f64 * probability / total / 2.0;
                }
            }
            for (index, (bounds, truth)) in average.into_iter().zip(truth).enumerate() {
                coverage.count(index.to_string(), contains(Some(bounds), truth));
            }
        }
        coverage.assert(&format!("{count} samples"));
    }
}

#[test]
fn without_numbers_nothing_is_known() {
    let look = Looks::once(4, 1).iter().next().unwrap();
    let (samples, distribution) = NumberSamples::new(&[NumberReading::Invalid; 4], look);
    assert_eq!((samples.samples(), distribution.mass().invalid), (4, 1.0));
    let range = Some(Interval { low: 0.0, high: 1.0 });
    let estimation = Estimation { trim: 0.0, normalize: true, range };
    for objective in [Objective::Mean, Objective::Median, Objective::Mode, Objective::Auto] {
        assert_eq!(samples.estimate_bounds(objective, &estimation), None);
    }
    let raw = Estimation { normalize: false, ..estimation };
    let (samples, _) = NumberSamples::new(&[read("1"); 4], look);
    assert_eq!(samples.mean_bounds(&raw), None, "a raw sum is not bounded");
    assert!(samples.mean_bounds(&estimation).is_some());
}
