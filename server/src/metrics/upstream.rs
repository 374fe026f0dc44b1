//! The metrics of models that another engine computes.

use std::sync::Arc;
use std::time::Duration;

use ntl_remote::{Code, UpstreamObserver};

use super::Metrics;

/// Counts the requests to the replicas of one model.
pub(crate) struct UpstreamMetrics {
    metrics: Arc<Metrics>,
    model: String,
}

impl UpstreamMetrics {
    pub(crate) fn new(metrics: &Arc<Metrics>, model: &str) -> Self {
        Self { metrics: Arc::clone(metrics), model: model.to_owned() }
    }
}

impl UpstreamObserver for UpstreamMetrics {
    fn on_request(&self, replica: &str, code: Code, duration: Duration) {
        let labels = [self.model.as_str(), replica, &code.to_string()];
        self.metrics.ntl_upstream_requests_total.with_label_values(&labels).inc();
        let seconds = &self.metrics.ntl_upstream_request_duration_seconds;
        seconds.with_label_values(&[&self.model]).observe(duration.as_secs_f64());
    }

    fn on_up(&self, replica: &str, is_up: bool) {
        self.metrics.ntl_upstream_up.with_label_values(&[self.model.as_str(), replica]).set(i64::from(is_up));
    }
}
