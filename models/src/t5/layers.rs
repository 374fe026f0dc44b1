//! Layers that both stacks are made of, and reading them from a checkpoint.

use candle_core::{DType, Device, Result, Tensor};

use super::T5Config;
use crate::checkpoint::{LoadError, Weights};
use crate::ops::{Activation, linear, rms_norm};

/// Reads tensors of one T5 onto one device.
pub(super) struct Loader<'a> {
    pub(super) weights: &'a Weights<'a>,
    pub(super) config: &'a T5Config,
    pub(super) dtype: DType,
    pub(super) device: &'a Device,
    /// What stands before the names of its tensors in the file.
    pub(super) prefix: &'static str,
}

impl Loader<'_> {
    pub(super) fn tensor(&self, name: &str, shape: &[usize]) -> std::result::Result<Tensor, LoadError> {
        self.weights.tensor(&format!("{}{name}", self.prefix), shape, self.dtype, self.device)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.weights.has(&format!("{}{name}", self.prefix))
    }

    pub(super) fn norm(&self, name: &str) -> std::result::Result<Norm, LoadError> {
        let weight = self.tensor(&format!("{name}.weight"), &[self.config.d_model])?;
        Ok(Norm { weight, eps: self.config.layer_norm_epsilon })
    }

    pub(super) fn attention(&self, name: &str) -> std::result::Result<Attention, LoadError> {
        let (inner, model) = (self.config.inner(), self.config.d_model);
        let weight = |part: &str, shape: [usize; 2]| self.tensor(&format!("{name}.{part}.weight"), &shape);
        Ok(Attention {
            q: weight("q", [inner, model])?,
            k: weight("k", [inner, model])?,
            v: weight("v", [inner, model])?,
            o: weight("o", [model, inner])?,
        })
    }

    pub(super) fn feed_forward(&self, name: &str) -> std::result::Result<FeedForward, LoadError> {
        let (wide, model) = (self.config.d_ff, self.config.d_model);
        let weight = |part: &str, shape: [usize; 2]| {
            self.tensor(&format!("{name}.DenseReluDense.{part}.weight"), &shape)
        };
        let (wi, gate) = if self.config.gated {
            (weight("wi_1", [wide, model])?, Some(weight("wi_0", [wide, model])?))
        } else {
            (weight("wi", [wide, model])?, None)
        };
        let norm = self.norm(&format!("{name}.layer_norm"))?;
        Ok(FeedForward {
            norm,
            wi,
            gate,
            wo: weight("wo", [model, wide])?,
            activation: self.config.activation,
        })
    }
}

/// Root mean square normalisation with a learned scale.
pub(super) struct Norm {
    weight: Tensor,
    eps: f64,
}

impl Norm {
    /// `[M, d_model]` to the same.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        rms_norm(x, &self.weight, self.eps)
    }
}

/// Projections of one attention: `q`, `k`, `v` `[inner, d_model]`, `o` `[d_model, inner]`.
pub(super) struct Attention {
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    pub(super) o: Tensor,
}

/// Normalisation and feed-forward of one layer.
pub(super) struct FeedForward {
    norm: Norm,
    wi: Tensor,
    gate: Option<Tensor>,
    wo: Tensor,
    activation: Activation,
}

impl FeedForward {
    /// `[M, d_model]` to the same, the residual included.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let normed = self.norm.forward(x)?;
        let wide = linear(&normed, &self.wi)?;
        let wide = match &self.gate {
            None => self.activation.apply(&wide)?,
            Some(gate) => (self.activation.apply(&linear(&normed, gate)?)? * wide)?,
        };
        x + linear(&wide, &self.wo)?
    }
}
