//! The layers of both stacks, and their loader.

use candle_core::{DType, Result, Tensor};

use super::T5Config;
use crate::checkpoint::{LoadResult, Weights};
use crate::ops::{Linear, Mlp, MlpInput, Norm, Placement, StoredLinear, Weight};

/// Reads the tensors of one T5 to one device.
pub(super) struct Loader<'a> {
    pub(super) weights: &'a Weights<'a>,
    pub(super) config: &'a T5Config,
    pub(super) place: &'a Placement,
    /// Prefix of the tensors' names in the file.
    pub(super) prefix: &'static str,
}

impl Loader<'_> {
    pub(super) fn tensor(&self, name: &str, shape: &[usize]) -> LoadResult<Tensor> {
        let Placement { dtype, device, .. } = self.place;
        self.weights.tensor(&format!("{}{name}", self.prefix), shape, *dtype, device)
    }

    /// Reads the weight `name.weight`, `[out, in]`.
    pub(super) fn weight(&self, name: &str, shape: [usize; 2]) -> LoadResult<Weight> {
        Ok(Weight::new(self.tensor(&format!("{name}.weight"), &shape)?, self.place)?)
    }

    /// Reads layers that share an input. Each is `name.weight`, `[out, in]`.
    fn linear<const P: usize>(&self, names: [String; P], [out, input]: [usize; 2]) -> LoadResult<Linear<P>> {
        let stored = |name: String| {
            let weight = self.tensor(&format!("{name}.weight"), &[out, input])?;
            Ok(StoredLinear { weight, bias: None })
        };
        let layers = names.into_iter().map(stored).collect::<LoadResult<Vec<_>>>()?;
        Ok(Linear::new(&layers, [out; P], self.place)?)
    }

    /// Reads the layer `name` with its bias.
    pub(super) fn biased(&self, name: &str, shape: [usize; 2]) -> LoadResult<Linear> {
        let weight = self.tensor(&format!("{name}.weight"), &shape)?;
        let bias = Some(self.tensor(&format!("{name}.bias"), &shape[..1])?);
        Ok(Linear::new(&[StoredLinear { weight, bias }], [shape[0]], self.place)?)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.weights.has(&format!("{}{name}", self.prefix))
    }

    pub(super) fn norm(&self, name: &str) -> LoadResult<Norm> {
        let weight = self.tensor(&format!("{name}.weight"), &[self.config.d_model])?;
        Ok(Norm::new(&weight, None, self.config.layer_norm_epsilon)?)
    }

    pub(super) fn self_attention(&self, name: &str) -> LoadResult<SelfAttention> {
        let inner = self.config.inner();
        let model = self.config.d_model;
        let part = |part: &str| format!("{name}.SelfAttention.{part}");
        Ok(SelfAttention {
            norm: self.norm(&format!("{name}.layer_norm"))?,
            qkv: self.linear(["q", "k", "v"].map(part), [inner, model])?,
            output: self.linear([part("o")], [model, inner])?,
        })
    }

    pub(super) fn cross_attention(&self, name: &str) -> LoadResult<CrossAttention> {
        let inner = self.config.inner();
        let model = self.config.d_model;
        let part = |part: &str| format!("{name}.EncDecAttention.{part}");
        Ok(CrossAttention {
            norm: self.norm(&format!("{name}.layer_norm"))?,
            query: self.linear([part("q")], [inner, model])?,
            kv: self.linear(["k", "v"].map(part), [inner, model])?,
            output: self.linear([part("o")], [model, inner])?,
        })
    }

    pub(super) fn feed_forward(&self, name: &str) -> LoadResult<FeedForward> {
        let wide = self.config.d_ff;
        let model = self.config.d_model;
        let part = |part: &str| format!("{name}.DenseReluDense.{part}");
        let up = if self.config.gated {
            MlpInput::Gated(self.linear(["wi_0", "wi_1"].map(part), [wide, model])?)
        } else {
            MlpInput::Plain(self.linear([part("wi")], [wide, model])?)
        };
        // In f16 the outputs of the bigger checkpoints, which were trained in bf16, overflow.
        let exact = self.place.exact();
        let place = if self.place.dtype == DType::F16 { &exact } else { self.place };
        let down = Loader { place, ..*self }.linear([part("wo")], [model, wide])?;
        let mlp = Mlp { up, down, activation: self.config.activation };
        Ok(FeedForward { norm: self.norm(&format!("{name}.layer_norm"))?, mlp })
    }
}

/// Attention to positions of the same stack.
pub(super) struct SelfAttention {
    pub(super) norm: Norm,
    pub(super) qkv: Linear<3>,
    pub(super) output: Linear,
}

/// Attention to the prompt.
pub(super) struct CrossAttention {
    pub(super) norm: Norm,
    pub(super) query: Linear,
    pub(super) kv: Linear<2>,
    pub(super) output: Linear,
}

pub(super) struct FeedForward {
    norm: Norm,
    mlp: Mlp,
}

impl FeedForward {
    /// Maps `[M, d_model]` to `[M, d_model]`, and adds the residual.
    pub(super) fn forward(&self, x: Tensor) -> Result<Tensor> {
        self.mlp.added(&self.norm.forward(&x)?, x)
    }
}
