//! Comparisons and conversions.

use std::cmp::Ordering;

use half::{bf16, f16};

use super::lanes::{Operation, for_float, for_integer, map1, map2};
use crate::ptx::types::{Real, Type, Value};

pub(super) fn compare(name: &str, types: &[Type], rest: &[&str]) -> Option<Operation> {
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
            let a = a.wide();
            let b = b.wide();
            choose(test(a, b) || unordered && (a.is_nan() || b.is_nan()), truth)
        }))
    } else {
        for_integer!(operand, T => match base {
            "eq" => map2(move |a: T, b: T| choose(a == b, truth)),
            "ne" => map2(move |a: T, b: T| choose(a != b, truth)),
            "lt" => map2(move |a: T, b: T| choose(a < b, truth)),
            "le" => map2(move |a: T, b: T| choose(a <= b, truth)),
            "gt" => map2(move |a: T, b: T| choose(a > b, truth)),
            "ge" => map2(move |a: T, b: T| choose(a >= b, truth)),
            _ => return None,
        })
    };
    Some(Operation { operands: 2, result, operand, compute })
}

fn choose(holds: bool, truth: u64) -> u64 {
    if holds { truth } else { 0 }
}

/// Returns the rounding function of a conversion to an integer or to a narrower floating-point type.
fn rounding(mode: &str) -> Option<fn(f64) -> f64> {
    Some(match mode {
        "rni" => f64::round_ties_even,
        "rzi" => f64::trunc,
        "rmi" => f64::floor,
        "rpi" => f64::ceil,
        _ => return None,
    })
}

pub(super) fn convert(types: &[Type], rest: &[&str]) -> Option<Operation> {
    let &[result, operand] = types else { return None };
    let saturate = rest.contains(&"sat");
    let modes: Vec<&str> = rest.iter().copied().filter(|part| *part != "sat").collect();
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
            for_float!(operand, A => for_float!(result, R => map1(move |a: A| {
                R::narrow(clamped(a.wide(), saturate))
            })))
        }
        (true, true, [mode]) if result == operand => {
            let round = rounding(mode)?;
            for_float!(operand, A => map1(move |a: A| A::narrow(clamped(round(a.wide()), saturate))))
        }
        _ => return None,
    };
    Some(Operation { operands: 1, result, operand, compute })
}

fn clamped(value: f64, saturate: bool) -> f64 {
    if !saturate {
        value
    } else if value.is_nan() {
        0.0
    } else {
        value.clamp(0.0, 1.0)
    }
}
