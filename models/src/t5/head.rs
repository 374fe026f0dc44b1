//! The output layer of a T5: the embedding table, a separate layer, or xVal's bigger head.

use candle_core::{DType, Result, Tensor};
use ntl_text::checkpoint::LoadResult;

use super::layers::Loader;
use crate::ops::{AdaptedRows, Linear, Product, Weight};

const NAME: &str = "lm_head";
/// xVal's bigger head: two layers, named by their indices in a `torch.nn.Sequential`.
const BIGGER: [&str; 2] = ["lm_head.0", "lm_head.2"];

/// Width between the layers of xVal's heads. The reference implementation hard-codes it.
pub(super) const WIDE: usize = 1024;

pub(super) struct Head {
    /// `[vocab, d_model]`, or `[vocab, WIDE]` after a hidden layer.
    weight: Linear,
    /// `[WIDE, d_model]`, followed by a GELU.
    hidden: Option<Weight>,
    scale: Option<f64>,
    /// Logits `x` become `cap * tanh(x / cap)`.
    cap: Option<f32>,
    /// f32 `[vocab]`.
    bias: Option<Tensor>,
}

impl Head {
    /// Loads the stored head, or uses the embedding table if none is stored. Hidden states are divided by
    /// `sqrt(d_model)` before a tied head. The configuration states whether a stored head is tied.
    pub(super) fn load(loader: &Loader<'_>, embeddings: &Weight) -> LoadResult<Self> {
        let vocab = loader.config.vocab_size;
        let d_model = loader.config.d_model;
        let scale = Some((d_model as f64).powf(-0.5));
        let stored_scale = if loader.config.scale_stored_head { scale } else { None };
        if loader.has(&format!("{}.weight", BIGGER[0])) {
            let hidden = Some(loader.weight(BIGGER[0], [WIDE, d_model])?);
            let weight = loader.head(BIGGER[1], loader.weight(BIGGER[1], [vocab, WIDE])?, [vocab, WIDE]);
            return Ok(Self { weight, hidden, scale: stored_scale, cap: None, bias: None });
        }
        if !loader.has(&format!("{NAME}.weight")) {
            let weight = loader.head(NAME, embeddings.clone(), [vocab, d_model]);
            return Ok(Self { weight, hidden: None, scale, cap: None, bias: None });
        }
        let weight = loader.head(NAME, loader.weight(NAME, [vocab, d_model])?, [vocab, d_model]);
        Ok(Self { weight, hidden: None, scale: stored_scale, cap: None, bias: None })
    }

    /// Creates an output layer `[vocab, d_model]` whose logits are limited by `cap`.
    pub(super) fn capped(weight: Linear, cap: Option<f32>) -> Self {
        Self { weight, hidden: None, scale: None, cap, bias: None }
    }

    /// Creates an output layer `[vocab, d_model]` with a bias f32 `[vocab]`.
    pub(super) fn biased(weight: Linear, bias: Tensor) -> Self {
        Self { weight, hidden: None, scale: None, cap: None, bias: Some(bias) }
    }

    /// Converts hidden states `[R, d_model]` to the input of all heads: f32, scaled if the head is tied.
    pub(super) fn scaled(&self, hidden: &Tensor) -> Result<Tensor> {
        let hidden = hidden.to_dtype(DType::F32)?;
        match self.scale {
            Some(scale) => hidden * scale,
            None => Ok(hidden),
        }
    }

    /// Maps scaled hidden states `[R, d_model]` to logits `[R, vocab]`.
    pub(super) fn logits(&self, scaled: &Tensor, rows: &AdaptedRows) -> Result<Product> {
        let logits = match &self.hidden {
            Some(hidden) => self.weight.product(&hidden.forward(scaled)?.gelu_erf()?, rows)?,
            None => self.weight.product(scaled, rows)?,
        };
        let logits = match &self.bias {
            Some(bias) => logits.biased(bias)?,
            None => logits,
        };
        match self.cap {
            Some(cap) => logits.capped(cap),
            None => Ok(logits),
        }
    }
}
