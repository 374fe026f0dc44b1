//! Device memory: host memory with a table of allocations, and of the bytes that something has written.
//!
//! Invariant: `Memory::check` accepts an address range only if it lies inside one live allocation. There is a
//! gap after each allocation, so that a range beyond the end of one never lies inside the next. Addresses of
//! freed allocations are not used again soon, so that a late access to one is found.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, HashSet, VecDeque};

use crate::fault::{Code, Fault};
use crate::written::Written;

const ALIGNMENT: usize = 256;
const GAP: usize = 256;

/// Default size of the device memory.
const TOTAL_BYTES: usize = 16 << 30;

/// Maximum size of the freed allocations whose addresses are not used again.
const QUARANTINE_BYTES: usize = 64 << 20;

/// Live allocations by address.
pub struct Memory {
    /// The reported size, which allocations cannot exceed.
    total: usize,
    live: BTreeMap<usize, Live>,
    used: usize,
    /// Allocations that are freed once the device has done the work before.
    released: HashSet<usize>,
    /// Freed allocations, oldest first, and their size.
    freed: VecDeque<(usize, usize)>,
    freed_bytes: usize,
}

struct Live {
    bytes: usize,
    written: Written,
}

/// One allocation: its first address and the address after its last byte.
#[derive(Clone, Copy)]
pub struct Extent<'a> {
    pub start: usize,
    pub end: usize,
    written: &'a Written,
}

impl Extent<'_> {
    pub fn holds(&self, address: usize, bytes: usize) -> bool {
        self.start <= address && address.checked_add(bytes).is_some_and(|end| end <= self.end)
    }

    /// Records whether these bytes, which the extent holds, have a value.
    pub fn set_written(&self, address: usize, bytes: usize, is_written: bool) {
        self.written.set(address - self.start, bytes, is_written);
    }

    pub fn is_written(&self, address: usize, bytes: usize) -> bool {
        self.written.all(address - self.start, bytes)
    }

    /// Fails if nothing has written one of these bytes, which the extent holds.
    pub fn check_written(&self, what: &str, address: usize, bytes: usize) -> Result<(), Fault> {
        if self.is_written(address, bytes) {
            return Ok(());
        }
        let message = format!(
            "{what} of {bytes} bytes, {} bytes after the start of an allocation of {} bytes: nothing has written them",
            address - self.start,
            self.end - self.start
        );
        Err(Fault::new(Code::LaunchFailed, message))
    }

    /// Gives bytes the state of those that are copied to them.
    pub fn copy_written(&self, address: usize, from: &Self, source: usize, bytes: usize) {
        self.written.copy(address - self.start, from.written, source - from.start, bytes);
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(TOTAL_BYTES)
    }
}

impl Memory {
    pub fn new(total: usize) -> Self {
        Self {
            total,
            live: BTreeMap::new(),
            used: 0,
            released: HashSet::new(),
            freed: VecDeque::new(),
            freed_bytes: 0,
        }
    }

    /// Creates memory of the size in `NTL_FAKE_CUDA_MEMORY`.
    pub(crate) fn from_environment() -> Self {
        let total = std::env::var("NTL_FAKE_CUDA_MEMORY").ok().and_then(|bytes| bytes.parse().ok());
        total.map_or_else(Self::default, Self::new)
    }

    /// Allocates zeroed memory. The system provides pages when they are first accessed.
    pub fn allocate(&mut self, bytes: usize) -> Result<usize, Fault> {
        if bytes == 0 {
            return Err(Fault::new(Code::InvalidValue, "an allocation of 0 bytes"));
        }
        let left = self.left();
        let pointer = match layout(bytes) {
            // SAFETY: the layout is not empty.
            Some(layout) if bytes <= left => unsafe { alloc_zeroed(layout) },
            _ => std::ptr::null_mut(),
        };
        if pointer.is_null() {
            let message = format!("an allocation of {bytes} bytes, but only {left} are left");
            return Err(Fault::new(Code::OutOfMemory, message));
        }
        self.used += bytes;
        self.live.insert(pointer as usize, Live { bytes, written: Written::new(bytes) });
        Ok(pointer as usize)
    }

