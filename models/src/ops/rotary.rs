//! Rotary positions: pairs of a head's numbers turned by an angle that grows with the position.

use std::cell::OnceCell;

use candle_core::{DType, Result, Tensor};

use super::cpu;

/// Cosines and sines of some rows' angles: `R` rows, `P` pairs of each head.
pub(crate) struct Turns {
    /// `[R, P]`, row-major.
    cos: Vec<f32>,
    sin: Vec<f32>,
    pairs: usize,
    /// Both as tensors on the model's device, for all layers of a step.
    tables: OnceCell<[Tensor; 2]>,
}

impl Turns {
    /// The turns of rows at these positions; pair `p` turns by `frequencies[p]` a position. `magnitude` scales
    /// every turned pair.
    ///
    /// In f32, as the original computes them, so that large angles are rounded alike.
    pub(crate) fn new(positions: impl Iterator<Item = usize>, frequencies: &[f32], magnitude: f32) -> Self {
        let angles = positions.flat_map(|position| frequencies.iter().map(move |f| f * position as f32));
        let (sin, cos): (Vec<f32>, Vec<f32>) = angles.map(f32::sin_cos).unzip();
        let scaled = |values: Vec<f32>| values.into_iter().map(|value| value * magnitude).collect();
        Self { cos: scaled(cos), sin: scaled(sin), pairs: frequencies.len(), tables: OnceCell::new() }
    }

    /// Cosines and sines, each `[R, 1, P]`.
    fn tables(&self, like: &Tensor) -> Result<&[Tensor; 2]> {
        if let Some(tables) = self.tables.get() {
            return Ok(tables);
        }
        let table = |values: &[f32]| {
            Tensor::from_slice(values, (values.len() / self.pairs, 1, self.pairs), like.device())
        };
        let tables = [table(&self.cos)?, table(&self.sin)?];
        Ok(self.tables.get_or_init(|| tables))
    }
}

/// Turns every head of every row: number `p` of a head together with number `p + P`.
///
/// * `x` `[R, H * 2P]`, one row per row of `turns`; returns the same shape
pub(crate) fn rotate(x: &Tensor, turns: &Turns) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    debug_assert_eq!((rows * turns.pairs, width % (2 * turns.pairs)), (turns.cos.len(), 0));
    if !cpu::is_plain(x) {
        return reference(x, turns);
    }
    let (storage, layout) = x.storage_and_layout();
    let mut values = cpu::slice(&storage, layout)?.to_vec();
    let angles = turns.cos.chunks_exact(turns.pairs).zip(turns.sin.chunks_exact(turns.pairs));
    for (row, (cos, sin)) in values.chunks_exact_mut(width).zip(angles) {
        for head in row.chunks_exact_mut(2 * turns.pairs) {
            let (left, right) = head.split_at_mut(turns.pairs);
            for ((a, b), (cos, sin)) in left.iter_mut().zip(right).zip(cos.iter().zip(sin)) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
    Tensor::from_vec(values, (rows, width), x.device())
}

fn reference(x: &Tensor, turns: &Turns) -> Result<Tensor> {
    let ((rows, width), pairs) = (x.dims2()?, turns.pairs);
    let heads = x.to_dtype(DType::F32)?.reshape((rows, width / (2 * pairs), 2 * pairs))?;
    let (left, right) = (heads.narrow(2, 0, pairs)?, heads.narrow(2, pairs, pairs)?);
    let [cos, sin] = turns.tables(x)?;
    let turned_left = (left.broadcast_mul(cos)? - right.broadcast_mul(sin)?)?;
    let turned_right = (right.broadcast_mul(cos)? + left.broadcast_mul(sin)?)?;
    Tensor::cat(&[turned_left, turned_right], 2)?.reshape((rows, width))?.to_dtype(x.dtype())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn pairs_turn_by_their_angles() {
        let turns = Turns::new([0, 3].into_iter(), &[std::f32::consts::FRAC_PI_6, 0.0], 1.0);
        let x = Tensor::new(&[[1f32, 2.0, 0.0, 5.0], [1.0, 2.0, 0.0, 5.0]], &Device::Cpu).unwrap();
        let got = rotate(&x, &turns).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(got[0], [1.0, 2.0, 0.0, 5.0]);
        for (got, want) in got[1].iter().zip([0.0, 2.0, 1.0, 5.0]) {
            assert!((got - want).abs() < 1e-6, "three sixths of a half turn: {got} instead of {want}");
        }
    }

    #[test]
    fn the_loop_equals_the_reference() {
        let x = Tensor::randn(0f32, 1f32, (5, 24), &Device::Cpu).unwrap();
        let turns = Turns::new([7, 0, 1, 900, 3].into_iter(), &[1.0, 0.1, 0.01, 0.5], 1.3);
        let difference = (rotate(&x, &turns).unwrap() - reference(&x, &turns).unwrap()).unwrap();
        let worst: f32 = difference.abs().unwrap().max_all().unwrap().to_scalar().unwrap();
        assert!(worst < 1e-6, "{worst}");
    }
}
