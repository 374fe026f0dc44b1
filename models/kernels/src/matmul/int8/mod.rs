//! Weights as 8-bit integers with one scale for each output; rows of `x` become integers, too, with one scale for each row.
//!
//! A sum over all inputs is one exact 32-bit integer, so every instruction set gives the same bits, in whatever order and
//! for however many rows it adds up. Bytes of `x` have [`OFFSET`] added, because the instructions of x86 take one
//! unsigned side; what that adds to a sum depends on the weight alone and is subtracted at its start.

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

#[cfg(target_arch = "x86_64")]
use avx2::Avx2;
use portable::Portable;
use rows::Rows;

use super::amx::Amx;
use super::columns::{Columns, ColumnsShape};
use super::panels::Aligned;
use super::quantized::nearest;
#[cfg(target_arch = "aarch64")]
use super::sdot::Sdot;
#[cfg(target_arch = "x86_64")]
use super::vnni::Vnni;

/// Outputs of a panel.
const WIDTH: usize = 64;
/// Inputs whose integers lie side by side.
const QUAD: usize = 4;
/// Inputs are padded with zeros to a multiple of this.
const INPUTS: usize = 64;
/// Added to the integers of `x`, which makes them unsigned.
const OFFSET: i32 = 128;
/// The largest integer of a weight.
const MAX: f32 = 127.0;

/// A weight `[N, K]` in panels of [`WIDTH`] outputs, padded with zeros to whole panels.
#[derive(Debug)]
pub(super) struct Int8 {
    n: usize,
    k: usize,
    /// For each panel `[K / QUAD, WIDTH, QUAD]`.
    values: Aligned<i8>,
    /// `[N]`, padded.
    scales: Aligned<f32>,
    /// `[N]`, padded: what [`OFFSET`] adds to the sums, negated.
    starts: Aligned<i32>,
}

#[derive(Clone, Copy)]
struct Panel<'a> {
    /// `[K / QUAD, WIDTH, QUAD]`.
    values: &'a [i8],
    scales: &'a [f32; WIDTH],
    starts: &'a [i32; WIDTH],
}

impl Int8 {
    pub(super) fn pack(values: &[f32], k: usize) -> Self {
        let (n, padded) = (values.len() / k.max(1), k.next_multiple_of(INPUTS));
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
        Panel {
            values: &self.values.as_slice()[index * size..][..size],
            scales: &self.scales.as_slice().as_chunks().0[index],
            starts: &self.starts.as_slice().as_chunks().0[index],
        }
    }

    pub(super) fn read_row(&self, n: usize, row: &mut [f32]) {
        let (panel, column) = (self.panel(n / WIDTH), n % WIDTH);
        let (quads, scale) = (panel.values[column * QUAD..].chunks(WIDTH * QUAD), panel.scales[column]);
        for (values, quad) in row.chunks_mut(QUAD).zip(quads) {
            values.iter_mut().zip(quad).for_each(|(value, &integer)| *value = f32::from(integer) * scale);
        }
    }

    /// `[M, N]` from `x` `[M, K]`; neither is empty.
    pub(super) fn product(&self, x: &[f32]) -> Columns {
        let kernel = Kernel::best(x.len() / self.k);
        self.product_by(x, |rows, panel, out| kernel.panel(rows, panel, out))
    }

    /// The same, with `panel(rows, panel, outputs [M, WIDTH])` for each panel.
    fn product_by(&self, x: &[f32], panel: impl Fn(&Rows, Panel<'_>, &mut [f32]) + Sync) -> Columns {
        let rows = Rows::round(x, self.k);
        let shape = ColumnsShape { m: rows.len(), width: WIDTH, padded: self.n.next_multiple_of(WIDTH) };
        Columns::compute(shape, rows.len() * self.n * self.k, |index, out| {
            panel(&rows, self.panel(index), out);
        })
    }
}

/// Writes the integers of one output `[K]` into a panel; returns their scale and their sum.
fn pack_output(row: &[f32], column: usize, integers: &mut [i8]) -> (f32, i32) {
    let largest = rows::largest(row);
    let (inverse, mut sum) = (rows::inverse(largest, MAX), 0_i32);
    for (input, value) in row.iter().enumerate() {
        let integer = nearest(value * inverse);
        integers[(input / QUAD * WIDTH + column) * QUAD + input % QUAD] = integer;
        sum = sum.wrapping_add(i32::from(integer));
    }
    (largest / MAX, sum)
}

/// An output of a row, from the sum of its products of integers.
#[inline(always)]
fn scaled(sum: i32, weight_scale: f32, row_scale: f32) -> f32 {
    sum as f32 * weight_scale * row_scale
}

/// The instructions that multiply bytes.
#[derive(Clone, Copy)]
enum Kernel {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Vnni(Vnni),
    #[cfg(target_arch = "aarch64")]
    Sdot(Sdot),
    Amx(Amx),
}

impl Kernel {
    /// The fastest of this processor for `m` rows.
    fn best(m: usize) -> Self {
        if let Some(found) = Amx::new()
            && m >= amx::ROWS_MIN
        {
            return Self::Amx(found);
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(vnni) = Vnni::new() {
            return Self::Vnni(vnni);
        } else if let Some(avx2) = Avx2::new() {
            return Self::Avx2(avx2);
        }
        #[cfg(target_arch = "aarch64")]
        if let Some(sdot) = Sdot::new() {
            return Self::Sdot(sdot);
        }
        Self::Portable(Portable)
    }

    /// `out` `[M, WIDTH]` of all rows and one panel.
    fn panel(self, rows: &Rows, panel: Panel<'_>, out: &mut [f32]) {
        match self {
            Self::Portable(portable) => portable.panel(rows, panel, out),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(avx2) => avx2.panel(rows, panel, out),
            #[cfg(target_arch = "x86_64")]
            Self::Vnni(found) => vnni::panel(found, rows, panel, out),
            #[cfg(target_arch = "aarch64")]
            Self::Sdot(found) => sdot::panel(found, rows, panel, out),
            Self::Amx(found) => amx::panel(found, rows, panel, out),
        }
    }
}
