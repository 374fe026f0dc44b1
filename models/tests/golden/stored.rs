//! Stored logits of the reference models with their labels, to test losses without our models.
//!
//! This covers all kinds of checkpoints, including unsupported ones.

use std::collections::{BTreeMap, HashMap};

use candle_core::{Device, Tensor};
use ntl_core::losses::{NumberLoss, NumberTokens, Position, ReducedLoss, Reduction, reduce};
use serde_json::Value;

use crate::support::Fixtures;

pub(crate) const T5: [&str; 6] = ["t5-ce", "t5-ntl-was", "t5-ntl-mse", "t5-v11", "t5-rt", "t5-rt-ntl"];
pub(crate) const DECODERS: [&str; 5] = ["llama-ce", "llama-ntl", "gpt2", "granite", "qwen3"];

/// The reference implementations compute in single precision.
pub(crate) const RELATIVE: f64 = 1e-5;

/// The reference outputs for a checkpoint.
pub(crate) struct Stored {
    pub(crate) name: &'static str,
    pub(crate) golden: Value,
    tensors: HashMap<String, Tensor>,
}

/// Labels with their logits, for each row of a batch. A label of `None` is padding.
pub(crate) type Rows = Vec<Vec<(Option<u32>, Vec<f32>)>>;

/// Targets with the logits at each of their labels.
pub(crate) struct Example {
    pub(crate) id: String,
    pub(crate) golden: Value,
    pub(crate) rows: Rows,
}

