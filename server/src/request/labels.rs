//! Prompts of two parts, one of which they share, and their conversion to tokens.

use std::fmt::Display;

use ntl_core::{Prompt, Token};
use ntl_text::tokenizer::Tokenizer;

use super::{ModelProfile, PromptInput};
use crate::blocking::check_wanted;
use crate::error::{AppError, check};

/// Maximum number of tokens of all prompts together, which repeat the query for each item.
const TOKENS_MAX: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LabelPrompts {
    /// The part that all prompts share.
    pub(crate) query: PromptInput,
    pub(crate) items: Vec<PromptInput>,
    pub(crate) item_first: bool,
    /// Whether two texts are tokenized as one.
    pub(crate) joins_texts: bool,
    pub(crate) add_special_tokens: bool,
}

impl LabelPrompts {
    /// Bytes that have to be tokenized.
    pub(crate) fn text_bytes(&self) -> usize {
        let query = self.query.text_bytes();
        let mut bytes = 0_usize;
        for item in &self.items {
            bytes = bytes.saturating_add(query.saturating_add(item.text_bytes()));
        }
        bytes
    }

    pub(crate) fn into_prompts(
        self,
        tokenizer: &Tokenizer,
        profile: &ModelProfile,
    ) -> Result<Vec<Prompt>, AppError> {
        // A label is a token after the prompt, unless a decoder writes it.
        let max = profile.prompt_tokens_max.saturating_sub(usize::from(!profile.encoder_decoder));
        let parts = Parts { joins_texts: self.joins_texts || profile.encoder_decoder, tokenizer, profile };
        let mut query_alone = None;
        let mut total = 0;
        let mut prompts = Vec::with_capacity(self.items.len());
        for (index, item) in self.items.iter().enumerate() {
            let param = format!("items[{index}]");
            let prompt = match parts.joined(&self, item) {
                Some(text) => parts.tokens(&param, &PromptInput::Text(text), self.add_special_tokens)?,
                None => {
                    let query = match &query_alone {
                        Some(query) => query,
                        None => {
                            &*query_alone.insert(parts.tokens("query", &self.query, self.begins(profile))?)
                        }
                    };
                    let item = parts.tokens(&param, item, false)?;
                    parts.ended(if self.item_first {
                        [item, query.clone()].concat()
                    } else {
                        [query.clone(), item].concat()
                    })
                }
            };
            let length = prompt.len();
            let fits = !profile.encoder_decoder || length > 0;
            check(&param, fits, "must not be empty together with `query`")?;
            let message = format!(
                "has {length} tokens together with `query`; the model takes at most {max} before a label"
            );
            check(&param, length <= max, message)?;
            total += length;
            let message = format!("have more than {TOKENS_MAX} tokens, each together with `query`");
            check("items", total <= TOKENS_MAX, message)?;
            prompts.push(prompt.into_iter().collect());
        }
        Ok(prompts)
    }

    /// Returns whether a query that is tokenized alone gets special tokens. An encoder would read them in the
    /// middle of its prompt.
    fn begins(&self, profile: &ModelProfile) -> bool {
        self.add_special_tokens && !profile.encoder_decoder
    }
}

/// Converts parts of prompts into tokens.
struct Parts<'a> {
    joins_texts: bool,
    tokenizer: &'a Tokenizer,
    profile: &'a ModelProfile,
}

impl Parts<'_> {
    /// The text of a prompt that is tokenized as a whole.
    fn joined(&self, prompts: &LabelPrompts, item: &PromptInput) -> Option<String> {
        if !self.joins_texts {
            return None;
        }
        let (query, item) = (prompts.query.text()?, item.text()?);
        Some(if prompts.item_first { format!("{item}{query}") } else { format!("{query}{item}") })
    }

    fn tokens(&self, param: &str, part: &PromptInput, special: bool) -> Result<Vec<Token>, AppError> {
        match part {
            PromptInput::Text(text) => {
                check_wanted()?;
                self.profile.check_bytes(text).map_err(|error| invalid_text(param, &error))?;
                let prompt = self.tokenizer.encode_prompt(text, special);
                Ok(prompt.map_err(|error| invalid_text(param, &error))?.tokens)
            }
            PromptInput::Ids(ids) => {
                let ids = self.profile.prompt_ids(param, ids.clone())?;
                Ok(ids.into_iter().map(Token::from).collect())
            }
        }
    }

    /// Adds the end of sequence that the encoder expects after every prompt.
    fn ended(&self, mut tokens: Vec<Token>) -> Vec<Token> {
        if let Some(eos) = self.profile.prompt_eos
            && !tokens.is_empty()
            && !self.profile.ends(tokens.last().map(|token| token.id))
        {
            tokens.push(eos.into());
        }
        tokens
    }
}

fn invalid_text(param: &str, error: &impl Display) -> AppError {
    AppError::invalid(param, format!("`{param}`: {error}"))
}
