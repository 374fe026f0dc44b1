//! The command line as it is typed; [`super::Config`] validates it.

use std::net::{IpAddr, SocketAddr};
use std::num::{IntErrorKind, NonZeroU64, NonZeroUsize, ParseIntError};
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{BoolishValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use ipnet::IpNet;
use ntl_common::manual::ManualArgs;
use ntl_text::load_options::{DeviceChoice, DtypeChoice, KernelChoice, KvCacheDtype};

use super::bytes::{bytes, positive_bytes};
use crate::backend::{BackendChoice, Isq};
use crate::choices::ChoiceArgs;
#[cfg(feature = "native")]
use crate::inspect::InspectArgs;
use crate::metrics::MetricsCompat;
use crate::quota::UNITS_MAX;
use crate::telemetry::LogFormat;

/// Serves language models that write numbers, with an OpenAI-style API and exact number distributions.
///
/// Without `--model` a small embedded demo checkpoint is served. A flag overrides its environment variable,
/// that overrides the file of `--config`, and that overrides the default.
#[derive(Debug, Clone, Parser)]
#[command(version, max_term_width = 110, args_conflicts_with_subcommands = true, mut_args = with_short_help)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// TOML file with the names of these flags as keys, such as `port = 8000` or `model = ["t5=models/t5"]`.
    /// Relative paths in it begin at its directory
    #[arg(long, env = "NTL_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) models: ModelArgs,
    #[command(flatten)]
    pub(crate) upstream: UpstreamArgs,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) logs: LogArgs,
}

/// The flags that `-h` shows. `--help` shows all.
const IN_SHORT_HELP: [&str; 13] = [
    "config",
    "model",
    "adapter",
    "calibration",
    "device",
    "dtype",
    "tokenizer",
    "host",
    "port",
    "api-key-file",
    "admin-listen",
    "concurrency-max",
    "log-format",
];

fn with_short_help(flag: clap::Arg) -> clap::Arg {
    let is_shown = flag.get_long().is_none_or(|name| IN_SHORT_HELP.contains(&name));
    flag.hide_short_help(!is_shown)
}

/// A command other than serving.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Report what a checkpoint folder contains, what is assumed, and whether it can be served
    #[cfg(feature = "native")]
    Inspect(InspectArgs),
    /// Print the OpenAPI description of the routes, as GET /openapi.json answers it where API keys are set
    Openapi,
    /// Write man pages and shell completions
    Manual(ManualArgs),
}

