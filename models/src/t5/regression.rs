//! A T5 with a head (`T5ForSequenceClassification`), which predicts the values of labels and no text. With
//! one label, the value is a number.
//!
//! The input of the decoder is the prompt itself, shifted by one. The head reads the decoder's hidden state
//! at the prompt's last end-of-sequence token. The values are computed by the prefill: first the encoder,
//! then the rows of the decoder. If the model was trained on signed logarithms of the targets,
//! sign(y) ln(|y| + 1), predictions are converted back.

use std::collections::HashMap;

use candle_core::{DType, Result, Tensor};
use ntl_core::contract::{
    BatchModel, CacheCost, ContextId, ContextRequest, Interruption, Logits, ModelError, ModelInfo,
    NodeCapacity, NodeId, OpenedContext, PathRow, PrefillChunk, PrefillProgress, Prompt, Row, Uninterrupted,
};
use ntl_text::checkpoint::{CheckpointFiles, LoadResult};
use ntl_text::labels::read_labels;

use super::layers::Loader;
use super::model::TokenizerFacts;
use super::pools::Pools;
use super::prompts::PromptEncoder;
use super::stacks::{Stacks, decode};
use super::stored::{load_embeddings, load_stacks};
use crate::adapter::{AdaptableLayers, AdapterReader, ModelAdapters};
use crate::ops::{AdaptedRows, Linear, ModelResult, Placement, Weight, compute_error, device_error};
use crate::weights::Weights;

/// A T5 that predicts one number, or the values of several labels, for each prompt.
pub struct RegressionHead {
    info: ModelInfo,
    stacks: Stacks,
    /// `[d_model, d_model]` and `[labels, d_model]`, with a tanh between them.
    head: [Linear; 2],
    log_scale: bool,
    /// Contexts without values yet, or with requests for the output of the encoder.
    inputs: HashMap<ContextId, DecoderInput>,
    values: HashMap<ContextId, Vec<f32>>,
}

/// The tokens that the decoder reads up to the row whose hidden state the head reads.
struct DecoderInput {
    tokens: Vec<u32>,
    /// Number of rows that are decoded.
    decoded: usize,
}

impl RegressionHead {
    /// `log_scale`: whether the model was trained on logarithms.
    pub fn load(
        files: &CheckpointFiles,
        facts: TokenizerFacts,
        log_scale: bool,
        place: &Placement,
    ) -> LoadResult<Self> {
        let config = facts.config(files)?;
        let labels = read_labels(files)?;
        let weights = Weights::open(files)?;
        let adaptable = AdaptableLayers::default();
        let whole = Loader { weights: &weights, config: &config, place, prefix: "", adaptable: &adaptable };
        let loader = Loader { prefix: "transformer.", ..whole };
        let parts =
            load_stacks(&loader, Weight::new(load_embeddings(&loader)?, place).map_err(device_error)?)?;
        let d_model = config.d_model;
        let exact_place = place.exact();
        let exact = Loader { place: &exact_place, ..whole };
        let head = [
            exact.of_labels("classification_head.dense", [d_model, d_model], true)?,
            exact.of_labels("classification_head.out_proj", [labels.names.len(), d_model], true)?,
        ];
        let mut info = facts.info(config.family, config.eos_token_ids, place, weights.parameters());
        info.labels = Some(labels);
        let stacks = Stacks::new(parts, ModelAdapters::new(adaptable, place), place);
        info.hidden_states = Some(stacks.prompts.hidden_states());
        Ok(Self { info, stacks, head, log_scale, inputs: HashMap::new(), values: HashMap::new() })
    }

    /// Returns the reader of its adapters.
    pub fn adapters(&self) -> &AdapterReader {
        self.stacks.adapters()
    }

    fn decoder_input(&self, prompt: &Prompt) -> DecoderInput {
        let end = prompt.ids().rposition(|id| self.info.eos_ids.contains(&id));
        let rows = end.map_or(prompt.len(), |end| end + 1);
        let start = self.stacks.start_id();
        let tokens = std::iter::once(start).chain(prompt.ids()).take(rows.max(1)).collect();
        DecoderInput { tokens, decoded: 0 }
    }

