//! 8-bit integer weights: 32 inputs of an output share one scale, as in GGUF's `Q8_0`.
//!
//! If the CPU has int8 instructions, `vnni`, `avx2` and `sdot` multiply the integers directly. Otherwise,
//! `widened` converts them to f32.

use half::f16;
use rayon::prelude::*;

use super::columns::{Columns, ColumnsShape};
use super::panels::Aligned;

/// Number of inputs that share a scale.
pub(super) const GROUP: usize = 32;
/// Number of outputs in a panel.
pub(super) const WIDTH: usize = 16;
/// Number of inputs that one instruction multiplies and adds up.
pub(super) const QUAD: usize = 4;
/// Bytes of one group for all outputs of a panel.
pub(super) const GROUP_BYTES: usize = GROUP * WIDTH;
/// Offset of the stored integers: x86's instruction requires unsigned integers, ARM's requires signed ones.
pub(super) const OFFSET: i32 = if cfg!(target_arch = "x86_64") { 128 } else { 0 };
/// Maximum absolute value of an integer.
pub(super) const MAX: f32 = 127.0;

/// A weight `[N, K]` in panels of [`WIDTH`] outputs, padded with zeros to complete panels and groups.
#[derive(Debug)]
pub(super) struct Quantized {
    pub(super) n: usize,
    pub(super) k: usize,
    /// For each panel and group, `[GROUP / QUAD, WIDTH, QUAD]`, each with [`OFFSET`] added.
    values: Aligned<u8>,
    /// For each panel and group, `[WIDTH]`.
    scales: Aligned<f16>,
}

#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    pub(super) values: &'a [u8],
    pub(super) scales: &'a [f16],
    /// The values of the next panel; none after the last one.
    pub(super) next: &'a [u8],
}

impl Quantized {
    pub(super) fn pack(values: &[f32], k: usize) -> Self {
        let n = values.len() / k.max(1);
        let groups = k.div_ceil(GROUP);
        let panels = n.div_ceil(WIDTH) * groups;
        let mut bytes = Aligned::zeros(panels * GROUP_BYTES);
        let mut scales = Aligned::zeros(panels * WIDTH);
        if panels > 0 {
            let bytes = bytes.as_mut_slice().par_chunks_mut(groups * GROUP_BYTES);
            let scales = scales.as_mut_slice().par_chunks_mut(groups * WIDTH);
            let panels = bytes.zip(scales).zip(values.par_chunks(WIDTH * k));
            panels.for_each(|((bytes, scales), rows)| pack_panel(rows, k, bytes, scales));
        }
        Self { n, k, values: bytes, scales }
    }

    pub(super) fn groups(&self) -> usize {
        self.k.div_ceil(GROUP)
    }

    pub(super) fn panel(&self, index: usize) -> Panel<'_> {
        let groups = self.groups();
        let mut panels = self.values.as_slice()[index * groups * GROUP_BYTES..].chunks(groups * GROUP_BYTES);
        Panel {
            values: panels.next().unwrap_or_default(),
            scales: &self.scales.as_slice()[index * groups * WIDTH..][..groups * WIDTH],
            next: panels.next().unwrap_or_default(),
        }
    }

    pub(super) fn read_row(&self, n: usize, row: &mut [f32]) {
        let panel = self.panel(n / WIDTH);
        let column = n % WIDTH;
        for (group, values) in row.chunks_mut(GROUP).enumerate() {
            let scale = panel.scales[group * WIDTH + column].to_f32();
            let quads = panel.values[group * GROUP_BYTES + column * QUAD..].chunks(WIDTH * QUAD);
            for (values, quad) in values.chunks_mut(QUAD).zip(quads) {
                values.iter_mut().zip(quad).for_each(|(value, &byte)| *value = integer(byte) as f32 * scale);
            }
        }
    }

    /// Returns the outputs that `task(panel, [M, WIDTH])` computes for each panel.
    pub(super) fn by_panel<'a>(&self, m: usize, task: impl Fn(usize, &mut [f32]) + Sync + 'a) -> Columns<'a> {
        let shape = ColumnsShape { m, width: WIDTH, padded: self.n.next_multiple_of(WIDTH) };
        Columns::new(shape, m * self.n * self.k, task)
    }
}

/// Packs rows `[rows, K]` as one panel.
fn pack_panel(rows: &[f32], k: usize, bytes: &mut [u8], scales: &mut [f16]) {
    bytes.fill(OFFSET as u8);
    for (column, row) in rows.chunks_exact(k).enumerate() {
        let groups = bytes.chunks_exact_mut(GROUP_BYTES).zip(scales.chunks_exact_mut(WIDTH));
        for (values, (bytes, scales)) in row.chunks(GROUP).zip(groups) {
            let scale = f16::from_f32(largest(values) / MAX);
            scales[column] = scale;
            let inverse = if scale.to_f32() > 0.0 { scale.to_f32().recip() } else { 0.0 };
            for (at, value) in values.iter().enumerate() {
                // A scale below the 16-bit range is inaccurate, so the quotient may exceed MAX.
                let integer = nearest((value * inverse).clamp(-MAX, MAX));
                let place = (at / QUAD * WIDTH + column) * QUAD + at % QUAD;
                bytes[place] = (i32::from(integer) + OFFSET) as u8;
            }
        }
    }
}

/// Returns the greatest absolute value of at most [`GROUP`] elements, or NaN if there is one, so that it
/// reaches the outputs through the scale.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> f32 {
    // Bits of positive numbers have the same order as the numbers. NaN is above infinity.
    let mut lanes = [0_i32; GROUP];
    for (lane, value) in lanes.iter_mut().zip(values) {
        *lane = value.abs().to_bits().cast_signed();
    }
    // Compares halves, so that comparisons are vector instructions.
    let mut half = GROUP / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        for (low, &high) in low.iter_mut().zip(&*high) {
            *low = if high > *low { high } else { *low };
        }
        half /= 2;
    }
    f32::from_bits(lanes[0].cast_unsigned())
}

/// Returns the nearest integer of a value between -127 and 127.
#[inline(always)]
pub(super) fn nearest(value: f32) -> i8 {
    // The sum has the integer in its lowest bits.
    (value + 12_582_912.0).to_bits() as i8
}

/// Returns the integer that a byte of a weight represents.
#[inline(always)]
fn integer(byte: u8) -> i32 {
    i32::from(byte.wrapping_sub(OFFSET as u8).cast_signed())
}

/// Returns one group of a panel as f32, `[GROUP, WIDTH]`.
#[inline(always)]
pub(super) fn widen(panel: Panel<'_>, group: usize, wide: &mut [f32]) {
    let values = &panel.values[group * GROUP_BYTES..][..GROUP_BYTES];
    let scales = &panel.scales[group * WIDTH..][..WIDTH];
    let scales: [f32; WIDTH] = std::array::from_fn(|column| scales[column].to_f32());
    for (quad, values) in values.chunks_exact(WIDTH * QUAD).enumerate() {
        for input in 0..QUAD {
            let row = &mut wide[(quad * QUAD + input) * WIDTH..][..WIDTH];
            for (column, (wide, scale)) in row.iter_mut().zip(scales).enumerate() {
                *wide = integer(values[column * QUAD + input]) as f32 * scale;
            }
        }
    }
}
