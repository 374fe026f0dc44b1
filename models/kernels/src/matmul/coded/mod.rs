//! Weights of 4, 5 or 6 bits, multiplied as integers: the blocks of GGUF files.
//!
//! Rows of `x` become integers with one scale per 32 inputs. Sums within a group are exact, and each output
//! adds up its groups in order with fused multiply-adds, so results are bit-identical on every instruction
//! set and for any number of rows.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod codes;
mod portable;
#[cfg(target_arch = "aarch64")]
mod sdot;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vnni;

use half::f16;
use rayon::prelude::*;

pub use codes::{CodeBits, Codes};

use super::bytes::{Tile, tiles};
use super::columns::{Columns, ColumnsShape};
use super::instructions::Instructions;
use super::panels::Aligned;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use super::q8_tiles::{Params, Q8Tiles, ROWS_MIN};
use super::quantized::{GROUP, QUAD, WIDTH};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use super::vnni::Vnni;
use crate::ahead::Ahead;

/// Bytes of one quad of inputs for all outputs of a panel.
const LINE: usize = WIDTH * QUAD;
/// Number of quads in a group.
const QUADS: usize = GROUP / QUAD;

/// A packed weight `[N, K]`, in panels of [`WIDTH`] outputs.
#[derive(Debug)]
pub(super) struct Coded {
    n: usize,
    k: usize,
    bits: CodeBits,
    /// For each panel and group, a [record](CodeBits::record_bytes): a line for each bit of the codes, and a
    /// line of parameters, f16 `[2, WIDTH]`.
    ///
    /// Bytes of a line are `[WIDTH, QUAD]`. Line `l` of the first four has the low halves of quads `l` and
    /// `l + 4`. The fifth bits have one line: bit `q` belongs to quad `q`. The fifth and sixth bits have two
    /// lines, for quads 0 to 3 and 4 to 7.
    records: Aligned<u8>,
    /// `[N]`, padded: powers of two by which the parameters were divided.
    factors: Aligned<f32>,
}

#[derive(Clone, Copy)]
struct Panel<'a> {
    bits: CodeBits,
    records: &'a [u8],
    factors: &'a [f32; WIDTH],
    /// The records of the next panel; none after the last one.
    next: &'a [u8],
}

impl Coded {
    /// Packs codes whose rows have `k` inputs, a multiple of [`GROUP`].
    pub(super) fn pack(codes: &Codes, k: usize) -> Self {
        let n = codes.codes.len() / k;
        let (bits, groups) = (codes.bits, k / GROUP);
        let outputs = n.next_multiple_of(WIDTH);
        let mut records = Aligned::zeros(outputs / WIDTH * groups * bits.record_bytes());
        let mut factors = Aligned::zeros(outputs);
        let panels = records.as_mut_slice().par_chunks_exact_mut(groups * bits.record_bytes());
        let panels = panels.zip(factors.as_mut_slice().par_chunks_exact_mut(WIDTH));
        panels.enumerate().for_each(|(panel, (records, factors))| {
            for (column, factor) in factors.iter_mut().enumerate() {
                let output = panel * WIDTH + column;
                if output < n {
                    *factor = pack_output(codes, output, k, column, records);
                }
            }
        });
        Self { n, k, bits, records, factors }
    }

