//! Judgements: the score of an answer, or the better of two answers.
//!
//! A pair is judged in both orders. Its scores use the scale of the first order: low scores favour the first
//! answer, high scores the second. The scores of the other order are mirrored.

use serde::Serialize;

use super::same;
use crate::stats::Interval;

/// The judgement of one item.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// `None` if the judge gives no score.
    pub rating: Option<Rating>,
    /// The answer of a pair that people prefer, if known.
    pub preferred: Option<Preference>,
}

/// People's judgement of an item.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HumanScore {
    /// Their score, on the judge's scale.
    pub truth: Option<f64>,
    /// The answer of a pair that they prefer.
    pub preferred: Option<Preference>,
}

/// The scores that a judge may give, with their probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct Rating {
    /// The expected score.
    pub score: f64,
    /// The most probable score.
    pub mode: f64,
    /// Standard deviation of the scores.
    pub spread: f64,
    /// Interval that contains the score with the coverage of `--interval`.
    pub interval: Option<Interval>,
    /// Total probability of the texts that are a score.
    pub mass: f64,
    /// Scores in ascending order and their probabilities, which add up to 1.
    pub distribution: Vec<(f64, f64)>,
    /// Only present for pairs.
    pub orders: Option<Orders>,
}

/// The expected scores of a pair in both orders.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Orders {
    pub first: f64,
    /// The score with the answers in the other order, mirrored.
    pub swapped: f64,
    /// The score of two equally good answers.
    pub middle: f64,
}

/// Which answer of a pair is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preference {
    /// The first answer of the item.
    A,
    B,
    Tie,
}

impl Preference {
    /// Returns the preference for a score on the scale of the first order.
    pub fn of(score: f64, middle: f64) -> Self {
        match () {
            () if same(score, middle) => Self::Tie,
            () if score < middle => Self::A,
            () => Self::B,
        }
    }
}

impl Orders {
    /// Returns the preference by the mean of both orders.
    pub fn preference(self) -> Preference {
        Preference::of(f64::midpoint(self.first, self.swapped), self.middle)
    }

    /// Returns `true` if both orders prefer the same answer.
    pub fn agree(self) -> bool {
        Preference::of(self.first, self.middle) == Preference::of(self.swapped, self.middle)
    }

    /// Returns the difference between the orders. It is above 0 if the judge favours the answer that is shown
    /// second.
    pub fn difference(self) -> f64 {
        self.first - self.swapped
    }

    /// Returns the win of the first answer: 1, or 1/2 for a tie.
    pub fn win(self) -> f64 {
        match self.preference() {
            Preference::A => 1.0,
            Preference::Tie => 0.5,
            Preference::B => 0.0,
        }
    }
}

impl Judgement {
    pub fn orders(&self) -> Option<Orders> {
        self.rating.as_ref()?.orders
    }

    /// Returns whether the judge prefers the answer that people prefer, or `None` without a score or if
    /// people call it a tie.
    pub fn is_as_people_prefer(&self) -> Option<bool> {
        let preferred = self.preferred.filter(|preferred| *preferred != Preference::Tie)?;
        Some(self.orders()?.preference() == preferred)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_decided_by_the_mean_of_its_orders() {
        let orders = |first, swapped| Orders { first, swapped, middle: 4.0 };
        for (orders, preference, agree, win) in [
            (orders(2.0, 3.0), Preference::A, true, 1.0),
            (orders(2.0, 5.0), Preference::A, false, 1.0),
            (orders(6.5, 3.0), Preference::B, false, 0.0),
            (orders(5.0, 3.0), Preference::Tie, false, 0.5),
            (orders(4.0, 4.0), Preference::Tie, true, 0.5),
        ] {
            assert_eq!(
                (orders.preference(), orders.agree(), orders.win()),
                (preference, agree, win),
                "{orders:?}"
            );
        }
        assert!((orders(6.5, 3.0).difference() - 3.5).abs() < 1e-12);
    }
}
