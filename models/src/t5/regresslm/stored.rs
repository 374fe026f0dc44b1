//! Reads and checks `ntl.json` of a checkpoint of RegressLM's PyTorch model.

use std::collections::{BTreeMap, HashSet};

use ntl_core::numbers::{NotationError, SpecialValue, TokenFormat, TokenNotation};
use ntl_text::checkpoint::{
    CheckpointFiles, FieldError, LoadError, LoadResult, OWN_FILE, check_count, check_epsilon, check_sizes,
};
use ntl_text::tokenizer::VocabularySource;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::config::{EncoderShape, LayersShape, TorchConfig, WeightsFile};
use crate::families::GemmaVersion;
use crate::rope::{RopeShape, Rotary, StoredRope};
use crate::t5::config::required;
use crate::t5::gemma::{StackConfig, StoredSecondEncoder, StoredStack};
use crate::weights::is_plain_name;

/// The token that pads and starts sequences; its id is 0.
const PAD: &str = "<pad>";

/// A field of `ntl.json`, with the objects around it, and what is wrong with it.
type Wrong = (String, String);

#[derive(Deserialize)]
struct StoredRegressLm {
    version: u32,
    checkpoint: String,
    #[serde(default = "state_key")]
    state_key: String,
    #[serde(default = "prefix")]
    prefix: String,
    encoder: StoredEncoder,
    encoder_tokenizer: StoredTokenizer,
    decoder: StoredDecoder,
    number_tokenizer: StoredNumbers,
    max_num_objs: usize,
    decode_len: Option<usize>,
}

fn state_key() -> String {
    "model_state".to_owned()
}

fn prefix() -> String {
    "encoder_decoder.".to_owned()
}

#[derive(Deserialize)]
struct StoredEncoder {
    #[serde(rename = "type")]
    kind: String,
    vocab_size: usize,
    max_input_len: usize,
    /// The fields of one type of encoders.
    #[serde(flatten)]
    fields: Map<String, Value>,
}

/// The fields of an encoder of a T5Gemma, whose `config` has the shape of its version.
#[derive(Deserialize)]
struct StoredGemma<C> {
    config: C,
    /// Whether the layers with windows attend to all positions, too.
    #[serde(default)]
    all_global_attn: bool,
}

/// The layers of a stack.
#[derive(Deserialize)]
struct StoredLayers {
    d_model: usize,
    layers: usize,
    heads: usize,
    d_ff: usize,
    activation: Option<String>,
    norm: Option<String>,
    layer_norm_eps: Option<f64>,
    rope_base: Option<f64>,
    rope_layout: Option<String>,
}

#[derive(Deserialize)]
struct StoredDecoder {
    vocab_size: usize,
    max_len: usize,
    #[serde(default)]
    start_id: u32,
    positions: Option<String>,
    #[serde(default)]
    final_norm: bool,
    #[serde(flatten)]
    layers: StoredLayers,
}

#[derive(Deserialize)]
struct StoredTokenizer {
    kind: String,
    file: Option<String>,
    #[serde(default)]
    add_bos: bool,
    #[serde(default)]
    add_eos: bool,
    chars: Option<String>,
    #[serde(default)]
    pad_id: u32,
    #[serde(default = "unknown_id")]
    unk_id: u32,
    #[serde(default = "first_char_id")]
    first_char_id: u32,
}

fn unknown_id() -> u32 {
    1
}

fn first_char_id() -> u32 {
    2
}

#[derive(Deserialize)]
struct StoredNumbers {
    kind: String,
    num_digits: Option<usize>,
    exponent_range: Option<u16>,
    base: Option<u8>,
    num_exponent_digits: Option<usize>,
    num_mantissa_digits: Option<usize>,
    length: Option<usize>,
    #[serde(default)]
    wrappers: Vec<String>,
    special_values: Option<BTreeMap<String, String>>,
    tokens: Vec<String>,
    num_tokens_per_obj: Option<usize>,
}

