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
    if !a_tail.is_empty() {
        sum = simd.mul_add_f32s(simd.partial_load_f32s(a_tail), simd.partial_load_f32s(b_tail), sum);
    }
    simd.reduce_sum_f32s(sum)
}

/// Sets each `place` to `scale` times the dot product of `a` and its row. The rows have the length of `a`.
#[inline(always)]
pub(super) fn dots<'a, S: Simd>(
    simd: S,
    a: &[f32],
    scale: f32,
    rows: impl Iterator<Item = (&'a mut f32, &'a [f32])>,
) {
    let (vectors, tail) = S::as_simd_f32s(a);
    match (vectors.len(), tail.len()) {
        (4, 0) => dots_of::<S, 4>(simd, a, scale, rows),
        (8, 0) => dots_of::<S, 8>(simd, a, scale, rows),
        (16, 0) => dots_of::<S, 16>(simd, a, scale, rows),
        _ => rows.for_each(|(place, row)| *place = dot(simd, a, row) * scale),
    }
}

/// Does the same for `a` of `V` vectors. With a constant number, they can stay in registers.
#[inline(always)]
fn dots_of<'a, S: Simd, const V: usize>(
    simd: S,
    a: &[f32],
    scale: f32,
    rows: impl Iterator<Item = (&'a mut f32, &'a [f32])>,
) {
    let vectors = |row| S::as_simd_f32s(row).0.as_chunks::<V>().0[0];
    let a: [S::f32s; V] = vectors(a);
    for (place, row) in rows {
        let mut sum = simd.splat_f32s(0.0);
        for (a, b) in a.into_iter().zip(vectors(row)) {
            sum = simd.mul_add_f32s(a, b, sum);
        }
        *place = simd.reduce_sum_f32s(sum) * scale;
    }
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
    if values.len() <= SERIAL_MAX {
        add_serially(values, others);
    } else {
        let chunks = values.par_chunks_mut(SERIAL_MAX / 4).zip(others.par_chunks(SERIAL_MAX / 4));
        chunks.for_each(|(values, others)| add_serially(values, others));
    }
}

