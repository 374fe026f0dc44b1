//! Writes a checkpoint directory as a GGUF file, with the names, orders and keys of llama.cpp's converter.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value as Field};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use serde_json::Value;

const LLAMA_NAMES: [(&str, &str); 17] = [
    ("model.layers.", "blk."),
    ("model.embed_tokens", "token_embd"),
    ("lm_head", "output"),
    ("model.norm", "output_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
];

const GPT2_NAMES: [(&str, &str); 10] = [
    ("transformer.h.", "blk."),
    ("transformer.wte", "token_embd"),
    ("transformer.wpe", "position_embd"),
    ("transformer.ln_f", "output_norm"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
    ("ln_1", "attn_norm"),
    ("ln_2", "ffn_norm"),
];

const T5_NAMES: [(&str, &str); 19] = [
    ("shared", "token_embd"),
    ("lm_head", "output"),
    ("encoder.block.", "enc.blk."),
    ("decoder.block.", "dec.blk."),
    ("encoder.final_layer_norm", "enc.output_norm"),
    ("decoder.final_layer_norm", "dec.output_norm"),
    (".layer.0.SelfAttention.relative_attention_bias", ".attn_rel_b"),
    (".layer.0.SelfAttention.", ".attn_"),
    (".layer.0.layer_norm", ".attn_norm"),
    (".layer.1.EncDecAttention.", ".cross_attn_"),
    (".layer.2.layer_norm", ".ffn_norm"),
    (".layer.1.DenseReluDense.wi_0", ".ffn_gate"),
    (".layer.1.DenseReluDense.wi_1", ".ffn_up"),
    (".layer.1.DenseReluDense.wi", ".ffn_up"),
    (".layer.1.DenseReluDense.wo", ".ffn_down"),
    (".layer.2.DenseReluDense.wi_0", ".ffn_gate"),
    (".layer.2.DenseReluDense.wi_1", ".ffn_up"),
    (".layer.2.DenseReluDense.wi", ".ffn_up"),
    (".layer.2.DenseReluDense.wo", ".ffn_down"),
];

pub(super) type Fields = Vec<(String, Field)>;

/// A checkpoint that is written as a GGUF file.
pub(super) struct Source {
    config: Value,
    /// `general.architecture`.
    architecture: String,
    tensors: HashMap<String, Tensor>,
    pub(super) fields: Fields,
}

fn read_json(file: &Path) -> Option<Value> {
    Some(serde_json::from_slice(&std::fs::read(file).ok()?).unwrap())
}

pub(super) fn count(number: usize) -> Field {
    Field::U32(number as u32)
}

fn texts(all: impl IntoIterator<Item = String>) -> Field {
    Field::Array(all.into_iter().map(Field::String).collect())
}

impl Source {
    pub(super) fn open(folder: &Path) -> Self {
        let config = read_json(&folder.join("config.json")).unwrap();
        let tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).unwrap();
        // llama.cpp has no separate architecture for Mistral.
        let architecture =
            config["model_type"].as_str().unwrap().replace("mistral", "llama").replace("_text", "");
        let fields = vec![("general.architecture".to_owned(), Field::String(architecture.clone()))];
        let mut source = Self { config, architecture, tensors, fields };
        source.add_sizes();
        source.add_rope();
        match read_json(&folder.join("tokenizer.json")) {
            Some(tokenizer) => source.add_tokenizer(&tokenizer),
            None => source.add_letters(),
        }
        for what in ["bos", "eos"] {
            if let Some(id) = source.config[format!("{what}_token_id")].as_u64() {
                source.fields.push((format!("tokenizer.ggml.{what}_token_id"), count(id as usize)));
            }
        }
        source
    }

    /// Adds a field with the prefix of the architecture.
    fn add(&mut self, key: &str, field: Field) {
        self.fields.push((format!("{}.{key}", self.architecture), field));
    }

    fn add_sizes(&mut self) {
        for (names, key) in [
            (&["num_hidden_layers", "n_layer", "num_layers"][..], "block_count"),
            (&["max_position_embeddings", "n_positions"], "context_length"),
            (&["hidden_size", "n_embd", "d_model"], "embedding_length"),
            (&["intermediate_size", "n_inner", "d_ff"], "feed_forward_length"),
            (&["num_attention_heads", "n_head", "num_heads"], "attention.head_count"),
            (&["num_key_value_heads"], "attention.head_count_kv"),
            (&["head_dim", "d_kv"], "attention.key_length"),
            (&["sliding_window"], "attention.sliding_window"),
            (&["num_decoder_layers"], "decoder_block_count"),
            (&["decoder_start_token_id"], "decoder_start_token_id"),
            (&["relative_attention_num_buckets"], "attention.relative_buckets_count"),
        ] {
            if let Some(size) = names.iter().find_map(|name| self.config[name].as_u64()) {
                self.add(key, count(size as usize));
            }
        }
        for (name, key) in [
            ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
            ("layer_norm_epsilon", "attention.layer_norm_epsilon"),
            ("embedding_multiplier", "embedding_scale"),
            ("residual_multiplier", "residual_scale"),
            ("logits_scaling", "logit_scale"),
            ("attention_multiplier", "attention.scale"),
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ] {
            if let Some(number) = self.config[name].as_f64() {
                let is_t5 = self.architecture == "t5" && name == "layer_norm_epsilon";
                let key = if is_t5 { "attention.layer_norm_rms_epsilon" } else { key };
                self.add(key, Field::F32(number as f32));
            }
        }
    }

    fn add_rope(&mut self) {
        let rope = match &self.config["rope_parameters"] {
            Value::Null => self.config["rope_scaling"].clone(),
            rope => rope.clone(),
        };
        // Layers with a window have the usual angles.
        let rope = rope.get("full_attention").unwrap_or(&rope).clone();
        let theta = rope["rope_theta"].as_f64().or(self.config["rope_theta"].as_f64());
        if let Some(theta) = theta {
            self.add("rope.freq_base", Field::F32(theta as f32));
        }
        let kind = rope["rope_type"].as_str().unwrap_or("default");
        if kind == "llama3" {
            let factors = llama3_factors(&rope, self.head_dim(), theta.unwrap());
            let length = factors.len();
            let tensor = Tensor::from_vec(factors, length, &Device::Cpu).unwrap();
            self.tensors.insert("rope_freqs.weight".to_owned(), tensor);
        }
        if kind == "longrope" {
            self.add_longrope(&rope);
        }
        if !matches!(kind, "linear" | "yarn") {
            return;
        }
        self.add("rope.scaling.type", Field::String(kind.to_owned()));
        for (name, key) in [("factor", "factor"), ("beta_fast", "yarn_beta_fast")] {
            if let Some(number) = rope[name].as_f64() {
                self.add(&format!("rope.scaling.{key}"), Field::F32(number as f32));
            }
        }
        if let Some(length) = rope["original_max_position_embeddings"].as_u64() {
            self.add("rope.scaling.original_context_length", count(length as usize));
        }
    }

    fn add_longrope(&mut self, rope: &Value) {
        let number = |value: &Value| value.as_f64().unwrap();
        let rotated = (self.head_dim() as f64 * number(&rope["partial_rotary_factor"])) as usize;
        self.add("rope.dimension_count", count(rotated));
        let trained = number(&rope["original_max_position_embeddings"]);
        self.add("rope.scaling.original_context_length", count(trained as usize));
        let stretch = number(&self.config["max_position_embeddings"]) / trained;
        let magnitude = (1.0 + stretch.ln() / trained.ln()).sqrt();
        self.add("rope.scaling.attn_factor", Field::F32(magnitude as f32));
        for length in ["short", "long"] {
            let factors = rope[format!("{length}_factor")].as_array().unwrap();
            let factors: Vec<f32> = factors.iter().map(|factor| number(factor) as f32).collect();
            let tensor = Tensor::from_vec(factors, rotated / 2, &Device::Cpu).unwrap();
            self.tensors.insert(format!("rope_factors_{length}.weight"), tensor);
        }
    }

    fn head_dim(&self) -> usize {
        let size = |name: &str| self.config[name].as_u64().unwrap() as usize;
        let head_dim = self.config["head_dim"].as_u64().map(|dim| dim as usize);
        head_dim.unwrap_or_else(|| size("hidden_size") / size("num_attention_heads"))
    }

    fn add_tokenizer(&mut self, json: &Value) {
        if json["model"]["type"] == "Unigram" {
            return self.add_unigram(json);
        }
        let added = json["added_tokens"].as_array().unwrap();
        let vocab = json["model"]["vocab"].as_object().unwrap();
        let mut names: Vec<(u64, String)> =
            vocab.iter().map(|(name, id)| (id.as_u64().unwrap(), name.clone())).collect();
        for token in added {
            names.push((token["id"].as_u64().unwrap(), token["content"].as_str().unwrap().to_owned()));
        }
        names.sort();
        names.dedup();
        let names: Vec<String> = names.into_iter().map(|(_, name)| name).collect();
        let mut merges = Vec::new();
        for merge in json["model"]["merges"].as_array().unwrap() {
            merges.push(match merge {
                Value::String(text) => text.clone(),
                pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
            });
        }
        let is_llama = json["model"]["byte_fallback"].as_bool().unwrap();
        let is_qwen = json["normalizer"]["type"] == "NFC";
        let mut kinds = Vec::new();
        let mut scores = Vec::new();
        for name in &names {
            let is_byte = is_llama && name.starts_with("<0x") && name.len() == 6;
            let is_added = added.iter().any(|token| token["content"].as_str() == Some(name));
            kinds.push(Field::I32(if is_added { 3 } else { 1 + 5 * i32::from(is_byte) }));
            let rank = merges.iter().position(|merge| merge.replacen(' ', "", 1) == *name);
            scores.push(Field::F32(rank.map_or(-1e4, |rank| -(rank as f32))));
        }
        let text = |text: &str| Field::String(text.to_owned());
        let mut add = |key: &str, field| self.fields.push((format!("tokenizer.ggml.{key}"), field));
        add("model", text(if is_llama { "llama" } else { "gpt2" }));
        add("pre", text(if is_qwen { "qwen2" } else { "gpt-2" }));
        add("tokens", texts(names));
        add("token_type", Field::Array(kinds));
        add("scores", Field::Array(scores));
        add("merges", texts(merges));
        self.fields.push(("tokenizer.chat_template".to_owned(), text("{{ messages[0].content }}")));
    }

    fn add_unigram(&mut self, json: &Value) {
        let added = json["added_tokens"].as_array().unwrap();
        let mut names = Vec::new();
        let mut kinds = Vec::new();
        let mut scores = Vec::new();
        for piece in json["model"]["vocab"].as_array().unwrap() {
            let is_added = added.iter().any(|token| token["content"] == piece[0]);
            names.push(piece[0].as_str().unwrap().to_owned());
            kinds.push(Field::I32(if is_added { 3 } else { 1 }));
            scores.push(Field::F32(piece[1].as_f64().unwrap() as f32));
        }
        let map = json["normalizer"]["precompiled_charsmap"].as_str().map(bytes_of_base64);
        let map = map.unwrap_or_default().into_iter().map(Field::U8).collect();
        for (key, field) in [
            ("model", Field::String("t5".to_owned())),
            ("tokens", texts(names)),
            ("token_type", Field::Array(kinds)),
            ("scores", Field::Array(scores)),
            ("unknown_token_id", count(json["model"]["unk_id"].as_u64().unwrap() as usize)),
            ("remove_extra_whitespaces", Field::Bool(true)),
            ("precompiled_charsmap", Field::Array(map)),
        ] {
            self.fields.push((format!("tokenizer.ggml.{key}"), field));
        }
    }

    /// Adds a tokenizer with one letter for each row of the embedding table.
    fn add_letters(&mut self) {
        let rows = self.config["vocab_size"].as_u64().unwrap() as u32;
        let letters = (0..rows).map(|id| char::from_u32(0x100 + id).unwrap().to_string());
        for (key, field) in [
            ("model", Field::String("gpt2".to_owned())),
            ("pre", Field::String("gpt-2".to_owned())),
            ("tokens", texts(letters)),
            ("merges", texts([])),
        ] {
            self.fields.push((format!("tokenizer.ggml.{key}"), field));
        }
    }

    /// Returns a tensor as llama.cpp's converter stores it, with its name.
    fn converted(&self, name: &str, tensor: &Tensor) -> (String, Tensor) {
        let tensor = tensor.to_dtype(DType::F32).unwrap();
        let is_gpt2 = self.architecture == "gpt2";
        let is_gemma = self.architecture.starts_with("gemma");
        let names: &[_] = match &*self.architecture {
            "gpt2" => &GPT2_NAMES,
            "t5" => &T5_NAMES,
            _ => &LLAMA_NAMES,
        };
        let mut stored = names.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
        if stored.starts_with("dec.") {
            stored = stored.replace(".layer.1.layer_norm", ".cross_attn_norm");
        }
        let stored = stored.replace(".layer.1.layer_norm", ".ffn_norm");
        let stored = match &*self.architecture {
            "olmo2" | "gemma2" | "gemma3" => stored
                .replace("ffn_norm", "post_attention_norm")
                .replace("pre_feedforward_layernorm", "ffn_norm")
                .replace("post_feedforward_layernorm", "post_ffw_norm"),
            _ => stored,
        };
        let heads = |field: &str| self.config[field].as_u64().unwrap() as usize;
        let is_paired = matches!(&*self.architecture, "llama" | "granite" | "smollm3");
        let tensor = if is_paired && stored.contains("attn_q.") {
            paired(&tensor, heads("num_attention_heads"))
        } else if is_paired && stored.contains("attn_k.") {
            paired(&tensor, heads("num_key_value_heads"))
        } else if is_gpt2 && stored.starts_with("blk.") && tensor.rank() == 2 {
            tensor.t().unwrap().contiguous().unwrap()
        } else if is_gemma && stored.ends_with("norm.weight") {
            (tensor + 1.0).unwrap()
        } else {
            tensor
        };
        (stored, tensor)
    }

    /// Writes the file. Matrices have this type.
    pub(super) fn write(&self, file: &Path, dtype: GgmlDType) {
        self.write_part(file, dtype, &self.fields, |_| true);
    }

    /// Writes two files: the layers are in the second one.
    pub(super) fn write_parts(&self, files: [&Path; 2]) {
        let part = |number| {
            [("split.no".to_owned(), Field::U16(number)), ("split.count".to_owned(), Field::U16(2))].to_vec()
        };
        let first = [self.fields.clone(), part(0)].concat();
        self.write_part(files[0], GgmlDType::F32, &first, |name| !name.contains("layers"));
        self.write_part(files[1], GgmlDType::F32, &part(1), |name| name.contains("layers"));
    }

    fn write_part(&self, file: &Path, dtype: GgmlDType, fields: &Fields, has: impl Fn(&str) -> bool) {
        let mut tensors = Vec::new();
        for (name, tensor) in self.tensors.iter().filter(|(name, _)| has(name)) {
            let (name, tensor) = self.converted(name, tensor);
            let dtype = if tensor.rank() == 2 { dtype } else { GgmlDType::F32 };
            tensors.push((name, QTensor::quantize(&tensor, dtype).unwrap()));
        }
        let fields: Vec<(&str, &Field)> = fields.iter().map(|(name, field)| (&**name, field)).collect();
        let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (&**name, tensor)).collect();
        gguf_file::write(&mut File::create(file).unwrap(), &fields, &tensors).unwrap();
    }
}

