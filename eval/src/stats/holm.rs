//! Holm's correction (1979) of p-values that are tested together.

use super::difference::PValue;

/// Corrects each p-value for the number of tests and keeps their order. If nothing differs, the probability
/// that any corrected value is at most 0.05 is at most 5%. The tests may depend on each other.
pub fn holm(p_values: &[PValue]) -> Vec<PValue> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].value.total_cmp(&p_values[b].value));
    let mut corrected = p_values.to_vec();
    let mut largest = PValue { value: 0.0, is_bound: false };
    for (rank, &index) in order.iter().enumerate() {
        let PValue { value, is_bound } = p_values[index];
        let value = value * (p_values.len() - rank) as f64;
        if value > largest.value {
            largest = PValue { value: value.min(1.0), is_bound: is_bound && value < 1.0 };
        }
        corrected[index] = largest;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> Vec<PValue> {
        values.iter().map(|&value| PValue { value, is_bound: value < 0.001 }).collect()
    }

    /// `multipletests(p, method="holm")` of statsmodels.
    #[test]
    fn the_smallest_p_value_counts_once_for_every_test_and_none_falls_below_a_smaller_one() {
        let got = holm(&of(&[0.01, 0.04, 0.03, 0.005, 0.9]));
        for (got, want) in got.iter().zip([0.04, 0.09, 0.09, 0.025, 0.9]) {
            assert!((got.value - want).abs() < 1e-12, "{got:?}, not {want}");
        }
        assert!(holm(&of(&[0.6, 0.7])).iter().all(|p| (p.value - 1.0).abs() < 1e-12));
        assert!(holm(&[]).is_empty());
    }

    #[test]
    fn a_bound_times_the_number_of_tests_is_a_bound() {
        let got = holm(&of(&[0.0002, 0.02]));
        assert!((got[0].value - 0.0004).abs() < 1e-12 && got[0].is_bound && !got[1].is_bound);
    }
}
