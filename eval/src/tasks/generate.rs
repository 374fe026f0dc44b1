//! Arithmetic items that follow the distribution of DeepMind's mathematics dataset (Saxton et al. 2019,
//! arXiv:1904.01557), modules `arithmetic__add_sub_multiple` and `arithmetic__add_sub_multiple_longer`.
//!
//! Questions are distinct and answers are integers. The first k of n items are the same for every n.
//!
//! Method: draw the answer, then split it repeatedly into a sum or a difference of two numbers, one of them
//! drawn, until there are enough operands. A budget of decimal digits ("entropy") limits the size of a draw:
//! a quarter goes to the answer, each split spends an even share of the rest of its part, and both parts
//! share the remaining digits at random. The scheme follows public descriptions of the original generator;
//! the code is new. Its figures were fitted to the samples of the original that `tests/generator.rs` compares
//! with.

use std::collections::HashSet;
use std::fmt;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::data::Item;

/// The five wordings, equally frequent, as text before and after the expression.
const WORDINGS: [(&str, &str); 5] =
    [("", ""), ("Calculate ", "."), ("Evaluate ", "."), ("What is ", "?"), ("What is the value of ", "?")];

const ANSWER_SHARE: f64 = 0.25;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// 4 to 7 operands, answers within ±50.
    Interpolate,
    /// 10 to 12 operands, answers within ±500.
    Extrapolate,
}

impl Split {
    pub fn name(self) -> &'static str {
        match self {
            Self::Interpolate => "interpolate",
            Self::Extrapolate => "extrapolate",
        }
    }
}

pub fn items(split: Split, seed: u64, count: usize) -> Vec<Item> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(match split {
        Split::Interpolate => 0,
        Split::Extrapolate => 1,
    });
    let mut seen = HashSet::with_capacity(count);
    let mut items = Vec::with_capacity(count);
    while items.len() < count {
        let item = item(split, &mut rng);
        if seen.insert(item.question.clone()) {
            items.push(item);
        }
    }
    items
}

fn item(split: Split, rng: &mut ChaCha8Rng) -> Item {
    let shape = Shape::draw(split, rng);
    let answer = integer(shape.entropy * ANSWER_SHARE, rng);
    let entropy = shape.entropy * (1.0 - ANSWER_SHARE) + shape.extra;
    let expression = Expression::grow(answer, Budget { splits: shape.operands - 1, entropy }, rng);
    let (before, after) = WORDINGS[rng.random_range(0..WORDINGS.len())];
    Item {
        question: format!("{before}{expression}{after}"),
        answer: answer.to_string(),
        // Answers are at most 500: exact in f64.
        truth: Some(answer as f64),
        ..Item::default()
    }
}

struct Shape {
    operands: u32,
    /// Decimal digits to spend on the answer and the operands.
    entropy: f64,
    /// More (or fewer) digits for the operands, by how many trees and sizes there are to choose from. Found
    /// by fit: it explains the largest first splits of every size in the original's files.
    extra: f64,
}

impl Shape {
    fn draw(split: Split, rng: &mut ChaCha8Rng) -> Self {
        match split {
            // Entropy 8 allows for four sizes, of which one is chosen.
            Split::Interpolate => {
                let operands = rng.random_range(4..=7);
                Self { operands, entropy: 8.0, extra: shapes(operands - 1).log10() - 4.0_f64.log10() }
            }
            Split::Extrapolate => {
                let operands = rng.random_range(10..=12);
                Self {
                    operands,
                    entropy: 10.0 + 2.0 * rng.random::<f64>(),
                    extra: shapes(operands - 1).log10(),
                }
            }
        }
    }
}

/// How many binary trees have `splits` inner nodes (the Catalan number).
fn shapes(splits: u32) -> f64 {
    (2..=splits).map(|k| f64::from(splits + k) / f64::from(k)).product()
}

/// The remaining digits and splits of a part of an expression.
#[derive(Clone, Copy)]
struct Budget {
    splits: u32,
    entropy: f64,
}

enum Expression {
    Operand(i64),
    Sum(Box<Expression>, Box<Expression>),
    Difference(Box<Expression>, Box<Expression>),
}

