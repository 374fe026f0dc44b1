//! `adapter_config.json` of PEFT, and which adapters can be merged.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::checkpoint::{CheckpointFiles, LoadError};

const FILE: &str = "adapter_config.json";

/// What of it decides about the merged weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AdapterConfig {
    alpha: f64,
    /// Whether changes are divided by the square root of the rank (rsLoRA) instead of the rank.
    by_root: bool,
}

#[derive(Deserialize)]
struct Stored {
    peft_type: String,
    lora_alpha: Option<f64>,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    use_dora: bool,
    bias: Option<String>,
    modules_to_save: Option<Vec<String>>,
    #[serde(default)]
    alpha_pattern: BTreeMap<String, f64>,
}

impl AdapterConfig {
    /// # Errors
    /// When the file is missing or broken, or the adapter cannot be merged.
    pub(super) fn read(files: &CheckpointFiles) -> Result<Self, LoadError> {
        let file = files.name_of(FILE);
        let stored: Stored = serde_json::from_slice(&files.require(FILE)?)
            .map_err(|error| LoadError::malformed(&file, error))?;
        let refused = |field, reason: String| Err(LoadError::field(&file, field, reason));
        if stored.peft_type != "LORA" {
            return refused("peft_type", format!("`{}` cannot be merged, LORA can", stored.peft_type));
        }
        if stored.use_dora {
            return refused("use_dora", "DoRA is not supported".to_owned());
        }
        if let Some(bias) = stored.bias.filter(|bias| bias != "none") {
            return refused("bias", format!("`{bias}`: trained biases are not supported"));
        }
        if let Some(modules) = stored.modules_to_save.filter(|modules| !modules.is_empty()) {
            return refused(
                "modules_to_save",
                format!("{} replaced, which is not supported", modules.join(", ")),
            );
        }
        if !stored.alpha_pattern.is_empty() {
            return refused("alpha_pattern", "different scales are not supported".to_owned());
        }
        match stored.lora_alpha {
            Some(alpha) if alpha.is_finite() => Ok(Self { alpha, by_root: stored.use_rslora }),
            _ => refused("lora_alpha", "missing".to_owned()),
        }
    }

    /// What a change of this rank is multiplied with.
    pub(super) fn scale(&self, rank: usize) -> f64 {
        let rank = rank as f64;
        self.alpha / if self.by_root { rank.sqrt() } else { rank }
    }
}
