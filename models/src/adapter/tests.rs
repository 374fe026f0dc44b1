//! Compares adapters with weights that the test merges itself, and rows of several adapters in one batch with
//! the same rows alone, on the tiny models of `tests/data`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use candle_core::Shape;
use ntl_core::Prompt;
use ntl_core::contract::{
    BatchModel, ContextRequest, Logits, NodeId, OpenedContext, PathRow, PrefillChunk, Row,
};
use ntl_text::checkpoint::Choices;
use serde_json::{Value, json};

use super::*;
use crate::causal::{Causal, CausalOptions};
use crate::ops::composed;
use crate::random::Random;
use crate::{DtypeChoice, LoadOptions, LoadedModel, load, place};

/// Decoder-only models without tokenizers.
const CAUSAL: [&str; 8] =
    ["qwen2", "gpt2-by-depth", "llama-biases", "mistral-window", "smollm3", "olmo2", "gemma3", "phi3"];

/// Models with heads of labels, over an encoder or a decoder.
const HEADS: [&str; 7] = [
    "bert-classes",
    "roberta-regression",
    "modernbert-mean",
    "llama-reward",
    "mistral-classes",
    "gpt2-classes",
    "t5-classes",
];

/// Models of every other kind: multipliers, norms of heads, ReLU and gated feed-forward parts, number
/// embeddings, separate and merged attention to the prompt, nested backbones, heads.
const TINY: [&str; 11] = [
    "granite",
    "qwen3",
    "gpt2",
    "t5-ce",
    "t5-rt",
    "t5-v11",
    "t5-regression-head",
    "t5gemma",
    "t5gemma2",
    "regresslm-hf-p10",
    "regresslm-hf-head",
];

fn data(name: &str) -> PathBuf {
    let folder = match name {
        name if CAUSAL.contains(&name) => "causal",
        name if HEADS.contains(&name) => "heads",
        _ => "tiny",
    };
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder).join(name)
}

fn zeros(shape: impl Into<Shape>) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

/// Creates a directory with an adapter.
fn adapter(config: &Value, tensors: &HashMap<String, Tensor>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("adapter_config.json"), config.to_string()).unwrap();
    candle_core::safetensors::save(tensors, folder.path().join(FILE)).unwrap();
    folder
}

fn config() -> Value {
    json!({"peft_type": "LORA", "lora_alpha": 3, "r": 2, "bias": "none", "use_rslora": false, "use_dora": false,
        "target_modules": ["q_proj"], "modules_to_save": null, "fan_in_fan_out": true, "layer_replication": null,
        "base_model_name_or_path": "/models/base"})
}

/// A model, the reader of its adapters, and the source of random ones.
struct Opened {
    model: Box<dyn BatchModel>,
    reader: AdapterReader,
    random: Random,
}

fn open_in(folder: &Path, dtype: DtypeChoice) -> Opened {
    let files = CheckpointFiles::folder(folder).unwrap();
    let choices = Choices { log_scale_embeddings: Some(false), ..Choices::default() };
    let options = LoadOptions { dtype, choices, ..LoadOptions::default() };
    if !folder.join("tokenizer_config.json").exists() && !folder.join("encoder_tokenizer").exists() {
        let place = place(&options).unwrap();
        let options = CausalOptions { tokens: 36, place, prefix_bytes_max: 1 << 20 };
        let model = Causal::load(&files, &options).unwrap();
        return Opened { reader: model.adapters().clone(), model: Box::new(model), random: Random::new(1) };
    }
    let LoadedModel { model, adapters, .. } = load(&files, options).unwrap();
    Opened { model, reader: adapters.unwrap(), random: Random::new(1) }
}

fn open(name: &str) -> Opened {
    open_in(&data(name), DtypeChoice::F32)
}

impl Opened {
    fn read(&self, folder: &Path) -> LoadResult<Adapter> {
        self.reader.open(&CheckpointFiles::folder(folder).unwrap())?.read()
    }

    /// Returns the modules that adapters can change, with their shapes.
    fn modules(&self) -> BTreeMap<String, [usize; 2]> {
        self.reader.modules().map(|(name, shape)| (name.to_owned(), shape)).collect()
    }

    /// Returns both random matrices of each module, of rank 2, under PEFT's names.
    fn pairs(&self, modules: &BTreeMap<String, [usize; 2]>) -> HashMap<String, Tensor> {
        let pair = |(module, &[output, input]): (&String, &[usize; 2])| {
            let name = |part: &str| format!("base_model.model.{module}.{part}.weight");
            [
                (name("lora_A"), self.random.matrix(2, input, 0.3)),
                (name("lora_B"), self.random.matrix(output, 2, 0.3)),
            ]
        };
        modules.iter().flat_map(pair).collect()
    }

