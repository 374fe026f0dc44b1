//! Compares T5Gemma 1 and 2 with transformers 5.23, and RegressLM's head with transformers 4.53. Prompts are
//! longer than the windows.

use std::collections::HashMap;
use std::path::Path;
use std::slice::from_ref;

use candle_core::{Device, Tensor};
use ntl_core::contract::{ContextRequest, OpenedContext, PathRow, Prompt, Row, Token};
use ntl_core::numbers::Softmax;
use ntl_core::sampling::argmax;
use ntl_models::{LoadOptions, LoadedModel, load};
use ntl_text::checkpoint::CheckpointFiles;
use serde_json::{Value, json};

use crate::corrupted::{Files, files_of};
use crate::support::{
    Fixtures, assert_close, chain, flat, ids, numbers, over_fixtures, prompt, read_golden, reference, score,
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
    let alone: Vec<f32> = prompts.iter().flat_map(|prompt| predict(from_ref(prompt))).collect();
    for (case, got) in cases.iter().zip(&alone) {
        let want = case["value"].as_f64().unwrap();
        assert!((f64::from(*got) - want).abs() < 1e-5 * want.abs().max(1.0), "{}: {got}, {want}", case["id"]);
    }
    assert_eq!(predict(&prompts), alone, "values depend on the batch");
}

#[test]
fn configurations_of_transformers_4_and_5_give_the_same_logits() {
    let files = files_of(&reference("t5gemma"));
    let mut saved_by_5 = files.clone();
    saved_by_5.insert("config.json".to_owned(), files["config-as-saved-by-v5.json"].clone());
    assert_eq!(logits_of_cases(saved_by_5), logits_of_cases(files));
}

/// The logits of each case of T5Gemma 1, computed by a checkpoint of these files.
fn logits_of_cases(files: Files) -> Vec<Vec<f32>> {
    let (json, _) = read_golden(&reference("t5gemma"));
    let (prompts, targets) = inputs(json["cases"].as_array().unwrap());
    let mut loaded = load(&CheckpointFiles::memory("t5gemma", files), LoadOptions::default()).unwrap();
    let (logits, starts) = score(&mut *loaded.model, &prompts, &targets);
    let ends = starts.iter().skip(1).copied().chain([logits.rows()]);
    let case =
        |(start, end): (&usize, usize)| (*start..end).flat_map(|row| logits.row(row).to_vec()).collect();
    starts.iter().zip(ends).map(case).collect()
}

/// transformers 4.53 has windows of the encoder that are one position shorter on both sides, and by default
/// (`sdpa`) no caps of scores.
#[test]
fn transformers_4_53_differs_only_in_the_windows_of_the_encoder_and_by_default_in_caps() {
    let folder = reference("t5gemma");
    let golden = folder.join("golden/golden_transformers_4_53_2.safetensors");
    let golden = candle_core::safetensors::load(golden, &Device::Cpu).unwrap();
    let (json, _) = read_golden(&folder);
    let cases = json["cases"].as_array().unwrap();
    let files = files_of(&folder);
    let logits = |changes: &[(&str, Value)]| {
        let mut config: Value = serde_json::from_slice(&files["config.json"]).unwrap();
        changes.iter().for_each(|(pointer, value)| *config.pointer_mut(pointer).unwrap() = value.clone());
        let changed = ("config.json".to_owned(), config.to_string().into_bytes());
        logits_of_cases(files.clone().into_iter().chain([changed]).collect())
    };
    let window = ("/encoder/sliding_window", json!(5));
    let no_caps = ["/encoder/attn_logit_softcapping", "/decoder/attn_logit_softcapping"];
    let no_caps = no_caps.map(|pointer| (pointer, Value::Null));
    let of = |attention: &str, case: &Value| {
        flat(&golden[&format!("{attention}.case.{}.logits", case["id"].as_str().unwrap())])
    };
    let shorter = logits(from_ref(&window));
    let uncapped = logits(&[&[window][..], &no_caps].concat());
    for ((case, shorter), uncapped) in cases.iter().zip(shorter).zip(uncapped) {
        assert_close(&shorter, &of("eager", case), TOLERANCE, &format!("eager {}", case["id"]));
        assert_close(&uncapped, &of("sdpa", case), TOLERANCE, &format!("sdpa {}", case["id"]));
    }
    for (case, got) in cases.iter().zip(logits(&[])) {
        let is_within_window = ids(&case["input_ids"]).len() <= 6;
        let off = got.iter().zip(of("eager", case)).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
        assert_eq!(off < TOLERANCE, is_within_window, "{}: {off}", case["id"]);
    }
}
