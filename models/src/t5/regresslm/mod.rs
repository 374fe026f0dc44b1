//! Checkpoints of RegressLM's own PyTorch model: an encoder, and PyTorch's decoder that writes number tokens.
//!
//! The weights are a `.pt` file without a configuration. `ntl.json` describes them, which `stored` reads. The
//! network differs from T5 only in the values with which its stacks are built: layers with biases that are
//! normalised by mean and variance, and sinusoids for the decoder's positions. The encoder has the same
//! layers and rotary positions, or is T5Gemma's.

mod config;
mod load;
mod stored;

pub(crate) use config::TorchConfig;
