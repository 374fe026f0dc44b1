//! Numbers and options from sampled answers, against engines in this process: what is requested, what is
//! read, and how it fails.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod fake;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fake::{Fake, Reply, says};
use futures::future::join_all;
use ntl_core::contract::{
    AfterMarker, Backend, Dtype, EngineError, Event, ModelInfo, NumberEncoding, NumberJob, NumberMethod,
    NumberOutcome, OptionsOutcome, Precision,
};
use ntl_core::numbers::{Estimation, NumberValues, Objective, Scale};
use ntl_core::samples::{OptionName, OptionNames};
use ntl_core::sampling::SamplingParams;
use ntl_engine::CacheBudget;
use ntl_remote::{
    ApiKey, ChatFields, ChatJob, ChatWanted, Connecting, EngineKind, EngineMeter, EngineUsage, NoObserver,
    RemoteEngine, RemoteLimits, Reports, SampledOptions, Upstream, UpstreamConfig, byte_tokenizer,
};
use ntl_text::tokenizer::Tokenizer;
use serde_json::json;

/// Tokens of the prompt and of the text of one answer.
const ANSWER_TOKENS: u64 = 13;

/// Far more than any answer needs.
const PATIENCE: Duration = Duration::from_secs(60);

const KEY: &str = "sk-secret-key-12345";

fn config(fakes: &[&Fake]) -> UpstreamConfig {
    UpstreamConfig {
        replicas: fakes.iter().map(|fake| fake.url.parse().unwrap()).collect(),
        model: None,
        kind: None,
        api_key: Some(ApiKey::new(KEY).unwrap()),
        timeout: PATIENCE,
        check_interval: PATIENCE,
        ca_file: None,
        requests_max: 64,
    }
}

/// The tokenizer of an engine that answers chats, none of whose tokens is ever read.
fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::open(&byte_tokenizer()).unwrap())
}

async fn connect(config: UpstreamConfig) -> Arc<Upstream> {
    let connecting = Connecting::new(config).unwrap();
    let facts = connecting.detect().await.unwrap();
    connecting.connect(facts, tokenizer(), Arc::new(NoObserver)).await.unwrap()
}

fn engine_over(upstream: Arc<Upstream>) -> RemoteEngine {
    let info = ModelInfo {
        kind: "remote".to_owned(),
        backend: Backend::Remote,
        dtype: Dtype::F32,
        kv_cache_dtype: None,
        number_encoding: NumberEncoding::Text,
        parameters: 0,
        prompt_tokens_max: 100,
        context_tokens_max: Some(100),
        answer_tokens_max: None,
        tokens: 256,
        eos_ids: Vec::new(),
        encoder_decoder: false,
        labels: None,
        hidden_states: None,
    };
    let vocabulary = ntl_text::vocabulary(&tokenizer(), &info);
    let budget = CacheBudget::new(1 << 30);
    let limits = RemoteLimits::default();
    RemoteEngine::new(&budget, upstream, info, vocabulary, limits, Arc::new(ntl_engine::NoObserver))
}

async fn engine(fakes: &[&Fake]) -> RemoteEngine {
    let engine = engine_over(connect(config(fakes)).await);
    fakes.iter().for_each(|fake| fake.replies(|_, _| says("1")));
    engine
}

fn job(wanted: ChatWanted) -> ChatJob {
    let chat = json!({"messages": [{"role": "user", "content": "Rate it."}], "reasoning_effort": "low"});
    let chat = Arc::new(chat.as_object().unwrap().clone());
    ChatJob { chat, max_tokens: 50, seed: 7, wanted, deadline: None, client: 1 }
}

fn rating(samples: u32) -> NumberJob {
    let values = NumberValues::Scale(Scale::new(1.0, 5.0, 1.0).unwrap());
    NumberJob { values, reports_refused: true, ..NumberJob::new(NumberMethod::sample(samples, 0)) }
}

fn precise(samples: u32, width: f64) -> NumberJob {
    let job = rating(samples);
    let estimation = Estimation { trim: 0.0, normalize: true, range: job.values.interval() };
    let precision = Some(Precision { width, objectives: vec![Objective::Mean], estimation });
    NumberJob { method: NumberMethod::Sample { samples, sampling: SamplingParams::PLAIN, precision }, ..job }
}

/// Runs a job, and returns the text before its last event, and this event.
async fn run(engine: &RemoteEngine, job: ChatJob) -> (String, Event) {
    run_metered(engine, job, &EngineMeter::default()).await
}

