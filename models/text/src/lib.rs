//! Texts and files of checkpoints, without tensors.
//!
//! [`checkpoint`] reads directories, and [`gguf`] GGUF files. [`tokenizer`] turns texts into ids, [`chat`]
//! renders conversations, [`guide`] constrains texts to a grammar, [`tools`] finds calls of functions in
//! texts, and [`labels`] names the outputs of a head. [`load_options`] says how to load a checkpoint.

pub mod chat;
pub mod checkpoint;
pub mod gguf;
pub mod guide;
pub mod labels;
pub mod load_options;
pub mod tokenizer;
pub mod tools;
mod vocabulary;

pub use vocabulary::vocabulary;
