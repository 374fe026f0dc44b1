//! Calls of functions: what a model supports, and how the texts of a request are read.

use std::sync::Arc;

use ntl_text::tokenizer::Tokenizer;
use ntl_text::tools::{Guidance, ToolDialect, ToolParser};

/// How a model supports calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToolSupport {
    /// The operator has switched tools off.
    Off,
    /// Its chat template teaches no known format.
    Unknown,
    Known(ToolDialect),
}

impl ToolSupport {
    /// The support that follows from the chat template.
    pub(super) fn detect(tokenizer: &Tokenizer) -> Self {
        ToolDialect::of_template(tokenizer).map_or(Self::Unknown, Self::Known)
    }
}

/// How calls are read from the texts of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallParsing {
    pub(crate) dialect: ToolDialect,
    /// The names of the offered functions.
    pub(crate) functions: Arc<[String]>,
    pub(crate) calls_max: usize,
    /// The part of a text that a grammar guides.
    pub(crate) guidance: Guidance,
}

impl CallParsing {
    pub(crate) fn parser(&self) -> ToolParser {
        self.dialect.parser(Arc::clone(&self.functions), self.calls_max, self.guidance)
    }

    /// A new id for a call.
    pub(crate) fn call_id(&self) -> String {
        self.dialect.call_id(&uuid::Uuid::new_v4().simple().to_string())
    }
}
