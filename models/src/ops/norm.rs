//! Normalisation of rows: by their root mean square, or by mean and variance.

use candle_core::{DType, Result, Tensor};

use super::tensors::{slice, to_vec, uses_kernels};

/// Normalisation of each row `x` with a learned scale, in f32: `x / sqrt(mean(x²) + eps) * weight` as in T5
/// and the Llama family; with a bias, `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` as in GPT-2.
pub(crate) struct Norm {
    weight: Tensor,
    bias: Option<Tensor>,
    eps: f64,
    /// Type of results on devices. Results on the CPU are f32.
    dtype: DType,
}

impl Norm {
    /// Creates the normalisation. Keeps scale and bias in f32. On devices, results have the type of `weight`,
    /// as the following matmuls require.
    pub(crate) fn new(weight: &Tensor, bias: Option<&Tensor>, eps: f64) -> Result<Self> {
        let bias = bias.map(|bias| bias.to_dtype(DType::F32)).transpose()?;
        Ok(Self { weight: weight.to_dtype(DType::F32)?, bias, eps, dtype: weight.dtype() })
    }

    /// Returns the same normalisation with results in f32.
    pub(crate) fn exact(self) -> Self {
        self.rounded_to(DType::F32)
    }

    /// Returns the same normalisation with results of another type on devices.
    pub(crate) fn rounded_to(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    /// Maps `[M, width]` to the same shape.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if super::own_kernels::OwnKernel::Norm.computes(x) {
            return ntl_cuda::norm(x, &self.weight, self.bias.as_ref(), self.eps, self.dtype);
        }
        self.wide(x)?.to_dtype(self.dtype)
    }

    /// Normalises each part of `[M, H * D]` that is as wide as the scale `[D]`, in f32.
    pub(crate) fn by_head(&self, x: &Tensor) -> Result<Tensor> {
        let dim = self.weight.dim(0)?;
        self.wide(&x.reshape((x.elem_count() / dim, dim))?)?.reshape(x.shape())
    }

    /// Returns the scale f32 `[D]` and the epsilon of a normalisation by the root mean square.
    #[cfg(feature = "cuda")]
    pub(crate) fn rms(&self) -> Result<(&Tensor, f64)> {
        match self.bias {
            None => Ok((&self.weight, self.eps)),
            Some(_) => candle_core::bail!("heads cannot be normalised by mean and variance"),
        }
    }

    /// Normalises in f32.
    fn wide(&self, x: &Tensor) -> Result<Tensor> {
        if uses_kernels(x) && uses_kernels(&self.weight) {
            let mut values = to_vec(x)?;
            self.apply(&mut values)?;
            return Tensor::from_vec(values, x.shape(), x.device());
        }
        // As candle's fused operations require.
        let x = x.to_dtype(DType::F32)?.contiguous()?;
        match &self.bias {
            Some(bias) => candle_nn::ops::layer_norm(&x, &self.weight, bias, self.eps as f32),
            None => candle_nn::ops::rms_norm(&x, &self.weight, self.eps as f32),
        }
    }

    /// Normalises rows `[M, width]` in place, on the CPU.
    pub(super) fn apply(&self, rows: &mut [f32]) -> Result<()> {
        let (storage, layout) = self.weight.storage_and_layout();
        let weight = slice(&storage, layout)?;
        match &self.bias {
            Some(bias) => {
                let (storage, layout) = bias.storage_and_layout();
                ntl_kernels::layer_norm(rows, weight, slice(&storage, layout)?, self.eps);
            }
            None => ntl_kernels::rms_norm(rows, weight, self.eps),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::ops::composed;
    use crate::random::Random;

    fn assert_close(got: &Tensor, want: &Tensor, off_max: f32) {
        let difference = (got - want).unwrap().abs().unwrap();
        let worst: f32 = difference.max_all().unwrap().to_scalar().unwrap();
        assert!(worst < off_max, "{worst}");
    }

    #[test]
    fn rows_are_scaled_to_unit_mean_square() {
        let x = Tensor::new(&[[3f32, 4.0], [0.0, 0.0]], &Device::Cpu).unwrap();
        let weight = Tensor::new(&[1f32, 2.0], &Device::Cpu).unwrap();
        let norm = Norm::new(&weight, None, 1e-6).unwrap();
        let got = norm.wide(&x).unwrap().to_vec2::<f32>().unwrap();
        let scale = 12.5_f32.sqrt();
        assert!((got[0][0] - 3.0 / scale).abs() < 1e-5 && (got[0][1] - 8.0 / scale).abs() < 1e-5, "{got:?}");
        assert_eq!(got[1], [0.0, 0.0]);
        let want = composed::during(|| norm.wide(&x)).unwrap();
        assert_close(&norm.wide(&x).unwrap(), &want, 1e-6);
    }

    #[test]
    fn rows_are_centred_and_scaled_to_unit_variance() {
        let x = Tensor::new(&[[1f32, 5.0], [7.0, 7.0]], &Device::Cpu).unwrap();
        let weight = Tensor::new(&[3f32, 1.0], &Device::Cpu).unwrap();
        let bias = Tensor::new(&[0.5f32, -1.0], &Device::Cpu).unwrap();
        let normed = |eps, x: &Tensor| Norm::new(&weight, Some(&bias), eps).unwrap().wide(x);
        let got = normed(1e-9, &x).unwrap().to_vec2::<f32>().unwrap();
        assert!((got[0][0] + 2.5).abs() < 1e-5 && got[0][1].abs() < 1e-5, "{got:?}");
        assert_eq!(got[1], [0.5, -1.0]);
        // Two nearly equal numbers would amplify their rounding errors.
        let x = Tensor::new(&[[3f32, -2.5], [0.4, 9.0], [-7.0, -1.2], [5.5, 2.0]], &Device::Cpu).unwrap();
        let want = composed::during(|| normed(1e-5, &x)).unwrap();
        assert_close(&normed(1e-5, &x).unwrap(), &want, 1e-5);
    }

    #[test]
    fn sixteen_bit_heads_are_normalised_in_f32() {
        let random = Random::new(1);
        let x = random.matrix(5, 24, 1.0).to_dtype(DType::BF16).unwrap();
        let weight = (random.matrix(1, 8, 0.1).squeeze(0).unwrap() + 1.0).unwrap();
        let weight = weight.to_dtype(DType::BF16).unwrap();
        let norm = Norm::new(&weight, None, 1e-6).unwrap();
        let want = norm.by_head(&x.to_dtype(DType::F32).unwrap()).unwrap();
        assert_close(&composed::during(|| norm.by_head(&x)).unwrap(), &want, 1e-5);
    }
}
