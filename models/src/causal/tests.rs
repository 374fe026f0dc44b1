//! Configurations in all formats, and configurations that are not supported.

use ntl_text::checkpoint::{CheckpointFiles, LoadError};
use serde_json::{Value, json};

use super::*;

fn read(architecture: &str, change: &Value, generation: Option<&Value>) -> Result<CausalConfig, LoadError> {
    let mut config = if architecture == "GPT2LMHeadModel" {
        json!({"vocab_size": 50, "n_positions": 32, "n_embd": 12, "n_layer": 2, "n_head": 3,
            "bos_token_id": 7, "eos_token_id": 7})
    } else {
        json!({"vocab_size": 50, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 3,
            "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 32,
            "bos_token_id": 1, "eos_token_id": 2})
    };
    config["architectures"] = json!([architecture]);
    for (field, value) in change.as_object().unwrap() {
        config[field] = value.clone();
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    if let Some(generation) = generation {
        std::fs::write(folder.path().join("generation_config.json"), generation.to_string()).unwrap();
    }
    CausalConfig::read(&CheckpointFiles::folder(folder.path()).unwrap())
}

fn llama(change: &Value) -> CausalConfig {
    read("LlamaForCausalLM", change, None).unwrap()
}

fn windows(architecture: &str, change: &Value) -> Vec<Option<usize>> {
    read(architecture, change, None).unwrap().layers.iter().map(|layer| layer.window).collect()
}

#[test]
fn old_and_new_formats_of_rotary_positions_are_equivalent() {
    let old = json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}});
    let new = json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}});
    assert_eq!(llama(&old), llama(&new));
    assert_eq!(llama(&old).positions_max, 64);
    let plain = json!({"rope_scaling": null, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}});
    assert_eq!(llama(&plain), llama(&json!({})));
}

#[test]
fn a_context_is_limited_by_its_positions() {
    let yarn = |more: Value| {
        let mut scaling = json!({"rope_type": "yarn", "factor": 4.0});
        scaling.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        llama(&json!({"rope_scaling": scaling})).positions_max
    };
    assert_eq!(yarn(json!({})), 128, "stretched from the training length");
    assert_eq!(yarn(json!({"original_max_position_embeddings": 8})), 32, "already stretched");
    let dynamic = json!({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}});
    assert_eq!(llama(&dynamic), llama(&json!({})), "default within the training length");
}

#[test]
fn long_factors_are_left_out_and_the_context_ends_where_they_begin() {
    let rope = json!({"type": "longrope", "short_factor": [1.0, 4.0], "long_factor": [1.0, 9.0]});
    let old = json!({"hidden_size": 48, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 16,
        "rope_scaling": rope});
    let mut new = json!({"hidden_size": 48, "rope_parameters": rope});
    new["rope_parameters"]["partial_rotary_factor"] = 0.5.into();
    new["rope_parameters"]["original_max_position_embeddings"] = 16.into();
    let [old, new] = [old, new].map(|change| read("Phi3ForCausalLM", &change, None).unwrap());
    assert_eq!(old, new);
    assert_eq!((old.head_dim, old.positions_max), (8, 16));
    let PositionEncoding::Rotary(rotaries) = &old.positions else { panic!("{:?}", old.positions) };
    let magnitude = (1.0 + 2f32.ln() / 16f32.ln()).sqrt();
    assert_eq!(*rotaries, [Rotary { frequencies: vec![1.0, 0.0025], magnitude, head_dim: 8 }]);
}

#[test]
fn windows_follow_the_family() {
    let some = Some(8);
    let none = None;
    let window = json!({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 1});
    assert_eq!(windows("MistralForCausalLM", &json!({"sliding_window": 8})), [some; 3]);
    assert_eq!(windows("MistralForCausalLM", &json!({"sliding_window": null})), [none; 3]);
    assert_eq!(windows("LlamaForCausalLM", &window), [none; 3]);
    assert_eq!(windows("Qwen2ForCausalLM", &window), [none, some, some]);
    assert_eq!(windows("Qwen2ForCausalLM", &json!({"sliding_window": 8})), [none; 3]);
    let mut typed = window;
    typed["layer_types"] = json!(["sliding_attention", "full_attention", "sliding_attention"]);
    assert_eq!(windows("Qwen3ForCausalLM", &typed), [some, none, some]);
}

