//! The paper's evaluation code as a [`Protocol`].

use ntl_api::CompletionRequest;
use serde_json::json;

use crate::figures::is_close;
use crate::numbers::{last_number, number_pair};
use crate::protocol::{Case, Figure, NumberPair, Protocol};
use crate::{evaluation, labels};

/// Maximum number of tokens that the paper's tokenizers keep of a question or a label.
const TOKENS_MAX: usize = 512;

/// The evaluation code of the NTL paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paper {
    beams: u64,
}

impl Paper {
    /// Returns the protocol for a model with this `number_encoding`. If numbers are values (`xval`), the
    /// search is greedy.
    pub fn new(number_encoding: Option<&str>) -> Self {
        Self { beams: if number_encoding == Some("xval") { 1 } else { 4 } }
    }
}

impl Protocol for Paper {
    fn set_decoding(&self, request: &mut CompletionRequest) {
        if self.beams > 1 {
            request.others.insert("use_beam_search".to_owned(), json!(true));
            request.others.insert("beam_width".to_owned(), json!(self.beams));
        } else {
            request.temperature = Some(0.0);
            // Reproduces the bugs of the paper's own decoding loop, which only xVal uses.
            request.others.insert("paper_decoding".to_owned(), json!(true));
        }
    }

    fn missing_decoding(&self, rejection: &str) -> Option<&'static str> {
        rejection.to_lowercase().contains("beam").then_some("beam search")
    }

    fn tokens_max(&self) -> usize {
        TOKENS_MAX
    }

    fn answer_tokens_max(&self, labels: &[Vec<u32>], has_end: bool) -> Vec<u64> {
        labels::answer_tokens_max(labels, has_end)
    }

    fn label_text(&self, decoded: String, written: &str) -> String {
        labels::text(decoded, written)
    }

    fn number_rule(&self) -> &'static str {
        "paper_last_number"
    }

    fn read(&self, answer: Option<&str>, reference: &str) -> NumberPair {
        let Some(truth) = last_number(reference).ok().flatten() else { return NumberPair::default() };
        let pair = answer.and_then(|answer| number_pair(answer, reference).ok());
        let value = pair.map(|(value, _)| value).filter(|value| value.is_finite());
        let is_correct = value.is_some_and(|value| is_close(value, truth));
        NumberPair { truth: Some(truth), value, is_correct }
    }

    fn figures<'a>(&self, cases: &[Case<'a>], seed: u64) -> Vec<Figure<'a>> {
        evaluation::figures(cases, self.beams, seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_s_numbers_are_close_or_the_last_ones() {
        let read = |answer, reference| Paper::new(None).read(Some(answer), reference);
        let pair =
            |truth, value, is_correct| NumberPair { truth: Some(truth), value: Some(value), is_correct };
        assert_eq!(read("1,234", "1234"), pair(1234.0, 234.0, false));
        assert_eq!(read("1000009", "1000000"), pair(1e6, 1_000_009.0, true));
        assert_eq!(read("3/2", "-7/2"), pair(2.0, 2.0, true));
        assert_eq!(read("5", "k"), NumberPair::default());
    }
}
