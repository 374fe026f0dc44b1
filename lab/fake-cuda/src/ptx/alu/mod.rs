//! Instructions without side effects: from lanes of the operands to lanes of the result.
//!
//! Each is decoded once into a function over all lanes of a warp. Approximate instructions (`ex2.approx`)
//! compute the exact value and round it; a device may round differently.

mod convert;
mod float;
mod integer;
mod lanes;

use half::{bf16, f16};

pub(super) use integer::{carry_half, with_carry};
pub(super) use lanes::{Compute, LANES, Lanes, Operands, Register, extend_sign, offset, pack, unpack};

use super::types::{Real, Type, Value};
use lanes::{Operation, for_float, for_integer, map1, map2, map3};

/// Returns the operation of an instruction, whose name is split at the dots; `None` if it is unknown.
pub(super) fn operation(parts: &[&str]) -> Option<Operation> {
    let (name, modifiers) = parts.split_first()?;
    let types: Vec<Type> = modifiers.iter().filter_map(|part| Type::parse(part)).collect();
    let rest: Vec<&str> = modifiers.iter().copied().filter(|part| Type::parse(part).is_none()).collect();
    if let Some(half) = modifiers.iter().find_map(|part| packed_type(part)) {
        return packed(name, half, &types, &rest);
    }
    match *name {
        "cvt" => return convert::convert(&types, &rest),
        "setp" | "set" => return convert::compare(name, &types, &rest),
        _ => {}
    }
    let &kind = types.first()?;
    if types.len() > 1 && *name != "dp4a" {
        return None;
    }
    match (*name, rest.as_slice()) {
        ("mov" | "cvta", []) => simple(kind, 1, map1(|a: u64| a)),
        ("selp", []) => Some(Operation {
            operands: 3,
            result: kind,
            operand: kind,
            compute: map3(|a: u64, b: u64, p: bool| if p { a } else { b }),
        }),
        ("mul", ["wide"]) => integer::multiply_wide(kind, false),
        ("mad", ["wide"]) => integer::multiply_wide(kind, true),
        ("copysign", []) => {
            let compute = for_float!(kind, T => map2(|a: T, b: T| T::narrow(b.wide().copysign(a.wide()))));
            simple(kind, 2, compute)
        }
        _ => {
            let (operands, compute) = if kind == Type::Pred || integer::is_bitwise(name) {
                integer::bitwise(name, &rest, kind)?
            } else if kind.is_float() {
                float::float(name, &rest, kind)?
            } else {
                integer::integer(name, &rest, kind)?
            };
            simple(kind, operands, compute)
        }
    }
}

/// An operation whose result has the type of its operands.
fn simple(kind: Type, operands: usize, compute: Compute) -> Option<Operation> {
    Some(Operation { operands, result: kind, operand: kind, compute })
}

/// Returns the type of the halves of a packed type.
fn packed_type(name: &str) -> Option<Type> {
    match name {
        "f16x2" => Some(Type::F16),
        "bf16x2" => Some(Type::Bf16),
        _ => None,
    }
}

/// An instruction on two 16-bit numbers in one register, or the conversion of two f32 to one such register.
fn packed(name: &str, half: Type, types: &[Type], rest: &[&str]) -> Option<Operation> {
    let rest: Vec<&str> = rest.iter().copied().filter(|part| packed_type(part).is_none()).collect();
    let (operands, operand, compute) = match (name, types, rest.as_slice()) {
        ("cvt", [Type::F32], ["rn"]) => {
            let compute = map2(move |high: f32, low: f32| narrow(high, half) << 16 | narrow(low, half));
            (2, Type::F32, compute)
        }
        (_, [], rest) => {
            let (operands, compute) = float::float(name, rest, half)?;
            (operands, Type::U32, lanes::in_halves(operands, compute))
        }
        _ => return None,
    };
    Some(Operation { operands, result: Type::U32, operand, compute })
}

fn narrow(value: f32, half: Type) -> u64 {
    match half {
        Type::F16 => f16::from_f32(value).to_bits64(),
        _ => bf16::from_f32(value).to_bits64(),
    }
}

/// Computes the new value in memory of an atomic instruction from the old value and its operands.
pub(super) type Update = Box<dyn Fn(u64, u64, u64) -> u64 + Send + Sync>;

/// Returns the update of an atomic instruction; `None` if it is unknown.
pub(super) fn update(name: &str, kind: Type) -> Option<Update> {
    macro_rules! with {
        ($t:ident, $f:expr) => {{
            let f = $f;
            Box::new(move |old: u64, value: u64, _: u64| {
                f($t::from_bits64(old), $t::from_bits64(value)).to_bits64()
            }) as Update
        }};
    }
    Some(match name {
        "exch" => Box::new(|_, value, _| value),
        "cas" => Box::new(|old, compared, value| if old == compared { value } else { old }),
        "and" => Box::new(|old, value, _| old & value),
        "or" => Box::new(|old, value, _| old | value),
        "xor" => Box::new(|old, value, _| old ^ value),
        "add" if kind.is_float() => {
            for_float!(kind, T => with!(T, |a: T, b: T| T::narrow(a.wide() + b.wide())))
        }
        "add" => for_integer!(kind, T => with!(T, |a: T, b: T| a.wrapping_add(b))),
        "min" => for_integer!(kind, T => with!(T, |a: T, b: T| a.min(b))),
        "max" => for_integer!(kind, T => with!(T, |a: T, b: T| a.max(b))),
        _ => return None,
    })
}
