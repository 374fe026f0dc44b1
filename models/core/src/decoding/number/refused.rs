//! The most probable texts that a model writes instead of a number, for the reason of a missing number.

use std::collections::HashMap;
use std::sync::Arc;

use crate::contract::RefusedText;
use crate::numbers::{NumberState, Refused, RefusedEnd};
use crate::text::TextDecoder;

/// Maximum number of reported texts.
pub(super) const REFUSED_MAX: usize = 3;

pub(super) struct RefusedTexts {
    decoder: Arc<dyn TextDecoder>,
    /// Probabilities by text.
    probabilities: HashMap<String, f64>,
}

impl RefusedTexts {
    pub(super) fn new(decoder: Arc<dyn TextDecoder>) -> Self {
        Self { decoder, probabilities: HashMap::new() }
    }

    /// Adds the texts that follow a prefix of this probability.
    pub(super) fn add(&mut self, state: NumberState, probability: f64, refused: &[Refused]) {
        for refused in refused {
            let end = match refused.end {
                RefusedEnd::Token(id) => self.decoder.token_text(id),
                RefusedEnd::Value => String::new(),
                RefusedEnd::Others => "\u{2026}".to_owned(),
            };
            let text = state.written() + &end;
            *self.probabilities.entry(text).or_default() += probability * refused.probability;
        }
    }

    pub(super) fn most_probable(&self) -> Vec<RefusedText> {
        let texts = self.probabilities.iter();
        best(texts.map(|(text, &probability)| RefusedText { text: text.clone(), probability }).collect())
    }
}

/// The most probable texts of several searches of equal weight.
pub(super) fn average(searches: &[&[RefusedText]]) -> Vec<RefusedText> {
    let share = 1.0 / searches.len().max(1) as f64;
    let mut probabilities: HashMap<&str, f64> = HashMap::new();
    for RefusedText { text, probability } in searches.iter().copied().flatten() {
        *probabilities.entry(text).or_default() += probability * share;
    }
    let texts = probabilities.into_iter();
    best(texts.map(|(text, probability)| RefusedText { text: text.to_owned(), probability }).collect())
}

fn best(mut texts: Vec<RefusedText>) -> Vec<RefusedText> {
    texts.sort_by(|a, b| b.probability.total_cmp(&a.probability).then_with(|| a.text.cmp(&b.text)));
    texts.truncate(REFUSED_MAX);
    texts
}
