//! The fingerprint of a model in the responses that it computes.

use std::sync::Arc;

use axum::Router;
use ntl_api::FINGERPRINT_HEADER;
use ntl_engine::{CacheBudget, EngineLimits};
use ntl_models::LoadedModel;
use ntl_server::app;
use ntl_server::metrics::Metrics;
use ntl_server::served::ServedModel;
use ntl_server::state::AppState;
use serde_json::json;

use crate::chat;
use crate::support::{Answer, get, loaded, post, says, scripted, server, settings};

/// A server of `scripted`, which also chats and has the fingerprint `f00d`.
fn fingerprinted_server() -> Router {
    let metrics = Arc::new(Metrics::new().unwrap());
    let state = AppState::new(settings(), Arc::clone(&metrics));
    let limits = EngineLimits::default();
    let budget = CacheBudget::new(limits.cache_bytes_max);
    let model = LoadedModel {
        tokenizer: chat::tokenizer_with(chat::TEMPLATE),
        ..loaded(Box::new(scripted(says("12"))))
    };
    let (model, _) = ServedModel::start("scripted", model, limits, &budget, &metrics).unwrap();
    state.models.publish(vec![model.with_fingerprint("f00d".to_owned())]);
    app::router(state)
}

fn header(answer: &Answer) -> Option<&str> {
    answer.headers.get(FINGERPRINT_HEADER).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn every_response_of_a_model_names_its_fingerprint() {
    let app = fingerprinted_server();
    let completion = json!({"prompt": "How many?"});
    let number = json!({"prompt": "How many?", "number": {}});
    let score = json!({"items": [{"prompt": "How many?", "target": "12"}]});
    for (path, body, status) in [
        ("/v1/completions", completion, 200),
        ("/v1/completions", number, 200),
        ("/v1/completions", json!({"prompt": "x", "temperature": -1}), 400),
        ("/v1/score", score, 200),
        ("/tokenize", json!({"prompt": "12"}), 200),
        ("/detokenize", json!({"tokens": [3]}), 200),
    ] {
        let answer = post(&app, path, body.clone()).await;
        assert_eq!((answer.status.as_u16(), header(&answer)), (status, Some("f00d")), "{path} {body}");
    }
    assert_eq!(header(&get(&app, "/tokenizer_info").await), Some("f00d"));
    assert_eq!(header(&get(&app, "/v1/models/scripted").await), Some("f00d"));
    assert_eq!(get(&app, "/v1/models/scripted").await.json()["fingerprint"], "f00d");
    for path in ["/v1/models", "/v1/models/other", "/health"] {
        assert_eq!(header(&get(&app, path).await), None, "{path}");
    }
}

#[tokio::test]
async fn bodies_and_chunks_have_the_fingerprint_under_the_name_of_openai() {
    let app = fingerprinted_server();
    for (path, mut body) in [
        ("/v1/completions", json!({"prompt": "How many?"})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "How many?"}]})),
    ] {
        let whole = post(&app, path, body.clone()).await;
        assert_eq!(whole.json()["system_fingerprint"], "f00d", "{path}: {}", whole.text);
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let stream = post(&app, path, body).await;
        assert_eq!(header(&stream), Some("f00d"));
        assert!(stream.chunks().len() > 1);
        assert!(stream.chunks().iter().all(|chunk| chunk["system_fingerprint"] == "f00d"), "{}", stream.text);
    }
}

#[tokio::test]
async fn a_model_without_a_fingerprint_has_neither_header_nor_field() {
    let answer = post(&server(says("12")), "/v1/completions", json!({"prompt": "How many?"})).await;
    assert_eq!((header(&answer), answer.json().get("system_fingerprint")), (None, None));
}
