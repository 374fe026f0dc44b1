//! Finds accesses to shared memory by two threads, at least one of them a write, that no barrier orders. A
//! device may execute them in any order, also within a warp.

/// Threads per warp.
const WARP: u32 = 32;

/// A thread of a block, and the number of times that its warp has waited for all its lanes.
#[derive(Clone, Copy, Default)]
pub(super) struct Accessor {
    pub(super) thread: u32,
    pub(super) phase: u32,
}

impl Accessor {
    fn warp(self) -> u32 {
        self.thread / WARP
    }

    /// Returns whether two accesses between the same barriers of the block are ordered.
    fn is_ordered(self, other: Self) -> bool {
        self.thread == other.thread || self.warp() == other.warp() && self.phase != other.phase
    }
}

/// The threads that have read a byte since the last barrier.
#[derive(Clone, Copy, Default)]
enum Readers {
    #[default]
    None,
    One,
    /// Several lanes of a warp.
    Warp,
    /// Threads of several warps.
    Block,
}

/// The last accesses to a byte.
#[derive(Clone, Copy, Default)]
struct Byte {
    write_epoch: u64,
    writer: Accessor,
    read_epoch: u64,
    readers: Readers,
    /// The last reader.
    reader: Accessor,
}

/// The accesses to the shared memory of a block.
pub(super) struct SharedAccesses {
    bytes: Vec<Byte>,
    /// Number of barriers so far.
    epoch: u64,
}

impl SharedAccesses {
    pub(super) fn new(bytes: usize) -> Self {
        Self { bytes: vec![Byte::default(); bytes], epoch: 1 }
    }

    /// Orders all earlier accesses before all later ones.
    pub(super) fn barrier(&mut self) {
        self.epoch += 1;
    }

    /// Records a read of `count` bytes at `at`. Fails if it races with a write of the returned thread.
    pub(super) fn read(&mut self, by: Accessor, at: usize, count: usize) -> Result<(), u32> {
        let epoch = self.epoch;
        for byte in &mut self.bytes[at..at + count] {
            if byte.write_epoch == epoch && !byte.writer.is_ordered(by) {
                return Err(byte.writer.thread);
            }
            let before = if byte.read_epoch == epoch { byte.readers } else { Readers::None };
            let is_same_warp = byte.reader.warp() == by.warp();
            byte.readers = match before {
                Readers::None => Readers::One,
                // Earlier reads of the same warp are ordered before this one.
                Readers::One | Readers::Warp if is_same_warp && byte.reader.is_ordered(by) => {
                    if byte.reader.thread == by.thread && byte.reader.phase == by.phase {
                        before
                    } else {
                        Readers::One
                    }
                }
                Readers::One | Readers::Warp if is_same_warp => Readers::Warp,
                Readers::One | Readers::Warp | Readers::Block => Readers::Block,
            };
            (byte.read_epoch, byte.reader) = (epoch, by);
        }
        Ok(())
    }

    /// Records a write of `count` bytes at `at`. Fails if it races with an access of the returned thread.
    pub(super) fn write(&mut self, by: Accessor, at: usize, count: usize) -> Result<(), u32> {
        let epoch = self.epoch;
        for byte in &mut self.bytes[at..at + count] {
            if byte.write_epoch == epoch && !byte.writer.is_ordered(by) {
                return Err(byte.writer.thread);
            }
            let is_read = byte.read_epoch == epoch;
            let is_ordered = match byte.readers {
                Readers::None => true,
                Readers::One => byte.reader.is_ordered(by),
                Readers::Warp => byte.reader.warp() == by.warp() && byte.reader.phase != by.phase,
                Readers::Block => false,
            };
            if is_read && !is_ordered {
                return Err(byte.reader.thread);
            }
            (byte.write_epoch, byte.writer) = (epoch, by);
        }
        Ok(())
    }
}
