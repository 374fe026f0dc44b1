//! Draws the operands of a task.
//!
//! The length of a number is its number of digits: of a float the longer of its two parts, of a fraction the
//! denominator after reduction, of scientific notation the decimals. The second operand has between half as
//! many digits as the first and as many; the divisor of a remainder has at most about 0.7 times as many.
//! Invariant: no item has a negative number, and no two items of a task are equal.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed, Zero};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Length;
use super::problem::{Kind, Level, Operation};
use crate::data::Item;
use crate::metrics::forms::{Form, exact, nearest};

/// Digits of the second operand of an easy variant.
const EASY_DIGITS_MAX: usize = 3;

/// Maximum exponent of an operand in scientific notation.
const EXPONENT_MAX: u32 = 99;

/// Maximum difference between the exponents of two operands that are added or subtracted.
const EXPONENT_DIFFERENCE_MAX: u32 = 5;

/// Draws in a row that give no new item, after which a task has no more of them.
const FAILURES_MAX: usize = 1_000;

/// Returns at most `per_task` distinct items of each task. The items of a task depend neither on the other
/// tasks nor on their number.
pub fn items(kinds: &[Kind], length: Length, per_task: NonZeroUsize, seed: u64) -> Vec<Item> {
    kinds.iter().flat_map(|kind| items_of(*kind, length, per_task.get(), seed)).collect()
}

fn items_of(kind: Kind, length: Length, count: usize, seed: u64) -> Vec<Item> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream(&format!("{} {}", kind.name(), length.name())));
    let mut seen = HashSet::with_capacity(count);
    let mut items = Vec::with_capacity(count);
    let mut failures = 0;
    while items.len() < count && failures < FAILURES_MAX {
        let new = Draw { kind, rng: &mut rng }.item(length).filter(|item| seen.insert(item.question.clone()));
        failures = if new.is_some() { 0 } else { failures + 1 };
        items.extend(new);
    }
    items
}

/// Returns a stream number for a name (FNV-1a).
fn stream(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The number of digits of the first operand.
pub fn digits(kind: &Kind, length: Length) -> RangeInclusive<usize> {
    let is_easy_for_long_numbers = match kind.operation {
        Operation::Max | Operation::Min => kind.form != Form::Fraction,
        Operation::ToFloat => kind.form == Form::Scientific,
        Operation::DigitMax
        | Operation::DigitMin
        | Operation::DigitAdd
        | Operation::GetDigit
        | Operation::Length
        | Operation::Count
        | Operation::ToScientific
        | Operation::Significant => true,
        _ => false,
    };
    match (length, is_easy_for_long_numbers) {
        (Length::Short, false) => 1..=4,
        (Length::Medium, false) => 5..=8,
        (Length::Long, false) => 9..=14,
        (Length::VeryLong, false) => 15..=20,
        (Length::Short, true) => 1..=10,
        (Length::Medium, true) => 11..=20,
        (Length::Long, true) => 21..=60,
        (Length::VeryLong, true) => 61..=100,
    }
}

/// A number in the parts that its form is written with.
#[derive(Debug, Clone)]
enum Operand {
    Integer(String),
    /// The digits before and after the point.
    Decimal(String, String),
    /// Reduced when it is written, which may shorten it.
    Fraction(String, String),
    /// The digit before the point, the decimals and the exponent.
    Scientific(String, String, u32),
}

impl Operand {
    /// Returns `None` for a fraction that has no value or would be shorter after reduction.
    fn value(&self) -> Option<BigRational> {
        let text = match self {
            Self::Integer(digits) => digits.clone(),
            Self::Decimal(whole, fraction) => format!("{whole}.{fraction}"),
            Self::Fraction(above, below) => {
                let value = exact(&format!("{above}/{below}"))?;
                let is_as_long = value.denom().to_string().len() == below.len();
                return is_as_long.then_some(value);
            }
            Self::Scientific(first, decimals, exponent) => format!("{first}.{decimals}e{exponent}"),
        };
        exact(&text)
    }
}

struct Draw<'r> {
    kind: Kind,
    rng: &'r mut ChaCha8Rng,
}

