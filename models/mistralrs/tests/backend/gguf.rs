//! GGUF files: weights give the same answers as in a directory, and the embedded tokenizer equals its
//! original.

use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value as Field;
use ntl_core::contract::Request;
use ntl_mistralrs::load_gguf;
use ntl_models::LoadOptions;
use serde_json::Value;

use crate::support::{Served, assert_same, assert_same_numbers, parts, shared, text, tree};
use crate::tiny;

#[test]
fn a_gguf_file_answers_like_the_directory_with_the_same_weights() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    tiny::write_folder(folders[0].path());
    let native = Served::native(folders[0].path());
    let file = folders[1].path().join("tiny.gguf");
    tiny::write_gguf(&file, GgmlDType::F32, (tiny::VOCAB, Vec::new()));
    tiny::write_tokenizer(folders[1].path());
    let served = Served::gguf(&file);
    assert_eq!((served.info().backend.name(), served.info().dtype.name()), ("mistralrs", "f32"));
    assert_eq!(served.info().parameters, native.info().parameters);
    assert_eq!(served.info().eos_ids, [2]);
    for prompt in [vec![1, 4, 16, 5], vec![3; 30], vec![]] {
        let request = Request::Text(text(16));
        let got = served.answer(&prompt, &request);
        let want = native.answer(&prompt, &request);
        let off = assert_same(&got, &want, "text");
        let off = off.max(assert_same_numbers(
            &served.number(&prompt, &tree(100)),
            &native.number(&prompt, &tree(100)),
            "number",
        ));
        println!("differs by {off:e}");
    }
    tiny::write_gguf(&file, GgmlDType::Q8_0, (tiny::VOCAB, Vec::new()));
    let quantised = Served::gguf(&file);
    assert_eq!(quantised.info().dtype.name(), "q8_0");
    let request = Request::Text(text(1));
    let logprob = |served: &Served| parts(&served.answer(&[1, 4, 16, 5], &request)).1[0];
    let off = (logprob(&quantised) - logprob(&native)).abs();
    assert!(off > 0.0 && off < 0.1, "{off}");
}

fn texts(all: impl IntoIterator<Item = String>) -> Field {
    Field::Array(all.into_iter().map(Field::String).collect())
}

/// Returns the fields that llama.cpp's converter writes for a `tokenizer.json`.
fn fields(json: &Value, model: &str) -> (usize, Vec<(&'static str, Field)>) {
    let mut names: Vec<(u64, String)> = json["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, id)| (id.as_u64().unwrap(), name.clone()))
        .collect();
    let added = json["added_tokens"].as_array().unwrap();
    for token in added {
        names.push((token["id"].as_u64().unwrap(), token["content"].as_str().unwrap().to_owned()));
    }
    names.sort();
    names.dedup();
    let names: Vec<String> = names.into_iter().map(|(_, name)| name).collect();
    let is_added = |name: &String| added.iter().any(|token| token["content"].as_str() == Some(name));
    let is_byte = |name: &String| name.starts_with("<0x") && name.len() == 6;
    let kind = |name: &String| {
        if is_added(name) {
            3
        } else if is_byte(name) {
            6
        } else {
            1
        }
    };
    let merges: Vec<String> = json["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|merge| match merge {
            Value::String(text) => text.clone(),
            pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        })
        .collect();
    let made = |name: &String| merges.iter().position(|merge| merge.replacen(' ', "", 1) == *name);
    let score = |name: &String| made(name).map_or(-1e4, |rank| -(rank as f32));
    let fields = vec![
        ("tokenizer.ggml.model", Field::String(model.to_owned())),
        ("tokenizer.ggml.pre", Field::String(if model == "gpt2" { "qwen2" } else { "default" }.to_owned())),
        (
            "tokenizer.ggml.token_type",
            Field::Array(names.iter().map(|name| Field::I32(kind(name))).collect()),
        ),
        ("tokenizer.ggml.scores", Field::Array(names.iter().map(|name| Field::F32(score(name))).collect())),
        ("tokenizer.ggml.merges", texts(merges.clone())),
        ("tokenizer.ggml.tokens", texts(names.clone())),
        ("tokenizer.chat_template", Field::String("{{ messages[0].content }}".to_owned())),
    ];
    (names.len(), fields)
}

#[test]
#[cfg_attr(not(shared_fixtures), ignore = "needs ../shared")]
fn the_tokenizer_in_a_file_equals_its_original() {
    for (name, model) in [("llama-ntl", "llama"), ("qwen3", "gpt2")] {
        let json = std::fs::read(shared(name).join("tokenizer.json")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.gguf");
        let json = serde_json::from_slice(&json).unwrap();
        tiny::write_gguf(&file, GgmlDType::F32, fields(&json, model));
        let served = Served::gguf(&file);
        let native = Served::native(&shared(name));
        assert!(served.tokenizer.chat_template().is_some(), "{name}");
        for text in [
            "Natalia sold 48/2 = 24 clips in May.",
            "  two  spaces, naïve café: 3.14159 and -0.5e10\n\n\tnew line",
            "日本語 🙂 x=1234567890",
            "",
        ] {
            let (got, want) =
                (served.tokenizer.encode(text, true).unwrap(), native.tokenizer.encode(text, true).unwrap());
            assert_eq!(got, want, "{name}: {text:?}");
            let decode = |served: &Served| ntl_core::text::TextDecoder::decode(&*served.tokenizer, &want);
            assert_eq!(decode(&served), decode(&native), "{name}: {text:?}");
        }
    }
}

#[test]
fn unsupported_files_are_rejected_with_the_field_s_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    let refusal = |path: &Path| load_gguf(path, LoadOptions::default()).err().unwrap().to_string();
    std::fs::write(&file, b"GGUF").unwrap();
    assert!(refusal(&file).contains("m.gguf is not usable"), "{}", refusal(&file));
    tiny::write_gguf(&file, GgmlDType::F32, (tiny::VOCAB, Vec::new()));
    assert!(refusal(&file).contains("`tokenizer.ggml.tokens`: missing"), "{}", refusal(&file));
    let other = ("general.architecture", Field::String("bloom".to_owned()));
    tiny::write_gguf(&file, GgmlDType::F32, (tiny::VOCAB, vec![other]));
    assert!(
        refusal(&file).contains("`bloom` is not supported; the supported ones are llama"),
        "{}",
        refusal(&file)
    );
}
