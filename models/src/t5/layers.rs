//! The layers of both stacks, and the reader of their tensors.

use candle_core::{DType, Result, Tensor};
use ntl_text::checkpoint::LoadResult;

use super::T5Config;
use crate::adapter::AdaptableLayers;
use crate::ops::{
    AdaptedRows, Heads, Linear, Mlp, Norm, PassRope, Placement, QkNorms, QkvInput, Scratch, StoredLinear,
    Weight, device_error,
};
use crate::weights::Weights;

/// Reads the tensors of one model, or of one of its stacks, to one device. `C` is its configuration.
pub(crate) struct Loader<'a, C = T5Config> {
    pub(crate) weights: &'a Weights<'a>,
    pub(crate) config: &'a C,
    pub(crate) place: &'a Placement,
    /// Prefix of the tensors' names in the file.
    pub(crate) prefix: &'a str,
    pub(crate) adaptable: &'a AdaptableLayers,
}

impl<C> Loader<'_, C> {
    pub(crate) fn tensor(&self, name: &str, shape: &[usize]) -> LoadResult<Tensor> {
        let Placement { dtype, device, .. } = self.place;
        self.weights.tensor(&format!("{}{name}", self.prefix), shape, *dtype, device)
    }

    /// Reads the weight `name.weight`, `[out, in]`.
    pub(crate) fn weight(&self, name: &str, shape: [usize; 2]) -> LoadResult<Weight> {
        Weight::new(self.tensor(&format!("{name}.weight"), &shape)?, self.place).map_err(device_error)
    }

    /// Reads layers with the same input of `input` elements. Each is `name.weight`, `[width, input]`.
    pub(crate) fn linear<const P: usize>(
        &self,
        names: [String; P],
        widths: [usize; P],
        input: usize,
    ) -> LoadResult<Linear<P>> {
        let mut layers = Vec::with_capacity(P);
        for (name, width) in names.iter().zip(widths) {
            let weight = self.tensor(&format!("{name}.weight"), &[width, input])?;
            layers.push(StoredLinear { module: self.module(name), weight, bias: None });
        }
        self.adaptable.combine(&layers, widths, self.place).map_err(device_error)
    }

    /// Reads the last layer of a feed-forward part.
    ///
    /// In f16 its outputs would overflow in larger checkpoints, which were trained in bf16.
    pub(super) fn down(&self, name: String, [output, input]: [usize; 2]) -> LoadResult<Linear> {
        let exact = self.place.exact();
        let place = if self.place.dtype == DType::F16 { &exact } else { self.place };
        Loader { place, ..*self }.linear([name], [output], input)
    }

    /// Reads the layer `name` with its bias. Adapters do not change it.
    pub(crate) fn biased(&self, name: &str, shape: [usize; 2]) -> LoadResult<Linear> {
        Linear::new(&[self.stored(name, shape, true)?], [shape[0]], self.place).map_err(device_error)
    }

    /// Reads a layer of a head that predicts labels. Adapters may change or replace it.
    pub(crate) fn of_labels(&self, name: &str, shape: [usize; 2], has_bias: bool) -> LoadResult<Linear> {
        self.adaptable.of_labels(self.stored(name, shape, has_bias)?, self.place).map_err(device_error)
    }

    /// Reads the stored form of a layer, with its bias if it has one.
    pub(crate) fn stored(
        &self,
        name: &str,
        [output, input]: [usize; 2],
        has_bias: bool,
    ) -> LoadResult<StoredLinear> {
        let weight = self.tensor(&format!("{name}.weight"), &[output, input])?;
        let bias = has_bias.then(|| self.tensor(&format!("{name}.bias"), &[output])).transpose()?;
        Ok(StoredLinear { module: self.module(name), weight, bias })
    }

    /// Returns the name of a layer within the complete model.
    pub(crate) fn module(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns the output layer `name` with a weight that may be shared.
    pub(super) fn head(&self, name: &str, weight: Weight, shape: [usize; 2]) -> Linear {
        self.adaptable.head(&self.module(name), weight, shape)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.weights.has(&format!("{}{name}", self.prefix))
    }
}

/// Attention to positions of the same stack.
pub(crate) struct SelfAttention {
    /// Index of its kind in the stack.
    pub(crate) kind: usize,
    /// Normalises the input.
    pub(crate) norm: Option<Norm>,
    pub(crate) qkv: Linear<3>,
    pub(crate) qk_norms: Option<QkNorms>,
    pub(crate) output: Linear,
}

impl SelfAttention {
    /// Returns the normalised hidden states, if the layer normalises its input.
    pub(super) fn normed(&self, x: &Tensor) -> Result<Option<Scratch>> {
        normed(self.norm.as_ref(), x)
    }

    /// Returns the computation of queries, keys and values from normalised hidden states.
    pub(super) fn input<'a>(
        &'a self,
        normed: &'a Tensor,
        heads: Heads,
        rope: Option<&'a PassRope>,
        rows: &'a AdaptedRows,
    ) -> QkvInput<'a> {
        QkvInput { x: normed, qkv: &self.qkv, heads, qk_norms: self.qk_norms.as_ref(), rope, rows }
    }
}

/// Attention to the prompt.
pub(super) struct CrossAttention {
    pub(super) norm: Norm,
    pub(super) query: Linear,
    pub(super) output: Linear,
}

pub(crate) struct FeedForward {
    /// Normalises the input.
    pub(crate) norm: Option<Norm>,
    pub(crate) mlp: Mlp,
}

fn normed(norm: Option<&Norm>, x: &Tensor) -> Result<Option<Scratch>> {
    norm.map(|norm| norm.forward(x).map(Scratch)).transpose()
}

impl FeedForward {
    /// Maps `[M, d_model]` to `[M, d_model]`, and adds the residual.
    pub(super) fn forward(&self, x: Tensor, rows: &AdaptedRows) -> Result<Tensor> {
        match normed(self.norm.as_ref(), &x)? {
            Some(normed) => self.mlp.added(&normed, x, rows),
            None => self.mlp.added(&x.clone(), x, rows),
        }
    }
}
