//! Functions of `libcuda.so.1`. Handles are numbers that are never reused.
//!
//! All of them are in the drivers of CUDA 12.0, the oldest for which the program can be built. A program that
//! refers to a later function does not start on the fake driver. It would not start with an old driver
//! either, and could not say that the driver is too old.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use super::{LAST, report};
use crate::driver::{Driver, SHARED_OPTIN_MAX, driver};
use crate::fatbin;
use crate::fault::{Code, Fault};
use crate::ptx::Launch;

/// Handle of the only context, and of the only memory pool.
const CONTEXT: usize = 0x100;
const POOL: usize = 0x200;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

type Status = c_uint;

fn status(result: Result<(), Fault>) -> Status {
    match result {
        Ok(()) => 0,
        Err(fault) => {
            report(&fault);
            fault.code as Status
        }
    }
}

/// Runs a call that needs no context.
fn plain(call: impl FnOnce(&mut Driver) -> Result<(), Fault>) -> Status {
    let result = call(&mut driver());
    status(result)
}

/// Runs a call in the current context of this thread.
fn within_context(call: impl FnOnce(&mut Driver) -> Result<(), Fault>) -> Status {
    if CURRENT.get() == CONTEXT {
        plain(|driver| driver.check_alive().and_then(|()| call(driver)))
    } else {
        status(Err(Fault::new(Code::InvalidContext, "no context is current in this thread")))
    }
}

/// Runs a call on a stream.
fn on_stream(stream: usize, call: impl FnOnce(&mut Driver) -> Result<(), Fault>) -> Status {
    within_context(|driver| driver.check_stream(stream).and_then(|()| driver.on(stream, call)))
}

fn give<T>(to: *mut T, value: T) -> Result<(), Fault> {
    if to.is_null() {
        return Err(Fault::new(Code::InvalidValue, "the pointer for a result is null"));
    }
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { to.write(value) };
    Ok(())
}

fn text<'a>(from: *const c_char) -> Result<&'a str, Fault> {
    if from.is_null() {
        return Err(Fault::new(Code::InvalidValue, "the pointer to a string is null"));
    }
    // SAFETY: the caller passes a string that ends with 0.
    let text = unsafe { CStr::from_ptr(from) };
    text.to_str().map_err(|_| Fault::new(Code::InvalidPtx, "a string is not UTF-8"))
}

