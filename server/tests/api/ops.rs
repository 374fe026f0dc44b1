//! Routes for operators and clients' tooling: models, tokens, health, version, metrics.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::{Request, header};
use ntl_engine::EngineLimits;
use ntl_server::app;
use ntl_server::metrics::DECLARED;
use serde_json::{Value, json};

use crate::support::{
    call, complete, config, get, ids, loaded, metric, metric_becomes, post, says, scripted, server, state_of,
    tokenizer,
};

#[tokio::test]
async fn models_are_listed_and_described() {
    let app = server(says("1"));
    let mut model = get(&app, "/v1/models/scripted").await.json();
    let list = get(&app, "/v1/models").await.json();
    assert_eq!((&list["object"], &list["data"]), (&json!("list"), &json!([model])));
    assert!(model["created"].as_u64().unwrap() > 1_600_000_000);
    model["created"] = "[created]".into();
    model.sort_all_objects();
    insta::assert_json_snapshot!("model", model);
    for unknown in ["/v1/models/other", "/v1/models/a/b", "/v1/models/%2e%2e%2fetc"] {
        assert_eq!(get(&app, unknown).await.error()["code"], "model_not_found", "{unknown}");
    }
}

#[tokio::test]
async fn the_paths_of_other_servers_report_health_and_load() {
    let app = server(says("1"));
    let answer = get(&app, "/ping").await;
    assert_eq!((answer.status.as_u16(), answer.json()), (200, get(&app, "/health").await.json()));
    assert_eq!(get(&app, "/load").await.json(), json!({"server_load": 0}));
}

#[tokio::test]
async fn texts_are_tokenized_with_values_and_joined_again() {
    let app = server(says("1"));
    let body = post(&app, "/tokenize", json!({"prompt": "12 eggs"})).await.json();
    let mut want = ids("12 eggs");
    want.push(1);
    assert_eq!(body["tokens"], json!(want));
    assert_eq!(body["count"], want.len());
    assert_eq!(body["token_strs"][1], "1");
    assert_eq!(body["number_values"].as_array().unwrap()[..3], [Value::Null, json!(1.0), json!(2.0)]);
    assert_eq!(body["max_model_len"], 512);
    let bare =
        post(&app, "/tokenize", json!({"content": "12 eggs", "add_special_tokens": false})).await.json();
    assert_eq!(bare["tokens"], json!(ids("12 eggs")));
    let text = post(&app, "/detokenize", json!({"tokens": want})).await.json();
    assert_eq!(text, json!({"prompt": "12 eggs", "content": "12 eggs"}));
    let long = post(&app, "/tokenize", json!({"prompt": "12 eggs ".repeat(5000)})).await.json();
    assert!(long["count"].as_u64().unwrap() > 15_000);
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": 5}), "prompt"),
        ("/detokenize", json!({"tokens": [tokenizer().len()]}), "tokens"),
        ("/detokenize", json!({"tokens": [-1]}), "tokens[0]"),
    ] {
        let answer = post(&app, path, body.clone()).await;
        assert_eq!((answer.status.as_u16(), answer.error()["param"].as_str()), (400, Some(param)), "{body}");
    }
}

#[tokio::test]
async fn a_misspelt_field_of_tokens_is_refused_with_the_nearest_name() {
    let app = server(says("1"));
    // The fields that vLLM's clients send.
    let body =
        json!({"model": "scripted", "prompt": "12", "add_special_tokens": true, "return_token_strs": null});
    assert_eq!(post(&app, "/tokenize", body).await.status, 200);
    for (path, body, param, near) in [
        ("/tokenize", json!({"prompt": "x", "add_special": false}), "add_special", "add_special_tokens"),
        ("/tokenize", json!({"promt": "x"}), "promt", "prompt"),
        ("/tokenize", json!({"message": []}), "message", "messages"),
        ("/detokenize", json!({"token": [5]}), "token", "tokens"),
        ("/detokenize", json!({"tokens": [5], "modle": "scripted"}), "modle", "model"),
    ] {
        let answer = post(&app, path, body.clone()).await;
        let error = answer.error();
        assert_eq!((answer.status.as_u16(), error["param"].as_str()), (400, Some(param)), "{body}");
        let message = error["message"].as_str().unwrap();
        assert!(message.ends_with(&format!("did you mean `{near}`?")), "{message}");
    }
}

