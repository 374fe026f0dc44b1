//! Compares tiny checkpoints with heads with transformers (`tests/data/heads`, made by `make.py` there), and
//! corrupts them.

use std::fs;
use std::path::{Path, PathBuf};

use ntl_core::contract::{OpenedContext, PathRow, PrefillChunk, Prompt, Row};
use ntl_models::{KvCacheDtype, LoadOptions, LoadedModel, load};
use ntl_text::checkpoint::CheckpointFiles;
use serde_json::{Value, json};

use crate::corrupted::{Files, change_json, files_of, rejection};
use crate::dtypes::DTYPES;
use crate::support::{floats, ids, open};

/// Checkpoints and the kinds that they are.
const HEADS: [(&str, &str); 11] = [
    ("llama-reward", "llama-head"),
    ("mistral-classes", "mistral-head"),
    ("qwen2-properties", "qwen2-head"),
    ("qwen3-regression", "qwen3-head"),
    ("gpt2-classes", "gpt2-head"),
    ("t5-classes", "t5-head"),
    ("bert-classes", "bert-head"),
    ("bert-relevance", "bert-head"),
    ("roberta-regression", "roberta-head"),
    ("modernbert-classes", "modernbert-head"),
    ("modernbert-mean", "modernbert-head"),
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/heads").join(name)
}

fn loaded(folder: &Path) -> LoadedModel {
    load(&CheckpointFiles::folder(folder).unwrap(), LoadOptions::default()).unwrap()
}

/// Texts with ids, logits and probabilities.
fn cases(name: &str) -> Vec<Value> {
    serde_json::from_slice(&fs::read(folder(name).join("golden.json")).unwrap()).unwrap()
}

fn prompts(cases: &[Value]) -> Vec<Prompt> {
    cases.iter().map(|case| ids(&case["ids"]).into()).collect()
}

/// Returns the values of all labels for opened prompts, and closes them.
fn values(loaded: &mut LoadedModel, opened: &[OpenedContext]) -> Vec<Vec<f32>> {
    let row = |opened: &OpenedContext| Row {
        context: opened.context,
        path: PathRow::new(None, opened.first_token),
    };
    let rows: Vec<Row> = opened.iter().map(row).collect();
    let logits = loaded.model.step(&rows).unwrap();
    opened.iter().for_each(|opened| loaded.model.close(opened.context));
    (0..logits.rows()).map(|row| logits.row(row).to_vec()).collect()
}

fn predicted(loaded: &mut LoadedModel, prompts: &[Prompt]) -> Vec<Vec<f32>> {
    let opened = open(&mut *loaded.model, prompts);
    values(loaded, &opened)
}

#[test]
fn values_match_the_reference_alone_and_in_batches_bit_for_bit() {
    for (name, kind) in HEADS {
        let mut loaded = loaded(&folder(name));
        let cases = cases(name);
        let labels = loaded.model.info().labels.clone().unwrap();
        assert_eq!(loaded.model.info().kind, kind);
        let prompts = prompts(&cases);
        let alone: Vec<Vec<f32>> =
            prompts.iter().flat_map(|prompt| predicted(&mut loaded, std::slice::from_ref(prompt))).collect();
        let mut worst = 0.0_f32;
        for (case, got) in cases.iter().zip(&alone) {
            if let Some(text) = case["text"].as_str() {
                assert_eq!(loaded.tokenizer.encode(text, true).unwrap(), ids(&case["ids"]), "{name}: {text}");
            }
            let want = floats(&case["logits"]);
            assert_eq!((got.len(), labels.names.len()), (want.len(), want.len()), "{name}");
            let off = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
            worst = worst.max(off);
            let probs = labels.activation.apply(got);
            let wanted = floats(&case["probs"]);
            let off = probs.iter().zip(wanted).map(|(got, want)| (got - f64::from(want)).abs());
            assert!(off.fold(0.0, f64::max) < 1e-4, "{name}: {probs:?}");
        }
        assert!(worst < 1e-4, "{name}: values differ by {worst}");
        println!("{name}: values differ by at most {worst:e}");
        assert!(prompts.len() >= 8, "{name}");
        assert_eq!(predicted(&mut loaded, &prompts), alone, "{name}: values depend on the batch");
    }
}

