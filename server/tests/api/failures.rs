//! Requests that get no answer: each has its status, its error body and its field, and harms no other
//! request.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::{Request, header};
use futures::StreamExt;
use ntl_core::contract::ModelError;
use ntl_engine::EngineLimits;
use ntl_server::app;
use ntl_server::metrics::Metrics;
use ntl_server::settings::HttpSettings;
use ntl_server::state::AppState;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::hooked::{Hooked, gated};
use crate::support::{
    EOS, babbles, becomes, call, complete, get, json_request, loaded, logits, metric, metric_becomes, piece,
    post, says, scripted, server, state_of,
};

/// Checks that the error about a value names its field.
async fn refused(app: &axum::Router, field: &str, value: &Value) {
    let mut body = json!({"prompt": "x"});
    body[field.split(['.', '[']).next().unwrap()] = value.clone();
    let answer = complete(app, body).await;
    assert_eq!(answer.status, 400, "{field}: {}", answer.text);
    let error = answer.error();
    assert_eq!(error["param"], field, "{error}");
    assert_eq!(error["type"], "invalid_request_error");
}

#[tokio::test]
async fn values_of_a_wrong_type_are_answered_400_and_name_the_field() {
    let app = server(says("1"));
    for (field, value) in [
        ("best_of", json!("3")),
        ("logit_bias", json!([1])),
        ("logit_bias.1", json!({"1": "much"})),
        ("temperature", json!("hot")),
        ("top_k", json!(0.5)),
        ("min_p", json!(true)),
        ("presence_penalty", json!([])),
        ("frequency_penalty", json!({})),
        ("repetition_penalty", json!("1")),
        ("min_tokens", json!(-1)),
        ("ignore_eos", json!(1)),
        ("stop", json!(5)),
        ("stop_token_ids", json!(5)),
        ("stop_token_ids[1]", json!([5, "end"])),
        ("include_stop_str_in_output", json!("yes")),
        ("return_token_ids", json!(0)),
        ("prompt_logprobs", json!("all")),
        ("guided_regex", json!(5)),
        ("guided_choice", json!("a")),
        ("guided_json", json!("{")),
        ("response_format.type", json!({"type": "xml"})),
        ("stream", json!("yes")),
    ] {
        refused(&app, field, &value).await;
    }
}

#[tokio::test]
async fn wrong_requests_are_answered_400_and_name_the_field() {
    let app = server(says("1"));
    for (field, value) in [
        ("prompt", json!(null)),
        ("prompt", json!("")),
        ("prompt[1]", json!(["a", ""])),
        ("prompt[1]", json!([[1], []])),
        ("prompt", json!([])),
        ("prompt", json!([[]])),
        ("prompt", json!(5)),
        ("prompt", json!([-1])),
        ("prompt", json!([4_000_000])),
        ("prompt", json!("egg ".repeat(600))),
        ("prompt", json!("egg ".repeat(6000))),
        ("prompt", json!(vec![5; 512])),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(1.5)),
        ("max_tokens", json!(u64::MAX)),
        ("temperature", json!(3)),
        ("top_p", json!(0)),
        ("seed", json!(u64::MAX)),
        ("n", json!(0)),
        ("n", json!(1_000_000_000)),
        ("stop", json!(["a", "b", "c", "d", "e"])),
        ("logprobs", json!(21)),
        ("logprobs", json!(-1)),
        ("stream_options", json!({"include_usage": true})),
        ("echo", json!(true)),
        ("suffix", json!("x")),
        ("best_of", json!(129)),
        ("logit_bias", json!({"4000000": 1})),
        ("beam_width", json!(4)),
        ("early_stopping", json!("always")),
        ("number", json!("yes")),
        ("number.method", json!({"method": "forest"})),
        ("number.samples", json!({"samples": 64})),
        ("number.precision", json!({"method": "beam", "precision": 0})),
        ("number.rationales", json!({"rationales": 2})),
        ("number.range", json!({"range": [1, 0]})),
        ("number.thousands", json!({"thousands": "."})),
        ("number_tokens", json!(true)),
        ("number.trim", json!({"trim": 0.5})),
        ("number.after", json!({"after": ""})),
        ("number.nonsense", json!({"nonsense": 1})),
    ] {
        refused(&app, field, &value).await;
    }
    let error = complete(&app, json!({"prompt": "x", "echo": true})).await.error();
    assert!(error["message"].as_str().unwrap().contains("POST /v1/score"), "{error}");
    let error = complete(&app, json!({"prompt": vec![5; 600]})).await.error();
    assert_eq!(error["message"], "prompt has 601 tokens, the model takes at most 512");
    let refused = "ntl_requests_total{code=\"400\",model=\"scripted\",route=\"/v1/completions\"}";
    assert!(metric(&app, refused).await > 20.0);
}

