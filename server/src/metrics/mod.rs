//! The Prometheus metrics: names, labels and buckets.
//!
//! In: observations of requests (`middleware::track`), of answers and of engines (`ModelMetrics`). Out: a text in one of
//! two formats. Invariant: every label value comes from a bounded set, so the number of series depends only on the
//! models and the routes.

mod openmetrics;
mod vllm;

use std::sync::Arc;
use std::time::Duration;

use ntl_api::MethodName;
use ntl_core::engine::{ModelInfo, NumberOutcome};
use ntl_engine::{CacheUse, EndReason, EngineObserver};
use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use crate::error::Rejection;
pub(crate) use openmetrics::Format;

/// A server whose names of metrics are given beside our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MetricsCompat {
    Vllm,
}

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

/// All metrics of one server, in a registry of their own.
pub struct Metrics {
    registry: Registry,
    pub(crate) requests: IntCounterVec,
    pub(crate) rejected: IntCounterVec,
    pub(crate) in_flight: IntGauge,
    pub(crate) request_seconds: HistogramVec,
    memory_bytes_max: IntGauge,
    pub(crate) panics: IntCounter,
    first_token_seconds: HistogramVec,
    inter_token_seconds: HistogramVec,
    prompt_tokens: IntCounterVec,
    generation_tokens: IntCounterVec,
    queue_seconds: HistogramVec,
    batch_rows: HistogramVec,
    prefix_tokens: IntCounterVec,
    numbers: IntCounterVec,
    number_mass: HistogramVec,
    number_nodes: HistogramVec,
    number_std: HistogramVec,
    finished: IntCounterVec,
    queue_depth: IntGaugeVec,
    running: IntGaugeVec,
    cache_ratio: GaugeVec,
    prefix_bytes: IntGaugeVec,
    up: IntGaugeVec,
    model_info: IntGaugeVec,
}

