//! What Prometheus reads: names, labels and buckets, all in one place.
//!
//! In: observations from requests (`track`), answers (`answers`) and engines (`ModelMetrics`). Out: a text
//! (`openmetrics`). Invariant: every label value comes from a bounded set, so the number of series depends on the models and
//! routes only.

use std::sync::Arc;
use std::time::Duration;

use ntl_api::MethodName;
use ntl_core::engine::{ModelInfo, NumberOutcome};
use ntl_engine::{EndReason, EngineObserver};
use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use crate::error::Rejection;
use crate::openmetrics::Format;

const REQUEST_SECONDS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0,
    50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
];
const QUEUE_SECONDS: &[f64] = &[
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0,
    30.0, 60.0, 120.0, 240.0, 480.0,
];
/// vLLM's buckets, so that its dashboards can be taken over.
const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
/// vLLM's buckets again.
const INTER_TOKEN_SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];
const NODES: &[f64] =
    &[1.0, 4.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 65536.0];
const MASS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0];
const STD: &[f64] = &[0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0, 1e3, 1e4, 1e6, 1e9];

/// All metrics of one server, with a registry of their own.
pub struct Metrics {
    registry: Registry,
    pub(crate) http: HttpMetrics,
    pub(crate) panics: IntCounter,
    engines: EngineMetrics,
}

/// What requests are measured by.
pub(crate) struct HttpMetrics {
    pub(crate) requests: IntCounterVec,
    pub(crate) rejected: IntCounterVec,
    pub(crate) in_flight: IntGauge,
    pub(crate) request_seconds: Histogram,
    pub(crate) first_token_seconds: Histogram,
    pub(crate) inter_token_seconds: Histogram,
    pub(crate) prompt_tokens: IntCounter,
    pub(crate) generation_tokens: IntCounter,
}

/// What models and their engines are measured by.
struct EngineMetrics {
    queue_seconds: Histogram,
    batch_rows: Histogram,
    prefix_tokens: IntCounterVec,
    numbers: IntCounterVec,
    number_mass: Histogram,
    number_nodes: Histogram,
    number_std: Histogram,
    finished: IntCounterVec,
    queue_depth: IntGaugeVec,
    running: IntGaugeVec,
    up: IntGaugeVec,
    model_info: IntGaugeVec,
}

/// Registers metrics under `ntl_`.
struct Register<'a>(&'a Registry);

impl Register<'_> {
    fn add<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> prometheus::Result<C> {
        let collector = made?;
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.add(IntCounter::new(name, help))
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Histogram> {
        self.add(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
    }
}

impl Metrics {
    /// All metrics, at zero.
    ///
    /// # Errors
    /// When a name is taken twice, which would be a mistake in this file.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let add = Register(&registry);
        register_process(&registry)?;
        add.gauges("ntl_build_info", "Version and source revision of the server", &["version", "commit"])?
            .with_label_values(&[crate::VERSION, crate::COMMIT])
            .set(1);
        let panics = add.counter("ntl_panics_total", "Panics that were caught, in handlers and in models")?;
        let (http, engines) = (HttpMetrics::new(&add)?, EngineMetrics::new(&add)?);
        Ok(Self { registry, http, panics, engines })
    }

    /// The state of all metrics.
    ///
    /// # Errors
    /// When a metric cannot be written, which would be a mistake in this file.
    pub(crate) fn text(&self, format: Format) -> prometheus::Result<String> {
        format.write(&self.registry.gather())
    }
}

impl HttpMetrics {
    fn new(add: &Register<'_>) -> prometheus::Result<Self> {
        let requests = "HTTP requests by the status they ended with; 499: the client left";
        let duration = "Time of a completion request, from its header to the end of its answer";
        let first = "Time from a completion request to its first token or number";
        let tokens = "Tokens of finished texts and scored targets, and decoder positions of finished numbers";
        let rejected = "Requests turned away by the state of the server";
        let metrics = Self {
            requests: add.counters("ntl_requests_total", requests, &["route", "model", "code"])?,
            rejected: add.counters("ntl_requests_rejected_total", rejected, &["reason"])?,
            in_flight: add.add(IntGauge::new("ntl_requests_in_flight", "Requests being answered"))?,
            request_seconds: add.histogram("ntl_request_duration_seconds", duration, REQUEST_SECONDS)?,
            first_token_seconds: add.histogram(
                "ntl_time_to_first_token_seconds",
                first,
                FIRST_TOKEN_SECONDS,
            )?,
            inter_token_seconds: add.histogram(
                "ntl_inter_token_latency_seconds",
                "Time between two tokens of one text",
                INTER_TOKEN_SECONDS,
            )?,
            prompt_tokens: add.counter("ntl_prompt_tokens_total", "Prompt tokens taken on")?,
            generation_tokens: add.counter("ntl_generation_tokens_total", tokens)?,
        };
        for reason in Rejection::ALL {
            metrics.rejected.with_label_values(&[reason]);
        }
        Ok(metrics)
    }
}