#[tokio::test]
async fn an_error_of_one_of_several_prompts_names_it() {
    let app = server(says("1"));
    for (prompts, param, message) in [
        (json!(["x", "y", ""]), "prompt[2]", "`prompt[2]` must not be empty"),
        (json!([[5], [5, 99_999]]), "prompt[1]", "`prompt[1]` contains the token id 99999"),
        (
            json!([vec![5], vec![5; 600], vec![5]]),
            "prompt[1]",
            "`prompt[1]`: prompt has 601 tokens, the model takes at most 512",
        ),
        (json!(["x".repeat(200_000), "x"]), "prompt[0]", "`prompt[0]`: prompt has 200000 bytes"),
        (json!([""]), "prompt", "`prompt` must not be empty"),
    ] {
        let answer = complete(&app, json!({ "prompt": prompts })).await;
        let error = answer.error();
        assert_eq!((answer.status.as_u16(), &error["param"]), (400, &json!(param)), "{error}");
        assert!(error["message"].as_str().unwrap().starts_with(message), "{error}");
        let is_long = message.contains("prompt has");
        assert_eq!(error["code"], if is_long { json!("context_length_exceeded") } else { Value::Null });
    }
}

#[tokio::test]
async fn bodies_that_are_no_json_objects_are_refused() {
    let app = server(says("1"));
    let send = |content_type: Option<&str>, encoding: Option<&str>, body: &str| {
        let mut request = Request::post("/v1/completions");
        for (name, value) in [(header::CONTENT_TYPE, content_type), (header::CONTENT_ENCODING, encoding)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        request.body(Body::from(body.to_owned())).unwrap()
    };
    let json = Some("application/json");
    let long = "x".repeat(3 << 20);
    for (request, status) in [
        (send(None, None, "{}"), 415),
        (send(Some("text/plain"), None, "{}"), 415),
        (send(Some("application/x-www-form-urlencoded"), None, "prompt=x"), 415),
        (send(json, Some("br"), "{}"), 415),
        (send(json, Some("gzip, gzip"), "{}"), 415),
        (send(json, Some("gzip"), "{}"), 400),
        (send(json, None, ""), 400),
        (send(json, None, "[]"), 400),
        (send(json, None, "{\"prompt\": \"x\""), 400),
        (send(json, None, "nonsense"), 400),
        (send(json, None, &long), 413),
        (send(Some("Application/JSON; charset=utf-8"), Some("identity"), "{\"prompt\": \"x\"}"), 200),
    ] {
        let answer = call(&app, request).await;
        assert_eq!(answer.status, status, "{}", answer.text);
        if status != 200 {
            assert!(!answer.error()["message"].as_str().unwrap().is_empty());
        }
    }
}

#[tokio::test]
async fn unknown_paths_methods_and_models_are_refused_in_json() {
    let app = server(says("1"));
    let answer = get(&app, "/v1/nothing").await;
    assert_eq!((answer.status.as_u16(), answer.error()["code"].as_str()), (404, Some("route_not_found")));
    let answer = get(&app, "/v1/completions").await;
    assert_eq!((answer.status.as_u16(), answer.header(header::ALLOW)), (405, Some("POST")));
    answer.error();
    for (path, body) in [
        ("/v1/completions", json!({"model": "../../etc/passwd", "prompt": "x"})),
        ("/tokenize", json!({"model": "other", "prompt": "x"})),
        ("/detokenize", json!({"model": "other", "tokens": [1]})),
    ] {
        let answer = post(&app, path, body).await;
        assert_eq!((answer.status.as_u16(), answer.error()["code"].as_str()), (404, Some("model_not_found")));
        assert_eq!(answer.error()["param"], "model");
    }
    let unknown = "ntl_requests_total{code=\"404\",model=\"unknown\",route=\"/v1/completions\"}";
    assert!((metric(&app, unknown).await - 1.0).abs() < 1e-9);
    let unmatched = "ntl_requests_total{code=\"404\",model=\"none\",route=\"unmatched\"}";
    assert!((metric(&app, unmatched).await - 1.0).abs() < 1e-9);
}

#[tokio::test]
async fn a_model_must_be_named_only_where_there_are_several() {
    let two = ["a", "b"].map(|name| (name, loaded(Box::new(scripted(says("1"))))));
    let app = app::router(state_of(two.into(), crate::support::settings(), EngineLimits::default()));
    for model in [Value::Null, json!("")] {
        let answer = complete(&app, json!({"prompt": "x", "model": model})).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("model")));
    }
    assert_eq!(complete(&app, json!({"prompt": "x", "model": "b"})).await.json()["model"], "b");
    let one = server(says("1"));
    assert_eq!(complete(&one, json!({"prompt": "x", "model": ""})).await.json()["model"], "scripted");
}

