//! The models that are served, by name: each an engine with its tokenizer.
//!
//! In: loaded checkpoints; later names and jobs. Out: the model of a name, token ids, answers to jobs. Not here: the
//! loading itself (`ntl_models::load`) and its order (`serve`).

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ntl_api::MethodName;
use ntl_core::engine::{Job, ModelInfo, Prompt};
use ntl_core::losses::{NumberTokens, PlacedDigit};
use ntl_core::sampling::{Guide, GuideError};
use ntl_core::text::TextDecoder;
use ntl_engine::{Engine, EngineLimits, EngineObserver};
use ntl_models::LoadedModel;
use ntl_models::chat::Conversation;
use ntl_models::guide::GuideCompiler;
use ntl_models::tokenizer::Tokenizer;

use crate::answers::{Answers, RunningJob};
use crate::convert::{Guided, PromptInput, Rules, ScoreIds, ScorePlan, method_of};
use crate::error::AppError;
use crate::metrics::{Metrics, ModelMetrics};
use crate::state::{AppState, HttpSettings};
use crate::track::ModelLabel;

/// Texts of at most this many bytes are tokenized where they are, in well under a millisecond; longer ones on a
/// thread that may block.
const INLINE_BYTES_MAX: usize = 4096;

/// All models of a server; empty until they are loaded.
#[derive(Default)]
pub struct Models(OnceLock<Vec<Arc<ServedModel>>>);

impl Models {
    /// Serves these from now on. Only the first call counts.
    pub fn publish(&self, models: Vec<ServedModel>) {
        if self.0.set(models.into_iter().map(Arc::new).collect()).is_err() {
            tracing::error!("models were published twice");
        }
    }

    /// Whether the models are there.
    pub fn are_loaded(&self) -> bool {
        self.0.get().is_some()
    }

    /// The models in the order of the command line.
    pub(crate) fn all(&self) -> &[Arc<ServedModel>] {
        self.0.get().map_or(&[], Vec::as_slice)
    }

    /// The model of a request; an only model need not be named.
    pub(crate) fn resolve(
        &self,
        name: Option<&str>,
        label: &ModelLabel,
    ) -> Result<Arc<ServedModel>, AppError> {
        let model = match (name.unwrap_or_default(), self.all()) {
            ("", [only]) => Some(only),
            ("", _) => return Err(AppError::invalid("model", "say which model: several are served")),
            (name, all) => all.iter().find(|model| *model.name == *name),
        };
        match model {
            Some(model) => label.known(&model.name),
            None => label.unknown(),
        }
        model.map(Arc::clone).ok_or(AppError::ModelNotFound)
    }
}

/// One model with its engine.
pub struct ServedModel {
    name: Arc<str>,
    created: u64,
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
    spells_numbers: bool,
    number_tokens: Arc<NumberTokens>,
    /// How numbers are found where only a number head says them.
    number_head: Option<MethodName>,
    /// Made for the first request that needs it.
    guides: Arc<OnceLock<Result<GuideCompiler, GuideError>>>,
    metrics: Arc<ModelMetrics>,
}

