//! Products with weights of floating-point numbers; those of 16 bits are widened block by block, and computed with as f32.

use bytemuck::Pod;
use half::{bf16, f16};
use pulp::{Arch, Simd, WithSimd};

use super::panels::{Panels, Registers, VECTORS};
use super::rows::Tiles;
use super::{BLOCK, Columns};

/// An element type of weights.
pub(super) trait Float: Pod + Send + Sync {
    fn to_f32(self) -> f32;

    /// The same numbers as f32, where they lie or in `scratch`.
    #[inline(always)]
    fn widen<'a>(values: &'a [Self], scratch: &'a mut [f32]) -> &'a [f32] {
        let scratch = &mut scratch[..values.len()];
        scratch.iter_mut().zip(values).for_each(|(wide, value)| *wide = value.to_f32());
        scratch
    }
}

impl Float for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn widen<'a>(values: &'a [Self], _: &'a mut [f32]) -> &'a [f32] {
        values
    }
}

impl Float for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

impl Float for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    #[inline(always)]
    fn widen<'a>(values: &'a [Self], scratch: &'a mut [f32]) -> &'a [f32] {
        use half::slice::HalfFloatSliceExt;
        let scratch = &mut scratch[..values.len()];
        values.convert_to_f32_slice(scratch);
        scratch
    }
}

/// `[M, N]` from panels of `[N, K]` and `x` `[M, K]`, none of them empty.
pub(super) fn product<T: Float>(panels: &Panels<T>, x: &[f32]) -> Columns {
    let tiles = Tiles::new(x, panels.k, Registers::new().rows);
    let arch = Arch::new();
    let task = |panel: usize, out: &mut [f32]| {
        arch.dispatch(OnePanel { x: &tiles, panel: panels.panel(panel), out });
    };
    let work = tiles.m * panels.n * panels.k;
    Columns::compute((tiles.m, panels.width(), panels.padded()), work, task)
}

/// All rows of `x` against one panel; `out` is `[M, width]`.
struct OnePanel<'a, T> {
    x: &'a Tiles,
    panel: &'a [T],
    out: &'a mut [f32],
}

impl<T: Float> WithSimd for OnePanel<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.panel.len() / self.x.k / S::F32_LANES {
            1 => self.run::<S, 1>(simd),
            2 => self.run::<S, 2>(simd),
            3 => self.run::<S, 3>(simd),
            _ => self.run::<S, VECTORS>(simd),
        }
    }
}

impl<T: Float> OnePanel<'_, T> {
    #[inline(always)]
    fn run<S: Simd, const V: usize>(self, simd: S) {
        let width = V * S::F32_LANES;
        let mut scratch = vec![0.0; if size_of::<T>() < 4 { BLOCK * width } else { 0 }];
        for (block, weights) in self.panel.chunks(BLOCK * width).enumerate() {
            let weights = T::widen(weights, &mut scratch);
            accumulate::<S, V>(simd, (self.x, block * BLOCK), weights, self.out);
        }
    }
}

/// Adds the products of one block of inputs, those from `from` on, to `out` `[M, width]`, which the first block begins.
#[inline(always)]
pub(super) fn accumulate<S: Simd, const V: usize>(
    simd: S,
    (x, from): (&Tiles, usize),
    weights: &[f32],
    out: &mut [f32],
) {
    let width = V * S::F32_LANES;
    let (weights, _) = S::as_simd_f32s(weights);
    let (weights, _) = weights.as_chunks::<V>();
    for (first, rows, tile) in x.iter() {
        let tile = &tile[from * rows..(from + weights.len()) * rows];
        let out = &mut out[first * width..(first + rows) * width];
        match rows {
            1 => sum_tile::<S, 1, V>(simd, tile, weights, out, from == 0),
            2 => sum_tile::<S, 2, V>(simd, tile, weights, out, from == 0),
            3 => sum_tile::<S, 3, V>(simd, tile, weights, out, from == 0),
            4 => sum_tile::<S, 4, V>(simd, tile, weights, out, from == 0),
            5 => sum_tile::<S, 5, V>(simd, tile, weights, out, from == 0),
            _ => sum_tile::<S, 6, V>(simd, tile, weights, out, from == 0),
        }
    }
}

#[inline(always)]
fn sum_tile<S: Simd, const M: usize, const V: usize>(
    simd: S,
    x: &[f32],
    weights: &[[S::f32s; V]],
    out: &mut [f32],
    is_first: bool,
) {
    let mut sums = [[simd.splat_f32s(0.0); V]; M];
    let (x, _) = x.as_chunks::<M>();
    for (x, weights) in x.iter().zip(weights) {
        for (sums, &x) in sums.iter_mut().zip(x) {
            let x = simd.splat_f32s(x);
            for (sum, &weight) in sums.iter_mut().zip(weights) {
                *sum = simd.mul_add_f32s(x, weight, *sum);
            }
        }
    }
    let (out, _) = S::as_mut_simd_f32s(out);
    let (out, _) = out.as_chunks_mut::<V>();
    for (out, sums) in out.iter_mut().zip(sums) {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = if is_first { sum } else { simd.add_f32s(*out, sum) };
        }
    }
}
