//! The tensors of a GGUF file, under the names that safetensors checkpoints use.
//!
//! In: the files of a checkpoint. Out: its tables, and [`GgufNames`], which finds a tensor and describes how
//! it is stored. llama.cpp's converter reorders the rows of queries and keys of `llama`, `granite` and
//! `smollm3`, transposes the layers of GPT-2, and adds 1 to the scales of Gemma's normalisations.

use std::collections::BTreeMap;
use std::io;

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{Device, Tensor};
use ntl_text::checkpoint::{CheckpointFiles, LoadError};
use ntl_text::gguf::{GgmlType, GgufFile, TensorType};

use super::table::{Entry, FloatType, StoredType};

/// Tensors from which the configuration was read already. The context ends before the long factors apply.
const CONFIGURATION: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"];

/// A change that llama.cpp's converter makes to a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Conversion {
    Unchanged,
    /// The two elements of a rotated pair are neighbours within each of these heads. In safetensors they are
    /// half a head apart.
    Paired {
        heads: usize,
    },
    /// `[out, in]` instead of `[in, out]`.
    Transposed,
    /// 1 was added to each element.
    Increased,
}

/// Where a file stores a tensor.
pub(super) struct Place {
    pub(super) name: String,
    pub(super) conversion: Conversion,
}

/// Finds the tensors of a file by their names in safetensors checkpoints.
pub(super) struct GgufNames {
    naming: Naming,
    /// The numbers of query and key heads, if their rows are reordered.
    paired_heads: Option<[usize; 2]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    Llama,
    Olmo2,
    Gemma,
    Gpt2,
    T5,
}

const ENDS: [(&str, &str); 3] =
    [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];

