//! Encodes the prompts of open contexts, completely or in parts. In: prompts. Out: encoder output, for an
//! [`EncodedSink`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{Result, Tensor};
use ntl_core::contract::{
    ContextId, ContextRequest, HiddenStates, Interruption, ModelError, PrefillChunk, PrefillProgress, Prompt,
    Stack,
};
use rayon::prelude::*;

use super::embeddings::Embeddings;
use super::encoder::{Encoder, Encoding};
use super::prefill::{Prefill, StageWork};
use crate::kv_cache::TOKENS_AT_ONCE_ON_DEVICES;
use crate::ops::{AdaptedRows, AdapterWeights, ModelResult, Placement, compute_error, uses_kernels};

/// Maximum number of tokens that are encoded together on the CPU, so that their intermediate results stay in
/// its caches. A longer prompt is encoded alone.
const TOKENS_AT_ONCE: usize = 256;

/// Number of tokens per thread that are encoded on the CPU before the first check of an interruption. Fewer
/// would mostly read weights.
const PART_TOKENS: usize = 64;

/// The next part is longer if one takes less time.
const PART_TIME: Duration = Duration::from_millis(20);

/// Work on a part of a long prompt before the next check of an interruption, in the unit of
/// `PrefillChunk::work`.
const PART_WORK: f64 = 32.0;

/// An encoder with the prompts that are not computed completely.
pub(super) struct PromptEncoder {
    on_cpu: bool,
    embeddings: Embeddings,
    encoder: Encoder,
    work: StageWork,
    prefills: HashMap<ContextId, Prefill>,
}

/// The receiver of encoder output.
pub(super) trait EncodedSink {
    /// Makes room for the output of prompts with these numbers of tokens.
    fn open(&mut self, prompts: &[(ContextId, usize)]) -> Result<()>;

    /// Receives the output `[n, d_model]` of some tokens of open prompts. Each prompt's tokens come in order.
    fn write(&mut self, rows: &[EncodedRows], encoded: &Tensor) -> Result<()>;
}

/// Consecutive tokens of one prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct EncodedRows {
    pub(super) context: ContextId,
    /// Index of the first token in the prompt.
    pub(super) first: usize,
    pub(super) count: usize,
}

/// The rows of one prompt.
#[derive(Clone, Copy)]
pub(super) struct PromptRows<'a> {
    /// Number of tokens.
    length: usize,
    adapter: Option<&'a Arc<AdapterWeights>>,
}

/// A prompt of a call that is encoded completely.
struct Whole {
    /// Its index in the call.
    index: usize,
    context: ContextId,
    prefill: Prefill,
}

impl<'a> PromptRows<'a> {
    /// Returns the rows of a prompt without an adapter.
    pub(super) fn plain(prompt: &Prompt) -> Self {
        Self { length: prompt.len(), adapter: None }
    }

    fn of(prefill: &'a Prefill) -> Self {
        Self { length: prefill.prompt.len(), adapter: prefill.adapter.as_ref() }
    }

    fn adapted(prompts: &[Self]) -> AdaptedRows {
        AdaptedRows::new(prompts.iter().map(|prompt| (prompt.adapter, prompt.length)))
    }
}

/// Encoder output.
pub(super) struct Encoded {
    /// All prompts, concatenated, `[T, d_model]`.
    pub(super) packed: Tensor,
    /// Number of tokens of each prompt.
    pub(super) lengths: Vec<usize>,
}

impl PromptEncoder {
    pub(super) fn new(embeddings: Embeddings, encoder: Encoder, work: StageWork, place: &Placement) -> Self {
        Self { on_cpu: place.uses_kernels(), embeddings, encoder, work, prefills: HashMap::new() }
    }