fn add_serially(values: &mut [f32], others: &[f32]) {
    values.iter_mut().zip(others).for_each(|(value, other)| *value += other);
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
pub(super) fn softmax<S: Simd>(simd: S, scores: &mut [f32]) {
    let mut largest = [f32::NEG_INFINITY; LANES];
    for scores in scores.chunks(LANES) {
        for (largest, &score) in largest.iter_mut().zip(scores) {
            *largest = if score > *largest { score } else { *largest };
        }
    }
    let largest = simd.splat_f32s(largest.into_iter().fold(f32::NEG_INFINITY, f32::max));
    let (body, tail) = S::as_mut_simd_f32s(scores);
    for score in body {
        *score = exp(simd, simd.sub_f32s(*score, largest));
    }
    if !tail.is_empty() {
        let powers = exp(simd, simd.sub_f32s(simd.partial_load_f32s(tail), largest));
        simd.partial_store_f32s(tail, powers);
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
pub(super) fn soft_cap<S: Simd>(simd: S, values: &mut [f32], cap: f32) {
    let (body, tail) = S::as_mut_simd_f32s(values);
    for value in body {
        *value = capped(simd, *value, cap);
    }
    if !tail.is_empty() {
        let values = capped(simd, simd.partial_load_f32s(tail), cap);
        simd.partial_store_f32s(tail, values);
    }
}

/// Computes `cap * tanh(|value| / cap)` with tanh(x) = (1 - p) / (1 + p), p = e^(-2 x), and restores the
/// sign.
#[inline(always)]
fn capped<S: Simd>(simd: S, value: S::f32s, cap: f32) -> S::f32s {
    let one = simd.splat_f32s(1.0);
    let power = exp(simd, simd.mul_f32s(simd.abs_f32s(value), simd.splat_f32s(-2.0 / cap)));
    let tanh = simd.div_f32s(simd.sub_f32s(one, power), simd.add_f32s(one, power));
    let size = simd.transmute_u32s_f32s(simd.mul_f32s(tanh, simd.splat_f32s(cap)));
    let sign = simd.and_u32s(simd.transmute_u32s_f32s(value), simd.splat_u32s(1 << 31));
    simd.transmute_f32s_u32s(simd.or_u32s(size, sign))
}

/// Returns `x * sigmoid(z)`. NaN stays NaN.
#[inline(always)]
pub(super) fn sigmoid_times<S: Simd>(simd: S, x: S::f32s, z: S::f32s) -> S::f32s {
    let one = simd.splat_f32s(1.0);
    let zero = simd.splat_f32s(0.0);
    let power = exp(simd, simd.sub_f32s(zero, simd.abs_f32s(z)));
    let numerator = simd.select_f32s(simd.less_than_f32s(z, zero), power, one);
    simd.div_f32s(simd.mul_f32s(x, numerator), simd.add_f32s(one, power))
}

/// Adding this number rounds to an integer, which is then in the lowest bits.
const ROUNDER: f32 = 12_582_912.0;
/// The least x with a normal power of e.
const SMALLEST: f32 = -87.33;
/// ln 2 in two parts. Products of the first part with small integers are exact.
const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
/// Coefficients of the powers of e, the highest one first.
const TAYLOR: [f32; 8] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

/// Returns e to the power of each lane, for values of at most 0, with an error of at most 2 units in the last
/// place; 0 below -87.3. NaN stays NaN.
///
/// Splits `x = n ln 2 + r` (Cody and Waite) and uses the Taylor polynomial of `r`, |r| <= ln(2) / 2. The
/// softmax of `ntl-core` has a separate `exp` with one term fewer, which rounds differently.
#[inline(always)]
pub(super) fn exp<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
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
    let below = simd.less_than_f32s(x, simd.splat_f32s(SMALLEST));
    simd.select_f32s(below, simd.splat_f32s(0.0), simd.mul_f32s(p, power))
}

#[cfg(test)]
mod tests {
    use pulp::{Arch, Scalar, WithSimd};

    use super::*;

    #[test]
    fn dot_products_with_many_rows_are_bit_identical_to_those_of_single_rows() {
        struct Compare(usize);
        impl WithSimd for Compare {
            type Output = ();

            #[inline(always)]
            fn with_simd<S: Simd>(self, simd: S) {
                let numbers = |count: usize, seed: f32| -> Vec<f32> {
                    (0..count).map(|index| (index as f32 * 0.731 + seed).sin()).collect()
                };
                let (a, rows) = (numbers(self.0, 0.0), numbers(5 * self.0, 1.0));
                let rows = || rows.chunks_exact(self.0);
                let mut got = [0.0; 5];
                dots(simd, &a, 0.35, got.iter_mut().zip(rows()));
                let want: Vec<f32> = rows().map(|row| dot(simd, &a, row) * 0.35).collect();
                assert_eq!(
                    got.map(f32::to_bits)[..],
                    want.iter().map(|dot| dot.to_bits()).collect::<Vec<_>>()
                );
                for (got, row) in got.iter().zip(rows()) {
                    let products = a.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b));
                    let off = f64::from(*got) - 0.35 * products.sum::<f64>();
                    assert!(off.abs() < 1e-4, "{off}, {} elements", self.0);
                }
            }
        }
        for length in [1, 4, 8, 15, 16, 20, 32, 64, 80, 128, 256] {
            Arch::new().dispatch(Compare(length));
            Compare(length).with_simd(Scalar::new());
        }
    }

    #[test]
    fn exponentials_are_accurate_to_the_last_places() {
        let scalar = Scalar::new();
        let mut worst = 0.0_f64;
        for step in -870_000..=0 {
            let x = step as f32 * 1e-4;
            worst = worst.max((f64::from(exp(scalar, x)) / f64::from(x).exp() - 1.0).abs());
        }
        assert!(worst < 2.4e-7, "{worst}");
        let ends = [0.0, -100.0, f32::MIN, f32::NEG_INFINITY].map(|x| exp(scalar, x).to_bits());
        assert_eq!(ends, [1.0_f32, 0.0, 0.0, 0.0].map(f32::to_bits));
        assert!(exp(scalar, f32::NAN).is_nan());
    }

    #[test]
    fn shares_add_up_to_one_and_keep_their_ratios() {
        for count in [1, 2, 7, 8, 9, 100] {
            let scores: Vec<f32> = (0..count).map(|index| (index as f32 * 0.37).sin() * 9.0).collect();
            let mut shares = scores.clone();
            softmax(Scalar::new(), &mut shares);
            let total: f64 = shares.iter().copied().map(f64::from).sum();
            assert!((total - 1.0).abs() < 1e-6, "{total}");
            for (score, share) in scores.iter().zip(&shares) {
                let want = f64::from(score - scores[0]).exp() * f64::from(shares[0]);
                assert!((f64::from(*share) / want - 1.0).abs() < 4e-6, "{share}");
            }
        }
        let mut broken = [1.0, f32::NAN];
        softmax(Scalar::new(), &mut broken);
        assert!(broken.iter().all(|share| share.is_nan()), "{broken:?}");
    }
}