    /// Returns the work for the rows of the decoder that are left.
    fn work_left(&self, context: ContextId) -> usize {
        let Some(DecoderInput { tokens, decoded }) = self.inputs.get(&context) else { return 0 };
        let rows =
            (*decoded..tokens.len()).map(|row| self.stacks.prompts.work_of_decoded_row(row + tokens.len()));
        rows.sum::<f64>().ceil() as usize
    }

    /// Returns the next rows of a context for which there is work: at least one if there is any work.
    fn next_rows(&self, context: ContextId, work: usize) -> Vec<Row> {
        if work == 0 {
            return Vec::new();
        }
        let Some(input) = self.inputs.get(&context) else { return Vec::new() };
        let mut rows = Vec::new();
        let mut work_left = work as f64;
        for (index, &token) in input.tokens.iter().enumerate().skip(input.decoded) {
            work_left -= self.stacks.prompts.work_of_decoded_row(index + input.tokens.len());
            if work_left < 0.0 && index > input.decoded {
                break;
            }
            let parent = index.checked_sub(1).map(|parent| NodeId(parent as u32));
            rows.push(Row { context, path: PathRow::new(parent, token) });
        }
        rows
    }

    /// Decodes rows, and predicts the values of the contexts whose last rows are among them.
    fn decode(&mut self, rows: &[Row], interruption: &mut dyn Interruption) -> ModelResult<()> {
        let groups = self.stacks.kv_cache.append_rows(rows)?;
        let x = self.stacks.embed_rows(rows.iter().map(|row| row.path.token.id))?;
        let hidden = decode(self, |model| &model.stacks, x, &groups, interruption)?;
        let mut complete = Vec::new();
        let mut read = Vec::new();
        for group in &groups {
            let count = group.paths.len();
            let Some(input) = self.inputs.get_mut(&group.context) else { continue };
            input.decoded += count;
            if input.decoded == input.tokens.len() {
                complete.push(group.context);
                read.push((group.first_row + count - 1) as u32);
            }
        }
        if complete.is_empty() {
            return Ok(());
        }
        let rows =
            AdaptedRows::new(complete.iter().map(|&context| (self.stacks.kv_cache.adapter(context), 1)));
        let values = self.values_at(&hidden, read, &rows).map_err(compute_error)?;
        for &context in &complete {
            // Only the values are needed from here on.
            self.stacks.close(context);
            self.inputs.remove(&context);
        }
        self.values.extend(complete.into_iter().zip(values));
        Ok(())
    }

    fn compute(
        &mut self,
        chunks: &[PrefillChunk],
        interruption: &mut dyn Interruption,
    ) -> ModelResult<Vec<PrefillProgress>> {
        if let Some(chunk) = chunks.iter().find(|chunk| !self.inputs.contains_key(&chunk.context)) {
            return Err(ModelError::UnknownContext(chunk.context));
        }
        let prompts = &self.stacks.prompts;
        let encoding: Vec<_> =
            chunks.iter().filter(|chunk| !prompts.is_complete(chunk.context)).copied().collect();
        let encoded = self.stacks.prefill(&encoding, PromptEncoder::embed, interruption)?;
        let encoded: HashMap<_, _> = encoding.iter().map(|chunk| chunk.context).zip(encoded).collect();
        let mut progress = Vec::with_capacity(chunks.len());
        let mut rows = Vec::new();
        for chunk in chunks {
            let mut part: PrefillProgress = encoded.get(&chunk.context).copied().unwrap_or_default();
            if part.work_left == 0 {
                let work = chunk.work.saturating_sub(part.work_done);
                rows.extend(self.next_rows(chunk.context, work));
            }
            part.work_done += self.work_left(chunk.context);
            progress.push(part);
        }
        if !rows.is_empty() {
            self.decode(&rows, interruption)?;
        }
        for (chunk, progress) in chunks.iter().zip(&mut progress) {
            let left = self.work_left(chunk.context);
            progress.work_done -= left;
            progress.work_left += left;
        }
        Ok(progress)
    }

