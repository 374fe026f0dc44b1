//! Request bodies for every route with a body, as described in `docs/openapi.json`.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use clap::Parser;
use http_body_util::BodyExt;
use ntl_engine::{CacheBudget, EngineLimits};
use ntl_models::{DeviceChoice, LoadOptions, load};
use ntl_server::app;
use ntl_server::config::{Args, Config};
use ntl_server::metrics::Metrics;
use ntl_server::served::ServedModel;
use ntl_server::state::AppState;
use ntl_text::checkpoint::CheckpointFiles;
use serde_json::Value;
use tokio::runtime::Runtime;
use tower::ServiceExt;

use crate::corpus::{checkpoint, named, split_named};
use crate::{Outcome, Target};

pub(super) const REQUESTS: Target = Target {
    name: "requests",
    corpus: || {
        let routes = LazyLock::force(&API)["paths"].as_object().unwrap();
        let mut corpus = Vec::new();
        for (route, methods) in routes {
            let example = &methods["post"]["requestBody"]["content"]["application/json"]["example"];
            if !example.is_null() {
                corpus.push(named(route, example.to_string().as_bytes()));
            }
        }
        assert_eq!(corpus.len(), 15, "the routes with a body");
        corpus.extend(MORE.map(|(route, body)| named(route, body.as_bytes())));
        corpus
    },
    words: WORDS,
    read,
};

/// Requests that use more fields than the examples.
const MORE: [(&str, &str); 10] = [
    (
        "/v1/decisions",
        r#"{"input":[{"role":"developer","content":"a"},{"role":"user","content":[{"type":"input_json","data":{"a":1}}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"2"}],"questions":[{"type":"predicate","instructions":"?"},{"type":"choice","name":"c","instructions":[{"type":"input_text","text":"?"}],"choices":[{"value":true},{"value":"true","description":"d"}],"x_read":"texts","x_orders":2},{"type":"score","instructions":"?","levels":[{"label":"a"},{"label":"b"}]},{"type":"number","instructions":"?","minimum":0,"maximum":5,"step":1,"unit":"u","objective":"median"}],"x_coverage":0.9,"x_tolerance":0.1}"#,
    ),
    (
        "/v1/systemone",
        r#"{"state":{"a":[1]},"questions":{"n":{"type":"noul","criteria":{"true":["x"]}},"c":{"type":"choice","instructions":{"a":1},"criteria":{"x":null," y":"z"}},"s":{"type":"score","criteria":["a",{"b":1}]},"m":{"type":"number","instructions":"?","criteria":{"minimum":-1}}},"x_read":"texts","x_orders":3,"x_dry_run":true}"#,
    ),
    (
        "/v1/completions",
        r#"{"prompt":["1 + 1","2"],"n":2,"max_tokens":8,"temperature":0.7,"top_p":0.9,"top_k":5,"min_p":0.1,"seed":1,"logprobs":3,"stop":["x","\n"],"presence_penalty":0.5,"frequency_penalty":-1,"repetition_penalty":1.1,"logit_bias":{"5":-100},"echo":true,"stream":true,"stream_options":{"include_usage":true},"min_tokens":2,"ignore_eos":true,"prompt_logprobs":1,"best_of":2}"#,
    ),
    (
        "/v1/completions",
        r#"{"prompt":[3,4,5],"use_beam_search":true,"beam_width":4,"n":2,"max_tokens":6,"length_penalty":0.8,"early_stopping":"never"}"#,
    ),
    (
        "/v1/completions",
        r#"{"prompt":"1","number":{"method":"tree","objective":"mean","tolerance":0.001,"nodes_max":64,"digits_max":6,"decimals_max":2,"sign":true,"range":[-10,1000],"terminator":["."],"thousands":",","quantiles":[0.5],"support":4,"trim":0.01,"after":"A:"},"max_tokens":8}"#,
    ),
    (
        "/v1/completions",
        r#"{"prompt":"1","guided_json":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},"max_tokens":12}"#,
    ),
    (
        "/v1/chat/completions",
        r#"{"messages":[{"role":"system","content":"a"},{"role":"user","content":[{"type":"text","text":"1 + 1"}]}],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"enum":[1,2]}}},"logprobs":true,"top_logprobs":2,"max_completion_tokens":9,"number":true,"n":2}"#,
    ),
    (
        "/v1/chat/completions",
        r#"{"messages":[{"role":"user","content":"1"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},{"role":"tool","tool_call_id":"a","content":"2"}],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"x":{"enum":[1,2]}},"required":["x"]},"strict":true}}],"parallel_tool_calls":false}"#,
    ),
    (
        "/v1/chat/completions",
        r#"{"messages":[{"role":"user","content":"1"}],"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],"tool_choice":"required","stream":true}"#,
    ),
    (
        "/v1/responses",
        r#"{"instructions":"a","input":[{"role":"user","content":[{"type":"input_text","text":"1"}]},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":"2"}],"tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{}}}],"tool_choice":{"type":"function","name":"f"},"text":{"format":{"type":"text"}},"reasoning":{"effort":"low"},"metadata":{"a":"b"},"max_output_tokens":9,"stream":true}"#,
    ),
];

