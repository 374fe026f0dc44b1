//! Launches this package's kernels on tensors, after checking their types, sizes and devices.

use candle_core::cuda::cudarc::driver::{CudaFunction, DevicePtr, LaunchConfig, PushKernelArg};
use candle_core::cuda::{CudaStorageSlice, WrapErr};
use candle_core::{CudaDevice, DType, Device, Result, Storage, Tensor};

use crate::image::Image;
use crate::reuse::uninitialised;

/// The number of blocks, and the number of threads per block.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) blocks: [usize; 3],
    pub(crate) threads: usize,
    pub(crate) shared_bytes: usize,
}

impl Grid {
    /// Number of adjacent elements that a thread processes together, if they are aligned.
    pub(crate) const AT_ONCE: usize = 4;
    const THREADS: usize = 256;

    /// The grid of a kernel whose blocks process rows of `width` elements.
    pub(crate) fn of_rows(rows: usize, width: usize) -> Self {
        let threads = width.div_ceil(Self::AT_ONCE).next_multiple_of(32).min(Self::THREADS);
        let blocks = [rows, width.div_ceil(Self::THREADS * Self::AT_ONCE), 1];
        Self { blocks, threads, shared_bytes: 0 }
    }
}

pub(crate) fn gpu(tensor: &Tensor) -> Result<&CudaDevice> {
    match tensor.device() {
        Device::Cuda(device) => Ok(device),
        other => candle_core::bail!("this operation is for GPUs, not {other:?}"),
    }
}

/// A kernel with its arguments.
pub(crate) struct Call<'a> {
    device: &'a CudaDevice,
    function: CudaFunction,
    arguments: Vec<Argument>,
}

enum Argument {
    /// An address, or a 64-bit number.
    Wide(u64),
    Int(i32),
    Float(f32),
}

/// Returns the name of an element type in kernel names.
pub(crate) fn suffix(dtype: DType) -> Result<&'static str> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(dtype.as_str()),
        other => candle_core::bail!("no kernel computes with elements of {other:?}"),
    }
}

/// Like [`suffix`], for keys and values, which may also be fp8.
pub(crate) fn cached_suffix(dtype: DType) -> Result<&'static str> {
    if dtype == DType::F8E4M3 { Ok(dtype.as_str()) } else { suffix(dtype) }
}

/// Returns the number of elements and the reach of biases f32 `[H, 2 * reach + 1]` for `heads` heads; zeros
/// for none.
pub(crate) fn reach(bias: Option<&Tensor>, heads: usize) -> Result<(usize, usize)> {
    match bias.map(Tensor::dims2).transpose()? {
        Some((of_heads, distances)) if of_heads == heads && distances % 2 == 1 => {
            Ok((heads * distances, distances / 2))
        }
        Some((of_heads, distances)) => {
            candle_core::bail!(
                "biases for {of_heads} heads and {distances} distances, expected {heads} heads and an odd number"
            )
        }
        None => Ok((0, 0)),
    }
}

/// Returns a tensor on a GPU with arbitrary elements; the kernel must write all of it. A GPU supports neither
/// allocations of size 0 nor grids without blocks.
pub(crate) fn output(device: &CudaDevice, shape: &[usize], dtype: DType) -> Result<Tensor> {
    if shape.contains(&0) {
        candle_core::bail!("a kernel cannot compute {shape:?} elements")
    }
    uninitialised(device, shape, dtype)
}

/// Returns the address of a contiguous tensor of this type with `count` elements on this GPU.
pub(crate) fn address(device: &CudaDevice, tensor: &Tensor, dtype: DType, count: usize) -> Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    if (tensor.dtype(), layout.shape().elem_count()) != (dtype, count) || !layout.is_contiguous() {
        let actual = tensor.dtype();
        let dims = tensor.dims();
        candle_core::bail!("a kernel needs {count} contiguous elements of {dtype:?}, not {actual:?} {dims:?}")
    }
    let Storage::Cuda(storage) = &*storage else {
        candle_core::bail!("a kernel needs tensors on a GPU, not on the CPU")
    };
    if storage.device.id() != device.id() {
        candle_core::bail!("a kernel needs tensors on its own GPU")
    }
    let stream = device.cuda_stream();
    let start = match &storage.slice {
        CudaStorageSlice::U32(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::BF16(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::F16(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::F32(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::F8E4M3(slice) => slice.device_ptr(&stream).0,
        _ => candle_core::bail!("no kernel supports elements of {dtype:?}"),
    };
    Ok(start + (layout.start_offset() * dtype.size_in_bytes()) as u64)
}

impl<'a> Call<'a> {
    pub(crate) fn new(device: &'a CudaDevice, image: &Image, kernel: &str) -> Result<Self> {
        let function = image.function(device, kernel)?;
        Ok(Self { device, function, arguments: Vec::with_capacity(20) })
    }

    /// Adds a contiguous tensor of this type with `count` elements.
    pub(crate) fn tensor(&mut self, tensor: &Tensor, dtype: DType, count: usize) -> Result<&mut Self> {
        let address = address(self.device, tensor, dtype, count)?;
        self.arguments.push(Argument::Wide(address));
        Ok(self)
    }

    /// Like [`Self::tensor`], but `None` becomes null.
    pub(crate) fn optional(
        &mut self,
        tensor: Option<&Tensor>,
        dtype: DType,
        count: usize,
    ) -> Result<&mut Self> {
        match tensor {
            Some(tensor) => self.tensor(tensor, dtype, count),
            None => {
                self.arguments.push(Argument::Wide(0));
                Ok(self)
            }
        }
    }

    pub(crate) fn wide(&mut self, number: usize) -> &mut Self {
        self.arguments.push(Argument::Wide(number as u64));
        self
    }

    /// Adds a 32-bit number.
    pub(crate) fn int(&mut self, number: usize) -> Result<&mut Self> {
        let Ok(number) = i32::try_from(number) else {
            candle_core::bail!("{number} is too large for a kernel")
        };
        self.arguments.push(Argument::Int(number));
        Ok(self)
    }

    pub(crate) fn float(&mut self, number: f32) -> &mut Self {
        self.arguments.push(Argument::Float(number));
        self
    }

    /// Launches the kernel.
    ///
    /// # Safety
    /// The arguments must match the kernel's parameters in order. With these arguments and this grid, the
    /// kernel must not access any element outside its tensors. Tensors that it writes may only be read by
    /// work that follows on the device's stream.
    pub(crate) unsafe fn launch(&self, grid: Grid) -> Result<()> {
        let [x, y, z] = grid.blocks;
        if x > i32::MAX as usize || y.max(z) > 65_535 {
            candle_core::bail!("a kernel cannot have {:?} blocks", grid.blocks)
        }
        let config = LaunchConfig {
            grid_dim: (x as u32, y as u32, z as u32),
            block_dim: (grid.threads as u32, 1, 1),
            shared_mem_bytes: grid.shared_bytes as u32,
        };
        let stream = self.device.cuda_stream();
        let mut builder = stream.launch_builder(&self.function);
        for argument in &self.arguments {
            match argument {
                Argument::Wide(number) => builder.arg(number),
                Argument::Int(number) => builder.arg(number),
                Argument::Float(number) => builder.arg(number),
            };
        }
        // SAFETY: the caller guarantees it. The addresses belong to live tensors, since the caller borrows
        // them.
        unsafe { builder.launch(config) }.w().map(drop)
    }
}