#[test]
fn pairs_have_the_segments_of_the_reference_alone_and_in_batches() {
    for name in ["llama-reward", "bert-relevance", "roberta-regression", "modernbert-mean"] {
        let mut loaded = loaded(&folder(name));
        let cases: Vec<Value> =
            serde_json::from_slice(&fs::read(folder(name).join("pairs.json")).unwrap()).unwrap();
        let mut prompts = Vec::new();
        for case in &cases {
            let text = |place: usize| case["texts"][place].as_str().unwrap();
            let prompt = loaded.tokenizer.encode_pair(text(0), text(1)).unwrap();
            let segments = ids(&case["segments"]);
            assert_eq!(prompt.ids().collect::<Vec<_>>(), ids(&case["ids"]), "{name}");
            assert_eq!(prompt.second_segment, segments.iter().position(|&segment| segment == 1), "{name}");
            prompts.push(prompt);
        }
        let together = predicted(&mut loaded, &prompts);
        for ((prompt, case), got) in prompts.iter().zip(&cases).zip(&together) {
            let alone = predicted(&mut loaded, std::slice::from_ref(prompt));
            assert_eq!(alone[0], *got, "{name}: values depend on the batch");
            let off = got.iter().zip(floats(&case["logits"])).map(|(got, want)| (got - want).abs());
            assert!(off.fold(0.0, f32::max) < 1e-4, "{name}: {got:?}, expected {case}");
            // Only the segments distinguish the pair from one text.
            let single = predicted(&mut loaded, &[prompt.ids().collect::<Vec<_>>().into()]);
            assert_eq!(single[0] != *got, name == "bert-relevance", "{name}");
        }
    }
}

/// The root mean square error, as a share of the spread of all values, has the same maximum as the error of
/// logits.
#[test]
fn values_of_smaller_weights_are_close_to_the_reference() {
    for (name, _) in HEADS {
        let cases = cases(name);
        let want: Vec<f32> = cases.iter().flat_map(|case| floats(&case["logits"])).collect();
        let mean = want.iter().sum::<f32>() / want.len() as f32;
        let spread: f32 = want.iter().map(|want| (want - mean).powi(2)).sum();
        for (dtype, _, error_max) in DTYPES.into_iter().filter(|(_, kv, _)| *kv == KvCacheDtype::Auto) {
            let options = LoadOptions { dtype, ..LoadOptions::default() };
            let mut loaded = load(&CheckpointFiles::folder(&folder(name)).unwrap(), options).unwrap();
            let got = predicted(&mut loaded, &prompts(&cases)).concat();
            let off: f32 = got.iter().zip(&want).map(|(got, want)| (got - want).powi(2)).sum();
            let found = (off / spread).sqrt();
            println!("{name}, {}: error {found:.5} of the spread", dtype.name());
            assert!(found <= error_max.usual, "{name}, {}: {found}", dtype.name());
        }
    }
}

#[test]
fn values_do_not_depend_on_the_chunks_of_a_prefill() {
    for (name, _) in HEADS {
        let mut loaded = loaded(&folder(name));
        let prompts = prompts(&cases(name));
        let want = predicted(&mut loaded, &prompts);
        for work in [1, 7, 40] {
            let begin = |prompt| loaded.model.begin(prompt).unwrap();
            let mut opened: Vec<OpenedContext> = prompts.iter().map(Into::into).map(begin).collect();
            loop {
                let mut left: Vec<_> =
                    opened.iter_mut().filter(|opened| opened.prefill.work_left > 0).collect();
                if left.is_empty() {
                    break;
                }
                let chunk = |opened: &&mut OpenedContext| PrefillChunk { context: opened.context, work };
                let progress = loaded.model.prefill(&left.iter().map(chunk).collect::<Vec<_>>()).unwrap();
                left.iter_mut().zip(progress).for_each(|(opened, progress)| opened.prefill = progress);
            }
            assert_eq!(values(&mut loaded, &opened), want, "{name}, chunks of {work}");
        }
    }
}

/// Reads a checkpoint and changes fields of its configuration; `null` removes a field.
fn changed(name: &str, changes: &[(&str, Value)]) -> Files {
    let mut files = files_of(&folder(name));
    for (field, value) in changes {
        change_json(&mut files, "config.json", &format!("/{field}"), value);
    }
    files
}

