//! Directories of T5Gemma and of RegressLM's export that cannot be loaded: the error is one line that names
//! the file and the field or tensor.

use serde_json::{Value, json};

use crate::corrupted::{Files, WEIGHTS, change_json, change_table, files_of, rejection};
use crate::support::Fixtures;

const EXPORTS: [&str; 2] = ["regresslm-hf-p10", "regresslm-hf-head"];

#[track_caller]
fn reason(name: &str, change: impl Fn(&mut Files)) -> String {
    let mut files = files_of(&Fixtures::Tiny.folder(name));
    change(&mut files);
    let reason = rejection(files);
    println!("{name}: {reason}");
    reason
}

/// Tensors of each part of a model.
const TENSORS: [(&str, &[&str]); 4] = [
    (
        "t5gemma",
        &[
            "model.encoder.embed_tokens.weight",
            "model.encoder.layers.2.self_attn.k_proj.weight",
            "model.encoder.layers.0.post_self_attn_layernorm.weight",
            "model.decoder.embed_tokens.weight",
            "model.decoder.layers.1.cross_attn.q_proj.weight",
            "model.decoder.layers.0.cross_attn.v_proj.weight",
            "model.decoder.layers.1.mlp.down_proj.weight",
            "model.decoder.norm.weight",
        ],
    ),
    (
        "t5gemma2",
        &[
            "model.encoder.embed_tokens.weight",
            "model.encoder.embed_tokens.eoi_embedding",
            "model.encoder.layers.1.self_attn.q_norm.weight",
            "model.decoder.layers.0.self_attn.k_norm.weight",
            "model.decoder.layers.1.self_attn.v_proj.weight",
        ],
    ),
    (
        "regresslm-hf-p10",
        &[
            "model.lm_head.out_proj.weight",
            "model.model.encoder.embed_tokens.weight",
            "model.model.encoder.layers.2.mlp.gate_proj.weight",
            "model.model.decoder.embed_tokens.weight",
            "model.model.decoder.layers.1.pre_cross_attn_layernorm.weight",
        ],
    ),
    (
        "regresslm-hf-head",
        &["regression_head.weight", "regression_head.bias", "model.model.encoder.norm.weight"],
    ),
];

#[test]
fn missing_tensors_and_wrong_shapes_are_rejected_with_the_tensor_s_name() {
    for (name, tensors) in TENSORS {
        for tensor in tensors {
            let removed = reason(name, |files| {
                change_table(files, |table| {
                    let entry = table.remove(*tensor).unwrap();
                    table.insert("other".to_owned(), entry);
                });
            });
            assert_eq!(removed, format!("DIR/{WEIGHTS}: tensor `{tensor}` is missing"));
            let reshaped = reason(name, |files| {
                change_table(files, |table| {
                    let shape = table[*tensor]["shape"].as_array_mut().unwrap();
                    shape.push(json!(1));
                });
            });
            assert!(
                reshaped.starts_with(&format!("DIR/{WEIGHTS}: tensor `{tensor}`: shape [")),
                "{reshaped}"
            );
        }
    }
}

