//! The batch engine: one thread owns a model and decodes all requests on it. Each turn of its loop computes
//! parts of some prompts and steps all decoded rows. Jobs join and leave between turns.
//!
//! In: [`Job`](ntl_core::contract::Job)s through a bounded queue. Out: events, one channel per job.
//! Invariants:
//!
//! * clients are scheduled round-robin and get equal shares of steps and memory, regardless of how many jobs
//!   they have;
//! * the queue is bounded;
//! * dropping a [`JobEvents`] cancels its job, and the number of unread events stays bounded;
//! * a failed batch fails only its own requests;
//! * results do not depend on the other jobs that are running.
//!
//! The decodings are in `ntl_core::decoding`; the model implements `ntl_core::contract::BatchModel`.

mod awake;
mod budget;
mod channel;
mod engine;
mod guard;
mod job_memory;
mod limits;
mod observer;
mod pace;
mod prefills;
mod queue;
mod run;
mod running;

pub use budget::{CacheBudget, CacheUse};
pub use channel::{EventSender, JobEvents, channel};
pub use engine::Engine;
pub use job_memory::{JobMemory, JobReservation};
pub use limits::EngineLimits;
pub use observer::{EndReason, EngineObserver, NoObserver};
