//! Vector kernels over slices: dot products, exponentials, softmax.

use pulp::Simd;
use rayon::prelude::*;

/// Returns the dot product, always added up in the same order for a given length.
#[inline(always)]
pub(super) fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let ((a_body, a_tail), (b_body, b_tail)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
    let mut sum = simd.splat_f32s(0.0);
    for (&a, &b) in a_body.iter().zip(b_body) {
        sum = simd.mul_add_f32s(a, b, sum);
    }
    sum = simd.mul_add_f32s(simd.partial_load_f32s(a_tail), simd.partial_load_f32s(b_tail), sum);
    simd.reduce_sum_f32s(sum)
}

/// Number of registers for a weighted sum.
const SUMS: usize = 4;

/// Computes `out += sum(weight * row)`, always added up in the order of the rows.
#[inline(always)]
pub(super) fn add_weighted<'a, S: Simd>(
    simd: S,
    rows: impl Iterator<Item = (f32, &'a [f32])> + Clone,
    out: &mut [f32],
) {
    let (body, tail) = S::as_mut_simd_f32s(out);
    let (wide, narrow) = body.as_chunks_mut::<SUMS>();
    let (narrow_from, tail_from) =
        (wide.len() * SUMS * S::F32_LANES, (wide.len() * SUMS + narrow.len()) * S::F32_LANES);
    for (index, out) in wide.iter_mut().enumerate() {
        let from = index * SUMS * S::F32_LANES;
        let mut sums = *out;
        for (weight, row) in rows.clone() {
            let (row, _) = S::as_simd_f32s(&row[from..from + SUMS * S::F32_LANES]);
            let weight = simd.splat_f32s(weight);
            for (sum, &row) in sums.iter_mut().zip(row) {
                *sum = simd.mul_add_f32s(weight, row, *sum);
            }
        }
        *out = sums;
    }
    for (index, out) in narrow.iter_mut().enumerate() {
        let from = narrow_from + index * S::F32_LANES;
        for (weight, row) in rows.clone() {
            let (row, _) = S::as_simd_f32s(&row[from..from + S::F32_LANES]);
            *out = simd.mul_add_f32s(simd.splat_f32s(weight), row[0], *out);
        }
    }
    if tail.is_empty() {
        return;
    }
    let mut sum = simd.partial_load_f32s(tail);
    for (weight, row) in rows {
        let row = simd.partial_load_f32s(&row[tail_from..tail_from + tail.len()]);
        sum = simd.mul_add_f32s(simd.splat_f32s(weight), row, sum);
    }
    simd.partial_store_f32s(tail, sum);
}

/// Number of partial sums that are kept side by side.
const LANES: usize = 8;

/// Below this many elements, a second thread costs more than it saves.
const SERIAL_MAX: usize = 1 << 16;

/// Computes `values += others` for slices of equal lengths.
pub fn add(values: &mut [f32], others: &[f32]) {
    let add = |(values, others): (&mut [f32], &[f32])| {
        values.iter_mut().zip(others).for_each(|(value, other)| *value += other);
    };
    if values.len() <= SERIAL_MAX {
        add((values, others));
    } else {
        values.par_chunks_mut(SERIAL_MAX / 4).zip(others.par_chunks(SERIAL_MAX / 4)).for_each(add);
    }
}

/// Returns the sum of `of(value)`, always added up in the same order.
#[inline(always)]
pub(super) fn sum(values: &[f32], of: impl Fn(f64) -> f64) -> f64 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0_f64; LANES];
    for chunk in chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum += of(f64::from(value));
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|&value| of(f64::from(value))).sum::<f64>()
}

/// Replaces the scores of a row by their softmax.
#[inline(always)]
pub(super) fn softmax(scores: &mut [f32]) {
    let mut largest = [f32::NEG_INFINITY; LANES];
    for scores in scores.chunks(LANES) {
        for (largest, &score) in largest.iter_mut().zip(scores) {
            *largest = if score > *largest { score } else { *largest };
        }
    }
    let largest = largest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    for score in scores.iter_mut() {
        *score = exp(*score - largest);
    }
    // Total in f64, since its error affects every share.
    let mut totals = [0.0_f64; LANES];
    for scores in scores.chunks(LANES) {
        for (total, &score) in totals.iter_mut().zip(scores) {
            *total += f64::from(score);
        }
    }
    let share = totals.iter().sum::<f64>().recip() as f32;
    scores.iter_mut().for_each(|score| *score *= share);
}