impl Args {
    pub fn log_format(&self) -> LogFormat {
        self.logs.log_format
    }
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Models")]
pub(crate) struct ModelArgs {
    /// Checkpoint folder, as `save_pretrained` writes it, or GGUF file; may be given several times. NAME is
    /// the model's name in requests, by default the folder's or file's name. hf:ORG/NAME[@REVISION] downloads
    /// the folder from the Hugging Face hub (hf:ORG/NAME/FILE.gguf: one file). NAME=URL[#MODEL] serves a
    /// model that another engine computes, such as vLLM or llama.cpp; further URLs after commas are its
    /// replicas
    #[arg(long = "model", env = "NTL_MODEL", value_name = "[NAME=]DIR", value_delimiter = ',')]
    pub(crate) models: Vec<String>,
    /// LoRA adapter of PEFT: the directory with its adapter_config.json, or hf:ORG/NAME; may be given several
    /// times. It is served as a model called NAME, next to its base model. The base is the only model, or the
    /// one that `base_model_name_or_path` of its configuration names
    #[arg(long = "adapter", env = "NTL_ADAPTER", value_name = "[NAME=]DIR", value_delimiter = ',')]
    pub(crate) adapters: Vec<String>,
    /// Directory from which POST /v1/load_lora_adapter on the listener of --admin-listen may load adapters
    #[arg(long, env = "NTL_ADAPTERS_FROM", value_name = "DIR")]
    pub(crate) adapters_from: Option<PathBuf>,
    /// Calibration of a model's intervals (`number.interval`), as `ntl-eval calibrate` writes it; may be
    /// given several times, also for one model, such as for several coverages. NAME is the name of the model
    /// and may be omitted where only one is served
    #[arg(long = "calibration", env = "NTL_CALIBRATION", value_name = "[NAME=]FILE", value_delimiter = ',')]
    pub(crate) calibrations: Vec<String>,
    /// Chat template in place of the checkpoint's: a file in Jinja, like chat_template.jinja. NAME is the
    /// name of the model and may be omitted where only one is served
    #[arg(
        long = "chat-template",
        env = "NTL_CHAT_TEMPLATE",
        value_name = "[NAME=]FILE",
        value_delimiter = ','
    )]
    pub(crate) chat_templates: Vec<String>,
    /// Format of the calls that a model writes when a chat offers tools: hermes (also Qwen), llama3_json,
    /// mistral, granite, auto (the format that the chat template teaches), or none: tools are rejected. With
    /// hermes, a system message describes the tools if the template does not. NAME is the name of the model;
    /// without it, the format is for all [default: auto]
    #[arg(
        long = "tool-parser",
        env = "NTL_TOOL_PARSER",
        value_name = "[NAME=]FORMAT",
        value_delimiter = ','
    )]
    pub(crate) tool_parsers: Vec<String>,
    /// Jinja template of the questions of /v1/decisions and /v1/systemone (docs/DECISIONS.md); may be given
    /// several times. NAME is the name of the model; without it, the template is for all [default: the
    /// built-in template]
    #[arg(
        long = "decision-template",
        env = "NTL_DECISION_TEMPLATE",
        value_name = "[NAME=]FILE",
        value_delimiter = ','
    )]
    pub(crate) decision_templates: Vec<String>,
    /// Which implementation runs models: native, mistralrs (more architectures, quantisation at load; needs a
    /// build with the feature `mistralrs`), or auto: native wherever it supports the checkpoint
    #[arg(
        long,
        env = "NTL_BACKEND",
        value_name = "BACKEND",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub(crate) backend: BackendChoice,
    /// Type that mistral.rs quantises weights to while it loads them
    #[arg(long, env = "NTL_ISQ", value_name = "TYPE", ignore_case = true)]
    pub(crate) isq: Option<Isq>,
    /// Where models run: auto (a GPU if there is one), cpu, cuda or cuda:N
    #[arg(long, env = "NTL_DEVICE", value_name = "DEVICE", default_value = "auto", value_parser = str::parse::<DeviceChoice>)]
    pub(crate) device: DeviceChoice,
    /// Element type of the weights in memory; smaller ones are faster and less exact. The CPU computes in
    /// f32, except products of weights in int8, q8_0 (where it multiplies bytes), bf16 (with AMX) and 4 to 6
    /// bits (GGUF files and q4_k, of decoder-only models); auto keeps the bits of GGUF files, and is f32 for
    /// other files
    #[arg(long, env = "NTL_DTYPE", value_name = "DTYPE", default_value = "auto", value_parser = dtypes())]
    pub(crate) dtype: DtypeChoice,
    /// Element type of keys and values, of running requests and of the prefix cache. bf16 halves their memory
    /// on the CPU and is faster with many requests or long prompts. fp8 (8-bit floats, E4M3) needs half of
    /// the memory of bf16, also on a GPU. Both are less exact, fp8 far more. auto is f32 on the CPU, the type
    /// of the weights on a GPU
    #[arg(
        long,
        env = "NTL_KV_CACHE_DTYPE",
        value_name = "DTYPE",
        default_value = "auto",
        value_parser = kv_cache_dtypes()
    )]
    pub(crate) kv_cache_dtype: KvCacheDtype,
    /// Kernels on a GPU: own (the server's kernels), composed (candle's operations, slower), or auto (own,
    /// except kernels that give wrong results in a check at startup)
    #[arg(long, env = "NTL_KERNELS", value_name = "KERNELS", default_value = "auto", value_parser = kernels())]
    pub(crate) kernels: KernelChoice,
    /// Launch each step's layers on a GPU one by one, instead of together as a CUDA graph
    #[arg(long, env = "NTL_NO_CUDA_GRAPHS", value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_missing_value = "true", default_value_t = false)]
    pub(crate) no_cuda_graphs: bool,
    /// Compute threads of each model, at most four for each processor [default: one for each processor]
    #[arg(long, env = "NTL_THREADS", value_name = "COUNT", value_parser = at_least_one::<NonZeroUsize>)]
    pub(crate) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) choices: ChoiceArgs,
}

