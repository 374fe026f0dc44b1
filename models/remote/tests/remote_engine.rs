//! Jobs over a scripted engine: results, round trips, limits and failures.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use ntl_core::contract::{
    AfterMarker, Backend, BeamJob, CandidatesJob, Dtype, EarlyStopping, EngineError, Event, FieldsJob,
    FinishReason, Job, ModelInfo, NumberEncoding, NumberJob, NumberMethod, NumberOutcome, Prompt, Request,
    ScoreJob, TextJob, Token,
};
use ntl_core::decoding::Vocabulary;
use ntl_core::guide::{FieldEffect, FieldValues, Guide, GuideError, GuideState, SchemaField};
use ntl_core::losses::{NumberLoss, NumberLossKind, NumberTokens};
use ntl_core::numbers::{
    Decimal, Estimation, GrammarLimits, NumberGrammar, NumberSet, NumberValues, Objective, Scale,
    SchemaNumbers,
};
use ntl_core::sampling::SamplingParams;
use ntl_core::scripted::Reported;
use ntl_core::text::TextDecoder;
use ntl_engine::{CacheBudget, EndReason, EngineObserver, JobEvents, NoObserver};
use ntl_remote::{
    EngineMeter, LookAhead, NextTokenAnswer, NextTokenQuery, NextTokenStep, NextTokens, QueryContext,
    RemoteEngine, RemoteLimits, TextDelta, TextEnd, TextQuery, TextTurn,
};

/// 0 is unused, 1 ends a text; `=4` holds a marker and a digit.
const PIECES: [&str; 19] =
    ["", "", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "-", ".", " ", "x", "=", "=4", ","];

const END: u32 = 1;

fn id(piece: &str) -> u32 {
    if piece.is_empty() { END } else { PIECES.iter().position(|&own| own == piece).unwrap() as u32 }
}

struct Pieces;

impl TextDecoder for Pieces {
    fn decode(&self, ids: &[u32]) -> String {
        ids.iter().map(|&id| PIECES[id as usize]).collect()
    }
    fn token_text(&self, id: u32) -> String {
        PIECES[id as usize].to_owned()
    }
    fn settled_len(&self, text: &str) -> usize {
        text.len()
    }
}

fn vocabulary() -> Vocabulary {
    let texts = PIECES.iter().enumerate().map(|(id, piece)| (id > 1).then(|| (*piece).to_owned()));
    Vocabulary {
        decoder: Arc::new(Pieces),
        grammar: Arc::new(NumberGrammar::new(texts, vec![END])),
        number_values: (2..12).map(|id| (id, f64::from(id - 2))).collect(),
        eos_ids: vec![END].into(),
        tokens: PIECES.len(),
    }
}

fn info() -> ModelInfo {
    ModelInfo {
        kind: "scripted".to_owned(),
        backend: Backend::Remote,
        dtype: Dtype::F32,
        kv_cache_dtype: None,
        number_encoding: NumberEncoding::Text,
        parameters: 0,
        prompt_tokens_max: 16,
        context_tokens_max: Some(100),
        answer_tokens_max: None,
        tokens: PIECES.len(),
        eos_ids: vec![END],
        encoder_decoder: false,
        labels: None,
        hidden_states: None,
    }
}

/// How the engine treats requests.
#[derive(Clone)]
enum Behaviour {
    Answers,
    /// It never responds.
    Hangs,
    /// It never responds to this client.
    HangsFor(u64),
    Fails(EngineError),
    /// It leaves out the last answer.
    LeavesOut,
    Panics,
}

