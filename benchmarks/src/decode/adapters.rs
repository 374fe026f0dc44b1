//! Random LoRA adapters of a model, to measure batches whose rows have different adapters.

use anyhow::{Context, ensure};
use ntl_core::contract::Adapter;
use ntl_models::AdapterReader;
use ntl_text::checkpoint::CheckpointFiles;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

/// Maximum absolute value of a weight. The changes stay small compared with the weights of the model.
const WEIGHT_MAX: f32 = 0.01;

/// Adapters with random weights
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Adapters")]
pub(super) struct AdapterArgs {
    /// Number of adapters. Each batch is then measured twice, without and with adapters, in alternation; its
    /// prompts use the adapters in turn
    #[arg(long, default_value_t = 0)]
    adapters: usize,
    /// Rank of every adapter
    #[arg(long, default_value_t = 16)]
    adapter_rank: usize,
    /// Ends of the names of the layers that the adapters change, such as `q_proj,v_proj`. Default: all linear
    /// layers except the output layer
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    adapter_modules: Vec<String>,
}

impl AdapterArgs {
    pub(super) fn create(&self, reader: Option<&AdapterReader>) -> anyhow::Result<Vec<Adapter>> {
        if self.adapters == 0 {
            return Ok(Vec::new());
        }
        let reader = reader.context("this model cannot have adapters")?;
        (0..self.adapters as u64).map(|seed| self.random(reader, seed)).collect()
    }

    fn random(&self, reader: &AdapterReader, seed: u64) -> anyhow::Result<Adapter> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut table = Map::new();
        let mut data = Vec::new();
        for (module, [outputs, inputs]) in reader.modules().filter(|(module, _)| self.changes(module)) {
            for (part, shape) in
                [("lora_A", [self.adapter_rank, inputs]), ("lora_B", [outputs, self.adapter_rank])]
            {
                let name = format!("base_model.model.{module}.{part}.weight");
                if table.contains_key(&name) {
                    continue;
                }
                let start = data.len();
                let weights = (0..shape[0] * shape[1]).map(|_| rng.random_range(-WEIGHT_MAX..WEIGHT_MAX));
                data.extend(weights.flat_map(f32::to_le_bytes));
                let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
                table.insert(name, entry);
            }
        }
        ensure!(!table.is_empty(), "--adapter-modules: the model has no such layers");
        let table = Value::Object(table).to_string();
        let weights = [&(table.len() as u64).to_le_bytes()[..], table.as_bytes(), &data].concat();
        let config = json!({"peft_type": "LORA", "r": self.adapter_rank, "lora_alpha": self.adapter_rank});
        let files = [
            ("adapter_config.json".to_owned(), config.to_string().into_bytes()),
            ("adapter_model.safetensors".to_owned(), weights),
        ];
        let files = CheckpointFiles::memory("random adapter", files);
        Ok(reader.open(&files)?.read()?)
    }

    fn changes(&self, module: &str) -> bool {
        if self.adapter_modules.is_empty() {
            return !module.contains("lm_head");
        }
        self.adapter_modules.iter().any(|end| module.rsplit('.').next() == Some(end))
    }
}
