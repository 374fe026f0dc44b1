//! Converts the metadata of a GGUF file to the `config.json` of a Hugging Face checkpoint.
//!
//! Every size is checked here, so that an error names the key of the file and not a field that it does not
//! have.

use serde_json::{Map, Value as Json, json};

use super::file::GgufFile;
use super::tokenizer::end_ids;
use super::types::{GgmlType, TensorType};
use super::value::Value;
use crate::checkpoint::{CheckpointFiles, LoadError};

const ARCHITECTURE: &str = "general.architecture";

/// Architectures that the native engine serves, with the class of each in `config.json`.
const CLASSES: [(&str, &str); 11] = [
    ("gemma2", "Gemma2ForCausalLM"),
    ("gemma3", "Gemma3ForCausalLM"),
    ("gpt2", "GPT2LMHeadModel"),
    ("granite", "GraniteForCausalLM"),
    ("llama", "LlamaForCausalLM"),
    ("olmo2", "Olmo2ForCausalLM"),
    ("phi3", "Phi3ForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("smollm3", "SmolLM3ForCausalLM"),
    ("t5", "T5ForConditionalGeneration"),
];

/// Factors by which the angles of rotary positions are divided (Llama 3.1).
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The same within the training length (LongRoPE).
const SHORT_FACTORS: &str = "rope_factors_short.weight";

/// The number of elements of a head that are rotated.
const ROTATED: &str = "rope.dimension_count";

/// Returns the architectures that the native engine serves from GGUF files.
pub fn native_architectures() -> Vec<&'static str> {
    CLASSES.iter().map(|&(architecture, _)| architecture).collect()
}

/// The metadata of one architecture, whose keys begin with its name.
pub(super) struct GgufConfig<'a> {
    gguf: &'a GgufFile,
    pub(super) architecture: &'a str,
    class: &'static str,
}

impl<'a> GgufConfig<'a> {
    /// Checks that the file holds a model that the native engine serves.
    pub(super) fn new(gguf: &'a GgufFile) -> Result<Self, LoadError> {
        const KIND: &str = "general.type";
        if let Some(kind) = gguf.text(KIND)?
            && kind != "model"
        {
            return Err(gguf.field(KIND, format!("`{kind}` is not a model")));
        }
        let architecture = gguf.text(ARCHITECTURE)?.ok_or_else(|| gguf.field(ARCHITECTURE, "missing"))?;
        let Some(&(_, class)) = CLASSES.iter().find(|&&(name, _)| name == architecture) else {
            let known = native_architectures().join(", ");
            let reason = format!("`{architecture}` is not served natively; known are {known}");
            return Err(gguf.field(ARCHITECTURE, reason));
        };
        Ok(Self { gguf, architecture, class })
    }

    /// Returns the contents of `config.json`.
    pub(super) fn json(&self, files: &CheckpointFiles) -> Result<Json, LoadError> {
        let mut json = match self.class {
            "GPT2LMHeadModel" => self.gpt2()?,
            "T5ForConditionalGeneration" => self.t5()?,
            _ => self.llama(files)?,
        };
        let rows = self.vocabulary_rows()?;
        let is_mistral = self.architecture == "llama" && json.get("sliding_window").is_some();
        let class = if is_mistral { "MistralForCausalLM" } else { self.class };
        let mut common = json!({
            "architectures": [class],
            "model_type": self.architecture,
            "vocab_size": rows,
            "tie_word_embeddings": !self.gguf.tensors().contains_key("output.weight"),
            "eos_token_id": end_ids(self.gguf)?,
        });
        let bos = self.gguf.id("tokenizer.ggml.bos_token_id")?;
        // Some files name an id that the model does not have, for a token that no text begins with.
        if let Some(id) = bos.filter(|&id| (id as usize) < rows) {
            common["bos_token_id"] = id.into();
        }
        if let (Json::Object(json), Json::Object(common)) = (&mut json, common) {
            json.extend(common);
        }
        Ok(json)
    }

