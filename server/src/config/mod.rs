//! The configuration: every flag validated, names resolved, defaults filled in.
//!
//! In: [`Args`]. Out: [`Config`], which needs no further check, or a [`ConfigError`] (bad usage). Not here:
//! whether a directory holds a checkpoint, which only loading shows.

mod args;
mod bytes;
mod environment;
mod file;
mod models;
mod network;
mod remote;
mod upstream;

use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use ntl_engine::EngineLimits;
use ntl_text::load_options::{DeviceChoice, LoadOptions};

use crate::backend::BackendOptions;
use crate::hub::InvalidReference;
use crate::keys::{ApiKeys, KeyError};
use crate::listen::{ConnectionSettings, TlsFiles};
use crate::proxies::TrustedProxies;
use crate::settings::HttpSettings;
use crate::telemetry::TelemetryConfig;
pub use args::{Args, Command};
use args::{LimitArgs, LogArgs};
pub use environment::{Environment, log_format};
pub use file::ArgsError;
pub use models::{AdapterConfig, ModelConfig, ModelSource, ToolParserChoice};
pub use remote::{RemoteModel, RemoteModelError};

/// Why a file cannot be attached to a model by `[NAME=]PATH`.
#[derive(Debug, thiserror::Error)]
pub enum AttachmentError {
    #[error("no model has the name `{name}`; {}", listed(.models))]
    UnknownName { name: String, models: Vec<String> },
    #[error("write NAME=PATH with the name of a model; {}", listed(.models))]
    NoName { models: Vec<String> },
    #[error("the path is missing after `=`")]
    NoPath,
    #[error("the engine of a model on another server has its own template")]
    Remote,
    #[error("the model has another one already")]
    Twice,
}

fn listed(names: &[String]) -> String {
    format!("{} `{}`", if names.len() == 1 { "the model is" } else { "the models are" }, names.join("`, `"))
}

/// Flags that are invalid alone or together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error("two models have the name `{0}`; give one of them another name with --model NAME=DIR")]
    DuplicateModel(String),
    #[error("no name for the model in `{0}`; write --model NAME=DIR")]
    UnnamedModel(String),
    #[error("no folder for the model in `{0}`; write --model NAME=DIR")]
    ModelWithoutFolder(String),
    #[error("{flag} {text}: {problem}")]
    Unattached { flag: &'static str, text: String, problem: AttachmentError },
    #[error("--tool-parser {text}: {problem}")]
    ToolParser { text: String, problem: &'static str },
    #[error(transparent)]
    Remote(#[from] RemoteModelError),
    #[error("{0}: {1}")]
    Hub(&'static str, InvalidReference),
    #[error("--adapter {0}: write NAME=DIR")]
    UnnamedAdapter(String),
    #[error(
        "--adapter: another model or adapter has the name `{0}`; give the adapter another name with --adapter NAME=DIR"
    )]
    DuplicateAdapter(String),
    #[error("--adapters-from: the listener that loads adapters is missing; add --admin-listen ADDRESS:PORT")]
    NoAdminListener,
    #[error("--threads {asked} is too many: this machine has {processors} processors; at most {max}")]
    TooManyThreads { asked: usize, processors: usize, max: usize },
    #[error(transparent)]
    Keys(#[from] KeyError),
    #[error("--{0}: a quota is for API keys; add --api-key-file FILE or --api-key KEY")]
    QuotaWithoutKeys(&'static str),
    #[error("--allowed-hosts: `{0}` is not a host name; write it like example.com, without a port")]
    UnusableHost(String),
    #[error(
        "--cors-origin: `{0}` is not an origin; write it like https://example.com or http://localhost:3000, without a path"
    )]
    UnusableOrigin(String),
    #[error("--otlp-endpoint: `{0}` is not an OTLP endpoint; write it like http://localhost:4318")]
    UnusableEndpoint(String),
    #[error(
        "--otlp-endpoint: this program was built without traces; build it with `cargo build --release --package ntl-server --features otel`"
    )]
    NoTraces,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Never empty; the names differ.
    pub models: Vec<ModelConfig>,
    /// Their names differ from each other and from the models'.
    pub adapters: Vec<AdapterConfig>,
    pub load: BackendOptions,
    /// Limits of each engine.
    pub engine: EngineLimits,
    /// Maximum memory of caches and number trees of all models, in bytes; `None` derives it from the free
    /// memory.
    pub cache_bytes_max: Option<u64>,
    pub http: HttpSettings,
    pub connections: ConnectionSettings,
    /// `None` for HTTP without TLS.
    pub tls: Option<TlsFiles>,
    /// Address or name to listen on.
    pub host: String,
    /// Port to listen on, 0 for any.
    pub port: u16,
    /// A second listener for operators.
    pub admin: Option<SocketAddr>,
    /// Maximum time for running requests to finish after a signal.
    pub drain_time_max: Duration,
    pub telemetry: TelemetryConfig,
}

