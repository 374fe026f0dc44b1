//! What the command line means: every value checked, names resolved, defaults filled in.
//!
//! In: [`Args`]. Out: [`Config`], which needs no second check, or a [`ConfigError`] (bad usage). Not here: whether a
//! folder holds a checkpoint; loading says that.

mod network;

use std::collections::BTreeSet;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ntl_engine::EngineLimits;
use ntl_models::{DeviceChoice, LoadOptions};

use crate::adapters;
use crate::args::{Args, LimitArgs, LogArgs, LogFormat};
use crate::backend::BackendOptions;
use crate::demo;
use crate::listen::{ConnectionSettings, TlsFiles};
use crate::state::HttpSettings;

/// Flags that make no sense together or by themselves.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Two models would answer to one name.
    #[error("two models are called `{0}`; give one of them another name with --model NAME=DIR")]
    DuplicateModel(String),
    /// A folder whose path ends in no name.
    #[error("no name for the model in `{0}`; say --model NAME=DIR")]
    UnnamedModel(String),
    /// An adapter for no model, or for which one is not clear.
    #[error("which model is the adapter `{0}` for? say --adapter NAME=DIR with the name of a model")]
    AdapterOfNoModel(String),
    /// A second adapter for a model.
    #[error("model `{0}` has two adapters; one can be merged")]
    TwoAdapters(String),
    /// An API key that no header can carry.
    #[error("an API key must not be empty or hold spaces")]
    UnusableKey,
    /// The file of API keys cannot be read.
    #[error("cannot read API keys from `{file}`")]
    KeyFile {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file of API keys without a key, which would open the server to everyone.
    #[error("there is no API key in `{0}`")]
    NoKey(PathBuf),
    /// Something that is no origin of a web page.
    #[error("`{0}` is no origin; write it like https://example.com or http://localhost:3000, without a path")]
    UnusableOrigin(String),
    /// Something that no traces can be sent to.
    #[error("`{0}` is no OTLP endpoint; write it like http://localhost:4318")]
    UnusableEndpoint(String),
    /// Traces are wanted of a program that cannot send any.
    #[error(
        "this program was built without traces; build it with `cargo build --release --package ntl-server --features otel`"
    )]
    NoTraces,
}

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// The checkpoint inside the program.
    Demo,
    /// A folder, or a GGUF file.
    Path(PathBuf),
}

/// A model to be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelConfig {
    /// Its name in requests.
    pub name: String,
    /// Where it comes from.
    pub source: ModelSource,
    /// Folder of the LoRA adapter that is merged into it.
    pub adapter: Option<PathBuf>,
}

/// Everything that was decided before the start.
#[derive(Debug, Clone)]
pub struct Config {
    /// What is served; never empty, names differ.
    pub models: Vec<ModelConfig>,
    /// How checkpoints are loaded.
    pub load: BackendOptions,
    /// How much each engine takes on.
    pub engine: EngineLimits,
    /// How requests are treated.
    pub http: HttpSettings,
    /// How connections are treated.
    pub connections: ConnectionSettings,
    /// Certificate and key, where HTTPS is spoken.
    pub tls: Option<TlsFiles>,
    /// Address or name to listen on.
    pub host: String,
    /// Port to listen on, 0 for any.
    pub port: u16,
    /// How long running requests may take once the server is to end.
    pub drain_time_max: Duration,
    /// What is told about requests, and how.
    pub telemetry: TelemetryConfig,
}

/// What is told about requests, and how.
#[derive(Debug, Clone)]
pub struct TelemetryConfig {
    /// Looks of log lines.
    pub format: LogFormat,
    /// What is logged, where that was said.
    pub filter: Option<String>,
    /// Where traces are sent to.
    pub otlp_endpoint: Option<String>,
}

impl TryFrom<Args> for Config {
    type Error = ConfigError;

