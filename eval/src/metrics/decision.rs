//! Scores of answers that have a probability for every allowed option, and how far these probabilities are
//! calibrated.

/// Smaller probabilities of the correct option count as this in the logarithm: some servers round to two
/// decimals.
pub const PROBABILITY_MIN: f64 = 1e-6;

/// Number of bins of equal width in which confidence and accuracy are compared.
const BINS: usize = 10;

/// The result for one question of a decision model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DecisionScores {
    /// Whether the question has options, so that its answer is correct or incorrect.
    pub has_options: bool,
    /// Whether the model gave none of the allowed answers.
    pub is_refused: bool,
    /// `None` for a refusal or a number.
    pub options: Option<OptionScores>,
    pub changes: Changes,
}

/// The largest changes of an option's probability between two requests with the same question.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Changes {
    /// With the options in another order.
    pub order: Option<f64>,
    /// With the same request.
    pub repeat: Option<f64>,
    /// Together with other questions about the same state.
    pub batch: Option<f64>,
}

/// Scores of the probabilities of one question's options.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptionScores {
    /// Sum of the squared differences between the probabilities and the correct answer, 0 to 2 (Brier 1950).
    pub brier: f64,
    /// Minus the logarithm of the correct option's probability, in nats.
    pub log_loss: f64,
    /// The probability of the most probable option.
    pub confidence: f64,
    /// Whether the most probable option is the correct one.
    pub is_correct: bool,
}

impl OptionScores {
    /// `probabilities` add up to 1. Returns `None` if `expected` is not one of their indices.
    pub fn of(probabilities: &[f64], expected: usize) -> Option<Self> {
        let given = *probabilities.get(expected)?;
        let best = most_probable(probabilities)?;
        let mut brier = 0.0;
        for (index, probability) in probabilities.iter().enumerate() {
            let truth = if index == expected { 1.0 } else { 0.0 };
            brier += (probability - truth).powi(2);
        }
        Some(Self {
            brier,
            log_loss: -given.max(PROBABILITY_MIN).ln(),
            confidence: *probabilities.get(best)?,
            is_correct: best == expected,
        })
    }
}

/// Returns the index of the most probable option. Ties go to the lowest one.
pub fn most_probable(probabilities: &[f64]) -> Option<usize> {
    // `max_by` returns the last of several equal values.
    let indexed = probabilities.iter().enumerate().rev();
    indexed.max_by(|a, b| a.1.total_cmp(b.1)).map(|(index, _)| index)
}

/// The answers whose confidence is in one bin, as sums over their weights.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ReliabilityBin {
    pub weight: f64,
    pub confidence: f64,
    pub correct: f64,
}

/// Groups answers by their confidence. `answers`: confidence, whether the answer is correct, and weight.
pub fn reliability(answers: impl Iterator<Item = (f64, bool, f64)>) -> [ReliabilityBin; BINS] {
    let mut bins = [ReliabilityBin::default(); BINS];
    for (confidence, is_correct, weight) in answers {
        let bin = &mut bins[((confidence * BINS as f64) as usize).min(BINS - 1)];
        bin.weight += weight;
        bin.confidence += weight * confidence;
        bin.correct += if is_correct { weight } else { 0.0 };
    }
    bins
}

/// Returns the expected calibration error: the mean difference between the accuracy and the mean confidence
/// of a bin, weighted by its answers. `answers` are as for [`reliability`].
pub fn calibration_error(answers: impl Iterator<Item = (f64, bool, f64)>) -> Option<f64> {
    let mut total = 0.0;
    let mut gaps = 0.0;
    for bin in reliability(answers) {
        total += bin.weight;
        gaps += (bin.correct - bin.confidence).abs();
    }
    (total > 0.0).then(|| gaps / total)
}

pub(super) fn calibration_error_of_scores(scores: &[&OptionScores], weights: &[f64]) -> Option<f64> {
    let answers = scores.iter().zip(weights);
    calibration_error(answers.map(|(score, weight)| (score.confidence, score.is_correct, *weight)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, want: f64) {
        assert!((found - want).abs() < 1e-12, "{found}, not {want}");
    }

    #[test]
    fn scores_agree_with_values_computed_by_hand() {
        for (probabilities, expected, brier, log_loss, confidence, is_correct) in [
            (&[0.5, 0.25, 0.25][..], 1, 0.25 + 0.5625 + 0.0625, 4_f64.ln(), 0.5, false),
            (&[0.2, 0.8], 1, 0.04 + 0.04, -0.8_f64.ln(), 0.8, true),
            (&[0.0, 1.0], 0, 2.0, 1e6_f64.ln(), 1.0, false),
            (&[0.5, 0.5], 0, 0.5, 2_f64.ln(), 0.5, true),
            (&[0.5, 0.5], 1, 0.5, 2_f64.ln(), 0.5, false),
        ] {
            let found = OptionScores::of(probabilities, expected).unwrap();
            close(found.brier, brier);
            close(found.log_loss, log_loss);
            close(found.confidence, confidence);
            assert_eq!(found.is_correct, is_correct, "{probabilities:?}");
        }
        assert_eq!(OptionScores::of(&[0.5, 0.5], 2), None);
    }

    #[test]
    fn the_calibration_error_is_the_weighted_mean_of_the_gaps() {
        let scores = [([0.9, 0.1], 0), ([0.95, 0.05], 1), ([0.65, 0.35], 0), ([0.0, 1.0], 1)];
        let scores =
            scores.map(|(probabilities, expected)| OptionScores::of(&probabilities, expected).unwrap());
        // 0.9, 0.95 and 1 are in the last bin, which has two correct answers; 0.65 is in another one.
        let want = ((2.0_f64 - 2.85).abs() + (1.0_f64 - 0.65).abs()) / 4.0;
        close(calibration_error_of_scores(&scores.each_ref(), &[1.0; 4]).unwrap(), want);
        // A weight of 2 counts like two answers.
        let weighted = calibration_error_of_scores(&scores.each_ref(), &[1.0, 2.0, 1.0, 1.0]);
        close(weighted.unwrap(), (3.8 - 2.0 + 0.35) / 5.0);
        assert_eq!(calibration_error_of_scores(&scores.each_ref(), &[0.0; 4]), None);
    }
}
