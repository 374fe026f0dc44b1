//! Hermes and Qwen: `<tool_call>{"name": …, "arguments": …}</tool_call>`, one pair of markers for each call.

use super::format::{CallFormat, Next, Step, next_is, object, seek};
use super::layout::{CallLayout, CallSymbol};

pub(super) const BEGIN: &str = "<tool_call>";
pub(super) const END: &str = "</tool_call>";

#[derive(Default)]
pub(super) enum Hermes {
    #[default]
    Text,
    Opened,
    Called,
}

impl CallFormat for Hermes {
    fn step(&mut self, rest: &str) -> Step {
        let step = match self {
            Self::Text => seek(rest, &[BEGIN]),
            Self::Opened => object(rest),
            Self::Called => match next_is(rest, END) {
                Next::Found(bytes) => Step::Closing(bytes),
                Next::Unknown => return Step::Wait,
                // Some models leave out the last marker.
                Next::Other => seek(rest, &[BEGIN]),
            },
        };
        match step {
            Step::Opening(_) => *self = Self::Opened,
            Step::Call(_) => *self = Self::Called,
            Step::Text(_) | Step::Closing(_) => *self = Self::Text,
            Step::Wait | Step::Arguments { .. } => {}
        }
        step
    }

    fn ends_in_markup(&self, rest: &str) -> bool {
        rest.trim().is_empty() || matches!(self, Self::Called) && next_is(rest, END) == Next::Unknown
    }

    fn reject(&mut self) {
        *self = Self::Text;
    }
}

pub(super) fn layout() -> CallLayout {
    use CallSymbol::{Marker, Text};
    CallLayout {
        open: vec![],
        before_name: vec![Marker(BEGIN), Text("\n{\"name\": \"")],
        before_arguments: vec![Text("\", \"arguments\": ")],
        after_arguments: vec![Text("}\n"), Marker(END)],
        separator: vec![Text("\n")],
        close: vec![],
    }
}
