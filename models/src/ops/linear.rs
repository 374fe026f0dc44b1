//! `x · wᵀ` for a few rows of `x` and a weight that is read once.
//!
//! Each output is the dot product of two contiguous rows, added up lane by lane and then across lanes, whatever
//! the number of rows: a row's result never depends on its neighbours. Register tiles of 4 x 4 such products keep
//! the arithmetic units busy while the weights stream through once.

use candle_core::{Result, Tensor};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::cpu;

/// Weight rows that one task works on: enough to be worth a thread, few enough to stay in its cache.
const BLOCK: usize = 32;

/// Below this many multiplications a second thread costs more than it brings.
const SERIAL_MAX: usize = 1 << 20;

/// Applies a weight as `torch.nn.Linear` stores it, without bias.
///
/// * `x` `[M, K]`  * `w` `[N, K]`; returns `[M, N]`
pub(crate) fn linear(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    if !cpu::is_plain(x) || !cpu::is_plain(w) {
        return reference(x, w);
    }
    let ((m, k), (n, _)) = (x.dims2()?, w.dims2()?);
    debug_assert_eq!(w.dim(1)?, k, "x {:?}, w {:?}", x.shape(), w.shape());
    let ((x_storage, x_layout), (w_storage, w_layout)) = (x.storage_and_layout(), w.storage_and_layout());
    let (x_values, w_values) = (cpu::slice(&x_storage, x_layout)?, cpu::slice(&w_storage, w_layout)?);
    let values = if m == 0 || n == 0 || k == 0 { vec![0.0; m * n] } else { product(x_values, w_values, k) };
    Tensor::from_vec(values, (m, n), x.device())
}

fn reference(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    x.matmul(&w.t()?)
}

/// `[M, N]` from `[M, K]` and `[N, K]`, none of them empty.
fn product(x: &[f32], w: &[f32], k: usize) -> Vec<f32> {
    let (m, n) = (x.len() / k, w.len() / k);
    // Filled weight row by weight row, so that tasks write to separate places: [N, M].
    let mut columns = vec![0.0; m * n];
    let arch = Arch::new();
    let block = |(out, w): (&mut [f32], &[f32])| arch.dispatch(Block { x, w, k, out });
    let (outs, weights) = (BLOCK * m, BLOCK * k);
    if m * w.len() <= SERIAL_MAX {
        columns.chunks_mut(outs).zip(w.chunks(weights)).for_each(block);
    } else {
        columns.par_chunks_mut(outs).zip(w.par_chunks(weights)).for_each(block);
    }
    if m == 1 { columns } else { transpose(&columns, m) }
}

/// `[N, M]` to `[M, N]`.
fn transpose(columns: &[f32], m: usize) -> Vec<f32> {
    let n = columns.len() / m;
    let mut rows = vec![0.0; columns.len()];
    for (column, values) in columns.chunks_exact(m).enumerate() {
        for (row, &value) in values.iter().enumerate() {
            rows[row * n + column] = value;
        }
    }
    rows
}

/// All rows of `x` against a block of weight rows; `out` is `[block, M]`.
struct Block<'a> {
    x: &'a [f32],
    w: &'a [f32],
    k: usize,
    out: &'a mut [f32],
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (m, n) = (self.x.len() / self.k, self.w.len() / self.k);
        let mut column = 0;
        while column + 4 <= n {
            self.rows::<S, 4>(simd, m, column);
            column += 4;
        }
        while column < n {
            self.rows::<S, 1>(simd, m, column);
            column += 1;
        }
    }
}

impl Block<'_> {
    #[inline(always)]
    fn rows<S: Simd, const N: usize>(&mut self, simd: S, m: usize, column: usize) {
        let mut row = 0;
        // A 4 x 4 tile wants 32 registers; with 16 of them, 2 x 4 is what fits.
        while S::REGISTER_COUNT >= 32 && row + 4 <= m {
            self.tile::<S, 4, N>(simd, row, column);
            row += 4;
        }
        while row + 2 <= m {
            self.tile::<S, 2, N>(simd, row, column);
            row += 2;
        }
        if row < m {
            self.tile::<S, 1, N>(simd, row, column);
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const M: usize, const N: usize>(&mut self, simd: S, row: usize, column: usize) {
        let k = self.k;
        let xs: [_; M] = std::array::from_fn(|i| S::as_simd_f32s(&self.x[(row + i) * k..][..k]));
        let ws: [_; N] = std::array::from_fn(|i| S::as_simd_f32s(&self.w[(column + i) * k..][..k]));
        let steps = xs[0].0.len();
        let x_body = xs.map(|(body, _)| &body[..steps]);
        let w_body = ws.map(|(body, _)| &body[..steps]);
        let mut sums = [[simd.splat_f32s(0.0); M]; N];
        for step in 0..steps {
            let x: [_; M] = std::array::from_fn(|i| x_body[i][step]);
            add_products(simd, &mut sums, x, std::array::from_fn(|i| w_body[i][step]));
        }
        let x = xs.map(|(_, tail)| simd.partial_load_f32s(tail));
        add_products(simd, &mut sums, x, ws.map(|(_, tail)| simd.partial_load_f32s(tail)));
        let m = self.out.len() / (self.w.len() / k);
        for (i, sums) in sums.into_iter().enumerate() {
            for (j, sum) in sums.into_iter().enumerate() {
                self.out[(column + i) * m + row + j] = simd.reduce_sum_f32s(sum);
            }
        }
    }
}

#[inline(always)]
fn add_products<S: Simd, const M: usize, const N: usize>(
    simd: S,
    sums: &mut [[S::f32s; M]; N],
    x: [S::f32s; M],
    w: [S::f32s; N],
) {
    for (sums, w) in sums.iter_mut().zip(w) {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum = simd.mul_add_f32s(x, w, *sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn random(rows: usize, columns: usize) -> Tensor {
        Tensor::randn(0f32, 1f32, (rows, columns), &Device::Cpu).unwrap()
    }

    #[test]
    fn products_equal_those_of_the_reference_at_odd_shapes() {
        for (m, n, k) in
            [(1, 1, 1), (1, 37, 24), (2, 5, 17), (3, 64, 96), (7, 33, 100), (16, 2101, 96), (65, 40, 31)]
        {
            let (x, w) = (random(m, k), random(n, k));
            let difference = (linear(&x, &w).unwrap() - reference(&x, &w).unwrap()).unwrap();
            let worst: f32 = difference.abs().unwrap().max_all().unwrap().to_scalar().unwrap();
            assert!(worst < 1e-4, "{m} x {n} x {k}: off by {worst}");
        }
    }

    #[test]
    fn a_row_is_the_same_to_the_bit_in_any_number_of_rows() {
        for k in [24, 96, 101, 768] {
            let (x, w) = (random(17, k), random(70, k));
            let together = linear(&x, &w).unwrap().to_vec2::<f32>().unwrap();
            for rows in [1, 2, 3, 4, 5, 9] {
                for from in 0..17 - rows {
                    let some =
                        linear(&x.narrow(0, from, rows).unwrap(), &w).unwrap().to_vec2::<f32>().unwrap();
                    assert_eq!(some[..], together[from..from + rows], "{rows} rows from {from}, K {k}");
                }
            }
        }
    }

    #[test]
    fn nothing_times_something_is_nothing() {
        assert_eq!(linear(&random(0, 8), &random(3, 8)).unwrap().dims(), [0, 3]);
    }
}
