//! The output layer of a T5: its embedding table, a layer of its own, or xVal's bigger head.

use candle_core::{DType, Result, Tensor};

use super::layers::Loader;
use crate::checkpoint::LoadResult;
use crate::ops::{Product, Weight};

const NAME: &str = "lm_head";
/// The bigger head of xVal: two layers, numbered as parts of a `torch.nn.Sequential`.
const BIGGER: [&str; 2] = ["lm_head.0", "lm_head.2"];

/// Width between the layers of xVal's heads, fixed by the original.
pub(super) const WIDE: usize = 1024;

pub(super) struct Head {
    /// `[vocab, d_model]`, or `[vocab, WIDE]` behind a hidden layer.
    weight: Weight,
    /// `[WIDE, d_model]`, with a GELU behind it.
    hidden: Option<Weight>,
    scale: Option<f64>,
}

impl Head {
    /// Loads the stored head, or takes the embedding table where none is stored. Hidden states are divided by `sqrt(d_model)`
    /// before a tied head; the configuration says whether a stored head is tied.
    pub(super) fn load(loader: &Loader<'_>, embeddings: &Weight) -> LoadResult<Self> {
        let (vocab, d_model) = (loader.config.vocab_size, loader.config.d_model);
        let scale = Some((d_model as f64).powf(-0.5));
        let stored_scale = scale.filter(|_| loader.config.scale_stored_head);
        if loader.has(&format!("{}.weight", BIGGER[0])) {
            let hidden = Some(loader.weight(BIGGER[0], [WIDE, d_model])?);
            let weight = loader.weight(BIGGER[1], [vocab, WIDE])?;
            return Ok(Self { weight, hidden, scale: stored_scale });
        }
        if !loader.has(&format!("{NAME}.weight")) {
            return Ok(Self { weight: embeddings.clone(), hidden: None, scale });
        }
        Ok(Self { weight: loader.weight(NAME, [vocab, d_model])?, hidden: None, scale: stored_scale })
    }

    /// Hidden states `[R, d_model]` as all heads of the model take them, in f32.
    pub(super) fn scaled(&self, hidden: &Tensor) -> Result<Tensor> {
        let hidden = hidden.to_dtype(DType::F32)?;
        match self.scale {
            Some(scale) => hidden * scale,
            None => Ok(hidden),
        }
    }

    /// Scaled hidden states `[R, d_model]` to `[R, vocab]`.
    pub(super) fn logits(&self, scaled: &Tensor) -> Result<Product> {
        match &self.hidden {
            Some(hidden) => self.weight.product(&hidden.forward(scaled)?.gelu_erf()?),
            None => self.weight.product(scaled),
        }
    }
}
