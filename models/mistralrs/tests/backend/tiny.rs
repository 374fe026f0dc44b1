//! A tiny Llama with random weights, written as a directory and as a GGUF file.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value as Field};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use serde_json::{Value, json};

pub(crate) const HIDDEN: usize = 64;
const WIDE: usize = 128;
const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const HEAD_DIM: usize = HIDDEN / HEADS;
const LAYERS: usize = 2;
pub(crate) const POSITIONS: usize = 256;

/// Special tokens, digits, the other characters of numbers, and a few letters.
pub(crate) const TOKENS: [&str; 24] = [
    "<unk>", "<s>", "</s>", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", ".", "-", " ", "a", "b", "c",
    "d", "e", "f", "g", "h",
];

/// More rows than tokens, as in real checkpoints.
pub(crate) const VOCAB: usize = 32;

type Weights = Vec<(String, Tensor)>;

/// Returns pseudo-random numbers between -1 and 1 (a linear congruential generator with Knuth's constants).
fn random(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn weights(vocab: usize) -> Weights {
    let mut state = 7;
    let mut tensor = |name: &str, shape: &[usize], spread: f32| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| spread * random(&mut state)).collect();
        (name.to_owned(), Tensor::from_vec(values, shape, &Device::Cpu).unwrap())
    };
    let keys = KEY_HEADS * HEAD_DIM;
    let mut all = vec![
        tensor("model.embed_tokens.weight", &[vocab, HIDDEN], 1.0),
        // Large enough that some tokens are much more probable than others.
        tensor("lm_head.weight", &[vocab, HIDDEN], 0.5),
    ];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("self_attn.q_proj", [HIDDEN, HIDDEN]),
            ("self_attn.k_proj", [keys, HIDDEN]),
            ("self_attn.v_proj", [keys, HIDDEN]),
            ("self_attn.o_proj", [HIDDEN, HIDDEN]),
            ("mlp.gate_proj", [WIDE, HIDDEN]),
            ("mlp.up_proj", [WIDE, HIDDEN]),
            ("mlp.down_proj", [HIDDEN, WIDE]),
        ] {
            all.push(tensor(&format!("model.layers.{layer}.{name}.weight"), &shape, 0.3));
        }
    }
    let norms = (0..LAYERS).flat_map(|layer| {
        ["input_layernorm", "post_attention_layernorm"]
            .map(|name| format!("model.layers.{layer}.{name}.weight"))
    });
    for name in norms.chain(["model.norm.weight".to_owned()]) {
        all.push((name, Tensor::ones(HIDDEN, candle_core::DType::F32, &Device::Cpu).unwrap()));
    }
    all
}

/// Returns `config.json` in the format of transformers 5, which mistral.rs alone cannot read.
fn config(vocab: usize) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": HIDDEN,
        "intermediate_size": WIDE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS, "head_dim": HEAD_DIM, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "max_position_embeddings": POSITIONS, "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    })
}

/// Returns a tokenizer in which every character is a token.
fn tokenizer() -> Value {
    let vocab: HashMap<&str, usize> = TOKENS.iter().enumerate().map(|(id, &name)| (name, id)).collect();
    let special = |id: usize| {
        json!({
            "id": id, "content": TOKENS[id], "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    };
    json!({
        "version": "1.0", "added_tokens": [special(0), special(1), special(2)], "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "<unk>"},
    })
}

fn write_json(folder: &Path, name: &str, content: &Value) {
    std::fs::write(folder.join(name), content.to_string()).unwrap();
}

pub(crate) fn write_folder(folder: &Path) {
    write_json(folder, "config.json", &config(VOCAB));
    write_json(folder, "tokenizer.json", &tokenizer());
    // mistral.rs alone panics on an end-of-sequence token that is not in the vocabulary.
    write_json(folder, "tokenizer_config.json", &json!({"eos_token": "</s>", "bos_token": "<nowhere>"}));
    let tensors: HashMap<String, Tensor> = weights(VOCAB).into_iter().collect();
    candle_core::safetensors::save(&tensors, folder.join("model.safetensors")).unwrap();
}

/// Writes the same tokenizer next to a GGUF file.
pub(crate) fn write_tokenizer(folder: &Path) {
    write_json(folder, "tokenizer.json", &tokenizer());
}

/// Returns the name of a tensor in a GGUF file.
fn gguf_name(name: &str) -> String {
    let name = name.replace("model.layers.", "blk.");
    [
        ("model.embed_tokens", "token_embd"),
        ("lm_head", "output"),
        ("model.norm", "output_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ]
    .iter()
    .fold(name, |name, (from, to)| name.replace(from, to))
}

/// Reorders a projection: GGUF rotates adjacent elements of a head, Hugging Face elements that are half a
/// head apart.
fn paired(tensor: &Tensor, heads: usize) -> Tensor {
    let halves = tensor.reshape((heads, 2, HEAD_DIM / 2, HIDDEN)).unwrap().transpose(1, 2).unwrap();
    halves.contiguous().unwrap().reshape((heads * HEAD_DIM, HIDDEN)).unwrap()
}

/// Writes the same weights to a GGUF file, with further fields, such as the fields of a tokenizer.
pub(crate) fn write_gguf(file: &Path, dtype: GgmlDType, (vocab, more): (usize, Vec<(&str, Field)>)) {
    let tensors: Vec<(String, QTensor)> = weights(vocab)
        .into_iter()
        .map(|(name, tensor)| {
            let name = gguf_name(&name);
            let tensor = match &name {
                name if name.contains("attn_q.") => paired(&tensor, HEADS),
                name if name.contains("attn_k.") => paired(&tensor, KEY_HEADS),
                _ => tensor,
            };
            let dtype = if name.contains("norm") { GgmlDType::F32 } else { dtype };
            (name, QTensor::quantize(&tensor, dtype).unwrap())
        })
        .collect();
    let count = |number: usize| Field::U32(number as u32);
    let mut fields = vec![
        ("general.architecture", Field::String("llama".to_owned())),
        ("llama.attention.head_count", count(HEADS)),
        ("llama.attention.head_count_kv", count(KEY_HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", Field::F32(1e-5)),
        ("llama.block_count", count(LAYERS)),
        ("llama.context_length", count(POSITIONS)),
        ("llama.embedding_length", count(HIDDEN)),
        ("llama.feed_forward_length", count(WIDE)),
        ("llama.rope.dimension_count", count(HEAD_DIM)),
        ("tokenizer.ggml.bos_token_id", count(1)),
        ("tokenizer.ggml.eos_token_id", count(2)),
    ];
    fields.retain(|(name, _)| more.iter().all(|(other, _)| other != name));
    fields.extend(more);
    let fields: Vec<(&str, &Field)> = fields.iter().map(|(name, field)| (*name, field)).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (&**name, tensor)).collect();
    gguf_file::write(&mut File::create(file).unwrap(), &fields, &tensors).unwrap();
}
