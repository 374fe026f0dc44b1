//! The keywords about numbers of a JSON schema, in a form that the library applies exactly and cheaply.
//!
//! The library compares in `f64`, converts 64-bit integers to it, admits some exclusive bounds, and has a
//! state for each remainder of `multipleOf` without counting them. In: one schema inside a larger one. Out:
//! an equal schema whose bounds are inclusive, or an error that names the keyword.

use ntl_core::guide::GuideError;
use serde_json::{Map, Number, Value};

use super::failed;

/// The keywords that only limit numbers.
pub(super) const ABOUT_NUMBERS: [&str; 5] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// No text has a number with a larger magnitude. The library reads bounds as 64-bit integers.
const MAGNITUDE_MAX: f64 = 1e18;

/// Digits after the point of a [`Units`].
const DECIMALS: usize = 20;

/// Maximum number of digits after the point of `multipleOf`. More overflow in the library.
const STEP_DECIMALS_MAX: u32 = 8;

/// A number times 1e20.
type Units = i128;

const ONE: Units = 10_i128.pow(DECIMALS as u32);

/// `multipleOf` as the library reads it: a coefficient times a negative power of ten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) coefficient: u32,
    pub(super) decimals: u32,
}

/// A side of a range: the keyword of a bound, and the one of a bound that is not admitted itself.
struct Side {
    inclusive: &'static str,
    exclusive: &'static str,
    /// 1 for the lower side, and -1 for the upper one, whose negated numbers are a lower side.
    sign: f64,
}

const LOW: Side = Side { inclusive: "minimum", exclusive: "exclusiveMinimum", sign: 1.0 };
const HIGH: Side = Side { inclusive: "maximum", exclusive: "exclusiveMaximum", sign: -1.0 };

/// Rewrites the keywords about numbers in the schema at `path`, and returns its `multipleOf`.
///
/// # Errors
/// If the library cannot apply one of them exactly.
pub(super) fn rewrite(schema: &mut Map<String, Value>, path: &str) -> Result<Option<Step>, GuideError> {
    let fault =
        |keyword: &str, reason: &str| failed(format!("the keyword `{keyword}` at `#{path}` {reason}"));
    for keyword in ["const", "enum"] {
        if let Some(value) = schema.get(keyword) {
            check_exact(value).map_err(|reason| fault(keyword, reason))?;
        }
    }
    if !may_be_number(schema) {
        return Ok(None);
    }
    let step = step(schema).map_err(|reason| fault("multipleOf", reason))?;
    for side in [LOW, HIGH] {
        side.rewrite(schema).map_err(|(keyword, reason)| fault(keyword, reason))?;
    }
    keep_listed(schema, step);
    let Some(step) = step else { return Ok(None) };
    let step = if is_integer(schema) { step.of_integers() } else { step };
    if schema.contains_key("multipleOf") {
        schema.insert("multipleOf".to_owned(), Value::from(step.to_f64()));
        separate_multiples(schema, step);
    }
    Ok(schema.contains_key("multipleOf").then_some(step))
}

/// Reads the `multipleOf` of a schema.
fn step(schema: &Map<String, Value>) -> Result<Option<Step>, &'static str> {
    match schema.get("multipleOf") {
        Some(Value::Number(step)) => Step::new(step).map(Some),
        _ => Ok(None),
    }
}

/// Returns whether a schema admits no numbers but integers by its `type`.
fn is_integer(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::Array(names)) => !names.iter().any(|name| name == "number"),
        Some(name) => name == "integer",
        None => false,
    }
}

/// Replaces the booleans of older drafts, which make the other bound exclusive.
pub(super) fn replace_booleans(schema: &mut Map<String, Value>) {
    for side in [LOW, HIGH] {
        let Some(Value::Bool(is_exclusive)) = schema.get(side.exclusive) else { continue };
        match schema.get(side.inclusive).cloned() {
            Some(bound) if *is_exclusive => schema.insert(side.exclusive.to_owned(), bound),
            _ => schema.shift_remove(side.exclusive),
        };
    }
}

