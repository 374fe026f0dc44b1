//! Granite 3: `<|tool_call|>[{"name": …, "arguments": …}, …]`, one list of calls.

use super::format::Step;
use super::layout::{CallLayout, CallSymbol};
use super::marked_list::MarkedList;

pub(super) const BEGIN: &str = "<|tool_call|>";

pub(super) fn reader() -> MarkedList {
    MarkedList::new(BEGIN, |_| Step::Text(0))
}

pub(super) fn layout() -> CallLayout {
    use CallSymbol::{Marker, Text};
    CallLayout {
        open: vec![Marker(BEGIN), Text("[")],
        before_name: vec![Text("{\"name\": \"")],
        before_arguments: vec![Text("\", \"arguments\": ")],
        after_arguments: vec![Text("}")],
        separator: vec![Text(", ")],
        close: vec![Text("]")],
    }
}
