//! Drives one decoding with queries: rows become prompts with paths, and reports become logits.
//!
//! Round trips cost more than tokens. A request holds all rows that the decoding can use now, and the engine
//! appends a few probable tokens to each of them. Reports after these tokens answer later rows without a
//! request.

use std::collections::HashMap;
use std::sync::Arc;

use ntl_core::contract::{Continuation, EngineError, Event, Logits, NextTokenReport, NodeId, PathRow};
use ntl_core::decoding::{Decoding, Progress, StepResult};
use ntl_core::numbers::NumberValues;

use super::requests::Requests;
use super::{Ahead, NextTokenAnswer, NextTokenQuery};

/// Maximum number of rows of one step.
pub(super) const ROWS_MAX: usize = 64;

/// Maximum number of log-probabilities that are kept for later rows. An engine may report a whole vocabulary
/// after each token.
pub(super) const KNOWN_MAX: usize = 64 << 10;

/// Numbers of greedy tokens to compute together with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookAhead {
    /// After a prompt.
    pub first: usize,
    /// After a longer prefix of a number.
    pub others: usize,
}

impl LookAhead {
    pub const NONE: Self = Self { first: 0, others: 0 };

    /// Limits the tokens to those that a number on a scale can have. Each of them writes a character.
    pub(super) fn within(self, values: NumberValues) -> Self {
        let NumberValues::Scale(scale) = values else { return self };
        let characters = scale.values().map(|value| value.to_string().len()).max().unwrap_or(0);
        // A space may come before the number.
        let max = characters + 1;
        Self { first: self.first.min(max), others: self.others.min(max - 1) }
    }
}

impl Default for LookAhead {
    fn default() -> Self {
        Self { first: 5, others: 1 }
    }
}

/// Runs a decoding after `prompt` and `text` to its end, and returns its events.
pub(super) async fn decode(
    requests: &Requests<'_>,
    prompt: &Arc<[u32]>,
    text: Vec<u32>,
    decoding: &mut dyn Decoding,
    look_ahead: LookAhead,
) -> Result<Vec<Event>, EngineError> {
    let prompt = Arc::clone(prompt);
    let mut rows = Rows { prompt, text, nodes: Vec::new(), known: HashMap::new(), look_ahead };
    let mut events = Vec::new();
    loop {
        let first_node = rows.nodes.len();
        let queries = rows.add(&decoding.next_rows(ROWS_MAX));
        if !queries.is_empty() {
            let asked = queries.clone();
            for (query, answer) in asked.into_iter().zip(requests.ask(queries).await?) {
                rows.learn(query, answer);
            }
        }
        let logits = Logits::reported(rows.take_reports(first_node)?);
        let result = StepResult { logits: &logits, first_row: 0, first_node: NodeId(first_node as u32) };
        if decoding.advance(result, &mut events)? == Progress::Done {
            return Ok(events);
        }
    }
}

struct Rows {
    prompt: Arc<[u32]>,
    /// The ids between the prompt and the first row.
    text: Vec<u32>,
    nodes: Vec<Node>,
    /// Reports by path, for the rows of this step and of later ones.
    known: HashMap<Vec<u32>, NextTokenReport>,
    look_ahead: LookAhead,
}

/// A row of a decoding: the token `id` after another row. The first row has no parent, and its token is the
/// last one of the prompt.
#[derive(Clone, Copy)]
struct Node {
    parent: Option<usize>,
    id: u32,
}

impl Rows {
    /// The ids after the prompt and the text up to a node.
    fn path(&self, node: Node) -> Vec<u32> {
        let mut path = Vec::new();
        let mut next = Some(node);
        while let Some(Node { parent: Some(parent), id }) = next {
            path.push(id);
            next = self.nodes.get(parent).copied();
        }
        path.reverse();
        path
    }

