//! The ways to find a number: trees are in `numbers`; here draws, beams, the greedy path, text that comes
//! before, and what number tokens say within a text.

use axum::Router;
use serde_json::{Value, json};

use crate::support::{
    EOS, close, complete, four_or_five, ids, logits, metric_becomes, number, piece, says, server,
};

/// Ends all texts before a number.
const MARKER: &str = "= ";

/// Thinks, and then says 4 with 0.6 and 5 with 0.4.
fn thinks() -> Router {
    let thought = ids("two and two = ");
    let four = piece("4");
    let five = piece("5");
    server(Box::new(move |_, path| {
        Ok(match thought.get(path.len()) {
            Some(&id) => logits(&[(id, 1.0)]),
            None if path.len() == thought.len() => logits(&[(four, 0.6), (five, 0.4)]),
            None => logits(&[(EOS, 1.0)]),
        })
    }))
}

fn assert_unbounded(number: &Value) {
    let bounds = number["bounds"].as_object().unwrap();
    let list = bounds["quantiles"].as_array().unwrap();
    assert_eq!(list.len(), number["quantiles"].as_array().unwrap().len());
    assert!(list.iter().all(Value::is_null), "{number}");
    assert!(["value", "trimmed_mean", "median"].iter().all(|name| bounds[*name].is_null()), "{number}");
}

#[tokio::test]
async fn draws_repeat_with_their_seed_and_come_near_the_distribution() {
    let app = four_or_five();
    let ask = |seed: u64| {
        let options = json!({"method": "sample", "samples": 1000, "objective": "mode"});
        complete(&app, json!({"prompt": "x", "seed": seed, "number": options}))
    };
    let one = ask(5).await.json();
    let again = ask(5).await.json();
    let other = ask(6).await.json();
    assert_eq!(one["choices"], again["choices"]);
    assert_ne!(one["choices"], other["choices"]);
    let found = &one["choices"][0]["number"];
    assert_eq!((&found["method"], &found["mode"]), (&json!("sample"), &json!(4.0)));
    let closed = found["mass"]["closed"].as_f64().unwrap();
    let four = found["support"][0]["probability"].as_f64().unwrap();
    assert!((closed - 0.9).abs() < 0.05 && (four - 0.6).abs() < 0.08, "{found}");
    assert!(!found["mean"].is_null() && !found["std"].is_null(), "{found}");
    assert_unbounded(found);
}

#[tokio::test]
async fn beams_keep_the_most_probable_numbers() {
    let app = four_or_five();
    for (beams, values, open) in [(1, vec![4.0], 0.3), (2, vec![4.0, 5.0], 0.0)] {
        let (_, found) = number(&app, json!({"method": "beam", "beams": beams})).await;
        let support = found["support"].as_array().unwrap();
        let got: Vec<f64> = support.iter().map(|point| point["value"].as_f64().unwrap()).collect();
        assert_eq!(got, values);
        assert!(close(&found["mass"]["open"], open) && close(&found["mass"]["invalid"], 0.1), "{found}");
        assert_eq!(found["method"], "beam");
        assert_unbounded(&found);
    }
}

#[tokio::test]
async fn the_greedy_path_gives_an_expectation_and_nothing_that_looks_like_an_estimate() {
    let (text, found) = number(&four_or_five(), json!({"method": "token", "decimals": 3})).await;
    assert!(close(&found["value"], 13.0 / 3.0), "{found}");
    assert_eq!((text.as_str(), &found["method"], &found["mode"]), ("4.333", &json!("token"), &json!(4.0)));
    assert_eq!(found["support"].as_array().unwrap().len(), 1);
    for name in ["mean", "trimmed_mean", "median", "std"] {
        assert!(found[name].is_null(), "{name}: {found}");
    }
    assert!(found["quantiles"].as_array().unwrap().iter().all(|quantile| quantile["value"].is_null()));
    assert_unbounded(&found);
    let (text, none) = number(&server(says("x")), json!({"method": "token"})).await;
    assert_eq!((text.as_str(), &none["reason"]), ("", &json!("the greedy path is not a number")));
}

#[tokio::test]
async fn text_comes_before_the_number_whatever_the_method() {
    let app = thinks();
    for method in ["tree", "sample", "beam", "token"] {
        let options = json!({"method": method, "after": MARKER, "rationales": 3, "decimals": 0});
        let answer = complete(&app, json!({"prompt": "x", "seed": 5, "number": options})).await.json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], "two and two = 4", "{choice}");
        let found = &choice["number"];
        assert_eq!((&found["mode"], &found["reason"]), (&json!(4.0), &Value::Null), "{found}");
    }
}

#[tokio::test]
async fn a_stream_sends_the_text_before_the_number_and_then_the_number() {
    let app = thinks();
    let mut body = json!({"prompt": "x", "number": {"after": MARKER, "objective": "mode"}});
    let whole = complete(&app, body.clone()).await.json();
    body["stream"] = true.into();
    let chunks = complete(&app, body).await.chunks();
    let (last, before) = chunks.split_last().unwrap();
    let text = |chunk: &Value| chunk["choices"][0]["text"].as_str().unwrap().to_owned();
    assert!(before.len() > 1);
    assert_eq!(before.iter().map(text).collect::<String>(), "two and two = ");
    for chunk in before {
        let choice = &chunk["choices"][0];
        assert!(choice["finish_reason"].is_null() && choice.get("number").is_none(), "{chunk}");
    }
    assert_eq!((text(last).as_str(), &last["choices"][0]["finish_reason"]), ("4", &json!("stop")));
    assert_eq!(last["choices"][0]["number"], whole["choices"][0]["number"]);
    assert_eq!(whole["choices"][0]["text"], "two and two = 4");
    let tokens = ids("two and two = 4").len();
    assert_eq!(whole["usage"]["completion_tokens"], tokens, "{whole}");
}

