//! Fixtures of the reference implementation: their locations, and comparisons with them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use ntl_core::contract::{
    BatchModel, ContextId, ContextRequest, Logits, NodeId, OpenedContext, PathRow, Prompt, Row, Token,
};
use ntl_models::Placement;
use ntl_models::t5::{NumberScaling, T5, T5Kind, TokenizerFacts};
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::tokenizer::Tokenizer;
use serde_json::Value;

/// Checkpoints with the reference outputs for them, in one layout.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fixtures {
    /// Small random checkpoints in the repository, one of each kind: `data/tiny/make.py`.
    Tiny,
    /// Checkpoints from the paper's code in `data/reference`; most are trained.
    Reference,
}

impl Fixtures {
    pub(crate) fn folder(self, name: &str) -> PathBuf {
        match self {
            Self::Tiny => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny").join(name),
            Self::Reference => reference(name),
        }
    }

    /// Returns the available checkpoints among `names`. There is only one tiny checkpoint of each kind, and
    /// one kind has only that.
    pub(crate) fn only(self, names: &[&'static str]) -> impl Iterator<Item = &'static str> {
        let lacks: &[&str] = match self {
            Self::Tiny => &["t5-ntl-mse", "t5-rt-ntl", "llama-ce", "regresslm-hf-ieee", "regresslm-pt-char"],
            Self::Reference => &["regresslm-pt-gemma", "regresslm-pt-gemma2"],
        };
        let lacks_large = matches!(self, Self::Reference) && !cfg!(shared_fixtures);
        let names = names.iter().copied();
        names.filter(move |name| !(lacks.contains(name) || lacks_large && LARGE.contains(name)))
    }
}

/// The reference checkpoints that are only in `../shared`, because they are large.
const LARGE: [&str; 3] = ["llama-ce", "t5-ntl-mse", "t5-rt-ntl"];

/// Returns a directory or file of the reference checkpoints.
pub(crate) fn reference(name: &str) -> PathBuf {
    let directory = if LARGE.contains(&name) {
        Path::new(env!("NTL_SHARED")).join("fixtures")
    } else {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/reference")
    };
    directory.join(name)
}

/// Creates two tests for each check: `tiny::NAME` and `reference::NAME`.
macro_rules! over_fixtures {
    ($($check:ident),+ $(,)?) => {
        mod tiny {
            $(#[test]
            fn $check() {
                super::$check(crate::support::Fixtures::Tiny);
            })+
        }

        mod reference {
            $(#[test]
            fn $check() {
                super::$check(crate::support::Fixtures::Reference);
            })+
        }
    };
}

pub(crate) use over_fixtures;

/// A checkpoint with the golden outputs of the reference implementation.
pub(crate) struct Golden {
    pub(crate) name: String,
    pub(crate) json: Value,
    pub(crate) tensors: HashMap<String, Tensor>,
    pub(crate) model: T5,
    pub(crate) tokenizer: Tokenizer,
}

impl Golden {
    pub(crate) fn open(fixtures: Fixtures, name: &str) -> Self {
        let folder = fixtures.folder(name);
        let (json, tensors) = read_golden(&folder);
        let files = CheckpointFiles::folder(&folder).unwrap();
        let tokenizer = Tokenizer::open(&files).unwrap();
        let facts = TokenizerFacts {
            tokens: json["len_tokenizer"].as_u64().unwrap() as usize,
            prompt_tokens_max: 512,
            number_encoding: tokenizer.number_encoding(),
        };
        let kind = match (name, tokenizer.number_token()) {
            ("t5-rt" | "t5-rt-ntl", _) => T5Kind::Rt,
            (_, Some(number_id)) => T5Kind::Xval(NumberScaling { number_id, log_scale: true }),
            _ => T5Kind::Plain,
        };
        let model = T5::load(&files, facts, kind, &Placement::default()).unwrap();
        Self { name: name.to_owned(), json, tensors, model, tokenizer }
    }

    pub(crate) fn cases(&self) -> Vec<Value> {
        self.json["cases"].as_array().unwrap().clone()
    }
}

/// Returns the reference outputs for the checkpoint in a directory.
pub(crate) fn read_golden(folder: &Path) -> (Value, HashMap<String, Tensor>) {
    let golden = folder.join("golden");
    let json = std::fs::read(golden.join("golden.json")).unwrap();
    let tensors = candle_core::safetensors::load(golden.join("golden.safetensors"), &Device::Cpu).unwrap();
    (serde_json::from_slice(&json).unwrap(), tensors)
}

/// Returns a tensor's numbers in order.
pub(crate) fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

pub(crate) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// Returns single-precision numbers; empty if the case has none.
pub(crate) fn floats(value: &Value) -> Vec<f32> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

/// Returns the prompt of a case, with numbers if the model requires them.
pub(crate) fn prompt(case: &Value) -> Prompt {
    tokens(&ids(&case["input_ids"]), &floats(&case["number_embeddings"])).into_iter().collect()
}

/// Returns the decoder inputs of a case.
pub(crate) fn target(case: &Value) -> Vec<Token> {
    tokens(&ids(&case["decoder_input_ids"]), &floats(&case["decoder_number_embeddings"]))
}

/// Returns ids with their numbers; `numbers` is empty if the model does not use numbers.
pub(crate) fn tokens(ids: &[u32], numbers: &[f32]) -> Vec<Token> {
    let values = numbers.iter().copied().map(Some).chain(std::iter::repeat(None));
    ids.iter().zip(values).map(|(&id, value)| Token { id, value }).collect()
}

/// Returns a chain of rows in one context, each extending the previous one; `first` is the number of the
/// first row.
pub(crate) fn chain<T: Into<Token> + Copy>(context: ContextId, tokens: &[T], first: u32) -> Vec<Row> {
    let row = |(index, &token): (u32, &T)| {
        let parent = index.checked_sub(1).map(NodeId);
        Row { context, path: PathRow::new(parent, token) }
    };
    (first..).zip(tokens).map(row).collect()
}

/// Opens the prompts in one batch and steps the decoder tokens of each as a chain, all in one step.
pub(crate) fn score(
    model: &mut dyn BatchModel,
    prompts: &[Prompt],
    targets: &[Vec<Token>],
) -> (Logits, Vec<usize>) {
    let opened = open(model, prompts);
    let mut starts = Vec::new();
    let mut rows = Vec::new();
    for (opened, target) in opened.iter().zip(targets) {
        starts.push(rows.len());
        rows.extend(chain(opened.context, target, 0));
    }
    let logits = model.step(&rows).unwrap();
    for opened in opened {
        model.close(opened.context);
    }
    (logits, starts)
}

/// Opens prompts in one batch.
pub(crate) fn open(model: &mut dyn BatchModel, prompts: &[Prompt]) -> Vec<OpenedContext> {
    model.open(&prompts.iter().map(ContextRequest::from).collect::<Vec<_>>()).unwrap()
}

/// Like [`score`], for models that only use token ids.
pub(crate) fn score_ids(
    model: &mut dyn BatchModel,
    prompts: &[Vec<u32>],
    targets: &[Vec<u32>],
) -> (Logits, Vec<usize>) {
    let prompts: Vec<Prompt> = prompts.iter().map(|ids| ids.clone().into()).collect();
    let targets: Vec<Vec<Token>> = targets.iter().map(|ids| tokens(ids, &[])).collect();
    score(model, &prompts, &targets)
}

/// Opens prompts of token ids in one batch.
pub(crate) fn open_ids(model: &mut dyn BatchModel, prompts: &[&[u32]]) -> Vec<OpenedContext> {
    open(model, &prompts.iter().map(|ids| ids.to_vec().into()).collect::<Vec<_>>())
}

/// Returns the greedy answer of this many tokens, step by step: ids from the first token on, each with its
/// number.
pub(crate) fn greedy(
    golden: &mut Golden,
    request: ContextRequest<'_>,
    length: usize,
) -> (Vec<u32>, Vec<f32>) {
    let opened = golden.model.open(&[request]).unwrap()[0];
    let tokens = golden.model.info().tokens;
    let mut ids = vec![opened.first_token];
    let mut numbers = vec![1.0];
    while ids.len() < length {
        let rows = chain(opened.context, &ids[ids.len() - 1..], ids.len() as u32 - 1);
        let logits = golden.model.step(&rows).unwrap();
        let id = ntl_core::sampling::argmax(&logits.row(0)[..tokens]) as u32;
        let number = logits.head_value(0).filter(|_| golden.tokenizer.number_token() == Some(id));
        ids.push(id);
        numbers.push(number.unwrap_or(1.0));
    }
    golden.model.close(opened.context);
    (ids, numbers)
}

/// Asserts that the largest absolute difference is within `tolerance`, and returns it. On failure, prints its
/// position.
#[track_caller]
pub(crate) fn assert_close(got: &[f32], want: &[f32], tolerance: f32, what: &str) -> f32 {
    assert_eq!(got.len(), want.len(), "{what}: lengths differ");
    let mut worst = (0, 0.0_f32);
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let difference = (got - want).abs();
        assert!(!difference.is_nan(), "{what}: NaN at {index}");
        if difference > worst.1 {
            worst = (index, difference);
        }
    }
    let (index, difference) = worst;
    assert!(difference <= tolerance, "{what}: got {}, expected {} at {index}", got[index], want[index]);
    difference
}
