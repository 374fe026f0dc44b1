//! Opens what the options of loading name: the device, and the element types on it.

use candle_core::{DType, Device};
use ntl_kernels::Codes;
use ntl_text::checkpoint::{CheckpointFiles, LoadError};
use ntl_text::load_options::{DeviceChoice, DtypeChoice, KvCacheDtype, LoadOptions};

use crate::families::{Family, Network};
use crate::ops::{CodedWeights, Format, Placement};
use crate::{gpu, kernel_choice};

/// Like [`place`], for the weights of a checkpoint, on which the automatic choice depends.
pub(crate) fn place_of(options: &LoadOptions, files: &CheckpointFiles) -> Result<Placement, LoadError> {
    let place = place(options)?;
    let is_quantised = files.one_file().is_some_and(|file| file.is_quantised);
    if options.dtype == DtypeChoice::Auto && place.device.is_cpu() && is_quantised {
        let keeps_codes = Codes::are_fast() && matches!(Family::of(files)?.network, Network::Causal(_));
        let coded = if keeps_codes { CodedWeights::Stored } else { CodedWeights::None };
        return Ok(Placement { format: Format::Q8, coded, ..place });
    }
    if place.coded == CodedWeights::All && !matches!(Family::of(files)?.network, Network::Causal(_)) {
        let reason = "q4_k is for decoder-only models; choose q8_0, int8 or a larger type".to_owned();
        return Err(LoadError::Device(reason));
    }
    Ok(place)
}

/// Opens the device, and returns it with the element types of weights, keys and values on it.
pub fn place(options: &LoadOptions) -> Result<Placement, LoadError> {
    let device = open_device(options.device)?;
    let kv = match options.kv_cache_dtype {
        KvCacheDtype::Auto => None,
        KvCacheDtype::Bf16 => Some(DType::BF16),
        KvCacheDtype::Fp8 => Some(DType::F8E4M3),
    };
    if device.is_cpu() {
        let format = match options.dtype {
            DtypeChoice::Auto | DtypeChoice::F32 => Format::F32,
            DtypeChoice::Bf16 => Format::Bf16,
            DtypeChoice::F16 => Format::F16,
            DtypeChoice::Int8 => Format::Int8,
            DtypeChoice::Q8_0 | DtypeChoice::Q4K => Format::Q8,
        };
        let coded = if options.dtype == DtypeChoice::Q4K { CodedWeights::All } else { CodedWeights::None };
        return Ok(Placement { kv, coded, ..Placement::cpu(format) });
    }
    let dtype = match options.dtype {
        DtypeChoice::F32 => DType::F32,
        DtypeChoice::Auto | DtypeChoice::Bf16 => DType::BF16,
        DtypeChoice::F16 => DType::F16,
        DtypeChoice::Int8 | DtypeChoice::Q8_0 | DtypeChoice::Q4K => {
            let name = options.dtype.name();
            let reason = format!("{name} is for the CPU; on a GPU choose f32, bf16 or f16");
            return Err(LoadError::Device(reason));
        }
    };
    if kv.is_some_and(|kv| kv != dtype && kv != DType::F8E4M3) {
        let reason = "on a GPU keys and values have the type of the weights, or are fp8".to_owned();
        return Err(LoadError::Device(reason));
    }
    kernel_choice::apply(options.kernels, &device, dtype, kv.unwrap_or(dtype))?;
    Ok(Placement {
        device,
        dtype,
        kv,
        format: Format::F32,
        coded: CodedWeights::None,
        cuda_graphs: options.cuda_graphs,
    })
}
/// Opens a device. `Auto` is the first GPU, if there is one.
pub fn open_device(choice: DeviceChoice) -> Result<Device, LoadError> {
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        DeviceChoice::Auto if has_gpu() => gpu::open(0),
        DeviceChoice::Auto => Ok(Device::Cpu),
        DeviceChoice::Cuda(number) => gpu::open(number),
    }
}

/// Free memory of the chosen GPU, in bytes, or `None` if the choice is the CPU.
pub fn free_gpu_bytes(choice: DeviceChoice) -> Option<u64> {
    match choice {
        DeviceChoice::Cpu => None,
        DeviceChoice::Auto => gpu::free_bytes(0),
        DeviceChoice::Cuda(number) => gpu::free_bytes(number),
    }
}

/// Returns whether there is a GPU. A program that was built for GPUs warns with the reason if it cannot know.
fn has_gpu() -> bool {
    let count = gpu::count();
    if cfg!(feature = "cuda")
        && let Err(reason) = &count
    {
        tracing::warn!(reason, "no GPU is used");
    }
    count.unwrap_or(0) > 0
}