    /// Returns a random adapter for all modules.
    fn random(&self) -> Adapter {
        let folder = adapter(&config(), &self.pairs(&self.modules()));
        self.read(folder.path()).unwrap()
    }

    /// Returns a random adapter of some layer that replaces these modules, which may have biases.
    fn replacing(&self, replaced: &[(&str, bool)]) -> tempfile::TempDir {
        let all = self.modules();
        let is_other = |name: &&String| replaced.iter().all(|(module, _)| module != name);
        let changed = all.keys().find(|name| is_other(name)).unwrap();
        let mut tensors = self.pairs(&modules(&[(changed, all[changed])]));
        for (module, has_bias) in replaced {
            let [outputs, inputs] = all[*module];
            tensors.insert(format!("{ROOT}{module}.weight"), self.random.matrix(outputs, inputs, 0.5));
            if *has_bias {
                let bias = self.random.matrix(1, outputs, 0.5).squeeze(0).unwrap();
                tensors.insert(format!("{ROOT}{module}.bias"), bias);
            }
        }
        let mut config = config();
        config["modules_to_save"] = json!(["classifier", "score", "classification_head", "regression_head"]);
        adapter(&config, &tensors)
    }

    fn begin(&mut self, prompt: &[u32], adapter: Option<&Adapter>) -> OpenedContext {
        let prompt = Prompt::from(prompt.to_vec());
        self.model.begin(ContextRequest { adapter, ..ContextRequest::from(&prompt) }).unwrap()
    }
}

fn modules(modules: &[(&str, [usize; 2])]) -> BTreeMap<String, [usize; 2]> {
    modules.iter().map(|(name, shape)| ((*name).to_owned(), *shape)).collect()
}

/// Returns the rows of a small tree after each of the prompts, computed in one step.
fn rows(opened: &[OpenedContext], token: u32) -> Vec<Row> {
    let row =
        |context, parent: Option<u32>, token| Row { context, path: PathRow::new(parent.map(NodeId), token) };
    let tree = |opened: &OpenedContext| {
        let context = opened.context;
        [
            row(context, None, opened.first_token),
            row(context, Some(0), token),
            row(context, Some(0), token + 1),
            row(context, Some(1), token + 2),
        ]
    };
    opened.iter().flat_map(tree).collect()
}

/// Returns the logits of a row, and the value of its number head.
fn row(logits: &Logits, index: usize) -> Vec<f32> {
    logits.row(index).iter().copied().chain(logits.head_value(index)).collect()
}

/// Returns the results of prompts with their adapters, computed together, in chunks of this work.
fn together(model: &mut Opened, prompts: &[(&[u32], Option<&Adapter>)], work: usize) -> Vec<Vec<Vec<f32>>> {
    let mut opened: Vec<_> = prompts.iter().map(|(prompt, adapter)| model.begin(prompt, *adapter)).collect();
    while opened.iter().any(|opened| opened.prefill.work_left > 0) {
        let mut left: Vec<_> = opened.iter_mut().filter(|opened| opened.prefill.work_left > 0).collect();
        let chunks: Vec<_> =
            left.iter().map(|opened| PrefillChunk { context: opened.context, work }).collect();
        let progress = model.model.prefill(&chunks).unwrap();
        left.iter_mut().zip(progress).for_each(|(opened, progress)| opened.prefill = progress);
    }
    let rows = rows(&opened, 4);
    let logits = model.model.step(&rows).unwrap();
    opened.iter().for_each(|opened| model.model.close(opened.context));
    let of = |prompt: usize| (0..4).map(|index| row(&logits, 4 * prompt + index)).collect();
    (0..prompts.len()).map(of).collect()
}

/// Returns the results of a fixed prompt.
fn answers(model: &mut Opened, adapter: Option<&Adapter>) -> Vec<f32> {
    together(model, &[(&[5, 9, 12, 7, 1], adapter)], usize::MAX).concat().concat()
}

/// Returns the largest difference, as a share of the largest number.
fn off(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(1.0f32, |most, value| most.max(value.abs()));
    got.iter().zip(want).map(|(got, want)| (got - want).abs() / largest).fold(0.0, f32::max)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &to) } else { _ = std::fs::copy(&path, &to).unwrap() }
    }
}

