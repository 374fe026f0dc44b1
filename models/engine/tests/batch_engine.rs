//! The engine with a scripted model: batching, cancellation, failures, and a bounded queue.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ntl_core::contract::{
    Adapter, BatchModel, CacheCost, ContextId, ContextRequest, EngineError, Event, FinishReason, Job, Logits,
    ModelError, ModelInfo, NumberJob, NumberMethod, OpenedContext, PrefillChunk, PrefillProgress, Request,
    Row, Terminator, TextJob,
};
use ntl_core::decoding::Vocabulary;
use ntl_core::numbers::{GrammarLimits, NumberGrammar};
use ntl_core::scripted::{Script, ScriptedModel};
use ntl_core::text::TextDecoder;
use ntl_engine::{EndReason, Engine, EngineLimits, EngineObserver, JobEvents};

/// Ids: 0 start, 1 end, 2..12 the digits.
const TOKENS: usize = 12;

struct Digits;

impl TextDecoder for Digits {
    fn decode(&self, ids: &[u32]) -> String {
        ids.iter().map(|id| id.saturating_sub(2).to_string()).collect()
    }
    fn token_text(&self, id: u32) -> String {
        self.decode(&[id])
    }
    fn settled_len(&self, text: &str) -> usize {
        text.len()
    }
}

/// Forwards the engine's reports.
struct Reports {
    endings: Mutex<Sender<EndReason>>,
    seen: Mutex<(usize, usize, usize)>,
}

impl EngineObserver for Reports {
    fn on_load(&self, waiting: usize, running: usize) {
        let mut seen = self.seen.lock().unwrap();
        (seen.0, seen.1) = (waiting, running);
    }
    fn on_end(&self, ending: EndReason) {
        let _ = self.endings.lock().unwrap().send(ending);
    }
    fn on_panic(&self) {
        self.seen.lock().unwrap().2 += 1;
    }
}

struct Running {
    engine: Engine,
    thread: JoinHandle<()>,
    reports: Arc<Reports>,
    endings: Receiver<EndReason>,
}

fn start(script: Script, limits: EngineLimits) -> Running {
    start_model(Box::new(ScriptedModel::new(TOKENS, script)), limits)
}

fn start_model(model: Box<dyn BatchModel>, limits: EngineLimits) -> Running {
    let texts = (0..TOKENS as u32).map(|id| (id > 1).then(|| Digits.token_text(id)));
    let vocabulary = Vocabulary {
        decoder: Arc::new(Digits),
        grammar: Arc::new(NumberGrammar::new(texts, vec![1])),
        number_values: (2..12).map(|id| (id, f64::from(id - 2))).collect(),
        eos_ids: vec![1].into(),
        tokens: TOKENS,
    };
    let (sender, endings) = channel();
    let reports = Arc::new(Reports { endings: Mutex::new(sender), seen: Mutex::default() });
    let (engine, thread) = Engine::spawn(model, vocabulary, limits, Arc::clone(&reports) as _).unwrap();
    Running { engine, thread, reports, endings }
}

/// Spells the prompt's first id as digits that depend on the path, then ends. Other tokens get a little
/// probability.
fn echo(prompt: &[u32], path: &[u32]) -> Result<Vec<f32>, ModelError> {
    let mut logits: Vec<f32> = (0..TOKENS).map(|id| id as f32 * 0.01).collect();
    let favourite = if path.len() < 3 { 2 + (prompt[0] as usize + path.len()) % 10 } else { 1 };
    logits[favourite] = 4.0;
    logits[0] = f32::NEG_INFINITY;
    Ok(logits)
}

fn text(prompt: u32) -> Job {
    Job::new(vec![prompt, 1], Request::Text(TextJob { max_tokens: 8, ..TextJob::default() }))
}

fn number(prompt: u32) -> Job {
    let limits = GrammarLimits::new(5, 0, true).unwrap();
    let method = NumberMethod::Tree { tolerance: 1e-2, nodes_max: 300, precision: None };
    let job = NumberJob { limits, terminator: Terminator::Eos, ..NumberJob::new(method) };
    Job { request: Request::Number(job), ..text(prompt) }
}

fn all(mut events: JobEvents) -> Vec<Event> {
    std::iter::from_fn(|| events.next_blocking()).collect()
}

