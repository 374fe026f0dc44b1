//! Slices with a negative step, as in Python. minijinja's slices panic on an empty list, and include the
//! first element when they should stop before it.

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use super::budget::{charge, elements_size, materialized, size};

/// Returns `value[start:stop:step]` of a text or a list, or `None` if the step is not negative or the value
/// is neither. In those cases minijinja is correct.
pub(super) fn backward_slice(
    state: &State,
    value: &Value,
    [start, stop, step]: [&Value; 3],
) -> Result<Option<Value>, Error> {
    let Some(step) = step.as_i64().filter(|step| *step < 0) else { return Ok(None) };
    let ends = [index(start)?, index(stop)?];
    if let Some(text) = value.as_str() {
        charge(state, size(value).saturating_mul(size_of::<char>() + 1))?;
        let characters: Vec<char> = text.chars().collect();
        let selected = indices(characters.len(), ends, step).filter_map(|index| characters.get(index));
        return Ok(Some(Value::from(selected.collect::<String>())));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Ok(None);
    }
    charge(state, elements_size(value))?;
    let elements: Vec<Value> = value.try_iter()?.collect();
    let selected = indices(elements.len(), ends, step).filter_map(|index| elements.get(index)).cloned();
    materialized(state, selected.collect()).map(Some)
}

fn index(end: &Value) -> Result<Option<i64>, Error> {
    if end.is_none() { Ok(None) } else { i64::try_from(end.clone()).map(Some) }
}

/// Returns the indices from `start` down to `stop` (exclusive), like
/// `slice(start, stop, step).indices(length)` in Python.
fn indices(length: usize, [start, stop]: [Option<i64>; 2], step: i64) -> impl Iterator<Item = usize> {
    let length = length as i64;
    let first = start.map_or(length - 1, |start| clamped(start, length));
    let before_last = stop.map_or(-1, |stop| clamped(stop, length));
    let step = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
    (before_last + 1..first + 1).rev().step_by(step).map(|index| index as usize)
}

fn clamped(end: i64, length: i64) -> i64 {
    if end < 0 { end.saturating_add(length).max(-1) } else { end.min(length - 1) }
}