/// Each flag may be given several times, for several models.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Models that another engine computes")]
pub(crate) struct UpstreamArgs {
    /// Engine at the URLs of a model: vllm, llama-cpp, ntl (another ntl-server), sglang, openai (any other
    /// server with this API), openai-chat (one with chats only, whose answers are sampled), or auto, which
    /// asks it. NAME is the name of the model; without it, the value is for all
    #[arg(long = "upstream", env = "NTL_UPSTREAM", value_name = "[NAME=]ENGINE", value_delimiter = ',')]
    pub(crate) upstreams: Vec<String>,
    /// API key that is sent to the engine. It appears in no log; better set the environment variable
    #[arg(
        long = "upstream-api-key",
        env = "NTL_UPSTREAM_API_KEY",
        value_name = "[NAME=]KEY",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub(crate) upstream_api_keys: Vec<String>,
    /// PEM file of certificates to trust, in addition to the system's (or `SSL_CERT_FILE` and
    /// `SSL_CERT_DIR`), for https URLs with certificates of a private authority
    #[arg(long = "ca-file", env = "NTL_CA_FILE", value_name = "[NAME=]FILE", value_delimiter = ',')]
    pub(crate) ca_files: Vec<String>,
    /// Folder with tokenizer.json and tokenizer_config.json of the model, or hf:ORG/NAME
    #[arg(long = "tokenizer", env = "NTL_TOKENIZER", value_name = "[NAME=]DIR", value_delimiter = ',')]
    pub(crate) tokenizers: Vec<String>,
    /// Maximum time of one response of the engine, and between two parts of a stream, in seconds; then
    /// another replica is asked, or the server returns 504 [default: 120]
    #[arg(
        long = "upstream-timeout",
        env = "NTL_UPSTREAM_TIMEOUT",
        value_name = "[NAME=]SECONDS",
        value_delimiter = ','
    )]
    pub(crate) upstream_timeouts: Vec<String>,
    /// Maximum number of concurrent requests for next-token probabilities to an engine, and of those for
    /// texts before and between numbers; a quarter is reserved for clients without running requests [default:
    /// 64]
    #[arg(
        long = "upstream-concurrency",
        env = "NTL_UPSTREAM_CONCURRENCY",
        value_name = "[NAME=]REQUESTS",
        value_delimiter = ','
    )]
    pub(crate) upstream_concurrencies: Vec<String>,
    /// Field that the server forwards in requests for texts; may be given several times. By default it
    /// rejects fields that make the engine connect to an address that the client chose, such as image_url or
    /// kv_transfer_params. It also rejects background, previous_response_id and conversation, and sets store
    /// to false
    #[arg(
        long = "upstream-fields",
        env = "NTL_UPSTREAM_FIELDS",
        value_name = "[NAME=]FIELD",
        value_delimiter = ','
    )]
    pub(crate) upstream_fields: Vec<String>,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Network")]
