//! Aliases under vLLM's names (`--metrics-compat vllm`), for routers and dashboards that know only those.
//!
//! In: the gathered families. Out: the same, and a copy of each aliased one under its other name, with the labels of vLLM.

use prometheus::proto::MetricFamily;

/// Our names and vLLM's.
const ALIASES: [(&str, &str); 10] = [
    ("ntl_queue_depth", "vllm:num_requests_waiting"),
    ("ntl_sequences_running", "vllm:num_requests_running"),
    ("ntl_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"),
    ("ntl_request_duration_seconds", "vllm:e2e_request_latency_seconds"),
    ("ntl_queue_duration_seconds", "vllm:request_queue_time_seconds"),
    ("ntl_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"),
    ("ntl_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"),
    ("ntl_prompt_tokens_total", "vllm:prompt_tokens_total"),
    ("ntl_generation_tokens_total", "vllm:generation_tokens_total"),
    ("ntl_finished_total", "vllm:request_success_total"),
];

pub(super) fn add_aliases(families: &mut Vec<MetricFamily>) {
    let aliased = |(ours, theirs): (&str, &str)| {
        let mut family = families.iter().find(|family| family.name() == ours)?.clone();
        family.set_name(theirs.to_owned());
        for metric in family.mut_metric() {
            let mut labels = metric.take_label();
            for label in &mut labels {
                match label.name() {
                    "model" => label.set_name("model_name".to_owned()),
                    "reason" => label.set_name("finished_reason".to_owned()),
                    _ => {}
                }
            }
            // As the text has them everywhere else: by name.
            labels.sort_by(|a, b| a.name().cmp(b.name()));
            metric.set_label(labels);
        }
        Some(family)
    };
    let aliases: Vec<MetricFamily> = ALIASES.into_iter().filter_map(aliased).collect();
    families.extend(aliases);
}