impl Draw<'_> {
    /// Returns `None` if the drawn operands make no item.
    fn item(&mut self, length: Length) -> Option<Item> {
        let Kind { form, operation, .. } = self.kind;
        let [first, second] = self.operands(length)?;
        let answer = self.kind.answer(&first, &second)?;
        let value = exact(&answer)?;
        // The benchmark has no negative numbers and no negative exponents.
        let answer_form = self.kind.answer_form();
        let is_below_one = value < BigRational::from(BigInt::from(1));
        if value.is_negative() || (answer_form == Form::Scientific && is_below_one) {
            return None;
        }
        let compares = matches!(operation, Operation::Max | Operation::Min);
        if compares && first == second || form == Form::Fraction && value.is_zero() {
            return None;
        }
        Some(Item {
            question: self.kind.question(&first, &second),
            truth: Some(nearest(&value)?),
            answer,
            module: Some(self.kind.name()),
            form: Some(answer_form),
            ..Item::default()
        })
    }

    /// Returns the texts of both operands. The second one is a digit, a position or a number of figures, or
    /// empty, if the operation has one number only.
    fn operands(&mut self, length: Length) -> Option<[String; 2]> {
        let Kind { form, operation, level } = self.kind;
        let digits = self.rng.random_range(digits(&self.kind, length));
        let second_digits = match level {
            Level::Easy => self.rng.random_range(1..=EASY_DIGITS_MAX.min(digits)),
            // Otherwise one subtraction could be enough to find the remainder.
            _ if operation == Operation::Modulo => {
                let longest = (digits * 7 / 10 + 1).min(digits);
                self.rng.random_range(digits.div_ceil(2).min(longest)..=longest)
            }
            Level::Hard if form == Form::Integer => digits,
            _ => self.rng.random_range(digits.div_ceil(2)..=digits),
        };
        let mut first = self.number(digits);
        let mut second = self.number(second_digits);
        match operation {
            Operation::Max | Operation::Min if level == Level::Hard => {
                second = self.similar(&first, second);
            }
            Operation::Add | Operation::Subtract => {
                if let (Operand::Scientific(.., exponent), Operand::Scientific(.., other)) =
                    (&first, &mut second)
                {
                    let lowest = exponent.saturating_sub(EXPONENT_DIFFERENCE_MAX);
                    let highest = (exponent + EXPONENT_DIFFERENCE_MAX).min(EXPONENT_MAX);
                    *other = self.rng.random_range(lowest..=highest);
                }
            }
            Operation::ToFloat => first = self.finite(first, digits),
            Operation::ToScientific => first = self.with_zeros(first),
            _ => {}
        }
        let value = first.value()?;
        let other = second.value()?;
        let text = form.write(&value)?;
        let digits_of_text = text.chars().filter(char::is_ascii_digit).count();
        let second = match operation {
            Operation::Length | Operation::ToFloat | Operation::ToScientific => String::new(),
            Operation::GetDigit => self.rng.random_range(0..digits_of_text).to_string(),
            Operation::Count => self.rng.random_range(0..10).to_string(),
            Operation::Significant => self.rng.random_range(2..=digits_of_text.max(2)).to_string(),
            _ => form.write(&other)?,
        };
        // Differences, and quotients and remainders that are not trivial, need the larger number first.
        let is_ordered =
            matches!(operation, Operation::Subtract | Operation::FloorDivide | Operation::Modulo);
        let is_symmetric =
            matches!(operation, Operation::Add | Operation::Multiply | Operation::Max | Operation::Min);
        let swaps = is_ordered && value < other || is_symmetric && self.rng.random();
        Some(if swaps { [second, text] } else { [text, second] })
    }

    fn number(&mut self, digits: usize) -> Operand {
        match self.kind.form {
            Form::Integer => Operand::Integer(self.whole(digits)),
            Form::Decimal => {
                let whole_digits = self.rng.random_range(1..=digits);
                Operand::Decimal(self.whole(whole_digits), self.decimals(digits))
            }
            Form::Fraction => {
                let is_proper = matches!(self.kind.operation, Operation::Max | Operation::Min);
                let above = self.rng.random_range(1..=digits);
                let (above, below) = (self.whole(above), self.whole(digits));
                let is_below = above.len() < below.len() || above.len() == below.len() && above < below;
                if is_proper && !is_below {
                    Operand::Fraction(below, above)
                } else {
                    Operand::Fraction(above, below)
                }
            }
            Form::Scientific => Operand::Scientific(
                self.rng.random_range(1..=9).to_string(),
                self.decimals(digits),
                self.rng.random_range(0..=EXPONENT_MAX),
            ),
        }
    }

    /// Returns an integer of that many digits. Only a single digit may be 0.
    fn whole(&mut self, digits: usize) -> String {
        let first = self.rng.random_range(if digits > 1 { 1..=9 } else { 0..=9 });
        std::iter::once(first).chain((1..digits).map(|_| self.rng.random_range(0..=9))).map(digit).collect()
    }

    /// Returns that many decimals, of which the last one is not 0.
    fn decimals(&mut self, digits: usize) -> String {
        let last = self.rng.random_range(1..=9);
        (1..digits).map(|_| self.rng.random_range(0..=9)).chain([last]).map(digit).collect()
    }

    /// Returns `second` with the first digits of `first`: integers share some, floats mostly the digits
    /// before the point, scientific notation mostly the exponent.
    fn similar(&mut self, first: &Operand, second: Operand) -> Operand {
        match (first, second) {
            (Operand::Integer(first), Operand::Integer(second)) => {
                Operand::Integer(self.with_shared(first, &second))
            }
            (Operand::Decimal(whole, decimals), Operand::Decimal(other_whole, other)) => {
                let other = self.with_shared(decimals, &other);
                let keeps_whole = self.rng.random_bool(0.3);
                Operand::Decimal(if keeps_whole { other_whole } else { whole.clone() }, other)
            }
            (
                Operand::Scientific(digit, decimals, exponent),
                Operand::Scientific(other_digit, other, other_exponent),
            ) => {
                let other = self.with_shared(decimals, &other);
                let keeps_exponent = self.rng.random_bool(0.2);
                let keeps_digit = self.rng.random_bool(0.2);
                Operand::Scientific(
                    if keeps_digit { other_digit } else { digit.clone() },
                    other,
                    if keeps_exponent { other_exponent } else { *exponent },
                )
            }
            (_, second) => second,
        }
    }

    /// Returns `second` with some of the first digits of `first`.
    fn with_shared(&mut self, first: &str, second: &str) -> String {
        let length = self.rng.random_range(0..first.len().min(second.len()));
        format!("{}{}", &first[..length], &second[length..])
    }

    /// Returns a number that is a finite decimal with at most as many decimals as `digits`.
    fn finite(&mut self, number: Operand, digits: usize) -> Operand {
        let decimals_max = u32::try_from(digits).unwrap_or(u32::MAX);
        match number {
            Operand::Fraction(_, below) => {
                let mut denominators = Vec::new();
                for twos in 0..=decimals_max {
                    for fives in 0..=decimals_max {
                        let product = BigInt::from(2).pow(twos) * BigInt::from(5).pow(fives);
                        denominators.push(product.to_string());
                    }
                }
                denominators.retain(|denominator| denominator.len() == digits);
                let denominator = self.rng.random_range(0..denominators.len());
                Operand::Fraction(below, denominators.swap_remove(denominator))
            }
            Operand::Scientific(first, decimals, exponent) => {
                let highest = exponent.min(decimals_max);
                Operand::Scientific(first, decimals, self.rng.random_range(0..=highest))
            }
            number => number,
        }
    }

    /// Returns the number with zeros at its end if it is an integer: up to half of its digits.
    fn with_zeros(&mut self, number: Operand) -> Operand {
        let Operand::Integer(digits) = number else { return number };
        let kept = digits.len() - self.rng.random_range(0..=digits.len() / 2);
        let width = digits.len();
        Operand::Integer(format!("{:0<width$}", &digits[..kept]))
    }
}