#[test]
fn without_a_padding_token_the_last_token_is_read() {
    let padded = cases("gpt2-classes").pop().unwrap();
    assert!(padded["text"].is_null(), "the last prompt ends with padding");
    let prompt = prompts(&[padded]);
    let mut usual = loaded(&folder("gpt2-classes"));
    let want = predicted(&mut usual, &prompt);
    for absent in [Value::Null, json!(-1)] {
        let files = CheckpointFiles::memory("DIR", changed("gpt2-classes", &[("pad_token_id", absent)]));
        let mut without = load(&files, LoadOptions::default()).unwrap();
        assert_ne!(predicted(&mut without, &prompt), want);
    }
}

#[test]
fn bad_checkpoints_are_rejected_with_the_names_of_file_and_field_or_tensor() {
    let two = json!({"0": "no", "1": "yes"});
    for (name, changes, parts) in [
        ("llama-reward", vec![("id2label", two.clone())], &["score.weight", "[2, 16]"][..]),
        ("llama-reward", vec![("id2label", Value::Null)], &["score.weight", "[2, 16]"]),
        ("llama-reward", vec![("id2label", json!({"1": "x"}))], &["config.json", "`id2label`", "label 0"]),
        (
            "llama-reward",
            vec![("problem_type", json!("ranking"))],
            &["config.json", "`problem_type`", "`ranking`"],
        ),
        ("llama-reward", vec![("id2label", json!([1]))], &["config.json", "id2label"]),
        ("llama-reward", vec![("pad_token_id", json!("x"))], &["config.json", "pad_token_id"]),
        (
            "llama-reward",
            vec![("architectures", json!(["LlamaForTokenClassification"]))],
            &["config.json", "`LlamaForTokenClassification` is not served"],
        ),
        (
            "llama-reward",
            vec![("architectures", json!(["LlamaForCausalLM"]))],
            &["model.safetensors", "lm_head.weight"],
        ),
        ("gpt2-classes", vec![("id2label", two.clone())], &["model.safetensors", "score.weight", "[2, 16]"]),
        ("t5-classes", vec![("id2label", two.clone())], &["classification_head.out_proj.weight", "[2, 8]"]),
        (
            "t5-classes",
            vec![("num_labels", json!(1)), ("id2label", Value::Null), ("problem_type", Value::Null)],
            &["log_scale_embeddings"],
        ),
        ("bert-classes", vec![("id2label", two)], &["model.safetensors", "classifier.weight", "[2, 16]"]),
        ("bert-classes", vec![("num_attention_heads", json!(3))], &["`num_attention_heads`", "3"]),
        (
            "bert-classes",
            vec![("num_hidden_layers", json!(3))],
            &["bert.encoder.layer.2.attention.self.query"],
        ),
        ("bert-classes", vec![("vocab_size", json!(89))], &["`vocab_size`", "90 tokens"]),
        ("bert-classes", vec![("hidden_act", json!("tanh"))], &["`hidden_act`"]),
        (
            "bert-classes",
            vec![("position_embedding_type", json!("relative_key"))],
            &["`position_embedding_type`"],
        ),
        ("bert-classes", vec![("is_decoder", json!(true))], &["`is_decoder`"]),
        ("bert-classes", vec![("layer_norm_eps", json!(2.0))], &["`layer_norm_eps`"]),
        ("roberta-regression", vec![("pad_token_id", json!(127))], &["`pad_token_id`", "127"]),
        ("roberta-regression", vec![("type_vocab_size", json!(0))], &["`type_vocab_size`"]),
        (
            "modernbert-mean",
            vec![("norm_bias", json!(false)), ("layer_types", json!(["x"]))],
            &["`layer_types`"],
        ),
        ("modernbert-mean", vec![("local_attention", json!(1u64 << 40))], &["`local_attention`"]),
        ("modernbert-mean", vec![("classifier_pooling", json!("max"))], &["`classifier_pooling`", "`max`"]),
        ("modernbert-classes", vec![("norm_bias", json!(true))], &["model.embeddings.norm.bias"]),
    ] {
        let error = rejection(changed(name, &changes));
        println!("{error}");
        for part in parts {
            assert!(error.contains(part), "{name} with {changes:?}: {error:?} does not contain {part:?}");
        }
    }
}
