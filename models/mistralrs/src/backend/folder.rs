//! A checkpoint folder with weights as safetensors, as mistral.rs wants it.

use ntl_models::checkpoint::{CheckpointFacts, CheckpointFiles, LoadError, Weights as Tables};
use ntl_models::tokenizer::Tokenizer;
use serde_json::{Map, Value};

use super::runner::Weights;
use super::stand_in::StandIn;
use super::{Facts, Prepared, ids};
use crate::Options;

const CONFIG_FILE: &str = "config.json";
const GENERATION_FILE: &str = "generation_config.json";

/// The one name that mistral.rs wants of pickled weights in a single file.
const SINGLE_PICKLE: (&str, &str) = ("pytorch_model.bin", "pytorch_model-00001-of-00001.bin");

pub(super) fn prepare(files: &CheckpointFiles, options: &Options) -> Result<Prepared, LoadError> {
    let choices = CheckpointFacts::open(files, options.load.choices)?;
    let tokenizer = Tokenizer::open_as(files, choices.chosen_tokenizer_type())?;
    let mut config = object(files, CONFIG_FILE)?;
    normalise(&mut config);
    let facts = facts(files, (&config, &tokenizer), options)?;
    let failed = |source| LoadError::Read { file: "a temporary folder".to_owned(), source };
    let stand_in = StandIn::new(facts.vocab.max(tokenizer.len())).map_err(failed)?;
    stand_in.write(CONFIG_FILE, &Value::Object(config)).map_err(failed)?;
    for name in files.names()? {
        let pickled = name.starts_with("pytorch_model") && name.ends_with(".bin");
        let wanted = name.ends_with(".safetensors") && !name.starts_with("adapter_model");
        if wanted || pickled {
            let linked = if name == SINGLE_PICKLE.0 { SINGLE_PICKLE.1 } else { &name };
            stand_in.link(linked, &files.path_of(&name)?).map_err(failed)?;
        }
    }
    Ok(Prepared { place: files.place().to_owned(), facts, tokenizer, stand_in, weights: Weights::Folder })
}

fn facts(
    files: &CheckpointFiles,
    (config, tokenizer): (&Map<String, Value>, &Tokenizer),
    options: &Options,
) -> Result<Facts, LoadError> {
    let generation = if files.has(GENERATION_FILE) { object(files, GENERATION_FILE)? } else { Map::new() };
    let said = |name: &str| {
        let known = generation.get(name).filter(|value| !value.is_null());
        ids(known.or_else(|| config.get(name)))
    };
    let eos_ids = said("eos_token_id");
    let vocab = config.get("vocab_size").and_then(Value::as_u64).unwrap_or_default();
    Ok(Facts {
        kind: config.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned(),
        dtype: options.isq.map_or("f32", crate::Isq::name).to_owned(),
        // Weights in forms that only mistral.rs reads are not counted.
        parameters: Tables::open(files).map_or(0, |tables| tables.summary().parameters),
        begin: said("bos_token_id").first().or(eos_ids.first()).copied().unwrap_or(0),
        eos_ids,
        vocab: usize::try_from(vocab).unwrap_or_default().max(tokenizer.len()),
    })
}

fn object(files: &CheckpointFiles, file: &str) -> Result<Map<String, Value>, LoadError> {
    serde_json::from_slice(&files.require(file)?)
        .map_err(|error| LoadError::malformed(files.name_of(file), error))
}

/// Brings a configuration into the form of transformers 4, the only one that mistral.rs 0.8.1 reads.
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
