//! Normalisation of rows: by their root mean square, or by mean and variance.

use candle_core::{DType, Result, Tensor};

use super::tensors::{slice, to_vec, uses_kernels};

/// Normalisation with a learned scale. If there is a bias, the mean is also subtracted.
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

    /// Normalises each head of `[M, H * D]` separately, in f32.
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
        match &self.bias {
            Some(bias) => layer_norm(x, &self.weight, bias, self.eps),
            None => rms_norm(x, &self.weight, self.eps),
        }
    }
}

/// Returns `x / sqrt(mean(x²) + eps) * weight` over the last axis, computed in f32, as in T5 and the Llama
/// family.
///
/// * `x` is `[M, K]` and `weight` f32 `[K]`. Returns f32 `[M, K]`.
fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    if !uses_kernels(x) || !uses_kernels(weight) {
        return candle_nn::ops::rms_norm(&wide(x)?, weight, eps as f32);
    }
    let (storage, layout) = weight.storage_and_layout();
    let mut values = to_vec(x)?;
    ntl_kernels::rms_norm(&mut values, slice(&storage, layout)?, eps);
    Tensor::from_vec(values, x.shape(), x.device())
}

/// Converts to contiguous f32, as candle's fused operations require.
fn wide(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(DType::F32)?.contiguous()
}

/// Returns `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last axis, as in GPT-2.
///
/// * `x` is `[M, K]`, and `weight` and `bias` are f32 `[K]`. Returns f32 `[M, K]`.
fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    if !uses_kernels(x) || !uses_kernels(weight) || !uses_kernels(bias) {
        return candle_nn::ops::layer_norm(&wide(x)?, weight, bias, eps as f32);
    }
    let ((w_storage, w_layout), (b_storage, b_layout)) =
        (weight.storage_and_layout(), bias.storage_and_layout());
    let mut values = to_vec(x)?;
    ntl_kernels::layer_norm(&mut values, slice(&w_storage, w_layout)?, slice(&b_storage, b_layout)?, eps);
    Tensor::from_vec(values, x.shape(), x.device())
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
        let got = rms_norm(&x, &weight, 1e-6).unwrap().to_vec2::<f32>().unwrap();
        let scale = 12.5_f32.sqrt();
        assert!((got[0][0] - 3.0 / scale).abs() < 1e-5 && (got[0][1] - 8.0 / scale).abs() < 1e-5, "{got:?}");
        assert_eq!(got[1], [0.0, 0.0]);
        let want = composed::during(|| rms_norm(&x, &weight, 1e-6)).unwrap();
        assert_close(&rms_norm(&x, &weight, 1e-6).unwrap(), &want, 1e-6);
    }

    #[test]
    fn rows_are_centred_and_scaled_to_unit_variance() {
        let x = Tensor::new(&[[1f32, 5.0], [7.0, 7.0]], &Device::Cpu).unwrap();
        let weight = Tensor::new(&[3f32, 1.0], &Device::Cpu).unwrap();
        let bias = Tensor::new(&[0.5f32, -1.0], &Device::Cpu).unwrap();
        let got = layer_norm(&x, &weight, &bias, 1e-9).unwrap().to_vec2::<f32>().unwrap();
        assert!((got[0][0] + 2.5).abs() < 1e-5 && got[0][1].abs() < 1e-5, "{got:?}");
        assert_eq!(got[1], [0.5, -1.0]);
        // Two nearly equal numbers would amplify their rounding errors.
        let x = Tensor::new(&[[3f32, -2.5], [0.4, 9.0], [-7.0, -1.2], [5.5, 2.0]], &Device::Cpu).unwrap();
        let want = composed::during(|| layer_norm(&x, &weight, &bias, 1e-5)).unwrap();
        assert_close(&layer_norm(&x, &weight, &bias, 1e-5).unwrap(), &want, 1e-5);
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
