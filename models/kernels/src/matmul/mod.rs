//! The matmul `x · wᵀ` with weights that are packed once.
//!
//! A weight is stored in panels: some outputs side by side, input after input. One pass over a panel serves
//! several rows of `x` from registers and reads memory sequentially. Each output is added up over the inputs
//! in order, in blocks of 128, regardless of the number of rows, so the result of a row never depends on the
//! other rows.

mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod bf16_tiles;
mod bytes;
#[cfg(test)]
mod bytes_tests;
mod coded;
mod columns;
mod float;
mod instructions;
mod int8;
mod panels;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod q8_tiles;
mod quantized;
#[cfg(target_arch = "aarch64")]
mod sdot;
#[cfg(test)]
mod tests;
mod tiles;
#[cfg(target_arch = "x86_64")]
mod vnni;
mod widened;

use half::{bf16, f16};

use amx::Amx;
#[cfg(target_arch = "x86_64")]
use avx2::Avx2;
use bf16_tiles::Bf16Tiles;
use coded::Coded;
pub use coded::{CodeBits, Codes};
use columns::Columns;
pub use float::Float;
use int8::Int8;
use panels::Panels;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use q8_tiles::Q8Tiles;
use quantized::Quantized;
#[cfg(target_arch = "aarch64")]
use sdot::Sdot as ByteProducts;
#[cfg(target_arch = "x86_64")]
use vnni::Vnni as ByteProducts;

/// Storage format of a weight's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    F32,
    /// bf16. If the CPU has bf16 tiles, rows of `x` are also rounded; otherwise products are computed in f32.
    Bf16,
    F16,
    /// 8-bit integers with one scale per output. Rows of `x` are rounded in the same way.
    Int8,
    /// Groups of 32 inputs: 8-bit integers with one 16-bit scale.
    Q8,
}

/// A packed weight `[N, K]`.
#[derive(Debug)]
pub struct Matrix {
    n: usize,
    k: usize,
    packed: Packed,
}

#[derive(Debug)]
enum Packed {
    F32(Panels<f32>),
    Bf16(Panels<bf16>),
    Bf16Tiles(Amx, Bf16Tiles),
    F16(Panels<f16>),
    Int8(Int8),
    Q8(Quantized),
    Coded(Coded),
}

impl Matrix {
    /// Packs `values`, `[N, K]` in row-major order.
    pub fn pack(values: &[f32], [n, k]: [usize; 2], format: Format) -> Self {
        assert_eq!(values.len(), n * k, "elements of a weight of {n} x {k}");
        let packed = match format {
            Format::F32 => Packed::F32(Panels::pack(values, k, |value| value)),
            Format::Bf16 if let Some(support) = Amx::new() => {
                Packed::Bf16Tiles(support, Bf16Tiles::pack(values, k))
            }
            Format::Bf16 => Packed::Bf16(Panels::pack(values, k, bf16::from_f32)),
            Format::F16 => Packed::F16(Panels::pack(values, k, f16::from_f32)),
            Format::Int8 => Packed::Int8(Int8::pack(values, k)),
            Format::Q8 => Packed::Q8(Quantized::pack(values, k)),
        };
        Self { n, k, packed }
    }

    /// Packs the codes of a weight `[N, K]`.
    pub fn pack_codes(codes: &Codes, [n, k]: [usize; 2]) -> Self {
        assert!(
            k > 0 && k.is_multiple_of(quantized::GROUP),
            "{k} inputs, not groups of {}",
            quantized::GROUP
        );
        assert_eq!(codes.codes.len(), n * k, "codes of a weight of {n} x {k}");
        assert_eq!(codes.params.len(), n * k / quantized::GROUP, "groups of a weight of {n} x {k}");
        Self { n, k, packed: Packed::Coded(Coded::pack(codes, k)) }
    }

    /// `N`.
    pub fn outputs(&self) -> usize {
        self.n
    }

    /// `K`.
    pub fn inputs(&self) -> usize {
        self.k
    }

    /// Returns `[M, N]` for `x` `[M, K]`.
    pub fn product(&self, x: &[f32], m: usize) -> Vec<f32> {
        let [all] = self.product_parts(x, m, [self.n]);
        all
    }

    /// Returns the columns of `[M, N]` for `x` `[M, K]` in parts `[M, width]`. The widths must add up to `N`.
    pub fn product_parts<const P: usize>(&self, x: &[f32], m: usize, widths: [usize; P]) -> [Vec<f32>; P] {
        assert_eq!(x.len(), m * self.k, "rows of {} inputs", self.k);
        if x.is_empty() {
            return widths.map(|width| vec![0.0; m * width]);
        }
        self.columns(x).split(widths)
    }

    fn columns<'a>(&'a self, x: &[f32]) -> Columns<'a> {
        match &self.packed {
            Packed::F32(panels) => widened::product(panels, x),
            Packed::Bf16(panels) => widened::product(panels, x),
            Packed::Bf16Tiles(support, weight) => weight.product(*support, x),
            Packed::F16(panels) => widened::product(panels, x),
            Packed::Int8(weight) => weight.product(x),
            Packed::Q8(quantized) => {
                #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
                if x.len() / self.k >= q8_tiles::ROWS_MIN
                    && let Some(tiles) = Q8Tiles::new()
                {
                    return tiles.product(quantized, x);
                }
                #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
                if let Some(bytes) = ByteProducts::new() {
                    return bytes.product(quantized, x);
                }
                #[cfg(target_arch = "x86_64")]
                if let Some(bytes) = Avx2::new() {
                    return bytes.product(quantized, x);
                }
                widened::product_quantized(quantized, x)
            }
            Packed::Coded(coded) => coded.product(x),
        }
    }

    /// Writes the `K` elements of output `n`.
    pub fn read_row(&self, n: usize, row: &mut [f32]) {
        match &self.packed {
            Packed::F32(panels) => panels.read_row(n, row, Float::to_f32),
            Packed::Bf16(panels) => panels.read_row(n, row, Float::to_f32),
            Packed::Bf16Tiles(_, weight) => weight.read_row(n, row),
            Packed::F16(panels) => panels.read_row(n, row, Float::to_f32),
            Packed::Int8(weight) => weight.read_row(n, row),
            Packed::Q8(quantized) => quantized.read_row(n, row),
            Packed::Coded(coded) => coded.read_row(n, row),
        }
    }
}
