//! From the closed and open mass of options to probabilities, bounds and confidence.
//!
//! Invariant: every figure is finite, and probabilities add up to 1.

use ntl_core::contract::OptionsOutcome;
use ntl_core::numbers::{Interval, Mass};

/// Minimum of the closed and open mass together of labels, predicates and numbers. Below it, the model cannot
/// answer the question: a softmax never reaches 0, and ratios of such masses are noise.
pub(super) const MASS_MIN: f64 = 1e-30;

/// The figures of one question, averaged over the orders of its options.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OptionFigures {
    /// Before normalisation.
    pub(super) mass: Mass,
    /// `None` if the model writes none of the options.
    pub(super) probabilities: Option<Vec<f64>>,
    pub(super) bounds: Vec<Interval>,
    /// The bounds of the expected index.
    pub(super) score: Interval,
    /// Whether the prompt could not list the options.
    pub(super) is_unlisted: bool,
    /// Number of answers that were sampled, if they were.
    pub(super) samples: Option<usize>,
}

impl OptionFigures {
    /// Orders in which the model writes none of the options count in the bounds only.
    /// With less closed and open mass than `mass_min`, the model writes none of them.
    pub(super) fn average(outcomes: &[OptionsOutcome], options: usize, mass_min: f64) -> Self {
        let share = 1.0 / outcomes.len().max(1) as f64;
        let mut mass = Mass { closed: 0.0, invalid: 0.0, open: 0.0 };
        let mut bounds = vec![Interval { low: 0.0, high: 0.0 }; options];
        let mut score = Interval { low: 0.0, high: 0.0 };
        let mut sums = vec![0.0; options];
        let mut answered = 0;
        let mut samples = None;
        for outcome in outcomes {
            if let Some(answers) = &outcome.answers {
                *samples.get_or_insert(0) += answers.samples();
            }
            let own = outcome.mass();
            mass.open += own.open * share;
            let can_answer = own.closed + own.open >= mass_min;
            let Some(probabilities) = can_answer.then(|| outcome.probabilities()).flatten() else {
                mass.invalid += (own.closed + own.invalid) * share;
                bounds.iter_mut().for_each(|bounds| bounds.high += share);
                score.high += options.saturating_sub(1) as f64 * share;
                continue;
            };
            answered += 1;
            mass.closed += own.closed * share;
            mass.invalid += own.invalid * share;
            for (bounds, own) in bounds.iter_mut().zip(outcome.bounds()) {
                bounds.low += own.low * share;
                bounds.high += own.high * share;
            }
            let own = outcome.expected_index_bounds();
            score.low += own.low * share;
            score.high += own.high * share;
            for (sum, own) in sums.iter_mut().zip(probabilities) {
                *sum += own;
            }
        }
        let probabilities =
            (answered > 0).then(|| sums.into_iter().map(|sum| sum / f64::from(answered)).collect());
        Self { mass, probabilities, bounds, score, is_unlisted: false, samples }
    }

    /// A remark about the answer.
    pub(super) fn note(&self) -> Option<String> {
        const UNLISTED: &str = "the options do not fit into a prompt of this model: it does not list them, and their texts are read";
        self.is_unlisted.then(|| UNLISTED.to_owned())
    }

    /// The probabilities; equal ones if the model writes none of the options.
    pub(super) fn or_uniform(&self) -> Vec<f64> {
        let options = self.bounds.len();
        self.probabilities.clone().unwrap_or_else(|| vec![1.0 / options as f64; options])
    }
}

/// The most probable index. Ties go to the lowest one.
pub(super) fn best(probabilities: &[f64]) -> usize {
    let mut best = 0;
    for (index, probability) in probabilities.iter().enumerate() {
        if *probability > probabilities[best] {
            best = index;
        }
    }
    best
}

/// The expected index.
pub(super) fn expected_index(probabilities: &[f64]) -> f64 {
    probabilities.iter().enumerate().map(|(index, probability)| index as f64 * probability).sum()
}

/// TypeSafe's confidence of a choice: 0 if all options are equally probable, 1 if one is certain.
pub(super) fn choice_confidence(probabilities: &[f64]) -> f64 {
    let n = probabilities.len() as f64;
    if probabilities.len() < 2 {
        return 1.0;
    }
    ((probabilities[best(probabilities)] - 1.0 / n) / (1.0 - 1.0 / n)).clamp(0.0, 1.0)
}

