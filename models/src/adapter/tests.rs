//! Compares adapters that are merged at load with weights that the test merges itself, on the tiny models of
//! `tests/data/causal`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ntl_core::Prompt;
use ntl_core::contract::{BatchModel, NodeId, PathRow, Row};
use serde_json::{Value, json};

use super::*;
use crate::causal::{Causal, CausalOptions};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/causal").join(name)
}

fn random(rows: usize, columns: usize) -> Tensor {
    Tensor::randn(0f32, 0.5f32, (rows, columns), &Device::Cpu).unwrap()
}

/// Creates a directory with an adapter.
fn adapter(config: &Value, tensors: &HashMap<String, Tensor>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("adapter_config.json"), config.to_string()).unwrap();
    candle_core::safetensors::save(tensors, folder.path().join(FILE)).unwrap();
    folder
}

fn config() -> Value {
    json!({"peft_type": "LORA", "lora_alpha": 3, "r": 2, "bias": "none", "use_rslora": false,
        "target_modules": ["q_proj"], "modules_to_save": null})
}

fn load(folder: &Path, adapter: Option<&Adapter>) -> Result<Causal, LoadError> {
    let files = CheckpointFiles::folder(folder).unwrap();
    let options = CausalOptions { tokens: 36, place: crate::Placement::default(), prefix_bytes_max: 0 };
    Causal::load_adapted(&files, &options, adapter)
}

/// Returns the logits after a fixed text.
fn logits(mut model: Causal) -> Vec<f32> {
    let context = model.open(&[(&Prompt::from(vec![5, 9, 30, 7])).into()]).unwrap()[0].context;
    let row = |parent: Option<u32>, token| Row { context, path: PathRow::new(parent.map(NodeId), token) };
    model.step(&[row(None, 7), row(Some(0), 11)]).unwrap().row(1).to_vec()
}

/// Copies a model and adds changes to the named weights.
fn merged_by_hand(name: &str, changes: &[(&str, Tensor)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(data(name).join("config.json"), folder.path().join("config.json")).unwrap();
    let weights = data(name).join("model.safetensors");
    let mut weights = candle_core::safetensors::load(weights, &Device::Cpu).unwrap();
    for (weight, change) in changes {
        let merged = (&weights[*weight] + change).unwrap();
        weights.insert((*weight).to_owned(), merged);
    }
    candle_core::safetensors::save(&weights, folder.path().join("model.safetensors")).unwrap();
    folder
}

fn open(folder: &Path) -> Result<Adapter, LoadError> {
    Adapter::open(&CheckpointFiles::folder(folder).unwrap())
}

/// Returns both matrices of each module, of rank 2, under PEFT's names.
fn tensors(modules: &[(&str, [usize; 2])]) -> HashMap<String, Tensor> {
    let pair = |(module, [output, input]): &(&str, [usize; 2])| {
        let name = |part: &str| format!("base_model.model.{module}.{part}.weight");
        [(name("lora_A"), random(2, *input)), (name("lora_B"), random(*output, 2))]
    };
    modules.iter().flat_map(pair).collect()
}

#[test]
fn adapters_merged_at_load_give_the_logits_of_merged_weights() {
    for (name, modules, turned) in [
        (
            "qwen2",
            &[
                ("model.layers.0.self_attn.q_proj", [16, 16]),
                ("model.layers.1.mlp.down_proj", [16, 24]),
                ("lm_head", [36, 16]),
            ][..],
            false,
        ),
        ("gpt2-by-depth", &[("transformer.h.1.attn.c_attn", [48, 16])], true),
    ] {
        for by_root in [false, true] {
            let tensors = tensors(modules);
            let mut config = config();
            config["use_rslora"] = by_root.into();
            let scale = 3.0 / if by_root { 2f64.sqrt() } else { 2.0 };
            let changes = modules.iter().map(|(module, _)| {
                let part = |part: &str| &tensors[&format!("base_model.model.{module}.{part}.weight")];
                let change = (part("lora_B").matmul(part("lora_A")).unwrap() * scale).unwrap();
                (format!("{module}.weight"), if turned { change.t().unwrap() } else { change })
            });
            let changes: Vec<_> = changes.collect();
            let changes: Vec<_> =
                changes.iter().map(|(name, change)| (name.as_str(), change.clone())).collect();
            let folder = adapter(&config, &tensors);
            let merged = open(folder.path()).unwrap();
            let got = logits(load(&data(name), Some(&merged)).unwrap());
            let want = logits(load(merged_by_hand(name, &changes).path(), None).unwrap());
            let plain = logits(load(&data(name), None).unwrap());
            let off = |other: &[f32]| got.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off(&want) < 1e-4, "{name}: {}", off(&want));
            assert!(off(&plain) > 0.01, "{name}: the adapter changes nothing");
        }
    }
}

