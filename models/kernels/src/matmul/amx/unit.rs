//! The tiles of this CPU, through inline assembly, since the compiler has no stable functions for them.
#![expect(
    unsafe_code,
    reason = "tile instructions run only if they were detected, on memory that was checked"
)]

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::{Elements, PANEL_STEP_BYTES, Row, STEP_BYTES, Sides, TileUnit, WIDTH, config};

/// Proof that this process may use the tiles.
#[derive(Debug, Clone, Copy)]
pub(in crate::matmul) struct Amx(());

impl Amx {
    pub(in crate::matmul) fn new() -> Option<Self> {
        static FOUND: OnceLock<bool> = OnceLock::new();
        FOUND.get_or_init(|| detected() && permitted()).then_some(Self(()))
    }

    /// Returns an instance for tests that execute the instructions elsewhere.
    #[cfg(test)]
    pub(super) fn emulated() -> Self {
        Self(())
    }

    /// Runs `work` with tiles for matmuls of `rows` rows.
    pub(in crate::matmul) fn with_tiles(self, rows: usize, elements: Elements, work: impl FnOnce(&mut Unit)) {
        let _tiles = self.configure(&config(rows));
        work(&mut Unit { rows, elements });
    }

    /// Configures the tiles of this thread.
    pub(in crate::matmul) fn configure(self, config: &[u8; 64]) -> Configured {
        // SAFETY: `self` exists only if the instruction does; it reads 64 bytes.
        unsafe {
            asm!("ldtilecfg [{config}]", config = in(reg) config, options(readonly, nostack, preserves_flags));
        }
        Configured { thread: PhantomData }
    }
}

/// Returns whether the CPU and the system have tiles for int8 and bf16.
fn detected() -> bool {
    /// Bits of leaf 7: AMX-BF16, AMX-TILE, AMX-INT8.
    const TILES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    /// Bit of leaf 1: the system has enabled `xgetbv`.
    const OSXSAVE: u32 = 1 << 27;
    /// Bits of XCR0: configuration and data of tiles.
    const STATE: u32 = 1 << 17 | 1 << 18;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 || __cpuid_count(7, 0).edx & TILES != TILES {
        return false;
    }
    let state: u32;
    // SAFETY: the system has enabled the instruction.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") state, out("edx") _, options(nomem, nostack, preserves_flags));
    }
    state & STATE == STATE
}

/// Requests permission from Linux to use the tiles' data, for all threads of the process.
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let result: i64;
    // SAFETY: the call takes two numbers and accesses no memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// Tiles of this thread, configured until this value is dropped.
pub(in crate::matmul) struct Configured {
    /// The configuration belongs to one thread.
    thread: PhantomData<*const ()>,
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: the instruction exists if a `Configured` does; nothing reads the tiles after it.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

/// Tiles that are configured for `rows` rows.
pub(in crate::matmul) struct Unit {
    rows: usize,
    elements: Elements,
}

impl Unit {
    /// Returns the address of `rows` rows starting at `first`. Panics if they do not exist.
    fn rows_at(&self, sides: Sides<'_>, first: usize) -> *const u8 {
        assert!(first + self.rows <= sides.m, "rows from {first} of {}", sides.m);
        sides.rows[first * sides.steps * STEP_BYTES..].as_ptr()
    }

