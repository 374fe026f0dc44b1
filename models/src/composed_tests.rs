//! Compares whole models in composed mode, which is how devices compute them, with the CPU kernels.

use std::path::{Path, PathBuf};

use candle_core::DType;
use ntl_core::contract::{BatchModel, ContextRequest, Logits, NodeId, OpenedContext, PathRow, Prompt, Row};
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::tokenizer::Tokenizer;

use crate::causal::{Causal, CausalOptions};
use crate::families::GemmaVersion;
use crate::ops::{Placement, composed};
use crate::t5::{T5, T5Kind, TokenizerFacts};
use crate::{LoadOptions, load};

/// One model for each kind of attention: grouped heads and rotary positions, a window, biases, a layer
/// without positions, normalised rows and outputs, layers with different angles, caps, normalised heads,
/// partly rotated heads, learned positions.
const DECODER_ONLY: [&str; 10] = [
    "llama-llama3",
    "mistral-window",
    "qwen2",
    "smollm3",
    "olmo2",
    "olmo3",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt2-by-depth",
];

/// With separate and merged attention to the prompt; windows, caps and rotary positions.
const GEMMA: [&str; 2] = ["t5gemma", "t5gemma2"];

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The placement that a device would have.
fn tensors(dtype: DType) -> Placement {
    Placement { dtype, ..Placement::default() }
}

/// The demo's T5.
fn t5(place: &Placement) -> Box<dyn BatchModel> {
    let archive = std::fs::read(data("../server/demo/t5-ntl-was.tar.gz")).unwrap();
    let files = CheckpointFiles::archive("demo", &archive).unwrap();
    let tokenizer = Tokenizer::open(&files).unwrap();
    let facts = TokenizerFacts {
        tokens: tokenizer.len(),
        prompt_tokens_max: 512,
        number_encoding: tokenizer.number_encoding(),
    };
    Box::new(T5::load(&files, facts, T5Kind::Plain, place).unwrap())
}

fn causal(name: &str, place: &Placement) -> Box<dyn BatchModel> {
    let files = CheckpointFiles::folder(&data("tests/data/causal").join(name)).unwrap();
    let options = CausalOptions { tokens: 36, place: place.clone(), prefix_bytes_max: 1 << 20 };
    Box::new(Causal::load(&files, &options).unwrap())
}

fn gemma(name: &str, place: &Placement) -> Box<dyn BatchModel> {
    let files = CheckpointFiles::folder(&data("tests/data/tiny").join(name)).unwrap();
    let tokenizer = Tokenizer::open(&files).unwrap();
    let facts = TokenizerFacts {
        tokens: tokenizer.len(),
        prompt_tokens_max: 512,
        number_encoding: tokenizer.number_encoding(),
    };
    let version = if name == "t5gemma" { GemmaVersion::One } else { GemmaVersion::Two };
    Box::new(T5::load_gemma(&files, facts, version, place).unwrap())
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit - most) - total.ln()).collect()
}

fn most_probable(logits: &[f32]) -> u32 {
    (0..).zip(logits).max_by(|a, b| a.1.total_cmp(b.1)).map(|(id, _)| id).unwrap()
}

fn rows_of(logits: &Logits) -> Vec<Vec<f64>> {
    (0..logits.rows()).map(|row| log_softmax(logits.row(row))).collect()
}

