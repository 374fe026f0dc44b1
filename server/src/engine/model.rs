//! One served model: its engine, its tokenizer, and what requests to it must keep to.

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ntl_api::MethodName;
use ntl_core::engine::{Job, ModelInfo, NumberMethod, Request};
use ntl_core::losses::{NumberTokens, PlacedDigit};
use ntl_core::sampling::{Guide, GuideError};
use ntl_engine::{CacheBudget, Engine, EngineLimits, EngineObserver};
use ntl_models::LoadedModel;
use ntl_models::guide::GuideCompiler;
use ntl_models::tokenizer::Tokenizer;

use super::events::{RequestEvents, RunningJob};
use crate::blocking::run_blocking;
use crate::error::AppError;
use crate::metrics::{EngineLoad, Metrics, ModelMetrics};
use crate::request::{Guided, ModelCalibration, ModelProfile};
use crate::settings::HttpSettings;

pub struct ServedModel {
    /// The name in requests.
    pub(crate) name: Arc<str>,
    /// When the model was loaded, as Unix time in seconds.
    pub(crate) created: u64,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// Prompts that show what the model can do.
    pub(crate) examples: Vec<String>,
    /// What names its checkpoint.
    pub(crate) fingerprint: Option<String>,
    calibrations: Arc<[ModelCalibration]>,
    /// The number tokens that losses are computed over.
    pub(crate) number_tokens: Arc<NumberTokens>,
    engine: Engine,
    spells_numbers: bool,
    /// The only number method of a model with a number head.
    number_head: Option<MethodName>,
    /// Built for the first request that needs it.
    guides: Arc<OnceLock<Result<GuideCompiler, GuideError>>>,
    /// Of all models together.
    cache_bytes_max: u64,
    metrics: Arc<ModelMetrics>,
}

/// The jobs of one request, one for each prompt.
pub(crate) struct Submission {
    pub(crate) jobs: Vec<Job>,
    /// The same number for the same client: clients take turns.
    pub(crate) client: u64,
    /// When the request began.
    pub(crate) started: Instant,
    /// Longest time from there to the end of the answer.
    pub(crate) time_max: Duration,
}

impl ServedModel {
    /// Starts the engine of a loaded model, in memory that it shares with others. Join the thread after the model and all its events are dropped.
    pub fn start(
        name: &str,
        loaded: LoadedModel,
        limits: EngineLimits,
        budget: &CacheBudget,
        metrics: &Arc<Metrics>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let metrics = Arc::new(ModelMetrics::new(metrics, name, loaded.model.info()));
        let grammar = &loaded.vocabulary.grammar;
        let spells_numbers = grammar.spells_numbers();
        let head = grammar.is_point().then_some(MethodName::Head);
        let number_head = head.or(grammar.head_id().map(|_| MethodName::Xval));
        let number_tokens = Arc::new(number_tokens(&loaded));
        let observer = Arc::clone(&metrics) as Arc<dyn EngineObserver>;
        let (engine, thread) =
            Engine::spawn_sharing(budget, loaded.model, loaded.vocabulary, limits, observer)?;
        let model = Self {
            name: name.into(),
            created: crate::unix_seconds(),
            engine,
            tokenizer: loaded.tokenizer,
            examples: Vec::new(),
            fingerprint: None,
            calibrations: Arc::default(),
            spells_numbers,
            number_tokens,
            number_head,
            guides: Arc::default(),
            cache_bytes_max: budget.bytes_max(),
            metrics,
        };
        Ok((model, thread))
    }

    /// Adds prompts that show what the model can do.
    #[must_use]
    pub fn with_examples(mut self, examples: Vec<String>) -> Self {
        self.examples = examples;
        self
    }