#[test]
fn layers_without_rotary_positions_are_those_of_the_configuration() {
    let rotated = |change: Value| -> Vec<bool> {
        let config = read("SmolLM3ForCausalLM", &change, None).unwrap();
        config.layers.iter().map(|layer| layer.rotary.is_some()).collect()
    };
    assert_eq!(rotated(json!({"no_rope_layer_interval": 2})), [true, false, true]);
    assert_eq!(rotated(json!({"num_hidden_layers": 4})), [true, true, true, false]);
    assert_eq!(rotated(json!({"no_rope_layers": [0, 1, 1, 0]})), [false, true, true]);
    let window = json!({"sliding_window": 8, "use_sliding_window": true, "no_rope_layers": [0, 1, 1]});
    assert_eq!(windows("SmolLM3ForCausalLM", &window), [Some(8), None, None]);
    assert!(llama(&json!({"no_rope_layers": [0, 1, 1]})).layers.iter().all(|layer| layer.rotary == Some(0)));
}

#[test]
fn layers_with_a_window_have_their_own_angles() {
    let yarn = json!({"rope_type": "yarn", "factor": 2.0, "rope_theta": 5e5});
    let plain = json!({"rope_type": "default", "rope_theta": 5e5});
    let new = json!({"sliding_window": 8, "num_hidden_layers": 5,
        "rope_parameters": {"full_attention": yarn, "sliding_attention": plain}});
    let old = json!({"sliding_window": 8, "num_hidden_layers": 5, "rope_scaling": yarn, "rope_theta": 5e5});
    let [new, old] = [new, old].map(|change| read("Olmo3ForCausalLM", &change, None).unwrap());
    assert_eq!(new, old);
    let PositionEncoding::Rotary(rotaries) = &new.positions else { panic!("{:?}", new.positions) };
    let is_stretched: Vec<_> = rotaries.iter().map(|rotary| rotary.magnitude > 1.0).collect();
    assert_eq!(is_stretched, [true, false], "{rotaries:?}");
    let layers: Vec<_> = new.layers.iter().map(|layer| (layer.window, layer.rotary)).collect();
    let (sliding, full) = ((Some(8), Some(1)), (None, Some(0)));
    assert_eq!(layers, [sliding, sliding, sliding, full, sliding]);
}

#[test]
fn gemma_scales_embeddings_and_scores_and_limits_scores_and_logits() {
    let change = json!({"query_pre_attn_scalar": 25, "hidden_size": 64, "head_dim": 16, "sliding_window": 8,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "rope_theta": 1e6,
        "rope_local_base_freq": 1e4});
    let config = read("Gemma2ForCausalLM", &change, None).unwrap();
    assert_eq!(config.multipliers, Multipliers { embedding: 8.0, ..Multipliers::ONE });
    assert_eq!(config.caps, Caps { scores: Some(50.0), logits: Some(30.0) });
    assert!(config.layers.iter().all(|layer| (layer.scale - 0.2).abs() < 1e-12), "{:?}", config.layers);
    assert!(config.tied && config.has_reduced_norms);
    assert_eq!(windows("Gemma2ForCausalLM", &change), [Some(8), None, Some(8)]);
    let PositionEncoding::Rotary(rotaries) = read("Gemma3ForCausalLM", &change, None).unwrap().positions
    else {
        panic!("{config:?}")
    };
    // The second of eight pairs.
    let [full, sliding] = [1e6_f32, 1e4].map(|theta| theta.powf(-1.0 / 8.0));
    let found: Vec<f32> = rotaries.iter().map(|rotary| rotary.frequencies[1]).collect();
    assert!((found[0] - full).abs() < 1e-6 && (found[1] - sliding).abs() < 1e-6, "{found:?}");
}

#[test]
fn generation_config_determines_the_end_of_sequence_ids() {
    for (generation, want) in [
        (None, vec![2]),
        (Some(json!({"eos_token_id": [5, 6]})), vec![5, 6]),
        (Some(json!({"eos_token_id": null})), vec![2]),
    ] {
        let config = read("LlamaForCausalLM", &json!({}), generation.as_ref()).unwrap();
        assert_eq!(config.eos_ids, want, "{generation:?}");
    }
}

