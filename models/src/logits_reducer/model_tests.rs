//! Complete models with the device composition, on the CPU: compares requests that receive only the requested
//! logits with the same requests on full rows.

use std::path::Path;

use ntl_core::contract::{
    BatchModel, ContextId, ContextRequest, Event, LogitsRequest, LogitsRow, NodeId, NumberJob, NumberMethod,
    NumberOutcome, PathRow, Prompt, Request, Row, Terminator, TextJob,
};
use ntl_core::decoding::{Decoding, Progress, StepResult};
use ntl_core::numbers::{GrammarLimits, Softmax};
use ntl_core::sampling::{SamplingParams, argmax};
use ntl_text::checkpoint::{CheckpointFiles, Choices};

use super::SUMMARY;
use super::tests::copied;
use crate::causal::{Causal, CausalOptions};
use crate::ops::{Placement, composed};
use crate::{LoadOptions, LoadedModel, load};

fn demo() -> CheckpointFiles {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/demo/t5-ntl-was.tar.gz");
    CheckpointFiles::archive("demo", &std::fs::read(path).unwrap()).unwrap()
}

/// Loads a model as on a device, without packed weights.
fn composed_model(files: &CheckpointFiles) -> LoadedModel {
    let choices = Choices { log_scale_embeddings: Some(true), ..Choices::default() };
    composed::during(|| load(files, LoadOptions { choices, ..LoadOptions::default() }).unwrap())
}

/// A request that is being decoded.
struct Running {
    context: ContextId,
    decoding: Box<dyn Decoding>,
    nodes: u32,
    events: Vec<Event>,
    done: bool,
}

/// The results of requests that were stepped together.
struct Outcome {
    events: Vec<Vec<Event>>,
    /// Number of values that were copied to the host.
    copied: usize,
    /// Number of values that should have been copied for these requests.
    wanted: usize,
    /// Number of values if all rows had been full.
    whole: usize,
    /// Number of rows that requested all of their logits.
    whole_rows: usize,
}

/// Returns the number of values that one row copies to the host.
fn size(wanted: &LogitsRequest, vocab: usize) -> usize {
    match wanted {
        LogitsRequest::All | LogitsRequest::Hidden => vocab,
        LogitsRequest::Best => SUMMARY,
        LogitsRequest::Ids(ids) => SUMMARY + ids.len(),
    }
}

/// Steps all requests together until the last has ended. If `vocab` is `None`, all logits are requested.
fn run(loaded: &mut LoadedModel, requests: &[(&str, Request)], vocab: Option<usize>) -> Outcome {
    let LoadedModel { model, vocabulary, tokenizer, .. } = loaded;
    let prompts: Vec<Prompt> =
        requests.iter().map(|(text, _)| tokenizer.encode_prompt(text, true).unwrap()).collect();
    let opened = model.open(&prompts.iter().map(ContextRequest::from).collect::<Vec<_>>()).unwrap();
    let begin = |((opened, prompt), (_, request)): (
        (ntl_core::contract::OpenedContext, &Prompt),
        &(&str, Request),
    )| {
        let before: Vec<u32> = if model.info().encoder_decoder { Vec::new() } else { prompt.ids().collect() };
        let decoding = vocabulary.decoding(request, &before, opened.first_token);
        Running { context: opened.context, decoding, nodes: 0, events: Vec::new(), done: false }
    };
    let mut running: Vec<_> = opened.into_iter().zip(&prompts).zip(requests).map(begin).collect();
    let (mut all, mut wanted, mut whole, mut whole_rows) = (0, 0, 0, 0);
    while running.iter().any(|request| !request.done) {
        let mut rows = Vec::new();
        let mut shares = Vec::new();
        for request in running.iter_mut().filter(|request| !request.done) {
            let paths = request.decoding.next_rows(6);
            shares.push((request, rows.len(), paths.len()));
            let context = shares[shares.len() - 1].0.context;
            rows.extend(paths.into_iter().map(|path| Row { context, path }));
        }
        if vocab.is_none() {
            rows.iter_mut().for_each(|row| row.path.logits = LogitsRequest::All);
        }
        let vocab = vocab.unwrap_or(0);
        wanted += rows.iter().map(|row| size(&row.path.logits, vocab)).sum::<usize>();
        whole += rows.len() * vocab;
        whole_rows += rows.iter().filter(|row| row.path.logits == LogitsRequest::All).count();
        let (count, logits) = copied(|| model.step(&rows).unwrap());
        all += count;
        for (request, first_row, rows) in shares {
            let result = StepResult { logits: &logits, first_row, first_node: NodeId(request.nodes) };
            request.nodes += rows as u32;
            request.done = request.decoding.advance(result, &mut request.events).unwrap() == Progress::Done;
        }
    }
    running.iter().for_each(|request| model.close(request.context));
    let events = running.into_iter().map(|request| request.events).collect();
    Outcome { events, copied: all, wanted, whole, whole_rows }
}

fn text(job: TextJob) -> Request {
    Request::Text(TextJob { max_tokens: 12, ignore_eos: true, ..job })
}

fn number(method: NumberMethod) -> Request {
    let limits = GrammarLimits::default();
    let terminator = Terminator::Eos;
    Request::Number(NumberJob { limits, terminator, ..NumberJob::new(method) })
}

fn tree() -> Request {
    number(NumberMethod::Tree { tolerance: 1e-3, nodes_max: 64, precision: None })
}