type Script = Box<dyn Fn(&str) -> Vec<(&'static str, f64)> + Send + Sync>;

/// A text that the engine writes: its pieces, and why it ends.
type Written = (Vec<&'static str>, Option<TextEnd>);

/// An engine whose next tokens a script determines from the text of prompt and path.
struct Scripted {
    script: Script,
    reported: Reported,
    behaviour: Behaviour,
    /// The texts that it writes, by index.
    texts: Vec<Written>,
    /// Number of prompts of each request.
    requests: Mutex<Vec<usize>>,
    running: AtomicUsize,
    running_max: AtomicUsize,
}

/// Counts a request until its future is dropped.
struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Scripted {
    fn new(script: impl Fn(&str) -> Vec<(&'static str, f64)> + Send + Sync + 'static) -> Self {
        Self {
            script: Box::new(script),
            reported: Reported::Requested,
            behaviour: Behaviour::Answers,
            texts: Vec::new(),
            requests: Mutex::default(),
            running: AtomicUsize::new(0),
            running_max: AtomicUsize::new(0),
        }
    }

    fn begin(&self) -> Running<'_> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.running_max.fetch_max(running, Ordering::SeqCst);
        Running(&self.running)
    }

    fn answer(&self, query: &NextTokenQuery) -> NextTokenAnswer {
        let mut ids = [&query.prompt, query.path.as_slice()].concat();
        let mut next = || {
            let mut logits = vec![f32::NEG_INFINITY; PIECES.len()];
            for (piece, probability) in (self.script)(&Pieces.decode(&ids)) {
                logits[id(piece) as usize] = (probability as f32).ln();
            }
            let report = self.reported.of(&logits, PIECES.len(), &query.wanted);
            let best = (0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).map_or(END, |(id, _)| id);
            ids.push(best);
            (report, best)
        };
        let (report, mut token) = next();
        let mut ahead = Vec::new();
        for _ in 0..query.ahead.tokens {
            if token == END {
                break;
            }
            let (report, following) = next();
            ahead.push(NextTokenStep { token, report });
            token = following;
        }
        NextTokenAnswer { report, ahead }
    }
}

impl NextTokens for Scripted {
    fn ask(
        &self,
        context: QueryContext,
        queries: Vec<NextTokenQuery>,
    ) -> BoxFuture<'_, Result<Vec<NextTokenAnswer>, EngineError>> {
        async move {
            let _running = self.begin();
            self.requests.lock().unwrap().push(queries.len());
            tokio::task::yield_now().await;
            let mut answers: Vec<NextTokenAnswer> = queries.iter().map(|query| self.answer(query)).collect();
            match &self.behaviour {
                Behaviour::Answers => {}
                Behaviour::Hangs => std::future::pending().await,
                Behaviour::HangsFor(client) if *client == context.client => std::future::pending().await,
                Behaviour::HangsFor(_) => {}
                Behaviour::Fails(error) => return Err(error.clone()),
                Behaviour::LeavesOut => drop(answers.pop()),
                Behaviour::Panics => panic!("scripted"),
            }
            Ok(answers)
        }
        .boxed()
    }

    fn write(&self, _: QueryContext, query: TextQuery) -> BoxStream<'_, Result<TextDelta, EngineError>> {
        let (pieces, end) = self.texts[query.stream as usize].clone();
        let last = pieces.len() - 1;
        let delta = move |(index, piece): (usize, &'static str)| {
            let end = end.filter(|_| index == last);
            let stop = query.stop.as_ref().and_then(|stop| piece.find(stop));
            let text = stop.map_or(piece, |stop| &piece[..stop]).to_owned();
            Ok(TextDelta { text, ids: vec![id(piece)], end })
        };
        stream::iter(pieces.into_iter().enumerate().map(delta)).boxed()
    }
}

fn limits(look_ahead: LookAhead) -> RemoteLimits {
    RemoteLimits { look_ahead, ..RemoteLimits::default() }
}

fn engine(upstream: Scripted, limits: RemoteLimits) -> (RemoteEngine, Arc<Scripted>) {
    engine_within(1 << 30, upstream, limits)
}

/// An engine with this many bytes of memory.
fn engine_within(bytes: u64, upstream: Scripted, limits: RemoteLimits) -> (RemoteEngine, Arc<Scripted>) {
    let upstream = Arc::new(upstream);
    let shared = Arc::clone(&upstream);
    let budget = CacheBudget::new(bytes);
    (RemoteEngine::new(&budget, shared, info(), vocabulary(), limits, Arc::new(NoObserver)), upstream)
}

/// A job after the prompt `x`.
fn job(request: Request) -> Job {
    Job::new(vec![id("x")], request)
}

fn number_job() -> NumberJob {
    NumberJob::new(NumberMethod::Tree { tolerance: 1e-3, nodes_max: 4096, precision: None })
}

