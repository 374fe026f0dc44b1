//! [`SequenceModel`] over a fake engine that behaves like mistral.rs 0.8.1: it computes one step too many
//! after a prompt, and dies when it responds to a request whose receiver is gone.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ntl_core::contract::{
    Backend, BatchModel, ContextId, Dtype, ModelInfo, NodeId, NumberEncoding, PathRow, Prompt, Row,
};

use super::{ExternalSampler, FailureReason, SequenceEngine, SequenceModel};

const VOCAB: usize = 8;
const POSITIONS: usize = 20;
/// The engine rejects a prompt that begins with this token.
const POISON: u32 = 7;

/// Returns logits that differ for any two different token lists.
fn logits(tokens: &[u32]) -> Vec<f32> {
    let seed =
        tokens.iter().fold(1_u32, |hash, token| hash.wrapping_mul(31).wrapping_add(token + 1) % 65_521);
    (0..VOCAB as u32).map(|id| (seed.wrapping_mul(id + 3) % 1009) as f32 / 100.0).collect()
}

struct Request {
    tokens: Vec<u32>,
    tokens_max: Option<usize>,
    sampler: ExternalSampler,
    responses: Sender<String>,
}

struct Running {
    request: Request,
    generated: usize,
    over: bool,
}

impl Running {
    /// Runs one step. Returns `false` once the sequence has ended.
    fn step(&mut self) -> bool {
        let Request { tokens, tokens_max, sampler, responses } = &mut self.request;
        let was_over = self.over;
        let is_first = self.generated == 0;
        let reason = if tokens[0] == POISON {
            Some("poisoned")
        } else {
            match sampler.sample(logits(tokens)) {
                None => Some("over"),
                Some(token) => {
                    tokens.push(token);
                    self.generated += 1;
                    tokens_max.is_some_and(|max| self.generated >= max).then_some("done")
                }
            }
        };
        if let Some(reason) = reason {
            self.over = true;
            responses.send(reason.to_owned()).expect("the receiver of a response is gone");
        }
        !self.over || (is_first && !was_over && reason != Some("poisoned"))
    }
}

struct FakeEngine {
    requests: Mutex<Option<Sender<Request>>>,
    begun: Arc<AtomicUsize>,
}

fn run(requests: &Receiver<Request>, died: &AtomicBool) {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut running: Vec<Running> = Vec::new();
        loop {
            if running.is_empty() {
                let Ok(request) = requests.recv() else { return };
                running.push(Running { request, generated: 0, over: false });
            }
            running.extend(requests.try_iter().map(|request| Running { request, generated: 0, over: false }));
            running.retain_mut(Running::step);
        }
    }));
    died.store(outcome.is_err(), Ordering::SeqCst);
}

impl SequenceEngine for FakeEngine {
    fn submit(
        &self,
        tokens: Vec<u32>,
        tokens_max: Option<usize>,
        sampler: ExternalSampler,
    ) -> Result<FailureReason, String> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let (responses, receiver) = channel();
        let request = Request { tokens, tokens_max, sampler, responses };
        let sent = self.requests.lock().unwrap().as_ref().map(|requests| requests.send(request).is_ok());
        if sent != Some(true) {
            return Err("its engine is gone".to_owned());
        }
        Ok(Box::new(move || receiver.try_iter().find(|response| response == "poisoned")))
    }

    fn batch_max(&self) -> usize {
        3
    }

    fn token_bytes(&self) -> u64 {
        1000
    }
}

