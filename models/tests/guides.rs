//! Guided decoding with real vocabularies: every text that is sampled under a constraint satisfies it.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;
use std::sync::Arc;

use ntl_core::contract::{Backend, Dtype, ModelInfo, NumberEncoding};
use ntl_core::sampling::{Sampler, SamplingParams};
use ntl_core::text::TextDecoder;
use ntl_models::checkpoint::CheckpointFiles;
use ntl_models::guide::{Constraint, GuideCompiler};
use ntl_models::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// Maximum tokens per text. Texts that are still incomplete then are not checked.
const TOKENS_MAX: usize = 200;

fn compiler(tokenizer: &Tokenizer, encoder_decoder: bool) -> GuideCompiler {
    let info = ModelInfo {
        answer_tokens_max: None,
        context_tokens_max: None,
        kind: "test".into(),
        backend: Backend::Native,
        dtype: Dtype::F32,
        kv_cache_dtype: None,
        number_encoding: NumberEncoding::Text,
        parameters: 0,
        prompt_tokens_max: 512,
        tokens: tokenizer.len(),
        eos_ids: vec![tokenizer.eos_id().unwrap()],
        encoder_decoder,
        has_token_distribution: true,
    };
    GuideCompiler::new(tokenizer, &info).unwrap()
}

fn demo() -> Arc<Tokenizer> {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/demo/t5-ntl-was.tar.gz");
    let files = CheckpointFiles::archive("demo", &std::fs::read(archive).unwrap()).unwrap();
    Arc::new(Tokenizer::open(&files).unwrap())
}

fn llama() -> Arc<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/llama-ntl");
    Arc::new(Tokenizer::open(&CheckpointFiles::folder(&folder).unwrap()).unwrap())
}

/// A SentencePiece vocabulary whose decoder keeps the space at the beginning of a text.
fn keeping_spaces() -> Arc<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/llama-ntl");
    let read = |name| std::fs::read(folder.join(name)).unwrap();
    let mut file: Value = serde_json::from_slice(&read("tokenizer.json")).unwrap();
    // The last decoder removes that space.
    file["decoder"]["decoders"].as_array_mut().unwrap().pop();
    let changed = tempfile::tempdir().unwrap();
    std::fs::write(changed.path().join("tokenizer.json"), file.to_string()).unwrap();
    for name in ["config.json", "tokenizer_config.json"] {
        std::fs::write(changed.path().join(name), read(name)).unwrap();
    }
    Arc::new(Tokenizer::open(&CheckpointFiles::folder(changed.path()).unwrap()).unwrap())
}

/// Samples texts under a constraint from uniform logits, and returns the complete ones.
fn texts(tokenizer: &Tokenizer, compiler: &GuideCompiler, constraint: &Constraint) -> Vec<String> {
    let guide = compiler.compile(constraint).unwrap();
    let write = |seed| {
        let mut sampler = Sampler::new(SamplingParams { seed, ..SamplingParams::PLAIN }, 0);
        let mut state = guide.start();
        let mut ids = Vec::new();
        while ids.len() < TOKENS_MAX {
            let mut logits = vec![0.0; tokenizer.len()];
            state.restrict(&mut logits).unwrap();
            let id = sampler.choose(&logits).unwrap();
            state.accept(id).unwrap();
            ids.push(id);
            if state.is_complete() {
                return Some(tokenizer.decode(&ids));
            }
        }
        None
    };
    (0..25).filter_map(write).collect()
}

#[test]
fn texts_match_the_regular_expression_or_are_one_of_the_choices() {
    let vocabularies =
        [(demo(), true), (llama(), false), (keeping_spaces(), true), (keeping_spaces(), false)];
    for (tokenizer, encoder_decoder) in vocabularies {
        let compiler = compiler(&tokenizer, encoder_decoder);
        let number = Constraint::Regex(r"-?\d{1,3}(\.\d)?".to_owned());
        let numbers = texts(&tokenizer, &compiler, &number);
        assert!(!numbers.is_empty());
        for text in numbers {
            let (integer, tenths) = text.trim_start_matches('-').split_once('.').unwrap_or((&text, "0"));
            let integer = integer.trim_start_matches('-');
            let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
            assert!((1..=3).contains(&integer.len()) && tenths.len() == 1, "{text:?}");
            assert!(digits(integer) && digits(tenths), "{text:?}");
        }
        let choices = ["yes".to_owned(), "no".to_owned(), "not a/b".to_owned()];
        for text in texts(&tokenizer, &compiler, &Constraint::Choice(choices.to_vec())) {
            assert!(choices.contains(&text), "{text:?}");
        }
    }
}

#[test]
fn texts_are_json_of_the_schema() {
    let tokenizer = llama();
    let compiler = compiler(&tokenizer, false);
    let schema = json!({"type": "object", "required": ["n"], "additionalProperties": false,
        "properties": {"n": {"$ref": "#/$defs/small"}}, "$defs": {"small": {"type": "integer", "minimum": 3, "maximum": 12}}});
    let texts = texts(&tokenizer, &compiler, &Constraint::Json(schema));
    assert!(!texts.is_empty());
    for text in texts {
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!((3..=12).contains(&value["n"].as_i64().unwrap()), "{text}");
        assert_eq!(value.as_object().unwrap().len(), 1, "{text}");
    }
}

#[test]
fn invalid_constraints_are_rejected_with_one_short_line() {
    let compiler = compiler(&demo(), true);
    for constraint in [
        Constraint::Regex("(".to_owned()),
        Constraint::Regex("a\\".to_owned()),
        Constraint::Regex("(?=a)b".to_owned()),
        Constraint::Regex("☃+".to_owned()),
        Constraint::Choice(vec!["☃".to_owned()]),
        Constraint::Json(json!({"type": "no such type"})),
        Constraint::Json(json!({"$ref": "http://example.com/schema"})),
        Constraint::Json(json!(5)),
        // T5 has no braces.
        Constraint::Json(json!({"type": "object"})),
    ] {
        let error = compiler.compile(&constraint).err().unwrap_or_else(|| panic!("{constraint:?} passes"));
        assert!(!error.0.is_empty() && error.0.len() <= 1000 && !error.0.contains('\n'), "{error:?}");
    }
    let reason = |constraint| compiler.compile(&constraint).err().map(|error| error.0);
    assert_eq!(reason(Constraint::Regex("(".to_owned())).as_deref(), Some("unclosed group"));
    let snowman = reason(Constraint::Choice(vec!["☃".to_owned()]));
    assert_eq!(snowman.as_deref(), Some("no token of the vocabulary continues such a text"));
}

#[test]
fn a_schema_with_thousands_of_fields_is_rejected_before_it_is_compiled() {
    let tokenizer = demo();
    let compiler = compiler(&tokenizer, true);
    let schema = |count: usize| {
        let properties = (0..count).map(|number| (format!("p{number}"), json!({"type": "integer"})));
        json!({"type": "object", "properties": Value::Object(properties.collect())})
    };
    let error = compiler.compile(&Constraint::Json(schema(2300))).unwrap_err().to_string();
    assert!(error.contains("the schema has 4602 fields in all its objects; at most 2000"), "{error}");
    // The demo's vocabulary has no brace. Only the compiler detects that.
    let error = compiler.compile(&Constraint::Json(schema(50))).unwrap_err().to_string();
    assert!(error.contains("no token of the vocabulary"), "{error}");
}
