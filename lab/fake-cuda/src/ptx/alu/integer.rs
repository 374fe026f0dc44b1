//! Integers, single bits, and addition with carry.

use std::sync::Arc;

use super::lanes::{Compute, Operation, for_integer, map1, map2, map3, map4};
use crate::ptx::types::Type;

pub(super) fn is_bitwise(name: &str) -> bool {
    ["and", "or", "xor", "not", "shl", "bfi", "bfe", "clz", "popc", "brev", "prmt", "lop3", "shf"]
        .contains(&name)
}

pub(super) fn bitwise(name: &str, rest: &[&str], kind: Type) -> Option<(usize, Compute)> {
    let bits = if kind == Type::Pred { 1 } else { 8 * kind.bytes() as u32 };
    let mask = u64::MAX >> (64 - bits);
    Some(match (name, rest) {
        ("and", []) => (2, map2(|a: u64, b: u64| a & b)),
        ("or", []) => (2, map2(|a: u64, b: u64| a | b)),
        ("xor", []) => (2, map2(|a: u64, b: u64| a ^ b)),
        ("not", []) => (1, map1(move |a: u64| !a & mask)),
        ("shl", []) => (2, map2(move |a: u64, by: u32| if by < bits { (a << by) & mask } else { 0 })),
        ("clz", []) => (1, map1(move |a: u64| a.leading_zeros() - (64 - bits))),
        ("popc", []) => (1, map1(|a: u64| a.count_ones())),
        ("brev", []) => (1, map1(move |a: u64| a.reverse_bits() >> (64 - bits))),
        ("bfi", []) => (
            4,
            map4(move |from, into, position, length| {
                let position = position as u32 & 0xff;
                let length = length as u32 & 0xff;
                let field = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
                let field = if position < 64 { (field << position) & mask } else { 0 };
                let from = if position < 64 { from << position } else { 0 };
                (into & !field) | (from & field)
            }),
        ),
        ("bfe", []) => (
            3,
            map3(move |a: u64, position: u32, length: u32| {
                bit_field(kind, a, position & 0xff, length & 0xff)
            }),
        ),
        ("prmt", []) => (
            3,
            map3(|a: u32, b: u32, selector: u32| {
                let bytes = u64::from(a) | u64::from(b) << 32;
                (0..4).fold(0u32, |out, index| {
                    let select = selector >> (4 * index);
                    let byte = (bytes >> (8 * (select & 7))) as u8;
                    let byte = if select & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
                    out | u32::from(byte) << (8 * index)
                })
            }),
        ),
        // The last operand is a table with the result for each combination of three bits.
        ("lop3", []) => (4, map4(move |a, b, c, table| look_up(a, b, c, table) & mask)),
        ("shf", [direction, mode]) => {
            let left = *direction == "l";
            let wrap = *mode == "wrap";
            (
                3,
                map3(move |low: u32, high: u32, by: u32| {
                    let both = u64::from(low) | u64::from(high) << 32;
                    let by = if wrap { by & 31 } else { by.min(32) };
                    if left { ((both << by) >> 32) as u32 } else { (both >> by) as u32 }
                }),
            )
        }
        _ => return None,
    })
}

fn bit_field(kind: Type, value: u64, position: u32, length: u32) -> u64 {
    let bits = 8 * kind.bytes() as u32;
    let length = length.min(bits);
    if length == 0 {
        return 0;
    }
    let shifted = if position < bits { value >> position } else { 0 };
    let field = shifted & (u64::MAX >> (64 - length));
    let sign_at = (position + length - 1).min(bits - 1);
    if kind.is_signed() && value >> sign_at & 1 == 1 && length < bits {
        (field | u64::MAX << length) & (u64::MAX >> (64 - bits))
    } else {
        field
    }
}

/// Combines three numbers bit by bit with a table of the results.
fn look_up(a: u64, b: u64, c: u64, table: u64) -> u64 {
    let mut out = 0;
    for index in 0..8_u64 {
        if table >> index & 1 == 1 {
            let a = if index & 4 != 0 { a } else { !a };
            let b = if index & 2 != 0 { b } else { !b };
            let c = if index & 1 != 0 { c } else { !c };
            out |= a & b & c;
        }
    }
    out
}

