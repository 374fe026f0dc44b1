//! Loads every kind of T5 from a directory: its detected kind, its required options, and equivalent formats
//! of the same checkpoint.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{Device, Tensor};
use ntl_core::contract::{
    BatchModel, Event, Job, NumberEncoding, NumberJob, NumberMethod, NumberOutcome, Prompt, Request,
    Terminator,
};
use ntl_core::numbers::{GrammarLimits, NumberPiece, NumberValues};
use ntl_engine::{Engine, EngineLimits, NoObserver};
use ntl_models::{LoadOptions, LoadedModel, load};
use ntl_text::checkpoint::{CheckpointFiles, Choices};
use serde_json::{Value, json};

use crate::numbers::{cuts, path_probability};
use crate::support::{Fixtures, assert_close, chain, over_fixtures, prompt, reference, target};

fn options(log_scale_embeddings: Option<bool>) -> LoadOptions {
    let choices = Choices { log_scale_embeddings, ..Choices::default() };
    LoadOptions { choices, ..LoadOptions::default() }
}

fn loaded(folder: &Path) -> LoadedModel {
    load(&CheckpointFiles::folder(folder).unwrap(), options(Some(true))).unwrap()
}

fn refusal(folder: &Path, options: LoadOptions) -> String {
    let Err(error) = load(&CheckpointFiles::folder(folder).unwrap(), options) else { panic!("it loads") };
    error.to_string()
}

