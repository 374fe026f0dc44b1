//! Compares the decoder-only models with the outputs of the reference implementation: `golden/` of the
//! checkpoints.

use std::collections::HashMap;
use std::path::PathBuf;
use std::slice::from_ref;

use candle_core::Tensor;
use ntl_core::contract::{BatchModel, ContextRequest, NodeId, PathRow, Prompt, Row};
use ntl_core::numbers::Softmax;
use ntl_core::sampling::argmax;
use ntl_core::text::TextDecoder;
use ntl_models::inspect::{Depth, inspect};
use ntl_models::{LoadOptions, LoadedModel, load};
use ntl_text::checkpoint::CheckpointFiles;
use serde_json::Value;

use crate::support::{
    Fixtures, assert_close, chain, flat, ids, numbers, open_ids, over_fixtures, read_golden, score_ids,
};

const TOLERANCE: f32 = 1e-4;

/// Returns the tolerance. For one text, the reference in f32 itself differs by 1e-4 from the reference in
/// f64.
fn tolerance(checkpoint: &str, case: &str) -> f32 {
    if (checkpoint, case) == ("llama-ntl", "gsm8k") { 2.0 * TOLERANCE } else { TOLERANCE }
}

/// Trained and random, tied and untied, in old and new formats of the configuration.
const CHECKPOINTS: [&str; 5] = ["llama-ce", "llama-ntl", "gpt2", "granite", "qwen3"];

struct Golden {
    name: &'static str,
    folder: PathBuf,
    json: Value,
    tensors: HashMap<String, Tensor>,
    loaded: LoadedModel,
}

fn open(fixtures: Fixtures, name: &'static str, prefix_bytes_max: usize) -> Golden {
    let folder = fixtures.folder(name);
    let (json, tensors) = read_golden(&folder);
    let options = LoadOptions { prefix_bytes_max, ..LoadOptions::default() };
    let loaded = load(&CheckpointFiles::folder(&folder).unwrap(), options).unwrap();
    Golden { name, folder, json, tensors, loaded }
}

fn for_each_checkpoint(fixtures: Fixtures, check: impl Fn(&mut Golden)) {
    for name in fixtures.only(&CHECKPOINTS) {
        check(&mut open(fixtures, name, LoadOptions::default().prefix_bytes_max));
    }
}

/// A prompt, and the rows whose logits predict the labels after it: its last token and all labels except the
/// last.
struct Case {
    id: String,
    prompt: Vec<u32>,
    target: Vec<u32>,
    labels: Vec<u32>,
}

impl Case {
    fn new(case: &Value) -> Self {
        let full = ids(&case["full_ids"]);
        let n_prompt = case["n_prompt"].as_u64().unwrap() as usize;
        Self {
            id: case["id"].as_str().unwrap().to_owned(),
            prompt: full[..n_prompt].to_vec(),
            target: full[n_prompt - 1..full.len() - 1].to_vec(),
            labels: ids(&case["label_ids"]),
        }
    }

    fn all(golden: &Golden) -> Vec<Self> {
        golden.json["cases"].as_array().unwrap().iter().map(Self::new).collect()
    }
}
over_fixtures! {
    prompts_answers_and_number_tokens_match_the_reference,
    inspecting_only_the_tables_reports_the_same_as_loading,
    logits_and_log_probabilities_match_the_reference_at_every_label,
    log_probabilities_of_complete_texts_match_the_reference,
    a_padded_batch_of_the_reference_matches_our_batch_without_padding,
    greedy_ids_match_the_reference_step_by_step,
    a_row_is_bit_identical_alone_and_in_a_batch_with_and_without_shared_prefixes,
    prompts_of_one_prefill_already_share_their_prefix,
    prompts_share_a_prefix_only_if_their_salts_are_equal,
    a_tree_of_rows_equals_its_paths_one_by_one,
}

