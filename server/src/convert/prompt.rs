//! The four prompt forms, and the token ids that each becomes.
//!
//! Texts are tokenized with the special tokens that the model was trained with. Token ids are taken as they are, with
//! one exception: an encoder-decoder model sees an end of sequence after every prompt in training, and clients that
//! tokenize by themselves (lm-eval) leave it out, so it is appended where it is missing.

use ntl_api::Prompt;
use ntl_core::engine;
use ntl_models::tokenizer::Tokenizer;

use super::{Rules, check};
use crate::error::AppError;

/// Most texts that one request may ask for: prompts times `n`, or times rationales.
pub(super) const SEQUENCES_MAX: u64 = 1024;

/// One prompt as it was sent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PromptInput {
    /// To be tokenized.
    Text(String),
    /// Tokenized already.
    Ids(Vec<u32>),
}

/// The prompts of a request, for each of which so many texts are written; `multiplier` says so in the request.
pub(super) fn prompts(
    prompt: Option<Prompt>,
    texts: u64,
    multiplier: &str,
) -> Result<Vec<PromptInput>, AppError> {
    let prompts: Vec<PromptInput> = match prompt {
        None => return Err(AppError::invalid("prompt", "`prompt` is missing")),
        Some(Prompt::Text(text)) => vec![PromptInput::Text(text)],
        Some(Prompt::Ids(ids)) => vec![PromptInput::Ids(ids)],
        Some(Prompt::Texts(texts)) => texts.into_iter().map(PromptInput::Text).collect(),
        Some(Prompt::IdLists(lists)) => lists.into_iter().map(PromptInput::Ids).collect(),
    };
    check("prompt", !prompts.is_empty(), "must not be an empty list")?;
    let sequences = (prompts.len() as u64).saturating_mul(texts);
    let param = if texts > 1 { multiplier } else { "prompt" };
    let asked = format!("asks for {sequences} texts with {} prompts; at most {SEQUENCES_MAX}", prompts.len());
    check(param, sequences <= SEQUENCES_MAX, asked)?;
    Ok(prompts)
}

impl PromptInput {
    fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Ids(ids) => ids.is_empty(),
        }
    }

    /// The text, where it was sent as one.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Ids(_) => None,
        }
    }

    /// How much text there is to tokenize.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Ids(_) => 0,
        }
    }

    /// What the model gets, within its vocabulary and its longest prompt.
    ///
    /// A decoder-only model continues nothing at all as well: it begins with the token that texts begin with.
    pub(crate) fn into_prompt(
        self,
        tokenizer: &Tokenizer,
        rules: &Rules,
    ) -> Result<engine::Prompt, AppError> {
        check("prompt", !(rules.encoder_decoder && self.is_empty()), "must not be empty")?;
        let prompt = match self {
            Self::Text(text) => tokenizer
                .encode_prompt(&text, true)
                .map_err(|error| AppError::invalid("prompt", format!("`prompt`: {error}")))?,
            Self::Ids(ids) => {
                let unknown = tokenizer.number_token().filter(|number| ids.contains(number));
                let message =
                    unknown.map(|id| format!("holds the token id {id} without its number; send text"));
                check("prompt", unknown.is_none(), message.unwrap_or_default())?;
                rules.with_end(rules.known("prompt", ids)?).into()
            }
        };
        rules.fitting(prompt)
    }
}

impl Rules {
    /// `ids`, if all of them are in the vocabulary.
    pub(crate) fn known(&self, param: &str, ids: Vec<u32>) -> Result<Vec<u32>, AppError> {
        let unknown = ids.iter().find(|&&id| id as usize >= self.tokens);
        let message =
            unknown.map(|id| format!("holds the token id {id}, the vocabulary has {}", self.tokens));
        check(param, unknown.is_none(), message.unwrap_or_default())?;
        Ok(ids)
    }

    /// `ids`, behind which an encoder-decoder model sees an end of sequence.
    pub(super) fn with_end(&self, mut ids: Vec<u32>) -> Vec<u32> {
        let ends = ids.last().is_some_and(|id| self.eos_ids.contains(id));
        if let (true, false, Some(&end)) = (self.encoder_decoder, ends, self.eos_ids.first()) {
            ids.push(end);
        }
        ids
    }

    fn fitting(&self, prompt: engine::Prompt) -> Result<engine::Prompt, AppError> {
        let (got, max) = (prompt.len(), self.prompt_tokens_max);
        if got > max {
            return Err(engine::EngineError::PromptTooLong { got, max }.into());
        }
        Ok(prompt)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::rules;
    use super::*;

    #[test]
    fn an_encoder_decoder_prompt_of_ids_ends_with_an_end_of_sequence() {
        let (t5, llama) = (rules(), Rules { encoder_decoder: false, ..rules() });
        assert_eq!(t5.with_end(vec![5, 6]), [5, 6, 1]);
        assert_eq!(t5.with_end(vec![5, 1]), [5, 1]);
        assert_eq!(llama.with_end(vec![5, 6]), [5, 6]);
    }

    #[test]
    fn ids_outside_the_vocabulary_and_long_prompts_are_refused_with_numbers() {
        let rules = rules();
        let error = rules.known("prompt", vec![7, 100]).unwrap_err();
        assert_eq!(error.to_string(), "`prompt` holds the token id 100, the vocabulary has 100");
        assert!(rules.known("prompt", vec![0, 99]).is_ok());
        let error = rules.fitting(vec![0; 9].into()).unwrap_err();
        assert_eq!(error.to_string(), "prompt has 9 tokens, the model takes at most 8");
    }
}
