//! Fixtures of the original code, where they are, and comparing with them.

use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use ntl_core::engine::{BatchModel, ContextId, Logits, NodeId, NumberEncoding, PathRow, Row};
use ntl_models::checkpoint::CheckpointFiles;
use ntl_models::t5::{T5, TokenizerFacts};
use serde_json::Value;

/// The folder of shared fixtures; `None`, and a line that says so, where it is absent.
pub(crate) fn fixtures() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures");
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: the shared fixtures are absent ({})", folder.display());
    None
}

/// A checkpoint with the golden outputs that the original code computed from it.
pub(crate) struct Golden {
    pub(crate) name: String,
    pub(crate) json: Value,
    pub(crate) tensors: std::collections::HashMap<String, Tensor>,
    pub(crate) model: T5,
}

impl Golden {
    pub(crate) fn open(name: &str) -> Option<Self> {
        let folder = fixtures()?.join(name);
        let golden = folder.join("golden");
        let json: Value =
            serde_json::from_slice(&std::fs::read(golden.join("golden.json")).unwrap()).unwrap();
        let tensors =
            candle_core::safetensors::load(golden.join("golden.safetensors"), &Device::Cpu).unwrap();
        let facts = TokenizerFacts {
            tokens: json["len_tokenizer"].as_u64().unwrap() as usize,
            prompt_tokens_max: 512,
            number_encoding: NumberEncoding::Text,
        };
        let model =
            T5::load(&CheckpointFiles::folder(&folder).unwrap(), facts, (DType::F32, &Device::Cpu)).unwrap();
        Some(Self { name: name.to_owned(), json, tensors, model })
    }

    pub(crate) fn cases(&self) -> Vec<Value> {
        self.json["cases"].as_array().unwrap().clone()
    }
}

pub(crate) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// A chain of rows under one context, each extending the one before it; `first` is the first one's number.
pub(crate) fn chain(context: ContextId, tokens: &[u32], first: u32) -> Vec<Row> {
    let row = |(index, &token): (u32, &u32)| {
        let parent = index.checked_sub(1).map(NodeId);
        Row { context, path: PathRow::new(parent, token) }
    };
    (first..).zip(tokens).map(row).collect()
}

/// Opens the prompts in one batch and steps each one's decoder tokens as chains of one step.
pub(crate) fn score(model: &mut T5, prompts: &[Vec<u32>], targets: &[Vec<u32>]) -> (Logits, Vec<usize>) {
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let opened = model.open(&prompts).unwrap();
    let mut starts = Vec::new();
    let mut rows = Vec::new();
    for (opened, target) in opened.iter().zip(targets) {
        starts.push(rows.len());
        rows.extend(chain(opened.context, target, 0));
    }
    let logits = model.step(&rows).unwrap();
    for opened in opened {
        model.close(opened.context);
    }
    (logits, starts)
}

/// Largest absolute difference; says where it is when it exceeds `tolerance`.
#[track_caller]
pub(crate) fn assert_close(got: &[f32], want: &[f32], tolerance: f32, what: &str) -> f32 {
    assert_eq!(got.len(), want.len(), "{what}: lengths differ");
    let mut worst = (0, 0.0_f32);
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let difference = (got - want).abs();
        assert!(!difference.is_nan(), "{what}: NaN at {index}");
        if difference > worst.1 {
            worst = (index, difference);
        }
    }
    let (index, difference) = worst;
    assert!(difference <= tolerance, "{what}: {} instead of {} at {index}", got[index], want[index]);
    difference
}
