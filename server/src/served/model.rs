//! One served model: its engine, its tokenizer, and what requests to it must keep to.

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use ntl_core::contract::{EngineError, Job, ModelInfo};
use ntl_core::decoding::Vocabulary;
use ntl_core::guide::{Guide, GuideError};
use ntl_core::losses::{NumberTokens, PlacedDigit};
use ntl_core::text::TextDecoder;
use ntl_engine::{CacheBudget, Engine, EngineLimits, EngineObserver};
use ntl_remote::{ChatJob, EngineMeter, NextTokens, RemoteEngine, RemoteLimits};
use ntl_text::chat::TextTemplate;
use ntl_text::guide::GuideCompiler;
use ntl_text::tokenizer::Tokenizer;
use ntl_text::tools::{ToolDialect, ToolFormat};

use super::engine::{RemoteTexts, ServedEngine};
use super::events::RequestEvents;
use super::lora::{AdapterError, LoraWeights};
use crate::blocking::run_blocking;
use crate::error::AppError;
use crate::metrics::{EngineLoad, Metrics, ModelMetrics};
use crate::native::{AdapterReader, LoadedModel};
use crate::remote::ConnectedModel;
use crate::request::{
    Guided, ModelProfile, RequestRecord, Requester, ToolSupport, default_decision_template,
};

/// A text that a tokenizer makes at most this many times as long is tokenized in the usual time.
const USUAL_GROWTH: usize = 16;

pub struct ServedModel {
    /// The name in requests.
    pub(crate) name: Arc<str>,
    /// The value of the label `model` in metrics about requests.
    pub(crate) label: Arc<str>,
    /// When the model was loaded, as Unix time in seconds.
    pub(crate) created: u64,
    /// Reads prompts.
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// Writes the tokens of answers.
    pub(crate) decoder: Arc<dyn TextDecoder>,
    /// Prompts that show what the model can do.
    pub(crate) examples: Vec<String>,
    /// See [`Self::fingerprint`].
    fingerprint: Option<String>,
    /// The commit of its repository on the hub.
    pub(crate) revision: Option<String>,
    /// The limits of requests.
    pub(crate) profile: Arc<ModelProfile>,
    /// The number tokens that losses are computed over.
    pub(crate) number_tokens: Arc<NumberTokens>,
    /// The adapter with which the engine computes it.
    pub(crate) lora: Option<Lora>,
    /// Reads adapters for it, if it can have any.
    pub(crate) adapters: Option<AdapterReader>,
    engine: ServedEngine,
    /// Built for the first request that needs it.
    guides: Arc<OnceLock<Result<GuideCompiler, GuideError>>>,
    /// Limit for the caches of all models, in bytes.
    cache_bytes_max: u64,
    metrics: Arc<ModelMetrics>,
    /// Writes the questions of decisions.
    pub(crate) decision_template: Arc<TextTemplate>,
}

/// The adapter of a served model.
pub(crate) struct Lora {
    pub(crate) weights: LoraWeights,
    /// The name of the model without the adapter.
    pub(crate) parent: Arc<str>,
}

impl ServedModel {
    /// Starts the engine of a loaded model, in memory that it shares with others. Join the thread after the
    /// model and all its events are dropped.
    pub fn start(
        name: &str,
        loaded: LoadedModel,
        limits: EngineLimits,
        budget: &CacheBudget,
        metrics: &Arc<Metrics>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let LoadedModel { model, tokenizer, vocabulary, adapters } = loaded;
        let parts = Parts::new(name, model.info(), tokenizer, &vocabulary, metrics);
        let observer = Arc::clone(&parts.metrics) as Arc<dyn EngineObserver>;
        let (engine, thread) = Engine::spawn_sharing(budget, model, vocabulary, limits, observer)?;
        let model = parts.with_engine(ServedEngine::Local(engine), budget.bytes_max());
        Ok((Self { adapters, ..model }, thread))
    }