    /// Returns the number of rows of the embedding table.
    fn vocabulary_rows(&self) -> Result<usize, LoadError> {
        const EMBEDDINGS: &str = "token_embd.weight";
        match self.gguf.tensors().get(EMBEDDINGS).map(|tensor| &tensor.shape[..]) {
            Some(&[rows, _]) => Ok(rows),
            Some(shape) => {
                let reason = format!("shape {shape:?} is not a table");
                Err(LoadError::tensor(self.gguf.place(), EMBEDDINGS, reason))
            }
            None => Err(LoadError::MissingTensor {
                file: self.gguf.place().to_owned(),
                name: EMBEDDINGS.to_owned(),
            }),
        }
    }

    fn gpt2(&self) -> Result<Json, LoadError> {
        let mut json = json!({
            "n_positions": self.size("context_length")?,
            "n_embd": self.size("embedding_length")?,
            "n_layer": self.size("block_count")?,
            "n_head": self.size("attention.head_count")?,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": self.require_number("attention.layer_norm_epsilon")?,
        });
        if let Some(inner) = self.optional_size("feed_forward_length")? {
            json["n_inner"] = inner.into();
        }
        Ok(json)
    }

    fn t5(&self) -> Result<Json, LoadError> {
        let width = self.size("embedding_length")?;
        let heads = self.size("attention.head_count")?;
        let layers = self.size("block_count")?;
        let is_gated = self.gguf.tensors().contains_key("enc.blk.0.ffn_gate.weight");
        let mut json = json!({
            "d_model": width,
            "d_kv": self.head_dim(width, heads)?,
            "d_ff": self.size("feed_forward_length")?,
            "num_layers": layers,
            "num_decoder_layers": self.optional_size("decoder_block_count")?.unwrap_or(layers),
            "num_heads": heads,
            "feed_forward_proj": if is_gated { "gated-gelu" } else { "relu" },
            "layer_norm_epsilon": self.require_number("attention.layer_norm_rms_epsilon")?,
        });
        if let Some(buckets) = self.optional_size("attention.relative_buckets_count")? {
            json["relative_attention_num_buckets"] = buckets.into();
        }
        if let Some(start) = self.gguf.id(&self.key("decoder_start_token_id"))? {
            json["decoder_start_token_id"] = start.into();
        }
        Ok(json)
    }

    fn llama(&self, files: &CheckpointFiles) -> Result<Json, LoadError> {
        self.reject_experts()?;
        let hidden = self.size("embedding_length")?;
        let heads = self.size("attention.head_count")?;
        let head_dim = self.head_dim(hidden, heads)?;
        let mut json = json!({
            "hidden_size": hidden,
            "intermediate_size": self.size("feed_forward_length")?,
            "num_hidden_layers": self.size("block_count")?,
            "num_attention_heads": heads,
            "num_key_value_heads": self.optional_size("attention.head_count_kv")?.unwrap_or(heads),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.size("context_length")?,
            "rms_norm_eps": self.require_number("attention.layer_norm_rms_epsilon")?,
            "rope_theta": self.number("rope.freq_base")?.unwrap_or(10_000.0),
            "attention_bias": self.gguf.tensors().contains_key("blk.0.attn_q.bias"),
            "mlp_bias": self.gguf.tensors().contains_key("blk.0.ffn_up.bias"),
        });
        if let Some(scaling) = self.rope_scaling(files, head_dim)? {
            json["rope_scaling"] = scaling;
        }
        if self.architecture == "phi3" {
            self.add_partial_rope(&mut json, files, head_dim)?;
        }
        self.add_window(&mut json)?;
        if self.is_gemma() {
            self.add_gemma(&mut json, head_dim)?;
        }
        for (field, name) in [
            ("embedding_multiplier", "embedding_scale"),
            ("residual_multiplier", "residual_scale"),
            ("logits_scaling", "logit_scale"),
            ("attention_multiplier", "attention.scale"),
        ] {
            if let Some(number) = self.number(name)? {
                self.require_granite(name)?;
                json[field] = number.into();
            }
        }
        Ok(json)
    }

