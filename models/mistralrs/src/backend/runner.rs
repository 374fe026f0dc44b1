//! mistral.rs itself: how it is started, and how token ids get in.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use mistralrs::CustomLogitsProcessor;
use mistralrs::core::{
    DefaultSchedulerMethod, DeviceMapSetting, GGUFLoaderBuilder, GGUFSpecificConfig, IsqType, Loader,
    MistralRs, MistralRsBuilder, ModelDType, NormalLoaderBuilder, NormalRequest, NormalSpecificConfig,
    Request, RequestMessage, Response, SamplingParams, SchedulerConfig, TokenSource, parse_isq_value,
};
use tokio::sync::mpsc::channel;

use super::stand_in::StandIn;
use crate::Isq;
use crate::sequences::{Host, Reason, Tap};

/// Sequences that mistral.rs computes at once; only those of equal lengths share a batch.
const SEQUENCES_MAX: NonZeroUsize = NonZeroUsize::MIN.saturating_add(31);

/// More answers than mistral.rs ever gives to a request: it waits for room while it holds everybody up.
const RESPONSES_MAX: usize = 8;

/// Where the weights are.
pub(super) enum Weights {
    /// As safetensors in the stand-in.
    Folder,
    /// In a GGUF file.
    Gguf(PathBuf),
}

/// A running mistral.rs; it ends when this is dropped.
pub(super) struct Runner(Arc<MistralRs>);

impl Runner {
    /// Loads the weights. Always in f32, for what mistral.rs itself would choose on a CPU is f16.
    pub(super) fn start(
        stand_in: &StandIn,
        weights: &Weights,
        (device, isq): (&Device, Option<Isq>),
    ) -> Result<Self, String> {
        let isq: Option<IsqType> = isq.map(|isq| parse_isq_value(isq.name(), Some(device))).transpose()?;
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
        let method = DefaultSchedulerMethod::Fixed(SEQUENCES_MAX);
        let scheduler = SchedulerConfig::DefaultScheduler { method };
        // What is decided here outlives this runtime: mistral.rs starts a thread with one of its own.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runner = runtime.map_err(|error| error.to_string())?.block_on(
            // Its prefix cache gives wrong results.
            MistralRsBuilder::new(pipeline, scheduler, false, None)
                .with_no_prefix_cache(true)
                .with_disable_eos_stop(true)
                .build(),
        );
        Ok(Self(runner))
    }

    /// Most tokens of a sequence.
    pub(super) fn positions_max(&self) -> Result<usize, String> {
        let known = self.0.max_sequence_length(None).map_err(|error| error.to_string())?;
        known.ok_or_else(|| "the model has no sequence length".to_owned())
    }
}

impl Host for Runner {
    fn submit(&self, ids: Vec<u32>, answer_max: Option<usize>, tap: Tap) -> Result<Reason, String> {
        let (sender, mut responses) = channel(RESPONSES_MAX);
        // A temperature of 0 takes the largest logit, which is the tap's choice; none would be a temperature of 1.
        let sampling =
            SamplingParams { temperature: Some(0.0), max_len: answer_max, ..SamplingParams::neutral() };
        let (tokens, id) = (RequestMessage::CompletionTokens(ids), self.0.next_request_id());
        let request = NormalRequest {
            logits_processors: Some(vec![Arc::new(Processor(tap))]),
            ..NormalRequest::new_simple(tokens, sampling, sender, id, None, None)
        };
        // This starts an engine anew that died.
        let requests = self.0.get_sender(None).map_err(|error| error.to_string())?;
        let sent = requests.blocking_send(Request::Normal(Box::new(request)));
        sent.map_err(|_| "its engine is gone".to_owned())?;
        Ok(Box::new(move || {
            std::iter::from_fn(|| responses.try_recv().ok()).find_map(|response| match response {
                Response::InternalError(error) | Response::ValidationError(error) => Some(error.to_string()),
                Response::CompletionModelError(reason, _) => Some(reason),
                _ => None,
            })
        }))
    }

    fn at_once(&self) -> usize {
        SEQUENCES_MAX.get()
    }
}

/// A tap where mistral.rs lets logits be changed.
struct Processor(Tap);

impl CustomLogitsProcessor for Processor {
    fn apply(&self, logits: &Tensor, _context: &[u32]) -> candle_core::Result<Tensor> {
        let values: Vec<f32> = logits.to_vec1()?;
        let mut choice = vec![f32::NEG_INFINITY; values.len()];
        let over = || candle_core::Error::Msg("the sequence is over".to_owned());
        let token = self.0.choose(values).ok_or_else(over)?;
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
        Weights::Folder => {
            let config = NormalSpecificConfig::default();
            NormalLoaderBuilder::new(config, None, None, Some(folder), false, None)
                .build(None)
                .map_err(|error| format!("{error:#}"))
        }
        Weights::Gguf(file) => {
            let text = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
            let place = file.parent().map(std::path::Path::as_os_str);
            let (place, name) = text(place).zip(text(file.file_name())).ok_or("it has no name")?;
            let config = GGUFSpecificConfig::default();
            Ok(GGUFLoaderBuilder::new(None, Some(folder), place, vec![name], config, false, None).build())
        }
    }
}
