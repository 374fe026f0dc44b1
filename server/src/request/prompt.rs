//! One prompt, as text or token ids, and its conversion to what the model reads.
//!
//! Text is tokenized with the special tokens of training. Token ids are taken as they are, except that an
//! encoder-decoder model gets a missing end of sequence: it saw one behind every prompt in training, and clients that
//! tokenize by themselves (lm-eval) leave it out.

use ntl_core::Prompt;
use ntl_models::tokenizer::Tokenizer;

use super::ModelProfile;
use crate::error::AppError;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PromptInput {
    Text(String),
    Ids(Vec<u32>),
}

impl PromptInput {
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Ids(_) => None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Ids(ids) => ids.is_empty(),
        }
    }

    /// Bytes that have to be tokenized.
    pub(crate) fn text_bytes(&self) -> usize {
        self.text().map_or(0, str::len)
    }

    /// The prompt as the model reads it. An empty one is an error for encoder-decoder models only: a decoder-only model
    /// begins with its start token.
    pub(crate) fn into_prompt(
        self,
        tokenizer: &Tokenizer,
        profile: &ModelProfile,
    ) -> Result<Prompt, AppError> {
        if profile.encoder_decoder && self.is_empty() {
            return Err(AppError::field("prompt", "must not be empty"));
        }
        let prompt = match self {
            Self::Text(text) => {
                profile.check_bytes(&text)?;
                tokenizer
                    .encode_prompt(&text, true)
                    .map_err(|error| AppError::invalid("prompt", format!("`prompt`: {error}")))?
            }
            Self::Ids(ids) => {
                if let Some(id) = tokenizer.number_token().filter(|number| ids.contains(number)) {
                    let message = format!("contains the token id {id} without its number; send text");
                    return Err(AppError::field("prompt", message));
                }
                profile.with_eos(profile.known_ids("prompt", ids)?).into()
            }
        };
        profile.fitting(prompt)
    }
}
