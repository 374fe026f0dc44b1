//! Matmul with f32 results, which candle would round to 16 bits if the matrices have 16 bits.
//!
//! One cuBLAS call computes the matmul, and adds it to a tensor if one is given.

use candle_core::cuda::cudarc::cublas::result::{gemm_strided_batched_ex, set_stream};
use candle_core::cuda::cudarc::cublas::sys;
use candle_core::cuda::cudarc::driver::{DevicePtr, DevicePtrMut, DeviceRepr};
use candle_core::cuda::{CudaDType, WrapErr};
use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, DType, Device, InplaceOp3, Layout, Result, Tensor,
    backend::BackendStorage,
};
use half::{bf16, f16};

use crate::launch::{address, output};

/// Multiplies `a` `[.., M, K]` by the transpose of `b` `[.., N, K]`, both contiguous and of the same type:
/// f32, f16 or bf16. Returns f32 `[.., M, N]`. `b` may consist of the first rows of each matrix in a longer
/// `[B, .., K]`.
pub fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let Sizes { m, n, .. } = Sizes::of(a.layout(), b.layout())?;
    let Device::Cuda(device) = a.device() else { candle_core::bail!("this product is for GPUs") };
    let outer = &a.dims()[..a.rank() - 2];
    let product = output(device, &[outer, &[m, n][..]].concat(), DType::F32)?;
    product.inplace_op3(a, b, &Gemm { alpha: 1.0, beta: 0.0 })?;
    Ok(product)
}

/// Adds `factor` times the same product to `sum`, f32 and contiguous, in place.
pub fn add_product(sum: &Tensor, a: &Tensor, b: &Tensor, factor: f32) -> Result<()> {
    sum.inplace_op3(a, b, &Gemm { alpha: factor, beta: 1.0 })
}

/// Elements f32 of a workspace: 32 MiB, the largest default of cuBLAS, so that it can choose the same
/// kernels.
const WORKSPACE: usize = 8 << 20;

/// Returns memory that cuBLAS can use in [`with_workspace`].
pub(crate) fn workspace(device: &CudaDevice) -> Result<Tensor> {
    // SAFETY: only cuBLAS reads it, after it has written it.
    unsafe { Tensor::empty(WORKSPACE, DType::F32, &Device::Cuda(device.clone())) }
}

/// Calls `work`, whose matmuls use this memory, and do not allocate any. It must live until they are
/// computed.
pub(crate) fn with_workspace<T>(device: &CudaDevice, memory: &Tensor, work: impl FnOnce() -> T) -> Result<T> {
    let (stream, blas) = (device.cuda_stream(), device.cublas_handle());
    let start = address(device, memory, DType::F32, WORKSPACE)?;
    // SAFETY: the memory has this size. candle computes everything on one stream, so that nothing else uses
    // it meanwhile.
    unsafe { sys::cublasSetWorkspace_v2(*blas.handle(), start as *mut _, WORKSPACE * 4).result() }.w()?;
    let value = work();
    // SAFETY: this is the handle's stream. Setting it lets cuBLAS use its own memory again.
    unsafe { set_stream(*blas.handle(), stream.cu_stream().cast()) }.w()?;
    Ok(value)
}

/// `c = alpha * a * bᵀ + beta * c`.
struct Gemm {
    alpha: f32,
    beta: f32,
}

/// Sizes of a batch of matmuls.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    /// Number of elements from one matrix of `b` to the next.
    stride_b: usize,
}

impl Sizes {
    fn of(a: &Layout, b: &Layout) -> Result<Self> {
        let ([outer_a @ .., m, k], [outer_b @ .., n, k_b]) = (a.dims(), b.dims()) else {
            candle_core::bail!("products need matrices, not {:?} and {:?}", a.dims(), b.dims())
        };
        if outer_a != outer_b || k != k_b {
            candle_core::bail!("{:?} and {:?} cannot be multiplied", a.dims(), b.dims());
        }
        let stride_b = match b.stride() {
            [stride, row, 1] if row == k => *stride,
            _ => n * k,
        };
        Ok(Self { batch: outer_a.iter().product(), m: *m, n: *n, k: *k, stride_b })
    }

