//! Fixtures of the original code, where they are, and comparing with them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use ntl_core::engine::{
    BatchModel, ContextId, ContextRequest, Logits, NodeId, OpenedContext, PathRow, Prompt, Row, Token,
};
use ntl_models::Placement;
use ntl_models::checkpoint::CheckpointFiles;
use ntl_models::t5::{NumberScaling, T5, T5Kind, TokenizerFacts};
use ntl_models::tokenizer::Tokenizer;
use serde_json::Value;

/// Checkpoints with what their originals compute on them, in one layout.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fixtures {
    /// Small random ones in the tree, one of each kind: `data/tiny/make.py`.
    Tiny,
    /// Those of the paper's own code, beside the checkout; most are trained.
    Shared,
}

impl Fixtures {
    pub(crate) fn folder(self, name: &str) -> PathBuf {
        match self {
            Self::Tiny => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny").join(name),
            Self::Shared => shared(name),
        }
    }

    /// The tiny ones lack a second checkpoint of a kind.
    pub(crate) fn only(self, names: &[&'static str]) -> impl Iterator<Item = &'static str> {
        let lacks = |name: &&str| ["t5-ntl-mse", "t5-rt-ntl", "llama-ce"].contains(name);
        names.iter().copied().filter(move |name| self == Self::Shared || !lacks(name))
    }
}

/// A folder or file of the shared fixtures, for tests that are ignored without them.
pub(crate) fn shared(name: &str) -> PathBuf {
    Path::new(env!("NTL_SHARED")).join("fixtures").join(name)
}

/// Makes two tests of each check: `tiny::NAME` always runs, `shared::NAME` is ignored where the shared fixtures are absent.
macro_rules! over_fixtures {
    ($($check:ident),+ $(,)?) => {
        mod tiny {
            $(#[test]
            fn $check() {
                super::$check(crate::support::Fixtures::Tiny);
            })+
        }

        mod shared {
            $(#[test]
            #[cfg_attr(not(shared_fixtures), ignore = "needs ../shared")]
            fn $check() {
                super::$check(crate::support::Fixtures::Shared);
            })+
        }
    };
}

pub(crate) use over_fixtures;

/// A checkpoint with the golden outputs that the original code computed from it.
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

/// What the original code computed from the checkpoint of a folder.
pub(crate) fn read_golden(folder: &Path) -> (Value, HashMap<String, Tensor>) {
    let golden = folder.join("golden");
    let json = std::fs::read(golden.join("golden.json")).unwrap();
    let tensors = candle_core::safetensors::load(golden.join("golden.safetensors"), &Device::Cpu).unwrap();
    (serde_json::from_slice(&json).unwrap(), tensors)
}

/// A tensor's numbers in order.
pub(crate) fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

pub(crate) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// Single-precision numbers; none where the case has none.
pub(crate) fn floats(value: &Value) -> Vec<f32> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

/// The prompt of a case, with its numbers where the model takes some.
pub(crate) fn prompt(case: &Value) -> Prompt {
    Prompt { tokens: tokens(&ids(&case["input_ids"]), &floats(&case["number_embeddings"])) }
}

/// What the decoder of a case was fed.
pub(crate) fn target(case: &Value) -> Vec<Token> {
    tokens(&ids(&case["decoder_input_ids"]), &floats(&case["decoder_number_embeddings"]))
}

/// Ids with the number beside each of them; `numbers` is empty where the model takes none.
pub(crate) fn tokens(ids: &[u32], numbers: &[f32]) -> Vec<Token> {
    let values = numbers.iter().copied().map(Some).chain(std::iter::repeat(None));
    ids.iter().zip(values).map(|(&id, value)| Token { id, value }).collect()
}

/// A chain of rows under one context, each extending the one before it; `first` is the first one's number.
pub(crate) fn chain<T: Into<Token> + Copy>(context: ContextId, tokens: &[T], first: u32) -> Vec<Row> {
    let row = |(index, &token): (u32, &T)| {
        let parent = index.checked_sub(1).map(NodeId);
        Row { context, path: PathRow::new(parent, token) }
    };
    (first..).zip(tokens).map(row).collect()
}

/// Opens the prompts in one batch and steps each one's decoder tokens as chains of one step.
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

/// The same of models that take token ids only.
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

/// The greedy answer step by step, as many tokens as are wanted: ids from the first token on, the number beside each.
pub(crate) fn greedy(
    golden: &mut Golden,
    request: ContextRequest<'_>,
    length: usize,
) -> (Vec<u32>, Vec<f32>) {
    let opened = golden.model.open(&[request]).unwrap()[0];
    let tokens = golden.model.info().tokens;
    let (mut ids, mut numbers) = (vec![opened.first_token], vec![1.0]);
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

/// Largest absolute difference; says where it is when it exceeds `tolerance`.
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
    assert!(difference <= tolerance, "{what}: {} instead of {} at {index}", got[index], want[index]);
    difference
}
