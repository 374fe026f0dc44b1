//! What an engine takes on, in which order, and what it does when nobody reads: with a scripted model that writes down
//! how it is called.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ntl_core::decoding::Vocabulary;
use ntl_core::engine::{
    BatchModel, CacheCost, ContextId, ContextRequest, EngineError, Event, Job, Logits, ModelError, ModelInfo,
    NumberJob, NumberMethod, NumberOutcome, OpenedContext, Request, Row, Terminator, TextJob,
};
use ntl_core::numbers::{GrammarLimits, NumberGrammar};
use ntl_core::sampling::{Guide, GuideError, GuideState};
use ntl_core::scripted::ScriptedModel;
use ntl_core::text::TextDecoder;
use ntl_engine::{EndReason, Engine, EngineLimits, EngineObserver, JobEvents};

/// Ids: 0 start, 1 end, 2..12 the digits.
const TOKENS: usize = 12;

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

#[derive(Default)]
struct Log {
    /// The first ids of the prompts of each call.
    opened: Vec<Vec<u32>>,
    /// Nodes of each context that is open.
    open: BTreeMap<ContextId, usize>,
    open_most: usize,
    nodes_most: usize,
    /// Whether the first step has begun.
    stepping: bool,
    steps: usize,
}

/// Writes 2 for ever; the first step waits for the gate.
struct Recorder {
    model: ScriptedModel,
    log: Arc<Mutex<Log>>,
    gate: Option<Receiver<()>>,
}

impl BatchModel for Recorder {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }
    fn open(&mut self, requests: &[ContextRequest<'_>]) -> Result<Vec<OpenedContext>, ModelError> {
        let opened = self.model.open(requests)?;
        let mut log = self.log.lock().unwrap();
        log.opened.push(requests.iter().map(|request| request.prompt.tokens[0].id).collect());
        log.open.extend(opened.iter().map(|opened| (opened.context, 0)));
        log.open_most = log.open_most.max(log.open.len());
        Ok(opened)
    }
    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError> {
        if let Some(gate) = self.gate.take() {
            self.log.lock().unwrap().stepping = true;
            let _ = gate.recv();
        }
        let mut log = self.log.lock().unwrap();
        log.steps += 1;
        for row in rows {
            *log.open.get_mut(&row.context).unwrap() += 1;
        }
        log.nodes_most = log.nodes_most.max(log.open.values().sum());
        drop(log);
        self.model.step(rows)
    }
    fn cache_cost(&self) -> CacheCost {
        CacheCost { prompt_token: 1, node: 1 }
    }
    fn close(&mut self, context: ContextId) {
        self.log.lock().unwrap().open.remove(&context);
        self.model.close(context);
    }
}

#[derive(Default)]
struct Endings(Mutex<(Vec<EndReason>, usize)>);

impl EngineObserver for Endings {
    fn on_end(&self, ending: EndReason) {
        self.0.lock().unwrap().0.push(ending);
    }
    fn on_panic(&self) {
        self.0.lock().unwrap().1 += 1;
    }
}

struct Recorded {
    engine: Engine,
    log: Arc<Mutex<Log>>,
    gate: Sender<()>,
    endings: Arc<Endings>,
}

fn start(limits: EngineLimits) -> Recorded {
    let texts = (0..TOKENS as u32).map(|id| (id > 1).then(|| Digits.token_text(id)));
    let vocabulary = Vocabulary {
        decoder: Arc::new(Digits),
        grammar: Arc::new(NumberGrammar::new(texts, vec![1])),
        number_values: Arc::from([]),
        eos_ids: vec![1].into(),
        tokens: TOKENS,
    };
    let (gate, receiver) = channel();
    let log = Arc::<Mutex<Log>>::default();
    let script = |_: &[u32], _: &[u32]| Ok((0..TOKENS).map(|id| if id == 2 { 1.0 } else { 0.0 }).collect());
    let model = ScriptedModel::new(TOKENS, Box::new(script));
    let recorder = Recorder { model, log: Arc::clone(&log), gate: Some(receiver) };
    let endings = Arc::<Endings>::default();
    let (engine, _) =
        Engine::spawn(Box::new(recorder), vocabulary, limits, Arc::clone(&endings) as _).unwrap();
    Recorded { engine, log, gate, endings }
}

/// A text of so many tokens behind a prompt that begins with `mark`.
fn job(client: u64, mark: u32, prompt: usize, tokens: usize) -> Job {
    let text = TextJob { max_tokens: tokens, ..TextJob::default() };
    Job { client, ..Job::new([vec![mark], vec![1; prompt - 1]].concat(), Request::Text(text)) }
}

fn all(mut events: JobEvents) -> Vec<Event> {
    std::iter::from_fn(|| events.next_blocking()).collect()
}

impl Recorded {
    /// Lets the engine go, reads all answers, and returns what was opened together.
    fn opened(&self, answers: Vec<JobEvents>) -> Vec<Vec<u32>> {
        self.gate.send(()).unwrap();
        for events in answers {
            assert!(matches!(all(events).last(), Some(Event::Finished { .. })));
        }
        self.log.lock().unwrap().opened.clone()
    }