/// Opens three prompts of different lengths, two of which share a prefix. Runs one step with a tree of
/// several rows per prompt, then greedy steps of all contexts together, except that the last context grows
/// alone for a while. Returns the log-probabilities of all rows and the greedy tokens.
fn answers(model: &mut dyn BatchModel) -> (Vec<Vec<f64>>, Vec<u32>) {
    let long: Vec<u32> = (0..40u32).map(|id| 3 + id * 7 % 29).collect();
    let prompts: Vec<Prompt> = vec![long.clone().into(), long[..35].to_vec().into(), vec![9, 4, 11].into()];
    let opened = model.open(&prompts.iter().map(ContextRequest::from).collect::<Vec<_>>()).unwrap();
    let mut rows = Vec::new();
    for (index, opened) in opened.iter().enumerate() {
        let mut row = |parent: Option<u32>, token| {
            rows.push(Row { context: opened.context, path: PathRow::new(parent.map(NodeId), token) });
        };
        row(None, opened.first_token);
        for (node, parent) in [0, 0, 1, 2, 3, 1].into_iter().enumerate().take(2 + 2 * index) {
            row(Some(parent), 5 + node as u32);
        }
    }
    let logits = model.step(&rows).unwrap();
    let mut seen = rows_of(&logits);
    let mut ids = Vec::new();
    // For each context: the number of nodes, the node to continue from, and the next token.
    let mut ends = [(3, 2, 6), (5, 4, 7), (7, 5, 8)];
    for step in 0..12 {
        let growing = if (4..8).contains(&step) { 2..3 } else { 0..3 };
        let row = |index: usize| {
            let (_, node, token) = ends[index];
            Row { context: opened[index].context, path: PathRow::new(Some(NodeId(node)), token) }
        };
        let logits = model.step(&growing.clone().map(row).collect::<Vec<_>>()).unwrap();
        seen.extend(rows_of(&logits));
        for (row, index) in growing.enumerate() {
            let next = most_probable(logits.row(row));
            ids.push(next);
            ends[index] = (ends[index].0 + 1, ends[index].0, next);
        }
    }
    for opened in opened {
        model.close(opened.context);
    }
    (seen, ids)
}

/// Log-probabilities of steps between which some contexts close and others open. The order of the contexts
/// and their numbers of rows change, so that cache slots are reused and gathered keys and values belong to
/// other contexts.
fn changing_contexts(model: &mut dyn BatchModel) -> Vec<Vec<f64>> {
    let prompt = |length: usize, seed: u32| -> Prompt {
        (0..length as u32).map(|at| 3 + (at * 7 + seed * (1 + at / 32)) % 29).collect::<Vec<_>>().into()
    };
    let open = |model: &mut dyn BatchModel, lengths: &[usize], seed| {
        let prompts: Vec<Prompt> = lengths.iter().map(|&length| prompt(length, seed)).collect();
        let opened = model.open(&prompts.iter().map(ContextRequest::from).collect::<Vec<_>>()).unwrap();
        opened.into_iter().map(|opened| (opened, 0u32)).collect::<Vec<_>>()
    };
    let mut contexts = open(model, &[50, 3, 40, 33, 8, 45], 0);
    let mut seen = Vec::new();
    for round in 0..12 {
        let mut rows = Vec::new();
        for (index, (opened, nodes)) in contexts.iter_mut().enumerate() {
            // Sometimes two rows follow the same node, and the context continues from the second one.
            for row in 0..1 + u32::from((index + round) % 5 == 0 && round > 6) {
                let token = if *nodes == 0 { opened.first_token } else { 4 + (*nodes + row) % 20 };
                let parent = nodes.checked_sub(1).map(NodeId);
                rows.push(Row { context: opened.context, path: PathRow::new(parent, token) });
            }
            *nodes += rows.iter().filter(|row| row.context == opened.context).count() as u32;
        }
        seen.extend(rows_of(&model.step(&rows).unwrap()));
        match round {
            3 => {
                for at in [4, 2, 0] {
                    model.close(contexts.remove(at).0.context);
                }
            }
            4 => contexts.extend(open(model, &[33, 48, 5, 50], 5)),
            6 => contexts.reverse(),
            9 => model.close(contexts.remove(1).0.context),
            _ => {}
        }
    }
    contexts.iter().for_each(|(opened, _)| model.close(opened.context));
    seen
}