    /// Adds the fields of Phi-3's rotary positions: only the first elements of a head are rotated, and the
    /// angles may have divisors.
    fn add_partial_rope(
        &self,
        json: &mut Json,
        files: &CheckpointFiles,
        head_dim: usize,
    ) -> Result<(), LoadError> {
        let rotated = self.optional_size(ROTATED)?.unwrap_or(head_dim);
        if rotated > head_dim {
            let reason = format!("{rotated} exceeds the {head_dim} elements of a head's keys");
            return Err(self.gguf.field(self.key(ROTATED), reason));
        }
        if rotated < head_dim {
            // The product with the elements of a head is rounded down.
            json["partial_rotary_factor"] = ((rotated as f64 + 0.5) / head_dim as f64).into();
        }
        if let Some(trained) = self.optional_size("rope.scaling.original_context_length")? {
            json["original_max_position_embeddings"] = trained.into();
        }
        if self.gguf.tensors().contains_key(SHORT_FACTORS) {
            let factors = self.rope_factors(files, SHORT_FACTORS, rotated)?;
            let mut scaling = json!({"rope_type": "longrope", "short_factor": factors});
            if let Some(magnitude) = self.number("rope.scaling.attn_factor")? {
                scaling["attention_factor"] = magnitude.into();
            }
            json["rope_scaling"] = scaling;
        }
        Ok(())
    }

    fn is_gemma(&self) -> bool {
        matches!(self.architecture, "gemma2" | "gemma3")
    }

