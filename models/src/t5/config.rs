//! Reads and checks the `config.json` of a T5 checkpoint.

use ntl_text::checkpoint::{
    CONFIG_FILE, CheckpointFiles, FieldError, LoadError, TokenIds, check_epsilon, check_sizes,
};
use serde::Deserialize;

use crate::families::Family;
use crate::ops::Activation;

/// Shape of a T5. All sizes are at least 1.
#[derive(Debug, Clone, PartialEq)]
pub struct T5Config {
    pub(crate) family: Family,
    /// Rows of the embedding table; may exceed the tokenizer's ids.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width of a head.
    pub d_kv: usize,
    /// Width of the feed-forward layers.
    pub d_ff: usize,
    /// Layers of the encoder.
    pub num_layers: usize,
    pub num_decoder_layers: usize,
    pub num_heads: usize,
    /// Buckets of relative positions.
    pub num_buckets: usize,
    /// Positions at this distance or farther share one bucket.
    pub max_distance: usize,
    pub layer_norm_epsilon: f64,
    /// Activation of the feed-forward layers.
    pub activation: Activation,
    /// Whether the feed-forward layers have a gate.
    pub gated: bool,
    /// Whether hidden states are divided by `sqrt(d_model)` before a stored head. If the head is the
    /// embedding table, they always are.
    pub scale_stored_head: bool,
    /// First token of every decoder sequence.
    pub decoder_start_token_id: u32,
    pub eos_token_ids: Vec<u32>,
}

/// The stored fields. Missing fields get the defaults of the Hugging Face class.
#[derive(Deserialize)]
struct StoredT5 {
    vocab_size: usize,
    d_model: usize,
    d_kv: usize,
    d_ff: usize,
    num_layers: usize,
    num_decoder_layers: Option<usize>,
    num_heads: usize,
    relative_attention_num_buckets: Option<usize>,
    relative_attention_max_distance: Option<usize>,
    layer_norm_epsilon: Option<f64>,
    feed_forward_proj: Option<String>,
    tie_word_embeddings: Option<bool>,
    scale_decoder_outputs: Option<bool>,
    decoder_start_token_id: Option<u32>,
    pad_token_id: Option<u32>,
    eos_token_id: Option<TokenIds>,
}

impl T5Config {
    pub fn read(files: &CheckpointFiles) -> Result<Self, LoadError> {
        Self::check(Family::of(files)?, files.require_json(CONFIG_FILE)?)
            .map_err(|(field, reason)| LoadError::field(files.name_of(CONFIG_FILE), field, reason))
    }

    fn check(family: Family, stored: StoredT5) -> Result<Self, FieldError> {
        let (activation, gated) = feed_forward(stored.feed_forward_proj.as_deref().unwrap_or("relu"))?;
        let config = Self {
            family,
            vocab_size: stored.vocab_size,
            d_model: stored.d_model,
            d_kv: stored.d_kv,
            d_ff: stored.d_ff,
            num_layers: stored.num_layers,
            num_decoder_layers: stored.num_decoder_layers.unwrap_or(stored.num_layers),
            num_heads: stored.num_heads,
            num_buckets: stored.relative_attention_num_buckets.unwrap_or(32),
            max_distance: stored.relative_attention_max_distance.unwrap_or(128),
            layer_norm_epsilon: stored.layer_norm_epsilon.unwrap_or(1e-6),
            activation,
            gated,
            scale_stored_head: stored.scale_decoder_outputs.or(stored.tie_word_embeddings).unwrap_or(true),
            decoder_start_token_id: stored.decoder_start_token_id.or(stored.pad_token_id).unwrap_or(0),
            eos_token_ids: stored.eos_token_id.map_or_else(|| vec![1], TokenIds::into_vec),
        };
        config.check_sizes()?;
        Ok(config)
    }

    fn check_sizes(&self) -> Result<(), FieldError> {
        /// Limits the bias table, which has an entry per distance and head. The original models have 128.
        const DISTANCE_MAX: usize = 1 << 16;
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("d_model", self.d_model),
            ("d_kv", self.d_kv),
            ("d_ff", self.d_ff),
            ("num_layers", self.num_layers),
            ("num_decoder_layers", self.num_decoder_layers),
            ("num_heads", self.num_heads),
            ("relative_attention_max_distance", self.max_distance),
        ])?;
        check_epsilon("layer_norm_epsilon", self.layer_norm_epsilon)?;
        if self.max_distance > DISTANCE_MAX {
            let reason = format!("{} is out of range", self.max_distance);
            return Err(("relative_attention_max_distance", reason));
        }
        if self.num_buckets < 4 || self.num_buckets / 2 > self.max_distance {
            return Err(("relative_attention_num_buckets", format!("{} is out of range", self.num_buckets)));
        }
        if self.decoder_start_token_id as usize >= self.vocab_size {
            return Err((
                "decoder_start_token_id",
                format!("{} is outside the vocabulary", self.decoder_start_token_id),
            ));
        }
        Ok(())
    }

    /// Width of all heads together.
    pub fn inner(&self) -> usize {
        self.num_heads * self.d_kv
    }
}

