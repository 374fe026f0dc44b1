//! The batch engine: one thread owns a model and decodes all requests on it; jobs join and leave between steps.
//!
//! In: [`Job`](ntl_core::engine::Job)s through a bounded queue. Out: events, one channel for each job. Invariants:
//!
//! * clients are served in turn and share steps and memory, whatever the number of their jobs, and the queue is bounded;
//! * dropping a [`JobEvents`] cancels its job, and unread events stay bounded;
//! * a failed batch fails only its own requests;
//! * results do not depend on what else is running.
//!
//! Not here: what is decoded (`ntl_core::decoding`), and the model (`ntl_core::engine::BatchModel`).

mod budget;
mod channel;
mod engine;
mod guard;
mod limits;
mod observer;
mod pace;
mod queue;
mod run;
mod running;

pub use budget::{CacheBudget, CacheUse};
pub use channel::JobEvents;
pub use engine::Engine;
pub use limits::EngineLimits;
pub use observer::{EndReason, EngineObserver, NoObserver};
