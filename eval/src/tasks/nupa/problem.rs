//! The tasks, the wording of their questions, and the exact answers.
//!
//! In: operands as texts of their form. Out: the answer as text of its form.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Zero;
use strum::IntoStaticStr;

use crate::metrics::forms::{Form, exact};

use self::Level::{Easy, Hard, Standard};
use self::Operation::{
    Add, Count, DigitAdd, DigitMax, DigitMin, Divide, FloorDivide, GetDigit, Length, Max, Min, Modulo,
    Multiply, Significant, Subtract, ToFloat, ToScientific,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Operation {
    Add,
    #[strum(serialize = "sub")]
    Subtract,
    Multiply,
    #[strum(serialize = "truediv")]
    Divide,
    #[strum(serialize = "floordiv")]
    FloorDivide,
    #[strum(serialize = "mod")]
    Modulo,
    Max,
    Min,
    DigitMax,
    DigitMin,
    DigitAdd,
    GetDigit,
    Length,
    Count,
    ToFloat,
    ToScientific,
    #[strum(serialize = "sig_fig")]
    Significant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// One of the 41 tasks.
    Standard,
    /// A variant whose second operand has at most three digits.
    Easy,
    /// A variant whose operands share their first digits.
    Hard,
}

/// A task: an operation on numbers of one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    pub form: Form,
    pub operation: Operation,
    pub level: Level,
}

/// All tasks by the form of their operands.
const TASKS: [(Form, Level, &[Operation]); 11] = [
    (
        Form::Integer,
        Standard,
        &[
            Add,
            Subtract,
            Multiply,
            Divide,
            FloorDivide,
            Modulo,
            Max,
            Min,
            DigitMax,
            DigitMin,
            DigitAdd,
            GetDigit,
            Length,
            Count,
            ToScientific,
            Significant,
        ],
    ),
    (Form::Integer, Easy, &[Multiply, Modulo]),
    (Form::Integer, Hard, &[Max, Min]),
    (
        Form::Decimal,
        Standard,
        &[
            Add,
            Subtract,
            Multiply,
            Max,
            Min,
            DigitMax,
            DigitMin,
            DigitAdd,
            GetDigit,
            Length,
            ToScientific,
            Significant,
        ],
    ),
    (Form::Decimal, Easy, &[Multiply]),
    (Form::Decimal, Hard, &[Max, Min]),
    (Form::Fraction, Standard, &[Add, Subtract, Multiply, Divide, Max, Min, ToFloat]),
    (Form::Fraction, Easy, &[Add, Multiply]),
    (Form::Scientific, Standard, &[Add, Subtract, Multiply, Max, Min, ToFloat]),
    (Form::Scientific, Easy, &[Multiply]),
    (Form::Scientific, Hard, &[Max, Min]),
];

impl Kind {
    /// Returns the 41 tasks and their variants.
    pub fn all() -> Vec<Self> {
        let kinds = TASKS.iter().flat_map(|&(form, level, operations)| {
            operations.iter().map(move |&operation| Self { form, operation, level })
        });
        kinds.collect()
    }

    /// Returns the name of the module, such as `integer_multiply_easy`.
    pub fn name(&self) -> String {
        let form = match self.form {
            Form::Integer => "integer",
            Form::Decimal => "float",
            Form::Fraction => "fraction",
            Form::Scientific => "scientific",
        };
        let operation: &str = self.operation.into();
        let level = match self.level {
            Standard => "",
            Easy => "_easy",
            Hard => "_hard",
        };
        format!("{form}_{operation}{level}")
    }

    /// Returns the form of the answer.
    pub fn answer_form(&self) -> Form {
        match self.operation {
            Divide => Form::Fraction,
            GetDigit | Length | Count => Form::Integer,
            ToFloat => Form::Decimal,
            ToScientific | Significant => Form::Scientific,
            _ => self.form,
        }
    }

    /// Returns whether number trees can state the answer: it is neither a fraction nor in scientific
    /// notation.
    pub fn has_value_answer(&self) -> bool {
        matches!(self.answer_form(), Form::Integer | Form::Decimal)
    }

    /// Returns the prompt. `second` is empty for operations with one operand.
    pub fn question(&self, first: &str, second: &str) -> String {
        let hint = match self.answer_form() {
            Form::Integer => "Answer with an integer.",
            Form::Decimal => "Answer with a decimal number.",
            Form::Fraction => "Answer with an irreducible fraction, such as 7/13.",
            Form::Scientific => {
                "Answer in scientific notation with one digit before the point, such as 1.23e4."
            }
        };
        let (places, point) = match self.form {
            Form::Decimal => ("decimal points", ", without the point"),
            _ => ("units", ""),
        };
        let by_digits = |rule: &str| {
            format!(
                "Write {first} and {second} with their {places} below each other, and {rule}. A missing digit is 0. The result is"
            )
        };
        let question = match self.operation {
            Add => format!("{first} + {second} ="),
            Subtract => format!("{first} - {second} ="),
            Multiply => format!("{first} * {second} ="),
            Divide if self.form == Form::Fraction => format!("({first}) / ({second}) ="),
            Divide => format!("{first} / {second} ="),
            FloorDivide => format!("{first} divided by {second}, rounded down to an integer, is"),
            Modulo => format!("The remainder of {first} divided by {second} is"),
            Max => format!("The larger number of {first} and {second} is"),
            Min => format!("The smaller number of {first} and {second} is"),
            DigitMax => by_digits("take the larger digit of each place"),
            DigitMin => by_digits("take the smaller digit of each place"),
            DigitAdd => by_digits("add the digits of each place without carrying"),
            GetDigit => {
                format!("The digit at position {second} of {first}, counted from 0 on the left{point}, is")
            }
            Length => format!("The number of digits of {first}{point}, is"),
            Count => format!("The digit {second} occurs in {first} this many times:"),
            ToFloat => format!("{first} as a decimal number is"),
            ToScientific => format!("{first} in scientific notation is"),
            Significant => format!("{first} rounded to {second} significant figures is"),
        };
        format!("{hint} {question}")
    }

