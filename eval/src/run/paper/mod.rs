//! Paper mode: decoding, lengths and figures as the NTL paper's evaluation code has them, with all its peculiarities.
//!
//! Before the requests: [`beams`], [`set_decoding`], [`truncate`], [`label`], [`max_tokens`]. After them: [`evaluate`].

mod evaluation;
pub mod figures;
pub mod numbers;

use ntl_api::CompletionRequest;
use serde_json::json;

pub use self::evaluation::{Evaluation, evaluate};
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

/// Keeps the first tokens and the end of sequence, as the paper's tokenizers do.
pub fn truncate(mut ids: Vec<u32>, tokens_max: usize) -> Vec<u32> {
    if ids.len() > tokens_max {
        ids.drain(tokens_max - 1..ids.len() - 1);
    }
    ids
}

/// `decoded`: the text of `ids`; `written`: the answer in the data. Token ids of xVal checkpoints do not hold the numbers;
/// such a label keeps its written text.
pub fn label(ids: Vec<u32>, decoded: String, written: &str) -> Label {
    let has_number = |text: &str| text.bytes().any(|byte| byte.is_ascii_digit());
    let text = if has_number(&decoded) || !has_number(written) { decoded } else { written.to_owned() };
    Label { ids, text }
}

/// `max_tokens` for each item, from the token ids of all labels: every batch has the limit of its longest label.
pub fn max_tokens(labels: &[Vec<u32>]) -> Vec<u64> {
    let limit = |batch: &[Vec<u32>]| batch.iter().map(Vec::len).max().unwrap_or(0) as u64 + LENGTH_MARGIN - 1;
    labels.chunks(BATCH).flat_map(|batch| vec![limit(batch); batch.len()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_tokens_lose_those_before_the_last() {
        let kept = truncate((0..600).collect(), 512);
        assert_eq!((kept.len(), kept[510], kept[511]), (512, 510, 599));
        assert_eq!((truncate(vec![1, 2], 2), truncate(vec![1, 2, 3], 1)), (vec![1, 2], vec![3]));
    }

    #[test]
    fn a_label_whose_tokens_do_not_hold_its_number_keeps_its_written_text() {
        let text = |decoded: &str, written| label(Vec::new(), decoded.to_owned(), written).text;
        assert_eq!(text("- [NUM]", "-142"), "-142");
        assert_eq!(text("- 142", "-142"), "- 142");
        assert_eq!(text("none", "none"), "none");
    }
}