fn said(events: &[Event]) -> String {
    let text = events.iter().filter_map(|event| match event {
        Event::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    text.collect()
}

/// Returns a script that blocks before its first step, and the sender that unblocks it.
fn gated() -> (Script, Sender<()>) {
    let (open, gate) = channel();
    let mut closed = true;
    let script = move |prompt: &[u32], path: &[u32]| {
        if std::mem::take(&mut closed) {
            gate.recv().unwrap();
        }
        echo(prompt, path)
    };
    (Box::new(script), open)
}

#[test]
fn concurrent_requests_get_the_same_answers_as_alone() {
    let job = |index: u32| if index.is_multiple_of(2) { number(index) } else { text(index) };
    let comparable = |mut events: Vec<Event>| {
        for event in &mut events {
            if let Event::Number(outcome) = event {
                outcome.forward_passes = 0;
            }
        }
        events
    };
    let (script, open) = gated();
    let crowded = start(script, EngineLimits { step_rows_max: 40, ..EngineLimits::default() });
    let streams: Vec<_> = (0..64).map(|index| crowded.engine.submit(job(index)).unwrap()).collect();
    open.send(()).unwrap();
    let together: Vec<_> = streams.into_iter().map(|stream| comparable(all(stream))).collect();
    let alone = start(Box::new(echo), EngineLimits::default());
    for (index, together) in (0..64).zip(together) {
        assert_eq!(together, comparable(all(alone.engine.submit(job(index)).unwrap())), "request {index}");
    }
}

/// A model that accepts one sequence at a time, and the maximum number of contexts that were ever open.
struct OneByOne {
    inner: ScriptedModel,
    open: usize,
    most: Arc<AtomicUsize>,
}

impl BatchModel for OneByOne {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }
    fn begin(&mut self, request: ContextRequest<'_>) -> Result<OpenedContext, ModelError> {
        self.open += 1;
        self.most.fetch_max(self.open, Ordering::SeqCst);
        self.inner.begin(request)
    }
    fn prefill(&mut self, chunks: &[PrefillChunk]) -> Result<Vec<PrefillProgress>, ModelError> {
        self.inner.prefill(chunks)
    }
    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError> {
        self.inner.step(rows)
    }
    fn cache_cost(&self) -> CacheCost {
        self.inner.cache_cost()
    }
    fn sequences_max(&self) -> Option<usize> {
        Some(1)
    }
    fn close(&mut self, context: ContextId) {
        self.open -= 1;
        self.inner.close(context);
    }
}

#[test]
fn a_model_that_accepts_one_sequence_at_a_time_gets_no_more() {
    let (script, open) = gated();
    let most = Arc::new(AtomicUsize::new(0));
    let model = OneByOne { inner: ScriptedModel::new(TOKENS, script), open: 0, most: Arc::clone(&most) };
    let running = start_model(Box::new(model), EngineLimits::default());
    let streams: Vec<_> = (0..5).map(|index| running.engine.submit(text(index)).unwrap()).collect();
    open.send(()).unwrap();
    let said: Vec<String> = streams.into_iter().map(|events| said(&all(events))).collect();
    assert_eq!(said, ["012", "123", "234", "345", "456"]);
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

/// A model that sends the thread on which it begins with an adapter. It has no memory for adapters that are
/// texts.
struct Adapted {
    inner: ScriptedModel,
    open: Arc<AtomicUsize>,
    begun: Sender<(u64, Option<String>)>,
}

impl BatchModel for Adapted {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }
    fn begin(&mut self, request: ContextRequest<'_>) -> Result<OpenedContext, ModelError> {
        if let Some(adapter) = request.adapter {
            let thread = std::thread::current().name().map(str::to_owned);
            self.begun.send((adapter.id(), thread)).unwrap();
            if adapter.weights::<&str>().is_some() {
                return Err(ModelError::Compute("out of memory".into()));
            }
        }
        self.open.fetch_add(1, Ordering::SeqCst);
        self.inner.begin(request)
    }
    fn prefill(&mut self, chunks: &[PrefillChunk]) -> Result<Vec<PrefillProgress>, ModelError> {
        self.inner.prefill(chunks)
    }
    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError> {
        self.inner.step(rows)
    }
    fn cache_cost(&self) -> CacheCost {
        self.inner.cache_cost()
    }
    fn close(&mut self, context: ContextId) {
        self.open.fetch_sub(1, Ordering::SeqCst);
        self.inner.close(context);
    }
}

#[test]
fn the_engines_thread_prepares_an_adapter_and_reports_why_it_cannot() {
    let (sender, begun) = channel();
    let open = Arc::new(AtomicUsize::new(0));
    let inner = ScriptedModel::new(TOKENS, Box::new(echo) as Script);
    let model = Adapted { inner, open: Arc::clone(&open), begun: sender };
    let running = start_model(Box::new(model), EngineLimits::default());
    let fits = Adapter::new(5);
    assert_eq!(running.engine.prepare_adapter(&fits), Ok(()));
    assert_eq!(begun.recv().unwrap(), (fits.id(), Some("ntl-compute".to_owned())));
    assert_eq!(open.load(Ordering::SeqCst), 0, "the context is closed");
    let error = running.engine.prepare_adapter(&Adapter::new("large")).unwrap_err().to_string();
    assert!(error.contains("out of memory"), "{error}");
    assert_eq!(said(&all(running.engine.submit(text(3)).unwrap())), "345", "the engine continues");
}

#[test]
fn a_dropped_receiver_ends_its_job_and_no_other() {
    let (script, open) = gated();
    let Running { engine, thread, reports, endings } = start(script, EngineLimits::default());
    let kept = engine.submit(text(3)).unwrap();
    let dropped = engine.submit(text(4)).unwrap();
    drop(dropped);
    open.send(()).unwrap();
    assert_eq!(said(&all(kept)), "345");
    let mut ended: Vec<_> = endings.iter().take(2).collect();
    ended.sort_by_key(|ending| *ending != EndReason::Abort);
    assert_eq!(ended, [EndReason::Abort, EndReason::Stop]);
    drop(engine);
    thread.join().unwrap();
    assert_eq!(*reports.seen.lock().unwrap(), (0, 0, 0), "no job is waiting or running");
}

#[test]
fn a_failing_step_fails_its_requests_and_the_next_one_works() {
    for panics in [false, true] {
        let script = move |prompt: &[u32], path: &[u32]| match prompt[0] {
            9 if panics => panic!("scripted"),
            9 => Err(ModelError::Compute("scripted".into())),
            _ => echo(prompt, path),
        };
        let running = start(Box::new(script), EngineLimits::default());
        let failed = all(running.engine.submit(text(9)).unwrap());
        let [Event::Failed(EngineError::Step(reason))] = &failed[..] else { panic!("{failed:?}") };
        assert!(reason.contains(if panics { "panicked" } else { "scripted" }), "{reason}");
        assert_eq!(said(&all(running.engine.submit(text(5)).unwrap())), "567");
        assert_eq!(running.endings.iter().take(2).collect::<Vec<_>>(), [EndReason::Error, EndReason::Stop]);
        assert_eq!(running.reports.seen.lock().unwrap().2, usize::from(panics));
    }
}

#[test]
fn a_full_queue_rejects_jobs_and_a_long_prompt_is_rejected_immediately() {
    let (script, open) = gated();
    let limits = EngineLimits { queue_max: 2, running_max: 1, ..EngineLimits::default() };
    let running = start(script, limits);
    let mut accepted = vec![running.engine.submit(text(0)).unwrap()];
    // The first job leaves the queue for the step that waits at the gate. Two more fill the queue.
    let overloaded = loop {
        match running.engine.submit(text(1)) {
            Ok(events) => accepted.push(events),
            Err(error) => break error,
        }
        assert!(accepted.len() <= 3, "one job runs and two wait, but more were accepted");
    };
    assert_eq!(overloaded, EngineError::Overloaded { waiting: 2 });
    let long = Job { prompt: vec![2; 513].into(), ..text(0) };
    assert_eq!(running.engine.submit(long).unwrap_err(), EngineError::PromptTooLong { got: 513, max: 512 });
    open.send(()).unwrap();
    for events in accepted {
        assert!(matches!(all(events).last(), Some(Event::Finished { reason: FinishReason::Stop, .. })));
    }
}

#[test]
fn a_job_past_its_deadline_fails_with_a_deadline_error() {
    let running = start(Box::new(echo), EngineLimits::default());
    let late = Job { deadline: Some((Instant::now(), Duration::from_millis(250))), ..number(1) };
    let events = all(running.engine.submit(late).unwrap());
    assert_eq!(events, [Event::Failed(EngineError::Deadline { after_ms: 250 })]);
    assert_eq!(running.endings.recv().unwrap(), EndReason::Deadline);
}