    pub fn free(&mut self, address: usize) -> Result<(), Fault> {
        self.release(address)?;
        self.retire(address)
    }

    /// Makes the bytes of an allocation available to others. Its address stays valid until `retire`.
    pub fn release(&mut self, address: usize) -> Result<(), Fault> {
        match self.live.get(&address) {
            Some(live) if !self.released.contains(&address) => {
                self.used -= live.bytes;
                self.released.insert(address);
                Ok(())
            }
            _ => Err(self.not_live(address)),
        }
    }

    /// Ends the use of a released allocation.
    pub fn retire(&mut self, address: usize) -> Result<(), Fault> {
        self.released.remove(&address);
        let Live { bytes, .. } = self.live.remove(&address).ok_or_else(|| self.not_live(address))?;
        self.freed_bytes += bytes;
        self.freed.push_back((address, bytes));
        while self.freed_bytes > QUARANTINE_BYTES
            && let Some((address, bytes)) = self.freed.pop_front()
        {
            self.freed_bytes -= bytes;
            give_back(address, bytes);
        }
        Ok(())
    }

    fn not_live(&self, address: usize) -> Fault {
        let message = format!("freed {address:#x}, which is not a live allocation{}", self.nearest(address));
        Fault::new(Code::InvalidValue, message)
    }

    pub fn total(&self) -> usize {
        self.total
    }

    pub fn left(&self) -> usize {
        self.total - self.used
    }

    pub fn used(&self) -> usize {
        self.used
    }

    /// Returns the allocation that contains these bytes.
    pub fn find(&self, address: usize, bytes: usize) -> Option<Extent<'_>> {
        let (&start, live) = self.live.range(..=address).next_back()?;
        let extent = Extent { start, end: start + live.bytes, written: &live.written };
        extent.holds(address, bytes).then_some(extent)
    }

    /// Fails unless these bytes lie inside one live allocation.
    pub fn check(&self, what: &str, address: usize, bytes: usize) -> Result<Extent<'_>, Fault> {
        self.find(address, bytes).ok_or_else(|| {
            let message = format!(
                "{what} of {bytes} bytes at {address:#x} outside of live memory{}",
                self.nearest(address)
            );
            Fault::new(Code::IllegalAddress, message)
        })
    }

    fn nearest(&self, address: usize) -> String {
        for (start, bytes) in self.freed.iter().rev() {
            if (*start..start + bytes).contains(&address) {
                return format!("; an allocation of {bytes} bytes at {start:#x} was freed");
            }
        }
        let below = self.live.range(..=address).next_back();
        let above = self.live.range(address..).next();
        let nearest = [below, above].into_iter().flatten().min_by_key(|&(start, live)| {
            if address < *start { start - address } else { (address + 1).saturating_sub(start + live.bytes) }
        });
        nearest.map_or_else(String::new, |(start, Live { bytes, .. })| {
            let place = match address.checked_sub(*start) {
                None => format!("{} bytes before its start", start - address),
                Some(offset) => format!("{offset} bytes after its start"),
            };
            format!("; the nearest allocation has {bytes} bytes at {start:#x}, and this is {place}")
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let freed = std::mem::take(&mut self.freed);
        let all = self.live.iter().map(|(&address, live)| (address, live.bytes)).chain(freed);
        all.for_each(|(address, bytes)| give_back(address, bytes));
    }
}

/// Returns an allocation to the system. It must have been removed from all lists.
fn give_back(address: usize, bytes: usize) {
    if let Some(layout) = layout(bytes) {
        // SAFETY: `allocate` made it with this layout, and it was in one list, so that it is freed only once.
        unsafe { dealloc(address as *mut u8, layout) };
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(GAP)?, ALIGNMENT).ok()
}
