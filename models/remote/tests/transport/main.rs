//! Next-token queries over HTTP, against engines in this process: what they report, how they fail, and what
//! an engine that lies can do.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod fake;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fake::{Fake, Fault, Flavor, TOKENS, bytewise, logprobs, ranked};
use futures::StreamExt;
use ntl_core::contract::{EngineError, LogitsRequest, NextTokenReport};
use ntl_core::sampling::SamplingParams;
use ntl_remote::wire::llama_cpp::BEST;
use ntl_remote::{
    Ahead, ApiKey, Connecting, EngineFacts, EngineKind, EngineMeter, EngineUsage, NextTokenAnswer,
    NextTokenQuery, NextTokens, NoObserver, QueryContext, Reports, TextQuery, Upstream, UpstreamConfig,
    UpstreamError,
};

/// Far more than any answer needs.
const PATIENCE: Duration = Duration::from_secs(60);

fn context() -> QueryContext {
    QueryContext {
        client: 1,
        affinity: 1,
        cache_salt: 0,
        is_alone: false,
        needs_all_ids: false,
        deadline: None,
        meter: EngineMeter::default(),
    }
}

fn config(fakes: &[&Fake], timeout: Duration) -> UpstreamConfig {
    UpstreamConfig {
        replicas: fakes.iter().map(|fake| fake.url.parse().unwrap()).collect(),
        model: None,
        kind: None,
        api_key: Some(ApiKey::new("secret").unwrap()),
        timeout,
        check_interval: PATIENCE,
        ca_file: None,
        requests_max: 64,
    }
}

async fn connect_within(fakes: &[&Fake], timeout: Duration) -> Arc<Upstream> {
    connect_with(fakes, config(fakes, timeout)).await
}

async fn connect_with(fakes: &[&Fake], config: UpstreamConfig) -> Arc<Upstream> {
    let connecting = Connecting::new(config).unwrap();
    let facts = connecting.detect().await.unwrap();
    let upstream = connecting.connect(facts, bytewise(true), Arc::new(NoObserver)).await.unwrap();
    for fake in fakes {
        fake.shared.bodies.lock().unwrap().clear();
        fake.shared.arrived.store(0, Ordering::SeqCst);
        fake.shared.ended.store(0, Ordering::SeqCst);
    }
    upstream
}

async fn connect(fakes: &[&Fake]) -> Arc<Upstream> {
    connect_within(fakes, PATIENCE).await
}

fn query(path: &[u32], wanted: LogitsRequest, ahead: usize) -> NextTokenQuery {
    NextTokenQuery { prompt: [5, 6, 7].into(), path: path.to_vec(), wanted, ahead: Ahead::greedy(ahead) }
}

fn ids(ids: &[u32]) -> LogitsRequest {
    LogitsRequest::Ids(ids.into())
}

fn row(path: &[u32]) -> Vec<u32> {
    [&[5, 6, 7], path].concat()
}

/// Asserts that every reported probability equals the model's.
fn assert_true(report: &NextTokenReport, row: &[u32]) {
    let exact = logprobs(row);
    assert!(!report.tokens().is_empty());
    for token in report.tokens() {
        let want = exact[token.id as usize];
        assert!((token.logprob - want).abs() < 1e-9, "{}: {} instead of {want}", token.id, token.logprob);
    }
    if let Some(best) = report.best() {
        assert_eq!(best, ranked(&exact)[0]);
    }
}

