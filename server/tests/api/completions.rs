//! `POST /v1/completions` with text: shapes on the wire, and that all ways to ask give the same answer.

use std::collections::BTreeMap;

use crate::support::{EOS, complete, ids, logits, piece, says, server, without_names};
use serde_json::{Value, json};

/// Texts of all choices, put together from the chunks of a stream.
fn joined(chunks: &[Value]) -> BTreeMap<u64, (String, String)> {
    let mut texts = BTreeMap::<u64, (String, String)>::new();
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
        let (text, reason) = texts.entry(choice["index"].as_u64().unwrap()).or_default();
        assert_eq!(reason, "", "a chunk after the last one of its choice");
        text.push_str(choice["text"].as_str().unwrap());
        reason.push_str(choice["finish_reason"].as_str().unwrap_or_default());
    }
    texts
}

fn texts(body: &Value) -> BTreeMap<u64, (String, String)> {
    let choices = body["choices"].as_array().unwrap();
    let text = |choice: &Value, field: &str| choice[field].as_str().unwrap().to_owned();
    let entry = |choice: &Value| {
        (choice["index"].as_u64().unwrap(), (text(choice, "text"), text(choice, "finish_reason")))
    };
    choices.iter().map(entry).collect()
}

#[tokio::test]
async fn an_answer_has_the_shape_of_the_api() {
    let app = server(says("12 eggs"));
    let answer = complete(&app, json!({"model": "scripted", "prompt": "How many?", "temperature": 0})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    insta::assert_json_snapshot!("text", without_names(answer.json()));
}

#[tokio::test]
async fn a_stream_has_the_shape_of_the_api() {
    let app = server(says("12"));
    let body = json!({"prompt": "How many?", "temperature": 0, "stream": true, "stream_options": {"include_usage": true}});
    let answer = complete(&app, body).await;
    assert_eq!(answer.header(axum::http::header::CONTENT_TYPE), Some("text/event-stream"));
    assert_eq!(answer.headers["x-accel-buffering"], "no");
    let chunks: Vec<Value> = answer.chunks().into_iter().map(without_names).collect();
    insta::assert_json_snapshot!("stream", chunks);
}

#[tokio::test]
async fn log_probabilities_come_in_parallel_arrays() {
    let app = server(says("12"));
    let answer = complete(&app, json!({"prompt": "x", "temperature": 0, "logprobs": 3})).await;
    insta::assert_json_snapshot!("logprobs", without_names(answer.json()), {
        // f32 logits: the last digits are the machine's.
        ".choices[].logprobs.token_logprobs[]" => insta::rounded_redaction(4),
        ".choices[].logprobs.top_logprobs[].*" => insta::rounded_redaction(4),
    });
    let zero = complete(&app, json!({"prompt": "x", "temperature": 0, "logprobs": 0})).await.json();
    let top = zero["choices"][0]["logprobs"]["top_logprobs"].as_array().unwrap();
    assert!(top.iter().all(|top| top.as_object().unwrap().len() == 1), "{top:?}");
    let none = complete(&app, json!({"prompt": "x", "max_tokens": 0, "logprobs": 2})).await.json();
    assert_eq!(none["choices"][0]["logprobs"]["tokens"], json!([]));
    assert_eq!(none["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn the_chunks_of_a_stream_join_to_the_answer_that_is_not_streamed() {
    let app = server(says("there are 12 eggs, and 7 more"));
    for options in [
        json!({}),
        json!({"max_tokens": 4}),
        json!({"stop": ["eggs"]}),
        json!({"stop": [", and 8", "7"]}),
        json!({"n": 3, "temperature": 1.5, "seed": 5}),
        json!({"prompt": ["a", "b"], "n": 2, "temperature": 1, "seed": -7, "top_p": 0.95}),
        json!({"logprobs": 2, "temperature": 0}),
    ] {
        let mut body = json!({"prompt": "x", "max_tokens": 40, "temperature": 0});
        for (field, value) in options.as_object().unwrap() {
            body[field] = value.clone();
        }
        let whole = complete(&app, body.clone()).await.json();
        body["stream"] = true.into();
        let chunks = complete(&app, body).await.chunks();
        assert_eq!(joined(&chunks), texts(&whole), "{options}");
        assert!(chunks.iter().all(|chunk| chunk["usage"].is_null()), "{options}");
    }
}

#[tokio::test]
async fn stop_strings_end_a_text_before_them() {
    let app = server(says("there are 12 eggs, and 7 more"));
    for (stop, want) in [
        (json!("12"), "there are "),
        (json!(["x", " eggs"]), "there are 12"),
        (json!(["no"]), "there are 12 eggs, and 7 more"),
    ] {
        let body = complete(&app, json!({"prompt": "x", "max_tokens": 40, "temperature": 0, "stop": stop}))
            .await
            .json();
        assert_eq!(body["choices"][0]["text"], want);
        assert_eq!(body["choices"][0]["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn every_prompt_form_reaches_the_model() {
    // Answers with the number of prompt tokens that it sees, end of sequence included.
    let app = server(Box::new(|prompt, path| {
        assert_eq!(prompt.last(), Some(&EOS));
        let digit = piece(&prompt.len().to_string());
        Ok(logits(&[(if path.is_empty() { digit } else { EOS }, 1.0)]))
    }));
    let one = ids("eggs");
    let length = |ids: &[u32]| (ids.len() + 1).to_string();
    let mut ended = one.clone();
    ended.push(EOS);
    for (prompt, want) in [
        (json!("eggs"), vec![length(&one)]),
        (json!(["eggs", "eggs eggs"]), vec![length(&one), length(&ids("eggs eggs"))]),
        (json!(one), vec![length(&one)]),
        (json!(ended), vec![length(&one)]),
        (json!([one, ended, [5]]), vec![length(&one), length(&one), "2".into()]),
    ] {
        let body = complete(&app, json!({"prompt": prompt, "temperature": 0})).await.json();
        let got: Vec<String> = texts(&body).into_values().map(|(text, _)| text).collect();
        assert_eq!(got, want, "{prompt}");
        let prompt_tokens: u64 = want.iter().map(|count| count.parse::<u64>().unwrap()).sum();
        assert_eq!(body["usage"]["prompt_tokens"], prompt_tokens, "{prompt}");
    }
}

#[tokio::test]
async fn several_texts_are_indexed_by_prompt_first() {
    let app = server(says("12"));
    let body = json!({"prompt": ["a", "b", "c"], "n": 4, "temperature": 0, "max_tokens": 8});
    let body = complete(&app, body).await.json();
    let indices: Vec<u64> =
        body["choices"].as_array().unwrap().iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, (0..12).collect::<Vec<_>>());
    let tokens = (ids("12").len() + 1) as u64 * 12;
    assert_eq!(body["usage"]["completion_tokens"], tokens);
    assert_eq!(body["usage"]["total_tokens"], body["usage"]["prompt_tokens"].as_u64().unwrap() + tokens);
}

#[tokio::test]
async fn a_seed_repeats_itself_and_texts_of_one_request_differ() {
    let digits: Vec<u32> = (0..10).map(|digit| piece(&digit.to_string())).collect();
    let app =
        server(Box::new(move |_, _| Ok(logits(&digits.iter().map(|&id| (id, 0.1)).collect::<Vec<_>>()))));
    let ask = |seed: Value| complete(&app, json!({"prompt": "x", "n": 4, "max_tokens": 12, "seed": seed}));
    let (one, again, other, random) =
        (ask(json!(5)).await, ask(json!(5)).await, ask(json!(6)).await, ask(Value::Null).await);
    assert_eq!(texts(&one.json()), texts(&again.json()));
    assert_ne!(texts(&one.json()), texts(&other.json()));
    assert_ne!(texts(&one.json()), texts(&random.json()));
    let different: std::collections::BTreeSet<_> = texts(&one.json()).into_values().collect();
    assert_eq!(different.len(), 4);
}

#[tokio::test]
async fn beams_come_best_first_with_their_log_probabilities_streamed_or_not() {
    // `1` is likelier than `2`, but `2` continues as one text only.
    let script = |path: &[u32]| match path {
        [] => logits(&[(piece("1"), 0.6), (piece("2"), 0.4)]),
        [first] if *first == piece("1") => logits(&[(piece("3"), 0.5), (piece("4"), 0.5)]),
        [_] => logits(&[(piece("5"), 1.0)]),
        _ => logits(&[(EOS, 1.0)]),
    };
    let app = server(Box::new(move |_, path| Ok(script(path))));
    let mut body = json!({"prompt": "x", "use_beam_search": true, "n": 2});
    let answer = complete(&app, body.clone()).await.json();
    assert_eq!(answer["choices"][0]["text"], "25");
    let logprob = |choice: usize| answer["choices"][choice]["cumulative_logprob"].as_f64().unwrap().exp();
    assert!((logprob(0) - 0.4).abs() < 1e-6 && (logprob(1) - 0.3).abs() < 1e-6, "{answer}");
    body["stream"] = json!(true);
    assert_eq!(joined(&complete(&app, body).await.chunks()), texts(&answer));
}
