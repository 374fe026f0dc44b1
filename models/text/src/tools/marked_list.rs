//! A marker, and after it a list of calls: `MARKER[{"name": …, "arguments": …}, …]`.

use super::format::{CallFormat, Next, Step, next_is, object, seek};

/// Reads texts with one marker.
pub(super) struct MarkedList {
    begin: &'static str,
    /// The step after the marker if no list follows.
    without_list: fn(&str) -> Step,
    state: State,
}

enum State {
    Text,
    Opened,
    List(CallList),
}

impl MarkedList {
    pub(super) fn new(begin: &'static str, without_list: fn(&str) -> Step) -> Self {
        Self { begin, without_list, state: State::Text }
    }
}

impl CallFormat for MarkedList {
    fn step(&mut self, rest: &str) -> Step {
        match &mut self.state {
            State::Text => {
                let step = seek(rest, &[self.begin]);
                if let Step::Opening(_) = step {
                    self.state = State::Opened;
                }
                step
            }
            State::Opened => match next_is(rest, "[") {
                Next::Found(bytes) => {
                    self.state = State::List(CallList::default());
                    Step::Opening(bytes)
                }
                Next::Unknown => Step::Wait,
                Next::Other => {
                    let step = (self.without_list)(rest);
                    if step != Step::Wait {
                        self.state = State::Text;
                    }
                    step
                }
            },
            State::List(list) => {
                let step = list.step(rest);
                if let Step::Closing(_) | Step::Text(_) = step {
                    self.state = State::Text;
                }
                step
            }
        }
    }

    fn ends_in_markup(&self, rest: &str) -> bool {
        rest.trim().is_empty() || matches!(self.state, State::List(_)) && rest.trim() == ","
    }

    fn reject(&mut self) {
        self.state = State::Text;
    }
}

/// A list of calls in JSON.
#[derive(Default)]
enum CallList {
    /// A call has to follow.
    #[default]
    Open,
    /// A comma or the end has to follow.
    Called,
}

impl CallList {
    /// The next step in the list; [`Step::Closing`] or [`Step::Text`] after its end.
    fn step(&mut self, rest: &str) -> Step {
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
