//! Requests numbers from memory while the processor multiplies the ones before them.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "prefetches take pointers"))]

use std::slice::Chunks;

use bytemuck::Pod;

const LINE_BYTES: usize = 64;

/// Memory that is needed next, requested in equal shares.
pub(crate) struct Ahead<'a> {
    shares: Chunks<'a, u8>,
}

impl<'a> Ahead<'a> {
    /// Requests `memory` in `steps` steps.
    #[inline(always)]
    pub(crate) fn new<T: Pod>(memory: &'a [T], steps: usize) -> Self {
        let memory: &[u8] = bytemuck::cast_slice(memory);
        let share = memory.len().div_ceil(steps).next_multiple_of(LINE_BYTES);
        Self { shares: memory.chunks(share.max(LINE_BYTES)) }
    }

    /// Requests nothing.
    pub(crate) fn none() -> Self {
        Self::new(&[0u8; 0], 1)
    }

    /// Requests the next share for the second cache. The first one is for the present weights.
    #[inline(always)]
    pub(crate) fn step(&mut self) {
        request(self.shares.next().unwrap_or_default());
    }
}

/// Requests all of `memory` for the second cache.
#[inline(always)]
pub(crate) fn request<T: Pod>(memory: &[T]) {
    let memory: &[u8] = bytemuck::cast_slice(memory);
    memory.chunks(LINE_BYTES).for_each(request_line);
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn request_line(line: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: a prefetch changes no memory, and every x86-64 processor has the instruction.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
fn request_line(_: &[u8]) {}