    /// Returns the values of all labels for the rows `read`, whose adapters are `rows`.
    fn values_at(&self, hidden: &Tensor, read: Vec<u32>, rows: &AdaptedRows) -> Result<Vec<Vec<f32>>> {
        let [dense, out] = &self.head;
        let count = read.len();
        let read = hidden.index_select(&Tensor::from_vec(read, count, hidden.device())?, 0)?;
        let values = out.replaceable(&dense.replaceable(&read, rows)?.tanh()?, rows)?;
        let mut values: Vec<Vec<f32>> = values.to_dtype(DType::F32)?.to_vec2()?;
        if self.log_scale {
            values.iter_mut().flatten().for_each(|value| *value = unlogged(*value));
        }
        Ok(values)
    }
}

/// Returns the values of `labels` labels for each row's context, or the pooled output that the row requests.
pub(super) fn label_values<'a>(
    rows: &[Row],
    labels: usize,
    pools: &Pools,
    values: impl Fn(ContextId) -> ModelResult<&'a [f32]>,
) -> ModelResult<Logits> {
    let hidden = pools.requested(rows)?;
    let mut all = Vec::with_capacity(rows.len() * labels);
    for (row, hidden) in rows.iter().zip(&hidden) {
        match hidden {
            // Its prompt has no values.
            Some(_) => all.resize(all.len() + labels, 0.0),
            None => all.extend_from_slice(values(row.context)?),
        }
    }
    Ok(Logits::new(all, labels)?.with_hidden(hidden))
}

/// The inverse of sign(x) ln(|x| + 1).
fn unlogged(value: f32) -> f32 {
    value.signum() * (value.abs().exp() - 1.0)
}

impl BatchModel for RegressionHead {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn uses_pool(&self) -> bool {
        self.stacks.prompts.is_on_cpu()
    }

    fn begin(&mut self, request: ContextRequest<'_>) -> ModelResult<OpenedContext> {
        let mut opened = self.stacks.begin(request)?;
        let input = match request.pooling {
            // The decoder is not needed.
            Some(_) => DecoderInput { tokens: Vec::new(), decoded: 0 },
            None => self.decoder_input(request.prompt),
        };
        self.inputs.insert(opened.context, input);
        opened.prefill.work_left += self.work_left(opened.context);
        Ok(opened)
    }

    fn prefill(&mut self, chunks: &[PrefillChunk]) -> ModelResult<Vec<PrefillProgress>> {
        self.prefill_interruptibly(chunks, &mut Uninterrupted)
    }

    fn prefill_interruptibly(
        &mut self,
        chunks: &[PrefillChunk],
        interruption: &mut dyn Interruption,
    ) -> ModelResult<Vec<PrefillProgress>> {
        let computed = self.compute(chunks, interruption);
        if computed.is_err() {
            chunks.iter().for_each(|chunk| self.close(chunk.context));
        }
        computed
    }

    /// Returns the prompt's values for every row, or the pooled output of the encoder.
    fn step(&mut self, rows: &[Row]) -> ModelResult<Logits> {
        let [_, out] = &self.head;
        let [labels] = out.widths();
        if let Some(row) = rows.iter().find(|row| !self.stacks.prompts.is_complete(row.context)) {
            return Err(ModelError::NotPrefilled(row.context));
        }
        label_values(rows, labels, &self.stacks.pools, |context| match self.values.get(&context) {
            _ if self.inputs.contains_key(&context) => Err(ModelError::NotPrefilled(context)),
            Some(values) => Ok(values),
            None => Err(ModelError::UnknownContext(context)),
        })
    }

    /// A prompt is encoded first, and then its prefill needs the keys and values of the prompt and of the
    /// shifted prompt. Afterwards it needs only its values.
    fn cache_cost(&self) -> CacheCost {
        let CacheCost { prompt_token, node, .. } = self.stacks.cache_cost();
        CacheCost { prompt_token: prompt_token.max(3 * node), node: 0, capacity: NodeCapacity::Exact }
    }

    fn prefill_tokens_max(&self) -> usize {
        self.stacks.kv_cache.prefill_tokens_max()
    }

    fn close(&mut self, context: ContextId) {
        self.stacks.close(context);
        self.inputs.remove(&context);
        self.values.remove(&context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_logarithms_are_inverted() {
        for (value, want) in
            [(0.0, 0.0), (std::f32::consts::LN_2, 1.0), (-1.0, -1.718_282), (6.910_75, 1002.0)]
        {
            assert!((unlogged(value) - want).abs() < want.abs() * 1e-4 + 1e-6, "{value}");
        }
    }
}