fn check_device(device: c_int) -> Result<(), Fault> {
    if device == 0 {
        Ok(())
    } else {
        Err(Fault::new(Code::InvalidDevice, format!("there is no device {device}, only device 0")))
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> Status {
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    let chosen = std::env::var("NTL_FAKE_CUDA_VERSION").ok().and_then(|version| version.parse().ok());
    status(give(version, chosen.unwrap_or(13_000)))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: Status, name: *mut *const c_char) -> Status {
    cuGetErrorString(code, name)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: Status, text: *mut *const c_char) -> Status {
    let message = LAST.with_borrow(|last| match last {
        Some(fault) if fault.code as Status == code => format!("fake CUDA: {fault}"),
        _ => format!("fake CUDA: error {code}"),
    });
    // Error messages live as long as the program.
    let message = Box::leak(CString::new(message).unwrap_or_default().into_boxed_c_str());
    status(give(text, message.as_ptr()))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Status {
    status(give(count, 1))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Status {
    status(check_device(ordinal).and_then(|()| give(device, ordinal)))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> Status {
    status(check_device(device).and_then(|()| {
        let bytes = c"fake CUDA".to_bytes_with_nul();
        if (length as usize) < bytes.len() {
            return Err(Fault::new(Code::InvalidValue, "the buffer is too small for the device's name"));
        }
        // SAFETY: the caller's buffer has space for this many bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), name, bytes.len()) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> Status {
    status(check_device(device).and_then(|()| give(bytes, driver().memory.total())))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) -> Status {
    status(check_device(device).and_then(|()| {
        let found = match attribute {
            // Maximum number of threads per block.
            1 => 1024,
            // Shared memory per block, and its maximum.
            8 => 48 << 10,
            97 => SHARED_OPTIN_MAX as c_int,
            // Threads per warp.
            10 => 32,
            // Number of multiprocessors.
            16 => 132,
            // Compute capability.
            75 => (driver().capability() / 10) as c_int,
            76 => (driver().capability() % 10) as c_int,
            // Support for memory pools.
            115 => 1,
            _ => {
                return Err(Fault::new(
                    Code::NotSupported,
                    format!("unsupported device attribute {attribute}"),
                ));
            }
        };
        give(value, found)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> Status {
    status(check_device(device).and_then(|()| give(context, CONTEXT)))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Status {
    status(check_device(device))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(_context: usize) -> Status {
    status(Err(Fault::new(Code::InvalidContext, "the primary context cannot be destroyed")))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: *mut usize) -> Status {
    status(give(context, CURRENT.get()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: usize) -> Status {
    if context != 0 && context != CONTEXT {
        return status(Err(Fault::new(Code::InvalidContext, "this context does not exist")));
    }
    CURRENT.set(context);
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Status {
    within_context(Driver::synchronise)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: *mut usize, _flags: c_uint) -> Status {
    within_context(|driver| give(stream, driver.new_stream()))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(stream: *mut usize, _flags: c_uint, _priority: c_int) -> Status {
    within_context(|driver| give(stream, driver.new_stream()))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: usize) -> Status {
    within_context(|driver| driver.drop_stream(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: usize) -> Status {
    on_stream(stream, Driver::synchronise)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: usize, captures: *mut c_uint) -> Status {
    on_stream(stream, |driver| give(captures, driver.is_capturing().into()))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: usize, _mode: c_uint) -> Status {
    on_stream(stream, |driver| driver.begin_capture(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(stream: usize, graph: *mut usize) -> Status {
    on_stream(stream, |driver| give(graph, driver.end_capture(stream)?))
}

/// Gives the number of nodes if `nodes` is null, and otherwise handles for as many nodes as there is space
/// for. A node's handle is the number after its type, which is all that programs read.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize) -> Status {
    plain(|driver| {
        let kinds = driver.graph_nodes(graph)?;
        if !nodes.is_null() {
            // SAFETY: the caller passes the number of handles that it has space for.
            let space = unsafe { std::slice::from_raw_parts_mut(nodes, *count) };
            space.iter_mut().zip(&kinds).for_each(|(node, &kind)| *node = kind as usize + 1);
        }
        give(count, kinds.len())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetType(node: usize, kind: *mut c_uint) -> Status {
    status(give(kind, node.wrapping_sub(1) as c_uint))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithFlags(executable: *mut usize, graph: usize, _flags: u64) -> Status {
    within_context(|driver| give(executable, driver.instantiate(graph)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(executable: usize, stream: usize) -> Status {
    on_stream(stream, |driver| driver.launch_graph(executable))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: usize) -> Status {
    plain(|driver| driver.destroy_graph(graph))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(executable: usize) -> Status {
    plain(|driver| driver.destroy_executable(executable))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) -> Status {
    on_stream(stream, |driver| driver.use_event(event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: *mut usize, _flags: c_uint) -> Status {
    within_context(|driver| give(event, driver.new_event()))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: usize) -> Status {
    plain(|driver| driver.drop_event(event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: usize, stream: usize) -> Status {
    on_stream(stream, |driver| driver.record_event(event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) -> Status {
    within_context(|driver| give(milliseconds, driver.elapsed(start, end)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: usize) -> Status {
    plain(|driver| driver.use_event(event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: usize) -> Status {
    within_context(|driver| driver.synchronise().and_then(|()| driver.use_event(event)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Status {
    within_context(|driver| {
        give(free, driver.memory.left()).and_then(|()| give(total, driver.memory.total()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: *mut usize, bytes: usize) -> Status {
    within_context(|driver| driver.allocate(bytes).and_then(|allocated| give(address, allocated)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(address: *mut usize, bytes: usize, stream: usize) -> Status {
    on_stream(stream, |driver| driver.allocate(bytes).and_then(|allocated| give(address, allocated)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: usize) -> Status {
    within_context(|driver| driver.free(address))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: usize, stream: usize) -> Status {
    on_stream(stream, |driver| driver.free(address))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetDefaultMemPool(pool: *mut usize, device: c_int) -> Status {
    status(check_device(device).and_then(|()| give(pool, POOL)))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetMemPool(pool: *mut usize, device: c_int) -> Status {
    cuDeviceGetDefaultMemPool(pool, device)
}

fn check_pool(pool: usize) -> Result<(), Fault> {
    if pool == POOL { Ok(()) } else { Err(Fault::new(Code::InvalidValue, "this memory pool does not exist")) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemPoolSetAttribute(pool: usize, attribute: c_uint, value: *const u64) -> Status {
    plain(|driver| {
        check_pool(pool)?;
        match attribute {
            // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD.
            4 => {
                // SAFETY: the value of this attribute has 64 bits.
                driver.keep_pool(unsafe { *value } as usize);
                Ok(())
            }
            _ => {
                Err(Fault::new(Code::NotSupported, format!("unsupported memory pool attribute {attribute}")))
            }
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolTrimTo(pool: usize, _bytes: usize) -> Status {
    status(check_pool(pool))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(address: *mut usize, bytes: usize, _flags: c_uint) -> Status {
    within_context(|driver| driver.pinned.allocate(bytes).and_then(|allocated| give(address, allocated)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(address: usize) -> Status {
    within_context(|driver| driver.free_pinned(address))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: usize, from: *const u8, bytes: usize, stream: usize) -> Status {
    // SAFETY: the caller's promise.
    on_stream(stream, |driver| unsafe { driver.upload(to, from, bytes) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoD_v2(to: usize, from: *const u8, bytes: usize) -> Status {
    within_context(|driver| {
        // SAFETY: the caller's promise.
        unsafe { driver.upload(to, from, bytes) }.and_then(|()| driver.synchronise())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: usize, bytes: usize, stream: usize) -> Status {
    // SAFETY: the caller's promise.
    on_stream(stream, |driver| unsafe { driver.download(to, from, bytes) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut u8, from: usize, bytes: usize) -> Status {
    // SAFETY: the caller's promise.
    within_context(|driver| unsafe { driver.download(to, from, bytes) })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: usize) -> Status {
    on_stream(stream, |driver| {
        driver.copy(to, from, bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: usize,
    _to_context: usize,
    from: usize,
    _from_context: usize,
    bytes: usize,
    stream: usize,
) -> Status {
    on_stream(stream, |driver| {
        driver.copy(to, from, bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: usize, value: u8, bytes: usize, stream: usize) -> Status {
    on_stream(stream, |driver| {
        driver.fill(to, value, bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoad(module: *mut usize, path: *const c_char) -> Status {
    within_context(|driver| {
        let path = text(path)?;
        let ptx = std::fs::read_to_string(path)
            .map_err(|error| Fault::new(Code::NotFound, format!("{path}: {error}")))?;
        give(module, driver.load_module(&ptx)?)
    })
}

/// Loads a module from a PTX text or from an image that also contains PTX.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut usize, image: *const c_char) -> Status {
    within_context(|driver| {
        // SAFETY: the caller passes a string that ends with 0, or an image.
        let loaded = match unsafe { fatbin::bytes(image.cast()) } {
            Some(image) => driver.load_image(image)?,
            None => driver.load_module(text(image)?)?,
        };
        give(module, loaded)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: usize) -> Status {
    plain(|driver| driver.unload_module(module))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) -> Status {
    within_context(|driver| give(function, driver.function(module, text(name)?)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(function: usize, attribute: c_uint, value: c_int) -> Status {
    plain(|driver| match attribute {
        // Dynamic shared memory.
        8 => driver.allow_shared(function, value as usize),
        _ => Err(Fault::new(Code::NotSupported, format!("unsupported function attribute {attribute}"))),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: usize,
    parameters: *const *const u8,
    _extra: *const *const c_void,
) -> Status {
    on_stream(stream, |driver| {
        let kernel = driver.kernel(function)?;
        if parameters.is_null() && kernel.parameter_bytes().next().is_some() {
            return Err(Fault::new(Code::InvalidValue, format!("kernel {}: no parameters", kernel.name())));
        }
        let values = (kernel.parameter_bytes().enumerate())
            .map(|(index, bytes)| {
                // SAFETY: the caller passes as many pointers as the kernel has parameters, each to a value of
                // the parameter's size.
                unsafe { std::slice::from_raw_parts(*parameters.add(index), bytes).to_vec() }
            })
            .collect::<Vec<_>>();
        let launch = Launch {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic_shared_bytes: shared_bytes as usize,
            parameters: values,
        };
        driver.launch(function, launch)
    })
}
