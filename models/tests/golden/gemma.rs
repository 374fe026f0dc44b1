//! Compares T5Gemma 1 and 2 with transformers 5.23, and RegressLM's head with transformers 4.53. Prompts are
//! longer than the windows.

use std::collections::HashMap;
use std::path::Path;

use candle_core::Tensor;
use ntl_core::contract::{ContextRequest, OpenedContext, PathRow, Prompt, Row, Token};
use ntl_core::numbers::Softmax;
use ntl_core::sampling::argmax;
use ntl_models::checkpoint::CheckpointFiles;
use ntl_models::{LoadOptions, LoadedModel, load};
use serde_json::Value;

use crate::support::{
    Fixtures, assert_close, chain, flat, ids, numbers, over_fixtures, prompt, read_golden, score, shared,
    target,
};

const CHECKPOINTS: [&str; 2] = ["t5gemma", "t5gemma2"];

/// The reference in f32 itself differs by 1.2e-4 from a computation in f64.
const TOLERANCE: f32 = 1e-3;

struct Golden {
    name: &'static str,
    cases: Vec<Value>,
    tensors: HashMap<String, Tensor>,
    loaded: LoadedModel,
}

fn open(folder: &Path) -> LoadedModel {
    load(&CheckpointFiles::folder(folder).unwrap(), LoadOptions::default()).unwrap()
}

fn for_each_checkpoint(fixtures: Fixtures, check: impl Fn(&mut Golden)) {
    for name in CHECKPOINTS {
        let folder = fixtures.folder(name);
        let (json, tensors) = read_golden(&folder);
        let cases = json["cases"].as_array().unwrap().clone();
        check(&mut Golden { name, cases, tensors, loaded: open(&folder) });
    }
}

/// Returns the prompts and decoder inputs of all cases.
fn inputs(cases: &[Value]) -> (Vec<Prompt>, Vec<Vec<Token>>) {
    cases.iter().map(|case| (prompt(case), target(case))).unzip()
}

over_fixtures! {
    prompts_have_the_ids_of_the_reference,
    logits_and_log_probabilities_match_the_reference_at_every_position,
    a_padded_batch_of_the_reference_matches_our_batch_without_padding,
    greedy_ids_match_the_reference_step_by_step,
    a_row_is_bit_identical_alone_and_in_a_batch,
    a_head_of_the_mean_matches_the_reference_alone_and_in_a_batch,
}

fn prompts_have_the_ids_of_the_reference(fixtures: Fixtures) {
    for_each_checkpoint(fixtures, |Golden { name, cases, loaded, .. }| {
        for case in cases {
            let text = case["prompt"].as_str().unwrap();
            let got = loaded.tokenizer.encode(text, true).unwrap();
            assert_eq!(got, ids(&case["input_ids"]), "{name}: {text:?}");
            let text = case["label"].as_str().unwrap();
            let got = loaded.tokenizer.encode(text, false).unwrap();
            assert_eq!([got, vec![1]].concat(), ids(&case["label_ids"]), "{name}: {text:?}");
        }
        let info = loaded.model.info();
        assert_eq!((&*info.kind, info.encoder_decoder, info.prompt_tokens_max), (*name, true, 512));
    });
}

fn logits_and_log_probabilities_match_the_reference_at_every_position(fixtures: Fixtures) {
    for_each_checkpoint(fixtures, |Golden { name, cases, tensors, loaded }| {
        let mut worst = 0.0_f32;
        for case in cases {
            let id = case["id"].as_str().unwrap();
            let (logits, _) = score(&mut *loaded.model, &[prompt(case)], &[target(case)]);
            let got: Vec<f32> = (0..logits.rows()).flat_map(|row| logits.row(row).to_vec()).collect();
            let what = format!("{name} {id}");
            let want = flat(&tensors[&format!("case.{id}.logits")]);
            worst = worst.max(assert_close(&got, &want, TOLERANCE, &what));
            let labels = ids(&case["label_ids"]);
            for (row, (label, want)) in labels.iter().zip(numbers(&case["token_logprobs"])).enumerate() {
                let got = Softmax::new(logits.row(row)).unwrap().log_probability(*label);
                let off_max = f64::from(TOLERANCE);
                assert!((got - want).abs() < off_max, "{what}, label {row}: got {got}, expected {want}");
            }
        }
        println!("{name}: logits differ by at most {worst:e}");
    });
}

