//! What requests to one model must keep to.

use std::sync::Arc;

use ntl_api::MethodName;
use ntl_core::Prompt;
use ntl_core::engine::EngineError;

use super::calibration::ModelCalibration;
use crate::error::AppError;

/// Properties and limits of one model, as far as the validation of requests needs them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelProfile {
    pub(crate) encoder_decoder: bool,
    /// Whether texts are made of tokens; a regression head predicts a number, which the server prints.
    pub(crate) writes_tokens: bool,
    /// Whether the vocabulary can write numbers.
    pub(crate) spells_numbers: bool,
    /// The only number method of a model with a number head.
    pub(crate) number_head: Option<MethodName>,
    pub(crate) calibrations: Arc<[ModelCalibration]>,
    /// Size of the tokenizer's vocabulary.
    pub(crate) tokens: usize,
    pub(crate) prompt_tokens_max: usize,
    /// Most bytes of text that one token stands for.
    pub(crate) token_bytes_max: usize,
    pub(crate) eos_ids: Vec<u32>,
    pub(crate) output_tokens_max: u64,
    /// Largest number of alternatives to a token; `None` allows the whole vocabulary.
    pub(crate) logprobs_max: Option<usize>,
}

impl ModelProfile {
    /// `ids`, if all of them are in the vocabulary.
    pub(crate) fn known_ids(&self, param: &str, ids: Vec<u32>) -> Result<Vec<u32>, AppError> {
        match ids.iter().find(|&&id| id as usize >= self.tokens) {
            Some(id) => {
                let size = self.tokens;
                Err(AppError::field(param, format!("contains the token id {id}; the vocabulary has {size}")))
            }
            None => Ok(ids),
        }
    }

    /// `ids`, with the end of sequence that an encoder-decoder model expects behind every prompt.
    pub(super) fn with_eos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let (true, false, Some(&eos)) =
            (self.encoder_decoder, self.ends(ids.last().copied()), self.eos_ids.first())
        {
            ids.push(eos);
        }
        ids
    }

    /// Whether a sequence with this last id has ended.
    pub(super) fn ends(&self, last: Option<u32>) -> bool {
        last.is_some_and(|id| self.eos_ids.contains(&id))
    }

    /// Refuses a text, before it is tokenized, that has too many tokens however it is split.
    pub(crate) fn check_bytes(&self, text: &str) -> Result<(), AppError> {
        let (bytes, tokens_max) = (text.len(), self.prompt_tokens_max);
        let bytes_max = tokens_max.saturating_mul(self.token_bytes_max);
        if bytes > bytes_max { Err(AppError::TextTooLong { bytes, bytes_max, tokens_max }) } else { Ok(()) }
    }

    /// `prompt`, if it is short enough.
    pub(super) fn fitting(&self, prompt: Prompt) -> Result<Prompt, AppError> {
        let (got, max) = (prompt.len(), self.prompt_tokens_max);
        if got > max {
            return Err(EngineError::PromptTooLong { got, max }.into());
        }
        Ok(prompt)
    }
}

#[cfg(test)]
impl ModelProfile {
    /// An encoder-decoder model of 100 tokens that takes prompts of 8.
    pub(crate) fn for_tests() -> Self {
        Self {
            encoder_decoder: true,
            writes_tokens: true,
            spells_numbers: true,
            number_head: None,
            calibrations: Arc::default(),
            tokens: 100,
            prompt_tokens_max: 8,
            token_bytes_max: 32,
            eos_ids: vec![1],
            output_tokens_max: 4096,
            logprobs_max: Some(20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoder_decoder_prompt_of_ids_ends_with_an_end_of_sequence() {
        let t5 = ModelProfile::for_tests();
        let llama = ModelProfile { encoder_decoder: false, ..t5.clone() };
        assert_eq!(t5.with_eos(vec![5, 6]), [5, 6, 1]);
        assert_eq!(t5.with_eos(vec![5, 1]), [5, 1]);
        assert_eq!(llama.with_eos(vec![5, 6]), [5, 6]);
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
