//! The labels of a model that predicts values instead of tokens: their names, and how values become
//! probabilities.

/// The output of a model with a head (`*ForSequenceClassification`): a value for each label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    /// The names of the labels, at least one. A head with one label predicts a number.
    pub names: Vec<String>,
    pub activation: LabelActivation,
}

/// The function from the values of a head to probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelActivation {
    /// Values are regression targets and remain as they are.
    Identity,
    /// Several labels may apply, each with a separate probability.
    Sigmoid,
    /// One label applies.
    Softmax,
}

impl LabelActivation {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Sigmoid => "sigmoid",
            Self::Softmax => "softmax",
        }
    }

    /// Maps finite values of all labels.
    pub fn apply(self, values: &[f32]) -> Vec<f64> {
        let values = values.iter().map(|&value| f64::from(value));
        match self {
            Self::Identity => values.collect(),
            Self::Sigmoid => values.map(|value| 1.0 / (1.0 + (-value).exp())).collect(),
            Self::Softmax => {
                let max = values.clone().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = values.map(|value| (value - max).exp()).collect();
                let total: f64 = weights.iter().sum();
                weights.into_iter().map(|weight| weight / total).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(got: &[f64], want: &[f64]) {
        let off = got.iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f64::max);
        assert!(got.len() == want.len() && off < 1e-9, "{got:?}, expected {want:?}");
    }

    #[test]
    fn activations_are_those_of_torch() {
        let values = [1.0, -2.0, 0.5];
        assert_close(&LabelActivation::Identity.apply(&values), &[1.0, -2.0, 0.5]);
        let sigmoid = [0.731_058_578_630, 0.119_202_922_022, 0.622_459_331_202];
        assert_close(&LabelActivation::Sigmoid.apply(&values), &sigmoid);
        let softmax = [0.603_748_896_149, 0.030_058_887_570, 0.366_192_216_282];
        assert_close(&LabelActivation::Softmax.apply(&values), &softmax);
    }

    #[test]
    fn large_values_neither_overflow_nor_vanish() {
        assert_close(&LabelActivation::Softmax.apply(&[1e30, 1e30]), &[0.5, 0.5]);
        assert_close(&LabelActivation::Sigmoid.apply(&[1e30, -1e30]), &[1.0, 0.0]);
    }
}
