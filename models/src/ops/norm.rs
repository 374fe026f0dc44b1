//! Root mean square normalisation.

use candle_core::{D, DType, Result, Tensor};

use super::cpu;

/// `x / sqrt(mean(x²) + eps) * weight` over the last axis, computed in f32, as in T5 and the Llama family.
///
/// * `x` `[M, K]`  * `weight` `[K]`; returns `[M, K]`
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    if !cpu::is_plain(x) || !cpu::is_plain(weight) {
        return reference(x, weight, eps);
    }
    let k = x.dim(D::Minus1)?;
    let ((x_storage, x_layout), (w_storage, w_layout)) =
        (x.storage_and_layout(), weight.storage_and_layout());
    let weight = cpu::slice(&w_storage, w_layout)?;
    let mut values = cpu::slice(&x_storage, x_layout)?.to_vec();
    for row in values.chunks_exact_mut(k.max(1)) {
        let squares: f32 = row.iter().map(|value| value * value).sum();
        let scale = (squares / k as f32 + eps as f32).sqrt().recip();
        row.iter_mut().zip(weight).for_each(|(value, weight)| *value *= scale * weight);
    }
    Tensor::from_vec(values, x.shape(), x.device())
}

fn reference(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let variance = wide.sqr()?.mean_keepdim(D::Minus1)?;
    wide.broadcast_div(&(variance + eps)?.sqrt()?)?.to_dtype(x.dtype())?.broadcast_mul(weight)
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
            (rms_norm(&x, &weight, 1e-6).unwrap() - reference(&x, &weight, 1e-6).unwrap()).unwrap();
        let worst: f32 = difference.abs().unwrap().max_all().unwrap().to_scalar().unwrap();
        assert!(worst < 1e-6, "{worst}");
    }
}
