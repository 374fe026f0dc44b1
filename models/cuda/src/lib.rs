//! What `ntl-server` asks of CUDA beyond candle: the order and the free memory of GPUs, settings of a GPU that is opened, products with
//! sums in f32, and kernels of its own for decoding, prompts and logits (`kernels`). Empty without the feature `cuda`.
#![cfg(feature = "cuda")]
#![expect(unsafe_code, reason = "cudarc has no safe functions for these; every call says why it is sound")]

mod attention;
mod launch;
mod layer;
mod logits;
mod product;
mod prompt;

use std::ffi::c_void;

use candle_core::CudaDevice;
use candle_core::cuda::cudarc::driver::result::{device, mem_pool};
use candle_core::cuda::cudarc::driver::sys::{CUdevice_attribute, CUmemPool_attribute};
use candle_core::cuda::cudarc::driver::{CudaContext, DriverError};

pub use attention::{ROW_NUMBERS, SlotAttention};
pub use layer::{Activation, Projections, activate, norm};
pub use logits::{SUMMARY, summarize};
pub use product::{add_product, product};
pub use prompt::{HeadBatch, HeadSource, NO_ROW, PackedHeads, QUERY_NUMBERS, unpack_heads};

/// Variables by which a user orders the GPUs. Where one is set, the driver's order is the user's.
const ORDER_VARIABLES: [&str; 2] = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"];

/// Where a GPU is plugged in. `nvidia-smi` numbers GPUs by it; the driver begins with the fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PciAddress {
    domain: i32,
    bus: i32,
    slot: i32,
}

/// The driver's number of the GPU that `nvidia-smi` calls `number`; the same number where the user ordered the GPUs.
pub fn ordinal(number: usize) -> Result<usize, DriverError> {
    let count = usize::try_from(CudaContext::device_count()?).unwrap_or(0);
    let is_ordered = ORDER_VARIABLES.iter().any(|name| std::env::var_os(name).is_some());
    if is_ordered || count < 2 {
        return Ok(number);
    }
    let addresses = (0..count).map(pci_address).collect::<Result<Vec<_>, _>>()?;
    Ok(by_address(&addresses).get(number).copied().unwrap_or(number))
}

fn pci_address(ordinal: usize) -> Result<PciAddress, DriverError> {
    let device = device::get(ordinal as i32)?;
    // SAFETY: the driver just returned this device.
    let attribute = |name| unsafe { device::get_attribute(device, name) };
    Ok(PciAddress {
        domain: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
        bus: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
        slot: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
    })
}

/// Indices of addresses in their order.
fn by_address(addresses: &[PciAddress]) -> Vec<usize> {
    let mut ordinals: Vec<usize> = (0..addresses.len()).collect();
    ordinals.sort_by_key(|&ordinal| addresses[ordinal]);
    ordinals
}

/// Sets a GPU up for one stream that allocates and frees in every step: uses of memory are not tracked by events, and the pool
/// keeps memory that is freed instead of giving it back to the driver at every synchronisation.
///
/// Call it before anything is allocated, and use no other stream.
pub fn prepare(device: &CudaDevice) -> Result<(), DriverError> {
    // SAFETY: candle runs everything on the device's one stream, in whose order memory is used and freed.
    unsafe { device.disable_event_tracking() };
    let mut threshold = u64::MAX;
    // SAFETY: the context is alive, so its device is valid and the pool is, too. The attribute is a `u64`.
    unsafe {
        let pool = device::get_mem_pool(device.cuda_stream().context().cu_device())?;
        let value = (&raw mut threshold).cast::<c_void>();
        mem_pool::set_attribute(pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, value)
    }
}

/// Bytes of memory of a GPU that nothing uses.
pub fn free_bytes(ordinal: usize) -> Result<usize, DriverError> {
    CudaContext::new(ordinal)?.mem_get_info().map(|(free, _)| free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_in_the_order_of_their_places() {
        let at = |[domain, bus, slot]: [i32; 3]| PciAddress { domain, bus, slot };
        let addresses = [[0, 0x81, 0], [0, 0x17, 1], [1, 1, 0], [0, 0x17, 0]].map(at);
        assert_eq!(by_address(&addresses), [3, 1, 0, 2]);
    }
}
