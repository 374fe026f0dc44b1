//! Reads the `config.json` of a T5Gemma, as stored by transformers 4 or 5. Defaults come from the Hugging
//! Face classes.

use ntl_text::checkpoint::{
    CONFIG_FILE, CheckpointFiles, FieldError, GENERATION_FILE, LayerType, LoadError, LoadResult, TokenIds,
    check_cap, check_count, check_epsilon, check_not_quantised, check_sizes, layer_types,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::config::{GemmaConfig, StackConfig, Tables};
use crate::families::{Family, GemmaVersion};
use crate::ops::{Activation, Heads, Window};
use crate::rope::{RopeShape, Rotary, StoredRopes};
use crate::t5::attention::AttentionKind;
use crate::t5::config::required;

#[derive(Deserialize)]
struct StoredT5Gemma<E> {
    encoder: E,
    decoder: StoredStack,
    tie_word_embeddings: Option<bool>,
    decoder_start_token_id: Option<u32>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<TokenIds>,
    eoi_token_index: Option<u32>,
    quantization_config: Option<serde_json::Value>,
}

/// The encoder of T5Gemma 2, whose text stack is one of its parts.
#[derive(Deserialize)]
pub(in crate::t5) struct StoredSecondEncoder {
    pub(in crate::t5) text_config: StoredStack,
    pub(in crate::t5) eoi_token_index: Option<u32>,
}

#[derive(Deserialize)]
pub(in crate::t5) struct StoredStack {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    hidden_activation: Option<String>,
    max_position_embeddings: usize,
    rms_norm_eps: Option<f64>,
    query_pre_attn_scalar: f64,
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
    attention_bias: Option<bool>,
    /// `Some(None)` is a stored `null`: no cap.
    #[serde(default, deserialize_with = "stored")]
    attn_logit_softcapping: Option<Option<f64>>,
    #[serde(default, deserialize_with = "stored")]
    final_logit_softcapping: Option<Option<f64>>,
    rope_theta: Option<f64>,
    rope_parameters: Option<StoredRopes>,
    bos_token_id: Option<u32>,
}

/// The ids that Hugging Face's generation prefers to those in `config.json`.
#[derive(Default, Deserialize)]
struct StoredGeneration {
    decoder_start_token_id: Option<u32>,
    eos_token_id: Option<TokenIds>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Encoder,
    Decoder,
}

/// The configuration of RegressLM. The vocabulary sizes of its backbone are obsolete.
#[derive(Deserialize)]
struct StoredRegressLm<B> {
    backbone_config: B,
    encoder_vocab_size: usize,
    quantization_config: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct StoredEncoderOnly {
    encoder: StoredStack,
}

#[derive(Deserialize)]
struct StoredStacks {
    encoder: StoredStack,
    decoder: StoredStack,
}

fn stored<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<f64>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl GemmaConfig {
    pub(crate) fn read(files: &CheckpointFiles, version: GemmaVersion) -> LoadResult<Self> {
        let family = Family::of(files)?;
        let (stored, stack) = match version {
            GemmaVersion::One => (files.require_json::<StoredT5Gemma<StoredStack>>(CONFIG_FILE)?, "encoder"),
            GemmaVersion::Two => {
                let stored: StoredT5Gemma<StoredSecondEncoder> = files.require_json(CONFIG_FILE)?;
                (stored.flattened(), "encoder.text_config")
            }
        };
        let encoder = stored.encoder.resolve(version, Side::Encoder);
        let encoder =
            encoder.map_err(|(field, reason)| field_error(files, format!("{stack}.{field}"), reason))?;
        let decoder = stored.decoder.resolve(version, Side::Decoder);
        let decoder =
            decoder.map_err(|(field, reason)| field_error(files, format!("decoder.{field}"), reason))?;
        let generation = files.json::<StoredGeneration>(GENERATION_FILE)?.unwrap_or_default();
        let config = stored.combined(family, version, [encoder, decoder], generation);
        config.map_err(|(field, reason)| field_error(files, field, reason))
    }
}

/// RegressLM, computed as transformers 4.53 does by default: without the cap of scores, and with windows of
/// the encoder that are one position shorter on both sides.
impl<B: DeserializeOwned> StoredRegressLm<B> {
    fn read(files: &CheckpointFiles) -> LoadResult<Self> {
        let stored: Self = files.require_json(CONFIG_FILE)?;
        match check_not_quantised(stored.quantization_config.as_ref()) {
            Ok(()) => Ok(stored),
            Err((field, reason)) => Err(field_error(files, field, reason)),
        }
    }

    fn encoder(&self, files: &CheckpointFiles, stored: &StoredStack) -> LoadResult<StackConfig> {
        let encoder = stored.regresslm_encoder().map_err(in_backbone(files, "encoder"))?;
        let vocab_size = checked_size(files, "encoder_vocab_size", self.encoder_vocab_size)?;
        Ok(StackConfig { vocab_size, ..encoder })
    }
}

fn in_backbone(files: &CheckpointFiles, stack: &'static str) -> impl Fn(FieldError) -> LoadError {
    move |(field, reason)| field_error(files, format!("backbone_config.{stack}.{field}"), reason)
}

fn checked_size(files: &CheckpointFiles, field: &'static str, size: usize) -> LoadResult<usize> {
    match check_sizes(&[(field, size)]) {
        Ok(()) => Ok(size),
        Err((field, reason)) => Err(field_error(files, field, reason)),
    }
}

fn field_error(files: &CheckpointFiles, field: impl Into<String>, reason: String) -> LoadError {
    LoadError::field(files.name_of(CONFIG_FILE), field, reason)
}

impl StackConfig {
    /// Reads the encoder of a RegressLM with a regression head.
    pub(super) fn read_regresslm(files: &CheckpointFiles) -> LoadResult<Self> {
        let stored = StoredRegressLm::<StoredEncoderOnly>::read(files)?;
        stored.encoder(files, &stored.backbone_config.encoder)
    }
}

impl GemmaConfig {
    /// Reads a RegressLM whose decoder has `tokens` number tokens.
    pub(super) fn read_regresslm(files: &CheckpointFiles, tokens: usize) -> LoadResult<Self> {
        let stored = StoredRegressLm::<StoredStacks>::read(files)?;
        let StoredStacks { encoder, decoder: stored_decoder } = &stored.backbone_config;
        let encoder = stored.encoder(files, encoder)?;
        let decoder = stored_decoder.resolve(GemmaVersion::One, Side::Decoder);
        let mut decoder = decoder.map_err(in_backbone(files, "decoder"))?;
        decoder.heads.cap = None;
        decoder.vocab_size = tokens;
        let field = "backbone_config.decoder.final_logit_softcapping";
        let cap = stored_decoder.final_logit_softcapping.unwrap_or(Some(30.0));
        let cap = check_cap(field, cap).map_err(|(field, reason)| field_error(files, field, reason))?;
        Ok(Self {
            family: Family::of(files)?,
            encoder,
            decoder,
            has_merged_attention: false,
            tables: Tables::Separate,
            logits_cap: cap,
            image_end_id: None,
            start_id: 0,
            // The padding, which also ends sequences, is in no answer.
            eos_ids: Vec::new(),
        })
    }
}

impl StoredT5Gemma<StoredSecondEncoder> {
    fn flattened(self) -> StoredT5Gemma<StoredStack> {
        StoredT5Gemma {
            encoder: self.encoder.text_config,
            decoder: self.decoder,
            tie_word_embeddings: self.tie_word_embeddings,
            decoder_start_token_id: self.decoder_start_token_id,
            bos_token_id: self.bos_token_id,
            eos_token_id: self.eos_token_id,
            eoi_token_index: self.eoi_token_index,
            quantization_config: self.quantization_config,
        }
    }
}

impl StoredT5Gemma<StoredStack> {
    fn combined(
        self,
        family: Family,
        version: GemmaVersion,
        [encoder, decoder]: [StackConfig; 2],
        generation: StoredGeneration,
    ) -> Result<GemmaConfig, FieldError> {
        check_not_quantised(self.quantization_config.as_ref())?;
        let is_second = version == GemmaVersion::Two;
        if is_second && encoder.hidden_size != decoder.hidden_size {
            let reason =
                format!("{} differs from the encoder's {}", decoder.hidden_size, encoder.hidden_size);
            return Err(("decoder.hidden_size", reason));
        }
        if is_second && encoder.vocab_size != decoder.vocab_size {
            let reason = format!("{} differs from the encoder's {}", decoder.vocab_size, encoder.vocab_size);
            return Err(("decoder.vocab_size", reason));
        }
        let start_id = generation
            .decoder_start_token_id
            .or(self.decoder_start_token_id)
            .or(self.decoder.bos_token_id)
            .or(self.bos_token_id)
            .unwrap_or(2);
        if start_id as usize >= decoder.vocab_size {
            return Err(("decoder_start_token_id", format!("{start_id} is outside the vocabulary")));
        }
        let cap = self.decoder.final_logit_softcapping.unwrap_or(if is_second { None } else { Some(30.0) });
        Ok(GemmaConfig {
            family,
            encoder,
            decoder,
            has_merged_attention: is_second,
            tables: match (version, self.tie_word_embeddings.unwrap_or(true)) {
                (GemmaVersion::Two, _) => Tables::One,
                (GemmaVersion::One, true) => Tables::TiedHead,
                (GemmaVersion::One, false) => Tables::Separate,
            },
            logits_cap: check_cap("decoder.final_logit_softcapping", cap)?,
            image_end_id: if is_second { self.eoi_token_index } else { None },
            start_id,
            eos_ids: generation
                .eos_token_id
                .or(self.eos_token_id)
                .map_or_else(|| vec![1], TokenIds::into_vec),
        })
    }
}

impl StoredStack {
    /// Lets all layers attend to all positions.
    pub(in crate::t5) fn remove_windows(&mut self) -> Result<(), FieldError> {
        let layers = check_count("num_hidden_layers", self.num_hidden_layers)?;
        self.layer_types = Some(vec!["full_attention".to_owned(); layers]);
        Ok(())
    }

    /// Returns the encoder of a T5Gemma 2.
    pub(in crate::t5) fn second_encoder(&self) -> Result<StackConfig, FieldError> {
        self.resolve(GemmaVersion::Two, Side::Encoder)
    }

    /// Returns the encoder of a RegressLM with a T5Gemma 1.
    pub(in crate::t5) fn regresslm_encoder(&self) -> Result<StackConfig, FieldError> {
        let mut encoder = self.resolve(GemmaVersion::One, Side::Encoder)?;
        encoder.heads.cap = None;
        for window in encoder.kinds.iter_mut().filter_map(|kind| kind.window.as_mut()) {
            *window = Window { before: window.before - 1, after: window.after - 1 };
        }
        Ok(encoder)
    }

    fn resolve(&self, version: GemmaVersion, side: Side) -> Result<StackConfig, FieldError> {
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("max_position_embeddings", self.max_position_embeddings),
        ])?;
        check_count("num_hidden_layers", self.num_hidden_layers)?;
        check_count("head_dim", self.head_dim)?;
        let eps = self.rms_norm_eps.unwrap_or(1e-6);
        check_epsilon("rms_norm_eps", eps)?;
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let reason = format!(
                "{} does not divide the {} query heads",
                self.num_key_value_heads, self.num_attention_heads
            );
            return Err(("num_key_value_heads", reason));
        }
        if self.attention_bias == Some(true) {
            return Err(("attention_bias", "only false is supported".to_owned()));
        }
        if !(self.query_pre_attn_scalar.is_finite() && self.query_pre_attn_scalar > 0.0) {
            return Err(("query_pre_attn_scalar", format!("{} is out of range", self.query_pre_attn_scalar)));
        }
        let activation = self.hidden_activation.as_deref().unwrap_or("gelu_pytorch_tanh");
        let is_second = version == GemmaVersion::Two;
        // The second version reads this field, but never applies it.
        let cap = if is_second { None } else { self.attn_logit_softcapping.unwrap_or(Some(50.0)) };
        let types = self.layer_types(version)?;
        let mut distinct = types.clone();
        distinct.sort_by_key(|layer| *layer == LayerType::Sliding);
        distinct.dedup();
        Ok(StackConfig {
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            heads: Heads {
                queries: self.num_attention_heads,
                keys: self.num_key_value_heads,
                scale: self.query_pre_attn_scalar.powf(-0.5) as f32,
                cap: check_cap("attn_logit_softcapping", cap)?,
            },
            head_dim: self.head_dim,
            has_head_norms: is_second,
            kinds: self.layer_kinds(&distinct, version, side)?,
            layers: types
                .iter()
                .map(|layer| distinct.iter().take_while(|other| *other != layer).count())
                .collect(),
            eps,
            activation: Activation::named(activation)
                .ok_or_else(|| ("hidden_activation", format!("`{activation}` is not supported")))?,
            positions_max: self.max_position_embeddings,
        })
    }

    fn layer_kinds(
        &self,
        types: &[LayerType],
        version: GemmaVersion,
        side: Side,
    ) -> Result<Vec<AttentionKind>, FieldError> {
        let mut kinds = Vec::new();
        for &layer in types {
            let window = self.window(layer, version, side)?;
            kinds.push(AttentionKind::rotary(window, self.rotary(layer, version)?));
        }
        Ok(kinds)
    }

    fn layer_types(&self, version: GemmaVersion) -> Result<Vec<LayerType>, FieldError> {
        let Some(names) = &self.layer_types else {
            // The distance from one full layer to the next.
            let period = if version == GemmaVersion::Two { 6 } else { 2 };
            let mut types = Vec::new();
            for number in 1..=self.num_hidden_layers {
                let is_full = number.is_multiple_of(period);
                types.push(if is_full { LayerType::Full } else { LayerType::Sliding });
            }
            return Ok(types);
        };
        layer_types(names, self.num_hidden_layers)
    }

    /// Returns the window of layers of a type, as in transformers 5.23. In its versions before 5, the windows
    /// of the first version's encoder are one position shorter on both sides.
    fn window(
        &self,
        layer: LayerType,
        version: GemmaVersion,
        side: Side,
    ) -> Result<Option<Window>, FieldError> {
        if layer == LayerType::Full {
            return Ok(None);
        }
        let width = required("sliding_window", self.sliding_window)?;
        check_sizes(&[("sliding_window", width)])?;
        Ok(Some(match (side, version) {
            (Side::Decoder, _) => Window { before: width - 1, after: 0 },
            (Side::Encoder, GemmaVersion::One) => Window { before: width, after: width },
            (Side::Encoder, GemmaVersion::Two) => Window { before: width.div_ceil(2) - 1, after: width / 2 },
        }))
    }

    fn rotary(&self, layer: LayerType, version: GemmaVersion) -> Result<Rotary, FieldError> {
        let plain = StoredRopes::default();
        let rope = self.rope_parameters.as_ref().unwrap_or(&plain).of(layer == LayerType::Sliding);
        let theta = match (version, layer) {
            (GemmaVersion::Two, LayerType::Full) => 1_000_000.0,
            _ => 10_000.0,
        };
        let shape = RopeShape {
            head_dim: self.head_dim,
            theta: rope.rope_theta.or(self.rope_theta).unwrap_or(theta),
            positions: self.max_position_embeddings,
        };
        rope.resolve(shape).map(|(rotary, _)| rotary)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn stack() -> Value {
        json!({"vocab_size": 50, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 7,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "query_pre_attn_scalar": 16,
            "max_position_embeddings": 32, "sliding_window": 6})
    }

    /// Reads a configuration after changing the field at a JSON pointer.
    fn read(version: GemmaVersion, changes: &[(&str, Value)]) -> LoadResult<GemmaConfig> {
        let (class, encoder) = match version {
            GemmaVersion::One => ("T5GemmaForConditionalGeneration", stack()),
            GemmaVersion::Two => ("T5Gemma2ForConditionalGeneration", json!({"text_config": stack()})),
        };
        let mut config = json!({"architectures": [class], "encoder": encoder, "decoder": stack()});
        for (pointer, value) in changes {
            let (object, field) = pointer.rsplit_once('/').unwrap();
            config.pointer_mut(object).unwrap()[field] = value.clone();
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(CONFIG_FILE), config.to_string()).unwrap();
        GemmaConfig::read(&CheckpointFiles::folder(folder.path()).unwrap(), version)
    }

    fn windows(stack: &StackConfig) -> Vec<Option<(usize, usize)>> {
        let window = |&kind: &usize| stack.kinds[kind].window.map(|window| (window.before, window.after));
        stack.layers.iter().map(window).collect()
    }

    #[test]
    fn missing_fields_get_the_defaults_of_the_hugging_face_classes() {
        let one = read(GemmaVersion::One, &[]).unwrap();
        assert_eq!(windows(&one.encoder)[..3], [Some((6, 6)), None, Some((6, 6))]);
        assert_eq!(windows(&one.decoder)[..2], [Some((5, 0)), None]);
        assert_eq!((one.encoder.heads.cap, one.decoder.heads.cap), (Some(50.0), Some(50.0)));
        assert_eq!((one.logits_cap, one.tables), (Some(30.0), Tables::TiedHead));
        assert_eq!((one.start_id, &*one.eos_ids, one.has_merged_attention), (2, &[1][..], false));

        let two = read(GemmaVersion::Two, &[]).unwrap();
        let [near, full] = [Some((2, 3)), None];
        assert_eq!(windows(&two.encoder), [near, near, near, near, near, full, near]);
        assert_eq!((two.decoder.heads.cap, two.logits_cap, two.tables), (None, None, Tables::One));
        assert!(two.has_merged_attention && two.encoder.has_head_norms);
    }

    #[test]
    fn a_null_is_no_cap_and_the_second_version_ignores_the_cap_of_attention() {
        let change = [
            ("/decoder/attn_logit_softcapping", Value::Null),
            ("/decoder/final_logit_softcapping", Value::Null),
        ];
        let one = read(GemmaVersion::One, &change).unwrap();
        assert_eq!((one.encoder.heads.cap, one.decoder.heads.cap, one.logits_cap), (Some(50.0), None, None));
        let change = [
            ("/decoder/attn_logit_softcapping", json!(3.0)),
            ("/decoder/final_logit_softcapping", json!(4.0)),
        ];
        let two = read(GemmaVersion::Two, &change).unwrap();
        assert_eq!((two.decoder.heads.cap, two.logits_cap), (None, Some(4.0)));
    }

    #[test]
    fn rotary_positions_are_read_from_either_writers_spelling() {
        let old = read(GemmaVersion::One, &[("/encoder/rope_theta", json!(500.0))]).unwrap();
        let rope = json!({"rope_theta": 500.0, "rope_type": "default"});
        let new = read(GemmaVersion::One, &[("/encoder/rope_parameters", rope)]).unwrap();
        let rotary = |config: GemmaConfig| config.encoder.kinds.into_iter().map(|kind| kind.rotary);
        assert!(rotary(old).eq(rotary(new)));
        let ropes = json!({"full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}});
        let stretched = read(GemmaVersion::Two, &[("/decoder/rope_parameters", ropes)]).unwrap();
        let plain = read(GemmaVersion::Two, &[]).unwrap();
        for (stretched, plain) in stretched.decoder.kinds.iter().zip(&plain.decoder.kinds) {
            let factor = if plain.window.is_none() { 8.0 } else { 1.0 };
            let [stretched, plain] = [stretched, plain].map(|kind| kind.rotary.as_ref().unwrap());
            for (slow, usual) in stretched.frequencies.iter().zip(&plain.frequencies) {
                assert!((slow * factor - usual).abs() < 1e-6 * usual, "{slow}, {usual}");
            }
        }
    }

    #[test]
    fn bad_fields_are_rejected_with_the_names_of_file_and_field() {
        let [one, two] = [GemmaVersion::One, GemmaVersion::Two];
        for (version, pointer, value, field) in [
            (one, "/encoder/num_hidden_layers", json!(99_999_999_999_u64), "encoder.num_hidden_layers"),
            (one, "/decoder/head_dim", json!(99_999_999_999_u64), "decoder.head_dim"),
            (one, "/decoder/head_dim", json!(5), "decoder.head_dim"),
            (one, "/decoder/vocab_size", json!(1u64 << 40), "decoder.vocab_size"),
            (one, "/encoder/num_key_value_heads", json!(0), "encoder.num_key_value_heads"),
            (one, "/encoder/num_key_value_heads", json!(3), "encoder.num_key_value_heads"),
            (one, "/encoder/sliding_window", json!(0), "encoder.sliding_window"),
            (one, "/encoder/sliding_window", json!(1u64 << 63), "encoder.sliding_window"),
            (one, "/encoder/sliding_window", Value::Null, "encoder.sliding_window"),
            (one, "/encoder/layer_types", json!(["full_attention"]), "encoder.layer_types"),
            (one, "/encoder/layer_types", json!(vec!["other"; 7]), "encoder.layer_types"),
            (one, "/decoder/attn_logit_softcapping", json!(0.0), "decoder.attn_logit_softcapping"),
            (one, "/decoder/final_logit_softcapping", json!(-1.0), "decoder.final_logit_softcapping"),
            (one, "/decoder/query_pre_attn_scalar", json!(0), "decoder.query_pre_attn_scalar"),
            (one, "/decoder/hidden_activation", json!("tanh"), "decoder.hidden_activation"),
            (one, "/decoder/attention_bias", json!(true), "decoder.attention_bias"),
            (one, "/decoder/rope_theta", json!(-1.0), "decoder.rope_theta"),
            (one, "/decoder/rms_norm_eps", json!(2.0), "decoder.rms_norm_eps"),
            (one, "/decoder_start_token_id", json!(50), "decoder_start_token_id"),
            (one, "/quantization_config", json!({}), "quantization_config"),
            (two, "/encoder/text_config/hidden_size", json!(16), "decoder.hidden_size"),
            (two, "/encoder/text_config/vocab_size", json!(51), "decoder.vocab_size"),
            (two, "/encoder/text_config/head_dim", json!(0), "encoder.text_config.head_dim"),
        ] {
            let message = read(version, &[(pointer, value)]).err().unwrap().to_string();
            assert!(message.contains(&format!("config.json: field `{field}`")), "{pointer}: {message}");
        }
        for (version, pointer, path) in [
            (one, "/encoder", "encoder"),
            (one, "/decoder", "decoder"),
            (two, "/encoder/text_config", "encoder.text_config"),
        ] {
            let message = read(version, &[(pointer, json!({}))]).err().unwrap().to_string();
            let want = format!("config.json is not usable: {path}: missing field `vocab_size`");
            assert!(message.contains(&want), "{message}");
        }
    }

    fn read_regresslm(changes: &[(&str, Value)]) -> LoadResult<StackConfig> {
        let mut config = json!({"architectures": ["RegressLMForConditionalGeneration"],
            "backbone_config": {"encoder": stack()}, "encoder_vocab_size": 90, "use_regression_head": true});
        for (pointer, value) in changes {
            let (object, field) = pointer.rsplit_once('/').unwrap();
            config.pointer_mut(object).unwrap()[field] = value.clone();
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(CONFIG_FILE), config.to_string()).unwrap();
        StackConfig::read_regresslm(&CheckpointFiles::folder(folder.path()).unwrap())
    }

    #[test]
    fn regresslm_has_shorter_windows_no_cap_and_a_separate_size_of_the_vocabulary() {
        let encoder = read_regresslm(&[]).unwrap();
        assert_eq!(windows(&encoder)[..2], [Some((5, 5)), None]);
        assert_eq!((encoder.heads.cap, encoder.vocab_size), (None, 90));
        let narrow = read_regresslm(&[("/backbone_config/encoder/sliding_window", json!(1))]).unwrap();
        assert_eq!(windows(&narrow)[0], Some((0, 0)));
        for (pointer, value, field) in [
            ("/encoder_vocab_size", json!(0), "encoder_vocab_size"),
            ("/encoder_vocab_size", json!(1u64 << 40), "encoder_vocab_size"),
            ("/quantization_config", json!({}), "quantization_config"),
            ("/backbone_config/encoder/head_dim", json!(7), "backbone_config.encoder.head_dim"),
            ("/backbone_config/encoder/sliding_window", json!(0), "backbone_config.encoder.sliding_window"),
        ] {
            let message = read_regresslm(&[(pointer, value)]).err().unwrap().to_string();
            assert!(message.contains(&format!("config.json: field `{field}`")), "{pointer}: {message}");
        }
    }
}