fn prompts_answers_and_number_tokens_match_the_reference(fixtures: Fixtures) {
    for_each_checkpoint(fixtures, |Golden { name, folder, json, loaded, .. }| {
        let tokenizer = &loaded.tokenizer;
        assert_eq!(Some(tokenizer.len() as u64), json["len_tokenizer"].as_u64(), "{name}");
        for case in json["cases"].as_array().unwrap() {
            let prompt = case["prompt"].as_str().unwrap();
            assert_eq!(
                tokenizer.encode(prompt, true).unwrap(),
                ids(&case["prompt_ids"]),
                "{name}: {prompt:?}"
            );
            if let Some(text) = case["greedy"]["text"].as_str() {
                assert_eq!(tokenizer.decode(&ids(&case["greedy"]["ids"])), text, "{name}: {prompt:?}");
            }
        }
        let ntloss = std::fs::read(folder.join("golden/ntloss.json")).unwrap();
        let ntloss: Value = serde_json::from_slice(&ntloss).unwrap();
        let value = |token: &Value| (token[0].as_u64().unwrap() as u32, token[1].as_f64().unwrap());
        let want = ntloss["info"]["number_tokens_all"].as_array().unwrap().iter().map(value);
        let got = &*loaded.vocabulary.number_values;
        assert_eq!(got, want.collect::<Vec<_>>(), "{name}");
    });
}

fn inspecting_only_the_tables_reports_the_same_as_loading(fixtures: Fixtures) {
    for_each_checkpoint(fixtures, |Golden { name, folder, loaded, .. }| {
        let files = CheckpointFiles::folder(folder).unwrap();
        let found = inspect(files, LoadOptions::default(), Depth::Tables).unwrap();
        let info = loaded.model.info();
        assert_eq!((&found.kind, found.tokens), (&info.kind, info.tokens), "{name}");
        assert_eq!(found.numbers.count, loaded.vocabulary.number_values.len(), "{name}");
        assert!(found.parameters >= info.parameters, "{name}: files may contain unused weights");
        assert!(found.sizes.num_layers.is_some() && found.sizes.d_model.is_some(), "{name}: {found:?}");
        assert_eq!(found.assumed, [], "{name}");
    });
}

fn logits_and_log_probabilities_match_the_reference_at_every_label(fixtures: Fixtures) {
    for_each_checkpoint(fixtures, |golden| {
        let mut worst = 0.0_f32;
        let cases = Case::all(golden);
        for (case, stored) in cases.iter().zip(golden.json["cases"].as_array().unwrap()) {
            let model = &mut *golden.loaded.model;
            let (logits, _) = score_ids(model, from_ref(&case.prompt), from_ref(&case.target));
            let want = flat(&golden.tensors[&format!("case.{}.logits", case.id)]);
            let got: Vec<f32> = (0..logits.rows()).flat_map(|row| logits.row(row).to_vec()).collect();
            let what = format!("{} {}", golden.name, case.id);
            let tolerance = tolerance(golden.name, &case.id);
            worst = worst.max(assert_close(&got, &want, tolerance, &what));
            for (row, want) in numbers(&stored["token_logprobs"]).into_iter().enumerate() {
                let got = Softmax::new(logits.row(row)).unwrap().log_probability(case.labels[row]);
                let off = (got - want).abs();
                assert!(off < f64::from(tolerance), "{what}, label {row}: got {got}, expected {want}");
            }
        }
        println!("{}: logits differ by at most {worst:e}", golden.name);
    });
}

fn log_probabilities_of_complete_texts_match_the_reference(fixtures: Fixtures) {
    for_each_checkpoint(fixtures, |golden| {
        let mut worst = 0.0_f64;
        for stored in golden.json["cases"].as_array().unwrap() {
            let full = ids(&stored["full_ids"]);
            let target = full[..full.len() - 1].to_vec();
            let (logits, _) = score_ids(&mut *golden.loaded.model, &[full[..1].to_vec()], &[target]);
            for (row, want) in numbers(&stored["full_token_logprobs"]).into_iter().enumerate() {
                let got = Softmax::new(logits.row(row)).unwrap().log_probability(full[row + 1]);
                worst = worst.max((got - want).abs());
            }
        }
        println!("{}: log-probabilities of whole texts differ by at most {worst:e}", golden.name);
        assert!(worst < 2e-4, "{}: {worst}", golden.name);
    });
}