impl Expression {
    /// An expression of that value with `budget.splits` operators.
    fn grow(value: i64, budget: Budget, rng: &mut ChaCha8Rng) -> Self {
        if budget.splits == 0 {
            return Self::Operand(value);
        }
        let share = budget.entropy / f64::from(budget.splits);
        let drawn = integer(share, rng);
        let sum = rng.random::<bool>();
        let drawn_first = rng.random::<bool>();
        let (left, right) = match (sum, drawn_first) {
            (true, true) => (drawn, value - drawn),
            (true, false) => (value - drawn, drawn),
            (false, true) => (drawn, drawn - value),
            (false, false) => (value + drawn, drawn),
        };
        let (left_budget, right_budget) =
            divide(Budget { splits: budget.splits - 1, entropy: budget.entropy - share }, rng);
        let left = Box::new(Self::grow(left, left_budget, rng));
        let right = Box::new(Self::grow(right, right_budget, rng));
        if sum { Self::Sum(left, right) } else { Self::Difference(left, right) }
    }

    /// Inside a sum only differences are bracketed; sums run on.
    fn write_term(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Difference(..) => write!(f, "({self})"),
            Self::Operand(_) | Self::Sum(..) => write!(f, "{self}"),
        }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operand(value) => write!(f, "{value}"),
            Self::Sum(left, right) => {
                left.write_term(f)?;
                f.write_str(" + ")?;
                right.write_term(f)
            }
            Self::Difference(left, right) => match **right {
                Self::Operand(value) => write!(f, "{left} - {value}"),
                Self::Sum(..) | Self::Difference(..) => write!(f, "{left} - ({right})"),
            },
        }
    }
}

/// Divides a budget between two parts: every division of the splits is as likely as any other, and the
/// entropy follows a beta distribution with the splits as its parameters, so that a part without splits gets
/// none.
fn divide(budget: Budget, rng: &mut ChaCha8Rng) -> (Budget, Budget) {
    let left = rng.random_range(0..=budget.splits);
    let right = budget.splits - left;
    let share = match (left, right) {
        (0, _) => 0.0,
        (_, 0) => 1.0,
        _ => order_statistic(left, left + right - 1, rng),
    };
    (
        Budget { splits: left, entropy: budget.entropy * share },
        Budget { splits: right, entropy: budget.entropy * (1.0 - share) },
    )
}

/// The `rank`-th smallest (from 1) of `count` uniform draws: beta distributed with `rank` and
/// `count + 1 - rank`.
fn order_statistic(rank: u32, count: u32, rng: &mut ChaCha8Rng) -> f64 {
    let mut draws: Vec<f64> = (0..count).map(|_| rng.random()).collect();
    draws.sort_by(f64::total_cmp);
    draws.into_iter().nth(rank as usize - 1).unwrap_or(0.5)
}

/// A uniform integer from about `10^entropy` of them, half of them negative. Entropy is below 14 here.
fn integer(entropy: f64, rng: &mut ChaCha8Rng) -> i64 {
    let limit = (10.0_f64.powf(entropy) / 2.0).ceil() as i64;
    rng.random_range(-limit..=limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_items_and_a_longer_run_only_adds() {
        let short = items(Split::Extrapolate, 7, 20);
        let long = items(Split::Extrapolate, 7, 60);
        assert_eq!(short, long[..20]);
        assert_ne!(short, items(Split::Extrapolate, 8, 20));
    }

    #[test]
    fn brackets_stand_where_they_are_needed_and_around_differences_in_sums() {
        let leaf = |value| Box::new(Expression::Operand(value));
        let sum = |l, r| Box::new(Expression::Sum(l, r));
        let difference = |l, r| Box::new(Expression::Difference(l, r));
        for (expression, want) in [
            (sum(sum(leaf(1), leaf(-2)), sum(leaf(3), leaf(4))), "1 + -2 + 3 + 4"),
            (sum(difference(leaf(1), leaf(2)), difference(leaf(3), leaf(4))), "(1 - 2) + (3 - 4)"),
            (difference(difference(leaf(1), leaf(2)), difference(leaf(3), leaf(4))), "1 - 2 - (3 - 4)"),
            (difference(sum(leaf(1), leaf(2)), sum(leaf(3), leaf(4))), "1 + 2 - (3 + 4)"),
        ] {
            assert_eq!(expression.to_string(), want);
        }
    }

    #[test]
    fn shapes_are_the_catalan_numbers() {
        for (splits, want) in [(1, 1.0), (3, 5.0), (6, 132.0), (11, 58786.0)] {
            assert!((shapes(splits) - want).abs() < 1e-6, "{splits}");
        }
    }
}