#[test]
fn weights_of_other_sizes_than_the_configuration_are_rejected_with_the_tensor_s_name() {
    for (name, pointer, value, tensor) in [
        ("t5gemma", "/encoder/hidden_size", json!(18), "model.encoder.embed_tokens.weight"),
        ("t5gemma", "/decoder/hidden_size", json!(16), "model.decoder.embed_tokens.weight"),
        ("t5gemma", "/encoder/intermediate_size", json!(21), "model.encoder.layers.0.mlp.gate_proj.weight"),
        ("t5gemma", "/decoder/head_dim", json!(6), "model.decoder.layers.0.self_attn.q_proj.weight"),
        ("t5gemma", "/decoder/vocab_size", json!(336), "model.decoder.embed_tokens.weight"),
        ("t5gemma", "/tie_word_embeddings", json!(false), "lm_head.out_proj.weight"),
        (
            "t5gemma2",
            "/encoder/text_config/num_key_value_heads",
            json!(4),
            "model.encoder.layers.0.self_attn.k_proj.weight",
        ),
        (
            "regresslm-hf-p10",
            "/backbone_config/encoder/hidden_size",
            json!(18),
            "model.model.encoder.embed_tokens.weight",
        ),
        ("regresslm-hf-p10", "/encoder_vocab_size", json!(320), "model.model.encoder.embed_tokens.weight"),
        ("regresslm-hf-head", "/encoder_vocab_size", json!(4096), "model.model.encoder.embed_tokens.weight"),
    ] {
        let reason = reason(name, |files| change_json(files, "config.json", pointer, &value));
        assert!(reason.starts_with(&format!("DIR/{WEIGHTS}: tensor `{tensor}`")), "{pointer}: {reason}");
    }
    for (name, pointer) in [
        ("t5gemma", "/encoder"),
        ("t5gemma2", "/encoder/text_config"),
        (EXPORTS[0], "/backbone_config/encoder"),
    ] {
        let layers = |files: &mut Files| {
            change_json(files, "config.json", &format!("{pointer}/num_hidden_layers"), &json!(4));
            change_json(files, "config.json", &format!("{pointer}/layer_types"), &Value::Null);
        };
        let reason = reason(name, layers);
        assert!(reason.contains("encoder.layers.3.") && reason.ends_with("is missing"), "{reason}");
    }
}

#[test]
fn vocabularies_that_disagree_are_rejected_with_the_names_of_file_and_field() {
    for (name, pointer, value, want) in [
        ("t5gemma", "/encoder/vocab_size", json!(9), "`encoder.vocab_size`: 9 is less than the "),
        ("t5gemma", "/decoder/vocab_size", json!(9), "`decoder.vocab_size`: 9 is less than the "),
        (
            "t5gemma2",
            "/encoder/text_config/vocab_size",
            json!(9),
            "`decoder.vocab_size`: 320 differs from the encoder's 9",
        ),
        ("regresslm-hf-p10", "/encoder_vocab_size", json!(9), "`encoder_vocab_size`: 9 is less than the "),
        (
            "regresslm-hf-p10",
            "/decoder_vocab_size",
            json!(17),
            "`decoder_vocab_size`: 17 differs from the 16 tokens of p10_vocab.json",
        ),
        ("regresslm-hf-head", "/encoder_vocab_size", json!(9), "`encoder_vocab_size`: 9 is less than the "),
    ] {
        let reason = reason(name, |files| change_json(files, "config.json", pointer, &value));
        assert!(reason.starts_with(&format!("DIR/config.json: field {want}")), "{pointer}: {reason}");
    }
    let names = |change: &[(&str, Value)]| {
        reason("regresslm-hf-p10", |files| {
            for (name, id) in change {
                change_json(files, "p10_vocab.json", &format!("/{name}"), id);
            }
        })
    };
    let reason = names(&[("<E2>", json!(16))]);
    assert!(reason.contains("`decoder_vocab_size`: 16 differs from the 17 tokens"), "{reason}");
    let reason = names(&[("<E1>", Value::Null), ("<E2>", json!(15))]);
    assert!(reason.starts_with("DIR/p10_vocab.json is not usable: it has no token `<E1>`"), "{reason}");
}

#[test]
fn missing_files_are_rejected_by_name() {
    let without = |name: &str, file: &str| reason(name, |files| drop(files.remove(file).unwrap()));
    for name in ["t5gemma", "t5gemma2", EXPORTS[0], EXPORTS[1]] {
        assert_eq!(without(name, "config.json"), "DIR has no config.json");
        let reason = without(name, WEIGHTS);
        assert!(reason.starts_with("DIR has no model.safetensors"), "{reason}");
    }
    for name in EXPORTS {
        let reason = without(name, "encoder_tokenizer/tokenizer.json");
        assert!(reason.starts_with("DIR/encoder_tokenizer has no tokenizer.json"), "{reason}");
    }
    let reason = without("t5gemma", "tokenizer.json");
    assert!(reason.starts_with("DIR has no tokenizer.json"), "{reason}");
    assert_eq!(without(EXPORTS[0], "p10_vocab.json"), "DIR has no p10_vocab.json");
}