pub(crate) struct NetworkArgs {
    /// Address or name to listen on
    #[arg(long, env = "NTL_HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes any free port (the log names it)
    #[arg(long, env = "NTL_PORT", default_value_t = 8000)]
    pub(crate) port: u16,
    /// API key that requests must send as `Authorization: Bearer KEY`; may be given several times. Health,
    /// metrics and documentation need no key. Without any key everything is open
    #[arg(
        long = "api-key",
        env = "NTL_API_KEY",
        value_name = "KEY",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub(crate) api_keys: Vec<String>,
    /// File with more API keys, one per line, as KEY, NAME KEY or NAME KEY LIMIT=VALUE ...; log lines show
    /// the name. A LIMIT is the name of one of the five flags below, for this key alone, and its VALUE a
    /// number or none. Lines that begin with # are comments. SIGHUP reads the file again
    #[arg(long, env = "NTL_API_KEY_FILE", value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Maximum number of requests of an API key in a minute; the server rejects further ones with 429
    /// [default: no limit]
    #[arg(long, env = "NTL_REQUESTS_PER_MINUTE", value_name = "REQUESTS", value_parser = quota_units())]
    pub(crate) requests_per_minute: Option<NonZeroU64>,
    /// Maximum number of requests of an API key in a day [default: no limit]
    #[arg(long, env = "NTL_REQUESTS_PER_DAY", value_name = "REQUESTS", value_parser = quota_units())]
    pub(crate) requests_per_day: Option<NonZeroU64>,
    /// Maximum number of tokens of an API key in a minute, of prompts and responses; once they are used, the
    /// server rejects further requests with 429 [default: no limit]
    #[arg(long, env = "NTL_TOKENS_PER_MINUTE", value_name = "TOKENS", value_parser = quota_units())]
    pub(crate) tokens_per_minute: Option<NonZeroU64>,
    /// Maximum number of tokens of an API key in a day [default: no limit]
    #[arg(long, env = "NTL_TOKENS_PER_DAY", value_name = "TOKENS", value_parser = quota_units())]
    pub(crate) tokens_per_day: Option<NonZeroU64>,
    /// Maximum number of tokens of an API key in a day, of prompts and answers, that engines of --upstream
    /// compute; once they are used, the server rejects further requests for their models with 429 [default:
    /// no limit]
    #[arg(long, env = "NTL_UPSTREAM_BUDGET", value_name = "TOKENS", value_parser = quota_units())]
    pub(crate) upstream_budget: Option<NonZeroU64>,
    /// Name of this server in the `Host` header of requests, such as example.com, or * for any; may be given
    /// several times. The server rejects other names with 403, except localhost, loopback addresses and the
    /// address that the client connected to [default: other names are rejected only on a loopback address
    /// without API keys]
    #[arg(long, env = "NTL_ALLOWED_HOSTS", value_name = "HOST", value_delimiter = ',')]
    pub(crate) allowed_hosts: Vec<String>,
    /// Web page that may call the API from a browser, such as https://example.com, or * for all; may be given
    /// several times
    #[arg(long = "cors-origin", env = "NTL_CORS_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) cors_origins: Vec<String>,
    /// Do not serve the playground, the page at `/`
    #[arg(long, env = "NTL_NO_PLAYGROUND", value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_missing_value = "true", default_value_t = false)]
    pub(crate) no_playground: bool,
    /// PEM file with the server's certificate chain; enables HTTPS. SIGHUP reads it and its key again
    #[arg(long, env = "NTL_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate
    #[arg(long, env = "NTL_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Address and port of a second listener, which answers only health, load, metrics and documentation, and
    /// with --adapters-from loads adapters, by HTTP, and without a key except for adapters; such as
    /// 127.0.0.1:9000. Clients cannot delay it
    #[arg(long, env = "NTL_ADMIN_LISTEN", value_name = "ADDRESS:PORT")]
    pub(crate) admin_listen: Option<SocketAddr>,
    /// Serve /metrics on the listener of --admin-listen only
    #[arg(long, env = "NTL_METRICS_ON_ADMIN_ONLY", value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_missing_value = "true", default_value_t = false, requires = "admin_listen")]
    pub(crate) metrics_on_admin_only: bool,
    /// Address or network of a reverse proxy, such as 10.0.0.0/8; may be given several times. A request from
    /// it is a request of the last address in X-Forwarded-For that is no such proxy
    #[arg(long, env = "NTL_TRUSTED_PROXIES", value_name = "NETWORK", value_delimiter = ',', value_parser = proxy_network)]
    pub(crate) trusted_proxies: Vec<IpNet>,
    /// Maximum number of open connections; a new one beyond it evicts the connection whose client the server
    /// has waited for longest
    #[arg(long, env = "NTL_CONNECTIONS_MAX", value_name = "CONNECTIONS", default_value_t = 2048, value_parser = count())]
    pub(crate) connections_max: u32,
    /// Maximum number of open connections per address (per /64 network in IPv6); further ones wait [default:
    /// seven eighths of --connections-max]
    #[arg(long, env = "NTL_CONNECTIONS_PER_ADDRESS_MAX", value_name = "CONNECTIONS", value_parser = count())]
    pub(crate) connections_per_address_max: Option<u32>,
    /// Maximum time until the header of a request has arrived, in seconds
    #[arg(long, env = "NTL_HEADER_TIMEOUT", value_name = "SECONDS", default_value_t = 10, value_parser = seconds(1))]
    pub(crate) header_timeout: u32,
    /// Maximum time until the body of a request has arrived, in seconds; the server rejects slower ones with
    /// 408
    #[arg(long, env = "NTL_BODY_TIMEOUT", value_name = "SECONDS", default_value_t = 30, value_parser = seconds(1))]
    pub(crate) body_timeout: u32,
    /// Maximum time that a client may leave a response (or the next 64 KiB of it) unread, in seconds
    #[arg(long, env = "NTL_WRITE_TIMEOUT", value_name = "SECONDS", default_value_t = 30, value_parser = seconds(1))]
    pub(crate) write_timeout: u32,
    /// Maximum time that a connection may stay open between two requests, in seconds
    #[arg(long, env = "NTL_IDLE_TIMEOUT", value_name = "SECONDS", default_value_t = 75, value_parser = seconds(1))]
    pub(crate) idle_timeout: u32,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Maximum number of queued sequences (texts and numbers) per model; the server rejects further requests
    /// with 429
    #[arg(long, env = "NTL_QUEUE_MAX", value_name = "SEQUENCES", default_value_t = 4096, value_parser = count())]
    pub(crate) queue_max: u32,
    /// Maximum time that a request waits in the queue, in seconds; then the server rejects it with 503. 0: no
    /// limit other than --request-timeout
    #[arg(long, env = "NTL_QUEUE_TIMEOUT", value_name = "SECONDS", default_value_t = 0, value_parser = seconds(0))]
    pub(crate) queue_timeout: u32,
    /// Maximum memory of the prefix caches and of running requests (KV caches and number trees), for all
    /// models together. A quarter is reserved for clients without running requests. The server rejects a
    /// request with 400 if it may need more than the rest alone [default: half of the device's free memory
    /// after the models are loaded]
    #[arg(long, env = "NTL_CACHE_BYTES_MAX", value_name = "BYTES", value_parser = positive_bytes::<NonZeroU64>)]
    pub(crate) cache_bytes_max: Option<NonZeroU64>,
    /// Maximum memory of the weights of all LoRA adapters
    #[arg(long, env = "NTL_ADAPTER_BYTES_MAX", value_name = "BYTES", default_value = "2GiB", value_parser = bytes::<u64>)]
    pub(crate) adapter_bytes_max: u64,
    /// Maximum number of sequences (texts and numbers) that a model decodes concurrently; a quarter is
    /// reserved for clients without running requests
    #[arg(long, env = "NTL_CONCURRENCY_MAX", value_name = "SEQUENCES", default_value_t = 256, value_parser = count())]
    pub(crate) concurrency_max: u32,
    /// Maximum number of rows in one model step: texts and prefixes of numbers that advance together
    #[arg(long, env = "NTL_STEP_ROWS_MAX", value_name = "ROWS", default_value_t = 128, value_parser = count())]
    pub(crate) step_rows_max: u32,
    /// Maximum memory of a model's prefix cache (decoder-only models), within --cache-bytes-max; 0 disables
    /// it
    #[arg(long, alias = "prefix-cache-limit", env = "NTL_PREFIX_CACHE_BYTES_MAX", value_name = "BYTES",
        default_value = "256MiB", value_parser = bytes::<usize>)]
    pub(crate) prefix_cache_bytes_max: usize,
    /// Let prompts of different API keys use the same cached prefixes, which saves time and memory. A client
    /// can then learn from the time of a response whether another client has sent the same prefix
    #[arg(long, env = "NTL_SHARE_PREFIX_CACHE", value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_missing_value = "true", default_value_t = false,
        value_parser = BoolishValueParser::new())]
    pub(crate) share_prefix_cache: bool,
    /// Maximum value of `max_tokens`
    #[arg(long, env = "NTL_OUTPUT_TOKENS_MAX", value_name = "TOKENS", default_value_t = 4096, value_parser = count())]
    pub(crate) output_tokens_max: u32,
    /// Maximum value of `logprobs`; -1 allows the whole vocabulary
    #[arg(long, env = "NTL_LOGPROBS_MAX", value_name = "TOKENS", default_value_t = 20, allow_negative_numbers = true,
        value_parser = clap::value_parser!(i32).range(-1..=1_000_000))]
    pub(crate) logprobs_max: i32,
    /// Maximum size of a request body; the server rejects larger ones with 413
    #[arg(long, alias = "body-limit", env = "NTL_BODY_BYTES_MAX", value_name = "BYTES", default_value = "2MiB",
        value_parser = positive_bytes::<NonZeroUsize>)]
    pub(crate) body_bytes_max: NonZeroUsize,
    /// Maximum size of all request bodies that are being read; beyond it the server rejects the largest one
    /// with 503. Also the maximum memory of parsed bodies, for which requests wait
    #[arg(long, alias = "bodies-limit", env = "NTL_BODIES_BYTES_MAX", value_name = "BYTES", default_value = "128MiB",
        value_parser = positive_bytes::<NonZeroUsize>)]
    pub(crate) bodies_bytes_max: NonZeroUsize,
    /// Maximum size of a response; the server rejects a request whose response may be larger with 413, by an
    /// estimate from its fields and tokens
    #[arg(long, alias = "response-limit", env = "NTL_RESPONSE_BYTES_MAX", value_name = "BYTES",
        default_value = "64MiB", value_parser = positive_bytes::<NonZeroUsize>)]
    pub(crate) response_bytes_max: NonZeroUsize,
    /// Maximum size of all responses above 64 KiB, from the start of their requests until clients have read
    /// them; beyond it the server rejects requests with 503. One client uses at most three quarters
    #[arg(long, env = "NTL_RESPONSES_BYTES_MAX", value_name = "BYTES", default_value = "256MiB",
        value_parser = positive_bytes::<NonZeroUsize>)]
    pub(crate) responses_bytes_max: NonZeroUsize,
    /// Maximum memory of the process; beyond it the server rejects new work with 503. 0 disables the limit
    /// [default: nine tenths of the limit of its cgroup or of the machine's memory]
    #[arg(long, env = "NTL_MEMORY_BYTES_MAX", value_name = "BYTES", value_parser = bytes::<u64>)]
    pub(crate) memory_bytes_max: Option<u64>,
    /// Maximum time of a request including the queue, in seconds; then the server returns 504
    #[arg(long, env = "NTL_REQUEST_TIMEOUT", value_name = "SECONDS", default_value_t = 600, value_parser = seconds(1))]
    pub(crate) request_timeout: u32,
    /// Maximum time for running requests to finish after SIGTERM or SIGINT, in seconds; a second signal ends
    /// the server immediately
    #[arg(long, env = "NTL_DRAIN_TIMEOUT", value_name = "SECONDS", default_value_t = 30, value_parser = seconds(0))]
    pub(crate) drain_timeout: u32,
    /// Time between SIGTERM or SIGINT and the drain, in seconds. In this time the server reports that it is
    /// not ready and still accepts work, for routers that check readiness only from time to time
    #[arg(long, env = "NTL_DRAIN_DELAY", value_name = "SECONDS", default_value_t = 0, value_parser = seconds(0))]
    pub(crate) drain_delay: u32,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Logs and metrics")]
