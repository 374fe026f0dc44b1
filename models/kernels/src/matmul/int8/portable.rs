//! int8 matmul in plain Rust, vectorized by the compiler.

use pulp::{Arch, Simd, WithSimd};

use super::rows::Rows;
use super::{Panel, QUAD, WIDTH, scaled};

/// `out` is `[M, WIDTH]`.
pub(super) fn panel(rows: &Rows, panel: Panel<'_>, out: &mut [f32]) {
    Arch::new().dispatch(Loops { rows, panel, out });
}

struct Loops<'a> {
    rows: &'a Rows,
    panel: Panel<'a>,
    out: &'a mut [f32],
}

impl WithSimd for Loops<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (row, out) in self.out.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
            let mut sums = *self.panel.starts;
            let weights = self.panel.values.as_chunks::<QUAD>().0.as_chunks::<WIDTH>().0;
            for (x, weights) in self.rows.bytes(row).iter().zip(weights) {
                let x = x.map(i32::from);
                for (sum, weights) in sums.iter_mut().zip(weights) {
                    let products = x.iter().zip(weights).map(|(x, &weight)| x * i32::from(weight));
                    *sum = sum.wrapping_add(products.sum());
                }
            }
            for ((out, sum), scale) in out.iter_mut().zip(sums).zip(self.panel.scales) {
                *out = scaled(sum, *scale, self.rows.scale(row));
            }
        }
    }
}
