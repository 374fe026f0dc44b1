//! Every field of every request body has an effect, or its description says that it has none.
//!
//! In: the fields that `/openapi.json` lists, so that a new field fails here until it has a probe. Not here:
//! fields of nested objects.

use std::collections::BTreeMap;

use axum::Router;
use ntl_core::contract::{HiddenStates, Stack};
use ntl_core::labels::{LabelActivation, Labels};
use ntl_engine::EngineLimits;
use ntl_models::LoadedModel;
use ntl_server::app;
use ntl_server::settings::HttpSettings;
use serde_json::{Map, Value, json};

use crate::chat::tokenizer_with;
use crate::support::{self, Answer, EOS, get, logits, piece, post, scripted, state_of};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const SCORE: &str = "/v1/score";
const DECISIONS: &str = "/v1/decisions";
const SYSTEMONE: &str = "/v1/systemone";
const CLASSIFY: &str = "/classify";
const POOLING: &str = "/pooling";
const EMBEDDINGS: &str = "/v1/embeddings";
const GENERATIVE_SCORING: &str = "/generative_scoring";
const PREDICT: &str = "/predict";
const RERANK: &str = "/rerank";
const RERANK_V1: &str = "/v1/rerank";

/// Fields that need a model with calls, one that sees the order of its tokens, or one whose answers are
/// sampled, and a field without which the request fails: other tests show the effect.
const SHOWN_ELSEWHERE: [(&str, &str); 5] = [
    (CHAT, "parallel_tool_calls"),
    (GENERATIVE_SCORING, "item_first"),
    (PREDICT, "truncate"),
    (DECISIONS, "x_samples"),
    (SYSTEMONE, "x_samples"),
];

/// The template writes every variable that a request can set.
const TEMPLATE: &str = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{% for message in messages %}{{ message.content }}, {% endfor %}\
    {% for document in documents or [] %}{{ document.text }}{% endfor %}{% if extra %}{{ extra }}{% endif %}{% if reasoning_effort %}9{% endif %}{% if add_generation_prompt %}A:{% endif %}";

/// Words in the description of a field that changes no response.
const NO_EFFECT: [&str; 2] = ["changes nothing", "No effect on other kinds"];

/// A model with two labels, whose values depend on the whole prompt.
fn head() -> LoadedModel {
    let script = |prompt: &[u32], _: &[u32]| {
        let sum: u32 = (1..).zip(prompt).map(|(place, id)| place * id).sum();
        Ok(vec![(sum % 17) as f32 / 5.0, (sum % 13) as f32 / 5.0])
    };
    let model = scripted(Box::new(script)).with_info(|info| {
        info.encoder_decoder = false;
        let names = ["no", "yes"].map(str::to_owned).to_vec();
        info.hidden_states = Some(HiddenStates { stack: Stack::Decoder, width: 2 });
        info.labels = Some(Labels { names, activation: LabelActivation::Softmax });
    });
    LoadedModel { tokenizer: tokenizer_with(TEMPLATE), ..support::loaded(Box::new(model)) }
}

/// Three decoder-only models that write digits, and one with a head. The next token depends on the whole
/// sequence.
fn digits_server() -> Router {
    let model = |context_tokens_max: usize| {
        let digits: Vec<u32> = (0..10).map(|digit| piece(&digit.to_string())).collect();
        let script = move |prompt: &[u32], path: &[u32]| {
            let sum: usize = prompt.iter().chain(path).map(|&id| id as usize).sum();
            let weight = |(index, &id): (usize, &u32)| (id, ((sum * 31 + index * 17) % 97 + 1) as f64);
            let mut weights: Vec<(u32, f64)> = digits.iter().enumerate().map(weight).collect();
            weights.push((EOS, 120.0));
            let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
            Ok(logits(&weights.iter().map(|&(id, weight)| (id, weight / total)).collect::<Vec<_>>()))
        };
        let model = scripted(Box::new(script)).with_info(|info| {
            info.encoder_decoder = false;
            info.context_tokens_max = Some(context_tokens_max);
        });
        let LoadedModel { model, vocabulary, .. } = support::loaded(Box::new(model));
        LoadedModel { model, vocabulary, tokenizer: tokenizer_with(TEMPLATE), adapters: None }
    };
    let settings = HttpSettings { logprobs_max: None, ..support::settings() };
    let models = vec![("one", model(64)), ("two", model(64)), ("long", model(512)), ("head", head())];
    app::router(state_of(models, settings, EngineLimits::default()))
}

