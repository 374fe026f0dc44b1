//! What a model offers to the batch engine. No tensors cross this line.

use std::sync::Arc;

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

/// Bytes of memory that an open context holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheCost {
    /// Of each opened prompt token.
    pub prompt_token: u64,
    pub node: u64,
    pub capacity: NodeCapacity,
}

/// For how many nodes a context has room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeCapacity {
    /// For those that it has.
    Exact,
    /// For a power of two, at least `min`.
    PowerOfTwo { min: usize },
}

impl CacheCost {
    pub fn bytes(self, prompt_tokens: usize, nodes: usize) -> u64 {
        let capacity = match self.capacity {
            _ if nodes == 0 => 0,
            NodeCapacity::Exact => nodes,
            NodeCapacity::PowerOfTwo { min } => nodes.max(min).checked_next_power_of_two().unwrap_or(nodes),
        };
        let prompt = self.prompt_token.saturating_mul(prompt_tokens as u64);
        prompt.saturating_add(self.node.saturating_mul(capacity as u64))
    }
}

/// What a model keeps of earlier requests, such as a prefix cache. Any thread may evict from it.
pub trait EvictableCache: Send + Sync {
    /// Bytes that it holds.
    fn bytes(&self) -> u64;

    /// Frees at least `bytes`, or all that it has.
    fn evict(&self, bytes: u64);
}

/// Prompt tokens that a model opens between two steps unless it states another number.
pub const OPEN_TOKENS_MAX: usize = 4096;

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

    /// What contexts cost. Constant over the model's life.
    fn cache_cost(&self) -> CacheCost;

    /// What the model keeps of earlier requests, if anything. Constant over the model's life.
    fn evictable_cache(&self) -> Option<Arc<dyn EvictableCache>> {
        None
    }

    /// Prompt tokens to open between two steps; one prompt is always opened, however long it is. So many that they take hardly longer
    /// a token than more would, since running requests wait for them. Constant over the model's life.
    fn open_tokens_max(&self) -> usize {
        OPEN_TOKENS_MAX
    }

    /// Most sequences to decode at the same time, where more would be slower for all. Constant over the model's life.
    fn sequences_max(&self) -> Option<usize> {
        None
    }

    /// Frees a context and all its nodes. Unknown contexts are ignored.
    fn close(&mut self, context: ContextId);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_that_grow_to_powers_of_two_cost_what_they_have_room_for() {
        let exact = CacheCost { prompt_token: 3, node: 2, capacity: NodeCapacity::Exact };
        let rounded = CacheCost { capacity: NodeCapacity::PowerOfTwo { min: 32 }, ..exact };
        for (nodes, room) in [(0, 0), (1, 32), (32, 32), (33, 64), (4097, 8192)] {
            assert_eq!(exact.bytes(5, nodes), 15 + 2 * nodes as u64);
            assert_eq!(rounded.bytes(5, nodes), 15 + 2 * room, "{nodes} nodes");
        }
        assert_eq!(rounded.bytes(usize::MAX, usize::MAX), u64::MAX);
    }
}
