//! Compares every instruction set with the definition, bit for bit, and the definition with sums in f64.

use super::super::tests::{all_instructions, numbers};
use super::*;

const BITS: [CodeBits; 3] = [CodeBits::Four, CodeBits::Five, CodeBits::Six];

/// Rows, outputs and inputs.
const SHAPES: [[usize; 3]; 8] = [
    [1, 1, 32],
    [1, 37, 64],
    [2, 5, 32],
    [3, 64, 96],
    [7, 33, 256],
    [13, 211, 128],
    [29, 100, 288],
    [70, 40, 544],
];

/// Returns pseudo-random codes with parameters that are exact in 16 bits, up to `scale`.
fn codes(bits: CodeBits, [n, k]: [usize; 2], scale: f32) -> Codes {
    let largest = (1 << bits.count()) as f32;
    let code = |value: f32| ((value + 1.0) / 2.0 * largest) as u8;
    let exact = |value: &f32| f16::from_f32(*value).to_f32() * scale;
    let params: Vec<f32> = numbers(2 * n * k / GROUP, 31).iter().map(exact).collect();
    Codes {
        bits,
        codes: numbers(n * k, 32).into_iter().map(code).collect(),
        params: params.as_chunks::<2>().0.to_vec(),
    }
}

/// Returns the elements `[N, K]` that the codes stand for.
fn elements(codes: &Codes) -> Vec<f32> {
    let groups = codes.codes.chunks_exact(GROUP).zip(&codes.params);
    let group = |(values, &[first, second]): (&[u8], &[f32; 2])| {
        let element = |(input, &code): (usize, &u8)| match codes.bits {
            CodeBits::Four | CodeBits::Five => f32::from(code) * first + second,
            CodeBits::Six => (f32::from(code) - 32.0) * if input < 16 { first } else { second },
        };
        values.iter().enumerate().map(element).collect::<Vec<_>>()
    };
    groups.flat_map(group).collect()
}

/// Returns the matmul by plain loops over rounded rows.
fn by_definition(x: &[f32], codes: &Codes, k: usize) -> Vec<f32> {
    let mut outputs = Vec::new();
    for x in x.chunks_exact(k) {
        for (values, params) in codes.codes.chunks_exact(k).zip(codes.params.chunks_exact(k / GROUP)) {
            let largest = params.iter().flatten().fold(0.0_f32, |largest, param| largest.max(param.abs()));
            let factor = if largest > 0.0 { largest.log2().floor().exp2() } else { f32::MIN_POSITIVE };
            let mut sum = 0.0_f32;
            for ((x, values), params) in x.chunks_exact(GROUP).zip(values.chunks_exact(GROUP)).zip(params) {
                let [first, second] = params.map(|param| f16::from_f32(param / factor).to_f32());
                let largest = x.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
                let integers: Vec<i32> = x.iter().map(|x| (x * inverse).round_ties_even() as i32).collect();
                let scale = largest * (1.0 / 127.0);
                let product = |inputs: std::ops::Range<usize>, offset: i32| {
                    let pairs = integers[inputs.clone()].iter().zip(&values[inputs]);
                    pairs.map(|(x, &code)| x * (i32::from(code) - offset)).sum::<i32>() as f32
                };
                sum = if codes.bits == CodeBits::Six {
                    let half = product(0..16, 32).mul_add(first * scale, sum);
                    product(16..32, 32).mul_add(second * scale, half)
                } else {
                    let total = integers.iter().sum::<i32>() as f32 * scale;
                    second.mul_add(total, product(0..32, 0).mul_add(first * scale, sum))
                };
            }
            outputs.push(sum * factor);
        }
    }
    outputs
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_instruction_set_gives_the_bits_of_the_definition() {
    for ([m, n, k], code_bits) in SHAPES.into_iter().flat_map(|shape| BITS.map(|bits| (shape, bits))) {
        let x = numbers(m * k, 33);
        let codes = codes(code_bits, [n, k], 0.01);
        let weight = Coded::pack(&codes, k);
        let want = bits(&by_definition(&x, &codes, k));
        for (name, instructions) in all_instructions() {
            let [got] = weight.product_by(&x, instructions).split([n]);
            assert_eq!(bits(&got), want, "{name}, {code_bits:?}, {m} x {n} x {k}");
        }
    }
}

#[test]
fn stored_elements_are_those_of_the_codes() {
    for ([_, n, k], code_bits) in SHAPES.into_iter().flat_map(|shape| BITS.map(|bits| (shape, bits))) {
        let codes = codes(code_bits, [n, k], 1.0);
        let weight = Coded::pack(&codes, k);
        let mut row = vec![0.0; k];
        for (n, want) in elements(&codes).chunks_exact(k).enumerate() {
            weight.read_row(n, &mut row);
            let off = row.iter().zip(want).fold(0.0_f32, |off, (got, want)| off.max((got - want).abs()));
            // One fused operation instead of two, and small parameters of a row lose bits.
            assert!(off < 1e-5, "{code_bits:?}, output {n} of {n} x {k}: {off}");
        }
    }
}

/// On real or emulated tiles.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn tiles_give_the_bits_of_the_definition() {
    let Some(tiles) = Q8Tiles::with(super::super::amx::tests::emulator::amx()) else { return };
    let Some(vnni) = Vnni::new() else { return };
    for ([m, n, k], code_bits) in SHAPES.into_iter().flat_map(|shape| BITS.map(|bits| (shape, bits))) {
        let x = numbers(m * k, 34);
        let codes = codes(code_bits, [n, k], 0.01);
        let [got] = Coded::pack(&codes, k).product_by_tiles(&x, tiles, vnni).split([n]);
        let want = bits(&by_definition(&x, &codes, k));
        assert_eq!(bits(&got), want, "{code_bits:?}, {m} x {n} x {k}");
    }
}