impl EngineMetrics {
    fn new(add: &Register<'_>) -> prometheus::Result<Self> {
        let queued = "Time that a prompt waited for the engine";
        let mass = "Probability found on complete numbers";
        let nodes = "Decoder positions behind a number";
        let std = "Standard deviation of a decoded number";
        let finished = "Texts and numbers that ended, by why";
        let depth = "Prompts waiting for the engine";
        Ok(Self {
            queue_seconds: add.histogram("ntl_queue_duration_seconds", queued, QUEUE_SECONDS)?,
            batch_rows: add.histogram("ntl_batch_rows", "Rows of a model step", ROWS)?,
            prefix_tokens: add.counters(
                "ntl_prefix_cache_tokens_total",
                "Prompt tokens that an earlier prompt had begun with (hit), or that were computed (miss)",
                &["model", "result"],
            )?,
            numbers: add.counters(
                "ntl_number_decodes_total",
                "Numbers decoded",
                &["model", "method", "truncated"],
            )?,
            number_mass: add.histogram("ntl_number_mass_closed", mass, MASS)?,
            number_nodes: add.histogram("ntl_number_nodes", nodes, NODES)?,
            number_std: add.histogram("ntl_number_std", std, STD)?,
            finished: add.counters("ntl_finished_total", finished, &["model", "reason"])?,
            queue_depth: add.gauges("ntl_queue_depth", depth, &["model"])?,
            running: add.gauges("ntl_sequences_running", "Texts and numbers being decoded", &["model"])?,
            up: add.gauges("ntl_engine_up", "Whether the engine's thread is alive", &["model"])?,
            model_info: add.gauges(
                "ntl_model_info",
                "Served models",
                &["model", "kind", "dtype", "backend"],
            )?,
        })
    }
}

#[cfg(target_os = "linux")]
fn register_process(registry: &Registry) -> prometheus::Result<()> {
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))
}

#[cfg(not(target_os = "linux"))]
fn register_process(_registry: &Registry) -> prometheus::Result<()> {
    Ok(())
}

/// The metrics of one model; what its engine reports to.
pub(crate) struct ModelMetrics {
    metrics: Arc<Metrics>,
    model: String,
    queue_depth: IntGauge,
    running: IntGauge,
    up: IntGauge,
}

impl ModelMetrics {
    /// Announces a model, with zeros for all that can happen to it.
    pub(crate) fn new(metrics: &Arc<Metrics>, model: &str, info: &ModelInfo) -> Self {
        metrics.engines.model_info.with_label_values(&[model, &info.kind, &info.dtype, &info.backend]).set(1);
        for ending in
            [EndReason::Stop, EndReason::Length, EndReason::Abort, EndReason::Error, EndReason::Deadline]
        {
            metrics.engines.finished.with_label_values(&[model, reason(ending)]);
        }
        for method in MethodName::ALL {
            metrics.engines.numbers.with_label_values(&[model, method.as_str(), "false"]);
        }
        for result in ["hit", "miss"] {
            metrics.engines.prefix_tokens.with_label_values(&[model, result]);
        }
        let up = metrics.engines.up.with_label_values(&[model]);
        up.set(1);
        Self {
            queue_depth: metrics.engines.queue_depth.with_label_values(&[model]),
            running: metrics.engines.running.with_label_values(&[model]),
            up,
            metrics: Arc::clone(metrics),
            model: model.to_owned(),
        }
    }

    /// Says whether the engine still runs.
    pub(crate) fn set_up(&self, up: bool) {
        self.up.set(i64::from(up));
    }

    /// A number is complete.
    pub(crate) fn number(&self, method: MethodName, outcome: &NumberOutcome) {
        let truncated = if outcome.truncated { "true" } else { "false" };
        let labels = [self.model.as_str(), method.as_str(), truncated];
        self.metrics.engines.numbers.with_label_values(&labels).inc();
        self.metrics.engines.number_mass.observe(outcome.distribution.mass().closed);
        self.metrics.engines.number_nodes.observe(outcome.nodes as f64);
        // The one number of a greedy path has no spread.
        if let Some(std) = outcome.distribution.std().filter(|_| method != MethodName::Token) {
            self.metrics.engines.number_std.observe(std);
        }
    }
}

impl EngineObserver for ModelMetrics {
    fn on_load(&self, waiting: usize, running: usize) {
        self.queue_depth.set(gauge(waiting));
        self.running.set(gauge(running));
    }

    fn on_start(&self, waited: Duration) {
        self.metrics.engines.queue_seconds.observe(waited.as_secs_f64());
    }

    fn on_open(&self, reused_tokens: usize, new_tokens: usize) {
        for (result, tokens) in [("hit", reused_tokens), ("miss", new_tokens)] {
            let labels = [self.model.as_str(), result];
            self.metrics.engines.prefix_tokens.with_label_values(&labels).inc_by(tokens as u64);
        }
    }

    fn on_step(&self, rows: usize) {
        self.metrics.engines.batch_rows.observe(rows as f64);
    }

    fn on_end(&self, ending: EndReason) {
        self.metrics.engines.finished.with_label_values(&[self.model.as_str(), reason(ending)]).inc();
    }

    fn on_panic(&self) {
        self.metrics.panics.inc();
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
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
        let text = Metrics::new().unwrap().text(Format::Text).unwrap();
        assert!(text.contains(&format!(
            "ntl_build_info{{commit=\"{}\",version=\"{}\"}} 1",
            crate::COMMIT,
            crate::VERSION
        )));
        assert!(text.contains("process_resident_memory_bytes"));
    }
}