#[tokio::test]
async fn the_tokenizer_is_described_for_remote_use() {
    let app = server(says("1"));
    let told = get(&app, "/tokenizer_info").await.json();
    assert_eq!(
        (&told["eos_token"], &told["pad_token"], &told["unk_token"]),
        (&json!("</s>"), &json!("<pad>"), &json!("<unk>"))
    );
    assert_eq!((&told["bos_token"], &told["chat_template"]), (&json!(null), &json!(null)));
    assert_eq!((&told["model"], &told["model_max_length"]), (&json!("scripted"), &json!(512)));
    let ids =
        post(&app, "/tokenize", json!({"prompt": told["eos_token"], "add_special_tokens": false})).await;
    assert_eq!(ids.json()["tokens"], json!([1]));
    assert_eq!(get(&app, "/tokenizer_info?model=scripted").await.json(), told);
    assert_eq!(get(&app, "/tokenizer_info?model=other").await.error()["code"], "model_not_found");
    assert_eq!(get(&app, "/tokenizer_info?model=a&model=b").await.error()["param"], "model");
}

#[tokio::test]
async fn prompt_tokens_are_counted_by_whether_they_were_computed() {
    let app = server(says("1"));
    complete(&app, json!({"prompt": [5, 6, 7, 1], "max_tokens": 1})).await;
    let tokens =
        |result: &str| format!("ntl_prefix_cache_tokens_total{{model=\"scripted\",result=\"{result}\"}}");
    metric_becomes(&app, &tokens("miss"), 4.0).await;
    metric_becomes(&app, &tokens("hit"), 0.0).await;
}

#[tokio::test]
async fn the_version_names_what_is_running() {
    let version = get(&server(says("1")), "/version").await.json();
    assert_eq!(version["name"], "ntl-server");
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert!(version["commit"].is_string() && version["features"].is_array() && version["device"].is_string());
}

/// Families of a text in the format of Prometheus, after checking that it keeps to the format.
fn families(text: &str) -> BTreeMap<String, String> {
    let mut families = BTreeMap::new();
    let mut helped = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty(), "{line}");
            helped = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, helped, "a type without a help line");
            assert!(!name.contains(':') && (name.ends_with("_total") == (kind == "counter")), "{line}");
            assert_eq!(families.insert(name.to_owned(), kind.to_owned()), None, "{name} comes twice");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            let name = series.split('{').next().unwrap();
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
            assert!(helped == name || (helped == family && families[family] == "histogram"), "{line}");
        }
    }
    families
}

#[tokio::test]
async fn metrics_keep_to_the_text_format_and_the_contract() {
    let app = server(says("12"));
    for body in [
        json!({"prompt": "x", "temperature": 0}),
        json!({"prompt": "x", "number": true}),
        json!({"prompt": ""}),
    ] {
        complete(&app, body).await;
    }
    for path in ["/v1/a", "/v1/b", "/c"] {
        get(&app, path).await;
    }
    // The engine counts an ending right after it has sent it.
    metric_becomes(&app, "ntl_finished_total{model=\"scripted\",reason=\"stop\"}", 2.0).await;
    let answer = get(&app, "/metrics").await;
    assert_eq!(answer.header(header::CONTENT_TYPE), Some("text/plain; version=0.0.4"));
    let families = families(&answer.text);
    // Without keys there are no tokens of keys, without CUDA no kernels, and no other engine computes the
    // model.
    let is_elsewhere = |name: &&str| {
        ["ntl_key_tokens_total", "ntl_gpu_kernel_off"].contains(name) || name.starts_with("ntl_upstream_")
    };
    let declared = DECLARED.iter().map(|metric| metric.name).filter(|name| !is_elsewhere(name));
    for name in declared.chain(["process_resident_memory_bytes"]) {
        assert!(families.contains_key(name), "{name} is missing");
    }
    for line in [
        "ntl_engine_up{model=\"scripted\"} 1",
        "ntl_number_decodes_total{method=\"tree\",model=\"scripted\",truncated=\"false\"} 1",
        "ntl_number_decodes_total{method=\"token\",model=\"scripted\",truncated=\"false\"} 0",
        "ntl_requests_total{code=\"404\",model=\"none\",route=\"unmatched\"} 3",
        "ntl_request_duration_seconds_count{model=\"scripted\"} 3",
        "ntl_time_to_first_token_seconds_count{model=\"scripted\"} 2",
    ] {
        assert!(answer.text.lines().any(|found| found == line), "{line} is missing in\n{}", answer.text);
    }
    // All that a model does is counted under its name.
    for name in
        ["duration", "first_token", "latency", "tokens", "rows", "number", "queue", "sequences", "finished"]
    {
        let own = |line: &&str| line.starts_with("ntl_") && line.contains(name) && !line.contains("rejected");
        for line in answer.text.lines().filter(own) {
            assert!(line.contains("model=\"scripted\""), "{line}");
        }
    }
}

