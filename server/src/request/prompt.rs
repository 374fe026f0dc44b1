//! One prompt, as text or token ids, and its conversion to the model's input.
//!
//! Text is tokenized with the special tokens of training. Token ids are taken as they are, except that an
//! encoder-decoder model gets a missing end of sequence: it saw one after every prompt in training, and
//! clients that tokenize by themselves (lm-eval) leave it out.

use ntl_core::Prompt;
use ntl_text::checkpoint::TruncationSide;
use ntl_text::tokenizer::Tokenizer;

use super::ModelProfile;
use crate::blocking::check_wanted;
use crate::error::{AppError, check};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PromptInput {
    Text(String),
    Ids(Vec<u32>),
}

/// The part of a long prompt that the model reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Truncation {
    pub(crate) tokens_max: usize,
    pub(crate) side: TruncationSide,
}

/// Returns the prompts of a request as the model reads them, like [`PromptInput::into_prompt`]. `field` lists
/// them: if there are several, an error names one, such as `prompt[2]`.
pub(crate) fn into_prompts(
    inputs: Vec<PromptInput>,
    field: &str,
    tokenizer: &Tokenizer,
    profile: &ModelProfile,
    truncation: Option<Truncation>,
    add_special_tokens: bool,
) -> Result<Vec<Prompt>, AppError> {
    let count = inputs.len();
    let mut prompts = Vec::with_capacity(count);
    for (index, input) in inputs.into_iter().enumerate() {
        let param = if count == 1 { field.to_owned() } else { format!("{field}[{index}]") };
        let prompt = input.into_prompt(&param, tokenizer, profile, truncation, add_special_tokens);
        prompts.push(prompt.map_err(|error| error.of_prompt(field, index, count))?);
    }
    Ok(prompts)
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

    /// Rejects an empty prompt of a model that predicts labels or has an encoder, which would read nothing. A
    /// decoder-only model begins with its start token. `param` names the field.
    pub(super) fn check_not_empty(&self, param: &str, profile: &ModelProfile) -> Result<(), AppError> {
        let may_be_empty = !profile.encoder_decoder && profile.writes_tokens();
        check(param, may_be_empty || !self.is_empty(), "must not be empty")
    }

    /// Returns the prompt as the model reads it, truncated if the request says so. `param` names the field.
    /// `add_special_tokens` is for texts only.
    fn into_prompt(
        self,
        param: &str,
        tokenizer: &Tokenizer,
        profile: &ModelProfile,
        truncation: Option<Truncation>,
        add_special_tokens: bool,
    ) -> Result<Prompt, AppError> {
        check_wanted()?;
        self.check_not_empty(param, profile)?;
        let prompt = match self {
            Self::Text(text) => {
                profile.check_bytes(&text)?;
                tokenizer
                    .encode_prompt(&text, add_special_tokens)
                    .map_err(|error| AppError::invalid(param, format!("`{param}`: {error}")))?
            }
            Self::Ids(ids) => {
                if let Some(id) = tokenizer.number_token().filter(|number| ids.contains(number)) {
                    let message = format!("contains the token id {id} without its number; send text");
                    return Err(AppError::field(param, message));
                }
                profile.with_eos(profile.prompt_ids(param, ids)?).into()
            }
        };
        profile.fitting(match truncation {
            Some(Truncation { tokens_max, side }) => tokenizer.truncate(prompt, tokens_max, side),
            None => prompt,
        })
    }
}
