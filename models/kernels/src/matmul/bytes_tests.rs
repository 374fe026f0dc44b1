//! Compares int8 matmul with its definition in plain loops, bit for bit, on any CPU.

use half::f16;

use super::tests::{SHAPES, numbers};
use super::*;

/// Returns the name of this CPU's int8 instructions, if it has any.
fn instructions() -> Option<&'static str> {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if ByteProducts::new().is_some() {
        return Some(ByteProducts::NAME);
    }
    #[cfg(target_arch = "x86_64")]
    if Avx2::new().is_some() {
        return Some("avx2");
    }
    None
}

/// Returns `value / scale` as an integer, with ties to even.
fn integer(value: f32, inverse: f32) -> i32 {
    (value * inverse).clamp(-127.0, 127.0).round_ties_even() as i32
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

/// Returns a group of a weight: its integers and their 16-bit scale.
fn round_weight(values: &[f32]) -> (Vec<i32>, f32) {
    let scale = f16::from_f32(largest(values) / 127.0).to_f32();
    let inverse = if scale > 0.0 { scale.recip() } else { 0.0 };
    (values.iter().map(|&value| integer(value, inverse)).collect(), scale)
}

/// Returns a group of a row of `x`: its integers and their scale.
fn round_row(values: &[f32]) -> (Vec<i32>, f32) {
    let largest = largest(values);
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    (values.iter().map(|&value| integer(value, inverse)).collect(), largest * (1.0 / 127.0))
}

/// Returns `[M, N]` for `x` `[M, K]` and `w` `[N, K]`.
fn by_definition(x: &[f32], w: &[f32], k: usize) -> Vec<f32> {
    let outputs = x.chunks(k).flat_map(|x| w.chunks(k).map(move |w| (x, w)));
    let output = |(x, w): (&[f32], &[f32])| {
        let groups = x.chunks(32).map(round_row).zip(w.chunks(32).map(round_weight));
        groups.fold(0.0_f32, |sum, ((x, x_scale), (w, w_scale))| {
            let product: i32 = x.iter().zip(&w).map(|(x, w)| x * w).sum();
            (product as f32).mul_add(w_scale * x_scale, sum)
        })
    };
    outputs.map(output).collect()
}

#[test]
fn int8_matmul_matches_its_definition_if_the_cpu_has_the_instructions_and_widens_otherwise() {
    let mut rounded = 0;
    for [m, n, k] in SHAPES {
        let x = numbers(m * k, 10);
        let w = numbers(n * k, 11);
        let matrix = Matrix::pack(&w, [n, k], Format::Q8);
        let Packed::Q8(quantized) = &matrix.packed else { panic!("another format") };
        let [widened] = widened::product_quantized(quantized, &x).split([n]);
        let defined = by_definition(&x, &w, k);
        rounded += usize::from(defined != widened);
        let want = if instructions().is_some() { defined } else { widened };
        let got = matrix.product(&x, m);
        let off = got.iter().zip(&want).position(|(got, want)| got.to_bits() != want.to_bits());
        let off = off.map(|at| (at, got[at], want[at]));
        assert_eq!(off, None, "{m} x {n} x {k} by {:?}", instructions());
    }
    assert!(rounded > 0, "both ways give the same numbers, so this test cannot distinguish them");
}

/// Compares a matmul with its definition at all shapes.
#[cfg(target_arch = "x86_64")]
fn assert_defined(name: &str, product: impl for<'a> Fn(&'a Quantized, &[f32]) -> Columns<'a>) {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    for [m, n, k] in SHAPES {
        let x = numbers(m * k, 10);
        let w = numbers(n * k, 11);
        let [got] = product(&Quantized::pack(&w, k), &x).split([n]);
        assert_eq!(bits(&got), bits(&by_definition(&x, &w, k)), "{name}, {m} x {n} x {k}");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx2_gives_the_same_bits_as_the_definition() {
    let Some(avx2) = Avx2::new() else { return };
    assert_defined("AVX2", |weight, x| avx2.product(weight, x));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn vnni_gives_the_same_bits_as_the_definition() {
    let Some(vnni) = ByteProducts::new() else { return };
    assert_defined("VNNI", |weight, x| vnni.product(weight, x));
}

/// On real or emulated tiles.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn tiles_give_the_same_bits_as_the_definition() {
    let Some(tiles) = Q8Tiles::with(amx::tests::emulator::amx()) else { return };
    assert_defined("tiles", |weight, x| tiles.product(weight, x));
}

/// `scripts/arm-check` emulates CPUs and specifies the instructions that it expects of each.
#[test]
fn the_detected_instructions_match_the_expectation_of_the_caller() {
    if let Ok(expected) = std::env::var("NTL_EXPECT_BYTE_PRODUCTS") {
        assert_eq!(instructions().unwrap_or("none"), expected);
    }
}

/// Asserts that a number that is not finite, at any input of a row of `x` or of a weight, reaches the outputs
/// of its row and no others.
fn assert_not_lost(name: &str, product: impl for<'a> Fn(&'a Quantized, &[f32]) -> Columns<'a>) {
    // A complete group, and a part of one.
    let [m, n, k] = [3, 20, 45];
    let (x, w) = (numbers(m * k, 12), numbers(n * k, 13));
    let broken = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for (input, value) in (0..k).flat_map(|input| broken.map(|value| (input, value))) {
        let (mut broken_x, mut broken_w) = (x.clone(), w.clone());
        broken_x[k + input] = value;
        broken_w[2 * k + input] = value;
        let [of_x] = product(&Quantized::pack(&w, k), &broken_x).split([n]);
        let [of_w] = product(&Quantized::pack(&broken_w, k), &x).split([n]);
        for at in 0..m * n {
            assert_eq!(of_x[at].is_finite(), at / n != 1, "{name}: {value} at input {input}, output {at}");
            assert_eq!(of_w[at].is_finite(), at % n != 2, "{name}: {value} at weight {input}, output {at}");
        }
    }
}

#[test]
fn a_number_that_is_not_finite_reaches_the_outputs_of_its_row_on_every_instruction_set() {
    assert_not_lost("widened", widened::product_quantized);
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if let Some(bytes) = ByteProducts::new() {
        assert_not_lost(ByteProducts::NAME, |weight, x| bytes.product(weight, x));
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = Avx2::new() {
        assert_not_lost("avx2", |weight, x| avx2.product(weight, x));
    }
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    if let Some(tiles) = Q8Tiles::with(amx::tests::emulator::amx()) {
        assert_not_lost("tiles", |weight, x| tiles.product(weight, x));
    }
}
