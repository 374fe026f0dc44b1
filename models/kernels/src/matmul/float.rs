//! Element types of floating-point weights, keys and values, and their conversion to f32.

use bytemuck::Pod;
use float8::F8E4M3;
use half::{bf16, f16};

pub trait Float: Pod + Send + Sync {
    /// Space per value in the scratch memory of [`Self::widen`].
    const SCRATCH: usize = 1;

    fn to_f32(self) -> f32;

    /// Returns the values as f32: the originals, or copies converted into `scratch`.
    #[inline(always)]
    fn widen<'a>(values: &'a [Self], scratch: &'a mut [f32]) -> &'a [f32] {
        let scratch = &mut scratch[..values.len()];
        scratch.iter_mut().zip(values).for_each(|(wide, value)| *wide = value.to_f32());
        scratch
    }
}

impl Float for f32 {
    const SCRATCH: usize = 0;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn widen<'a>(values: &'a [Self], _: &'a mut [f32]) -> &'a [f32] {
        values
    }
}

impl Float for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

impl Float for F8E4M3 {
    /// Has no branches, so that the compiler converts several values together.
    #[inline(always)]
    fn to_f32(self) -> f32 {
        let magnitude = u32::from(self.to_bits() & 0x7f);
        let size = match magnitude {
            // Multiples of 2^-9.
            0..8 => magnitude as f32 / 512.0,
            0x7f => f32::NAN,
            // Exponent and mantissa at their places in an f32, with its bias.
            _ => f32::from_bits((magnitude << 20) + (120 << 23)),
        };
        f32::from_bits(size.to_bits() | u32::from(self.to_bits() & 0x80) << 24)
    }
}

impl Float for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    #[inline(always)]
    fn widen<'a>(values: &'a [Self], scratch: &'a mut [f32]) -> &'a [f32] {
        use half::slice::HalfFloatSliceExt;
        let scratch = &mut scratch[..values.len()];
        values.convert_to_f32_slice(scratch);
        scratch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fp8_number_has_the_value_of_its_exponent_and_mantissa() {
        for code in 0..=u8::MAX {
            let number = F8E4M3::from_bits(code).to_f32();
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
            let size = match (exponent, code & 7) {
                (15, 7) => f32::NAN,
                (0, _) => mantissa / 512.0,
                _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
            };
            assert_eq!(number.is_sign_negative(), code > 0x7f, "{code}");
            assert_eq!(number.abs().to_bits(), size.to_bits(), "{code} is {number}");
        }
    }
}
