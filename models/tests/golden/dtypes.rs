//! Tests every `--dtype` and `--kv-cache-dtype` of the CPU on every kind of model that writes tokens: results
//! are close to the reference in f32, and each row is bit-identical alone and in a batch. `heads` tests the
//! others.

use std::slice::from_ref;

use ntl_core::contract::{BatchModel, Prompt, Token};
use ntl_models::{DeviceChoice, DtypeChoice, KvCacheDtype, LoadOptions, load};
use ntl_text::checkpoint::{CheckpointFiles, Choices};
use serde_json::Value;

use crate::support::{Fixtures, flat, ids, over_fixtures, prompt, read_golden, score, target, tokens};

over_fixtures! {
    logits_of_smaller_weights_are_close_to_the_reference,
    a_row_of_any_dtype_is_bit_identical_alone_and_in_a_batch,
    smaller_keys_and_values_use_a_half_and_a_quarter_of_the_memory,
    prompts_that_share_smaller_keys_and_values_are_bit_identical,
}

const T5: [&str; 6] = ["t5-ce", "t5-ntl-was", "t5-rt", "t5-xval", "t5gemma", "t5gemma2"];
/// Models that write numbers in dedicated tokens: exports, and PyTorch checkpoints.
const TOKENS: [&str; 6] = [
    "regresslm-hf-ieee",
    "regresslm-hf-p10",
    "regresslm-pt",
    "regresslm-pt-char",
    "regresslm-pt-gemma",
    "regresslm-pt-gemma2",
];
const CAUSAL: [&str; 4] = ["llama-ntl", "gpt2", "granite", "qwen3"];

/// The maximum root mean square error of logits as a share of their spread. The error is largest for random
/// weights.
#[derive(Clone, Copy)]
pub(crate) struct ErrorMax {
    pub(crate) usual: f32,
    /// For answers of number tokens: 2 to 3 times the largest error that was measured with AVX2.
    number_tokens: f32,
}

const fn error_max(usual: f32, number_tokens: f32) -> ErrorMax {
    ErrorMax { usual, number_tokens }
}

/// The dtypes of weights and of keys and values.
pub(crate) const DTYPES: [(DtypeChoice, KvCacheDtype, ErrorMax); 8] = [
    (DtypeChoice::F32, KvCacheDtype::Auto, error_max(1e-4, 1e-5)),
    (DtypeChoice::F32, KvCacheDtype::Bf16, error_max(0.02, 0.006)),
    (DtypeChoice::F32, KvCacheDtype::Fp8, error_max(0.3, 0.1)),
    (DtypeChoice::F16, KvCacheDtype::Auto, error_max(0.02, 0.0025)),
    (DtypeChoice::Bf16, KvCacheDtype::Auto, error_max(0.1, 0.025)),
    (DtypeChoice::Q8_0, KvCacheDtype::Auto, error_max(0.18, 0.08)),
    (DtypeChoice::Int8, KvCacheDtype::Auto, error_max(0.2, 0.07)),
    (DtypeChoice::Int8, KvCacheDtype::Bf16, error_max(0.2, 0.07)),
];

/// Mostly codes of 5 bits, because most layers of these checkpoints are narrower than a block of Q4_K.
const CODED: [(DtypeChoice, KvCacheDtype, ErrorMax); 1] =
    [(DtypeChoice::Q4K, KvCacheDtype::Auto, error_max(0.5, 0.5))];

fn dtypes(name: &str) -> impl Iterator<Item = (DtypeChoice, KvCacheDtype, ErrorMax)> {
    let coded: &[_] = if CAUSAL.contains(&name) { &CODED } else { &[] };
    DTYPES.iter().chain(coded).copied()
}

#[test]
fn codes_are_for_decoder_only_models() {
    let folder = Fixtures::Tiny.folder("t5-v11");
    let options = LoadOptions { dtype: DtypeChoice::Q4K, ..LoadOptions::default() };
    let error = load(&CheckpointFiles::folder(&folder).unwrap(), options).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("q4_k is for decoder-only models"), "{error}");
}

fn checkpoints(fixtures: Fixtures) -> impl Iterator<Item = &'static str> {
    T5.into_iter().chain(fixtures.only(&TOKENS)).chain(CAUSAL)
}

fn open(
    fixtures: Fixtures,
    name: &str,
    dtype: DtypeChoice,
    kv_cache_dtype: KvCacheDtype,
    prefix_bytes_max: usize,
) -> Box<dyn BatchModel> {
    let choices = Choices { log_scale_embeddings: Some(true), ..Choices::default() };
    let device = DeviceChoice::Cpu;
    let options =
        LoadOptions { device, dtype, kv_cache_dtype, choices, prefix_bytes_max, ..LoadOptions::default() };
    let loaded = load(&CheckpointFiles::folder(&fixtures.folder(name)).unwrap(), options).unwrap();
    assert_eq!(loaded.model.info().dtype.name(), dtype.name());
    loaded.model
}