    /// Begins the first step with this job, which then waits for the gate.
    fn first(&self, job: Job) -> JobEvents {
        let events = self.engine.submit(job).unwrap();
        while !self.log.lock().unwrap().stepping {
            std::thread::yield_now();
        }
        events
    }
}

#[test]
fn clients_take_turns_however_much_each_asks_for() {
    let recorded = start(EngineLimits { running_max: 1, ..EngineLimits::default() });
    let mut answers = vec![recorded.first(job(9, 2, 2, 1))];
    let jobs = |client, marks: std::ops::Range<u32>| marks.map(move |mark| job(client, mark, 2, 1)).collect();
    answers.extend(recorded.engine.submit_all(jobs(1, 10..15)).unwrap());
    answers.extend(recorded.engine.submit_all(jobs(2, 20..22)).unwrap());
    answers.extend(recorded.engine.submit_all(jobs(3, 30..31)).unwrap());
    let order = recorded.opened(answers).concat();
    assert_eq!(order, [2, 10, 20, 30, 11, 21, 12, 13, 14]);
}

#[test]
fn long_prompts_are_opened_alone_and_starve_nobody() {
    let recorded = start(EngineLimits { open_tokens_max: 10, ..EngineLimits::default() });
    let mut answers = vec![recorded.first(job(9, 2, 2, 50))];
    let long = (10..13).map(|mark| job(1, mark, 100, 1)).collect();
    answers.extend(recorded.engine.submit_all(long).unwrap());
    let short = (20..26).map(|mark| job(2, mark, 4, 1)).collect();
    answers.extend(recorded.engine.submit_all(short).unwrap());
    let opened = recorded.opened(answers);
    assert_eq!(
        opened,
        [vec![2], vec![10], vec![20], vec![11], vec![21], vec![12], vec![22, 23], vec![24, 25]]
    );
    // One step between two openings: the first text went on all the while.
    assert!(recorded.log.lock().unwrap().steps >= 50);
}

#[test]
fn contexts_never_hold_more_than_the_cache_and_what_cannot_fit_is_refused() {
    // Each job: 2 prompt tokens, 8 tokens and the first row.
    let recorded = start(EngineLimits { cache_bytes_max: 25, ..EngineLimits::default() });
    let mut answers = vec![recorded.first(job(0, 2, 2, 8))];
    answers.extend(recorded.engine.submit_all((0..20).map(|_| job(0, 3, 2, 8)).collect()).unwrap());
    let error = recorded.engine.submit(job(0, 4, 2, 23)).unwrap_err();
    assert_eq!(error, EngineError::TooLarge { needs: 26, max: 25 });
    recorded.opened(answers);
    assert_eq!(recorded.log.lock().unwrap().open_most, 2);
}

/// A tree that never comes to its tolerance.
fn tree(nodes_max: usize) -> Job {
    let method = NumberMethod::Tree { tolerance: 1e-12, nodes_max, precision: None };
    let limits = GrammarLimits::new(8, 0, false).unwrap();
    let number = NumberJob { method, limits, terminator: Terminator::Any, range: None, after: None };
    Job::new(vec![2, 1], Request::Number(number))
}

