//! Faults at every point where the engine's thread runs code of a model or a decoding. They end only their
//! own requests; no request is lost or gets an incorrect answer.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use ntl_core::contract::{
    BatchModel, CacheCost, ContextId, ContextRequest, EngineError, Event, EvictableCache, FinishReason, Job,
    Logits, ModelError, ModelInfo, NodeCapacity, OpenedContext, PrefillChunk, PrefillProgress, Request, Row,
    TextJob,
};
use ntl_core::decoding::Vocabulary;
use ntl_core::numbers::NumberGrammar;
use ntl_core::scripted::ScriptedModel;
use ntl_core::text::TextDecoder;
use ntl_engine::{CacheUse, EndReason, Engine, EngineLimits, EngineObserver, JobEvents};

use crate::recorder::all;

/// Ids: 0 start, 1 end, 2..11 the digits, 11 the token whose text is faulty.
const TOKENS: usize = 12;
const FAULTY_TOKEN: u32 = 11;

/// First id of the faulty prompt, and of the prompts that share a batch with it.
const FAULTY: u32 = 9;
const NEIGHBOUR: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    BeginFails,
    BeginPanics,
    PrefillFails,
    PrefillPanics,
    PrefillLosesAPrompt,
    StepFails,
    StepPanics,
    StepLosesARow,
    LogitsAreNotFinite,
    DecodingPanics,
    StartOfDecodingPanics,
    /// A step fails, and no call can succeed afterwards.
    DeviceLost,
}

impl Fault {
    const ALL: [Self; 11] = [
        Self::BeginFails,
        Self::BeginPanics,
        Self::PrefillFails,
        Self::PrefillPanics,
        Self::PrefillLosesAPrompt,
        Self::StepFails,
        Self::StepPanics,
        Self::StepLosesARow,
        Self::LogitsAreNotFinite,
        Self::DecodingPanics,
        Self::StartOfDecodingPanics,
    ];

    /// Returns whether the fault is in a call for several requests, which then all fail.
    fn is_shared(self) -> bool {
        matches!(
            self,
            Self::PrefillFails
                | Self::PrefillPanics
                | Self::PrefillLosesAPrompt
                | Self::StepFails
                | Self::StepPanics
                | Self::StepLosesARow
        )
    }

    /// Returns whether a call of the model fails.
    fn is_in_the_model(self) -> bool {
        self.is_shared() || matches!(self, Self::BeginFails | Self::BeginPanics)
    }

    fn panics(self) -> bool {
        matches!(
            self,
            Self::BeginPanics
                | Self::PrefillPanics
                | Self::StepPanics
                | Self::DecodingPanics
                | Self::StartOfDecodingPanics
        )
    }
}

struct FaultyDecoder;

impl TextDecoder for FaultyDecoder {
    fn decode(&self, ids: &[u32]) -> String {
        assert!(!ids.contains(&FAULTY_TOKEN), "scripted");
        ids.iter().map(|id| (id % 10).to_string()).collect()
    }
    fn token_text(&self, id: u32) -> String {
        (id % 10).to_string()
    }
    fn settled_len(&self, text: &str) -> usize {
        text.len()
    }
}

/// Size of the prefixes that the model keeps, in bytes.
const PREFIXES: u64 = 7;

struct Prefixes(AtomicU64);

