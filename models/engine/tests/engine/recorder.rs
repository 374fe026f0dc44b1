//! A model that records its calls, and an engine that runs it.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use ntl_core::contract::{
    BatchModel, CacheCost, ContextId, ContextRequest, Event, Interruption, Job, Logits, ModelError,
    ModelInfo, NodeCapacity, NumberJob, NumberMethod, OpenedContext, PrefillChunk, PrefillProgress, Request,
    Row, Terminator, TextJob,
};
use ntl_core::decoding::Vocabulary;
use ntl_core::numbers::{GrammarLimits, NumberGrammar};
use ntl_core::scripted::ScriptedModel;
use ntl_core::text::TextDecoder;
use ntl_engine::{CacheBudget, EndReason, Engine, EngineLimits, EngineObserver, JobEvents};

/// Ids: 0 start, 1 end, 2..12 the digits.
const TOKENS: usize = 12;

/// Size of a prompt token or a node.
pub(crate) const MIB: u64 = 1 << 20;

struct Digits;

impl TextDecoder for Digits {
    fn decode(&self, ids: &[u32]) -> String {
        ids.iter().map(|id| (id % 10).to_string()).collect()
    }
    fn token_text(&self, id: u32) -> String {
        self.decode(&[id])
    }
    fn settled_len(&self, text: &str) -> usize {
        text.len()
    }
}

/// A value that one thread changes and another one waits for.
#[derive(Default)]
pub(crate) struct Watched<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Watched<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `condition` holds.
    pub(crate) fn wait_for(&self, mut condition: impl FnMut(&T) -> bool) {
        drop(self.changed.wait_while(self.lock(), |value| !condition(value)).unwrap());
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    /// First id of each prompt, and the work that was requested.
    Prefill(Vec<(u32, usize)>),
    /// Number of rows by the first id of their prompt.
    Step(BTreeMap<u32, usize>),
}

#[derive(Default)]
pub(crate) struct Log {
    /// All calls, in order.
    pub(crate) calls: Vec<Call>,
    /// Number of nodes of each open context.
    pub(crate) open: BTreeMap<ContextId, usize>,
    pub(crate) open_most: usize,
    pub(crate) nodes_most: usize,
    /// First id of each prompt.
    pub(crate) marks: BTreeMap<ContextId, u32>,
    /// Number of steps until the last context with this first id was closed.
    pub(crate) closed: BTreeMap<u32, usize>,
    /// Whether the first step has started.
    pub(crate) stepping: bool,
    pub(crate) steps: usize,
}

impl Log {
    pub(crate) fn prefills(&self) -> Vec<&Vec<(u32, usize)>> {
        let calls = self.calls.iter();
        calls
            .filter_map(|call| if let Call::Prefill(prompts) = call { Some(prompts) } else { None })
            .collect()
    }

    pub(crate) fn rows(&self) -> Vec<&BTreeMap<u32, usize>> {
        let calls = self.calls.iter();
        calls.filter_map(|call| if let Call::Step(rows) = call { Some(rows) } else { None }).collect()
    }
}

/// First id of prompts whose prefills wait for one message each.
pub(crate) const GATED: u32 = 7;

/// First id of prompts whose second prefill fails.
pub(crate) const FAILING: u32 = 8;

/// First id of prompts that are cached, except for their last tokens.
pub(crate) const CACHED: u32 = 9;
pub(crate) const UNCACHED_TOKENS: usize = 2;

/// First id of prompts that are more work than their tokens.
pub(crate) const LABORIOUS: u32 = 40;
const ADDITIONAL_WORK: usize = 6;

/// First id of prompts that are computed by a device after the call, in this time per token.
pub(crate) const ON_DEVICE: u32 = 6;
pub(crate) const DEVICE_TIME: Duration = Duration::from_millis(8);

/// Writes the digit 2 forever. The first step waits for the gate.
struct Recorder {
    model: ScriptedModel,
    log: Arc<Watched<Log>>,
    gate: Option<Receiver<()>>,
    prefill_gate: Receiver<()>,
    prefill_tokens_max: Option<usize>,
    /// The time of the last prefill on the device.
    device_time: Option<Duration>,
    /// Number of times that a pass can be interrupted.
    layers: usize,
}

impl Recorder {
    /// Waits at the gate in the first step.
    fn wait(&mut self) {
        if let Some(gate) = self.gate.take() {
            self.log.change(|log| log.stepping = true);
            let _ = gate.recv();
        }
    }

