//! Paper mode: decoding, lengths and figures as the NTL paper's evaluation code has them, with all its peculiarities.
//!
//! Before the requests: [`beams`], [`set_decoding`], [`SpecialTokens::truncate`], [`label`], [`max_tokens`]. After them: [`evaluate`].

mod evaluation;
pub mod figures;
pub mod numbers;

use std::sync::LazyLock;

use ntl_api::CompletionRequest;
use regex::Regex;
use serde_json::json;

pub use self::evaluation::{Evaluation, evaluate};
use crate::run::answer_extraction::regex;
use crate::run::reply::Label;

/// Items that the paper's trainer evaluates at once. Its length rule and its averages depend on it.
const BATCH: usize = 64;

/// The paper's `max_length` exceeds the longest label by this and counts the token that decoding starts from.
const LENGTH_MARGIN: u64 = 10;

/// Most tokens that the paper's tokenizers keep of a question or a label.
pub const TOKENS_MAX: usize = 512;

/// Beams of the paper's search. Where numbers are values (xVal) it is greedy.
pub fn beams(number_encoding: Option<&str>) -> u64 {
    if number_encoding == Some("xval") { 1 } else { 4 }
}

pub fn set_decoding(request: &mut CompletionRequest, beams: u64) {
    if beams > 1 {
        request.others.insert("use_beam_search".to_owned(), json!(true));
        request.others.insert("beam_width".to_owned(), json!(beams));
    } else {
        request.temperature = Some(0.0);
        // With the faults of the paper's own decoding loop, which only xVal has.
        request.others.insert("paper_decoding".to_owned(), json!(true));
    }
}

/// The special tokens that a tokenizer adds to a text: those of T5 end it, those of most decoder-only models begin it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    pub before: usize,
    pub after: Vec<u32>,
}

impl SpecialTokens {
    /// From the ids of one text with special tokens and without.
    pub fn of(with: &[u32], without: &[u32]) -> Self {
        let before = with.windows(without.len().max(1)).position(|ids| ids == without).unwrap_or(0);
        let after = with.get(before + without.len()..).unwrap_or_default().to_vec();
        Self { before, after }
    }

    /// `ids` of a text without those that end every text.
    pub fn without_end<'a>(&self, ids: &'a [u32]) -> &'a [u32] {
        &ids[..ids.len().saturating_sub(self.after.len())]
    }

    /// Keeps the first tokens and those that end the text, as the paper's tokenizers do.
    pub fn truncate(&self, mut ids: Vec<u32>, tokens_max: usize) -> Vec<u32> {
        if ids.len() > tokens_max {
            let after = self.after.len().min(tokens_max);
            ids.drain(tokens_max - after..ids.len() - after);
        }
        ids
    }

    /// Leaves out tokens behind those in front of every text.
    pub fn truncate_start(&self, mut ids: Vec<u32>, tokens_max: usize) -> Vec<u32> {
        let surplus = ids.len().saturating_sub(tokens_max);
        let before = self.before.min(ids.len() - surplus);
        ids.drain(before..before + surplus);
        ids
    }
}

/// `decoded`: the text of `ids`; `written`: the answer in the data. Token ids of xVal checkpoints do not hold the numbers:
/// those of the answer take the places of the number tokens, as the paper's tokenizer prints them.
pub fn label(ids: Vec<u32>, end: Option<u32>, decoded: String, written: &str) -> Label {
    let has_number = |text: &str| text.bytes().any(|byte| byte.is_ascii_digit());
    let text = if has_number(&decoded) || !has_number(written) {
        decoded
    } else {
        with_numbers(&decoded, written).unwrap_or_else(|| written.to_owned())
    };
    Label { ids, end, text }
}

/// Fills the number tokens of `decoded` with the numbers of `written`; `None` unless there are equally many.
fn with_numbers(decoded: &str, written: &str) -> Option<String> {
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| regex(r"[0-9]+(\.[0-9]+)?"));
    let mut numbers = NUMBER.find_iter(written);
    let mut parts = decoded.split("[NUM]");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let number: f32 = numbers.next()?.as_str().parse().ok()?;
        text.push_str(&printed(number));
        text.push_str(part);
    }
    numbers.next().is_none().then_some(text)
}

/// A number as NumPy prints it in single precision: the shortest digits that read back, with an exponent from 1e16 on and
/// below 1e-4.
fn printed(number: f32) -> String {
    if number == 0.0 || (1e-4..1e16).contains(&f64::from(number)) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    match text.split_once("e-") {
        Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
        None => text.replace('e', "e+"),
    }
}

/// `max_tokens` for each item, from the token ids of all labels: every batch has the limit of its longest label. The limit has
/// room for an end of sequence, also where the labels do not hold it (`has_end`).
pub fn max_tokens(labels: &[Vec<u32>], has_end: bool) -> Vec<u64> {
    let limit = |batch: &[Vec<u32>]| {
        let longest = batch.iter().map(Vec::len).max().unwrap_or(0) as u64 + u64::from(!has_end);
        longest + LENGTH_MARGIN - 1
    };
    labels.chunks(BATCH).flat_map(|batch| vec![limit(batch); batch.len()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_tokens_lose_those_before_the_end_of_sequence_or_the_last_ones() {
        let with_end = SpecialTokens::of(&[7, 8, 1], &[7, 8]);
        assert_eq!(with_end, SpecialTokens { before: 0, after: vec![1] });
        let kept = with_end.truncate((0..600).collect(), 512);
        assert_eq!((kept.len(), kept[510], kept[511]), (512, 510, 599));
        assert_eq!(with_end.truncate(vec![1, 2], 2), [1, 2]);
        assert_eq!(with_end.truncate(vec![1, 2, 3], 1), [3]);
        let with_begin = SpecialTokens::of(&[2, 7, 8], &[7, 8]);
        assert_eq!(with_begin, SpecialTokens { before: 1, after: Vec::new() });
        assert_eq!(with_begin.truncate(vec![2, 7, 8, 9], 3), [2, 7, 8]);
        assert_eq!(SpecialTokens::of(&[7, 8], &[7, 8]), SpecialTokens::default());
        assert_eq!(SpecialTokens::of(&[], &[]), SpecialTokens::default());
        assert_eq!(with_begin.truncate_start(vec![2, 7, 8, 9], 3), [2, 8, 9]);
        assert_eq!(with_end.truncate_start(vec![7, 8, 9, 1], 2), [9, 1]);
        assert_eq!(with_begin.truncate_start(vec![2, 7], 2), [2, 7]);
        assert_eq!(with_begin.truncate_start(vec![2, 7], 1), [2]);
    }

    #[test]
    fn a_label_whose_tokens_do_not_hold_its_numbers_gets_them_as_the_paper_prints_them() {
        let text = |decoded: &str, written| label(Vec::new(), Some(1), decoded.to_owned(), written).text;
        assert_eq!(text("- [NUM]", "-647"), "- 647.0");
        assert_eq!(text("- [NUM]/ [NUM]", "-7/2"), "- 7.0/ 2.0");
        assert_eq!(text("[NUM]", "123456789"), "123456790.0");
        assert_eq!(text("[NUM]", "0.00001"), "1e-05");
        assert_eq!(text("[NUM]", "100000000000000000000"), "1e+20");
        // Not as many tokens as numbers: the written text is the best that is known.
        assert_eq!(text("- [NUM]", "-7/2"), "-7/2");
        assert_eq!(text("- 142", "-142"), "- 142");
        assert_eq!(text("none", "none"), "none");
    }
}