    /// Serves a model that another engine computes, in memory that it shares with others.
    pub(crate) fn remote(
        name: &str,
        connected: ConnectedModel,
        limits: EngineLimits,
        budget: &CacheBudget,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let ConnectedModel { upstream, info, tokenizer, vocabulary, texts_max, fields, sampling } = connected;
        let mut parts = Parts::new(name, &info, tokenizer, &vocabulary, metrics);
        let profile = Arc::make_mut(&mut parts.profile);
        profile.guides_texts = upstream.writes_ids();
        profile.sampling = sampling;
        let limits = RemoteLimits {
            queue_max: limits.queue_max,
            queue_time_max: limits.queue_time_max,
            jobs_max: limits.running_max.min(upstream.jobs_max().unwrap_or(usize::MAX)),
            texts_max,
            ..RemoteLimits::default()
        };
        let observer = Arc::clone(&parts.metrics) as Arc<dyn EngineObserver>;
        let next_tokens = Arc::clone(&upstream) as Arc<dyn NextTokens>;
        let jobs = RemoteEngine::new(budget, next_tokens, info, vocabulary, limits, observer);
        let remote = RemoteTexts { jobs, upstream, fields: fields.into() };
        parts.with_engine(ServedEngine::Remote(remote), budget.bytes_max())
    }

    /// Returns this model with an adapter under another name. Metrics count its requests under `label`, and
    /// the rest of its work as this model's. Waits until the engine has the weights on its device.
    pub(crate) fn adapted(
        &self,
        name: &str,
        label: &Arc<str>,
        weights: LoraWeights,
    ) -> Result<Self, AdapterError> {
        self.engine.prepare_adapter(&weights.adapter)?;
        let mut profile = Arc::clone(&self.profile);
        if !(profile.calibrations.is_empty() && profile.decision_calibrations.is_empty()) {
            let profile = Arc::make_mut(&mut profile);
            profile.calibrations = Arc::default();
            profile.decision_calibrations = Arc::default();
        }
        let fingerprint = self.fingerprint.as_ref().map(|own| format!("{own}+{}", weights.fingerprint));
        Ok(Self {
            name: name.into(),
            label: Arc::clone(label),
            created: crate::unix_seconds(),
            tokenizer: Arc::clone(&self.tokenizer),
            decoder: Arc::clone(&self.decoder),
            examples: Vec::new(),
            fingerprint,
            revision: None,
            profile,
            number_tokens: Arc::clone(&self.number_tokens),
            lora: Some(Lora { weights, parent: Arc::clone(&self.name) }),
            adapters: None,
            engine: self.engine.clone(),
            guides: Arc::clone(&self.guides),
            cache_bytes_max: self.cache_bytes_max,
            metrics: Arc::clone(&self.metrics),
            decision_template: Arc::clone(&self.decision_template),
        })
    }

    /// Replaces the template of decisions.
    #[must_use]
    pub fn with_decision_template(mut self, template: TextTemplate) -> Self {
        self.decision_template = Arc::new(template);
        self
    }

    /// Sets the format of calls, which otherwise follows from the chat template. Hermes' format also
    /// describes tools to templates that read none.
    #[must_use]
    pub fn with_tool_format(mut self, format: ToolFormat) -> Self {
        let dialect = ToolDialect::new(format, &self.tokenizer);
        let profile = Arc::make_mut(&mut self.profile);
        profile.tools = ToolSupport::Known(dialect);
        profile.describes_tools = format == ToolFormat::Hermes;
        self
    }

