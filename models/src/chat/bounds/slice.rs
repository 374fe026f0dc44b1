//! Slices that go backwards, as Python takes them. minijinja's own panic on an empty list, and end at the first element
//! where the stop is before it.

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use super::budget::{charge, elements_size, materialized, size};

/// `value[start:stop:step]`, or nothing where minijinja's slice is right: the step is positive, or the value is no text or
/// list.
pub(super) fn backward_slice(
    state: &State,
    value: &Value,
    [start, stop, step]: [&Value; 3],
) -> Result<Option<Value>, Error> {
    let Some(step) = step.as_i64().filter(|step| *step < 0) else { return Ok(None) };
    let bounds = [place(start)?, place(stop)?];
    if let Some(text) = value.as_str() {
        charge(state, size(value).saturating_mul(size_of::<char>() + 1))?;
        let characters: Vec<char> = text.chars().collect();
        let taken = places(characters.len(), bounds, step).filter_map(|place| characters.get(place));
        return Ok(Some(Value::from(taken.collect::<String>())));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Ok(None);
    }
    charge(state, elements_size(value))?;
    let elements: Vec<Value> = value.try_iter()?.collect();
    let taken = places(elements.len(), bounds, step).filter_map(|place| elements.get(place)).cloned();
    materialized(state, taken.collect()).map(Some)
}

fn place(bound: &Value) -> Result<Option<i64>, Error> {
    if bound.is_none() { Ok(None) } else { i64::try_from(bound.clone()).map(Some) }
}

/// The places from `start` down to `stop`, which is not among them. Python's `slice(start, stop, step).indices(length)`.
fn places(length: usize, [start, stop]: [Option<i64>; 2], step: i64) -> impl Iterator<Item = usize> {
    let length = length as i64;
    let within = |bound: i64| {
        if bound < 0 { bound.saturating_add(length).max(-1) } else { bound.min(length - 1) }
    };
    let first = start.map_or(length - 1, within);
    let end = stop.map_or(-1, within);
    let step = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
    (end + 1..first + 1).rev().step_by(step).map(|place| place as usize)
}
