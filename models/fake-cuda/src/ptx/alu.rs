//! Instructions without side effects: from lanes of the operands to lanes of the result.
//!
//! Each is decoded once into a function over all lanes of a warp. Approximate instructions (`ex2.approx`) compute the exact value
//! and round it; a device may differ in the last bits.

use std::cmp::Ordering;
use std::sync::Arc;

use half::{bf16, f16};

use super::types::{Real, Type, Value};

/// Threads of a warp.
pub(super) const LANES: usize = 32;
/// One register of all threads of a warp.
pub(super) type Lanes = [u64; LANES];
/// The number of a register.
pub(super) type Register = u32;
/// What an instruction reads, of which it uses as many as it needs.
pub(super) type Operands = [Register; 4];
/// Computes a register of a warp from others.
pub(super) type Compute = Box<dyn Fn(&[Lanes], &Operands) -> Lanes + Send + Sync>;

/// A decoded instruction: how many operands it takes, and the type of its result and of its operands.
pub(super) struct Operation {
    pub(super) operands: usize,
    pub(super) result: Type,
    pub(super) operand: Type,
    pub(super) compute: Compute,
}

fn map1<A: Value, R: Value>(f: impl Fn(A) -> R + Send + Sync + 'static) -> Compute {
    Box::new(move |registers, operands| {
        let a = &registers[operands[0] as usize];
        std::array::from_fn(|lane| f(A::from_bits64(a[lane])).to_bits64())
    })
}

fn map2<A: Value, B: Value, R: Value>(f: impl Fn(A, B) -> R + Send + Sync + 'static) -> Compute {
    Box::new(move |registers, operands| {
        let [a, b, ..] = operands.map(|register| &registers[register as usize]);
        std::array::from_fn(|lane| f(A::from_bits64(a[lane]), B::from_bits64(b[lane])).to_bits64())
    })
}

fn map3<A: Value, B: Value, C: Value, R: Value>(f: impl Fn(A, B, C) -> R + Send + Sync + 'static) -> Compute {
    Box::new(move |registers, operands| {
        let [a, b, c, _] = operands.map(|register| &registers[register as usize]);
        std::array::from_fn(|lane| {
            f(A::from_bits64(a[lane]), B::from_bits64(b[lane]), C::from_bits64(c[lane])).to_bits64()
        })
    })
}

fn map4<R: Value>(f: impl Fn(u64, u64, u64, u64) -> R + Send + Sync + 'static) -> Compute {
    Box::new(move |registers, operands| {
        let [a, b, c, d] = operands.map(|register| &registers[register as usize]);
        std::array::from_fn(|lane| f(a[lane], b[lane], c[lane], d[lane]).to_bits64())
    })
}

/// Evaluates an expression with `$t` as the integer type.
macro_rules! for_integer {
    ($type:expr, $t:ident => $body:expr) => {
        match $type {
            Type::U8 => {
                type $t = u8;
                $body
            }
            Type::U16 => {
                type $t = u16;
                $body
            }
            Type::U32 => {
                type $t = u32;
                $body
            }
            Type::U64 => {
                type $t = u64;
                $body
            }
            Type::S8 => {
                type $t = i8;
                $body
            }
            Type::S16 => {
                type $t = i16;
                $body
            }
            Type::S32 => {
                type $t = i32;
                $body
            }
            Type::S64 => {
                type $t = i64;
                $body
            }
            _ => return None,
        }
    };
}

/// Evaluates an expression with `$t` as the floating point type.
macro_rules! for_float {
    ($type:expr, $t:ident => $body:expr) => {
        match $type {
            Type::F16 => {
                type $t = f16;
                $body
            }
            Type::Bf16 => {
                type $t = bf16;
                $body
            }
            Type::F32 => {
                type $t = f32;
                $body
            }
            Type::F64 => {
                type $t = f64;
                $body
            }
            _ => return None,
        }
    };
}