/// Copies a model and adds `scale * B A` to its weights. Returns the modules whose weights are not in the
/// file.
fn merged(name: &str, tensors: &HashMap<String, Tensor>, scale: f64) -> (tempfile::TempDir, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    copy(&data(name), folder.path());
    let file = folder.path().join("model.safetensors");
    let mut weights = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
    let mut missing = Vec::new();
    for a in tensors.keys().filter(|name| name.contains("lora_A")) {
        let module = a.strip_prefix(ROOT).unwrap().strip_suffix(".lora_A.weight").unwrap();
        let weight = [module, module.trim_start_matches("transformer.")].map(|name| format!("{name}.weight"));
        let Some(weight) = weight.into_iter().find(|name| weights.contains_key(name)) else {
            missing.push(module.to_owned());
            continue;
        };
        let change = (tensors[&a.replace("lora_A", "lora_B")].matmul(&tensors[a]).unwrap() * scale).unwrap();
        let is_turned = name.starts_with("gpt2") && !["lm_head", "score"].contains(&module);
        let change = if is_turned { change.t().unwrap() } else { change };
        let sum = (&weights[&weight].to_dtype(DType::F32).unwrap() + change).unwrap();
        weights.insert(weight, sum.contiguous().unwrap());
    }
    candle_core::safetensors::save(&weights, file).unwrap();
    (folder, missing)
}

#[test]
fn an_adapter_gives_the_logits_of_merged_weights_for_every_layer_of_every_kind() {
    for name in CAUSAL.into_iter().chain(TINY).chain(HEADS) {
        let mut model = open(name);
        let mut modules = model.modules();
        // The weight of a tied output layer is the table of embeddings, which adapters of other layers leave
        // alone.
        for missing in merged(name, &model.pairs(&modules), 1.0).1 {
            assert!(missing.contains("lm_head"), "{name}: {missing}");
            modules.remove(&missing);
        }
        for by_root in [false, true] {
            let tensors = model.pairs(&modules);
            let mut config = config();
            config["use_rslora"] = by_root.into();
            let scale = 3.0 / if by_root { 2f64.sqrt() } else { 2.0 };
            let folder = adapter(&config, &tensors);
            let read = model.read(folder.path()).unwrap();
            let got = answers(&mut model, Some(&read));
            let want = answers(&mut open_in(merged(name, &tensors, scale).0.path(), DtypeChoice::F32), None);
            assert!(off(&got, &want) < 1e-4, "{name}: {}", off(&got, &want));
            let plain = answers(&mut model, None);
            assert!(off(&plain, &want) > 1e-3, "{name}: the adapter changes nothing");
        }
    }
}

#[test]
fn adapters_that_peft_has_saved_give_its_logits() {
    for name in [
        "llama-ntl",
        "gpt2",
        "t5-ce",
        "t5gemma2",
        "bert-classes",
        "llama-reward",
        "mistral-classes",
        "roberta-regression",
        "t5-classes",
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/adapters").join(name);
        let golden: Value =
            serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
        let ids = |field: &str| serde_json::from_value::<Vec<u32>>(golden[field].clone()).unwrap();
        let mut model = open(name);
        let read = model.read(&folder).unwrap();
        let mut opened = model.begin(&ids("prompt"), Some(&read));
        while opened.prefill.work_left > 0 {
            let chunk = PrefillChunk { context: opened.context, work: usize::MAX };
            opened.prefill = model.model.prefill(&[chunk]).unwrap()[0];
        }
        let path: Vec<u32> = std::iter::once(opened.first_token).chain(ids("path")).collect();
        let row = |(index, &token): (usize, &u32)| {
            let parent = index.checked_sub(1).map(|parent| NodeId(parent as u32));
            Row { context: opened.context, path: PathRow::new(parent, token) }
        };
        let logits = model.model.step(&path.iter().enumerate().map(row).collect::<Vec<_>>()).unwrap();
        let want: Vec<f32> = serde_json::from_value(golden["logits"].clone()).unwrap();
        let got = &logits.row(path.len() - 1)[..want.len().min(logits.row(0).len())];
        assert!(off(got, &want[..got.len()]) < 1e-4, "{name}: {}", off(got, &want[..got.len()]));
    }
}