#[tokio::test]
async fn with_keys_only_health_metrics_and_documentation_are_open() {
    let settings = HttpSettings {
        api_keys: ntl_server::keys::ApiKeys::read(vec!["secret".to_owned()], None).unwrap(),
        ..crate::support::settings()
    };
    let model = ("scripted", loaded(Box::new(scripted(says("1")))));
    let app = app::router(state_of(vec![model], settings, EngineLimits::default()));
    for path in ["/v1/models", "/v1/models/scripted", "/version"] {
        let answer = get(&app, path).await;
        assert_eq!(
            (answer.status.as_u16(), answer.error()["code"].as_str()),
            (401, Some("invalid_api_key")),
            "{path}"
        );
        assert_eq!(answer.header(header::WWW_AUTHENTICATE), Some("Bearer"));
    }
    for path in ["/v1/completions", "/tokenize", "/detokenize"] {
        assert_eq!(post(&app, path, json!({})).await.status, 401, "{path}");
    }
    for path in ["/health", "/health/live", "/health/ready", "/metrics", "/openapi.json", "/docs"] {
        assert_eq!(get(&app, path).await.status, 200, "{path}");
    }
    let mut request = json_request("/v1/completions", &json!({"prompt": "x"}));
    request.headers_mut().insert(header::AUTHORIZATION, "Bearer secret".parse().unwrap());
    assert_eq!(call(&app, request).await.status, 200);
}

/// Fails or panics: immediately if the prompt is the letter x, after a token if it is y. Writes 1 after any
/// other prompt.
fn moody(fail: impl Fn() -> ModelError + Send + 'static) -> axum::Router {
    let at_once = crate::support::ids("x");
    let later = crate::support::ids("y");
    let one = piece("1");
    server(Box::new(move |prompt, path| {
        if prompt.starts_with(&at_once) || prompt.starts_with(&later) && !path.is_empty() {
            return Err(fail());
        }
        Ok(logits(&[(if path.is_empty() { one } else { EOS }, 1.0)]))
    }))
}

