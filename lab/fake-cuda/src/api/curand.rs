//! The functions of `libcurand.so.10` that are called when a device is opened. Random numbers are drawn on
//! the host, never on the device.

use std::ffi::{c_uint, c_ulonglong};

type Status = c_uint;

const GENERATOR: usize = 0x400;
const NOT_INITIALIZED: Status = 101;

fn known(generator: usize) -> Status {
    if generator == GENERATOR { 0 } else { NOT_INITIALIZED }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandCreateGenerator(generator: *mut usize, _kind: c_uint) -> Status {
    // SAFETY: the caller passes a valid pointer for the handle.
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
