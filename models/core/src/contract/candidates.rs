//! Several targets after one prompt, as a tree of rows.

use std::collections::HashMap;

use crate::token::Token;

/// Targets to score by their log-probabilities alone. Targets that share a prefix share its rows.
#[derive(Debug, Clone, PartialEq)]
pub struct CandidatesJob {
    rows: Vec<CandidateRow>,
    tokens: usize,
    tokens_max: usize,
}

/// A prefix of some candidates.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CandidateRow {
    /// The row of the prefix without its last token; `None` for the empty prefix, which is the first row.
    pub(crate) parent: Option<u32>,
    /// The last token of the prefix; for the empty prefix, the model's first token.
    pub(crate) token: Option<Token>,
    pub(crate) next: Vec<CandidateToken>,
}

/// A token that follows a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CandidateToken {
    pub(crate) id: u32,
    /// Its place among all tokens of all candidates.
    pub(crate) place: usize,
}

impl CandidatesJob {
    pub fn new(candidates: &[Vec<Token>]) -> Self {
        let mut rows = vec![CandidateRow { parent: None, token: None, next: Vec::new() }];
        let mut children: HashMap<(u32, u32, Option<u32>), u32> = HashMap::new();
        let mut place = 0;
        for candidate in candidates {
            let mut row = 0_u32;
            for (index, &token) in candidate.iter().enumerate() {
                rows[row as usize].next.push(CandidateToken { id: token.id, place });
                place += 1;
                if index + 1 < candidate.len() {
                    let key = (row, token.id, token.value.map(f32::to_bits));
                    row = *children.entry(key).or_insert_with(|| {
                        rows.push(CandidateRow { parent: Some(row), token: Some(token), next: Vec::new() });
                        rows.len() as u32 - 1
                    });
                }
            }
        }
        let tokens_max = candidates.iter().map(Vec::len).max().unwrap_or(0);
        Self { rows, tokens: place, tokens_max }
    }

    /// The prefixes, each after its parent.
    pub(crate) fn rows(&self) -> &[CandidateRow] {
        &self.rows
    }

    /// Number of tokens of all candidates.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Number of tokens of the longest candidate.
    pub fn tokens_max(&self) -> usize {
        self.tokens_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_that_share_a_prefix_share_rows() {
        let candidates = [&[7, 8, 9][..], &[7, 8, 10, 11], &[7], &[12, 8], &[]];
        let candidates = candidates.map(|ids| ids.iter().copied().map(Token::from).collect());
        let job = CandidatesJob::new(&candidates);
        let rows = job.rows();
        let prefixes: Vec<_> = rows.iter().map(|row| (row.parent, row.token.map(|token| token.id))).collect();
        let want =
            [(None, None), (Some(0), Some(7)), (Some(1), Some(8)), (Some(2), Some(10)), (Some(0), Some(12))];
        assert_eq!(prefixes, want);
        let next =
            |row: usize| rows[row].next.iter().map(|token| (token.id, token.place)).collect::<Vec<_>>();
        assert_eq!(next(0), [(7, 0), (7, 3), (7, 7), (12, 8)]);
        assert_eq!(next(2), [(9, 2), (10, 5)]);
        assert_eq!((job.tokens(), job.tokens_max()), (10, 4));
    }

    #[test]
    fn tokens_of_different_values_are_different_prefixes() {
        let token = |value| Token { id: 3, value: Some(value) };
        let job = CandidatesJob::new(&[vec![token(1.0), token(1.0)], vec![token(2.0), token(1.0)]]);
        assert_eq!(job.rows().len(), 3);
    }
}
