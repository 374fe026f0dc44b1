//! Prepares a checkpoint directory for mistral.rs.

use ntl_models::Weights as WeightFiles;
use ntl_text::checkpoint::{CheckpointFacts, CheckpointFiles, Choices, LoadError};
use ntl_text::tokenizer::Tokenizer;
use serde_json::{Map, Value};

use crate::prepared::{Prepared, Weights};
use crate::stand_in::StandIn;

const CONFIG_FILE: &str = "config.json";
const GENERATION_FILE: &str = "generation_config.json";

/// The name of pickled weights in a single file, and the only name under which mistral.rs finds them.
const SINGLE_PICKLE: (&str, &str) = ("pytorch_model.bin", "pytorch_model-00001-of-00001.bin");

pub(crate) fn prepare(
    files: &CheckpointFiles,
    isq: Option<&str>,
    choices: Choices,
) -> Result<Prepared, LoadError> {
    let facts = CheckpointFacts::open(files, choices)?;
    let tokenizer = Tokenizer::open_as(files, facts.chosen_tokenizer_type())?;
    let mut config: Map<String, Value> = files.require_json(CONFIG_FILE)?;
    normalise(&mut config);
    let generation: Map<String, Value> = files.json(GENERATION_FILE)?.unwrap_or_default();
    let eos_ids = ids("eos_token_id", &generation, &config);
    let bos_ids = ids("bos_token_id", &generation, &config);
    let begin = bos_ids.first().or(eos_ids.first()).copied().unwrap_or(0);
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let rows = config.get("vocab_size").and_then(Value::as_u64).unwrap_or_default();
    let rows = usize::try_from(rows).unwrap_or_default().max(tokenizer.len());
    let stand_in = StandIn::new(rows)?;
    stand_in.write(CONFIG_FILE, &Value::Object(config))?;
    for name in files.names()? {
        let is_pickle = name.starts_with("pytorch_model") && name.ends_with(".bin");
        let is_safetensors = name.ends_with(".safetensors") && !name.starts_with("adapter_model");
        if is_safetensors || is_pickle {
            let link = if name == SINGLE_PICKLE.0 { SINGLE_PICKLE.1 } else { &name };
            stand_in.link(link, &files.path_of(&name)?)?;
        }
    }
    Ok(Prepared {
        place: files.place().to_owned(),
        kind,
        dtype: isq.unwrap_or("f32").to_owned(),
        // Weight formats that only mistral.rs reads are not counted.
        parameters: WeightFiles::open(files).map_or(0, |weights| weights.summary().parameters),
        eos_ids,
        begin,
        tokenizer,
        stand_in,
        weights: Weights::StandIn,
    })
}

/// Returns the ids of a field, which is one id or a list of ids. The generation settings override the
/// configuration.
fn ids(name: &str, generation: &Map<String, Value>, config: &Map<String, Value>) -> Vec<u32> {
    let chosen = generation.get(name).filter(|value| !value.is_null());
    match chosen.or_else(|| config.get(name)) {
        Some(Value::Array(all)) => all.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}

fn id(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// Converts a configuration to the format of transformers 4, the only one that mistral.rs 0.8.1 reads.
fn normalise(config: &mut Map<String, Value>) {
    if let Some(Value::Array(names)) = config.get_mut("architectures") {
        names.truncate(1);
    }
    if !config.contains_key("num_key_value_heads")
        && let Some(heads) = config.get("num_attention_heads").cloned()
    {
        config.insert("num_key_value_heads".to_owned(), heads);
    }
    let Some(Value::Object(mut rope)) = config.remove("rope_parameters") else { return };
    for name in ["rope_theta", "partial_rotary_factor"] {
        if let Some(value) = rope.remove(name) {
            config.entry(name).or_insert(value);
        }
    }
    let kind = rope.get("rope_type").and_then(Value::as_str).unwrap_or("default").to_owned();
    if kind != "default" {
        rope.insert("type".to_owned(), kind.into());
        config.entry("rope_scaling").or_insert(Value::Object(rope));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn normalised(config: Value) -> Value {
        let Value::Object(mut config) = config else { panic!("no object") };
        normalise(&mut config);
        Value::Object(config)
    }

    #[test]
    fn configurations_of_transformers_5_become_those_of_transformers_4() {
        let new = json!({
            "architectures": ["A", "B"], "num_attention_heads": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5.0},
        });
        let old = json!({
            "architectures": ["A"], "num_attention_heads": 4, "num_key_value_heads": 4, "rope_theta": 5.0,
        });
        assert_eq!(normalised(new), old);
        assert_eq!(normalised(old.clone()), old);
        let scaled = json!({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5.0, "factor": 8.0}});
        let want = json!({
            "rope_theta": 5.0, "rope_scaling": {"rope_type": "llama3", "type": "llama3", "factor": 8.0},
        });
        assert_eq!(normalised(scaled), want);
    }
}
