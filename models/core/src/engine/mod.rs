//! The engine contract: a [`BatchModel`] computes logits for rows, an engine turns [`Job`]s into [`Event`]s.
//!
//! A request is a *context* (what a model computes once: the encoder's output, or the prompt's keys and
//! values) with a tree of decoded *nodes* under it. A [`Row`] asks for the logits after one more token; it
//! becomes a node whose ancestors are all it attends to. Greedy text is a chain, `n` samples are chains from
//! one root, a number distribution is a tree: all of them are rows of the same step.

mod error;
mod event;
mod job;
mod logits;
mod model;
mod score;

pub use crate::token::{Prompt, Token};
pub use error::{EngineError, ModelError};
pub use event::{Event, FinishReason, TokenLogprob, TokenNumber, TokenText};
pub use job::{
    After, BeamJob, EarlyStopping, Job, NumberJob, NumberMethod, NumberOutcome, Precision, Request,
    Terminator, TextJob,
};
pub use logits::{Logits, LogitsRequest, LogitsRow, LogitsSummary};
pub use model::{
    BatchModel, CacheCost, ContextId, ContextRequest, ModelInfo, NodeId, NumberEncoding, OpenedContext,
    PathRow, Row,
};
pub use score::{ScoreJob, ScoreOutcome, TokenScore};
