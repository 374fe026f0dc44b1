//! GGUF files: metadata, the configuration and the tokenizer made from it, and all tensors.

use std::io::Cursor;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use ntl_models::Weights;
use ntl_text::checkpoint::LoadError;
use ntl_text::gguf;
use ntl_text::tokenizer::Tokenizer;
use tempfile::TempDir;

use crate::Target;

pub(super) const GGUF: Target = Target {
    name: "gguf",
    corpus: || vec![file("llama", "llama"), file("qwen2", "gpt2"), file("gpt2", "gpt2")],
    words: &[
        "GGUF",
        "general.architecture",
        "general.alignment",
        "general.type",
        "split.count",
        "llama",
        "qwen2",
        "qwen3",
        "granite",
        "gpt2",
        "llama.block_count",
        "llama.expert_count",
        "llama.rope.scaling.type",
        "llama.rope.scaling.factor",
        "llama.attention.key_length",
        "llama.attention.sliding_window",
        "yarn",
        "linear",
        "rope_freqs.weight",
        "output.weight",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.add_eos_token",
        "tokenizer.ggml.eot_token_id",
        "tokenizer.chat_template",
        "llama-bpe",
        "smollm",
        "default",
        "\u{8}\0\0\0",
        "\u{9}\0\0\0",
        "\u{c}\0\0\0",
        "\u{e}\0\0\0",
    ],
    read: |input| super::outcome(read(input), "m.gguf"),
};

/// Text that a tokenizer encodes.
const TEXT: &str = "What is 12 - -3.5?  é\u{1F600}▁ 1e9,000 </s>";

/// Returns a file with a few tensors. All layers are missing, since tensors are read by their names.
fn file(architecture: &str, tokenizer: &str) -> Vec<u8> {
    let text = |text: &str| Value::String(text.to_owned());
    let texts = |all: &[&str]| Value::Array(all.iter().copied().map(text).collect());
    let mut fields = vec![("general.architecture".to_owned(), text(architecture))];
    for (key, size) in [
        ("block_count", 1),
        ("context_length", 16),
        ("embedding_length", 32),
        ("feed_forward_length", 64),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        fields.push((format!("{architecture}.{key}"), Value::U32(size)));
    }
    for key in ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "rope.freq_base"] {
        fields.push((format!("{architecture}.{key}"), Value::F32(0.001)));
    }
    let kinds = [3, 3, 1, 1, 1, 1, 6].map(Value::I32).to_vec();
    let scores = [0.0, 0.0, -1.0, -2.0, -3.0, -0.5, 0.0].map(Value::F32).to_vec();
    for (key, value) in [
        ("model", text(tokenizer)),
        ("pre", text("gpt-2")),
        ("tokens", texts(&["<unk>", "</s>", "a", "b", "1", "ab", "<0x0A>"])),
        ("token_type", Value::Array(kinds)),
        ("scores", Value::Array(scores)),
        ("merges", texts(&["a b"])),
        ("bos_token_id", Value::U32(0)),
        ("eos_token_id", Value::U32(1)),
    ] {
        fields.push((format!("tokenizer.ggml.{key}"), value));
    }
    let mut tensors = Vec::new();
    for (name, shape, dtype) in [
        ("token_embd.weight", (7, 32), GgmlDType::Q8_0),
        ("blk.0.attn_q.weight", (32, 32), GgmlDType::Q4_0),
        ("blk.0.ffn_up.weight", (2, 256), GgmlDType::Q4K),
        ("output_norm.weight", (1, 32), GgmlDType::F32),
    ] {
        let tensor = Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap();
        tensors.push((name, QTensor::quantize(&tensor, dtype).unwrap()));
    }
    let fields: Vec<(&str, &Value)> = fields.iter().map(|(key, value)| (&**key, value)).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let mut bytes = Cursor::new(Vec::new());
    gguf_file::write(&mut bytes, &fields, &tensors).unwrap();
    bytes.into_inner()
}

thread_local! {
    /// The directory of the file, which every input replaces.
    static FOLDER: TempDir = tempfile::tempdir().unwrap();
}

fn read(input: &[u8]) -> Result<(), LoadError> {
    let path = FOLDER.with(|folder| folder.path().join("m.gguf"));
    std::fs::write(&path, input).unwrap();
    let files = gguf::checkpoint(&path)?;
    let tokenizer = Tokenizer::open(&files)?;
    // A text that it cannot encode is an error of the request.
    let ids = tokenizer.encode(TEXT, true).unwrap_or_default();
    tokenizer.decode_tokens(&ids);
    let weights = Weights::open(&files)?;
    weights.summary();
    let tensors: Vec<(String, Vec<usize>)> =
        weights.shapes().map(|(name, shape)| (name.to_owned(), shape.to_vec())).collect();
    for (name, shape) in tensors {
        weights.tensor(&name, &shape, DType::F32, &Device::Cpu)?;
    }
    Ok(())
}
