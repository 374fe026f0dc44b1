//! The fields of a completion over HTTP, beyond those that every client sends: what each one does to the
//! answer.

use axum::Router;
use ntl_engine::EngineLimits;
use ntl_server::app;
use ntl_server::settings::HttpSettings;
use serde_json::{Value, json};

use crate::hooked::gated;
use crate::support::{
    EOS, complete, ids, loaded, logits, metric, piece, says, scripted, server, state_of, tokenizer,
};

/// A decoder-only model: what comes next depends on everything before it, which is prompt and text as one
/// sequence.
fn decoder_only() -> Router {
    let digits: Vec<u32> = (0..10).map(|digit| piece(&digit.to_string())).collect();
    let script = move |prompt: &[u32], path: &[u32]| {
        let sum: usize = prompt.iter().chain(path).map(|&id| id as usize).sum();
        let weight = |(place, &id): (usize, &u32)| (id, ((sum * 31 + place * 17) % 97 + 1) as f64);
        let weights: Vec<(u32, f64)> = digits.iter().enumerate().map(weight).collect();
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        Ok(logits(&weights.iter().map(|&(id, weight)| (id, weight / total)).collect::<Vec<_>>()))
    };
    let model = scripted(Box::new(script)).with_info(|info| info.encoder_decoder = false);
    let models = vec![("scripted", loaded(Box::new(model)))];
    let settings = HttpSettings { logprobs_max: None, ..crate::support::settings() };
    app::router(state_of(models, settings, EngineLimits { step_rows_max: 3, ..EngineLimits::default() }))
}

async fn choice(app: &Router, body: &Value) -> Value {
    let answer = complete(app, body.clone()).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    answer.json()["choices"][0].take()
}

fn digits(text: &str) -> Vec<u32> {
    text.chars().map(|digit| piece(&digit.to_string())).collect()
}