#[tokio::test]
async fn text_without_the_marker_leads_to_no_number() {
    let app = thinks();
    for (max_tokens, after, finish) in [(json!(2), MARKER, "length"), (Value::Null, "####", "stop")] {
        let body = json!({"prompt": "x", "max_tokens": max_tokens, "number": {"after": after}});
        let answer = complete(&app, body).await.json();
        let choice = &answer["choices"][0];
        let found = &choice["number"];
        assert_eq!((&found["value"], &choice["finish_reason"]), (&Value::Null, &json!(finish)), "{choice}");
        metric_becomes(&app, &format!("ntl_finished_total{{model=\"scripted\",reason=\"{finish}\"}}"), 1.0)
            .await;
        let reason = found["reason"].as_str().unwrap();
        assert!(reason.starts_with("no text contained the marker `after`"), "{reason}");
        assert!(close(&found["mass"]["invalid"], 1.0), "{found}");
        assert!(choice["text"].as_str().unwrap().starts_with("tw"), "{choice}");
    }
}

#[tokio::test]
async fn a_rationale_without_the_marker_does_not_count_and_no_number_is_printed_behind_it() {
    // Half of the texts say "= 4", the others end immediately or never end.
    let marker = ids("=");
    let four = piece("4");
    let first = marker[0];
    let letter = piece("x");
    for (goes_on, finish) in [(EOS, "stop"), (letter, "length")] {
        let marker = marker.clone();
        let app = server(Box::new(move |_, path| {
            let marked = path.starts_with(&marker);
            Ok(match path.len() {
                0 => logits(&[(first, 0.5), (letter, 0.5)]),
                _ if path[0] == letter => logits(&[(goes_on, 1.0)]),
                length if length < marker.len() => logits(&[(marker[length], 1.0)]),
                length if marked && length == marker.len() => logits(&[(four, 1.0)]),
                _ => logits(&[(EOS, 1.0)]),
            })
        }));
        let (mut shown_with, mut shown_without) = (0, 0);
        for seed in 0..16 {
            let number = json!({"after": "=", "rationales": 6});
            let body =
                json!({"prompt": "x", "temperature": 1, "seed": seed, "max_tokens": 5, "number": number});
            let choice = complete(&app, body).await.json()["choices"][0].take();
            let found = &choice["number"];
            if found["value"].is_null() {
                continue;
            }
            assert!(close(&found["value"], 4.0) && close(&found["mass"]["closed"], 1.0), "{choice}");
            let text = choice["text"].as_str().unwrap();
            if text.contains('=') {
                shown_with += 1;
                assert_eq!(
                    (&choice["finish_reason"], text.ends_with("=4")),
                    (&json!("stop"), true),
                    "{choice}"
                );
            } else {
                shown_without += 1;
                assert_eq!(
                    (&choice["finish_reason"], text.contains('4')),
                    (&json!(finish), false),
                    "{choice}"
                );
                let reason = found["reason"].as_str().unwrap();
                let end = " of 6 rationales ended without the marker `after` and do not count";
                assert!(reason.ends_with(end), "{choice}");
            }
        }
        assert!(shown_with > 0 && shown_without > 0, "{shown_with} {shown_without}");
    }
}

#[tokio::test]
async fn number_tokens_say_what_each_position_expects() {
    let four = piece("4");
    let five = piece("5");
    let letter = piece("x");
    let app = server(Box::new(move |_, path| {
        Ok(match path.len() {
            0 => logits(&[(four, 0.6), (five, 0.3), (letter, 0.1)]),
            1 => logits(&[(letter, 1.0)]),
            _ => logits(&[(EOS, 1.0)]),
        })
    }));
    let mut body = json!({"prompt": "x", "temperature": 0, "logprobs": 0, "number_tokens": true});
    let whole = complete(&app, body.clone()).await.json();
    let logprobs = &whole["choices"][0]["logprobs"];
    let length = logprobs["tokens"].as_array().unwrap().len();
    assert_eq!(length, 3);
    for (name, first) in [("number_values", 13.0 / 3.0), ("number_mass", 0.9)] {
        let values = logprobs[name].as_array().unwrap();
        assert!(values.len() == length && close(&values[0], first), "{logprobs}");
        assert!(values[1..].iter().all(Value::is_null), "{logprobs}");
    }
    body["stream"] = true.into();
    let chunks = complete(&app, body.clone()).await.chunks();
    for name in ["number_values", "number_mass"] {
        let parts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"][name].as_array());
        assert_eq!(json!(parts.flatten().collect::<Vec<_>>()), logprobs[name]);
    }
    body["stream"] = false.into();
    body["number_tokens"] = Value::Null;
    let without = complete(&app, body).await.json();
    assert!(without["choices"][0]["logprobs"].get("number_values").is_none(), "{without}");
}
