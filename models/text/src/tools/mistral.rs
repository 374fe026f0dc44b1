//! Mistral: `[TOOL_CALLS][{"name": …, "arguments": …}, …]`, and since tokenizer v11
//! `[TOOL_CALLS]name[ARGS]{…}` for each call, with an id in between in some versions.

use super::format::{Next, Step, next_is};
use super::layout::{CallLayout, CallSymbol};
use super::marked_list::MarkedList;

pub(super) const BEGIN: &str = "[TOOL_CALLS]";
pub(super) const CALL_ID: &str = "[CALL_ID]";
pub(super) const ARGUMENTS: &str = "[ARGS]";

pub(super) fn reader() -> MarkedList {
    MarkedList::new(BEGIN, named)
}

/// A name, markers, and the beginning of the arguments.
fn named(rest: &str) -> Step {
    let name_bytes = name_length(rest);
    let mut after = &rest[name_bytes..];
    match next_is(after, CALL_ID) {
        Next::Found(bytes) => {
            let id = &after[bytes..];
            after = &id[name_length(id)..];
        }
        Next::Unknown => return Step::Wait,
        Next::Other => {}
    }
    match next_is(after, ARGUMENTS) {
        Next::Found(bytes) => after = &after[bytes..],
        Next::Unknown => return Step::Wait,
        Next::Other => {}
    }
    match next_is(after, "{") {
        Next::Found(bytes) if name_bytes > 0 => {
            Step::Arguments { name_bytes, bytes: rest.len() - after.len() + bytes - 1 }
        }
        Next::Unknown => Step::Wait,
        Next::Found(_) | Next::Other => Step::Text(0),
    }
}

/// Returns the length of the name at the beginning of a text, in bytes.
fn name_length(text: &str) -> usize {
    text.find(|character: char| !character.is_ascii_alphanumeric() && !"_-.".contains(character))
        .unwrap_or(text.len())
}

/// `has_names` is for tokenizers with the marker of arguments.
pub(super) fn layout(has_names: bool) -> CallLayout {
    use CallSymbol::{Marker, OptionalSpace, Text};
    if has_names {
        return CallLayout {
            open: vec![],
            before_name: vec![Marker(BEGIN)],
            before_arguments: vec![Marker(ARGUMENTS)],
            after_arguments: vec![],
            separator: vec![],
            close: vec![],
        };
    }
    CallLayout {
        open: vec![Marker(BEGIN), OptionalSpace, Text("[")],
        before_name: vec![Text("{\"name\": \"")],
        before_arguments: vec![Text("\", \"arguments\": ")],
        after_arguments: vec![Text("}")],
        separator: vec![Text(", ")],
        close: vec![Text("]")],
    }
}
