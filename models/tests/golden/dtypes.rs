//! Every `--dtype` of the CPU on every kind of model: near what the original computes in f32, and each row the same alone and
//! among others.

use ntl_core::engine::{BatchModel, Prompt, Token};
use ntl_models::checkpoint::{CheckpointFiles, Choices};
use ntl_models::{DeviceChoice, DtypeChoice, LoadOptions, load};
use serde_json::Value;

use crate::support::{Fixtures, flat, ids, over_fixtures, prompt, read_golden, score, target, tokens};

over_fixtures! {
    logits_of_smaller_weights_are_near_the_originals,
    a_row_of_any_dtype_is_the_same_to_the_bit_alone_and_among_others,
}

const T5: [&str; 4] = ["t5-ce", "t5-ntl-was", "t5-rt", "t5-xval"];
const CAUSAL: [&str; 4] = ["llama-ntl", "gpt2", "granite", "qwen3"];

/// The dtypes, and the share of the spread of logits by which they may be off: root mean squares, largest for random weights.
const DTYPES: [(DtypeChoice, f32); 5] = [
    (DtypeChoice::F32, 1e-4),
    (DtypeChoice::F16, 0.02),
    (DtypeChoice::Bf16, 0.1),
    (DtypeChoice::Q8_0, 0.15),
    (DtypeChoice::Int8, 0.2),
];

fn open(fixtures: Fixtures, name: &str, dtype: DtypeChoice) -> Box<dyn BatchModel> {
    let choices = Choices { log_scale_embeddings: Some(true), ..Choices::default() };
    let options = LoadOptions { device: DeviceChoice::Cpu, dtype, choices, prefix_bytes_max: 0 };
    let loaded = load(&CheckpointFiles::folder(&fixtures.folder(name)).unwrap(), options).unwrap();
    assert_eq!(loaded.model.info().dtype.name(), dtype.name());
    loaded.model
}

/// The prompt of a case, and the rows that the original's logits `[rows, V]` belong to.
fn rows(case: &Value) -> (Prompt, Vec<Token>) {
    if case.get("full_ids").is_none() {
        return (prompt(case), target(case));
    }
    let (full, n_prompt) = (ids(&case["full_ids"]), case["n_prompt"].as_u64().unwrap() as usize);
    (full[..n_prompt].to_vec().into(), tokens(&full[n_prompt - 1..full.len() - 1], &[]))
}

fn logits_of_smaller_weights_are_near_the_originals(fixtures: Fixtures) {
    let mut far = Vec::new();
    for name in T5.into_iter().chain(CAUSAL) {
        let (json, tensors) = read_golden(&fixtures.folder(name));
        for (dtype, share) in DTYPES {
            let (mut model, mut off, mut spread) = (open(fixtures, name, dtype), 0.0, 0.0);
            for case in json["cases"].as_array().unwrap() {
                let (prompt, target) = rows(case);
                let (logits, _) = score(model.as_mut(), &[prompt], &[target]);
                let want = flat(&tensors[&format!("case.{}.logits", case["id"].as_str().unwrap())]);
                for (row, want) in want.chunks_exact(want.len() / logits.rows()).enumerate() {
                    let mean = want.iter().sum::<f32>() / want.len() as f32;
                    let squares = logits.row(row).iter().zip(want).map(|(got, want)| (got - want).powi(2));
                    off += squares.sum::<f32>();
                    spread += want.iter().map(|want| (want - mean).powi(2)).sum::<f32>();
                }
            }
            let found = (off / spread).sqrt();
            println!("{name}, {}: off by {found:.5} of the spread", dtype.name());
            if found.is_nan() || found > share {
                far.push((name, dtype, found));
            }
        }
    }
    assert!(far.is_empty(), "{far:?}");
}

fn a_row_of_any_dtype_is_the_same_to_the_bit_alone_and_among_others(fixtures: Fixtures) {
    for name in T5.into_iter().chain(CAUSAL) {
        let (json, _) = read_golden(&fixtures.folder(name));
        let (prompts, targets): (Vec<_>, Vec<_>) = json["cases"].as_array().unwrap().iter().map(rows).unzip();
        for (dtype, _) in DTYPES {
            let mut model = open(fixtures, name, dtype);
            let (together, starts) = score(model.as_mut(), &prompts, &targets);
            for (case, start) in starts.into_iter().enumerate() {
                let (alone, _) = score(model.as_mut(), &prompts[case..=case], &targets[case..=case]);
                for row in 0..alone.rows() {
                    let what = format!("{name}, {}, case {case}, row {row}", dtype.name());
                    assert_eq!(alone.row(row), together.row(start + row), "{what}");
                    assert_eq!(alone.head_value(row), together.head_value(start + row), "{what}");
                }
            }
        }
    }
}