pub(crate) struct LogArgs {
    /// Format of the log lines on standard error
    #[arg(long, env = "NTL_LOG_FORMAT", value_name = "FORMAT", default_value = "compact")]
    pub(crate) log_format: LogFormat,
    /// Filter of log lines, such as `debug` or `ntl_models=debug,info`; RUST_LOG works as well [default:
    /// info]
    #[arg(long, env = "NTL_LOG", value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// Log the bodies of requests, prompts included; by default no line contains them
    #[arg(long, env = "NTL_LOG_PROMPTS", value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_missing_value = "true", default_value_t = false,
        value_parser = BoolishValueParser::new())]
    pub(crate) log_prompts: bool,
    /// Give the metrics under the names of another server as well, for routers and dashboards that know only
    /// those
    #[arg(long, env = "NTL_METRICS_COMPAT", value_name = "SERVER")]
    pub(crate) metrics_compat: Option<MetricsCompat>,
    /// OpenTelemetry collector that traces are sent to, such as http://localhost:4318 (OTLP over HTTP); needs
    /// a build with the feature `otel`
    #[arg(long, env = "NTL_OTLP_ENDPOINT", value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,
}

fn dtypes() -> impl TypedValueParser<Value = DtypeChoice> {
    PossibleValuesParser::new(DtypeChoice::ALL.map(DtypeChoice::name))
        .try_map(|name| name.parse::<DtypeChoice>())
}