#[test]
fn opening_and_closing_contexts_does_not_change_the_keys_and_values_of_others() {
    let check = |name: &str, open: &dyn Fn(&Placement) -> Box<dyn BatchModel>| {
        let want = changing_contexts(open(&Placement::default()).as_mut());
        let got = composed::during(|| changing_contexts(open(&tensors(DType::F32)).as_mut()));
        let off = worst(&got, &want);
        // Sums have another order. A wrong position or a neighbour's keys would change the first digits.
        assert!(off < 5e-4, "{name}: log-probabilities differ by {off}");
    };
    check("t5", &t5);
    for name in ["llama-llama3", "mistral-window"] {
        check(name, &|place| causal(name, place));
    }
    for name in GEMMA {
        check(name, &|place| gemma(name, place));
    }
}

fn differences(got: &[Vec<f64>], want: &[Vec<f64>]) -> impl Iterator<Item = f64> {
    assert_eq!(got.len(), want.len());
    got.iter().flatten().zip(want.iter().flatten()).map(|(got, want)| (got - want).abs())
}

fn worst(got: &[Vec<f64>], want: &[Vec<f64>]) -> f64 {
    // A maximum would drop NaN.
    differences(got, want).fold(0.0, |worst, next| if next <= worst { worst } else { next })
}

fn mean(got: &[Vec<f64>], want: &[Vec<f64>]) -> f64 {
    differences(got, want).sum::<f64>() / got.iter().flatten().count() as f64
}

fn check(name: &str, open: &dyn Fn(&Placement) -> Box<dyn BatchModel>) {
    let (want, ids) = answers(open(&Placement::default()).as_mut());
    let composed = |dtype| composed::during(|| answers(open(&tensors(dtype)).as_mut()));
    let (got, got_ids) = composed(DType::F32);
    let off = worst(&got, &want);
    assert!(off < 1e-4, "{name}: log-probabilities differ by {off}");
    assert_eq!(got_ids, ids, "{name}");
    // Rows whose tokens are fixed, not chosen by the model.
    let given = want.len() - ids.len();
    for (dtype, off_max) in [(DType::BF16, 0.1), (DType::F16, 0.01)] {
        let off = mean(&composed(dtype).0[..given], &want[..given]);
        println!("{name} in {}: log-probabilities differ by {off} on average", dtype.as_str());
        assert!(off < off_max, "{name} in {}: log-probabilities differ by {off} on average", dtype.as_str());
    }
}

#[test]
fn a_composed_t5_agrees_with_the_packed_one() {
    check("t5", &t5);
}

#[test]
fn composed_t5gemmas_agree_with_packed_ones() {
    for name in GEMMA {
        check(name, &|place: &Placement| gemma(name, place));
    }
}

#[test]
fn composed_decoder_only_models_agree_with_packed_ones() {
    for name in DECODER_ONLY {
        check(name, &|place: &Placement| causal(name, place));
    }
}

/// Returns the values of labels for prompts of different lengths.
fn label_values(name: &str) -> Vec<Vec<f32>> {
    let files = CheckpointFiles::folder(&data("tests/data/heads").join(name)).unwrap();
    let mut model = load(&files, LoadOptions::default()).unwrap().model;
    let prompts: Vec<Prompt> =
        [3, 40, 17].map(|length| (5..5 + length).collect::<Vec<u32>>().into()).to_vec();
    let opened = model.open(&prompts.iter().map(ContextRequest::from).collect::<Vec<_>>()).unwrap();
    let row = |opened: &OpenedContext| Row {
        context: opened.context,
        path: PathRow::new(None, opened.first_token),
    };
    let logits = model.step(&opened.iter().map(row).collect::<Vec<_>>()).unwrap();
    (0..logits.rows()).map(|row| logits.row(row).to_vec()).collect()
}

#[test]
fn composed_heads_agree_with_packed_ones() {
    for name in ["mistral-classes", "t5-classes", "bert-classes", "roberta-regression", "modernbert-mean"] {
        let want = label_values(name);
        let got = composed::during(|| label_values(name));
        let off = got.iter().flatten().zip(want.iter().flatten()).map(|(got, want)| (got - want).abs());
        let off = off.fold(0.0, f32::max);
        assert!(got.len() == 3 && off < 1e-4, "{name}: values differ by {off}");
    }
}
