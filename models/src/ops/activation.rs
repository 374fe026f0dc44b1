//! Activations of feed-forward layers.

use candle_core::{DType, Result, Tensor};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Relu,
    /// GELU with the error function, `gelu` in Hugging Face.
    Gelu,
    /// GELU in its tanh approximation, `gelu_new` in Hugging Face.
    GeluNew,
    Silu,
}

impl Activation {
    /// Returns the activation with this Hugging Face name, or `None` if no supported model uses it.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "relu" => Some(Self::Relu),
            "gelu" => Some(Self::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Some(Self::GeluNew),
            "silu" | "swish" => Some(Self::Silu),
            _ => None,
        }
    }

    /// Applies the activation in f32 and rounds once, to the element type of `x`. candle would also round
    /// intermediate results.
    pub(crate) fn apply(self, x: &Tensor) -> Result<Tensor> {
        let activated = match self {
            // Exact in every type.
            Self::Relu => x.relu(),
            Self::Gelu => x.to_dtype(DType::F32)?.gelu_erf(),
            Self::GeluNew => x.to_dtype(DType::F32)?.gelu(),
            Self::Silu => x.to_dtype(DType::F32)?.silu(),
        };
        activated?.to_dtype(x.dtype())
    }

    /// Returns the activation of `x` f32 `[M, W]`, rounded once to `dtype`.
    pub(crate) fn rounded(self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if super::own_kernels::OwnKernel::Activation.computes(x) {
            return ntl_cuda::activate(x, self.on_gpu(), false, dtype);
        }
        self.apply(x)?.to_dtype(dtype)
    }

    /// Returns the activation of the left half of `x` f32 `[M, 2 * W]` times the right half, rounded once to
    /// `dtype`.
    pub(crate) fn gated(self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if super::own_kernels::OwnKernel::Activation.computes(x) {
            return ntl_cuda::activate(x, self.on_gpu(), true, dtype);
        }
        let width = x.dim(1)? / 2;
        (self.apply(&x.narrow(1, 0, width)?)? * x.narrow(1, width, width)?)?.to_dtype(dtype)
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(self) -> ntl_cuda::Activation {
        match self {
            Self::Relu => ntl_cuda::Activation::Relu,
            Self::Gelu => ntl_cuda::Activation::Gelu,
            Self::GeluNew => ntl_cuda::Activation::GeluTanh,
            Self::Silu => ntl_cuda::Activation::Silu,
        }
    }

    /// Returns the kernel that computes this in place, or `None` for the error function.
    pub(super) fn kernel(self) -> Option<ntl_kernels::Activation> {
        match self {
            Self::Relu => Some(ntl_kernels::Activation::Relu),
            Self::Gelu => None,
            Self::GeluNew => Some(ntl_kernels::Activation::GeluTanh),
            Self::Silu => Some(ntl_kernels::Activation::Silu),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn sixteen_bit_results_are_rounded_once() {
        let values: Vec<f32> = (-400..=400).map(|step| step as f32 * 0.013).collect();
        let x = Tensor::from_slice(&values, values.len(), &Device::Cpu).unwrap();
        for dtype in [DType::BF16, DType::F16] {
            let x = x.to_dtype(dtype).unwrap();
            for activation in [Activation::Relu, Activation::Gelu, Activation::GeluNew, Activation::Silu] {
                let exact = activation.apply(&x.to_dtype(DType::F32).unwrap()).unwrap();
                let want = exact.to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap();
                let got = activation.apply(&x).unwrap();
                assert_eq!(got.dtype(), dtype);
                let got = got.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
                assert_eq!(got, want.to_vec1::<f32>().unwrap(), "{activation:?} in {dtype:?}");
            }
        }
    }

    #[test]
    fn activations_in_place_match_activations_of_tensors() {
        let values: Vec<f32> = (-200..=200).map(|step| step as f32 * 0.07).collect();
        let factors: Vec<f32> = values.iter().map(|value| value * -0.3).collect();
        let x = Tensor::from_slice(&values, 401, &Device::Cpu).unwrap();
        for activation in [Activation::Relu, Activation::GeluNew, Activation::Silu] {
            let want = activation.apply(&x).unwrap().to_vec1::<f32>().unwrap();
            let mut plain = values.clone();
            let mut gated = values.clone();
            activation.kernel().unwrap().apply(&mut plain);
            activation.kernel().unwrap().apply_gated(&mut gated, &factors);
            for (index, want) in want.into_iter().enumerate() {
                let [off, off_gated] = [plain[index] - want, gated[index] - want * factors[index]];
                assert!(off.abs() < 1e-5 && off_gated.abs() < 3e-5, "{activation:?} of {}", values[index]);
            }
        }
    }
}
