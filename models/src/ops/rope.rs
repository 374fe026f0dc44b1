//! Rotary position embeddings.

use std::cell::OnceCell;

use candle_core::{DType, Device, Result, Tensor};

use super::tensors::{to_vec, uses_kernels};

/// Cosines and sines of the angles of a step's rows.
pub(crate) struct PassRope {
    values: ntl_kernels::RopeTables,
    /// Cosines and sines on the model's device, for all layers of a step, f32 `[R, 2, P]`.
    table: OnceCell<Tensor>,
}

impl PassRope {
    pub(crate) fn new(
        positions: impl Iterator<Item = usize>,
        frequencies: &[f32],
        magnitude: f32,
        head_dim: usize,
    ) -> Self {
        let values = ntl_kernels::RopeTables::new(positions, frequencies, magnitude, head_dim);
        Self { values, table: OnceCell::new() }
    }

    /// Returns f32 `[R, 2, P]`: cosines and sines of each row.
    pub(crate) fn table(&self, device: &Device) -> Result<&Tensor> {
        if let Some(table) = self.table.get() {
            return Ok(table);
        }
        let ntl_kernels::RopeTables { cos, sin, pairs, .. } = &self.values;
        let rows = cos.chunks_exact(*pairs).zip(sin.chunks_exact(*pairs));
        let both: Vec<f32> = rows.flat_map(|(cos, sin)| [cos, sin]).flatten().copied().collect();
        let table = Tensor::from_vec(both, (cos.len() / pairs, 2, *pairs), device)?;
        Ok(self.table.get_or_init(|| table))
    }
}

/// Rotates every head of `x` `[R, H * D]`, one row per row of `tables`. Returns the same shape in f32.
pub(crate) fn apply_rope(x: &Tensor, tables: &PassRope) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    debug_assert_eq!(
        (rows * tables.values.pairs, width % tables.values.head_dim),
        (tables.values.cos.len(), 0)
    );
    if !uses_kernels(x) {
        return composed(x, tables);
    }
    let mut values = to_vec(x)?;
    ntl_kernels::apply_rope(&mut values, width, &tables.values);
    Tensor::from_vec(values, (rows, width), x.device())
}

/// Computes the same with candle's fused operation, in f32: every row is a sequence of one position.
fn composed(x: &Tensor, tables: &PassRope) -> Result<Tensor> {
    let ((rows, width), pairs, head_dim) = (x.dims2()?, tables.values.pairs, tables.values.head_dim);
    let heads = x.to_dtype(DType::F32)?.reshape((rows, width / head_dim, 1, head_dim))?;
    let table = tables.table(x.device())?;
    let [cos, sin] = [table.narrow(1, 0, 1)?.contiguous()?, table.narrow(1, 1, 1)?.contiguous()?];
    let first = heads.narrow(3, 0, 2 * pairs)?.contiguous()?;
    let mut rotated = candle_nn::rotary_emb::rope(&first, &cos, &sin)?;
    if 2 * pairs < head_dim {
        rotated = Tensor::cat(&[rotated, heads.narrow(3, 2 * pairs, head_dim - 2 * pairs)?], 3)?;
    }
    rotated.reshape((rows, width))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_kernel_equals_the_reference() {
        let x = Random::new(1).matrix(5, 24, 1.0);
        for head_dim in [8, 12] {
            let positions = [7, 0, 1, 900, 3].into_iter();
            let tables = PassRope::new(positions, &[1.0, 0.1, 0.01, 0.5], 1.3, head_dim);
            let difference = (apply_rope(&x, &tables).unwrap() - composed(&x, &tables).unwrap()).unwrap();
            let worst: f32 = difference.abs().unwrap().max_all().unwrap().to_scalar().unwrap();
            assert!(worst < 1e-6, "{head_dim}: {worst}");
        }
    }
}
