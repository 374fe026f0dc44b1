//! Activations of feed-forward layers, in place.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::vector::{self, sigmoid_times};

/// Number of elements that one task processes.
const CHUNK: usize = 1 << 14;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Relu,
    /// GELU in its tanh approximation.
    GeluTanh,
    /// `x * sigmoid(x)`.
    Silu,
}

impl Activation {
    /// Applies the activation element by element.
    pub fn apply(self, values: &mut [f32]) {
        let arch = Arch::new();
        if values.len() <= CHUNK {
            self.run(arch, values, &[]);
        } else {
            values.par_chunks_mut(CHUNK).for_each(|values| self.run(arch, values, &[]));
        }
    }

    /// Computes `values = activation(values) * factors` for slices of equal lengths.
    pub fn apply_gated(self, values: &mut [f32], factors: &[f32]) {
        let arch = Arch::new();
        if values.len() <= CHUNK {
            self.run(arch, values, factors);
        } else {
            let chunks = values.par_chunks_mut(CHUNK).zip(factors.par_chunks(CHUNK));
            chunks.for_each(|(values, factors)| self.run(arch, values, factors));
        }
    }

    fn run(self, arch: Arch, values: &mut [f32], factors: &[f32]) {
        arch.dispatch(Task { activation: self, values, factors });
    }
}

/// Computes `cap * tanh(value / cap)` for each value, which limits values to the range from `-cap` to `cap`.
pub fn soft_cap(values: &mut [f32], cap: f32) {
    let arch = Arch::new();
    if values.len() <= CHUNK {
        arch.dispatch(Cap { values, cap });
    } else {
        values.par_chunks_mut(CHUNK).for_each(|values| arch.dispatch(Cap { values, cap }));
    }
}

struct Cap<'a> {
    values: &'a mut [f32],
    cap: f32,
}

impl WithSimd for Cap<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        vector::soft_cap(simd, self.values, self.cap);
    }
}

struct Task<'a> {
    activation: Activation,
    values: &'a mut [f32],
    /// Factors of the gate; empty without a gate.
    factors: &'a [f32],
}

impl WithSimd for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { activation, values, factors } = self;
        let (values, values_left) = S::as_mut_simd_f32s(values);
        for value in &mut *values {
            *value = activation.of(simd, *value);
        }
        if !values_left.is_empty() {
            let value = activation.of(simd, simd.partial_load_f32s(values_left));
            simd.partial_store_f32s(values_left, value);
        }
        let (factors, factors_left) = S::as_simd_f32s(factors);
        for (value, &factor) in values.iter_mut().zip(factors) {
            *value = simd.mul_f32s(*value, factor);
        }
        values_left.iter_mut().zip(factors_left).for_each(|(value, factor)| *value *= factor);
    }
}

impl Activation {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::f32s) -> S::f32s {
        match self {
            Self::Relu => {
                let zero = simd.splat_f32s(0.0);
                simd.select_f32s(simd.less_than_f32s(x, zero), zero, x)
            }
            Self::Silu => sigmoid_times(simd, x, x),
            // x (1 + tanh(z)) / 2 with z = sqrt(2 / pi) (x + 0.044715 x^3), and (1 + tanh(z)) / 2 = sigmoid(2
            // z).
            Self::GeluTanh => {
                let square = simd.mul_f32s(x, x);
                let inner = simd.mul_add_f32s(square, simd.splat_f32s(0.044_715), simd.splat_f32s(1.0));
                let z = simd.mul_f32s(simd.mul_f32s(x, simd.splat_f32s(TWICE_SQRT_2_OVER_PI)), inner);
                sigmoid_times(simd, x, z)
            }
        }
    }
}

const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capped_values_match_f64_on_one_and_on_several_threads() {
        let values: Vec<f32> = (0..2 * CHUNK + 5).map(|step| (step % 401) as f32 - 200.0).collect();
        for cap in [1.5, 30.0, 50.0] {
            let mut capped = values.clone();
            soft_cap(&mut capped, cap);
            let cap = f64::from(cap);
            for (&x, &got) in values.iter().zip(&capped) {
                let want = cap * (f64::from(x) / cap).tanh();
                assert!((f64::from(got) - want).abs() < 3e-7 * cap, "{x} capped at {cap}: got {got}");
            }
            let mut extremes = [f32::MIN, f32::MAX, f32::NAN];
            soft_cap(&mut extremes, cap as f32);
            assert!(
                (f64::from(extremes[0]) + cap).abs() < 1e-6 && (f64::from(extremes[1]) - cap).abs() < 1e-6
            );
            assert!(extremes[2].is_nan());
        }
    }

    #[test]
    fn activations_match_f64_on_one_and_on_several_threads() {
        let values: Vec<f32> = (0..2 * CHUNK + 5).map(|step| (step % 401) as f32 * 0.07 - 14.0).collect();
        let factors: Vec<f32> = values.iter().map(|value| value * -0.3).collect();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        for activation in [Activation::Relu, Activation::GeluTanh, Activation::Silu] {
            let want = |x: f64| match activation {
                Activation::Relu => x.max(0.0),
                Activation::GeluTanh => {
                    let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                    x * (1.0 + z.tanh()) / 2.0
                }
                Activation::Silu => x * sigmoid(x),
            };
            let mut plain = values.clone();
            let mut gated = values.clone();
            activation.apply(&mut plain);
            activation.apply_gated(&mut gated, &factors);
            for (index, &x) in values.iter().enumerate() {
                let want = want(f64::from(x));
                let off = f64::from(plain[index]) - want;
                let off_gated = f64::from(gated[index]) - want * f64::from(factors[index]);
                assert!(off.abs() < 1e-5 && off_gated.abs() < 3e-5, "{activation:?} of {x}");
            }
        }
    }
}
