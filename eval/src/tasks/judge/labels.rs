//! People's scores of some of the items, from a file of labels.
//!
//! In: a CSV or TSV file, JSON lines or a JSON array with the fields `id` and `score`. An item's id is its
//! number in the data, from 0, or the field that `--id-field` names. Out: the items with their labels.
//! Records without a score are ignored, because a sheet for people lists all items.

use std::collections::HashMap;
use std::path::Path;

use super::Judge;
use crate::data::records::{Record, records};
use crate::data::{DataError, Item};

const ID: &str = "id";
const SCORE: &str = "score";

/// Adds the scores of a file to the items, which are the first ones of the data.
pub(super) fn add(
    judge: &Judge<'_>,
    file: &Path,
    data: &[Record],
    items: &mut [Item],
) -> Result<(), DataError> {
    let numbers = numbers_of_ids(data, judge.task.id_field.as_deref())?;
    let mut lines: HashMap<usize, usize> = HashMap::new();
    for record in records(file, None)? {
        let id = record.require_filled(ID, "id of the item")?.trim();
        if !record.has(SCORE) {
            return Err(record.without(SCORE));
        }
        let Some(&number) = numbers.get(id) else {
            return Err(record.problem(unknown(id, judge.task.id_field.as_deref(), data.len())));
        };
        let Some(text) = record.get(SCORE).map(str::trim).filter(|text| !text.is_empty()) else { continue };
        if let Some(line) = lines.insert(number, record.line()) {
            return Err(record.problem(format!("item `{id}` already has a score on line {line}")));
        }
        let label = judge.human(&record, SCORE, text)?;
        // `--limit` may leave out items that people scored.
        let Some(item) = items.get_mut(number) else { continue };
        if !item.answer.is_empty() {
            let field = &judge.task.human_field;
            return Err(record.problem(format!("item `{id}` already has a score in the data (`{field}`)")));
        }
        item.label = Some(label);
    }
    Ok(())
}

/// Returns the number of each item by its id.
fn numbers_of_ids(data: &[Record], id_field: Option<&str>) -> Result<HashMap<String, usize>, DataError> {
    let mut numbers = HashMap::new();
    for (number, record) in data.iter().enumerate() {
        let id = match id_field {
            Some(field) => record.require_filled(field, "id of the item")?.trim().to_owned(),
            None => number.to_string(),
        };
        if let Some(first) = numbers.insert(id.clone(), number) {
            let line = data[first].line();
            return Err(record.problem(format!("the id `{id}` is also that of the item on line {line}")));
        }
    }
    Ok(numbers)
}

fn unknown(id: &str, id_field: Option<&str>, items: usize) -> String {
    match id_field {
        Some(field) => format!("no item of the data has `{id}` in the field `{field}`"),
        None => format!(
            "there is no item `{id}`: the data has the items 0 to {}; --id-field NAME names a field with other ids",
            items - 1
        ),
    }
}