    /// Adds the rows of a step as nodes. Returns queries for those without a known report.
    fn add(&mut self, rows: &[PathRow]) -> Vec<NextTokenQuery> {
        let mut queries = Vec::new();
        for row in rows {
            let node = Node { parent: row.parent.map(NodeId::index), id: row.token.id };
            self.nodes.push(node);
            let path = self.path(node);
            if !self.known.contains_key(&path) {
                let LookAhead { first, others } = self.look_ahead;
                let ahead = match &row.continuation {
                    Continuation::Any if path.is_empty() => Ahead::greedy(first),
                    Continuation::Any => Ahead::greedy(others),
                    Continuation::Among(ids) if others > 0 => {
                        Ahead { tokens: others, among: Some(Arc::clone(ids)) }
                    }
                    Continuation::Among(_) | Continuation::Unlikely => Ahead::NONE,
                };
                let (prompt, wanted) = (Arc::clone(&self.prompt), row.logits.clone());
                let path = [self.text.as_slice(), &path].concat();
                queries.push(NextTokenQuery { prompt, path, wanted, ahead });
            }
        }
        queries
    }

    /// Keeps the reports of an answer.
    fn learn(&mut self, query: NextTokenQuery, answer: NextTokenAnswer) {
        let mut path = query.path.get(self.text.len()..).unwrap_or_default().to_vec();
        self.known.insert(path.clone(), answer.report);
        for step in answer.ahead.into_iter().take(query.ahead.tokens) {
            path.push(step.token);
            // A row of the same step may have the same path.
            self.known.entry(path.clone()).or_insert(step.report);
        }
    }

    /// Returns the reports of the nodes from `first_node` on.
    fn take_reports(&mut self, first_node: usize) -> Result<Vec<NextTokenReport>, EngineError> {
        let mut reports = Vec::new();
        for index in first_node..self.nodes.len() {
            let path = self.path(self.nodes[index]);
            let Some(report) = self.known.remove(&path) else {
                return Err(EngineError::Step("a prefix of the number was computed twice".to_owned()));
            };
            reports.push(report);
        }
        self.forget_excess();
        Ok(reports)
    }

    /// Drops all kept reports if they are too many. Their rows become queries again.
    fn forget_excess(&mut self) {
        if self.known.values().map(|report| report.tokens().len()).sum::<usize>() > KNOWN_MAX {
            self.known.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use ntl_core::contract::TokenLogprob;
    use ntl_core::numbers::Scale;

    use super::*;

    #[test]
    fn a_rating_needs_no_more_tokens_ahead_than_its_longest_text_has_characters() {
        let scale = |low, high, step| NumberValues::Scale(Scale::new(low, high, step).unwrap());
        let ahead = |values| LookAhead { first: 5, others: 3 }.within(values);
        assert_eq!(ahead(scale(1.0, 9.0, 1.0)), LookAhead { first: 2, others: 1 });
        assert_eq!(ahead(scale(0.0, 2.0, 0.5)), LookAhead { first: 4, others: 3 });
        assert_eq!(ahead(NumberValues::All), LookAhead { first: 5, others: 3 });
    }

    #[test]
    fn reports_for_later_rows_are_kept_up_to_a_number_of_log_probabilities() {
        let kept = |reports: usize, tokens: usize| {
            let tokens = (0..tokens as u32).map(|id| TokenLogprob { id, logprob: -30.0 });
            let report = NextTokenReport::new(tokens, None).unwrap();
            let known = (0..reports as u32).map(|id| (vec![id], report.clone())).collect();
            let (text, nodes, look_ahead) = (Vec::new(), Vec::new(), LookAhead::NONE);
            let mut rows = Rows { prompt: [1].into(), text, nodes, known, look_ahead };
            assert!(rows.take_reports(0).unwrap().is_empty());
            rows.known.len()
        };
        assert_eq!(kept(4, KNOWN_MAX / 4), 4);
        assert_eq!(kept(5, KNOWN_MAX / 4), 0);
    }
}
