//! The metrics by name: how reports and gates call them, what they are, and which way is better.

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

/// Which way a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Larger values.
    Higher,
    /// Smaller values.
    Lower,
    /// Neither as such: the best value is one that was asked for, or the metric is not known.
    Unknown,
}

/// What is known about each: its name, which of the estimates it is computed from, which way is better, and what it is.
const TABLE: [(Name, &str, Option<&str>, Better, &str); 33] = [
    (Name::Accuracy, "accuracy", Some("mode"), Better::Higher, "share of items whose number is exact"),
    (Name::Strict, "strict", None, Better::Higher, "share exact, read strictly (lm-eval)"),
    (Name::Flexible, "flexible", None, Better::Higher, "share exact, last number (lm-eval)"),
    (Name::Exact, "exact", None, Better::Higher, "share of equal texts"),
    (Name::F1, "f1", None, Better::Higher, "token F1"),
    (Name::Mae, "mae", Some("median"), Better::Lower, "mean absolute error"),
    (Name::Mse, "mse", Some("mean"), Better::Lower, "mean squared error"),
    (Name::Rmse, "rmse", Some("mean"), Better::Lower, "root of the mean squared error"),
    (Name::R2, "r2", Some("mean"), Better::Higher, "share of variance explained"),
    (Name::MedianAe, "median_ae", Some("median"), Better::Lower, "median absolute error"),
    (Name::LogMae, "log_mae", Some("median"), Better::Lower, "mean absolute error of sign(x) log10(|x|+1)"),
    (Name::LogR2, "log_r2", Some("mean"), Better::Higher, "share of variance explained on that scale"),
    (Name::Pearson, "pearson", Some("mean"), Better::Higher, "correlation"),
    (Name::Spearman, "spearman", Some("mean"), Better::Higher, "correlation of ranks"),
    (Name::Mape, "mape", Some("median"), Better::Lower, "mean absolute error as a share of the truth"),
    (Name::Unparsed, "unparsed", None, Better::Lower, "share of answers without a number"),
    (Name::Invalid, "invalid", None, Better::Lower, "numbers that Python cannot read, per item (paper)"),
    (Name::NoNumber, "no_number", None, Better::Lower, "share of items without any number (paper)"),
    (Name::Pinball, "pinball", None, Better::Lower, "mean pinball loss of the quantiles"),
    (Name::Coverage, "coverage", None, Better::Unknown, "share of truths within the outer quantiles"),
    (Name::Crps, "crps", None, Better::Lower, "continuous ranked probability score"),
    (
        Name::TokenAccuracy,
        "token_accuracy",
        None,
        Better::Higher,
        "share of target tokens that are most probable",
    ),
    (Name::Perplexity, "perplexity", None, Better::Lower, "of the target"),
    (Name::Ce, "ce", None, Better::Lower, "cross-entropy of the target"),
    (Name::NtlWas, "ntl-was", None, Better::Lower, "number token loss, Wasserstein"),
    (
        Name::NtlWasCdf,
        "ntl-was-cdf",
        None,
        Better::Lower,
        "number token loss, Wasserstein of cumulative shares",
    ),
    (Name::NtlMse, "ntl-mse", None, Better::Lower, "number token loss, squared"),
    (Name::NtlMae, "ntl-mae", None, Better::Lower, "number token loss, absolute"),
    (Name::NtlHuber, "ntl-huber", None, Better::Lower, "number token loss, Huber"),
    (Name::Bleu, "bleu", None, Better::Higher, "BLEU"),
    (Name::Rouge1, "rouge1", None, Better::Higher, "ROUGE-1"),
    (Name::Rouge2, "rouge2", None, Better::Higher, "ROUGE-2"),
    (Name::RougeL, "rougeL", None, Better::Higher, "ROUGE-L"),
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

    /// Which way it is better.
    pub fn better(self) -> Better {
        TABLE[self as usize].3
    }

    /// What it is, in a few words.
    pub fn about(self) -> &'static str {
        TABLE[self as usize].4
    }

    /// Names in the order of tables; unknown ones behind, by the alphabet.
    pub fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        let mut names: Vec<&str> = names.collect();
        names.sort_by_key(|name| (Self::parse(name).map_or(TABLE.len(), |known| known as usize), *name));
        names
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

    #[test]
    fn known_metrics_come_first_and_in_their_order() {
        let names = Name::in_order(["zeta", "rmse", "alpha", "accuracy"].into_iter());
        assert_eq!(names, ["accuracy", "rmse", "alpha", "zeta"]);
    }
}
