//! bf16 weights in the layout of tiles. Rows of `x` are also rounded to bf16, and products are added up in
//! f32.
//!
//! A single row uses the same instructions as many rows, since these add up in their own order and treat
//! subnormal numbers as 0. A row is therefore bit-identical alone and in a batch, but differs from a CPU
//! without tiles.

use half::bf16;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::amx::{self, Amx, Elements, Sides, WIDTH};
use super::columns::{Columns, ColumnsShape};
use super::panels::Aligned;
use super::tiles::LAYOUT_MAX;

/// Number of adjacent inputs.
const PAIR: usize = 2;
/// Inputs are padded with zeros to a multiple of this number.
const INPUTS: usize = amx::STEP_BYTES / size_of::<bf16>();

/// A weight `[N, K]` in panels of [`WIDTH`] outputs, padded with zeros to complete panels.
#[derive(Debug)]
pub(super) struct Bf16Tiles {
    n: usize,
    k: usize,
    /// For each panel, `[K / PAIR, WIDTH, PAIR]`.
    values: Aligned<bf16>,
}

impl Bf16Tiles {
    pub(super) fn pack(values: &[f32], k: usize) -> Self {
        let n = values.len() / k.max(1);
        let padded = k.next_multiple_of(INPUTS);
        let mut packed = Self { n, k, values: Aligned::zeros(n.next_multiple_of(WIDTH) * padded) };
        if n > 0 {
            let panels = packed.values.as_mut_slice().par_chunks_exact_mut(WIDTH * padded);
            panels.zip(values.par_chunks(WIDTH * k)).for_each(|(panel, rows)| {
                for (column, row) in rows.chunks_exact(k).enumerate() {
                    for (input, &value) in row.iter().enumerate() {
                        let place = (input / PAIR * WIDTH + column) * PAIR + input % PAIR;
                        panel[place] = bf16::from_f32(value);
                    }
                }
            });
        }
        packed
    }

    fn panel(&self, index: usize) -> &[bf16] {
        let size = WIDTH * self.k.next_multiple_of(INPUTS);
        &self.values.as_slice()[index * size..][..size]
    }

    pub(super) fn read_row(&self, n: usize, row: &mut [f32]) {
        let pairs = self.panel(n / WIDTH)[n % WIDTH * PAIR..].chunks(WIDTH * PAIR);
        for (values, pair) in row.chunks_mut(PAIR).zip(pairs) {
            values.iter_mut().zip(pair).for_each(|(value, kept)| *value = kept.to_f32());
        }
    }

    /// Returns `[M, N]` for `x` `[M, K]`. Neither may be empty.
    pub(super) fn product<'a>(&'a self, support: Amx, x: &[f32]) -> Columns<'a> {
        self.product_by(x, move |sides, out| amx::panel(support, Elements::Bf16, sides, out))
    }

    /// Does the same, with `panel(sides, outputs [M, WIDTH])` for each panel.
    fn product_by<'a>(
        &'a self,
        x: &[f32],
        panel: impl Fn(Sides<'_>, &mut [amx::Row]) + Sync + 'a,
    ) -> Columns<'a> {
        let m = x.len() / self.k;
        let rows = rounded(x, self.k);
        let shape = ColumnsShape { m, width: WIDTH, padded: self.n.next_multiple_of(WIDTH) };
        Columns::new(shape, m * self.n * self.k, move |index, out| {
            let rows = bytemuck::cast_slice(rows.as_slice());
            let sides = Sides::new(rows, bytemuck::cast_slice(self.panel(index)), &[[0; 4]; WIDTH]);
            panel(sides, bytemuck::cast_slice_mut(out));
        })
    }
}

/// Returns the bits of `x` `[M, K]` rounded to bf16, with inputs padded to a multiple of [`INPUTS`].
fn rounded(x: &[f32], k: usize) -> Aligned<u16> {
    let padded = k.next_multiple_of(INPUTS);
    let mut rows = Aligned::zeros(x.len() / k * padded);
    let arch = Arch::new();
    if x.len() <= LAYOUT_MAX {
        for (x, bits) in x.chunks_exact(k).zip(rows.as_mut_slice().chunks_exact_mut(padded)) {
            arch.dispatch(Round { x, bits });
        }
    } else {
        x.par_chunks_exact(k)
            .zip(rows.as_mut_slice().par_chunks_exact_mut(padded))
            .for_each(|(x, bits)| arch.dispatch(Round { x, bits }));
    }
    rows
}

struct Round<'a> {
    x: &'a [f32],
    bits: &'a mut [u16],
}

impl WithSimd for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (bits, value) in self.bits.iter_mut().zip(self.x) {
            let whole = value.to_bits();
            // Rounds to nearest, ties to even. NaN stays NaN.
            let nearest = (whole.wrapping_add(0x7fff + (whole >> 16 & 1)) >> 16) as u16;
            *bits = if value.is_nan() { 0x7fc0 } else { nearest };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::amx::tests::{reference, tile_units};
    use super::super::tests::{SHAPES, numbers};
    use super::*;

    #[test]
    fn rows_are_rounded_like_bf16() {
        let mut x = numbers(1000, 31);
        x.extend([0.0, -0.0, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, 1e-40, 1.003_906_3, 1.011_718_8]);
        let want: Vec<u16> = x.iter().map(|&value| bf16::from_f32(value).to_bits()).collect();
        assert_eq!(rounded(&x, x.len()).as_slice()[..x.len()], want);
        assert!(bf16::from_bits(rounded(&[f32::NAN], 1).as_slice()[0]).is_nan());
    }

    #[test]
    fn matmuls_are_bit_identical_to_the_definition_of_the_instruction() {
        for [m, n, k] in SHAPES {
            let x = numbers(m * k, 32);
            let w = numbers(n * k, 33);
            let weight = Bf16Tiles::pack(&w, k);
            let want = reference(&x, &w, k);
            for (name, unit) in tile_units() {
                let panel = |sides: Sides<'_>, out: &mut [amx::Row]| unit(Elements::Bf16, sides, out);
                let [got] = weight.product_by(&x, panel).split([n]);
                assert_eq!(got, want, "{name}, {m} x {n} x {k}");
            }
        }
    }

    #[test]
    fn a_row_is_bit_identical_in_any_number_of_rows() {
        let (k, n) = (101, 70);
        let x = numbers(35 * k, 34);
        let weight = Bf16Tiles::pack(&numbers(n * k, 35), k);
        for (name, unit) in tile_units() {
            let panel = |sides: Sides<'_>, out: &mut [amx::Row]| unit(Elements::Bf16, sides, out);
            let [together] = weight.product_by(&x, panel).split([n]);
            for (from, rows) in [(0, 1), (34, 1), (3, 2), (1, 16), (2, 17), (1, 33)] {
                let [some] = weight.product_by(&x[from * k..][..rows * k], panel).split([n]);
                assert_eq!(some, together[from * n..][..rows * n], "{name}, {rows} rows from {from}");
            }
        }
    }

    #[test]
    fn stored_weights_are_rounded_to_nearest() {
        for [_, n, k] in SHAPES {
            let w = numbers(n * k, 36);
            let weight = Bf16Tiles::pack(&w, k);
            let mut row = vec![0.0; k];
            for (index, w) in w.chunks_exact(k).enumerate() {
                weight.read_row(index, &mut row);
                let want: Vec<f32> = w.iter().map(|&value| bf16::from_f32(value).to_f32()).collect();
                assert_eq!(row, want);
            }
        }
    }
}