impl ServedModel {
    /// Starts the engine of a loaded model. Join the thread after dropping the model and all its answers.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub fn start(
        name: &str,
        loaded: LoadedModel,
        limits: EngineLimits,
        metrics: &Arc<Metrics>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let metrics = Arc::new(ModelMetrics::new(metrics, name, loaded.model.info()));
        let grammar = &loaded.vocabulary.grammar;
        let spells_numbers = grammar.spells_numbers();
        let head = grammar.is_point().then_some(MethodName::Head);
        let number_head = head.or(grammar.head_id().map(|_| MethodName::Xval));
        let number_tokens = Arc::new(number_tokens(&loaded));
        let observer = Arc::clone(&metrics) as Arc<dyn EngineObserver>;
        let (engine, thread) = Engine::spawn(loaded.model, loaded.vocabulary, limits, observer)?;
        let model = Self {
            name: name.into(),
            created: unix_seconds(),
            engine,
            tokenizer: loaded.tokenizer,
            spells_numbers,
            number_tokens,
            number_head,
            guides: Arc::default(),
            metrics,
        };
        Ok((model, thread))
    }

    /// Its name in requests.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// When it was loaded, Unix time in seconds.
    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    /// What is loaded.
    pub(crate) fn info(&self) -> &ModelInfo {
        self.engine.info()
    }

    /// Whether its engine still runs; says so to the metrics, too.
    pub(crate) fn is_alive(&self) -> bool {
        let alive = self.engine.is_alive();
        self.metrics.set_up(alive);
        alive
    }

    pub(crate) fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// What requests to this model must keep to.
    pub(crate) fn rules(&self, settings: &HttpSettings) -> Rules {
        let info = self.info();
        Rules {
            encoder_decoder: info.encoder_decoder,
            spells_numbers: self.spells_numbers,
            number_head: self.number_head,
            tokens: info.tokens,
            prompt_tokens_max: info.prompt_tokens_max,
            eos_ids: info.eos_ids.clone(),
            output_tokens_max: settings
                .output_tokens_max
                .min(info.answer_tokens_max.unwrap_or(usize::MAX) as u64),
            logprobs_max: settings.logprobs_max,
        }
    }

    /// A constraint, compiled for this model's vocabulary.
    pub(crate) async fn guide(&self, guided: &Guided) -> Result<Arc<dyn Guide>, AppError> {
        let (guides, tokenizer) = (Arc::clone(&self.guides), Arc::clone(&self.tokenizer));
        let (info, Guided { param, constraint }) = (self.info().clone(), guided.clone());
        off_the_runtime(usize::MAX, move || {
            let compiler = guides.get_or_init(|| GuideCompiler::new(&tokenizer, &info));
            let guide =
                compiler.as_ref().map_err(Clone::clone).and_then(|guides| guides.compile(&constraint));
            guide.map_err(|error| AppError::invalid(param, format!("`{param}`: {error}")))
        })
        .await
    }

    /// All prompts of a request as the model takes them.
    pub(crate) async fn prompts(
        &self,
        inputs: Vec<PromptInput>,
        rules: Rules,
    ) -> Result<Vec<Prompt>, AppError> {
        let bytes = inputs.iter().map(PromptInput::text_bytes).sum();
        let tokenizer = Arc::clone(&self.tokenizer);
        let convert = move || inputs.into_iter().map(|input| input.into_prompt(&tokenizer, &rules)).collect();
        off_the_runtime(bytes, convert).await
    }

    /// The number tokens of its losses.
    pub(crate) fn number_tokens(&self) -> &Arc<NumberTokens> {
        &self.number_tokens
    }

    /// The token ids of all items of a score request.
    pub(crate) async fn score_ids(&self, plan: ScorePlan, rules: Rules) -> Result<Vec<ScoreIds>, AppError> {
        let tokenizer = Arc::clone(&self.tokenizer);
        off_the_runtime(plan.text_bytes(), move || plan.ids(&tokenizer, &rules)).await
    }

    /// The tokens of one text.
    pub(crate) async fn encode(&self, text: String, add_special_tokens: bool) -> Result<Prompt, AppError> {
        let tokenizer = Arc::clone(&self.tokenizer);
        off_the_runtime(text.len(), move || {
            tokenizer
                .encode_prompt(&text, add_special_tokens)
                .map_err(|error| AppError::invalid("prompt", error.to_string()))
        })
        .await
    }

    /// The token ids of a conversation, by the checkpoint's template.
    pub(crate) async fn chat_ids(&self, conversation: Conversation) -> Result<Vec<u32>, AppError> {
        let tokenizer = Arc::clone(&self.tokenizer);
        let bytes = conversation.messages.iter().map(|message| message.content.len()).sum();
        off_the_runtime(bytes, move || {
            let Some(template) = tokenizer.chat_template() else {
                let message = "the checkpoint of this model has no chat template; use /v1/completions";
                return Err(AppError::invalid("messages", message));
            };
            let invalid = |error: String| AppError::invalid("messages", error);
            let text = template.render(&conversation).map_err(|error| invalid(error.to_string()))?;
            // The template has written the special tokens out.
            tokenizer.encode(&text, false).map_err(|error| invalid(error.to_string()))
        })
        .await
    }

    /// The text of token ids.
    pub(crate) async fn decode(&self, ids: Vec<u32>) -> Result<String, AppError> {
        let tokenizer = Arc::clone(&self.tokenizer);
        off_the_runtime(ids.len(), move || Ok(tokenizer.decode(&ids))).await
    }

    /// Gives jobs to the engine: one a prompt, in order. All of them or none. `begun` is when time
    /// began to count, and for which client.
    pub(crate) fn submit(
        &self,
        jobs: Vec<Job>,
        begun: (Instant, u64),
        app: &AppState,
    ) -> Result<Answers, AppError> {
        let allowed = app.settings.request_time_max;
        let prompt_tokens = jobs.iter().map(|job| job.prompt.len() as u64).sum();
        let method = |request| method_of(request).map(|method| self.number_head.unwrap_or(method));
        let about: Vec<_> = jobs.iter().map(|job| (job.request.sequences(), method(&job.request))).collect();
        let (started, client) = begun;
        let deadline = Some((started + allowed, allowed));
        let job = |job| Job { deadline, client, ..job };
        let events = self.engine.submit_all(jobs.into_iter().map(job).collect())?;
        let running = events.into_iter().zip(about);
        let running =
            running.map(|(events, (sequences, method))| RunningJob { events, sequences, method }).collect();
        app.metrics.http.prompt_tokens.inc_by(prompt_tokens);
        Ok(Answers::new(running, (started, allowed), &app.metrics, &self.metrics))
    }
}

/// The number tokens of a model's losses; those of the Regression Transformer are ordered by digit and place.
fn number_tokens(loaded: &LoadedModel) -> NumberTokens {
    let placed = |id| loaded.tokenizer.token(id).and_then(PlacedDigit::parse);
    NumberTokens::new(loaded.vocabulary.number_values.iter().copied())
        .ranked_by(|id, value| placed(id).map_or(value, PlacedDigit::value))
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

/// Runs `work` on `bytes` of text (or as many ids) where it disturbs nobody.
async fn off_the_runtime<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, AppError> + Send + 'static,
) -> Result<T, AppError> {
    if bytes <= INLINE_BYTES_MAX {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // The panic layer counts and answers it.
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(AppError::Draining),
    }
}