fn a_padded_batch_of_the_reference_matches_our_batch_without_padding(fixtures: Fixtures) {
    for_each_checkpoint(fixtures, |golden| {
        let batch = golden.json["batch"].clone();
        let wanted: Vec<&str> =
            batch["case_ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
        let cases: Vec<Case> =
            Case::all(golden).into_iter().filter(|case| wanted.contains(&case.id.as_str())).collect();
        assert_eq!(cases.iter().map(|case| case.id.as_str()).collect::<Vec<_>>(), wanted);
        let prompts: Vec<_> = cases.iter().map(|case| case.prompt.clone()).collect();
        let targets: Vec<_> = cases.iter().map(|case| case.target.clone()).collect();
        let (logits, starts) = score_ids(&mut *golden.loaded.model, &prompts, &targets);
        for ((index, case), start) in cases.iter().enumerate().zip(starts) {
            let want = golden.tensors["batch.logits"].get(index).unwrap();
            for position in 0..case.labels.len() {
                let what = format!("{} batch row {index} position {position}", golden.name);
                let want = flat(&want.get(position).unwrap());
                assert_close(logits.row(start + position), &want, TOLERANCE, &what);
            }
        }
    });
}

fn greedy_ids_match_the_reference_step_by_step(fixtures: Fixtures) {
    for_each_checkpoint(fixtures, |golden| {
        let tokens = golden.loaded.model.info().tokens;
        for case in golden.json["cases"].as_array().unwrap() {
            let Some(want) = case["greedy"]["ids"].as_array() else { continue };
            let want: Vec<u32> = want.iter().map(|id| id.as_u64().unwrap() as u32).collect();
            let model = &mut golden.loaded.model;
            let opened = open_ids(&mut **model, &[&ids(&case["prompt_ids"])])[0];
            let mut path = vec![opened.first_token];
            while path.len() <= want.len() {
                let rows = chain(opened.context, &path[path.len() - 1..], path.len() as u32 - 1);
                path.push(argmax(&model.step(&rows).unwrap().row(0)[..tokens]) as u32);
            }
            model.close(opened.context);
            assert_eq!(path[1..], want, "{} {}", golden.name, case["id"]);
        }
    });
}

fn a_row_is_bit_identical_alone_and_in_a_batch_with_and_without_shared_prefixes(fixtures: Fixtures) {
    for name in fixtures.only(&CHECKPOINTS) {
        let mut sharing = open(fixtures, name, 1 << 22);
        let mut alone = open(fixtures, name, 0);
        let cases = Case::all(&sharing);
        // The second round reuses the prefixes of the first, and a prefix that ends in the middle of a block.
        let long = cases.iter().max_by_key(|case| case.prompt.len()).unwrap().prompt.clone();
        let mut prompts: Vec<_> = cases.iter().map(|case| case.prompt.clone()).collect();
        prompts.extend([long.clone(), long[..65].to_vec(), long[..100].to_vec(), long[..1].to_vec()]);
        let targets: Vec<Vec<u32>> =
            prompts.iter().map(|prompt| vec![prompt[prompt.len() - 1], 5, 7]).collect();
        for _ in 0..2 {
            let (together, starts) = score_ids(&mut *sharing.loaded.model, &prompts, &targets);
            for (case, start) in starts.into_iter().enumerate() {
                let (own, _) =
                    score_ids(&mut *alone.loaded.model, &prompts[case..=case], &targets[case..=case]);
                for row in 0..own.rows() {
                    assert_eq!(own.row(row), together.row(start + row), "{name} case {case}, row {row}");
                }
            }
        }
        let reused = |model: &mut dyn BatchModel| open_ids(model, &[&long])[0].prefill.cached_tokens;
        assert_eq!(reused(&mut *sharing.loaded.model), long.len() - 1, "{name}");
        assert_eq!(reused(&mut *alone.loaded.model), 0, "{name}");
    }
}

fn prompts_of_one_prefill_already_share_their_prefix(fixtures: Fixtures) {
    let mut golden = open(fixtures, "llama-ntl", 1 << 20);
    let prompt = |end: u32| [vec![1; 70], vec![end, 9]].concat();
    let first = prompt(5);
    let second = prompt(6);
    let other = vec![3; 40];
    let opened = open_ids(&mut *golden.loaded.model, &[&first, &second, &other]);
    let reused: Vec<usize> = opened.iter().map(|opened| opened.prefill.cached_tokens).collect();
    assert_eq!(reused, [0, 70, 0]);
}

fn prompts_share_a_prefix_only_if_their_salts_are_equal(fixtures: Fixtures) {
    let mut golden = open(fixtures, "llama-ntl", 1 << 20);
    let prompt: Prompt = vec![1; 72].into();
    let mut reused = |salts: &[u64]| -> Vec<usize> {
        let request = |&cache_salt| ContextRequest { cache_salt, ..ContextRequest::from(&prompt) };
        let requests: Vec<_> = salts.iter().map(request).collect();
        let opened = golden.loaded.model.open(&requests).unwrap();
        opened.iter().map(|opened| opened.prefill.cached_tokens).collect()
    };
    assert_eq!(reused(&[0, 1, 0, 2, 1]), [0, 0, 71, 0, 71]);
    assert_eq!(reused(&[2, 3, 0]), [71, 0, 71]);
}

#[test]
fn evicted_prefixes_are_recomputed_with_the_same_result() {
    // The cache fits two blocks of 32 positions but not three: 3 layers of keys and values of 48 numbers, 4
    // bytes each.
    let mut golden = open(Fixtures::Reference, "llama-ntl", 5 * 32 * 3 * 2 * 48 * 4 / 2);
    let prompts: Vec<Vec<u32>> = (0..4).map(|index| vec![10 + index; 80]).collect();
    let targets: Vec<Vec<u32>> = prompts.iter().map(|prompt| vec![prompt[0], 5]).collect();
    let mut seen: Vec<Vec<f32>> = Vec::new();
    for round in 0..3 {
        for (index, target) in targets.iter().enumerate() {
            let one = |items: &[Vec<u32>]| items[index..=index].to_vec();
            let (logits, _) = score_ids(&mut *golden.loaded.model, &one(&prompts), from_ref(target));
            if round == 0 {
                seen.push(logits.row(1).to_vec());
            }
            assert_eq!(logits.row(1), seen[index], "round {round}, prompt {index}");
        }
    }
    let last = open_ids(&mut *golden.loaded.model, &[&prompts[3]])[0];
    assert_eq!(last.prefill.cached_tokens, 64, "the last one used is kept");
    let first = open_ids(&mut *golden.loaded.model, &[&prompts[0]])[0];
    assert_eq!(first.prefill.cached_tokens, 0, "the others were evicted");
}

fn a_tree_of_rows_equals_its_paths_one_by_one(fixtures: Fixtures) {
    let mut golden = open(fixtures, "qwen3", 0);
    let prompt = Case::all(&golden)[0].prompt.clone();
    let opened = open_ids(&mut *golden.loaded.model, &[&prompt])[0];
    let row = |parent: Option<u32>, token| Row {
        context: opened.context,
        path: PathRow::new(parent.map(NodeId), token),
    };
    let root = opened.first_token;
    let tree = [row(None, root), row(Some(0), 20), row(Some(0), 21), row(Some(1), 22), row(Some(2), 22)];
    let first = golden.loaded.model.step(&tree[..2]).unwrap();
    let second = golden.loaded.model.step(&tree[2..]).unwrap();
    for (path, got) in [
        (vec![root, 20], first.row(1)),
        (vec![root, 21], second.row(0)),
        (vec![root, 20, 22], second.row(1)),
        (vec![root, 21, 22], second.row(2)),
    ] {
        let model = &mut *golden.loaded.model;
        let (alone, _) = score_ids(model, from_ref(&prompt), from_ref(&path));
        assert_eq!(alone.row(path.len() - 1), got, "{path:?}");
    }
}

#[test]
fn an_empty_prompt_is_replaced_by_the_begin_token() {
    for (name, want) in [("gpt2", 0), ("llama-ntl", 1), ("qwen3", 2)] {
        let mut golden = open(Fixtures::Reference, name, 0);
        let opened = open_ids(&mut *golden.loaded.model, &[&[]])[0];
        assert_eq!(opened.first_token, want, "{name}");
        let rows = chain(opened.context, &[opened.first_token], 0);
        assert!(golden.loaded.model.step(&rows).unwrap().row(0).iter().all(|logit| logit.is_finite()));
    }
}

#[test]
fn positions_beyond_the_last_one_are_rejected() {
    let mut golden = open(Fixtures::Reference, "gpt2", 0);
    assert_eq!(golden.loaded.model.info().context_tokens_max, Some(512));
    let opened = open_ids(&mut *golden.loaded.model, &[&vec![5; 512]])[0];
    golden.loaded.model.step(&chain(opened.context, &[5], 0)).unwrap();
    let beyond = golden.loaded.model.step(&chain(opened.context, &[5], 1)).unwrap_err();
    assert_eq!(beyond.to_string(), "position 512 is beyond the model's 512");
}
