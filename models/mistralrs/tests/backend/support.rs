//! Starts engines on both backends and compares their answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ntl_core::contract::{
    Backend, Event, Job, ModelInfo, NumberJob, NumberMethod, NumberOutcome, Request, TextJob, TokenText,
};
use ntl_core::numbers::GrammarLimits;
use ntl_engine::{Engine, EngineLimits, JobEvents, NoObserver};
use ntl_models::{LoadOptions, LoadedModel};
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::tokenizer::Tokenizer;

/// Maximum difference of log-probabilities and of probabilities.
pub(crate) const TOLERANCE: f64 = 1e-3;

pub(crate) struct Served {
    pub(crate) engine: Engine,
    pub(crate) tokenizer: Arc<Tokenizer>,
}

impl Served {
    pub(crate) fn native(folder: &Path) -> Self {
        let files = CheckpointFiles::folder(folder).unwrap();
        Self::start(ntl_models::load(&files, LoadOptions::default()).unwrap())
    }

    /// Loads a directory with mistral.rs.
    pub(crate) fn folder(folder: &Path, isq: Option<&str>) -> Self {
        let files = CheckpointFiles::folder(folder).unwrap();
        Self::start(ntl_mistralrs::load_folder(&files, isq, LoadOptions::default()).unwrap())
    }

    /// Loads a GGUF file with mistral.rs.
    pub(crate) fn gguf(file: &Path) -> Self {
        Self::start(ntl_mistralrs::load_gguf(file, LoadOptions::default()).unwrap())
    }

    fn start(loaded: LoadedModel) -> Self {
        let limits = EngineLimits::default();
        let (engine, _) =
            Engine::spawn(loaded.model, loaded.vocabulary, limits, Arc::new(NoObserver)).unwrap();
        Self { engine, tokenizer: loaded.tokenizer }
    }

    pub(crate) fn info(&self) -> &ModelInfo {
        self.engine.info()
    }

    pub(crate) fn answer(&self, prompt: &[u32], request: &Request) -> Vec<Event> {
        all(self.engine.submit(Job::new(prompt.to_vec(), request.clone())).unwrap())
    }

    pub(crate) fn number(&self, prompt: &[u32], job: &NumberJob) -> NumberOutcome {
        match self.answer(prompt, &Request::Number(job.clone())).pop() {
            Some(Event::Number(outcome)) => outcome,
            other => panic!("{other:?}"),
        }
    }
}

/// The same checkpoint on both backends.
pub(crate) struct Both {
    pub(crate) native: Served,
    pub(crate) mistral: Served,
}

impl Both {
    pub(crate) fn open(path: &Path) -> Self {
        let both = Self { native: Served::native(path), mistral: Served::folder(path, None) };
        assert_eq!(both.native.info().backend, Backend::Native);
        assert_eq!(both.mistral.info().backend, Backend::MistralRs);
        both
    }
}

/// Returns all events of a job.
pub(crate) fn all(mut events: JobEvents) -> Vec<Event> {
    std::iter::from_fn(|| events.next_blocking()).collect()
}

/// Returns a job for a text of exactly `max_tokens` tokens, with log-probabilities.
pub(crate) fn text(max_tokens: usize) -> TextJob {
    TextJob { max_tokens, logprobs: Some(3), ignore_eos: true, ..TextJob::default() }
}

pub(crate) fn tree(nodes_max: usize) -> NumberJob {
    NumberJob {
        limits: GrammarLimits::new(3, 2, true).unwrap(),
        ..NumberJob::new(NumberMethod::Tree { tolerance: 1e-3, nodes_max, precision: None })
    }
}

/// Returns the compared parts of an answer: all ids and texts, and all log-probabilities.
pub(crate) fn parts(events: &[Event]) -> (Vec<String>, Vec<f64>) {
    let mut exact = Vec::new();
    let mut close = Vec::new();
    for event in events {
        match event {
            Event::Prompt(tokens) => tokens.iter().for_each(|token| add(token, &mut exact, &mut close)),
            Event::Text { choice, text, token, .. } => {
                exact.push(format!("{choice}: {text}"));
                token.iter().for_each(|token| add(token, &mut exact, &mut close));
            }
            Event::Finished { choice, reason, tokens, .. } => {
                exact.push(format!("{choice}: {reason:?} after {tokens}"));
            }
            Event::Scored(outcome) => close.extend(outcome.tokens.iter().map(|token| token.token.logprob)),
            other => panic!("{other:?}"),
        }
    }
    (exact, close)
}

fn add(token: &TokenText, exact: &mut Vec<String>, close: &mut Vec<f64>) {
    exact.push(token.token.id.to_string());
    close.push(token.token.logprob);
    close.extend(token.top.iter().map(|top| top.logprob));
}

/// Asserts that ids and texts are equal and that log-probabilities are within the tolerance. Returns their
/// largest difference.
#[track_caller]
pub(crate) fn assert_same(got: &[Event], want: &[Event], what: &str) -> f64 {
    let ((got, got_close), (want, want_close)) = (parts(got), parts(want));
    assert_eq!(got, want, "{what}");
    assert_eq!(got_close.len(), want_close.len(), "{what}");
    let off = got_close.iter().zip(&want_close).map(|(got, want)| (got - want).abs()).fold(0.0, f64::max);
    assert!(off < TOLERANCE, "{what}: {off}");
    off
}

#[track_caller]
pub(crate) fn assert_same_numbers(got: &NumberOutcome, want: &NumberOutcome, what: &str) -> f64 {
    let got = &got.distribution;
    let want = &want.distribution;
    let mut off = [
        got.mass().closed - want.mass().closed,
        got.mass().invalid - want.mass().invalid,
        got.mass().open - want.mass().open,
    ]
    .map(f64::abs)
    .into_iter()
    .fold(0.0, f64::max);
    for leaf in want.leaves() {
        let same = got.leaves().iter().find(|other| (other.value - leaf.value).abs() < 1e-9);
        off = off.max((same.map_or(0.0, |same| same.probability) - leaf.probability).abs());
    }
    assert!(off < TOLERANCE, "{what}: {off}");
    off
}

/// Returns a directory of the shared fixtures, for tests that are ignored without them.
pub(crate) fn shared(name: &str) -> PathBuf {
    Path::new(env!("NTL_SHARED")).join("fixtures").join(name)
}
