//! int8 matmul with groups of 32 inputs and AMX tiles, for many rows.
//!
//! One instruction adds up a group for 16 rows and 16 outputs. AVX-512 scales the sums and adds up the groups
//! with the operations of `vnni`, so that a row is bit-identical alone and in a batch.
#![expect(
    unsafe_code,
    reason = "tile instructions and functions with target features run only if they were detected"
)]

use std::arch::asm;
use std::arch::x86_64::{
    __m256i, __m512i, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_mul_ps, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_xor_si512,
};

use half::f16;
use pulp::{Arch, Simd, WithSimd};

use super::amx::Amx;
use super::bytes::round_group;
use super::columns::{Columns, ColumnsShape};
use super::panels::Aligned;
use super::quantized::{GROUP, OFFSET, QUAD, Quantized, WIDTH};
use super::tiles::by_tile;
use super::vnni::Vnni;
use crate::ahead::Ahead;

/// Number of rows in a tile. A tile with fewer rows of `x` is filled up with zeros.
const ROWS: usize = 16;

/// Number of panels that one task computes.
const PANELS: usize = 4;

/// With fewer rows, too much of the last tile is empty, and `vnni` is at least as fast.
pub(super) const ROWS_MIN: usize = 96;

/// Proof that this CPU has the instructions.
#[derive(Clone, Copy)]
pub(super) struct Q8Tiles(Amx);

impl Q8Tiles {
    pub(super) fn new() -> Option<Self> {
        Amx::new().and_then(Self::with)
    }

    /// Returns the matmul with these tiles if the CPU has the vector instructions.
    pub(super) fn with(amx: Amx) -> Option<Self> {
        Vnni::new().map(|_| Self(amx))
    }

    /// Returns `[M, N]` for `x` `[M, K]`. Neither may be empty.
    pub(super) fn product<'a>(self, weight: &'a Quantized, x: &[f32]) -> Columns<'a> {
        let (k, arch) = (weight.k, Arch::new());
        let tiles = by_tile(x, k, ROWS, |rows| arch.dispatch(Round { rows, k }));
        let m = x.len() / k;
        let shape = ColumnsShape { m, width: PANELS * WIDTH, padded: weight.n.next_multiple_of(WIDTH) };
        Columns::new(shape, m * weight.n * k, move |task, out| {
            let _configured = self.0.configure(&config());
            let width = out.len() / m;
            for index in 0..width / WIDTH {
                let panel = weight.panel(task * PANELS + index);
                let mut rows = out.chunks_exact_mut(width).map(|row| &mut row[index * WIDTH..][..WIDTH]);
                // SAFETY: `self` exists only if the instructions were detected, and the tiles are configured.
                unsafe {
                    let weights = signed(panel.values);
                    let mut ahead = Ahead::new(panel.next, tiles.len() * weight.groups());
                    for tile in &tiles {
                        let sums = sums(tile, &weights, panel.scales, &mut ahead);
                        rows.by_ref()
                            .zip(&sums[..tile.rows])
                            .for_each(|(row, sums)| row.copy_from_slice(sums));
                    }
                }
            }
        })
    }
}

/// Returns the tile configuration: sums in tile 0, rows in 1, the panel in 2.
fn config() -> [u8; 64] {
    let mut config = [0; 64];
    config[0] = 1;
    for (tile, [rows, bytes]) in
        [[ROWS, WIDTH * QUAD], [ROWS, GROUP], [GROUP / QUAD, WIDTH * QUAD]].into_iter().enumerate()
    {
        config[16 + 2 * tile] = bytes as u8;
        config[48 + tile] = rows as u8;
    }
    config
}

/// Up to [`ROWS`] rounded rows of `x`.
struct RowTile {
    rows: usize,
    /// `[K / GROUP, ROWS, GROUP]`.
    integers: Aligned<i8>,
    /// `[K / GROUP, ROWS]`.
    scales: Vec<f32>,
}

/// Rounds rows `[rows, K]` to integers.
struct Round<'a> {
    rows: &'a [f32],
    k: usize,
}

impl WithSimd for Round<'_> {
    type Output = RowTile;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> RowTile {
        let groups = self.k.div_ceil(GROUP);
        let mut tile = RowTile {
            rows: self.rows.len() / self.k,
            integers: Aligned::zeros(groups * ROWS * GROUP),
            scales: vec![0.0; groups * ROWS],
        };
        let integers = tile.integers.as_mut_slice().as_chunks_mut::<GROUP>().0;
        for (row, values) in self.rows.chunks_exact(self.k).enumerate() {
            for (group, values) in values.chunks(GROUP).enumerate() {
                let place = group * ROWS + row;
                (integers[place], tile.scales[place]) = round_group(values);
            }
        }
        tile
    }
}

/// Returns the integers of a panel without [`OFFSET`].
#[target_feature(enable = "avx512f")]
fn signed(values: &[u8]) -> Vec<__m512i> {
    let offset = _mm512_set1_epi32(i32::from_ne_bytes([OFFSET as u8; QUAD]));
    let mut signed = Vec::with_capacity(values.len() / size_of::<__m512i>());
    for &values in bytemuck::cast_slice::<_, __m512i>(values) {
        signed.push(_mm512_xor_si512(values, offset));
    }
    signed
}

/// Returns the outputs of a panel with these signed integers.
///
/// # Safety
/// The tiles must be configured with [`config`].
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn sums(
    tile: &RowTile,
    weights: &[__m512i],
    weight_scales: &[f16],
    ahead: &mut Ahead<'_>,
) -> [[f32; WIDTH]; ROWS] {
    let x = tile.integers.as_slice().as_chunks::<{ ROWS * GROUP }>().0;
    let weights = weights.as_chunks::<{ GROUP / QUAD }>().0;
    let scales = tile.scales.as_chunks::<ROWS>().0;
    let weight_scales = bytemuck::cast_slice::<_, __m256i>(weight_scales);
    let mut integers = [_mm512_setzero_si512(); ROWS];
    let mut sums = [_mm512_setzero_ps(); ROWS];
    for ((x, weights), (scales, &weight_scales)) in
        x.iter().zip(weights).zip(scales.iter().zip(weight_scales))
    {
        ahead.step();
        // SAFETY: the tiles have the shapes of the arrays, and they are written before they are read.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tileloadd tmm1, [{x} + {x_row}*1]",
                "tileloadd tmm2, [{weights} + {row}*1]",
                "tdpbssd tmm0, tmm1, tmm2",
                "tilestored [{integers} + {row}*1], tmm0",
                x = in(reg) x,
                x_row = in(reg) GROUP,
                weights = in(reg) weights,
                row = in(reg) WIDTH * QUAD,
                integers = in(reg) &raw mut integers,
                out("tmm0") _, out("tmm1") _, out("tmm2") _,
                options(nostack, preserves_flags),
            );
        }
        let weight_scales = _mm512_cvtph_ps(weight_scales);
        for ((sum, &integers), &scale) in sums.iter_mut().zip(&integers).zip(scales) {
            let scales = _mm512_mul_ps(weight_scales, _mm512_set1_ps(scale));
            *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers), scales, *sum);
        }
    }
    bytemuck::cast(sums)
}
