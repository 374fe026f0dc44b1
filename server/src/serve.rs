//! The life of a server: listen, load, answer, drain, end.
//!
//! The server listens before it loads, so that probes see it start. At the first signal it refuses readiness,
//! and after the drain delay new work, with 503; it answers the running requests. The drain time or a second
//! signal cuts off the rest. A dead engine ends the server like a signal: this process cannot repair it, and
//! a supervisor can restart the process. Invariant: unless [`run`] returns [`Ended::CutOff`], no request was
//! cut off and all engine threads are joined.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use ntl_common::regular_file::{SMALL_BYTES_MAX, read_text};
use ntl_engine::CacheBudget;
use ntl_text::chat::{ChatError, ChatTemplate, TextTemplate};
use ntl_text::checkpoint::{
    CheckpointFacts, CheckpointFiles, Choices, LoadError, TruncationSide, files_fingerprint,
};
use ntl_text::gguf::part_paths;
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::sync::watch;

use crate::backend::{self, BackendOptions, with_chat_template};
use crate::calibration::{CalibrationFile, CalibrationFileError, calibrated};
use crate::config::{AdapterConfig, Config, ModelConfig, ModelSource, ToolParserChoice};
use crate::hub::{Contents, HubError, Snapshot};
use crate::listen::{Certificate, Listener, TlsError};
use crate::metrics::{Metrics, UpstreamMetrics};
use crate::middleware::message_form;
use crate::native::{self, LoadedModel};
use crate::remote::{ConnectedModel, RemoteError, connect};
use crate::request::ToolSupport;
use crate::served::{AdapterError, AdapterFolder, ReadAdapter, ServedModel};
use crate::signals::EndRequests;
use crate::state::AppState;
use crate::{app, cache_bytes, demo, start_lines};

/// Maximum time for connections and engine threads to close after the last response.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);

/// Interval at which engines are checked.
const SUPERVISION: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    #[error("cannot listen on {host}:{port}")]
    Listen {
        host: String,
        port: u16,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot serve HTTPS")]
    Tls(#[from] TlsError),
    #[error("cannot load model `{name}`")]
    Load {
        name: String,
        #[source]
        source: LoadError,
    },
    #[error("cannot load model `{0}`: {reason}", reason = native::BUILT_WITHOUT)]
    NoNativeEngine(String),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error("cannot load adapter `{name}`")]
    Adapter {
        name: String,
        #[source]
        source: AdapterError,
    },
    #[error("--chat-template: {} cannot be used: {reason}", .file.display())]
    ChatTemplate { file: PathBuf, reason: String },
    #[error("cannot serve model `{name}`")]
    Connect {
        name: String,
        #[source]
        source: RemoteError,
    },
    /// Every request would be refused.
    #[error(
        "the bound on caches of {bytes_max} bytes (--cache-bytes-max) leaves no room for one token of model `{name}`: it must be \
         at least {needed}"
    )]
    NoCache { name: String, bytes_max: u64, needed: u64 },
    #[error("cannot use the template of decisions `{file}`")]
    DecisionTemplate {
        file: PathBuf,
        #[source]
        source: DecisionTemplateError,
    },
    #[error("wrong calibration")]
    Calibration(#[from] CalibrationFileError),
    /// A mistake in the definition of the metrics.
    #[error("metrics cannot be registered")]
    Metrics(#[from] prometheus::Error),
    #[error("the operating system refused {what}")]
    System {
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("loading the models failed")]
    LoadingPanicked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All requests were answered.
    Drained,
    /// The drain time or a second signal cut off this many requests.
    CutOff(usize),
    /// An engine died; all requests to other engines were answered.
    EngineDied,
    /// The same, because its device cannot be used in this process any more.
    DeviceLost,
}

/// Lowers the numbers of connections, of clients and to engines, to the file descriptors of this process.
pub fn within_descriptors(config: &mut Config) {
    let requests: usize = config.remote_models().map(|model| model.requests_max()).sum();
    let others: usize = config.remote_models().map(|model| model.other_connections_max()).sum();
    let (connections, upstream) =
        config.connections.within_descriptors(requests + others, config.admin.is_some());
    config.connections = connections;
    let share = upstream.saturating_sub(others);
    if share < requests {
        config.remote_models().for_each(|model| model.limit_requests(share, requests));
    }
}

async fn bind(address: impl ToSocketAddrs, host: &str, port: u16) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen {
        host: host.to_owned(),
        port,
        source,
    })
}