#[test]
fn tensors_that_do_not_fit_are_rejected_with_their_names() {
    let query = "model.layers.0.self_attn.q_proj";
    for (modules, parts) in [
        ([(query, [16, 24])], ["q_proj.lora_A", "[2, 24] does not fit the weight [16, 16]"]),
        ([(query, [17, 16])], ["q_proj.lora_B", "[17, 2] does not fit the weight [16, 16] at rank 2"]),
        ([("model.layers.9.mlp.up_proj", [24, 16])], ["layers.9.mlp.up_proj", "the model has no projection"]),
        ([("model.embed_tokens", [36, 16])], ["embed_tokens", "the model has no projection"]),
    ] {
        let folder = adapter(&config(), &tensors(&modules));
        let merged = open(folder.path()).unwrap();
        let Err(error) = load(&data("qwen2"), Some(&merged)) else { panic!("{parts:?} is merged") };
        let message = error.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    let lonely = HashMap::from([(format!("base_model.model.{query}.lora_A.weight"), random(2, 16))]);
    let folder = adapter(&config(), &lonely);
    let Err(error) = load(&data("qwen2"), Some(&open(folder.path()).unwrap())) else {
        panic!("half is merged")
    };
    assert!(error.to_string().ends_with("q_proj.lora_B.weight` is missing"), "{error}");
}

#[test]
fn the_error_names_the_field_of_an_adapter_that_cannot_be_merged() {
    let good = tensors(&[("model.layers.0.self_attn.q_proj", [16, 16])]);
    for (field, value, part) in [
        ("peft_type", json!("IA3"), "`IA3` cannot be merged"),
        ("use_dora", json!(true), "DoRA"),
        ("bias", json!("all"), "trained biases"),
        ("modules_to_save", json!(["lm_head"]), "lm_head"),
        ("alpha_pattern", json!({"q_proj": 4}), "different scales"),
        ("lora_alpha", Value::Null, "missing"),
        ("r", json!(-1), "-1 is not an integer of at least 1"),
        ("r", json!(0), "0 is not an integer of at least 1"),
        ("r", json!(1e9), "1000000000.0 is not an integer of at least 1"),
    ] {
        let mut config = config();
        config[field] = value;
        let Err(error) = open(adapter(&config, &good).path()) else { panic!("{field} is taken") };
        let message = error.to_string();
        assert!(message.contains(&format!("field `{field}`")) && message.contains(part), "{message}");
    }
    let odd = HashMap::from([("base_model.model.x.lora_embedding_A".to_owned(), random(2, 2))]);
    let Err(error) = open(adapter(&config(), &odd).path()) else { panic!("it is taken") };
    assert!(error.to_string().contains("is not part of a LoRA"), "{error}");
    let nothing = tempfile::tempdir().unwrap();
    let Err(error) = open(nothing.path()) else { panic!("it is there") };
    assert!(error.to_string().ends_with("has no adapter_config.json"), "{error}");
}

#[test]
fn a_rank_that_contradicts_the_tensors_and_merged_weights_that_are_not_finite_are_rejected() {
    let query = "model.layers.0.self_attn.q_proj";
    let good = tensors(&[(query, [16, 16])]);
    let huge: HashMap<String, Tensor> =
        good.iter().map(|(name, tensor)| (name.clone(), (tensor * 1e30).unwrap())).collect();
    for (field, value, tensors, parts) in [
        ("r", json!(1_000_000_000), &good, ["q_proj.lora_A", "its rank is 2, but field `r`", "1000000000"]),
        ("lora_alpha", json!(1e300), &good, ["q_proj.lora_B", "not finite", "`lora_alpha`"]),
        ("lora_alpha", json!(1), &huge, ["q_proj.lora_B", "not finite", "scale 5e-1"]),
    ] {
        let mut config = config();
        config[field] = value;
        let merged = open(adapter(&config, tensors).path()).unwrap();
        let Err(error) = load(&data("qwen2"), Some(&merged)) else { panic!("{parts:?} is merged") };
        let message = error.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    let mut config = config();
    config["r"] = json!(8);
    config["rank_pattern"] = json!({"q_proj": 2});
    assert!(load(&data("qwen2"), Some(&open(adapter(&config, &good).path()).unwrap())).is_ok());
}

#[test]
fn names_of_older_files_which_contain_the_adapters_name_are_read() {
    let modules = ["x.lora_A.default.weight", "x.lora_B.weight"];
    for name in modules {
        assert!(target(&format!("{ROOT}{name}")).is_some_and(|(module, _)| module == "x"), "{name}");
    }
    assert!(target("x.lora_A.weight").is_none() && target("base_model.model.x.lora_A").is_none());
}
