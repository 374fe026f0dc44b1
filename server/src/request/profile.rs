//! The limits of requests to one model.

use std::sync::Arc;

use ntl_api::{DecisionCalibration, MethodName};
use ntl_core::Prompt;
use ntl_core::contract::{EngineError, ModelInfo};
use ntl_core::numbers::{NumberGrammar, TokenNotation};
use ntl_text::checkpoint::TruncationSide;
use ntl_text::tokenizer::Tokenizer;

use super::calibration::ModelCalibration;
use super::calls::ToolSupport;
use crate::error::{AppError, check};

/// The properties and limits of one model that the validation of requests needs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelProfile {
    pub(crate) encoder_decoder: bool,
    /// Number of labels whose values the model predicts instead of writing tokens. The value of a single
    /// label is a number, which the server prints.
    pub(crate) labels: Option<usize>,
    /// Whether a guide of ours can decide about each token of its texts. If another engine writes them, it
    /// has to report their ids.
    pub(crate) guides_texts: bool,
    /// Whether the vocabulary can write numbers.
    pub(crate) spells_numbers: bool,
    /// The only number method of a model with a number head.
    pub(crate) number_head: Option<MethodName>,
    /// How the model writes numbers, if it does so in dedicated tokens. Its answers are such numbers only.
    pub(crate) notation: Option<Arc<TokenNotation>>,
    pub(crate) calibrations: Arc<[ModelCalibration]>,
    pub(crate) decision_calibrations: Arc<[DecisionCalibration]>,
    pub(crate) tools: ToolSupport,
    /// Whether a system message describes the tools if the chat template reads none.
    pub(crate) describes_tools: bool,
    /// Number of ids that an answer may have.
    pub(crate) tokens: usize,
    /// Number of ids that a prompt may have.
    pub(crate) prompt_ids: usize,
    pub(crate) prompt_tokens_max: usize,
    /// The end at which truncation drops tokens, unless a request states another one.
    pub(crate) truncation_side: TruncationSide,
    /// Maximum length of the text of one token, in bytes.
    pub(crate) token_bytes_max: usize,
    pub(crate) eos_ids: Vec<u32>,
    /// All special tokens, which texts omit unless a request shows them.
    pub(crate) special_ids: Arc<[u32]>,
    /// The end-of-sequence id that an encoder-decoder model's tokenizer adds to every prompt, if it does (T5,
    /// but not T5Gemma).
    pub(crate) prompt_eos: Option<u32>,
    pub(crate) output_tokens_max: u64,
    /// Maximum number of alternatives to a token; `None` allows the whole vocabulary.
    pub(crate) logprobs_max: Option<usize>,
    /// How whole answers are sampled, if another engine computes the model and reports no probabilities. Its
    /// prompts are not tokenized here.
    pub(crate) sampling: Option<AnswerSampling>,
}

/// The temperature at which another engine samples answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerSampling {
    /// 1: from the distribution of the model.
    Plain,
    /// The default of the engine, which takes no other one.
    EngineDefault,
}

impl AnswerSampling {
    /// `takes_temperature`: whether the engine does.
    pub(crate) fn new(takes_temperature: bool) -> Self {
        if takes_temperature { Self::Plain } else { Self::EngineDefault }
    }

    /// The temperature for logs.
    pub(crate) fn temperature(self) -> &'static str {
        match self {
            Self::Plain => "1",
            Self::EngineDefault => "the engine's default",
        }
    }
}

impl ModelProfile {
    /// The profile of a model without calibrations, on a server without limits.
    pub(crate) fn new(info: &ModelInfo, tokenizer: &Tokenizer, grammar: &NumberGrammar) -> Self {
        let head = grammar.is_point().then_some(MethodName::Head);
        let labels = info.labels.as_ref().map(|labels| labels.names.len());
        // Encoder-decoder models and heads are trained with transformers' default, and vLLM truncates the
        // others on the left.
        let is_right = info.encoder_decoder || labels.is_some();
        let usual = if is_right { TruncationSide::Right } else { TruncationSide::Left };
        Self {
            encoder_decoder: info.encoder_decoder,
            labels,
            guides_texts: true,
            spells_numbers: grammar.spells_numbers(),
            number_head: head.or(grammar.head_id().map(|_| MethodName::Xval)),
            notation: grammar.notation().cloned(),
            calibrations: Arc::default(),
            decision_calibrations: Arc::default(),
            tools: ToolSupport::detect(tokenizer),
            describes_tools: false,
            tokens: info.tokens,
            prompt_ids: if grammar.notation().is_some() { tokenizer.len() } else { info.tokens },
            prompt_tokens_max: info.prompt_tokens_max,
            truncation_side: tokenizer.truncation_side().unwrap_or(usual),
            token_bytes_max: tokenizer.token_text_bytes_max(),
            eos_ids: info.eos_ids.clone(),
            special_ids: tokenizer.special_ids().collect(),
            prompt_eos: prompt_eos(info, tokenizer),
            output_tokens_max: info.answer_tokens_max.map_or(u64::MAX, |max| max as u64),
            logprobs_max: None,
            sampling: None,
        }
    }

