//! Aliases under vLLM's names (`--metrics-compat vllm`), for routers and dashboards that know only those.
//!
//! In: the gathered families. Out: the same, and a copy of each aliased one under its other name, with the
//! labels of vLLM.

use prometheus::proto::MetricFamily;

use super::declared::DECLARED;

pub(super) fn add_aliases(families: &mut Vec<MetricFamily>) {
    let mut aliases = Vec::new();
    for declaration in DECLARED {
        let Some(alias) = declaration.vllm else { continue };
        if let Some(family) = families.iter().find(|family| family.name() == declaration.name) {
            aliases.push(aliased(family, alias));
        }
    }
    families.extend(aliases);
}

/// A copy of a family under its other name.
fn aliased(family: &MetricFamily, alias: &str) -> MetricFamily {
    let mut family = family.clone();
    family.set_name(alias.to_owned());
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
    family
}
