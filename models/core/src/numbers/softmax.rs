//! Probabilities of one row of logits, in `f64`, without copying the vocabulary.

/// The softmax over a whole row.
#[derive(Debug, Clone, Copy)]
pub struct Softmax<'a> {
    logits: &'a [f32],
    max: f32,
    total: f64,
}

impl<'a> Softmax<'a> {
    /// `None` when the row is empty or holds a NaN or `+inf`, or nothing but `-inf`: then it has no softmax.
    pub fn new(logits: &'a [f32]) -> Option<Self> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
        (max.is_finite() && total.is_finite()).then_some(Self { logits, max, total })
    }

    /// Probability of one token; 0 for ids beyond the row.
    pub fn probability(&self, id: u32) -> f64 {
        self.logits.get(id as usize).map_or(0.0, |&logit| f64::from(logit - self.max).exp() / self.total)
    }

    /// Probability of all ids from `first` on.
    pub fn probability_from(&self, first: usize) -> f64 {
        let tail = self.logits.get(first..).unwrap_or_default();
        tail.iter().map(|&logit| f64::from(logit - self.max).exp()).sum::<f64>() / self.total
    }

    /// Natural logarithm of one token's probability; `-inf` for ids beyond the row.
    pub fn log_probability(&self, id: u32) -> f64 {
        let logit = self.logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        f64::from(logit - self.max) - self.total.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_to_one_and_logs_agree() {
        let logits = [1000.0, 999.0, -5.0, f32::NEG_INFINITY];
        let softmax = Softmax::new(&logits).unwrap();
        let sum: f64 = (0..4).map(|id| softmax.probability(id)).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        assert!((softmax.probability(1) - 1.0 / (1.0 + 1.0_f64.exp())).abs() < 1e-12);
        assert!((softmax.log_probability(0).exp() - softmax.probability(0)).abs() < 1e-12);
        assert!((softmax.probability_from(1) - softmax.probability(1)).abs() < 1e-12);
        assert!(softmax.probability(9).abs() < f64::EPSILON);
    }

    #[test]
    fn a_row_that_is_no_distribution_is_refused() {
        for logits in [&[][..], &[0.0, f32::NAN], &[f32::INFINITY, 0.0], &[f32::NEG_INFINITY]] {
            assert!(Softmax::new(logits).is_none(), "{logits:?}");
        }
    }
}