    fn be_interrupted(&mut self, interruption: &mut dyn Interruption) {
        for _ in 0..self.layers {
            if interruption.is_due() {
                interruption.serve(self);
            }
        }
    }
}

impl BatchModel for Recorder {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }
    fn begin(&mut self, request: ContextRequest<'_>) -> Result<OpenedContext, ModelError> {
        let mut opened = self.model.begin(request)?;
        if request.prompt.tokens[0].id == CACHED {
            let cached_tokens = opened.prefill.work_left - UNCACHED_TOKENS;
            let chunk = PrefillChunk { context: opened.context, work: cached_tokens };
            opened.prefill = PrefillProgress { cached_tokens, ..self.model.prefill(&[chunk])?[0] };
        }
        if request.prompt.tokens[0].id == LABORIOUS {
            opened.prefill.work_left += ADDITIONAL_WORK;
        }
        let mut log = self.log.lock();
        log.open.insert(opened.context, 0);
        log.marks.insert(opened.context, request.prompt.tokens[0].id);
        log.open_most = log.open_most.max(log.open.len());
        Ok(opened)
    }
    fn prefill(&mut self, chunks: &[PrefillChunk]) -> Result<Vec<PrefillProgress>, ModelError> {
        let mark = |log: &Log, chunk: &PrefillChunk| (log.marks[&chunk.context], chunk.work);
        let marks: Vec<_> = chunks.iter().map(|chunk| mark(&self.log.lock(), chunk)).collect();
        let has = |mark| marks.iter().any(|(found, _)| *found == mark);
        let was_computed = self.log.lock().prefills().into_iter().flatten().any(|(mark, _)| *mark == FAILING);
        let fails = has(FAILING) && was_computed;
        let is_gated = has(GATED);
        let work: usize = chunks.iter().map(|chunk| chunk.work).sum();
        self.device_time = has(ON_DEVICE).then(|| DEVICE_TIME * work as u32);
        self.log.change(|log| log.calls.push(Call::Prefill(marks)));
        if is_gated {
            // Without a sender, all pass.
            let _ = self.prefill_gate.recv();
        }
        if fails { Err(ModelError::Compute("scripted".into())) } else { self.model.prefill(chunks) }
    }
    fn prefill_time(&mut self) -> Option<Duration> {
        self.device_time.take()
    }
    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError> {
        self.wait();
        let mut log = self.log.lock();
        log.steps += 1;
        let mut by_mark = BTreeMap::new();
        for row in rows {
            *by_mark.entry(log.marks[&row.context]).or_default() += 1;
            *log.open.get_mut(&row.context).unwrap() += 1;
        }
        log.calls.push(Call::Step(by_mark));
        log.nodes_most = log.nodes_most.max(log.open.values().sum());
        drop(log);
        self.model.step(rows)
    }
    fn prefill_interruptibly(
        &mut self,
        chunks: &[PrefillChunk],
        interruption: &mut dyn Interruption,
    ) -> Result<Vec<PrefillProgress>, ModelError> {
        let progress = self.prefill(chunks)?;
        self.be_interrupted(interruption);
        Ok(progress)
    }
    fn step_interruptibly(
        &mut self,
        rows: &[Row],
        interruption: &mut dyn Interruption,
    ) -> Result<Logits, ModelError> {
        self.wait();
        self.be_interrupted(interruption);
        self.step(rows)
    }
    fn cache_cost(&self) -> CacheCost {
        CacheCost { prompt_token: MIB, node: MIB, capacity: NodeCapacity::Exact }
    }
    fn prefill_tokens_max(&self) -> usize {
        self.prefill_tokens_max.unwrap_or(self.model.prefill_tokens_max())
    }
    fn close(&mut self, context: ContextId) {
        self.log.change(|log| {
            log.open.remove(&context);
            log.closed.insert(log.marks[&context], log.steps);
        });
        self.model.close(context);
    }
}

#[derive(Default)]
pub(crate) struct Endings {
    pub(crate) reasons: Vec<EndReason>,
    pub(crate) panics: usize,
}

impl EngineObserver for Watched<Endings> {
    fn on_end(&self, reason: EndReason) {
        self.change(|endings| endings.reasons.push(reason));
    }
    fn on_panic(&self) {
        self.change(|endings| endings.panics += 1);
    }
}

pub(crate) struct Recorded {
    pub(crate) engine: Engine,
    pub(crate) log: Arc<Watched<Log>>,
    pub(crate) gate: Sender<()>,
    pub(crate) prefill_gate: Sender<()>,
    pub(crate) endings: Arc<Watched<Endings>>,
}