struct Served {
    model: SequenceModel,
    begun: Arc<AtomicUsize>,
    died: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Served {
    fn start() -> Self {
        let (sender, requests) = channel();
        let begun = Arc::new(AtomicUsize::new(0));
        let died = Arc::new(AtomicBool::new(false));
        let dies = Arc::clone(&died);
        let thread = std::thread::spawn(move || run(&requests, &dies));
        let engine = FakeEngine { requests: Mutex::new(Some(sender)), begun: Arc::clone(&begun) };
        let info = ModelInfo {
            kind: "fake".into(),
            backend: Backend::MistralRs,
            dtype: Dtype::F32,
            kv_cache_dtype: None,
            number_encoding: NumberEncoding::Text,
            parameters: 0,
            prompt_tokens_max: POSITIONS,
            context_tokens_max: Some(POSITIONS),
            answer_tokens_max: None,
            tokens: VOCAB,
            eos_ids: vec![2],
            encoder_decoder: false,
            labels: None,
            hidden_states: None,
        };
        let model = SequenceModel::new(Box::new(engine), info, 1).unwrap();
        begun.store(0, Ordering::SeqCst);
        Self { model, begun, died, thread }
    }

    fn open(&mut self, prompt: &[u32]) -> (ContextId, u32) {
        let opened = self.model.open(&[(&Prompt::from(prompt.to_vec())).into()]).unwrap()[0];
        (opened.context, opened.first_token)
    }

    /// Steps rows and compares each with the logits after its complete path, including the prompt.
    fn check(&mut self, rows: &[(ContextId, Option<u32>, u32)], want: &[&[u32]]) {
        let row = |&(context, parent, token): &(ContextId, Option<u32>, u32)| Row {
            context,
            path: PathRow::new(parent.map(NodeId), token),
        };
        let got = self.model.step(&rows.iter().map(row).collect::<Vec<_>>()).unwrap();
        assert_eq!(got.rows(), want.len());
        for (index, want) in want.iter().enumerate() {
            assert_eq!(got.row(index), logits(want), "row {index}, after {want:?}");
        }
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// Stops the engine and asserts that it did not die before.
    fn end(self) {
        drop(self.model);
        self.thread.join().unwrap();
        assert!(!self.died.load(Ordering::SeqCst));
    }
}

#[test]
fn a_text_of_any_length_is_one_sequence() {
    let mut served = Served::start();
    let (context, first) = served.open(&[3, 4]);
    served.check(&[(context, None, first)], &[&[3, 4]]);
    served.check(&[(context, Some(0), 2)], &[&[3, 4, 2]]);
    // A target, whose rows extend one another within a step.
    served.check(&[(context, Some(1), 5), (context, Some(2), 6)], &[&[3, 4, 2, 5], &[3, 4, 2, 5, 6]]);
    assert_eq!(served.begun(), 1);
    served.end();
}

#[test]
fn every_row_of_a_tree_sees_its_own_path() {
    let mut served = Served::start();
    let (context, first) = served.open(&[3]);
    served.check(&[(context, None, first)], &[&[3]]);
    let rows = [(0, 4), (0, 5), (1, 6), (1, 1), (2, 6)].map(|(parent, token)| (context, Some(parent), token));
    served.check(&rows, &[&[3, 4], &[3, 5], &[3, 4, 6], &[3, 4, 1], &[3, 5, 6]]);
    // Back to a single path, which is not the last one.
    served.check(&[(context, Some(3), 2)], &[&[3, 4, 6, 2]]);
    let before = served.begun();
    served.check(&[(context, Some(6), 2)], &[&[3, 4, 6, 2, 2]]);
    assert_eq!(served.begun(), before, "the path is live again");
    served.end();
}

#[test]
fn contexts_are_separate_and_an_empty_prompt_is_replaced_by_the_begin_token() {
    let mut served = Served::start();
    let ((a, first_a), (b, first_b), (c, first_c)) =
        (served.open(&[3, 4, 5]), served.open(&[]), served.open(&[6]));
    let rows = [(a, None, first_a), (b, None, first_b), (c, None, first_c)];
    served.check(&rows, &[&[3, 4, 5], &[1], &[6]]);
    let rows = [(a, 0, 2), (b, 0, 2), (c, 0, 4), (c, 0, 5)].map(|(it, parent, id)| (it, Some(parent), id));
    served.check(&rows, &[&[3, 4, 5, 2], &[1, 2], &[6, 4], &[6, 5]]);
    served.check(&[(b, Some(1), 3)], &[&[1, 2, 3]]);
    served.model.close(b);
    served.check(&[(a, Some(1), 3)], &[&[3, 4, 5, 2, 3]]);
    served.end();
}

#[test]
fn dropping_a_request_in_the_middle_of_a_text_leaves_the_engine_alive() {
    let mut served = Served::start();
    for tokens in 0..4 {
        let (context, first) = served.open(&[3, 4]);
        let mut path = vec![3, 4];
        served.check(&[(context, None, first)], &[&path]);
        for node in 0..tokens {
            path.push(5);
            served.check(&[(context, Some(node), 5)], &[&path]);
        }
        served.model.close(context);
        served.model.close(context);
    }
    let (context, first) = served.open(&[3, 4]);
    served.check(&[(context, None, first)], &[&[3, 4]]);
    served.end();
}

#[test]
fn a_sequence_that_the_engine_rejects_is_an_error_and_the_next_one_works() {
    let mut served = Served::start();
    let (poisoned, first) = served.open(&[POISON, 3]);
    let (healthy, healthy_first) = served.open(&[3]);
    let row =
        |context, parent: Option<u32>, token| Row { context, path: PathRow::new(parent.map(NodeId), token) };
    for rows in [vec![row(poisoned, None, first)], vec![row(poisoned, None, first), row(healthy, None, 3)]] {
        let error = served.model.step(&rows).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(source, "poisoned");
    }
    served.model.close(poisoned);
    served.check(&[(healthy, None, healthy_first)], &[&[3]]);
    served.end();
}

#[test]
fn invalid_rows_are_rejected_with_an_error_that_names_the_cause() {
    let mut served = Served::start();
    let (context, first) = served.open(&[3; POSITIONS]);
    let refusal = |served: &mut Served, row: (ContextId, Option<u32>, u32)| {
        let path = PathRow::new(row.1.map(NodeId), row.2);
        served.model.step(&[Row { context: row.0, path }]).unwrap_err().to_string()
    };
    assert_eq!(refusal(&mut served, (ContextId(99), None, 3)), "context 99 is not open");
    assert_eq!(refusal(&mut served, (context, Some(0), 3)), "node 0 of context 1 does not exist");
    let outside = refusal(&mut served, (context, None, VOCAB as u32));
    assert_eq!(outside, "token id 8 is outside the vocabulary of 8");
    served.check(&[(context, None, first)], &[&[3; POSITIONS]]);
    let beyond = refusal(&mut served, (context, Some(0), 3));
    assert_eq!(beyond, "position 20 is beyond the model's 20");
    served.end();
}
