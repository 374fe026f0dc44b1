//! The interface between a model and the batch engine. No tensors cross it.

use std::sync::Arc;
use std::time::Duration;

use super::adapter::Adapter;
use super::error::ModelError;
use super::hidden_states::Pooling;
use super::ids::{ContextId, NodeId};
use super::info::ModelInfo;
use crate::logits::{Logits, LogitsRequest};
use crate::token::{Prompt, Token};

/// A row that a decoding requests. The engine adds the context.
#[derive(Debug, Clone, PartialEq)]
pub struct PathRow {
    /// The node that this row extends; `None` starts a path at the context itself. It may be an earlier row
    /// of the same step, so that a whole target is scored in one step.
    pub parent: Option<NodeId>,
    /// The token at this position. A number token without a value gets the prediction of the model's number
    /// head at the parent.
    pub token: Token,
    /// The logits that are needed after the row.
    pub logits: LogitsRequest,
    pub continuation: Continuation,
}

/// The tokens of later rows that extend a row. An engine that writes tokens faster than it reads prompts may
/// compute the most probable one ahead.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Continuation {
    /// Any token.
    #[default]
    Any,
    /// One of these ids (ascending, not empty).
    Among(Arc<[u32]>),
    /// A later row is unlikely.
    Unlikely,
}

impl PathRow {
    /// Returns the row of `token` after `parent`, with a request for all logits.
    pub fn new(parent: Option<NodeId>, token: impl Into<Token>) -> Self {
        Self { parent, token: token.into(), logits: LogitsRequest::All, continuation: Continuation::Any }
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
    /// Whether to decode as the paper's code does, with the bugs of its `generate` (xVal).
    pub paper_decoding: bool,
    /// Prompts use each other's cached prefixes only if their salts are equal. Any number.
    pub cache_salt: u64,
    /// The adapter to compute the prompt and its rows with.
    pub adapter: Option<&'a Adapter>,
    /// Keep the output of the encoder, pooled over the prompt, for rows with [`LogitsRequest::Hidden`].
    pub pooling: Option<Pooling>,
}

impl<'a> From<&'a Prompt> for ContextRequest<'a> {
    fn from(prompt: &'a Prompt) -> Self {
        Self { prompt, paper_decoding: false, cache_salt: 0, adapter: None, pooling: None }
    }
}

/// A context that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenedContext {
    pub context: ContextId,
    /// The token of its first row: the decoder start token, or a decoder-only model's last prompt token.
    pub first_token: u32,
    pub prefill: PrefillProgress,
}

/// How much of a context's prompt is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefillProgress {
    /// Work that is left, in the unit of [`PrefillChunk::work`]; 0 if the context can be stepped.
    pub work_left: usize,
    /// Work that the last call did for this context.
    pub work_done: usize,
    /// Tokens of the prompt that were not computed again, because an earlier prompt began with them.
    pub cached_tokens: usize,
}

/// A part of a context's prefill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefillChunk {
    pub context: ContextId,
    /// Approximate maximum of work to do, at least 1. The unit is the work for one token of a short prompt.
    /// Tokens that attend to many positions need more, so that work is about proportional to time.
    pub work: usize,
}

/// Bytes of memory that an open context holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheCost {
    /// Bytes per opened prompt token.
    pub prompt_token: u64,
    pub node: u64,
    pub capacity: NodeCapacity,
}

/// The number of nodes that a context has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeCapacity {
    /// The nodes that it has.
    Exact,
    /// A power of two, at least `min`.
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

/// The data that a model keeps from earlier requests, such as a prefix cache. Any thread may evict from it.
pub trait EvictableCache: Send + Sync {
    /// Returns its size, in bytes.
    fn bytes(&self) -> u64;

    /// Frees at least `bytes`, or all that it has.
    fn evict(&self, bytes: u64);
}

/// Default of [`BatchModel::prefill_tokens_max`].
pub const PREFILL_TOKENS_MAX: usize = 4096;

/// Other work for a model in the middle of a long call, so that it need not wait until the call returns.
pub trait Interruption {
    /// Returns whether there is any. Models call it between layers, so it must be cheap.
    fn is_due(&mut self) -> bool;

    /// Does some of it. It may open, compute and close contexts that are not part of the call.
    fn serve(&mut self, model: &mut dyn BatchModel);
}

/// There is no other work.
pub struct Uninterrupted;

impl Interruption for Uninterrupted {
    fn is_due(&mut self) -> bool {
        false
    }

    fn serve(&mut self, _: &mut dyn BatchModel) {}
}

/// A model that decodes rows of many contexts in one batch. One engine thread owns it.
///
/// A row's logits depend only on its context and its ancestors, never on the other rows of the step.
pub trait BatchModel: Send {
    /// Constant over the model's life.
    fn info(&self) -> &ModelInfo;

    /// Returns whether it computes on the threads of the caller's pool. Constant over the model's life.
    fn uses_pool(&self) -> bool {
        false
    }