    /// Returns the addresses of the outputs starting at `column`, for `rows` rows starting at each of
    /// `first`. Panics if the rows do not exist.
    fn out_at<const R: usize>(&self, out: &mut [Row], first: [usize; R], column: usize) -> [*mut u8; R] {
        assert!(
            first.iter().all(|first| first + self.rows <= out.len()),
            "rows from {first:?} of {}",
            out.len()
        );
        let start = out.as_mut_ptr().cast::<u8>();
        first.map(|first| start.wrapping_add((first * WIDTH + column) * 4))
    }
}

/// Runs all steps of two tiles of rows and two of outputs. `$dot` multiplies.
macro_rules! two_by_two {
    ($dot:literal, $block:expr) => {{
        let block: Block<2> = $block;
        // SAFETY: the constructors of the block have checked the memory it points to. All tiles are written
        // before they are read.
        unsafe {
            asm!(
                "tileloadd tmm0, [{starts} + {zero}*1]",
                "tileloadd tmm1, [{starts} + {zero}*1 + 64]",
                "tileloadd tmm2, [{starts} + {zero}*1]",
                "tileloadd tmm3, [{starts} + {zero}*1 + 64]",
                "2:",
                "tileloadd tmm6, [{panel} + {wide}*1]",
                "tileloadd tmm4, [{rows0} + {row_bytes}*1]",
                concat!($dot, " tmm0, tmm4, tmm6"),
                "tileloadd tmm7, [{panel} + {wide}*1 + 64]",
                concat!($dot, " tmm1, tmm4, tmm7"),
                "tileloadd tmm5, [{rows1} + {row_bytes}*1]",
                concat!($dot, " tmm2, tmm5, tmm6"),
                concat!($dot, " tmm3, tmm5, tmm7"),
                "add {rows0}, {step}",
                "add {rows1}, {step}",
                "add {panel}, {panel_step}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{out0} + {wide}*1], tmm0",
                "tilestored [{out0} + {wide}*1 + 64], tmm1",
                "tilestored [{out1} + {wide}*1], tmm2",
                "tilestored [{out1} + {wide}*1 + 64], tmm3",
                starts = in(reg) block.starts,
                zero = in(reg) 0_usize,
                panel = inout(reg) block.panel => _,
                wide = in(reg) 4 * WIDTH,
                rows0 = inout(reg) block.rows[0] => _,
                rows1 = inout(reg) block.rows[1] => _,
                row_bytes = in(reg) block.row_bytes,
                steps = inout(reg) block.row_bytes / STEP_BYTES => _,
                out0 = in(reg) block.out[0],
                out1 = in(reg) block.out[1],
                step = const STEP_BYTES,
                panel_step = const PANEL_STEP_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }};
}

/// Runs all steps of one tile of rows and four of outputs.
macro_rules! one_by_four {
    ($dot:literal, $block:expr) => {{
        let block: Block<1> = $block;
        // SAFETY: as above.
        unsafe {
            asm!(
                "tileloadd tmm0, [{starts} + {zero}*1]",
                "tileloadd tmm1, [{starts} + {zero}*1 + 64]",
                "tileloadd tmm2, [{starts} + {zero}*1 + 128]",
                "tileloadd tmm3, [{starts} + {zero}*1 + 192]",
                "2:",
                "tileloadd tmm4, [{rows} + {row_bytes}*1]",
                "tileloadd tmm6, [{panel} + {wide}*1]",
                concat!($dot, " tmm0, tmm4, tmm6"),
                "tileloadd tmm7, [{panel} + {wide}*1 + 64]",
                concat!($dot, " tmm1, tmm4, tmm7"),
                "tileloadd tmm6, [{panel} + {wide}*1 + 128]",
                concat!($dot, " tmm2, tmm4, tmm6"),
                "tileloadd tmm7, [{panel} + {wide}*1 + 192]",
                concat!($dot, " tmm3, tmm4, tmm7"),
                "add {rows}, {step}",
                "add {panel}, {panel_step}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{out} + {wide}*1], tmm0",
                "tilestored [{out} + {wide}*1 + 64], tmm1",
                "tilestored [{out} + {wide}*1 + 128], tmm2",
                "tilestored [{out} + {wide}*1 + 192], tmm3",
                starts = in(reg) block.starts,
                zero = in(reg) 0_usize,
                panel = inout(reg) block.panel => _,
                wide = in(reg) 4 * WIDTH,
                rows = inout(reg) block.rows[0] => _,
                row_bytes = in(reg) block.row_bytes,
                steps = inout(reg) block.row_bytes / STEP_BYTES => _,
                out = in(reg) block.out[0],
                step = const STEP_BYTES,
                panel_step = const PANEL_STEP_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }};
}

/// Addresses of the operands, with `R` tiles of rows.
struct Block<const R: usize> {
    rows: [*const u8; R],
    row_bytes: usize,
    panel: *const u8,
    starts: *const [u8; 4],
    out: [*mut u8; R],
}

impl TileUnit for Unit {
    fn two_by_two(&mut self, sides: Sides<'_>, first: [usize; 2], column: usize, out: &mut [Row]) {
        assert!(column <= WIDTH / 2, "32 outputs from {column} on");
        let block = Block {
            rows: first.map(|first| self.rows_at(sides, first)),
            row_bytes: sides.steps * STEP_BYTES,
            panel: sides.panel[4 * column..].as_ptr(),
            starts: sides.starts[column..].as_ptr(),
            out: self.out_at(out, first, column),
        };
        match self.elements {
            Elements::Bytes => two_by_two!("tdpbusd", block),
            Elements::Bf16 => two_by_two!("tdpbf16ps", block),
        }
    }

    fn one_by_four(&mut self, sides: Sides<'_>, first: usize, out: &mut [Row]) {
        let block = Block {
            rows: [self.rows_at(sides, first)],
            row_bytes: sides.steps * STEP_BYTES,
            panel: sides.panel.as_ptr(),
            starts: sides.starts.as_ptr(),
            out: self.out_at(out, [first], 0),
        };
        match self.elements {
            Elements::Bytes => one_by_four!("tdpbusd", block),
            Elements::Bf16 => one_by_four!("tdpbf16ps", block),
        }
    }
}