/// Joins the keywords about numbers of another schema that applies to the same values, unless it has other
/// keywords as well. Returns whether it did.
///
/// The library joins bounds of one schema and `multipleOf` of another one too late for [`rewrite`].
pub(super) fn join(schema: &mut Map<String, Value>, other: &Map<String, Value>) -> bool {
    if !other.keys().all(|keyword| is_about_numbers(keyword)) {
        return false;
    }
    let types = match (schema.get("type"), other.get("type")) {
        (Some(first), Some(second)) => match (first.as_str(), second.as_str()) {
            (Some("integer"), Some("integer" | "number")) | (Some("number"), Some("integer")) => "integer",
            (Some("number"), Some("number")) => "number",
            _ => return false,
        },
        (None, Some(Value::String(name))) if name == "integer" || name == "number" => name,
        (Some(Value::String(name)), None) if name == "integer" || name == "number" => name,
        _ => return false,
    };
    let types = Value::from(types);
    let (Ok(first), Ok(second)) = (step(schema), step(other)) else { return false };
    if let (Some(first), Some(second)) = (first, second) {
        let Some(common) = Step::common(&[first, second]) else { return false };
        schema.insert("multipleOf".to_owned(), Value::from(common.to_f64()));
    } else if let Some(step) = other.get("multipleOf") {
        schema.insert("multipleOf".to_owned(), step.clone());
    }
    for side in [LOW, HIGH] {
        for keyword in [side.inclusive, side.exclusive] {
            let Some(bound) = other.get(keyword) else { continue };
            let is_stricter = match (schema.get(keyword).and_then(Value::as_f64), bound.as_f64()) {
                (Some(present), Some(bound)) => present * side.sign < bound * side.sign,
                _ => true,
            };
            if is_stricter {
                schema.insert(keyword.to_owned(), bound.clone());
            }
        }
    }
    schema.insert("type".to_owned(), types);
    true
}

/// Returns whether a keyword only limits numbers, or is an annotation.
fn is_about_numbers(keyword: &str) -> bool {
    const OTHERS: [&str; 4] = ["type", "title", "description", "$comment"];
    ABOUT_NUMBERS.contains(&keyword) || OTHERS.contains(&keyword)
}

/// Returns whether a schema does not exclude numbers by its `type`.
pub(super) fn may_be_number(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::Array(names)) => names.iter().any(is_numeric),
        Some(name) => is_numeric(name),
        None => true,
    }
}

fn is_numeric(type_name: &Value) -> bool {
    type_name == "number" || type_name == "integer"
}