    /// Adds what names the checkpoint.
    #[must_use]
    pub fn with_fingerprint(mut self, fingerprint: String) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }

    /// Applies the server's limits.
    pub(super) fn limited(mut self, output_tokens_max: u64, logprobs_max: Option<usize>) -> Self {
        let profile = Arc::make_mut(&mut self.profile);
        profile.output_tokens_max = profile.output_tokens_max.min(output_tokens_max);
        profile.logprobs_max = logprobs_max;
        self
    }

    /// The fingerprint of its checkpoint, or of the weights that another engine has now.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        match self.remote_texts() {
            Some(remote) => remote.upstream.fingerprint().map(|fingerprint| fingerprint.to_string()),
            None => self.fingerprint.clone(),
        }
    }

    pub(crate) fn info(&self) -> &ModelInfo {
        self.engine.info()
    }

    /// Returns the number of tokens that fit after a prompt, if the model has a limit.
    pub(crate) fn room_after(&self, prompt_tokens: usize) -> Option<usize> {
        Some(self.info().context_tokens_max?.saturating_sub(prompt_tokens))
    }

    /// Returns whether the engine's thread is running. Updates the metric as well.
    pub(crate) fn is_alive(&self) -> bool {
        let alive = self.engine.is_alive();
        self.metrics.set_up(alive);
        alive
    }

    /// Returns why its device cannot be used any more, if that ended its engine.
    pub(crate) fn lost_device(&self) -> Option<&str> {
        self.engine.lost_device()
    }

    /// Fails if its engine has ended, with the reason.
    pub(crate) fn check_alive(&self) -> Result<(), EngineError> {
        match self.lost_device() {
            Some(reason) => Err(EngineError::DeviceLost(reason.to_owned())),
            None if self.is_alive() => Ok(()),
            None => Err(EngineError::Dead),
        }
    }

    /// Returns whether it can compute requests now.
    pub(crate) fn is_ready(&self) -> bool {
        self.engine.is_ready()
    }

    /// The engine that computes it, if that is another server.
    pub(crate) fn remote_texts(&self) -> Option<&RemoteTexts> {
        self.engine.remote()
    }

    /// Counts the tokens of a response that another engine wrote.
    pub(crate) fn count_tokens(&self, record: &RequestRecord, prompt: u64, completion: u64) {
        self.metrics.ntl_prompt_tokens_total.inc_by(prompt);
        self.metrics.ntl_generation_tokens_total.inc_by(completion);
        record.add_prompt_tokens(prompt);
        record.add_completion_tokens(completion);
    }

    /// Updates the metrics that change without a report of the engine.
    pub(crate) fn update_metrics(&self) {
        self.is_alive();
        self.metrics.set_cache(self.engine.cache_use(), self.cache_bytes_max);
    }

    /// Sequences that are decoded and that wait, as the metrics have them.
    pub(crate) fn load(&self) -> EngineLoad {
        self.metrics.load()
    }

    /// Compiles a client's constraint for this model's vocabulary.
    pub(crate) async fn guide(&self, client: u64, guided: &Guided) -> Result<Arc<dyn Guide>, AppError> {
        let guides = Arc::clone(&self.guides);
        let tokenizer = Arc::clone(&self.tokenizer);
        let (info, Guided { param, constraint }) = (self.info().clone(), guided.clone());
        run_blocking(client, usize::MAX, move || {
            let compiler = guides.get_or_init(|| GuideCompiler::new(&tokenizer, &info));
            let guide =
                compiler.as_ref().map_err(Clone::clone).and_then(|guides| guides.compile(&constraint));
            guide.map_err(|error| AppError::invalid(param, format!("`{param}`: {error}")))
        })
        .await
    }

    /// Runs `work` of a client with the tokenizer on `bytes` bytes of text, or token ids.
    pub(crate) async fn with_tokenizer<T: Send + 'static>(
        &self,
        client: u64,
        bytes: usize,
        work: impl FnOnce(&Tokenizer, &ModelProfile) -> Result<T, AppError> + Send + 'static,
    ) -> Result<T, AppError> {
        self.profile.check_tokens()?;
        let tokenizer = Arc::clone(&self.tokenizer);
        let profile = Arc::clone(&self.profile);
        // Rules of a tokenizer may make short texts long.
        let bytes = bytes.max(bytes.saturating_mul(tokenizer.growth()) / USUAL_GROWTH);
        run_blocking(client, bytes, move || work(&tokenizer, &profile)).await
    }

    /// Gives the jobs of a request, one for each prompt in its list `field`, to the engine: all of them or
    /// none.
    pub(crate) fn submit(
        &self,
        field: &'static str,
        mut jobs: Vec<Job>,
        requester: Requester,
    ) -> Result<RequestEvents, AppError> {
        for (index, job) in jobs.iter().enumerate() {
            let checked = self.info().check_length(job).map_err(AppError::from);
            checked.map_err(|error| error.of_prompt(field, index, jobs.len()))?;
        }
        let Requester { client, started, time_max, .. } = requester;
        let deadline = Some((started + time_max, time_max));
        let prompt_tokens = jobs.iter().map(|job| job.prompt.len() as u64).sum();
        let sequences: Vec<u32> = jobs.iter().map(|job| job.request.sequences()).collect();
        let adapter = self.lora.as_ref().map(|lora| &lora.weights.adapter);
        for job in &mut jobs {
            (job.deadline, job.client) = (deadline, client.id);
            job.adapter = adapter.cloned();
        }
        let meter = EngineMeter::default();
        let is_remote = self.engine.remote().is_some();
        if is_remote {
            requester.record.check_budget()?;
        }
        let events = self.engine.submit_all(jobs, &meter)?;
        self.metrics.ntl_prompt_tokens_total.inc_by(prompt_tokens);
        requester.record.add_prompt_tokens(prompt_tokens);
        let jobs = events.into_iter().zip(sequences);
        let events = RequestEvents::new(field, jobs, requester, Arc::clone(&self.metrics));
        Ok(if is_remote { events.over_engine(meter) } else { events })
    }

    /// Gives jobs that sample answers of chats to the engine elsewhere, one for each entry of the list
    /// `field`: all of them or none.
    pub(crate) fn submit_chats(
        &self,
        field: &'static str,
        jobs: Vec<ChatJob>,
        requester: Requester,
    ) -> Result<RequestEvents, AppError> {
        let Some(remote) = self.engine.remote() else { return Err(AppError::Internal) };
        let Requester { client, started, time_max, .. } = requester;
        let deadline = Some((started + time_max, time_max));
        requester.record.check_budget()?;
        let meter = EngineMeter::default();
        let mut sampled = Vec::with_capacity(jobs.len());
        for job in jobs {
            sampled.push(ChatJob { deadline, client: client.id, ..job });
        }
        let events = remote.jobs.submit_chats(sampled, &meter)?;
        let jobs = events.into_iter().map(|events| (events, 1));
        let events = RequestEvents::new(field, jobs, requester, Arc::clone(&self.metrics));
        Ok(events.over_engine(meter).of_samples())
    }
}

