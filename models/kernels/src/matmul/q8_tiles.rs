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
    __m256i, __m512, __m512i, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_mul_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_xor_si512,
};
use std::borrow::Cow;

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
        self.product_by(x, [weight.n, weight.k], Params::Scales, |index| {
            let panel = weight.panel(index);
            // SAFETY: `self` exists only if the instructions were detected.
            let integers = unsafe { signed(panel.values) };
            let scales = bytemuck::cast_slice(panel.scales);
            PanelTiles { integers, params: Cow::Borrowed(scales), factors: None, next: panel.next }
        })
    }

    /// Does the same, given the panels of any weight `[N, K]`.
    pub(super) fn product_by<'a>(
        self,
        x: &[f32],
        [n, k]: [usize; 2],
        params: Params,
        panel: impl Fn(usize) -> PanelTiles<'a> + Sync + 'a,
    ) -> Columns<'a> {
        let arch = Arch::new();
        let tiles = by_tile(x, k, ROWS, |rows| arch.dispatch(Round { rows, k }));
        let m = x.len() / k;
        let shape = ColumnsShape { m, width: PANELS * WIDTH, padded: n.next_multiple_of(WIDTH) };
        Columns::new(shape, m * n * k, move |task, out| {
            let _configured = self.0.configure(&config(params));
            let width = out.len() / m;
            for index in 0..width / WIDTH {
                let panel = panel(task * PANELS + index);
                let mut rows = out.chunks_exact_mut(width).map(|row| &mut row[index * WIDTH..][..WIDTH]);
                let mut ahead = Ahead::new(panel.next, tiles.len() * k.div_ceil(GROUP));
                for tile in &tiles {
                    // SAFETY: `self` exists only if the instructions were detected, and the tiles are
                    // configured.
                    let sums = unsafe { sums(tile, params, &panel, &mut ahead) };
                    rows.by_ref().zip(&sums[..tile.rows]).for_each(|(row, sums)| row.copy_from_slice(sums));
                }
            }
        })
    }
}

/// The parameters of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Params {
    Scales,
    ScalesAndOffsets,
    /// Scales of the first and of the second half of its inputs.
    ScalesOfHalves,
}

impl Params {
    /// Returns the number of parts of a group that have different scales.
    fn parts(self) -> usize {
        if self == Self::ScalesOfHalves { 2 } else { 1 }
    }

    /// Returns the number of parameters of an output.
    fn count(self) -> usize {
        if self == Self::Scales { 1 } else { 2 }
    }
}

/// A panel of a weight.
pub(super) struct PanelTiles<'a> {
    /// `[K / QUAD, WIDTH, QUAD]`, signed.
    pub(super) integers: Vec<__m512i>,
    /// f16 `[K / GROUP, parameters, WIDTH]`.
    pub(super) params: Cow<'a, [__m256i]>,
    /// Factors of the outputs.
    pub(super) factors: Option<&'a [f32; WIDTH]>,
    /// The memory of the next panel; none after the last one.
    pub(super) next: &'a [u8],
}

/// Returns the tile configuration: sums in tile 0, rows in 1, the panel in 2.
fn config(params: Params) -> [u8; 64] {
    let inputs = GROUP / params.parts();
    let mut config = [0; 64];
    config[0] = 1;
    for (tile, [rows, bytes]) in
        [[ROWS, WIDTH * QUAD], [ROWS, inputs], [inputs / QUAD, WIDTH * QUAD]].into_iter().enumerate()
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
    /// `[K / GROUP, ROWS]`: the sum of a group's integers times its scale.
    totals: Vec<f32>,
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
            totals: vec![0.0; groups * ROWS],
        };
        let integers = tile.integers.as_mut_slice().as_chunks_mut::<GROUP>().0;
        for (row, values) in self.rows.chunks_exact(self.k).enumerate() {
            for (group, values) in values.chunks(GROUP).enumerate() {
                let place = group * ROWS + row;
                (integers[place], tile.scales[place]) = round_group(values);
                let sum: i32 = integers[place].iter().map(|&integer| i32::from(integer)).sum();
                tile.totals[place] = sum as f32 * tile.scales[place];
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
/// The tiles must be configured with [`config`] for these parameters.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn sums(
    tile: &RowTile,
    kind: Params,
    panel: &PanelTiles<'_>,
    ahead: &mut Ahead<'_>,
) -> [[f32; WIDTH]; ROWS] {
    let x = tile.integers.as_slice().as_chunks::<{ ROWS * GROUP }>().0;
    let weights = panel.integers.as_chunks::<{ GROUP / QUAD }>().0;
    let of_rows = tile.scales.as_chunks::<ROWS>().0.iter().zip(tile.totals.as_chunks::<ROWS>().0);
    let params = panel.params.chunks_exact(kind.count());
    let inputs = GROUP / kind.parts();
    let mut integers = [_mm512_setzero_si512(); ROWS];
    let mut sums = [_mm512_setzero_ps(); ROWS];
    for ((x, weights), ((scales, totals), params)) in x.iter().zip(weights).zip(of_rows.zip(params)) {
        ahead.step();
        for (part, &scales_of_part) in params.iter().take(kind.parts()).enumerate() {
            // SAFETY: the tiles have the shapes of the parts, and they are written before they are read.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tileloadd tmm1, [{x} + {x_row}*1]",
                    "tileloadd tmm2, [{weights} + {row}*1]",
                    "tdpbssd tmm0, tmm1, tmm2",
                    "tilestored [{integers} + {row}*1], tmm0",
                    x = in(reg) x[part * inputs..].as_ptr(),
                    x_row = in(reg) GROUP,
                    weights = in(reg) weights[part * inputs / QUAD..].as_ptr(),
                    row = in(reg) WIDTH * QUAD,
                    integers = in(reg) &raw mut integers,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _,
                    options(nostack, preserves_flags),
                );
            }
            let weight_scales = _mm512_cvtph_ps(scales_of_part);
            for ((sum, &integers), &scale) in sums.iter_mut().zip(&integers).zip(scales) {
                let scales = _mm512_mul_ps(weight_scales, _mm512_set1_ps(scale));
                *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers), scales, *sum);
            }
        }
        if kind == Params::ScalesAndOffsets {
            let offsets = _mm512_cvtph_ps(params[1]);
            for (sum, &total) in sums.iter_mut().zip(totals) {
                *sum = _mm512_fmadd_ps(offsets, _mm512_set1_ps(total), *sum);
            }
        }
    }
    if let Some(factors) = panel.factors {
        let factors: __m512 = bytemuck::cast(*factors);
        for sum in &mut sums {
            *sum = _mm512_mul_ps(*sum, factors);
        }
    }
    bytemuck::cast(sums)
}
