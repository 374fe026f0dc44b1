//! Calls of functions in the text of a model, in the formats of the served families.
//!
//! In: a checkpoint's template and tokenizer; later the text of an answer, in pieces. Out: [`ToolPart`]s, and
//! the [`CallLayout`] of a format for guided decoding. Invariants: the parts, joined, do not depend on how
//! the text is split. A call that is incomplete or malformed, or that names no offered function, remains
//! text, unless the grammar allows nothing but calls.

mod format;
mod granite;
mod hermes;
mod layout;
mod llama;
mod marked_list;
mod mistral;
mod object;
mod parser;

use std::sync::Arc;

use crate::tokenizer::Tokenizer;
use format::CallFormat;
pub use layout::{CallLayout, CallSymbol};
pub use parser::{Guidance, ToolParser, ToolPart};

/// Markup within Hermes's markers, in place of JSON: Qwen3-Coder, GLM 4.5, Hunyuan.
const XML_IN_HERMES: [&str; 4] = ["<function=", "<arg_key>", "<tool_sep>", "<parameter"];

/// A format of calls, by the name that vLLM gives its parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen, Granite 4.
    Hermes,
    /// `{"name": …, "parameters": …}` as the whole text: Llama 3.
    Llama3Json,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}]`, or `[TOOL_CALLS]name[ARGS]{…}` since tokenizer v11.
    Mistral,
    /// `<|tool_call|>[{"name": …, "arguments": …}]`: Granite 3.
    Granite,
}

impl ToolFormat {
    pub const ALL: [Self; 4] = [Self::Hermes, Self::Llama3Json, Self::Mistral, Self::Granite];

    pub fn name(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
            Self::Llama3Json => "llama3_json",
            Self::Mistral => "mistral",
            Self::Granite => "granite",
        }
    }

    /// Returns the format that a chat template teaches, if it is one of these.
    fn of_template(template: &str) -> Option<Self> {
        let is_xml = XML_IN_HERMES.iter().any(|markup| template.contains(markup));
        [
            (Self::Mistral, template.contains(mistral::BEGIN)),
            (Self::Hermes, template.contains(hermes::BEGIN) && !is_xml),
            (Self::Granite, template.contains(granite::BEGIN)),
            (Self::Llama3Json, template.contains("<|eot_id|>") && template.contains("\"parameters\"")),
        ]
        .into_iter()
        .find(|(_, is_taught)| *is_taught)
        .map(|(format, _)| format)
    }

    /// Returns a parser for one text with calls of these functions. It drops calls after the first
    /// `calls_max`.
    pub fn parser(self, functions: Arc<[String]>, calls_max: usize, guidance: Guidance) -> ToolParser {
        ToolParser::new(self.reader(), functions, calls_max, guidance)
    }

    fn reader(self) -> Box<dyn CallFormat> {
        match self {
            Self::Hermes => Box::<hermes::Hermes>::default(),
            Self::Llama3Json => Box::<llama::Llama>::default(),
            Self::Mistral => Box::new(mistral::reader()),
            Self::Granite => Box::new(granite::reader()),
        }
    }

    /// The texts of this format that may be special tokens.
    fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[hermes::BEGIN, hermes::END],
            Self::Llama3Json => &[llama::PYTHON_TAG],
            Self::Mistral => &[mistral::BEGIN, mistral::CALL_ID, mistral::ARGUMENTS],
            Self::Granite => &[granite::BEGIN],
        }
    }
}

/// The format of the calls of one model, with the model's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolDialect {
    format: ToolFormat,
    special_ids: Arc<[u32]>,
    layout: CallLayout,
}

impl ToolDialect {
    /// The dialect that a model's template teaches; `None` if it teaches none of the formats.
    pub fn of_template(tokenizer: &Tokenizer) -> Option<Self> {
        let template = tokenizer.chat_template()?;
        Some(Self::new(ToolFormat::of_template(template.tools_source())?, tokenizer))
    }

    pub fn new(format: ToolFormat, tokenizer: &Tokenizer) -> Self {
        let layout = match format {
            ToolFormat::Hermes => hermes::layout(),
            ToolFormat::Llama3Json => llama::layout(),
            ToolFormat::Mistral => mistral::layout(tokenizer.token_id(mistral::ARGUMENTS).is_some()),
            ToolFormat::Granite => granite::layout(),
        };
        Self {
            format,
            special_ids: format.markers().iter().filter_map(|name| special_id(tokenizer, name)).collect(),
            layout: layout.with_tokens(|name| special_id(tokenizer, name)),
        }
    }

    /// The special tokens of the format, which the parser needs in the text.
    pub fn special_ids(&self) -> &Arc<[u32]> {
        &self.special_ids
    }

    pub fn layout(&self) -> &CallLayout {
        &self.layout
    }

    /// Returns a parser for one text with calls of these functions. If the grammar of [`Self::layout`] guides
    /// the calls, the parser returns the beginning of a call before its end.
    pub fn parser(&self, functions: Arc<[String]>, calls_max: usize, guidance: Guidance) -> ToolParser {
        self.format.parser(functions, calls_max, guidance)
    }

    /// Returns the id of a call, made of random hexadecimal digits. Mistral's templates accept only nine
    /// letters or digits.
    pub fn call_id(&self, digits: &str) -> String {
        match self.format {
            ToolFormat::Mistral => digits.chars().take(9).collect(),
            _ => format!("call_{}", digits.chars().take(24).collect::<String>()),
        }
    }
}

/// Returns the id of a special token, which has no bytes in a text.
fn special_id(tokenizer: &Tokenizer, name: &str) -> Option<u32> {
    tokenizer.token_id(name).filter(|&id| tokenizer.piece_bytes(id).is_none())
}

#[cfg(test)]
mod tests;
