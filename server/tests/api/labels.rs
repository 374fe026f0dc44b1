//! `POST /generative_scoring`, and SGLang's form of `POST /v1/score`.

use axum::Router;
use serde_json::{Value, json};

use crate::structured_numbers::tiny;
use crate::support::{EOS, close, four_or_five, piece, post};

const VLLM: &str = "/generative_scoring";
const SGLANG: &str = "/v1/score";

/// A request for the probabilities of 4 and 5.
fn request(fields: Value) -> Value {
    let mut body = json!({"query": "x", "items": ["a", "b"], "label_token_ids": [piece("4"), piece("5")]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

async fn ok(app: &Router, path: &str, body: Value) -> Value {
    let answer = post(app, path, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

#[tokio::test]
async fn the_score_of_vllm_is_the_share_or_the_probability_of_the_first_label() {
    // 4 has the probability 0.6, and 5 has 0.3.
    let app = four_or_five();
    let body = ok(&app, VLLM, request(json!({}))).await;
    assert_eq!((&body["object"], &body["model"]), (&json!("list"), &json!("scripted")));
    assert!(body["id"].as_str().unwrap().starts_with("generative-scoring-"), "{body}");
    let data = body["data"].as_array().unwrap();
    for (index, item) in data.iter().enumerate() {
        assert_eq!((&item["index"], &item["object"]), (&json!(index), &json!("score")));
        assert!(close(&item["score"], 2.0 / 3.0), "{item}");
    }
    assert_eq!((data.len(), &body["usage"]["completion_tokens"]), (2, &json!(2)));
    let whole = ok(&app, VLLM, request(json!({"apply_softmax": false, "cache_salt": "s"}))).await;
    assert!(close(&whole["data"][1]["score"], 0.6), "{whole}");
}

#[tokio::test]
async fn the_scores_of_sglang_are_the_probabilities_of_all_labels() {
    let app = four_or_five();
    let close_to = |scores: &Value, want: &[f64]| {
        let got = scores.as_array().unwrap();
        got.len() == want.len() && got.iter().zip(want).all(|(got, &want)| close(got, want))
    };
    let body = ok(&app, SGLANG, request(json!({}))).await;
    assert_eq!((&body["object"], &body["model"]), (&json!("scoring"), &json!("scripted")));
    assert!(body["scores"].as_array().unwrap().iter().all(|scores| close_to(scores, &[0.6, 0.3])), "{body}");
    let labels = json!([piece("5"), piece("4"), piece("5")]);
    let shares =
        ok(&app, SGLANG, request(json!({"items": "a", "label_token_ids": labels, "apply_softmax": true})))
            .await;
    // A repeated label counts once.
    assert!(close_to(&shares["scores"][0], &[1.0 / 3.0, 2.0 / 3.0, 1.0 / 3.0]), "{shares}");
    assert_eq!(shares["scores"].as_array().unwrap().len(), 1);
    // An impossible label has no probability.
    let none = ok(&app, SGLANG, request(json!({"label_token_ids": [EOS], "apply_softmax": true}))).await;
    assert!(close_to(&none["scores"][0], &[0.0]), "{none}");
}

/// The tokens of a text.
async fn tokens(app: &Router, text: &str, add_special_tokens: bool) -> Vec<u64> {
    let body = json!({"prompt": text, "add_special_tokens": add_special_tokens});
    serde_json::from_value(ok(app, "/tokenize", body).await["tokens"].take()).unwrap()
}

/// The probability of a token after a prompt, by the route of completions.
async fn probability(app: &Router, prompt: &[u64], id: u64) -> f64 {
    let body = json!({
        "prompt": prompt, "max_tokens": 1, "logprobs": 1, "logprob_token_ids": [id],
        "return_tokens_as_token_ids": true
    });
    let logprobs = &ok(app, "/v1/completions", body).await["choices"][0]["logprobs"];
    logprobs["top_logprobs"][0][format!("token_id:{id}")].as_f64().unwrap().exp()
}

#[tokio::test]
async fn prompts_are_joined_as_vllm_and_sglang_join_them() {
    let app = tiny();
    let (query, item, label) = ("Work out a", " pear and 12", 7);
    let begun = tokens(&app, query, true).await;
    let (alone, inner) = (tokens(&app, query, false).await, tokens(&app, item, false).await);
    let near = |got: &Value, want: f64| (got.as_f64().unwrap() - want).abs() < 1e-6;
    // vLLM tokenizes the parts separately, and SGLang the text of both.
    for (fields, prompt) in [
        (json!({}), [&*begun, &*inner].concat()),
        (json!({"item_first": true}), [&*inner, &*begun].concat()),
        (json!({"add_special_tokens": false}), [&*alone, &*inner].concat()),
        (json!({"query": begun, "items": [inner]}), [&*begun, &*inner].concat()),
    ] {
        let mut body =
            json!({"query": query, "items": [item], "label_token_ids": [label], "apply_softmax": false});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = ok(&app, VLLM, body).await;
        let want = probability(&app, &prompt, label).await;
        assert!(near(&answer["data"][0]["score"], want), "{fields}: {answer}, not {want}");
        assert_eq!(answer["usage"]["prompt_tokens"], prompt.len(), "{fields}");
    }
    for (item_first, text) in [(false, format!("{query}{item}")), (true, format!("{item}{query}"))] {
        let body =
            json!({"query": query, "items": item, "label_token_ids": [label], "item_first": item_first});
        let want = probability(&app, &tokens(&app, &text, true).await, label).await;
        let answer = ok(&app, SGLANG, body).await;
        assert!(near(&answer["scores"][0][0], want), "{answer}, not {want}");
    }
}

#[tokio::test]
async fn requests_that_do_not_fit_are_rejected_with_their_field() {
    let app = tiny();
    let long: Vec<u32> = vec![5; 600];
    for (path, fields, param, message) in [
        (VLLM, json!({"query": null}), "query", "is missing"),
        (VLLM, json!({"items": []}), "items", "must be a list of 1 to 1024 items, not 0"),
        (VLLM, json!({"items": {"a": 1}}), "items", "a string, or a list of strings"),
        (VLLM, json!({"label_token_ids": []}), "label_token_ids", "must be a list of 1 to 1024 token ids"),
        (VLLM, json!({"label_token_ids": [1_000_000]}), "label_token_ids", "token id 1000000"),
        (VLLM, json!({"items": ["a", [1_000_000]]}), "items[1]", "token id 1000000"),
        (VLLM, json!({"items": ["a", long]}), "items[1]", "tokens together with `query`"),
        (VLLM, json!({"labels": [1]}), "labels", "did you mean"),
        (SGLANG, json!({"label_token_ids": null}), "label_token_ids", "is missing"),
        (SGLANG, json!({"losses": ["ce"]}), "losses", "is not a field of this request"),
    ] {
        let answer = post(&app, path, request(fields.clone())).await;
        assert_eq!(answer.status, 400, "{fields}: {}", answer.text);
        let error = answer.error();
        assert_eq!(error["param"], param, "{fields}: {error}");
        assert!(error["message"].as_str().unwrap().contains(message), "{fields}: {error}");
    }
}
