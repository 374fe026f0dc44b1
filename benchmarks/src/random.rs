//! Random T5 checkpoints of the usual shapes, for measuring speed where no trained one is at hand.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use candle_core::{Device, Tensor};
use ntl_models::checkpoint::LoadError;

use crate::demo_files;

/// Shape of a T5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    d_model: usize,
    d_kv: usize,
    d_ff: usize,
    layers: usize,
    heads: usize,
}

/// T5-small and T5-base, with the vocabulary padded as the originals'.
const SHAPES: [(&str, Shape); 2] = [
    ("t5-small", Shape { d_model: 512, d_kv: 64, d_ff: 2048, layers: 6, heads: 8 }),
    ("t5-base", Shape { d_model: 768, d_kv: 64, d_ff: 3072, layers: 12, heads: 12 }),
];

const VOCABULARY: usize = 32_128;

/// The shape of that name.
pub fn shape(name: &str) -> Option<Shape> {
    SHAPES.iter().find(|(known, _)| *known == name).map(|(_, shape)| *shape)
}

/// Why a checkpoint could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The demo checkpoint, whose tokenizer is used, cannot be read.
    #[error("the demo checkpoint cannot be read")]
    Demo(#[from] LoadError),
    /// A file cannot be written.
    #[error("a file cannot be written")]
    Io(#[from] io::Error),
    /// Tensors could not be made or written.
    #[error("tensors could not be made")]
    Tensor(#[from] candle_core::Error),
}

/// Writes a checkpoint folder: random weights of this shape, the demo checkpoint's tokenizer.
///
/// # Errors
/// When the demo checkpoint cannot be read or the folder not written.
pub fn write(folder: &Path, shape: Shape) -> Result<(), WriteError> {
    fs::create_dir_all(folder)?;
    let demo = demo_files()?;
    for file in ["spiece.model", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json"] {
        fs::write(folder.join(file), &*demo.require(file)?)?;
    }
    fs::write(folder.join("config.json"), config(shape))?;
    candle_core::safetensors::save(&tensors(shape)?, folder.join("model.safetensors"))?;
    Ok(())
}

fn config(shape: Shape) -> String {
    let Shape { d_model, d_kv, d_ff, layers, heads } = shape;
    format!(
        r#"{{"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": {VOCABULARY},
"d_model": {d_model}, "d_kv": {d_kv}, "d_ff": {d_ff}, "num_layers": {layers}, "num_decoder_layers": {layers},
"num_heads": {heads}, "feed_forward_proj": "relu", "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}}"#
    )
}

fn tensors(shape: Shape) -> candle_core::Result<HashMap<String, Tensor>> {
    let Shape { d_model, d_kv, d_ff, layers, heads } = shape;
    let inner = heads * d_kv;
    let random = |deviation: f32, dims: &[usize]| Tensor::randn(0f32, deviation, dims, &Device::Cpu);
    let scale = |width: usize| (width as f32).powf(-0.5);
    let mut tensors = HashMap::new();
    tensors.insert("shared.weight".to_owned(), random(1.0, &[VOCABULARY, d_model])?);
    for (stack, attentions) in
        [("encoder", &["SelfAttention"][..]), ("decoder", &["SelfAttention", "EncDecAttention"])]
    {
        for layer in 0..layers {
            let block = format!("{stack}.block.{layer}.layer");
            for (index, attention) in attentions.iter().enumerate() {
                let name = format!("{block}.{index}.{attention}");
                tensors.insert(
                    format!("{block}.{index}.layer_norm.weight"),
                    Tensor::ones(d_model, candle_core::DType::F32, &Device::Cpu)?,
                );
                tensors.insert(format!("{name}.q.weight"), random(scale(d_model * d_kv), &[inner, d_model])?);
                for part in ["k", "v"] {
                    tensors
                        .insert(format!("{name}.{part}.weight"), random(scale(d_model), &[inner, d_model])?);
                }
                tensors.insert(format!("{name}.o.weight"), random(scale(inner), &[d_model, inner])?);
            }
            let feed_forward = attentions.len();
            let name = format!("{block}.{feed_forward}");
            tensors.insert(
                format!("{name}.layer_norm.weight"),
                Tensor::ones(d_model, candle_core::DType::F32, &Device::Cpu)?,
            );
            tensors.insert(
                format!("{name}.DenseReluDense.wi.weight"),
                random(scale(d_model), &[d_ff, d_model])?,
            );
            tensors
                .insert(format!("{name}.DenseReluDense.wo.weight"), random(scale(d_ff), &[d_model, d_ff])?);
        }
        let bias = format!("{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
        tensors.insert(bias, random(scale(d_model), &[32, heads])?);
        tensors.insert(
            format!("{stack}.final_layer_norm.weight"),
            Tensor::ones(d_model, candle_core::DType::F32, &Device::Cpu)?,
        );
    }
    Ok(tensors)
}
