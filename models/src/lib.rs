//! Checkpoints, tokenizers, native models.
//!
//! [`checkpoint`] reads folders, [`inspect`] looks at them, [`tokenizer`], [`t5`] and [`causal`] are built from them,
//! [`guide`] keeps texts to a grammar, [`chat`] renders
//! conversations. Not here: HTTP, and what a number is (`ntl-core`).

mod adapter;
mod answers;
pub mod causal;
pub mod chat;
pub mod checkpoint;
#[cfg(test)]
mod composed_tests;
mod gpu;
pub mod guide;
pub mod inspect;
mod load;
mod nodes;
mod ops;
pub mod t5;
pub mod tokenizer;

pub use load::{
    DeviceChoice, DtypeChoice, LoadOptions, LoadedModel, architectures, load, load_adapted, vocabulary,
};
pub use ops::{Activation, Placement};