    /// Returns the range of the elements of `b` in its storage.
    fn range_b(self, layout: &Layout) -> Result<std::ops::Range<usize>> {
        if self.stride_b == self.n * self.k {
            return range(layout);
        }
        let from = layout.start_offset();
        Ok(from..from + self.batch.saturating_sub(1) * self.stride_b + self.n * self.k)
    }
}

/// Returns the range of the elements of a contiguous tensor in its storage.
fn range(layout: &Layout) -> Result<std::ops::Range<usize>> {
    match layout.contiguous_offsets() {
        Some((from, to)) => Ok(from..to),
        None => candle_core::bail!("a product needs contiguous tensors"),
    }
}

impl Gemm {
    /// Computes into `c`, contiguous `[batch, m, n]` starting at element `at`.
    fn run<T: CudaDType + DeviceRepr>(
        &self,
        c: &mut CudaStorage,
        at: usize,
        [(a, a_layout), (b, b_layout)]: [(&CudaStorage, &Layout); 2],
        kind: sys::cudaDataType_t,
    ) -> Result<()> {
        let sizes = Sizes::of(a_layout, b_layout)?;
        let Sizes { batch, m, n, k, stride_b } = sizes;
        if batch * m * n == 0 {
            return Ok(());
        }
        let device = c.device().clone();
        let stream = device.cuda_stream();
        let blas = device.cublas_handle();
        let a = a.as_cuda_slice::<T>()?.slice(range(a_layout)?);
        let b = b.as_cuda_slice::<T>()?.slice(sizes.range_b(b_layout)?);
        let mut c = c.as_cuda_slice_mut::<f32>()?.slice_mut(at..at + batch * m * n);
        let ((a, _a), (b, _b), (c, _c)) =
            (a.device_ptr(&stream), b.device_ptr(&stream), c.device_ptr_mut(&stream));
        // cuBLAS is column-major: it computes the transpose of `c`, as `b` times the transpose of `a`.
        // SAFETY: the slices above contain exactly the elements that these sizes and strides describe, on
        // this device. `alpha` and `beta` are f32, as the accumulation type requires.
        unsafe {
            gemm_strided_batched_ex(
                *blas.handle(),
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                n as i32,
                m as i32,
                k as i32,
                (&raw const self.alpha).cast(),
                b as *const _,
                kind,
                k as i32,
                stride_b as i64,
                a as *const _,
                kind,
                k as i32,
                (m * k) as i64,
                (&raw const self.beta).cast(),
                c as *mut _,
                sys::cudaDataType_t::CUDA_R_32F,
                n as i32,
                (m * n) as i64,
                batch as i32,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
            )
        }
        .w()
    }

    fn dispatch(&self, c: &mut CudaStorage, at: usize, factors: [(&CudaStorage, &Layout); 2]) -> Result<()> {
        match factors[0].0.dtype() {
            DType::BF16 => self.run::<bf16>(c, at, factors, sys::cudaDataType_t::CUDA_R_16BF),
            DType::F16 => self.run::<f16>(c, at, factors, sys::cudaDataType_t::CUDA_R_16F),
            DType::F32 => self.run::<f32>(c, at, factors, sys::cudaDataType_t::CUDA_R_32F),
            other => candle_core::bail!("no product with sums in f32 supports {other:?}"),
        }
    }
}

impl InplaceOp3 for Gemm {
    fn name(&self) -> &'static str {
        "sum with a product"
    }

    fn cpu_fwd(
        &self,
        _: &mut CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<()> {
        candle_core::bail!("this product is for GPUs")
    }

    fn cuda_fwd(
        &self,
        c: &mut CudaStorage,
        c_layout: &Layout,
        a: &CudaStorage,
        a_layout: &Layout,
        b: &CudaStorage,
        b_layout: &Layout,
    ) -> Result<()> {
        let Sizes { batch, m, n, .. } = Sizes::of(a_layout, b_layout)?;
        let range = range(c_layout)?;
        if range.len() != batch * m * n {
            candle_core::bail!("a sum of {:?} is too small for {m} x {n} products", c_layout.dims());
        }
        self.dispatch(c, range.start, [(a, a_layout), (b, b_layout)])
    }
}