#[test]
fn unsupported_configurations_are_rejected_with_the_field_s_name() {
    const LLAMA: &str = "LlamaForCausalLM";
    const GEMMA: &str = "Gemma3ForCausalLM";
    const PHI3: &str = "Phi3ForCausalLM";
    for (architecture, change, field) in [
        (LLAMA, json!({"rope_scaling": {"rope_type": "longrope"}}), "rope_scaling"),
        (LLAMA, json!({"rope_scaling": {"rope_type": "linear"}}), "rope_scaling"),
        (LLAMA, json!({"rope_scaling": {"rope_type": "llama3", "factor": 0}}), "rope_scaling"),
        (LLAMA, json!({"rope_parameters": {"partial_rotary_factor": 0.5}}), "partial_rotary_factor"),
        (PHI3, json!({"partial_rotary_factor": 0.1}), "partial_rotary_factor"),
        (PHI3, json!({"partial_rotary_factor": 1.5}), "partial_rotary_factor"),
        (PHI3, json!({"rope_scaling": {"type": "longrope", "short_factor": [1.0, 2.0]}}), "rope_scaling"),
        (PHI3, json!({"rope_scaling": {"type": "longrope", "short_factor": [0.0]}}), "rope_scaling"),
        (LLAMA, json!({"rope_theta": -1.0}), "rope_theta"),
        (LLAMA, json!({"rope_theta": 0}), "rope_theta"),
        (LLAMA, json!({"rms_norm_eps": -1e-6}), "rms_norm_eps"),
        (LLAMA, json!({"head_dim": 3}), "head_dim"),
        (LLAMA, json!({"head_dim": 99_999_999_999_u64}), "head_dim"),
        (LLAMA, json!({"num_hidden_layers": 99_999_999_999_u64}), "num_hidden_layers"),
        (LLAMA, json!({"num_hidden_layers": 0}), "num_hidden_layers"),
        (LLAMA, json!({"num_attention_heads": 5}), "num_attention_heads"),
        (LLAMA, json!({"num_key_value_heads": 4}), "num_key_value_heads"),
        (LLAMA, json!({"num_key_value_heads": 0}), "num_key_value_heads"),
        (LLAMA, json!({"hidden_act": "tanh"}), "hidden_act"),
        (LLAMA, json!({"bos_token_id": 50}), "bos_token_id"),
        (LLAMA, json!({"quantization_config": {"bits": 4}}), "quantization_config"),
        ("MistralForCausalLM", json!({"sliding_window": 0}), "sliding_window"),
        ("GraniteForCausalLM", json!({"logits_scaling": 0.0}), "logits_scaling"),
        ("SmolLM3ForCausalLM", json!({"no_rope_layers": [1, 0]}), "no_rope_layers"),
        ("SmolLM3ForCausalLM", json!({"no_rope_layer_interval": 0}), "no_rope_layer_interval"),
        ("Olmo3ForCausalLM", json!({"sliding_window": null}), "sliding_window"),
        (GEMMA, json!({"query_pre_attn_scalar": 0}), "query_pre_attn_scalar"),
        (GEMMA, json!({"sliding_window": 4, "final_logit_softcapping": -1.0}), "final_logit_softcapping"),
        (GEMMA, json!({"sliding_window": 4, "hidden_activation": "tanh"}), "hidden_activation"),
        (
            GEMMA,
            json!({"sliding_window": 4, "use_bidirectional_attention": true}),
            "use_bidirectional_attention",
        ),
        ("GPT2LMHeadModel", json!({"n_head": 5}), "n_head"),
        ("GPT2LMHeadModel", json!({"activation_function": "tanh"}), "activation_function"),
        ("BertModel", json!({}), "architectures"),
        ("T5ForConditionalGeneration", json!({}), "architectures"),
    ] {
        let message = read(architecture, &change, None).unwrap_err().to_string();
        assert!(message.contains(&format!("config.json: field `{field}`")), "{change}: {message}");
    }
}
