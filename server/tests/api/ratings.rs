//! `number.scale`: ratings, by completions and chats.

use axum::Router;
use ntl_core::scripted::Script;
use serde_json::{Value, json};

use crate::chat::chatting;
use crate::support::{EOS, close, complete, logits, number, piece, post, server};

/// 3 with 0.3, 4 with 0.3, 7 with 0.1, 12 with 0.1, `x` with 0.2.
fn script() -> Script {
    let [one, two, three, four, seven, letter] = ["1", "2", "3", "4", "7", "x"].map(piece);
    Box::new(move |_, path| {
        Ok(match path {
            [] => logits(&[(three, 0.3), (four, 0.3), (seven, 0.1), (one, 0.1), (letter, 0.2)]),
            [first] if *first == one => logits(&[(two, 1.0)]),
            _ => logits(&[(EOS, 1.0)]),
        })
    })
}

fn grades() -> Router {
    server(script())
}

#[tokio::test]
async fn only_the_values_of_a_scale_count_and_the_value_is_the_expected_rating() {
    let (text, rated) = number(&grades(), json!({"scale": [1, 5], "decimals": 1})).await;
    assert_eq!(text, "3.5");
    assert!(close(&rated["value"], 3.5) && close(&rated["mass"]["closed"], 0.6), "{rated}");
    assert!(close(&rated["mass"]["invalid"], 0.4) && close(&rated["mass"]["open"], 0.0), "{rated}");
    let support: Vec<&Value> = rated["support"].as_array().unwrap().iter().map(|row| &row["value"]).collect();
    assert_eq!(support, [3.0, 4.0]);
    assert!(rated["bounds"]["value"].is_array() && rated["nodes"].as_u64().unwrap() <= 4, "{rated}");
    let (_, wider) = number(&grades(), json!({"scale": {"low": 2, "high": 12, "step": 5}})).await;
    assert_eq!(wider["support"].as_array().unwrap().len(), 2, "7 and 12: {wider}");
    assert!(close(&wider["value"], 9.5), "a mass of 0.2 is enough for a value: {wider}");
}

#[tokio::test]
async fn a_rating_of_little_mass_has_a_value_and_the_reason_names_what_the_model_would_write() {
    for options in [
        json!({"scale": [10, 12], "decimals": 0}),
        json!({"scale": [10, 12], "decimals": 0, "mass_min": 0.05}),
    ] {
        let (text, rated) = number(&grades(), options).await;
        assert_eq!((text.as_str(), &rated["estimate"]), ("12", &json!("trimmed_mean")), "{rated}");
        assert!(close(&rated["value"], 12.0) && close(&rated["mass"]["closed"], 0.1), "{rated}");
        assert!(rated["bounds"]["value"].is_array(), "{rated}");
        let reason = rated["reason"].as_str().unwrap();
        assert!(
            reason.starts_with("less than half of the mass, 0.0999, is on the scale; the model would write "),
            "{reason}"
        );
        for text in [r#""3" (0.3)"#, r#""4" (0.3)"#, r#""x" (0.2)"#] {
            assert!(reason.contains(text), "{reason}");
        }
    }
    let (_, most) = number(&grades(), json!({"scale": [1, 5]})).await;
    assert!(most["value"].is_number() && most["reason"].is_null(), "{most}");
}

#[tokio::test]
async fn a_rating_of_less_mass_than_mass_min_has_no_value_and_the_same_reason_otherwise() {
    let (text, rated) = number(&grades(), json!({"scale": [10, 12], "mass_min": 0.5})).await;
    assert_eq!((text.as_str(), &rated["value"]), ("", &Value::Null));
    let reason = rated["reason"].as_str().unwrap();
    assert!(reason.contains(" is below mass_min 0.5; the model would write "), "{reason}");
    assert!(!reason.contains("less than half"), "{reason}");
}

#[tokio::test]
async fn a_rating_of_a_millionth_of_the_mass_has_a_value_with_narrow_bounds() {
    let [four, five, letter] = ["4", "5", "x"].map(piece);
    let app = server(Box::new(move |_, path| {
        let first = [(four, 7.5e-7), (five, 2.5e-7), (letter, 1.0 - 1e-6)];
        Ok(if path.is_empty() { logits(&first) } else { logits(&[(EOS, 1.0)]) })
    }));
    let (_, rated) = number(&app, json!({"scale": [1, 5]})).await;
    assert!((rated["value"].as_f64().unwrap() - 4.25).abs() < 1e-3, "{rated}");
    let [low, high] = [0, 1].map(|end| rated["bounds"]["value"][end].as_f64().unwrap());
    assert!(high - low < 0.01, "{rated}");
    let reason = rated["reason"].as_str().unwrap();
    assert!(reason.contains("less than half of the mass, 0.00000"), "{reason}");
}

#[tokio::test]
async fn wrong_scales_are_refused_by_name() {
    for (options, param) in [
        (json!({"scale": [5, 1]}), "number.scale"),
        (json!({"scale": [1, 5, 0.3]}), "number.scale"),
        (json!({"scale": [1, 5], "range": [1, 5]}), "number.scale"),
        (json!({"scale": {"low": 1}}), "number.scale"),
        (json!({"scale": [0, 1000]}), "number.scale"),
        (json!({"scale": [0, 10, 0.001]}), "number.scale"),
    ] {
        let answer = complete(&grades(), json!({"prompt": "x", "number": options.clone()})).await;
        assert_eq!(answer.status, 400, "{options}: {}", answer.text);
        assert_eq!(answer.error()["param"], param, "{options}");
    }
}

#[tokio::test]
async fn a_chat_is_rated_as_a_completion_is() {
    let app = chatting(script()).0;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "number": {"scale": [1, 5]}});
    let answer = post(&app, "/v1/chat/completions", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let rated = &answer.json()["choices"][0]["number"];
    assert!(close(&rated["value"], 3.5) && close(&rated["mass"]["closed"], 0.6), "{rated}");
}