impl Config {
    /// The models that other engines compute.
    pub(crate) fn remote_models(&mut self) -> impl Iterator<Item = &mut RemoteModel> {
        self.models.iter_mut().filter_map(|model| match &mut model.source {
            ModelSource::Remote(remote) => Some(&mut **remote),
            ModelSource::Demo | ModelSource::Path(_) | ModelSource::Hub(_) => None,
        })
    }

    /// The names of all models and adapters.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let adapters = self.adapters.iter().map(|adapter| adapter.name.as_str());
        self.models.iter().map(|model| model.name.as_str()).chain(adapters)
    }
}

impl TryFrom<Args> for Config {
    type Error = ConfigError;

    fn try_from(args: Args) -> Result<Self, ConfigError> {
        let Args { models: flags, upstream, network, limits, logs, .. } = args;
        check_threads(flags.threads)?;
        let connections = network::connection_settings(&network, &limits);
        let quota = network::quota(&network);
        let tls = network.tls_cert.zip(network.tls_key);
        if flags.adapters_from.is_some() && network.admin_listen.is_none() {
            return Err(ConfigError::NoAdminListener);
        }
        let models = models::model_configs(&flags.models)?;
        let models = upstream::with_upstream_flags(models, &upstream, limits.concurrency_max as usize)?;
        let models = models::with_tool_parsers(models, &flags.tool_parsers)?;
        let models = models::with_chat_templates(models, &flags.chat_templates)?;
        let models = models::with_decision_templates(models, &flags.decision_templates)?;
        let adapters = models::adapter_configs(&flags.adapters, &models)?;
        let (models, adapters) = models::with_calibrations(models, adapters, &flags.calibrations)?;
        let api_keys = ApiKeys::read(network.api_keys, network.api_key_file)?;
        if let (Some(limit), true) = (quota.first(), api_keys.is_empty()) {
            return Err(ConfigError::QuotaWithoutKeys(limit.name));
        }
        let http = HttpSettings {
            api_keys,
            quota,
            allowed_hosts: network::allowed_hosts(&network.allowed_hosts, &network.host)?,
            trusted_proxies: TrustedProxies::new(network.trusted_proxies),
            share_prefix_cache: limits.share_prefix_cache,
            cors_origins: network::origins(&network.cors_origins)?,
            body_bytes_max: limits.body_bytes_max.get(),
            // A smaller budget would reject bodies that `--body-bytes-max` allows.
            bodies_bytes_max: limits.bodies_bytes_max.get().max(limits.body_bytes_max.get()),
            response_bytes_max: limits.response_bytes_max.get(),
            responses_bytes_max: limits.responses_bytes_max.get().max(limits.response_bytes_max.get()),
            memory_bytes_max: limits.memory_bytes_max,
            body_time_max: seconds(network.body_timeout),
            request_time_max: seconds(limits.request_timeout),
            output_tokens_max: limits.output_tokens_max.into(),
            logprobs_max: usize::try_from(limits.logprobs_max).ok(),
            playground: !network.no_playground,
            drain_delay: seconds(limits.drain_delay),
            metrics_compat: logs.metrics_compat,
            metrics_on_admin_only: network.metrics_on_admin_only,
            adapters_from: flags.adapters_from,
            adapter_bytes_max: limits.adapter_bytes_max,
            log_prompts: logs.log_prompts,
            device: device_name(flags.device),
        };
        Ok(Self {
            models,
            adapters,
            load: BackendOptions {
                backend: flags.backend,
                isq: flags.isq,
                load: LoadOptions {
                    device: flags.device,
                    dtype: flags.dtype,
                    kv_cache_dtype: flags.kv_cache_dtype,
                    kernels: flags.kernels,
                    cuda_graphs: !flags.no_cuda_graphs,
                    choices: flags.choices.into(),
                    prefix_bytes_max: limits.prefix_cache_bytes_max,
                },
            },
            engine: engine_limits(&limits, flags.threads, seconds(network.write_timeout)),
            cache_bytes_max: limits.cache_bytes_max.map(NonZeroU64::get),
            http,
            connections,
            tls: tls.map(|(certificate, key)| TlsFiles { certificate, key }),
            host: network.host,
            port: network.port,
            admin: network.admin_listen,
            drain_time_max: seconds(limits.drain_timeout),
            telemetry: telemetry(logs)?,
        })
    }
}

fn seconds(count: u32) -> Duration {
    Duration::from_secs(count.into())
}

