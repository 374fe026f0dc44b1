//! The description of the API and the table of the metrics: complete, true, and their committed copies up to
//! date.

use std::collections::BTreeSet;
use std::path::Path;

use axum::http::header;
use ntl_engine::EngineLimits;
use ntl_server::app;
use ntl_server::metrics::{self, DECLARED};
use serde_json::Value;

use crate::support::{config, get, loaded, post, says, scripted, server, state_of};

#[tokio::test]
async fn the_committed_description_is_the_one_that_is_served() {
    let models = vec![("scripted", loaded(Box::new(scripted(says("1")))))];
    let settings = config(&["--api-key", "k"]).http;
    let with_keys = app::router(state_of(models, settings, EngineLimits::default()));
    let answer = get(&with_keys, "/openapi.json").await;
    assert_eq!(answer.header(header::CONTENT_TYPE), Some("application/json"));
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
    let committed = std::fs::read_to_string(file).unwrap();
    assert!(
        committed == answer.text,
        "docs/openapi.json is old: cargo run -p ntl-server -- openapi > docs/openapi.json"
    );
}

#[tokio::test]
async fn only_a_server_with_keys_asks_for_one() {
    let committed: Value = serde_json::from_str(include_str!("../../../docs/openapi.json")).unwrap();
    let open = get(&server(says("1")), "/openapi.json").await.json();
    for (api, asks) in [(committed, true), (open, false)] {
        let security = &api["paths"]["/v1/completions"]["post"]["security"];
        assert_eq!(security.is_array(), asks);
        assert_eq!(api["components"]["securitySchemes"].is_object(), asks);
        assert!(api["paths"]["/health"]["get"]["security"].is_null());
    }
}

#[tokio::test]
async fn the_bodies_of_completions_and_chats_list_all_fields_and_allow_no_others() {
    let api = get(&server(says("1")), "/openapi.json").await.json();
    for (name, fields) in [
        ("CompletionRequest", &["prompt", "temperature", "number", "metadata", "user"][..]),
        ("ChatRequest", &["messages", "temperature", "guided_regex", "number", "store"]),
    ] {
        let body = &api["components"]["schemas"][name];
        assert_eq!(body["additionalProperties"], false, "{name}");
        assert!(fields.iter().all(|field| body["properties"][field].is_object()), "{name}");
    }
    assert!(api["components"]["schemas"]["ChatRequest"]["properties"]["prompt"].is_null());
}

#[tokio::test]
async fn all_that_is_described_is_there_and_all_references_lead_somewhere() {
    let app = server(says("1"));
    let answer = get(&app, "/openapi.json").await;
    let api = answer.json();
    assert!(api["openapi"].as_str().unwrap().starts_with("3.1"));
    let mut names = BTreeSet::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "scripted").replace("{file}", "main.js");
        for (method, operation) in item.as_object().unwrap() {
            assert!(operation["summary"].is_string(), "{method} {path}");
            assert!(names.insert(operation["operationId"].as_str().unwrap()), "{operation}");
            let status = get(&app, &path).await.status.as_u16();
            assert_eq!(status, if method == "get" { 200 } else { 405 }, "{method} {path}");
            for (status, response) in operation["responses"].as_object().unwrap() {
                assert!(response["headers"]["x-request-id"].is_object(), "{path} {status}");
            }
        }
    }
    for reference in answer.text.split("\"#/").skip(1) {
        let pointer = format!("/{}", reference.split('"').next().unwrap());
        assert!(api.pointer(&pointer).is_some(), "{pointer} leads nowhere");
    }
    for schema in api["components"]["schemas"].as_object().unwrap().values() {
        assert_ne!(schema["description"], Value::Null, "{schema}");
    }
}

#[tokio::test]
async fn both_routes_of_decisions_describe_the_same_failures() {
    let api = get(&server(says("1")), "/openapi.json").await.json();
    let statuses = |path: &str| {
        let responses = api["paths"][path]["post"]["responses"].as_object().unwrap();
        responses.keys().map(|status| if status == "400" { "422" } else { status }).collect::<BTreeSet<_>>()
    };
    let described = statuses("/v1/systemone");
    assert!(described.contains("422") && described.contains("504"), "{described:?}");
    assert_eq!(described, statuses("/v1/decisions"));
}

/// The names of all fields of a JSON object, as paths; for a list, the names in its first element.
pub(crate) fn names(value: &Value, place: &str, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, field)| {
            all.insert(format!("{place}.{name}"));
            names(field, &format!("{place}.{name}"), all);
        }),
        Value::Array(items) => items.iter().take(1).for_each(|item| names(item, place, all)),
        _ => {}
    }
}

