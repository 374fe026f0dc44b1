//! Checkpoints, tokenizers and native models.
//!
//! [`checkpoint`] reads folders; [`inspect`](mod@inspect) describes them; [`tokenizer`], [`t5`] and
//! [`causal`] are built from them; [`load()`] combines all three. [`guide`] constrains texts to a grammar,
//! [`chat`] renders conversations, [`tools`] finds calls of functions in texts.

mod adapter;
pub mod causal;
pub mod chat;
pub mod checkpoint;
#[cfg(test)]
mod composed_tests;
mod encoders;
mod families;
mod gpu;
pub mod guide;
pub mod inspect;
#[cfg(feature = "cuda")]
mod kernel_check;
mod kernel_choice;
mod kv_cache;
mod labels;
mod load;
mod logits_reducer;
#[cfg(feature = "cuda")]
mod on_gpu;
mod ops;
mod options;
#[cfg(test)]
mod random;
mod rope;
mod step_graphs;
pub mod t5;
pub mod tokenizer;
pub mod tools;
mod warm_up;

pub use adapter::{AdapterReader, OpenAdapter, adapter_base};
pub use families::architectures;
pub use gpu::{gpu_wait, replayed_steps};
pub use kernel_choice::{KernelChoice, kernels_off};
pub use load::{LoadedModel, load, vocabulary};
pub use ops::{Activation, Placement};
pub use options::{DeviceChoice, DtypeChoice, KvCacheDtype, LoadOptions};
