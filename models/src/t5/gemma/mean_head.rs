//! RegressLM with a regression head: predicts one number per prompt, a linear function of the mean of the
//! encoder's output.

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor};
use ntl_core::contract::{
    BatchModel, CacheCost, ContextId, ContextRequest, Logits, ModelError, ModelInfo, NodeCapacity,
    OpenedContext, PREFILL_TOKENS_MAX, PrefillChunk, PrefillProgress, Row,
};

use super::config::StackConfig;
use crate::adapter::{AdaptableLayers, AdapterReader};
use crate::checkpoint::{CheckpointFiles, LoadResult, Weights};
use crate::families::Family;
use crate::gpu::ContextOnDrop;
use crate::kv_cache::TOKENS_AT_ONCE_ON_DEVICES;
use crate::ops::{Linear, ModelResult, Placement, compute_error};
use crate::t5::layers::Loader;
use crate::t5::model::TokenizerFacts;
use crate::t5::prefill::{StackSizes, StageWork};
use crate::t5::prompts::{EncodedRows, EncodedSink, PromptEncoder};
use crate::t5::regression::values;

/// An encoder with a regression head, and its open contexts.
pub struct MeanHead {
    _context: ContextOnDrop,
    info: ModelInfo,
    prompts: PromptEncoder,
    adapters: AdapterReader,
    device: Device,
    hidden_size: usize,
    prefill_tokens_max: usize,
    /// `[1, hidden]`.
    head: Linear,
    opened: u64,
    sums: Sums,
    values: HashMap<ContextId, f32>,
}

/// The sums of the encoder output of prompts that are not computed completely.
#[derive(Default)]
struct Sums(HashMap<ContextId, OutputSum>);

#[derive(Default)]
struct OutputSum {
    sum: Vec<f64>,
    tokens: usize,
}

impl MeanHead {
    pub(crate) fn load(
        files: &CheckpointFiles,
        facts: TokenizerFacts,
        place: &Placement,
    ) -> LoadResult<Self> {
        let config = StackConfig::read_regresslm(files)?;
        facts.check_vocabulary(files, "encoder_vocab_size", config.vocab_size)?;
        let weights = Weights::open(files)?;
        let adaptable = AdaptableLayers::default();
        let prefix = "model.model.encoder.";
        let loader = Loader { weights: &weights, config: &config, place, prefix, adaptable: &adaptable };
        let exact = place.exact();
        let head = Loader { place: &exact, prefix: "", ..loader }
            .biased("regression_head", [1, config.hidden_size])?;
        let mut info = facts.info(Family::of(files)?, Vec::new(), place, weights.parameters());
        info.prompt_tokens_max = info.prompt_tokens_max.min(config.positions_max);
        let sizes = config.sizes();
        let work = StageWork::new(&sizes, &StackSizes { windows: Vec::new(), ..sizes.clone() }, place);
        let embeddings = config.embeddings(loader.table()?, None);
        Ok(Self {
            _context: ContextOnDrop::new(&place.device),
            info,
            prompts: PromptEncoder::new(embeddings, loader.encoder()?, work, place),
            adapters: AdapterReader::new(adaptable, place),
            device: place.device.clone(),
            hidden_size: config.hidden_size,
            prefill_tokens_max: if place.uses_kernels() {
                PREFILL_TOKENS_MAX
            } else {
                TOKENS_AT_ONCE_ON_DEVICES
            },
            head,
            opened: 0,
            sums: Sums::default(),
            values: HashMap::new(),
        })
    }

    /// Returns the reader of its adapters.
    pub(crate) fn adapters(&self) -> &AdapterReader {
        &self.adapters
    }

    fn compute(&mut self, chunks: &[PrefillChunk]) -> ModelResult<Vec<PrefillProgress>> {
        let progress = self.prompts.prefill(chunks, PromptEncoder::embed, &mut self.sums)?;
        for PrefillChunk { context, .. } in chunks {
            if self.prompts.is_complete(*context)
                && let Some(sum) = self.sums.0.remove(context)
            {
                let value = self.value(&sum).map_err(compute_error)?;
                self.values.insert(*context, value);
            }
        }
        Ok(progress)
    }

    fn value(&self, OutputSum { sum, tokens }: &OutputSum) -> Result<f32> {
        let mean: Vec<f32> = sum.iter().map(|sum| (sum / *tokens as f64) as f32).collect();
        let mean = Tensor::from_vec(mean, (1, self.hidden_size), &self.device)?;
        self.head.forward(&mean)?.to_dtype(DType::F32)?.flatten_all()?.get(0)?.to_scalar()
    }
}

impl EncodedSink for Sums {
    fn open(&mut self, prompts: &[(ContextId, usize)]) -> Result<()> {
        self.0.extend(prompts.iter().map(|(context, _)| (*context, OutputSum::default())));
        Ok(())
    }

    fn write(&mut self, rows: &[EncodedRows], encoded: &Tensor) -> Result<()> {
        let encoded = encoded.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let mut encoded = encoded.iter();
        for EncodedRows { context, count, .. } in rows {
            let Some(OutputSum { sum, tokens }) = self.0.get_mut(context) else { continue };
            for output in encoded.by_ref().take(*count) {
                sum.resize(output.len(), 0.0);
                sum.iter_mut().zip(output).for_each(|(sum, output)| *sum += f64::from(*output));
            }
            *tokens += count;
        }
        Ok(())
    }
}

impl BatchModel for MeanHead {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn begin(&mut self, request: ContextRequest<'_>) -> ModelResult<OpenedContext> {
        self.prompts.check(request)?;
        let adapter = self.adapters.weights(request.adapter)?;
        self.opened += 1;
        let context = ContextId(self.opened);
        let prefill = self.prompts.begin(context, request, adapter);
        Ok(OpenedContext { context, first_token: 0, prefill })
    }

    fn prefill(&mut self, chunks: &[PrefillChunk]) -> ModelResult<Vec<PrefillProgress>> {
        let computed = self.compute(chunks);
        if computed.is_err() {
            chunks.iter().for_each(|chunk| self.close(chunk.context));
        }
        computed
    }

    /// Returns one column of zeros, because there are no tokens, and the prompt's value for every row.
    fn step(&mut self, rows: &[Row]) -> ModelResult<Logits> {
        values(rows, |context| match self.values.get(&context) {
            Some(value) => Ok(*value),
            None if self.prompts.is_complete(context) => Err(ModelError::UnknownContext(context)),
            None => Err(ModelError::NotPrefilled(context)),
        })
    }

    /// A prompt needs memory only while it is encoded.
    fn cache_cost(&self) -> CacheCost {
        CacheCost { prompt_token: self.prompts.token_bytes(), node: 0, capacity: NodeCapacity::Exact }
    }

    fn prefill_tokens_max(&self) -> usize {
        self.prefill_tokens_max
    }

    fn close(&mut self, context: ContextId) {
        self.prompts.close(context);
        self.sums.0.remove(&context);
        self.values.remove(&context);
    }
}