async fn ask(upstream: &Upstream, queries: Vec<NextTokenQuery>) -> Result<Vec<NextTokenAnswer>, EngineError> {
    upstream.ask(context(), queries).await
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
async fn engines_are_detected_with_a_reason_and_what_they_report() {
    for (flavor, kind, reports, version) in [
        (Flavor::Vllm, EngineKind::Vllm, Reports::Ids, Some("9.9")),
        (Flavor::VllmProcessed, EngineKind::Vllm, Reports::Ids, Some("9.9")),
        (Flavor::Sglang, EngineKind::Sglang, Reports::Ids, Some("0.5")),
        (Flavor::LlamaCpp { obeys_bias: true }, EngineKind::LlamaCpp, Reports::Ids, Some("b1")),
        (Flavor::LlamaCpp { obeys_bias: false }, EngineKind::LlamaCpp, Reports::All, Some("b1")),
        (Flavor::OpenAi { accepts_ids: true }, EngineKind::OpenAi, Reports::Best(5), None),
        (Flavor::OpenAi { accepts_ids: false }, EngineKind::OpenAi, Reports::Best(5), None),
        (Flavor::Capped, EngineKind::OpenAi, Reports::Best(5), None),
    ] {
        let fake = Fake::start(flavor).await;
        let facts = Connecting::new(config(&[&fake], PATIENCE)).unwrap().detect().await.unwrap();
        let EngineFacts { model, context_tokens_max, reason, accepts_ids, .. } = &facts;
        assert_eq!((facts.kind, facts.reports, facts.version.as_deref()), (kind, reports, version));
        assert_eq!((model.as_str(), *context_tokens_max), ("toy", Some(512)));
        assert!(reason.contains("owned_by"), "{reason}");
        assert_eq!(*accepts_ids, flavor != Flavor::OpenAi { accepts_ids: false });
        assert_eq!(facts.chooses_among, flavor == Flavor::Vllm);
        let unknown = UpstreamConfig { model: Some("other".to_owned()), ..config(&[&fake], PATIENCE) };
        let error = Connecting::new(unknown).unwrap().detect().await.unwrap_err().to_string();
        assert!(error.ends_with("does not serve `other`; it serves `toy`"), "{error}");
    }
}

#[tokio::test]
async fn another_tokenizer_is_an_error_with_the_text_and_the_ids_of_both_sides() {
    let fake = Fake::start(Flavor::Vllm).await;
    let connecting = Connecting::new(config(&[&fake], PATIENCE)).unwrap();
    let facts = connecting.detect().await.unwrap();
    let connected = connecting.connect(facts, bytewise(false), Arc::new(NoObserver)).await;
    let error = connected.err().unwrap().to_string();
    assert!(error.contains("it makes [48, 49, 50,") && error.contains("of \"0123456789\""), "{error}");
    assert!(error.contains("the engine makes [256, 48, 49,"), "{error}");
}

#[tokio::test]
async fn vllm_reports_given_ids_in_groups_and_greedy_tokens_ahead() {
    let fake = Fake::start(Flavor::Vllm).await;
    let upstream = connect(&[&fake]).await;
    let wanted: Vec<u32> = (0..200).collect();
    let queries =
        vec![query(&[], ids(&wanted), 2), query(&[9], ids(&wanted), 2), query(&[8], LogitsRequest::Best, 0)];
    let answers = ask(&upstream, queries).await.unwrap();
    assert_eq!(fake.arrived(), 3, "two groups of ids for two rows together, and one request for the third");
    for (answer, path) in answers.iter().zip([&[][..], &[9], &[8]]) {
        assert_true(&answer.report, &row(path));
        let mut row = row(path);
        for step in &answer.ahead {
            assert_eq!(step.token, ranked(&logprobs(&row))[0]);
            row.push(step.token);
            assert_true(&step.report, &row);
        }
    }
    assert_eq!(answers.iter().map(|answer| answer.ahead.len()).collect::<Vec<_>>(), [2, 2, 0]);
    assert!(wanted.iter().all(|&id| answers[0].report.logprob(id).is_some()));
    let bodies = fake.shared.bodies.lock().unwrap();
    assert!(bodies.iter().all(|body| body["prompt"][0].is_array()), "ids are sent, not text");
}

#[tokio::test]
async fn vllm_appends_tokens_among_given_ids_if_that_changes_no_probability() {
    for (flavor, chooses) in [(Flavor::Vllm, true), (Flavor::VllmProcessed, false)] {
        let fake = Fake::start(flavor).await;
        let upstream = connect(&[&fake]).await;
        let rare: Vec<u32> = (300..310).collect();
        let ahead = Ahead { tokens: 2, among: Some(rare.clone().into()) };
        let answers =
            ask(&upstream, vec![NextTokenQuery { ahead, ..query(&[9], ids(&rare), 0) }]).await.unwrap();
        let mut row = row(&[9]);
        assert_true(&answers[0].report, &row);
        assert_eq!(answers[0].report.best().is_none(), chooses, "the best token of all is unknown");
        assert_eq!(answers[0].ahead.len(), 2);
        for step in &answers[0].ahead {
            let allowed = |id: &u32| !chooses || rare.contains(id);
            assert_eq!(Some(step.token), ranked(&logprobs(&row)).into_iter().find(allowed));
            row.push(step.token);
            assert_true(&step.report, &row);
        }
    }
}

#[tokio::test]
async fn sglang_reports_any_ids_in_one_request_and_tokens_ahead() {
    let fake = Fake::start(Flavor::Sglang).await;
    let upstream = connect(&[&fake]).await;
    let all: Vec<u32> = (0..TOKENS as u32).collect();
    let context = QueryContext { cache_salt: 10, ..context() };
    let meter = context.meter.clone();
    let queries = vec![query(&[1], ids(&all), 2), query(&[2], ids(&all), 2)];
    let answers = upstream.ask(context, queries).await.unwrap();
    for (answer, next) in answers.iter().zip([1, 2]) {
        let mut path = row(&[next]);
        assert_true(&answer.report, &path);
        assert_eq!((answer.report.tokens().len(), answer.ahead.len()), (TOKENS, 2));
        for step in &answer.ahead {
            path.push(step.token);
            assert_true(&step.report, &path);
        }
    }
    let answers = ask(&upstream, vec![query(&[3], LogitsRequest::Best, 0)]).await.unwrap();
    assert_true(&answers[0].report, &row(&[3]));
    let bodies = fake.shared.bodies.lock().unwrap();
    assert_eq!((bodies.len(), &bodies[0]["cache_salt"]), (2, &"000000000000000a".into()));
    let EngineUsage { requests, prompt_tokens, completion_tokens, .. } = meter.total();
    assert_eq!((requests, prompt_tokens, completion_tokens), (1, 2, 6), "as the engine reports them");
}

#[tokio::test]
async fn llama_cpp_reports_probable_ids_in_one_request_and_rare_ones_in_a_second_with_a_bias() {
    let fake = Fake::start(Flavor::LlamaCpp { obeys_bias: true }).await;
    let upstream = connect(&[&fake]).await;
    let order = ranked(&logprobs(&row(&[1])));
    let mut likely = order[..3].to_vec();
    likely.sort_unstable();
    let answers = ask(&upstream, vec![query(&[1], ids(&likely), 0)]).await.unwrap();
    assert_true(&answers[0].report, &row(&[1]));
    assert_eq!((answers[0].report.tokens().len(), fake.arrived()), (BEST, 1));
    let mut rare = order[BEST..].to_vec();
    rare.sort_unstable();
    let queries = vec![query(&[1], ids(&rare), 0), query(&[2], ids(&rare), 0), query(&[1], ids(&likely), 0)];
    let answers = ask(&upstream, queries).await.unwrap();
    for (answer, path) in answers.iter().zip([[1], [2], [1]]) {
        assert_true(&answer.report, &row(&path));
    }
    for answer in &answers[..2] {
        assert!(rare.iter().all(|&id| answer.report.logprob(id).is_some()));
    }
    assert_eq!(fake.arrived(), 1 + 2 + 1, "rows of one kind are asked together");
}

#[tokio::test]
async fn the_requests_of_one_client_are_limited_and_delay_none_of_another() {
    let fake = Fake::start(Flavor::Vllm).await;
    let upstream =
        connect_with(&[&fake], UpstreamConfig { requests_max: 4, ..config(&[&fake], PATIENCE) }).await;
    fake.set(Fault::Stall);
    let of = |client| QueryContext { client, ..context() };
    // Each group of 128 ids is a request.
    let wanted: Vec<u32> = (0..600).collect();
    let stalled = [vec![query(&[], ids(&wanted), 0)], vec![query(&[1], ids(&wanted), 0)]];
    let stalled = stalled.map(|queries| {
        let upstream = Arc::clone(&upstream);
        tokio::spawn(async move { upstream.ask(of(1), queries).await })
    });
    becomes("three requests arrive", || fake.arrived() == 3).await;
    fake.set(Fault::None);
    let answers = upstream.ask(of(2), vec![query(&[], ids(&wanted), 0)]).await.unwrap();
    assert_true(&answers[0].report, &row(&[]));
    assert_eq!(
        fake.arrived(),
        3 + 5,
        "one request after the other for the second client, and none for the first"
    );
    // A text of the first client waits for no request for probabilities.
    let text = TextQuery {
        prompt: [5, 6, 7].into(),
        path: vec![8],
        sampling: SamplingParams::PLAIN,
        stream: 0,
        max_tokens: 1,
        stop: None,
        among: None,
    };
    let _ = upstream.write(of(1), text).next().await;
    assert_eq!(fake.arrived(), 9);
    assert_eq!(fake.shared.bodies.lock().unwrap()[8]["prompt"], serde_json::json!([5, 6, 7, 8]));
    stalled.iter().for_each(tokio::task::JoinHandle::abort);
    becomes("the requests end", || fake.shared.ended.load(Ordering::SeqCst) == 9).await;
}

#[tokio::test]
async fn llama_cpp_reports_an_improbable_id_only_if_all_are_needed() {
    let fake = Fake::start(Flavor::LlamaCpp { obeys_bias: true }).await;
    let upstream = connect(&[&fake]).await;
    let rarest = ranked(&logprobs(&row(&[1])))[TOKENS - 1];
    for needs_all_ids in [false, true] {
        let context = QueryContext { needs_all_ids, ..context() };
        let answers = upstream.ask(context, vec![query(&[1], ids(&[rarest]), 0)]).await.unwrap();
        assert_true(&answers[0].report, &row(&[1]));
        assert_eq!(answers[0].report.logprob(rarest).is_some(), needs_all_ids);
    }
}

#[tokio::test]
async fn the_work_of_an_engine_is_what_it_reports_or_what_was_requested() {
    let usage = |requests, prompt_tokens, cached_tokens, completion_tokens| EngineUsage {
        requests,
        prompt_tokens,
        cached_tokens,
        completion_tokens,
        reasoning_tokens: 0,
    };
    for (flavor, want) in [
        // Two rows after a prompt of three tokens, with a token ahead.
        (Flavor::Vllm, usage(1, 7, 1, 4)),
        // It reports no tokens, and computes no tokens ahead.
        (Flavor::LlamaCpp { obeys_bias: true }, usage(1, 7, 0, 2)),
    ] {
        let fake = Fake::start(flavor).await;
        let upstream = connect(&[&fake]).await;
        let context = context();
        let meter = context.meter.clone();
        let queries = [&[][..], &[1]].map(|path| query(path, ids(&[3]), 1));
        upstream.ask(context, queries.into()).await.unwrap();
        assert_eq!(meter.total(), want);
    }
}

#[tokio::test]
async fn a_tree_stays_in_one_slot_of_llama_cpp() {
    let fake = Fake::start(Flavor::LlamaCpp { obeys_bias: true }).await;
    let upstream = connect(&[&fake]).await;
    // Two slots, and a job of a client that has none running.
    assert_eq!(upstream.jobs_max(), Some(3));
    for affinity in [4, 5, 5, 4] {
        let context = QueryContext { affinity, ..context() };
        upstream.ask(context, vec![query(&[], LogitsRequest::Best, 0)]).await.unwrap();
    }
    let slots: Vec<u64> =
        fake.shared.bodies.lock().unwrap().iter().map(|body| body["id_slot"].as_u64().unwrap()).collect();
    assert_eq!(slots, [0, 1, 1, 0]);
}

#[tokio::test]
async fn a_tree_alone_divides_its_rows_among_the_slots_of_llama_cpp() {
    let fake = Fake::start(Flavor::LlamaCpp { obeys_bias: true }).await;
    let upstream = connect(&[&fake]).await;
    let queries = || (0..6).map(|next| query(&[next], LogitsRequest::Best, 0)).collect();
    for is_alone in [false, true] {
        let context = QueryContext { is_alone, ..context() };
        let answers = upstream.ask(context, queries()).await.unwrap();
        for (next, answer) in (0..).zip(&answers) {
            assert_true(&answer.report, &row(&[next]));
        }
    }
    let bodies = fake.shared.bodies.lock().unwrap();
    let mut requests: Vec<(u64, usize)> = bodies
        .iter()
        .map(|body| (body["id_slot"].as_u64().unwrap(), body["prompt"].as_array().unwrap().len()))
        .collect();
    requests[1..].sort_unstable();
    assert_eq!(requests, [(1, 6), (0, 3), (1, 3)]);
}

#[tokio::test]
async fn a_llama_cpp_without_a_bias_reports_more_and_more_of_the_most_probable_tokens() {
    let fake = Fake::start(Flavor::LlamaCpp { obeys_bias: false }).await;
    let upstream = connect(&[&fake]).await;
    let order = ranked(&logprobs(&row(&[1])));
    let rare = [order[TOKENS - 1]];
    let answers = ask(&upstream, vec![query(&[1], ids(&rare), 0), query(&[2], ids(&rare), 0)]).await.unwrap();
    assert_true(&answers[0].report, &row(&[1]));
    assert_true(&answers[1].report, &row(&[2]));
    assert_eq!(answers[0].report.tokens().len(), TOKENS);
}

#[tokio::test]
async fn of_an_openai_style_server_only_texts_of_one_token_are_used() {
    for accepts_ids in [true, false] {
        let fake = Fake::start(Flavor::OpenAi { accepts_ids }).await;
        let upstream = connect(&[&fake]).await;
        let begin = |path: &[u32]| NextTokenQuery {
            prompt: [256, u32::from(b'a'), u32::from(b'b')].into(),
            ..query(path, LogitsRequest::All, 0)
        };
        let paths = [&[][..], &[u32::from(b'7')], &[u32::from(b' ')]];
        let answers = ask(&upstream, paths.map(begin).to_vec()).await.unwrap();
        for (answer, path) in answers.iter().zip(paths) {
            let row = [&[256, u32::from(b'a'), u32::from(b'b')], path].concat();
            assert!(answer.report.tokens().len() <= 5);
            for token in answer.report.tokens() {
                assert!(token.id < 128, "no text names a part of a character");
                assert!((token.logprob - logprobs(&row)[token.id as usize]).abs() < 1e-9);
            }
        }
        let bodies = fake.shared.bodies.lock().unwrap();
        assert!(bodies.iter().all(|body| body["prompt"][0].is_string() != accepts_ids));
    }
}

#[tokio::test]
async fn about_ids_that_no_text_stands_for_an_engine_that_takes_texts_reports_nothing() {
    let fake = Fake::start(Flavor::OpenAi { accepts_ids: false }).await;
    let upstream = connect(&[&fake]).await;
    let unspelled = NextTokenQuery { prompt: [200].into(), ..query(&[], LogitsRequest::All, 0) };
    let spelled = NextTokenQuery { prompt: [256, 65].into(), ..query(&[], LogitsRequest::All, 0) };
    let answers = ask(&upstream, vec![unspelled, spelled]).await.unwrap();
    assert!(answers[0].report.tokens().is_empty());
    assert_true(&answers[1].report, &[256, 65]);
}

/// Bodies that only look like responses.
fn garbage() -> Vec<(&'static str, String)> {
    let choice = |logprobs: &str| format!(r#"{{"choices":[{{"index":0,"text":"","logprobs":{logprobs}}}]}}"#);
    let top =
        |entries: &str| choice(&format!(r#"{{"tokens":["token_id:1"],"top_logprobs":[{{{entries}}}]}}"#));
    vec![
        ("not JSON", "<html>busy</html>".to_owned()),
        ("empty", String::new()),
        ("no choices", "{}".to_owned()),
        ("another row", choice("null").replace("\"index\":0", "\"index\":7")),
        ("no log-probabilities", choice("null")),
        ("no position", choice(r#"{"tokens":[],"top_logprobs":[]}"#)),
        (
            "more positions than asked for",
            choice(
                r#"{"tokens":["token_id:1","token_id:1"],"top_logprobs":[{"token_id:1":-1},{"token_id:1":-1}]}"#,
            ),
        ),
        ("a missing id", top(r#""token_id:1":-1"#)),
        ("a name that is no id", top(r#""seven":-1"#)),
        ("NaN", top(r#""token_id:1":NaN,"token_id:3":-1"#)),
        ("a positive log-probability", top(r#""token_id:1":2.5,"token_id:3":-1"#)),
        ("more than all probability", top(r#""token_id:1":-0.1,"token_id:3":-0.1"#)),
        ("one id twice", top(r#""token_id:1":-1,"token_id:3":-3,"token_id:3":-4"#)),
        ("a number that is none", top(r#""token_id:1":1e999,"token_id:3":-1"#)),
        ("deep nesting", "[".repeat(10_000)),
        ("two rows for one", r#"{"choices":[{"index":0},{"index":1}]}"#.to_owned()),
    ]
}

#[tokio::test]
async fn a_response_that_is_not_a_distribution_fails_or_is_replaced_by_that_of_another_replica() {
    let (bad, good) = (Fake::start(Flavor::Vllm).await, Fake::start(Flavor::Vllm).await);
    let alone = connect(&[&bad]).await;
    let both = connect(&[&bad, &good]).await;
    for (name, body) in garbage() {
        bad.set(Fault::Body(body.into_bytes()));
        let error = ask(&alone, vec![query(&[], ids(&[3]), 0)]).await.unwrap_err();
        let EngineError::Upstream(message) = error else { panic!("{name}: {error}") };
        assert!(message.contains("is not understood: "), "{name}: {message}");
        let answers = ask(&both, vec![query(&[], ids(&[3]), 0)]).await.unwrap();
        assert_true(&answers[0].report, &row(&[]));
    }
}

#[tokio::test]
async fn failures_of_a_connection_have_their_own_errors_and_another_replica_answers() {
    let other = Fake::start(Flavor::Vllm).await;
    for (fault, want) in [
        (Fault::Cut, "closed the connection"),
        (Fault::Endless, "exceeds"),
        (Fault::Redirect(format!("{}/v1/completions", other.url)), "redirects to"),
        (Fault::Status(500, "{\"error\":\"broken\"}".to_owned()), "returned status 500: broken"),
        (Fault::Status(401, "{}".to_owned()), "returned status 401"),
    ] {
        let bad = Fake::start(Flavor::Vllm).await;
        let upstream = connect(&[&bad]).await;
        bad.set(fault.clone());
        let error = ask(&upstream, vec![query(&[], ids(&[3]), 0)]).await.unwrap_err();
        let EngineError::Upstream(message) = error else { panic!("{want}: {error}") };
        assert!(message.contains(want), "{message}");
    }
    assert_eq!(other.arrived(), 0, "a redirect is not followed");
}

#[tokio::test]
async fn slow_engines_time_out_and_their_requests_are_given_up() {
    for fault in [Fault::Drip, Fault::Stall] {
        let fake = Fake::start(Flavor::Vllm).await;
        let upstream = connect_within(&[&fake], PATIENCE).await;
        fake.set(fault);
        let deadline = Some(Instant::now() + Duration::from_millis(200));
        let asked =
            upstream.ask(QueryContext { deadline, ..context() }, vec![query(&[], ids(&[3]), 0)]).await;
        assert!(matches!(asked, Err(EngineError::UpstreamTimeout(_))), "{asked:?}");
        becomes("the engine notices", || fake.shared.ended.load(Ordering::SeqCst) == fake.arrived()).await;
    }
    let fake = Fake::start(Flavor::Vllm).await;
    let upstream = connect_within(&[&fake], Duration::from_secs(2)).await;
    fake.set(Fault::Stall);
    let asked = ask(&upstream, vec![query(&[], ids(&[3]), 0)]).await;
    let Err(EngineError::UpstreamTimeout(message)) = asked else { panic!("{asked:?}") };
    assert!(message.contains("did not respond within 2 s"), "{message}");
}

#[tokio::test]
async fn dropping_a_query_closes_its_connection() {
    let fake = Fake::start(Flavor::Vllm).await;
    let upstream = connect(&[&fake]).await;
    fake.set(Fault::Stall);
    let asking = tokio::spawn(async move { ask(&upstream, vec![query(&[], ids(&[3]), 0)]).await });
    becomes("the query arrives", || fake.arrived() == 1).await;
    assert_eq!(fake.shared.ended.load(Ordering::SeqCst), 0);
    asking.abort();
    becomes("the engine notices", || fake.shared.ended.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn a_rejected_request_is_the_clients_fault_and_not_repeated() {
    let (first, second) = (Fake::start(Flavor::Vllm).await, Fake::start(Flavor::Vllm).await);
    let upstream = connect(&[&first, &second]).await;
    for fake in [&first, &second] {
        fake.set(Fault::Status(400, r#"{"error":{"message":"prompt too long"}}"#.to_owned()));
    }
    let error = ask(&upstream, vec![query(&[], ids(&[3]), 0)]).await.unwrap_err();
    let EngineError::UpstreamRejected(message) = error else { panic!("{error}") };
    assert!(message.ends_with("rejects the request: prompt too long"), "{message}");
    assert_eq!(first.arrived() + second.arrived(), 1);
}

#[tokio::test]
async fn a_tree_stays_on_one_replica_and_others_go_to_the_next() {
    let (first, second) = (Fake::start(Flavor::Vllm).await, Fake::start(Flavor::Vllm).await);
    let upstream = connect(&[&first, &second]).await;
    for affinity in [1, 1, 2, 1, 2, 1] {
        let context = QueryContext { affinity, ..context() };
        upstream.ask(context, vec![query(&[], ids(&[3]), 0)]).await.unwrap();
    }
    let mut arrived = [first.arrived(), second.arrived()];
    arrived.sort_unstable();
    assert_eq!(arrived, [2, 4]);
}

#[tokio::test]
async fn text_is_forwarded_with_the_key_and_its_response_comes_back_as_it_is() {
    let fake = Fake::start(Flavor::Vllm).await;
    let upstream = connect(&[&fake]).await;
    fake.set(Fault::Body(b"data: {\"x\": 1}\n\ndata: [DONE]\n\n".to_vec()));
    let mut response =
        upstream.forward("/v1/completions", br#"{"prompt":"x","future_field":[1]}"#).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(part) = response.chunk().await.unwrap() {
        bytes.extend(part);
    }
    assert_eq!(bytes, b"data: {\"x\": 1}\n\ndata: [DONE]\n\n");
    assert_eq!(fake.shared.bodies.lock().unwrap()[0]["future_field"][0], 1);
    let keys = fake.shared.keys.lock().unwrap();
    assert!(keys.iter().all(|key| key.as_deref() == Some("Bearer secret")));
}

/// A key, and the forms in which an engine may repeat it.
const KEY: &str = "sk-UPSTREAM/SECRET+777";

fn repeated_keys() -> Vec<String> {
    let percent: String = KEY.bytes().map(|byte| format!("%{byte:02x}")).collect();
    // KEY and `Bearer KEY` in base64.
    let base64 = ["c2stVVBTVFJFQU0vU0VDUkVUKzc3Nw==", "QmVhcmVyIHNrLVVQU1RSRUFNL1NFQ1JFVCs3Nzc="];
    let all = [KEY.to_owned(), "sk-UPSTREAM%2FSECRET%2B777".to_owned(), percent];
    all.into_iter().chain(base64.map(str::to_owned)).collect()
}

fn assert_secret(text: &str) {
    for form in repeated_keys() {
        let middle = &form[form.len() / 4..3 * form.len() / 4];
        assert!(!text.contains(middle), "{text}");
    }
}

#[tokio::test]
async fn no_error_and_no_text_of_an_engine_repeats_its_key_or_the_path_of_its_url() {
    let fake = Fake::start(Flavor::Vllm).await;
    let api_key = Some(ApiKey::new(KEY).unwrap());
    let upstream = connect_with(&[&fake], UpstreamConfig { api_key, ..config(&[&fake], PATIENCE) }).await;
    for form in repeated_keys() {
        let message = format!("invalid key: Bearer {form}; the key is {form}");
        let body = serde_json::json!({"error": {"message": message}}).to_string();
        let faults = [400, 401, 403].map(|status| Fault::Status(status, body.clone()));
        let garbage = serde_json::json!({"choices": message}).to_string();
        let name = serde_json::json!({"choices": [{"index": 0, "text": "", "logprobs":
            {"tokens": [message], "top_logprobs": [{"token_id:1": -1}]}}]});
        let others = [
            Fault::Status(401, message.clone()),
            Fault::Body(garbage.into_bytes()),
            Fault::Body(name.to_string().into_bytes()),
            Fault::Redirect(format!("http://h/?key={form}")),
        ];
        for fault in faults.into_iter().chain(others) {
            fake.set(fault);
            let error = ask(&upstream, vec![query(&[], ids(&[3]), 0)]).await.unwrap_err().to_string();
            assert_secret(&error);
            assert!(error.contains("***"), "{error}");
            if let Err(error) = upstream.forward("/v1/completions", b"{}").await {
                assert_secret(&error.to_string());
            }
        }
        fake.set(Fault::Body(format!("data: {{\"error\": \"{message}\"}}\n\ndata: [DONE]\n\n").into_bytes()));
        let mut response = upstream.forward("/v1/completions", b"{}").await.unwrap();
        let mut text = Vec::new();
        while let Some(part) = response.chunk().await.unwrap() {
            text.extend(part);
        }
        let text = String::from_utf8(text).unwrap();
        assert_secret(&text);
        assert!(text.ends_with("\"}\n\ndata: [DONE]\n\n"), "{text}");
    }
    let url = format!("{}/SECRETPATH-abc", fake.url).parse().unwrap();
    let elsewhere = UpstreamConfig { replicas: vec![url], ..config(&[&fake], PATIENCE) };
    let error = Connecting::new(elsewhere).unwrap().detect().await.unwrap_err().to_string();
    assert!(error.contains("returned status 404") && !error.contains("SECRETPATH"), "{error}");
}

#[tokio::test]
async fn an_overloaded_engine_is_asked_again_only_if_it_does_not_say_when() {
    let fake = Fake::start(Flavor::Vllm).await;
    let upstream = connect(&[&fake]).await;
    for (retry_after, seconds, requests) in [(Some("7"), Some(7), 1), (None, None, 4)] {
        fake.set(Fault::Overloaded(retry_after));
        let before = fake.arrived();
        let error = ask(&upstream, vec![query(&[], ids(&[3]), 0)]).await.unwrap_err();
        let EngineError::UpstreamOverloaded { message, retry_after_seconds } = error else {
            panic!("{error}")
        };
        assert!(message.ends_with("is overloaded: busy"), "{message}");
        assert_eq!((retry_after_seconds, fake.arrived() - before), (seconds, requests));
    }
    fake.set(Fault::Overloaded(Some("1")));
    let before = fake.arrived();
    let error = upstream.forward("/v1/completions", b"{}").await.err().unwrap();
    assert!(matches!(error, UpstreamError::Overloaded { retry_after_seconds: Some(1), .. }), "{error}");
    assert_eq!(fake.arrived() - before, 1, "the client waits");
    let other = Fake::start(Flavor::Vllm).await;
    let both = connect(&[&fake, &other]).await;
    let answers = ask(&both, vec![query(&[], ids(&[3]), 0)]).await.unwrap();
    assert_true(&answers[0].report, &row(&[]));
}

#[tokio::test]
async fn a_stream_is_in_flight_until_it_ends() {
    let (first, second) = (Fake::start(Flavor::Vllm).await, Fake::start(Flavor::Vllm).await);
    let upstream = connect(&[&first, &second]).await;
    for fake in [&first, &second] {
        fake.set(Fault::Drip);
    }
    let streams = [(); 3].map(|()| upstream.forward("/v1/completions", b"{}"));
    let streams = futures::future::try_join_all(streams).await.unwrap();
    let mut arrived = [first.arrived(), second.arrived()];
    let other = upstream.forward("/v1/completions", b"{}").await.unwrap();
    // The fourth one goes to the replica that has one.
    arrived.sort_unstable();
    assert_eq!((arrived, first.arrived(), second.arrived()), ([1, 2], 2, 2));
    drop((streams, other));
}

#[tokio::test]
async fn a_text_that_takes_too_long_is_sent_to_one_replica_only() {
    let (first, second) = (Fake::start(Flavor::Vllm).await, Fake::start(Flavor::Vllm).await);
    let upstream = connect_within(&[&first, &second], Duration::from_secs(2)).await;
    for fake in [&first, &second] {
        fake.set(Fault::Stall);
    }
    let error = upstream.forward("/v1/completions", b"{}").await.err().unwrap();
    assert!(matches!(error, UpstreamError::Timeout { .. }), "{error}");
    assert_eq!(first.arrived() + second.arrived(), 1);
}

#[tokio::test]
async fn texts_have_the_salt_of_their_job() {
    let fake = Fake::start(Flavor::Vllm).await;
    let upstream = connect(&[&fake]).await;
    let text = || TextQuery {
        prompt: [5, 6].into(),
        path: Vec::new(),
        sampling: SamplingParams::PLAIN,
        stream: 0,
        max_tokens: 3,
        stop: None,
        among: None,
    };
    for (cache_salt, want) in [(0, None), (0xa0, Some("00000000000000a0"))] {
        let context = QueryContext { cache_salt, ..context() };
        // The fake writes no text.
        let _ = upstream.write(context, text()).next().await;
        let body = fake.shared.bodies.lock().unwrap().pop().unwrap();
        assert_eq!(body["cache_salt"].as_str(), want);
    }
}

#[tokio::test]
async fn ids_in_several_groups_are_reported_although_the_engine_rounds_each_group_differently() {
    let fake = Fake::start(Flavor::Vllm).await;
    let upstream = connect(&[&fake]).await;
    *fake.shared.rounding.lock().unwrap() = 0.05;
    // All ids, so that nothing is left for others.
    let wanted: Vec<u32> = (0..TOKENS as u32).collect();
    let (mut above, mut below) = (0, 0);
    for number in 0..40 {
        let answers = ask(&upstream, vec![query(&[number], ids(&wanted), 0)]).await.unwrap();
        let report = &answers[0].report;
        let sum: f64 = report.tokens().iter().map(|token| token.logprob.exp()).sum();
        above += usize::from(sum > 1.001);
        below += usize::from(sum < 0.999 && report.uncertain() > 0.0);
        assert!((0.8..1.2).contains(&sum), "{sum}");
        for token in report.tokens() {
            let want = logprobs(&row(&[number]))[token.id as usize];
            assert!((token.logprob - want).abs() < 0.4, "{} {want}", token.logprob);
        }
    }
    assert!(above > 3 && below > 3, "{above} {below}");
}

/// Connects with health checks that follow each other immediately.
async fn connect_checked(fakes: &[&Fake]) -> Arc<Upstream> {
    let check_interval = Duration::from_millis(1);
    connect_with(fakes, UpstreamConfig { check_interval, ..config(fakes, PATIENCE) }).await
}

#[tokio::test]
async fn other_weights_behind_the_same_url_change_the_fingerprint_and_the_former_ones_restore_it() {
    for flavor in [
        Flavor::Vllm,
        Flavor::Sglang,
        Flavor::LlamaCpp { obeys_bias: true },
        Flavor::LlamaCpp { obeys_bias: false },
        Flavor::OpenAi { accepts_ids: true },
        Flavor::OpenAi { accepts_ids: false },
    ] {
        let fake = Fake::start(flavor).await;
        if !matches!(flavor, Flavor::OpenAi { .. }) {
            *fake.shared.rounding.lock().unwrap() = 0.02;
        }
        let upstream = connect_checked(&[&fake]).await;
        let fingerprint = upstream.fingerprint().unwrap();
        assert!(fingerprint.starts_with("probe-"), "{fingerprint}");
        let arrived = fake.arrived();
        becomes("the prompts are computed again", || fake.arrived() > arrived + 8).await;
        assert_eq!((upstream.fingerprint().as_ref(), upstream.weight_changes()), (Some(&fingerprint), 0));
        fake.shared.weights.store(1, Ordering::SeqCst);
        becomes("the change is noticed", || upstream.weight_changes() == 1).await;
        assert_ne!(upstream.fingerprint().as_ref(), Some(&fingerprint));
        assert!(upstream.is_available());
        fake.shared.weights.store(0, Ordering::SeqCst);
        becomes("the first weights are recognised", || upstream.weight_changes() == 2).await;
        assert_eq!(upstream.fingerprint(), Some(fingerprint));
    }
}

#[tokio::test]
async fn the_fingerprint_of_an_engine_is_carried_and_a_response_with_another_one_is_not_used() {
    let fake = Fake::start(Flavor::Vllm).await;
    *fake.shared.fingerprint.lock().unwrap() = Some("0a");
    let upstream = connect(&[&fake]).await;
    assert_eq!(upstream.fingerprint().as_deref(), Some("0a"));
    assert_eq!(fake.arrived(), 0, "no prompt is computed");
    ask(&upstream, vec![query(&[], ids(&[3]), 0)]).await.unwrap();
    *fake.shared.fingerprint.lock().unwrap() = Some("0b");
    let error = ask(&upstream, vec![query(&[], ids(&[3]), 0)]).await.unwrap_err().to_string();
    assert!(error.ends_with("has changed: its weights have the fingerprint 0b instead of 0a"), "{error}");
    let error = upstream.forward("/v1/completions", b"{}").await.err().unwrap().to_string();
    assert!(error.contains("0b instead of 0a"), "{error}");
    let checked = connect_checked(&[&fake]).await;
    *fake.shared.fingerprint.lock().unwrap() = Some("0c");
    becomes("the change is noticed", || checked.fingerprint().as_deref() == Some("0c")).await;
    ask(&checked, vec![query(&[], ids(&[3]), 0)]).await.unwrap();
}

#[tokio::test]
async fn a_replica_with_other_weights_or_another_tokenizer_gets_no_requests() {
    let (first, second) = (Fake::start(Flavor::Vllm).await, Fake::start(Flavor::Vllm).await);
    second.shared.weights.store(1, Ordering::SeqCst);
    let connecting = Connecting::new(config(&[&first, &second], PATIENCE)).unwrap();
    let facts = connecting.detect().await.unwrap();
    let error =
        connecting.connect(facts, bytewise(true), Arc::new(NoObserver)).await.err().unwrap().to_string();
    assert!(error.ends_with("its weights differ from the replicas before it"), "{error}");
    second.shared.weights.store(0, Ordering::SeqCst);

    let upstream = connect_checked(&[&first, &second]).await;
    let fingerprint = upstream.fingerprint();
    first.shared.weights.store(1, Ordering::SeqCst);
    let is_used = |fake: &Fake| {
        let bodies = fake.shared.bodies.lock().unwrap();
        bodies.iter().any(|body| body["prompt"][0] == serde_json::json!([5, 6, 7, 99]))
    };
    let mut affinity = 100;
    loop {
        for fake in [&first, &second] {
            fake.shared.bodies.lock().unwrap().clear();
        }
        for _ in 0..4 {
            affinity += 1;
            let context = QueryContext { affinity, ..context() };
            upstream.ask(context, vec![query(&[99], ids(&[3]), 0)]).await.unwrap();
        }
        if !is_used(&first) && is_used(&second) {
            break;
        }
        assert!(affinity < 1_000_000, "the first replica still gets requests");
    }
    assert_eq!((upstream.fingerprint(), upstream.weight_changes()), (fingerprint.clone(), 0));
    let replace = |fake: &Fake, weights| {
        fake.shared.is_retokenized.store(true, Ordering::SeqCst);
        fake.shared.weights.store(weights, Ordering::SeqCst);
    };
    replace(&second, 2);
    becomes("the first one's weights are used, which no replica contradicts", || {
        upstream.weight_changes() == 1 && upstream.is_available()
    })
    .await;
    assert_ne!(upstream.fingerprint(), fingerprint);
    replace(&first, 3);
    becomes("no replica is available", || !upstream.is_available()).await;
}

#[tokio::test]
async fn a_replica_whose_engine_can_do_less_is_not_used() {
    let (first, second) = (Fake::start(Flavor::Vllm).await, Fake::start(Flavor::VllmProcessed).await);
    let connecting = Connecting::new(config(&[&first, &second], PATIENCE)).unwrap();
    let facts = connecting.detect().await.unwrap();
    let error =
        connecting.connect(facts, bytewise(true), Arc::new(NoObserver)).await.err().unwrap().to_string();
    assert!(error.ends_with("it changes probabilities if only some tokens may be written"), "{error}");
}

#[tokio::test]
async fn the_replica_that_was_detected_is_not_detected_again() {
    let fake = Fake::start(Flavor::Vllm).await;
    *fake.shared.fingerprint.lock().unwrap() = Some("0a");
    let connecting = Connecting::new(config(&[&fake], PATIENCE)).unwrap();
    let facts = connecting.detect().await.unwrap();
    let detected = fake.arrived();
    connecting.connect(facts, bytewise(true), Arc::new(NoObserver)).await.unwrap();
    assert_eq!(fake.arrived(), detected);
}

#[tokio::test]
async fn an_engine_that_rejects_the_fixed_prompts_gets_them_in_few_checks() {
    let fake = Fake::start(Flavor::Vllm).await;
    let check_interval = Duration::from_millis(1);
    let config = UpstreamConfig { check_interval, ..config(&[&fake], PATIENCE) };
    let connecting = Connecting::new(config).unwrap();
    let facts = connecting.detect().await.unwrap();
    fake.set(Fault::Status(400, "no prompts".to_owned()));
    let upstream = connecting.connect(facts, bytewise(true), Arc::new(NoObserver)).await.unwrap();
    assert_eq!(upstream.fingerprint(), None);
    let count = || (fake.arrived(), fake.shared.described.load(Ordering::SeqCst));
    let before = count();
    becomes("the engine is checked often", || count().1 > before.1 + 60).await;
    let (prompts, checks) = (count().0 - before.0, count().1 - before.1);
    assert!(prompts > 0 && 3 * prompts < checks, "{prompts} prompts in {checks} checks");
}

#[tokio::test]
async fn a_busy_replica_is_not_mistaken_for_one_that_takes_only_texts() {
    let flavor = Flavor::OpenAi { accepts_ids: true };
    for fault in [Fault::Overloaded(None), Fault::Cut] {
        let (first, second) = (Fake::start(flavor).await, Fake::start(flavor).await);
        second.set(Fault::Once(Box::new(fault)));
        let upstream = connect(&[&first, &second]).await;
        assert!(upstream.facts().accepts_ids && upstream.is_available());
    }
    let texts = Fake::start(Flavor::OpenAi { accepts_ids: false }).await;
    texts.set(Fault::Once(Box::new(Fault::Status(500, "broken by ids".to_owned()))));
    let facts = Connecting::new(config(&[&texts], PATIENCE)).unwrap().detect().await.unwrap();
    assert!(!facts.accepts_ids, "a server that fails for ids can be sent texts");
}

#[tokio::test]
async fn a_choice_among_tokens_and_a_repetition_penalty_exclude_each_other_on_llama_cpp() {
    let penalty = SamplingParams { repetition_penalty: 1.1, ..SamplingParams::PLAIN };
    for (flavor, is_supported) in [(Flavor::Vllm, true), (Flavor::LlamaCpp { obeys_bias: true }, false)] {
        let fake = Fake::start(flavor).await;
        let upstream = connect(&[&fake]).await;
        assert!(upstream.check_choices(&SamplingParams::PLAIN).is_ok());
        let error = upstream.check_choices(&penalty).err().map(|error| error.to_string());
        assert_eq!(error.is_none(), is_supported);
        assert!(error.is_none_or(|error| error.starts_with("`repetition_penalty` is not supported")));
    }
}