/// Computes `cap * tanh(value / cap)` for each value. NaN stays NaN.
#[inline(always)]
pub(super) fn soft_cap(values: &mut [f32], cap: f32) {
    // tanh(x) = 1 - 2 / (e^(2 x) + 1), also if the power overflows.
    let twice = 2.0 / cap;
    for value in values {
        *value = cap - 2.0 * cap / (exp(*value * twice) + 1.0);
    }
}

/// Adding this number rounds to an integer, which is then in the lowest bits.
const ROUNDER: f32 = 12_582_912.0;
/// Smallest and largest x with a normal power of e.
const RANGE: (f32, f32) = (-87.33, 88.37);
/// ln 2 in two parts. Products of the first part with small integers are exact.
const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
/// Coefficients of the powers of e, the highest one first.
const TAYLOR: [f32; 8] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

/// Returns e to the `x`, with an error of at most 2 units in the last place; 0 below -87.3. There are no
/// branches or calls, so that the compiler can vectorize loops over it. NaN stays NaN.
///
/// Splits `x = n ln 2 + r` (Cody and Waite) and uses the Taylor polynomial of `r`, |r| <= ln(2) / 2. The
/// softmax of `ntl-core` has a separate `exp` with one term fewer, which rounds differently.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = (x - n * LN_2.0) - n * LN_2.1;
    let mut p = TAYLOR[0];
    for factor in &TAYLOR[1..] {
        p = p * r + factor;
    }
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    let inside = p * power;
    let below = if x < RANGE.0 { 0.0 } else { inside };
    if x > RANGE.1 { f32::INFINITY } else { below }
}

/// Returns [`exp`] of each lane, with fused multiplications, for values of at most 0.
#[inline(always)]
pub(super) fn exp_f32s<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let rounder = simd.splat_f32s(ROUNDER);
    let shifted = simd.mul_add_f32s(x, simd.splat_f32s(std::f32::consts::LOG2_E), rounder);
    let n = simd.sub_f32s(shifted, rounder);
    let r = simd.mul_add_f32s(n, simd.splat_f32s(-LN_2.0), x);
    let r = simd.mul_add_f32s(n, simd.splat_f32s(-LN_2.1), r);
    let mut p = simd.splat_f32s(TAYLOR[0]);
    for factor in &TAYLOR[1..] {
        p = simd.mul_add_f32s(p, r, simd.splat_f32s(*factor));
    }
    let exponent = simd.add_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(127));
    let power = simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(exponent, simd.splat_u32s(23)));
    let below = simd.less_than_f32s(x, simd.splat_f32s(RANGE.0));
    simd.select_f32s(below, simd.splat_f32s(0.0), simd.mul_f32s(p, power))
}

#[cfg(test)]
mod tests {
    use pulp::Scalar;

    use super::*;

    #[test]
    fn exponentials_are_accurate_to_the_last_places() {
        let scalar = Scalar::new();
        let mut worst = 0.0_f64;
        for step in -870_000..=880_000 {
            let x = step as f32 * 1e-4;
            let want = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) / want - 1.0).abs());
            worst = worst.max((f64::from(exp_f32s(scalar, x.min(0.0))) / want.min(1.0) - 1.0).abs());
        }
        assert!(worst < 2.4e-7, "{worst}");
        let ends = [0.0, -100.0, f32::MIN, f32::NEG_INFINITY].map(|x| exp_f32s(scalar, x).to_bits());
        assert_eq!(ends, [1.0_f32, 0.0, 0.0, 0.0].map(f32::to_bits));
        assert!(exp_f32s(scalar, f32::NAN).is_nan());
        let ends = [exp(0.0), exp(-100.0), exp(f32::NEG_INFINITY), exp(100.0)];
        assert_eq!(ends.map(f32::to_bits), [1.0, 0.0, 0.0, f32::INFINITY].map(f32::to_bits));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn shares_add_up_to_one_and_keep_their_ratios() {
        for count in [1, 2, 7, 8, 9, 100] {
            let scores: Vec<f32> = (0..count).map(|index| (index as f32 * 0.37).sin() * 9.0).collect();
            let mut shares = scores.clone();
            softmax(&mut shares);
            let total: f64 = shares.iter().copied().map(f64::from).sum();
            assert!((total - 1.0).abs() < 1e-6, "{total}");
            for (score, share) in scores.iter().zip(&shares) {
                let want = f64::from(score - scores[0]).exp() * f64::from(shares[0]);
                assert!((f64::from(*share) / want - 1.0).abs() < 4e-6, "{share}");
            }
        }
        let mut broken = [1.0, f32::NAN];
        softmax(&mut broken);
        assert!(broken.iter().all(|share| share.is_nan()), "{broken:?}");
    }
}
