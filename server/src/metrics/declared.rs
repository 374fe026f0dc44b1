//! The only list of the metrics: name, type, labels, buckets, help, and vLLM's name.
//!
//! The macro makes two things from it: the fields of [`Metrics`] and [`ModelMetrics`], which have the names
//! of the metrics, and [`DECLARED`]. The vLLM aliases, the table in `docs/OPERATIONS.md` and the test of the
//! names in `deploy/` are derived from the latter.

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

const REQUEST_SECONDS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0,
    50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
];
const QUEUE_SECONDS: &[f64] = &[
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0,
    30.0, 60.0, 120.0, 240.0, 480.0,
];
/// vLLM's buckets, so that its dashboards can be reused.
const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
/// vLLM's buckets.
const INTER_TOKEN_SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];
const NODES: &[f64] =
    &[1.0, 4.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 65536.0];
const MASS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0];
const STD: &[f64] = &[0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0, 1e3, 1e4, 1e6, 1e9];

/// One metric.
#[derive(Debug)]
pub struct Declaration {
    pub name: &'static str,
    pub labels: &'static [&'static str],
    pub help: &'static str,
    /// The upper bounds of a histogram.
    pub buckets: Option<&'static [f64]>,
    /// The metric of vLLM with the same meaning.
    pub vllm: Option<&'static str>,
}

impl Declaration {
    /// The type in Prometheus.
    fn kind(&self) -> &'static str {
        match self.buckets {
            Some(_) => "histogram",
            None if self.name.ends_with("_total") => "counter",
            None => "gauge",
        }
    }
}

impl From<&Declaration> for Opts {
    fn from(metric: &Declaration) -> Self {
        Self::new(metric.name, metric.help)
    }
}

impl From<&Declaration> for HistogramOpts {
    fn from(metric: &Declaration) -> Self {
        Self::new(metric.name, metric.help).buckets(metric.buckets.unwrap_or_default().to_vec())
    }
}

const fn first<T: Copy>(given: &[T]) -> Option<T> {
    match given {
        [first, ..] => Some(*first),
        [] => None,
    }
}

