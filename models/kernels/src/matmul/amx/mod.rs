//! Matmul with AMX tiles: each instruction multiplies 16 rows by 64 bytes with 64 bytes by 16 outputs.
//!
//! A panel has 64 outputs, and the rows of `x` are contiguous, both in steps of 64 bytes of inputs: 64
//! integers or 32 16-bit numbers. [`TileUnit`] computes one set of tiles, and [`multiply`] divides any number
//! of rows into such sets. All tiles of a matmul have the same number of rows. The last tile starts earlier
//! instead of being shorter, and so recomputes some rows, with the same result.
#![cfg_attr(
    not(any(test, all(target_os = "linux", target_arch = "x86_64"))),
    expect(dead_code, reason = "without a unit, what it is given is not read")
)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod absent;
#[cfg(test)]
pub(super) mod tests;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod unit;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(super) use unit::Amx;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub(super) use absent::Amx;

/// Number of outputs in a panel.
pub(super) const WIDTH: usize = 64;
/// Bytes of inputs that one instruction multiplies.
pub(super) const STEP_BYTES: usize = 64;
/// Bytes of a panel in one step: groups of four input bytes, each for all outputs.
const PANEL_STEP_BYTES: usize = STEP_BYTES * WIDTH;
/// Maximum number of rows in a tile.
const ROWS_MAX: usize = 16;

/// Outputs of a row, as integers or f32.
pub(super) type Row = [[u8; 4]; WIDTH];

/// The element type of a matmul.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Elements {
    /// Unsigned bytes times signed bytes, added up as 32-bit integers.
    Bytes,
    /// 16-bit numbers, added up as f32.
    Bf16,
}

/// Both operands of a matmul, and the initial values of its sums.
#[derive(Clone, Copy)]
pub(super) struct Sides<'a> {
    /// `[M, steps * STEP_BYTES]`.
    rows: &'a [u8],
    /// `[steps, 16, WIDTH, 4]`.
    panel: &'a [u8],
    /// `[WIDTH]`, integers or f32.
    starts: &'a Row,
    steps: usize,
    m: usize,
}

impl<'a> Sides<'a> {
    pub(super) fn new(rows: &'a [u8], panel: &'a [u8], starts: &'a Row) -> Self {
        let steps = panel.len() / PANEL_STEP_BYTES;
        assert!(steps > 0 && panel.len() == steps * PANEL_STEP_BYTES, "a panel of {} bytes", panel.len());
        let m = rows.len() / (steps * STEP_BYTES);
        assert_eq!(rows.len(), m * steps * STEP_BYTES, "bytes of rows");
        Self { rows, panel, starts, steps, m }
    }
}

/// A set of tiles that is configured for a number of rows.
trait TileUnit {
    /// Sets `out` `[M, WIDTH]` for `rows` rows starting at each of `first`, and for 32 outputs starting at
    /// `column`.
    fn two_by_two(&mut self, sides: Sides<'_>, first: [usize; 2], column: usize, out: &mut [Row]);

    /// Does the same for the rows starting at `first` and all outputs.
    fn one_by_four(&mut self, sides: Sides<'_>, first: usize, out: &mut [Row]);
}

/// Returns the number of rows per tile in a matmul of `m` rows: as few tiles as possible, of nearly equal
/// size.
fn tile_rows(m: usize) -> usize {
    m.div_ceil(m.div_ceil(ROWS_MAX))
}

/// Computes `out` `[M, WIDTH]` for all rows and one panel.
pub(super) fn panel(support: Amx, elements: Elements, sides: Sides<'_>, out: &mut [Row]) {
    support.with_tiles(tile_rows(sides.m), elements, |unit| multiply(unit, sides, out));
}

/// Like [`panel`], with tiles that are configured for [`tile_rows`] rows.
fn multiply(unit: &mut impl TileUnit, sides: Sides<'_>, out: &mut [Row]) {
    assert_eq!(out.len(), sides.m, "rows of outputs");
    let rows = tile_rows(sides.m);
    let firsts: Vec<usize> = (0..sides.m).step_by(rows).map(|first| first.min(sides.m - rows)).collect();
    let (pairs, single) = firsts.as_chunks::<2>();
    for &pair in pairs {
        for column in [0, WIDTH / 2] {
            unit.two_by_two(sides, pair, column, out);
        }
    }
    for &first in single {
        unit.one_by_four(sides, first, out);
    }
}

/// Returns the tile configuration for `rows` rows: sums in tiles 0 to 3, rows in 4 and 5, the panel in 6 and
/// 7.
fn config(rows: usize) -> [u8; 64] {
    let mut config = [0; 64];
    config[0] = 1;
    for tile in 0..8 {
        config[16 + 2 * tile] = STEP_BYTES as u8;
        config[48 + tile] = if tile < 6 { rows as u8 } else { ROWS_MAX as u8 };
    }
    config
}