fn kv_cache_dtypes() -> impl TypedValueParser<Value = KvCacheDtype> {
    let names = KvCacheDtype::ALL.map(|dtype| match dtype {
        KvCacheDtype::Fp8 => PossibleValue::new(dtype.name()).alias(KvCacheDtype::FP8_ALIAS),
        _ => PossibleValue::new(dtype.name()),
    });
    PossibleValuesParser::new(names).try_map(|name| name.parse::<KvCacheDtype>())
}

fn kernels() -> impl TypedValueParser<Value = KernelChoice> {
    PossibleValuesParser::new(KernelChoice::ALL.map(KernelChoice::name))
        .try_map(|name| name.parse::<KernelChoice>())
}

/// The maximum exceeds what any machine can do.
fn count() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1_000_000)
}

fn quota_units() -> impl TypedValueParser<Value = NonZeroU64> {
    clap::value_parser!(u64).range(1..=UNITS_MAX).try_map(NonZeroU64::try_from)
}

/// Reads a number that is not zero.
fn at_least_one<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::Zero => "must be at least 1".to_owned(),
        _ => error.to_string(),
    })
}

/// Reads an address or a network.
fn proxy_network(text: &str) -> Result<IpNet, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(address.into());
    }
    text.parse().map_err(|_| "expected an address or a network such as 10.0.0.0/8".to_owned())
}

