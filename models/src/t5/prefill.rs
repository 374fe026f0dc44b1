//! The prompts of open contexts that are not computed completely.

use ntl_core::contract::{ContextRequest, PrefillProgress, Prompt};

use super::T5Config;
use super::encoder::Encoding;

/// Factor by which a multiplication of attention takes longer than one of a matmul. (Estimated. The engine
/// measures time, so the estimate affects only how soon its limits are accurate.)
const ATTENTION: f64 = 4.0;

/// The work for one token in a stage of an [`Encoding`], in the unit of `PrefillChunk::work`.
pub(super) struct StageWork {
    /// Queries, keys and values of a layer.
    qkv: f64,
    /// The rest of a layer, without attention.
    rest: f64,
    /// Attention to one position in a layer.
    position: f64,
    /// Keys and values of cross-attention in all layers of the decoder.
    cross: f64,
    layers: usize,
    decoder_layers: usize,
}

impl StageWork {
    pub(super) fn new(config: &T5Config) -> Self {
        let inner = config.inner() as f64;
        let square = config.d_model as f64 * inner;
        let mlp = (config.d_model * config.d_ff * if config.gated { 3 } else { 2 }) as f64;
        let cross = 2.0 * square * config.num_decoder_layers as f64;
        let token = (4.0 * square + mlp) * config.num_layers as f64 + cross;
        Self {
            qkv: 3.0 * square / token,
            rest: (square + mlp) / token,
            position: ATTENTION * 2.0 * inner / token,
            cross: cross / token,
            layers: config.num_layers,
            decoder_layers: config.num_decoder_layers,
        }
    }

    /// Returns the work for one row of a prompt of `length` tokens in a stage.
    pub(super) fn of_row(&self, stage: usize, length: usize) -> f64 {
        let rest = if stage == 0 { 0.0 } else { self.rest + self.position * length as f64 };
        rest + if stage < self.layers { self.qkv } else { self.cross }
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
    /// The state between two parts; `None` if no part is computed.
    pub(super) encoding: Option<Encoding>,
}

impl Prefill {
    pub(super) fn new(prompt: Prompt) -> Self {
        Self { prompt, encoding: None }
    }

    pub(super) fn request(&self) -> ContextRequest<'_> {
        (&self.prompt).into()
    }

    /// Returns whether nothing is computed yet and there is enough work for everything.
    pub(super) fn is_whole(&self, stages: &StageWork, work: usize) -> bool {
        self.encoding.is_none() && work >= self.progress(stages, 0.0).work_left
    }

    pub(super) fn is_complete(&self, stages: &StageWork) -> bool {
        self.encoding.as_ref().is_some_and(|encoding| encoding.stage() > stages.layers)
    }

    pub(super) fn progress(&self, stages: &StageWork, done: f64) -> PrefillProgress {
        let length = self.prompt.len();
        let (stage, row) = self.encoding.as_ref().map_or((0, 0), |state| (state.stage(), state.row()));
        let rows = |at: usize| if at == stage { length - row } else { length };
        let left = (stage..=stages.layers).map(|at| stages.of_row(at, length) * rows(at) as f64);
        let left: f64 = left.sum();
        let work_left = if self.is_complete(stages) { 0 } else { (left.ceil() as usize).max(1) };
        PrefillProgress { work_left, work_done: done.ceil() as usize, cached_tokens: 0 }
    }
}
