//! The CUDA functionality that `ntl-server` needs in addition to candle: the driver's version, the order and
//! the free memory of GPUs, settings of an opened GPU, CUDA graphs, and matmul with f32 accumulation. Custom
//! kernels compute steps, prompts and logits (`kernels`). Empty without the feature `cuda`.
#![cfg(feature = "cuda")]
#![expect(
    unsafe_code,
    reason = "cudarc has no safe functions for these; every call explains why it is sound"
)]

mod attention;
mod graph;
mod image;
mod launch;
mod layer;
mod logits;
mod product;
mod prompt;
mod reuse;
mod time;
mod version;

use std::ffi::c_void;

use candle_core::CudaDevice;
use candle_core::cuda::cudarc::driver::result::{device, mem_pool};
use candle_core::cuda::cudarc::driver::sys::{CUdevice_attribute, CUmemPool_attribute};
use candle_core::cuda::cudarc::driver::{CudaContext, DriverError};

pub use attention::{KEYS_OF_A_PART, ROW_NUMBERS, SlotAttention};
pub use graph::{Graph, Recorder};
pub use image::ComputeCapability;
pub use layer::{Activation, Projections, activate, add, norm};
pub use logits::{SUMMARY, summarize};
pub use product::{add_product, product};
pub use prompt::{HeadBatch, HeadSource, NO_ROW, PackedHeads, QUERY_NUMBERS, unpack_heads};
pub use reuse::{Step, reuse};
pub use time::elapsed;
pub use version::check_driver;

/// Environment variables with which a user orders the GPUs. If one is set, the driver already uses the user's
/// order.
const ORDER_VARIABLES: [&str; 2] = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"];

/// The PCI address of a GPU. `nvidia-smi` numbers GPUs by it; the driver lists the fastest GPU first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PciAddress {
    domain: i32,
    bus: i32,
    slot: i32,
}

/// Returns the driver's number of the GPU that `nvidia-smi` calls `number`; the same number if the user
/// ordered the GPUs.
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

/// Returns the indices of the addresses in sorted order.
fn by_address(addresses: &[PciAddress]) -> Vec<usize> {
    let mut ordinals: Vec<usize> = (0..addresses.len()).collect();
    ordinals.sort_by_key(|&ordinal| addresses[ordinal]);
    ordinals
}

/// Sets up a GPU for one stream that allocates and frees in every step: memory use is not tracked by events,
/// and the pool keeps freed memory instead of returning it to the driver at every synchronisation.
///
/// Call this before any allocation, use no other stream, and use the stream on one thread at a time. Tensors
/// are dropped on that thread, too: freeing memory needs the context of the device, which other threads lack.
pub fn prepare(device: &CudaDevice) -> Result<(), DriverError> {
    // SAFETY: candle runs everything on the device's single stream, and memory is used and freed in stream
    // order.
    unsafe { device.disable_event_tracking() };
    let mut threshold = u64::MAX;
    // SAFETY: the context is alive, so its device and its pool are valid. The attribute is a `u64`.
    unsafe {
        let pool = device::get_mem_pool(device.cuda_stream().context().cu_device())?;
        let value = (&raw mut threshold).cast::<c_void>();
        mem_pool::set_attribute(pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, value)
    }
}

/// Returns the free memory of a GPU, in bytes.
pub fn free_bytes(ordinal: usize) -> Result<usize, DriverError> {
    CudaContext::new(ordinal)?.mem_get_info().map(|(free, _)| free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_ordered_by_pci_address() {
        let at = |[domain, bus, slot]: [i32; 3]| PciAddress { domain, bus, slot };
        let addresses = [[0, 0x81, 0], [0, 0x17, 1], [1, 1, 0], [0, 0x17, 0]].map(at);
        assert_eq!(by_address(&addresses), [3, 1, 0, 2]);
    }
}