/// Checks all numbers in a value of `enum` or `const`.
fn check_exact(value: &Value) -> Result<(), &'static str> {
    match value {
        Value::Number(number) if is_exact(number) => Ok(()),
        Value::Number(_) => Err("has a number beyond 2^53 that may not be kept exactly"),
        Value::Array(items) => items.iter().try_for_each(check_exact),
        Value::Object(fields) => fields.values().try_for_each(check_exact),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

/// Returns whether a number keeps its digits as an `f64` and is at most [`MAGNITUDE_MAX`]. JSON with more
/// than 64 bits for an integer has already lost some.
fn is_exact(number: &Number) -> bool {
    let Some(value) = number.as_f64() else { return false };
    if value.abs() < 9_007_199_254_740_992.0 {
        return true;
    }
    // The digits of a large `f64` are those that distinguish it, then zeros.
    let digits = (value as i128).to_string();
    value.abs() <= MAGNITUDE_MAX
        && value.to_string() == digits
        && (number.is_f64() || number.to_string() == digits)
}

impl Step {
    fn new(number: &Number) -> Result<Self, &'static str> {
        const NOT_EXACT: &str = "has a step that cannot be applied exactly";
        let value = number.as_f64().unwrap_or(0.0);
        if value <= 0.0 {
            return Err("must be above 0");
        }
        let units = units_ceil(value);
        let (mut exact, mut decimals) = (units, DECIMALS as u32);
        while decimals > 0 && exact % 10 == 0 {
            exact /= 10;
            decimals -= 1;
        }
        if decimals > STEP_DECIMALS_MAX {
            return Err("has a step with more than 8 digits after the point");
        }
        // The library moves the point in floating point, one digit after the other.
        let mut moved = value;
        for _ in 0..decimals {
            if moved.fract() == 0.0 {
                return Err(NOT_EXACT);
            }
            moved *= 10.0;
        }
        let coefficient = u32::try_from(exact).map_err(|_| NOT_EXACT)?;
        if moved.total_cmp(&f64::from(coefficient)).is_ne() || !is_exact(number) {
            return Err(NOT_EXACT);
        }
        Ok(Self { coefficient, decimals })
    }

    /// The step of the common multiples of all `steps`, unless the library would overflow on the way to it.
    pub(super) fn common(steps: &[Self]) -> Option<Self> {
        let mut decimals = steps.iter().map(|step| step.decimals).max()?;
        let mut scaled = Vec::new();
        for step in steps {
            scaled.push(step.coefficient.checked_mul(10_u32.checked_pow(decimals - step.decimals)?)?);
        }
        scaled.sort_unstable();
        scaled.dedup();
        scaled.iter().try_fold(1_u32, |product, &one| product.checked_mul(one))?;
        let mut coefficient =
            scaled.iter().fold(1, |all, &one| all / greatest_common_divisor(all, one) * one);
        while decimals > 0 && coefficient % 10 == 0 {
            coefficient /= 10;
            decimals -= 1;
        }
        Some(Self { coefficient, decimals })
    }

    fn units(self) -> Units {
        Units::from(self.coefficient) * 10_i128.pow(DECIMALS as u32 - self.decimals)
    }

    /// The step of its multiples that are integers.
    fn of_integers(self) -> Self {
        let one = 10_u32.pow(self.decimals);
        Self { coefficient: self.coefficient / greatest_common_divisor(self.coefficient, one), decimals: 0 }
    }

    fn to_f64(self) -> f64 {
        f64::from(self.coefficient) / 10_f64.powi(self.decimals as i32)
    }
}

/// Euclid's algorithm.
fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl Side {
    /// Adds an inclusive bound that equals the exclusive one. The exclusive one remains, for the estimates.
    fn rewrite(&self, schema: &mut Map<String, Value>) -> Result<(), (&'static str, &'static str)> {
        let included = self.read(schema, self.inclusive)?;
        let excluded = self.read(schema, self.exclusive)?;
        let bounds = [included, excluded.map(just_above)];
        let Some(strictest) = bounds.into_iter().flatten().reduce(f64::max) else { return Ok(()) };
        // Not -0, which the library would write.
        let bound = to_f64(units_ceil(strictest)) * self.sign + 0.0;
        schema.insert(self.inclusive.to_owned(), Value::from(bound));
        Ok(())
    }

    /// Reads a bound as one of a lower side. A bound beyond all numbers of a text is dropped.
    fn read(
        &self,
        schema: &mut Map<String, Value>,
        keyword: &'static str,
    ) -> Result<Option<f64>, (&'static str, &'static str)> {
        let Some(Value::Number(number)) = schema.get(keyword) else { return Ok(None) };
        let bound = number.as_f64().unwrap_or(0.0) * self.sign;
        if bound < -MAGNITUDE_MAX {
            schema.shift_remove(keyword);
            return Ok(Some(-MAGNITUDE_MAX));
        }
        if !is_exact(number) {
            return Err((keyword, "is beyond 2^53 and may not be kept exactly"));
        }
        Ok(Some(bound))
    }

    /// Returns the inclusive bound as one of a lower side.
    fn bound(&self, schema: &Map<String, Value>) -> Option<Units> {
        let bound = schema.get(self.inclusive)?.as_f64()? * self.sign;
        Some(units_ceil(bound))
    }
}

/// The smallest number above `bound` that a text can have.
pub(super) fn just_above(bound: f64) -> f64 {
    let next = if bound == 0.0 { 1.0 / ONE as f64 } else { bound.next_up() };
    to_f64(units_ceil(next))
}