/// TypeSafe's confidence of a score: 1 minus the mean distance from the most probable level, as a share of
/// the mean distance of equally probable levels from their middle.
pub(super) fn score_confidence(probabilities: &[f64]) -> f64 {
    let n = probabilities.len() as f64;
    if probabilities.len() < 2 {
        return 1.0;
    }
    let mode = best(probabilities) as f64;
    let middle = (n - 1.0) / 2.0;
    let mut distance = 0.0;
    let mut uniform = 0.0;
    for (index, probability) in probabilities.iter().enumerate() {
        distance += probability * (index as f64 - mode).abs();
        uniform += (index as f64 - middle).abs() / n;
    }
    (1.0 - distance / uniform).clamp(0.0, 1.0)
}

/// Marks the most probable options that together have this probability.
pub(super) fn most_probable(probabilities: &[f64], coverage: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
    let mut members = vec![false; probabilities.len()];
    let mut sum = 0.0;
    for index in order {
        members[index] = true;
        sum += probabilities[index];
        if sum >= coverage {
            break;
        }
    }
    members
}

/// Marks the options with at least this probability, and the most probable one in any case.
pub(super) fn above(probabilities: &[f64], least: f64) -> Vec<bool> {
    let mut members: Vec<bool> = probabilities.iter().map(|probability| *probability >= least).collect();
    members[best(probabilities)] = true;
    members
}

/// The smallest index up to which the probabilities add up to `q`.
pub(super) fn quantile(probabilities: &[f64], q: f64) -> usize {
    let mut sum = 0.0;
    for (index, probability) in probabilities.iter().enumerate() {
        sum += probability;
        if sum >= q {
            return index;
        }
    }
    probabilities.len().saturating_sub(1)
}

/// The ends of an interval as a response shows them.
pub(super) fn ends(interval: Interval) -> [f64; 2] {
    [interval.low, interval.high]
}

#[cfg(test)]
mod tests {
    use ntl_core::contract::OpenMass;

    use super::*;

    #[test]
    fn confidence_and_score_have_the_values_of_the_reference_package() {
        for (probabilities, choice, score, of_score) in [
            (&[0.6, 0.3, 0.1][..], 0.4, None, None),
            (&[0.9, 0.1], 0.8, None, None),
            (&[0.05, 0.1, 0.2, 0.4, 0.25], 0.25, Some(2.7), Some(1.0 / 3.0)),
            (&[0.1, 0.8, 0.1], 0.7, Some(1.0), Some(0.7)),
            (&[0.5, 0.0, 0.0, 0.0, 0.5], 0.375, Some(2.0), Some(0.0)),
            (&[0.4, 0.2, 0.4], 0.1, Some(1.0), Some(0.0)),
            (&[1.0], 1.0, Some(0.0), Some(1.0)),
        ] {
            let near =
                |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{probabilities:?} {got} {want}");
            near(choice_confidence(probabilities), choice);
            if let Some(score) = score {
                near(expected_index(probabilities), score);
            }
            if let Some(of_score) = of_score {
                near(score_confidence(probabilities), of_score);
            }
        }
    }

    #[test]
    fn orders_are_averaged_and_an_order_without_options_widens_the_bounds() {
        let outcome = |closed: [f64; 2], open: f64| OptionsOutcome {
            closed: closed.into(),
            open: vec![OpenMass { mass: open, options: [0, 1].into() }],
            nodes: 1,
            answers: None,
        };
        let both = OptionFigures::average(&[outcome([0.6, 0.2], 0.0), outcome([0.2, 0.6], 0.0)], 2, MASS_MIN);
        assert!(both.or_uniform().iter().all(|probability| (probability - 0.5).abs() < 1e-12), "{both:?}");
        assert!((both.mass.closed - 0.8).abs() < 1e-12);
        let half = OptionFigures::average(&[outcome([0.6, 0.2], 0.0), outcome([0.0, 0.0], 0.5)], 2, MASS_MIN);
        assert!((half.or_uniform()[0] - 0.75).abs() < 1e-12);
        assert!(half.bounds[0].low <= 0.375 && half.bounds[0].high >= 0.874, "{half:?}");
        for closed in [[0.0, 0.0], [1e-40, 0.0], [0.9e-30, 0.0]] {
            let none = OptionFigures::average(&[outcome(closed, 0.0)], 2, MASS_MIN);
            assert_eq!((none.probabilities.clone(), none.or_uniform()), (None, vec![0.5, 0.5]));
            assert_eq!((none.mass.closed, none.mass.invalid), (0.0, 1.0));
            assert_eq!(none.bounds, [Interval { low: 0.0, high: 1.0 }; 2]);
            assert_eq!(none.score, Interval { low: 0.0, high: 1.0 });
        }
        for (closed, open) in [(1.1e-30, 0.0), (1e-40, 1e-5)] {
            let some = OptionFigures::average(&[outcome([closed, 0.0], open)], 2, MASS_MIN);
            assert_eq!(some.or_uniform(), [1.0, 0.0], "{closed} {open}");
        }
    }
}
