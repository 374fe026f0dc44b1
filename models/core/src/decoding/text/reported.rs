//! A structured text that another engine writes, token by token or some at a time. The guide and the trees
//! of its numbers are ours.
//!
//! The engine offers the tokens that it would write without a guide. The text accepts those that the guide
//! allows. After a refused one, it needs one of the allowed tokens. A token that is drawn at random has the
//! distribution of a guided text in both cases.

use super::path::{Path, Rules, nothing_can_follow};
use super::{Decoding, Vocabulary};
use crate::contract::{EngineError, Event, NodeId, NumberOutcome, PathRow, TextJob};

/// Maximum number of ids among which the engine chooses without offering a token first. Positions with few
/// choices are the structure of JSON, which an engine that does not know the guide rarely writes.
const CHOICES_MAX: usize = 128;

/// One text of a job.
pub struct ReportedText {
    path: Path,
    rules: Rules,
    vocabulary: Vocabulary,
    /// The tokens so far.
    ids: Vec<u32>,
    /// Whether the token that the engine offered last is not allowed.
    has_refused: bool,
}

/// The ids that may come next.
enum Choices {
    /// More than [`CHOICES_MAX`].
    Many,
    Few(Vec<u32>),
}

/// The next need of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextNeed {
    /// Tokens that the engine writes after the text, as many as are likely to be taken.
    Tokens,
    /// One of these ids (ascending).
    TokenAmong(Vec<u32>),
    /// The outcome of [`ReportedText::search`].
    Number,
    /// Nothing: it is complete.
    Nothing,
}

impl ReportedText {
    /// Begins the text `number` of a job.
    ///
    /// # Errors
    /// If the job needs what the engine does not report.
    pub(in crate::decoding) fn new(
        job: &TextJob,
        vocabulary: &Vocabulary,
        number: u32,
    ) -> Result<Self, EngineError> {
        let sampling = &job.sampling;
        for (field, is_given) in [
            ("logprobs", job.logprobs.is_some()),
            ("prompt_logprobs", job.prompt_logprobs.is_some()),
            ("best_of", job.paths() > job.n),
            ("logit_bias", !job.logit_bias.is_empty()),
            // The engine would count the tokens of one request only.
            ("presence_penalty", sampling.presence_penalty.abs() > 0.0),
            ("frequency_penalty", sampling.frequency_penalty.abs() > 0.0),
        ] {
            if is_given {
                let message =
                    format!("`{field}` is not supported with numbers in a text that another engine writes");
                return Err(EngineError::Unsupported(message));
            }
        }
        let rules = Rules::new(job, vocabulary, true);
        let path = Path::new(number, job, &rules, vocabulary, &[]);
        Ok(Self { path, rules, vocabulary: vocabulary.clone(), ids: Vec::new(), has_refused: false })
    }

    /// The tokens so far.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Maximum number of further tokens.
    pub fn tokens_left(&self) -> usize {
        self.rules.max_tokens.saturating_sub(self.path.decoded)
    }

    /// Takes the tokens that are certain, and returns what the text needs after them.
    ///
    /// # Errors
    /// If no token can follow.
    pub fn need(&mut self, events: &mut Vec<Event>) -> Result<TextNeed, EngineError> {
        if self.rules.max_tokens == 0 && !self.path.finished {
            self.path.end_at_once(events);
        }
        while !self.path.finished && !self.path.is_searching() {
            let id = match self.path.spelled() {
                Some(id) => id,
                None => match self.choices()? {
                    Choices::Many => return Ok(TextNeed::Tokens),
                    Choices::Few(ids) => match *ids {
                        [id] => id,
                        _ => return Ok(TextNeed::TokenAmong(ids)),
                    },
                },
            };
            self.accept(id, events)?;
        }
        Ok(if self.path.finished { TextNeed::Nothing } else { TextNeed::Number })
    }

    /// The ids that may come next, unless there are many and the engine may offer one of them.
    fn choices(&mut self) -> Result<Choices, EngineError> {
        let mut ids = self.path.allowed(self.vocabulary.tokens, &self.rules)?;
        if ids.len() > CHOICES_MAX && !self.has_refused {
            return Ok(Choices::Many);
        }
        ids.retain(|&id| !self.path.begins_inside(id, &self.rules));
        if ids.is_empty() { Err(nothing_can_follow()) } else { Ok(Choices::Few(ids)) }
    }

    /// Takes a token that the engine has written, unless it is not allowed. Returns whether the text can take
    /// a token after it: none can follow if it was refused or begins a number, or if the text is complete.
    ///
    /// # Errors
    /// If no token can follow.
    pub fn offer(&mut self, id: u32, events: &mut Vec<Event>) -> Result<bool, EngineError> {
        let is_allowed = self.path.allowed(self.vocabulary.tokens, &self.rules)?.binary_search(&id).is_ok();
        self.has_refused = !is_allowed || self.path.begins_inside(id, &self.rules);
        if self.has_refused { Ok(false) } else { self.accept(id, events) }
    }

    /// Adds a token that is allowed, or begins a number with it. Returns whether another one can follow now.
    fn accept(&mut self, id: u32, events: &mut Vec<Event>) -> Result<bool, EngineError> {
        if let Some(start) = self.path.field_start(id, PathRow::new(None, 0), &self.rules) {
            self.path.begin_reported_search(start, &self.rules);
            return Ok(false);
        }
        self.ids.push(id);
        self.has_refused = false;
        // Nodes are for engines that keep them.
        self.path.take(id.into(), NodeId(0), None, &self.rules, events)?;
        Ok(!self.path.finished)
    }

    /// The search of the number that it needs. It begins after the prompt and [`ReportedText::ids`].
    pub fn search(&mut self) -> Option<&mut dyn Decoding> {
        self.path.search()
    }

    /// Gives it the outcome of the search.
    pub fn found(&mut self, outcome: NumberOutcome) {
        self.path.end_search(outcome, &self.rules);
    }
}
