//! The formats of engines: bodies of requests for next-token probabilities and for text, and readers of their
//! responses. Pure functions without I/O.
//!
//! A response is hostile input. A reader accepts one only if it has exactly the requested rows, each with a part
//! of a distribution over ids of the vocabulary ([`NextTokenReport`]). Unknown fields are ignored.

pub(crate) mod llama_cpp;
pub(crate) mod openai;
pub(crate) mod texts;
pub(crate) mod vllm;
pub(crate) mod written;

use ntl_core::contract::{NextTokenReport, ReportError, TokenLogprob};

use crate::engine::{NextTokenAnswer, NextTokenStep};

/// Why a response is not understood.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
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

/// The tokens whose log-probabilities a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alternatives<'a> {
    /// These ids, ascending.
    Ids(&'a [u32]),
    /// So many of the most probable tokens, at least 1.
    Best(usize),
}

impl Alternatives<'_> {
    /// Number of tokens that are asked for.
    pub(crate) fn count(self) -> usize {
        match self {
            Self::Ids(ids) => ids.len(),
            Self::Best(count) => count,
        }
    }
}

/// Rows of one request. Each is a prompt with the path after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch<'a> {
    pub(crate) rows: &'a [Vec<u32>],
    pub(crate) alternatives: Alternatives<'a>,
    /// Greedy tokens to append to each row.
    pub(crate) ahead: usize,
    /// Rows may use each other's cached prefixes only if their salts are equal; 0 shares with all.
    pub(crate) cache_salt: u64,
    /// Number of ids of the vocabulary.
    pub(crate) vocab: usize,
}

impl Batch<'_> {
    /// Maximum size of the response in bytes, if an entry has at most `entry_bytes`.
    pub(crate) fn bytes_max(&self, entry_bytes: usize) -> usize {
        const ROW_BYTES: usize = 64 << 10;
        let steps = self.rows.len().saturating_mul(self.ahead + 1);
        steps.saturating_mul(self.alternatives.count().saturating_mul(entry_bytes).saturating_add(ROW_BYTES))
    }

    /// `id`, if the tokenizer knows it. The output layers of many models are wider than the vocabulary.
    fn known(&self, id: u32) -> Option<u32> {
        ((id as usize) < self.vocab).then_some(id)
    }
}

/// One position of a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Position {
    /// The token that the engine chose, if it is known.
    chosen: Option<u32>,
    reported: Vec<TokenLogprob>,
    /// Number of reported tokens whose ids are not known.
    unknown: usize,
    /// The largest log-probability of a token whose id is not known.
    unknown_max: f64,
}

impl Position {
    fn new(chosen: Option<u32>, entries: impl IntoIterator<Item = (Option<u32>, f64)>) -> Self {
        let mut position = Self { chosen, reported: Vec::new(), unknown: 0, unknown_max: f64::NEG_INFINITY };
        for (id, logprob) in entries {
            match id {
                Some(id) => position.reported.push(TokenLogprob { id, logprob }),
                None => {
                    position.unknown += 1;
                    position.unknown_max = position.unknown_max.max(logprob);
                }
            }
        }
        position
    }

    fn report(&self, alternatives: Alternatives<'_>) -> Result<NextTokenReport, WireError> {
        let reported = &self.reported;
        let cut = match alternatives {
            // Greedy decoding chooses the most probable token, which bounds all others.
            Alternatives::Ids(_) => {
                let chosen = reported.iter().find(|token| Some(token.id) == self.chosen);
                chosen.map(|token| token.logprob)
            }
            Alternatives::Best(count) => {
                let least = reported.iter().map(|token| token.logprob).min_by(f64::total_cmp);
                let is_complete = reported.len() + self.unknown >= count;
                is_complete.then(|| least.unwrap_or(self.unknown_max).max(self.unknown_max))
            }
        };
        Ok(NextTokenReport::new(reported.iter().copied(), cut)?)
    }
}

/// The positions of each row.
pub(crate) type Rows = Vec<Vec<Position>>;

/// Makes answers of the positions of each row. The rows hold `Alternatives` of the same kind for the same
/// prompts.
pub(crate) fn answers(rows: Rows, alternatives: Alternatives<'_>) -> Result<Vec<NextTokenAnswer>, WireError> {
    let answer = |(row, positions): (usize, Vec<Position>)| {
        let mut before = None;
        let mut report = None;
        let mut ahead = Vec::new();
        for position in positions {
            let next = position.report(alternatives)?;
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
pub(crate) fn check(rows: &Rows, alternatives: Alternatives<'_>) -> Result<(), WireError> {
    rows.iter().flatten().try_for_each(|position| position.report(alternatives).map(drop))
}

/// Adds the reports of another group of ids to the same rows. The rows are cut where the groups chose different
/// tokens.
pub(crate) fn merge(rows: &mut Rows, more: Rows) {
    for (row, more) in rows.iter_mut().zip(more) {
        let mut same = 0;
        for (position, more) in row.iter_mut().zip(more) {
            for token in more.reported {
                // Engines compute groups in other batches, and round the chosen token differently.
                if position.reported.iter().all(|known| known.id != token.id) {
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
pub(crate) fn in_order<T>(
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
        let report = |position: &Position, alternatives| position.report(alternatives).unwrap();
        let expected = |entries: &[(u32, f64)], cut| {
            let tokens = entries.iter().map(|&(id, logprob)| TokenLogprob { id, logprob });
            NextTokenReport::new(tokens, cut).unwrap()
        };
        let entries = [(7, -0.9), (3, -2.0)];
        let position = Position::new(Some(7), entries.map(|(id, logprob)| (Some(id), logprob)));
        assert_eq!(report(&position, Alternatives::Best(2)), expected(&entries, Some(-2.0)));
        assert_eq!(report(&position, Alternatives::Best(3)), expected(&entries, None));
        assert_eq!(report(&position, Alternatives::Ids(&[3])), expected(&entries, Some(-0.9)));
        let unknown = Position::new(None, [(Some(7), -0.9), (None, -1.5), (Some(3), -2.0)]);
        assert_eq!(report(&unknown, Alternatives::Best(3)), expected(&entries, Some(-1.5)));
        assert_eq!(report(&unknown, Alternatives::Ids(&[3, 7])), expected(&entries, None));
    }

    #[test]
    fn greedy_tokens_continue_a_row_and_groups_of_ids_are_merged_while_they_agree() {
        let row = |chosen: [u32; 3], id: u32| {
            vec![chosen.map(|chosen| Position::new(Some(chosen), [(Some(id), -3.0)])).to_vec()]
        };
        let mut rows = row([1, 2, 3], 40);
        merge(&mut rows, row([1, 9, 3], 41));
        let answers = answers(rows, Alternatives::Ids(&[40, 41])).unwrap();
        assert_eq!(answers[0].report.tokens().len(), 2);
        assert_eq!(answers[0].ahead.iter().map(|step| step.token).collect::<Vec<_>>(), [1]);
        assert_eq!(answers[0].ahead[0].report.tokens().len(), 2);
    }
}
