//! One item to score: a prompt and a target, and their conversion to token ids.

use ntl_core::{Prompt, Token};
use ntl_models::tokenizer::{EncodeError, Tokenizer};

use super::{ModelProfile, PromptInput};
use crate::error::AppError;

/// A prompt and the target that is scored behind it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScoreInput {
    /// Place of the item in the request, for error messages.
    pub(crate) index: usize,
    pub(crate) prompt: PromptInput,
    pub(crate) target: PromptInput,
    /// Score the end of sequence behind the target, too.
    pub(crate) add_eos: bool,
}

/// The tokens of an item.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScoreTokens {
    pub(crate) prompt: Prompt,
    pub(crate) target: Vec<Token>,
}

impl ScoreInput {
    /// Bytes that have to be tokenized. For decoder-only models the prompt is tokenized twice: with the target and alone.
    pub(crate) fn text_bytes(&self) -> usize {
        2 * self.prompt.text_bytes() + self.target.text_bytes()
    }

    pub(crate) fn into_tokens(
        self,
        tokenizer: &Tokenizer,
        profile: &ModelProfile,
    ) -> Result<ScoreTokens, AppError> {
        let encode = |field: &str, text: &str, special: bool| {
            if let Err(error) = profile.check_bytes(text) {
                let param = self.param(field);
                return Err(AppError::invalid(&param, format!("`{param}`: {error}")));
            }
            let failed = |error: EncodeError| {
                let param = self.param(field);
                AppError::invalid(&param, format!("`{param}`: {error}"))
            };
            tokenizer.encode_prompt(text, special).map_err(failed)
        };
        let mut tokens = match (&self.prompt, &self.target) {
            // A decoder-only model was trained on prompt and target as one text. Where no token boundary lies between
            // them, the target begins with the first token that differs from those of the prompt alone.
            (PromptInput::Text(prompt), PromptInput::Text(target)) if !profile.encoder_decoder => {
                let text = format!("{prompt}{target}");
                let mut all = encode("target", &text, true)?.tokens;
                // Some tokenizers end every text; here the request decides about the end.
                let last = all.last().map(|token| token.id);
                if profile.ends(last) && !profile.ends(encode("target", &text, false)?.ids().next_back()) {
                    all.pop();
                }
                let alone = encode("prompt", prompt, true)?.tokens;
                let common = all.iter().zip(&alone).take_while(|(a, b)| a == b).count();
                let target = all.split_off(common);
                ScoreTokens { prompt: Prompt { tokens: all }, target }
            }
            (prompt, target) => ScoreTokens {
                prompt: match prompt {
                    PromptInput::Text(text) => encode("prompt", text, true)?,
                    PromptInput::Ids(ids) => {
                        profile.with_eos(profile.known_ids(&self.param("prompt"), ids.clone())?).into()
                    }
                },
                target: match target {
                    PromptInput::Text(text) => encode("target", text, false)?.tokens,
                    PromptInput::Ids(ids) => {
                        let ids = profile.known_ids(&self.param("target"), ids.clone())?;
                        ids.into_iter().map(Token::from).collect()
                    }
                },
            },
        };
        if let (true, false, Some(&eos)) =
            (self.add_eos, profile.ends(tokens.target.last().map(|token| token.id)), profile.eos_ids.first())
        {
            tokens.target.push(eos.into());
        }
        self.check_lengths(&tokens, profile)?;
        Ok(tokens)
    }

    fn check_lengths(&self, tokens: &ScoreTokens, profile: &ModelProfile) -> Result<(), AppError> {
        let (prompt, target) = (tokens.prompt.len(), tokens.target.len());
        let (max, target_max) = (profile.prompt_tokens_max, profile.output_tokens_max);
        let (field, message) = if prompt == 0 {
            ("prompt", "has no token, so that nothing comes before the target".to_owned())
        } else if target == 0 {
            ("target", "has no token".to_owned())
        } else if profile.encoder_decoder && prompt > max {
            ("prompt", format!("has {prompt} tokens, the model takes at most {max}"))
        } else if !profile.encoder_decoder && prompt + target > max {
            (
                "target",
                format!("has {target} tokens behind a prompt of {prompt}, the model takes at most {max}"),
            )
        } else if target as u64 > target_max {
            ("target", format!("has {target} tokens, at most {target_max} are scored"))
        } else {
            return Ok(());
        };
        Err(AppError::field(&self.param(field), message))
    }

    fn param(&self, field: &str) -> String {
        format!("items[{}].{field}", self.index)
    }
}