/// Returns the value of a field that has no default.
pub(super) fn required<T>(field: &'static str, value: Option<T>) -> Result<T, FieldError> {
    value.ok_or_else(|| (field, "missing".to_owned()))
}

fn feed_forward(name: &str) -> Result<(Activation, bool), FieldError> {
    let (gated, activation) =
        name.strip_prefix("gated-").map_or((false, name), |activation| (true, activation));
    let activation = match (activation, gated) {
        ("relu", _) => Activation::Relu,
        // Hugging Face uses the approximation for `gated-gelu`.
        ("gelu", true) | ("gelu_new", _) => Activation::GeluNew,
        ("silu" | "swish", _) => Activation::Silu,
        _ => return Err(("feed_forward_proj", format!("`{name}` is not supported"))),
    };
    Ok((activation, gated))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(change: &str) -> Result<T5Config, LoadError> {
        let folder = tempfile::tempdir().unwrap();
        let mut config: serde_json::Value = serde_json::json!({
            "architectures": ["T5ForConditionalGeneration"], "vocab_size": 2101, "d_model": 96, "d_kv": 24,
            "d_ff": 256, "num_layers": 2, "num_heads": 4, "eos_token_id": 1, "pad_token_id": 0
        });
        let change: serde_json::Map<String, serde_json::Value> = serde_json::from_str(change).unwrap();
        config.as_object_mut().unwrap().extend(change);
        std::fs::write(folder.path().join(CONFIG_FILE), config.to_string()).unwrap();
        T5Config::read(&CheckpointFiles::folder(folder.path()).unwrap())
    }

    #[test]
    fn heads_need_not_be_as_wide_as_the_model_together() {
        // mT5-small.
        let config = read(
            r#"{"d_model": 512, "d_kv": 64, "num_heads": 6, "d_ff": 1024, "vocab_size": 250112, "num_layers": 8,
                "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false, "model_type": "mt5"}"#,
        );
        let config = config.unwrap();
        assert_eq!((config.inner(), config.gated, config.scale_stored_head), (384, true, false));
    }

    #[test]
    fn missing_fields_get_the_defaults_of_the_hugging_face_class() {
        let config = read("{}").unwrap();
        assert_eq!((config.num_decoder_layers, config.num_buckets, config.max_distance), (2, 32, 128));
        assert_eq!(
            (config.activation, config.gated, config.scale_stored_head),
            (Activation::Relu, false, true)
        );
        assert_eq!((config.decoder_start_token_id, config.eos_token_ids), (0, vec![1]));
    }

    #[test]
    fn variants_are_read_from_either_writers_spelling() {
        let config = read(r#"{"feed_forward_proj": "gated-gelu", "tie_word_embeddings": false}"#).unwrap();
        assert_eq!(
            (config.activation, config.gated, config.scale_stored_head),
            (Activation::GeluNew, true, false)
        );
        let config = read(r#"{"tie_word_embeddings": true, "scale_decoder_outputs": false}"#).unwrap();
        assert!(!config.scale_stored_head);
    }

    #[test]
    fn bad_fields_are_named() {
        for (change, field) in [
            (r#"{"num_heads": 0}"#, "num_heads"),
            (r#"{"num_layers": 1000000000}"#, "num_layers"),
            (r#"{"layer_norm_epsilon": -1e-6}"#, "layer_norm_epsilon"),
            (r#"{"d_ff": 1099511627776}"#, "d_ff"),
            (r#"{"feed_forward_proj": "gated-tanh"}"#, "feed_forward_proj"),
            (r#"{"relative_attention_num_buckets": 2}"#, "relative_attention_num_buckets"),
            (r#"{"decoder_start_token_id": 9999}"#, "decoder_start_token_id"),
            (r#"{"d_model": "wide"}"#, "string \"wide\""),
        ] {
            let message = read(change).unwrap_err().to_string();
            assert!(message.contains(field) && message.contains("config.json"), "{change}: {message}");
        }
    }
}
