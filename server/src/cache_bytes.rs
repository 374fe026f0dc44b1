//! The default of `--cache-bytes-max`: half of the free memory of the device.

use std::path::Path;

use ntl_text::load_options::DeviceChoice;

use crate::{memory, native};

/// The default if the amount of free memory is unknown.
const CACHE_BYTES_DEFAULT: u64 = 4 << 30;

/// Returns half of the free memory of the device.
pub(crate) fn default(device: DeviceChoice) -> u64 {
    half(native::free_gpu_bytes(device).or_else(|| memory::free(Path::new("/"))))
}

fn half(free: Option<u64>) -> u64 {
    free.map_or(CACHE_BYTES_DEFAULT, |free| (free / 2).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_use_half_of_the_free_memory() {
        assert_eq!([Some(80 << 30), Some(0), None].map(half), [40 << 30, 1, CACHE_BYTES_DEFAULT]);
    }
}
