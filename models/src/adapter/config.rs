//! Reads PEFT's `adapter_config.json` and rejects adapters that cannot be merged.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::checkpoint::{CheckpointFiles, LoadError};

const FILE: &str = "adapter_config.json";

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AdapterConfig {
    alpha: f64,
    /// The rank of every module, unless the file leaves it out or lists different ranks.
    pub(super) rank: Option<u64>,
    /// rsLoRA: the scale is `alpha / sqrt(rank)` instead of `alpha / rank`.
    rank_stabilized: bool,
}

#[derive(Deserialize)]
struct Stored {
    peft_type: String,
    lora_alpha: Option<f64>,
    r: Option<serde_json::Number>,
    #[serde(default)]
    rank_pattern: BTreeMap<String, serde_json::Number>,
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
    pub(super) fn read(files: &CheckpointFiles) -> Result<Self, LoadError> {
        let file = files.name_of(FILE);
        let stored: Stored = files.require_json(FILE)?;
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
        let rank = stored.r.map(|r| r.as_u64().filter(|&rank| rank > 0).ok_or(r)).transpose();
        let rank = match rank {
            Ok(rank) => rank.filter(|_| stored.rank_pattern.is_empty()),
            Err(r) => return refused("r", format!("{r} is not an integer of at least 1")),
        };
        match stored.lora_alpha {
            Some(alpha) if alpha.is_finite() => Ok(Self { alpha, rank, rank_stabilized: stored.use_rslora }),
            _ => refused("lora_alpha", "missing".to_owned()),
        }
    }

    /// Returns the factor of `B A`.
    pub(super) fn scale(&self, rank: usize) -> f64 {
        let rank = rank as f64;
        self.alpha / if self.rank_stabilized { rank.sqrt() } else { rank }
    }
}