impl Metrics {
    /// Registers all metrics, at zero. Fails only where a name is registered twice.
    pub fn new() -> prometheus::Result<Self> {
        fn add<C: Collector + Clone + 'static>(
            registry: &Registry,
            made: prometheus::Result<C>,
        ) -> prometheus::Result<C> {
            let collector = made?;
            registry.register(Box::new(collector.clone()))?;
            Ok(collector)
        }
        let registry = Registry::new();
        let counter = |name, help| add(&registry, IntCounter::new(name, help));
        let gauge = |name, help| add(&registry, IntGauge::new(name, help));
        let counters = |name: &str, help: &str, labels: &[&str]| {
            add(&registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            add(&registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        // By model.
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            add(&registry, HistogramVec::new(options, &["model"]))
        };
        #[cfg(target_os = "linux")]
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        let features = crate::features().collect::<Vec<_>>().join(",");
        gauges(
            "ntl_build_info",
            "Version, source revision and features of the server",
            &["version", "commit", "features"],
        )?
        .with_label_values(&[crate::VERSION, crate::COMMIT, &features])
        .set(1);
        let metrics = Self {
            requests: counters(
                "ntl_requests_total",
                "HTTP requests by final status; 499: the client disconnected",
                &["route", "model", "code"],
            )?,
            rejected: counters(
                "ntl_requests_rejected_total",
                "Requests refused because of the state of the server",
                &["reason"],
            )?,
            in_flight: gauge("ntl_requests_in_flight", "Requests being answered")?,
            request_seconds: histogram(
                "ntl_request_duration_seconds",
                "Time of a completion request, from its header to the end of its answer",
                REQUEST_SECONDS,
            )?,
            memory_bytes_max: gauge(
                "ntl_memory_bytes_max",
                "Bytes of memory beyond which new work is refused; 0: no bound",
            )?,
            panics: counter("ntl_panics_total", "Panics caught in handlers and in models")?,
            first_token_seconds: histogram(
                "ntl_time_to_first_token_seconds",
                "Time from a completion request to its first token or number",
                FIRST_TOKEN_SECONDS,
            )?,
            inter_token_seconds: histogram(
                "ntl_inter_token_latency_seconds",
                "Time between two tokens of one text that is sent while it is decoded, one observation a token",
                INTER_TOKEN_SECONDS,
            )?,
            prompt_tokens: counters("ntl_prompt_tokens_total", "Tokens of accepted prompts", &["model"])?,
            generation_tokens: counters(
                "ntl_generation_tokens_total",
                "Tokens of finished texts, printed numbers and scored targets",
                &["model"],
            )?,
            queue_seconds: histogram(
                "ntl_queue_duration_seconds",
                "Time that a prompt waited for the engine",
                QUEUE_SECONDS,
            )?,
            batch_rows: histogram("ntl_batch_rows", "Rows of a model step", ROWS)?,
            prefix_tokens: counters(
                "ntl_prefix_cache_tokens_total",
                "Prompt tokens found in the prefix cache (hit) or computed (miss)",
                &["model", "result"],
            )?,
            numbers: counters(
                "ntl_number_decodes_total",
                "Numbers decoded",
                &["model", "method", "truncated"],
            )?,
            number_mass: histogram("ntl_number_mass_closed", "Probability found on complete numbers", MASS)?,
            number_nodes: histogram("ntl_number_nodes", "Decoder positions computed for a number", NODES)?,
            number_std: histogram("ntl_number_std", "Standard deviation of a decoded number", STD)?,
            finished: counters(
                "ntl_finished_total",
                "Texts and numbers that ended, by reason",
                &["model", "reason"],
            )?,
            queue_depth: gauges("ntl_queue_depth", "Prompts waiting for the engine", &["model"])?,
            running: gauges("ntl_sequences_running", "Texts and numbers being decoded", &["model"])?,
            cache_ratio: add(
                &registry,
                GaugeVec::new(
                    Opts::new(
                        "ntl_kv_cache_usage_ratio",
                        "Memory reserved for running requests, as a share of --cache-bytes-max, which all models share",
                    ),
                    &["model"],
                ),
            )?,
            prefix_bytes: gauges(
                "ntl_prefix_cache_bytes",
                "Memory of the prefix cache, which makes room for running requests",
                &["model"],
            )?,
            up: gauges("ntl_engine_up", "Whether the engine's thread is alive", &["model"])?,
            model_info: gauges("ntl_model_info", "Served models", &["model", "kind", "dtype", "backend"])?,
            registry: registry.clone(),
        };
        for reason in Rejection::ALL {
            metrics.rejected.with_label_values(&[reason]);
        }
        Ok(metrics)
    }

    pub(crate) fn set_memory_bytes_max(&self, bytes: Option<u64>) {
        self.memory_bytes_max.set(bytes.and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(0));
    }

    /// The present values as text.
    pub(crate) fn text(&self, format: Format, compat: Option<MetricsCompat>) -> prometheus::Result<String> {
        let mut families = self.registry.gather();
        match compat {
            Some(MetricsCompat::Vllm) => vllm::add_aliases(&mut families),
            None => {}
        }
        format.write(&families)
    }
}

/// Sequences of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EngineLoad {
    pub(crate) running: u64,
    pub(crate) waiting: u64,
}

/// The metrics of one model; its engine reports to them.
pub(crate) struct ModelMetrics {
    shared: Arc<Metrics>,
    model: String,
    pub(crate) prompt_tokens: IntCounter,
    pub(crate) generation_tokens: IntCounter,
    pub(crate) first_token_seconds: Histogram,
    inter_token_seconds: Histogram,
    queue_seconds: Histogram,
    batch_rows: Histogram,
    number_mass: Histogram,
    number_nodes: Histogram,
    number_std: Histogram,
    queue_depth: IntGauge,
    running: IntGauge,
    cache_ratio: Gauge,
    prefix_bytes: IntGauge,
    up: IntGauge,
}

impl ModelMetrics {
    /// Adds the series of a model, at zero.
    pub(crate) fn new(metrics: &Arc<Metrics>, model: &str, info: &ModelInfo) -> Self {
        metrics
            .model_info
            .with_label_values(&[model, info.kind.name(), info.dtype.name(), info.backend.name()])
            .set(1);
        for ending in
            [EndReason::Stop, EndReason::Length, EndReason::Abort, EndReason::Error, EndReason::Deadline]
        {
            metrics.finished.with_label_values(&[model, reason(ending)]);
        }
        for method in MethodName::ALL {
            metrics.numbers.with_label_values(&[model, method.as_str(), "false"]);
        }
        for result in ["hit", "miss"] {
            metrics.prefix_tokens.with_label_values(&[model, result]);
        }
        metrics.request_seconds.with_label_values(&[model]);
        let up = metrics.up.with_label_values(&[model]);
        up.set(1);
        Self {
            prompt_tokens: metrics.prompt_tokens.with_label_values(&[model]),
            generation_tokens: metrics.generation_tokens.with_label_values(&[model]),
            first_token_seconds: metrics.first_token_seconds.with_label_values(&[model]),
            inter_token_seconds: metrics.inter_token_seconds.with_label_values(&[model]),
            queue_seconds: metrics.queue_seconds.with_label_values(&[model]),
            batch_rows: metrics.batch_rows.with_label_values(&[model]),
            number_mass: metrics.number_mass.with_label_values(&[model]),
            number_nodes: metrics.number_nodes.with_label_values(&[model]),
            number_std: metrics.number_std.with_label_values(&[model]),
            queue_depth: metrics.queue_depth.with_label_values(&[model]),
            running: metrics.running.with_label_values(&[model]),
            cache_ratio: metrics.cache_ratio.with_label_values(&[model]),
            prefix_bytes: metrics.prefix_bytes.with_label_values(&[model]),
            up,
            shared: Arc::clone(metrics),
            model: model.to_owned(),
        }
    }