fn outcome(events: JobEvents) -> NumberOutcome {
    match all(events).pop() {
        Some(Event::Number(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

#[test]
fn trees_that_outgrow_what_they_are_expected_to_need_take_turns() {
    let recorded = start(EngineLimits { cache_bytes_max: 3000, ..EngineLimits::default() });
    let trees = recorded.engine.submit_all((0..5).map(|_| tree(2000)).collect()).unwrap();
    recorded.gate.send(()).unwrap();
    let outcomes: Vec<_> = trees.into_iter().map(outcome).collect();
    assert!(outcomes.iter().all(|outcome| outcome.nodes == outcomes[0].nodes && outcome.truncated));
    let log = recorded.log.lock().unwrap();
    assert_eq!(log.open_most, 5, "all were begun at once");
    assert!(log.nodes_most <= 3000 + 2000, "{} nodes at once", log.nodes_most);
}

#[test]
fn a_tree_gets_the_budget_that_the_cache_can_hold() {
    let recorded = start(EngineLimits { cache_bytes_max: 300, ..EngineLimits::default() });
    recorded.gate.send(()).unwrap();
    let found = outcome(recorded.engine.submit(tree(65_536)).unwrap());
    assert!(found.truncated && (250..=300).contains(&found.nodes), "{} nodes", found.nodes);
}

#[test]
fn a_request_is_taken_whole_or_not_at_all() {
    let recorded = start(EngineLimits { queue_max: 4, running_max: 1, ..EngineLimits::default() });
    let mut answers = vec![recorded.first(job(0, 2, 2, 1))];
    let jobs = |count| (0..count).map(|_| job(0, 3, 2, 1)).collect::<Vec<_>>();
    let error = recorded.engine.submit_all(jobs(5)).unwrap_err();
    assert_eq!(error, EngineError::Overloaded { waiting: 0 });
    answers.extend(recorded.engine.submit_all(jobs(3)).unwrap());
    let two = Job::new(vec![5, 1], Request::Text(TextJob { n: 2, ..TextJob::default() }));
    assert_eq!(recorded.engine.submit(two).unwrap_err(), EngineError::Overloaded { waiting: 3 });
    answers.push(recorded.engine.submit(job(0, 3, 2, 1)).unwrap());
    assert_eq!(recorded.opened(answers).concat().len(), 5);
}

/// An engine that has begun one of four jobs, and how long it lets them wait: as short as this machine is fast.
fn begun_in_time() -> (Duration, Recorded, Vec<JobEvents>) {
    let mut waits = Duration::from_millis(1);
    loop {
        let limits = EngineLimits { queue_time_max: Some(waits), running_max: 2, ..EngineLimits::default() };
        let recorded = start(limits);
        let jobs = recorded.engine.submit_all((0..4).map(|mark| job(0, mark + 2, 2, 1)).collect()).unwrap();
        let is_late = || recorded.endings.0.lock().unwrap().0.contains(&EndReason::Deadline);
        while !recorded.log.lock().unwrap().stepping && !is_late() {
            std::thread::yield_now();
        }
        if !is_late() {
            return (waits, recorded, jobs);
        }
        waits *= 10;
    }
}

#[test]
fn a_request_that_waits_too_long_is_given_up_unless_a_part_of_it_has_begun() {
    let (waits, recorded, begun) = begun_in_time();
    let late = recorded.engine.submit(job(0, 9, 2, 1)).unwrap();
    let submitted = Instant::now();
    while submitted.elapsed() <= waits {
        std::thread::yield_now();
    }
    recorded.gate.send(()).unwrap();
    let after_ms = waits.as_millis() as u64;
    assert_eq!(all(late), [Event::Failed(EngineError::QueueTimeout { after_ms })]);
    for events in begun {
        assert!(matches!(all(events).last(), Some(Event::Finished { .. })));
    }
    assert_eq!(
        recorded.endings.0.lock().unwrap().0.iter().filter(|end| **end == EndReason::Deadline).count(),
        1
    );
}

/// Answers short jobs until the engine has stopped stepping everything else.
fn stalled(recorded: &Recorded) -> usize {
    let mut last = 0;
    loop {
        all(recorded.engine.submit(job(1, 3, 2, 4)).unwrap());
        let steps = recorded.log.lock().unwrap().steps;
        // Its own steps and no others.
        if steps - last == 4 {
            return steps;
        }
        last = steps;
    }
}

#[test]
fn events_that_nobody_reads_stop_their_job_and_no_other_until_they_are_read() {
    const LONG: usize = 6_000;
    let recorded = start(EngineLimits::default());
    recorded.gate.send(()).unwrap();
    let unread = recorded.engine.submit(job(0, 2, 2, LONG)).unwrap();
    let left = recorded.engine.submit(job(0, 2, 2, LONG)).unwrap();
    // Both share every step, so that short jobs have steps to themselves only once both have stopped.
    assert!(stalled(&recorded) < LONG);
    drop(left);
    while recorded.endings.0.lock().unwrap().0.iter().all(|ending| *ending != EndReason::Abort) {
        std::thread::yield_now();
    }
    let events = all(unread);
    let texts = events.iter().filter(|event| matches!(event, Event::Text { .. })).count();
    assert_eq!(texts, LONG);
    assert!(matches!(events.last(), Some(Event::Finished { tokens: LONG, .. })));
}

/// A constraint with a fault in it, or one that fails already at the beginning of a text.
#[derive(Debug)]
struct Faulty {
    starts: bool,
}

impl Guide for Faulty {
    fn start(&self) -> Box<dyn GuideState> {
        assert!(self.starts, "a panic that this test provokes");
        Box::new(Self { ..*self })
    }
}

impl GuideState for Faulty {
    fn restrict(&mut self, _: &mut [f32]) -> Result<(), GuideError> {
        panic!("scripted")
    }
    fn accept(&mut self, _: u32) -> Result<(), GuideError> {
        Ok(())
    }
    fn is_complete(&mut self) -> bool {
        false
    }
}

#[test]
fn a_panic_while_decoding_fails_its_job_and_the_engine_goes_on() {
    let recorded = start(EngineLimits::default());
    recorded.gate.send(()).unwrap();
    for starts in [true, false] {
        let text = TextJob { guide: Some(Arc::new(Faulty { starts })), ..TextJob::default() };
        let failed = all(recorded.engine.submit(Job::new(vec![2, 1], Request::Text(text))).unwrap());
        assert_eq!(failed, [Event::Failed(EngineError::Step("the decoding panicked".to_owned()))]);
    }
    assert!(matches!(
        all(recorded.engine.submit(job(0, 2, 2, 1)).unwrap()).last(),
        Some(Event::Finished { .. })
    ));
    assert!(recorded.engine.is_alive());
    assert_eq!(recorded.endings.0.lock().unwrap().1, 2);
}