#[test]
fn errors_are_within_those_of_rounded_rows_and_parameters() {
    for ([m, n, k], code_bits) in SHAPES.into_iter().flat_map(|shape| BITS.map(|bits| (shape, bits))) {
        let x = numbers(m * k, 35);
        let mut codes = codes(code_bits, [n, k], 0.01);
        // Parameters of more bits than f16 has.
        codes.params.iter_mut().flatten().for_each(|param| *param *= 1.000_3);
        let [got] = Coded::pack(&codes, k).product(&x).split([n]);
        let elements = elements(&codes);
        let outputs = x.chunks_exact(k).flat_map(|x| elements.chunks_exact(k).map(move |w| (x, w)));
        for (at, ((x, w), got)) in outputs.zip(got).enumerate() {
            let want: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            let mut bound = 1e-6;
            let params = codes.params[at % n * k / GROUP..].iter();
            for ((x, w), params) in x.chunks_exact(GROUP).zip(w.chunks_exact(GROUP)).zip(params) {
                let step = x.iter().fold(0.0_f32, |largest, x| largest.max(x.abs())) / 127.0;
                let weights: f32 = w.iter().map(|w| w.abs()).sum();
                let largest = 64.0 * params[0].abs().max(params[1].abs());
                let rows: f32 = x.iter().map(|x| x.abs()).sum();
                bound += f64::from(0.501 * step * weights + largest * rows / 2048.0);
            }
            let off = (f64::from(got) - want).abs();
            assert!(off < bound, "{code_bits:?}, {m} x {n} x {k}, output {at}: {off} of {bound}");
        }
    }
}

#[test]
fn a_row_is_bit_identical_in_any_number_of_rows() {
    let [m, n, k] = [101, 70, 288];
    for code_bits in BITS {
        let x = numbers(m * k, 36);
        let weight = Coded::pack(&codes(code_bits, [n, k], 1.0), k);
        let [together] = weight.product(&x).split([n]);
        for rows in [1, 2, 5, 13, 97] {
            for from in (0..=m - rows).step_by(rows) {
                let [some] = weight.product(&x[from * k..(from + rows) * k]).split([n]);
                let want = bits(&together[from * n..(from + rows) * n]);
                assert_eq!(bits(&some), want, "{code_bits:?}, {rows} rows from {from}");
            }
        }
    }
}

#[test]
fn a_number_that_is_not_finite_affects_only_its_own_row() {
    let [m, n, k] = [3, 20, 64];
    let x = numbers(m * k, 37);
    for code_bits in BITS {
        let weight = Coded::pack(&codes(code_bits, [n, k], 1.0), k);
        let [whole] = weight.product(&x).split([n]);
        for (input, value) in (0..k).flat_map(|input| [f32::NAN, -f32::INFINITY].map(|value| (input, value)))
        {
            let mut broken = x.clone();
            broken[k + input] = value;
            for (name, instructions) in all_instructions() {
                let [got] = weight.product_by(&broken, instructions).split([n]);
                let lost = got[n..2 * n].iter().any(|output| output.is_finite());
                assert!(!lost, "{name}, {code_bits:?}: {value} at input {input}");
                assert_eq!((&got[..n], &got[2 * n..]), (&whole[..n], &whole[2 * n..]), "{name}");
            }
        }
    }
}

#[test]
fn the_least_and_the_largest_parameters_keep_their_precision() {
    let [n, k] = [5, 64];
    let x = numbers(k, 38);
    for code_bits in BITS {
        let plain = codes(code_bits, [n, k], 1.0);
        let [want] = Coded::pack(&plain, k).product(&x).split([n]);
        // From subnormal numbers of f16 to more than its largest number.
        for exponent in [-30, -24, -14, 0, 15, 22] {
            let scale = 2.0_f32.powi(exponent);
            let mut codes = plain.clone();
            codes.params.iter_mut().flatten().for_each(|param| *param *= scale);
            for (name, instructions) in all_instructions() {
                let [got] = Coded::pack(&codes, k).product_by(&x, instructions).split([n]);
                let want: Vec<f32> = want.iter().map(|want| want * scale).collect();
                assert_eq!(bits(&got), bits(&want), "{name}, {code_bits:?}, 2^{exponent}");
            }
        }
        let zero = Codes { params: vec![[0.0; 2]; plain.params.len()], ..plain };
        let [got] = Coded::pack(&zero, k).product(&x).split([n]);
        assert_eq!(got, [0.0; 5]);
    }
}
