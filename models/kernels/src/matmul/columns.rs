//! Outputs of a matmul, computed panel by panel and then copied to rows.

use std::cell::Cell;

use rayon::prelude::*;

/// Below this many multiplications, a second thread costs more than it saves.
pub(super) const SERIAL_MAX: usize = 1 << 18;

/// Below this many outputs, a second thread for copying costs more than it saves.
const COPY_MAX: usize = 1 << 20;

/// Outputs of all rows, `[M, width]` for each panel.
pub(super) struct Columns {
    values: Vec<f32>,
    /// Number of outputs in `values`; elements after them are from earlier matmuls.
    len: usize,
    m: usize,
    /// Number of outputs in every panel except the last, which may be narrower.
    width: usize,
    /// Whether the work is large enough for several threads.
    parallel: bool,
}

/// `M`, the number of outputs in every panel except the last, and the total number of outputs.
pub(super) struct ColumnsShape {
    pub(super) m: usize,
    pub(super) width: usize,
    pub(super) padded: usize,
}

thread_local! {
    /// The allocation of the last [`Columns`], which the next matmul reuses.
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

impl Columns {
    /// Runs `task(panel, [M, width])` for each panel.
    pub(super) fn compute(
        shape: ColumnsShape,
        multiplications: usize,
        task: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Self {
        let ColumnsShape { m, width, padded } = shape;
        let mut values = SCRATCH.take();
        let len = m * padded;
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

    /// Returns the outputs `[M, part]` of consecutive parts.
    pub(super) fn split<const P: usize>(self, parts: [usize; P]) -> [Vec<f32>; P] {
        let mut from = 0;
        let parts = parts.map(|part| {
            from += part;
            self.part(from - part, part)
        });
        SCRATCH.set(self.values);
        parts
    }

    /// Returns `count` outputs starting at `from`, as `[M, count]`.
    fn part(&self, from: usize, count: usize) -> Vec<f32> {
        if self.m == 1 {
            return self.values[from..from + count].to_vec();
        }
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

    /// Returns `count` outputs of a row starting at `from`, as one slice per panel.
    fn pieces(&self, row: usize, from: usize, count: usize) -> impl Iterator<Item = &[f32]> {
        let padded = self.len / self.m;
        let to = from + count;
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
