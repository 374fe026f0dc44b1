//! Element types of floating-point weights, keys and values, and their conversion to f32.

use bytemuck::Pod;
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
