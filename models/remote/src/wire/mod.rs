//! The formats of engines: bodies of requests for next-token probabilities, text and chats, and readers of
//! their responses. Pure functions without I/O.
//!
//! A response is hostile input. A reader accepts one only if it has exactly the requested rows, each with a
//! part of a distribution over ids of the vocabulary ([`NextTokenReport`]). Unknown fields are ignored.

pub mod chat;
pub mod llama_cpp;
pub mod openai;
pub mod sglang;
pub mod texts;
pub mod usage;
pub mod vllm;
pub mod written;

use ntl_core::contract::{NextTokenReport, ReportError, TokenLogprob};
use serde::de::DeserializeOwned;

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

/// The value of vLLM's `cache_salt`. Prompts with the salt 0 share their cached prefixes.
pub fn salt_text(cache_salt: u64) -> Option<String> {
    (cache_salt != 0).then(|| format!("{cache_salt:016x}"))
}

/// Reads a response that is a list, or a single row without a list around it.
fn one_or_several<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<Vec<T>> {
    if bytes.trim_ascii_start().starts_with(b"[") {
        serde_json::from_slice(bytes)
    } else {
        Ok(vec![serde_json::from_slice(bytes)?])
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
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Position {
    /// The token that the engine chose, if it is known.
    chosen: Option<u32>,
    reported: Vec<TokenLogprob>,
    /// An upper bound of the log-probability of every other token.
    cut: Option<f64>,
    /// Set if several passes reported it.
    passes: Option<Passes>,
}

/// A comparison of the passes of an engine over the same tokens by the token that the first one chose. They
/// differ by rounding, since an engine computes each in another batch.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Passes {
    /// The sum over all passes of the probabilities that only they report, each divided by the chosen token's
    /// probability in the same pass.
    others: f64,
    /// The largest probability of the chosen token.
    chosen_max: f64,
}

impl Passes {
    fn first(position: &Position) -> Self {
        let chosen = position.chosen.and_then(|id| position.logprob(id)).map_or(0.0, f64::exp);
        let all: f64 = position.reported.iter().map(|token| token.logprob.exp()).sum();
        // Without the chosen token, the passes cannot be compared.
        let others = if chosen > 0.0 { (all - chosen) / chosen } else { 0.0 };
        Self { others, chosen_max: chosen }
    }

    /// The probability that the reported ids may have in addition to `sum`, in the pass where they have most.
    fn uncertain(self, sum: f64) -> f64 {
        let certain_rest = (1.0 - self.chosen_max * (1.0 + self.others)).max(0.0);
        (1.0 - sum - certain_rest).max(0.0)
    }
}

impl Position {
    /// Entries without an id are tokens whose id is not known.
    pub(crate) fn new(
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
                let unknown = entries.iter().filter(|(id, _)| id.is_none()).map(|(_, logprob)| *logprob);
                match least {
                    Some(least) if entries.len() >= count => Some(unknown.fold(least, f64::max)),
                    _ => None,
                }
            }
        };
        let known = entries.into_iter().filter_map(|(id, logprob)| Some(TokenLogprob { id: id?, logprob }));
        Self { chosen, reported: known.collect(), cut, passes: None }
    }

    fn without_cut(self) -> Self {
        Self { cut: None, ..self }
    }

    fn report(&self) -> Result<NextTokenReport, WireError> {
        let reported = self.reported.iter().copied();
        let Some(passes) = self.passes else { return Ok(NextTokenReport::new(reported, self.cut)?) };
        let sum = self.reported.iter().map(|token| token.logprob.exp()).sum();
        Ok(NextTokenReport::merged(reported, self.cut, passes.uncertain(sum))?)
    }

    /// Adds the tokens that only another pass reports.
    fn add_pass(&mut self, more: Self) {
        let mut passes = self.passes.unwrap_or_else(|| Passes::first(self));
        // If the passes chose different tokens, these are about equally probable.
        let chosen = [self.chosen, more.chosen].into_iter().flatten().find_map(|id| more.logprob(id));
        let mut added = 0.0;
        for token in more.reported {
            // Engines round the chosen token differently in each pass.
            if self.logprob(token.id).is_none() {
                added += token.logprob.exp();
                self.reported.push(token);
            }
        }
        let chosen = chosen.map_or(0.0, f64::exp);
        if chosen > 0.0 && passes.chosen_max > 0.0 {
            passes.others += added / chosen;
            passes.chosen_max = passes.chosen_max.max(chosen);
        }
        self.passes = Some(passes);
    }

    /// Removes the least probable of at least two tokens.
    pub fn take_least(&mut self) -> Option<TokenLogprob> {
        if self.reported.len() < 2 {
            return None;
        }
        let tokens = self.reported.iter().enumerate();
        let (least, _) = tokens.min_by(|(_, a), (_, b)| a.logprob.total_cmp(&b.logprob))?;
        Some(self.reported.swap_remove(least))
    }

    /// The token that the engine chose, if it is known.
    pub fn chosen(&self) -> Option<u32> {
        self.chosen
    }

    /// The reported tokens, the most probable one first.
    pub fn best_first(&self) -> Vec<TokenLogprob> {
        let mut tokens = self.reported.clone();
        tokens.sort_by(|a, b| b.logprob.total_cmp(&a.logprob).then(a.id.cmp(&b.id)));
        tokens
    }

    /// An upper bound of the log-probability of every other token.
    pub fn cut(&self) -> Option<f64> {
        self.cut
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
    let mut answers = Vec::with_capacity(rows.len());
    for (row, positions) in rows.into_iter().enumerate() {
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
        answers.push(NextTokenAnswer { report: report.ok_or(WireError::NoLogprobs(row))?, ahead });
    }
    Ok(answers)
}

