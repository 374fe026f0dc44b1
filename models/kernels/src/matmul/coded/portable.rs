//! Matmul of codes in plain Rust, vectorized by the compiler.

use pulp::{Arch, Simd, WithSimd};

use super::codes::unpacked;
use super::{CodeBits, Panel, QUAD, QUADS, WIDTH};
use crate::matmul::bytes::Tile;

/// `out` is `[rows, WIDTH]`.
pub(super) fn set_tile(tile: &Tile, panel: Panel<'_>, out: &mut [f32]) {
    Arch::new().dispatch(Loops { tile, panel, out });
}

struct Loops<'a> {
    tile: &'a Tile,
    panel: Panel<'a>,
    out: &'a mut [f32],
}

impl WithSimd for Loops<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { tile, panel, out } = self;
        let bits = panel.bits;
        out.fill(0.0);
        for (group, record) in panel.records.chunks_exact(bits.record_bytes()).enumerate() {
            let codes = unpacked(bits, record);
            let params = bits.params(record);
            for (row, sums) in out.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
                let place = group * tile.rows + row;
                let scale = tile.scales[place];
                let [low, high] = tile.halves[place];
                let halves = match bits {
                    CodeBits::Four | CodeBits::Five => [0; 2],
                    CodeBits::Six => [-32 * low, -32 * high],
                };
                let mut integers = halves.map(|start| [start; WIDTH]);
                for (quad, codes) in codes.iter().enumerate() {
                    let x = tile.quads[(group * QUADS + quad) * tile.rows + row].to_le_bytes();
                    let x = x.map(|byte| i32::from(byte.cast_signed()));
                    let integers = &mut integers[quad / (QUADS / 2)];
                    for (integer, codes) in integers.iter_mut().zip(codes.as_chunks::<QUAD>().0) {
                        for (x, &code) in x.iter().zip(codes) {
                            *integer = integer.wrapping_add(x.wrapping_mul(i32::from(code)));
                        }
                    }
                }
                for (column, sum) in sums.iter_mut().enumerate() {
                    let [first, second] = params.map(|line| line[column].to_f32());
                    let [low, high] = integers.map(|integers| integers[column]);
                    *sum = match bits {
                        CodeBits::Four | CodeBits::Five => second
                            .mul_add(tile.totals[place], ((low + high) as f32).mul_add(first * scale, *sum)),
                        CodeBits::Six => {
                            let sum = (low as f32).mul_add(first * scale, *sum);
                            (high as f32).mul_add(second * scale, sum)
                        }
                    };
                }
            }
        }
        for sums in out.as_chunks_mut::<WIDTH>().0 {
            sums.iter_mut().zip(panel.factors).for_each(|(sum, factor)| *sum *= factor);
        }
    }
}