#[tokio::test]
async fn echo_with_logprobs_is_what_lm_eval_reads_log_likelihoods_from() {
    let app = decoder_only();
    let prompt = digits("3141592653");
    let body = json!({"prompt": [prompt], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": true});
    let scored = choice(&app, &body).await;
    let arrays = &scored["logprobs"];
    for array in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(arrays[array].as_array().unwrap().len(), prompt.len() + 1, "{array}");
    }
    assert_eq!((&arrays["token_logprobs"][0], &arrays["top_logprobs"][0]), (&Value::Null, &Value::Null));
    let text = scored["text"].as_str().unwrap();
    assert_eq!((&text[..10], text.len()), ("3141592653", 11));
    for place in 1..=prompt.len() {
        // The same position, requested as a text after the beginning of the prompt.
        let beginning = json!({"prompt": prompt[..place], "max_tokens": 1, "temperature": 0, "logprobs": 10});
        let next = &choice(&app, &beginning).await["logprobs"];
        let token = arrays["tokens"][place].as_str().unwrap();
        assert_eq!(arrays["token_logprobs"][place], next["top_logprobs"][0][token], "place {place}");
        let best = next["token_logprobs"][0].as_f64().unwrap();
        let top = arrays["top_logprobs"][place].as_object().unwrap();
        let most = top.values().filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(most.to_bits(), best.to_bits(), "the best token is told by exact comparison");
        assert_eq!(arrays["text_offset"][place], place, "one character a digit");
    }
    let nothing_new = json!({"prompt": [prompt], "max_tokens": 0, "logprobs": 1, "echo": true});
    let only = choice(&app, &nothing_new).await;
    assert_eq!(only["text"], "3141592653");
    assert_eq!(only["logprobs"]["tokens"].as_array().unwrap().len(), prompt.len());
    assert_eq!(
        only["logprobs"]["token_logprobs"].as_array().unwrap()[..],
        arrays["token_logprobs"].as_array().unwrap()[..prompt.len()]
    );
}

#[tokio::test]
async fn a_prompt_is_shown_as_text_as_ids_and_with_log_probabilities_by_id() {
    let app = decoder_only();
    let body = json!({"prompt": "12", "max_tokens": 2, "temperature": 0, "seed": 1, "n": 2});
    let plain = choice(&app, &body).await;
    let with = |field: &str, value: Value| {
        let mut body = body.clone();
        body[field] = value;
        body
    };
    let echoed = choice(&app, &with("echo", json!(true))).await;
    assert_eq!(echoed["text"], format!("12{}", plain["text"].as_str().unwrap()));
    assert_eq!(echoed["logprobs"], Value::Null);
    let prompt = tokenizer().encode("12", true).unwrap();
    let shown = choice(&app, &with("return_token_ids", json!(true))).await;
    assert_eq!(shown["prompt_token_ids"], json!(prompt));
    assert_eq!(shown["token_ids"].as_array().unwrap().len(), 2);
    assert_eq!(shown["text"], plain["text"]);
    let scored = choice(&app, &with("prompt_logprobs", json!(2))).await;
    let places = scored["prompt_logprobs"].as_array().unwrap();
    assert_eq!((places.len(), &places[0]), (prompt.len(), &Value::Null));
    for (id, place) in prompt.iter().zip(places).skip(1) {
        let place = place.as_object().unwrap();
        assert!((2..=3).contains(&place.len()), "{place:?}");
        assert!(place[&id.to_string()]["logprob"].is_number());
        assert!(place.values().any(|token| token["rank"] == 1));
        assert!(place.values().all(|token| token["rank"].is_u64()), "{place:?}");
    }
    assert_eq!(scored["text"], plain["text"]);
}

#[tokio::test]
async fn offsets_are_the_places_of_the_tokens_also_while_a_stop_string_may_begin() {
    let app = server(says("1234567"));
    for stop in [Value::Null, json!("123456789"), json!("567")] {
        let body = json!({"prompt": "x", "temperature": 0, "max_tokens": 20, "logprobs": 0, "stop": stop});
        let logprobs = choice(&app, &body).await["logprobs"].take();
        let mut place = 0;
        let tokens = logprobs["tokens"].as_array().unwrap().iter();
        for (token, offset) in tokens.zip(logprobs["text_offset"].as_array().unwrap()) {
            assert_eq!(offset, place, "{stop}: {logprobs}");
            place += token.as_str().unwrap().trim_start().len();
        }
        assert!(place >= 7, "{logprobs}");
    }
}

#[tokio::test]
async fn a_prompt_token_outside_the_alternatives_has_its_rank_among_all_tokens() {
    let app = decoder_only();
    let ask = async |count: usize| {
        let body = json!({"prompt": [digits("3141592653")], "max_tokens": 1, "prompt_logprobs": count});
        choice(&app, &body).await["prompt_logprobs"].take()
    };
    let few = ask(1).await;
    let all = ask(10).await;
    let mut beyond = 0;
    for (few, all) in few.as_array().unwrap().iter().zip(all.as_array().unwrap()).skip(1) {
        for (id, token) in few.as_object().unwrap() {
            assert_eq!(token, &all[id], "with all digits as alternatives");
            beyond += u32::from(token["rank"].as_u64() > Some(1));
        }
    }
    assert!(beyond > 0);
}

#[tokio::test]
async fn chunks_join_to_the_answer_with_everything_that_is_shown() {
    let app = decoder_only();
    for options in [
        json!({"echo": true}),
        json!({"echo": true, "logprobs": 2, "n": 2}),
        json!({"return_token_ids": true, "prompt": [[5, 6, 7], [8, 9]]}),
        json!({"logprobs": -1, "max_tokens": 3}),
    ] {
        let mut body = json!({"prompt": "12", "max_tokens": 5, "seed": 3});
        for (field, value) in options.as_object().unwrap() {
            body[field] = value.clone();
        }
        let whole = complete(&app, body.clone()).await.json();
        body["stream"] = true.into();
        let chunks = complete(&app, body).await.chunks();
        for choice in whole["choices"].as_array().unwrap() {
            let pieces = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
            let own: Vec<&Value> = pieces.filter(|piece| piece["index"] == choice["index"]).collect();
            let text: String = own.iter().map(|piece| piece["text"].as_str().unwrap()).collect();
            assert_eq!(choice["text"], text, "{options}");
            for path in ["/token_ids", "/prompt_token_ids", "/logprobs/tokens", "/logprobs/top_logprobs"] {
                let parts = own.iter().filter_map(|piece| piece.pointer(path)?.as_array()).flatten();
                let joined: Vec<&Value> = parts.collect();
                let want = choice.pointer(path).and_then(Value::as_array);
                assert_eq!(joined, want.into_iter().flatten().collect::<Vec<_>>(), "{options} {path}");
            }
        }
    }
}

#[tokio::test]
async fn what_ends_and_steers_a_text() {
    let app = server(says("12 eggs"));
    let one = ids("12 eggs")[0];
    let egg = piece("x");
    for (options, text, reason, stop) in [
        (json!({}), "12 eggs", "stop", json!(null)),
        (json!({"stop": " eggs", "include_stop_str_in_output": true}), "12 eggs", "stop", json!(" eggs")),
        (json!({"stop_token_ids": [one]}), "", "stop", json!(one)),
        (json!({"stop": "1", "min_tokens": 20}), "12 eggsxxxxx", "length", json!(null)),
        (json!({"ignore_eos": true, "max_tokens": 12}), "12 eggs", "length", json!(null)),
        (json!({"logit_bias": {egg.to_string(): 100}, "max_tokens": 3}), "xxx", "length", json!(null)),
    ] {
        let mut body = json!({"prompt": "x", "max_tokens": 20, "temperature": 0});
        for (field, value) in options.as_object().unwrap() {
            body[field] = value.clone();
        }
        let got = choice(&app, &body).await;
        let said = got["text"].as_str().unwrap();
        assert!(said.starts_with(&text[..text.len().min(7)]), "{options}: {said:?}");
        assert_eq!((&got["finish_reason"], &got["stop_reason"]), (&json!(reason), &stop), "{options}");
    }
}

#[tokio::test]
async fn the_best_of_several_texts_is_returned_and_all_are_counted() {
    let likely = piece("4");
    let unlikely = piece("5");
    let app = server(Box::new(move |_, path| {
        Ok(logits(&if path.is_empty() { vec![(likely, 0.6), (unlikely, 0.4)] } else { vec![(EOS, 1.0)] }))
    }));
    for n in [1, 2] {
        let body = json!({"prompt": "x", "n": n, "best_of": 16, "seed": 1});
        let answer = complete(&app, body).await.json();
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), n);
        assert!(choices.iter().all(|choice| choice["text"] == "4"), "{answer}");
        assert_eq!(answer["usage"]["completion_tokens"], 32);
    }
}

