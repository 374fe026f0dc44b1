//! What a model offers to the batch engine. No tensors cross this line.

use super::{Logits, LogitsRequest, ModelError};
use crate::{Prompt, Token};

/// Names one opened context of a model; never reused within a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub u64);

/// A decoded position inside one context: the n-th row that was ever stepped in it is node n.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The node's place in its context's order of rows.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One row as a decoding asks for it, before the engine says in which context.
#[derive(Debug, Clone, PartialEq)]
pub struct PathRow {
    /// The node this row extends; `None` starts a path at the context itself. It may be a row of the same
    /// step that stands earlier in it, which is how a whole target is scored in one step.
    pub parent: Option<NodeId>,
    /// The token at this position. A number token without a value takes what the model's number head predicted at the
    /// parent.
    pub token: Token,
    /// Which of the logits after it are needed.
    pub logits: LogitsRequest,
}

impl PathRow {
    /// The row of `token` after `parent`, with all of its logits.
    pub fn new(parent: Option<NodeId>, token: impl Into<Token>) -> Self {
        Self { parent, token: token.into(), logits: LogitsRequest::All }
    }

    /// The same row with another request for logits.
    pub fn with_logits(self, logits: LogitsRequest) -> Self {
        Self { logits, ..self }
    }
}

/// One row of a step: "what follows `token`, after `parent`, under `context`?"
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The context that the row belongs to.
    pub context: ContextId,
    /// Where in that context the row stands.
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
    /// Its name in later calls.
    pub context: ContextId,
    /// The token of its first row: the decoder start token, or a decoder-only model's last prompt token.
    pub first_token: u32,
    /// How many of the prompt's tokens were not computed again, because an earlier prompt began with them.
    pub cached_tokens: usize,
}

/// How a checkpoint writes numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberEncoding {
    /// Plain text pieces, some of several digits (`AutoNumberTokenizer` and most decoder-only models).
    Text,
    /// Text in which every digit is a token of its own (`T5Custom_Tokenizer`).
    Digits,
    /// Tokens of one digit at one power of ten, `_3_1_` for 30 (`RtTokenizer`).
    Rt,
    /// One token for all numbers, each with its value beside it (`XvalTokenizer`).
    Xval,
}

impl NumberEncoding {
    /// The name used on the wire and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Digits => "digits",
            Self::Rt => "rt",
            Self::Xval => "xval",
        }
    }
}

/// What is worth knowing about a loaded model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Kind of checkpoint, such as `t5`.
    pub kind: String,
    /// Which implementation runs it, such as `native`.
    pub backend: String,
    /// Element type of the weights in memory, such as `f32`.
    pub dtype: String,
    /// How numbers are written.
    pub number_encoding: NumberEncoding,
    /// Weights, counted once where they are shared.
    pub parameters: u64,
    /// Most prompt tokens that it takes.
    pub prompt_tokens_max: usize,
    /// Most tokens of prompt and answer together, where they share one sequence of limited length.
    pub context_tokens_max: Option<usize>,
    /// Most tokens of an answer, where the model has no position for more.
    pub answer_tokens_max: Option<usize>,
    /// Ids that the tokenizer knows: logits at and beyond this are padding and are never produced.
    pub tokens: usize,
    /// Ids that end a sequence.
    pub eos_ids: Vec<u32>,
    /// Whether prompt and answer live in different stacks (T5) or in one sequence.
    pub encoder_decoder: bool,
}

impl ModelInfo {
    /// Whether its logits are a distribution over tokens; a regression head says one value instead.
    pub fn has_token_distribution(&self) -> bool {
        self.kind != "t5-regression-head"
    }
}

/// Bytes of memory that contexts hold; 0 where that is not known. An engine opens no more contexts at once than fit its
/// limit at worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCost {
    /// For each token of a prompt that was opened.
    pub prompt_token: u64,
    /// For each node.
    pub node: u64,
}

impl CacheCost {
    /// Bytes of a context of so many prompt tokens once so many nodes are decoded in it.
    pub fn bytes(self, prompt_tokens: usize, nodes: usize) -> u64 {
        let prompt = self.prompt_token.saturating_mul(prompt_tokens as u64);
        prompt.saturating_add(self.node.saturating_mul(nodes as u64))
    }
}

/// A model that decodes rows of many contexts at once. Its owner is one engine thread.
///
/// A row's logits depend on its context and its ancestors only, never on the other rows of the step.
pub trait BatchModel: Send {
    /// What is loaded. Constant over the model's life.
    fn info(&self) -> &ModelInfo;

    /// Computes what later steps need of each prompt.
    ///
    /// # Errors
    /// When the computation fails; then none of the prompts was opened.
    fn open(&mut self, requests: &[ContextRequest<'_>]) -> Result<Vec<OpenedContext>, ModelError>;

    /// Decodes one token at each row and returns the logits of what may follow it, or as much of them as the row wants to
    /// know. More is allowed: whole rows answer everything.
    ///
    /// Rows of one context become its next nodes, in order.
    ///
    /// # Errors
    /// On an unknown context or parent, or when the computation fails. The contexts of the step are then no
    /// longer usable and should be closed.
    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError>;

    /// What its contexts hold in memory. Constant over the model's life.
    fn cache_cost(&self) -> CacheCost {
        CacheCost::default()
    }

    /// Most sequences that it decodes at the same time, where more would only be slower for all. Constant over the
    /// model's life.
    fn sequences_max(&self) -> Option<usize> {
        None
    }

    /// Frees a context and all its nodes. Unknown contexts are ignored.
    fn close(&mut self, context: ContextId);
}