fn bytes_of_base64(text: &str) -> Vec<u8> {
    let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let mut bits = 0_u32;
    let mut count = 0;
    for letter in text.chars().filter(|&letter| letter != '=') {
        bits = bits << 6 | letters.find(letter).unwrap() as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

/// Reorders a projection: GGUF rotates adjacent elements of a head, Hugging Face elements that are half a
/// head apart.
fn paired(tensor: &Tensor, heads: usize) -> Tensor {
    let (rows, columns) = match tensor.dims() {
        [rows] => (*rows, 1),
        [rows, columns] => (*rows, *columns),
        other => panic!("{other:?}"),
    };
    let halves = tensor.reshape((heads, 2, rows / heads / 2, columns)).unwrap().transpose(1, 2).unwrap();
    halves.contiguous().unwrap().reshape(tensor.dims()).unwrap()
}

/// Returns the divisors of the angles, as the converter computes them for Llama 3.1.
fn llama3_factors(rope: &Value, head_dim: usize, theta: f64) -> Vec<f32> {
    let number = |name: &str| rope[name].as_f64().unwrap();
    let (factor, low, high) = (number("factor"), number("low_freq_factor"), number("high_freq_factor"));
    let trained = number("original_max_position_embeddings");
    let mut factors = Vec::new();
    for pair in 0..head_dim / 2 {
        let wavelength = std::f64::consts::TAU * theta.powf(2.0 * pair as f64 / head_dim as f64);
        factors.push(if wavelength < trained / high {
            1.0
        } else if wavelength > trained / low {
            factor
        } else {
            let smooth = (trained / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        } as f32);
    }
    factors
}
