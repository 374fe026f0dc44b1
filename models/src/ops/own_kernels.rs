//! Which operations on a GPU are computed by this program's kernels. The others are composed of candle's
//! operations.

use std::sync::atomic::{AtomicU8, Ordering};

use candle_core::Tensor;

/// This program's kernels, by operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnKernel {
    Norm,
    Activation,
    Addition,
    CacheStore,
    SlotAttention,
    PromptAttention,
    LogitsSummary,
}

/// The kernels that are turned off, one bit each, on all GPUs of this process.
static OFF: AtomicU8 = AtomicU8::new(0);

impl OwnKernel {
    pub(crate) const ALL: [Self; 7] = [
        Self::Norm,
        Self::Activation,
        Self::Addition,
        Self::CacheStore,
        Self::SlotAttention,
        Self::PromptAttention,
        Self::LogitsSummary,
    ];

    /// The kernels that access keys and values in the cache.
    pub(crate) const OF_CACHE: [Self; 3] = [Self::CacheStore, Self::SlotAttention, Self::PromptAttention];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Norm => "norm",
            Self::Activation => "activation",
            Self::Addition => "addition",
            Self::CacheStore => "cache_store",
            Self::SlotAttention => "slot_attention",
            Self::PromptAttention => "prompt_attention",
            Self::LogitsSummary => "logits_summary",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Returns whether the kernel computes with this tensor.
    pub(crate) fn computes(self, tensor: &Tensor) -> bool {
        tensor.device().is_cuda() && !self.is_off()
    }

    pub(crate) fn is_off(self) -> bool {
        OFF.load(Ordering::Relaxed) & self.bit() != 0
    }

    /// Turns the kernel off.
    pub(crate) fn turn_off(self) {
        OFF.fetch_or(self.bit(), Ordering::Relaxed);
    }
}
