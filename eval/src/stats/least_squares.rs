//! Ordinary least squares with an intercept, and the standard deviation of a prediction.

/// A predicted value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FittedValue {
    pub value: f64,
    /// Standard deviation of the error: of the noise, estimated from the residuals, and of the coefficients.
    pub sd: f64,
}

/// Columns that differ from the earlier ones by a smaller share of their length are linear combinations of
/// them.
const RANK_TOLERANCE: f64 = 1e-9;

/// Fits `values` to `rows` of features, and predicts the value at `features`. `None` without more rows than
/// coefficients, or if the coefficients are not determined.
///
/// The centred columns are orthogonalised (modified Gram-Schmidt, twice for accuracy). In the orthonormal
/// basis the prediction, its variance and the residuals are sums of squares.
pub fn predict(rows: &[Vec<f64>], values: &[f64], features: &[f64]) -> Option<FittedValue> {
    let n = rows.len();
    let freedom = n.checked_sub(features.len() + 1).filter(|freedom| *freedom > 0)?;
    let mean = |column: &[f64]| column.iter().sum::<f64>() / n as f64;
    let centre = mean(values);
    let mut residuals: Vec<f64> = values.iter().map(|value| value - centre).collect();
    let mut basis: Vec<Vec<f64>> = Vec::new();
    // The coordinates of the requested point in the basis.
    let mut point: Vec<f64> = Vec::new();
    let mut prediction = centre;
    for (index, at) in features.iter().enumerate() {
        let mut column: Vec<f64> = rows.iter().map(|row| row[index]).collect();
        let column_mean = mean(&column);
        column.iter_mut().for_each(|value| *value -= column_mean);
        let mut coordinate = at - column_mean;
        let length = dot(&column, &column).sqrt();
        for _ in 0..2 {
            for (direction, known) in basis.iter().zip(&point) {
                let share = dot(direction, &column);
                subtract(&mut column, direction, share);
                coordinate -= share * known;
            }
        }
        let rest = dot(&column, &column).sqrt();
        if rest <= RANK_TOLERANCE * length {
            return None;
        }
        column.iter_mut().for_each(|value| *value /= rest);
        coordinate /= rest;
        let coefficient = dot(&column, &residuals);
        subtract(&mut residuals, &column, coefficient);
        prediction += coefficient * coordinate;
        basis.push(column);
        point.push(coordinate);
    }
    let variance = dot(&residuals, &residuals) / freedom as f64;
    let leverage = 1.0 / n as f64 + dot(&point, &point);
    Some(FittedValue { value: prediction, sd: (variance * (1.0 + leverage)).sqrt() })
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Subtracts `share` times `direction`.
fn subtract(column: &mut [f64], direction: &[f64], share: f64) {
    for (value, along) in column.iter_mut().zip(direction) {
        *value -= share * along;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_extended_and_its_scatter_is_the_uncertainty() {
        let rows: Vec<Vec<f64>> = [1.0, 2.0, 3.0, 4.0].iter().map(|&x| vec![x]).collect();
        let exact = predict(&rows, &[3.0, 5.0, 7.0, 9.0], &[10.0]).unwrap();
        assert!((exact.value - 21.0).abs() < 1e-12 && exact.sd < 1e-6, "{exact:?}");
        // By hand: slope 0.6 and intercept 1, residuals 0.4, -1.2, 1.2, -0.4; at the mean the leverage is
        // 1/4.
        let noisy = predict(&rows, &[2.0, 1.0, 4.0, 3.0], &[2.5]).unwrap();
        assert!((noisy.value - 2.5).abs() < 1e-12, "{noisy:?}");
        assert!((noisy.sd - (3.2 / 2.0 * 1.25_f64).sqrt()).abs() < 1e-12, "{noisy:?}");
    }

    #[test]
    fn undetermined_coefficients_give_no_prediction() {
        let rows = |rows: &[[f64; 2]]| rows.iter().map(|row| row.to_vec()).collect::<Vec<_>>();
        let few = rows(&[[1.0, 2.0], [2.0, 1.0], [0.0, 5.0]]);
        assert_eq!(predict(&few, &[1.0, 2.0, 3.0], &[1.0, 1.0]), None);
        let equal = rows(&[[1.0, 2.0], [2.0, 4.0], [3.0, 6.0], [4.0, 8.0], [5.0, 10.0]]);
        assert_eq!(predict(&equal, &[1.0, 2.0, 3.0, 4.0, 6.0], &[1.0, 2.0]), None);
    }
}
