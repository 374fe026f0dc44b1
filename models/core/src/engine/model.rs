//! What a model offers to the batch engine. No tensors cross this line.

use super::error::ModelError;
use super::ids::{ContextId, NodeId};
use super::info::ModelInfo;
use crate::logits::{Logits, LogitsRequest};
use crate::token::{Prompt, Token};

/// A row as a decoding asks for it; the engine adds the context.
#[derive(Debug, Clone, PartialEq)]
pub struct PathRow {
    /// The node that this row extends; `None` starts a path at the context itself. It may be an earlier row of the same
    /// step, so that a whole target is scored in one step.
    pub parent: Option<NodeId>,
    /// The token at this position. A number token without a value takes what the model's number head predicted at the
    /// parent.
    pub token: Token,
    /// Which of the logits after it are needed.
    pub logits: LogitsRequest,
}

impl PathRow {
    /// The row of `token` after `parent`, asking for all logits.
    pub fn new(parent: Option<NodeId>, token: impl Into<Token>) -> Self {
        Self { parent, token: token.into(), logits: LogitsRequest::All }
    }

    /// The same row with another request for logits.
    pub fn with_logits(self, logits: LogitsRequest) -> Self {
        Self { logits, ..self }
    }
}

/// One row of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub context: ContextId,
    pub path: PathRow,
}

/// A prompt to open as a context, and how the model decodes under it.
#[derive(Debug, Clone, Copy)]
pub struct ContextRequest<'a> {
    pub prompt: &'a Prompt,
    /// Decode as the paper's code does, with the faults of its `generate` (xVal).
    pub paper_decoding: bool,
}

impl<'a> From<&'a Prompt> for ContextRequest<'a> {
    fn from(prompt: &'a Prompt) -> Self {
        Self { prompt, paper_decoding: false }
    }
}

/// A context that was just opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenedContext {
    pub context: ContextId,
    /// The token of its first row: the decoder start token, or a decoder-only model's last prompt token.
    pub first_token: u32,
    /// Tokens of the prompt that were not computed again, because an earlier prompt began with them.
    pub cached_tokens: usize,
}

/// Bytes of memory that contexts hold; 0 where unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCost {
    /// Of each opened prompt token.
    pub prompt_token: u64,
    pub node: u64,
}

impl CacheCost {
    pub fn bytes(self, prompt_tokens: usize, nodes: usize) -> u64 {
        let prompt = self.prompt_token.saturating_mul(prompt_tokens as u64);
        prompt.saturating_add(self.node.saturating_mul(nodes as u64))
    }
}

/// A model that decodes rows of many contexts at once. One engine thread owns it.
///
/// A row's logits depend only on its context and its ancestors, never on the other rows of the step.
pub trait BatchModel: Send {
    /// Constant over the model's life.
    fn info(&self) -> &ModelInfo;

    /// Computes what later steps need of each prompt. On an error none of the prompts is open.
    fn open(&mut self, requests: &[ContextRequest<'_>]) -> Result<Vec<OpenedContext>, ModelError>;

    /// Decodes one token at each row and returns at least the logits that the row asks for. Rows of one context become its
    /// next nodes, in order.
    ///
    /// After an error the contexts of the step are no longer usable and should be closed.
    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError>;

    /// Constant over the model's life.
    fn cache_cost(&self) -> CacheCost {
        CacheCost::default()
    }

    /// Most sequences to decode at the same time, where more would be slower for all. Constant over the model's life.
    fn sequences_max(&self) -> Option<usize> {
        None
    }

    /// Frees a context and all its nodes. Unknown contexts are ignored.
    fn close(&mut self, context: ContextId);
}