/// A field in use: `with` is the rest of the request, and `value` the value of the field.
struct Probe {
    with: Value,
    value: Value,
}

fn probe(value: Value) -> Option<Probe> {
    probe_with(json!({}), value)
}

fn probe_with(with: Value, value: Value) -> Option<Probe> {
    Some(Probe { with, value })
}

/// The smallest request to a route.
fn smallest(path: &str) -> Value {
    match path {
        COMPLETIONS => json!({"model": "one", "prompt": "12", "seed": 1}),
        CHAT => json!({"model": "one", "messages": [{"role": "user", "content": "12"}], "seed": 1}),
        RESPONSES => json!({"model": "one", "input": "12", "seed": 1}),
        SCORE => json!({"model": "one", "items": [{"prompt": "1", "target": "23"}]}),
        DECISIONS => json!({"model": "long", "input": "12", "questions": [choice("7")], "x_read": "texts"}),
        SYSTEMONE => {
            json!({"model": "long", "state": "12", "questions": {"q": options("7")}, "x_read": "texts"})
        }
        CLASSIFY | POOLING | EMBEDDINGS => json!({"model": "head", "input": "12"}),
        GENERATIVE_SCORING => {
            json!({"model": "one", "query": "1", "items": ["2"], "label_token_ids": [piece("3"), piece("4")]})
        }
        PREDICT => json!({"model": "head", "inputs": "12"}),
        RERANK | RERANK_V1 => json!({"model": "head", "query": "1", "documents": ["2", "34"]}),
        "/tokenize" => json!({"model": "one", "prompt": "12"}),
        "/detokenize" => json!({"model": "one", "tokens": [5, 6]}),
        _ => panic!("{path} needs a request here"),
    }
}

fn probe_of(path: &str, field: &str) -> Option<Probe> {
    match path {
        COMPLETIONS => completion_probe(field).or_else(|| text_probe(field)),
        CHAT => chat_probe(field).or_else(|| text_probe(field)),
        RESPONSES => response_probe(field),
        SCORE => score_probe(field),
        DECISIONS if field == "questions" => probe(json!([choice("8")])),
        SYSTEMONE if field == "questions" => probe(json!({"q": options("8")})),
        DECISIONS | SYSTEMONE => decision_probe(field),
        CLASSIFY | POOLING => classify_probe(field),
        EMBEDDINGS => embedding_probe(field).or_else(|| classify_probe(field)),
        GENERATIVE_SCORING => label_probe(field),
        PREDICT => predict_probe(field),
        RERANK | RERANK_V1 => rerank_probe(field),
        _ => token_probe(field),
    }
}

fn completion_probe(field: &str) -> Option<Probe> {
    let long = json!({"max_tokens": 40});
    match field {
        "prompt" => probe(json!("345")),
        "max_tokens" => probe(json!(1)),
        "logprobs" => probe(json!(1)),
        "logprob_token_ids" => probe_with(json!({"logprobs": 1}), json!([piece("3")])),
        "number_tokens" | "return_tokens_as_token_ids" => probe_with(json!({"logprobs": 1}), json!(true)),
        "ignore_eos" => probe_with(long, json!(true)),
        "echo" => probe(json!(true)),
        "add_special_tokens" => probe(json!(false)),
        "truncation_side" => {
            let with = json!({"prompt": "3 4 5", "truncate_prompt_tokens": 2, "return_token_ids": true});
            probe_with(with, json!("right"))
        }
        _ => None,
    }
}