#[tokio::test]
async fn a_failing_or_panicking_model_fails_one_request_and_answers_the_next() {
    let failing = moody(|| ModelError::Compute("out of memory".into()));
    let panicking = moody(|| panic!("a panic that this test provokes"));
    for (app, panics) in [(failing, 0.0), (panicking, 3.0)] {
        let answer = complete(&app, json!({"prompt": "x"})).await;
        assert_eq!((answer.status.as_u16(), answer.error()["type"].as_str()), (500, Some("server_error")));
        let streamed = complete(&app, json!({"prompt": "x", "stream": true})).await;
        assert_eq!((streamed.status.as_u16(), &streamed.error()["code"]), (500, &json!("decoding_failed")));
        let streamed = complete(&app, json!({"prompt": "y", "stream": true})).await;
        let chunks = streamed.chunks();
        assert_eq!((streamed.status.as_u16(), chunks.len()), (200, 2));
        assert_eq!(chunks[0]["choices"][0]["text"], "1");
        assert_eq!(chunks[1]["error"]["code"], "decoding_failed");
        let answer = complete(&app, json!({"prompt": "how many?"})).await;
        assert_eq!(answer.json()["choices"][0]["text"], "1");
        assert_eq!(get(&app, "/health").await.status, 200);
        metric_becomes(&app, "ntl_panics_total", panics).await;
        metric_becomes(&app, "ntl_finished_total{model=\"scripted\",reason=\"error\"}", 3.0).await;
    }
}