/// Declares metrics. The doc comment is the help. After `=>` is the type of the series of one model; such a
/// metric has the label `model` alone, and its series is a field of [`ModelMetrics`].
macro_rules! metrics {
    (@make $name:ident $metric:ident) => { $metric::with_opts((&Declaration::$name).into()) };
    (@make $name:ident $metric:ident $labels:tt) => {
        $metric::new((&Declaration::$name).into(), Declaration::$name.labels)
    };
    ($(
        $(#[doc = $help:literal])+
        $name:ident: $metric:ident $([$($label:literal),+])? $(in $buckets:ident)? $(=> $series:ident)?
            $(as $vllm:literal)?;
    )+) => {
        #[expect(non_upper_case_globals, reason = "the names of the metrics")]
        impl Declaration {
            $(const $name: Self = Self {
                name: stringify!($name),
                labels: &[$($($label),+)?],
                help: concat!($($help),+).trim_ascii(),
                buckets: first(&[$($buckets)?]),
                vllm: first(&[$($vllm)?]),
            };)+
        }

        pub const DECLARED: &[Declaration] = &[$(Declaration::$name),+];

        /// All metrics of one server, in a separate registry.
        pub struct Metrics {
            pub(super) registry: Registry,
            $($(#[doc = $help])+ pub(crate) $name: $metric,)+
        }

        impl Metrics {
            /// Registers all metrics. Fails only if a name is registered twice.
            pub(super) fn register(registry: Registry) -> prometheus::Result<Self> {
                Ok(Self {
                    $($name: add(&registry, metrics!(@make $name $metric $([$($label),+])?))?,)+
                    registry,
                })
            }
        }

        /// The metrics of one model; its engine reports to them.
        pub(crate) struct ModelMetrics {
            pub(super) shared: Arc<Metrics>,
            pub(super) model: String,
            $($(pub(crate) $name: $series,)?)+
        }

        impl ModelMetrics {
            /// Adds the series of a model, at zero.
            pub(super) fn series(shared: &Arc<Metrics>, model: &str) -> Self {
                Self {
                    $($($name: { let series: $series = shared.$name.with_label_values(&[model]); series },)?)+
                    shared: Arc::clone(shared),
                    model: model.to_owned(),
                }
            }
        }
    };
}

fn add<C: Collector + Clone + 'static>(
    registry: &Registry,
    made: prometheus::Result<C>,
) -> prometheus::Result<C> {
    let collector = made?;
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

metrics! {
    /// Prompts waiting for the engine
    ntl_queue_depth: IntGaugeVec["model"] => IntGauge as "vllm:num_requests_waiting";
    /// Texts and numbers being decoded
    ntl_sequences_running: IntGaugeVec["model"] => IntGauge as "vllm:num_requests_running";
    /// Memory reserved for running requests, as a share of --cache-bytes-max, which all models share
    ntl_kv_cache_usage_ratio: GaugeVec["model"] => Gauge as "vllm:kv_cache_usage_perc";
    /// Memory of the prefix cache, which makes room for running requests
    ntl_prefix_cache_bytes: IntGaugeVec["model"] => IntGauge;
    /// Bytes of memory beyond which new work is refused; 0: no bound
    ntl_memory_bytes_max: IntGauge;
    /// Bytes of large responses, estimated and then actual, that clients have not read yet
    ntl_response_bytes: IntGauge;
    /// Requests being answered
    ntl_requests_in_flight: IntGauge;
    /// HTTP requests by final status; 499: the client disconnected
    ntl_requests_total: IntCounterVec["route", "model", "code"];
    /// Requests refused because of the state of the server
    ntl_requests_rejected_total: IntCounterVec["reason"];
    /// Time of a completion request, from its header to the end of its answer
    ntl_request_duration_seconds: HistogramVec["model"] in REQUEST_SECONDS as "vllm:e2e_request_latency_seconds";
    /// Time that a prompt waited for the engine
    ntl_queue_duration_seconds: HistogramVec["model"] in QUEUE_SECONDS => Histogram
        as "vllm:request_queue_time_seconds";
    /// Time from a completion request to its first token or number
    ntl_time_to_first_token_seconds: HistogramVec["model"] in FIRST_TOKEN_SECONDS => Histogram
        as "vllm:time_to_first_token_seconds";
    /// Time between two tokens of one text that is sent while it is decoded, one observation a token
    ntl_inter_token_latency_seconds: HistogramVec["model"] in INTER_TOKEN_SECONDS => Histogram
        as "vllm:inter_token_latency_seconds";
    /// Rows of a model step
    ntl_batch_rows: HistogramVec["model"] in ROWS => Histogram;
    /// Tokens of accepted prompts
    ntl_prompt_tokens_total: IntCounterVec["model"] => IntCounter as "vllm:prompt_tokens_total";
    /// Prompt tokens found in the prefix cache (hit) or computed (miss)
    ntl_prefix_cache_tokens_total: IntCounterVec["model", "result"];
    /// Tokens of finished texts, printed numbers and scored targets
    ntl_generation_tokens_total: IntCounterVec["model"] => IntCounter as "vllm:generation_tokens_total";
    /// Tokens of the requests of an API key, by its name: of prompts, and of finished responses
    ntl_key_tokens_total: IntCounterVec["key", "model", "kind"];
    /// Texts and numbers that ended, by reason
    ntl_finished_total: IntCounterVec["model", "reason"] as "vllm:request_success_total";
    /// Numbers decoded
    ntl_number_decodes_total: IntCounterVec["model", "method", "truncated"];
    /// Probability found on complete numbers
    ntl_number_mass_closed: HistogramVec["model"] in MASS => Histogram;
    /// Decoder positions computed for a number
    ntl_number_nodes: HistogramVec["model"] in NODES => Histogram;
    /// Standard deviation of a decoded number
    ntl_number_std: HistogramVec["model"] in STD => Histogram;
    /// Questions of decisions that were answered, by type
    ntl_decisions_total: IntCounterVec["model", "type"];
    /// Probability found on the allowed answers of a question
    ntl_decision_mass: HistogramVec["model"] in MASS => Histogram;
    /// Whether the engine's thread is alive
    ntl_engine_up: IntGaugeVec["model"] => IntGauge;
    /// Requests to the engine that computes a model, by replica and status
    ntl_upstream_requests_total: IntCounterVec["model", "replica", "code"];
    /// Reported or estimated tokens of numbers, scores and decisions on engines: of prompts, the cached part
    /// of them, and of answers
    ntl_upstream_tokens_total: IntCounterVec["model", "kind"];
    /// Time of a request to the engine that computes a model, until its whole response or the start of a
    /// stream
    ntl_upstream_request_duration_seconds: HistogramVec["model"] in REQUEST_SECONDS;
    /// Whether a replica of a model answers health checks
    ntl_upstream_up: IntGaugeVec["model", "replica"];
    /// Whether a kernel for GPUs is turned off (--kernels); only in builds with CUDA
    ntl_gpu_kernel_off: IntGaugeVec["kernel"];
    /// Panics caught in handlers and in models
    ntl_panics_total: IntCounter;
    /// Log lines dropped because they were not read fast enough or were too long
    ntl_log_lines_dropped_total: IntCounter;
    /// Served models
    ntl_model_info: IntGaugeVec["model", "kind", "dtype", "backend"];
    /// Version, source revision and features of the server
    ntl_build_info: IntGaugeVec["version", "commit", "features"];
}

/// All metrics as a table in Markdown, for `docs/OPERATIONS.md`.
pub fn table() -> String {
    let mut rows = "| metric | type | labels | meaning | vLLM's name |\n|---|---|---|---|---|\n".to_owned();
    for metric in DECLARED {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let vllm = metric.vllm.map(|name| format!("`{name}`")).unwrap_or_default();
        let row = [&format!("`{}`", metric.name), metric.kind(), &labels.join(", "), metric.help, &vllm];
        rows += &format!("| {} |\n", row.join(" | "));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_bounds_rise() {
        for metric in DECLARED {
            let buckets = metric.buckets.unwrap_or_default();
            assert!(buckets.is_sorted_by(|a, b| a < b), "{}: {buckets:?}", metric.name);
        }
    }
}