/// The samples of a family without its name: their labels, under our names and in order, and their values.
fn samples(text: &str, family: &str) -> Vec<(Vec<String>, String)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let line = line.replace("finished_reason=", "reason=").replace("model_name=", "model=");
        let (labels, value) = line.rsplit_once(' ').unwrap();
        let mut labels: Vec<String> =
            labels.trim_end_matches('}').split(['{', ',']).map(str::to_owned).collect();
        labels.sort();
        (labels, value.to_owned())
    };
    lines.filter_map(|line| line.strip_prefix(family)).map(sample).collect()
}

#[tokio::test]
async fn metrics_have_the_names_of_vllm_as_well_where_that_is_asked_for() {
    let settings = config(&["--metrics-compat", "vllm"]).http;
    let models = vec![("scripted", loaded(Box::new(scripted(says("12")))))];
    let app = app::router(state_of(models, settings, EngineLimits::default()));
    complete(&app, json!({"prompt": "x", "temperature": 0})).await;
    metric_becomes(&app, "vllm:request_success_total{finished_reason=\"stop\",model_name=\"scripted\"}", 1.0)
        .await;
    metric_becomes(&app, "ntl_sequences_running{model=\"scripted\"}", 0.0).await;
    let text = get(&app, "/metrics").await.text;
    let aliases: Vec<_> = DECLARED.iter().filter_map(|metric| Some((metric.name, metric.vllm?))).collect();
    assert_eq!(aliases.len(), 10);
    for (ours, theirs) in aliases {
        assert!(!samples(&text, ours).is_empty(), "{ours}");
        assert_eq!(samples(&text, ours), samples(&text, theirs), "{ours}");
    }
    // A router that reads only the first series of a gauge reads that of the only model.
    let series = text.lines().filter(|line| line.starts_with("vllm:num_requests_running"));
    assert_eq!(series.collect::<Vec<_>>(), ["vllm:num_requests_running{model_name=\"scripted\"} 0"]);
    let without = get(&server(says("1")), "/metrics").await.text;
    assert!(!without.contains("vllm:"));
}

#[tokio::test]
async fn openmetrics_is_written_when_it_is_asked_for() {
    let app = server(says("12"));
    complete(&app, json!({"prompt": "x", "number": true})).await;
    metric_becomes(&app, "ntl_finished_total{model=\"scripted\",reason=\"stop\"}", 1.0).await;
    let request =
        Request::get("/metrics").header(header::ACCEPT, "application/openmetrics-text; version=1.0.0");
    let answer = call(&app, request.body(Body::empty()).unwrap()).await;
    let content_type = answer.header(header::CONTENT_TYPE).unwrap();
    assert_eq!(content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    for line in [
        "# TYPE ntl_finished counter",
        "ntl_finished_total{model=\"scripted\",reason=\"stop\"} 1",
        "ntl_number_nodes_bucket{model=\"scripted\",le=\"4.0\"} 1",
        "# TYPE ntl_queue_depth gauge",
    ] {
        assert!(answer.text.lines().any(|found| found == line), "{line} is missing in\n{}", answer.text);
    }
    assert!(answer.text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn the_latency_between_tokens_is_observed_once_a_token() {
    const COUNT: &str = "ntl_inter_token_latency_seconds_count{model=\"scripted\"}";
    let app = server(says("1237"));
    let mut want = 0.0;
    for (fields, texts) in [
        (json!({}), 1.0),
        (json!({"n": 3}), 3.0),
        (json!({"stream": true, "stream_options": {"include_usage": true}}), 1.0),
        // The end of this text is held back and comes after its last token.
        (json!({"stop": "79"}), 1.0),
    ] {
        let mut body = json!({"prompt": "x", "temperature": 0});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = complete(&app, body).await;
        let last = if fields["stream"] == true { answer.chunks().pop().unwrap() } else { answer.json() };
        want += last["usage"]["completion_tokens"].as_f64().unwrap() - texts;
        assert!((metric(&app, COUNT).await - want).abs() < 1e-9, "{fields}");
    }
    assert!(want >= 20.0, "{want}");
    // The texts of `best_of` come all at once.
    complete(&app, json!({"prompt": "x", "best_of": 2})).await;
    assert!((metric(&app, COUNT).await - want).abs() < 1e-9);
    // The tokens up to the marker; the number after it arrives as a whole.
    let after = json!({"prompt": "x", "temperature": 0, "number": {"after": "3"}});
    assert_eq!(complete(&app, after).await.json()["choices"][0]["text"], "1237");
    let before_number = ids("123").len() as f64 - 1.0;
    assert!((metric(&app, COUNT).await - want - before_number).abs() < 1e-9);
}
