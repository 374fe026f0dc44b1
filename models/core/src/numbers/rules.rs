//! What one request reads as a number, and what ends one. Made by [`NumberGrammar::rules`](super::NumberGrammar::rules).

use std::sync::Arc;

use super::state::Reading;
use super::{Decimal, GrammarLimits, Interval, NumberState};
use crate::engine::Terminator;

/// Which numbers one request reads, and what ends them.
#[derive(Debug, Clone)]
pub struct NumberRules {
    pub(super) limits: GrammarLimits,
    pub(super) terminator: Terminator,
    pub(super) range: Option<Interval>,
    /// Ids that end a complete number under [`Terminator::Eos`] and [`Terminator::Texts`].
    pub(super) ending: Vec<u32>,
    /// The ids that could continue digits, where thousands separators are read as well.
    pub(super) separating: Option<Vec<u32>>,
    /// Every id whose logit a search may look at, rising.
    pub(super) read: Arc<[u32]>,
}

impl NumberRules {
    /// Every id whose logit [`NumberGrammar::expand`](super::NumberGrammar::expand) looks at in any state, rising.
    pub fn read_ids(&self) -> &Arc<[u32]> {
        &self.read
    }

    /// The value of a number that one of its own tokens also ends, by going on with `rest`.
    pub(super) fn value_before(&self, state: NumberState, rest: &str) -> Option<Decimal> {
        let value = match &self.terminator {
            Terminator::Any => state.value_before_punctuation(),
            Terminator::Eos => None,
            Terminator::Texts(starts) => {
                state.value().filter(|_| starts.iter().any(|start| rest.starts_with(start.as_str())))
            }
        };
        value.filter(|&value| self.admits(value))
    }

    /// The state behind a beginning of a number that other text already wrote; `None` where that text is no such
    /// beginning.
    pub fn state_after(&self, text: &str) -> Option<NumberState> {
        match NumberState::START.read(text, self.limits) {
            Reading::Continues(state) => Some(state),
            Reading::Completes(_) | Reading::TooLong | Reading::Leaves { .. } => None,
        }
    }

    /// The value of a number that is complete with one of its own tokens.
    pub(super) fn value_of(&self, value: Decimal) -> Option<Decimal> {
        Some(value).filter(|&value| self.admits(value))
    }

    fn admits(&self, value: Decimal) -> bool {
        self.range.is_none_or(|range| (range.low..=range.high).contains(&value.to_f64()))
    }

    /// The value of a number that the next token ends. Where anything ends a number, "5." is a 5 and a full stop.
    pub(super) fn value_at_end(&self, state: NumberState) -> Option<Decimal> {
        let value = match self.terminator {
            Terminator::Any => state.value_before_punctuation(),
            Terminator::Eos | Terminator::Texts(_) => state.value(),
        };
        value.filter(|&value| self.admits(value))
    }
}
