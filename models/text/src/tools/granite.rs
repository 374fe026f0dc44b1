//! Granite 3: `<|tool_call|>[{"name": …, "arguments": …}, …]`, one list of calls.

use super::format::{CallFormat, Next, Step, next_is, object, seek};
use super::layout::{CallLayout, CallSymbol};

pub(super) const BEGIN: &str = "<|tool_call|>";

#[derive(Default)]
pub(super) enum Granite {
    #[default]
    Text,
    Opened,
    List(CallList),
}

/// A list of calls in JSON.
#[derive(Default)]
pub(super) enum CallList {
    /// A call has to follow.
    #[default]
    Open,
    /// A comma or the end has to follow.
    Called,
}

impl CallList {
    /// The next step in the list; [`Step::Closing`] or [`Step::Text`] after its end.
    pub(super) fn step(&mut self, rest: &str) -> Step {
        match self {
            Self::Open => {
                let step = object(rest);
                if let Step::Call(_) = step {
                    *self = Self::Called;
                }
                step
            }
            Self::Called => match (next_is(rest, ","), next_is(rest, "]")) {
                (Next::Found(bytes), _) => {
                    *self = Self::Open;
                    Step::Opening(bytes)
                }
                (_, Next::Found(bytes)) => Step::Closing(bytes),
                (Next::Unknown, _) | (_, Next::Unknown) => Step::Wait,
                (Next::Other, Next::Other) => Step::Text(0),
            },
        }
    }
}

impl CallFormat for Granite {
    fn step(&mut self, rest: &str) -> Step {
        match self {
            Self::Text => {
                let step = seek(rest, &[BEGIN]);
                if let Step::Opening(_) = step {
                    *self = Self::Opened;
                }
                step
            }
            Self::Opened => match next_is(rest, "[") {
                Next::Found(bytes) => {
                    *self = Self::List(CallList::default());
                    Step::Opening(bytes)
                }
                Next::Unknown => Step::Wait,
                Next::Other => {
                    *self = Self::Text;
                    Step::Text(0)
                }
            },
            Self::List(list) => {
                let step = list.step(rest);
                if let Step::Closing(_) | Step::Text(_) = step {
                    *self = Self::Text;
                }
                step
            }
        }
    }

    fn ends_in_markup(&self, rest: &str) -> bool {
        rest.trim().is_empty() || matches!(self, Self::List(_)) && rest.trim() == ","
    }

    fn reject(&mut self) {
        *self = Self::Text;
    }
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