impl TorchConfig {
    pub(crate) fn read(files: &CheckpointFiles) -> LoadResult<Self> {
        let stored: StoredRegressLm = files.require_json(OWN_FILE)?;
        stored.resolve().map_err(|(field, reason)| LoadError::field(files.name_of(OWN_FILE), field, reason))
    }
}

impl StoredRegressLm {
    fn resolve(self) -> Result<TorchConfig, Wrong> {
        if self.version != 1 {
            return Err(wrong("version", format!("{}: only version 1 is supported", self.version)));
        }
        if !is_plain_name(&self.checkpoint) {
            return Err(wrong("checkpoint", format!("`{}` is not a file name", self.checkpoint)));
        }
        check_sizes(&[("max_input_len", self.encoder.max_input_len)]).map_err(within("encoder"))?;
        let encoder = self.encoder.resolve()?;
        let decoder = self.decoder.resolve()?;
        if encoder.d_model() != decoder.d_model {
            let reason = format!("{} is not the encoder's width, {}", decoder.d_model, encoder.d_model());
            return Err(wrong("decoder.d_model", reason));
        }
        let notation = self.number_tokenizer.resolve(self.max_num_objs)?;
        if notation.tokens() != decoder.vocab_size {
            let reason =
                format!("{} differs from the {} number tokens", decoder.vocab_size, notation.tokens());
            return Err(wrong("decoder.vocab_size", reason));
        }
        let answer = notation.answer_tokens();
        if let Some(length) = self.decode_len.filter(|length| *length != answer) {
            return Err(wrong("decode_len", format!("{length}, but an answer has {answer} tokens")));
        }
        if self.decoder.max_len < answer {
            let reason = format!("{} is less than the {answer} tokens of an answer", self.decoder.max_len);
            return Err(wrong("decoder.max_len", reason));
        }
        if self.decoder.start_id as usize >= decoder.vocab_size {
            let reason = format!("{} is outside the vocabulary", self.decoder.start_id);
            return Err(wrong("decoder.start_id", reason));
        }
        Ok(TorchConfig {
            weights: WeightsFile { name: self.checkpoint, key: self.state_key, prefix: self.prefix },
            encoder,
            decoder,
            positions: self.decoder.max_len,
            start_id: self.decoder.start_id,
            vocabulary: self.encoder_tokenizer.resolve().map_err(within("encoder_tokenizer"))?,
            prompt_tokens_max: self.encoder.max_input_len,
            notation,
        })
    }
}

impl StoredEncoder {
    fn resolve(&self) -> Result<EncoderShape, Wrong> {
        match self.kind.to_ascii_lowercase().as_str() {
            "vanilla" => {
                let stored: StoredLayers = self.read_fields()?;
                let layers = stored.resolve(self.vocab_size).map_err(within("encoder"))?;
                let rotary = stored.rotary(layers.head_dim()).map_err(within("encoder"))?;
                Ok(EncoderShape::Vanilla { layers, rotary })
            }
            "t5gemma" => {
                let mut stored: StoredGemma<StoredStack> = self.read_fields()?;
                if stored.all_global_attn {
                    stored.config.remove_windows().map_err(within("encoder.config"))?;
                }
                let stack = stored.config.regresslm_encoder().map_err(within("encoder.config"))?;
                self.gemma(GemmaVersion::One, stack, None)
            }
            "t5gemma2" => {
                let mut stored: StoredGemma<StoredSecondEncoder> = self.read_fields()?;
                let StoredSecondEncoder { text_config, eoi_token_index } = &mut stored.config;
                if stored.all_global_attn {
                    text_config.remove_windows().map_err(within("encoder.config.text_config"))?;
                }
                let stack = text_config.second_encoder().map_err(within("encoder.config.text_config"))?;
                self.gemma(GemmaVersion::Two, stack, *eoi_token_index)
            }
            _ => {
                let reason = format!("`{}` is not supported; vanilla, t5gemma and t5gemma2 are", self.kind);
                Err(wrong("encoder.type", reason))
            }
        }
    }

