//! PTX types, and the representation of their values in a 64-bit register.

use half::{bf16, f16};

/// A PTX type. Untyped bits (`.b32`) count as unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Pred,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    Bf16,
    F32,
    F64,
}

impl Type {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "u8" | "b8" => Self::U8,
            "u16" | "b16" => Self::U16,
            "u32" | "b32" => Self::U32,
            "u64" | "b64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Pred | Self::U8 | Self::S8 => 1,
            Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::S32 | Self::F32 => 4,
            Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }

    pub(super) fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub(super) fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }
}

/// Parses a number in PTX syntax: `-8`, `0x9400U`, `0f3F800000`, `0d3FF0000000000000`.
pub(super) fn literal(word: &str) -> Option<u64> {
    let lower = word.to_ascii_lowercase();
    let (negative, digits) = match lower.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, lower.as_str()),
    };
    let value = if let Some(hex) = digits.strip_prefix("0f").or_else(|| digits.strip_prefix("0d")) {
        u64::from_str_radix(hex, 16).ok()?
    } else if let Some(hex) = digits.strip_prefix("0x") {
        u64::from_str_radix(hex.trim_end_matches('u'), 16).ok()?
    } else {
        digits.trim_end_matches('u').parse().ok()?
    };
    Some(if negative { value.wrapping_neg() } else { value })
}

/// A value in a register: in the low bits; the others are zero.
pub(super) trait Value: Copy + Send + Sync + 'static {
    fn from_bits64(bits: u64) -> Self;
    fn to_bits64(self) -> u64;
}

macro_rules! integers {
    ($($type:ty: $unsigned:ty),*) => {$(
        impl Value for $type {
            fn from_bits64(bits: u64) -> Self {
                bits as Self
            }
            fn to_bits64(self) -> u64 {
                u64::from(self as $unsigned)
            }
        }
    )*};
}
integers!(u8: u8, u16: u16, u32: u32, u64: u64, i8: u8, i16: u16, i32: u32, i64: u64);

macro_rules! floats {
    ($($type:ty: $unsigned:ty),*) => {$(
        impl Value for $type {
            fn from_bits64(bits: u64) -> Self {
                Self::from_bits(bits as $unsigned)
            }
            fn to_bits64(self) -> u64 {
                u64::from(self.to_bits())
            }
        }
    )*};
}
floats!(f16: u16, bf16: u16, f32: u32, f64: u64);

impl Value for bool {
    fn from_bits64(bits: u64) -> Self {
        bits & 1 != 0
    }
    fn to_bits64(self) -> u64 {
        u64::from(self)
    }
}

/// Floating point. Sums, products, quotients and roots of the 16-bit and 32-bit types are computed in f64 and
/// rounded once more. This gives the correctly rounded result, because f64 has more than twice as many
/// digits.
pub(super) trait Real: Value {
    fn wide(self) -> f64;
    fn narrow(value: f64) -> Self;
    fn fused(self, factor: Self, term: Self) -> Self {
        Self::narrow(self.wide().mul_add(factor.wide(), term.wide()))
    }
}

impl Real for f16 {
    fn wide(self) -> f64 {
        self.to_f64()
    }
    fn narrow(value: f64) -> Self {
        Self::from_f64(value)
    }
}

impl Real for bf16 {
    fn wide(self) -> f64 {
        self.to_f64()
    }
    fn narrow(value: f64) -> Self {
        Self::from_f64(value)
    }
}

impl Real for f32 {
    fn wide(self) -> f64 {
        f64::from(self)
    }
    fn narrow(value: f64) -> Self {
        value as Self
    }
    fn fused(self, factor: Self, term: Self) -> Self {
        self.mul_add(factor, term)
    }
}

impl Real for f64 {
    fn wide(self) -> f64 {
        self
    }
    fn narrow(value: f64) -> Self {
        value
    }
}