    fn try_from(args: Args) -> Result<Self, ConfigError> {
        let Args { models, network, limits, logs, .. } = args;
        let connections = network::connection_settings(&network, &limits);
        let tls = network.tls_cert.zip(network.tls_key);
        let http = HttpSettings {
            api_keys: network::api_keys(network.api_keys, network.api_key_file)?,
            cors_origins: network::origins(&network.cors_origins)?,
            body_bytes_max: limits.body_limit.get(),
            body_time_max: seconds(network.body_timeout),
            request_time_max: seconds(limits.request_timeout),
            output_tokens_max: limits.output_tokens_max.into(),
            logprobs_max: usize::try_from(limits.logprobs_max).ok(),
            log_prompts: logs.log_prompts,
            device: device_name(models.device),
        };
        Ok(Self {
            models: adapters::attached(model_configs(&models.models)?, &models.adapters)?,
            load: BackendOptions {
                backend: models.backend,
                isq: models.isq,
                load: LoadOptions {
                    device: models.device,
                    dtype: models.dtype,
                    choices: models.choices.into(),
                    prefix_bytes_max: limits.prefix_cache_limit,
                },
            },
            engine: engine_limits(&limits, models.threads),
            http,
            connections,
            tls: tls.map(|(certificate, key)| TlsFiles { certificate, key }),
            host: network.host,
            port: network.port,
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
        let is_http = |uri: &axum::http::Uri| uri.scheme_str() == Some("http") && uri.host().is_some();
        if !endpoint.parse().is_ok_and(|uri| is_http(&uri)) {
            return Err(ConfigError::UnusableEndpoint(endpoint.clone()));
        }
    }
    Ok(TelemetryConfig { format: logs.log_format, filter: logs.log, otlp_endpoint: logs.otlp_endpoint })
}

fn engine_limits(limits: &LimitArgs, threads: Option<NonZeroUsize>) -> EngineLimits {
    let default = EngineLimits::default();
    EngineLimits {
        threads: threads.unwrap_or(default.threads),
        queue_max: limits.queue_max as usize,
        running_max: limits.concurrency_max as usize,
        step_rows_max: limits.step_rows_max as usize,
        queue_time_max: (limits.queue_timeout > 0).then(|| Duration::from_secs(limits.queue_timeout.into())),
        cache_bytes_max: limits.cache_bytes_max.get(),
        ..default
    }
}

fn device_name(device: DeviceChoice) -> String {
    match device {
        // Without the feature there is nothing to choose from.
        DeviceChoice::Auto if cfg!(feature = "cuda") => "auto".to_owned(),
        DeviceChoice::Auto | DeviceChoice::Cpu => "cpu".to_owned(),
        DeviceChoice::Cuda(number) => format!("cuda:{number}"),
    }
}

fn model_configs(wanted: &[String]) -> Result<Vec<ModelConfig>, ConfigError> {
    if wanted.is_empty() {
        return Ok(vec![ModelConfig {
            name: demo::NAME.to_owned(),
            source: ModelSource::Demo,
            adapter: None,
        }]);
    }
    let models: Vec<ModelConfig> = wanted.iter().map(|text| model_config(text)).collect::<Result<_, _>>()?;
    let mut names = BTreeSet::new();
    match models.iter().find(|model| !names.insert(&model.name)) {
        Some(twice) => Err(ConfigError::DuplicateModel(twice.name.clone())),
        None => Ok(models),
    }
}

/// Reads `[NAME=]DIR`. A path with an equals sign in it must be written with a name, or begin with `.` or `/`.
fn model_config(text: &str) -> Result<ModelConfig, ConfigError> {
    let unnamed = || ConfigError::UnnamedModel(text.to_owned());
    let (name, folder) = match text.split_once('=') {
        Some((name, folder)) if !text.starts_with(['.', '/']) => (Some(name.to_owned()), folder),
        _ => (None, text),
    };
    let name = name
        .or_else(|| folder_name(Path::new(folder)))
        .filter(|name| !name.is_empty())
        .ok_or_else(unnamed)?;
    if folder.is_empty() {
        return Err(unnamed());
    }
    Ok(ModelConfig { name, source: ModelSource::Path(folder.into()), adapter: None })
}

/// The last part of a path, of `.` and `..` as well; of a GGUF file without its ending.
fn folder_name(folder: &Path) -> Option<String> {
    let last = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = last(folder).or_else(|| last(&folder.canonicalize().ok()?))?;
    Some(name.strip_suffix(".gguf").unwrap_or(&name).to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn config(flags: &[&str]) -> Result<Config, ConfigError> {
        Config::try_from(Args::try_parse_from([&["ntl-server"], flags].concat()).unwrap())
    }

    fn names(flags: &[&str]) -> Vec<String> {
        config(flags).unwrap().models.into_iter().map(|model| model.name).collect()
    }

    #[test]
    fn models_are_called_after_their_folders_unless_named() {
        let here = std::env::current_dir().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        for (text, name, folder) in [
            ("/models/t5-base", "t5-base", "/models/t5-base"),
            ("/models/t5-base/", "t5-base", "/models/t5-base/"),
            ("/models/llama.Q4.gguf", "llama.Q4", "/models/llama.Q4.gguf"),
            ("small=/models/t5", "small", "/models/t5"),
            ("org/small=models/t5", "org/small", "models/t5"),
            ("/run/lr=0.1/t5", "t5", "/run/lr=0.1/t5"),
            ("a=/run/lr=0.1/t5", "a", "/run/lr=0.1/t5"),
            (".", here.as_str(), "."),
        ] {
            let model = model_config(text).unwrap();
            assert_eq!(
                (model.name.as_str(), model.source),
                (name, ModelSource::Path(folder.into())),
                "{text}"
            );
        }
        for wrong in ["=/models/t5", "a=", ""] {
            assert!(model_config(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn without_models_the_demo_is_served_and_names_must_differ() {
        assert_eq!(names(&[]), [demo::NAME]);
        assert_eq!(names(&["--model", "/a/x", "--model", "y=/a/x,z=/b"]), ["x", "y", "z"]);
        let error = config(&["--model", "/a/x", "--model", "/b/x"]).unwrap_err();
        assert!(error.to_string().starts_with("two models are called `x`"), "{error}");
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
        let other = self::config(&["--queue-timeout=9", "--cache-bytes-max=8", "--logprobs-max=-1"]).unwrap();
        assert_eq!(other.engine.queue_time_max, Some(Duration::from_secs(9)));
        assert_eq!((other.engine.cache_bytes_max, other.http.logprobs_max), (8, None));
        assert_eq!(config.http.request_time_max, Duration::from_secs(7));
        assert_eq!(self::config(&[]).unwrap().engine, EngineLimits::default());
    }

    #[test]
    fn traces_need_a_build_that_sends_them_and_somebody_to_take_them() {
        for (endpoint, fits) in
            [("http://localhost:4318", true), ("localhost:4318", false), ("ftp://x", false)]
        {
            let wrong = match (cfg!(feature = "otel"), fits) {
                (false, _) => Some("this program was built without traces"),
                (true, false) => Some("is no OTLP endpoint"),
                (true, true) => None,
            };
            let error = config(&["--otlp-endpoint", endpoint]).err().map(|error| error.to_string());
            let is_said = |wrong| error.as_deref().is_some_and(|error| error.contains(wrong));
            assert!(wrong.map_or(error.is_none(), is_said), "{endpoint}: {error:?}");
        }
    }
}