#[tokio::test]
async fn a_full_queue_is_answered_429_and_the_accepted_requests_finish() {
    let (model, gate) = gated(says("1"));
    let limits = EngineLimits { queue_max: 1, running_max: 1, ..EngineLimits::default() };
    let app = app::router(state_of(
        vec![("scripted", loaded(Box::new(model)))],
        crate::support::settings(),
        limits,
    ));
    let ask = |app: &axum::Router| {
        let app = app.clone();
        tokio::spawn(async move { complete(&app, json!({"prompt": "x", "temperature": 0})).await })
    };
    let running = ask(&app);
    let gate = gate.step_has_begun().await;
    let waiting = ask(&app);
    // The second one has its place in the queue once it counts as in flight and has been polled to its wait.
    metric_becomes(&app, "ntl_requests_in_flight", 2.0).await;
    let refused = complete(&app, json!({"prompt": "x"})).await;
    assert_eq!((refused.status.as_u16(), refused.error()["code"].as_str()), (429, Some("queue_full")));
    assert_eq!(refused.header(header::RETRY_AFTER), Some("1"));
    let rejected = metric(&app, "ntl_requests_rejected_total{reason=\"queue_full\"}").await;
    assert!((rejected - 1.0).abs() < 1e-9);
    drop(gate);
    for accepted in [running, waiting] {
        assert_eq!(accepted.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn of_a_flood_each_request_is_either_answered_or_told_when_to_come_back() {
    let (model, gate) = gated(says("1"));
    let limits = EngineLimits { queue_max: 4, running_max: 2, ..EngineLimits::default() };
    let app = app::router(state_of(
        vec![("scripted", loaded(Box::new(model)))],
        crate::support::settings(),
        limits,
    ));
    let ask = |_| {
        let app = app.clone();
        tokio::spawn(async move { complete(&app, json!({"prompt": "x", "temperature": 0})).await })
    };
    let asked: Vec<_> = (0..50).map(ask).collect();
    let gate = gate.step_has_begun().await;
    // All but those that the engine has taken on have their answer already.
    becomes("six in flight", async || metric(&app, "ntl_requests_in_flight").await <= 6.0).await;
    drop(gate);
    let (mut answered, mut refused) = (0.0, 0.0);
    for answer in asked {
        let answer = answer.await.unwrap();
        match answer.status.as_u16() {
            200 => answered += 1.0,
            429 => {
                assert_eq!(answer.header(header::RETRY_AFTER), Some("1"));
                refused += 1.0;
            }
            other => panic!("{other}: {}", answer.text),
        }
    }
    assert!(answered >= 4.0 && refused >= 44.0, "{answered} answered, {refused} refused");
    metric_becomes(&app, "ntl_requests_rejected_total{reason=\"queue_full\"}", refused).await;
    metric_becomes(&app, "ntl_finished_total{model=\"scripted\",reason=\"stop\"}", answered).await;
    metric_becomes(&app, "ntl_requests_in_flight", 0.0).await;
}

#[tokio::test]
async fn a_dead_engine_makes_the_server_neither_live_nor_ready_and_its_requests_get_503() {
    let model = ("scripted", loaded(Box::new(Hooked::new(says("1")).mortal())));
    let app = app::router(state_of(vec![model], crate::support::settings(), EngineLimits::default()));
    assert_eq!(get(&app, "/health/ready").await.status, 200);
    assert_eq!(complete(&app, json!({"prompt": "x"})).await.status, 200);
    metric_becomes(&app, "ntl_engine_up{model=\"scripted\"}", 0.0).await;
    let request = complete(&app, json!({"prompt": "x"})).await;
    let [ready, live] = [get(&app, "/health/ready").await, get(&app, "/health/live").await];
    for answer in [request, ready, live] {
        assert_eq!((answer.status.as_u16(), answer.error()["code"].as_str()), (503, Some("engine_dead")));
        assert_eq!(answer.header(header::RETRY_AFTER), Some("5"));
    }
    assert!((metric(&app, "ntl_requests_rejected_total{reason=\"engine_dead\"}").await - 1.0).abs() < 1e-9);
}

#[tokio::test]
async fn an_answer_that_takes_too_long_is_answered_504() {
    let settings =
        HttpSettings { request_time_max: std::time::Duration::from_millis(30), ..crate::support::endless() };
    let model = ("scripted", loaded(Box::new(scripted(babbles()))));
    let app = app::router(state_of(vec![model], settings, EngineLimits::default()));
    let body = json!({"prompt": "x", "max_tokens": 1_u64 << 40, "stop": "8"});
    let answer = complete(&app, body).await;
    assert_eq!(
        (answer.status.as_u16(), answer.error()["code"].as_str()),
        (504, Some("deadline")),
        "{}",
        answer.text
    );
    metric_becomes(&app, "ntl_finished_total{model=\"scripted\",reason=\"deadline\"}", 1.0).await;
}

#[tokio::test]
async fn a_step_that_hangs_keeps_no_client_beyond_its_time_and_no_other_model_from_answering() {
    let settings =
        HttpSettings { request_time_max: std::time::Duration::from_millis(30), ..crate::support::settings() };
    let (hanging, gate) = gated(says("1"));
    let models =
        vec![("hanging", loaded(Box::new(hanging))), ("well", loaded(Box::new(scripted(says("2")))))];
    let app = app::router(state_of(models, settings, EngineLimits::default()));
    let ask = |model| {
        let app = app.clone();
        tokio::spawn(async move { complete(&app, json!({"model": model, "prompt": "x"})).await })
    };
    let running = ask("hanging");
    let gate = gate.step_has_begun().await;
    let queued = ask("hanging");
    becomes("the other model's answer", async || ask("well").await.unwrap().status == 200).await;
    assert_eq!(get(&app, "/health").await.status, 200);
    for late in [running, queued] {
        let answer = late.await.unwrap();
        assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (504, &json!("deadline")));
    }
    drop(gate);
    metric_becomes(&app, "ntl_requests_in_flight", 0.0).await;
    becomes("an answer", async || ask("hanging").await.unwrap().status == 200).await;
}

#[tokio::test]
async fn while_loading_or_draining_work_is_answered_503_and_the_process_is_alive() {
    let loading = AppState::new(crate::support::settings(), Metrics::new().unwrap().into());
    let model = ("scripted", loaded(Box::new(scripted(says("1")))));
    let draining = state_of(vec![model], crate::support::settings(), EngineLimits::default());
    draining.lifecycle.drain();
    for (state, code) in [(loading, "loading"), (draining, "draining")] {
        let app = app::router(state);
        for answer in [
            complete(&app, json!({"prompt": "x"})).await,
            get(&app, "/v1/models").await,
            get(&app, "/health/ready").await,
            get(&app, "/health").await,
        ] {
            assert_eq!((answer.status.as_u16(), answer.error()["code"].as_str()), (503, Some(code)));
            assert!(answer.header(header::RETRY_AFTER).is_some());
        }
        assert_eq!(get(&app, "/health/live").await.status, 200);
        let rejected = metric(&app, &format!("ntl_requests_rejected_total{{reason=\"{code}\"}}")).await;
        assert!((rejected - 2.0).abs() < 1e-9, "probes are not counted: {rejected}");
    }
}

#[tokio::test]
async fn a_text_that_cannot_fit_is_refused_before_it_is_tokenized() {
    let app = server(says("1"));
    let long = "egg ".repeat(100_000);
    let item = json!({"prompt": &long, "target": "1"});
    for (path, body, param) in [
        ("/v1/completions", json!({"prompt": &long}), "prompt"),
        ("/v1/score", json!({"items": [item]}), "items[0].prompt"),
    ] {
        let answer = post(&app, path, body).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!(param)));
        assert!(answer.text.contains("has 400000 bytes"), "{}", answer.text);
    }
}

