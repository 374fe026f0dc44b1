//! Truncation of prompts that have too many tokens, and the targets after them.

use ntl_api::TruncationSide;

use crate::run::request::{Overrides, TruncatedPrompt};

/// The part of a long prompt that is sent.
#[derive(Debug, Clone, Copy)]
pub struct Truncation {
    /// Maximum number of tokens, special tokens included.
    pub tokens_max: usize,
    /// The end that loses tokens.
    pub side: TruncationSide,
}

/// The special tokens that a tokenizer adds to a text: at the end for T5, at the beginning for most
/// decoder-only models.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SpecialTokens {
    pub(super) before: usize,
    pub(super) after: Vec<u32>,
}

impl SpecialTokens {
    /// Finds the special tokens from the ids of one text with and without them.
    pub(super) fn of(with: &[u32], without: &[u32]) -> Self {
        let before = with.windows(without.len().max(1)).position(|ids| ids == without).unwrap_or(0);
        let after = with.get(before + without.len()..).unwrap_or_default().to_vec();
        Self { before, after }
    }

    /// Returns `ids` of a text without the special tokens at its end.
    pub(super) fn without_end<'a>(&self, ids: &'a [u32]) -> &'a [u32] {
        &ids[..ids.len().saturating_sub(self.after.len())]
    }

    /// Shortens `ids` of a text to the maximum number of tokens.
    pub(super) fn truncate(&self, ids: Vec<u32>, Truncation { tokens_max, side }: Truncation) -> Vec<u32> {
        match side {
            TruncationSide::Left => self.truncate_start(ids, tokens_max),
            TruncationSide::Right => self.truncate_end(ids, tokens_max),
        }
    }

    /// Keeps the first tokens and the special tokens at the end.
    fn truncate_end(&self, mut ids: Vec<u32>, tokens_max: usize) -> Vec<u32> {
        if ids.len() > tokens_max {
            let after = self.after.len().min(tokens_max);
            ids.drain(tokens_max - after..ids.len() - after);
        }
        ids
    }

    /// Keeps the last tokens and the special tokens before the text.
    fn truncate_start(&self, mut ids: Vec<u32>, tokens_max: usize) -> Vec<u32> {
        let surplus = ids.len().saturating_sub(tokens_max);
        let before = self.before.min(ids.len() - surplus);
        ids.drain(before..before + surplus);
        ids
    }
}

/// Sets the target of a truncated prompt. `joint` holds the token ids of the whole prompt and its true answer
/// as one text. If there is no token boundary between the two, the target begins with the first token that
/// differs from the prompt's. A prompt that was truncated on the left then loses the tokens that are part of
/// the target.
pub(super) fn set_target(
    prepared: &mut Overrides,
    joint: &[u32],
    special: &SpecialTokens,
    side: TruncationSide,
) {
    let Some(TruncatedPrompt { whole, kept }) = &mut prepared.prompt else { return };
    let whole = special.without_end(whole);
    let joint = special.without_end(joint);
    let common = whole.iter().zip(joint).take_while(|(a, b)| a == b).count();
    let prompt = special.without_end(kept);
    let target = &joint[common..];
    *kept = match side {
        TruncationSide::Left => prompt.strip_suffix(&whole[common..]).unwrap_or(prompt).to_vec(),
        TruncationSide::Right => prompt.to_vec(),
    };
    prepared.target_ids = Some(target.to_vec());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_removes_the_tokens_before_the_end_of_sequence_or_the_last_ones() {
        let with_end = SpecialTokens::of(&[7, 8, 1], &[7, 8]);
        assert_eq!(with_end, SpecialTokens { before: 0, after: vec![1] });
        let kept = with_end.truncate_end((0..600).collect(), 512);
        assert_eq!((kept.len(), kept[510], kept[511]), (512, 510, 599));
        assert_eq!(with_end.truncate_end(vec![1, 2], 2), [1, 2]);
        assert_eq!(with_end.truncate_end(vec![1, 2, 3], 1), [3]);
        let with_begin = SpecialTokens::of(&[2, 7, 8], &[7, 8]);
        assert_eq!(with_begin, SpecialTokens { before: 1, after: Vec::new() });
        assert_eq!(with_begin.truncate_end(vec![2, 7, 8, 9], 3), [2, 7, 8]);
        assert_eq!(SpecialTokens::of(&[7, 8], &[7, 8]), SpecialTokens::default());
        assert_eq!(SpecialTokens::of(&[], &[]), SpecialTokens::default());
        assert_eq!(with_begin.truncate_start(vec![2, 7, 8, 9], 3), [2, 8, 9]);
        assert_eq!(with_end.truncate_start(vec![7, 8, 9, 1], 2), [9, 1]);
        assert_eq!(with_begin.truncate_start(vec![2, 7], 2), [2, 7]);
        assert_eq!(with_begin.truncate_start(vec![2, 7], 1), [2]);
    }

    #[test]
    fn a_target_after_a_truncated_prompt_has_the_tokens_of_the_whole_text() {
        let target = |joint: &[u32], end: &[u32]| {
            let whole = [&[2, 5, 6, 7], end].concat();
            let kept = [&[2, 6, 7], end].concat();
            let prompt = Some(TruncatedPrompt { whole, kept });
            let mut prepared = Overrides { prompt, ..Overrides::default() };
            let special = SpecialTokens { before: 1, after: end.to_vec() };
            set_target(&mut prepared, joint, &special, TruncationSide::Left);
            (prepared.prompt.unwrap().kept, prepared.target_ids.unwrap())
        };
        assert_eq!(target(&[2, 5, 6, 7, 8, 9], &[]), (vec![2, 6, 7], vec![8, 9]));
        // The end of the prompt and the beginning of the answer are one token.
        assert_eq!(target(&[2, 5, 6, 78, 9], &[]), (vec![2, 6], vec![78, 9]));
        assert_eq!(target(&[2, 5, 6, 7, 8, 1], &[1]), (vec![2, 6, 7], vec![8]));
    }
}