#[test]
fn an_adapter_of_a_tied_output_layer_changes_the_logits_and_not_the_embeddings() {
    for name in ["gpt2-by-depth", "t5-ce"] {
        let mut model = open(name);
        let [outputs, inputs] = model.modules()["lm_head"];
        let tensors = model.pairs(&modules(&[("lm_head", [outputs, inputs])]));
        let folder = adapter(&config(), &tensors);
        let read = model.read(folder.path()).unwrap();
        let got = answers(&mut model, Some(&read));
        let plain = answers(&mut model, None);
        let change: Vec<f32> = got.iter().zip(&plain).map(|(got, plain)| got - plain).collect();
        // The changes of all rows have the rank of the adapter.
        let change = Tensor::from_vec(change, (4, got.len() / 4), &Device::Cpu).unwrap();
        let b = &tensors["base_model.model.lm_head.lora_B.weight"].narrow(0, 0, got.len() / 4).unwrap();
        let [first, second] = [0, 1].map(|column| b.narrow(1, column, 1).unwrap());
        let normal = |x: &Tensor, y: &Tensor| (x * y).unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
        let (aa, ab, bb) = (normal(&first, &first), normal(&first, &second), normal(&second, &second));
        for row in 0..4 {
            let row = change.narrow(0, row, 1).unwrap().t().unwrap();
            let (a, b) = (normal(&row, &first), normal(&row, &second));
            let (x, y) = ((a * bb - b * ab) / (aa * bb - ab * ab), (b * aa - a * ab) / (aa * bb - ab * ab));
            let fit = ((&first * f64::from(x)).unwrap() + (&second * f64::from(y)).unwrap()).unwrap();
            let rest = (row.clone() - fit).unwrap();
            let size = normal(&row, &row);
            assert!(size > 1e-3 && normal(&rest, &rest) < 1e-6 * size, "{name}");
        }
    }
}

#[test]
fn a_row_is_bit_identical_alone_and_in_a_batch_with_rows_of_other_adapters() {
    let long: Vec<u32> = (0..50u32).map(|id| 3 + id * 7 % 29).collect();
    for (name, dtypes) in [
        ("qwen2", &[DtypeChoice::F32, DtypeChoice::Int8, DtypeChoice::Bf16, DtypeChoice::Q8_0][..]),
        ("gpt2-by-depth", &[DtypeChoice::F32, DtypeChoice::Int8]),
        ("olmo2", &[DtypeChoice::F32, DtypeChoice::Int8, DtypeChoice::Bf16]),
        ("phi3", &[DtypeChoice::F32, DtypeChoice::Int8, DtypeChoice::Bf16]),
        ("t5-ce", &[DtypeChoice::F32, DtypeChoice::Int8]),
        ("t5gemma2", &[DtypeChoice::F32]),
        ("regresslm-hf-p10", &[DtypeChoice::F32]),
    ] {
        for &dtype in dtypes {
            let mut model = open_in(&data(name), dtype);
            let adapters = [model.random(), model.random()];
            let long = if name.starts_with("regresslm") { &long[..20] } else { &long[..] };
            let prompts: [(&[u32], Option<&Adapter>); 6] = [
                (long, Some(&adapters[0])),
                (&[5, 9, 11, 7], None),
                (&[8, 4], Some(&adapters[1])),
                (long, None),
                (&[5, 9, 11, 7], Some(&adapters[0])),
                (long, Some(&adapters[1])),
            ];
            let mixed = together(&mut model, &prompts, usize::MAX);
            for (index, prompt) in prompts.into_iter().enumerate() {
                let alone = together(&mut model, &[prompt], 3);
                assert_eq!(alone[0], mixed[index], "{name} {dtype:?}: prompt {index}");
            }
            assert_ne!(mixed[1], mixed[4], "{name}: the adapter changes nothing");
            assert_ne!(mixed[0], mixed[5], "{name}: both adapters are the same");
        }
    }
}

/// Models with heads, and the modules of the heads that PEFT saves.
const REPLACED: [(&str, &[(&str, bool)]); 6] = [
    ("llama-reward", &[("score", false)]),
    ("gpt2-classes", &[("score", false)]),
    ("bert-classes", &[("classifier", true)]),
    ("roberta-regression", &[("classifier.dense", true), ("classifier.out_proj", true)]),
    ("t5-classes", &[("classification_head.dense", true), ("classification_head.out_proj", true)]),
    ("regresslm-hf-head", &[("regression_head", true)]),
];

#[test]
fn every_row_of_a_batch_has_the_head_of_its_own_adapter() {
    for (name, replaced) in REPLACED {
        for dtype in [DtypeChoice::F32, DtypeChoice::Int8] {
            let mut model = open_in(&data(name), dtype);
            let folders = [(); 2].map(|()| model.replacing(replaced));
            let [first, second] = folders.each_ref().map(|folder| model.read(folder.path()).unwrap());
            let changed = model.random();
            let prompt: &[u32] = &[5, 9, 11, 7, 1];
            let prompts: [(&[u32], Option<&Adapter>); 6] = [
                (prompt, Some(&first)),
                (prompt, None),
                (&[8, 4, 1], Some(&first)),
                (prompt, Some(&second)),
                (prompt, Some(&changed)),
                (&[8, 4, 1], None),
            ];
            let mixed = together(&mut model, &prompts, usize::MAX);
            for (index, one) in prompts.into_iter().enumerate() {
                let alone = together(&mut model, &[one], 3);
                assert_eq!(alone[0], mixed[index], "{name} {dtype:?}: prompt {index}");
            }
            for (index, other) in [(0, 1), (0, 3), (1, 4), (2, 5)] {
                assert_ne!(mixed[index], mixed[other], "{name} {dtype:?}: prompts {index} and {other}");
            }
        }
    }
}