/// Binds the addresses of a configuration.
pub async fn listen(config: &Config, certificate: Option<&Certificate>) -> Result<Listener, ServeError> {
    let host = config.host.as_str();
    let port = config.port;
    let tcp = bind((host, port), host, port).await?;
    let mut listener = Listener::new(tcp, config.connections);
    if let Some(address) = config.admin {
        listener = listener.with_admin(bind(address, &address.ip().to_string(), address.port()).await?);
    }
    match certificate {
        Some(certificate) => Ok(listener.with_tls(certificate)?),
        None => Ok(listener),
    }
}

/// Returns the state of a server whose models are not loaded yet.
pub fn state(config: &Config) -> Result<AppState, ServeError> {
    Ok(AppState::new(config.http.clone(), Metrics::new()?.into()))
}

/// Loads the models of a configuration and serves them until a signal.
pub async fn run(
    config: Config,
    app: AppState,
    listener: Listener,
    signals: EndRequests,
) -> Result<Ended, ServeError> {
    log_start(&listener, &config, &app);
    let start_lines = start_lines::text(&listener, &config, &app.settings);
    let page = start_lines::page(&listener, &app.settings);
    let drain_time_max = config.drain_time_max;
    let state = app.clone();
    let loading = tokio::task::spawn_blocking(move || load_all(&config, &state));
    let mut serving = pin!(serve(listener, app, signals, drain_time_max));
    let threads = tokio::select! {
        // A signal arrived before the models were loaded: loading ends with the process.
        ended = &mut serving => return Ok(ended),
        loaded = loading => loaded.map_err(|_| ServeError::LoadingPanicked)??,
    };
    tracing::info!(url = page, "open this URL in a browser");
    start_lines::print(&start_lines);
    let ended = serving.await;
    if !matches!(ended, Ended::CutOff(_)) && !join(threads).await && ended == Ended::Drained {
        return Ok(Ended::EngineDied);
    }
    Ok(ended)
}

fn with_form_check(router: Router) -> Router {
    router.layer(axum::middleware::from_fn(message_form::check))
}

/// Answers requests until a signal arrives or an engine dies.
pub async fn serve(
    mut listener: Listener,
    app: AppState,
    mut signals: EndRequests,
    drain_time_max: Duration,
) -> Ended {
    let (close, closing) = watch::channel(false);
    // This task owns all connections: dropping it ends them.
    let mut server = tokio::task::JoinSet::new();
    if let Some(admin) = listener.take_admin() {
        server.spawn(admin.answer(with_form_check(app::admin_router(app.clone())), closing.clone()));
    }
    server.spawn(listener.answer(with_form_check(app::router(app.clone())), closing));
    let ended = tokio::select! {
        () = wait(&mut signals) => Ended::Drained,
        () = engine_dies(&app) => Ended::EngineDied,
    };
    let was_hurried = ended == Ended::Drained && announce_end(&app, &mut signals).await;
    let drain_time_max = if was_hurried { Duration::ZERO } else { drain_time_max };
    app.lifecycle.drain();
    tracing::info!(requests = app.lifecycle.in_flight(), seconds_max = drain_time_max.as_secs(), "draining");
    tokio::select! {
        () = app.lifecycle.idle() => {}
        () = tokio::time::sleep(drain_time_max) => {}
        () = wait(&mut signals) => {}
    }
    let cut_off = app.lifecycle.in_flight();
    if cut_off > 0 {
        app.lifecycle.cut_off();
        server.shutdown().await;
        tracing::warn!(requests = cut_off, "ended before all requests were answered");
        return Ended::CutOff(cut_off);
    }
    // The connections still send the last answers.
    close.send_replace(true);
    tokio::select! {
        _ = tokio::time::timeout(CLOSE_TIME_MAX, async { while server.join_next().await.is_some() {} }) => {}
        () = wait(&mut signals) => {}
    }
    tracing::info!("ended");
    // Also one that died after a signal.
    if app.models.all().iter().any(|model| model.lost_device().is_some()) {
        Ended::DeviceLost
    } else if dead_engines(&app).is_empty() {
        ended
    } else {
        Ended::EngineDied
    }
}