fn a_padded_batch_of_the_reference_matches_our_batch_without_padding(fixtures: Fixtures) {
    for_each_checkpoint(fixtures, |Golden { name, cases, tensors, loaded }| {
        let (prompts, targets) = inputs(cases);
        let (logits, starts) = score(&mut *loaded.model, &prompts, &targets);
        for (case, (start, target)) in starts.into_iter().zip(&targets).enumerate() {
            let want = tensors["batch.logits"].get(case).unwrap();
            for position in 0..target.len() {
                let what = format!("{name} batch row {case} position {position}");
                let want = flat(&want.get(position).unwrap());
                assert_close(logits.row(start + position), &want, TOLERANCE, &what);
            }
        }
    });
}

fn greedy_ids_match_the_reference_step_by_step(fixtures: Fixtures) {
    for_each_checkpoint(fixtures, |Golden { name, cases, loaded, .. }| {
        let model = &mut *loaded.model;
        for case in cases {
            let want = ids(&case["greedy"]["ids"]);
            let opened = model.open(&[ContextRequest::from(&prompt(case))]).unwrap()[0];
            let mut got = vec![opened.first_token];
            while got.len() < want.len() {
                let rows = chain(opened.context, &got[got.len() - 1..], got.len() as u32 - 1);
                let logits = model.step(&rows).unwrap();
                got.push(argmax(&logits.row(0)[..model.info().tokens]) as u32);
            }
            model.close(opened.context);
            assert_eq!(got, want, "{name} {}", case["id"]);
        }
    });
}

fn a_row_is_bit_identical_alone_and_in_a_batch(fixtures: Fixtures) {
    for_each_checkpoint(fixtures, |Golden { name, cases, loaded, .. }| {
        let (prompts, targets) = inputs(cases);
        let (together, starts) = score(&mut *loaded.model, &prompts, &targets);
        for (case, start) in starts.into_iter().enumerate() {
            let (alone, _) = score(&mut *loaded.model, &prompts[case..=case], &targets[case..=case]);
            for row in 0..alone.rows() {
                assert_eq!(alone.row(row), together.row(start + row), "{name} case {case}, row {row}");
            }
        }
    });
}

/// The tokenizer of prompts is in an inner directory, and the vocabulary of the backbone's configuration is
/// smaller than the embedding table.
fn a_head_of_the_mean_matches_the_reference_alone_and_in_a_batch(fixtures: Fixtures) {
    let folder = fixtures.folder("regresslm-hf-head");
    let golden: Value =
        serde_json::from_slice(&std::fs::read(folder.join("golden/golden.json")).unwrap()).unwrap();
    let LoadedModel { mut model, tokenizer, vocabulary, .. } = open(&folder);
    assert!(vocabulary.grammar.is_point() && !model.info().has_token_distribution());
    let cases = golden["cases"].as_array().unwrap();
    let prompts: Vec<Prompt> = cases
        .iter()
        .map(|case| {
            let prompt = tokenizer.encode(case["prompt"].as_str().unwrap(), true).unwrap();
            assert_eq!(prompt, ids(&case["encoder_input_ids"]));
            prompt.into()
        })
        .collect();
    let mut predict = |prompts: &[Prompt]| -> Vec<f32> {
        let opened = crate::support::open(&mut *model, prompts);
        let row = |opened: &OpenedContext| Row {
            context: opened.context,
            path: PathRow::new(None, opened.first_token),
        };
        let values = model.step(&opened.iter().map(row).collect::<Vec<_>>()).unwrap();
        opened.iter().for_each(|opened| model.close(opened.context));
        (0..prompts.len()).map(|row| values.row(row)[0]).collect()
    };
    let alone: Vec<f32> = prompts.iter().flat_map(|prompt| predict(std::slice::from_ref(prompt))).collect();
    for (case, got) in cases.iter().zip(&alone) {
        let want = case["value"].as_f64().unwrap();
        assert!((f64::from(*got) - want).abs() < 1e-5 * want.abs().max(1.0), "{}: {got}, {want}", case["id"]);
    }
    assert_eq!(predict(&prompts), alone, "values depend on the batch");
}

#[test]
#[cfg_attr(not(shared_fixtures), ignore = "needs ../shared")]
fn configurations_of_transformers_4_and_5_give_the_same_logits() {
    let folder = tempfile::tempdir().unwrap();
    let from = shared("t5gemma");
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(from.join(file), folder.path().join(file)).unwrap();
    }
    std::fs::copy(from.join("config-as-saved-by-v5.json"), folder.path().join("config.json")).unwrap();
    let (json, _) = read_golden(&from);
    let (prompts, targets) = inputs(json["cases"].as_array().unwrap());
    let logits = |folder: &Path| {
        let (logits, _) = score(&mut *open(folder).model, &prompts, &targets);
        (0..logits.rows()).map(|row| logits.row(row).to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(logits(folder.path()), logits(&from));
}
