//! Large responses: requests whose responses may be too large, and the JSON of responses that are written in
//! chunks.

use axum::Router;
use axum::http::header;
use ntl_api::{CompletionResponse, ScoreResponse, TokenizeResponse};
use ntl_engine::EngineLimits;
use ntl_server::app;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::{Answer, babbles, config, loaded, metric, piece, post, scripted, state_of};

/// A decoder-only model.
fn start(flags: &[&str]) -> Router {
    let model = scripted(babbles()).with_info(|info| info.encoder_decoder = false);
    let models = vec![("scripted", loaded(Box::new(model)))];
    app::router(state_of(models, config(flags).http, EngineLimits::default()))
}

#[tokio::test]
async fn a_request_whose_response_may_be_too_large_is_rejected_with_the_fields_to_lower() {
    let app = start(&["--response-bytes-max=100KB"]);
    let prompts = vec!["1 2 3 4 5 6 7 8 9"; 20];
    let items = vec![json!({"prompt": "1", "target": "2"}); 400];
    let without_reduction = json!({"items": items[..150], "reduction": "none"});
    for (path, body, param) in [
        ("completions", json!({"prompt": prompts, "prompt_logprobs": 20}), "prompt_logprobs"),
        ("completions", json!({"prompt": "x", "n": 20, "logprobs": 5, "max_tokens": 100}), "logprobs"),
        ("completions", json!({"prompt": "x", "n": 128, "max_tokens": 4096}), "max_tokens"),
        (
            "completions",
            json!({"prompt": prompts, "echo": true, "logprobs": 20, "stream": true, "max_tokens": 1}),
            "logprobs",
        ),
        ("completions", json!({"prompt": prompts, "number": {"support": 1000}}), "number.support"),
        ("score", json!({"items": items}), "items"),
        ("score", without_reduction.clone(), "items"),
        ("../tokenize", json!({"prompt": "1 ".repeat(10_000)}), "prompt"),
        ("../detokenize", json!({"tokens": vec![piece("7"); 60_000]}), "tokens"),
    ] {
        let path = format!("/v1/{path}").replace("/v1/../", "/");
        let answer = post(&app, &path, body.clone()).await;
        assert_eq!(answer.status, 413, "{body}: {}", answer.text);
        let error = answer.error();
        assert_eq!((&error["code"], &error["param"]), (&json!("response_too_large"), &json!(param)));
        let advice = format!("Lower or leave out `{param}`");
        assert!(error["message"].as_str().unwrap().contains(&advice), "{error}");
    }
    assert!(metric(&app, "ntl_prompt_tokens_total{model=\"scripted\"}").await.abs() < 1e-9);
    for (path, body) in [
        ("completions", json!({"prompt": prompts, "prompt_logprobs": 0, "max_tokens": 1})),
        // A stream holds only the reported parts of its prompts.
        ("completions", json!({"prompt": "x", "n": 20, "logprobs": 5, "max_tokens": 100, "stream": true})),
        ("completions", json!({"prompt": prompts, "number": {"support": 20, "nodes_max": 1}})),
        ("score", json!({"items": without_reduction["items"]})),
    ] {
        let answer = post(&app, &format!("/v1/{path}"), body.clone()).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    }
    assert!(metric(&app, "ntl_response_bytes").await.abs() < 1e-9);
}

/// Checks that a response is the JSON of its wire type, longer than several chunks, and that its header says
/// how long.
fn check_json<T: Serialize + DeserializeOwned>(answer: &Answer) {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let length = answer.text.len();
    assert!(length > 150_000, "{length}");
    assert_eq!(answer.header(header::CONTENT_LENGTH), Some(length.to_string().as_str()));
    assert_eq!(answer.header(header::CONTENT_TYPE), Some("application/json"));
    let whole: T = serde_json::from_str(&answer.text).unwrap();
    assert!(serde_json::to_string(&whole).unwrap() == answer.text, "the order or the form of fields differs");
}

#[tokio::test]
async fn a_large_response_is_the_json_of_its_type_and_has_a_length() {
    let app = start(&[]);
    let texts = json!({"prompt": vec!["1 2 3 4"; 100], "n": 2, "max_tokens": 20, "temperature": 0, "logprobs": 5,
        "prompt_logprobs": 5, "echo": true, "return_token_ids": true, "number_tokens": true});
    check_json::<CompletionResponse>(&post(&app, "/v1/completions", texts).await);
    let items: Vec<Value> = (0..1000).map(|_| json!({"prompt": "1", "target": "77777"})).collect();
    check_json::<ScoreResponse>(&post(&app, "/v1/score", json!({"items": items})).await);
    let tokens = post(&app, "/tokenize", json!({"prompt": "one \"2\" 3\n".repeat(10_000)})).await;
    check_json::<TokenizeResponse>(&tokens);
}
