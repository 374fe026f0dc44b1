//! Matmul in f32. 8-bit and 16-bit weights are widened block by block.

use pulp::{Arch, Simd, WithSimd};

use super::columns::{Columns, ColumnsShape};
use super::float::Float;
use super::panels::{Panels, ROWS_MAX, VECTORS_MAX};
use super::quantized::{GROUP, GROUP_BYTES, Panel, Quantized, WIDTH, widen};
use super::tiles::Tiles;
use crate::ahead::Ahead;

/// Number of inputs that are added up before their sum is added to the output. This keeps the rounding errors
/// of long sums small, and a block of a panel stays in the nearer caches for all rows.
const BLOCK: usize = 128;

/// Number of inputs between two requests of memory.
const STEP: usize = 8;

/// Returns `[M, N]` for panels of `[N, K]` and `x` `[M, K]`. Neither may be empty.
pub(super) fn product<'a, T: Float>(panels: &'a Panels<T>, x: &[f32]) -> Columns<'a> {
    let tiles = Tiles::new(x, panels.k, ROWS_MAX);
    let arch = Arch::new();
    let work = tiles.m * panels.n * panels.k;
    let shape = ColumnsShape { m: tiles.m, width: panels.width(), padded: panels.padded() };
    Columns::new(shape, work, move |panel, out| {
        let values = panels.panel(panel);
        arch.dispatch(FloatPanel { x: &tiles, panel: values, after: panels.after(panel), out });
    })
}

/// Multiplies all rows of `x` with one panel; `out` is `[M, width]`.
struct FloatPanel<'a, T> {
    x: &'a Tiles,
    panel: &'a [T],
    /// The panels after it.
    after: &'a [T],
    out: &'a mut [f32],
}

impl<T: Float> WithSimd for FloatPanel<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.panel.len() / self.x.k / S::F32_LANES {
            1 => self.run::<S, 1>(simd),
            2 => self.run::<S, 2>(simd),
            3 => self.run::<S, 3>(simd),
            _ => self.run::<S, VECTORS_MAX>(simd),
        }
    }
}

impl<T: Float> FloatPanel<'_, T> {
    #[inline(always)]
    fn run<S: Simd, const V: usize>(self, simd: S) {
        let width = V * S::F32_LANES;
        let mut scratch = vec![0.0; if size_of::<T>() < 4 { BLOCK * width } else { 0 }];
        let blocks = self.panel.chunks(BLOCK * width);
        let after = self.after.chunks(BLOCK * width).next().unwrap_or_default();
        let next = blocks.clone().skip(1).chain([after]);
        for (block, (weights, next)) in blocks.zip(next).enumerate() {
            let steps = (weights.len() / width).div_ceil(STEP);
            let ahead = Ahead::new(next, self.x.count() * steps);
            let weights = T::widen(weights, &mut scratch);
            accumulate::<S, V>(simd, self.x, block * BLOCK, weights, self.out, ahead);
        }
    }
}

/// Returns `[M, N]` for `x` `[M, K]` and a weight that is widened group by group. Neither may be empty.
pub(super) fn product_quantized<'a>(weight: &'a Quantized, x: &[f32]) -> Columns<'a> {
    let tiles = Tiles::new(x, weight.k, ROWS_MAX);
    let arch = Arch::new();
    weight.by_panel(tiles.m, move |panel, out| {
        arch.dispatch(QuantizedPanel { x: &tiles, panel: weight.panel(panel), out });
    })
}

/// Multiplies all rows of `x` with one quantized panel; `out` is `[M, WIDTH]`.
struct QuantizedPanel<'a> {
    x: &'a Tiles,
    panel: Panel<'a>,
    out: &'a mut [f32],
}

impl WithSimd for QuantizedPanel<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut wide = vec![0.0; BLOCK * WIDTH];
        let groups = self.panel.values.len() / GROUP_BYTES;
        for (block, first) in (0..groups).step_by(BLOCK / GROUP).enumerate() {
            let from = block * BLOCK;
            for (group, wide) in (first..groups).zip(wide.chunks_exact_mut(GROUP * WIDTH)) {
                widen(self.panel, group, wide);
            }
            let weights = &wide[..BLOCK.min(self.x.k - from) * WIDTH];
            match WIDTH / S::F32_LANES {
                1 => accumulate::<S, 1>(simd, self.x, from, weights, self.out, Ahead::none()),
                2 => accumulate::<S, 2>(simd, self.x, from, weights, self.out, Ahead::none()),
                4 => accumulate::<S, 4>(simd, self.x, from, weights, self.out, Ahead::none()),
                _ => accumulate::<S, WIDTH>(simd, self.x, from, weights, self.out, Ahead::none()),
            }
        }
    }
}

/// Adds the products of one block of inputs, starting at `from`, to `out` `[M, width]`. The first block
/// overwrites it. Each tile takes `ahead` one step further every [`STEP`] inputs.
#[inline(always)]
fn accumulate<S: Simd, const V: usize>(
    simd: S,
    x: &Tiles,
    from: usize,
    weights: &[f32],
    out: &mut [f32],
    mut ahead: Ahead<'_>,
) {
    let width = V * S::F32_LANES;
    let (weights, _) = S::as_simd_f32s(weights);
    let (weights, _) = weights.as_chunks::<V>();
    for (first, rows, tile) in x.iter() {
        let tile = &tile[from * rows..(from + weights.len()) * rows];
        let out = &mut out[first * width..(first + rows) * width];
        match rows {
            1 => sum_tile::<S, 1, V>(simd, tile, weights, out, from == 0, &mut ahead),
            2 => sum_tile::<S, 2, V>(simd, tile, weights, out, from == 0, &mut ahead),
            3 => sum_tile::<S, 3, V>(simd, tile, weights, out, from == 0, &mut ahead),
            4 => sum_tile::<S, 4, V>(simd, tile, weights, out, from == 0, &mut ahead),
            5 => sum_tile::<S, 5, V>(simd, tile, weights, out, from == 0, &mut ahead),
            _ => sum_tile::<S, ROWS_MAX, V>(simd, tile, weights, out, from == 0, &mut ahead),
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
    ahead: &mut Ahead<'_>,
) {
    let mut sums = [[simd.splat_f32s(0.0); V]; M];
    let (x, _) = x.as_chunks::<M>();
    for (x, weights) in x.chunks(STEP).zip(weights.chunks(STEP)) {
        ahead.step();
        for (x, weights) in x.iter().zip(weights) {
            for (sums, &x) in sums.iter_mut().zip(x) {
                let x = simd.splat_f32s(x);
                for (sum, &weight) in sums.iter_mut().zip(weights) {
                    *sum = simd.mul_add_f32s(x, weight, *sum);
                }
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