/// A request with a body whose first bytes arrive immediately and the rest never, and a signal that they were
/// read.
fn unfinished(bytes: usize) -> (Request<Body>, oneshot::Receiver<()>) {
    let (sender, were_read) = oneshot::channel();
    let first = futures::stream::iter([Ok::<_, Infallible>(" ".repeat(bytes))]);
    let rest = futures::stream::once(async {
        let _ = sender.send(());
        std::future::pending().await
    });
    let request = Request::post("/v1/completions").header(header::CONTENT_TYPE, "application/json");
    (request.body(Body::from_stream(first.chain(rest))).unwrap(), were_read)
}

#[tokio::test]
async fn the_largest_body_that_is_still_arriving_makes_room_for_smaller_ones() {
    let settings = HttpSettings { bodies_bytes_max: 4000, ..crate::support::settings() };
    let models = vec![("scripted", loaded(Box::new(scripted(says("1")))))];
    let app = app::router(state_of(models, settings, EngineLimits::default()));
    let (large, was_read) = unfinished(3200);
    let large = tokio::spawn({
        let app = app.clone();
        async move { call(&app, large).await }
    });
    was_read.await.unwrap();
    let (larger, _) = unfinished(3600);
    let refused = call(&app, larger).await;
    assert_eq!((refused.status.as_u16(), &refused.error()["code"]), (503, &json!("bodies_full")));
    assert!(!large.is_finished());
    let small = complete(&app, json!({"prompt": "x", "user": "u".repeat(1200)})).await;
    assert_eq!(small.status, 200, "{}", small.text);
    let refused = large.await.unwrap();
    assert_eq!((refused.status.as_u16(), refused.header(header::RETRY_AFTER)), (503, Some("1")));
    metric_becomes(&app, "ntl_requests_rejected_total{reason=\"bodies_full\"}", 2.0).await;
}

#[tokio::test]
async fn without_memory_new_work_is_refused_unless_it_is_alone() {
    let settings = HttpSettings { memory_bytes_max: Some(1), ..crate::support::settings() };
    let (model, gate) = gated(says("1"));
    let app = app::router(state_of(vec![("s", loaded(Box::new(model)))], settings, EngineLimits::default()));
    let alone = tokio::spawn({
        let app = app.clone();
        async move { complete(&app, json!({"prompt": "x"})).await }
    });
    let gate = gate.step_has_begun().await;
    let refused = complete(&app, json!({"prompt": "x"})).await;
    assert_eq!((refused.status.as_u16(), &refused.error()["code"]), (503, &json!("memory_full")));
    assert!(refused.header(header::RETRY_AFTER).is_some());
    assert_eq!(get(&app, "/health").await.status, 200);
    metric_becomes(&app, "ntl_requests_rejected_total{reason=\"memory_full\"}", 1.0).await;
    metric_becomes(&app, "ntl_memory_bytes_max", 1.0).await;
    drop(gate);
    assert_eq!(alone.await.unwrap().status, 200);
    assert_eq!(complete(&app, json!({"prompt": "x"})).await.status, 200);
}