    /// Training resized the vocabulary of the configuration.
    fn gemma(
        &self,
        version: GemmaVersion,
        stack: StackConfig,
        image_end_id: Option<u32>,
    ) -> Result<EncoderShape, Wrong> {
        check_sizes(&[("vocab_size", self.vocab_size)]).map_err(within("encoder"))?;
        let stack = StackConfig { vocab_size: self.vocab_size, ..stack };
        Ok(EncoderShape::Gemma { version, stack, image_end_id })
    }

    fn read_fields<T: DeserializeOwned>(&self) -> Result<T, Wrong> {
        let fields = Value::Object(self.fields.clone());
        serde_json::from_value(fields).map_err(|error| wrong("encoder", error.to_string()))
    }
}

impl StoredDecoder {
    fn resolve(&self) -> Result<LayersShape, Wrong> {
        if self.positions.as_deref().is_some_and(|name| name != "sinusoidal") {
            return Err(wrong("decoder.positions", "only `sinusoidal` is supported".to_owned()));
        }
        if self.final_norm {
            return Err(wrong("decoder.final_norm", "only false is supported".to_owned()));
        }
        check_sizes(&[("max_len", self.max_len)]).map_err(within("decoder"))?;
        self.layers.resolve(self.vocab_size).map_err(within("decoder"))
    }
}

impl StoredLayers {
    fn resolve(&self, vocab_size: usize) -> Result<LayersShape, FieldError> {
        check_only("activation", self.activation.as_deref(), "relu")?;
        check_only("norm", self.norm.as_deref(), "pre")?;
        check_sizes(&[("vocab_size", vocab_size), ("d_model", self.d_model), ("d_ff", self.d_ff)])?;
        check_count("layers", self.layers)?;
        check_count("heads", self.heads)?;
        if !self.d_model.is_multiple_of(self.heads) {
            return Err(("heads", format!("{} does not divide the width {}", self.heads, self.d_model)));
        }
        let eps = self.layer_norm_eps.unwrap_or(1e-5);
        check_epsilon("layer_norm_eps", eps)?;
        Ok(LayersShape {
            vocab_size,
            d_model: self.d_model,
            layers: self.layers,
            heads: self.heads,
            d_ff: self.d_ff,
            eps,
        })
    }

    fn rotary(&self, head_dim: usize) -> Result<Rotary, FieldError> {
        if let Some(layout) = self.rope_layout.as_ref().filter(|layout| *layout != "interleaved") {
            return Err(("rope_layout", format!("`{layout}`: only interleaved is supported")));
        }
        let theta = self.rope_base.unwrap_or(10_000.0);
        let shape = RopeShape { head_dim, theta, positions: 0 };
        let rotary = StoredRope::default().resolve(shape).map(|(rotary, _)| rotary);
        rotary.map_err(|(field, reason)| match field {
            "head_dim" => ("heads", reason),
            "rope_theta" => ("rope_base", reason),
            field => (field, reason),
        })
    }
}

fn check_only(field: &'static str, name: Option<&str>, supported: &str) -> Result<(), FieldError> {
    match name {
        Some(name) if name != supported => Err((field, format!("`{name}`: only {supported} is supported"))),
        _ => Ok(()),
    }
}

impl StoredTokenizer {
    fn resolve(self) -> Result<VocabularySource, FieldError> {
        if self.add_bos || self.add_eos {
            let field = if self.add_bos { "add_bos" } else { "add_eos" };
            return Err((field, "only false is supported".to_owned()));
        }
        match self.kind.as_str() {
            "sentencepiece" => match self.file {
                Some(file) if is_plain_name(&file) => Ok(VocabularySource::SentencePiece { file }),
                Some(file) => Err(("file", format!("`{file}` is not a file name"))),
                None => Err(("file", "missing".to_owned())),
            },
            "huggingface" => Ok(VocabularySource::Library),
            "character" => Ok(VocabularySource::Characters {
                characters: required("chars", self.chars)?,
                pad: self.pad_id,
                unknown: self.unk_id,
                first: self.first_char_id,
            }),
            other => {
                let reason =
                    format!("`{other}` is not supported; sentencepiece, huggingface and character are");
                Err(("kind", reason))
            }
        }
    }
}