fn digit(value: u8) -> char {
    char::from(b'0' + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [Length; 4] = [Length::Short, Length::Medium, Length::Long, Length::VeryLong];

    /// Returns the operands in a question: the numbers after its hint.
    fn numbers(item: &Item) -> Vec<&str> {
        let (_, question) = item.question.split_once(". ").unwrap();
        let is_part = |c: char| c.is_ascii_digit() || ".e/".contains(c);
        let words = question.split(|c: char| !is_part(c)).map(|word| word.trim_matches(['.', 'e', '/']));
        words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit())).collect()
    }

    /// The number of digits that the length of a number counts.
    fn length_of(form: Form, number: &str) -> usize {
        match form {
            Form::Integer => number.len(),
            Form::Decimal => number.split('.').map(str::len).max().unwrap(),
            Form::Fraction => number.split_once('/').unwrap().1.len(),
            Form::Scientific => number.split_once('e').unwrap().0.len() - 2,
        }
    }

    #[test]
    fn every_task_has_its_items_in_every_length() {
        let count = NonZeroUsize::new(30).unwrap();
        for length in LENGTHS {
            for kind in Kind::all() {
                let items = items(&[kind], length, count, 7);
                assert_eq!(items.len(), 30, "{} {}", kind.name(), length.name());
                for item in &items {
                    assert_eq!(item.form, Some(kind.answer_form()));
                    assert!(item.form.unwrap().write(&exact(&item.answer).unwrap()).is_some(), "{item:?}");
                    assert!(item.truth.unwrap() >= 0.0, "{item:?}");
                    assert!(
                        !item.question.contains('-') || kind.operation == Operation::Subtract,
                        "{item:?}"
                    );
                    let found = numbers(item);
                    if let Some(second) = found.get(1).filter(|_| has_two_numbers(kind.operation)) {
                        assert_eq!(kind.answer(found[0], second).as_deref(), Some(&*item.answer), "{item:?}");
                    }
                    let first = found.iter().map(|number| length_of_any(kind.form, number)).max().unwrap();
                    let range = digits(&kind, length);
                    assert!(range.contains(&first), "{first} digits, {range:?}: {item:?}");
                    if kind.form == Form::Fraction && kind.level == Level::Standard {
                        for fraction in found.iter().filter(|number| number.contains('/')) {
                            let shortest = range.start().div_ceil(2);
                            assert!(length_of(kind.form, fraction) >= shortest, "{item:?}");
                        }
                    }
                }
            }
        }
    }

    fn has_two_numbers(operation: Operation) -> bool {
        use Operation::{Add, Divide, FloorDivide, Max, Min, Modulo, Multiply, Subtract};
        [Add, Subtract, Multiply, Divide, FloorDivide, Modulo, Max, Min].contains(&operation)
    }

    /// [`length_of`], or 0 for a position, a digit or a number of figures.
    fn length_of_any(form: Form, number: &str) -> usize {
        if exact(number).is_some_and(|value| form.write(&value).as_deref() == Some(number)) {
            length_of(form, number)
        } else {
            0
        }
    }

    #[test]
    fn the_seed_decides_and_other_tasks_change_nothing() {
        let count = NonZeroUsize::new(5).unwrap();
        let all = Kind::all();
        let both = items(&all[..2], Length::Short, count, 1);
        assert_eq!(both[5..], items(&all[1..2], Length::Short, count, 1));
        assert_ne!(both[5..], items(&all[1..2], Length::Short, count, 2));
        assert_eq!(both[..3], items(&all[..1], Length::Short, NonZeroUsize::new(3).unwrap(), 1));
    }

    #[test]
    fn hard_pairs_share_their_beginning_and_easy_second_operands_are_short() {
        let count = NonZeroUsize::new(50).unwrap();
        let of = |form, operation, level| items(&[Kind { form, operation, level }], Length::Long, count, 3);
        let shared = |items: Vec<Item>| {
            let common = |item: &Item| {
                let [a, b] = numbers(item)[..] else { panic!("{item:?}") };
                a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
            };
            items.iter().map(common).sum::<usize>() / items.len()
        };
        for form in [Form::Integer, Form::Decimal, Form::Scientific] {
            assert_eq!(shared(of(form, Operation::Max, Level::Standard)), 0, "{form:?}");
            assert!(shared(of(form, Operation::Max, Level::Hard)) > 8, "{form:?}");
        }
        for item in of(Form::Integer, Operation::Modulo, Level::Easy) {
            assert!(numbers(&item)[1].len() <= 3, "{item:?}");
        }
        for item in of(Form::Integer, Operation::Modulo, Level::Standard) {
            let lengths: Vec<usize> = numbers(&item).iter().map(|number| number.len()).collect();
            assert!(lengths[1] <= lengths[0] * 7 / 10 + 1, "{item:?}");
        }
    }
}
