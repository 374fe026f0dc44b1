//! int8 weights with one scale per output. Rows of `x` also become integers, with one scale per row.
//!
//! The sum over all inputs is an exact 32-bit integer, so every instruction set gives bit-identical results,
//! in any order and for any number of rows. [`OFFSET`] is added to the bytes of `x`, because the x86
//! instructions require one unsigned operand. Its contribution to a sum depends only on the weight and is
//! subtracted from the sum's initial value.

mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;
mod rows;
#[cfg(target_arch = "aarch64")]
mod sdot;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vnni;

use rayon::prelude::*;

use rows::Rows;

use super::amx::Amx;
use super::columns::{Columns, ColumnsShape};
use super::instructions::Instructions;
use super::panels::Aligned;
use super::quantized::nearest;
#[cfg(target_arch = "x86_64")]
use crate::ahead::Ahead;

/// Number of outputs in a panel.
const WIDTH: usize = 64;
/// Number of inputs whose integers are adjacent.
const QUAD: usize = 4;
/// Number of quads between two requests of memory.
#[cfg(target_arch = "x86_64")]
const QUADS_PER_STEP: usize = 2;
/// Inputs are padded with zeros to a multiple of this number.
const INPUTS: usize = 64;
/// Offset that makes the integers of `x` unsigned.
const OFFSET: i32 = 128;
/// Maximum absolute value of a weight's integers.
const MAX: f32 = 127.0;

/// A weight `[N, K]` in panels of [`WIDTH`] outputs, padded with zeros to complete panels.
#[derive(Debug)]
pub(super) struct Int8 {
    n: usize,
    k: usize,
    /// For each panel, `[K / QUAD, WIDTH, QUAD]`.
    values: Aligned<i8>,
    /// `[N]`, padded.
    scales: Aligned<f32>,
    /// `[N]`, padded: the negated contribution of [`OFFSET`] to the sums.
    starts: Aligned<i32>,
}

#[derive(Clone, Copy)]
struct Panel<'a> {
    /// `[K / QUAD, WIDTH, QUAD]`.
    values: &'a [i8],
    scales: &'a [f32; WIDTH],
    starts: &'a [i32; WIDTH],
    /// The values of the next panel; none after the last one.
    #[cfg(target_arch = "x86_64")]
    next: &'a [i8],
}

#[cfg(target_arch = "x86_64")]
impl<'a> Panel<'a> {
    /// Requests the next panel while `tiles` tiles of rows are multiplied by this one, [`QUADS_PER_STEP`]
    /// quads in each step.
    fn ahead(self, tiles: usize) -> Ahead<'a> {
        Ahead::new(self.next, tiles * self.values.len() / (QUADS_PER_STEP * QUAD * WIDTH))
    }
}

impl Int8 {
    pub(super) fn pack(values: &[f32], k: usize) -> Self {
        let n = values.len() / k.max(1);
        let padded = k.next_multiple_of(INPUTS);
        let outputs = n.next_multiple_of(WIDTH);
        let mut packed = Self {
            n,
            k,
            values: Aligned::zeros(outputs * padded),
            scales: Aligned::zeros(outputs),
            starts: Aligned::zeros(outputs),
        };
        if outputs * padded > 0 {
            let integers = packed.values.as_mut_slice().par_chunks_exact_mut(WIDTH * padded);
            let scales = packed.scales.as_mut_slice().par_chunks_exact_mut(WIDTH);
            let starts = packed.starts.as_mut_slice().par_chunks_exact_mut(WIDTH);
            let panels = integers.zip(scales).zip(starts).zip(values.par_chunks(WIDTH * k));
            panels.for_each(|(((integers, scales), starts), rows)| {
                for (column, row) in rows.chunks_exact(k).enumerate() {
                    let sum;
                    (scales[column], sum) = pack_output(row, column, integers);
                    starts[column] = sum.wrapping_mul(-OFFSET);
                }
            });
        }
        packed
    }

    fn panel(&self, index: usize) -> Panel<'_> {
        let size = WIDTH * self.k.next_multiple_of(INPUTS);
        let mut panels = self.values.as_slice()[index * size..].chunks(size);
        Panel {
            values: panels.next().unwrap_or_default(),
            #[cfg(target_arch = "x86_64")]
            next: panels.next().unwrap_or_default(),
            scales: &self.scales.as_slice().as_chunks().0[index],
            starts: &self.starts.as_slice().as_chunks().0[index],
        }
    }

    pub(super) fn read_row(&self, n: usize, row: &mut [f32]) {
        let panel = self.panel(n / WIDTH);
        let column = n % WIDTH;
        let quads = panel.values[column * QUAD..].chunks(WIDTH * QUAD);
        let scale = panel.scales[column];
        for (values, quad) in row.chunks_mut(QUAD).zip(quads) {
            values.iter_mut().zip(quad).for_each(|(value, &integer)| *value = f32::from(integer) * scale);
        }
    }

    /// Returns `[M, N]` for `x` `[M, K]`. Neither may be empty.
    pub(super) fn product<'a>(&'a self, x: &[f32]) -> Columns<'a> {
        if let Some(support) = Amx::new()
            && x.len() / self.k >= amx::ROWS_MIN
        {
            return self.product_by(x, move |rows, panel, out| amx::panel(support, rows, panel, out));
        }
        let instructions = Instructions::best();
        self.product_by(x, move |rows, panel, out| set_panel(instructions, rows, panel, out))
    }

    /// Does the same, with `panel(rows, panel, outputs [M, WIDTH])` for each panel.
    fn product_by<'a>(
        &'a self,
        x: &[f32],
        panel: impl Fn(&Rows, Panel<'_>, &mut [f32]) + Sync + 'a,
    ) -> Columns<'a> {
        let rows = Rows::round(x, self.k);
        let shape = ColumnsShape { m: rows.len(), width: WIDTH, padded: self.n.next_multiple_of(WIDTH) };
        Columns::new(shape, rows.len() * self.n * self.k, move |index, out| {
            panel(&rows, self.panel(index), out);
        })
    }
}

/// Writes the integers of one output `[K]` into a panel. Returns their scale and their sum.
fn pack_output(row: &[f32], column: usize, integers: &mut [i8]) -> (f32, i32) {
    let largest = rows::largest(row);
    let inverse = rows::inverse(largest, MAX);
    let mut sum = 0_i32;
    for (input, value) in row.iter().enumerate() {
        let integer = nearest(value * inverse);
        integers[(input / QUAD * WIDTH + column) * QUAD + input % QUAD] = integer;
        sum = sum.wrapping_add(i32::from(integer));
    }
    (largest / MAX, sum)
}

/// Converts the integer sum of a row and an output to the output.
#[inline(always)]
fn scaled(sum: i32, weight_scale: f32, row_scale: f32) -> f32 {
    sum as f32 * weight_scale * row_scale
}

/// Computes `out` `[M, WIDTH]` for all rows and one panel.
fn set_panel(instructions: Instructions, rows: &Rows, panel: Panel<'_>, out: &mut [f32]) {
    match instructions {
        Instructions::Portable => portable::panel(rows, panel, out),
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2(support) => avx2::panel(support, rows, panel, out),
        #[cfg(target_arch = "x86_64")]
        Instructions::Vnni(support) => vnni::panel(support, rows, panel, out),
        #[cfg(target_arch = "aarch64")]
        Instructions::Sdot(support) => sdot::panel(support, rows, panel, out),
    }
}
