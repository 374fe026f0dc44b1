//! Random T5 checkpoints of the usual shapes, for measuring speed where no trained one is at hand.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
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

/// The usual sizes, with the vocabulary padded as the originals'; t5-large makes a file of 3 GB.
const SHAPES: [(&str, Shape); 3] = [
    ("t5-small", Shape { d_model: 512, d_kv: 64, d_ff: 2048, layers: 6, heads: 8 }),
    ("t5-base", Shape { d_model: 768, d_kv: 64, d_ff: 3072, layers: 12, heads: 12 }),
    ("t5-large", Shape { d_model: 1024, d_kv: 64, d_ff: 4096, layers: 24, heads: 16 }),
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
    write_tensors(&tensors(shape), BufWriter::new(File::create(folder.join("model.safetensors"))?))
}

fn config(shape: Shape) -> String {
    let Shape { d_model, d_kv, d_ff, layers, heads } = shape;
    format!(
        r#"{{"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": {VOCABULARY},
"d_model": {d_model}, "d_kv": {d_kv}, "d_ff": {d_ff}, "num_layers": {layers}, "num_decoder_layers": {layers},
"num_heads": {heads}, "feed_forward_proj": "relu", "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}}"#
    )
}

/// A tensor to be made.
struct Planned {
    name: String,
    shape: Vec<usize>,
    fill: Fill,
}

enum Fill {
    /// All the same.
    Ones,
    /// Normally distributed around zero.
    Random { deviation: f64 },
}

/// All tensors of a T5 with a tied head, initialised as by Hugging Face.
fn tensors(shape: Shape) -> Vec<Planned> {
    let mut tensors = vec![random("shared.weight".to_owned(), 1, &[VOCABULARY, shape.d_model])];
    for (stack, attentions) in
        [("encoder", &["SelfAttention"][..]), ("decoder", &["SelfAttention", "EncDecAttention"])]
    {
        for layer in 0..shape.layers {
            add_block(&mut tensors, shape, (&format!("{stack}.block.{layer}.layer"), attentions));
        }
        let bias = format!("{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
        tensors.push(random(bias, shape.d_model, &[32, shape.heads]));
        tensors.push(ones(format!("{stack}.final_layer_norm.weight"), shape.d_model));
    }
    tensors
}

fn add_block(tensors: &mut Vec<Planned>, shape: Shape, (block, attentions): (&str, &[&str])) {
    let Shape { d_model, d_kv, d_ff, heads, .. } = shape;
    let inner = heads * d_kv;
    for (index, attention) in attentions.iter().enumerate() {
        let name = format!("{block}.{index}.{attention}");
        tensors.push(ones(format!("{block}.{index}.layer_norm.weight"), d_model));
        tensors.push(random(format!("{name}.q.weight"), d_model * d_kv, &[inner, d_model]));
        tensors.push(random(format!("{name}.k.weight"), d_model, &[inner, d_model]));
        tensors.push(random(format!("{name}.v.weight"), d_model, &[inner, d_model]));
        tensors.push(random(format!("{name}.o.weight"), inner, &[d_model, inner]));
    }
    let name = format!("{block}.{}", attentions.len());
    tensors.push(ones(format!("{name}.layer_norm.weight"), d_model));
    tensors.push(random(format!("{name}.DenseReluDense.wi.weight"), d_model, &[d_ff, d_model]));
    tensors.push(random(format!("{name}.DenseReluDense.wo.weight"), d_ff, &[d_model, d_ff]));
}

/// With the deviation that keeps the sum of `width` products as it was.
fn random(name: String, width: usize, shape: &[usize]) -> Planned {
    Planned { name, shape: shape.to_vec(), fill: Fill::Random { deviation: (width as f64).powf(-0.5) } }
}

fn ones(name: String, len: usize) -> Planned {
    Planned { name, shape: vec![len], fill: Fill::Ones }
}

/// Writes a safetensors file, never holding more than one tensor.
fn write_tensors(tensors: &[Planned], mut out: impl Write) -> Result<(), WriteError> {
    let mut end = 0;
    let entries = tensors.iter().map(|Planned { name, shape, .. }| {
        let from = end;
        end += 4 * shape.iter().product::<usize>();
        format!(r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{from},{end}]}}"#)
    });
    let table = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    out.write_all(&(table.len() as u64).to_le_bytes())?;
    out.write_all(table.as_bytes())?;
    for Planned { shape, fill, .. } in tensors {
        let shape = shape.as_slice();
        let tensor = match fill {
            Fill::Ones => Tensor::ones(shape, candle_core::DType::F32, &Device::Cpu)?,
            Fill::Random { deviation } => Tensor::randn(0f32, *deviation as f32, shape, &Device::Cpu)?,
        };
        for number in tensor.flatten_all()?.to_vec1::<f32>()? {
            out.write_all(&number.to_le_bytes())?;
        }
    }
    out.flush()?;
    Ok(())
}