    /// Adds what names the checkpoint.
    #[must_use]
    pub fn with_fingerprint(mut self, fingerprint: String) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }

    /// Adds calibrations of intervals.
    #[must_use]
    pub(crate) fn with_calibrations(mut self, calibrations: Vec<ModelCalibration>) -> Self {
        self.calibrations = calibrations.into();
        self
    }

    /// The only number method of a model with a number head.
    pub(crate) fn number_head(&self) -> Option<MethodName> {
        self.number_head
    }

    pub(crate) fn info(&self) -> &ModelInfo {
        self.engine.info()
    }

    /// Whether the engine's thread runs. Updates the metric as well.
    pub(crate) fn is_alive(&self) -> bool {
        let alive = self.engine.is_alive();
        self.metrics.set_up(alive);
        alive
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

    pub(crate) fn profile(&self, settings: &HttpSettings) -> ModelProfile {
        let info = self.info();
        let answer_tokens_max = info.answer_tokens_max.unwrap_or(usize::MAX) as u64;
        ModelProfile {
            encoder_decoder: info.encoder_decoder,
            writes_tokens: info.has_token_distribution(),
            spells_numbers: self.spells_numbers,
            number_head: self.number_head,
            calibrations: Arc::clone(&self.calibrations),
            tokens: info.tokens,
            prompt_tokens_max: info.prompt_tokens_max,
            token_bytes_max: self.tokenizer.token_text_bytes_max(),
            eos_ids: info.eos_ids.clone(),
            output_tokens_max: settings.output_tokens_max.min(answer_tokens_max),
            logprobs_max: settings.logprobs_max,
        }
    }

    /// Compiles a constraint for this model's vocabulary.
    pub(crate) async fn guide(&self, guided: &Guided) -> Result<Arc<dyn Guide>, AppError> {
        let (guides, tokenizer) = (Arc::clone(&self.guides), Arc::clone(&self.tokenizer));
        let (info, Guided { param, constraint }) = (self.info().clone(), guided.clone());
        run_blocking(usize::MAX, move || {
            let compiler = guides.get_or_init(|| GuideCompiler::new(&tokenizer, &info));
            let guide =
                compiler.as_ref().map_err(Clone::clone).and_then(|guides| guides.compile(&constraint));
            guide.map_err(|error| AppError::invalid(param, format!("`{param}`: {error}")))
        })
        .await
    }

    /// Runs `work` with the tokenizer on so many bytes of text, or token ids.
    pub(crate) async fn with_tokenizer<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Tokenizer) -> Result<T, AppError> + Send + 'static,
    ) -> Result<T, AppError> {
        let tokenizer = Arc::clone(&self.tokenizer);
        run_blocking(bytes, move || work(&tokenizer)).await
    }

    /// Gives the jobs of a request to the engine: all of them or none.
    pub(crate) fn submit(&self, submission: Submission) -> Result<RequestEvents, AppError> {
        let Submission { jobs, client, started, time_max } = submission;
        let prompt_tokens = jobs.iter().map(|job| job.prompt.len() as u64).sum();
        let properties: Vec<_> =
            jobs.iter().map(|job| (job.request.sequences(), self.number_method(&job.request))).collect();
        let deadline = Some((started + time_max, time_max));
        let job = |job| Job { deadline, client, ..job };
        let events = self.engine.submit_all(jobs.into_iter().map(job).collect())?;
        self.metrics.prompt_tokens.inc_by(prompt_tokens);
        let running = events.into_iter().zip(properties);
        let running =
            running.map(|(events, (sequences, method))| RunningJob { events, sequences, method }).collect();
        Ok(RequestEvents::new(running, started, time_max, Arc::clone(&self.metrics)))
    }

    /// The number method of a request, if it asks for a number.
    fn number_method(&self, request: &Request) -> Option<MethodName> {
        let Request::Number(job) = request else { return None };
        Some(self.number_head.unwrap_or(match job.method {
            NumberMethod::Tree { .. } => MethodName::Tree,
            NumberMethod::Sample { .. } => MethodName::Sample,
            NumberMethod::Beam { .. } => MethodName::Beam,
            NumberMethod::Token => MethodName::Token,
        }))
    }
}

/// The number tokens of a model's losses. Those of the Regression Transformer are ordered by digit and place.
fn number_tokens(loaded: &LoadedModel) -> NumberTokens {
    let placed = |id| loaded.tokenizer.token(id).and_then(PlacedDigit::parse);
    NumberTokens::new(loaded.vocabulary.number_values.iter().copied())
        .ranked_by(|id, value| placed(id).map_or(value, PlacedDigit::value))
}
