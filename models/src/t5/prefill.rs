//! The prompts of open contexts that are not computed completely.

use std::sync::Arc;

use ntl_core::contract::{ContextRequest, PrefillProgress, Prompt};

use super::encoder::Encoding;
use crate::ops::{AdapterWeights, Placement, Window};

/// The sizes of a stack, from which work is estimated.
#[derive(Clone)]
pub(crate) struct StackSizes {
    /// Width of the residual stream.
    pub(crate) hidden: usize,
    /// Width of all query heads.
    pub(crate) queries: usize,
    /// Width of all key heads.
    pub(crate) keys: usize,
    /// Multiplications of a layer's feed-forward part for one token.
    pub(crate) mlp: usize,
    /// The window of each layer.
    pub(crate) windows: Vec<Option<Window>>,
}

/// The work for one token in a stage of an [`Encoding`], in the unit of `PrefillChunk::work`.
pub(super) struct StageWork {
    /// Width of the encoder's output.
    pub(super) hidden: usize,
    /// Queries, keys and values of a layer.
    qkv: f64,
    /// The rest of a layer, without attention.
    rest: f64,
    /// Attention to one position in a layer.
    position: f64,
    /// Keys and values of the prompt in all layers of the decoder.
    cross: f64,
    /// The number of positions that each layer sees at most, if it is limited.
    windows: Vec<Option<usize>>,
    decoder_layers: usize,
}

impl StageWork {
    pub(super) fn new(encoder: &StackSizes, decoder: &StackSizes, place: &Placement) -> Self {
        let StackSizes { hidden, queries, keys, mlp, .. } = *encoder;
        let qkv = hidden * (queries + 2 * keys);
        let rest = hidden * queries + mlp;
        let cross = 2 * hidden * decoder.keys * decoder.windows.len();
        let token = ((qkv + rest) * encoder.windows.len() + cross) as f64;
        Self {
            hidden,
            qkv: qkv as f64 / token,
            rest: rest as f64 / token,
            position: place.attention_work() * 2.0 * queries as f64 / token,
            cross: cross as f64 / token,
            windows: encoder.windows.iter().map(|window| window.map(Window::positions)).collect(),
            decoder_layers: decoder.windows.len(),
        }
    }

    /// Returns the number of layers of the encoder.
    fn layers(&self) -> usize {
        self.windows.len()
    }

    /// Returns the work for one row of a prompt of `length` tokens in a stage.
    pub(super) fn of_row(&self, stage: usize, length: usize) -> f64 {
        let rest = match stage.checked_sub(1) {
            Some(layer) => {
                self.rest + self.position * self.windows[layer].unwrap_or(length).min(length) as f64
            }
            None => 0.0,
        };
        rest + if stage < self.layers() { self.qkv } else { self.cross }
    }

    /// Returns the work for one row of the decoder that sees this many positions. The queries and outputs of
    /// attention to the prompt count as those of another layer.
    pub(super) fn of_decoded_row(&self, positions: usize) -> f64 {
        let layer = 2.0 * self.qkv + self.rest + self.position * positions as f64;
        layer * self.decoder_layers as f64
    }
}

/// The prompt of one context.
pub(super) struct Prefill {
    pub(super) prompt: Prompt,
    pub(super) adapter: Option<Arc<AdapterWeights>>,
    /// The state between two parts; `None` if no part is computed.
    pub(super) encoding: Option<Encoding>,
}

impl Prefill {
    pub(super) fn new(prompt: Prompt, adapter: Option<Arc<AdapterWeights>>) -> Self {
        Self { prompt, adapter, encoding: None }
    }

    pub(super) fn request(&self) -> ContextRequest<'_> {
        (&self.prompt).into()
    }

    /// Returns whether nothing is computed yet and there is enough work for everything.
    pub(super) fn is_whole(&self, stages: &StageWork, work: usize) -> bool {
        self.encoding.is_none() && work >= self.progress(stages, 0.0).work_left
    }

    pub(super) fn is_complete(&self, stages: &StageWork) -> bool {
        self.encoding.as_ref().is_some_and(|encoding| encoding.stage() > stages.layers())
    }

    pub(super) fn progress(&self, stages: &StageWork, done: f64) -> PrefillProgress {
        let length = self.prompt.len();
        let (stage, row) = self.encoding.as_ref().map_or((0, 0), |state| (state.stage(), state.row()));
        let mut left = 0.0;
        for later in stage..=stages.layers() {
            let rows = if later == stage { length - row } else { length };
            left += stages.of_row(later, length) * rows as f64;
        }
        let work_left = if self.is_complete(stages) { 0 } else { (left.ceil() as usize).max(1) };
        PrefillProgress { work_left, work_done: done.ceil() as usize, cached_tokens: 0 }
    }
}