/// Returns the values with their probabilities, and the three masses.
fn distribution(outcome: &NumberOutcome) -> (Vec<&str>, Vec<f64>) {
    let leaves = outcome.distribution.leaves();
    let mass = outcome.distribution.mass();
    let probabilities = leaves.iter().map(|leaf| leaf.probability);
    let masses = [mass.closed, mass.invalid, mass.open];
    (leaves.iter().map(|leaf| leaf.text.as_str()).collect(), probabilities.chain(masses).collect())
}

/// Asserts that texts are equal and probabilities differ by at most a millionth.
fn assert_same(name: &str, got: &[Vec<Event>], want: &[Vec<Event>]) {
    for (got, want) in got.iter().zip(want) {
        let ([Event::Number(got)], [Event::Number(want)]) = (&got[..], &want[..]) else {
            assert_eq!(got, want, "{name}");
            continue;
        };
        let ((got_texts, got), (want_texts, want)) = (distribution(got), distribution(want));
        assert_eq!(got_texts, want_texts, "{name}");
        for (got, want) in got.iter().zip(&want) {
            assert!((got - want).abs() < 1e-6, "{name}: got {got}, expected {want}");
        }
    }
}

/// Compares requests on a model with the device composition.
fn check(name: &str, files: &CheckpointFiles, requests: &[(&str, Request)]) -> Outcome {
    let mut loaded = composed_model(files);
    let path = PathRow::new(None, 0);
    composed::during(|| {
        let opened = loaded.model.open(&[(&Prompt::from(vec![5, 1])).into()]).unwrap()[0];
        let row = Row { context: opened.context, path };
        let vocab = loaded.model.step(&[row]).unwrap().row(0).len();
        loaded.model.close(opened.context);
        let want = run(&mut loaded, requests, None);
        let got = run(&mut loaded, requests, Some(vocab));
        assert_same(name, &got.events, &want.events);
        assert_eq!(got.copied, got.wanted, "{name}: number of values copied to the host");
        assert_eq!(want.copied, got.whole, "{name}: the same steps");
        got
    })
}

const QUESTION: &str = "What is 12.5 + 7?";

#[test]
fn greedy_texts_and_numbers_copy_no_full_row_of_logits_to_the_host() {
    let requests =
        [(QUESTION, text(TextJob::default())), ("What is 3 times 4?", tree()), ("Is 4 even?", tree())];
    let outcome = check("t5", &demo(), &requests);
    assert_eq!(outcome.whole_rows, 0);
    assert!(outcome.copied < outcome.whole, "{} of {}", outcome.copied, outcome.whole);
    let text = check("t5", &demo(), &requests[..1]);
    assert_eq!((text.copied, text.whole_rows), (12 * SUMMARY, 0), "five numbers per token");
}

/// Returns one request of each kind, and one for each number method.
fn all_kinds() -> [(&'static str, Request); 7] {
    let sampling = SamplingParams { seed: 3, ..SamplingParams::PLAIN };
    [
        (QUESTION, text(TextJob::default())),
        (QUESTION, tree()),
        ("Say 7.", text(TextJob { n: 2, sampling, ..TextJob::default() })),
        ("Three and 4", text(TextJob { logprobs: Some(2), ..TextJob::default() })),
        (QUESTION, number(NumberMethod::Token)),
        ("10 - 2 =", number(NumberMethod::Beam { beams: 3 })),
        ("10 - 2 =", number(NumberMethod::sample(16, 1))),
    ]
}

#[test]
fn requests_of_different_kinds_share_steps() {
    let outcome = check("t5", &demo(), &all_kinds());
    assert!(outcome.whole_rows > 0 && outcome.copied < outcome.whole);
}

fn check_other_kinds(fixtures: &Path) {
    for name in ["t5-rt", "t5-xval", "llama-ntl", "gpt2", "granite"] {
        check(name, &CheckpointFiles::folder(&fixtures.join(name)).unwrap(), &all_kinds());
    }
}

#[test]
fn other_kinds_of_models_return_the_requested_logits() {
    check_other_kinds(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny"));
}

#[test]
fn other_kinds_of_trained_models_return_the_requested_logits() {
    check_other_kinds(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/reference"));
}

/// Compares single rows of decoder-only models without a tokenizer.
#[test]
fn decoder_only_models_return_the_requested_logits() {
    for name in ["llama-llama3", "mistral-window", "qwen2", "gpt2-by-depth"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/causal").join(name);
        let files = CheckpointFiles::folder(&folder).unwrap();
        let place = Placement::default();
        let prefix_bytes_max = 0;
        let options = CausalOptions { tokens: 36, place, prefix_bytes_max };
        composed::during(|| {
            let mut model = Causal::load(&files, &options).unwrap();
            let opened = model.open(&[(&Prompt::from(vec![9, 4, 11])).into()]).unwrap()[0];
            let row = |wanted| Row {
                context: opened.context,
                path: PathRow::new(None, opened.first_token).with_logits(wanted),
            };
            let ids = LogitsRequest::Ids([2, 30].into());
            let logits = model.step(&[row(LogitsRequest::Best), row(LogitsRequest::All), row(ids)]).unwrap();
            let whole = logits.row(1);
            let want = Softmax::new(whole).unwrap();
            for (row, ids) in [(0, vec![]), (2, vec![2, 30])] {
                let LogitsRow::Summary(reduced) = logits.get(row) else {
                    panic!("{name}: row {row} is full")
                };
                assert_eq!(reduced.best_id as usize, argmax(&whole[..36]), "{name}");
                let softmax = Softmax::of(logits.get(row)).unwrap();
                for id in ids {
                    let got = softmax.probability(id);
                    let want = want.probability(id);
                    assert!((got - want).abs() < 1e-6, "{name}, id {id}: got {got}, expected {want}");
                }
            }
        });
    }
}
