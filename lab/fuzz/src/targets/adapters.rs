//! LoRA adapters, which a server reads while it runs: both files of a directory, for several kinds of models.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use ntl_models::{AdapterReader, DeviceChoice, LoadOptions, load};
use ntl_text::checkpoint::CheckpointFiles;

use super::outcome;
use crate::corpus::{adapter, checkpoint, named, split_named};
use crate::{Outcome, Target};

/// Adapters of the small checkpoints of the same names. The last two replace the head of their model.
const ADAPTERS: [&str; 5] = ["gpt2", "t5-ce", "t5gemma2", "mistral-classes", "roberta-regression"];

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// Stands for [`WEIGHTS`] with another table of tensors.
const TABLE: &str = "table";

pub(super) const ADAPTER: Target = Target {
    name: "adapter",
    corpus: || {
        let mut corpus = Vec::new();
        for folder in ADAPTERS {
            let (config, weights) = (adapter(folder, CONFIG), adapter(folder, WEIGHTS));
            let (table, _) = split(&weights);
            for (file, content) in [(CONFIG, &*config), (TABLE, table), (WEIGHTS, &*weights)] {
                corpus.push(named(&format!("{folder}/{file}"), content));
            }
        }
        corpus
    },
    words: &[
        "peft_type",
        "LORA",
        "r",
        "lora_alpha",
        "rank_pattern",
        "alpha_pattern",
        "use_rslora",
        "use_dora",
        "bias",
        "modules_to_save",
        "target_modules",
        "layer_replication",
        "(a+)+$",
        "classifier",
        "score",
        "base_model.model.score.weight",
        "base_model.model.score.bias",
        "base_model.model.classifier.dense.bias",
        ".lora_A.default.weight",
        ".lora_B.weight",
        ".encoder.text_model.",
        "model.encoder.vision_tower.",
        "shape",
        "data_offsets",
        "F16",
        "BF16",
        "1e300",
        "NaN",
    ],
    read,
};

static READERS: LazyLock<BTreeMap<&str, AdapterReader>> = LazyLock::new(|| {
    let mut readers = BTreeMap::new();
    for folder in ADAPTERS {
        let files = CheckpointFiles::memory("model", checkpoint(folder).expect("a fixture"));
        let options = LoadOptions { device: DeviceChoice::Cpu, ..LoadOptions::default() };
        let reader = load(&files, options).unwrap().adapters.expect("the model can have adapters");
        readers.insert(folder, reader);
    }
    readers
});

/// Reads an adapter with one file replaced.
fn read(input: &[u8]) -> Outcome {
    let Some((name, content)) = split_named(input) else { return Outcome::Refused };
    let Some((folder, file)) = name.split_once('/') else { return Outcome::Refused };
    let Some(reader) = READERS.get(folder) else { return Outcome::Refused };
    let (mut config, mut weights) = (adapter(folder, CONFIG), adapter(folder, WEIGHTS));
    match file {
        CONFIG => config = content.to_vec(),
        WEIGHTS => weights = content.to_vec(),
        TABLE => {
            let (_, data) = split(&weights);
            weights = [&(content.len() as u64).to_le_bytes(), content, data].concat();
        }
        _ => return Outcome::Refused,
    }
    let files = [(CONFIG.to_owned(), config), (WEIGHTS.to_owned(), weights)];
    let files = CheckpointFiles::memory("fuzzed", files);
    outcome(reader.open(&files).and_then(|open| open.read()), "adapter_")
}

/// Returns the table of tensors of a safetensors file, and the data after it.
fn split(weights: &[u8]) -> (&[u8], &[u8]) {
    let (length, rest) = weights.split_first_chunk().expect("a fixture");
    rest.split_at(u64::from_le_bytes(*length) as usize)
}
