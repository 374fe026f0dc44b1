//! A tree within a budget, and draws from the mass that it leaves open.
//!
//! If the budget ends the tree before its tolerance, its open prefixes are drawn in proportion to their mass,
//! and tokens drawn from the model complete them. Invariant: masses and bounds come from the tree alone;
//! only estimates use the draws.

use super::super::{Decoding, Progress, StepResult};
use super::tree::{Completions, NumberTree};
use crate::contract::{EngineError, Event, NumberOutcome, PathRow};

pub(super) enum AnytimeNumber {
    Searching(Box<NumberTree>),
    Completing { found: Box<NumberOutcome>, completions: Box<Completions> },
}

impl Decoding for AnytimeNumber {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        match self {
            Self::Searching(tree) => tree.next_rows(rows_max),
            Self::Completing { completions, .. } => completions.next_rows(rows_max),
        }
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        match self {
            Self::Searching(tree) => {
                let Some(found) = tree.step(result)? else { return Ok(Progress::Running) };
                if let Some(completions) = tree.completions(&found) {
                    let (found, completions) = (Box::new(found), Box::new(completions));
                    *self = Self::Completing { found, completions };
                    return Ok(Progress::Running);
                }
                events.push(Event::Number(found));
            }
            Self::Completing { found, completions } => {
                if completions.step(result)? == Progress::Running {
                    return Ok(Progress::Running);
                }
                events.push(Event::Number(completions.outcome((**found).clone())));
            }
        }
        Ok(Progress::Done)
    }

    fn search_bytes(&self) -> usize {
        match self {
            Self::Searching(tree) => tree.search_bytes(),
            Self::Completing { found, completions } => found.distribution.bytes() + completions.bytes(),
        }
    }
}