#[tokio::test]
async fn a_request_of_a_thousand_prompts_fits_beside_others() {
    let app = server(says("1"));
    let prompts: Vec<String> = (0..1024).map(|number| format!("prompt {number}")).collect();
    let ask = || complete(&app, json!({"prompt": prompts, "temperature": 0}));
    for answer in futures::future::join_all([ask(), ask()]).await {
        assert_eq!(answer.status, 200, "{}", answer.text);
        let body = answer.json();
        let choices = body["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 1024);
        assert!(choices.iter().all(|choice| choice["text"] == "1"));
    }
}

#[tokio::test]
async fn a_request_that_waits_too_long_is_answered_503_streamed_or_not() {
    // Long enough for the first to begin on a machine that does much else.
    let waits = std::time::Duration::from_millis(250);
    let limits = EngineLimits { queue_time_max: Some(waits), running_max: 1, ..EngineLimits::default() };
    let (model, gate) = gated(says("1"));
    let app = app::router(state_of(
        vec![("scripted", loaded(Box::new(model)))],
        crate::support::settings(),
        limits,
    ));
    let ask = |stream: bool| {
        let app = app.clone();
        let body = json!({"prompt": "x", "temperature": 0, "stream": stream});
        tokio::spawn(async move { complete(&app, body).await })
    };
    let first = ask(false);
    let gate = gate.step_has_begun().await;
    let late = [ask(false), ask(true)];
    crate::support::metric_becomes(&app, "ntl_requests_in_flight", 3.0).await;
    // The engine reads the system's clock, so that the time has to pass.
    tokio::time::sleep(waits + std::time::Duration::from_millis(1)).await;
    drop(gate);
    assert_eq!(first.await.unwrap().status, 200);
    for answer in late {
        let answer = answer.await.unwrap();
        assert_eq!(answer.status, 503, "{}", answer.text);
        assert_eq!(answer.error()["code"], "queue_timeout");
        assert!(answer.header(axum::http::header::RETRY_AFTER).is_some());
    }
    let counted = metric(&app, "ntl_requests_rejected_total{reason=\"queue_timeout\"}").await;
    assert!((counted - 2.0).abs() < 1e-9, "{counted}");
}

#[tokio::test]
async fn a_field_that_a_request_does_not_have_is_refused_with_the_nearest_name() {
    let app = server(says("7"));
    for (body, param, near) in [
        (json!({"numbr": {}}), "numbr", "number"),
        (json!({"max_token": 3}), "max_token", "max_tokens"),
        (json!({"number": {"trimm": 0}}), "number.trimm", "number.trim"),
        (
            json!({"stream": true, "stream_options": {"include_usages": true}}),
            "stream_options.include_usages",
            "stream_options.include_usage",
        ),
    ] {
        let mut all = body.clone();
        all["prompt"] = json!("x");
        let answer = complete(&app, all).await;
        assert_eq!(answer.status, 400, "{body}");
        let error = answer.error();
        assert_eq!(error["param"], param, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.ends_with(&format!("did you mean `{near}`?")), "{message}");
    }
    let harmless = json!({"prompt": "x", "temperature": 0, "user": "me", "store": false, "metadata": {"a": "b"},
        "service_tier": "auto", "safety_identifier": "s", "prompt_cache_key": "k", "stream_options": null});
    assert_eq!(choice(&app, &harmless).await["text"], "7");
}

#[tokio::test]
async fn logprobs_of_given_ids_replace_the_most_probable_ones_at_each_generated_position() {
    let app = decoder_only();
    let prompt = digits("31415");
    let body = json!({"prompt": prompt, "max_tokens": 3, "temperature": 0, "logprobs": 10});
    let all = choice(&app, &body).await;
    let mut asked = body.clone();
    asked["logprobs"] = json!(1);
    asked["logprob_token_ids"] = json!(digits("739"));
    let some = choice(&app, &asked).await;
    assert_eq!((&some["text"], &some["logprobs"]["tokens"]), (&all["text"], &all["logprobs"]["tokens"]));
    for place in 0..3 {
        let own = some["logprobs"]["tokens"][place].as_str().unwrap();
        let mut want: Vec<&str> = vec!["3", "7", "9", own];
        want.sort_unstable();
        want.dedup();
        let top = some["logprobs"]["top_logprobs"][place].as_object().unwrap();
        assert_eq!(
            top.keys().map(String::as_str).collect::<Vec<_>>(),
            want,
            "the token itself is one of them"
        );
        for (token, logprob) in top {
            assert_eq!(*logprob, all["logprobs"]["top_logprobs"][place][token.as_str()], "{token}");
        }
    }
    asked["echo"] = json!(true);
    let echoed = choice(&app, &asked).await;
    let of_prompt = echoed["logprobs"]["top_logprobs"][1].as_object().unwrap();
    assert!(of_prompt.len() <= 2, "the prompt keeps its most probable ones: {of_prompt:?}");
    assert_eq!(echoed["logprobs"]["top_logprobs"][5], some["logprobs"]["top_logprobs"][0]);
}

#[tokio::test]
async fn logprobs_of_given_ids_are_refused_where_they_would_have_no_effect() {
    for body in [
        json!({"logprob_token_ids": [5]}),
        json!({"logprob_token_ids": [5], "logprobs": 1, "max_tokens": 0, "echo": true}),
        json!({"logprob_token_ids": [1_000_000], "logprobs": 1}),
        json!({"logprob_token_ids": vec![5; 1025], "logprobs": 1}),
    ] {
        let mut body = body;
        body["prompt"] = json!(digits("31"));
        let answer = complete(&decoder_only(), body.clone()).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.error()["param"]),
            (400, &json!("logprob_token_ids")),
            "{body}"
        );
    }
    let empty = json!({"prompt": digits("31"), "logprob_token_ids": [], "max_tokens": 1});
    assert_eq!(complete(&decoder_only(), empty).await.status, 200);
}

