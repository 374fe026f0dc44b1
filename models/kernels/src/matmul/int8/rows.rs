//! Rows of `x` as integers, with one scale per row.

#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::super::panels::Aligned;
use super::super::quantized::nearest;
use super::super::tiles::LAYOUT_MAX;
use super::{INPUTS, MAX, OFFSET, QUAD};

/// Rows `[M, K]`, with inputs padded to a multiple of [`INPUTS`].
pub(super) struct Rows {
    /// Integers with [`OFFSET`] added.
    bytes: Aligned<u8>,
    /// The integers themselves, for instructions with signed operands.
    #[cfg(target_arch = "x86_64")]
    signed: OnceLock<Vec<i32>>,
    /// `[M]`.
    scales: Vec<f32>,
    /// Number of bytes in a padded row.
    padded: usize,
}

impl Rows {
    /// Rounds each row of `x` `[M, K]` to the nearest integers.
    pub(super) fn round(x: &[f32], k: usize) -> Self {
        let m = x.len() / k;
        let padded = k.next_multiple_of(INPUTS);
        let mut rows = Self {
            bytes: Aligned::zeros(m * padded),
            #[cfg(target_arch = "x86_64")]
            signed: OnceLock::new(),
            scales: vec![0.0; m],
            padded,
        };
        let arch = Arch::new();
        let levels = levels(k);
        let bytes = rows.bytes.as_mut_slice();
        if x.len() <= LAYOUT_MAX {
            let parts = x.chunks_exact(k).zip(bytes.chunks_exact_mut(padded));
            for ((x, bytes), scale) in parts.zip(&mut rows.scales) {
                *scale = arch.dispatch(Round { x, bytes, levels });
            }
        } else {
            let parts = x.par_chunks_exact(k).zip(bytes.par_chunks_exact_mut(padded));
            parts.zip(&mut rows.scales).for_each(|((x, bytes), scale)| {
                *scale = arch.dispatch(Round { x, bytes, levels });
            });
        }
        rows
    }

    /// `M`.
    pub(super) fn len(&self) -> usize {
        self.scales.len()
    }

    /// Returns the bytes of all rows.
    pub(super) fn all(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// Returns the integers of a row, [`QUAD`] in each number.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) fn quads(&self, row: usize) -> &[i32] {
        bytemuck::cast_slice(&self.bytes.as_slice()[row * self.padded..][..self.padded])
    }

    /// Returns the integers of all rows without [`OFFSET`], [`QUAD`] in each number.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn signed_quads(&self) -> &[i32] {
        const SIGNS: i32 = i32::from_ne_bytes([OFFSET as u8; QUAD]);
        let quads = bytemuck::cast_slice::<u8, i32>(self.bytes.as_slice());
        self.signed.get_or_init(|| quads.iter().map(|quad| quad ^ SIGNS).collect())
    }

    /// Returns the integers of a row as bytes.
    pub(super) fn bytes(&self, row: usize) -> &[[u8; QUAD]] {
        self.bytes.as_slice()[row * self.padded..][..self.padded].as_chunks().0
    }

    pub(super) fn scale(&self, row: usize) -> f32 {
        self.scales[row]
    }
}

/// Returns the largest integer for `x` whose sums over `k` inputs cannot overflow 32 bits: [`MAX`], unless
/// `k` is huge.
fn levels(k: usize) -> f32 {
    ((i32::MAX as usize / MAX as usize / k).max(1) as f32).min(MAX)
}

/// Rounds one row and returns its scale.
struct Round<'a> {
    x: &'a [f32],
    bytes: &'a mut [u8],
    levels: f32,
}

impl WithSimd for Round<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f32 {
        let largest = largest(self.x);
        let inverse = inverse(largest, self.levels);
        for (byte, value) in self.bytes.iter_mut().zip(self.x) {
            *byte = nearest(value * inverse).cast_unsigned() ^ OFFSET as u8;
        }
        largest / self.levels
    }
}

/// Returns the greatest absolute value, or NaN if there is one, so that it reaches the outputs through the
/// scale.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> f32 {
    // Bits of positive numbers have the same order as the numbers; infinity and NaN come last.
    let bits = values.iter().map(|value| value.abs().to_bits());
    f32::from_bits(bits.fold(0, u32::max))
}

/// Returns the factor that maps numbers up to `largest` to the range from `-levels` to `levels`, or 0 if it
/// overflows.
#[inline(always)]
pub(super) fn inverse(largest: f32, levels: f32) -> f32 {
    let inverse = levels / largest;
    if inverse.is_infinite() { 0.0 } else { inverse }
}