/// Copies a fixture's files without its weights, which come from another fixture.
fn copy(fixtures: Fixtures, from: &str, weights: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixtures.folder(from)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && !path.to_string_lossy().contains("safetensors") {
            std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let file = "model.safetensors";
    std::fs::copy(fixtures.folder(weights).join(file), folder.path().join(file)).unwrap();
    folder
}

fn change(folder: &Path, file: &str, field: &str, value: Value) {
    let path = folder.join(file);
    let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json[field] = value;
    std::fs::write(path, json.to_string()).unwrap();
}

fn golden(folder: PathBuf) -> (Vec<Value>, HashMap<String, Tensor>) {
    let json: Value =
        serde_json::from_slice(&std::fs::read(folder.join("golden/golden.json")).unwrap()).unwrap();
    let tensors = folder.join("golden/golden.safetensors");
    (
        json["cases"].as_array().unwrap().clone(),
        candle_core::safetensors::load(tensors, &Device::Cpu).unwrap(),
    )
}

/// Asserts that a directory's logits are the golden logits of a fixture.
fn assert_logits(model: &mut dyn BatchModel, fixture: PathBuf, what: &str) {
    let (cases, tensors) = golden(fixture);
    for case in cases.iter().take(4) {
        let context = model.open(&[(&prompt(case)).into()]).unwrap()[0].context;
        let logits = model.step(&chain(context, &target(case), 0)).unwrap();
        let got: Vec<f32> = (0..logits.rows()).flat_map(|row| logits.row(row).to_vec()).collect();
        let want = &tensors[&format!("case.{}.logits", case["id"].as_str().unwrap())];
        assert_close(&got, &want.flatten_all().unwrap().to_vec1::<f32>().unwrap(), 1e-4, what);
        model.close(context);
    }
}
over_fixtures! {
    every_kind_is_detected_with_its_number_encoding,
    settings_missing_from_a_checkpoint_must_be_given,
    a_kind_needs_the_tokenizer_that_it_was_trained_with,
    xval_with_a_larger_language_head_uses_both_of_its_layers,
    the_most_probable_numbers_have_the_probability_of_their_spellings,
}

fn every_kind_is_detected_with_its_number_encoding(fixtures: Fixtures) {
    for (folder, kind, encoding) in [
        ("t5-ce", "t5", NumberEncoding::Text),
        ("t5-ntl-was", "t5", NumberEncoding::Digits),
        ("t5-rt", "t5-rt", NumberEncoding::Rt),
        ("t5-xval", "t5-xval", NumberEncoding::Xval),
        ("t5-regression-head", "t5-regression-head", NumberEncoding::Text),
    ] {
        let LoadedModel { model, vocabulary, .. } = loaded(&fixtures.folder(folder));
        let info = model.info();
        assert_eq!((info.kind.as_str(), info.number_encoding), (kind, encoding));
        assert!(vocabulary.grammar.spells_numbers(), "{folder}");
        assert_eq!(vocabulary.grammar.is_point(), folder == "t5-regression-head");
        assert_eq!(vocabulary.grammar.head_id().is_some(), folder == "t5-xval");
    }
}

fn settings_missing_from_a_checkpoint_must_be_given(fixtures: Fixtures) {
    for folder in ["t5-xval", "t5-regression-head"] {
        let message = refusal(&fixtures.folder(folder), options(None));
        assert!(
            message.contains("does not say `log_scale_embeddings`: give --log-scale-embeddings"),
            "{message}"
        );
    }
    assert!(load(&CheckpointFiles::folder(&fixtures.folder("t5-rt")).unwrap(), options(None)).is_ok());
}

fn a_kind_needs_the_tokenizer_that_it_was_trained_with(fixtures: Fixtures) {
    for from in ["t5-rt", "t5-xval"] {
        let folder = copy(fixtures, from, from);
        change(folder.path(), "tokenizer_config.json", "tokenizer_class", json!("T5Tokenizer"));
        let message = refusal(folder.path(), options(Some(true)));
        assert!(message.contains("tokenizer_config.json: field `tokenizer_class`"), "{message}");
    }
}

#[test]
fn a_separate_head_is_detected_in_every_saved_configuration() {
    // Transformers 5 writes `tie_word_embeddings: true` for a separate head.
    let saved_by_v5 = copy(Fixtures::Reference, "t5-v11-saved-by-v5", "t5-v11");
    let mt5 = copy(Fixtures::Reference, "t5-v11", "t5-v11");
    change(mt5.path(), "config.json", "architectures", json!(["MT5ForConditionalGeneration"]));
    change(mt5.path(), "config.json", "model_type", json!("mt5"));
    for folder in [saved_by_v5, mt5] {
        let mut model = loaded(folder.path()).model;
        assert_logits(&mut *model, reference("t5-v11"), "another configuration");
    }
}

/// `gelu(x) - gelu(-x)` is `x`: with `x` and `-x` between the layers, the larger head computes the same as
/// the small one.
fn xval_with_a_larger_language_head_uses_both_of_its_layers(fixtures: Fixtures) {
    let folder = copy(fixtures, "t5-xval", "t5-xval");
    let file = folder.path().join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
    let table = tensors["shared.weight"].clone();
    let (vocab, width) = table.dims2().unwrap();
    let identity = Tensor::eye(width, table.dtype(), &Device::Cpu).unwrap();
    let nothing = |rows, columns| Tensor::zeros((rows, columns), table.dtype(), &Device::Cpu).unwrap();
    let rest = 1024 - 2 * width;
    let layers = [
        Tensor::cat(&[&identity, &identity.neg().unwrap(), &nothing(rest, width)], 0).unwrap(),
        Tensor::cat(&[&table, &table.neg().unwrap(), &nothing(vocab, rest)], 1).unwrap(),
    ];
    for (name, layer) in ["lm_head.0.weight", "lm_head.2.weight"].into_iter().zip(layers) {
        tensors.insert(name.to_owned(), layer);
    }
    candle_core::safetensors::save(&tensors, &file).unwrap();
    let mut model = loaded(folder.path()).model;
    assert_logits(&mut *model, fixtures.folder("t5-xval"), "bigger head");
}

fn distribution(folder: &Path, prompt: &Prompt) -> NumberOutcome {
    let LoadedModel { model, vocabulary, .. } = loaded(folder);
    let (engine, _) =
        Engine::spawn(model, vocabulary, EngineLimits::default(), Arc::new(NoObserver)).unwrap();
    let method = NumberMethod::Tree { tolerance: 1e-4, nodes_max: 65_536, precision: None };
    let limits = GrammarLimits::default();
    let job = NumberJob { limits, terminator: Terminator::Eos, ..NumberJob::new(method) };
    let job = Job::new(prompt.clone(), Request::Number(job));
    match engine.submit(job).unwrap().next_blocking() {
        Some(Event::Number(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

/// Returns all token sequences that a trained model could use to write a number, with every lead-in.
type Spellings<'a> = Box<dyn Fn(&str) -> Vec<Vec<u32>> + 'a>;

/// Returns all ways to omit some, none or all of the zeros of a number.
fn without_zeros(digits: &[u32], is_zero: impl Fn(u32) -> bool + Copy) -> Vec<Vec<u32>> {
    let Some((&first, rest)) = digits.split_first() else { return vec![Vec::new()] };
    let rest = without_zeros(rest, is_zero);
    let with_first = rest.iter().map(|rest| [&[first], &rest[..]].concat()).collect();
    if is_zero(first) { [with_first, rest].concat() } else { with_first }
}

/// The tree finds each of the most probable numbers with the summed probability of its spellings. Spellings
/// with leading or trailing zeros are not enumerated, so the tree may find a higher probability.
fn the_most_probable_numbers_have_the_probability_of_their_spellings(fixtures: Fixtures) {
    for name in fixtures.only(&["t5-rt", "t5-rt-ntl", "t5-ce", "t5gemma", "t5gemma2"]) {
        let folder = fixtures.folder(name);
        let LoadedModel { mut model, tokenizer, .. } = loaded(&folder);
        let mut pieces: HashMap<String, Vec<u32>> = HashMap::new();
        for id in 0..tokenizer.len() as u32 {
            if let Some(text) = tokenizer.piece_text(id) {
                pieces.entry(text).or_default().push(id);
            }
        }
        let spellings: Spellings<'_> = match tokenizer.number_encoding() {
            NumberEncoding::Rt => Box::new(|text: &str| {
                let signs = if text.starts_with('-') { ["-", " -"] } else { ["", " "] };
                let digits = tokenizer.encode(text.trim_start_matches('-'), false).unwrap();
                let signs: Vec<_> = signs.into_iter().flat_map(|sign| cuts(sign, &pieces)).collect();
                let digits = without_zeros(&digits, |id| {
                    matches!(tokenizer.number_piece(id), Some(NumberPiece::Place { digit: 0, .. }))
                });
                let digits = digits.iter().filter(|digits| !digits.is_empty());
                digits.flat_map(|digits| signs.iter().map(|sign| [&sign[..], digits].concat())).collect()
            }),
            _ => Box::new(|text: &str| [cuts(text, &pieces), cuts(&format!(" {text}"), &pieces)].concat()),
        };
        let (cases, _) = golden(folder.clone());
        for case in cases.iter().take(2) {
            let prompt = prompt(case);
            let ids: Vec<u32> = prompt.ids().collect();
            let outcome = distribution(&folder, &prompt);
            for leaf in outcome.distribution.most_probable(4) {
                let paths = spellings(&leaf.text);
                let sum: f64 = paths.iter().map(|path| path_probability(&mut *model, &ids, path, &[1])).sum();
                let more = leaf.probability - sum;
                let what = format!("{name} {}: {} has {}, {sum}", case["id"], leaf.text, leaf.probability);
                assert!(!paths.is_empty() && (-1e-5..2e-3).contains(&more), "{what}");
            }
        }
    }
}

/// Pieces such as `▁-1` and `.5` combine signs, points and digits.
#[test]
fn pieces_of_signs_points_and_digits_are_read_as_the_text_that_they_write() {
    let LoadedModel { vocabulary, tokenizer, .. } = loaded(&reference("t5-ce"));
    let rules = vocabulary.grammar.rules(GrammarLimits::default(), Terminator::Eos, NumberValues::All);
    let ids = |names: &[&str]| -> Vec<u32> {
        names.iter().map(|name| tokenizer.token_id(name).unwrap_or_else(|| panic!("no {name}"))).collect()
    };
    for (names, want) in [
        (&["▁-1", "5", "</s>"][..], Some("-15")),
        (&["▁-1", ".5", "</s>"], Some("-1.5")),
        (&["▁12", "</s>"], Some("12")),
        (&["▁", "12", ".50", "</s>"], Some("12.5")),
        (&[".5", "</s>"], None),
        (&["▁(-16", "</s>"], None),
    ] {
        let mut state = ntl_core::numbers::NumberState::START;
        let mut value = None;
        for id in ids(names) {
            match vocabulary.grammar.effect(state, id, &rules) {
                ntl_core::numbers::TokenEffect::Continues(next) => state = next,
                ntl_core::numbers::TokenEffect::Closes(closed) => value = Some(closed.to_string()),
                _ => break,
            }
        }
        assert_eq!(value.as_deref(), want, "{names:?}");
    }
}
