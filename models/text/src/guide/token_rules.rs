//! The tokens that a text may have, in addition to a constraint.

use std::sync::Arc;

use ntl_core::guide::{FieldEffect, Guide, GuideError, GuideState, SchemaField};

use super::failed;
use crate::tokenizer::Tokenizer;

/// Words and token ids that restrict a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenRules {
    /// The only ids that a text may have; empty for all.
    pub allowed: Vec<u32>,
    /// No text has these words, as they are tokenized at the beginning of a text, after other text and after
    /// a space.
    pub bad_words: Vec<String>,
}

impl TokenRules {
    pub fn is_empty(&self) -> bool {
        self.allowed.is_empty() && self.bad_words.is_empty()
    }

    /// Returns a guide with these rules in addition to the rules in `inner`.
    ///
    /// # Errors
    /// If a word cannot be tokenized.
    pub fn guide(
        &self,
        tokenizer: &Tokenizer,
        inner: Option<Arc<dyn Guide>>,
    ) -> Result<Arc<dyn Guide>, GuideError> {
        let mut banned = Vec::new();
        for word in &self.bad_words {
            banned.extend(spellings(word, tokenizer)?);
        }
        let mut allowed = self.allowed.clone();
        allowed.sort_unstable();
        allowed.dedup();
        Ok(Arc::new(Restricted { allowed: allowed.into(), banned: banned.into(), inner }))
    }
}

/// Text before a word that does not merge with it.
const BEFORE: &str = ")";

/// The token ids of a word at the beginning of a text, after other text, and after a space. As in vLLM, the
/// last spelling counts only if it has another first token and as many tokens.
fn spellings(word: &str, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>, GuideError> {
    let encode = |text: &str| tokenizer.encode(text, false).map_err(failed);
    let plain = encode(word)?;
    let spaced = encode(&format!(" {}", word.trim_start()))?;
    let inside = encode(&format!("{BEFORE}{word}"))?.strip_prefix(&*encode(BEFORE)?).map(<[u32]>::to_vec);
    let is_other = plain.len() == spaced.len() && plain.first() != spaced.first();
    let mut all: Vec<Vec<u32>> =
        [inside, is_other.then_some(spaced), Some(plain)].into_iter().flatten().collect();
    all.retain(|ids| !ids.is_empty());
    all.dedup();
    Ok(all)
}

#[derive(Debug)]
struct Restricted {
    /// Sorted.
    allowed: Arc<[u32]>,
    banned: Arc<[Vec<u32>]>,
    inner: Option<Arc<dyn Guide>>,
}

impl Guide for Restricted {
    fn start(&self) -> Box<dyn GuideState> {
        Box::new(RestrictedPath {
            allowed: Arc::clone(&self.allowed),
            banned: Arc::clone(&self.banned),
            written: Vec::new(),
            inner: self.inner.as_ref().map(|inner| inner.start()),
        })
    }
}

struct RestrictedPath {
    allowed: Arc<[u32]>,
    banned: Arc<[Vec<u32>]>,
    written: Vec<u32>,
    inner: Option<Box<dyn GuideState>>,
}

impl RestrictedPath {
    /// Returns whether these ids may come next.
    fn allows(&self, ids: &[u32]) -> bool {
        let mut written = self.written.clone();
        for id in ids {
            written.push(*id);
            let is_allowed = self.allowed.is_empty() || self.allowed.binary_search(id).is_ok();
            if !is_allowed || self.banned.iter().any(|banned| written.ends_with(banned)) {
                return false;
            }
        }
        true
    }
}

impl GuideState for RestrictedPath {
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), GuideError> {
        if let Some(inner) = &mut self.inner {
            inner.restrict(logits)?;
        }
        if !self.allowed.is_empty() {
            let kept: Vec<f32> =
                self.allowed.iter().filter_map(|&id| logits.get(id as usize).copied()).collect();
            logits.fill(f32::NEG_INFINITY);
            for (&id, logit) in self.allowed.iter().zip(kept) {
                if let Some(place) = logits.get_mut(id as usize) {
                    *place = logit;
                }
            }
        }
        for (last, before) in self.banned.iter().filter_map(|ids| ids.split_last()) {
            if self.written.ends_with(before)
                && let Some(place) = logits.get_mut(*last as usize)
            {
                *place = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), GuideError> {
        self.written.push(id);
        self.inner.as_mut().map_or(Ok(()), |inner| inner.accept(id))
    }

    fn is_complete(&mut self) -> bool {
        self.inner.as_mut().is_some_and(|inner| inner.is_complete())
    }

    fn field_effect(&self, id: u32) -> FieldEffect {
        self.inner.as_ref().map_or(FieldEffect::None, |inner| inner.field_effect(id))
    }

    fn narrow(&mut self, field: &mut SchemaField) {
        if let Some(inner) = &mut self.inner {
            inner.narrow(field);
        }
    }

    fn spell(&mut self, text: &str) -> Option<Vec<u32>> {
        let ids = self.inner.as_mut()?.spell(text)?;
        self.allows(&ids).then_some(ids)
    }

    fn spell_value(&mut self, text: &str) -> Option<Vec<u32>> {
        let ids = self.inner.as_mut()?.spell_value(text)?;
        self.allows(&ids).then_some(ids)
    }

    fn end_number(&mut self) {
        if let Some(inner) = &mut self.inner {
            inner.end_number();
        }
    }
}
