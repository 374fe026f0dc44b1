//! Functions of `libcurand.so.10` that opening a device calls. Nothing here draws on a device: numbers are drawn on the host.

use std::ffi::{c_uint, c_ulonglong};

type Status = c_uint;

const GENERATOR: usize = 0x400;
const NOT_INITIALIZED: Status = 101;

fn known(generator: usize) -> Status {
    if generator == GENERATOR { 0 } else { NOT_INITIALIZED }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandCreateGenerator(generator: *mut usize, _kind: c_uint) -> Status {
    // SAFETY: the caller passes a place for the handle.
    unsafe { generator.write(GENERATOR) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn curandDestroyGenerator(generator: usize) -> Status {
    known(generator)
}

#[unsafe(no_mangle)]
extern "C" fn curandSetPseudoRandomGeneratorSeed(generator: usize, _seed: c_ulonglong) -> Status {
    known(generator)
}

#[unsafe(no_mangle)]
extern "C" fn curandSetStream(generator: usize, _stream: usize) -> Status {
    known(generator)
}