impl EvictableCache for Prefixes {
    fn bytes(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn evict(&self, bytes: u64) {
        self.0.store(self.bytes().saturating_sub(bytes), Ordering::SeqCst);
    }
}

struct FaultyModel {
    model: ScriptedModel,
    fault: Fault,
    faulty: BTreeSet<ContextId>,
    prefixes: Arc<Prefixes>,
    open: Arc<Mutex<BTreeSet<ContextId>>>,
    gate: Option<Receiver<()>>,
    entered: Sender<()>,
}

impl BatchModel for FaultyModel {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }
    fn begin(&mut self, request: ContextRequest<'_>) -> Result<OpenedContext, ModelError> {
        let is_faulty = request.prompt.tokens[0].id == FAULTY;
        match self.fault {
            Fault::BeginFails if is_faulty => return Err(ModelError::Compute("scripted".into())),
            Fault::BeginPanics if is_faulty => panic!("scripted"),
            _ => {}
        }
        let opened = self.model.begin(request)?;
        self.faulty.extend(is_faulty.then_some(opened.context));
        self.open.lock().unwrap().insert(opened.context);
        Ok(opened)
    }
    fn prefill(&mut self, chunks: &[PrefillChunk]) -> Result<Vec<PrefillProgress>, ModelError> {
        let mut progress = self.model.prefill(chunks)?;
        if chunks.iter().any(|chunk| self.faulty.contains(&chunk.context)) {
            match self.fault {
                Fault::PrefillFails => return Err(ModelError::Compute("scripted".into())),
                Fault::PrefillPanics => panic!("scripted"),
                Fault::PrefillLosesAPrompt => drop(progress.pop()),
                _ => {}
            }
        }
        Ok(progress)
    }
    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError> {
        if let Some(gate) = self.gate.take() {
            self.entered.send(()).unwrap();
            gate.recv().unwrap();
        }
        if rows.iter().any(|row| self.faulty.contains(&row.context)) {
            match self.fault {
                Fault::StepFails | Fault::DeviceLost => return Err(ModelError::Compute("scripted".into())),
                Fault::StepPanics => panic!("scripted"),
                Fault::StepLosesARow => return self.model.step(&rows[1..]),
                _ => {}
            }
        }
        self.model.step(rows)
    }
    fn check_device(&mut self) -> Result<(), ModelError> {
        if self.fault == Fault::DeviceLost { Err(ModelError::DeviceLost("scripted".into())) } else { Ok(()) }
    }
    fn cache_cost(&self) -> CacheCost {
        CacheCost { prompt_token: 1, node: 1, capacity: NodeCapacity::PowerOfTwo { min: 32 } }
    }
    fn evictable_cache(&self) -> Option<Arc<dyn EvictableCache>> {
        Some(Arc::clone(&self.prefixes) as _)
    }
    fn close(&mut self, context: ContextId) {
        self.open.lock().unwrap().remove(&context);
        self.model.close(context);
    }
}

#[derive(Default)]
struct Counts(Mutex<(Vec<EndReason>, usize)>);

impl EngineObserver for Counts {
    fn on_end(&self, reason: EndReason) {
        self.0.lock().unwrap().0.push(reason);
    }
    fn on_panic(&self) {
        self.0.lock().unwrap().1 += 1;
    }
}

struct Faulted {
    engine: Engine,
    counts: Arc<Counts>,
    open: Arc<Mutex<BTreeSet<ContextId>>>,
    gate: Sender<()>,
    entered: Receiver<()>,
}

fn start(fault: Fault) -> Faulted {
    let script = move |prompt: &[u32], path: &[u32]| {
        let next = if path.len() >= 6 { 1 } else { 2 + (prompt[0] + path.len() as u32) % 9 };
        let is_faulty = prompt[0] == FAULTY && path.len() == 2;
        let next = if is_faulty && fault == Fault::DecodingPanics { FAULTY_TOKEN } else { next };
        let other = if is_faulty && fault == Fault::LogitsAreNotFinite { f32::NAN } else { 0.0 };
        Ok((0..TOKENS as u32).map(|id| if id == next { 9.0 } else { other }).collect())
    };
    let model = ScriptedModel::new(TOKENS, Box::new(script));
    // The prompt of such a model is part of the text, and a decoding starts by reading it.
    let model = model.with_info(|info| info.encoder_decoder = fault != Fault::StartOfDecodingPanics);
    let open = Arc::<Mutex<BTreeSet<ContextId>>>::default();
    let ((gate, receiver), (entered, has_entered)) = (channel(), channel());
    let model = FaultyModel {
        model,
        fault,
        faulty: BTreeSet::new(),
        prefixes: Arc::new(Prefixes(AtomicU64::new(PREFIXES))),
        open: Arc::clone(&open),
        gate: Some(receiver),
        entered,
    };
    let vocabulary = Vocabulary {
        decoder: Arc::new(FaultyDecoder),
        grammar: Arc::new(NumberGrammar::new((0..TOKENS).map(|_| None::<String>), vec![1])),
        number_values: Arc::from([]),
        eos_ids: vec![1].into(),
        tokens: TOKENS,
    };
    let counts = Arc::<Counts>::default();
    let limits = EngineLimits::default();
    let (engine, _) = Engine::spawn(Box::new(model), vocabulary, limits, Arc::clone(&counts) as _).unwrap();
    Faulted { engine, counts, open, gate, entered: has_entered }
}