#[tokio::test]
async fn every_route_has_examples_and_they_are_what_the_server_takes_and_answers() {
    let app = server(says("1"));
    let api = get(&app, "/openapi.json").await.json();
    for (path, item) in api["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            for (status, response) in operation["responses"].as_object().unwrap() {
                let Some(content) = response["content"].as_object() else { continue };
                let is_file = content.keys().any(|kind| ["text/html", "text/css"].contains(&kind.as_str()));
                let is_description = path == "/openapi.json" && status == "200";
                let example = content.values().next().unwrap().get("example");
                assert!(example.is_some() || is_file || is_description, "{method} {path} {status}");
                if let (Some(example), true) = (example, status.as_str() >= "400") {
                    let detail = &example["detail"];
                    let messages = [&example["error"]["message"], &detail["message"], &detail[0]["msg"]];
                    assert!(messages.iter().any(|text| text.is_string()), "{method} {path} {status}");
                }
            }
            let answer = &operation["responses"]["200"]["content"]["application/json"]["example"];
            // The scripted model has neither a chat template nor a head.
            let needs_more = ["chat", "responses", "classify", "pooling", "predict", "embeddings"]
                .iter()
                .any(|part| path.contains(part));
            if answer.is_null() || needs_more {
                continue;
            }
            let request = &operation["requestBody"]["content"]["application/json"]["example"];
            let path = path.replace("{id}", "scripted");
            let found = match method.as_str() {
                "post" => post(&app, &path, request.clone()).await,
                _ => get(&app, &path).await,
            };
            assert_eq!(found.status, 200, "{path}: {}", found.text);
            let mut want = BTreeSet::new();
            let mut have = BTreeSet::new();
            names(answer, "", &mut want);
            names(&found.json(), "", &mut have);
            assert_eq!(want, have, "{path}");
        }
    }
}

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere() {
    let page = get(&server(says("1")), "/docs").await;
    assert_eq!(page.status, 200);
    assert!(page.header(header::CONTENT_SECURITY_POLICY).unwrap().starts_with("default-src 'none'"));
    assert!(page.text.contains("openapi.json"));
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!page.text.contains(outside), "{outside}");
    }
}

#[test]
fn the_table_of_metrics_is_the_declared_one() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/OPERATIONS.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (before, rest) = text.split_once("<!-- metrics -->\n").unwrap();
    let (committed, after) = rest.split_once("<!-- end of metrics -->\n").unwrap();
    let table = metrics::table();
    if std::env::var_os("NTL_REWRITE_DOCS").is_some() {
        let text = format!("{before}<!-- metrics -->\n{table}<!-- end of metrics -->\n{after}");
        std::fs::write(file, text).unwrap();
        return;
    }
    assert!(committed == table, "docs/OPERATIONS.md is old: just metrics");
}

/// The series of a metric.
fn series(metric: &metrics::Declaration) -> Vec<String> {
    let parts: &[&str] = if metric.buckets.is_some() { &["_bucket", "_sum", "_count"] } else { &[""] };
    [metric.name]
        .into_iter()
        .chain(metric.vllm)
        .flat_map(|name| parts.iter().map(move |part| format!("{name}{part}")))
        .collect()
}

/// Our names and vLLM's names in a text.
fn named_series(text: &str) -> BTreeSet<String> {
    let words =
        text.split(|character: char| !(character.is_ascii_alphanumeric() || "_:".contains(character)));
    let is_ours = |word: &&str| word.starts_with("ntl_") || word.starts_with("vllm:");
    words.filter(is_ours).map(str::to_owned).collect()
}

/// All texts in a directory.
fn texts(directory: &Path) -> Vec<String> {
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts.extend(self::texts(&path))
        } else {
            texts.extend(std::fs::read_to_string(path))
        }
    }
    texts
}

#[test]
fn every_metric_in_deploy_exists_and_the_dashboard_shows_all() {
    let deploy = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy"));
    let known: BTreeSet<String> = DECLARED.iter().flat_map(series).collect();
    let used: BTreeSet<String> = texts(deploy).iter().flat_map(|text| named_series(text)).collect();
    assert_eq!(used.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new());
    let shown = named_series(&std::fs::read_to_string(deploy.join("grafana/dashboard.json")).unwrap());
    for metric in DECLARED {
        assert!(series(metric).iter().any(|one| shown.contains(one)), "{} is not shown", metric.name);
    }
}