/// A served model without its engine.
struct Parts {
    name: Arc<str>,
    tokenizer: Arc<Tokenizer>,
    decoder: Arc<dyn TextDecoder>,
    profile: Arc<ModelProfile>,
    number_tokens: Arc<NumberTokens>,
    metrics: Arc<ModelMetrics>,
}

impl Parts {
    fn new(
        name: &str,
        info: &ModelInfo,
        tokenizer: Arc<Tokenizer>,
        vocabulary: &Vocabulary,
        metrics: &Arc<Metrics>,
    ) -> Self {
        Self {
            name: name.into(),
            profile: Arc::new(ModelProfile::new(info, &tokenizer, &vocabulary.grammar)),
            number_tokens: Arc::new(number_tokens(&tokenizer, vocabulary)),
            metrics: Arc::new(ModelMetrics::new(metrics, name, info)),
            decoder: Arc::clone(&vocabulary.decoder),
            tokenizer,
        }
    }

    fn with_engine(self, engine: ServedEngine, cache_bytes_max: u64) -> ServedModel {
        let Self { name, tokenizer, decoder, profile, number_tokens, metrics } = self;
        ServedModel {
            label: Arc::clone(&name),
            name,
            created: crate::unix_seconds(),
            tokenizer,
            decoder,
            examples: Vec::new(),
            fingerprint: None,
            revision: None,
            profile,
            number_tokens,
            lora: None,
            adapters: None,
            engine,
            guides: Arc::default(),
            cache_bytes_max,
            metrics,
            decision_template: default_decision_template(),
        }
    }
}

/// The number tokens of a model's losses. Number tokens of the Regression Transformer are ordered by digit
/// and place.
fn number_tokens(tokenizer: &Tokenizer, vocabulary: &Vocabulary) -> NumberTokens {
    NumberTokens::new(vocabulary.number_values.iter().copied())
        .ranked_by(|id, value| {
            tokenizer.token(id).and_then(PlacedDigit::parse).map_or(value, PlacedDigit::value)
        })
        .with_digits(|id| matches!(tokenizer.token(id).map(str::as_bytes), Some([b'0'..=b'9'])))
}
