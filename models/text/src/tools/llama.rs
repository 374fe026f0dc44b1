//! Llama 3: `{"name": …, "parameters": …}` as the whole text, after an optional `<|python_tag|>`. Several
//! calls are separated by `;`.

use super::format::{CallFormat, Next, Step, next_is, object};
use super::layout::{CallLayout, CallSymbol};

pub(super) const PYTHON_TAG: &str = "<|python_tag|>";
const SEPARATOR: &str = ";";

#[derive(Default)]
pub(super) enum Llama {
    #[default]
    Start,
    Opened,
    Called,
    Text,
}

impl CallFormat for Llama {
    fn step(&mut self, rest: &str) -> Step {
        let step = match self {
            Self::Start => match (next_is(rest, PYTHON_TAG), next_is(rest, "{")) {
                (Next::Found(bytes), _) => Step::Opening(bytes),
                (_, Next::Found(bytes)) => Step::Call(bytes - 1),
                (Next::Unknown, _) | (_, Next::Unknown) => Step::Wait,
                (Next::Other, Next::Other) => Step::Text(rest.len()),
            },
            Self::Opened => object(rest),
            Self::Called => match next_is(rest, SEPARATOR) {
                Next::Found(bytes) => Step::Opening(bytes),
                Next::Unknown => Step::Wait,
                Next::Other => Step::Text(rest.len()),
            },
            Self::Text if rest.is_empty() => Step::Wait,
            Self::Text => Step::Text(rest.len()),
        };
        match step {
            Step::Opening(_) => *self = Self::Opened,
            Step::Call(_) => *self = Self::Called,
            Step::Text(_) => *self = Self::Text,
            Step::Wait | Step::Closing(_) | Step::Arguments { .. } => {}
        }
        step
    }

    fn ends_in_markup(&self, rest: &str) -> bool {
        matches!(rest.trim(), "" | SEPARATOR)
    }

    fn reject(&mut self) {
        *self = Self::Text;
    }
}

pub(super) fn layout() -> CallLayout {
    use CallSymbol::Text;
    CallLayout {
        open: vec![],
        before_name: vec![Text("{\"name\": \"")],
        before_arguments: vec![Text("\", \"parameters\": ")],
        after_arguments: vec![Text("}")],
        separator: vec![Text("; ")],
        close: vec![],
    }
}
