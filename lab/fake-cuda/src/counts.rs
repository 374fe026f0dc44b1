//! Counts of a program's calls to the device.
//!
//! If `NTL_FAKE_CUDA_COUNTS` is set to a path, the counts are kept in that file, which the program (or
//! another one) may read at any time. The file consists of [`TOTALS`] 8-byte numbers in the order of
//! [`Total`], followed by one record per kernel or matmul: an 8-byte number and a name of [`NAME_BYTES`]
//! bytes. The first record with the number 0 ends the list.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Number of totals before the first record.
pub(crate) const TOTALS: usize = 16;
/// Size of a name in bytes, padded with zeros.
pub(crate) const NAME_BYTES: usize = 120;
const RECORDS: usize = 1024;
const RECORD: usize = 1 + NAME_BYTES / 8;
const NUMBERS: usize = TOTALS + RECORDS * RECORD;

/// Index of each total in the file.
#[derive(Clone, Copy, Debug)]
pub enum Total {
    /// Kernels launched by `cuLaunchKernel`.
    Launches,
    /// cuBLAS matmuls; a batch counts once.
    Products,
    Uploads,
    UploadedBytes,
    Downloads,
    DownloadedBytes,
    /// Copies from device memory to device memory.
    Copies,
    Fills,
    Allocations,
    AllocatedBytes,
    Frees,
    /// Calls that wait for the device.
    Synchronisations,
    /// Calls that create, record or wait for an event.
    Events,
    LiveBytes,
    PeakBytes,
    /// Bytes that the memory pool returned to the system. On a device, it takes time to allocate them again.
    ReturnedBytes,
}

/// Counts, kept in a mapped file or in memory.
pub struct Counts {
    numbers: &'static mut [u64],
    records: HashMap<String, usize>,
}

impl Counts {
    /// Returns counts in the file that the environment variable names.
    pub fn from_environment() -> Self {
        let mapped = std::env::var_os("NTL_FAKE_CUDA_COUNTS").and_then(|path| map(Path::new(&path)));
        let numbers = mapped.unwrap_or_else(|| Box::leak(vec![0; NUMBERS].into_boxed_slice()));
        numbers.fill(0);
        Self { numbers, records: HashMap::new() }
    }

    pub fn add(&mut self, total: Total, by: usize) {
        self.numbers[total as usize] += by as u64;
    }

    pub fn get(&self, total: Total) -> u64 {
        self.numbers[total as usize]
    }

    pub fn live(&mut self, bytes: usize) {
        self.numbers[Total::LiveBytes as usize] = bytes as u64;
        let peak = &mut self.numbers[Total::PeakBytes as usize];
        *peak = (*peak).max(bytes as u64);
    }

    /// Increments the count of `name`. Names beyond the last record are not counted individually.
    pub fn name(&mut self, name: &str) {
        let record = match self.records.get(name) {
            Some(&record) => record,
            None if self.records.len() == RECORDS => return,
            None => {
                let record = TOTALS + self.records.len() * RECORD;
                let mut bytes = [0; NAME_BYTES];
                let length = name.len().min(NAME_BYTES - 1);
                bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
                for (number, bytes) in self.numbers[record + 1..].iter_mut().zip(bytes.as_chunks::<8>().0) {
                    *number = u64::from_ne_bytes(*bytes);
                }
                self.records.insert(name.to_owned(), record);
                record
            }
        };
        self.numbers[record] += 1;
    }
}

unsafe extern "C" {
    fn mmap(
        address: *mut c_void,
        length: usize,
        protection: i32,
        flags: i32,
        file: i32,
        offset: i64,
    ) -> *mut c_void;
}

/// Maps the file for as long as the program runs.
fn map(path: &Path) -> Option<&'static mut [u64]> {
    const READ_WRITE: i32 = 3;
    const SHARED: i32 = 1;
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).ok()?;
    file.set_len((NUMBERS * 8) as u64).ok()?;
    // SAFETY: a fresh mapping of the file's length, which is never unmapped. Other processes only read it.
    unsafe {
        let address = mmap(std::ptr::null_mut(), NUMBERS * 8, READ_WRITE, SHARED, file.as_raw_fd(), 0);
        (address as isize != -1).then(|| std::slice::from_raw_parts_mut(address.cast(), NUMBERS))
    }
}
