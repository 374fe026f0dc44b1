//! Registers of a warp, and functions over all their lanes.

use crate::ptx::types::{Type, Value};

/// Number of threads in a warp.
pub(in crate::ptx) const LANES: usize = 32;
/// The values of one register in all threads of a warp.
pub(in crate::ptx) type Lanes = [u64; LANES];
/// The number of a register.
pub(in crate::ptx) type Register = u32;
/// Operands of an instruction, which uses as many as it needs.
pub(in crate::ptx) type Operands = [Register; 4];
/// Computes a register of a warp from others.
pub(in crate::ptx) type Compute = Box<dyn Fn(&[Lanes], &Operands) -> Lanes + Send + Sync>;

/// A decoded instruction: its number of operands, and the type of its result and of its operands.
pub(in crate::ptx) struct Operation {
    pub(in crate::ptx) operands: usize,
    pub(in crate::ptx) result: Type,
    pub(in crate::ptx) operand: Type,
    pub(in crate::ptx) compute: Compute,
}

pub(super) fn map1<A: Value, R: Value>(f: impl Fn(A) -> R + Send + Sync + 'static) -> Compute {
    Box::new(move |registers, operands| {
        let a = &registers[operands[0] as usize];
        std::array::from_fn(|lane| f(A::from_bits64(a[lane])).to_bits64())
    })
}

pub(super) fn map2<A: Value, B: Value, R: Value>(f: impl Fn(A, B) -> R + Send + Sync + 'static) -> Compute {
    Box::new(move |registers, operands| {
        let [a, b, ..] = operands.map(|register| &registers[register as usize]);
        std::array::from_fn(|lane| f(A::from_bits64(a[lane]), B::from_bits64(b[lane])).to_bits64())
    })
}

pub(super) fn map3<A: Value, B: Value, C: Value, R: Value>(
    f: impl Fn(A, B, C) -> R + Send + Sync + 'static,
) -> Compute {
    Box::new(move |registers, operands| {
        let [a, b, c, _] = operands.map(|register| &registers[register as usize]);
        std::array::from_fn(|lane| {
            f(A::from_bits64(a[lane]), B::from_bits64(b[lane]), C::from_bits64(c[lane])).to_bits64()
        })
    })
}

pub(super) fn map4<R: Value>(f: impl Fn(u64, u64, u64, u64) -> R + Send + Sync + 'static) -> Compute {
    Box::new(move |registers, operands| {
        let [a, b, c, d] = operands.map(|register| &registers[register as usize]);
        std::array::from_fn(|lane| f(a[lane], b[lane], c[lane], d[lane]).to_bits64())
    })
}

/// Computes the low and the high 16 bits of a 32-bit register separately.
pub(super) fn in_halves(operands: usize, compute: Compute) -> Compute {
    Box::new(move |registers, from| {
        let mut result = [0; LANES];
        for shift in [0, 16] {
            let halves: [Lanes; 4] = std::array::from_fn(|index| match from.get(index) {
                Some(&register) if index < operands => {
                    registers[register as usize].map(|value| value >> shift & 0xffff)
                }
                _ => [0; LANES],
            });
            for (lane, half) in result.iter_mut().zip(compute(&halves, &[0, 1, 2, 3])) {
                *lane |= half << shift;
            }
        }
        result
    })
}

/// Evaluates an expression with `$t` as the integer type.
macro_rules! for_integer {
    ($type:expr, $t:ident => $body:expr) => {
        $crate::ptx::alu::lanes::for_type!($type, $t => $body,
            U8 u8, U16 u16, U32 u32, U64 u64, S8 i8, S16 i16, S32 i32, S64 i64)
    };
}

/// Evaluates an expression with `$t` as the floating point type.
macro_rules! for_float {
    ($type:expr, $t:ident => $body:expr) => {
        $crate::ptx::alu::lanes::for_type!($type, $t => $body, F16 f16, Bf16 bf16, F32 f32, F64 f64)
    };
}

/// Evaluates an expression with `$t` as the Rust type for one of these names; returns `None` for other types.
macro_rules! for_type {
    ($type:expr, $t:ident => $body:expr, $($name:ident $rust:ident),+) => {
        match $type {
            $(Type::$name => {
                type $t = $rust;
                $body
            })+
            _ => return None,
        }
    };
}

pub(super) use {for_float, for_integer, for_type};

/// Extracts `bits` bits of a register, starting at bit `at`.
pub(in crate::ptx) fn unpack(at: u32, bits: u32) -> Compute {
    map1(move |a: u64| a >> at & (u64::MAX >> (64 - bits)))
}

/// Combines the low `at` bits of a register with another register's value above them.
pub(in crate::ptx) fn pack(at: u32) -> Compute {
    map2(move |low: u64, high: u64| low | high << at)
}

/// Adds a constant, for addresses in windows of the generic address space.
pub(in crate::ptx) fn offset(by: u64) -> Compute {
    map1(move |a: u64| a.wrapping_add(by))
}

/// Extends the sign of a signed type's low bytes to all bits up to `bytes`.
pub(in crate::ptx) fn extend_sign(from: Type, bytes: usize) -> Compute {
    let from = 64 - 8 * from.bytes() as u32;
    let to = 64 - 8 * bytes as u32;
    map1(move |a: u64| ((a << from) as i64 >> from) as u64 & (u64::MAX >> to))
}
