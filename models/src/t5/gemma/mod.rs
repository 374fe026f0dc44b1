//! T5Gemma 1 and 2: encoder-decoders with the layers of Gemma 2 and 3.
//!
//! They differ from T5 only in the values with which its stacks are built: rotary positions, windows, shared
//! key heads, caps, and a normalisation after each part of a layer. T5Gemma 2 is read without its vision
//! tower. Computes the same as transformers 5.23. [`MeanHead`] is the encoder of a T5Gemma 1 with a regression
//! head.

mod config;
mod load;
mod mean_head;
mod stored;

pub use mean_head::MeanHead;