/// The operation of an instruction, its name split at the dots; `None` if it is not known.
pub(super) fn operation(parts: &[&str]) -> Option<Operation> {
    let (name, modifiers) = parts.split_first()?;
    let types: Vec<Type> = modifiers.iter().filter_map(|part| Type::parse(part)).collect();
    let rest: Vec<&str> = modifiers.iter().copied().filter(|part| Type::parse(part).is_none()).collect();
    let simple = |operands, compute| {
        let result = types[0];
        Some(Operation { operands, result, operand: result, compute })
    };
    match *name {
        "cvt" => return convert(&types, &rest),
        "setp" | "set" => return compare(name, &types, &rest),
        _ => {}
    }
    let &kind = types.first()?;
    if types.len() > 1 && *name != "dp4a" {
        return None;
    }
    match (*name, rest.as_slice()) {
        ("mov" | "cvta", []) => simple(1, map1(|a: u64| a)),
        ("selp", []) => Some(Operation {
            operands: 3,
            result: kind,
            operand: kind,
            compute: map3(|a: u64, b: u64, p: bool| if p { a } else { b }),
        }),
        ("mul", ["wide"]) => multiply_wide(kind, false),
        ("mad", ["wide"]) => multiply_wide(kind, true),
        ("copysign", []) => {
            simple(2, for_float!(kind, T => map2(|a: T, b: T| T::narrow(b.wide().copysign(a.wide())))))
        }
        _ => {
            let (operands, compute) = if kind == Type::Pred || is_bitwise(name) {
                bitwise(name, &rest, kind)?
            } else if kind.is_float() {
                float(name, &rest, kind)?
            } else {
                integer(name, &rest, kind)?
            };
            simple(operands, compute)
        }
    }
}

fn is_bitwise(name: &str) -> bool {
    ["and", "or", "xor", "not", "shl", "bfi", "bfe", "clz", "popc", "brev", "prmt", "lop3", "shf"]
        .contains(&name)
}

