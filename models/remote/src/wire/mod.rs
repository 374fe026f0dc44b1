//! The formats of engines: bodies of requests for next-token probabilities and for text, and readers of their
//! responses. Pure functions without I/O.
//!
//! A response is hostile input. A reader accepts one only if it has exactly the requested rows, each with a part
//! of a distribution over ids of the vocabulary ([`NextTokenReport`]). Unknown fields are ignored.

pub mod llama_cpp;
pub mod openai;
pub mod texts;
pub mod vllm;
pub mod written;

use ntl_core::contract::{NextTokenReport, ReportError, TokenLogprob};

use crate::engine::{Ahead, NextTokenAnswer, NextTokenStep};

/// Why a response is not understood.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("it has {got} rows for {want} prompts")]
    Rows { got: usize, want: usize },
    #[error("row {0} is missing or repeated")]
    RowMissing(usize),
    #[error("row {row} has {got} tokens, at least 1 and at most {max} were requested")]
    Steps { row: usize, got: usize, max: usize },
    #[error("row {0} has no log-probabilities")]
    NoLogprobs(usize),
    #[error("`{0}` is not a token id")]
    NotAnId(String),
    #[error("the requested token id {0} is missing")]
    IdMissing(u32),
    #[error("a row has {got} log-probabilities, at most {max} were requested")]
    TooMany { got: usize, max: usize },
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error("{0}")]
    Text(&'static str),
}

/// The tokens whose log-probabilities a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alternatives<'a> {
    /// These ids, ascending.
    Ids(&'a [u32]),
    /// This many of the most probable tokens, at least 1.
    Best(usize),
}

impl Alternatives<'_> {
    /// Number of requested tokens.
    pub fn count(self) -> usize {
        match self {
            Self::Ids(ids) => ids.len(),
            Self::Best(count) => count,
        }
    }
}

/// The form of one request. Each row is a prompt with the path after it.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    pub rows: usize,
    pub alternatives: Alternatives<'a>,
    /// Tokens to append to each row.
    pub ahead: &'a Ahead,
    /// Rows may use each other's cached prefixes only if their salts are equal; 0 shares with all.
    pub cache_salt: u64,
    /// Number of ids of the vocabulary.
    pub vocab: usize,
}

impl Batch<'_> {
    /// Maximum size of the response in bytes, if an entry has at most `entry_bytes`.
    pub fn bytes_max(&self, entry_bytes: usize) -> usize {
        const ROW_BYTES: usize = 64 << 10;
        let steps = self.rows.saturating_mul(self.ahead.tokens + 1);
        steps.saturating_mul(self.alternatives.count().saturating_mul(entry_bytes).saturating_add(ROW_BYTES))
    }

    /// `id`, if the tokenizer knows it. The output layers of many models are wider than the vocabulary.
    fn known(&self, id: u32) -> Option<u32> {
        ((id as usize) < self.vocab).then_some(id)
    }
}

/// One position of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Position {
    /// The token that the engine chose, if it is known.
    chosen: Option<u32>,
    reported: Vec<TokenLogprob>,
    /// An upper bound of the log-probability of every other token.
    cut: Option<f64>,
}

impl Position {
    /// Entries without an id are tokens whose id is not known.
    fn new(
        chosen: Option<u32>,
        entries: impl IntoIterator<Item = (Option<u32>, f64)>,
        alternatives: Alternatives<'_>,
    ) -> Self {
        let entries: Vec<(Option<u32>, f64)> = entries.into_iter().collect();
        let cut = match alternatives {
            // Greedy decoding chooses the most probable token, which bounds all others.
            Alternatives::Ids(_) => {
                let chosen = entries.iter().find(|(id, _)| id.is_some() && *id == chosen);
                chosen.map(|(_, logprob)| *logprob)
            }
            Alternatives::Best(count) => {
                let least = entries.iter().map(|(_, logprob)| *logprob).min_by(f64::total_cmp);
                let least = least.filter(|_| entries.len() >= count);
                let unknown = entries.iter().filter(|(id, _)| id.is_none()).map(|(_, logprob)| *logprob);
                least.map(|least| unknown.fold(least, f64::max))
            }
        };
        let known = entries.into_iter().filter_map(|(id, logprob)| Some(TokenLogprob { id: id?, logprob }));
        Self { chosen, reported: known.collect(), cut }
    }

    fn without_cut(self) -> Self {
        Self { cut: None, ..self }
    }

    fn report(&self) -> Result<NextTokenReport, WireError> {
        Ok(NextTokenReport::new(self.reported.iter().copied(), self.cut)?)
    }

    /// Removes the least probable of at least two tokens.
    pub fn take_least(&mut self) -> Option<TokenLogprob> {
        let by_logprob =
            |a: &usize, b: &usize| self.reported[*a].logprob.total_cmp(&self.reported[*b].logprob);
        let least = (0..self.reported.len()).min_by(by_logprob).filter(|_| self.reported.len() > 1)?;
        Some(self.reported.swap_remove(least))
    }