/// Reports that the server is not ready and still accepts work for the drain delay. Returns whether a second
/// signal ended it.
async fn announce_end(app: &AppState, signals: &mut EndRequests) -> bool {
    let delay = app.settings.drain_delay;
    if delay.is_zero() || !app.models.are_loaded() {
        return false;
    }
    app.lifecycle.announce_end();
    tracing::info!(seconds = delay.as_secs(), "not ready any more; work is still accepted");
    tokio::select! {
        () = tokio::time::sleep(delay) => false,
        () = engine_dies(app) => false,
        () = wait(signals) => true,
    }
}

/// Returns when an engine has died.
async fn engine_dies(app: &AppState) {
    let mut tick = tokio::time::interval(SUPERVISION);
    loop {
        tick.tick().await;
        let dead = dead_engines(app);
        if !dead.is_empty() {
            tracing::error!(
                models = dead.join(","),
                "an engine died; the server ends so that it can be restarted"
            );
            return;
        }
    }
}

/// The models whose engines have died.
fn dead_engines(app: &AppState) -> Vec<String> {
    let all = app.models.all();
    all.iter().filter(|model| !model.is_alive()).map(|model| model.name.to_string()).collect()
}

/// Waits for a signal. Never returns if the sender is dropped.
async fn wait(signals: &mut EndRequests) {
    if signals.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

fn log_start(listener: &Listener, config: &Config, app: &AppState) {
    let names: Vec<&str> = config.names().collect();
    let address = listener.local_addr();
    let address_text = address.map(|address| address.to_string());
    tracing::info!(
        address = address_text,
        admin_address = listener.admin_addr().map(|address| address.to_string()),
        tls = listener.is_tls(),
        models = names.join(","),
        device = app.settings.device,
        version = crate::VERSION,
        "listening"
    );
    if app.settings.api_keys.is_empty() && address.is_some_and(|address| !address.ip().is_loopback()) {
        tracing::warn!(
            address = address_text,
            "everyone who can reach this address may use the models: no API key is set (--api-key-file)"
        );
    }
    tracing::debug!(settings = ?app.settings, "settings");
}

/// Loads all models in order and serves them once they are complete.
fn load_all(config: &Config, app: &AppState) -> Result<Vec<JoinHandle<()>>, ServeError> {
    let Config { models, adapters, load: options, engine: limits, .. } = config;
    // Before anything that takes long.
    let calibrations = models.iter().map(|model| read_calibrations(&model.calibrations));
    let calibrations = calibrations.collect::<Result<Vec<_>, _>>()?;
    let adapter_calibrations = adapters.iter().map(|adapter| read_calibrations(&adapter.calibrations));
    let adapter_calibrations = adapter_calibrations.collect::<Result<Vec<_>, _>>()?;
    let templates = models.iter().map(read_decision_template).collect::<Result<Vec<_>, _>>()?;
    let mut loaded = Vec::with_capacity(models.len());
    for model in models {
        loaded.push(load_or_connect(model, options, &app.metrics)?);
    }
    let read = read_adapters(adapters, models, &loaded, app)?;
    app.metrics.set_kernels_off(&native::kernels_off());
    // The default depends on the memory that the weights leave free.
    let cache_bytes_max = config.cache_bytes_max.unwrap_or_else(|| cache_bytes::default(options.load.device));
    let budget = CacheBudget::new(cache_bytes_max);
    for (model, loaded) in models.iter().zip(&loaded) {
        if let Loaded::Here(loaded, _) = loaded {
            check_cache(&model.name, loaded, &budget)?;
        }
    }
    let mut served = Vec::new();
    let mut threads = Vec::new();
    for (((settings, loaded), calibrations), template) in
        models.iter().zip(loaded).zip(calibrations).zip(templates)
    {
        let name = &settings.name;
        let mut model = match loaded {
            Loaded::Elsewhere(connected) => {
                ServedModel::remote(name, connected, *limits, &budget, &app.metrics)
            }
            Loaded::Here(loaded, checkpoint) => {
                let facts = served_facts(&checkpoint)
                    .map_err(|source| ServeError::Load { name: name.clone(), source })?;
                let (mut model, thread) = ServedModel::start(name, loaded, *limits, &budget, &app.metrics)
                    .map_err(|source| ServeError::System { what: "a thread", source })?;
                threads.push(thread);
                if let Some(side) = facts.truncation_side {
                    Arc::make_mut(&mut model.profile).truncation_side = side;
                }
                if let Checkpoint::Hub(Snapshot { commit, .. }) = checkpoint {
                    model.revision = Some(commit);
                }
                model.examples = facts.examples;
                model.with_fingerprint(facts.fingerprint)
            }
        };
        model = with_tool_parser(model, settings.tool_parser);
        if let Some(template) = template {
            model = model.with_decision_template(template);
        }
        served.push(calibrated(model, &calibrations)?);
    }
    for ((adapter, ReadAdapter { base, weights }), calibrations) in
        adapters.iter().zip(read).zip(adapter_calibrations)
    {
        let base = served.iter().find(|model| *model.name == *base);
        let base = base.ok_or(AdapterError::NoBase);
        let model = base.and_then(|base| base.adapted(&adapter.name, &adapter.name.as_str().into(), weights));
        let model = model.map_err(|source| ServeError::Adapter { name: adapter.name.clone(), source })?;
        served.push(calibrated(model, &calibrations)?);
    }
    app.models.publish(served);
    tracing::info!(models = models.len(), adapters = adapters.len(), cache_bytes_max, "ready");
    Ok(threads)
}

/// Reads the adapters for their base models.
fn read_adapters(
    adapters: &[AdapterConfig],
    models: &[ModelConfig],
    loaded: &[Loaded],
    app: &AppState,
) -> Result<Vec<ReadAdapter>, ServeError> {
    let mut readers = Vec::new();
    for (model, loaded) in models.iter().zip(loaded) {
        if let Loaded::Here(LoadedModel { adapters: Some(reader), .. }, _) = loaded {
            readers.push((model.name.as_str(), reader));
        }
    }
    let mut read = Vec::with_capacity(adapters.len());
    for AdapterConfig { name, folder, .. } in adapters {
        let downloaded = tokio::runtime::Handle::current().block_on(folder.directory(Contents::Adapter))?;
        let adapter = app.models.adapter_memory().read(&AdapterFolder::Configured(downloaded), &readers);
        read.push(adapter.map_err(|source| ServeError::Adapter { name: name.clone(), source })?);
    }
    Ok(read)
}

fn with_tool_parser(mut model: ServedModel, choice: ToolParserChoice) -> ServedModel {
    match choice {
        ToolParserChoice::Auto => model,
        ToolParserChoice::None => {
            Arc::make_mut(&mut model.profile).tools = ToolSupport::Off;
            model
        }
        ToolParserChoice::Format(format) => model.with_tool_format(format),
    }
}

fn read_decision_template(model: &ModelConfig) -> Result<Option<TextTemplate>, ServeError> {
    let Some(file) = &model.decision_template else { return Ok(None) };
    match decision_template(file) {
        Ok(template) => Ok(Some(template)),
        Err(source) => Err(ServeError::DecisionTemplate { file: file.clone(), source }),
    }
}

fn decision_template(file: &Path) -> Result<TextTemplate, DecisionTemplateError> {
    Ok(TextTemplate::new(read_text(file, SMALL_BYTES_MAX)?)?)
}

/// Why a template of decisions cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DecisionTemplateError {
    #[error(transparent)]
    Unreadable(#[from] std::io::Error),
    #[error(transparent)]
    Wrong(#[from] ChatError),
}

/// The files of a model that is computed here.
enum Checkpoint {
    Demo,
    /// A folder, or a GGUF file.
    Path(PathBuf),
    /// The same, downloaded.
    Hub(Snapshot),
}

impl Checkpoint {
    /// Returns `None` for the demo.
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Demo => None,
            Self::Path(path) | Self::Hub(Snapshot { path, .. }) => Some(path),
        }
    }
}

