//! The names of metrics, in reports and gates.

use serde::{Serialize, Serializer};

/// A metric, in the order of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// Share of all items whose answer is right; what was not read is wrong.
    Accuracy,
    /// The same by lm-eval's `strict-match`.
    Strict,
    /// The same by lm-eval's `flexible-extract`.
    Flexible,
    /// Share of texts that are the same but for case, punctuation and articles.
    Exact,
    /// F1 of tokens.
    F1,
    /// Mean absolute error.
    Mae,
    /// Mean squared error.
    Mse,
    /// Its square root.
    Rmse,
    /// `1 - SS_res / SS_tot`.
    R2,
    /// Median absolute error.
    MedianAe,
    /// Mean absolute error of `sign(x) log10(|x| + 1)`.
    LogMae,
    /// R² of `sign(x) log10(|x| + 1)`.
    LogR2,
    /// Pearson's correlation.
    Pearson,
    /// Spearman's rank correlation.
    Spearman,
    /// Mean absolute error over the size of the truth, as a share; without truths of 0.
    Mape,
    /// Share of the answered items without a number.
    Unparsed,
    /// Paper mode: numbers that Python's `float` cannot read, per item.
    Invalid,
    /// Paper mode: share of the items without any number.
    NoNumber,
    /// Pinball loss, mean over quantiles and items.
    Pinball,
    /// Share of truths between the lowest and the highest quantile.
    Coverage,
    /// Continuous ranked probability score.
    Crps,
    /// Share of the tokens of the true answer that the generated one has in the same place.
    TokenAccuracy,
    /// Of the true answers' tokens.
    Perplexity,
    /// Cross entropy of the true answers' tokens.
    Ce,
    /// Number token loss: Wasserstein distance.
    NtlWas,
    /// Number token loss: Wasserstein distance of cumulative distributions.
    NtlWasCdf,
    /// Number token loss: squared error of the expectation.
    NtlMse,
    /// Number token loss: absolute error of the expectation.
    NtlMae,
    /// Number token loss: Huber loss of the expectation.
    NtlHuber,
    /// BLEU, 0 to 100.
    Bleu,
    /// ROUGE-1.
    Rouge1,
    /// ROUGE-2.
    Rouge2,
    /// ROUGE-L.
    RougeL,
}

/// What is known about each: its name, which of the estimates it is computed from, and whether more is better.
const TABLE: [(Name, &str, Option<&str>, bool); 33] = [
    (Name::Accuracy, "accuracy", Some("mode"), true),
    (Name::Strict, "strict", None, true),
    (Name::Flexible, "flexible", None, true),
    (Name::Exact, "exact", None, true),
    (Name::F1, "f1", None, true),
    (Name::Mae, "mae", Some("median"), false),
    (Name::Mse, "mse", Some("mean"), false),
    (Name::Rmse, "rmse", Some("mean"), false),
    (Name::R2, "r2", Some("mean"), true),
    (Name::MedianAe, "median_ae", Some("median"), false),
    (Name::LogMae, "log_mae", Some("median"), false),
    (Name::LogR2, "log_r2", Some("mean"), true),
    (Name::Pearson, "pearson", Some("mean"), true),
    (Name::Spearman, "spearman", Some("mean"), true),
    (Name::Mape, "mape", Some("median"), false),
    (Name::Unparsed, "unparsed", None, false),
    (Name::Invalid, "invalid", None, false),
    (Name::NoNumber, "no_number", None, false),
    (Name::Pinball, "pinball", None, false),
    (Name::Coverage, "coverage", None, true),
    (Name::Crps, "crps", None, false),
    (Name::TokenAccuracy, "token_accuracy", None, true),
    (Name::Perplexity, "perplexity", None, false),
    (Name::Ce, "ce", None, false),
    (Name::NtlWas, "ntl-was", None, false),
    (Name::NtlWasCdf, "ntl-was-cdf", None, false),
    (Name::NtlMse, "ntl-mse", None, false),
    (Name::NtlMae, "ntl-mae", None, false),
    (Name::NtlHuber, "ntl-huber", None, false),
    (Name::Bleu, "bleu", None, true),
    (Name::Rouge1, "rouge1", None, true),
    (Name::Rouge2, "rouge2", None, true),
    (Name::RougeL, "rougeL", None, true),
];

impl Name {
    /// All of them, in the order of tables.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|(name, ..)| *name)
    }

    /// The name in reports and gates.
    pub fn as_str(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// The metric of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::all().find(|known| known.as_str() == name)
    }

    /// Which of [`super::Estimates`] it is computed from; `None` where no number takes part.
    pub fn estimate(self) -> Option<&'static str> {
        TABLE[self as usize].2
    }

    /// Whether more is better.
    pub fn more_is_better(self) -> bool {
        TABLE[self as usize].3
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_ones_that_reports_use() {
        for (index, (name, text, ..)) in TABLE.iter().enumerate() {
            assert_eq!(*name as usize, index, "{text} is out of order");
            assert_eq!(Name::parse(text), Some(*name));
            assert_eq!(serde_json::to_value(name).unwrap(), *text);
        }
        assert_eq!(Name::parse("speed"), None);
    }
}
