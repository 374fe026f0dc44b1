//! Reads PEFT's `adapter_config.json` and rejects adapters that cannot be applied.

use ntl_text::checkpoint::{CheckpointFiles, LoadError, LoadResult};
use regex::Regex;
use serde::Deserialize;
use serde_json::{Map, Value};

const FILE: &str = "adapter_config.json";

/// Fields that change the computation in ways that are not supported. They are unset if they are false, null,
/// empty or missing.
const UNSUPPORTED: [&str; 10] = [
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "kasa_config",
    "monteclora_config",
    "arrow_config",
    "alora_invocation_tokens",
    "layer_replication",
    "trainable_token_indices",
];

/// Values of `init_lora_weights` with which PEFT leaves the weights of the model as they are. With others
/// (`pissa`, `olora`, `corda`, `loftq`, `lora_ga`) it subtracts a part from them when it creates an adapter,
/// and again when it loads one.
const HARMLESS_INITIALIZATIONS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

#[derive(Debug, Clone)]
pub(super) struct LoraConfig {
    alpha: f64,
    /// Other values of `alpha`, for the modules whose names match.
    alpha_pattern: Vec<(Regex, f64)>,
    /// The rank of every module, unless the file leaves it out or lists different ranks.
    pub(super) rank: Option<u64>,
    /// rsLoRA: the scale is `alpha / sqrt(rank)` instead of `alpha / rank`.
    rank_stabilized: bool,
    /// The name or directory of the model that the adapter was trained on.
    pub(super) base: Option<String>,
    /// Ends of the names of modules that the adapter stores completely.
    modules_to_save: Vec<String>,
}

#[derive(Deserialize)]
struct StoredAdapter {
    peft_type: String,
    base_model_name_or_path: Option<String>,
    lora_alpha: Option<f64>,
    r: Option<serde_json::Number>,
    #[serde(default)]
    rank_pattern: Map<String, Value>,
    #[serde(default)]
    alpha_pattern: Map<String, Value>,
    #[serde(default)]
    use_rslora: bool,
    bias: Option<String>,
    modules_to_save: Option<Vec<String>>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl LoraConfig {
    pub(super) fn read(files: &CheckpointFiles) -> LoadResult<Self> {
        let file = files.name_of(FILE);
        let stored: StoredAdapter = files.require_json(FILE)?;
        let refused = |field: &str, reason: String| Err(LoadError::field(&file, field, reason));
        if stored.peft_type != "LORA" {
            return refused("peft_type", format!("`{}` is not supported, LORA is", stored.peft_type));
        }
        if let Some(bias) = stored.bias.filter(|bias| bias != "none") {
            return refused("bias", format!("`{bias}`: trained biases are not supported"));
        }
        for field in UNSUPPORTED {
            if let Some(value) = stored.others.get(field)
                && !is_unset(value)
            {
                return refused(field, format!("{value} is not supported"));
            }
        }
        if let Some(initialization) = stored.others.get("init_lora_weights")
            && changes_base(initialization)
        {
            let reason = format!(
                "{initialization} changes the weights of the base model, which the adapter lacks; save the adapter with \
                 `path_initial_model_for_weight_conversion`, or merge it into its model"
            );
            return refused("init_lora_weights", reason);
        }
        let stated_rank = match &stored.r {
            None => None,
            Some(r) => match r.as_u64() {
                Some(rank @ 1..) => Some(rank),
                _ => return refused("r", format!("{r} is not an integer of at least 1")),
            },
        };
        let rank = if stored.rank_pattern.is_empty() { stated_rank } else { None };
        let Some(alpha) = stored.lora_alpha.filter(|alpha| alpha.is_finite()) else {
            return refused("lora_alpha", "missing".to_owned());
        };
        let mut alpha_pattern = Vec::new();
        for (pattern, alpha) in &stored.alpha_pattern {
            let entry = read_alpha(pattern, alpha);
            alpha_pattern.push(entry.map_err(|reason| LoadError::field(&file, "alpha_pattern", reason))?);
        }
        let base = stored.base_model_name_or_path;
        let modules_to_save = stored.modules_to_save.unwrap_or_default();
        Ok(Self { alpha, alpha_pattern, rank, rank_stabilized: stored.use_rslora, base, modules_to_save })
    }

    /// Returns whether the adapter stores a module completely: its name, or the name of a module that
    /// contains it, has one of the ends in `modules_to_save`.
    pub(super) fn saves(&self, module: &str) -> bool {
        let parents = module.match_indices('.').map(|(dot, _)| &module[..dot]);
        let mut names = parents.chain([module]);
        names.any(|name| self.modules_to_save.iter().any(|end| name.ends_with(end.as_str())))
    }

    /// Returns the factor of a module's `B A`.
    pub(super) fn scale(&self, module: &str, rank: usize) -> f64 {
        let special = self.alpha_pattern.iter().find(|(pattern, _)| pattern.is_match(module));
        let alpha = special.map_or(self.alpha, |(_, alpha)| *alpha);
        let rank = rank as f64;
        alpha / if self.rank_stabilized { rank.sqrt() } else { rank }
    }
}

/// Reads an entry of `alpha_pattern`. The error is a reason.
fn read_alpha(pattern: &str, alpha: &Value) -> Result<(Regex, f64), String> {
    let Some(number) = alpha.as_f64() else {
        return Err(format!("`{pattern}`: {alpha} is not a number"));
    };
    // The whole name, or its end after a dot.
    match Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$")) {
        Ok(regex) => Ok((regex, number)),
        Err(_) => Err(format!("`{pattern}` is not a regular expression that is supported")),
    }
}

/// Returns whether PEFT may change the weights of the model with this value of `init_lora_weights`.
fn changes_base(initialization: &Value) -> bool {
    match initialization {
        Value::Null | Value::Bool(_) => false,
        Value::String(name) => !HARMLESS_INITIALIZATIONS.contains(&name.to_lowercase().as_str()),
        _ => true,
    }
}

fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
