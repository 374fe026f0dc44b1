//! Floating point.

use half::{bf16, f16};

use super::lanes::{Compute, for_float, map1, map2, map3};
use crate::ptx::types::{Real, Type};

pub(super) fn float(name: &str, rest: &[&str], kind: Type) -> Option<(usize, Compute)> {
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
        // The sign is a single bit, even for NaN.
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
    let flush = flush && kind == Type::F32;
    if name == "div" {
        if kind != Type::F32 {
            return None;
        }
        let divide = map2(move |a: f32, b: f32| {
            flushed(flushed(a.into(), flush) / flushed(b.into(), flush), flush) as f32
        });
        return Some((2, divide));
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
    let compute = for_float!(kind, T => map1(move |a: T| {
        T::narrow(flushed(exact(flushed(a.wide(), flush)), flush))
    }));
    Some((1, compute))
}

/// Returns 0 in place of a subnormal f32, if `flush`.
fn flushed(value: f64, flush: bool) -> f64 {
    let is_subnormal = value.abs() < f64::from(f32::MIN_POSITIVE);
    if flush && is_subnormal { 0f64.copysign(value) } else { value }
}

/// Returns the greatest f32 that does not exceed the value.
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

/// Returns the sum rounded towards zero. The rounding error of the nearest sum shows on which side of it the
/// exact sum lies.
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