    /// The token that the engine chose, if it is known.
    pub fn chosen(&self) -> Option<u32> {
        self.chosen
    }

    /// The log-probability of a token, if it is reported.
    pub fn logprob(&self, id: u32) -> Option<f64> {
        self.reported.iter().find(|token| token.id == id).map(|token| token.logprob)
    }
}

/// The positions of each row.
pub type Rows = Vec<Vec<Position>>;

/// Makes answers of the positions of each row.
pub fn answers(rows: Rows) -> Result<Vec<NextTokenAnswer>, WireError> {
    let answer = |(row, positions): (usize, Vec<Position>)| {
        let mut before = None;
        let mut report = None;
        let mut ahead = Vec::new();
        for position in positions {
            let next = position.report()?;
            match (before, &report) {
                (_, None) => report = Some(next),
                (Some(token), _) => ahead.push(NextTokenStep { token, report: next }),
                (None, _) => break,
            }
            before = position.chosen;
        }
        Ok(NextTokenAnswer { report: report.ok_or(WireError::NoLogprobs(row))?, ahead })
    };
    rows.into_iter().enumerate().map(answer).collect()
}

/// Checks that each position is a part of a distribution.
pub fn check(rows: &Rows) -> Result<(), WireError> {
    rows.iter().flatten().try_for_each(|position| position.report().map(drop))
}

/// Adds the reports of another group of ids to the same rows. The rows are cut where the groups chose different
/// tokens.
pub fn merge(rows: &mut Rows, more: Rows) {
    for (row, more) in rows.iter_mut().zip(more) {
        let mut same = 0;
        for (position, more) in row.iter_mut().zip(more) {
            for token in more.reported {
                // Engines compute groups in other batches, and round the chosen token differently.
                if position.logprob(token.id).is_none() {
                    position.reported.push(token);
                }
            }
            same += 1;
            if position.chosen != more.chosen {
                break;
            }
        }
        row.truncate(same);
    }
}

/// Checks that there is exactly one of each index, and returns the items in this order.
pub fn in_order<T>(
    items: Vec<T>,
    rows: usize,
    index: impl Fn(usize, &T) -> usize,
) -> Result<Vec<T>, WireError> {
    if items.len() != rows {
        return Err(WireError::Rows { got: items.len(), want: rows });
    }
    let mut ordered: Vec<Option<T>> = items.iter().map(|_| None).collect();
    for (place, item) in items.into_iter().enumerate() {
        let at = index(place, &item);
        match ordered.get_mut(at) {
            Some(slot @ None) => *slot = Some(item),
            _ => return Err(WireError::RowMissing(at)),
        }
    }
    ordered.into_iter().enumerate().map(|(row, item)| item.ok_or(WireError::RowMissing(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_put_in_order_and_must_be_complete() {
        let order = |indices: &[usize], rows| in_order(indices.to_vec(), rows, |_, &index| index).ok();
        assert_eq!(order(&[1, 0, 2], 3), Some(vec![0, 1, 2]));
        for (indices, rows) in [(&[0, 1][..], 3), (&[0, 0], 2), (&[0, 2], 2), (&[0], 0)] {
            assert_eq!(order(indices, rows), None, "{indices:?}");
        }
    }

    #[test]
    fn the_best_tokens_bound_all_others_by_the_least_of_them_and_given_ids_by_the_chosen_token() {
        let expect = |chosen, entries: &[(Option<u32>, f64)], alternatives, cut| {
            let position = Position::new(chosen, entries.iter().copied(), alternatives);
            let known = entries.iter().filter_map(|&(id, logprob)| Some(TokenLogprob { id: id?, logprob }));
            assert_eq!(position.report().unwrap(), NextTokenReport::new(known, cut).unwrap());
        };
        let entries = [(Some(7), -0.9), (Some(3), -2.0)];
        expect(Some(7), &entries, Alternatives::Best(2), Some(-2.0));
        expect(Some(7), &entries, Alternatives::Best(3), None);
        expect(Some(7), &entries, Alternatives::Ids(&[3]), Some(-0.9));
        let unknown = [(Some(7), -0.9), (None, -1.5), (Some(3), -2.0)];
        expect(None, &unknown, Alternatives::Best(3), Some(-1.5));
        expect(None, &unknown, Alternatives::Ids(&[3, 7]), None);
    }

    #[test]
    fn greedy_tokens_continue_a_row_and_groups_of_ids_are_merged_while_they_agree() {
        let row = |chosen: [u32; 3], id: u32| {
            let position = |chosen| Position::new(Some(chosen), [(Some(id), -3.0)], Alternatives::Ids(&[]));
            vec![chosen.map(position).to_vec()]
        };
        let mut rows = row([1, 2, 3], 40);
        merge(&mut rows, row([1, 9, 3], 41));
        let answers = answers(rows).unwrap();
        assert_eq!(answers[0].report.tokens().len(), 2);
        assert_eq!(answers[0].ahead.iter().map(|step| step.token).collect::<Vec<_>>(), [1]);
        assert_eq!(answers[0].ahead[0].report.tokens().len(), 2);
    }
}
