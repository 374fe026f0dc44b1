//! Compares matmuls with plain sums in f64, at shapes that do not divide evenly.

use super::instructions::Instructions;
use super::*;

const FORMATS: [Format; 5] = [Format::F32, Format::Bf16, Format::F16, Format::Int8, Format::Q8];

/// Rows, outputs and inputs.
pub(super) const SHAPES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [1, 37, 24],
    [2, 5, 17],
    [3, 64, 96],
    [7, 33, 100],
    [13, 211, 128],
    [16, 100, 300],
    [65, 40, 31],
    [8, 130, 517],
];

/// Returns the instructions of this CPU, and plain Rust, with their names.
pub(super) fn all_instructions() -> Vec<(&'static str, Instructions)> {
    let mut all = vec![("portable", Instructions::Portable)];
    #[cfg(target_arch = "x86_64")]
    all.extend(Avx2::new().map(|avx2| ("AVX2", Instructions::Avx2(avx2))));
    #[cfg(target_arch = "x86_64")]
    all.extend(vnni::Vnni::new().map(|vnni| ("VNNI", Instructions::Vnni(vnni))));
    #[cfg(target_arch = "aarch64")]
    all.extend(sdot::Sdot::new().map(|sdot| ("sdot", Instructions::Sdot(sdot))));
    all
}

/// Returns pseudo-random numbers between -1 and 1.
pub(super) fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Returns the stored weight, `[N, K]`.
fn kept(matrix: &Matrix, n: usize, k: usize) -> Vec<f32> {
    let mut rows = vec![0.0; n * k];
    rows.chunks_exact_mut(k).enumerate().for_each(|(row, values)| matrix.read_row(row, values));
    rows
}

/// Returns the greatest difference from the matmul of `x` and `w`.
fn worst(got: &[f32], x: &[f32], w: &[f32], k: usize) -> f64 {
    let rows = x.chunks_exact(k).flat_map(|x| w.chunks_exact(k).map(move |w| (x, w)));
    let want = rows.map(|(x, w)| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>());
    got.iter().zip(want).map(|(got, want)| (f64::from(*got) - want).abs()).fold(0.0, f64::max)
}

#[test]
fn matmuls_match_the_stored_weights() {
    for ([m, n, k], format) in SHAPES.into_iter().flat_map(|shape| FORMATS.map(|format| (shape, format))) {
        let x = numbers(m * k, 1);
        let w = numbers(n * k, 2);
        let matrix = Matrix::pack(&w, [n, k], format);
        let got = matrix.product(&x, m);
        assert_eq!(got.len(), m * n);
        // Integer rows have an error of at most half of 1/127 of their largest number, at every input; rows
        // rounded to bf16 for tiles have an error of 1/512 of each number.
        let tolerance = match format {
            Format::Int8 | Format::Q8 => 0.5 / 127.0 * k as f64 * 0.3 + 1e-3,
            Format::Bf16 if Amx::new().is_some() => k as f64 * 0.3 / 512.0 + 1e-3,
            _ => 1e-4,
        };
        let off = worst(&got, &x, &kept(&matrix, n, k), k);
        assert!(off < tolerance, "{format:?} {m} x {n} x {k}: error {off}");
    }
}

#[test]
fn q8_matmuls_match_the_stored_weights_without_int8_instructions() {
    for [m, n, k] in SHAPES {
        let x = numbers(m * k, 3);
        let w = numbers(n * k, 4);
        let matrix = Matrix::pack(&w, [n, k], Format::Q8);
        let Packed::Q8(quantized) = &matrix.packed else { panic!("another format") };
        let [got] = widened::product_quantized(quantized, &x).split([n]);
        let off = worst(&got, &x, &kept(&matrix, n, k), k);
        assert!(off < 1e-4, "{m} x {n} x {k}: error {off}");
    }
}

#[test]
fn stored_weights_are_the_nearest_in_their_format() {
    for [_, n, k] in SHAPES {
        let w = numbers(n * k, 5);
        for (format, step) in
            [(Format::F32, 0.0), (Format::Bf16, 2f32.powi(-8)), (Format::F16, 2f32.powi(-11))]
        {
            let kept = kept(&Matrix::pack(&w, [n, k], format), n, k);
            let off = w.iter().zip(&kept).all(|(w, kept)| (w - kept).abs() <= w.abs() * step + 1e-7);
            assert!(off, "{format:?} {n} x {k}");
        }
        // A 16-bit scale is rounded, so its integers may have an error of a little more than a half.
        for (format, inputs, share) in [(Format::Q8, 32, 0.57), (Format::Int8, k, 0.501)] {
            let kept = kept(&Matrix::pack(&w, [n, k], format), n, k);
            let groups = |values| <[f32]>::chunks(values, k).flat_map(move |row| row.chunks(inputs));
            for (w, kept) in groups(&w).zip(groups(&kept)) {
                let largest = w.iter().fold(0.0_f32, |largest, w| largest.max(w.abs()));
                let off = w.iter().zip(kept).fold(0.0_f32, |off, (w, kept)| off.max((w - kept).abs()));
                assert!(off <= largest / 127.0 * share, "{format:?}: error {off} of {largest}");
            }
        }
    }
}

#[test]
fn a_row_is_bit_identical_in_any_number_of_rows() {
    for (k, format) in [24, 96, 101, 768].into_iter().flat_map(|k| FORMATS.map(|format| (k, format))) {
        let x = numbers(17 * k, 6);
        let w = numbers(70 * k, 7);
        let matrix = Matrix::pack(&w, [70, k], format);
        let together = matrix.product(&x, 17);
        for rows in [1, 2, 3, 4, 5, 9] {
            for from in 0..17 - rows {
                let some = matrix.product(&x[from * k..(from + rows) * k], rows);
                assert_eq!(
                    some,
                    together[from * 70..(from + rows) * 70],
                    "{format:?} {rows} rows from {from}, K {k}"
                );
            }
        }
    }
}

#[test]
fn parts_are_slices_of_the_complete_matmul() {
    for (m, format) in [1, 5].into_iter().flat_map(|m| FORMATS.map(|format| (m, format))) {
        let x = numbers(m * 40, 8);
        let w = numbers(150 * 40, 9);
        let matrix = Matrix::pack(&w, [150, 40], format);
        let whole = matrix.product(&x, m);
        let mut from = 0;
        for (part, width) in matrix.product_parts(&x, m, [70, 3, 77]).into_iter().zip([70, 3, 77]) {
            let want: Vec<f32> = whole.chunks(150).flat_map(|row| row[from..from + width].to_vec()).collect();
            assert_eq!(part, want, "{format:?}, {m} rows, {width} from {from}");
            from += width;
        }
    }
}

#[test]
fn numbers_that_are_all_zero_stay_zero() {
    for format in FORMATS {
        let matrix = Matrix::pack(&[0.0; 3 * 40], [3, 40], format);
        let got = matrix.product(&[0.0; 80], 2);
        assert_eq!(got, [0.0; 6]);
    }
}