    /// Rejects work that needs the tokens of prompts or answers, if these are unknown.
    pub(crate) fn check_tokens(&self) -> Result<(), AppError> {
        let message = "is computed by an engine that answers chats only: numbers need /v1/chat/completions, and other \
                       questions /v1/decisions or /v1/systemone";
        check("model", self.sampling.is_none(), message)
    }

    /// Returns whether texts are made of tokens.
    pub(crate) fn writes_tokens(&self) -> bool {
        self.labels.is_none()
    }

    /// `ids` of an answer, if all of them are in the vocabulary.
    pub(crate) fn known_ids(&self, param: &str, ids: Vec<u32>) -> Result<Vec<u32>, AppError> {
        ids_below(self.tokens, param, ids)
    }

    /// `ids` of a prompt, if all of them are in the vocabulary.
    pub(crate) fn prompt_ids(&self, param: &str, ids: Vec<u32>) -> Result<Vec<u32>, AppError> {
        ids_below(self.prompt_ids, param, ids)
    }

    /// Returns `ids`, followed by the end-of-sequence id if the model expects one after every prompt.
    pub(super) fn with_eos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(eos) = self.prompt_eos
            && !self.ends(ids.last().copied())
        {
            ids.push(eos);
        }
        ids
    }

    /// Returns whether a sequence with this last id has ended.
    pub(crate) fn ends(&self, last: Option<u32>) -> bool {
        last.is_some_and(|id| self.eos_ids.contains(&id))
    }

    /// Rejects a text that has too many tokens for any tokenization, before it is tokenized.
    pub(crate) fn check_bytes(&self, text: &str) -> Result<(), AppError> {
        let bytes = text.len();
        let tokens_max = self.prompt_tokens_max;
        let bytes_max = tokens_max.saturating_mul(self.token_bytes_max);
        if bytes > bytes_max { Err(AppError::TextTooLong { bytes, bytes_max, tokens_max }) } else { Ok(()) }
    }

    /// `prompt`, if it is short enough.
    pub(crate) fn fitting(&self, prompt: Prompt) -> Result<Prompt, AppError> {
        let got = prompt.len();
        let max = self.prompt_tokens_max;
        if got > max {
            return Err(EngineError::PromptTooLong { got, max }.into());
        }
        Ok(prompt)
    }
}

fn ids_below(size: usize, param: &str, ids: Vec<u32>) -> Result<Vec<u32>, AppError> {
    match ids.iter().find(|&&id| id as usize >= size) {
        Some(id) => {
            Err(AppError::field(param, format!("contains the token id {id}; the vocabulary has {size}")))
        }
        None => Ok(ids),
    }
}

fn prompt_eos(info: &ModelInfo, tokenizer: &Tokenizer) -> Option<u32> {
    let encoded = info.encoder_decoder.then(|| tokenizer.encode("a", true).ok()).flatten()?;
    encoded.last().copied().filter(|last| info.eos_ids.contains(last))
}

#[cfg(test)]
impl ModelProfile {
    /// An encoder-decoder model of 100 tokens that takes prompts of 8.
    pub(crate) fn for_tests() -> Self {
        Self {
            encoder_decoder: true,
            labels: None,
            guides_texts: true,
            spells_numbers: true,
            number_head: None,
            notation: None,
            calibrations: Arc::default(),
            decision_calibrations: Arc::default(),
            tools: ToolSupport::Unknown,
            describes_tools: false,
            tokens: 100,
            prompt_ids: 100,
            prompt_tokens_max: 8,
            truncation_side: TruncationSide::Right,
            token_bytes_max: 32,
            eos_ids: vec![1],
            special_ids: Arc::from([0, 1, 2]),
            prompt_eos: Some(1),
            output_tokens_max: 4096,
            logprobs_max: Some(20),
            sampling: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_of_ids_ends_with_an_end_of_sequence_if_the_tokenizer_adds_one() {
        let t5 = ModelProfile::for_tests();
        let t5gemma = ModelProfile { prompt_eos: None, ..t5.clone() };
        assert_eq!(t5.with_eos(vec![5, 6]), [5, 6, 1]);
        assert_eq!(t5.with_eos(vec![5, 1]), [5, 1]);
        assert_eq!(t5gemma.with_eos(vec![5, 6]), [5, 6]);
    }

    #[test]
    fn ids_outside_the_vocabulary_and_long_prompts_are_refused_with_numbers() {
        let profile = ModelProfile::for_tests();
        let error = profile.known_ids("prompt", vec![7, 100]).unwrap_err();
        assert_eq!(error.to_string(), "`prompt` contains the token id 100; the vocabulary has 100");
        assert!(profile.known_ids("prompt", vec![0, 99]).is_ok());
        assert!(profile.check_bytes(&"x".repeat(256)).is_ok());
        let error = profile.check_bytes(&"x".repeat(257)).unwrap_err();
        assert_eq!(error.to_string(), "prompt has 257 bytes; one of at most 8 tokens has at most 256");
        assert_eq!(error.body().error.code.as_deref(), Some("context_length_exceeded"));
        let error = profile.fitting(vec![0; 9].into()).unwrap_err();
        assert_eq!(error.to_string(), "prompt has 9 tokens, the model takes at most 8");
    }
}