/// A model that is computed here or by another engine.
enum Loaded {
    Here(LoadedModel, Checkpoint),
    Elsewhere(ConnectedModel),
}

fn load_or_connect(
    model: &ModelConfig,
    options: &BackendOptions,
    metrics: &Arc<Metrics>,
) -> Result<Loaded, ServeError> {
    let name = &model.name;
    // Before a download.
    if !cfg!(feature = "native") && !matches!(model.source, ModelSource::Remote(_)) {
        return Err(ServeError::NoNativeEngine(name.clone()));
    }
    // Models are loaded on a thread that may block.
    let runtime = tokio::runtime::Handle::current();
    let checkpoint = match &model.source {
        ModelSource::Demo => Checkpoint::Demo,
        ModelSource::Path(path) => Checkpoint::Path(path.clone()),
        ModelSource::Hub(reference) => {
            Checkpoint::Hub(runtime.block_on(reference.download(Contents::Model))?)
        }
        ModelSource::Remote(remote) => {
            let observer = Arc::new(UpstreamMetrics::new(metrics, name));
            let connected = runtime.block_on(connect(name, remote, observer));
            let connected = connected.map_err(|source| ServeError::Connect { name: name.clone(), source })?;
            return Ok(Loaded::Elsewhere(connected));
        }
    };
    let chat_template = read_chat_template(model)?;
    let loaded = load(&checkpoint, chat_template, options);
    let loaded = loaded.map_err(|source| ServeError::Load { name: name.clone(), source })?;
    check_chat_template(model, &loaded)?;
    Ok(Loaded::Here(loaded, checkpoint))
}

