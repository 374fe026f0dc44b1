//! Device memory: host memory with a table of allocations.
//!
//! Invariant: `Memory::check` accepts an address range only if it lies inside one live allocation. There is a
//! gap after each allocation, so that a range beyond the end of one never lies inside the next. Addresses of freed
//! allocations are not used again soon, so that a late access to one is found.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, HashSet, VecDeque};

use crate::fault::{Code, Fault};

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
    live: BTreeMap<usize, usize>,
    used: usize,
    /// Allocations that are freed once the device has done the work before.
    released: HashSet<usize>,
    /// Freed allocations, oldest first, and their size.
    freed: VecDeque<(usize, usize)>,
    freed_bytes: usize,
}

/// One allocation: its first address and the address after its last byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    pub start: usize,
    pub end: usize,
}

impl Extent {
    pub fn holds(self, address: usize, bytes: usize) -> bool {
        self.start <= address && address.checked_add(bytes).is_some_and(|end| end <= self.end)
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
        self.live.insert(pointer as usize, bytes);
        Ok(pointer as usize)
    }

    pub fn free(&mut self, address: usize) -> Result<(), Fault> {
        self.release(address)?;
        self.retire(address)
    }

    /// Makes the bytes of an allocation available to others. Its address stays valid until `retire`.
    pub fn release(&mut self, address: usize) -> Result<(), Fault> {
        let bytes = self.live.get(&address).filter(|_| !self.released.contains(&address));
        let bytes = *bytes.ok_or_else(|| self.not_live(address))?;
        self.used -= bytes;
        self.released.insert(address);
        Ok(())
    }

    /// Ends the use of a released allocation.
    pub fn retire(&mut self, address: usize) -> Result<(), Fault> {
        self.released.remove(&address);
        let bytes = self.live.remove(&address).ok_or_else(|| self.not_live(address))?;
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
    pub fn find(&self, address: usize, bytes: usize) -> Option<Extent> {
        let (&start, &length) = self.live.range(..=address).next_back()?;
        let extent = Extent { start, end: start + length };
        extent.holds(address, bytes).then_some(extent)
    }

    /// Fails unless these bytes lie inside one live allocation.
    pub fn check(&self, what: &str, address: usize, bytes: usize) -> Result<Extent, Fault> {
        self.find(address, bytes).ok_or_else(|| {
            let message = format!(
                "{what} of {bytes} bytes at {address:#x} outside of live memory{}",
                self.nearest(address)
            );
            Fault::new(Code::IllegalAddress, message)
        })
    }

    fn nearest(&self, address: usize) -> String {
        let is_freed = |&&(start, bytes): &&(usize, usize)| (start..start + bytes).contains(&address);
        if let Some((start, bytes)) = self.freed.iter().rev().find(is_freed) {
            return format!("; an allocation of {bytes} bytes at {start:#x} was freed");
        }
        let below = self.live.range(..=address).next_back();
        let above = self.live.range(address..).next();
        let distance = |(start, bytes): (&usize, &usize)| {
            if address < *start { start - address } else { (address + 1).saturating_sub(start + bytes) }
        };
        let nearest = [below, above].into_iter().flatten().min_by_key(|&allocation| distance(allocation));
        nearest.map_or_else(String::new, |(start, bytes)| {
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
        let all = self.live.iter().map(|(&address, &bytes)| (address, bytes)).chain(freed);
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
