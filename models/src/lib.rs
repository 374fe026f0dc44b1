//! Native models.
//!
//! [`load()`] builds one of [`t5`], [`causal`] and the encoders from the files of a checkpoint, and
//! [`inspect`](mod@inspect) describes a checkpoint without loading it.

mod adapter;
pub mod causal;
#[cfg(test)]
mod composed_tests;
mod encoders;
mod families;
mod gpu;
pub mod inspect;
#[cfg(feature = "cuda")]
mod kernel_check;
mod kernel_choice;
mod kv_cache;
mod load;
mod logits_reducer;
#[cfg(feature = "cuda")]
mod on_gpu;
mod ops;
mod options;
#[cfg(test)]
#[path = "../tests/support/random.rs"]
mod random;
mod rope;
mod step_graphs;
pub mod t5;
mod warm_up;
mod weights;

pub use adapter::{AdapterReader, OpenAdapter, adapter_base};
pub use families::architectures;
pub use gpu::{gpu_wait, replayed_steps};
pub use kernel_choice::kernels_off;
pub use load::{LoadedModel, load};
pub use ntl_text::load_options::{DeviceChoice, DtypeChoice, KernelChoice, KvCacheDtype, LoadOptions};
pub use ops::{Activation, Placement};
pub use options::{free_gpu_bytes, open_device, place};
pub use weights::{WeightSummary, Weights};
