//! Counts the device path's calls to the fake driver and compares them with budgets. `lab/fake-cuda/check`
//! runs this test and prints the table of `lab/notes/gpu.md`.
//!
//! The models are as deep as T5-3B and Llama 2 7B and otherwise tiny, because the counts do not depend on
//! widths.

#![cfg(feature = "cuda")]
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking and print what they measure"
)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use ntl_core::contract::{
    BatchModel, ContextRequest, LogitsRequest, NodeId, NumberEncoding, OpenedContext, PathRow, Prompt, Row,
};
use ntl_models::causal::{Causal, CausalOptions};
use ntl_models::t5::{T5, T5Kind, TokenizerFacts};
use ntl_models::{DeviceChoice, KernelChoice, KvCacheDtype, LoadOptions, place};
use ntl_text::checkpoint::CheckpointFiles;

/// A multiple of 8, so that cuBLAS has fast kernels for logits.
const TOKENS: usize = 104;
const HIDDEN: usize = 16;

/// Maximum numbers of launches (kernels, matmuls, copies, fills and graphs), uploads, allocations,
/// synchronisations, and look-ups of kernels by name.
#[derive(Clone, Copy)]
struct Budget(&'static str, [u64; 5]);

/// Maximum number of modules that the driver compiles: four of candle's for each model. It has machine code
/// of this program's kernels.
const COMPILED: u64 = 24;

const T5_BUDGETS: [Budget; 5] = [
    Budget("step, 1 context", [7, 3, 7, 1, 2]),
    Budget("step, 32 contexts", [7, 3, 7, 1, 2]),
    Budget("opening of 32 prompts", [555, 4, 487, 0, 73]),
    Budget("opening of 4,096 tokens", [795, 4, 775, 0, 73]),
    Budget("step behind 4,096 tokens", [7, 3, 7, 1, 2]),
];

const LLAMA_BUDGETS: [Budget; 5] = [
    Budget("step, 1 context", [10, 4, 10, 1, 3]),
    Budget("step, 32 contexts", [10, 4, 10, 1, 3]),
    Budget("opening of 32 prompts", [413, 4, 259, 0, 98]),
    Budget("opening of 4,096 tokens", [1_157, 4, 1_127, 0, 99]),
    Budget("step behind 4,096 tokens", [10, 4, 10, 1, 3]),
];

/// Budgets of steps that no graph repeats.
const T5_LAUNCHED_BUDGETS: [Budget; 5] = [
    Budget("step, 1 context", [317, 3, 13, 1, 2]),
    Budget("step, 32 contexts", [317, 3, 13, 1, 2]),
    T5_BUDGETS[2],
    T5_BUDGETS[3],
    Budget("step behind 4,096 tokens", [341, 3, 14, 1, 2]),
];

const LLAMA_LAUNCHED_BUDGETS: [Budget; 5] = [
    Budget("step, 1 context", [294, 4, 15, 1, 3]),
    Budget("step, 32 contexts", [294, 4, 15, 1, 3]),
    LLAMA_BUDGETS[2],
    LLAMA_BUDGETS[3],
    Budget("step behind 4,096 tokens", [326, 4, 16, 1, 3]),
];

/// Counts since the program started, in the order of the fake driver's file, in total and per kernel.
#[derive(Clone)]
struct Counts {
    kernels: u64,
    products: u64,
    uploads: u64,
    downloads: u64,
    /// Copies within device memory and fills.
    copies: u64,
    allocations: u64,
    synchronisations: u64,
    events: u64,
    /// Bytes that the memory pool released to the system.
    returned: u64,
    by_name: BTreeMap<String, u64>,
}

impl Counts {
    fn read() -> Self {
        let path =
            std::env::var("NTL_FAKE_CUDA_COUNTS").expect("lab/fake-cuda/check names the file of counts");
        let bytes = std::fs::read(path).unwrap();
        let number = |at: usize| u64::from_ne_bytes(bytes[8 * at..][..8].try_into().unwrap());
        // The first 16 words are followed by one record of 16 words per kernel: its count, then its name.
        let records = (16..bytes.len() / 8).step_by(16).take_while(|at| number(*at) > 0);
        let by_name = records.map(|at| {
            let name = &bytes[8 * (at + 1)..8 * (at + 16)];
            (String::from_utf8_lossy(name).trim_end_matches('\0').to_owned(), number(at))
        });
        Self {
            kernels: number(0),
            products: number(1),
            uploads: number(2),
            downloads: number(4),
            copies: number(6) + number(7),
            allocations: number(8),
            synchronisations: number(11),
            events: number(12),
            returned: number(15),
            by_name: by_name.collect(),
        }
    }

    fn since(self, before: &Self) -> Self {
        let grown = |(name, count): (String, u64)| {
            let count = count - before.by_name.get(&name).unwrap_or(&0);
            (count > 0).then_some((name, count))
        };
        Self {
            kernels: self.kernels - before.kernels,
            products: self.products - before.products,
            uploads: self.uploads - before.uploads,
            downloads: self.downloads - before.downloads,
            copies: self.copies - before.copies,
            allocations: self.allocations - before.allocations,
            synchronisations: self.synchronisations - before.synchronisations,
            events: self.events - before.events,
            returned: self.returned - before.returned,
            by_name: self.by_name.into_iter().filter_map(grown).collect(),
        }
    }

    fn budgeted(&self) -> [u64; 5] {
        let launches = self.kernels + self.products + self.copies + self.named("graphs");
        [launches, self.uploads, self.allocations, self.synchronisations, self.named("look-ups of functions")]
    }

    /// Returns the count of this name.
    fn named(&self, name: &str) -> u64 {
        self.by_name.get(name).copied().unwrap_or(0)
    }

    /// Kernel names with their counts, most frequent first.
    fn names(&self) -> String {
        let mut names: Vec<_> = self.by_name.iter().collect();
        names.sort_by_key(|(_, count)| Reverse(**count));
        names.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    }
}

/// Creates a checkpoint directory whose weights are all zero.
fn checkpoint(config: &str, shapes: &[(String, Vec<usize>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let zeros = |shape: &Vec<usize>| Tensor::zeros(shape.as_slice(), DType::F32, &Device::Cpu).unwrap();
    let tensors: HashMap<&str, Tensor> =
        shapes.iter().map(|(name, shape)| (name.as_str(), zeros(shape))).collect();
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    folder
}

/// Options by name. The types of keys and values do not change counts.
fn options() -> [(&'static str, LoadOptions); 3] {
    // Kernels compute nothing here, so that a check would turn them off.
    let (device, kernels) = (DeviceChoice::Cuda(0), KernelChoice::Own);
    let graphs = LoadOptions { device, kernels, ..LoadOptions::default() };
    let fp8 = LoadOptions { kv_cache_dtype: KvCacheDtype::Fp8, ..graphs };
    [
        ("", graphs),
        (", keys and values in fp8", fp8),
        (", no graphs", LoadOptions { cuda_graphs: false, ..graphs }),
    ]
}

fn t5(layers: usize, options: LoadOptions) -> Box<dyn BatchModel> {
    let config = format!(
        r#"{{"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": {TOKENS}, "d_model": {HIDDEN},
        "d_kv": 8, "d_ff": 32, "num_layers": {layers}, "num_decoder_layers": {layers}, "num_heads": 2,
        "feed_forward_proj": "relu", "tie_word_embeddings": true, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}}"#
    );
    let mut shapes = vec![("shared.weight".to_owned(), vec![TOKENS, HIDDEN])];
    for (stack, attentions) in
        [("encoder", &["SelfAttention"][..]), ("decoder", &["SelfAttention", "EncDecAttention"])]
    {
        for layer in 0..layers {
            let block = format!("{stack}.block.{layer}.layer");
            for (index, attention) in attentions.iter().enumerate() {
                shapes.push((format!("{block}.{index}.layer_norm.weight"), vec![HIDDEN]));
                let part =
                    |part| (format!("{block}.{index}.{attention}.{part}.weight"), vec![HIDDEN, HIDDEN]);
                shapes.extend(["q", "k", "v", "o"].map(part));
            }
            let last = format!("{block}.{}", attentions.len());
            shapes.push((format!("{last}.layer_norm.weight"), vec![HIDDEN]));
            shapes.push((format!("{last}.DenseReluDense.wi.weight"), vec![32, HIDDEN]));
            shapes.push((format!("{last}.DenseReluDense.wo.weight"), vec![HIDDEN, 32]));
        }
        let bias = format!("{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
        shapes.push((bias, vec![32, 2]));
        shapes.push((format!("{stack}.final_layer_norm.weight"), vec![HIDDEN]));
    }
    let folder = checkpoint(&config, &shapes);
    let files = CheckpointFiles::folder(folder.path()).unwrap();
    let facts =
        TokenizerFacts { tokens: TOKENS, prompt_tokens_max: 4096, number_encoding: NumberEncoding::Text };
    Box::new(T5::load(&files, facts, T5Kind::Plain, &place(&options).unwrap()).unwrap())
}

fn llama(layers: usize, options: LoadOptions) -> Box<dyn BatchModel> {
    let config = format!(
        r#"{{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": {TOKENS}, "hidden_size": {HIDDEN},
        "intermediate_size": 32, "num_hidden_layers": {layers}, "num_attention_heads": 2, "num_key_value_heads": 2,
        "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1}}"#
    );
    let mut shapes = vec![("model.embed_tokens.weight".to_owned(), vec![TOKENS, HIDDEN])];
    for layer in 0..layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            shapes.push((name(&format!("self_attn.{part}")), vec![HIDDEN, HIDDEN]));
        }
        shapes.push((name("mlp.gate_proj"), vec![32, HIDDEN]));
        shapes.push((name("mlp.up_proj"), vec![32, HIDDEN]));
        shapes.push((name("mlp.down_proj"), vec![HIDDEN, 32]));
        shapes.push((name("input_layernorm"), vec![HIDDEN]));
        shapes.push((name("post_attention_layernorm"), vec![HIDDEN]));
    }
    shapes.push(("model.norm.weight".to_owned(), vec![HIDDEN]));
    shapes.push(("lm_head.weight".to_owned(), vec![TOKENS, HIDDEN]));
    let folder = checkpoint(&config, &shapes);
    let files = CheckpointFiles::folder(folder.path()).unwrap();
    let options =
        CausalOptions { tokens: TOKENS, place: place(&options).unwrap(), prefix_bytes_max: 1 << 20 };
    Box::new(Causal::load(&files, &options).unwrap())
}

/// Prompts of different lengths that share no prefix. Up to 32 of them have fewer than 64 tokens on average,
/// so that a decoder-only model computes them with the kernel of its steps.
fn prompts(numbers: Range<u32>) -> Vec<Prompt> {
    numbers
        .map(|number| (0..40 + number).map(|at| 2 + (number + at) % 97).collect::<Vec<u32>>().into())
        .collect()
}

fn open(model: &mut dyn BatchModel, prompts: &[Prompt]) -> (Vec<OpenedContext>, Counts) {
    let requests: Vec<ContextRequest<'_>> = prompts.iter().map(ContextRequest::from).collect();
    let before = Counts::read();
    let opened = model.open(&requests).unwrap();
    (opened, Counts::read().since(&before))
}

/// Runs greedy steps of all contexts and returns the counts of the last one, whose shape of steps has
/// occurred before.
fn step(model: &mut dyn BatchModel, opened: &[OpenedContext]) -> Counts {
    let mut counts = None;
    for node in 0..13u32 {
        let parent = node.checked_sub(1).map(NodeId);
        let row = |opened: &OpenedContext| {
            let path = PathRow::new(parent, opened.first_token).with_logits(LogitsRequest::Best);
            Row { context: opened.context, path }
        };
        let rows: Vec<Row> = opened.iter().map(row).collect();
        let before = Counts::read();
        model.step(&rows).unwrap();
        counts = Some(Counts::read().since(&before));
    }
    counts.unwrap()
}

fn measure(model: &mut dyn BatchModel) -> [Counts; 5] {
    let close = |model: &mut dyn BatchModel, opened: Vec<OpenedContext>| {
        opened.iter().for_each(|opened| model.close(opened.context));
    };
    let (one, _) = open(model, &prompts(0..1));
    let step_of_one = step(model, &one);
    close(model, one);
    let (many, opening_of_many) = open(model, &prompts(1..33));
    let step_of_many = step(model, &many);
    close(model, many);
    let long: Prompt = (0..4096u32).map(|at| 2 + at * 7 % 97).collect::<Vec<_>>().into();
    let (long, opening_of_long) = open(model, &[long]);
    let step_of_long = step(model, &long);
    [step_of_one, step_of_many, opening_of_many, opening_of_long, step_of_long]
}

/// Prints one row per case. Returns a line for each count that exceeds its budget.
fn compare(name: &str, counts: &[Counts; 5], budgets: &[Budget; 5]) -> Vec<String> {
    let mut over = Vec::new();
    for (counts, Budget(case, most)) in counts.iter().zip(budgets) {
        let cells = [
            counts.kernels,
            counts.products,
            counts.uploads,
            counts.downloads,
            counts.copies,
            counts.named("graphs"),
            counts.allocations,
            counts.synchronisations,
            counts.events,
            counts.returned,
        ];
        println!("| {name} | {case} | {} |", cells.map(|count| count.to_string()).join(" | "));
        let what = ["launches", "uploads", "allocations", "synchronisations", "look-ups"];
        for ((what, found), most) in what.iter().zip(counts.budgeted()).zip(most) {
            if found > *most {
                over.push(format!("{name}, {case}: {found} {what}, budget {most}"));
            }
        }
        let unaligned = counts.named("unaligned matmuls");
        if unaligned > 0 {
            over.push(format!("{name}, {case}: {unaligned} matmuls for which cuBLAS has no fast kernel"));
        }
    }
    over
}

#[test]
#[ignore = "counts on the fake driver: lab/fake-cuda/check"]
fn steps_and_openings_keep_to_their_budgets() {
    println!(
        "| model | | kernels | products | uploads | downloads | copies | graphs | allocations | synchronisations | events | returned bytes |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    let mut over = Vec::new();
    for (name, options) in options() {
        let budgets = match options.cuda_graphs {
            true => [T5_BUDGETS, LLAMA_BUDGETS],
            false => [T5_LAUNCHED_BUDGETS, LLAMA_LAUNCHED_BUDGETS],
        };
        let models = [
            (format!("T5, 24 layers{name}"), t5(24, options)),
            (format!("Llama, 32 layers{name}"), llama(32, options)),
        ];
        for ((name, mut model), budgets) in models.into_iter().zip(budgets) {
            let counts = measure(model.as_mut());
            over.extend(compare(&name, &counts, &budgets));
            for (counts, Budget(case, _)) in counts.iter().zip(budgets) {
                println!("{name}, {case}: {}", counts.names());
            }
        }
    }
    let compiled = Counts::read().named("compiled modules");
    if compiled > COMPILED {
        over.push(format!("the driver compiles {compiled} modules, budget {COMPILED}"));
    }
    assert!(over.is_empty(), "{}", over.join("\n"));
}