impl StoredNumbers {
    /// Returns the notation of answers of `outputs` numbers.
    fn resolve(self, outputs: usize) -> Result<TokenNotation, Wrong> {
        let format = self.format().map_err(within("number_tokenizer"))?;
        let special = self.special_values().map_err(within("number_tokenizer"))?;
        let Self { wrappers, tokens, num_tokens_per_obj, .. } = self;
        if tokens.first().is_none_or(|first| first != PAD) {
            return Err(wrong("number_tokenizer.tokens", format!("the first one is not `{PAD}`")));
        }
        let mut names = HashSet::new();
        if let Some(repeated) = tokens.iter().find(|name| !names.insert(name.as_str())) {
            return Err(wrong("number_tokenizer.tokens", format!("`{repeated}` is listed twice")));
        }
        let mut notation = TokenNotation::new(tokens, format, outputs).map_err(notation_error)?;
        for name in &wrappers {
            if wrappers.iter().filter(|other| *other == name).count() > 1 {
                return Err(wrong("number_tokenizer.wrappers", format!("`{name}` is listed twice")));
            }
        }
        for wrapper in &wrappers {
            notation = match wrapper.as_str() {
                "add_special_values" => notation.with_special_values(&special),
                "append_pad" => notation.with_separator(),
                other => {
                    return Err(wrong("number_tokenizer.wrappers", format!("`{other}` is not supported")));
                }
            }
            .map_err(notation_error)?;
        }
        match num_tokens_per_obj {
            Some(tokens) if tokens != notation.number_tokens() => {
                let reason = format!("{tokens}, but its numbers have {} tokens", notation.number_tokens());
                Err(wrong("number_tokenizer.num_tokens_per_obj", reason))
            }
            _ => Ok(notation),
        }
    }

    fn format(&self) -> Result<TokenFormat, FieldError> {
        match self.kind.to_ascii_lowercase().as_str() {
            "p10" => Ok(TokenFormat::P10 {
                digits: required("num_digits", self.num_digits)?,
                exponent_max: required("exponent_range", self.exponent_range)?,
            }),
            "ieee" => Ok(TokenFormat::Ieee {
                base: self.base.unwrap_or(10),
                exponent_digits: required("num_exponent_digits", self.num_exponent_digits)?,
                digits: required("num_mantissa_digits", self.num_mantissa_digits)?,
            }),
            "normalized" => Ok(TokenFormat::Normalized {
                base: self.base.unwrap_or(10),
                digits: required("length", self.length)?,
            }),
            _ => Err(("kind", format!("`{}` is not supported; p10, ieee and normalized are", self.kind))),
        }
    }

    /// Returns the values that are not finite numbers, with the names of their tokens.
    fn special_values(&self) -> Result<Vec<(String, SpecialValue)>, FieldError> {
        let mut values = Vec::new();
        for (name, value) in self.special_values.iter().flatten() {
            let value = match value.as_str() {
                "nan" => SpecialValue::Nan,
                "inf" => SpecialValue::Infinity,
                "-inf" => SpecialValue::NegativeInfinity,
                "INVALID" => SpecialValue::Invalid,
                other => {
                    return Err(("special_values", format!("`{other}` is none of nan, inf, -inf, INVALID")));
                }
            };
            values.push((format!("<{name}>"), value));
        }
        Ok(values)
    }
}

fn notation_error(error: NotationError) -> Wrong {
    match error {
        NotationError::Missing(_) | NotationError::Repeated(_) => {
            wrong("number_tokenizer.tokens", error.to_string())
        }
        error => wrong("number_tokenizer", error.to_string()),
    }
}

fn wrong(field: &str, reason: String) -> Wrong {
    (field.to_owned(), reason)
}

/// Adds the name of the object around a field.
fn within(object: &'static str) -> impl Fn(FieldError) -> Wrong {
    move |(field, reason)| (format!("{object}.{field}"), reason)
}