    /// Returns the concatenated embeddings of all prompts, f32 `[T, d_model]`.
    pub(super) fn embed(&self, requests: &[ContextRequest<'_>]) -> ModelResult<Tensor> {
        self.embeddings.embed(requests.iter().flat_map(|request| request.prompt.ids()))
    }

    /// Encodes embedded prompts.
    pub(super) fn encode(&self, x: Tensor, prompts: &[PromptRows<'_>]) -> ModelResult<Encoded> {
        let packed = self.encode_some(&x, prompts).map_err(compute_error)?;
        Ok(Encoded { packed, lengths: prompts.iter().map(|prompt| prompt.length).collect() })
    }

    /// Encodes a few prompts at a time. On the CPU each thread encodes one such group, so that the operations
    /// between matmuls run in parallel, too.
    fn encode_some(&self, x: &Tensor, prompts: &[PromptRows<'_>]) -> Result<Tensor> {
        let on_cpu = uses_kernels(x);
        let pieces = pieces(prompts, if on_cpu { TOKENS_AT_ONCE } else { TOKENS_AT_ONCE_ON_DEVICES });
        let mut inputs = Vec::with_capacity(pieces.len());
        let mut from = 0;
        for prompts in &pieces {
            let tokens: usize = prompts.iter().map(|prompt| prompt.length).sum();
            inputs.push((x.narrow(0, from, tokens)?, *prompts));
            from += tokens;
        }
        let encoder = &self.encoder;
        let outputs: Result<Vec<Tensor>> = if on_cpu {
            inputs.into_par_iter().map(|(x, prompts)| encode_piece(encoder, x, prompts)).collect()
        } else {
            inputs.into_iter().map(|(x, prompts)| encode_piece(encoder, x, prompts)).collect()
        };
        Tensor::cat(&outputs?, 0)
    }

    /// Returns the memory of a partly encoded prompt per token, in bytes. On devices there are none.
    pub(super) fn token_bytes(&self) -> u64 {
        if self.on_cpu { self.encoder.encoding_token_bytes() as u64 } else { 0 }
    }

    /// Returns an error if a token of a prompt has no embedding.
    pub(super) fn check(&self, request: ContextRequest<'_>) -> ModelResult<()> {
        self.embeddings.check(request.prompt.ids())
    }

    /// Begins a prompt without computing it.
    pub(super) fn begin(
        &mut self,
        context: ContextId,
        request: ContextRequest<'_>,
        adapter: Option<Arc<AdapterWeights>>,
    ) -> PrefillProgress {
        let prefill = Prefill::new(request.prompt.clone(), adapter);
        let progress = prefill.progress(&self.work, 0.0);
        self.prefills.insert(context, prefill);
        progress
    }

    /// Computes parts of prompts, with the embeddings of complete prompts that `embed` returns.
    ///
    /// Prompts for which there is enough work are encoded together. A longer one is encoded in parts on the
    /// CPU, and as a whole on a device. On the CPU the rest is left for a later call if `interruption` is
    /// due.
    pub(super) fn prefill(
        &mut self,
        chunks: &[PrefillChunk],
        embed: impl Fn(&Self, &[ContextRequest<'_>]) -> ModelResult<Tensor>,
        sink: &mut impl EncodedSink,
        interruption: &mut dyn Interruption,
    ) -> ModelResult<Vec<PrefillProgress>> {
        let mut progress = Vec::with_capacity(chunks.len());
        let mut together = Vec::new();
        let mut is_first = true;
        for (index, &PrefillChunk { context, work }) in chunks.iter().enumerate() {
            let mut prefill = self.prefills.remove(&context).ok_or(ModelError::UnknownContext(context))?;
            if !self.on_cpu || prefill.is_whole(&self.work, work) {
                let work_done = prefill.progress(&self.work, 0.0).work_left;
                progress.push(PrefillProgress { work_done, ..PrefillProgress::default() });
                together.push(Whole { index, context, prefill });
                continue;
            }
            if !is_first && interruption.is_due() {
                progress.push(prefill.progress(&self.work, 0.0));
                self.prefills.insert(context, prefill);
                continue;
            }
            is_first = false;
            if prefill.encoding.is_none() {
                let x = embed(self, &[prefill.request()])?;
                let encoding = Encoding::new(x, self.encoder.head_widths()).map_err(compute_error)?;
                prefill.encoding = Some(encoding);
                sink.open(&[(context, prefill.prompt.len())]).map_err(compute_error)?;
            }
            let done =
                self.encode_part(context, &mut prefill, work, sink, interruption).map_err(compute_error)?;
            progress.push(prefill.progress(&self.work, done));
            if !prefill.is_complete(&self.work) {
                self.prefills.insert(context, prefill);
            }
        }
        let rows: Vec<_> = together.iter().map(|whole| PromptRows::of(&whole.prefill)).collect();
        let mut encoded = 0;
        let mut part_tokens = PART_TOKENS * rayon::current_num_threads();
        while encoded < together.len() {
            if !is_first && self.on_cpu && interruption.is_due() {
                break;
            }
            is_first = false;
            let began = Instant::now();
            let left = &rows[encoded..];
            let count = if self.on_cpu { fitting(left, part_tokens) } else { left.len() };
            let now = &together[encoded..encoded + count];
            let requests: Vec<_> = now.iter().map(|whole| whole.prefill.request()).collect();
            let Encoded { packed, lengths } = self.encode(embed(self, &requests)?, &left[..count])?;
            let contexts = now.iter().map(|whole| whole.context);
            let prompts: Vec<_> = contexts.zip(lengths).collect();
            let written: Vec<_> =
                prompts.iter().map(|&(context, count)| EncodedRows { context, first: 0, count }).collect();
            sink.open(&prompts).and_then(|()| sink.write(&written, &packed)).map_err(compute_error)?;
            encoded += count;
            if began.elapsed() < PART_TIME {
                part_tokens *= 2;
            }
        }
        for Whole { index, context, prefill } in together.into_iter().skip(encoded) {
            progress[index] = prefill.progress(&self.work, 0.0);
            self.prefills.insert(context, prefill);
        }
        Ok(progress)
    }

    /// Encodes a part of a prompt. Returns the work that was done.
    fn encode_part(
        &self,
        context: ContextId,
        prefill: &mut Prefill,
        work: usize,
        sink: &mut impl EncodedSink,
        interruption: &mut dyn Interruption,
    ) -> Result<f64> {
        let length = prefill.prompt.len();
        let Some(encoding) = &mut prefill.encoding else { return Ok(0.0) };
        let mut done = 0.0;
        while encoding.stage() < self.encoder.stages() {
            let of_row = self.work.of_row(encoding.stage(), length);
            // The sum of the work is rounded, and all the work that is left must suffice for all rows.
            let rows = ((work as f64 - done) / of_row + 1e-6) as usize;
            if done > 0.0 && (rows == 0 || interruption.is_due()) {
                break;
            }
            let first = encoding.row();
            let between_checks = (PART_WORK / of_row) as usize;
            let count = rows.min(between_checks).clamp(1, length - first);
            let adapted = AdaptedRows::new([(prefill.adapter.as_ref(), count)]);
            if let Some(encoded) = self.encoder.advance(encoding, count, &adapted)? {
                sink.write(&[EncodedRows { context, first, count }], &encoded)?;
            }
            done += count as f64 * of_row;
        }
        Ok(done)
    }

    /// Returns the shape of the output.
    pub(super) fn hidden_states(&self) -> HiddenStates {
        HiddenStates { stack: Stack::Encoder, width: self.work.hidden }
    }

    pub(super) fn is_on_cpu(&self) -> bool {
        self.on_cpu
    }

    pub(super) fn is_complete(&self, context: ContextId) -> bool {
        !self.prefills.contains_key(&context)
    }

    /// Returns the work for one row of the decoder that sees `positions` positions of its path and its
    /// prompt.
    pub(super) fn work_of_decoded_row(&self, positions: usize) -> f64 {
        self.work.of_decoded_row(positions)
    }

    pub(super) fn close(&mut self, context: ContextId) {
        self.prefills.remove(&context);
    }
}

impl Encoded {
    /// Returns one `[T, d_model]` per prompt.
    pub(super) fn split(&self) -> Result<Vec<Tensor>> {
        let mut prompts = Vec::with_capacity(self.lengths.len());
        let mut from = 0;
        for &length in &self.lengths {
            prompts.push(self.packed.narrow(0, from, length)?);
            from += length;
        }
        Ok(prompts)
    }
}

fn encode_piece(encoder: &Encoder, x: Tensor, prompts: &[PromptRows<'_>]) -> Result<Tensor> {
    let lengths: Vec<usize> = prompts.iter().map(|prompt| prompt.length).collect();
    encoder.forward(x, &lengths, &PromptRows::adapted(prompts))
}

/// Returns the number of prompts at the beginning that have at most this many tokens, at least 1.
fn fitting(prompts: &[PromptRows<'_>], tokens_max: usize) -> usize {
    let mut tokens = 0;
    for (index, prompt) in prompts.iter().enumerate() {
        tokens += prompt.length;
        if tokens > tokens_max {
            return index.max(1);
        }
    }
    prompts.len().max(1)
}

/// Groups prompts, in order, so that each group has at most `tokens_max` tokens or is a single longer prompt.
fn pieces<'a, 'b>(prompts: &'a [PromptRows<'b>], tokens_max: usize) -> Vec<&'a [PromptRows<'b>]> {
    let mut pieces = Vec::new();
    let mut left = prompts;
    while !left.is_empty() {
        let (piece, others) = left.split_at(fitting(left, tokens_max));
        pieces.push(piece);
        left = others;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_grouped_in_order() {
        let lengths = [100, 150, 10, 300, 200, 60];
        let grouped = |tokens_max| {
            let prompts = lengths.map(|length| PromptRows { length, adapter: None });
            let lengths =
                |piece: &[PromptRows<'_>]| piece.iter().map(|prompt| prompt.length).collect::<Vec<_>>();
            pieces(&prompts, tokens_max).into_iter().map(lengths).collect::<Vec<_>>()
        };
        assert_eq!(grouped(TOKENS_AT_ONCE), [&lengths[..2], &[10], &[300], &[200], &[60]]);
        assert_eq!(grouped(TOKENS_AT_ONCE_ON_DEVICES), [&lengths[..]], "one piece");
        assert!(pieces(&[], 256).is_empty());
    }
}
