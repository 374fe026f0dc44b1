//! Normalisation of rows: by their root mean square, or by mean and variance.
//!
//! Sums are f64, since an error in the factor of a row affects all its elements.

use rayon::prelude::*;

use crate::vector::sum;

/// Below this many elements, a second thread costs more than it saves.
const SERIAL_MAX: usize = 1 << 16;

/// Replaces each row of `x` `[M, K]` by `x / sqrt(mean(x²) + eps) * weight`, with `weight` `[K]`.
pub fn rms_norm(x: &mut [f32], weight: &[f32], eps: f64) {
    let k = weight.len();
    for_each_row(x, k, |row| {
        let scale = (sum(row, |x| x * x) / k as f64 + eps).sqrt().recip() as f32;
        row.iter_mut().zip(weight).for_each(|(value, weight)| *value *= scale * weight);
    });
}

/// Replaces each row of `x` `[M, K]` by `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, with `weight`
/// and `bias` `[K]`.
pub fn layer_norm(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f64) {
    let k = weight.len();
    for_each_row(x, k, |row| {
        let mean = sum(row, |x| x) / k as f64;
        let squares = sum(row, |x| (x - mean) * (x - mean));
        let mean = mean as f32;
        let scale = (squares / k as f64 + eps).sqrt().recip() as f32;
        let parameters = weight.iter().zip(bias);
        row.iter_mut().zip(parameters).for_each(|(x, (w, b))| *x = (*x - mean) * scale * w + b);
    });
}

fn for_each_row(values: &mut [f32], k: usize, change: impl Fn(&mut [f32]) + Send + Sync) {
    let width = k.max(1);
    if values.len() <= SERIAL_MAX {
        values.chunks_exact_mut(width).for_each(change);
    } else {
        values.par_chunks_exact_mut(width).for_each(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_scaled_to_unit_mean_square() {
        let mut x = [3.0, 4.0, 0.0, 0.0];
        rms_norm(&mut x, &[1.0, 2.0], 1e-6);
        let scale = 12.5_f32.sqrt();
        assert!((x[0] - 3.0 / scale).abs() < 1e-5 && (x[1] - 8.0 / scale).abs() < 1e-5, "{x:?}");
        assert_eq!(x[2..], [0.0, 0.0]);
    }

    #[test]
    fn rows_are_centred_and_scaled_to_unit_variance() {
        let mut x = [1.0, 5.0, 7.0, 7.0];
        layer_norm(&mut x, &[3.0, 1.0], &[0.5, -1.0], 1e-9);
        assert!((x[0] + 2.5).abs() < 1e-5 && x[1].abs() < 1e-5, "{x:?}");
        assert_eq!(x[2..], [0.5, -1.0]);
    }
}