    /// Returns the answer, or `None` if it cannot be written in its form: after a division by 0, for an
    /// infinite decimal, and for operands that are not numbers of the form.
    pub fn answer(&self, first: &str, second: &str) -> Option<String> {
        let text = match self.operation {
            GetDigit => digits(first).get(second.parse::<usize>().ok()?)?.to_string(),
            Length => digits(first).len().to_string(),
            Count => {
                let digit = second.chars().next()?;
                digits(first).iter().filter(|found| **found == digit).count().to_string()
            }
            Significant => return significant(&exact(first)?, second.parse().ok()?),
            DigitMax | DigitMin | DigitAdd => digit_by_digit(self.operation, first, second)?,
            ToFloat | ToScientific => first.to_owned(),
            _ => return self.answer_form().write(&self.arithmetic(&exact(first)?, &exact(second)?)?),
        };
        self.answer_form().write(&exact(&text)?)
    }

    fn arithmetic(&self, first: &BigRational, second: &BigRational) -> Option<BigRational> {
        let divides = matches!(self.operation, Divide | FloorDivide | Modulo);
        if divides && second.is_zero() {
            return None;
        }
        match self.operation {
            Add => Some(first + second),
            Subtract => Some(first - second),
            Multiply => Some(first * second),
            Divide => Some(first / second),
            FloorDivide => Some((first / second).floor()),
            Modulo => Some(first - second * (first / second).floor()),
            Max => Some(first.max(second).clone()),
            Min => Some(first.min(second).clone()),
            _ => None,
        }
    }
}

/// Returns the digits without the decimal point.
fn digits(text: &str) -> Vec<char> {
    text.chars().filter(char::is_ascii_digit).collect()
}

/// Applies an operation to the digits at the same place.
fn digit_by_digit(operation: Operation, first: &str, second: &str) -> Option<String> {
    let parts = [first, second].map(|text| text.split_once('.').unwrap_or((text, "")));
    let [(whole_a, fraction_a), (whole_b, fraction_b)] = parts;
    let whole_width = whole_a.len().max(whole_b.len());
    let fraction_width = fraction_a.len().max(fraction_b.len());
    let [digits_a, digits_b] =
        parts.map(|(whole, fraction)| format!("{whole:0>whole_width$}{fraction:0<fraction_width$}"));
    let mut digits = String::new();
    for (a, b) in digits_a.chars().zip(digits_b.chars()) {
        let a = a.to_digit(10)?;
        let b = b.to_digit(10)?;
        let digit = match operation {
            DigitMax => a.max(b),
            DigitMin => a.min(b),
            _ => (a + b) % 10,
        };
        digits += &digit.to_string();
    }
    let (whole, fraction) = digits.split_at(whole_width);
    Some(if fraction.is_empty() { whole.to_owned() } else { format!("{whole}.{fraction}") })
}

/// Rounds a number to `figures` significant figures, of which there are at least two, and writes all of them:
/// `6.60e1`. A number in the middle is rounded to the even digit.
fn significant(value: &BigRational, figures: usize) -> Option<String> {
    if figures < 2 || value.is_zero() {
        return None;
    }
    let text = Form::Scientific.write(value)?;
    let exponent: i32 = text.split_once('e')?.1.parse().ok()?;
    let ten = BigRational::from(BigInt::from(10));
    let shift = i32::try_from(figures).ok()? - 1 - exponent;
    let scaled = value * ten.pow(shift);
    let low = scaled.floor();
    let two = BigInt::from(2);
    let is_even = (low.to_integer() % &two).is_zero();
    let twice_rest = (&scaled - &low) * BigRational::from(two);
    let one = BigRational::from(BigInt::from(1));
    let rounded = if twice_rest > one || (twice_rest == one && !is_even) { low + one } else { low };
    // 9.96 has one digit more after rounding to two.
    let digits = rounded.to_integer().to_string();
    let exponent = exponent + i32::try_from(digits.len()).ok()? - i32::try_from(figures).ok()?;
    Some(format!("{}.{}e{exponent}", &digits[..1], &digits[1..figures]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(form: Form, operation: Operation, first: &str, second: &str) -> Option<String> {
        Kind { form, operation, level: Standard }.answer(first, second)
    }

    #[test]
    fn a_number_is_rounded_to_the_even_digit_and_keeps_its_zeros() {
        for (number, figures, want) in [
            ("65.669", "2", "6.6e1"),
            ("996", "2", "1.0e3"),
            ("12500", "2", "1.2e4"),
            ("13500", "2", "1.4e4"),
            ("12501", "2", "1.3e4"),
            ("7", "3", "7.00e0"),
            ("66.04", "3", "6.60e1"),
        ] {
            assert_eq!(
                answer(Form::Decimal, Significant, number, figures).as_deref(),
                Some(want),
                "{number}"
            );
        }
        assert_eq!(answer(Form::Integer, Significant, "7", "1"), None);
        assert_eq!(answer(Form::Integer, Significant, "0", "2"), None);
    }

    #[test]
    fn what_has_no_answer_has_none() {
        assert_eq!(answer(Form::Integer, Divide, "4", "0"), None);
        assert_eq!(answer(Form::Integer, Modulo, "4", "0"), None);
        assert_eq!(answer(Form::Integer, GetDigit, "123", "3"), None);
        assert_eq!(answer(Form::Fraction, ToFloat, "1/3", ""), None);
        assert_eq!(answer(Form::Integer, Add, "x", "1"), None);
    }
}
