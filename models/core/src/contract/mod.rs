//! The engine contract: a [`BatchModel`] computes logits for rows, an engine turns [`Job`]s into [`Event`]s.
//!
//! A request is a *context* (what a model computes once: the encoder's output, or the prompt's keys and
//! values) with a tree of decoded *nodes* under it. A [`Row`] requests the logits after one more token. It
//! becomes a node that attends only to its ancestors. Greedy text is a chain, `n` samples are chains from
//! one root, a number distribution is a tree: all of them are rows of the same step.

mod adapter;
mod candidates;
mod error;
mod event;
mod hidden_states;
mod ids;
mod info;
mod job;
mod model;
mod options;

pub use crate::logits::{Logits, LogitsRequest, LogitsRow, LogitsShape, LogitsSummary};
pub use crate::numbers::Terminator;
pub use crate::report::{NextTokenReport, ReportError};
pub use crate::token::{Prompt, Token, TokenLogprob};
pub use adapter::Adapter;
pub use candidates::CandidatesJob;
pub use error::{EngineError, ModelError};
pub use event::{
    Event, FieldOutcome, FinishReason, NumberOutcome, RefusedText, ScoreOutcome, StopReason, TokenNumber,
    TokenScore, TokenText,
};
pub use hidden_states::{EmbeddingJob, HiddenStates, Pooling, Stack};
pub use ids::{ContextId, NodeId};
pub use info::{Backend, Dtype, ModelInfo, NumberEncoding};
pub use job::{
    AfterMarker, BeamJob, EarlyStopping, FieldsJob, Job, NumberJob, NumberMethod, OpenDraws, Precision,
    Request, ScoreJob, TextJob,
};
pub use model::{
    BatchModel, CacheCost, ContextRequest, Continuation, EvictableCache, Interruption, NodeCapacity,
    OpenedContext, PREFILL_TOKENS_MAX, PathRow, PrefillChunk, PrefillProgress, Row, Uninterrupted,
};
pub use options::{EqualOptions, OpenMass, OptionsJob, OptionsOutcome};
