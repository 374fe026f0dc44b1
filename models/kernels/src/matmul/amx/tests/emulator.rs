//! Executes tile instructions on CPUs that lack them, so that the tests run the actual assembly of `unit`.
//!
//! Such a CPU raises SIGILL at a tile instruction. The handler decodes the instruction, executes it on the
//! thread's [`Machine`] and continues after it. Any other cause of SIGILL ends the process as before.
#![expect(unsafe_code, reason = "a signal handler changes registers, and tile instructions move memory")]

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Once;

use super::machine::{Fault, Machine, Operands, Signs};
use crate::matmul::amx::Amx;

/// A memory operand, by register numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    base: usize,
    /// The index register and the logarithm of its scale. For tiles, it is the stride of the rows.
    index: Option<(usize, u32)>,
    offset: i32,
}

impl Place {
    fn address(self, registers: &[i64]) -> usize {
        register(registers, self.base).wrapping_add_signed(self.offset as isize)
    }

    /// Returns the address of a row of a tile.
    fn row_address(self, registers: &[i64], row: usize) -> usize {
        let stride = self.index.map_or(0, |(index, shift)| register(registers, index) << shift);
        self.address(registers).wrapping_add(stride.wrapping_mul(row))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instruction {
    Configure(Place),
    Release,
    Zero(usize),
    Load(usize, Place),
    Store(usize, Place),
    DotBytes(Operands, Signs),
    DotBf16(Operands),
}

/// Decodes the tile instruction at the beginning of `code`; returns it with its length.
fn decode(code: &[u8]) -> Option<(Instruction, usize)> {
    // A three-byte VEX prefix: inverted high bits of registers and the table; then W, the inverted third
    // operand, the length and the prefix.
    let &[0xc4, first, second, opcode, modes, ..] = code else { return None };
    if first & 0x1f != 2 || second & 0x84 != 0 {
        return None;
    }
    let prefix = second & 3;
    let mode = modes >> 6;
    let register = usize::from(modes >> 3 & 7);
    let other = usize::from(modes & 7);
    let third = usize::from(!second >> 3 & 15);
    let products = Operands { to: register, left: other, right: third };
    let instruction = match (opcode, prefix, mode) {
        (0x49, 0, 3) if modes == 0xc0 => Instruction::Release,
        (0x49, 3, 3) => Instruction::Zero(register),
        (0x5e, 3, 3) => Instruction::DotBytes(products, Signs::SignedSigned),
        (0x5e, 2, 3) => Instruction::DotBytes(products, Signs::SignedUnsigned),
        (0x5e, 1, 3) => Instruction::DotBytes(products, Signs::UnsignedSigned),
        (0x5e, 0, 3) => Instruction::DotBytes(products, Signs::UnsignedUnsigned),
        (0x5c, 2, 3) => Instruction::DotBf16(products),
        (0x49, 0, _) | (0x4b, 2 | 3, 0..3) => {
            let (place, length) = place(first, &code[4..])?;
            let instruction = match (opcode, prefix) {
                (0x49, _) => Instruction::Configure(place),
                (_, 3) => Instruction::Load(register, place),
                _ => Instruction::Store(register, place),
            };
            return Some((instruction, 4 + length));
        }
        _ => return None,
    };
    Some((instruction, 5))
}

/// Decodes the memory operand in ModRM, SIB and displacement; returns it with its length. RIP-relative
/// operands are not decoded.
fn place(first: u8, code: &[u8]) -> Option<(Place, usize)> {
    let mode = code[0] >> 6;
    let low = code[0] & 7;
    let (base, index, at) = if low == 4 {
        let index = usize::from(code[1] >> 3 & 7) + high_bit(first, 0x40);
        // The number of the stack pointer means that there is no index.
        let index = (index != 4).then_some((index, u32::from(code[1] >> 6)));
        (code[1] & 7, index, 2)
    } else {
        (low, None, 1)
    };
    let (offset, length) = match mode {
        0 if base == 5 => return None,
        0 => (0, at),
        1 => (i32::from(code[at].cast_signed()), at + 1),
        _ => (i32::from_le_bytes(*code[at..].first_chunk()?), at + 4),
    };
    Some((Place { base: usize::from(base) + high_bit(first, 0x20), index, offset }, length))
}

/// The highest bit of a register's number, which `bit` of the prefix has inverted.
fn high_bit(prefix: u8, bit: u8) -> usize {
    if prefix & bit == 0 { 8 } else { 0 }
}

thread_local! {
    static MACHINE: RefCell<Machine> = const { RefCell::new(Machine::new()) };
}

/// Indices of the registers in a signal's context, by their numbers in instructions.
const REGISTERS: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

fn register(registers: &[i64], number: usize) -> usize {
    registers[REGISTERS[number] as usize] as usize
}

/// # Safety
/// `registers` must be the registers of a thread that is about to execute `instruction`.
unsafe fn execute(instruction: Instruction, registers: &[i64]) -> Result<(), Fault> {
    MACHINE.with_borrow_mut(|machine| match instruction {
        Instruction::Configure(place) => {
            let from = std::ptr::with_exposed_provenance::<[u8; 64]>(place.address(registers));
            // SAFETY: the instruction reads this memory.
            machine.configure(&unsafe { from.read_unaligned() })
        }
        Instruction::Release => {
            machine.release();
            Ok(())
        }
        Instruction::Zero(tile) => machine.zero(tile),
        Instruction::Load(tile, place) => {
            let (bytes, _) = machine.shape(tile)?;
            machine.load(tile, |row| {
                let from = std::ptr::with_exposed_provenance(place.row_address(registers, row));
                // SAFETY: the instruction reads this memory.
                unsafe { std::slice::from_raw_parts(from, bytes) }
            })
        }
        Instruction::Store(tile, place) => machine.store(tile, |row, bytes| {
            let to = std::ptr::with_exposed_provenance_mut(place.row_address(registers, row));
            // SAFETY: the instruction writes this memory.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }),
        Instruction::DotBytes(operands, signs) => machine.dot_bytes(operands, signs),
        Instruction::DotBf16(operands) => machine.dot_bf16(operands),
    })
}

extern "C" fn on_illegal_instruction(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    /// Length of the longest instruction that is decoded, in bytes.
    const LENGTH_MAX: usize = 10;
    // SAFETY: the kernel passes the registers of this thread, whose instruction pointer points to code.
    let (registers, code) = unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let code = std::ptr::with_exposed_provenance::<u8>(registers[libc::REG_RIP as usize] as usize);
        (registers, std::slice::from_raw_parts(code, LENGTH_MAX))
    };
    let executed = decode(code).is_some_and(|(instruction, length)| {
        registers[libc::REG_RIP as usize] += length as i64;
        // SAFETY: these are the registers of this thread.
        unsafe { execute(instruction, registers) }.is_ok()
    });
    if !executed {
        // SAFETY: the default handler ends the process when the instruction is executed again.
        unsafe { libc::signal(libc::SIGILL, libc::SIG_DFL) };
        registers[libc::REG_RIP as usize] = code.as_ptr().expose_provenance() as i64;
    }
}

/// Returns tiles that the handler computes if the CPU has none.
pub(in crate::matmul) fn amx() -> Amx {
    static INSTALLED: Once = Once::new();
    if let Some(amx) = Amx::new() {
        return amx;
    }
    INSTALLED.call_once(|| {
        // SAFETY: an action of zeros is valid, and the handler has the signature that the flags require.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_flags = libc::SA_SIGINFO;
            action.sa_sigaction =
                on_illegal_instruction as extern "C" fn(_, _, _) as *const () as libc::sighandler_t;
            assert_eq!(libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()), 0);
        }
    });
    Amx::emulated()
}

#[test]
fn instructions_are_decoded_from_the_output_of_assemblers() {
    let place = |base, index, offset| Place { base, index, offset };
    let operands = |to, left, right| Operands { to, left, right };
    for (code, want) in [
        ("c4e27849 00", Instruction::Configure(place(0, None, 0))),
        ("c4e27849 442408", Instruction::Configure(place(4, None, 8))),
        ("c4e27849c0", Instruction::Release),
        ("c4e27b49d8", Instruction::Zero(3)),
        // tileloadd tmm6, [rdi + rsi]
        ("c4e27b4b3437", Instruction::Load(6, place(7, Some((6, 0)), 0))),
        // tileloadd tmm1, [r9 + r10*2 + 64]
        ("c4827b4b4c5140", Instruction::Load(1, place(9, Some((10, 1)), 64))),
        // tileloadd tmm0, [rax]
        ("c4e27b4b0420", Instruction::Load(0, place(0, None, 0))),
        // tilestored [r12 + rdx + 192], tmm3
        ("c4c27a4b9c14c0000000", Instruction::Store(3, place(12, Some((2, 0)), 192))),
        // tdpbssd tmm0, tmm1, tmm2
        ("c4e26b5ec1", Instruction::DotBytes(operands(0, 1, 2), Signs::SignedSigned)),
        ("c4e26a5ec1", Instruction::DotBytes(operands(0, 1, 2), Signs::SignedUnsigned)),
        ("c4e2695ec1", Instruction::DotBytes(operands(0, 1, 2), Signs::UnsignedSigned)),
        ("c4e2685ec1", Instruction::DotBytes(operands(0, 1, 2), Signs::UnsignedUnsigned)),
        // tdpbf16ps tmm3, tmm5, tmm7
        ("c4e2425cdd", Instruction::DotBf16(operands(3, 5, 7))),
    ] {
        let digits: Vec<u8> = code.bytes().filter(|digit| *digit != b' ').collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let mut bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
        let length = bytes.len();
        bytes.resize(16, 0xcc);
        assert_eq!(decode(&bytes), Some((want, length)), "{code}");
    }
    assert_eq!(decode(&[0x0f, 0x0b, 0, 0, 0, 0, 0, 0, 0, 0]), None);
}
