//! How much memory the keys and values of a position take.

use candle_core::{DType, Device};
use ntl_core::engine::{CacheCost, NodeCapacity};

/// Initial capacity of the nodes of one context on the CPU, which doubles when it is full.
pub(super) const CAPACITY_MIN: usize = 32;

/// Keys and values of one position.
#[derive(Debug, Clone)]
pub(crate) struct NodeShape {
    pub(crate) layers: usize,
    /// Width of the keys of one layer, and of the values.
    pub(crate) width: usize,
    pub(crate) dtype: DType,
    pub(crate) device: Device,
}

impl NodeShape {
    /// Bytes of one position.
    pub(crate) fn bytes(&self) -> u64 {
        (2 * self.layers * self.width * self.dtype.size_in_bytes()) as u64
    }

    /// What contexts cost whose prompts keep keys and values of the same size. Slots are taken one by one.
    pub(crate) fn cache_cost(&self, has_slots: bool) -> CacheCost {
        let node = self.bytes();
        let capacity =
            if has_slots { NodeCapacity::Exact } else { NodeCapacity::PowerOfTwo { min: CAPACITY_MIN } };
        CacheCost { prompt_token: node, node, capacity }
    }
}
