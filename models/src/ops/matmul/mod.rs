//! `x · wᵀ` against weights that were packed for it once.
//!
//! A weight is kept in panels: some outputs side by side, the numbers of one input after those of the other, so that
//! one pass over a panel serves several rows of `x` from registers and reads memory in order. Each output is added up
//! over the inputs in blocks of [`BLOCK`], in order, whatever the number of rows: a row's result never depends on its
//! neighbours.

mod float;
mod panels;
mod quantized;
mod rows;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vnni;

use std::cell::Cell;

use half::{bf16, f16};
use rayon::prelude::*;

use float::Float;
use panels::Panels;
use quantized::Quantized;

/// Inputs that are added up before their sum goes to that of the others: rounding errors of long sums stay small, and
/// a block of a panel stays in the nearer caches for all rows.
const BLOCK: usize = 128;

/// Below this many multiplications a second thread costs more than it brings.
const SERIAL_MAX: usize = 1 << 18;

/// Below this many numbers a second thread costs more to lay out rows of `x` than it brings.
const LAYOUT_MAX: usize = SERIAL_MAX / 16;

/// Below this many outputs a second thread costs more to copy them than it brings.
const COPY_MAX: usize = 1 << 20;

/// How the numbers of a weight are kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    F32,
    Bf16,
    F16,
    /// Groups of 32 inputs: 8-bit integers with one 16-bit scale.
    Q8,
}

/// A weight `[N, K]`.
#[derive(Debug)]
pub(crate) enum Matrix {
    F32(Panels<f32>),
    Bf16(Panels<bf16>),
    F16(Panels<f16>),
    Q8(Quantized),
}

impl Matrix {
    /// Packs `values`, `[N, K]` row by row.
    pub(crate) fn pack(values: &[f32], k: usize, format: Format) -> Self {
        match format {
            Format::F32 => Self::F32(Panels::pack(values, k, |value| value)),
            Format::Bf16 => Self::Bf16(Panels::pack(values, k, bf16::from_f32)),
            Format::F16 => Self::F16(Panels::pack(values, k, f16::from_f32)),
            Format::Q8 => Self::Q8(Quantized::pack(values, k)),
        }
    }

    /// `[M, N]` from `x` `[M, K]`, cut into `parts` whose widths add up to `N`.
    pub(crate) fn product(&self, x: &[f32], parts: &[usize]) -> Vec<Vec<f32>> {
        match self {
            Self::F32(panels) => float::product(panels, x).cut(parts),
            Self::Bf16(panels) => float::product(panels, x).cut(parts),
            Self::F16(panels) => float::product(panels, x).cut(parts),
            Self::Q8(quantized) => quantized.product(x).cut(parts),
        }
    }

    /// Writes the `K` numbers of output `n`.
    pub(crate) fn read_row(&self, n: usize, row: &mut [f32]) {
        match self {
            Self::F32(panels) => panels.read_row(n, row, Float::to_f32),
            Self::Bf16(panels) => panels.read_row(n, row, Float::to_f32),
            Self::F16(panels) => panels.read_row(n, row, Float::to_f32),
            Self::Q8(quantized) => quantized.read_row(n, row),
        }
    }
}

/// Outputs of all rows, panel by panel: `[M, width]` each.
struct Columns {
    values: Vec<f32>,
    /// How many of `values` are outputs; what is behind them is left from earlier.
    len: usize,
    m: usize,
    /// Outputs of every panel but the last, which may be narrower.
    width: usize,
    /// Whether the work was enough for several threads.
    parallel: bool,
}

thread_local! {
    /// Memory for [`Columns`], which are many and short-lived.
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

impl Columns {
    /// Runs one task a panel, each with its place. There are `padded` outputs in all panels together.
    fn compute(
        (m, width, padded): (usize, usize, usize),
        multiplications: usize,
        task: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Self {
        let (mut values, len) = (SCRATCH.take(), m * padded);
        if values.len() < len {
            values.resize(len, 0.0);
        }
        let parallel = multiplications > SERIAL_MAX;
        let panels = &mut values[..len];
        if parallel {
            panels.par_chunks_mut(m * width).enumerate().for_each(|(panel, out)| task(panel, out));
        } else {
            panels.chunks_mut(m * width).enumerate().for_each(|(panel, out)| task(panel, out));
        }
        Self { values, len, m, width, parallel }
    }

    /// The outputs `[M, part]` of consecutive parts.
    fn cut(self, parts: &[usize]) -> Vec<Vec<f32>> {
        let mut from = 0;
        let cut = |&part: &usize| {
            from += part;
            if self.m == 1 { self.values[from - part..from].to_vec() } else { self.rows(from - part, part) }
        };
        let parts = parts.iter().map(cut).collect();
        SCRATCH.set(self.values);
        parts
    }

    /// Row by row, the outputs from `from` on.
    fn rows(&self, from: usize, count: usize) -> Vec<f32> {
        if !self.parallel || self.m * count <= COPY_MAX {
            let mut rows = Vec::with_capacity(self.m * count);
            (0..self.m).for_each(|row| {
                self.pieces(row, from, count).for_each(|piece| rows.extend_from_slice(piece));
            });
            return rows;
        }
        let mut rows = vec![0.0; self.m * count];
        rows.par_chunks_mut(count).enumerate().for_each(|(row, mut out)| {
            for piece in self.pieces(row, from, count) {
                let (now, later) = out.split_at_mut(piece.len());
                now.copy_from_slice(piece);
                out = later;
            }
        });
        rows
    }

    /// The outputs of a row from `from` on, one piece for each panel.
    fn pieces(&self, row: usize, from: usize, count: usize) -> impl Iterator<Item = &[f32]> {
        let (padded, to) = (self.len / self.m, from + count);
        let panels = from / self.width..to.div_ceil(self.width);
        panels.map(move |panel| {
            let first = panel * self.width;
            let wide = self.width.min(padded - first);
            let columns = from.max(first) - first..to.min(first + wide) - first;
            let place = first * self.m + row * wide;
            &self.values[place + columns.start..place + columns.end]
        })
    }
}