/// Removes the numbers of `enum` that the other keywords do not admit, and then these keywords.
fn keep_listed(schema: &mut Map<String, Value>, step: Option<Step>) {
    let low = LOW.bound(schema);
    let high = HIGH.bound(schema).map(|bound| -bound);
    let is_admitted = |value: &Value| {
        let Some(value) = value.as_f64().map(units_ceil) else { return true };
        low.is_none_or(|low| low <= value)
            && high.is_none_or(|high| value <= high)
            && step.is_none_or(|step| value % step.units() == 0)
    };
    let is_only_admitted = schema.get("const").is_some_and(is_admitted);
    let are_admitted = match schema.get_mut("enum") {
        Some(Value::Array(values)) => {
            values.retain(is_admitted);
            !values.is_empty()
        }
        _ => false,
    };
    if is_only_admitted || are_admitted {
        for keyword in ABOUT_NUMBERS {
            schema.shift_remove(keyword);
        }
    }
}

/// Moves the bounds next to the first and the last multiple.
///
/// The library writes all digits of a multiple, `2.50` for a step of 0.25, but a text at an inclusive bound
/// away from 0 has its digits, so neither would be admitted. It also divides in floating point, and then
/// finds no multiple of 0.1 between 0.3 and 0.3.
fn separate_multiples(schema: &mut Map<String, Value>, step: Step) {
    let (low, high) = (LOW.bound(schema), HIGH.bound(schema).map(|bound| -bound));
    let units = step.units();
    let first = low.map(|low| -(-low).div_euclid(units) * units);
    let last = high.map(|high| high.div_euclid(units) * units);
    // Numbers with more digits than an `f64` keeps stay where they are.
    let digit = 10_i128.pow(DECIMALS as u32 - step.decimals);
    if [first, last].iter().flatten().any(|bound| bound.abs() >= (1 << 50) * digit) {
        return;
    }
    if let (Some(first), Some(last)) = (first, last)
        && first >= last
    {
        set_bound(schema, "minimum", "exclusiveMinimum", first);
        set_bound(schema, "maximum", "exclusiveMaximum", last);
        if first == last {
            schema.shift_remove("multipleOf");
        }
        return;
    }
    match first {
        Some(first) if first < 0 => set_bound(schema, "exclusiveMinimum", "minimum", first - digit),
        Some(0) => set_bound(schema, "minimum", "exclusiveMinimum", 0),
        Some(first) => set_bound(schema, "minimum", "exclusiveMinimum", first - digit / 2),
        None => {}
    }
    match last {
        Some(last) if last < 0 => set_bound(schema, "maximum", "exclusiveMaximum", last + digit / 2),
        Some(last) => set_bound(schema, "exclusiveMaximum", "maximum", last + digit),
        None => {}
    }
}

fn set_bound(schema: &mut Map<String, Value>, keyword: &str, replaced: &str, bound: Units) {
    schema.shift_remove(replaced);
    schema.insert(keyword.to_owned(), Value::from(to_f64(bound)));
}

/// A number of at most [`MAGNITUDE_MAX`], rounded up.
fn units_ceil(value: f64) -> Units {
    let text = value.abs().to_string();
    let (integer, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let kept = &fraction[..fraction.len().min(DECIMALS)];
    let digits = format!("{integer}{kept:0<DECIMALS$}");
    // At most 19 and 20 digits.
    let magnitude: Units = digits.parse().unwrap_or(Units::MAX);
    let is_cut = fraction.len() > DECIMALS;
    if value < 0.0 { -magnitude } else { magnitude + Units::from(is_cut) }
}

/// The nearest `f64`, whose digits are those of `units`.
fn to_f64(units: Units) -> f64 {
    let magnitude = units.unsigned_abs();
    let one = ONE.unsigned_abs();
    let text = format!("{}.{:0DECIMALS$}", magnitude / one, magnitude % one);
    let value: f64 = text.parse().unwrap_or(MAGNITUDE_MAX);
    if units < 0 { -value } else { value }
}