fn chat_probe(field: &str) -> Option<Probe> {
    let answer = json!([{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]);
    let tools = json!([{"type": "function", "function": {"name": "7"}}]);
    match field {
        "messages" => probe(json!([{"role": "user", "content": "345"}])),
        "max_tokens" | "max_completion_tokens" => probe(json!(1)),
        "logprobs" => probe(json!(true)),
        "top_logprobs" => probe_with(json!({"logprobs": true}), json!(2)),
        "logprob_token_ids" => probe_with(json!({"logprobs": true, "top_logprobs": 1}), json!([piece("3")])),
        "number_tokens" | "return_tokens_as_token_ids" => probe_with(json!({"logprobs": true}), json!(true)),
        "add_special_tokens" => probe(json!(true)),
        "continue_final_message" => {
            probe_with(json!({"messages": answer, "add_generation_prompt": false}), json!(true))
        }
        "reasoning_effort" => probe(json!("high")),
        "documents" => probe(json!([{"text": "8"}])),
        "tools" => probe(tools),
        "tool_choice" => probe_with(json!({"tools": tools}), json!("none")),
        "add_generation_prompt" => probe(json!(false)),
        "chat_template_kwargs" => probe(json!({"extra": "7"})),
        "ignore_eos" => probe(json!(true)),
        "echo" => probe_with(json!({"messages": answer}), json!(true)),
        _ => None,
    }
}

fn response_probe(field: &str) -> Option<Probe> {
    let tool = json!({"type": "function", "name": "7"});
    let endless = json!({"ignore_eos": true, "max_output_tokens": 40});
    match field {
        "include_stop_str_in_output"
        | "logit_bias"
        | "min_p"
        | "stop_token_ids"
        | "structured_outputs"
        | "top_k" => text_probe(field),
        "frequency_penalty" | "presence_penalty" => probe_with(endless, json!(2)),
        "repetition_penalty" => probe_with(endless, json!(10)),
        "skip_special_tokens" => probe_with(endless, json!(false)),
        "ignore_eos" => probe(json!(true)),
        "stop" => probe_with(json!({"structured_outputs": {"choice": ["12"]}}), json!("2")),
        "input" => probe(json!("345")),
        "instructions" => probe(json!("9")),
        "text" => probe(json!({"format": {"type": "json_schema", "schema": {"const": 77}}})),
        "tools" => probe(json!([tool])),
        "tool_choice" => probe_with(json!({"tools": [tool]}), json!("none")),
        "parallel_tool_calls" => probe(json!(false)),
        "max_output_tokens" => probe(json!(1)),
        "temperature" => probe(json!(0)),
        "top_p" => probe(json!(0.1)),
        "seed" => probe(json!(2)),
        "include" => probe(json!(["message.output_text.logprobs"])),
        "top_logprobs" => probe(json!(2)),
        "reasoning" => probe(json!({"effort": "high"})),
        "metadata" => probe(json!({"a": "b"})),
        "stream" => probe(json!(true)),
        "number" => probe(json!(true)),
        "chat_template_kwargs" => probe(json!({"extra": "7"})),
        _ => None,
    }
}

/// Probes of the fields that completions and chats share.
fn text_probe(field: &str) -> Option<Probe> {
    let stop = json!({"stop_token_ids": (1..10).map(|digit| piece(&digit.to_string())).collect::<Vec<_>>()});
    let beams = json!({"use_beam_search": true, "max_tokens": 6});
    let long_beams = merged(&beams, &json!({"length_penalty": 10}));
    let mut of_schema = json!({"type": "json_schema", "json_schema": {"schema": {"const": 77}}});
    match field {
        "temperature" => probe(json!(0)),
        "top_p" => probe(json!(0.1)),
        "top_k" => probe(json!(1)),
        "min_p" => probe(json!(1)),
        "presence_penalty" | "frequency_penalty" => {
            probe_with(json!({"ignore_eos": true, "max_tokens": 40}), json!(2))
        }
        "repetition_penalty" => probe_with(json!({"ignore_eos": true, "max_tokens": 40}), json!(10)),
        "logit_bias" => probe(json!({piece("7").to_string(): 100})),
        "allowed_token_ids" => probe(json!([piece("7")])),
        "bad_words" => probe(json!((0..9).map(|digit| digit.to_string()).collect::<Vec<_>>())),
        "seed" => probe(json!(2)),
        "n" => probe(json!(2)),
        "best_of" => probe(json!(8)),
        "stop" => probe_with(json!({"guided_choice": ["12"]}), json!("2")),
        "stop_token_ids" => probe(stop["stop_token_ids"].clone()),
        "include_stop_str_in_output" => probe_with(stop, json!(true)),
        "min_tokens" => probe_with(stop, json!(4)),
        "skip_special_tokens" => probe_with(json!({"ignore_eos": true, "max_tokens": 40}), json!(false)),
        "prompt_logprobs" => probe(json!(1)),
        "return_token_ids" => probe(json!(true)),
        "guided_regex" => probe(json!("77")),
        "guided_choice" => probe(json!(["77"])),
        "guided_json" => probe(of_schema["json_schema"]["schema"].take()),
        "guided_grammar" => probe(json!("start: \"77\"")),
        "structured_outputs" => probe(json!({"regex": "77"})),
        "response_format" => probe(of_schema),
        "stream" => probe(json!(true)),
        "stream_options" => probe_with(json!({"stream": true}), json!({"include_usage": true})),
        "use_beam_search" => probe_with(json!({"max_tokens": 6}), json!(true)),
        "beam_width" => probe_with(long_beams, json!(1)),
        "length_penalty" => probe_with(beams, json!(10)),
        "early_stopping" => probe_with(long_beams, json!(true)),
        "number" => probe(json!(true)),
        "paper_decoding" => probe(json!(true)),
        "truncate_prompt_tokens" => probe(json!(1)),
        "truncation_side" => probe_with(json!({"truncate_prompt_tokens": 2}), json!("right")),
        _ => None,
    }
}

fn score_probe(field: &str) -> Option<Probe> {
    let candidates =
        |value: Value| json!({"items": [{"prompt": "1", "candidates": ["23", "4"], "value": value}]});
    match field {
        "items" => probe(json!([{"prompt": "1", "target": "45"}])),
        "losses" => probe(json!(["ce"])),
        "lambda" => probe(json!(5)),
        "reduction" => probe(json!("sum")),
        "reweigh" => probe(json!(true)),
        "squash_factor" => probe(json!(2)),
        "normalize_by_length" => probe_with(candidates(Value::Null), json!(true)),
        "tau" => probe_with(candidates(json!(4)), json!(50)),
        "add_eos" => probe(json!(false)),
        "user" => probe(json!("me")),
        _ => None,
    }
}

fn choice(last: &str) -> Value {
    let choices = json!([{"value": "3"}, {"value": "34"}, {"value": last}]);
    json!({"type": "choice", "instructions": "1", "choices": choices})
}

fn options(last: &str) -> Value {
    json!({"type": "choice", "criteria": {"3": null, "34": null, last: null}})
}

fn decision_probe(field: &str) -> Option<Probe> {
    match field {
        "input" | "state" => probe(json!("345")),
        "prompt_cache_options" => probe(json!({"mode": "explicit"})),
        "assets" => probe(json!({})),
        "x_read" => probe(json!("labels")),
        "x_orders" => probe(json!(3)),
        "x_coverage" => probe(json!(0.9)),
        "x_tolerance" => probe(json!(0.9)),
        "x_dry_run" => probe(json!(true)),
        _ => None,
    }
}

fn classify_probe(field: &str) -> Option<Probe> {
    let chat = json!({"input": null, "messages": [{"role": "user", "content": "12"}]});
    let long = json!({"input": "3 4 5", "truncate_prompt_tokens": 2});
    match field {
        "input" => probe(json!("345")),
        "messages" => probe_with(chat, json!([{"role": "user", "content": "345"}])),
        "add_generation_prompt" => probe_with(chat, json!(true)),
        "continue_final_message" => {
            let answer = json!([{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]);
            probe_with(merged(&chat, &json!({"messages": answer})), json!(true))
        }
        "chat_template_kwargs" => probe_with(chat, json!({"extra": "7"})),
        "add_special_tokens" => probe(json!(false)),
        "truncate_prompt_tokens" => probe(json!(1)),
        "truncation_side" => probe_with(long, json!("left")),
        "use_activation" => probe(json!(false)),
        "user" => probe(json!("me")),
        _ => None,
    }
}

fn embedding_probe(field: &str) -> Option<Probe> {
    match field {
        "encoding_format" => probe(json!("base64")),
        "dimensions" => probe(json!(2)),
        "pooling" => probe(json!("mean")),
        "normalize" => probe(json!(false)),
        _ => None,
    }
}

fn label_probe(field: &str) -> Option<Probe> {
    match field {
        "query" => probe(json!("345")),
        "items" => probe(json!(["2", "345"])),
        "label_token_ids" => probe(json!([piece("5"), piece("4")])),
        "apply_softmax" => probe(json!(false)),
        "add_special_tokens" => probe(json!(false)),
        "priority" => probe(json!(1)),
        _ => None,
    }
}

fn predict_probe(field: &str) -> Option<Probe> {
    let long = json!({"inputs": "3 4 5 ".repeat(400), "truncate": true});
    match field {
        "inputs" => probe(json!("345")),
        "raw_scores" => probe(json!(true)),
        "truncation_direction" => probe_with(long, json!("left")),
        _ => None,
    }
}

fn rerank_probe(field: &str) -> Option<Probe> {
    match field {
        "query" => probe(json!("345")),
        "documents" => probe(json!(["2", "345"])),
        "top_n" => probe(json!(1)),
        "return_documents" => probe(json!(false)),
        "max_tokens_per_doc" => probe(json!(1)),
        "priority" => probe(json!(1)),
        _ => None,
    }
}

fn token_probe(field: &str) -> Option<Probe> {
    let user = |text: &str| json!([{"role": "user", "content": text}]);
    let chat = json!({"prompt": null, "messages": user("12")});
    match field {
        "messages" => probe_with(chat, user("345")),
        "add_generation_prompt" => probe_with(chat, json!(false)),
        "continue_final_message" => probe_with(chat, json!(true)),
        "chat_template_kwargs" => probe_with(chat, json!({"extra": "7"})),
        "tools" => probe_with(chat, json!([{"type": "function", "function": {"name": "7"}}])),
        "prompt" => probe(json!("345")),
        "content" => probe_with(json!({"prompt": null, "content": "12"}), json!("345")),
        "add_special_tokens" => probe(json!(false)),
        "return_token_strs" => probe(json!(true)),
        "tokens" => probe(json!([7])),
        _ => None,
    }
}

/// The fields of each request body, with their descriptions.
fn fields_of_routes(api: &Value) -> BTreeMap<String, Map<String, Value>> {
    let mut routes = BTreeMap::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        let schema = &item["post"]["requestBody"]["content"]["application/json"]["schema"];
        if let Some(body) = referenced(api, schema) {
            // The second form of the body of `/v1/score` is the body of `/generative_scoring`.
            let first = referenced(api, &body["oneOf"][0]).unwrap_or(body);
            routes.insert(path.clone(), first["properties"].as_object().unwrap().clone());
        }
    }
    routes
}

fn referenced<'a>(api: &'a Value, schema: &Value) -> Option<&'a Value> {
    api.pointer(schema["$ref"].as_str()?.trim_start_matches('#'))
}

