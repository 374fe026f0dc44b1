//! int8 matmul with AMX tiles, for many rows.

use pulp::{Arch, Simd, WithSimd};

use super::rows::Rows;
use super::{Panel, WIDTH, scaled};
use crate::matmul::amx::{self, Amx, Elements, Sides};

/// Fewer rows leave most of a tile empty. VNNI then reads the weights equally fast.
pub(super) const ROWS_MIN: usize = 8;

/// `out` is `[M, WIDTH]`.
pub(super) fn panel(support: Amx, rows: &Rows, panel: Panel<'_>, out: &mut [f32]) {
    panel_by(rows, panel, out, |sides, sums| amx::panel(support, Elements::Bytes, sides, sums));
}

/// Like [`panel`], with `add_up(sides, sums [M, WIDTH])`.
pub(super) fn panel_by(
    rows: &Rows,
    panel: Panel<'_>,
    out: &mut [f32],
    add_up: impl FnOnce(Sides<'_>, &mut [amx::Row]),
) {
    let sides = Sides::new(rows.all(), bytemuck::cast_slice(panel.values), bytemuck::cast_ref(panel.starts));
    // The sums are stored in the memory of the outputs until all of them are complete.
    add_up(sides, bytemuck::cast_slice_mut(out));
    Arch::new().dispatch(Scale { rows, panel, out });
}

/// Converts integers to outputs in place.
struct Scale<'a> {
    rows: &'a Rows,
    panel: Panel<'a>,
    out: &'a mut [f32],
}

impl WithSimd for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (row, out) in self.out.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
            let row_scale = self.rows.scale(row);
            for (value, scale) in out.iter_mut().zip(self.panel.scales) {
                *value = scaled(value.to_bits().cast_signed(), *scale, row_scale);
            }
        }
    }
}