/// Returns the prompt of a case, and the rows to which the reference's logits `[rows, V]` belong.
fn rows(case: &Value) -> (Prompt, Vec<Token>) {
    if let Some(encoded) = case.get("encoder_input_ids") {
        let greedy = || ids(&case["greedy"]);
        let input = match case.get("targets") {
            Some(targets) => ids(&targets[0]["decoder_input_ids"]),
            None => [&[0], &greedy()[..greedy().len() - 1]].concat(),
        };
        return (ids(encoded).into(), tokens(&input, &[]));
    }
    if case.get("full_ids").is_none() {
        return (prompt(case), target(case));
    }
    let full = ids(&case["full_ids"]);
    let n_prompt = case["n_prompt"].as_u64().unwrap() as usize;
    (full[..n_prompt].to_vec().into(), tokens(&full[n_prompt - 1..full.len() - 1], &[]))
}

fn logits_of_smaller_weights_are_close_to_the_reference(fixtures: Fixtures) {
    let mut far = Vec::new();
    for name in checkpoints(fixtures) {
        let (json, tensors) = read_golden(&fixtures.folder(name));
        for (dtype, kv, error_max) in dtypes(name) {
            let share = if TOKENS.contains(&name) { error_max.number_tokens } else { error_max.usual };
            let mut model = open(fixtures, name, dtype, kv, 0);
            let mut off = 0.0;
            let mut spread = 0.0;
            for case in json["cases"].as_array().unwrap() {
                let (prompt, target) = rows(case);
                let (logits, _) = score(model.as_mut(), &[prompt], &[target]);
                let want = flat(&tensors[&format!("case.{}.logits", case["id"].as_str().unwrap())]);
                // The first of several targets.
                let targets = case["targets"].as_array().map_or(1, Vec::len);
                let width = want.len() / targets / logits.rows();
                for (row, want) in want.chunks_exact(width).take(logits.rows()).enumerate() {
                    let mean = want.iter().sum::<f32>() / want.len() as f32;
                    let squares = logits.row(row).iter().zip(want).map(|(got, want)| (got - want).powi(2));
                    off += squares.sum::<f32>();
                    spread += want.iter().map(|want| (want - mean).powi(2)).sum::<f32>();
                }
            }
            let found = (off / spread).sqrt();
            println!("{name}, {}, {}: error {found:.5} of the spread", dtype.name(), kv.name());
            if found.is_nan() || found > share {
                far.push((name, dtype, kv, found));
            }
        }
    }
    assert!(far.is_empty(), "{far:?}");
}

fn a_row_of_any_dtype_is_bit_identical_alone_and_in_a_batch(fixtures: Fixtures) {
    for name in checkpoints(fixtures) {
        let (json, _) = read_golden(&fixtures.folder(name));
        let (prompts, targets): (Vec<_>, Vec<_>) = json["cases"].as_array().unwrap().iter().map(rows).unzip();
        for (dtype, kv, _) in dtypes(name) {
            let mut model = open(fixtures, name, dtype, kv, 0);
            let (together, starts) = score(model.as_mut(), &prompts, &targets);
            for (case, start) in starts.into_iter().enumerate() {
                let (alone, _) = score(model.as_mut(), &prompts[case..=case], &targets[case..=case]);
                for row in 0..alone.rows() {
                    let what = format!("{name}, {}, {}, case {case}, row {row}", dtype.name(), kv.name());
                    assert_eq!(alone.row(row), together.row(start + row), "{what}");
                    assert_eq!(alone.head_value(row), together.head_value(start + row), "{what}");
                }
            }
        }
    }
}

fn smaller_keys_and_values_use_a_half_and_a_quarter_of_the_memory(fixtures: Fixtures) {
    for name in checkpoints(fixtures) {
        let cost = |kv| open(fixtures, name, DtypeChoice::F32, kv, 0).cache_cost();
        let wide = cost(KvCacheDtype::Auto);
        for (kv, share) in [(KvCacheDtype::Bf16, 2), (KvCacheDtype::Fp8, 4)] {
            let narrow = cost(kv);
            assert_eq!(share * narrow.node, wide.node, "{name}");
            // The rest of a prompt's memory is not keys and values.
            assert_eq!(wide.prompt_token - narrow.prompt_token, wide.node - narrow.node, "{name}");
        }
    }
}

fn prompts_that_share_smaller_keys_and_values_are_bit_identical(fixtures: Fixtures) {
    for (name, kv) in
        CAUSAL.into_iter().flat_map(|name| [KvCacheDtype::Bf16, KvCacheDtype::Fp8].map(|kv| (name, kv)))
    {
        let (json, _) = read_golden(&fixtures.folder(name));
        let (prompt, target) = rows(&json["cases"][0]);
        // Long enough for blocks that later prompts share.
        let prompt: Vec<u32> = prompt.ids().collect::<Vec<_>>().repeat(70);
        let prompt = Prompt::from(prompt[..70].to_vec());
        let logits = |model: &mut dyn BatchModel| {
            let (logits, _) = score(model, from_ref(&prompt), from_ref(&target));
            (0..logits.rows()).map(|row| logits.row(row).to_vec()).collect::<Vec<_>>()
        };
        let open = |bytes| open(fixtures, name, DtypeChoice::F32, kv, bytes);
        let mut alone = open(0);
        let mut sharing = open(1 << 20);
        let want = logits(alone.as_mut());
        for round in 0..2 {
            assert_eq!(logits(sharing.as_mut()), want, "{name}, round {round}");
        }
    }
}
