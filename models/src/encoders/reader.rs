//! Reads the tensors of an encoder, and checks the sizes that all of them have.

use ntl_core::contract::ModelInfo;
use ntl_core::labels::Labels;
use ntl_text::checkpoint::{
    CONFIG_FILE, CheckpointFiles, FieldError, LoadError, LoadResult, check_count, check_epsilon, check_sizes,
};
use ntl_text::labels::read_labels;

use crate::families::Family;
use crate::ops::{Activation, Heads, Linear, Norm, Placement, device_error};
use crate::t5::{Loader, StackSizes, TokenizerFacts};

/// The sizes of an encoder, as stored by transformers.
pub(super) struct EncoderSizes {
    pub(super) vocab: usize,
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) positions: usize,
}

impl EncoderSizes {
    pub(super) fn check(&self) -> Result<(), FieldError> {
        check_sizes(&[
            ("vocab_size", self.vocab),
            ("hidden_size", self.hidden),
            ("intermediate_size", self.intermediate),
            ("num_attention_heads", self.heads),
            ("max_position_embeddings", self.positions),
        ])?;
        check_count("num_hidden_layers", self.layers)?;
        if !self.hidden.is_multiple_of(self.heads) {
            let reason = format!("{} does not divide hidden_size {}", self.heads, self.hidden);
            return Err(("num_attention_heads", reason));
        }
        check_count("hidden_size", self.hidden / self.heads).map(drop)
    }

    pub(super) fn heads(&self) -> Heads {
        let scale = ((self.hidden / self.heads) as f64).powf(-0.5) as f32;
        Heads { queries: self.heads, keys: self.heads, scale, cap: None }
    }

    /// Returns the sizes for estimates of work, without windows. `gated`: whether feed-forward layers have a
    /// gate.
    pub(super) fn stack(&self, gated: bool) -> StackSizes {
        StackSizes {
            hidden: self.hidden,
            queries: self.hidden,
            keys: self.hidden,
            mlp: self.hidden * self.intermediate * if gated { 3 } else { 2 },
            windows: vec![None; self.layers],
        }
    }
}

/// Returns an error about a field of `config.json`.
pub(super) fn at_root(files: &CheckpointFiles) -> impl Fn(FieldError) -> LoadError {
    move |(field, reason)| LoadError::field(files.name_of(CONFIG_FILE), field, reason)
}

pub(super) fn check_norm(field: &'static str, eps: Option<f64>, usual: f64) -> Result<f64, FieldError> {
    let eps = eps.unwrap_or(usual);
    check_epsilon(field, eps).map(|()| eps)
}

pub(super) fn activation(field: &'static str, name: Option<&str>) -> Result<Activation, FieldError> {
    let name = name.unwrap_or("gelu");
    Activation::named(name).ok_or_else(|| (field, format!("`{name}` is not supported")))
}

/// The labels of a checkpoint, and the facts about it. `positions_max` is the maximum length of a prompt.
pub(super) fn described(
    files: &CheckpointFiles,
    facts: TokenizerFacts,
    positions_max: usize,
    parameters: u64,
    place: &Placement,
) -> LoadResult<(Labels, ModelInfo)> {
    let labels = read_labels(files)?;
    let mut info = facts.info(Family::of(files)?, Vec::new(), place, parameters);
    info.prompt_tokens_max = info.prompt_tokens_max.min(positions_max);
    info.labels = Some(labels.clone());
    Ok((labels, info))
}

impl<C> Loader<'_, C> {
    /// Reads a layer, with its bias if it has one. Adapters may change it.
    pub(super) fn dense(&self, name: &str, shape: [usize; 2], has_bias: bool) -> LoadResult<Linear> {
        self.adaptable
            .combine(&[self.stored(name, shape, has_bias)?], [shape[0]], self.place)
            .map_err(device_error)
    }

    /// Reads a normalisation by mean and variance.
    pub(super) fn layer_norm(&self, name: &str, width: usize, has_bias: bool, eps: f64) -> LoadResult<Norm> {
        let weight = self.tensor(&format!("{name}.weight"), &[width])?;
        let bias = if has_bias {
            self.tensor(&format!("{name}.bias"), &[width])?
        } else {
            weight.zeros_like().map_err(device_error)?
        };
        Norm::new(&weight, Some(&bias), eps).map_err(device_error)
    }
}