fn bitwise(name: &str, rest: &[&str], kind: Type) -> Option<(usize, Compute)> {
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
                let (position, length) = (position as u32 & 0xff, length as u32 & 0xff);
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
        ("lop3", []) => return None,
        ("shf", [direction, mode]) => {
            let (left, wrap) = (*direction == "l", *mode == "wrap");
            let amount = move |by: u32| if wrap { by & 31 } else { by.min(32) };
            (
                3,
                map3(move |low: u32, high: u32, by: u32| {
                    let both = u64::from(low) | u64::from(high) << 32;
                    let by = amount(by);
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

fn integer(name: &str, rest: &[&str], kind: Type) -> Option<(usize, Compute)> {
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
        // What a division by zero gives is not specified; devices give all ones.
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
        ("dp4a", []) => (
            3,
            map3(move |a: u32, b: u32, c: u32| {
                let byte = |word: u32, index: u32| {
                    let byte = (word >> (8 * index)) as u8;
                    if kind.is_signed() { i32::from(byte as i8) } else { i32::from(byte) }
                };
                (0..4).fold(c as i32, |sum, index| sum.wrapping_add(byte(a, index) * byte(b, index))) as u32
            }),
        ),
        _ => return None,
    })
}

fn multiply_wide(kind: Type, add: bool) -> Option<Operation> {
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

fn float(name: &str, rest: &[&str], kind: Type) -> Option<(usize, Compute)> {
    let approximate = match rest {
        ["approx"] => Some(false),
        ["approx", "ftz"] => Some(true),
        _ => None,
    };
    if let Some(flush) = approximate {
        return approximation(name, kind, flush);
    }
    Some(match (name, rest) {
        ("add", [] | ["rn"]) => (2, for_float!(kind, T => map2(|a: T, b: T| T::narrow(a.wide() + b.wide())))),
        ("sub", [] | ["rn"]) => (2, for_float!(kind, T => map2(|a: T, b: T| T::narrow(a.wide() - b.wide())))),
        ("mul", [] | ["rn"]) => (2, for_float!(kind, T => map2(|a: T, b: T| T::narrow(a.wide() * b.wide())))),
        ("div", ["rn"]) => (2, for_float!(kind, T => map2(|a: T, b: T| T::narrow(a.wide() / b.wide())))),
        ("rcp", ["rn"]) => (1, for_float!(kind, T => map1(|a: T| T::narrow(1.0 / a.wide())))),
        ("sqrt", ["rn"]) => (1, for_float!(kind, T => map1(|a: T| T::narrow(a.wide().sqrt())))),
        ("fma", ["rn"]) => (3, for_float!(kind, T => map3(|a: T, b: T, c: T| a.fused(b, c)))),
        ("fma", ["rm"]) if kind == Type::F32 => {
            (3, map3(|a: f32, b: f32, c: f32| round_down(f64::from(a) * f64::from(b) + f64::from(c))))
        }
        ("add", ["rz"]) if kind == Type::F32 => {
            (2, map2(|a: f32, b: f32| round_to_zero(f64::from(a) + f64::from(b))))
        }
        ("add", ["rz"]) if kind == Type::F64 => (2, map2(add_to_zero)),
        // A sign is a bit, also of NaN.
        ("neg", []) => (1, flip_sign(kind)),
        ("abs", []) => (1, clear_sign(kind)),
        ("min", []) => (2, for_float!(kind, T => map2(|a: T, b: T| T::narrow(a.wide().min(b.wide()))))),
        ("max", []) => (2, for_float!(kind, T => map2(|a: T, b: T| T::narrow(a.wide().max(b.wide()))))),
        ("min", ["NaN"]) => {
            (2, for_float!(kind, T => map2(|a: T, b: T| T::narrow(unless_nan(a.wide(), b.wide(), f64::min)))))
        }
        ("max", ["NaN"]) => {
            (2, for_float!(kind, T => map2(|a: T, b: T| T::narrow(unless_nan(a.wide(), b.wide(), f64::max)))))
        }
        _ => return None,
    })
}

fn unless_nan(a: f64, b: f64, f: impl Fn(f64, f64) -> f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { f(a, b) }
}

fn flip_sign(kind: Type) -> Compute {
    let sign = 1u64 << (8 * kind.bytes() - 1);
    map1(move |a: u64| a ^ sign)
}

fn clear_sign(kind: Type) -> Compute {
    let sign = 1u64 << (8 * kind.bytes() - 1);
    map1(move |a: u64| a & !sign)
}

fn approximation(name: &str, kind: Type, flush: bool) -> Option<(usize, Compute)> {
    let fix = move |value: f64| {
        let subnormal = value.abs() < f64::from(f32::MIN_POSITIVE) && kind == Type::F32;
        if flush && subnormal { 0f64.copysign(value) } else { value }
    };
    if name == "div" {
        return (kind == Type::F32)
            .then(|| (2, map2(move |a: f32, b: f32| fix(fix(f64::from(a)) / fix(f64::from(b))) as f32)));
    }
    let exact: fn(f64) -> f64 = match name {
        "ex2" => f64::exp2,
        "lg2" => f64::log2,
        "rcp" => |a| 1.0 / a,
        "sqrt" => f64::sqrt,
        "rsqrt" => |a| 1.0 / a.sqrt(),
        "sin" => f64::sin,
        "cos" => f64::cos,
        "tanh" => f64::tanh,
        _ => return None,
    };
    Some((1, for_float!(kind, T => map1(move |a: T| T::narrow(fix(exact(fix(a.wide()))))))))
}

/// The next smaller f32, unless the value is one.
fn round_down(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near) > value { near.next_down() } else { near }
}

fn round_to_zero(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near).abs() <= value.abs() || near.is_nan() {
        near
    } else if near > 0.0 {
        near.next_down()
    } else {
        near.next_up()
    }
}

/// The sum, rounded to zero: the rounding error of the nearest sum says on which side of it the exact one lies.
fn add_to_zero(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let part = sum - a;
    let error = (a - (sum - part)) + (b - part);
    if sum > 0.0 && error < 0.0 {
        sum.next_down()
    } else if sum < 0.0 && error > 0.0 {
        sum.next_up()
    } else {
        sum
    }
}

fn compare(name: &str, types: &[Type], rest: &[&str]) -> Option<Operation> {
    let (result, operand) = match (name, types) {
        ("setp", [operand]) => (Type::Pred, *operand),
        ("set", [result, operand]) => (*result, *operand),
        _ => return None,
    };
    let [how] = rest else { return None };
    let (base, unordered) = match *how {
        "equ" => ("eq", true),
        "neu" => ("ne", true),
        "ltu" => ("lt", true),
        "leu" => ("le", true),
        "gtu" => ("gt", true),
        "geu" => ("ge", true),
        "lo" => ("lt", false),
        "ls" => ("le", false),
        "hi" => ("gt", false),
        "hs" => ("ge", false),
        other => (other, false),
    };
    let truth = match result {
        Type::Pred => 1,
        Type::F16 => f16::ONE.to_bits64(),
        Type::Bf16 => bf16::ONE.to_bits64(),
        Type::F32 => 1f32.to_bits64(),
        Type::U32 | Type::S32 => u64::from(u32::MAX),
        _ => return None,
    };
    let pick = move |holds: bool| if holds { truth } else { 0 };
    let compute = if operand.is_float() {
        let test: fn(f64, f64) -> bool = match base {
            "eq" => |a, b| a.partial_cmp(&b) == Some(Ordering::Equal),
            "ne" => |a, b| a.partial_cmp(&b).is_some_and(Ordering::is_ne),
            "lt" => |a, b| a < b,
            "le" => |a, b| a <= b,
            "gt" => |a, b| a > b,
            "ge" => |a, b| a >= b,
            "num" => |a, b| !a.is_nan() && !b.is_nan(),
            "nan" => |a, b| a.is_nan() || b.is_nan(),
            _ => return None,
        };
        for_float!(operand, T => map2(move |a: T, b: T| {
            let (a, b) = (a.wide(), b.wide());
            pick(test(a, b) || unordered && (a.is_nan() || b.is_nan()))
        }))
    } else {
        for_integer!(operand, T => match base {
            "eq" => map2(move |a: T, b: T| pick(a == b)),
            "ne" => map2(move |a: T, b: T| pick(a != b)),
            "lt" => map2(move |a: T, b: T| pick(a < b)),
            "le" => map2(move |a: T, b: T| pick(a <= b)),
            "gt" => map2(move |a: T, b: T| pick(a > b)),
            "ge" => map2(move |a: T, b: T| pick(a >= b)),
            _ => return None,
        })
    };
    Some(Operation { operands: 2, result, operand, compute })
}

/// How a conversion rounds to an integer, or to a narrower floating point type.
fn rounding(mode: &str) -> Option<fn(f64) -> f64> {
    Some(match mode {
        "rni" => f64::round_ties_even,
        "rzi" => f64::trunc,
        "rmi" => f64::floor,
        "rpi" => f64::ceil,
        _ => return None,
    })
}

fn convert(types: &[Type], rest: &[&str]) -> Option<Operation> {
    let &[result, operand] = types else { return None };
    let saturate = rest.contains(&"sat");
    let modes: Vec<&str> = rest.iter().copied().filter(|part| *part != "sat").collect();
    let clamp = move |value: f64| {
        if !saturate {
            value
        } else if value.is_nan() {
            0.0
        } else {
            value.clamp(0.0, 1.0)
        }
    };
    let compute = match (result.is_float(), operand.is_float(), modes.as_slice()) {
        (false, false, []) if !saturate => {
            for_integer!(operand, A => for_integer!(result, R => map1(|a: A| a as R)))
        }
        (false, true, [mode]) => {
            let round = rounding(mode)?;
            for_float!(operand, A => for_integer!(result, R => map1(move |a: A| round(a.wide()) as R)))
        }
        (true, false, ["rn"]) if !saturate => match result {
            Type::F32 => for_integer!(operand, A => map1(|a: A| a as f32)),
            _ => for_integer!(operand, A => for_float!(result, R => map1(|a: A| R::narrow(a as f64)))),
        },
        (true, true, [] | ["rn"]) => {
            for_float!(operand, A => for_float!(result, R => map1(move |a: A| R::narrow(clamp(a.wide())))))
        }
        (true, true, [mode]) if result == operand => {
            let round = rounding(mode)?;
            for_float!(operand, A => map1(move |a: A| A::narrow(clamp(round(a.wide())))))
        }
        _ => return None,
    };
    Some(Operation { operands: 1, result, operand, compute })
}

/// A sum of up to four numbers of 32 bits: the result in the low half and the carry above it.
pub(super) type Sum = Arc<dyn Fn(u64, u64, u64, u64) -> u64 + Send + Sync>;

/// How many operands an instruction with a carry has, and its sum of these and the carry that it finds: `add.cc`, `addc`, `sub.cc`,
/// `subc`, `mad.lo.cc`, `madc.hi` and so on.
pub(super) fn with_carry(parts: &[&str]) -> Option<(usize, Sum)> {
    let (name, modifiers) = parts.split_first()?;
    if modifiers.last() != Some(&"u32") {
        return None;
    }
    let carries_in = name.ends_with('c');
    let carry = move |flag: u64| if carries_in { flag & 1 } else { 0 };
    let modifiers: Vec<&str> =
        modifiers.iter().copied().filter(|part| !["cc", "u32"].contains(part)).collect();
    Some(match (name.trim_end_matches('c'), modifiers.as_slice()) {
        ("add", []) => (2, Arc::new(move |a, b, _, flag| a + b + carry(flag))),
        ("sub", []) => {
            (2, Arc::new(move |a, b, _, flag| a.wrapping_sub(b).wrapping_sub(carry(flag)) & 0x1_ffff_ffff))
        }
        ("mad", ["lo"]) => (3, Arc::new(move |a, b, c, flag| ((a * b) & 0xffff_ffff) + c + carry(flag))),
        ("mad", ["hi"]) => (3, Arc::new(move |a, b, c, flag| ((a * b) >> 32) + c + carry(flag))),
        _ => return None,
    })
}

/// One half of a sum with a carry: the result or, if `high`, the carry.
pub(super) fn carry_half(sum: Sum, high: bool) -> Compute {
    map4(move |a, b, c, flag| {
        let sum = sum(a, b, c, flag);
        if high { sum >> 32 & 1 } else { sum & 0xffff_ffff }
    })
}

/// `bits` bits of a register from `at` on.
pub(super) fn unpack(at: u32, bits: u32) -> Compute {
    map1(move |a: u64| a >> at & (u64::MAX >> (64 - bits)))
}

/// A register with another one's value above its low `at` bits.
pub(super) fn pack(at: u32) -> Compute {
    map2(move |low: u64, high: u64| low | high << at)
}

/// Adds a constant: for addresses of windows of the generic space.
pub(super) fn offset(by: u64) -> Compute {
    map1(move |a: u64| a.wrapping_add(by))
}

/// The low bytes of a signed type, with its sign in all bits up to `bytes`.
pub(super) fn extend_sign(from: Type, bytes: usize) -> Compute {
    let (from, to) = (64 - 8 * from.bytes() as u32, 64 - 8 * bytes as u32);
    map1(move |a: u64| ((a << from) as i64 >> from) as u64 & (u64::MAX >> to))
}

/// What an atomic instruction leaves in memory, of what it finds and its operands.
pub(super) type Update = Box<dyn Fn(u64, u64, u64) -> u64 + Send + Sync>;

/// The update of an atomic instruction; `None` if it is not known.
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
