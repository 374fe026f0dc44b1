//! Functions of `libcublas.so.13`.

use std::ffi::{c_int, c_longlong, c_uint};

use super::report;
use crate::driver::driver;
use crate::fault::{Code, Fault};
use crate::product::{Matrix, Product, Scalar};

type Status = c_uint;

fn status(result: Result<(), Fault>) -> Status {
    let Err(fault) = result else { return 0 };
    report(&fault);
    match fault.code {
        Code::InvalidValue | Code::MisalignedAddress => 7,
        Code::NotSupported => 15,
        _ => 13,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasCreate_v2(handle: *mut usize) -> Status {
    // SAFETY: the caller passes a valid pointer for the handle.
    unsafe { handle.write(driver().new_matmuls()) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cublasDestroy_v2(handle: usize) -> Status {
    status(driver().drop_matmuls(handle))
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetStream_v2(handle: usize, stream: usize) -> Status {
    status(driver().set_matmul_stream(handle, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetWorkspace_v2(handle: usize, address: usize, bytes: usize) -> Status {
    status(driver().set_workspace(handle, address, bytes))
}

/// Operation 0 leaves a matrix unchanged, and 1 transposes it. Operation 2, the conjugate, equals 1 for real
/// numbers.
fn matrix(address: usize, scalar: Scalar, leading: c_int, stride: c_longlong, operation: c_uint) -> Matrix {
    Matrix { address, scalar, leading: leading.into(), stride, transposed: operation != 0 }
}

fn scalar(number: c_int) -> Result<Scalar, Fault> {
    Scalar::of_number(number)
        .ok_or_else(|| Fault::new(Code::NotSupported, format!("a product of element type {number}")))
}

fn scalars([a, b, c]: [c_int; 3]) -> Result<[Scalar; 3], Fault> {
    Ok([scalar(a)?, scalar(b)?, scalar(c)?])
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGemmStridedBatchedEx(
    handle: usize,
    operation_a: c_uint,
    operation_b: c_uint,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const f32,
    a: usize,
    type_a: c_int,
    leading_a: c_int,
    stride_a: c_longlong,
    b: usize,
    type_b: c_int,
    leading_b: c_int,
    stride_b: c_longlong,
    beta: *const f32,
    c: usize,
    type_c: c_int,
    leading_c: c_int,
    stride_c: c_longlong,
    batch: c_int,
    compute: c_uint,
    _algorithm: c_int,
) -> Status {
    // All types with 32-bit accumulation; their factors are f32.
    const COMPUTE_F32: std::ops::RangeInclusive<c_uint> = 68..=69;
    const COMPUTE_F32_FAST: std::ops::RangeInclusive<c_uint> = 74..=78;
    if !COMPUTE_F32.contains(&compute) && !COMPUTE_F32_FAST.contains(&compute) {
        let message = format!("a product of compute type {compute}");
        return status(Err(Fault::new(Code::NotSupported, message)));
    }
    let [scalar_a, scalar_b, scalar_c] = match scalars([type_a, type_b, type_c]) {
        Ok(scalars) => scalars,
        Err(fault) => return status(Err(fault)),
    };
    let a = matrix(a, scalar_a, leading_a, stride_a, operation_a);
    let b = matrix(b, scalar_b, leading_b, stride_b, operation_b);
    let c = matrix(c, scalar_c, leading_c, stride_c, 0);
    // SAFETY: the caller passes factors of the compute type.
    let (alpha, beta) = unsafe { (f64::from(*alpha), f64::from(*beta)) };
    let [m, n, k, batch] = [m, n, k, batch].map(i64::from);
    let product = Product { m, n, k, alpha, beta, a, b, c, batch };
    status(driver().product_of(handle, "cublasGemmStridedBatchedEx", &product))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasDgemmStridedBatched(
    handle: usize,
    operation_a: c_uint,
    operation_b: c_uint,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const f64,
    a: usize,
    leading_a: c_int,
    stride_a: c_longlong,
    b: usize,
    leading_b: c_int,
    stride_b: c_longlong,
    beta: *const f64,
    c: usize,
    leading_c: c_int,
    stride_c: c_longlong,
    batch: c_int,
) -> Status {
    let a = matrix(a, Scalar::F64, leading_a, stride_a, operation_a);
    let b = matrix(b, Scalar::F64, leading_b, stride_b, operation_b);
    let c = matrix(c, Scalar::F64, leading_c, stride_c, 0);
    // SAFETY: the caller passes factors.
    let (alpha, beta) = unsafe { (*alpha, *beta) };
    let [m, n, k, batch] = [m, n, k, batch].map(i64::from);
    status(driver().product_of(
        handle,
        "cublasDgemmStridedBatched",
        &Product { m, n, k, alpha, beta, a, b, c, batch },
    ))
}
