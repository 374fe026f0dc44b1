//! Directories of RegressLM's PyTorch model that cannot be loaded: the error is one line that names the file
//! and the field or tensor.

use serde_json::{Value, json};

use crate::corrupted::{Files, change_json, files_of, rejection};
use crate::support::Fixtures;

const DESCRIPTION: &str = "ntl.json";
const WEIGHTS: &str = "checkpoint.pt";

/// Returns the reason for which a checkpoint is rejected after a change of its files.
#[track_caller]
fn reason(name: &str, change: impl Fn(&mut Files)) -> String {
    let mut files = files_of(&Fixtures::Tiny.folder(name));
    change(&mut files);
    rejection(files)
}

/// Changes the field at a JSON pointer of the description; `null` removes it.
#[track_caller]
fn described(name: &str, pointer: &str, value: &Value) -> String {
    reason(name, |files| change_json(files, DESCRIPTION, pointer, value))
}

#[test]
fn wrong_descriptions_are_rejected_by_field() {
    let huge = json!(99_999_999_999_u64);
    for (pointer, value, field) in [
        ("/format", json!("regresslm-jax"), "format"),
        ("/version", json!(2), "version"),
        ("/checkpoint", json!("../checkpoint.pt"), "checkpoint"),
        ("/encoder/type", json!("mamba"), "encoder.type"),
        ("/encoder/type", json!("performer"), "encoder.type"),
        ("/encoder/d_model", huge.clone(), "encoder.d_model"),
        ("/encoder/d_model", json!(0), "encoder.d_model"),
        ("/encoder/layers", huge.clone(), "encoder.layers"),
        ("/encoder/heads", json!(0), "encoder.heads"),
        ("/encoder/heads", json!(3), "encoder.heads"),
        ("/encoder/heads", json!(16), "encoder.heads"),
        ("/encoder/vocab_size", huge.clone(), "encoder.vocab_size"),
        ("/encoder/vocab_size", json!(38), "encoder.vocab_size"),
        ("/encoder/max_input_len", json!(0), "encoder.max_input_len"),
        ("/encoder/activation", json!("gelu"), "encoder.activation"),
        ("/encoder/norm", json!("post"), "encoder.norm"),
        ("/encoder/rope_base", json!(-1), "encoder.rope_base"),
        ("/encoder/rope_layout", json!("half"), "encoder.rope_layout"),
        ("/encoder/layer_norm_eps", json!(2.0), "encoder.layer_norm_eps"),
        ("/encoder_tokenizer/kind", json!("bytes"), "encoder_tokenizer.kind"),
        ("/encoder_tokenizer/chars", json!("aa"), "encoder_tokenizer.chars"),
        ("/encoder_tokenizer/first_char_id", json!(1), "encoder_tokenizer.chars"),
        ("/encoder_tokenizer/add_bos", json!(true), "encoder_tokenizer.add_bos"),
        ("/decoder/d_model", json!(24), "decoder.d_model"),
        ("/decoder/vocab_size", json!(21), "decoder.vocab_size"),
        ("/decoder/max_len", json!(7), "decoder.max_len"),
        ("/decoder/start_id", json!(20), "decoder.start_id"),
        ("/decoder/positions", json!("learned"), "decoder.positions"),
        ("/decoder/final_norm", json!(true), "decoder.final_norm"),
        ("/decode_len", json!(9), "decode_len"),
        ("/max_num_objs", json!(17), "number_tokenizer"),
        ("/number_tokenizer/kind", json!("p11"), "number_tokenizer.kind"),
        ("/number_tokenizer/num_digits", Value::Null, "number_tokenizer.num_digits"),
        ("/number_tokenizer/exponent_range", json!(2), "number_tokenizer.tokens"),
        ("/number_tokenizer/tokens", json!([]), "number_tokenizer.tokens"),
        ("/number_tokenizer/tokens/5", json!("<3>"), "number_tokenizer.tokens"),
        ("/number_tokenizer/num_tokens_per_obj", json!(3), "number_tokenizer.num_tokens_per_obj"),
        ("/number_tokenizer/wrappers", json!(["append_eos"]), "number_tokenizer.wrappers"),
        ("/number_tokenizer/wrappers", json!(["append_pad", "append_pad"]), "number_tokenizer.wrappers"),
        ("/number_tokenizer/special_values/NAN", json!("zero"), "number_tokenizer.special_values"),
    ] {
        let message = described("regresslm-pt", pointer, &value);
        assert!(message.contains(&format!("DIR/ntl.json: field `{field}`: ")), "{pointer}: {message}");
    }
    for (pointer, value, name) in
        [("/encoder/type", json!("mamba"), "`mamba`"), ("/encoder/type", json!("PERFORMER"), "`PERFORMER`")]
    {
        let message = described("regresslm-pt", pointer, &value);
        assert!(message.contains(name) && message.contains("vanilla, t5gemma and t5gemma2 are"), "{message}");
    }
    for (pointer, field) in [("/encoder/config/hidden_size", "encoder"), ("/encoder/config", "encoder")] {
        let message = described("regresslm-pt-gemma", pointer, &Value::Null);
        assert!(message.contains(&format!("DIR/ntl.json: field `{field}`: missing field")), "{message}");
    }
    let message = described("regresslm-pt-gemma2", "/encoder/config/text_config", &Value::Null);
    assert!(message.contains("DIR/ntl.json: field `encoder`: missing field"), "{message}");
    for (pointer, value) in [
        ("head_dim", json!(7)),
        ("num_hidden_layers", json!(99_999_999_999_u64)),
        ("sliding_window", json!(0)),
    ] {
        let message =
            described("regresslm-pt-gemma2", &format!("/encoder/config/text_config/{pointer}"), &value);
        let field = format!("DIR/ntl.json: field `encoder.config.text_config.{pointer}`");
        assert!(message.contains(&field), "{message}");
    }
    let message = described("regresslm-pt-gemma", "/encoder/config/head_dim", &json!(7));
    assert!(message.contains("DIR/ntl.json: field `encoder.config.head_dim`"), "{message}");
    let message = described("regresslm-pt", "/decoder", &Value::Null);
    assert!(message.starts_with("DIR/ntl.json is not usable: missing field `decoder`"), "{message}");
}