/// Rejects a limit for caches that cannot hold a prompt of one token and the row after it.
fn check_cache(name: &str, loaded: &LoadedModel, budget: &CacheBudget) -> Result<(), ServeError> {
    let needs = loaded.model.cache_cost().bytes(1, 1);
    if needs <= budget.job_bytes_max() {
        return Ok(());
    }
    // One job gets three quarters.
    let needed = needs.saturating_mul(4).div_ceil(3);
    Err(ServeError::NoCache { name: name.to_owned(), bytes_max: budget.bytes_max(), needed })
}

fn read_chat_template(model: &ModelConfig) -> Result<Option<String>, ServeError> {
    let Some(file) = &model.chat_template else { return Ok(None) };
    match read_text(file, SMALL_BYTES_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(error) => Err(ServeError::ChatTemplate { file: file.clone(), reason: error.to_string() }),
    }
}

/// Rejects a chat template that does not compile. One of the checkpoint only makes its chats fail.
fn check_chat_template(model: &ModelConfig, loaded: &LoadedModel) -> Result<(), ServeError> {
    let problem = loaded.tokenizer.chat_template().and_then(ChatTemplate::problem);
    match (&model.chat_template, problem) {
        (Some(file), Some(problem)) => {
            Err(ServeError::ChatTemplate { file: file.clone(), reason: problem.to_owned() })
        }
        _ => Ok(()),
    }
}

fn load(
    checkpoint: &Checkpoint,
    chat_template: Option<String>,
    options: &BackendOptions,
) -> Result<LoadedModel, LoadError> {
    match checkpoint.path() {
        None => backend::load_files(&with_chat_template(demo::files()?, chat_template), options),
        Some(path) => backend::load(path, chat_template, options),
    }
}

fn read_calibrations(paths: &[PathBuf]) -> Result<Vec<CalibrationFile>, CalibrationFileError> {
    paths.iter().map(|path| CalibrationFile::read(path)).collect()
}

/// The facts of a checkpoint that the server reports to clients.
struct ServedFacts {
    examples: Vec<String>,
    truncation_side: Option<TruncationSide>,
    fingerprint: String,
}

/// Reads `ntl.json` and the fingerprint. A GGUF file has no `ntl.json`, and this program has the examples of
/// the demo checkpoint.
fn served_facts(checkpoint: &Checkpoint) -> Result<ServedFacts, LoadError> {
    match checkpoint.path() {
        None => Ok(ServedFacts {
            examples: demo::EXAMPLES.map(str::to_owned).to_vec(),
            truncation_side: None,
            fingerprint: demo::files()?.fingerprint()?,
        }),
        Some(path) if path.is_dir() => {
            let files = CheckpointFiles::folder(path)?;
            let facts = CheckpointFacts::open(&files, Choices::default())?;
            Ok(ServedFacts {
                examples: facts.examples().to_vec(),
                truncation_side: facts.truncation_side(),
                fingerprint: files.fingerprint()?,
            })
        }
        Some(path) => Ok(ServedFacts {
            examples: Vec::new(),
            truncation_side: None,
            fingerprint: files_fingerprint(&part_paths(path))?,
        }),
    }
}

/// Waits for the engine threads, which end when the last request and the router are dropped. Returns `false`
/// if one panicked.
async fn join(threads: Vec<JoinHandle<()>>) -> bool {
    let all = tokio::task::spawn_blocking(move || {
        threads.into_iter().map(JoinHandle::join).filter(Result::is_err).count() == 0
    });
    let Ok(joined) = tokio::time::timeout(CLOSE_TIME_MAX, all).await else {
        tracing::warn!("an engine did not end in time");
        return true;
    };
    joined.unwrap_or(false)
}
