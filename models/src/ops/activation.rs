//! Activations of feed-forward layers.

use candle_core::{Result, Tensor};

/// Activation of the feed-forward layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Rectified linear unit.
    Relu,
    /// GELU by the error function, as `gelu` in Hugging Face.
    Gelu,
    /// GELU in its tanh approximation, as `gelu_new` in Hugging Face.
    GeluNew,
    /// x times its logistic.
    Silu,
}

impl Activation {
    /// The activation that Hugging Face calls so; `None` for those that no model here has.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "relu" => Some(Self::Relu),
            "gelu" => Some(Self::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Some(Self::GeluNew),
            "silu" | "swish" => Some(Self::Silu),
            _ => None,
        }
    }

    /// Element by element.
    pub(crate) fn apply(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Relu => x.relu(),
            Self::Gelu => x.gelu_erf(),
            Self::GeluNew => x.gelu(),
            Self::Silu => x.silu(),
        }
    }
}
