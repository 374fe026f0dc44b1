//! Checkpoints, tokenizers, native models and the batch engine.
//!
//! [`checkpoint`] reads folders, [`inspect`] looks at them, [`tokenizer`] and [`t5`] are built from them, [`batch`] runs a
//! model on its own thread for many requests at once, [`guide`] keeps texts to a grammar. Not here: HTTP, and what a number
//! is (`ntl-core`).

pub mod batch;
pub mod checkpoint;
pub mod guide;
pub mod inspect;
mod load;
mod ops;
pub mod t5;
pub mod tokenizer;

pub use load::{DeviceChoice, DtypeChoice, LoadOptions, LoadedModel, load, vocabulary};