    pub(crate) fn load(&self) -> EngineLoad {
        let count = |gauge: &IntGauge| u64::try_from(gauge.get()).unwrap_or(0);
        EngineLoad { running: count(&self.running), waiting: count(&self.queue_depth) }
    }

    pub(crate) fn set_up(&self, up: bool) {
        self.up.set(i64::from(up));
    }

    pub(crate) fn set_cache(&self, cache: CacheUse, bytes_max: u64) {
        self.cache_ratio.set(cache.running as f64 / bytes_max.max(1) as f64);
        self.prefix_bytes.set(i64::try_from(cache.prefixes).unwrap_or(i64::MAX));
    }

    pub(crate) fn number(&self, method: MethodName, outcome: &NumberOutcome) {
        let truncated = if outcome.truncated { "true" } else { "false" };
        let labels = [self.model.as_str(), method.as_str(), truncated];
        self.shared.numbers.with_label_values(&labels).inc();
        self.number_mass.observe(outcome.distribution.mass().closed);
        self.number_nodes.observe(outcome.nodes as f64);
        // The single number of a greedy path has no spread.
        if let Some(std) = outcome.distribution.std().filter(|_| method != MethodName::Token) {
            self.number_std.observe(std);
        }
    }
}

impl EngineObserver for ModelMetrics {
    fn on_load(&self, waiting: usize, running: usize) {
        self.queue_depth.set(waiting as i64);
        self.running.set(running as i64);
    }

    fn on_start(&self, waited: Duration) {
        self.queue_seconds.observe(waited.as_secs_f64());
    }

    fn on_open(&self, reused_tokens: usize, new_tokens: usize) {
        for (result, tokens) in [("hit", reused_tokens), ("miss", new_tokens)] {
            let labels = [self.model.as_str(), result];
            self.shared.prefix_tokens.with_label_values(&labels).inc_by(tokens as u64);
        }
    }

    fn on_step(&self, rows: usize) {
        self.batch_rows.observe(rows as f64);
    }

    fn on_tokens(&self, tokens: usize, since_last: Duration) {
        let each = since_last.as_secs_f64() / tokens.max(1) as f64;
        for _ in 0..tokens {
            self.inter_token_seconds.observe(each);
        }
    }

    fn on_end(&self, ending: EndReason) {
        self.shared.finished.with_label_values(&[self.model.as_str(), reason(ending)]).inc();
    }

    fn on_panic(&self) {
        self.shared.panics.inc();
    }
}

fn reason(ending: EndReason) -> &'static str {
    match ending {
        EndReason::Stop => "stop",
        EndReason::Length => "length",
        EndReason::Abort => "abort",
        EndReason::Error => "error",
        EndReason::Deadline => "deadline",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_bounds_rise() {
        for buckets in
            [REQUEST_SECONDS, QUEUE_SECONDS, FIRST_TOKEN_SECONDS, INTER_TOKEN_SECONDS, ROWS, NODES, MASS, STD]
        {
            assert!(buckets.is_sorted_by(|a, b| a < b), "{buckets:?}");
        }
    }

    #[test]
    fn names_are_registered_once_and_a_build_is_announced() {
        let text = Metrics::new().unwrap().text(Format::Text, None).unwrap();
        assert!(text.contains(&format!(
            "ntl_build_info{{commit=\"{}\",features=\"{}\",version=\"{}\"}} 1",
            crate::COMMIT,
            crate::features().collect::<Vec<_>>().join(","),
            crate::VERSION
        )));
        assert!(text.contains("process_resident_memory_bytes"));
    }
}