#[test]
fn devices_replace_heads_with_their_operations() {
    for (name, replaced) in REPLACED {
        let mut model = open(name);
        let folder = model.replacing(replaced);
        let answers = |model: &mut Opened| {
            let adapter = model.read(folder.path()).unwrap();
            let prompts: [(&[u32], Option<&Adapter>); 3] =
                [(&[8, 4, 1], None), (&[5, 9, 11, 7, 1], Some(&adapter)), (&[6, 3, 1], None)];
            together(model, &prompts, usize::MAX).concat().concat()
        };
        let want = answers(&mut model);
        let got = composed::during(|| answers(&mut open(name)));
        assert!(off(&got, &want) < 1e-4, "{name}: {}", off(&got, &want));
    }
}

#[test]
fn devices_compute_the_same_with_their_operations() {
    let prompts = |adapters: &[Adapter; 2], model: &mut Opened| {
        let prompts: [(&[u32], Option<&Adapter>); 4] = [
            (&[5, 9, 11, 7, 3], Some(&adapters[0])),
            (&[8, 4], None),
            (&[6, 3, 10], Some(&adapters[1])),
            (&[9, 12], Some(&adapters[0])),
        ];
        let alone = together(model, &prompts[..1], usize::MAX);
        [together(model, &prompts, usize::MAX), alone].concat().concat().concat()
    };
    for name in
        ["qwen2", "gpt2-by-depth", "granite", "t5-ce", "t5-v11", "t5gemma", "t5gemma2", "regresslm-hf-head"]
    {
        let mut model = open(name);
        let folders = [(); 2].map(|()| adapter(&config(), &model.pairs(&model.modules())));
        let read = |model: &Opened| folders.each_ref().map(|folder| model.read(folder.path()).unwrap());
        let want = prompts(&read(&model), &mut model);
        let got = composed::during(|| {
            let mut model = open(name);
            prompts(&read(&model), &mut model)
        });
        assert!(off(&got, &want) < 1e-4, "{name}: {}", off(&got, &want));
    }
}

#[test]
fn prompts_share_a_cached_prefix_only_if_they_have_the_same_adapter() {
    let mut model = open("qwen2");
    let adapters = [model.random(), model.random()];
    let prompt: Vec<u32> = (0..50).map(|id| 3 + id % 20).collect();
    let mut cached = |adapter: Option<&Adapter>| {
        let request = Prompt::from(prompt.clone());
        let request = ContextRequest { adapter, ..ContextRequest::from(&request) };
        model.model.open(&[request]).unwrap()[0].prefill.cached_tokens
    };
    assert_eq!([cached(None), cached(Some(&adapters[0])), cached(Some(&adapters[1]))], [0, 0, 0]);
    assert_eq!([cached(None), cached(Some(&adapters[0])), cached(Some(&adapters[1]))], [49, 49, 49]);
}

#[test]
fn prompts_with_other_adapters_do_not_wait_for_each_others_blocks() {
    let mut model = open("qwen2");
    let adapters = [model.random(), model.random()];
    let prompt: Vec<u32> = (0..60).map(|id| 3 + id % 20).collect();
    let prompts =
        [Some(&adapters[0]), Some(&adapters[1]), Some(&adapters[0])].map(|adapter| (&prompt[..], adapter));
    let [one, other, again] = <[_; 3]>::try_from(together(&mut model, &prompts, usize::MAX)).unwrap();
    assert!(one == again && one != other);
}

