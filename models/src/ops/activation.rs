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
        match self {
            Self::Relu => x.relu(),
            Self::Gelu => x.gelu_erf(),
            Self::GeluNew => x.gelu(),
            Self::Silu => x.silu(),
        }
    }

    /// Whether [`apply_in_place`](Self::apply_in_place) can do it: everything but the error function.
    pub(super) fn is_in_place(self) -> bool {
        self != Self::Gelu
    }

    /// Turns numbers into their activations, times the factors where there are any.
    pub(super) fn apply_in_place(self, values: &mut [f32], factors: Option<&[f32]>) {
        let arch = Arch::new();
        let one = |(values, factors): (&mut [f32], &[f32])| {
            arch.dispatch(Loop { activation: self, values, factors });
        };
        match factors {
            _ if values.len() <= CHUNK => one((values, factors.unwrap_or_default())),
            None => values.par_chunks_mut(CHUNK).for_each(|values| one((values, &[]))),
            Some(factors) => values.par_chunks_mut(CHUNK).zip(factors.par_chunks(CHUNK)).for_each(one),
        }
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
    fn activations_in_place_equal_those_of_tensors() {
        let values: Vec<f32> = (-200..=200).map(|step| step as f32 * 0.07).collect();
        let factors: Vec<f32> = values.iter().map(|value| value * -0.3).collect();
        let x = Tensor::from_slice(&values, 401, &Device::Cpu).unwrap();
        for activation in [Activation::Relu, Activation::GeluNew, Activation::Silu] {
            let want = activation.apply(&x).unwrap().to_vec1::<f32>().unwrap();
            let (mut plain, mut gated) = (values.clone(), values.clone());
            activation.apply_in_place(&mut plain, None);
            activation.apply_in_place(&mut gated, Some(&factors));
            for (index, want) in want.into_iter().enumerate() {
                let [off, off_gated] = [plain[index] - want, gated[index] - want * factors[index]];
                assert!(off.abs() < 1e-5 && off_gated.abs() < 3e-5, "{activation:?} of {}", values[index]);
            }
        }
    }
}
