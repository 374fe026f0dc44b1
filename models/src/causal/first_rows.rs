//! The rows of prompts' last tokens, computed in the pass in which their prompts end.
//!
//! A separate step would read all weights once more, which takes a seventh of the time until the first token
//! of a short prompt.

use std::borrow::Cow;
use std::collections::HashMap;

use candle_core::{Result, Tensor};
use ntl_core::contract::{ContextId, Row};

/// The first rows of contexts that were not stepped yet.
#[derive(Default)]
pub(super) struct FirstRows(HashMap<ContextId, FirstRow>);

struct FirstRow {
    token: u32,
    /// The hidden states after all layers, `[1, hidden]`.
    hidden: Tensor,
}

/// Known hidden states of the rows of a step.
pub(super) struct KnownRows {
    /// For each row, its hidden states `[1, hidden]` if they are known.
    hidden: Vec<Option<Tensor>>,
    /// Contexts whose first row is another one than the one that was computed.
    pub(super) discarded: Vec<ContextId>,
}

impl FirstRows {
    /// Keeps the hidden states `[R, hidden]` of rows.
    pub(super) fn insert(&mut self, rows: &[Row], hidden: &Tensor) -> Result<()> {
        for (index, row) in rows.iter().enumerate() {
            let first = FirstRow { token: row.path.token.id, hidden: hidden.narrow(0, index, 1)? };
            self.0.insert(row.context, first);
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, context: ContextId) {
        self.0.remove(&context);
    }

    /// Removes the rows of the contexts of a step.
    pub(super) fn take(&mut self, rows: &[Row]) -> KnownRows {
        let mut known = KnownRows { hidden: Vec::with_capacity(rows.len()), discarded: Vec::new() };
        for row in rows {
            known.hidden.push(match self.0.remove(&row.context) {
                Some(first) if row.path.parent.is_none() && row.path.token.id == first.token => {
                    Some(first.hidden)
                }
                Some(_) => {
                    known.discarded.push(row.context);
                    None
                }
                None => None,
            });
        }
        known
    }
}

impl KnownRows {
    /// Returns the rows that are not known.
    pub(super) fn others<'a>(&self, rows: &'a [Row]) -> Cow<'a, [Row]> {
        if self.hidden.iter().all(Option::is_none) {
            return rows.into();
        }
        let others = rows.iter().zip(&self.hidden).filter(|(_, known)| known.is_none());
        others.map(|(row, _)| row.clone()).collect()
    }

    /// Returns the hidden states of all rows in order, `[R, hidden]`, given those of the others.
    pub(super) fn with(self, others: Option<Tensor>) -> Result<Tensor> {
        let mut others = match others {
            Some(others) if others.dim(0)? == self.hidden.len() => return Ok(others),
            Some(others) => others.chunk(others.dim(0)?, 0)?,
            None => Vec::new(),
        }
        .into_iter();
        let rows = self.hidden.into_iter().filter_map(|known| known.or_else(|| others.next()));
        Tensor::cat(&rows.collect::<Vec<_>>(), 0)
    }
}