#[test]
fn a_context_keeps_the_weights_of_an_adapter_that_is_dropped() {
    for name in ["qwen2", "t5-ce"] {
        let mut model = open(name);
        let adapter = model.random();
        let want = answers(&mut model, Some(&adapter));
        let weights = match &adapter.weights::<Read>().unwrap().weights {
            ReadWeights::Packed(weights) => Arc::downgrade(weights),
            ReadWeights::Stored(_) => panic!("the weights are for a device"),
        };
        let opened = model.begin(&[5, 9, 12, 7, 1], Some(&adapter));
        drop(adapter);
        if opened.prefill.work_left > 0 {
            let chunk = PrefillChunk { context: opened.context, work: usize::MAX };
            model.model.prefill(&[chunk]).unwrap();
        }
        let logits = model.model.step(&rows(&[opened], 4)).unwrap();
        assert_eq!((0..4).flat_map(|index| row(&logits, index)).collect::<Vec<_>>(), want);
        assert!(weights.upgrade().is_some());
        model.model.close(opened.context);
        assert!(weights.upgrade().is_none(), "{name}: the weights are not freed");
    }
}

#[test]
fn a_model_rejects_the_adapter_of_another_model() {
    let mut model = open("qwen2");
    let foreign = [open("qwen2").random(), Adapter::new(5)];
    for foreign in &foreign {
        let prompt = Prompt::from(vec![5, 9]);
        let request = ContextRequest { adapter: Some(foreign), ..ContextRequest::from(&prompt) };
        let error = model.model.begin(request).unwrap_err();
        assert_eq!(error.to_string(), "the adapter belongs to another model");
    }
}

#[test]
fn the_memory_of_an_adapter_is_known_before_its_weights_are_read() {
    let model = open("gpt2-by-depth");
    let folder = adapter(&config(), &model.pairs(&modules(&[("transformer.h.1.attn.c_attn", [48, 16])])));
    let files = CheckpointFiles::folder(folder.path()).unwrap();
    assert_eq!(model.reader.open(&files).unwrap().bytes(), 2 * (48 + 16) * 4);
    assert_eq!(adapter_base(&files).unwrap().as_deref(), Some("/models/base"));
    let model = open("bert-classes");
    let pairs = model.pairs(&modules(&[("bert.encoder.layer.0.output.dense", [16, 20])]));
    let saved = [("weight", zeros((3, 16))), ("bias", zeros(3))];
    let saved = saved.map(|(part, tensor)| (format!("{ROOT}classifier.{part}"), tensor));
    let mut config = config();
    config["modules_to_save"] = json!(["classifier"]);
    let folder = adapter(&config, &pairs.into_iter().chain(saved).collect());
    let files = CheckpointFiles::folder(folder.path()).unwrap();
    assert_eq!(model.reader.open(&files).unwrap().bytes(), (2 * (16 + 20) + 3 * 16 + 3) * 4);
}

#[test]
fn modules_have_the_scales_of_their_patterns() {
    let [query, down] = ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"];
    let mut config = config();
    config["r"] = json!(8);
    config["rank_pattern"] = json!({"q_proj": 2, "down_proj": 2});
    config["alpha_pattern"] = json!({r"layers\.\d+\.mlp\.down_proj": 8, "proj": 100});
    let mut model = open("qwen2");
    let tensors = model.pairs(&modules(&[(query, [16, 16]), (down, [16, 24])]));
    let folder = adapter(&config, &tensors);
    let read = model.read(folder.path()).unwrap();
    let got = answers(&mut model, Some(&read));
    let scaled: HashMap<String, Tensor> = tensors
        .iter()
        .map(|(name, tensor)| {
            let scale = match name {
                name if name.contains("lora_A") => 1.0,
                name if name.contains(down) => 8.0 / 2.0,
                _ => 3.0 / 2.0,
            };
            (name.clone(), (tensor * scale).unwrap())
        })
        .collect();
    let want = answers(&mut open_in(merged("qwen2", &scaled, 1.0).0.path(), DtypeChoice::F32), None);
    assert!(off(&got, &want) < 1e-4, "{}", off(&got, &want));
}

