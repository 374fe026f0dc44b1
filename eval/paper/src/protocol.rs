//! The interface between an evaluation and a protocol.

use std::fmt;

use ntl_api::CompletionRequest;

use crate::bleu::NgramCounts;
use crate::rouge::Rouge;

/// Replaces an evaluation's own decoding, length limits and figures.
pub trait Protocol: fmt::Debug {
    /// Sets the fields of a request that select the decoding.
    fn set_decoding(&self, request: &mut CompletionRequest);

    /// Returns the name of the decoding if the server lacks it according to the error message `rejection`.
    fn missing_decoding(&self, rejection: &str) -> Option<&'static str>;

    /// Maximum number of tokens of a prompt and of a label, special tokens included. Longer ones lose their
    /// last tokens.
    fn tokens_max(&self) -> usize;

    /// Returns the maximum number of tokens of each answer, from the token ids of all labels in the order of
    /// the items. `has_end`: whether the labels contain an end of sequence.
    fn answer_tokens_max(&self, labels: &[Vec<u32>], has_end: bool) -> Vec<u64>;

    /// Returns the text of a label. `decoded` is the text of its token ids, and `written` the true answer in
    /// the data.
    fn label_text(&self, decoded: String, written: &str) -> String;

    /// The name of the rule by which [`Self::read`] finds numbers.
    fn number_rule(&self) -> &'static str;

    /// Reads the number of a true answer, and the number of the answer to its item.
    fn read(&self, answer: Option<&str>, reference: &str) -> NumberPair;

    /// Returns the figures of a run, from all its items in their order. `seed`: of random resamples.
    fn figures<'a>(&self, cases: &[Case<'a>], seed: u64) -> Vec<Figure<'a>>;
}

/// The numbers of an item.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NumberPair {
    /// The true number, if the true answer has one.
    pub truth: Option<f64>,
    /// The predicted number, which is finite. `None` without a true number.
    pub value: Option<f64>,
    /// Whether the two count as equal.
    pub is_correct: bool,
}

/// One item of a run.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// The text of the true answer.
    pub reference: &'a str,
    /// Whether the data has a number as the true answer.
    pub asks_number: bool,
    pub label: Option<CaseLabel<'a>>,
    /// `None` if the request failed.
    pub answer: Option<CaseAnswer<'a>>,
    /// Log-probabilities of the tokens of the true answer. `None` if the run has neither them nor token ids.
    pub logprobs: Option<&'a [f64]>,
}

/// The tokens of a true answer.
#[derive(Debug, Clone, Copy)]
pub struct CaseLabel<'a> {
    /// Includes the end of sequence if the tokenizer appends one.
    pub ids: &'a [u32],
    /// The end of sequence, if the tokenizer appends one.
    pub end: Option<u32>,
}

/// The answer to an item.
#[derive(Debug, Clone, Copy)]
pub struct CaseAnswer<'a> {
    pub text: &'a str,
    pub token_ids: Option<&'a [u32]>,
    /// Whether the length limit ended the answer.
    pub is_cut: bool,
    pub overlap: Option<&'a TextOverlap>,
}

/// Scores of n-grams that an answer shares with the true answer.
#[derive(Debug, Clone, PartialEq)]
pub struct TextOverlap {
    pub bleu: NgramCounts,
    pub rouge: Rouge,
}

impl TextOverlap {
    pub fn of(prediction: &str, reference: &str) -> Self {
        Self {
            bleu: NgramCounts::of(prediction.trim(), reference.trim()),
            rouge: Rouge::of(prediction, reference),
        }
    }
}

/// A figure of a protocol.
pub struct Figure<'a> {
    pub name: &'static str,
    /// NaN and infinities are possible.
    pub value: f64,
    pub role: Role<'a>,
    /// How the figure differs from the evaluation's. `None` if the evaluation has no such figure.
    pub note: Option<String>,
}

/// The place of a figure among the evaluation's metrics.
pub enum Role<'a> {
    /// Replaces the metric of the same name. `n`: the number of items that it covers.
    Metric { n: usize, interval: IntervalSource<'a> },
    /// Replaces no metric. `corrected`: the value without the protocol's peculiarities, if there is one.
    Remark { corrected: Option<f64> },
}

/// The source of a metric's confidence interval.
pub enum IntervalSource<'a> {
    None,
    /// The metric is a share of its items.
    Share,
    /// The interval of the evaluation's metric over the numbers that [`Protocol::read`] returns, if both have
    /// the same value.
    OfReadNumbers,
    /// The bootstrap over this number of items.
    Bootstrap(usize, Box<WeightedFigure<'a>>),
}

/// A figure as a function of the weights of its items.
pub type WeightedFigure<'a> = dyn Fn(&[f64]) -> Option<f64> + 'a;
