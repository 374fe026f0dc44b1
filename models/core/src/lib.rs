//! The pure heart of ntl-server: numbers, sampling, text assembly and the engine contract.
//!
//! Nothing here knows tensors, files or HTTP, so every rule about *what* is decoded can be tested in
//! milliseconds with a scripted model:
//!
//! * [`engine`]: what a model offers ([`engine::BatchModel`]) and what a request is ([`engine::Job`] in,
//!   [`engine::Event`] out);
//! * [`decoding`]: the state machines that turn logits into the next rows: text paths and number trees;
//! * [`numbers`]: number grammar over token ids, distributions and their estimators, reading of text;
//! * [`losses`]: cross entropy and every Number Token Loss of a target, on logits;
//! * [`sampling`] and [`text`]: choosing tokens, and assembling them into text with stop strings;
//! * [`scripted`]: a model whose distribution is written down, to test all of the above and its users.

pub mod decoding;
pub mod engine;
pub mod losses;
pub mod numbers;
pub mod sampling;
pub mod scripted;
pub mod text;
mod token;

pub use token::{Prompt, Token};
