//! Texts to split: `POST /tokenize`.
//!
//! In: a text, or a conversation for the chat template. Out: the prompt that a completion or a chat would
//! have.

use ntl_api::{ChatRequest, TokenizeRequest};
use ntl_core::Prompt;
use ntl_text::chat::Conversation;
use ntl_text::tokenizer::Tokenizer;

use super::chat::{conversation, prompt_ids, tool_offer};
use crate::error::{AppError, check};
use crate::request::ModelProfile;

const MESSAGES: &str = "messages";
const PROMPT: &str = "prompt";

/// A validated request.
pub(crate) struct TextToSplit {
    input: Input,
    add_special_tokens: bool,
}

enum Input {
    Text(String),
    Chat(Box<Conversation>),
}

impl TextToSplit {
    pub(crate) fn new(request: TokenizeRequest, profile: &ModelProfile) -> Result<Self, AppError> {
        let is_chat = request.messages.is_some();
        for (param, is_set) in [
            ("add_generation_prompt", request.add_generation_prompt.is_some()),
            ("continue_final_message", request.continue_final_message.is_some()),
            ("chat_template_kwargs", request.chat_template_kwargs.is_some()),
            ("tools", request.tools.is_some()),
        ] {
            check(param, is_chat || !is_set, "is only allowed with `messages`")?;
        }
        let input = match (request.prompt.or(request.content), request.messages) {
            (Some(_), Some(_)) => return Err(AppError::field(MESSAGES, "is not allowed with `prompt`")),
            (Some(text), None) => Input::Text(text),
            (None, None) => return Err(AppError::field(PROMPT, "is missing")),
            (None, messages) => {
                let mut chat = ChatRequest {
                    messages,
                    tools: request.tools,
                    add_generation_prompt: request.add_generation_prompt,
                    continue_final_message: request.continue_final_message,
                    chat_template_kwargs: request.chat_template_kwargs,
                    ..ChatRequest::default()
                };
                let tools = tool_offer(&mut chat)?;
                Input::Chat(Box::new(conversation(&mut chat, tools.as_ref(), profile)?))
            }
        };
        Ok(Self { input, add_special_tokens: request.add_special_tokens.unwrap_or(!is_chat) })
    }

    /// Bytes that have to be tokenized. A chat template may write any number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        match &self.input {
            Input::Text(text) => text.len(),
            Input::Chat(_) => usize::MAX,
        }
    }

    pub(crate) fn into_prompt(
        self,
        tokenizer: &Tokenizer,
        profile: &ModelProfile,
    ) -> Result<Prompt, AppError> {
        match self.input {
            Input::Text(text) => {
                let prompt = tokenizer.encode_prompt(&text, self.add_special_tokens);
                prompt.map_err(|error| AppError::invalid(PROMPT, error.to_string()))
            }
            Input::Chat(chat) => {
                prompt_ids(MESSAGES, &chat, self.add_special_tokens, tokenizer, profile).map(Prompt::from)
            }
        }
    }
}