const LAYER_PARTS: [(&str, &str); 13] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// The parts of OLMo 2 and Gemma that have other names than those of Llama.
const AROUND_LAYER_PARTS: [(&str, &str); 3] = [
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

const GPT2_ENDS: [(&str, &str); 4] = [
    ("transformer.wte", "token_embd"),
    ("transformer.wpe", "position_embd"),
    ("transformer.ln_f", "output_norm"),
    ("lm_head", "output"),
];

const GPT2_LAYER_PARTS: [(&str, &str); 6] = [
    ("ln_1", "attn_norm"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("ln_2", "ffn_norm"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
];

const T5_ENDS: [(&str, &str); 4] = [
    ("shared", "token_embd"),
    ("encoder.final_layer_norm", "enc.output_norm"),
    ("decoder.final_layer_norm", "dec.output_norm"),
    ("lm_head", "output"),
];

const T5_ATTENTION_PARTS: [(&str, &str); 6] = [
    ("layer_norm", "attn_norm"),
    ("SelfAttention.q", "attn_q"),
    ("SelfAttention.k", "attn_k"),
    ("SelfAttention.v", "attn_v"),
    ("SelfAttention.o", "attn_o"),
    ("SelfAttention.relative_attention_bias", "attn_rel_b"),
];

const T5_CROSS_ATTENTION_PARTS: [(&str, &str); 5] = [
    ("layer_norm", "cross_attn_norm"),
    ("EncDecAttention.q", "cross_attn_q"),
    ("EncDecAttention.k", "cross_attn_k"),
    ("EncDecAttention.v", "cross_attn_v"),
    ("EncDecAttention.o", "cross_attn_o"),
];

const T5_FEED_FORWARD_PARTS: [(&str, &str); 5] = [
    ("layer_norm", "ffn_norm"),
    ("DenseReluDense.wi", "ffn_up"),
    ("DenseReluDense.wi_0", "ffn_gate"),
    ("DenseReluDense.wi_1", "ffn_up"),
    ("DenseReluDense.wo", "ffn_down"),
];

impl GgufNames {
    fn new(gguf: &GgufFile) -> Result<Self, LoadError> {
        let architecture = gguf.text("general.architecture")?.unwrap_or_default();
        let paired_heads = match architecture {
            "llama" | "granite" | "smollm3" => {
                let heads = gguf.size(&format!("{architecture}.attention.head_count"))?.unwrap_or(1);
                let key_heads = gguf.size(&format!("{architecture}.attention.head_count_kv"))?;
                let key_heads = key_heads.unwrap_or(heads);
                Some([heads, key_heads])
            }
            _ => None,
        };
        let naming = match architecture {
            "gpt2" => Naming::Gpt2,
            "gemma2" | "gemma3" => Naming::Gemma,
            "olmo2" => Naming::Olmo2,
            "t5" => Naming::T5,
            _ => Naming::Llama,
        };
        Ok(Self { naming, paired_heads })
    }

    /// Returns where the file stores a tensor, or `None` if it has no tensors with such names.
    pub(super) fn place(&self, name: &str) -> Option<Place> {
        let (module, kind) = name.rsplit_once('.')?;
        let stored = match self.naming {
            Naming::Llama => stored_module(module, "model.layers.", &LAYER_PARTS, &ENDS),
            Naming::Olmo2 | Naming::Gemma => stored_module(module, "model.layers.", &AROUND_LAYER_PARTS, &[])
                .or_else(|| stored_module(module, "model.layers.", &LAYER_PARTS, &ENDS)),
            Naming::Gpt2 => stored_module(module, "transformer.h.", &GPT2_LAYER_PARTS, &GPT2_ENDS),
            Naming::T5 => stored_t5_module(module),
        }?;
        let part = stored.rsplit('.').next().unwrap_or_default();
        let is_layer = stored.starts_with("blk.");
        let conversion = match (part, self.paired_heads) {
            ("attn_q", Some([heads, _])) | ("attn_k", Some([_, heads])) => Conversion::Paired { heads },
            _ if self.naming == Naming::Gpt2 && is_layer && kind == "weight" && !part.ends_with("norm") => {
                Conversion::Transposed
            }
            _ if self.naming == Naming::Gemma && part.ends_with("norm") => Conversion::Increased,
            _ => Conversion::Unchanged,
        };
        Some(Place { name: format!("{stored}.{kind}"), conversion })
    }
}

/// Returns the name of a module, such as `blk.0.attn_q` for a part of a layer.
fn stored_module(
    module: &str,
    layers: &str,
    parts: &[(&str, &'static str)],
    ends: &[(&str, &'static str)],
) -> Option<String> {
    match module.strip_prefix(layers).and_then(|rest| rest.split_once('.')) {
        Some((layer, part)) => Some(format!("blk.{layer}.{}", other_name(parts, part)?)),
        None => other_name(ends, module).map(str::to_owned),
    }
}

/// Returns the name of a module of a T5, such as `dec.blk.0.cross_attn_q`.
fn stored_t5_module(module: &str) -> Option<String> {
    if let Some(end) = other_name(&T5_ENDS, module) {
        return Some(end.to_owned());
    }
    let (stack, rest) = module.split_once(".block.")?;
    let (block, rest) = rest.split_once(".layer.")?;
    let (layer, part) = rest.split_once('.')?;
    let (stack, parts): (_, &[_]) = match (stack, layer) {
        ("encoder", "0") => ("enc", &T5_ATTENTION_PARTS),
        ("encoder", "1") => ("enc", &T5_FEED_FORWARD_PARTS),
        ("decoder", "0") => ("dec", &T5_ATTENTION_PARTS),
        ("decoder", "1") => ("dec", &T5_CROSS_ATTENTION_PARTS),
        ("decoder", "2") => ("dec", &T5_FEED_FORWARD_PARTS),
        _ => return None,
    };
    Some(format!("{stack}.blk.{block}.{}", other_name(parts, part)?))
}

fn other_name(names: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    names.iter().find(|(known, _)| *known == name).map(|&(_, other)| other)
}

/// The tensors of a model.
pub(super) struct GgufTables {
    /// The names of the files.
    pub(super) parts: Vec<String>,
    /// Each tensor with the index of its file.
    pub(super) tensors: BTreeMap<String, (usize, Entry)>,
    pub(super) names: GgufNames,
}

/// Reads the tables of the checkpoint whose first part is `name`.
pub(super) fn read(files: &CheckpointFiles, name: &str) -> Result<GgufTables, LoadError> {
    let gguf = GgufFile::read_model(files.place(), files, name)?;
    let names = GgufNames::new(&gguf)?;
    let mut tensors = BTreeMap::new();
    for (name, tensor) in gguf.tensors() {
        if CONFIGURATION.contains(&name.as_str()) {
            continue;
        }
        let stored = match &tensor.stored {
            TensorType::Known(GgmlType::F32) => StoredType::Float(FloatType::F32),
            TensorType::Known(GgmlType::F16) => StoredType::Float(FloatType::F16),
            TensorType::Known(GgmlType::Bf16) => StoredType::Float(FloatType::Bf16),
            TensorType::Known(quantised) => StoredType::Blocks(*quantised),
            TensorType::Other(other) => StoredType::Other(other.clone()),
        };
        let entry = Entry { stored, shape: tensor.shape.clone(), strides: None, offset: tensor.offset };
        tensors.insert(name.clone(), (tensor.part, entry));
    }
    Ok(GgufTables { parts: gguf.parts().to_vec(), tensors, names })
}

/// Returns the elements of whole blocks of a quantised type. `halves` are the bytes of the blocks, in pairs.
pub(super) fn dequantised(halves: &[u16], kind: GgmlType) -> io::Result<Vec<f32>> {
    let bytes: &[u8] = bytemuck::cast_slice(halves);
    let elements = bytes.len() / kind.block_bytes() * kind.block_elements();
    let storage = QStorage::from_data(bytes.into(), &Device::Cpu, candle_type(kind));
    let numbers = storage
        .and_then(|storage| QTensor::new(storage, elements))
        .and_then(|tensor| tensor.dequantize(&Device::Cpu))
        .and_then(|tensor| tensor.to_vec1());
    numbers.map_err(io::Error::other)
}

pub(super) fn candle_type(kind: GgmlType) -> GgmlDType {
    match kind {
        GgmlType::F32 => GgmlDType::F32,
        GgmlType::F16 => GgmlDType::F16,
        GgmlType::Bf16 => GgmlDType::BF16,
        GgmlType::Q8_0 => GgmlDType::Q8_0,
        GgmlType::Q4_0 => GgmlDType::Q4_0,
        GgmlType::Q4_1 => GgmlDType::Q4_1,
        GgmlType::Q5_0 => GgmlDType::Q5_0,
        GgmlType::Q5_1 => GgmlDType::Q5_1,
        GgmlType::Q2K => GgmlDType::Q2K,
        GgmlType::Q3K => GgmlDType::Q3K,
        GgmlType::Q4K => GgmlDType::Q4K,
        GgmlType::Q5K => GgmlDType::Q5K,
        GgmlType::Q6K => GgmlDType::Q6K,
    }
}

/// Returns a tensor as safetensors checkpoints contain it.
pub(super) fn restored(tensor: Tensor, conversion: Conversion) -> candle_core::Result<Tensor> {
    match conversion {
        Conversion::Unchanged => Ok(tensor),
        Conversion::Transposed => tensor.t(),
        Conversion::Increased => tensor - 1.0,
        Conversion::Paired { heads } => {
            let shape = tensor.dims().to_vec();
            let rows = shape[0];
            if heads == 0 || !rows.is_multiple_of(2 * heads) {
                return Err(candle_core::Error::Msg(format!("{rows} rows are not pairs of {heads} heads")));
            }
            let columns = tensor.elem_count() / rows;
            tensor
                .reshape((heads, rows / heads / 2, 2, columns))?
                .transpose(1, 2)?
                .contiguous()?
                .reshape(shape)
        }
    }
}
