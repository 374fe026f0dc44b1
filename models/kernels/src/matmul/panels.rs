//! Packed panels of a weight: a few vectors of outputs side by side, input after input.

use bytemuck::{Pod, Zeroable};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Maximum number of rows of `x` in a tile.
pub(super) const ROWS_MAX: usize = 6;

/// Maximum number of output vectors in a panel.
pub(super) const VECTORS_MAX: usize = 4;

#[derive(Debug, Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// A vector that starts at a cache line, so that SIMD loads never cross one.
#[derive(Debug)]
pub(super) struct Aligned<T> {
    lines: Vec<CacheLine>,
    len: usize,
    of: std::marker::PhantomData<T>,
}

impl<T: Pod> Aligned<T> {
    pub(super) fn zeros(len: usize) -> Self {
        let lines = vec![CacheLine([0; 64]); (len * size_of::<T>()).div_ceil(64)];
        Self { lines, len, of: std::marker::PhantomData }
    }

    pub(super) fn as_slice(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

/// The SIMD registers of this CPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Registers {
    /// Number of f32 lanes in one register.
    pub(super) lanes: usize,
    /// Number of output vectors in a panel. The sums of [`ROWS_MAX`] rows fit into registers together with
    /// the vectors of one input.
    pub(super) vectors: usize,
}

impl Registers {
    pub(super) fn new() -> Self {
        struct Ask;
        impl WithSimd for Ask {
            type Output = Registers;

            fn with_simd<S: Simd>(self, _: S) -> Registers {
                Registers {
                    lanes: S::F32_LANES,
                    vectors: if S::REGISTER_COUNT >= 32 { VECTORS_MAX } else { VECTORS_MAX / 2 },
                }
            }
        }
        Arch::new().dispatch(Ask)
    }
}

/// A weight `[N, K]` in panels `[K, width]`.
#[derive(Debug)]
pub(super) struct Panels<T> {
    pub(super) n: usize,
    pub(super) k: usize,
    registers: Registers,
    values: Aligned<T>,
}

impl<T: Pod + Send + Sync> Panels<T> {
    pub(super) fn pack(values: &[f32], k: usize, convert: impl Fn(f32) -> T + Sync) -> Self {
        let n = values.len() / k.max(1);
        let registers = Registers::new();
        let mut packed =
            Self { n, k, registers, values: Aligned::zeros(n.next_multiple_of(registers.lanes) * k) };
        let width = packed.width();
        let kept = packed.values.as_mut_slice();
        if kept.is_empty() {
            return packed;
        }
        let panels = kept.par_chunks_mut(width * k).zip(values.par_chunks(width * k));
        panels.for_each(|(panel, rows)| {
            let width = panel.len() / k;
            for (column, row) in rows.chunks_exact(k).enumerate() {
                for (place, &value) in panel[column..].iter_mut().step_by(width).zip(row) {
                    *place = convert(value);
                }
            }
        });
        packed
    }

    /// Returns the number of outputs in every panel except the last, which has the rest.
    pub(super) fn width(&self) -> usize {
        self.registers.vectors * self.registers.lanes
    }

    /// Returns the number of outputs in all panels, including the zeros that fill the last vector.
    pub(super) fn padded(&self) -> usize {
        self.n.next_multiple_of(self.registers.lanes)
    }

    /// Returns one panel, `[K, width]`.
    pub(super) fn panel(&self, index: usize) -> &[T] {
        let from = index * self.width() * self.k;
        let size = self.width() * self.k;
        let values = self.values.as_slice();
        &values[from..values.len().min(from + size)]
    }

    /// Returns the panels after this one.
    pub(super) fn after(&self, index: usize) -> &[T] {
        let values = self.values.as_slice();
        &values[values.len().min((index + 1) * self.width() * self.k)..]
    }

    pub(super) fn read_row(&self, n: usize, row: &mut [f32], convert: impl Fn(T) -> f32) {
        let panel = self.panel(n / self.width());
        let width = panel.len() / self.k.max(1);
        let column = panel[n % self.width()..].iter().step_by(width.max(1));
        row.iter_mut().zip(column).for_each(|(value, &kept)| *value = convert(kept));
    }
}