    fn panel(&self, index: usize) -> Panel<'_> {
        let size = self.k / GROUP * self.bits.record_bytes();
        let mut panels = self.records.as_slice()[index * size..].chunks(size);
        Panel {
            bits: self.bits,
            records: panels.next().unwrap_or_default(),
            factors: &self.factors.as_slice().as_chunks().0[index],
            next: panels.next().unwrap_or_default(),
        }
    }

    pub(super) fn read_row(&self, n: usize, row: &mut [f32]) {
        let panel = self.panel(n / WIDTH);
        let column = n % WIDTH;
        let factor = panel.factors[column];
        let records = panel.records.chunks_exact(self.bits.record_bytes());
        for (values, record) in row.chunks_exact_mut(GROUP).zip(records) {
            let params = self.bits.params(record).map(|line| line[column].to_f32());
            for (input, value) in values.iter_mut().enumerate() {
                let code = self.bits.code(record, input / QUAD, column * QUAD + input % QUAD);
                *value = self.bits.element(code, params, input) * factor;
            }
        }
    }

    /// Returns `[M, N]` for `x` `[M, K]`. Neither may be empty.
    pub(super) fn product<'a>(&'a self, x: &[f32]) -> Columns<'a> {
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        if x.len() / self.k >= ROWS_MIN
            && let Some(tiles) = Q8Tiles::new()
            && let Some(vnni) = Vnni::new()
        {
            return self.product_by_tiles(x, tiles, vnni);
        }
        self.product_by(x, Instructions::best())
    }

    /// Does the same with AMX tiles.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn product_by_tiles<'a>(&'a self, x: &[f32], tiles: Q8Tiles, vnni: Vnni) -> Columns<'a> {
        let params = match self.bits {
            CodeBits::Four | CodeBits::Five => Params::ScalesAndOffsets,
            CodeBits::Six => Params::ScalesOfHalves,
        };
        tiles.product_by(x, [self.n, self.k], params, move |index| vnni::tiles(vnni, self.panel(index)))
    }

    fn product_by<'a>(&'a self, x: &[f32], instructions: Instructions) -> Columns<'a> {
        let tiles = tiles(x, self.k, rows_max(instructions));
        let m = x.len() / self.k;
        let shape = ColumnsShape { m, width: WIDTH, padded: self.n.next_multiple_of(WIDTH) };
        Columns::new(shape, m * self.n * self.k, move |index, mut out| {
            let panel = self.panel(index);
            let mut ahead = Ahead::new(panel.next, tiles.len() * self.k / GROUP);
            for tile in &tiles {
                let (these, rest) = out.split_at_mut(tile.rows * WIDTH);
                set_tile(instructions, tile, panel, &mut ahead, these);
                out = rest;
            }
        })
    }
}

/// Writes one output into the records of its panel. Returns its factor.
fn pack_output(codes: &Codes, output: usize, k: usize, column: usize, records: &mut [u8]) -> f32 {
    let (bits, groups) = (codes.bits, k / GROUP);
    let params = &codes.params[output * groups..][..groups];
    let largest = params.iter().flatten().fold(0.0_f32, |largest, param| largest.max(param.abs()));
    let factor = power_of_two_below(largest);
    let values = codes.codes[output * k..][..k].chunks_exact(GROUP);
    for ((record, params), values) in records.chunks_exact_mut(bits.record_bytes()).zip(params).zip(values) {
        for (input, &code) in values.iter().enumerate() {
            bits.add_code(record, input / QUAD, column * QUAD + input % QUAD, code);
        }
        let lines = bytemuck::cast_slice_mut::<u8, f16>(&mut record[bits.count() * LINE..]);
        lines[column] = f16::from_f32(params[0] / factor);
        lines[WIDTH + column] = f16::from_f32(params[1] / factor);
    }
    factor
}

/// Returns the greatest power of two, from 2^-126 on, that is at most `value`, or the least one.
fn power_of_two_below(value: f32) -> f32 {
    f32::from_bits(value.to_bits() & 0x7f80_0000).max(f32::MIN_POSITIVE)
}

/// Returns the maximum number of rows in a tile, so that their sums fit the registers.
fn rows_max(instructions: Instructions) -> usize {
    match instructions {
        #[cfg(target_arch = "x86_64")]
        Instructions::Vnni(_) => vnni::ROWS_MAX,
        _ => 4,
    }
}

/// Computes `out` `[rows, WIDTH]`. Takes a step ahead with each group.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "only the kernels of x86-64 read ahead")
)]
fn set_tile(
    instructions: Instructions,
    tile: &Tile,
    panel: Panel<'_>,
    ahead: &mut Ahead<'_>,
    out: &mut [f32],
) {
    match instructions {
        Instructions::Portable => portable::set_tile(tile, panel, out),
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2(support) => avx2::set_tile(support, tile, panel, ahead, out),
        #[cfg(target_arch = "x86_64")]
        Instructions::Vnni(support) => vnni::set_tile(support, tile, panel, ahead, out),
        #[cfg(target_arch = "aarch64")]
        Instructions::Sdot(support) => sdot::set_tile(support, tile, panel, out),
    }
}
