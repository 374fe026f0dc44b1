//! Helpers that all readers of a checkpoint's `config.json` share.

use serde::Deserialize;

use super::{CheckpointFiles, LoadError};

pub const CONFIG_FILE: &str = "config.json";
pub const OWN_FILE: &str = "ntl.json";
/// Settings of Hugging Face's generation, which replace those of `config.json`.
pub const GENERATION_FILE: &str = "generation_config.json";

/// A field of `config.json` and what is wrong with it.
pub type FieldError = (&'static str, String);

/// Maximum of a size. No model comes near it. Products of larger sizes would exceed memory and integers.
const SIZE_MAX: usize = 1 << 24;

/// One id or a list of them.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum TokenIds {
    One(u32),
    Many(Vec<u32>),
}

impl TokenIds {
    pub fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

/// Returns the ids that end a text, as `generation_config.json` states them.
pub fn generation_eos_ids(files: &CheckpointFiles) -> Result<Option<Vec<u32>>, LoadError> {
    stated_eos_ids(files, GENERATION_FILE)
}

/// Returns the ids that end a text, as the files of a checkpoint state them, which may have no weights.
pub fn eos_ids(files: &CheckpointFiles) -> Result<Option<Vec<u32>>, LoadError> {
    match generation_eos_ids(files)? {
        None => stated_eos_ids(files, CONFIG_FILE),
        ids => Ok(ids),
    }
}

fn stated_eos_ids(files: &CheckpointFiles, file: &str) -> Result<Option<Vec<u32>>, LoadError> {
    #[derive(Deserialize)]
    struct StoredEos {
        eos_token_id: Option<TokenIds>,
    }
    Ok(files.json(file)?.and_then(|stored: StoredEos| stored.eos_token_id).map(TokenIds::into_vec))
}

/// Returns the file and the field that determine the kind of a checkpoint: `architectures` of `config.json`,
/// or `format` of `ntl.json` if there is no `config.json`.
pub fn architecture_field(files: &CheckpointFiles) -> Result<(&'static str, &'static str), LoadError> {
    let is_described = !files.has(CONFIG_FILE)? && described_format(files)?.is_some();
    Ok(if is_described { (OWN_FILE, "format") } else { (CONFIG_FILE, "architectures") })
}

fn described_format(files: &CheckpointFiles) -> Result<Option<String>, LoadError> {
    #[derive(Deserialize)]
    struct StoredFormat {
        format: Option<String>,
    }
    Ok(files.json(OWN_FILE)?.and_then(|stored: StoredFormat| stored.format))
}

/// Returns the first entry of `architectures` in `config.json`, or `format` of `ntl.json`. No other field
/// determines the kind of a checkpoint.
pub fn architecture(files: &CheckpointFiles) -> Result<String, LoadError> {
    #[derive(Deserialize)]
    struct StoredArchitectures {
        #[serde(default)]
        architectures: Vec<String>,
    }
    if !files.has(CONFIG_FILE)?
        && let Some(format) = described_format(files)?
    {
        return Ok(format);
    }
    let stored: StoredArchitectures = files.require_json(CONFIG_FILE)?;
    stored.architectures.into_iter().next().ok_or_else(|| {
        let file = files.name_of(CONFIG_FILE);
        LoadError::field(file, "architectures", "missing: the kind of checkpoint is not known")
    })
}

/// Rejects an epsilon that would make a normalisation meaningless.
pub fn check_epsilon(field: &'static str, eps: f64) -> Result<(), FieldError> {
    if (0.0..1.0).contains(&eps) { Ok(()) } else { Err((field, format!("{eps} is out of range"))) }
}

/// Returns a soft cap, if there is one, in the precision of the models.
pub fn check_cap(field: &'static str, cap: Option<f64>) -> Result<Option<f32>, FieldError> {
    match cap {
        Some(cap) if !(cap.is_finite() && cap > 0.0) => Err((field, format!("{cap} is out of range"))),
        cap => Ok(cap.map(|cap| cap as f32)),
    }
}

/// Checks a number of layers, or the size of a head, before anything is allocated for it.
pub fn check_count(field: &'static str, size: usize) -> Result<usize, FieldError> {
    const COUNT_MAX: usize = 1 << 16;
    if (1..=COUNT_MAX).contains(&size) { Ok(size) } else { Err((field, format!("{size} is out of range"))) }
}

/// Rejects quantised weights, which `quantization_config` describes.
pub fn check_not_quantised(config: Option<&serde_json::Value>) -> Result<(), FieldError> {
    if config.is_some() {
        let reason = "quantised weights are not supported by the native backend";
        return Err(("quantization_config", reason.to_owned()));
    }
    Ok(())
}

/// The positions to which a layer attends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerType {
    Full,
    Sliding,
}

/// Reads the names in `layer_types`, one for each layer.
pub fn layer_types(names: &[String], layers: usize) -> Result<Vec<LayerType>, FieldError> {
    if names.len() != layers {
        return Err(("layer_types", format!("{} for {layers} layers", names.len())));
    }
    let mut types = Vec::with_capacity(layers);
    for name in names {
        types.push(match name.as_str() {
            "full_attention" => LayerType::Full,
            "sliding_attention" => LayerType::Sliding,
            other => return Err(("layer_types", format!("`{other}` is not supported"))),
        });
    }
    Ok(types)
}

/// Rejects sizes of 0, and sizes that no model has.
pub fn check_sizes(sizes: &[(&'static str, usize)]) -> Result<(), FieldError> {
    match sizes.iter().find(|(_, size)| !(1..=SIZE_MAX).contains(size)) {
        Some((field, size)) => Err((field, format!("{size} is out of range"))),
        None => Ok(()),
    }
}
