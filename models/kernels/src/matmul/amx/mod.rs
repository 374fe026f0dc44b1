//! Products of tiles: 16 rows by 64 bytes against 64 bytes by 16 outputs an instruction (AMX).
//!
//! A panel has 64 outputs and rows of `x` lie one behind the other, both in steps of 64 bytes of inputs: 64 integers or 32
//! numbers of 16 bits. [`TileUnit`] is what a set of tiles computes in one go, and [`multiply`] cuts any number of rows into that.
//! All tiles of a product have the same number of rows; the last one begins earlier instead of being shorter, and so
//! computes some rows twice, with the same result.
#![cfg_attr(
    not(any(test, all(target_os = "linux", target_arch = "x86_64"))),
    expect(dead_code, reason = "without a unit, what it is given is not read")
)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod absent;
#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod emulator;
#[cfg(test)]
mod machine;
#[cfg(test)]
pub(super) mod tests;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod unit;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(super) use unit::Amx;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub(super) use absent::Amx;

/// Outputs of a panel.
pub(super) const WIDTH: usize = 64;
/// Bytes of inputs that one instruction multiplies.
pub(super) const STEP_BYTES: usize = 64;
/// Bytes of a panel behind one step: inputs in fours of bytes, each for all outputs.
const PANEL_STEP_BYTES: usize = STEP_BYTES * WIDTH;
/// Rows of a tile.
const ROWS_MAX: usize = 16;

/// Outputs of a row, integers or f32.
pub(super) type Row = [[u8; 4]; WIDTH];

/// What is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Elements {
    /// Unsigned bytes with signed ones, added up as 32-bit integers.
    Bytes,
    /// 16-bit numbers, added up as f32.
    Bf16,
}

/// Both sides of a product, and what its sums start with.
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
    /// Sets `out` `[M, WIDTH]` in `rows` rows from each of `first` on, for the outputs from `column` on, 32 of them.
    fn two_by_two(&mut self, sides: Sides<'_>, first: [usize; 2], column: usize, out: &mut [Row]);

    /// The same for the rows from `first` on and all outputs.
    fn one_by_four(&mut self, sides: Sides<'_>, first: usize, out: &mut [Row]);
}

/// Rows of each tile of a product of `m` rows: as few tiles as possible, as equal as possible.
fn tile_rows(m: usize) -> usize {
    m.div_ceil(m.div_ceil(ROWS_MAX))
}

/// `out` `[M, WIDTH]` of all rows and one panel.
pub(super) fn panel(found: Amx, elements: Elements, sides: Sides<'_>, out: &mut [Row]) {
    found.with_tiles(tile_rows(sides.m), elements, |unit| multiply(unit, sides, out));
}

/// The same by tiles that are configured for [`tile_rows`] rows.
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

/// The configuration of tiles for products of `rows` rows: sums in tiles 0 to 3, rows in 4 and 5, the panel in 6 and 7.
fn config(rows: usize) -> [u8; 64] {
    let mut config = [0; 64];
    config[0] = 1;
    for tile in 0..8 {
        config[16 + 2 * tile] = STEP_BYTES as u8;
        config[48 + tile] = if tile < 6 { rows as u8 } else { ROWS_MAX as u8 };
    }
    config
}
