//! Random tensors of tests, identical in every run.

use std::cell::RefCell;

use candle_core::{Device, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) struct Random(RefCell<ChaCha8Rng>);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(RefCell::new(ChaCha8Rng::seed_from_u64(seed)))
    }

    /// Returns f32 `[rows, columns]`, uniform, with the mean 0 and this standard deviation.
    pub(crate) fn matrix(&self, rows: usize, columns: usize, deviation: f32) -> Tensor {
        let most = deviation * 3f32.sqrt();
        let mut generator = self.0.borrow_mut();
        let numbers = (0..rows * columns).map(|_| most * (2.0 * generator.random::<f32>() - 1.0)).collect();
        Tensor::from_vec(numbers, (rows, columns), &Device::Cpu).unwrap()
    }
}
