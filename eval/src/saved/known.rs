//! The metrics that are known by name: what they are, and which way is better.

/// Which way a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Larger values.
    Higher,
    /// Smaller values.
    Lower,
    /// Not known.
    Unknown,
}

/// A known metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// As in `report.json`.
    pub name: &'static str,
    /// Which way it is better.
    pub better: Better,
    /// What it is.
    pub about: &'static str,
}

const fn higher(name: &'static str, about: &'static str) -> Known {
    Known { name, better: Better::Higher, about }
}

const fn lower(name: &'static str, about: &'static str) -> Known {
    Known { name, better: Better::Lower, about }
}

/// All of them, in the order of tables.
pub const METRICS: [Known; 33] = [
    higher("accuracy", "share of items whose number is exact"),
    higher("strict", "share exact, read strictly (lm-eval)"),
    higher("flexible", "share exact, last number (lm-eval)"),
    lower("mae", "mean absolute error"),
    lower("mse", "mean squared error"),
    lower("rmse", "root of the mean squared error"),
    higher("r2", "share of variance explained"),
    lower("median_ae", "median absolute error"),
    lower("log_mae", "mean absolute error of sign(x) log10(|x|+1)"),
    higher("log_r2", "share of variance explained on that scale"),
    higher("pearson", "correlation"),
    higher("spearman", "correlation of ranks"),
    lower("mape", "mean absolute error as a share of the truth"),
    lower("unparsed", "share of answers without a number"),
    lower("invalid", "numbers that Python cannot read, per item (paper)"),
    lower("no_number", "share of items without any number (paper)"),
    Known { name: "coverage", better: Better::Unknown, about: "share of truths within the outer quantiles" },
    lower("pinball", "mean pinball loss of the quantiles"),
    lower("crps", "continuous ranked probability score"),
    higher("exact", "share of equal texts"),
    higher("f1", "token F1"),
    higher("bleu", "BLEU"),
    higher("rouge1", "ROUGE-1"),
    higher("rouge2", "ROUGE-2"),
    higher("rougeL", "ROUGE-L"),
    higher("token_accuracy", "share of target tokens that are most probable"),
    lower("perplexity", "of the target"),
    lower("ce", "cross-entropy of the target"),
    lower("ntl-was", "number token loss, Wasserstein"),
    lower("ntl-was-cdf", "number token loss, Wasserstein of cumulative shares"),
    lower("ntl-mse", "number token loss, squared"),
    lower("ntl-mae", "number token loss, absolute"),
    lower("ntl-huber", "number token loss, Huber"),
];

/// The metric of that name.
pub fn known(name: &str) -> Option<Known> {
    METRICS.into_iter().find(|known| known.name == name)
}

/// Names in the order of tables; unknown ones behind, by the alphabet.
pub fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let place = |name: &str| METRICS.iter().position(|known| known.name == name).unwrap_or(METRICS.len());
    let mut names: Vec<&str> = names.collect();
    names.sort_by_key(|name| (place(name), *name));
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Name;

    #[test]
    fn known_metrics_come_first_and_in_their_order() {
        assert_eq!(
            in_order(["zeta", "rmse", "alpha", "accuracy"].into_iter()),
            ["accuracy", "rmse", "alpha", "zeta"]
        );
        assert_eq!(known("mae").map(|known| known.better), Some(Better::Lower));
        assert_eq!(known("zeta"), None);
    }
    #[test]
    fn every_metric_of_a_run_is_known_with_the_direction_of_its_gates() {
        for name in Name::all() {
            let better = known(name.as_str()).map(|known| known.better);
            let gate = if name.more_is_better() { Better::Higher } else { Better::Lower };
            // More coverage passes a gate, yet the best share is the one that was asked for.
            let want = if name == Name::Coverage { Better::Unknown } else { gate };
            assert_eq!(better, Some(want), "{}", name.as_str());
        }
    }
}
