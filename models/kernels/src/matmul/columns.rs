//! Outputs of a matmul, computed panel by panel and then copied to rows while they are in the nearest caches.
#![expect(unsafe_code, reason = "threads write disjoint columns of the same rows")]

use std::cell::Cell;
use std::ops::Range;

use rayon::prelude::*;

/// Below this many multiplications, a second thread costs more than it saves.
pub(super) const SERIAL_MAX: usize = 1 << 18;

/// Computes the outputs `[M, width]` of a panel.
type PanelTask<'a> = dyn Fn(usize, &mut [f32]) + Sync + 'a;

/// Outputs of all rows, which are computed when they are [split](Self::split).
pub(super) struct Columns<'a> {
    shape: ColumnsShape,
    /// Whether the work is large enough for several threads.
    parallel: bool,
    task: Box<PanelTask<'a>>,
}

/// `M`, the number of outputs in every panel except the last, and the total number of outputs.
pub(super) struct ColumnsShape {
    pub(super) m: usize,
    pub(super) width: usize,
    pub(super) padded: usize,
}

thread_local! {
    /// Outputs of a panel. The allocation is kept for the next one.
    static PANEL: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

impl<'a> Columns<'a> {
    /// `task(panel, [M, width])` computes a panel.
    pub(super) fn new(
        shape: ColumnsShape,
        multiplications: usize,
        task: impl Fn(usize, &mut [f32]) + Sync + 'a,
    ) -> Self {
        Self { shape, parallel: multiplications > SERIAL_MAX, task: Box::new(task) }
    }

    /// Returns the outputs `[M, width]` of consecutive parts, which must not have more outputs than the
    /// panels.
    pub(super) fn split<const P: usize>(self, widths: [usize; P]) -> [Vec<f32>; P] {
        let ColumnsShape { m, width, padded } = self.shape;
        assert!(widths.iter().sum::<usize>() <= padded, "parts of {widths:?} outputs of {padded}");
        let mut parts = widths.map(|width| Vec::with_capacity(m * width));
        let mut end = 0;
        let places: Vec<Place> = parts
            .iter_mut()
            .zip(widths)
            .map(|(part, width)| {
                end += width;
                Place { columns: end - width..end, values: part.as_mut_ptr() }
            })
            .collect();
        let run = |panel: usize| {
            let first = panel * width;
            let columns = first..padded.min(first + width);
            let mut values = PANEL.take();
            let len = m * columns.len();
            if values.len() < len {
                values.resize(len, 0.0);
            }
            (self.task)(panel, &mut values[..len]);
            for place in &places {
                // SAFETY: the parts have space for `M` rows, and no other panel has these columns.
                unsafe { place.write(&values[..len], columns.clone()) };
            }
            PANEL.set(values);
        };
        let panels = 0..padded.div_ceil(width);
        if self.parallel {
            panels.into_par_iter().for_each(run);
        } else {
            panels.for_each(run);
        }
        for (part, width) in parts.iter_mut().zip(widths) {
            // SAFETY: the panels contain all columns, so every element is written.
            unsafe { part.set_len(m * width) };
        }
        parts
    }
}

/// The memory of a part.
struct Place {
    /// Its outputs.
    columns: Range<usize>,
    values: *mut f32,
}

// SAFETY: `write` requires that threads write different elements.
unsafe impl Sync for Place {}

impl Place {
    /// Copies the outputs `[M, columns]` of a panel that belong to this part.
    ///
    /// # Safety
    /// `values` must point to space for `M` rows, and no other thread may write these columns.
    unsafe fn write(&self, panel: &[f32], columns: Range<usize>) {
        let shared = columns.start.max(self.columns.start)..columns.end.min(self.columns.end);
        if shared.is_empty() {
            return;
        }
        for (row, outputs) in panel.chunks_exact(columns.len()).enumerate() {
            let outputs = &outputs[shared.start - columns.start..shared.end - columns.start];
            let at = row * self.columns.len() + shared.start - self.columns.start;
            // SAFETY: `at` and the elements after it are in row `row` of the part.
            unsafe { self.values.add(at).copy_from_nonoverlapping(outputs.as_ptr(), outputs.len()) };
        }
    }
}