#[test]
fn missing_files_and_tensors_are_rejected_by_name() {
    for (pointer, value, want) in [
        ("/checkpoint", json!("other.pt"), "DIR has no other.pt"),
        ("/state_key", json!("optimizer_state"), "checkpoint.pt: tensor `step`: it is not a tensor"),
        ("/state_key", json!("global_step"), "checkpoint.pt is not usable: it holds no dictionary"),
        (
            "/state_key",
            json!("model"),
            "checkpoint.pt is not usable: it has no dictionary `model` of tensors",
        ),
        ("/prefix", json!(""), "DIR/checkpoint.pt: tensor `encoder.embedding.weight` is missing"),
        ("/encoder/layers", json!(3), "tensor `encoder_decoder.encoder.layers.2.norm1.weight` is missing"),
        (
            "/encoder/d_ff",
            json!(23),
            "tensor `encoder_decoder.encoder.layers.0.linear1.weight`: shape [24, 16]",
        ),
        ("/decoder/layers", json!(3), "tensor `encoder_decoder.decoder.layers.2."),
        (
            "/decoder/max_len",
            json!(10),
            "tensor `encoder_decoder.decoder_positional_encoding.pe`: shape [1, 9,",
        ),
        ("/encoder_tokenizer/kind", json!("sentencepiece"), "`encoder_tokenizer.file`: missing"),
    ] {
        let message = described("regresslm-pt", pointer, &value);
        assert!(message.contains(want), "{pointer}: {message}");
    }
    let cut = reason("regresslm-pt", |files| files.get_mut(WEIGHTS).unwrap().truncate(30_000));
    assert!(cut.starts_with("DIR/checkpoint.pt is not usable"), "{cut}");
    let bare = reason("regresslm-pt", |files| drop(files.remove(DESCRIPTION)));
    assert_eq!(bare, "DIR has no config.json");
    let described_only = reason("regresslm-pt", |files| drop(files.remove(WEIGHTS)));
    assert_eq!(described_only, "DIR has no checkpoint.pt");
}