    /// Opens a context without computing its prompt.
    ///
    /// # Errors
    /// If the model cannot read the prompt. Then nothing is open.
    fn begin(&mut self, request: ContextRequest<'_>) -> Result<OpenedContext, ModelError>;

    /// Computes a part of each prompt, and returns their progress. Results do not depend on how a prefill is
    /// divided into chunks. At least one of the contexts advances; the others may wait for the part of a
    /// prompt that they share with it.
    ///
    /// After an error the contexts of the call are no longer usable and should be closed.
    fn prefill(&mut self, chunks: &[PrefillChunk]) -> Result<Vec<PrefillProgress>, ModelError>;

    /// Like [`prefill`](Self::prefill), but serves `interruption` in the middle, or returns early if it is
    /// due. Models with short calls do neither.
    fn prefill_interruptibly(
        &mut self,
        chunks: &[PrefillChunk],
        interruption: &mut dyn Interruption,
    ) -> Result<Vec<PrefillProgress>, ModelError> {
        let _ = interruption;
        self.prefill(chunks)
    }

    /// Waits until the last [`prefill`](Self::prefill) is computed, and returns the time that its device
    /// needed. `None` if a prefill is computed when its call returns.
    fn prefill_time(&mut self) -> Option<Duration> {
        None
    }

    /// Opens contexts and computes their prompts completely. On an error none of them is open.
    fn open(&mut self, requests: &[ContextRequest<'_>]) -> Result<Vec<OpenedContext>, ModelError> {
        let mut opened = Vec::with_capacity(requests.len());
        let computed = begin_all(self, requests, &mut opened).and_then(|()| prefill_all(self, &mut opened));
        if let Err(error) = computed {
            opened.iter().for_each(|opened| self.close(opened.context));
            return Err(error);
        }
        Ok(opened)
    }

    /// Decodes one token at each row, after complete prefills, and returns at least the logits that the row
    /// requests. Rows of one context become its next nodes, in order.
    ///
    /// After an error the contexts of the step are no longer usable and should be closed.
    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError>;

    /// Like [`step`](Self::step), but serves `interruption` in the middle. Models with short calls do not.
    fn step_interruptibly(
        &mut self,
        rows: &[Row],
        interruption: &mut dyn Interruption,
    ) -> Result<Logits, ModelError> {
        let _ = interruption;
        self.step(rows)
    }

    /// Returns whether prefills had already computed a part of every row of the last [`step`](Self::step), so
    /// that its time is not the time of a step. The first steps of a model are complete.
    fn step_was_partial(&self) -> bool {
        false
    }

    /// Fails if the model's device cannot compute any more. Called after an error, to distinguish a failed
    /// computation from a failed device.
    fn check_device(&mut self) -> Result<(), ModelError> {
        Ok(())
    }

    /// Returns the memory cost of contexts. Constant over the model's life.
    fn cache_cost(&self) -> CacheCost;

    /// Returns the cache of earlier requests, if the model has one. Constant over the model's life.
    fn evictable_cache(&self) -> Option<Arc<dyn EvictableCache>> {
        None
    }

    /// Returns the maximum work of one call of [`prefill`](Self::prefill), in the unit of
    /// [`PrefillChunk::work`]. Running requests wait meanwhile, so it should be the smallest number at which
    /// the time per token hardly decreases any further. Constant over the model's life.
    fn prefill_tokens_max(&self) -> usize {
        PREFILL_TOKENS_MAX
    }

    /// Maximum number of sequences to decode at the same time, if more would be slower for all. Constant over
    /// the model's life.
    fn sequences_max(&self) -> Option<usize> {
        None
    }

    /// Frees a context and all its nodes. Unknown contexts are ignored.
    fn close(&mut self, context: ContextId);
}

fn begin_all<M: BatchModel + ?Sized>(
    model: &mut M,
    requests: &[ContextRequest<'_>],
    opened: &mut Vec<OpenedContext>,
) -> Result<(), ModelError> {
    for &request in requests {
        opened.push(model.begin(request)?);
    }
    Ok(())
}

fn prefill_all<M: BatchModel + ?Sized>(
    model: &mut M,
    opened: &mut [OpenedContext],
) -> Result<(), ModelError> {
    loop {
        let mut left: Vec<_> = opened.iter_mut().filter(|opened| opened.prefill.work_left > 0).collect();
        if left.is_empty() {
            return Ok(());
        }
        let mut chunks = Vec::with_capacity(left.len());
        for opened in &left {
            chunks.push(PrefillChunk { context: opened.context, work: opened.prefill.work_left });
        }
        let progress = model.prefill(&chunks)?;
        left.iter_mut().zip(progress).for_each(|(opened, progress)| opened.prefill = progress);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_that_grow_to_powers_of_two_cost_their_capacity() {
        let exact = CacheCost { prompt_token: 3, node: 2, capacity: NodeCapacity::Exact };
        let rounded = CacheCost { capacity: NodeCapacity::PowerOfTwo { min: 32 }, ..exact };
        for (nodes, room) in [(0, 0), (1, 32), (32, 32), (33, 64), (4097, 8192)] {
            assert_eq!(exact.bytes(5, nodes), 15 + 2 * nodes as u64);
            assert_eq!(rounded.bytes(5, nodes), 15 + 2 * room, "{nodes} nodes");
        }
        assert_eq!(rounded.bytes(usize::MAX, usize::MAX), u64::MAX);
    }
}