/// Checks that each position is a part of a distribution.
pub fn check(rows: &Rows) -> Result<(), WireError> {
    rows.iter().flatten().try_for_each(|position| position.report().map(drop))
}

/// Adds the reports of another group of ids to the same rows. The rows are cut where the groups chose
/// different tokens.
pub fn merge(rows: &mut Rows, more: Rows) {
    for (row, more) in rows.iter_mut().zip(more) {
        let mut same = 0;
        for (position, more) in row.iter_mut().zip(more) {
            let chosen = more.chosen;
            position.add_pass(more);
            same += 1;
            if position.chosen != chosen {
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

    /// Two passes that report half of the probability each: the chosen token 1, and 2 in another group of
    /// ids.
    fn two_passes(first: f64, second: [f64; 2]) -> NextTokenReport {
        let position = |entries: &[(u32, f64)]| {
            let entries = entries.iter().map(|&(id, probability)| (Some(id), f64::ln(probability)));
            vec![vec![Position::new(Some(1), entries, Alternatives::Ids(&[1]))]]
        };
        let mut rows = position(&[(1, first)]);
        merge(&mut rows, position(&[(1, second[0]), (2, second[1])]));
        answers(rows).unwrap().remove(0).report
    }

    #[test]
    fn passes_that_round_differently_are_merged_and_a_rest_that_only_one_of_them_has_is_uncertain() {
        let sum =
            |report: &NextTokenReport| report.tokens().iter().map(|token| token.logprob.exp()).sum::<f64>();
        let more = two_passes(0.51, [0.49, 0.51]);
        assert!((sum(&more) - 1.02).abs() < 1e-9 && more.uncertain() <= 0.0, "{more:?}");
        // In the second pass nothing is left for other tokens.
        let less = two_passes(0.49, [0.51, 0.49]);
        assert!((sum(&less) - 0.98).abs() < 1e-9 && (less.uncertain() - 0.02).abs() < 1e-9, "{less:?}");
        let equal = two_passes(0.5, [0.5, 0.25]);
        assert!((sum(&equal) - 0.75).abs() < 1e-9 && equal.uncertain() < 1e-9, "{equal:?}");
    }

    #[test]
    fn passes_that_are_no_rounding_of_each_other_are_an_error() {
        let position =
            |id| vec![vec![Position::new(Some(1), [(Some(id), f64::ln(0.9))], Alternatives::Ids(&[]))]];
        let mut rows = position(2);
        merge(&mut rows, position(3));
        assert!(answers(rows).is_err());
    }
}
