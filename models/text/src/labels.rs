//! The labels that a checkpoint with a head (`*ForSequenceClassification`) predicts, from its `config.json`.
//! Defaults come from transformers, activations from vLLM and the pipelines of transformers.

use std::collections::HashMap;

use ntl_core::labels::{LabelActivation, Labels};
use serde::Deserialize;
use serde_json::Value;

use crate::checkpoint::{CONFIG_FILE, CheckpointFiles, FieldError, LoadError, LoadResult, check_count};

/// Number of labels if the configuration does not state it.
const USUAL: usize = 2;

#[derive(Deserialize)]
struct StoredLabels {
    num_labels: Option<usize>,
    id2label: Option<HashMap<String, Value>>,
    problem_type: Option<String>,
    sentence_transformers: Option<StoredCrossEncoder>,
    sbert_ce_default_activation_function: Option<String>,
}

/// The settings of a cross-encoder of sentence-transformers.
#[derive(Deserialize)]
struct StoredCrossEncoder {
    activation_fn: Option<String>,
}

/// Reads the labels of a checkpoint.
pub fn read_labels(files: &CheckpointFiles) -> LoadResult<Labels> {
    let stored: StoredLabels = files.require_json(CONFIG_FILE)?;
    let labels = stored.names().and_then(|names| {
        let activation = stored.activation(names.len())?;
        Ok(Labels { names, activation })
    });
    labels.map_err(|(field, reason)| LoadError::field(files.name_of(CONFIG_FILE), field, reason))
}

/// The label of a head that predicts one number, and whose configuration names no labels.
pub fn one_number() -> Labels {
    Labels { names: vec![usual_name(0)], activation: LabelActivation::Identity }
}

fn usual_name(index: usize) -> String {
    format!("LABEL_{index}")
}

impl StoredLabels {
    /// Like transformers, prefers the number of names to `num_labels`.
    fn names(&self) -> Result<Vec<String>, FieldError> {
        let Some(names) = &self.id2label else {
            let count = check_count("num_labels", self.num_labels.unwrap_or(USUAL))?;
            return Ok((0..count).map(usual_name).collect());
        };
        let count = check_count("id2label", names.len())?;
        let mut sorted = Vec::with_capacity(count);
        for index in 0..count {
            sorted.push(match names.get(&index.to_string()) {
                Some(Value::String(name)) => name.clone(),
                Some(other) => other.to_string(),
                None => {
                    return Err(("id2label", format!("has {count} names, but none for label {index}")));
                }
            });
        }
        Ok(sorted)
    }

    fn activation(&self, labels: usize) -> Result<LabelActivation, FieldError> {
        // A softmax over one label would always be 1.
        let usual = if labels == 1 { LabelActivation::Sigmoid } else { LabelActivation::Softmax };
        match self.problem_type.as_deref() {
            None => Ok(self.cross_encoder_activation()?.unwrap_or(usual)),
            Some("regression") => Ok(LabelActivation::Identity),
            Some("multi_label_classification") => Ok(LabelActivation::Sigmoid),
            Some("single_label_classification") if labels > 1 => Ok(LabelActivation::Softmax),
            Some("single_label_classification") => {
                Err(("problem_type", "`single_label_classification` needs at least 2 labels".to_owned()))
            }
            Some(other) => Err((
                "problem_type",
                format!(
                    "`{other}` is none of regression, single_label_classification, multi_label_classification"
                ),
            )),
        }
    }

    fn cross_encoder_activation(&self) -> Result<Option<LabelActivation>, FieldError> {
        let new = self.sentence_transformers.as_ref().and_then(|stored| stored.activation_fn.as_deref());
        let old = self.sbert_ce_default_activation_function.as_deref();
        let named = new.map(|name| ("sentence_transformers.activation_fn", name));
        match named.or(old.map(|name| ("sbert_ce_default_activation_function", name))) {
            None => Ok(None),
            Some((_, "torch.nn.modules.linear.Identity")) => Ok(Some(LabelActivation::Identity)),
            Some((_, "torch.nn.modules.activation.Sigmoid")) => Ok(Some(LabelActivation::Sigmoid)),
            Some((field, other)) => {
                Err((field, format!("`{other}` is not supported; torch's Identity and Sigmoid are")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: &Value) -> LoadResult<Labels> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(CONFIG_FILE), config.to_string()).unwrap();
        read_labels(&CheckpointFiles::folder(folder.path()).unwrap())
    }

    #[test]
    fn names_come_from_the_configuration_or_are_those_of_transformers() {
        for (config, want) in [
            (json!({}), vec!["LABEL_0", "LABEL_1"]),
            (json!({"num_labels": 1}), vec!["LABEL_0"]),
            (json!({"id2label": {"1": "no", "0": "yes"}}), vec!["yes", "no"]),
            (json!({"id2label": {"0": 5}, "num_labels": 3}), vec!["5"]),
        ] {
            assert_eq!(read(&config).unwrap().names, want, "{config}");
        }
    }

    #[test]
    fn the_problem_decides_the_activation_and_cross_encoders_may_name_one() {
        use LabelActivation::{Identity, Sigmoid, Softmax};
        let identity = json!({"activation_fn": "torch.nn.modules.linear.Identity"});
        for (config, want) in [
            (json!({"num_labels": 1}), Sigmoid),
            (json!({"num_labels": 3}), Softmax),
            (json!({"num_labels": 1, "problem_type": "regression"}), Identity),
            (json!({"num_labels": 3, "problem_type": "regression"}), Identity),
            (json!({"num_labels": 3, "problem_type": "multi_label_classification"}), Sigmoid),
            (json!({"num_labels": 3, "problem_type": "single_label_classification"}), Softmax),
            (json!({"num_labels": 1, "sentence_transformers": identity}), Identity),
            (json!({"num_labels": 1, "sentence_transformers": {}}), Sigmoid),
            (
                json!({"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}),
                Identity,
            ),
        ] {
            assert_eq!(read(&config).unwrap().activation, want, "{config}");
        }
    }

    #[test]
    fn bad_fields_are_named() {
        for (config, field) in [
            (json!({"num_labels": 0}), "num_labels"),
            (json!({"num_labels": 99_999_999}), "num_labels"),
            (json!({"id2label": {}}), "id2label"),
            (json!({"id2label": {"0": "a", "2": "c"}}), "id2label"),
            (json!({"problem_type": "ranking"}), "problem_type"),
            (json!({"num_labels": 1, "problem_type": "single_label_classification"}), "problem_type"),
            (json!({"sentence_transformers": {"activation_fn": "os.system"}}), "activation_fn"),
        ] {
            let message = read(&config).unwrap_err().to_string();
            assert!(message.contains("config.json: field `") && message.contains(field), "{message}");
        }
    }
}
