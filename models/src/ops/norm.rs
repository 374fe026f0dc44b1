//! Normalisation of rows: by their root mean square, or by mean and variance.

use candle_core::{D, DType, Result, Tensor};

use super::tensors::{slice, to_vec, uses_kernels};

/// Normalisation with a learned scale; with a bias, the mean is subtracted as well.
pub(crate) struct Norm {
    weight: Tensor,
    bias: Option<Tensor>,
    eps: f64,
}

impl Norm {
    pub(crate) fn new(weight: Tensor, bias: Option<Tensor>, eps: f64) -> Self {
        Self { weight, bias, eps }
    }

    /// `[M, width]` to the same.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.bias {
            Some(bias) => layer_norm(x, &self.weight, bias, self.eps),
            None => rms_norm(x, &self.weight, self.eps),
        }
    }

    /// Each head of `[M, H * D]` by itself.
    pub(crate) fn by_head(&self, x: &Tensor) -> Result<Tensor> {
        let dim = self.weight.dim(0)?;
        self.forward(&x.reshape((x.elem_count() / dim, dim))?)?.reshape(x.shape())
    }
}

/// `x / sqrt(mean(x²) + eps) * weight` over the last axis, computed in f32, as in T5 and the Llama family.
///
/// * `x` `[M, K]`  * `weight` `[K]`; returns `[M, K]`, in the element type of the weight
fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    if !uses_kernels(x) || !uses_kernels(weight) {
        return rms_reference(x, weight, eps);
    }
    let (storage, layout) = weight.storage_and_layout();
    let mut values = to_vec(x)?;
    ntl_kernels::rms_norm(&mut values, slice(&storage, layout)?, eps);
    Tensor::from_vec(values, x.shape(), x.device())
}

fn rms_reference(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let variance = wide.sqr()?.mean_keepdim(D::Minus1)?;
    wide.broadcast_div(&(variance + eps)?.sqrt()?)?.to_dtype(weight.dtype())?.broadcast_mul(weight)
}

/// `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last axis, as in GPT-2.
///
/// * `x` `[M, K]`  * `weight` and `bias` `[K]`; returns `[M, K]`, in the element type of the weight
fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    if !uses_kernels(x) || !uses_kernels(weight) || !uses_kernels(bias) {
        return layer_reference(x, weight, bias, eps);
    }
    let ((w_storage, w_layout), (b_storage, b_layout)) =
        (weight.storage_and_layout(), bias.storage_and_layout());
    let mut values = to_vec(x)?;
    ntl_kernels::layer_norm(&mut values, slice(&w_storage, w_layout)?, slice(&b_storage, b_layout)?, eps);
    Tensor::from_vec(values, x.shape(), x.device())
}

fn layer_reference(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let centred = wide.broadcast_sub(&wide.mean_keepdim(D::Minus1)?)?;
    let scale = (centred.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?;
    centred.broadcast_div(&scale)?.to_dtype(weight.dtype())?.broadcast_mul(weight)?.broadcast_add(bias)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn rows_are_scaled_to_unit_mean_square() {
        let x = Tensor::new(&[[3f32, 4.0], [0.0, 0.0]], &Device::Cpu).unwrap();
        let weight = Tensor::new(&[1f32, 2.0], &Device::Cpu).unwrap();
        let got = rms_norm(&x, &weight, 1e-6).unwrap().to_vec2::<f32>().unwrap();
        let scale = 12.5_f32.sqrt();
        assert!((got[0][0] - 3.0 / scale).abs() < 1e-5 && (got[0][1] - 8.0 / scale).abs() < 1e-5, "{got:?}");
        assert_eq!(got[1], [0.0, 0.0]);
        let difference =
            (rms_norm(&x, &weight, 1e-6).unwrap() - rms_reference(&x, &weight, 1e-6).unwrap()).unwrap();
        let worst: f32 = difference.abs().unwrap().max_all().unwrap().to_scalar().unwrap();
        assert!(worst < 1e-6, "{worst}");
    }

    #[test]
    fn rows_are_centred_and_scaled_to_unit_variance() {
        let x = Tensor::new(&[[1f32, 5.0], [7.0, 7.0]], &Device::Cpu).unwrap();
        let weight = Tensor::new(&[3f32, 1.0], &Device::Cpu).unwrap();
        let bias = Tensor::new(&[0.5f32, -1.0], &Device::Cpu).unwrap();
        let got = layer_norm(&x, &weight, &bias, 1e-9).unwrap().to_vec2::<f32>().unwrap();
        assert!((got[0][0] + 2.5).abs() < 1e-5 && got[0][1].abs() < 1e-5, "{got:?}");
        assert_eq!(got[1], [0.5, -1.0]);
        let x = Tensor::randn(0f32, 3f32, (4, 2), &Device::Cpu).unwrap();
        let want = layer_reference(&x, &weight, &bias, 1e-5).unwrap();
        let difference = (layer_norm(&x, &weight, &bias, 1e-5).unwrap() - want).unwrap();
        let worst: f32 = difference.abs().unwrap().max_all().unwrap().to_scalar().unwrap();
        assert!(worst < 1e-5, "{worst}");
    }
}
