//! Relative position biases on any device.

#[cfg(feature = "cuda")]
use std::sync::OnceLock;

#[cfg(feature = "cuda")]
use candle_core::{Device, Result, Tensor};

/// A bias by distance, with a copy on the model's device.
#[derive(Debug, Clone)]
pub(crate) struct RelativeBias {
    pub(super) values: ntl_kernels::DistanceBias,
    #[cfg(feature = "cuda")]
    table: OnceLock<Tensor>,
}

impl RelativeBias {
    /// Creates the bias. `bias(head, key position - query position)` must be constant beyond `reach` on
    /// either side.
    pub(crate) fn new(heads: usize, reach: usize, bias: impl Fn(usize, i64) -> f32) -> Self {
        Self {
            values: ntl_kernels::DistanceBias::new(heads, reach, bias),
            #[cfg(feature = "cuda")]
            table: OnceLock::new(),
        }
    }

    /// Returns the bias for a distance from query to key.
    pub(super) fn at(&self, head: usize, distance: i64) -> f32 {
        let values = &self.values.values()[head];
        let reach = values.len() as i64 / 2;
        values[(distance.clamp(-reach, reach) + reach) as usize]
    }

    /// Returns the values of all heads, f32 `[H, distances]`. The table stays on the first device that
    /// requests it, since a model uses one device.
    #[cfg(feature = "cuda")]
    pub(super) fn table(&self, device: &Device) -> Result<Tensor> {
        if let Some(table) = self.table.get() {
            return Ok(table.clone());
        }
        let heads = self.values.values();
        let distances = self.values.values()[0].len();
        let table = Tensor::from_vec(heads.concat(), (heads.len(), distances), device)?;
        Ok(self.table.get_or_init(|| table).clone())
    }
}