fn merged(base: &Value, more: &Value) -> Value {
    let mut all = base.clone();
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

/// The response without the parts that differ from call to call.
fn comparable(answer: &Answer) -> Vec<Value> {
    if answer.text.starts_with("event: ") {
        return vec![answer.text.clone().into()];
    }
    let is_stream = answer.text.starts_with("data: ");
    let mut bodies = if is_stream { answer.chunks() } else { vec![answer.json()] };
    for body in bodies.iter_mut().filter_map(Value::as_object_mut) {
        body.remove("id");
        body.remove("created");
        body.remove("created_at");
        for item in body.get_mut("output").and_then(Value::as_array_mut).into_iter().flatten() {
            item["id"].take();
        }
    }
    bodies
}

#[tokio::test]
async fn every_field_of_every_request_has_an_effect_or_is_described_as_having_none() {
    let app = digits_server();
    let routes = fields_of_routes(&get(&app, "/openapi.json").await.json());
    assert_eq!(routes.len(), 15, "{:?}", routes.keys());
    let mut faults = Vec::new();
    for (path, fields) in &routes {
        for (field, schema) in fields {
            if field == "model" {
                let answer = post(&app, path, merged(&smallest(path), &json!({"model": "three"}))).await;
                assert_eq!(answer.status, 404, "{path}");
                // Errors of this route have another form.
                if path != SYSTEMONE {
                    assert_eq!(answer.error()["param"], "model", "{path}");
                }
                continue;
            }
            if SHOWN_ELSEWHERE.contains(&(path, field)) {
                continue;
            }
            let description = schema["description"].as_str().unwrap_or_default().replace('\n', " ");
            let has_no_effect = NO_EFFECT.iter().any(|words| description.contains(words));
            let any = || probe(json!("any")).filter(|_| has_no_effect);
            let Some(Probe { with, value }) = probe_of(path, field).or_else(any) else {
                faults.push(format!("{path} `{field}` has no probe here"));
                continue;
            };
            let base = merged(&smallest(path), &with);
            let before = post(&app, path, base.clone()).await;
            let after = post(&app, path, merged(&base, &json!({field: value}))).await;
            if before.status != 200 || after.status != 200 {
                faults.push(format!("{path} `{field}` is rejected: {} {}", before.text, after.text));
            } else if (comparable(&before) == comparable(&after)) != has_no_effect {
                faults.push(format!("{path} `{field}`: `{description}`, but {}", after.text));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