async fn run_metered(engine: &RemoteEngine, job: ChatJob, meter: &EngineMeter) -> (String, Event) {
    let mut events = engine.submit_chats(vec![job], meter).unwrap().remove(0);
    let mut shown = String::new();
    loop {
        match events.next().await.unwrap() {
            Event::Text { text, .. } => shown.push_str(&text),
            event => return (shown, event),
        }
    }
}

async fn number(engine: &RemoteEngine, wanted: NumberJob) -> NumberOutcome {
    match run(engine, job(ChatWanted::Number(wanted.into()))).await.1 {
        Event::Number(outcome) => outcome,
        event => panic!("{event:?}"),
    }
}

async fn failure(engine: &RemoteEngine, wanted: NumberJob) -> EngineError {
    match run(engine, job(ChatWanted::Number(wanted.into()))).await.1 {
        Event::Failed(error) => error,
        event => panic!("{event:?}"),
    }
}

/// Waits until something holds that another task brings about.
async fn becomes(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn an_engine_that_answers_chats_only_is_detected_with_the_fields_that_it_takes() {
    let least = ChatFields::least("max_completion_tokens");
    for (rejected, fields) in [
        (&[][..], ChatFields::all("max_tokens")),
        (&["seed"], ChatFields { seed: false, ..ChatFields::all("max_tokens") }),
        (&["max_tokens", "top_p"], ChatFields { top_p: false, ..ChatFields::all("max_completion_tokens") }),
        (&["max_tokens", "temperature", "top_p", "seed"], least),
    ] {
        let fake = Fake::start(rejected).await;
        for kind in [None, Some(EngineKind::OpenAiChat)] {
            let config = UpstreamConfig { kind, ..config(&[&fake]) };
            let facts = Connecting::new(config).unwrap().detect().await.unwrap();
            assert_eq!(
                (facts.kind, facts.reports, facts.chat),
                (EngineKind::OpenAiChat, Reports::None, Some(fields))
            );
            let reason =
                if kind.is_some() { "--upstream names it" } else { "it answers chats and reports no" };
            assert!(facts.reason.contains(reason), "{}", facts.reason);
        }
    }
}

#[tokio::test]
async fn what_an_engine_lacks_is_named() {
    let fake = Fake::start(&["messages"]).await;
    let detect = async |kind| {
        let config = UpstreamConfig { kind, ..config(&[&fake]) };
        Connecting::new(config).unwrap().detect().await.unwrap_err().to_string()
    };
    let both = detect(None).await;
    assert!(
        both.contains("status 404") && both.contains("does not answer chats at /v1/chat/completions"),
        "{both}"
    );
    assert!(both.contains("'messages' is not supported"), "{both}");
    let chats = detect(Some(EngineKind::OpenAiChat)).await;
    assert!(chats.contains("does not answer chats at /v1/chat/completions: "), "{chats}");
}

#[tokio::test]
async fn a_number_is_the_distribution_of_the_answers_with_bounds_and_the_work_of_the_engine() {
    let fake = Fake::start(&[]).await;
    let engine = engine(&[&fake]).await;
    fake.replies(|number, _| match number % 8 {
        0..4 => says("4"),
        4 => says(" 5 of 5"),
        5 => Reply::Answer(json!({"content": "3", "reasoning_content": "2? no"}), "stop"),
        6 => says("No idea."),
        _ => says("9"),
    });
    let meter = EngineMeter::default();
    let job = job(ChatWanted::Number(rating(64).into()));
    let Event::Number(found) = run_metered(&engine, job, &meter).await.1 else { panic!("no number") };
    let leaves: Vec<_> =
        found.distribution.leaves().iter().map(|leaf| (leaf.value, leaf.probability)).collect();
    assert_eq!(leaves, [(3.0, 0.125), (4.0, 0.5), (5.0, 0.125)]);
    let mass = found.distribution.mass();
    assert_eq!((mass.closed, mass.invalid, mass.open), (0.75, 0.25, 0.0));
    let answers = found.answers.clone().unwrap();
    assert_eq!(answers.samples(), 64);
    let usage = EngineUsage {
        requests: 64,
        prompt_tokens: 640,
        cached_tokens: 512,
        completion_tokens: 192,
        reasoning_tokens: 128,
    };
    assert_eq!(meter.total(), usage);
    let estimation =
        Estimation { trim: 0.0, normalize: true, range: Some(rating(1).values.interval().unwrap()) };
    let bounds = answers.mean_bounds(&estimation).unwrap();
    assert!(3.4 < bounds.low && bounds.low < 4.0 && 4.0 < bounds.high && bounds.high < 4.5, "{bounds:?}");
    let refused: Vec<_> =
        found.refused.iter().map(|refused| (refused.text.as_str(), refused.probability)).collect();
    assert_eq!(refused, [("9", 0.125), ("No idea.", 0.125)]);
    assert!(!found.truncated);
    let bodies = fake.shared.bodies.lock().unwrap();
    let seeds: HashSet<u64> = bodies.iter().map(|body| body["seed"].as_u64().unwrap()).collect();
    assert_eq!((bodies.len(), seeds.len()), (64, 64));
    let mut first = bodies[0].clone();
    first.as_object_mut().unwrap().remove("seed");
    let want = json!({"model": "gpt", "messages": [{"role": "user", "content": "Rate it."}], "reasoning_effort": "low",
        "max_tokens": 50, "temperature": 1, "top_p": 1});
    assert_eq!(first, want);
    let keys = fake.shared.keys.lock().unwrap();
    assert!(keys.iter().all(|key| key.as_deref() == Some("Bearer sk-secret-key-12345")));
}

#[tokio::test]
async fn answers_that_were_cut_are_open() {
    let fake = Fake::start(&[]).await;
    let engine = engine(&[&fake]).await;
    fake.replies(|number, _| match number % 4 {
        0 => Reply::Answer(json!({"content": null, "reasoning": "so"}), "length"),
        1 => Reply::Answer(json!({"content": "<think>so"}), "length"),
        2 => Reply::Answer(json!({"content": "4, since"}), "length"),
        _ => Reply::Answer(json!({"content": "4"}), "content_filter"),
    });
    let mass = number(&engine, rating(64)).await.distribution.mass();
    assert_eq!((mass.closed, mass.invalid, mass.open), (0.25, 0.25, 0.5));
}

#[tokio::test]
async fn the_number_is_read_after_its_marker_and_the_first_text_is_shown() {
    let fake = Fake::start(&[]).await;
    let engine = engine(&[&fake]).await;
    fake.replies(|number, _| match number % 4 {
        0..2 => says("2 + 2 is even.\n#### 4\n"),
        2 => says("It is 4."),
        _ => Reply::Answer(json!({"content": "2 + 2"}), "length"),
    });
    let marker = "#### ".to_owned();
    let after = AfterMarker { marker, rationales: 1, sampling: SamplingParams::PLAIN, max_tokens: 9 };
    let wanted = NumberJob { after: Some(after), ..rating(64) };
    let (shown, event) = run(&engine, job(ChatWanted::Number(wanted.into()))).await;
    let Event::Number(found) = event else { panic!("{event:?}") };
    let mass = found.distribution.mass();
    assert_eq!((mass.closed, mass.invalid, mass.open), (0.5, 0.25, 0.25));
    // Any of the answers may be the first one.
    assert!(["", "2 + 2 is even.\n#### "].contains(&shown.as_str()), "{shown:?}");
    fake.replies(|_, _| says("So: #### 4"));
    let after = AfterMarker {
        marker: "#### ".to_owned(),
        rationales: 1,
        sampling: SamplingParams::PLAIN,
        max_tokens: 9,
    };
    let wanted = NumberJob { after: Some(after), ..rating(2) };
    assert_eq!(run(&engine, job(ChatWanted::Number(wanted.into()))).await.0, "So: #### ");
}

#[tokio::test]
async fn sampling_stops_as_soon_as_the_bounds_are_narrow() {
    let fake = Fake::start(&[]).await;
    let engine = engine(&[&fake]).await;
    fake.replies(|_, _| says("4"));
    let found = number(&engine, precise(512, 1.0)).await;
    assert!(!found.truncated && (16..=64).contains(&fake.arrived()), "{}", fake.arrived());
    assert_eq!(found.answers.unwrap().samples(), fake.arrived());
    fake.replies(|number, _| says(if number % 2 == 0 { "1" } else { "5" }));
    let found = number(&engine, precise(48, 0.1)).await;
    assert!(found.truncated, "the bounds stay wide");
    assert_eq!((fake.arrived(), found.answers.unwrap().samples()), (48, 48));
}

#[tokio::test]
async fn answers_that_are_late_are_open_and_their_requests_are_cancelled() {
    let fake = Fake::start(&[]).await;
    let engine = engine(&[&fake]).await;
    fake.replies(|number, _| if number % 4 == 0 { Reply::Stall } else { says("4") });
    let wanted = NumberJob { time_max: Some(Duration::from_secs(2)), ..rating(16) };
    let found = number(&engine, wanted).await;
    let mass = found.distribution.mass();
    assert_eq!((mass.closed, mass.open, found.truncated), (0.75, 0.25, true));
    becomes("the requests are cancelled", || fake.shared.running.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn options_are_counted_and_the_bounds_of_several_orders_share_the_error() {
    let fake = Fake::start(&[]).await;
    let engine = engine(&[&fake]).await;
    fake.replies(|number, _| match number % 4 {
        0..2 => says("**B**"),
        2 => says("A: no"),
        _ => says("I cannot say."),
    });
    let option =
        |label: &str, text: &str| OptionName { label: Some(label.to_owned()), text: text.to_owned() };
    let names = OptionNames::new(vec![option("A", "no"), option("B", "yes")]);
    let outcome = async |orders| -> OptionsOutcome {
        let wanted = SampledOptions { names: names.clone(), samples: 64, orders };
        match run(&engine, job(ChatWanted::Options(wanted))).await.1 {
            Event::Options(outcome) => outcome,
            event => panic!("{event:?}"),
        }
    };
    let found = outcome(1).await;
    assert_eq!((found.closed.clone(), found.mass().invalid), (vec![0.25, 0.5], 0.25));
    let bounds = found.bounds();
    assert!(bounds[1].low < 2.0 / 3.0 && 2.0 / 3.0 < bounds[1].high, "{bounds:?}");
    assert_eq!(found.answers.as_ref().unwrap().samples(), 64);
    let wider = outcome(4).await.bounds();
    assert!(wider[1].low < bounds[1].low && bounds[1].high < wider[1].high, "{wider:?} {bounds:?}");
}

#[tokio::test]
async fn a_request_that_fails_is_sent_again_and_otherwise_fails_its_job() {
    let fake = Fake::start(&[]).await;
    let engine = engine(&[&fake]).await;
    for fault in [Reply::Cut, Reply::Overloaded("0"), Reply::Status(502, "oops".to_owned())] {
        let first = fault.clone();
        fake.replies(move |number, _| if number == 0 { first.clone() } else { says("4") });
        let mass = number(&engine, rating(8)).await.distribution.mass();
        assert_eq!((mass.closed, fake.arrived()), (1.0, 9), "the answer was not left out");
        fake.replies(move |_, _| fault.clone());
        failure(&engine, rating(2)).await;
    }
    fake.replies(|number, _| if number == 3 { Reply::Overloaded("600") } else { says("4") });
    let error = failure(&engine, rating(8)).await;
    let EngineError::UpstreamOverloaded { retry_after_seconds: Some(600), .. } = error else {
        panic!("{error}")
    };
    for reply in [Reply::Status(200, "no JSON".to_owned()), Reply::Status(200, "{}".to_owned())] {
        fake.replies(move |_, _| reply.clone());
        let error = failure(&engine, rating(1)).await;
        assert!(matches!(error, EngineError::Upstream(_)), "{error}");
    }
    fake.replies(|_, _| Reply::Status(400, r#"{"error": {"message": "too long"}}"#.to_owned()));
    let error = failure(&engine, rating(1)).await;
    assert!(
        matches!(&error, EngineError::UpstreamRejected(message) if message.ends_with("too long")),
        "{error}"
    );
}

#[tokio::test]
async fn an_answer_that_may_be_the_reason_of_a_failure_is_open_and_not_drawn_again() {
    let (one, other) = (Fake::start(&[]).await, Fake::start(&[]).await);
    let engine = engine(&[&one, &other]).await;
    for fault in [Reply::Status(500, "oops".to_owned()), Reply::Status(200, "no JSON".to_owned())] {
        for fake in [&one, &other] {
            let fault = fault.clone();
            fake.replies(move |number, _| if number % 4 == 0 { fault.clone() } else { says("4") });
        }
        let mass = number(&engine, rating(64)).await.distribution.mass();
        let arrived = [&one, &other].map(Fake::arrived);
        assert_eq!(arrived.iter().sum::<usize>(), 64);
        let lost: usize = arrived.iter().map(|count| count.div_ceil(4)).sum();
        assert_eq!((mass.open, mass.invalid), (lost as f64 / 64.0, 0.0));
    }
}

#[tokio::test]
async fn another_replica_answers_what_one_cannot() {
    let (broken, works) = (Fake::start(&[]).await, Fake::start(&[]).await);
    let engine = engine(&[&broken, &works]).await;
    for fake in [&broken, &works] {
        fake.replies(|_, _| says("2"));
    }
    broken.replies(|_, _| Reply::Status(503, "loading".to_owned()));
    for _ in 0..2 {
        let mass = number(&engine, rating(16)).await.distribution.mass();
        assert_eq!((mass.closed, mass.invalid), (1.0, 0.0));
    }
    assert!(broken.arrived() > 0 && works.arrived() >= 32, "{} {}", broken.arrived(), works.arrived());
}

#[tokio::test]
async fn no_error_and_no_text_repeats_the_key() {
    let fake = Fake::start(&[]).await;
    let engine = engine(&[&fake]).await;
    for status in [400, 401, 500] {
        fake.replies(move |_, _| Reply::Status(status, format!("invalid key: Bearer {KEY}")));
        let error = failure(&engine, rating(1)).await.to_string();
        assert!(error.contains("***") && !error.contains(KEY), "{error}");
    }
    fake.replies(|_, _| says(&format!("Your key is {KEY}.")));
    let found = number(&engine, rating(4)).await;
    assert_eq!(found.refused[0].text, "Your key is ***.");
    fake.replies(|_, _| Reply::Status(200, format!(r#"{{"choices": "{KEY}"}}"#)));
    let error = failure(&engine, rating(1)).await.to_string();
    assert!(!error.contains(KEY), "{error}");
}

#[tokio::test]
async fn a_client_with_few_answers_does_not_wait_for_one_with_many() {
    let fake = Fake::start(&[]).await;
    let upstream = connect(UpstreamConfig { requests_max: 4, ..config(&[&fake]) }).await;
    let engine = engine_over(upstream);
    fake.replies(|_, body| if body["user"] == "greedy" { Reply::Stall } else { says("3") });
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "user": "greedy"});
    let chat = Arc::new(chat.as_object().unwrap().clone());
    let greedy = ChatJob { chat, client: 2, ..job(ChatWanted::Number(rating(64).into())) };
    let held = engine.submit_chats(vec![greedy.clone(), greedy], &EngineMeter::default()).unwrap();
    becomes("the engine has all that one client may have", || {
        fake.shared.running.load(Ordering::SeqCst) == 3
    })
    .await;
    let found = join_all([number(&engine, rating(16)), number(&engine, rating(16))]).await;
    assert!(found.iter().all(|found| found.distribution.mass().closed >= 1.0));
    assert_eq!(fake.shared.running.load(Ordering::SeqCst), 3);
    drop(held);
    becomes("its requests are cancelled", || fake.shared.running.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn the_tokens_of_answers_are_known_also_if_their_job_does_not_end() {
    let fake = Fake::start(&[]).await;
    let engine = engine(&[&fake]).await;
    fake.replies(|number, _| if number < 3 { says("4") } else { Reply::Stall });
    let meter = EngineMeter::default();
    let job = job(ChatWanted::Number(rating(8).into()));
    let held = engine.submit_chats(vec![job], &meter).unwrap();
    // The others count with their limit of 50 tokens, and with a quarter of the bytes of their bodies.
    let estimates = 5 * 70..5 * 110;
    let is_counted = || estimates.contains(&meter.total().tokens().saturating_sub(3 * ANSWER_TOKENS));
    becomes("three answers have arrived", || meter.total().requests == 8 && is_counted()).await;
    drop(held);
    becomes("its requests are cancelled", || fake.shared.running.load(Ordering::SeqCst) == 0).await;
    assert!(meter.total().requests == 8 && is_counted(), "{:?}", meter.total());
}

#[tokio::test]
async fn a_deadline_ends_a_job_with_an_error() {
    let fake = Fake::start(&[]).await;
    let engine = engine(&[&fake]).await;
    fake.replies(|_, _| Reply::Stall);
    let after = Duration::from_millis(50);
    let late = ChatJob {
        deadline: Some((Instant::now() + after, after)),
        ..job(ChatWanted::Number(rating(4).into()))
    };
    let event = run(&engine, late).await.1;
    assert!(matches!(event, Event::Failed(EngineError::Deadline { after_ms: 50 })), "{event:?}");
}
