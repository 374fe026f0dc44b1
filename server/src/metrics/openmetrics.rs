//! Metrics as text, in the format that the client prefers: Prometheus 0.0.4 or OpenMetrics 1.0.
//!
//! OpenMetrics differs in what matters here: the head lines name counters without `_total`, bucket bounds
//! have a point, and `# EOF` ends the text.

use std::fmt::Write;

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    OpenMetrics,
}

impl Format {
    /// The format that an `Accept` header prefers; the text format where it has no preference.
    pub(crate) fn accepted(accept: &str) -> Self {
        let openmetrics = weight(accept, "application/openmetrics-text");
        let text = weight(accept, "text/plain");
        if openmetrics > 0.0 && openmetrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Text => prometheus::TEXT_FORMAT,
            Self::OpenMetrics => OPENMETRICS,
        }
    }

    pub(crate) fn write(self, families: &[MetricFamily]) -> prometheus::Result<String> {
        match self {
            Self::Text => {
                let mut text = Vec::new();
                TextEncoder::new().encode(families, &mut text)?;
                String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
            }
            Self::OpenMetrics => {
                openmetrics(families).map_err(|error| prometheus::Error::Msg(error.to_string()))
            }
        }
    }
}

/// The weight that an `Accept` header gives a media type; 0 without one.
fn weight(accept: &str, media_type: &str) -> f64 {
    let mut weight = 0.0_f64;
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        if parts.next().is_some_and(|name| name.eq_ignore_ascii_case(media_type)) {
            let q = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f64>().ok());
            weight = weight.max(q.unwrap_or(1.0));
        }
    }
    weight
}

fn openmetrics(families: &[MetricFamily]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for family in families {
        let (name, kind) = match family.get_field_type() {
            MetricType::COUNTER => (family.name().trim_end_matches("_total"), "counter"),
            MetricType::HISTOGRAM => (family.name(), "histogram"),
            MetricType::GAUGE => (family.name(), "gauge"),
            MetricType::SUMMARY | MetricType::UNTYPED => (family.name(), "unknown"),
        };
        writeln!(text, "# HELP {name} {}", escaped(family.help()))?;
        writeln!(text, "# TYPE {name} {kind}")?;
        for metric in family.get_metric() {
            write_metric(&mut text, name, kind, metric)?;
        }
    }
    text.push_str("# EOF\n");
    Ok(text)
}

fn write_metric(text: &mut String, name: &str, kind: &str, metric: &Metric) -> std::fmt::Result {
    let labels = metric.get_label();
    match kind {
        "counter" => {
            let value = metric.get_counter().get_value();
            writeln!(text, "{name}_total{} {value}", braces(labels, None))
        }
        "histogram" => {
            let histogram = metric.get_histogram();
            let count = histogram.get_sample_count();
            for bucket in histogram.get_bucket() {
                let le = bound(bucket.upper_bound());
                writeln!(text, "{name}_bucket{} {}", braces(labels, Some(&le)), bucket.cumulative_count())?;
            }
            writeln!(text, "{name}_bucket{} {count}", braces(labels, Some("+Inf")))?;
            writeln!(text, "{name}_sum{} {}", braces(labels, None), histogram.get_sample_sum())?;
            writeln!(text, "{name}_count{} {count}", braces(labels, None))
        }
        _ => writeln!(text, "{name}{} {}", braces(labels, None), metric.get_gauge().get_value()),
    }
}

/// A bucket bound with a point or an exponent, as the canonical form wants it.
fn bound(value: f64) -> String {
    format!("{value:?}")
}

fn braces(labels: &[LabelPair], le: Option<&str>) -> String {
    let pairs = labels.iter().map(|label| format!("{}=\"{}\"", label.name(), escaped(label.value())));
    let pairs: Vec<String> = pairs.chain(le.map(|le| format!("le=\"{le}\""))).collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_the_one_that_the_client_prefers() {
        for (accept, want) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/plain", Format::Text),
            ("application/openmetrics-text", Format::OpenMetrics),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3",
                Format::OpenMetrics,
            ),
            ("application/openmetrics-text; q=0.2, text/plain; q=0.9", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
        ] {
            assert_eq!(Format::accepted(accept), want, "{accept}");
        }
    }

    #[test]
    fn openmetrics_names_counters_without_total_points_out_bounds_and_ends() {
        let registry = prometheus::Registry::new();
        let counter =
            prometheus::IntCounterVec::new(prometheus::Opts::new("a_total", "A \"b\""), &["l"]).unwrap();
        counter.with_label_values(&["x\"y\\"]).inc();
        let buckets = prometheus::HistogramOpts::new("h", "H").buckets(vec![0.5, 1.0, 1000.0]);
        let histogram = prometheus::Histogram::with_opts(buckets).unwrap();
        histogram.observe(0.75);
        registry.register(Box::new(counter)).unwrap();
        registry.register(Box::new(histogram)).unwrap();
        let text = Format::OpenMetrics.write(&registry.gather()).unwrap();
        let want = [
            "# HELP a A \\\"b\\\"",
            "# TYPE a counter",
            "a_total{l=\"x\\\"y\\\\\"} 1",
            "# HELP h H",
            "# TYPE h histogram",
            "h_bucket{le=\"0.5\"} 0",
            "h_bucket{le=\"1.0\"} 1",
            "h_bucket{le=\"1000.0\"} 1",
            "h_bucket{le=\"+Inf\"} 1",
            "h_sum 0.75",
            "h_count 1",
            "# EOF\n",
        ];
        assert_eq!(text, want.join("\n"));
    }
}