pub(super) fn integer(name: &str, rest: &[&str], kind: Type) -> Option<(usize, Compute)> {
    let bits = 8 * kind.bytes() as u32;
    Some(match (name, rest) {
        ("add", []) => (2, for_integer!(kind, T => map2(|a: T, b: T| a.wrapping_add(b)))),
        ("sub", []) => (2, for_integer!(kind, T => map2(|a: T, b: T| a.wrapping_sub(b)))),
        ("mul", ["lo"]) => (2, for_integer!(kind, T => map2(|a: T, b: T| a.wrapping_mul(b)))),
        ("mul", ["hi"]) => (
            2,
            for_integer!(kind, T => map2(move |a: T, b: T| (i128::from(a).wrapping_mul(i128::from(b)) >> bits) as T)),
        ),
        ("mad", ["lo"]) => {
            (3, for_integer!(kind, T => map3(|a: T, b: T, c: T| a.wrapping_mul(b).wrapping_add(c))))
        }
        ("mad", ["hi"]) => (
            3,
            for_integer!(kind, T => map3(move |a: T, b: T, c: T| ((i128::from(a).wrapping_mul(i128::from(b)) >> bits) as T).wrapping_add(c))),
        ),
        // The result of a division by zero is unspecified; devices return all ones.
        ("div", []) => {
            (2, for_integer!(kind, T => map2(|a: T, b: T| if b == 0 { !0 } else { a.wrapping_div(b) })))
        }
        ("rem", []) => {
            (2, for_integer!(kind, T => map2(|a: T, b: T| if b == 0 { a } else { a.wrapping_rem(b) })))
        }
        ("min", []) => (2, for_integer!(kind, T => map2(|a: T, b: T| a.min(b)))),
        ("max", []) => (2, for_integer!(kind, T => map2(|a: T, b: T| a.max(b)))),
        ("neg", []) => (1, for_integer!(kind, T => map1(|a: T| (0 as T).wrapping_sub(a)))),
        ("abs", []) => (
            1,
            for_integer!(kind, T => map1(|a: T| if i128::from(a) < 0 { (0 as T).wrapping_sub(a) } else { a })),
        ),
        ("shr", []) => (
            2,
            for_integer!(kind, T => map2(move |a: T, by: u32| {
                if by < bits { a >> by } else if i128::from(a) < 0 { !0 } else { 0 }
            })),
        ),
        ("dp4a", []) => (3, map3(move |a: u32, b: u32, c: u32| dot_product(a, b, c, kind.is_signed()))),
        _ => return None,
    })
}

/// Adds the products of the four bytes of `a` and `b` to `sum`.
fn dot_product(a: u32, b: u32, sum: u32, is_signed: bool) -> u32 {
    let mut sum = sum as i32;
    for (a, b) in a.to_le_bytes().into_iter().zip(b.to_le_bytes()) {
        sum = sum.wrapping_add(if is_signed {
            i32::from(a as i8) * i32::from(b as i8)
        } else {
            i32::from(a) * i32::from(b)
        });
    }
    sum as u32
}

pub(super) fn multiply_wide(kind: Type, add: bool) -> Option<Operation> {
    macro_rules! wide {
        ($narrow:ty, $wide:ty, $result:expr) => {{
            let compute = if add {
                map3(|a: $narrow, b: $narrow, c: $wide| (<$wide>::from(a) * <$wide>::from(b)).wrapping_add(c))
            } else {
                map2(|a: $narrow, b: $narrow| <$wide>::from(a) * <$wide>::from(b))
            };
            Some(Operation { operands: if add { 3 } else { 2 }, result: $result, operand: kind, compute })
        }};
    }
    match kind {
        Type::U16 => wide!(u16, u32, Type::U32),
        Type::S16 => wide!(i16, i32, Type::S32),
        Type::U32 => wide!(u32, u64, Type::U64),
        Type::S32 => wide!(i32, i64, Type::S64),
        _ => None,
    }
}

/// A sum of up to four 32-bit numbers: the result in the low half and the carry above it.
pub(in crate::ptx) type Sum = Arc<dyn Fn(u64, u64, u64, u64) -> u64 + Send + Sync>;

/// Returns the number of operands of an instruction with carry, and its sum of these operands and the
/// incoming carry: `add.cc`, `addc`, `sub.cc`, `subc`, `mad.lo.cc`, `madc.hi` and so on.
pub(in crate::ptx) fn with_carry(parts: &[&str]) -> Option<(usize, Sum)> {
    let (name, modifiers) = parts.split_first()?;
    if modifiers.last() != Some(&"u32") {
        return None;
    }
    let carry = u64::from(name.ends_with('c'));
    let modifiers: Vec<&str> =
        modifiers.iter().copied().filter(|part| !["cc", "u32"].contains(part)).collect();
    Some(match (name.trim_end_matches('c'), modifiers.as_slice()) {
        ("add", []) => (2, Arc::new(move |a, b, _, flag| a + b + (flag & carry))),
        ("sub", []) => {
            (2, Arc::new(move |a, b, _, flag| a.wrapping_sub(b).wrapping_sub(flag & carry) & 0x1_ffff_ffff))
        }
        ("mad", ["lo"]) => (3, Arc::new(move |a, b, c, flag| ((a * b) & 0xffff_ffff) + c + (flag & carry))),
        ("mad", ["hi"]) => (3, Arc::new(move |a, b, c, flag| ((a * b) >> 32) + c + (flag & carry))),
        _ => return None,
    })
}

/// Returns one half of a sum with carry: the result or, if `high`, the carry.
pub(in crate::ptx) fn carry_half(sum: Sum, high: bool) -> Compute {
    map4(move |a, b, c, flag| {
        let sum = sum(a, b, c, flag);
        if high { sum >> 32 & 1 } else { sum & 0xffff_ffff }
    })
}
