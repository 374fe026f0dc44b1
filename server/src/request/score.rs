//! One item to score: a prompt and a target or candidates, and their conversion to token ids.

use std::collections::HashMap;

use ntl_core::{Prompt, Token};
use ntl_text::tokenizer::Tokenizer;

use super::{ModelProfile, PromptInput};
use crate::blocking::check_wanted;
use crate::error::AppError;

/// A prompt and the targets that are scored after it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScoreInput {
    /// Place of the item in the request, for error messages.
    pub(crate) index: usize,
    pub(crate) prompt: PromptInput,
    /// One target, or the candidates.
    pub(crate) targets: Vec<PromptInput>,
    /// Whether these are candidates.
    pub(crate) are_candidates: bool,
    /// Score the end of sequence after each target, too.
    pub(crate) add_eos: bool,
}

/// The tokens of an item.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScoreTokens {
    pub(crate) prompt: Prompt,
    pub(crate) targets: Vec<TargetTokens>,
}

/// The tokens after the prompt that all targets of an item have in common.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TargetTokens {
    pub(crate) tokens: Vec<Token>,
    /// Number of these tokens that belong to the prompt, if another target is tokenized across its end.
    pub(crate) of_prompt: usize,
}

/// A prompt and one target, as the model reads them.
struct TokenizedTarget {
    prompt: Prompt,
    target: Vec<Token>,
}

impl ScoreInput {
    /// Bytes that have to be tokenized. For decoder-only models the prompt is tokenized twice for each
    /// target: with it and alone.
    pub(crate) fn text_bytes(&self) -> usize {
        self.targets.iter().map(|target| 2 * self.prompt.text_bytes() + target.text_bytes()).sum()
    }

    pub(crate) fn into_tokens(
        self,
        tokenizer: &Tokenizer,
        profile: &ModelProfile,
    ) -> Result<ScoreTokens, AppError> {
        self.prompt.check_not_empty(&self.param("prompt"), profile)?;
        let mut all = Vec::with_capacity(self.targets.len());
        for (place, target) in self.targets.iter().enumerate() {
            let field =
                if self.are_candidates { format!("candidates[{place}]") } else { "target".to_owned() };
            all.push(self.tokenize(target, &field, tokenizer, profile)?);
        }
        self.check_distinct(&all)?;
        // Each prompt is the beginning of the prompt alone, so that the shortest is in all of them.
        let shortest = all.iter().map(|one| &one.prompt).min_by_key(|prompt| prompt.len());
        let Some(shared) = shortest.cloned() else {
            return Err(AppError::field(&self.param("candidates"), "must not be empty"));
        };
        let mut targets = Vec::with_capacity(all.len());
        for TokenizedTarget { prompt, target } in all {
            let of_prompt = &prompt.tokens[shared.len()..];
            targets.push(TargetTokens {
                of_prompt: of_prompt.len(),
                tokens: [of_prompt, target.as_slice()].concat(),
            });
        }
        Ok(ScoreTokens { prompt: shared, targets })
    }

    fn tokenize(
        &self,
        target: &PromptInput,
        target_field: &str,
        tokenizer: &Tokenizer,
        profile: &ModelProfile,
    ) -> Result<TokenizedTarget, AppError> {
        let encode = |field: &str, text: &str, special: bool| {
            check_wanted()?;
            if let Err(error) = profile.check_bytes(text) {
                let param = self.param(field);
                return Err(AppError::invalid(&param, format!("`{param}`: {error}")));
            }
            tokenizer.encode_prompt(text, special).map_err(|error| {
                let param = self.param(field);
                AppError::invalid(&param, format!("`{param}`: {error}"))
            })
        };
        let mut tokens = match (&self.prompt, target) {
            // A decoder-only model was trained on prompt and target as one text. If no token boundary lies
            // between them, the target begins with the first token that differs from the tokens of the prompt
            // alone.
            (PromptInput::Text(prompt), PromptInput::Text(target)) if !profile.encoder_decoder => {
                let text = format!("{prompt}{target}");
                let mut all = encode(target_field, &text, true)?.tokens;
                // Some tokenizers end every text; here the request decides about the end.
                let last = all.last().map(|token| token.id);
                if profile.ends(last) && !profile.ends(encode(target_field, &text, false)?.ids().next_back())
                {
                    all.pop();
                }
                let alone = encode("prompt", prompt, true)?.tokens;
                let common = all.iter().zip(&alone).take_while(|(a, b)| a == b).count();
                let target = all.split_off(common);
                TokenizedTarget { prompt: all.into_iter().collect(), target }
            }
            (prompt, target) => TokenizedTarget {
                prompt: match prompt {
                    PromptInput::Text(text) => encode("prompt", text, true)?,
                    PromptInput::Ids(ids) => {
                        profile.with_eos(profile.prompt_ids(&self.param("prompt"), ids.clone())?).into()
                    }
                },
                target: match target {
                    PromptInput::Text(text) => match &profile.notation {
                        Some(notation) => {
                            let ids = notation.encode(text).ok_or_else(|| {
                                let message = "must consist of number tokens, such as `<+>`, for this model";
                                AppError::field(&self.param(target_field), message)
                            })?;
                            ids.into_iter().map(Token::from).collect()
                        }
                        None => encode(target_field, text, false)?.tokens,
                    },
                    PromptInput::Ids(ids) => {
                        let ids = profile.known_ids(&self.param(target_field), ids.clone())?;
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
        self.check_lengths(&tokens, target_field, profile)?;
        Ok(tokens)
    }

    /// Refuses candidates that differ in the values of numbers alone: the model has one probability for all
    /// of them.
    fn check_distinct(&self, candidates: &[TokenizedTarget]) -> Result<(), AppError> {
        let mut places = HashMap::new();
        for (place, TokenizedTarget { target, .. }) in candidates.iter().enumerate() {
            let ids: Vec<u32> = target.iter().map(|token| token.id).collect();
            let &mut first = places.entry(ids).or_insert(place);
            if candidates[first].target != *target {
                let message = format!(
                    "differs from `candidates[{first}]` in the value of a number alone, for which this model has no probability"
                );
                return Err(AppError::field(&self.param(&format!("candidates[{place}]")), message));
            }
        }
        Ok(())
    }

    fn check_lengths(
        &self,
        tokens: &TokenizedTarget,
        target_field: &str,
        profile: &ModelProfile,
    ) -> Result<(), AppError> {
        let prompt = tokens.prompt.len();
        let target = tokens.target.len();
        let max = profile.prompt_tokens_max;
        let target_max = profile.output_tokens_max;
        let (field, message) = if target == 0 {
            (target_field, "has no token".to_owned())
        } else if profile.encoder_decoder && prompt > max {
            ("prompt", format!("has {prompt} tokens, the model takes at most {max}"))
        } else if !profile.encoder_decoder && prompt + target > max {
            (
                target_field,
                format!("has {target} tokens behind a prompt of {prompt}, the model takes at most {max}"),
            )
        } else if target as u64 > target_max {
            (target_field, format!("has {target} tokens, at most {target_max} are scored"))
        } else {
            return Ok(());
        };
        Err(AppError::field(&self.param(field), message))
    }

    fn param(&self, field: &str) -> String {
        format!("items[{}].{field}", self.index)
    }
}