#[tokio::test]
async fn a_text_has_only_allowed_tokens_and_no_bad_words() {
    let app = decoder_only();
    let text = async |fields: Value| {
        let mut body = json!({"prompt": [digits("31")], "max_tokens": 20, "seed": 3});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let choice = choice(&app, &body).await;
        (choice["text"].as_str().unwrap().to_owned(), choice["finish_reason"].as_str().unwrap().to_owned())
    };
    let (plain, _) = text(json!({})).await;
    // A pair of digits of the text, which are two tokens.
    let pair = plain.get(1..3).unwrap();
    let (without, _) = text(json!({"bad_words": [pair]})).await;
    assert!(without != plain && !without.contains(pair), "{pair} in {without}");
    let (rest, _) = text(json!({"bad_words": ["1", "2", "3", "4", "5"]})).await;
    assert!(rest.bytes().all(|byte| !(b'1'..=b'5').contains(&byte)), "{rest}");
    let (allowed, reason) = text(json!({"allowed_token_ids": [piece("4"), piece("6"), piece("6")]})).await;
    assert!(allowed.bytes().all(|byte| byte == b'4' || byte == b'6'), "{allowed}");
    assert_eq!((allowed.len(), reason.as_str()), (20, "length"), "no end of sequence is allowed");
    let both = text(
        json!({"guided_regex": "[0-9]{4}", "bad_words": ["1"], "allowed_token_ids": [piece("1"), piece("2"), EOS]}),
    );
    assert_eq!(both.await, ("2222".to_owned(), "stop".to_owned()));
    let nothing_left = json!({"prompt": "1", "allowed_token_ids": [piece("1")], "bad_words": ["1"]});
    let answer = complete(&app, nothing_left).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.error()["code"]),
        (400, &json!("guide_failed")),
        "{}",
        answer.text
    );
}

