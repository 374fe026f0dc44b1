//! Readers of the values that flags have.

use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;

use crate::metrics::registry;
use crate::stats::Interval;

/// Reads a finite number.
pub fn finite(text: &str) -> Result<f64, String> {
    let value = text.trim().parse().ok().filter(|value: &f64| value.is_finite());
    value.ok_or_else(|| format!("`{text}` is not a number"))
}

/// Returns a reader of finite numbers that `is_valid` accepts. For others, `expected` is the error.
pub fn number_that(
    is_valid: fn(f64) -> bool,
    expected: &'static str,
) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let value = finite(text)?;
        if is_valid(value) { Ok(value) } else { Err(expected.to_owned()) }
    }
}

/// Reads a number above 0.
pub fn positive(text: &str) -> Result<f64, String> {
    number_that(|value| value > 0.0, "must be above 0")(text)
}

/// Reads a number from 0.
pub fn not_negative(text: &str) -> Result<f64, String> {
    number_that(|value| value >= 0.0, "must be at least 0")(text)
}

/// Reads `LOW,HIGH`.
pub fn range(text: &str) -> Result<Interval, String> {
    let (low, high) = text.split_once(',').ok_or("expected two numbers, LOW,HIGH")?;
    let low = finite(low)?;
    let high = finite(high)?;
    if low <= high { Ok(Interval { low, high }) } else { Err(format!("{low} is above {high}")) }
}

/// Reads an integer that is not zero.
pub fn at_least_one<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::Zero => "must be at least 1".to_owned(),
        _ => error.to_string(),
    })
}

/// Reads the name of a metric.
pub fn metric(name: &str) -> Result<String, String> {
    let name = name.trim();
    registry::find(name).map(|metric| metric.name.to_owned()).ok_or_else(|| registry::unknown(name))
}
