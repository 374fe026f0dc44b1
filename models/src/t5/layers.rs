//! Layers that both stacks are made of, and reading them from a checkpoint.

use candle_core::{DType, Result, Tensor};

use super::T5Config;
use crate::checkpoint::{LoadError, Weights};
use crate::ops::{Activation, Placement, Weight, rms_norm};

/// Reads tensors of one T5 to one place.
pub(super) struct Loader<'a> {
    pub(super) weights: &'a Weights<'a>,
    pub(super) config: &'a T5Config,
    pub(super) place: &'a Placement,
    /// What stands before the names of its tensors in the file.
    pub(super) prefix: &'static str,
}

impl Loader<'_> {
    pub(super) fn tensor(&self, name: &str, shape: &[usize]) -> std::result::Result<Tensor, LoadError> {
        let Placement { dtype, device, .. } = self.place;
        self.weights.tensor(&format!("{}{name}", self.prefix), shape, *dtype, device)
    }

    /// What applies a tensor `[out, in]` to rows.
    pub(super) fn weight(&self, name: &str, shape: [usize; 2]) -> std::result::Result<Weight, LoadError> {
        self.packed(self.tensor(name, &shape)?)
    }

    pub(super) fn packed(&self, tensor: Tensor) -> std::result::Result<Weight, LoadError> {
        Weight::new(tensor, self.place).map_err(device)
    }

    /// Several weights that read the same, as one with their outputs side by side.
    fn joined<const P: usize>(&self, weights: [Tensor; P]) -> std::result::Result<Weight, LoadError> {
        if self.weights.stands_in() {
            // One zero, seen everywhere.
            let shape = (P * weights[0].dims()[0], weights[0].dims()[1]);
            let all = weights[0].narrow(0, 0, 1).and_then(|row| row.broadcast_as(shape));
            return self.packed(all.map_err(device)?);
        }
        self.packed(Tensor::cat(&weights, 0).map_err(device)?)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.weights.has(&format!("{}{name}", self.prefix))
    }

    pub(super) fn norm(&self, name: &str) -> std::result::Result<Norm, LoadError> {
        let weight = self.tensor(&format!("{name}.weight"), &[self.config.d_model])?;
        Ok(Norm { weight, eps: self.config.layer_norm_epsilon })
    }

    pub(super) fn self_attention(&self, name: &str) -> std::result::Result<SelfAttention, LoadError> {
        let (inner, model) = (self.config.inner(), self.config.d_model);
        let input = |part: &str| self.tensor(&format!("{name}.{part}.weight"), &[inner, model]);
        Ok(SelfAttention {
            qkv: self.joined([input("q")?, input("k")?, input("v")?])?,
            output: self.weight(&format!("{name}.o.weight"), [model, inner])?,
            inner,
        })
    }

    pub(super) fn cross_attention(&self, name: &str) -> std::result::Result<CrossAttention, LoadError> {
        let (inner, model) = (self.config.inner(), self.config.d_model);
        let input = |part: &str| self.tensor(&format!("{name}.{part}.weight"), &[inner, model]);
        Ok(CrossAttention {
            query: self.packed(input("q")?)?,
            kv: self.joined([input("k")?, input("v")?])?,
            output: self.weight(&format!("{name}.o.weight"), [model, inner])?,
            inner,
        })
    }

    pub(super) fn feed_forward(&self, name: &str) -> std::result::Result<FeedForward, LoadError> {
        let (wide, model) = (self.config.d_ff, self.config.d_model);
        let part = |part: &str| format!("{name}.DenseReluDense.{part}.weight");
        let input = |name: &str| self.tensor(&part(name), &[wide, model]);
        let (input, gated) = if self.config.gated {
            (self.joined([input("wi_0")?, input("wi_1")?])?, true)
        } else {
            (self.packed(input("wi")?)?, false)
        };
        let norm = self.norm(&format!("{name}.layer_norm"))?;
        // In f16 what it gives overflows in the bigger checkpoints, which were trained in bf16.
        let exact = self.place.exact();
        let place = if self.place.dtype == DType::F16 { &exact } else { self.place };
        let output = Loader { place, ..*self }.weight(&part("wo"), [model, wide])?;
        Ok(FeedForward { norm, input, gated, output, activation: self.config.activation })
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

/// Projections of attention to positions of the same stack.
pub(super) struct SelfAttention {
    /// `[3 * inner, d_model]`: queries, keys, values.
    qkv: Weight,
    /// `[d_model, inner]`.
    pub(super) output: Weight,
    inner: usize,
}

impl SelfAttention {
    /// Queries, keys and values `[M, inner]` of normalised hidden states `[M, d_model]`.
    pub(super) fn inputs(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        self.qkv.parts(x, [self.inner; 3])
    }
}

/// Projections of attention to the prompt.
pub(super) struct CrossAttention {
    /// `[inner, d_model]`.
    pub(super) query: Weight,
    /// `[2 * inner, d_model]`: keys, values.
    kv: Weight,
    /// `[d_model, inner]`.
    pub(super) output: Weight,
    inner: usize,
}

impl CrossAttention {
    /// Keys and values `[T, inner]` of encoder output `[T, d_model]`.
    pub(super) fn keys_and_values(&self, encoded: &Tensor) -> Result<[Tensor; 2]> {
        self.kv.parts(encoded, [self.inner; 2])
    }
}

/// Normalisation and feed-forward of one layer.
pub(super) struct FeedForward {
    norm: Norm,
    /// `[wide, d_model]`, or the gate before it as well, `[2 * wide, d_model]`.
    input: Weight,
    gated: bool,
    /// `[d_model, wide]`.
    output: Weight,
    activation: Activation,
}

impl FeedForward {
    /// `[M, d_model]` to the same, the residual included.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let normed = self.norm.forward(x)?;
        let wide = if self.gated {
            self.input.gated(&normed, self.activation)?
        } else {
            self.input.activated(&normed, self.activation)?
        };
        self.output.added(&wide, x)
    }
}

fn device(error: candle_core::Error) -> LoadError {
    LoadError::Device(error.to_string())
}
