//! A model on a GPU. After a failed call, it finds out whether the GPU still computes.

use std::sync::Arc;

use candle_core::Device;
use ntl_core::contract::{
    BatchModel, CacheCost, ContextId, ContextRequest, EvictableCache, Logits, ModelError, ModelInfo,
    OpenedContext, PrefillChunk, PrefillProgress, Row,
};

use crate::gpu;
use crate::ops::ModelResult;

/// A model and the GPU that it computes on.
pub(crate) struct OnGpu<M> {
    model: M,
    device: Device,
}

impl<M> OnGpu<M> {
    pub(crate) fn new(model: M, device: Device) -> Self {
        Self { model, device }
    }
}

impl<M: BatchModel> BatchModel for OnGpu<M> {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    fn begin(&mut self, request: ContextRequest<'_>) -> ModelResult<OpenedContext> {
        self.model.begin(request)
    }

    fn prefill(&mut self, chunks: &[PrefillChunk]) -> ModelResult<Vec<PrefillProgress>> {
        self.model.prefill(chunks)
    }

    fn step(&mut self, rows: &[Row]) -> ModelResult<Logits> {
        self.model.step(rows)
    }

    fn check_device(&mut self) -> ModelResult<()> {
        gpu::check_computes(&self.device).map_err(|error| ModelError::DeviceLost(Box::new(error)))
    }

    fn cache_cost(&self) -> CacheCost {
        self.model.cache_cost()
    }

    fn evictable_cache(&self) -> Option<Arc<dyn EvictableCache>> {
        self.model.evictable_cache()
    }

    fn prefill_tokens_max(&self) -> usize {
        self.model.prefill_tokens_max()
    }

    fn sequences_max(&self) -> Option<usize> {
        self.model.sequences_max()
    }

    fn close(&mut self, context: ContextId) {
        self.model.close(context);
    }
}
