//! The Prometheus metrics. `declared` lists them; each is a field with its name, so that a search for a
//! metric finds where it is observed.
//!
//! In: observations of requests (`middleware::track`), of answers and of engines (`ModelMetrics`). Out: a
//! text in one of two formats. Invariant: every label value comes from a bounded set, so the number of series
//! depends only on the models and the routes.

mod declared;
mod openmetrics;
mod upstream;
mod vllm;

use std::sync::Arc;
use std::time::Duration;

use ntl_api::MethodName;
use ntl_core::contract::{ModelInfo, NumberOutcome};
use ntl_core::numbers::Mass;
use ntl_engine::{CacheUse, EndReason, EngineObserver};
use ntl_remote::EngineUsage;
use prometheus::Registry;

use crate::error::Rejection;
use crate::telemetry;
pub(crate) use declared::ModelMetrics;
pub use declared::{DECLARED, Declaration, Metrics, table};
pub(crate) use openmetrics::Format;
pub(crate) use upstream::UpstreamMetrics;

/// Another server whose metric names `/metrics` has in addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MetricsCompat {
    Vllm,
}

impl Metrics {
    /// Registers all metrics, at zero. Fails only if a name is registered twice.
    pub fn new() -> prometheus::Result<Self> {
        let metrics = Self::register(Registry::new())?;
        #[cfg(target_os = "linux")]
        metrics.registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        let features = crate::features().collect::<Vec<_>>().join(",");
        metrics.ntl_build_info.with_label_values(&[crate::VERSION, crate::COMMIT, &features]).set(1);
        telemetry::count_dropped_lines(&metrics.ntl_log_lines_dropped_total);
        for reason in Rejection::ALL {
            metrics.ntl_requests_rejected_total.with_label_values(&[reason]);
        }
        Ok(metrics)
    }

    /// Reports the kernels for GPUs by name, and whether they are turned off.
    pub(crate) fn set_kernels_off(&self, kernels: &[(&'static str, bool)]) {
        for (kernel, is_off) in kernels {
            self.ntl_gpu_kernel_off.with_label_values(&[kernel]).set(i64::from(*is_off));
        }
    }

    pub(crate) fn set_memory_bytes_max(&self, bytes: Option<u64>) {
        self.ntl_memory_bytes_max.set(bytes.and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(0));
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

impl ModelMetrics {
    /// Adds the series of a model, at zero.
    pub(crate) fn new(metrics: &Arc<Metrics>, model: &str, info: &ModelInfo) -> Self {
        let labels = [model, &info.kind, info.dtype.name(), info.backend.name()];
        metrics.ntl_model_info.with_label_values(&labels).set(1);
        for ending in
            [EndReason::Stop, EndReason::Length, EndReason::Abort, EndReason::Error, EndReason::Deadline]
        {
            metrics.ntl_finished_total.with_label_values(&[model, reason(ending)]);
        }
        for method in MethodName::ALL {
            metrics.ntl_number_decodes_total.with_label_values(&[model, method.as_str(), "false"]);
        }
        for kind in ["predicate", "choice", "score", "number"] {
            metrics.ntl_decisions_total.with_label_values(&[model, kind]);
        }
        for result in ["hit", "miss"] {
            metrics.ntl_prefix_cache_tokens_total.with_label_values(&[model, result]);
        }
        metrics.ntl_request_duration_seconds.with_label_values(&[model]);
        let series = Self::series(metrics, model);
        series.ntl_engine_up.set(1);
        series
    }

    pub(crate) fn load(&self) -> EngineLoad {
        EngineLoad {
            running: self.ntl_sequences_running.get().max(0) as u64,
            waiting: self.ntl_queue_depth.get().max(0) as u64,
        }
    }

    pub(crate) fn set_up(&self, up: bool) {
        self.ntl_engine_up.set(i64::from(up));
    }

    pub(crate) fn set_cache(&self, cache: CacheUse, bytes_max: u64) {
        self.ntl_kv_cache_usage_ratio.set(cache.running as f64 / bytes_max.max(1) as f64);
        self.ntl_prefix_cache_bytes.set(i64::try_from(cache.prefixes).unwrap_or(i64::MAX));
    }

    /// Counts an answer to a question of this type.
    pub(crate) fn decision(&self, kind: &str, mass: Mass) {
        self.shared.ntl_decisions_total.with_label_values(&[self.model.as_str(), kind]).inc();
        self.ntl_decision_mass.observe(mass.closed);
    }

    /// Counts the tokens that another engine reports.
    pub(crate) fn upstream_work(&self, usage: EngineUsage) {
        for (kind, tokens) in [
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
        ] {
            let labels = [self.model.as_str(), kind];
            self.shared.ntl_upstream_tokens_total.with_label_values(&labels).inc_by(tokens);
        }
    }

    pub(crate) fn number(&self, method: MethodName, outcome: &NumberOutcome) {
        let truncated = if outcome.truncated { "true" } else { "false" };
        let labels = [self.model.as_str(), method.as_str(), truncated];
        self.shared.ntl_number_decodes_total.with_label_values(&labels).inc();
        self.ntl_number_mass_closed.observe(outcome.distribution.mass().closed);
        self.ntl_number_nodes.observe(outcome.nodes as f64);
        // The single number of a greedy path has no spread.
        if method != MethodName::Token
            && let Some(std) = outcome.distribution.std()
        {
            self.ntl_number_std.observe(std);
        }
    }
}

impl EngineObserver for ModelMetrics {
    fn on_load(&self, waiting: usize, running: usize) {
        self.ntl_queue_depth.set(waiting as i64);
        self.ntl_sequences_running.set(running as i64);
    }

    fn on_start(&self, waited: Duration) {
        self.ntl_queue_duration_seconds.observe(waited.as_secs_f64());
    }

    fn on_open(&self, reused_tokens: usize, new_tokens: usize) {
        for (result, tokens) in [("hit", reused_tokens), ("miss", new_tokens)] {
            let labels = [self.model.as_str(), result];
            self.shared.ntl_prefix_cache_tokens_total.with_label_values(&labels).inc_by(tokens as u64);
        }
    }

    fn on_step(&self, rows: usize) {
        self.ntl_batch_rows.observe(rows as f64);
    }

    fn on_tokens(&self, tokens: usize, since_last: Duration) {
        let each = since_last.as_secs_f64() / tokens.max(1) as f64;
        for _ in 0..tokens {
            self.ntl_inter_token_latency_seconds.observe(each);
        }
    }

    fn on_end(&self, ending: EndReason) {
        self.shared.ntl_finished_total.with_label_values(&[self.model.as_str(), reason(ending)]).inc();
    }

    fn on_panic(&self) {
        self.shared.ntl_panics_total.inc();
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