pub(crate) fn read(fixtures: Fixtures, name: &str, file: &str) -> Value {
    let path = fixtures.folder(name).join("golden").join(file);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

impl Stored {
    pub(crate) fn open(fixtures: Fixtures, name: &'static str) -> Self {
        let golden = read(fixtures, name, "golden.json");
        let path = fixtures.folder(name).join("golden/golden.safetensors");
        Self { name, golden, tensors: candle_core::safetensors::load(path, &Device::Cpu).unwrap() }
    }

    pub(crate) fn all(fixtures: Fixtures, names: &[&'static str]) -> impl Iterator<Item = Self> {
        fixtures.only(names).map(move |name| Self::open(fixtures, name))
    }

    /// Returns all cases individually, and the padded batch as `batch`.
    pub(crate) fn examples(&self) -> Vec<Example> {
        let cases = self.golden["cases"].as_array().unwrap().iter();
        let alone = cases.map(|case| {
            let id = case["id"].as_str().unwrap();
            let labels = Value::Array(vec![case["label_ids"].clone()]);
            (id, case, labels, format!("case.{id}.logits"))
        });
        let batch = &self.golden["batch"];
        let batch = ("batch", batch, batch["label_ids"].clone(), "batch.logits".to_owned());
        let example = |(id, golden, labels, tensor): (&str, &Value, Value, String)| {
            let logits = &self.tensors[&tensor];
            let logits = if logits.rank() == 2 { logits.unsqueeze(0).unwrap() } else { logits.clone() };
            let logits: Vec<Vec<Vec<f32>>> = logits.to_vec3().unwrap();
            let row = |(labels, logits): (&Value, Vec<Vec<f32>>)| {
                let labels = labels
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|label| u32::try_from(label.as_i64().unwrap()).ok());
                labels.zip(logits).collect()
            };
            let rows = labels.as_array().unwrap().iter().zip(logits).map(row).collect();
            Example { id: format!("{} {id}", self.name), golden: golden.clone(), rows }
        };
        alone.chain([batch]).map(example).collect()
    }

    /// Returns the paper's number tokens: `[id, token, value, value of the CDF distance]`.
    pub(crate) fn paper_tokens(&self) -> (NumberTokens, BTreeMap<u32, f64>) {
        let tokens = self.golden["number_tokens"].as_array().unwrap();
        let id = |token: &Value| token[0].as_u64().unwrap() as u32;
        let places = tokens.iter().map(|token| (id(token), token[3].as_f64().unwrap())).collect();
        (NumberTokens::new(tokens.iter().map(|token| (id(token), token[2].as_f64().unwrap()))), places)
    }

    pub(crate) fn original_order(&self) -> Vec<u32> {
        crate::support::ids(&self.golden["wasserstein_order_ids"])
    }
}

/// Ranks the number tokens in the order of `ids`. Tokens that are not in `ids` come after all others.
pub(crate) fn in_order(tokens: NumberTokens, ids: &[u32]) -> NumberTokens {
    let place = |id| ids.iter().position(|&other| other == id).unwrap_or(ids.len()) as f64;
    tokens.ranked_by(|id, _| place(id))
}

impl Example {
    pub(crate) fn positions(&self) -> impl Iterator<Item = (Option<u32>, &[f32])> {
        self.rows.iter().flatten().map(|(label, logits)| (*label, logits.as_slice()))
    }

    /// The largest logit.
    pub(crate) fn logit_max(&self) -> f64 {
        let logits = self.positions().flat_map(|(_, logits)| logits);
        f64::from(logits.fold(0.0, |max: f32, logit| max.max(logit.abs())))
    }

    pub(crate) fn losses(&self, loss: NumberLoss, tokens: &NumberTokens) -> Vec<Option<f64>> {
        let at =
            |(label, logits): (Option<u32>, &[f32])| loss.at(&Position::new(logits, tokens).unwrap(), label?);
        self.positions().map(at).collect()
    }

    pub(crate) fn cross_entropies(&self, tokens: &NumberTokens) -> Vec<Option<f64>> {
        let at = |(label, logits): (Option<u32>, &[f32])| {
            Some(-Position::new(logits, tokens).unwrap().log_probability(label?))
        };
        self.positions().map(at).collect()
    }
}

pub(crate) fn mean(losses: &[Option<f64>]) -> f64 {
    match reduce(losses, Reduction::Mean) {
        ReducedLoss::All(mean) => mean,
        ReducedLoss::Each(_) => panic!("a mean is one value"),
    }
}

/// Returns the numbers of nested lists in order; `None` for null.
pub(crate) fn flat(value: &Value) -> Vec<Option<f64>> {
    match value {
        Value::Array(values) => values.iter().flat_map(flat).collect(),
        number => vec![number.as_f64()],
    }
}

/// Asserts that ids are equal and that values agree up to the single precision of the golden files.
pub(crate) fn assert_same_tokens(got: &NumberTokens, want: &NumberTokens, name: &str) {
    let near = |(got, want): ((u32, f64), (u32, f64))| {
        got.0 == want.0 && (got.1 - want.1).abs() <= 1e-6 * want.1.abs()
    };
    assert_eq!(got.values().count(), want.values().count(), "{name}");
    assert!(got.values().zip(want.values()).all(near), "{name}: got {got:?}, expected {want:?}");
}

/// The worst relative deviation of each kind of value, and the values that deviate too much.
#[derive(Debug, Default)]
pub(crate) struct Deviations {
    worst: BTreeMap<String, f64>,
    wrong: Vec<String>,
}

impl Deviations {
    /// Compares values. `unit` is the magnitude of the reference's single-precision sums. Two units in its
    /// last place, which the reference loses by cancellation, cannot be compared.
    pub(crate) fn compare(&mut self, (kind, what): (&str, &str), got: f64, want: f64, unit: f64) {
        let allowance = 2.0 * f64::from(f32::EPSILON) * unit / RELATIVE;
        let deviation = (got - want).abs() / (want.abs() + allowance);
        if deviation.is_nan() || deviation > RELATIVE {
            self.wrong.push(format!("{what}, {kind}: got {got}, expected {want}"));
        }
        let worst = self.worst.entry(kind.to_owned()).or_default();
        *worst = worst.max(deviation);
    }

    /// Fails if anything deviated too much.
    #[track_caller]
    pub(crate) fn check(self) {
        println!("worst relative deviations: {:?}", self.worst);
        assert!(
            self.wrong.is_empty(),
            "{} deviate, such as {:#?}",
            self.wrong.len(),
            &self.wrong[..self.wrong.len().min(12)]
        );
    }
}