fn telemetry(logs: LogArgs) -> Result<TelemetryConfig, ConfigError> {
    if let Some(endpoint) = &logs.otlp_endpoint {
        if !cfg!(feature = "otel") {
            return Err(ConfigError::NoTraces);
        }
        match endpoint.parse::<axum::http::Uri>() {
            Ok(uri) if uri.scheme_str() == Some("http") && uri.host().is_some() => {}
            _ => return Err(ConfigError::UnusableEndpoint(endpoint.clone())),
        }
    }
    Ok(TelemetryConfig { format: logs.log_format, filter: logs.log, otlp_endpoint: logs.otlp_endpoint })
}

fn engine_limits(
    limits: &LimitArgs,
    threads: Option<NonZeroUsize>,
    unread_time_max: Duration,
) -> EngineLimits {
    let default = EngineLimits::default();
    EngineLimits {
        threads: threads.unwrap_or(default.threads),
        queue_max: limits.queue_max as usize,
        running_max: limits.concurrency_max as usize,
        step_rows_max: limits.step_rows_max as usize,
        queue_time_max: (limits.queue_timeout > 0).then(|| Duration::from_secs(limits.queue_timeout.into())),
        unread_time_max,
        ..default
    }
}

/// Rejects a number of threads that would only wait for each other.
fn check_threads(threads: Option<NonZeroUsize>) -> Result<(), ConfigError> {
    const PER_PROCESSOR_MAX: usize = 4;
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let asked = threads.map_or(1, NonZeroUsize::get);
    let max = PER_PROCESSOR_MAX * processors;
    if asked > max { Err(ConfigError::TooManyThreads { asked, processors, max }) } else { Ok(()) }
}

fn device_name(device: DeviceChoice) -> String {
    match device {
        // Without the feature there is nothing to choose from.
        DeviceChoice::Auto if cfg!(feature = "cuda") => "auto".to_owned(),
        DeviceChoice::Auto | DeviceChoice::Cpu => "cpu".to_owned(),
        DeviceChoice::Cuda(number) => format!("cuda:{number}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::demo;

    fn config(flags: &[&str]) -> Result<Config, ConfigError> {
        Config::try_from(Args::try_parse_from([&["ntl-server"], flags].concat()).unwrap())
    }

    fn names(flags: &[&str]) -> Vec<String> {
        config(flags).unwrap().models.into_iter().map(|model| model.name).collect()
    }

    #[test]
    fn without_models_the_demo_is_served_and_names_must_differ() {
        assert_eq!(names(&[]), [demo::NAME]);
        assert_eq!(names(&["--model", "/a/x", "--model", "y=/a/x,z=/b"]), ["x", "y", "z"]);
        let error = config(&["--model", "/a/x", "--model", "/b/x"]).unwrap_err();
        assert!(error.to_string().starts_with("two models have the name `x`"), "{error}");
    }

    #[test]
    fn the_limits_of_the_flags_are_those_of_the_engine() {
        let config =
            config(&["--queue-max=3", "--concurrency-max=2", "--step-rows-max=5", "--request-timeout=7"])
                .unwrap();
        assert_eq!(
            (config.engine.queue_max, config.engine.running_max, config.engine.step_rows_max),
            (3, 2, 5)
        );
        let other = self::config(&[
            "--queue-timeout=9",
            "--write-timeout=8",
            "--cache-bytes-max=8",
            "--logprobs-max=-1",
        ])
        .unwrap();
        assert_eq!(other.engine.queue_time_max, Some(Duration::from_secs(9)));
        assert_eq!(other.engine.unread_time_max, Duration::from_secs(8));
        assert_eq!((other.cache_bytes_max, other.http.logprobs_max), (Some(8), None));
        assert_eq!(config.http.request_time_max, Duration::from_secs(7));
        assert_eq!(self::config(&[]).unwrap().engine, EngineLimits::default());
    }

    #[test]
    fn more_threads_than_a_machine_can_use_are_refused_with_the_most_that_it_can() {
        let error = config(&["--threads", "100000"]).unwrap_err().to_string();
        assert!(error.starts_with("--threads 100000 is too many: this machine has "), "{error}");
        assert_eq!(config(&["--threads", "1"]).unwrap().engine.threads, NonZeroUsize::MIN);
    }

    #[test]
    fn traces_need_a_build_with_otel_and_the_address_of_a_collector() {
        for (endpoint, fits) in
            [("http://localhost:4318", true), ("localhost:4318", false), ("ftp://x", false)]
        {
            let wrong = match (cfg!(feature = "otel"), fits) {
                (false, _) => Some("this program was built without traces"),
                (true, false) => Some("is not an OTLP endpoint"),
                (true, true) => None,
            };
            let error = config(&["--otlp-endpoint", endpoint]).err().map(|error| error.to_string());
            let is_said = |wrong| error.as_deref().is_some_and(|error| error.contains(wrong));
            assert!(wrong.map_or(error.is_none(), is_said), "{endpoint}: {error:?}");
        }
    }
}
