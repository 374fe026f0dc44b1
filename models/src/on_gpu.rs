//! A model on a GPU. It measures how long the GPU needs for a prefill, whose call returns earlier, and finds
//! out after a failed call whether the GPU still computes.

use std::sync::Arc;
use std::time::Duration;

use candle_core::cuda::cudarc::driver::CudaEvent;
use candle_core::cuda::cudarc::driver::sys::CUevent_flags;
use candle_core::{CudaDevice, Device};
use ntl_core::contract::{
    BatchModel, CacheCost, ContextId, ContextRequest, EvictableCache, Logits, ModelError, ModelInfo,
    OpenedContext, PrefillChunk, PrefillProgress, Row,
};

use crate::gpu;
use crate::ops::ModelResult;

/// A model and the GPU that it computes on.
pub(crate) struct OnGpu<M> {
    model: M,
    device: CudaDevice,
    /// The start and the end of the last prefill, until its time is read.
    last_prefill: Option<(CudaEvent, CudaEvent)>,
}

impl<M> OnGpu<M> {
    pub(crate) fn new(model: M, device: CudaDevice) -> Self {
        Self { model, device, last_prefill: None }
    }

    /// Marks the present end of the GPU's work. Without a mark a prefill counts as long as its call.
    fn mark(&self) -> Option<CudaEvent> {
        self.device.cuda_stream().record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).ok()
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
        let start = self.mark();
        let progress = self.model.prefill(chunks)?;
        self.last_prefill = start.zip(self.mark());
        Ok(progress)
    }

    fn prefill_time(&mut self) -> Option<Duration> {
        let (start, end) = self.last_prefill.take()?;
        // If it fails, so does the next step, which reports the error.
        ntl_cuda::elapsed(&start, &end).ok()
    }

    fn step(&mut self, rows: &[Row]) -> ModelResult<Logits> {
        self.model.step(rows)
    }

    fn check_device(&mut self) -> ModelResult<()> {
        gpu::check_computes(&Device::Cuda(self.device.clone()))
            .map_err(|error| ModelError::DeviceLost(Box::new(error)))
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