fn text(fault: Fault, mark: u32) -> Job {
    let second = if mark == FAULTY && fault == Fault::StartOfDecodingPanics { FAULTY_TOKEN } else { 2 };
    let text = TextJob { max_tokens: 8, ..TextJob::default() };
    Job::new(vec![mark, second, 2], Request::Text(text))
}

/// Returns how a job ended. Only its last event may end it.
fn ended(events: JobEvents) -> Result<String, EngineError> {
    let mut events = all(events);
    let last = events.pop().unwrap();
    let mut said = String::new();
    for event in events {
        let Event::Text { text, .. } = event else { panic!("{event:?} is not the last event") };
        said.push_str(&text);
    }
    match last {
        Event::Finished { reason: FinishReason::Stop, .. } => Ok(said),
        Event::Failed(error) => Err(error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn any_fault_ends_only_its_own_requests_and_the_others_get_correct_answers() {
    for fault in Fault::ALL {
        let alone = |mark: u32| {
            let healthy = start(Fault::PrefillFails);
            healthy.gate.send(()).unwrap();
            ended(healthy.engine.submit(text(Fault::PrefillFails, mark)).unwrap()).unwrap()
        };
        let faulted = start(fault);
        let submit = |mark| faulted.engine.submit(text(fault, mark)).unwrap();
        let first = submit(2);
        faulted.entered.recv().unwrap();
        // Both are prefilled and stepped together, and join a text that is already running.
        let neighbour = submit(NEIGHBOUR);
        let faulty = submit(FAULTY);
        faulted.gate.send(()).unwrap();
        let reason = match ended(faulty) {
            Err(EngineError::Step(reason)) => reason,
            other => panic!("{fault:?}: {other:?}"),
        };
        assert_eq!(reason.contains("panicked"), fault.panics(), "{reason}");
        let (mut right, mut failed) = (0, 1);
        for (mark, events) in [(2, first), (NEIGHBOUR, neighbour)] {
            match ended(events) {
                Ok(said) => {
                    assert_eq!(said, alone(mark), "{fault:?}");
                    right += 1;
                }
                Err(error) => {
                    assert!(fault.is_shared(), "{fault:?} failed a neighbour: {error}");
                    failed += 1;
                }
            }
        }
        assert_eq!(ended(submit(5)), Ok(alone(5)), "after {fault:?}");
        let (endings, panics) = std::mem::take(&mut *faulted.counts.0.lock().unwrap());
        let count = |reason| endings.iter().filter(|ending| **ending == reason).count();
        assert_eq!((count(EndReason::Stop), count(EndReason::Error)), (right + 1, failed), "{fault:?}");
        assert_eq!(endings.len(), 4);
        assert_eq!(panics, usize::from(fault.panics()), "{fault:?}");
        assert!(faulted.engine.is_alive());
        // A call that failed may have lacked the memory that prefixes occupy.
        let prefixes = if fault.is_in_the_model() { 0 } else { PREFIXES };
        assert_eq!(faulted.engine.cache_use(), CacheUse { running: 0, prefixes }, "{fault:?}");
        assert!(faulted.open.lock().unwrap().is_empty(), "{fault:?} left a context open");
    }
}

#[test]
fn a_lost_device_fails_all_requests_with_the_reason_and_ends_the_engine() {
    let faulted = start(Fault::DeviceLost);
    let submit = |mark| faulted.engine.submit(text(Fault::DeviceLost, mark)).unwrap();
    let first = submit(2);
    faulted.entered.recv().unwrap();
    let others = [FAULTY, NEIGHBOUR].map(submit);
    faulted.gate.send(()).unwrap();
    let reason = "the device cannot be used any more: scripted";
    for events in [first].into_iter().chain(others) {
        assert_eq!(ended(events), Err(EngineError::DeviceLost(reason.to_owned())));
    }
    while faulted.engine.is_alive() {
        std::thread::yield_now();
    }
    assert_eq!(faulted.engine.lost_device(), Some(reason));
    assert_eq!(faulted.counts.0.lock().unwrap().0, [EndReason::Error; 3]);
    assert!(faulted.open.lock().unwrap().is_empty());
    assert_eq!(faulted.engine.submit(text(Fault::DeviceLost, 4)).err(), Some(EngineError::Dead));
}
