//! Rows of attention and their keys and values, as tensors.

#[cfg(feature = "cuda")]
use std::sync::OnceLock;

use candle_core::Tensor;
#[cfg(feature = "cuda")]
use candle_core::{Device, Result};
use ntl_kernels::{AttentionQuery, Visible};

/// Keys and values of one stack layer for one context: both `[N, H * D]`, position-major.
#[derive(Debug, Clone)]
pub(crate) struct KeyValues {
    pub(crate) keys: Tensor,
    pub(crate) values: Tensor,
}

/// One query position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionRow<'a> {
    /// Positions before those of `kv`, all of them visible.
    pub(super) before: &'a [&'a KeyValues],
    pub(super) kv: &'a KeyValues,
    pub(super) query: AttentionQuery<'a>,
}

impl<'a> AttentionRow<'a> {
    /// A row that sees these positions and no others. `position` is its own place among them.
    pub(crate) fn new(kv: &'a KeyValues, visible: Visible<'a>, position: usize) -> Self {
        Self { before: &[], kv, query: AttentionQuery { visible, hidden: 0, position } }
    }

    /// A row that also sees the positions `before`; the first `hidden` of all are outside its window.
    pub(crate) fn with_prefix(mut self, before: &'a [&'a KeyValues], hidden: usize) -> Self {
        self.before = before;
        self.query.hidden = hidden;
        self
    }

    /// Whether both rows have their keys and values in the same tensors.
    pub(super) fn shares_keys(&self, other: &Self) -> bool {
        std::ptr::eq(self.kv, other.kv) && std::ptr::eq(self.before, other.before)
    }
}

/// A bias by distance, with a copy on the model's device.
#[derive(Debug, Clone)]
pub(crate) struct RelativeBias {
    pub(super) values: ntl_kernels::RelativeBias,
    #[cfg(feature = "cuda")]
    table: OnceLock<Tensor>,
}

impl RelativeBias {
    /// `bias(head, key position - query position)` must be constant beyond `reach` on either side.
    pub(crate) fn new(heads: usize, reach: usize, bias: impl Fn(usize, i64) -> f32) -> Self {
        Self {
            values: ntl_kernels::RelativeBias::new(heads, reach, bias),
            #[cfg(feature = "cuda")]
            table: OnceLock::new(),
        }
    }

    /// The bias of a distance from query to key.
    pub(super) fn at(&self, head: usize, distance: i64) -> f32 {
        let values = &self.values.values()[head];
        let reach = values.len() as i64 / 2;
        values[(distance.clamp(-reach, reach) + reach) as usize]
    }

    /// The values of all heads, f32 `[distances, H]`. Stays on the first device that asks for it, since a model has one device.
    #[cfg(feature = "cuda")]
    pub(super) fn table(&self, device: &Device) -> Result<Tensor> {
        if let Some(table) = self.table.get() {
            return Ok(table.clone());
        }
        let (heads, distances) = (self.values.values(), self.values.values()[0].len());
        let table: Vec<f32> =
            (0..distances).flat_map(|distance| heads.iter().map(move |values| values[distance])).collect();
        let table = Tensor::from_vec(table, (distances, heads.len()), device)?;
        Ok(self.table.get_or_init(|| table).clone())
    }
}