fn submit(engine: &RemoteEngine, job: Job) -> JobEvents {
    engine.submit_all(vec![job], &EngineMeter::default()).unwrap().pop().unwrap()
}

async fn events(engine: &RemoteEngine, job: Job) -> Vec<Event> {
    let mut receiver = submit(engine, job);
    let mut events = Vec::new();
    while let Some(event) = receiver.next().await {
        events.push(event);
    }
    events
}

async fn last(engine: &RemoteEngine, job: Job) -> Event {
    events(engine, job).await.pop().unwrap()
}

async fn number(engine: &RemoteEngine, job: NumberJob) -> NumberOutcome {
    match last(engine, self::job(Request::Number(job))).await {
        Event::Number(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

/// Runs other tasks until a condition holds.
async fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..1_000_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the condition never held");
}

/// A rating that a model is nearly sure about, or not. A full stop sometimes follows it.
fn rating(sure: bool) -> Scripted {
    Scripted::new(move |text| match text {
        "x" if sure => vec![("7", 0.9996), ("8", 0.0002), ("x", 0.0002)],
        "x" => {
            let digits = ["1", "2", "3", "4", "5", "6", "7", "8", "9"];
            digits.into_iter().map(|digit| (digit, 0.1)).chain([("x", 0.1)]).collect()
        }
        _ if text.ends_with('.') => vec![("x", 0.999), ("0", 0.001)],
        _ => vec![("", 0.9), ("x", 0.0999), (".", 0.0001)],
    })
}

/// Writes `12345`, with small alternatives at every digit.
fn long_number() -> Scripted {
    Scripted::new(|text| {
        let written = text.trim_start_matches('x');
        let next = ["1", "2", "3", "4", "5"].get(written.len()).copied().unwrap_or("");
        vec![(next, 0.9999), ("8", 0.00005), ("x", 0.00005)]
    })
}

#[tokio::test]
async fn a_rating_costs_one_request_if_the_model_is_sure_and_two_otherwise() {
    let values = NumberValues::Scale(Scale::new(1.0, 9.0, 1.0).unwrap());
    for (sure, want) in [(true, &[1][..]), (false, &[1, 9])] {
        let (engine, upstream) = engine(rating(sure), limits(LookAhead::default()));
        let outcome = number(&engine, NumberJob { values, ..number_job() }).await;
        let requests = upstream.requests.lock().unwrap().clone();
        assert_eq!(outcome.forward_passes, requests.len());
        assert_eq!(requests, want);
        let mode = outcome.distribution.mode().unwrap();
        assert!((mode - if sure { 7.0 } else { 1.0 }).abs() < 1e-9, "{mode}");
        let mass = outcome.distribution.mass();
        assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-6, "{mass:?}");
    }
}

#[tokio::test]
async fn a_search_that_is_out_of_time_costs_one_request() {
    let job = NumberJob { time_max: Some(Duration::ZERO), ..number_job() };
    let (engine, upstream) = engine(long_number(), limits(LookAhead::NONE));
    let late = number(&engine, job).await;
    assert_eq!((late.nodes, late.forward_passes, late.truncated), (1, 1, true));
    assert!(late.distribution.mass().open > 0.0);
    assert_eq!(upstream.requests.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn greedy_tokens_ahead_save_round_trips_and_change_no_result() {
    let mut requests = Vec::new();
    let mut outcomes = Vec::new();
    for look_ahead in [LookAhead::NONE, LookAhead { first: 3, others: 1 }, LookAhead { first: 5, others: 0 }]
    {
        let (engine, _) = engine(long_number(), limits(look_ahead));
        let outcome = number(&engine, number_job()).await;
        requests.push(outcome.forward_passes);
        outcomes.push(NumberOutcome { forward_passes: 0, ..outcome });
    }
    assert_eq!(outcomes[0].distribution.mode(), Some(12345.0));
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{outcomes:#?}");
    assert_eq!(requests, [6, 2, 1]);
}

#[tokio::test]
async fn mass_that_the_engine_does_not_report_is_open_and_counted() {
    let upstream = Scripted { reported: Reported::Best(2), ..rating(false) };
    let (engine, _) = engine(upstream, RemoteLimits::default());
    let outcome = number(&engine, number_job()).await;
    assert!(outcome.unreported > 0.7, "{}", outcome.unreported);
    assert!(outcome.distribution.mass().open >= outcome.unreported && !outcome.truncated);
}

#[tokio::test]
async fn targets_and_candidates_are_scored() {
    let (engine, upstream) = engine(long_number(), RemoteLimits::default());
    let number_tokens = Arc::new(NumberTokens::new((2..12).map(|id| (id, f64::from(id - 2)))));
    let target: Vec<Token> = ["1", "2", "8"].map(|piece| id(piece).into()).into();
    let losses = vec![NumberLoss::of(NumberLossKind::Was)];
    let scored =
        last(&engine, job(Request::Score(ScoreJob { target, number_tokens, losses, digits: false }))).await;
    let Event::Scored(scored) = scored else { panic!("{scored:?}") };
    let probabilities: Vec<f64> = scored.tokens.iter().map(|score| score.token.logprob.exp()).collect();
    for (got, want) in probabilities.iter().zip([0.9999, 0.9999, 0.00005]) {
        assert!((got - want).abs() < 1e-6, "{probabilities:?}");
    }
    assert!((scored.tokens[2].losses[0].unwrap() - 5.0).abs() < 0.01, "{scored:?}");
    assert_eq!(*upstream.requests.lock().unwrap(), [3], "one request with three prompts");
    let candidates = [vec![id("1").into(), id("2").into()], vec![id("8").into()]];
    let scored = last(&engine, job(Request::Candidates(CandidatesJob::new(&candidates)))).await;
    let Event::Scored(scored) = scored else { panic!("{scored:?}") };
    assert!((scored.tokens[2].token.logprob.exp() - 0.00005).abs() < 1e-6);
}

fn after(rationales: u32) -> NumberJob {
    let sampling = SamplingParams::PLAIN;
    let after = AfterMarker { marker: "= ".to_owned(), rationales, sampling, max_tokens: 5 };
    NumberJob { after: Some(after), ..number_job() }
}

/// After `=` it writes 3, and after `=4` nothing more.
fn writer(texts: Vec<Written>) -> Scripted {
    let script = |text: &str| match text.rsplit_once('=') {
        Some((_, "" | " ")) => vec![("3", 1.0)],
        _ => vec![("", 1.0)],
    };
    Scripted { texts, ..Scripted::new(script) }
}

#[tokio::test]
async fn the_number_after_a_marker_is_read_from_where_the_engine_stopped() {
    for (pieces, value, text) in [(vec!["x", "1", "="], 3.0, "x1= "), (vec!["x", "=4"], 4.0, "x= ")] {
        let tokens = pieces.len();
        let (engine, _) = engine(writer(vec![(pieces, Some(TextEnd::StopString))]), RemoteLimits::default());
        let events = events(&engine, job(Request::Number(after(1)))).await;
        let mut shown = String::new();
        for event in &events[..events.len() - 1] {
            let Event::Text { choice: 0, text, .. } = event else { panic!("{event:?}") };
            shown.push_str(text);
        }
        assert_eq!(shown, text);
        let Some(Event::Number(outcome)) = events.last() else { panic!("{events:?}") };
        assert_eq!(outcome.distribution.mode(), Some(value));
        assert_eq!((outcome.text_tokens, outcome.reached, outcome.missed), (tokens, 1, 0));
    }
}

#[tokio::test]
async fn numbers_of_several_texts_are_averaged_and_texts_without_a_marker_do_not_count() {
    let stop = Some(TextEnd::StopString);
    let texts = vec![
        (vec!["x", "="], stop),
        (vec!["=4"], stop),
        (vec!["x", "x"], Some(TextEnd::EndOfSequence)),
        (vec!["x", "x", "="], stop),
    ];
    let (engine, _) = engine(writer(texts), RemoteLimits::default());
    let outcome = number(&engine, after(4)).await;
    assert_eq!((outcome.reached, outcome.missed, outcome.text_tokens), (3, 1, 8));
    let leaves: Vec<(f64, f64)> =
        outcome.distribution.leaves().iter().map(|leaf| (leaf.value, leaf.probability)).collect();
    assert_eq!(leaves.len(), 2, "{leaves:?}");
    assert!((leaves[0].1 - 2.0 / 3.0).abs() < 1e-6 && (leaves[1].1 - 1.0 / 3.0).abs() < 1e-6, "{leaves:?}");
    let missing = writer(vec![(vec!["x"], Some(TextEnd::Length))]);
    let (engine, _) = self::engine(missing, RemoteLimits::default());
    let outcome = number(&engine, after(1)).await;
    assert_eq!(outcome.first_text_end, Some(FinishReason::Length));
    assert!(outcome.distribution.leaves().is_empty());
}

#[tokio::test]
async fn texts_that_never_end_or_are_too_long_are_errors() {
    for pieces in [vec!["x"; 5], vec!["x"; 6]] {
        let (engine, _) = engine(writer(vec![(pieces, None)]), RemoteLimits::default());
        let event = last(&engine, job(Request::Number(after(1)))).await;
        assert!(matches!(event, Event::Failed(EngineError::Upstream(_))), "{event:?}");
    }
}

/// A guide of two digits, each followed by `x`. Dashes may come before a digit.
#[derive(Debug, Clone, Default)]
struct TwoRatings(String);

impl TwoRatings {
    fn allows(&self, piece: &str) -> bool {
        match self.0.ends_with(|last: char| last.is_ascii_digit()) {
            true => piece == "x",
            false => piece == "-" || piece.parse::<u8>().is_ok(),
        }
    }
}

impl Guide for TwoRatings {
    fn start(&self) -> Box<dyn GuideState> {
        Box::new(self.clone())
    }
}

impl GuideState for TwoRatings {
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), GuideError> {
        let forbidden = PIECES.iter().zip(logits).filter(|(piece, _)| !self.allows(piece));
        forbidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), GuideError> {
        self.0 += PIECES[id as usize];
        Ok(())
    }

    fn is_complete(&mut self) -> bool {
        self.0.matches('x').count() == 2
    }

    fn field_effect(&self, id: u32) -> FieldEffect {
        if PIECES[id as usize].parse::<u8>().is_err() {
            return FieldEffect::None;
        }
        let digits = (1..=9).map(|digit| Decimal::shortest_f64(f64::from(digit)).unwrap().canonical());
        let numbers = Arc::new(SchemaNumbers::new(vec![NumberSet::Listed(digits.collect())]).unwrap());
        let path = format!("$[{}]", self.0.matches('x').count());
        let field =
            SchemaField { call: None, path, values: FieldValues::Numbers(numbers), may_follow_space: false };
        FieldEffect::Begins { field, has_space: false }
    }

    fn spell(&mut self, text: &str) -> Option<Vec<u32>> {
        Some(text.chars().map(|digit| id(&digit.to_string())).collect())
    }
}

fn two_ratings(n: u32) -> TextJob {
    let fields = FieldsJob {
        limits: GrammarLimits::default(),
        tolerance: 1e-3,
        nodes_max: 64,
        precision: None,
        time_max: None,
        objective: Objective::Mode,
        estimation: Estimation::default(),
        mass_min: 0.0,
        decimals: 0,
    };
    let guide: Option<Arc<dyn Guide>> = Some(Arc::new(TwoRatings::default()));
    TextJob { n, best_of: n, max_tokens: 9, guide, fields: Some(fields), ..TextJob::default() }
}

#[tokio::test]
async fn texts_get_the_estimates_of_their_numbers_and_certain_tokens_cost_no_request() {
    // The streams of the first tokens of two texts, and of those after the first `x` of each.
    let texts = [("4", 0), ("5", 1), ("6", 2), ("8", 3)];
    let mut written = vec![(vec![""], None); 4];
    for (digit, stream) in texts {
        written[stream] = (vec![digit], Some(TextEnd::Length));
    }
    let script = |text: &str| match text.len() % 2 {
        1 => vec![("7", 0.9), ("8", 0.1)],
        _ => vec![(",", 1.0)],
    };
    let (engine, _) = engine(Scripted { texts: written, ..Scripted::new(script) }, RemoteLimits::default());
    let events = events(&engine, job(Request::Text(two_ratings(2)))).await;
    let mut texts = [String::new(), String::new()];
    let mut numbers = Vec::new();
    for event in &events {
        match event {
            Event::Text { choice, text, .. } => texts[*choice as usize] += text,
            Event::Field(number) => {
                numbers.push((number.choice, number.field.path.clone(), number.tokens.clone()));
                assert_eq!(number.value, Some(7.0));
            }
            Event::Finished { reason: FinishReason::Stop, tokens: 4, .. } => {}
            other => panic!("{other:?}"),
        }
    }
    numbers.sort_by_key(|(choice, _, tokens)| (*choice, tokens.start));
    let number = |choice, path: &str, start| (choice, path.to_owned(), start..start + 1);
    assert_eq!(texts, ["7x7x", "7x7x"]);
    let want = [number(0, "$[0]", 0), number(0, "$[1]", 2), number(1, "$[0]", 0), number(1, "$[1]", 2)];
    assert_eq!(numbers, want);
}

/// Remembers how sequences ended.
#[derive(Default)]
struct Ends(Mutex<Vec<EndReason>>);

impl EngineObserver for Ends {
    fn on_end(&self, reason: EndReason) {
        self.0.lock().unwrap().push(reason);
    }
}

#[tokio::test]
async fn every_text_of_a_job_is_counted_under_its_own_end() {
    // The first text has two ratings, and the second one has dashes up to its end.
    let mut written = vec![(vec!["-"], Some(TextEnd::Length)); 18];
    for stream in [0, 2] {
        written[stream] = (vec!["4"], Some(TextEnd::Length));
    }
    let upstream = Scripted { texts: written, ..Scripted::new(|_| vec![("7", 0.9), (",", 0.1)]) };
    let ends = Arc::new(Ends::default());
    let observer = Arc::clone(&ends) as Arc<dyn EngineObserver>;
    let limits = RemoteLimits::default();
    let budget = CacheBudget::new(1 << 30);
    let engine = RemoteEngine::new(&budget, Arc::new(upstream), info(), vocabulary(), limits, observer);
    let events = events(&engine, job(Request::Text(two_ratings(2)))).await;
    assert!(
        matches!(events.last(), Some(Event::Finished { reason: FinishReason::Length, .. })),
        "{events:?}"
    );
    assert_eq!(*ends.0.lock().unwrap(), [EndReason::Stop, EndReason::Length]);
    let failed =
        Scripted { behaviour: Behaviour::Fails(EngineError::Dead), ..writer(vec![(vec!["4"], None); 18]) };
    let ends = Arc::new(Ends::default());
    let observer = Arc::clone(&ends) as Arc<dyn EngineObserver>;
    let engine = RemoteEngine::new(&budget, Arc::new(failed), info(), vocabulary(), limits, observer);
    last(&engine, job(Request::Text(two_ratings(2)))).await;
    assert_eq!(*ends.0.lock().unwrap(), [EndReason::Error; 2]);
}

#[tokio::test]
async fn a_token_that_was_not_among_the_allowed_ones_is_an_error() {
    for pieces in [vec!["x"], vec!["4", "x", "4"]] {
        let end = Some(TextEnd::Length);
        let (engine, _) = engine(writer(vec![(pieces, end)]), RemoteLimits::default());
        let event = last(&engine, job(Request::Text(two_ratings(1)))).await;
        assert!(matches!(event, Event::Failed(EngineError::Upstream(_))), "{event:?}");
    }
}

#[tokio::test]
async fn errors_of_the_engine_reach_the_client() {
    let rejected = EngineError::UpstreamRejected("too long".to_owned());
    let too_few = EngineError::Upstream("the engine answered 0 of 1 prompts".to_owned());
    for (behaviour, want) in [
        (Behaviour::Fails(rejected.clone()), rejected),
        (Behaviour::LeavesOut, too_few),
        (Behaviour::Panics, EngineError::Step("the decoding panicked".to_owned())),
    ] {
        let (engine, _) = engine(Scripted { behaviour, ..rating(true) }, RemoteLimits::default());
        assert_eq!(last(&engine, job(Request::Number(number_job()))).await, Event::Failed(want));
    }
}

#[tokio::test]
async fn dropping_the_events_drops_the_request_to_the_engine() {
    let upstream = Scripted { behaviour: Behaviour::Hangs, ..rating(true) };
    let (engine, upstream) = engine(upstream, RemoteLimits::default());
    let receiver = submit(&engine, job(Request::Number(number_job())));
    until(|| upstream.running.load(Ordering::SeqCst) == 1).await;
    drop(receiver);
    until(|| upstream.running.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn a_job_ends_at_its_deadline_even_if_the_engine_hangs() {
    let upstream = Scripted { behaviour: Behaviour::Hangs, ..rating(true) };
    let (engine, upstream) = engine(upstream, RemoteLimits::default());
    let deadline = Some((Instant::now() + Duration::from_millis(5), Duration::from_millis(5)));
    let late = Job { deadline, ..job(Request::Number(number_job())) };
    assert_eq!(last(&engine, late).await, Event::Failed(EngineError::Deadline { after_ms: 5 }));
    until(|| upstream.running.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn jobs_and_the_queue_are_limited() {
    // A quarter of the jobs, at least one, is for clients without running ones.
    let limits = RemoteLimits { jobs_max: 3, queue_max: 3, ..RemoteLimits::default() };
    let jobs = |count| vec![job(Request::Number(number_job())); count];
    let (engine, upstream) = engine(rating(false), limits);
    assert!(matches!(
        engine.submit_all(jobs(4), &EngineMeter::default()),
        Err(EngineError::Overloaded { waiting: 0 })
    ));
    let mut receivers = engine.submit_all(jobs(3), &EngineMeter::default()).unwrap();
    assert!(matches!(
        engine.submit_all(jobs(1), &EngineMeter::default()),
        Err(EngineError::Overloaded { waiting: 3 })
    ));
    for receiver in &mut receivers {
        assert!(matches!(receiver.next().await, Some(Event::Number(_))));
    }
    assert_eq!(upstream.running_max.load(Ordering::SeqCst), 2);
    assert!(engine.submit_all(jobs(3), &EngineMeter::default()).is_ok(), "slots of the queue were lost");
}

#[tokio::test]
async fn the_jobs_of_one_client_delay_no_job_of_another() {
    let limits = RemoteLimits { jobs_max: 4, ..RemoteLimits::default() };
    let behaviour = Behaviour::HangsFor(1);
    let (engine, upstream) = engine(Scripted { behaviour, ..rating(false) }, limits);
    let of = |client| Job { client, ..job(Request::Number(number_job())) };
    let many = engine.submit_all(vec![of(1); 20], &EngineMeter::default()).unwrap();
    until(|| upstream.running.load(Ordering::SeqCst) == 3).await;
    for client in [2, 3, 2] {
        assert!(matches!(last(&engine, of(client)).await, Event::Number(_)));
    }
    assert_eq!(upstream.running.load(Ordering::SeqCst), 3);
    drop(many);
    until(|| upstream.running.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn jobs_that_do_not_fit_into_the_memory_wait_and_the_first_job_of_a_client_has_its_own_part() {
    let of = |client| Job { client, ..job(Request::Number(number_job())) };
    let upstream = || Scripted { behaviour: Behaviour::HangsFor(1), ..rating(false) };
    let (probe, _) = engine(upstream(), RemoteLimits::default());
    let running = submit(&probe, of(1));
    until(|| probe.cache_use().running > 0).await;
    let job_bytes = probe.cache_use().running;
    assert!(job_bytes >= 4096 * 512, "the tree alone has as much: {job_bytes}");
    drop(running);
    // Three quarters hold three jobs, and the reserve holds one.
    let (engine, upstream) = engine_within(4 * job_bytes, upstream(), RemoteLimits::default());
    let mut many = engine.submit_all(vec![of(1); 10], &EngineMeter::default()).unwrap();
    until(|| upstream.running.load(Ordering::SeqCst) == 3).await;
    assert!(matches!(last(&engine, of(2)).await, Event::Number(_)));
    assert_eq!(engine.cache_use().running, 3 * job_bytes);
    drop(many.drain(..3));
    until(|| upstream.requests.lock().unwrap().len() >= 6 && upstream.running.load(Ordering::SeqCst) == 3)
        .await;
    drop(many);
    until(|| engine.cache_use().running == 0).await;
}

#[tokio::test]
async fn a_job_that_is_larger_than_the_memory_is_rejected_and_a_tree_gets_a_smaller_budget() {
    let wide = || Job::new(vec![id("x"); 16], Request::Number(number_job()));
    let (engine, _) = engine_within(1 << 20, rating(false), RemoteLimits::default());
    assert!(matches!(last(&engine, wide()).await, Event::Number(_)));
    assert!(engine.cache_use().running == 0);
    let (engine, _) = engine_within(8 << 10, rating(false), RemoteLimits::default());
    assert!(matches!(
        engine.submit_all(vec![wide()], &EngineMeter::default()),
        Err(EngineError::TooLarge { .. })
    ));
}

#[tokio::test]
async fn texts_that_the_engine_writes_share_the_queue_and_have_their_own_permits() {
    let limits = RemoteLimits { texts_max: 4, queue_max: 5, jobs_max: 1, ..RemoteLimits::default() };
    let (engine, _) = engine(rating(true), limits);
    let mut running = Vec::new();
    for _ in 0..3 {
        running.push(engine.begin_text(1, 2, 100).await.unwrap());
    }
    assert_eq!(engine.cache_use().running, 300);
    running.iter_mut().for_each(TextTurn::release_memory);
    assert_eq!(engine.cache_use().running, 0);
    let mut waiting = Box::pin(engine.begin_text(1, 4, 0));
    assert!(waiting.as_mut().now_or_never().is_none());
    assert!(matches!(engine.begin_text(2, 2, 0).await, Err(EngineError::Overloaded { waiting: 4 })));
    let other = engine.begin_text(2, 1, 0).now_or_never().unwrap();
    assert!(matches!(last(&engine, job(Request::Number(number_job()))).await, Event::Number(_)));
    drop(other);
    assert!(waiting.as_mut().now_or_never().is_none(), "its client has three texts");
    running.pop();
    assert!(waiting.as_mut().now_or_never().is_some());
}

#[tokio::test]
async fn a_job_that_waits_too_long_for_its_turn_fails() {
    let queue_time_max = Some(Duration::from_millis(1));
    let limits = RemoteLimits { jobs_max: 1, queue_time_max, ..RemoteLimits::default() };
    let (engine, upstream) = engine(Scripted { behaviour: Behaviour::Hangs, ..rating(true) }, limits);
    let _first = submit(&engine, job(Request::Number(number_job())));
    until(|| upstream.running.load(Ordering::SeqCst) == 1).await;
    let event = last(&engine, job(Request::Number(number_job()))).await;
    assert_eq!(event, Event::Failed(EngineError::QueueTimeout { after_ms: 1 }));
}

#[tokio::test]
async fn jobs_that_reports_cannot_serve_are_rejected_with_the_reason() {
    let (engine, _) = engine(rating(true), RemoteLimits::default());
    let number = || job(Request::Number(number_job()));
    let (max_tokens, early_stopping) = (3, EarlyStopping::No);
    let beams = BeamJob { beams: 2, n: 1, max_tokens, length_penalty: 1.0, early_stopping };
    let valued = Prompt { tokens: vec![Token { id: 3, value: Some(1.0) }], second_segment: None };
    for (job, reason) in [
        (Job { paper_decoding: true, ..number() }, "paper"),
        (Job { prompt: valued, ..number() }, "xVal"),
        (Job { prompt: Prompt::default(), ..number() }, "prompt"),
        (job(Request::Text(TextJob::default())), "texts"),
        (job(Request::Text(TextJob { logprobs: Some(0), ..two_ratings(1) })), "`logprobs`"),
        (job(Request::Text(TextJob { best_of: 2, ..two_ratings(1) })), "`best_of`"),
        (job(Request::Text(TextJob { logit_bias: [(3, 1.0)].into(), ..two_ratings(1) })), "`logit_bias`"),
        (job(Request::Beams(beams)), "beam"),
    ] {
        match engine.submit_all(vec![job], &EngineMeter::default()) {
            Err(EngineError::Unsupported(message)) => assert!(message.contains(reason), "{message}"),
            other => panic!("{reason}: {other:?}"),
        }
    }
    let long = Job { prompt: vec![3; 17].into(), ..number() };
    assert!(matches!(
        engine.submit_all(vec![long], &EngineMeter::default()),
        Err(EngineError::PromptTooLong { got: 17, max: 16 })
    ));
}
