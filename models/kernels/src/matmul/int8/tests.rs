//! Compares every instruction set with plain integer sums, bit for bit.

use super::super::amx::Elements;
use super::super::amx::tests::tile_units;
use super::super::tests::{SHAPES, all_instructions, numbers};
use super::*;

type PanelBy = Box<dyn Fn(&Rows, Panel<'_>, &mut [f32]) + Sync>;

/// Returns the instruction sets of this CPU, and plain Rust and emulated tiles, with their names.
fn kernels() -> Vec<(&'static str, PanelBy)> {
    let mut kernels: Vec<(&'static str, PanelBy)> = Vec::new();
    for (name, instructions) in all_instructions() {
        kernels.push((name, Box::new(move |rows, panel, out| set_panel(instructions, rows, panel, out))));
    }
    kernels.extend(tile_units().into_iter().map(|(name, unit)| {
        let panel: PanelBy = Box::new(move |rows, panel, out| {
            amx::panel_by(rows, panel, out, |sides, sums| unit(Elements::Bytes, sides, sums));
        });
        (name, panel)
    }));
    kernels
}

/// Rounds numbers to integers as the format specifies, and returns their scale.
fn rounded(values: &[f32]) -> (Vec<i64>, f32) {
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    let integers = values.iter().map(|value| f64::from(value * inverse).round_ties_even() as i64);
    (integers.collect(), largest / 127.0)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_instruction_set_gives_the_exact_sums_of_the_integers() {
    for [m, n, k] in SHAPES {
        let x = numbers(m * k, 21);
        let w = numbers(n * k, 22);
        let weight = Int8::pack(&w, k);
        let outputs: Vec<_> = w.chunks_exact(k).map(rounded).collect();
        let mut want = Vec::new();
        for (row, row_scale) in x.chunks_exact(k).map(rounded) {
            for (output, scale) in &outputs {
                let sum: i64 = row.iter().zip(output).map(|(x, w)| x * w).sum();
                want.push(sum as f32 * scale * row_scale);
            }
        }
        for (name, kernel) in kernels() {
            let [got] = weight.product_by(&x, kernel).split([n]);
            assert_eq!(bits(&got), bits(&want), "{name}, {m} x {n} x {k}");
        }
    }
}

#[test]
fn the_largest_sums_are_exact() {
    // Each sum has 4096 products of -127 and 127, so that saturation of 16-bit sums would be visible.
    let (k, n) = (4096, 3);
    let weight = Int8::pack(&vec![-2.0; n * k], k);
    for (name, kernel) in kernels() {
        let [got] = weight.product_by(&vec![1.0; 9 * k], kernel).split([n]);
        let want = (-127 * 127 * 4096) as f32 * (2.0 / 127.0) * (1.0 / 127.0);
        assert_eq!(bits(&got), vec![want.to_bits(); 9 * n], "{name}");
    }
}

#[test]
fn sums_stay_exact_over_more_inputs_than_32_bits_hold_at_full_range() {
    let k = 200_000;
    let weight = Int8::pack(&vec![1.0; k], k);
    for (name, kernel) in kernels() {
        let [got] = weight.product_by(&vec![1.0; k], kernel).split([1]);
        assert!((f64::from(got[0]) / k as f64 - 1.0).abs() < 1e-6, "{name}: {}", got[0]);
    }
}

#[test]
fn a_nan_affects_only_its_own_row() {
    let weight = Int8::pack(&numbers(5 * 70, 23), 70);
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = numbers(3 * 70, 24);
        let [whole] = weight.product(&x).split([5]);
        x[70 + 3] = broken;
        for (name, kernel) in kernels() {
            let [got] = weight.product_by(&x, kernel).split([5]);
            assert!(got[5..10].iter().all(|value| !value.is_finite()), "{name}, {broken}: {got:?}");
            assert_eq!((&got[..5], &got[10..]), (&whole[..5], &whole[10..]), "{name}, {broken}");
        }
    }
}

#[test]
fn numbers_too_small_for_a_scale_are_zero() {
    let weight = Int8::pack(&[1.0; 70], 70);
    for (name, kernel) in kernels() {
        let [got] = weight.product_by(&[1e-40; 70], kernel).split([1]);
        assert_eq!(got, [0.0], "{name}");
    }
    let mut row = [1.0; 70];
    Int8::pack(&[1e-40; 70], 70).read_row(0, &mut row);
    assert_eq!(bits(&row), [0; 70]);
}
