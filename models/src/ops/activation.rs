//! Activations of feed-forward layers.

use candle_core::{Result, Tensor};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::cpu;

/// Numbers that one task works on.
const CHUNK: usize = 1 << 14;

/// Activation of the feed-forward layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Rectified linear unit.
    Relu,
    /// GELU by the error function, as `gelu` in Hugging Face.
    Gelu,
    /// GELU in its tanh approximation, as `gelu_new` in Hugging Face.
    GeluNew,
    /// x times its logistic.
    Silu,
}

impl Activation {
    /// The activation that Hugging Face calls so; `None` for those that no model here has.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "relu" => Some(Self::Relu),
            "gelu" => Some(Self::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Some(Self::GeluNew),
            "silu" | "swish" => Some(Self::Silu),
            _ => None,
        }
    }

    /// Element by element.
    pub(crate) fn apply(self, x: &Tensor) -> Result<Tensor> {
        if self == Self::Gelu || !cpu::is_plain(x) {
            return self.reference(x);
        }
        self.in_loops(x, None)
    }

    /// The activation of `x`, times `factor`, element by element; both of one shape.
    pub(crate) fn gate(self, x: &Tensor, factor: &Tensor) -> Result<Tensor> {
        if self == Self::Gelu || !cpu::is_plain(x) || !cpu::is_plain(factor) {
            return self.reference(x)? * factor;
        }
        self.in_loops(x, Some(factor))
    }

    fn reference(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Relu => x.relu(),
            Self::Gelu => x.gelu_erf(),
            Self::GeluNew => x.gelu(),
            Self::Silu => x.silu(),
        }
    }

    fn in_loops(self, x: &Tensor, factor: Option<&Tensor>) -> Result<Tensor> {
        let (storage, layout) = x.storage_and_layout();
        let mut values = cpu::slice(&storage, layout)?.to_vec();
        let arch = Arch::new();
        match factor {
            None => {
                let one = |values: &mut [f32]| arch.dispatch(Loop { activation: self, values, factors: &[] });
                if values.len() <= CHUNK {
                    one(&mut values)
                } else {
                    values.par_chunks_mut(CHUNK).for_each(one)
                }
            }
            Some(factor) => {
                let (storage, layout) = factor.storage_and_layout();
                let factors = cpu::slice(&storage, layout)?;
                let one = |(values, factors): (&mut [f32], &[f32])| {
                    arch.dispatch(Loop { activation: self, values, factors });
                };
                if values.len() <= CHUNK {
                    one((&mut values, factors));
                } else {
                    values.par_chunks_mut(CHUNK).zip(factors.par_chunks(CHUNK)).for_each(one);
                }
            }
        }
        Tensor::from_vec(values, x.shape(), x.device())
    }
}

/// Turns some numbers into their activations, times the factors if there are any.
struct Loop<'a> {
    activation: Activation,
    values: &'a mut [f32],
    factors: &'a [f32],
}

impl WithSimd for Loop<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        match self.activation {
            Activation::Relu => self.values.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x }),
            Activation::Silu => self.values.iter_mut().for_each(|x| *x = silu(*x)),
            Activation::Gelu | Activation::GeluNew => self.values.iter_mut().for_each(|x| *x = gelu_new(*x)),
        }
        self.values.iter_mut().zip(self.factors).for_each(|(x, factor)| *x *= factor);
    }
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x / (1.0 + cpu::exp(-x))
}

/// `x (1 + tanh(z)) / 2` with `z = sqrt(2 / pi) (x + 0.044715 x^3)`, where `(1 + tanh(z)) / 2` is the logistic of `2 z`.
#[inline(always)]
fn gelu_new(x: f32) -> f32 {
    const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;
    x / (1.0 + cpu::exp(-TWICE_SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn the_loops_equal_the_reference() {
        let values: Vec<f32> = (-200..=200).map(|step| step as f32 * 0.07).collect();
        let x = Tensor::from_vec(values, (1, 401), &Device::Cpu).unwrap();
        let factor = (&x * -0.3).unwrap();
        for activation in [Activation::Relu, Activation::Gelu, Activation::GeluNew, Activation::Silu] {
            let want = activation.reference(&x).unwrap();
            for (got, want) in [
                (activation.apply(&x).unwrap(), want.clone()),
                (activation.gate(&x, &factor).unwrap(), (want * &factor).unwrap()),
            ] {
                let worst: f32 = (got - want).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap();
                assert!(worst < 3e-5, "{activation:?} {worst}");
            }
        }
    }
}