/// Up to a week.
fn seconds(least: i64) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(least..=604_800)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, ValueEnum};

    use super::*;

    #[test]
    fn the_short_help_has_the_flags_that_matter_and_the_long_help_all() {
        let mut command = Args::command();
        let short = command.render_help().to_string();
        let long = command.render_long_help().to_string();
        let mut shown = Vec::new();
        for line in short.lines() {
            let flag = line.strip_prefix("      --").and_then(|line| line.split_whitespace().next());
            shown.extend(flag.map(str::to_owned));
        }
        shown.sort();
        let mut wanted = IN_SHORT_HELP.map(str::to_owned);
        wanted.sort();
        assert_eq!(shown, wanted, "{short}");
        for flag in command.get_arguments().filter(|flag| !flag.is_hide_set()) {
            let name = flag.get_long().unwrap();
            assert!(long.contains(&format!("--{name}")), "{name}");
        }
        assert!(short.contains("see more with '--help'"));
    }

    #[test]
    fn the_definition_is_sound_and_every_flag_has_its_environment_name() {
        let mut command = Args::command();
        command.build();
        command.clone().debug_assert();
        for argument in command
            .get_arguments()
            .filter(|argument| !matches!(argument.get_id().as_str(), "help" | "version"))
        {
            let long = argument.get_long().unwrap();
            let env = format!("NTL_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(argument.get_env().and_then(|name| name.to_str()), Some(env.as_str()), "--{long}");
            assert!(argument.get_help().is_some(), "--{long} is not described");
        }
    }

    #[test]
    fn a_zero_is_answered_with_the_least_that_is_possible() {
        for flag in ["--threads", "--cache-bytes-max", "--body-bytes-max", "--bodies-bytes-max"] {
            let error = Args::try_parse_from(["ntl-server", flag, "0"]).unwrap_err().to_string();
            assert!(error.contains("must be at least 1"), "{error}");
            assert!(Args::try_parse_from(["ntl-server", flag, "1"]).is_ok());
        }
    }

    #[test]
    fn every_flag_in_bytes_reads_sizes_with_units() {
        let mut flags = 0;
        for argument in Args::command().get_arguments() {
            if argument.get_value_names().is_some_and(|names| names == ["BYTES"]) {
                let line = |value: &str| format!("--{}={value}", argument.get_long().unwrap());
                assert!(Args::try_parse_from(["ntl-server", &line("4GiB")]).is_ok(), "{}", line("4GiB"));
                let error = Args::try_parse_from(["ntl-server", &line("4G")]).unwrap_err().to_string();
                assert!(error.contains("512MiB"), "{error}");
                flags += 1;
            }
        }
        assert_eq!(flags, 8);
        let args = Args::try_parse_from(["ntl-server", "--cache-bytes-max=1.5GB"]).unwrap();
        assert_eq!(args.limits.cache_bytes_max, NonZeroU64::new(1_500_000_000));
        let default = Args::try_parse_from(["ntl-server"]).unwrap().limits.prefix_cache_bytes_max;
        assert_eq!(default, ntl_text::load_options::LoadOptions::default().prefix_bytes_max);
    }

    #[test]
    fn types_of_keys_and_values_have_the_names_of_vllm() {
        for (text, want) in [
            ("auto", Some(KvCacheDtype::Auto)),
            ("bf16", Some(KvCacheDtype::Bf16)),
            ("fp8", Some(KvCacheDtype::Fp8)),
            ("fp8_e4m3", Some(KvCacheDtype::Fp8)),
            ("fp8_e5m2", None),
        ] {
            let args = Args::try_parse_from(["ntl-server", "--kv-cache-dtype", text]);
            assert_eq!(args.ok().map(|args| args.models.kv_cache_dtype), want, "{text}");
        }
    }

    #[test]
    fn devices_are_read() {
        for (text, want) in [
            ("auto", Some(DeviceChoice::Auto)),
            ("cpu", Some(DeviceChoice::Cpu)),
            ("cuda", Some(DeviceChoice::Cuda(0))),
            ("cuda:3", Some(DeviceChoice::Cuda(3))),
            ("cuda:", None),
            ("cpu:1", None),
            ("gpu", None),
        ] {
            assert_eq!(text.parse::<DeviceChoice>().ok(), want, "{text}");
        }
    }

    #[test]
    fn backends_and_types_of_quantisation_are_read() {
        let read = |flags: &[&str]| Args::try_parse_from([&["ntl-server"], flags].concat());
        let args = read(&["--backend", "mistralrs", "--isq", "Q8_0"]).unwrap();
        assert_eq!((args.models.backend, args.models.isq), (BackendChoice::Mistralrs, Some(Isq::Q8_0)));
        assert_eq!(read(&[]).unwrap().models.backend, BackendChoice::Auto);
        for isq in Isq::value_variants() {
            let name = format!("{isq:?}").to_lowercase();
            assert_eq!(isq.to_possible_value().unwrap().get_name(), name);
        }
        for (wrong, said) in [
            ("--backend=vllm", "[possible values: auto, native, mistralrs]"),
            ("--isq=q9", "[possible values: q2k, q3k, q4_0, q4_1, q4k, q5_0, q5_1, q5k, q6k, q8_0,"),
        ] {
            let error = read(&[wrong]).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn switches_take_the_words_that_environments_use() {
        for (text, want) in [("1", true), ("0", false), ("true", true), ("off", false)] {
            let flag = format!("--log-prompts={text}");
            assert_eq!(Args::try_parse_from(["ntl-server", &flag]).unwrap().logs.log_prompts, want, "{text}");
        }
        assert!(Args::try_parse_from(["ntl-server", "--log-prompts=2"]).is_err());
        assert!(Args::try_parse_from(["ntl-server", "--log-prompts"]).unwrap().logs.log_prompts);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for wrong in [
            "--queue-max=0",
            "--queue-max=99999999999",
            "--request-timeout=0",
            "--body-bytes-max=0",
            "--port=65536",
        ] {
            assert!(Args::try_parse_from(["ntl-server", wrong]).is_err(), "{wrong}");
        }
    }
}