#[tokio::test]
async fn tokens_may_be_named_by_their_ids() {
    let app = decoder_only();
    let body = json!({"prompt": [digits("31")], "max_tokens": 2, "temperature": 0, "logprobs": 2, "echo": true,
        "return_token_ids": true});
    let named = |choice: &Value| choice["logprobs"].clone();
    let plain = choice(&app, &body).await;
    let mut with_ids = body;
    with_ids["return_tokens_as_token_ids"] = json!(true);
    let shown = choice(&app, &with_ids).await;
    assert_eq!(
        (&shown["text"], &named(&shown)["token_logprobs"]),
        (&plain["text"], &named(&plain)["token_logprobs"])
    );
    let ids = digits("31")
        .into_iter()
        .map(u64::from)
        .chain(shown["token_ids"].as_array().unwrap().iter().filter_map(Value::as_u64));
    let names: Vec<String> = ids.map(|id| format!("token_id:{id}")).collect();
    assert_eq!(named(&shown)["tokens"], json!(names));
    for (position, name) in named(&shown)["top_logprobs"].as_array().unwrap().iter().zip(&names).skip(1) {
        let position = position.as_object().unwrap();
        assert!(
            position.contains_key(name) && position.keys().all(|key| key.starts_with("token_id:")),
            "{position:?}"
        );
    }
}
