//! Runs mistral.rs as a [`SequenceEngine`].

use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use mistralrs::CustomLogitsProcessor;
use mistralrs::core::{
    DefaultSchedulerMethod, DeviceMapSetting, GGUFLoaderBuilder, GGUFSpecificConfig, IsqType, Loader,
    MistralRs, MistralRsBuilder, ModelDType, NormalLoaderBuilder, NormalRequest, NormalSpecificConfig,
    Pipeline, Request, RequestMessage, Response, SamplingParams, SchedulerConfig, TokenSource,
    parse_isq_value,
};
use tokio::sync::mpsc::channel;

use crate::prepared::Weights;
use crate::sequences::{ExternalSampler, FailureReason, SequenceEngine};
use crate::stand_in::StandIn;

/// Number of sequences that mistral.rs computes in one batch, if they have equal lengths.
const BATCH_MAX: NonZeroUsize = NonZeroUsize::MIN.saturating_add(31);

/// More responses than mistral.rs sends to one request. On a full channel it blocks, and with it all other
/// requests.
const RESPONSES_MAX: usize = 8;

/// A running mistral.rs, which stops when this is dropped.
pub(crate) struct Runner {
    engine: Arc<MistralRs>,
    positions_max: usize,
    token_bytes: u64,
}

impl Runner {
    /// Loads the weights in f32. By default, mistral.rs would choose f16 on a CPU.
    pub(crate) fn start(
        stand_in: &StandIn,
        weights: &Weights,
        device: &Device,
        isq: Option<&str>,
    ) -> Result<Self, String> {
        let isq: Option<IsqType> = isq.map(|isq| parse_isq_value(isq, Some(device))).transpose()?;
        let pipeline = loader(stand_in, weights)?
            .load_model_from_hf(
                None,
                TokenSource::None,
                &ModelDType::F32,
                device,
                true,
                DeviceMapSetting::dummy(),
                isq,
                None,
            )
            .map_err(|error| format!("{error:#}"))?;
        let token_bytes = token_bytes(&*pipeline.blocking_lock());
        let method = DefaultSchedulerMethod::Fixed(BATCH_MAX);
        let scheduler = SchedulerConfig::DefaultScheduler { method };
        // This runtime may end after the build: mistral.rs starts a thread with its own runtime.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let engine = runtime.map_err(|error| error.to_string())?.block_on(
            // The prefix cache of mistral.rs 0.8.1 gives incorrect results.
            MistralRsBuilder::new(pipeline, scheduler, false, None)
                .with_no_prefix_cache(true)
                .with_disable_eos_stop(true)
                .build(),
        );
        let positions_max = engine.max_sequence_length(None).map_err(|error| error.to_string())?;
        let positions_max = positions_max.ok_or("the model has no sequence length")?;
        Ok(Self { engine, positions_max, token_bytes })
    }

    pub(crate) fn positions_max(&self) -> usize {
        self.positions_max
    }
}

impl SequenceEngine for Runner {
    fn submit(
        &self,
        ids: Vec<u32>,
        tokens_max: Option<usize>,
        sampler: ExternalSampler,
    ) -> Result<FailureReason, String> {
        let (sender, mut responses) = channel(RESPONSES_MAX);
        // A temperature of 0 selects the largest logit, which is the sampler's token. `None` would mean a
        // temperature of 1.
        let sampling =
            SamplingParams { temperature: Some(0.0), max_len: tokens_max, ..SamplingParams::neutral() };
        let tokens = RequestMessage::CompletionTokens(ids);
        let id = self.engine.next_request_id();
        let request = NormalRequest {
            logits_processors: Some(vec![Arc::new(Processor(sampler))]),
            ..NormalRequest::new_simple(tokens, sampling, sender, id, None, None)
        };
        // This restarts an engine that has died.
        let requests = self.engine.get_sender(None).map_err(|error| format!("mistral.rs: {error}"))?;
        let sent = requests.blocking_send(Request::Normal(Box::new(request)));
        sent.map_err(|_| "mistral.rs: its engine has stopped".to_owned())?;
        Ok(Box::new(move || {
            let mut received = std::iter::from_fn(|| responses.try_recv().ok());
            let reason = received.find_map(|response| match response {
                Response::InternalError(error) | Response::ValidationError(error) => Some(error.to_string()),
                Response::CompletionModelError(reason, _) => Some(reason),
                _ => None,
            });
            reason.map(|reason| format!("mistral.rs: {reason}"))
        }))
    }

    fn batch_max(&self) -> usize {
        BATCH_MAX.get()
    }

    fn token_bytes(&self) -> u64 {
        self.token_bytes
    }
}

/// Returns the size of the keys and values of one token in every layer, in f32, in bytes.
fn token_bytes(pipeline: &dyn Pipeline) -> u64 {
    let metadata = pipeline.get_metadata();
    let Some(model) = &metadata.model_metadata else { return 0 };
    let mut values = 0;
    for layer in 0..model.num_layers() {
        let head = model.k_head_dim_for_layer(layer) + model.v_head_dim_for_layer(layer);
        values += model.num_kv_heads_for_layer(layer) * head;
    }
    (values * size_of::<f32>()) as u64
}

/// Runs the sampler at the point where mistral.rs lets logits be changed.
struct Processor(ExternalSampler);

impl CustomLogitsProcessor for Processor {
    fn apply(&self, logits: &Tensor, _context: &[u32]) -> candle_core::Result<Tensor> {
        let values: Vec<f32> = logits.to_vec1()?;
        let mut choice = vec![f32::NEG_INFINITY; values.len()];
        let Some(token) = self.0.sample(values) else {
            return Err(candle_core::Error::Msg("the sequence has ended".to_owned()));
        };
        if let Some(chosen) = choice.get_mut(token as usize) {
            *chosen = 0.0;
        }
        let width = choice.len();
        Tensor::from_vec(choice, width, &Device::Cpu)
    }
}

fn loader(stand_in: &StandIn, weights: &Weights) -> Result<Box<dyn Loader>, String> {
    let folder = stand_in.path().display().to_string();
    match weights {
        Weights::StandIn => {
            let config = NormalSpecificConfig::default();
            NormalLoaderBuilder::new(config, None, None, Some(folder), false, None)
                .build(None)
                .map_err(|error| format!("{error:#}"))
        }
        Weights::Gguf(file) => {
            let (Some(parent), Some(name)) = (file.parent(), file.file_name()) else {
                return Err("it has no name".to_owned());
            };
            let parent = parent.to_string_lossy().into_owned();
            let names = vec![name.to_string_lossy().into_owned()];
            let config = GGUFSpecificConfig::default();
            Ok(GGUFLoaderBuilder::new(None, Some(folder), parent, names, config, false, None).build())
        }
    }
}
