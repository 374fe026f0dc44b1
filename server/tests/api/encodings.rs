//! Texts and numbers of checkpoints that do not write numbers in digits, from the shared fixtures and from
//! the tiny ones of the repository.

use std::path::Path;

use axum::Router;
use ntl_engine::EngineLimits;
use ntl_models::LoadOptions;
use ntl_server::app;
use ntl_text::checkpoint::{CheckpointFiles, Choices};
use serde_json::{Value, json};

use crate::support::{complete, get, post, state_of};

/// A server of one fixture, trained on logarithms or not.
fn fixture(name: &str, log_scale: bool) -> Router {
    serve(
        name,
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/reference").join(name),
        log_scale,
    )
}

/// A server of one tiny checkpoint, and the reference's results for its prompts.
fn tiny(name: &str) -> (Router, Vec<Value>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/tiny").join(name);
    let golden = std::fs::read(folder.join("golden/golden.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    (serve(name, &folder, false), golden["cases"].as_array().unwrap().clone())
}

fn serve(name: &str, folder: &Path, log_scale: bool) -> Router {
    let options = LoadOptions {
        choices: Choices { log_scale_embeddings: Some(log_scale), ..Choices::default() },
        ..LoadOptions::default()
    };
    let model = ntl_models::load(&CheckpointFiles::folder(folder).unwrap(), options).unwrap();
    app::router(state_of(vec![(name, model)], crate::support::settings(), EngineLimits::default()))
}

async fn text(app: &Router, prompt: &str) -> String {
    let answer = complete(app, json!({"prompt": prompt, "temperature": 0})).await.json();
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

async fn number(app: &Router, prompt: &str) -> Value {
    let answer = complete(app, json!({"prompt": prompt, "number": {"objective": "mode"}})).await.json();
    answer["choices"][0]["number"].clone()
}

async fn model(app: &Router) -> (Value, Value) {
    let model = get(app, "/v1/models").await.json()["data"][0].clone();
    (model["kind"].clone(), model["number_encoding"].clone())
}

/// Returns whether a text is one of these words; numbers in them may differ slightly.
fn assert_text(text: &str, want: &[&str]) {
    let words: Vec<&str> = text.split(' ').collect();
    assert_eq!(words.len(), want.len(), "{text}");
    for (word, want) in words.into_iter().zip(want) {
        match (word.parse::<f64>(), want.parse::<f64>()) {
            (Ok(word), Ok(want)) => assert!((word - want).abs() < 1e-3 * want.abs(), "{text}"),
            _ => assert_eq!(word, *want, "{text}"),
        }
    }
}

async fn refused(app: &Router, body: Value) -> Value {
    complete(app, body).await.error()["param"].clone()
}

#[track_caller]
fn near(value: &Value, want: f64, off: f64) {
    assert!((value.as_f64().unwrap() - want).abs() < off, "{value}, expected {want}");
}

#[tokio::test]
async fn a_regression_transformer_answers_in_digits_with_a_distribution() {
    let app = fixture("t5-rt", true);
    assert_eq!(model(&app).await, (json!("t5-rt"), json!("rt")));
    assert_eq!(text(&app, "What is 336 - -20?").await, "356");
    assert_eq!(text(&app, "What is -17 + 4?").await, "- 13");
    let number = number(&app, "What is -17 + 4?").await;
    assert_eq!((&number["method"], &number["mode"]), (&json!("tree"), &json!(-13.0)), "{number}");
    assert!(number["mass"]["closed"].as_f64().unwrap() > 0.99, "{number}");
    let tokens = post(&app, "/tokenize", json!({"prompt": "36"})).await.json();
    assert_eq!(tokens["token_strs"], json!(["_3_1_", "_6_0_", "</s>"]));
    assert_eq!(tokens["number_values"], json!([3.0, 6.0, null]));
}

#[tokio::test]
async fn a_stream_of_a_regression_transformer_shows_no_digit_that_changes() {
    let app = fixture("t5-rt", true);
    let body = json!({"prompt": "What is 77 - 1533?", "temperature": 0, "stream": true});
    let chunks = complete(&app, body).await.chunks();
    let shown = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect::<String>();
    assert_eq!(shown, text(&app, "What is 77 - 1533?").await);
}

#[tokio::test]
async fn xval_answers_with_what_its_number_head_says() {
    let app = fixture("t5-xval", true);
    assert_eq!(model(&app).await, (json!("t5-xval"), json!("xval")));
    assert_text(&text(&app, "What is 336 - -20?").await, &["344.93387"]);
    assert_text(&text(&app, "What is -17 + 4?").await, &["-", "11.410907"]);
    let number = number(&app, "What is -17 + 4?").await;
    assert_eq!(number["method"], json!("xval"));
    assert!((number["value"].as_f64().unwrap() + 11.4109).abs() < 1e-3, "{number}");
    assert!(number["mass"]["closed"].as_f64().unwrap() > 0.99, "{number}");
    let tokens = post(&app, "/tokenize", json!({"prompt": "-2.75"})).await.json();
    assert_eq!(tokens["number_values"], json!([null, 2.75, null]));
}

#[tokio::test]
async fn xval_decodes_with_the_faults_of_the_paper_where_that_is_asked_for() {
    let app = fixture("t5-xval", true);
    let body =
        json!({"prompt": "What is -17 + 4?", "temperature": 0, "max_tokens": 4, "paper_decoding": true});
    let answer = complete(&app, body).await.json();
    assert_text(answer["choices"][0]["text"].as_str().unwrap(), &["-", "19.691103", "-", "19.404554"]);
}

#[tokio::test]
async fn what_a_number_head_cannot_do_is_refused_by_name() {
    let app = fixture("t5-xval", true);
    for (field, body) in [
        ("number.method", json!({"prompt": "x", "number": {"method": "sample"}})),
        ("number.samples", json!({"prompt": "x", "number": {"samples": 5}})),
        ("prompt", json!({"prompt": "a ¬ b"})),
        ("prompt", json!({"prompt": "[NUM]"})),
        ("prompt", json!({"prompt": [17, 2100, 1]})),
        ("max_tokens", json!({"prompt": "x", "max_tokens": 513})),
    ] {
        assert_eq!(refused(&app, body).await, json!(field));
    }
    let app = fixture("t5-rt", true);
    assert_eq!(
        refused(&app, json!({"prompt": "x", "number": {"method": "xval"}})).await,
        json!("number.method")
    );
}

/// The token that all numbers share has no value: 5 and 5000 have the same tokens.
#[tokio::test]
async fn xval_has_a_cross_entropy_and_no_number_token_loss() {
    let app = fixture("t5-xval", true);
    let items =
        json!([{"prompt": "What is 2 + 3?", "target": "5"}, {"prompt": "What is 2 + 3?", "target": "5000"}]);
    for (reduction, missing) in [("mean", Value::Null), ("sum", Value::Null), ("none", json!([null, null]))] {
        let body = post(&app, "/v1/score", json!({"items": items, "reduction": reduction})).await.json();
        for score in body["data"].as_array().unwrap() {
            assert_eq!(score["losses"].as_object().unwrap().len(), 7, "{score}");
            for (name, loss) in score["losses"].as_object().unwrap() {
                assert_eq!(*loss == missing, name != "ce", "{name} by {reduction}: {score}");
            }
            assert_eq!(score["total"], missing, "{reduction}: {score}");
            assert!(score["perplexity"].is_f64(), "{score}");
        }
    }
    let body = post(&app, "/v1/score", json!({"items": items, "losses": ["ce"]})).await.json();
    assert!(body["data"][0]["total"].is_f64(), "{body}");
}

#[tokio::test]
async fn xval_tells_no_candidates_apart_by_their_numbers() {
    let app = fixture("t5-xval", true);
    let mut item = json!({"prompt": "What is 2 + 3?", "candidates": ["4", "5", "5000"], "value": 5});
    let error = post(&app, "/v1/score", json!({"items": [item]})).await.error();
    assert_eq!(error["param"], json!("items[0].value"));
    assert!(
        error["message"].as_str().unwrap().contains("candidates do not differ in probability"),
        "{error}"
    );
    item.as_object_mut().unwrap().remove("value");
    let error = post(&app, "/v1/score", json!({"items": [item]})).await.error();
    assert_eq!(error["param"], json!("items[0].candidates[1]"));
    assert!(error["message"].as_str().unwrap().contains("in the value of a number alone"), "{error}");
    item["candidates"] = json!(["five", "5", "six"]);
    assert_eq!(post(&app, "/v1/score", json!({"items": [item]})).await.status, 200);
}

#[tokio::test]
async fn a_regression_head_answers_with_one_number() {
    let app = fixture("t5-regression-head", false);
    assert_eq!(model(&app).await, (json!("t5-regression-head"), json!("text")));
    let text = text(&app, "What is 336 - -20?").await;
    assert!(text.starts_with("354.008") && text.split_once('.').unwrap().1.len() == 12, "{text}");
    let number = number(&app, "What is 336 - -20?").await;
    assert_eq!((&number["method"], &number["mass"]["closed"]), (&json!("head"), &json!(1.0)));
    assert!((number["value"].as_f64().unwrap() - 354.0086).abs() < 1e-3, "{number}");
    for (field, number) in
        [("number.after", json!({"after": "x"})), ("number.tolerance", json!({"tolerance": 0.1}))]
    {
        assert_eq!(refused(&app, json!({"prompt": "x", "number": number})).await, json!(field));
    }
}

#[tokio::test]
async fn the_text_of_a_regression_head_has_no_tokens_to_steer_or_report() {
    let app = fixture("t5-regression-head", false);
    let with = |field: &str, value: Value| {
        let mut body = json!({"prompt": "What is 336 - -20?"});
        body[field] = value;
        body
    };
    for (field, value) in [
        ("guided_regex", json!("[a-z]+")),
        ("guided_choice", json!(["yes", "no"])),
        ("guided_json", json!({"type": "object"})),
        ("response_format", json!({"type": "json_object"})),
        ("logit_bias", json!({"5": 10})),
        ("min_tokens", json!(3)),
        ("ignore_eos", json!(true)),
        ("stop_token_ids", json!([5])),
        ("include_stop_str_in_output", json!(true)),
        ("logprobs", json!(1)),
    ] {
        assert_eq!(refused(&app, with(field, value)).await, json!(field));
    }
    let whole = text(&app, "What is 336 - -20?").await;
    for (field, value, want) in [
        ("temperature", json!(0.7), whole.as_str()),
        ("top_p", json!(0.9), &whole),
        ("max_tokens", json!(1), &whole),
        ("use_beam_search", json!(true), &whole),
        ("response_format", json!({"type": "text"}), &whole),
        ("max_tokens", json!(0), ""),
        ("stop", json!(["."]), "354"),
        ("n", json!(2), &whole),
    ] {
        let answer = complete(&app, with(field, value)).await;
        assert_eq!(answer.status, 200, "{field}: {}", answer.text);
        for choice in answer.json()["choices"].as_array().unwrap() {
            assert_eq!(choice["text"], want, "{field}: {choice}");
        }
    }
}

#[tokio::test]
async fn a_head_of_regresslm_answers_with_one_number() {
    let (app, cases) = tiny("regresslm-hf-head");
    assert_eq!(model(&app).await, (json!("regresslm-head"), json!("text")));
    for case in cases {
        let number = number(&app, case["prompt"].as_str().unwrap()).await;
        assert_eq!((&number["method"], &number["mass"]["closed"]), (&json!("head"), &json!(1.0)));
        near(&number["value"], case["value"].as_f64().unwrap(), 1e-5);
    }
}

#[tokio::test]
async fn t5gemmas_answer_with_texts_numbers_and_scores_and_use_prompts_of_ids_unchanged() {
    let prompt = "APPS\nprint(1)";
    for (name, ids, score) in [
        ("t5gemma", [2, 36, 51, 51, 54, 202, 314, 11, 20, 12], -32.563_359),
        ("t5gemma2", [2, 39, 54, 54, 57, 205, 317, 14, 23, 15], -46.888_104),
    ] {
        let app = fixture(name, false);
        assert_eq!(model(&app).await, (json!(name), json!("text")));
        let body = |prompt: Value| json!({"prompt": prompt, "temperature": 0, "max_tokens": 12});
        let of_text = complete(&app, body(json!(prompt))).await.json();
        let of_ids = complete(&app, body(json!(ids))).await.json();
        assert_eq!(of_text["choices"][0]["text"], of_ids["choices"][0]["text"], "{name}");
        assert_eq!(of_text["usage"]["prompt_tokens"], json!(10), "{name}");
        assert_eq!(of_ids["usage"]["prompt_tokens"], json!(10), "{name}");
        let number = number(&app, prompt).await;
        let mass = ["closed", "invalid", "open"].map(|part| number["mass"][part].as_f64().unwrap());
        assert!((mass.iter().sum::<f64>() - 1.0).abs() < 1e-6 && mass[0] > 0.0, "{name}: {number}");
        let items = json!([{"prompt": prompt, "target": " 12.5"}]);
        let scored = post(&app, "/v1/score", json!({"items": items})).await.json();
        let got: f64 = scored["data"][0]["token_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|logprob| logprob.as_f64().unwrap())
            .sum();
        assert!((got - score).abs() < 2e-3, "{name}: {got}, expected {score}");
    }
}

#[tokio::test]
async fn regresslm_answers_with_number_tokens_their_distribution_and_their_score() {
    let app = fixture("regresslm-hf-ieee", false);
    assert_eq!(model(&app).await, (json!("regresslm"), json!("ieee")));
    assert_eq!(get(&app, "/v1/models").await.json()["data"][0]["outputs"], json!(1));
    let prompt = "APPS\nprint(1)";
    assert_eq!(text(&app, prompt).await, "<-><+><3><1><6>");
    let ask = async |number: Value| {
        let body = json!({"prompt": prompt, "number": number});
        complete(&app, body).await.json()["choices"][0]["number"].clone()
    };
    let number = ask(json!({"objective": "median"})).await;
    assert_eq!((&number["value"], &number["mode"]), (&json!(-1600.0), &json!(-1600.0)), "{number}");
    near(&number["support"][0]["probability"], 0.296_197, 1e-5);
    near(&number["mass"]["invalid"], 0.0, 1e-12);
    // More mass is open than is trimmed at neither end, and all numbers of the format are bounded.
    let coarse = ask(json!({"trim": 0, "nodes_max": 20})).await;
    let bounds = [&coarse["bounds"]["value"][0], &coarse["bounds"]["value"][1]];
    let [low, high] = bounds.map(|end| end.as_f64().unwrap());
    assert!(low.is_finite() && low < high && coarse["truncated"] == json!(true), "{coarse}");
    let raw = ask(json!({"normalize": false, "tolerance": 1e-9, "sampling": false})).await;
    near(&raw["mass"]["closed"], 0.871_929, 1e-5);
    near(&raw["mass"]["invalid"], 1.0 - 0.871_929, 1e-5);
    let draws = json!({"prompt": prompt, "temperature": 0.8, "top_p": 0.95, "seed": 7,
        "number": {"method": "sample", "samples": 8, "objective": "median"}});
    let drawn = complete(&app, draws).await.json()["choices"][0]["number"].clone();
    assert!(drawn["value"].is_number() && drawn["mass"]["closed"] == json!(1.0), "{drawn}");
    let usage = complete(&app, json!({"prompt": prompt, "number": true})).await.json()["usage"].clone();
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(12), &json!(5)));

    let items = json!([{"prompt": prompt, "target": "<-><+><3><1><6>"}]);
    let scored = post(&app, "/v1/score", json!({"items": items, "losses": ["ce"]})).await.json();
    let logprobs = scored["data"][0]["token_logprobs"].as_array().unwrap();
    let sum: f64 = logprobs.iter().map(|logprob| logprob.as_f64().unwrap()).sum();
    assert!((sum + 1.339_879).abs() < 1e-4, "{sum}");
    assert_eq!(scored["data"][0]["tokens"], json!(["<->", "<+>", "<3>", "<1>", "<6>"]));
    let ids = json!({"prompt": [2, 290], "logprobs": 2, "temperature": 0});
    let logprobs = complete(&app, ids).await.json()["choices"][0]["logprobs"].clone();
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 5, "{logprobs}");
}

/// Returns the enumerated values of one number of a tiny RegressLM with their probabilities.
fn enumerated(number: &Value) -> Vec<(f64, f64)> {
    let pairs = number.get("values").unwrap_or(number).as_array().unwrap();
    pairs.iter().map(|pair| (pair[0].as_f64().unwrap(), pair[1].as_f64().unwrap())).collect()
}

/// Returns the fields of `mass.special` and the names of their tokens; none for a model without such tokens.
fn special_masses(number: &Value) -> impl Iterator<Item = (&'static str, &'static str)> {
    [("nan", "NAN"), ("infinity", "INF"), ("negative_infinity", "NINF"), ("invalid", "INVALID")]
        .into_iter()
        .filter(|(_, token)| number["special"][token].is_number())
}

/// Returns all numbers of the answer to a prompt.
async fn numbers(app: &Router, prompt: &Value, number: Value) -> Vec<Value> {
    let choice =
        complete(app, json!({"prompt": prompt, "number": number})).await.json()["choices"][0].clone();
    match choice["numbers"].as_array() {
        Some(numbers) => numbers.iter().map(|number| number["number"].clone()).collect(),
        None => vec![choice["number"].clone()],
    }
}

/// Compares a complete distribution with the enumerated one.
fn assert_enumerated(found: &Value, want: &Value) {
    let values = enumerated(want);
    let support = found["support"].as_array().unwrap();
    assert_eq!(support.len(), values.len(), "{found}");
    for (value, probability) in &values {
        let is_it = |point: &&Value| (point["value"].as_f64().unwrap() - value).abs() < 1e-12;
        near(&support.iter().find(is_it).unwrap()["probability"], *probability, 1e-4 * probability + 1e-12);
    }
    near(&found["mass"]["closed"], values.iter().map(|(_, probability)| probability).sum(), 1e-6);
    for (field, token) in special_masses(want) {
        near(&found["mass"]["special"][field], want["special"][token].as_f64().unwrap(), 1e-6);
    }
}

/// The first model has two numbers, the second one also values that are not finite.
#[tokio::test]
async fn tiny_regresslms_answer_with_the_enumerated_distribution_of_every_number() {
    for name in ["regresslm-hf-p10", "regresslm-pt", "regresslm-pt-gemma", "regresslm-pt-gemma2"] {
        let (app, cases) = tiny(name);
        for case in &cases[..2] {
            for (kind, normalize) in [("masked", true), ("raw", false)] {
                let options =
                    json!({"normalize": normalize, "tolerance": 1e-12, "nodes_max": 60_000, "support": 100});
                let found = numbers(&app, &case["prompt"], options).await;
                let want = case[kind].as_array().unwrap();
                assert_eq!(found.len(), want.len(), "{name}");
                found.iter().zip(want).for_each(|(found, want)| assert_enumerated(found, want));
            }
        }
    }
}

#[tokio::test]
async fn samples_of_tiny_regresslms_have_about_the_enumerated_masses() {
    for name in ["regresslm-hf-p10", "regresslm-pt"] {
        let (app, cases) = tiny(name);
        let case = cases.last().unwrap();
        let body =
            json!({"prompt": case["prompt"], "seed": 1, "number": {"method": "sample", "samples": 2000}});
        let drawn = complete(&app, body).await.json()["choices"][0]["number"].clone();
        assert!(drawn["value"].is_number(), "{name}: {drawn}");
        let want = &case["masked"][0];
        let values = enumerated(want);
        near(&drawn["mass"]["closed"], values.iter().map(|(_, probability)| probability).sum(), 0.045);
        let (mode, probability) = values.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        let mut support = drawn["support"].as_array().unwrap().iter();
        let is_mode = |point: &&Value| (point["value"].as_f64().unwrap() - mode).abs() < 1e-12;
        near(&support.find(is_mode).unwrap()["probability"], probability, 0.045);
        for (field, token) in special_masses(want) {
            near(&drawn["mass"]["special"][field], want["special"][token].as_f64().unwrap(), 0.045);
        }
    }
}

#[tokio::test]
async fn fields_that_number_tokens_do_not_have_are_rejected_by_name() {
    let (app, _) = tiny("regresslm-hf-p10");
    let refuse = async |field: &str, fields: Value| {
        let mut body = json!({"prompt": "x"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(refused(&app, body).await, json!(field));
    };
    for (field, fields) in [
        ("guided_regex", json!({"guided_regex": "a"})),
        ("bad_words", json!({"bad_words": ["a"]})),
        ("allowed_token_ids", json!({"allowed_token_ids": [1]})),
        ("min_tokens", json!({"min_tokens": 1})),
        ("ignore_eos", json!({"ignore_eos": true})),
        ("use_beam_search", json!({"use_beam_search": true, "temperature": 0, "n": 2})),
        ("logprob_token_ids", json!({"logprobs": 1, "logprob_token_ids": [20]})),
        ("number.terminator", json!({"number": {"terminator": "eos"}})),
        ("number.thousands", json!({"number": {"thousands": true}})),
        ("number.digits_max", json!({"number": {"digits_max": 3}})),
        ("number.sign", json!({"number": {"sign": false}})),
        ("number.after", json!({"number": {"after": "#"}})),
        ("number.method", json!({"number": {"method": "token"}})),
        ("number.method", json!({"number": {"method": "beam"}})),
        ("temperature", json!({"temperature": 0.5, "number": true})),
        ("temperature", json!({"temperature": 0, "number": {"method": "sample"}})),
        ("presence_penalty", json!({"presence_penalty": 1, "number": {"method": "sample"}})),
        ("prompt", json!({"prompt": [400]})),
    ] {
        refuse(field, fields).await;
    }
    let items = json!([{"prompt": "x", "target": "1.5"}]);
    let error = post(&app, "/v1/score", json!({"items": items})).await.error();
    assert_eq!(error["param"], json!("items[0].target"), "{error}");
    let chat = json!({"messages": [{"role": "user", "content": "x"}]});
    let error = post(&app, "/v1/chat/completions", chat).await.error();
    assert!(error["message"].as_str().unwrap().contains("no chat template"), "{error}");
}

#[tokio::test]
async fn a_model_with_several_outputs_answers_with_a_distribution_of_each() {
    let (app, cases) = tiny("regresslm-hf-p10");
    assert_eq!(get(&app, "/v1/models").await.json()["data"][0]["outputs"], json!(2));
    let case = &cases[0];
    let modes = case["masked"].as_array().unwrap().iter().map(|number| {
        enumerated(number).into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(value, _)| value).unwrap()
    });
    let modes: Vec<f64> = modes.collect();
    let body = json!({"prompt": case["prompt"], "number": {"objective": "mode", "nodes_max": 200}});
    let choice = complete(&app, body.clone()).await.json()["choices"][0].clone();
    let numbers = choice["numbers"].as_array().unwrap();
    let places: Vec<_> = numbers.iter().map(|number| (&number["path"], &number["token_range"])).collect();
    assert_eq!(places, [(&json!("$[0]"), &json!([0, 3])), (&json!("$[1]"), &json!([3, 6]))]);
    assert_eq!(choice["number"], numbers[0]["number"]);
    assert_eq!(
        (&choice["text"], &choice["number"]["value"]),
        (&json!(modes[0].to_string()), &json!(modes[0]))
    );
    assert_eq!(numbers[1]["number"]["value"], json!(modes[1]));
    let open = numbers[1]["number"]["mass"]["open"].as_f64().unwrap();
    let median = &numbers[1]["number"]["bounds"]["median"];
    assert!(open > 0.0 && median[0].is_number() && median[1].is_number(), "{}", numbers[1]);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let chunks = complete(&app, streamed).await.chunks();
    let last = chunks.iter().find(|chunk| chunk["choices"][0]["numbers"].is_array()).unwrap();
    let value = |numbers: &Value| numbers[1]["number"]["value"].clone();
    assert_eq!(value(&last["choices"][0]["numbers"]), value(&choice["numbers"]));
}