#[test]
fn tensors_that_do_not_fit_are_rejected_with_their_names() {
    let query = "model.layers.0.self_attn.q_proj";
    let model = open("qwen2");
    let message = |config: &Value, tensors: &HashMap<String, Tensor>| {
        let folder = adapter(config, tensors);
        model.read(folder.path()).unwrap_err().to_string()
    };
    for (changed, parts) in [
        ((query, [16, 24]), ["q_proj.lora_A", "[2, 24] does not fit the weight [16, 16]"]),
        ((query, [17, 16]), ["q_proj.lora_B", "[17, 2] does not fit the weight [16, 16] at rank 2"]),
        (("model.layers.9.mlp.up_proj", [24, 16]), ["layers.9.mlp.up_proj", "the model has no projection"]),
        (("model.embed_tokens", [36, 16]), ["embed_tokens", "the model has no projection"]),
    ] {
        let message = message(&config(), &model.pairs(&modules(&[changed])));
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    let name = |part: &str| format!("base_model.model.{query}.{part}.weight");
    let lonely = HashMap::from([(name("lora_A"), zeros((2, 16)))]);
    assert!(message(&config(), &lonely).ends_with("q_proj.lora_B.weight` is missing"));
    let flat = HashMap::from([(name("lora_A"), zeros(4))]);
    assert!(message(&config(), &flat).ends_with("shape [4] is not the shape of a matrix"));
    let odd = HashMap::from([("base_model.model.x.lora_embedding_A".to_owned(), zeros((2, 2)))]);
    assert!(message(&config(), &odd).contains("is not part of a LoRA"));
    assert!(message(&config(), &HashMap::new()).ends_with("it holds no tensors"));
    let good = model.pairs(&modules(&[(query, [16, 16])]));
    let huge: HashMap<String, Tensor> =
        good.iter().map(|(name, tensor)| (name.clone(), (tensor * 1e30).unwrap())).collect();
    for (field, value, tensors, parts) in [
        ("r", json!(1_000_000_000), &good, ["q_proj.lora_A", "its rank is 2, but field `r`", "1000000000"]),
        ("lora_alpha", json!(1e300), &good, ["q_proj.lora_B", "not be finite", "`lora_alpha`"]),
        ("lora_alpha", json!(1), &huge, ["q_proj.lora_B", "not be finite", "scale 5e-1"]),
    ] {
        let mut config = config();
        config[field] = value;
        let message = message(&config, tensors);
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}

#[test]
fn the_error_names_the_field_of_an_adapter_that_cannot_be_applied() {
    let model = open("qwen2");
    let good = model.pairs(&modules(&[("model.layers.0.self_attn.q_proj", [16, 16])]));
    for (field, value, part) in [
        ("peft_type", json!("IA3"), "`IA3` is not supported"),
        ("use_dora", json!(true), "true is not supported"),
        ("arrow_config", json!({"top_k": 2}), "not supported"),
        ("bias", json!("all"), "trained biases"),
        ("init_lora_weights", json!("pissa"), "\"pissa\" changes the weights of the base model"),
        ("init_lora_weights", json!("pissa_niter_16"), "`path_initial_model_for_weight_conversion`"),
        ("init_lora_weights", json!("OLoRA"), "merge it into its model"),
        ("init_lora_weights", json!("corda"), "changes the weights"),
        ("init_lora_weights", json!("loftq"), "changes the weights"),
        ("init_lora_weights", json!("lora_ga"), "changes the weights"),
        ("init_lora_weights", json!("later"), "changes the weights"),
        ("init_lora_weights", json!(1), "1 changes the weights"),
        ("alora_invocation_tokens", json!([5]), "[5] is not supported"),
        ("layer_replication", json!([[0, 2], [1, 2]]), "not supported"),
        ("lora_bias", json!(true), "not supported"),
        ("alpha_pattern", json!({"q_proj": "4"}), "`q_proj`: \"4\" is not a number"),
        ("alpha_pattern", json!({"(?<!x)q": 4}), "is not a regular expression that is supported"),
        ("lora_alpha", json!(null), "missing"),
        ("r", json!(0), "0 is not an integer of at least 1"),
        ("r", json!(2.5), "2.5 is not an integer of at least 1"),
    ] {
        let mut config = config();
        config[field] = value;
        let message = model.read(adapter(&config, &good).path()).unwrap_err().to_string();
        assert!(message.contains(&format!("field `{field}`")) && message.contains(part), "{message}");
    }
    let nothing = tempfile::tempdir().unwrap();
    let error = model.read(nothing.path()).unwrap_err();
    assert!(error.to_string().ends_with("has no adapter_config.json"), "{error}");
}

#[test]
fn initializations_that_leave_the_weights_of_the_model_as_they_are_have_no_effect() {
    let model = open("qwen2");
    let good = model.pairs(&modules(&[("model.layers.0.self_attn.q_proj", [16, 16])]));
    for initialization in
        [json!(null), json!(true), json!(false), json!("gaussian"), json!("eva"), json!("orthogonal")]
    {
        let mut config = config();
        config["init_lora_weights"] = initialization;
        model.read(adapter(&config, &good).path()).unwrap();
    }
}

#[test]
fn weights_that_a_model_copies_to_its_device_give_the_results_of_packed_ones() {
    for name in ["qwen2", "t5-v11"] {
        let mut model = open(name);
        let folder = adapter(&config(), &model.pairs(&model.modules()));
        let packed = model.read(folder.path()).unwrap();
        // A reader for a model on a GPU.
        model.reader.cpu = None;
        let stored = model.read(folder.path()).unwrap();
        let want = answers(&mut model, Some(&packed));
        assert_ne!(want, answers(&mut model, None));
        assert_eq!(want, answers(&mut model, Some(&stored)), "{name}");
        assert_eq!(want, answers(&mut model, Some(&stored)), "{name}, for the second time");
    }
}

#[test]
fn a_model_frees_its_copy_of_an_adapter_at_the_next_request_after_the_last_use() {
    let model = open("qwen2");
    let reader = AdapterReader { cpu: None, ..model.reader.clone() };
    let mut adapters = ModelAdapters { reader, place: Placement::default(), copied: HashMap::new() };
    let folder = adapter(&config(), &model.pairs(&model.modules()));
    let files = CheckpointFiles::folder(folder.path()).unwrap();
    let [first, second] = [(); 2].map(|()| adapters.reader().open(&files).unwrap().read().unwrap());
    let weights = [&first, &second].map(|adapter| adapters.weights(Some(adapter)).unwrap().unwrap());
    assert!(Arc::ptr_eq(&weights[0], &adapters.weights(Some(&first)).unwrap().unwrap()), "copied once");
    let copies = weights.map(|weights| Arc::downgrade(&weights));
    // The last handle may be dropped on a thread that must not use the device.
    std::thread::spawn(|| drop(first)).join().unwrap();
    assert!(copies[0].upgrade().is_some());
    adapters.weights(None).unwrap();
    assert_eq!([0, 1].map(|copy: usize| copies[copy].strong_count()), [0, 1]);
}

#[test]
fn a_saved_module_that_cannot_replace_one_of_the_model_is_rejected_with_its_name() {
    let (weight, bias) = ("base_model.model.classifier.weight", "base_model.model.classifier.bias");
    let query = "bert.encoder.layer.0.attention.self.query";
    let score = "base_model.model.score.weight";
    for (name, saves, saved, parts) in [
        (
            "bert-classes",
            "classifier",
            vec![(weight, zeros((2, 16))), (bias, zeros(2))],
            ["classifier.weight", "[2, 16] does not fit the weight [3, 16]"],
        ),
        (
            "bert-classes",
            "classifier",
            vec![(weight, zeros((3, 16))), (bias, zeros(2))],
            ["classifier.bias", "[2] does not fit"],
        ),
        ("bert-classes", "classifier", vec![(weight, zeros((3, 16)))], ["classifier.bias", "missing"]),
        ("bert-classes", "classifier", vec![(bias, zeros(3))], ["classifier.weight", "missing"]),
        ("bert-classes", "classifier", vec![], ["classifier.weight", "missing"]),
        (
            "bert-classes",
            "score",
            vec![(weight, zeros((3, 16)))],
            ["classifier.weight", "not in `modules_to_save`"],
        ),
        (
            "bert-classes",
            "word_embeddings",
            vec![("base_model.model.bert.embeddings.word_embeddings.weight", zeros((90, 16)))],
            ["word_embeddings.weight", "is not a layer that predicts the labels"],
        ),
        (
            "llama-reward",
            "score",
            vec![(score, zeros((1, 16))), ("base_model.model.score.bias", zeros(1))],
            ["score.bias", "has no bias"],
        ),
        ("llama-reward", "score", vec![(score, zeros(16))], ["score.weight", "not the shape of a matrix"]),
        ("qwen2", "lm_head", vec![], ["lm_head.weight", "missing"]),
        (
            "qwen2",
            "lm_head",
            vec![("base_model.model.lm_head.weight", zeros((36, 16)))],
            ["lm_head.weight", "is not a layer that predicts the labels"],
        ),
    ] {
        let query = if name == "bert-classes" { query } else { "model.layers.0.self_attn.q_proj" };
        let model = open(name);
        let shape = model.modules()[query];
        let saved = saved.into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
        let tensors = model.pairs(&modules(&[(query, shape)])).into_iter().chain(saved).collect();
        let mut config = config();
        config["modules_to_save"] = json!([saves]);
        let message = model.read(adapter(&config, &tensors).path()).unwrap_err().to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}

#[test]
fn names_of_other_versions_of_peft_and_transformers_are_read() {
    for (name, want) in [
        ("x.lora_A.default.weight", "x"),
        ("x.lora_B.weight", "x"),
        ("model.encoder.text_model.layers.0.mlp.up_proj.lora_A.weight", "model.encoder.layers.0.mlp.up_proj"),
    ] {
        assert!(target(&format!("{ROOT}{name}")).is_some_and(|(module, _)| module == want), "{name}");
    }
    assert!(target("x.lora_A.weight").is_none() && target("base_model.model.x.lora_A").is_none());
}