/// Returns limits for tests that do not concern memory or time.
pub(crate) fn plenty() -> EngineLimits {
    EngineLimits {
        cache_bytes_max: 1 << 60,
        prefill_time_max: Duration::MAX,
        unread_time_max: Duration::MAX,
        ..EngineLimits::default()
    }
}

pub(crate) fn start(limits: EngineLimits) -> Recorded {
    start_opening(None, limits)
}

/// Starts an engine on a model that prefills at most `prefill_tokens_max` prompt tokens per call, or the
/// default.
pub(crate) fn start_opening(prefill_tokens_max: Option<usize>, limits: EngineLimits) -> Recorded {
    start_with_layers(0, prefill_tokens_max, limits)
}

/// Like [`start_opening`], with a model whose passes can be interrupted as many times as it has `layers`.
pub(crate) fn start_with_layers(
    layers: usize,
    prefill_tokens_max: Option<usize>,
    limits: EngineLimits,
) -> Recorded {
    start_sharing(&CacheBudget::new(limits.cache_bytes_max), layers, prefill_tokens_max, limits)
}

/// Like [`start_with_layers`], with memory that other engines use, too.
pub(crate) fn start_sharing(
    budget: &CacheBudget,
    layers: usize,
    prefill_tokens_max: Option<usize>,
    limits: EngineLimits,
) -> Recorded {
    let texts = (0..TOKENS as u32).map(|id| (id > 1).then(|| Digits.token_text(id)));
    let vocabulary = Vocabulary {
        decoder: Arc::new(Digits),
        grammar: Arc::new(NumberGrammar::new(texts, vec![1])),
        number_values: Arc::from([]),
        eos_ids: vec![1].into(),
        tokens: TOKENS,
    };
    let (gate, receiver) = channel();
    let (prefill_gate, prefill_receiver) = channel();
    let log = Arc::<Watched<Log>>::default();
    let script = |_: &[u32], _: &[u32]| Ok((0..TOKENS).map(|id| if id == 2 { 1.0 } else { 0.0 }).collect());
    let model = ScriptedModel::new(TOKENS, Box::new(script));
    let recorder = Recorder {
        model,
        log: Arc::clone(&log),
        gate: Some(receiver),
        prefill_gate: prefill_receiver,
        prefill_tokens_max,
        device_time: None,
        layers,
    };
    let endings = Arc::<Watched<Endings>>::default();
    let observer = Arc::clone(&endings) as _;
    let (engine, _) =
        Engine::spawn_sharing(budget, Box::new(recorder), vocabulary, limits, observer).unwrap();
    Recorded { engine, log, gate, prefill_gate, endings }
}

/// Returns a job for a text of `tokens` tokens after a prompt that begins with `mark`.
pub(crate) fn job(client: u64, mark: u32, prompt: usize, tokens: usize) -> Job {
    let text = TextJob { max_tokens: tokens, ..TextJob::default() };
    Job { client, ..Job::new([vec![mark], vec![1; prompt - 1]].concat(), Request::Text(text)) }
}

pub(crate) fn all(mut events: JobEvents) -> Vec<Event> {
    std::iter::from_fn(|| events.next_blocking()).collect()
}

impl Recorded {
    /// Opens the gate, reads all answers, and returns which prompts were prefilled together.
    pub(crate) fn opened(&self, answers: Vec<JobEvents>) -> Vec<Vec<u32>> {
        self.gate.send(()).unwrap();
        for events in answers {
            assert!(matches!(all(events).last(), Some(Event::Finished { .. })));
        }
        let marks = |prompts: &Vec<(u32, usize)>| prompts.iter().map(|(mark, _)| *mark).collect();
        self.log.lock().prefills().into_iter().map(marks).collect()
    }

    /// Starts the first step, which waits at the gate, with this job.
    pub(crate) fn first(&self, job: Job) -> JobEvents {
        let events = self.engine.submit(job).unwrap();
        self.log.wait_for(|log| log.stepping);
        events
    }
}

/// Returns a tree that never reaches its tolerance.
pub(crate) fn tree(nodes_max: usize) -> Job {
    let method = NumberMethod::Tree { tolerance: 1e-12, nodes_max, precision: None };
    let limits = GrammarLimits::new(8, 0, false).unwrap();
    let number = NumberJob { limits, terminator: Terminator::Any, ..NumberJob::new(method) };
    Job::new(vec![2, 1], Request::Number(number))
}