/// Names of fields and values, and parts of schemas and prompts.
const WORDS: &[&str] = &[
    "prompt",
    "query",
    "items",
    "label_token_ids",
    "apply_softmax",
    "item_first",
    "messages",
    "role",
    "content",
    "user",
    "assistant",
    "system",
    "text",
    "type",
    "model",
    "n",
    "best_of",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "echo",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stream",
    "stream_options",
    "include_usage",
    "use_beam_search",
    "beam_width",
    "length_penalty",
    "early_stopping",
    "number",
    "method",
    "tree",
    "beam",
    "sample",
    "token",
    "xval",
    "head",
    "objective",
    "mean",
    "median",
    "mode",
    "trimmed_mean",
    "quantiles",
    "support",
    "trim",
    "tolerance",
    "nodes_max",
    "samples",
    "digits_max",
    "decimals_max",
    "sign",
    "range",
    "terminator",
    "eos",
    "any",
    "thousands",
    "after",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "response_format",
    "json_schema",
    "json_object",
    "schema",
    "properties",
    "required",
    "enum",
    "const",
    "anyOf",
    "$ref",
    "#/$defs/a",
    "$defs",
    "pattern",
    "(a|b){1,999}",
    "minItems",
    "items",
    "additionalProperties",
    "integer",
    "string",
    "object",
    "array",
    "maxLength",
    "items",
    "prompt",
    "target",
    "losses",
    "ce",
    "ntl-was",
    "ntl-mse",
    "ntl-was-cdf",
    "reduction",
    "sum",
    "tokens",
    "add_special_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "paper_decoding",
    "cache_salt",
    "human_readable",
    "\u{0}",
    "é\u{1F600}",
    "####",
    "llama-ntl",
    "add_generation_prompt",
    "chat_template_kwargs",
    "return_token_ids",
    "tools",
    "tool_choice",
    "tool_calls",
    "tool_call_id",
    "function",
    "parameters",
    "arguments",
    "strict",
    "required",
    "auto",
    "none",
    "input",
    "input_text",
    "function_call",
    "function_call_output",
    "call_id",
    "max_output_tokens",
    "previous_response_id",
];

static API: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(app::openapi_json()).unwrap());

static SERVER: LazyLock<(Runtime, Router, BTreeSet<String>)> = LazyLock::new(|| {
    let routes = API["paths"].as_object().unwrap();
    let routes = routes
        .iter()
        .filter(|(_, methods)| methods["post"].is_object())
        .map(|(route, _)| route.clone())
        .collect();
    (
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        app::router(state()),
        routes,
    )
});

/// Returns a server with a small decoder-only model and a chat template, whose answers are short.
fn state() -> AppState {
    let flags = ["ntl-server", "--output-tokens-max=24", "--request-timeout=5", "--memory-bytes-max=0"];
    let settings = Config::try_from(Args::try_parse_from(flags).unwrap()).unwrap().http;
    let mut files = checkpoint("llama-ntl").unwrap();
    let template = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{# <tool_call> #}\
        {% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls or '' }}\n{% endfor %}";
    files.insert("chat_template.jinja".to_owned(), template.as_bytes().to_vec());
    let files = CheckpointFiles::memory("served", files);
    let loaded = load(&files, LoadOptions { device: DeviceChoice::Cpu, ..LoadOptions::default() }).unwrap();
    let metrics = Arc::new(Metrics::new().unwrap());
    let state = AppState::new(settings, Arc::clone(&metrics));
    let limits = EngineLimits { cache_bytes_max: 64 << 20, ..EngineLimits::default() };
    let budget = CacheBudget::new(limits.cache_bytes_max);
    let (served, _) = ServedModel::start("llama-ntl", loaded, limits, &budget, &metrics).unwrap();
    state.models.publish(vec![served]);
    state
}

/// Sends a body to the route in its first line. A rejection must have a reason and, if a field is invalid,
/// name the field.
fn read(input: &[u8]) -> Outcome {
    let (runtime, router, routes) = &*SERVER;
    let Some((route, body)) = split_named(input).filter(|(route, _)| routes.contains(*route)) else {
        return Outcome::Refused;
    };
    let request = Request::post(route).header(header::CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(body.to_vec())).unwrap();
    let (status, answer) = runtime.block_on(async {
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    });
    if status == StatusCode::OK {
        let text = String::from_utf8(answer.to_vec()).unwrap();
        assert!(!text.contains("\"server_error\""), "an accepted stream fails: {text}");
        return Outcome::Accepted;
    }
    let error: Value = serde_json::from_slice(&answer).unwrap();
    let detail = &error["detail"];
    let messages = [&error["error"]["message"], &detail["message"], &detail[0]["msg"]];
    let message = messages.into_iter().find_map(Value::as_str).unwrap_or_default();
    let error = &error["error"];
    let says = !message.is_empty();
    let has_fields = serde_json::from_slice(body).is_ok_and(|body: Value| body.is_object());
    let is_named = status != StatusCode::BAD_REQUEST
        || error["param"].is_string()
        || error["code"].is_string()
        || message.contains(" field `")
        || !has_fields;
    let may_be = status.is_client_error() || status == StatusCode::GATEWAY_TIMEOUT;
    assert!(may_be && says && is_named, "{route} answers {status}: {error}");
    Outcome::Refused
}