    /// Adds the fields that only Gemma has. llama.cpp's defaults replace those that the file lacks.
    fn add_gemma(&self, json: &mut Json, head_dim: usize) -> Result<(), LoadError> {
        // The published models with 27B parameters scale scores differently.
        let is_largest =
            matches!((self.architecture, self.size("block_count")?), ("gemma2", 46) | ("gemma3", 62));
        let scalar = if is_largest {
            self.size("embedding_length")? / self.size("attention.head_count")?
        } else {
            head_dim
        };
        json["query_pre_attn_scalar"] = scalar.into();
        json["hidden_activation"] = "gelu_pytorch_tanh".into();
        if self.architecture == "gemma3" {
            json["rope_local_base_freq"] = self.number("rope.freq_base_swa")?.unwrap_or(10_000.0).into();
        }
        for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if let Some(cap) = self.number(name)? {
                json[name] = cap.into();
            }
        }
        Ok(())
    }

    fn require_granite(&self, name: &str) -> Result<(), LoadError> {
        if self.architecture == "granite" {
            return Ok(());
        }
        let reason = format!("multipliers of `{}` are not supported", self.architecture);
        Err(self.gguf.field(self.key(name), reason))
    }

    fn reject_experts(&self) -> Result<(), LoadError> {
        match self.optional_size("expert_count")? {
            None => Ok(()),
            Some(_) => Err(self.gguf.field(self.key("expert_count"), "experts are not served natively")),
        }
    }

    /// Adds a window of attention, which files of Mistral (`llama`), Phi-3 and Gemma have.
    fn add_window(&self, json: &mut Json) -> Result<(), LoadError> {
        const WINDOW: &str = "attention.sliding_window";
        let Some(window) = self.optional_size(WINDOW)? else {
            return if self.is_gemma() { Err(self.gguf.field(self.key(WINDOW), "missing")) } else { Ok(()) };
        };
        if !matches!(self.architecture, "llama" | "phi3") && !self.is_gemma() {
            let reason = format!("a window of `{}` is not supported", self.architecture);
            return Err(self.gguf.field(self.key(WINDOW), reason));
        }
        json["sliding_window"] = window.into();
        Ok(())
    }

    fn head_dim(&self, hidden: usize, heads: usize) -> Result<usize, LoadError> {
        const LENGTH: &str = "attention.key_length";
        let head_dim = match self.optional_size(LENGTH)? {
            Some(length) => length,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let reason = format!("{heads} does not divide the width {hidden}");
                return Err(self.gguf.field(self.key("attention.head_count"), reason));
            }
        };
        let rotated = if self.architecture == "phi3" { None } else { Some(ROTATED) };
        for name in ["attention.value_length"].into_iter().chain(rotated) {
            if let Some(length) = self.optional_size(name)?
                && length != head_dim
            {
                let reason = format!("{length} differs from the {head_dim} elements of a head's keys");
                return Err(self.gguf.field(self.key(name), reason));
            }
        }
        Ok(head_dim)
    }

    /// Returns `rope_scaling`.
    fn rope_scaling(&self, files: &CheckpointFiles, head_dim: usize) -> Result<Option<Json>, LoadError> {
        const KIND: &str = "rope.scaling.type";
        let kind = self.gguf.text(&self.key(KIND))?;
        if self.gguf.tensors().contains_key(ROPE_FACTORS) {
            let factors = self.rope_factors(files, ROPE_FACTORS, head_dim)?;
            return match kind {
                None | Some("none") => {
                    Ok(Some(json!({"rope_type": "frequency_factors", "frequency_factors": factors})))
                }
                Some(kind) => {
                    let reason = format!("`{kind}` together with {ROPE_FACTORS} is not supported");
                    Err(self.gguf.field(self.key(KIND), reason))
                }
            };
        }
        let mut scaling = match kind {
            None | Some("none") => return Ok(None),
            Some(kind @ ("linear" | "yarn")) => Map::from_iter([("rope_type".to_owned(), Json::from(kind))]),
            Some(other) => {
                let reason = format!("`{other}` is not supported; none, linear and yarn are");
                return Err(self.gguf.field(self.key(KIND), reason));
            }
        };
        let prefix = self.key("rope.scaling.");
        for key in self.gguf.keys(&prefix) {
            let field = match key.strip_prefix(&prefix).unwrap_or_default() {
                "type" | "finetuned" => continue,
                "factor" => "factor",
                "original_context_length" => "original_max_position_embeddings",
                "attn_factor" | "yarn_attn_factor" => "attention_factor",
                "yarn_beta_fast" => "beta_fast",
                "yarn_beta_slow" => "beta_slow",
                _ => return Err(self.gguf.field(key, "not supported")),
            };
            scaling.insert(field.to_owned(), self.rope_value(key, field)?);
        }
        Ok(Some(Json::Object(scaling)))
    }

    fn rope_value(&self, key: &str, field: &str) -> Result<Json, LoadError> {
        if field == "original_max_position_embeddings" {
            return Ok(self.gguf.size(key)?.into());
        }
        match self.number_of(key)? {
            Some(number) if number > 0.0 => Ok(number.into()),
            _ => Err(self.gguf.field(key, "not a positive number")),
        }
    }

    /// Reads the divisors of the angles from a tensor, one for each pair of the rotated elements of a head.
    fn rope_factors(
        &self,
        files: &CheckpointFiles,
        name: &str,
        rotated: usize,
    ) -> Result<Vec<f64>, LoadError> {
        let wrong = |reason: &str| LoadError::tensor(self.gguf.place(), name, reason);
        let Some(tensor) = self.gguf.tensors().get(name) else { return Ok(Vec::new()) };
        if tensor.stored != TensorType::Known(GgmlType::F32) || tensor.shape != [rotated / 2] {
            return Err(wrong("not one f32 for each pair of a head's rotated elements"));
        }
        let reader = files.open(&self.gguf.parts()[tensor.part])?;
        let bytes = reader.part(tensor.offset, 4 * tensor.shape[0] as u64);
        let bytes = bytes.map_err(|error| wrong(&format!("cannot be read: {error}")))?;
        let mut factors = Vec::new();
        for number in bytes.as_chunks().0 {
            let factor = f32::from_le_bytes(*number);
            if !(factor.is_finite() && factor > 0.0) {
                return Err(wrong(&format!("element {} is {factor}", factors.len())));
            }
            factors.push(f64::from(factor));
        }
        Ok(factors)
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn size(&self, name: &str) -> Result<usize, LoadError> {
        self.optional_size(name)?.ok_or_else(|| self.gguf.field(self.key(name), "missing, or 0"))
    }

    fn optional_size(&self, name: &str) -> Result<Option<usize>, LoadError> {
        self.gguf.size(&self.key(name))
    }

    fn number(&self, name: &str) -> Result<Option<f64>, LoadError> {
        self.number_of(&self.key(name))
    }

    fn number_of(&self, key: &str) -> Result<Option<f64>, LoadError> {
        match self.gguf.get(key) {
            None => Ok(None),
            Some(Value::Float(number)) if number.is_finite() => Ok(Some(*number)),
            Some(Value::Float(number)) => Err(self.gguf.field(key, format!("{number} is out of range"))),
            Some(other) => Err(self.gguf.field(key, format!("{} instead of a float", other.described()))),
        }
    }

    fn require_number(&self, name: &str) -> Result<f64, LoadError> {
        self.number(name)?.ok_or_else(|| self.gguf.field(self.key(name), "missing"))
    }
}
