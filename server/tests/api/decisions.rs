//! `POST /v1/decisions` and `POST /v1/systemone`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use ntl_core::scripted::Script;
use ntl_engine::{CacheBudget, EngineLimits};
use ntl_models::{LoadOptions, load};
use ntl_server::app;
use ntl_server::metrics::Metrics;
use ntl_server::served::ServedModel;
use ntl_server::state::AppState;
use ntl_text::chat::TextTemplate;
use ntl_text::checkpoint::{CheckpointFiles, Choices};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::{Value, json};

use crate::intervals::calibrated_server_of;
use crate::support::{
    Answer, EOS, call, checkpoint, close, get, ids, loaded, logits, metric, piece, post, scripted, server,
    settings, state_of,
};

/// A template of decisions without the question, for checkpoints whose prompts have at most 256 tokens.
const STATE: Option<&str> = Some("{{ state }}");

/// A server of a tiny checkpoint of random weights, with this template of decisions or the default one.
fn tiny(name: &str, template: Option<&str>) -> Router {
    let folder = format!("{}/../models/tests/data/tiny/{name}", env!("CARGO_MANIFEST_DIR"));
    let choices = Choices { log_scale_embeddings: Some(false), ..Choices::default() };
    let options = LoadOptions { choices, ..LoadOptions::default() };
    let loaded = load(&CheckpointFiles::folder(Path::new(&folder)).unwrap(), options).unwrap();
    let limits = EngineLimits::default();
    let metrics = Arc::new(Metrics::new().unwrap());
    let state = AppState::new(settings(), Arc::clone(&metrics));
    let budget = CacheBudget::new(limits.cache_bytes_max);
    let (mut model, _) = ServedModel::start("tiny", loaded, limits, &budget, &metrics).unwrap();
    if let Some(template) = template {
        model = model.with_decision_template(TextTemplate::new(template).unwrap());
    }
    state.models.publish(vec![model]);
    app::router(state)
}

fn demo(step_rows_max: usize) -> Router {
    let model = load(&checkpoint(), LoadOptions::default()).unwrap();
    let limits = EngineLimits { step_rows_max, ..EngineLimits::default() };
    app::router(state_of(vec![("t5", model)], settings(), limits))
}

async fn answered(answer: Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

async fn decisions(app: &Router, body: Value) -> Value {
    answered(post(app, "/v1/decisions", body).await).await
}

async fn system_one(app: &Router, body: Value) -> Value {
    answered(post(app, "/v1/systemone", body).await).await
}

/// Writes these words with these probabilities, and otherwise an `x`.
fn writes(words: &[(&str, f64)]) -> Script {
    let word = |&(word, probability): &(&str, f64)| ([ids(word), vec![EOS]].concat(), probability);
    let words: Vec<(Vec<u32>, f64)> = words.iter().map(word).collect();
    let other = piece("x");
    Box::new(move |_, path| {
        let mut next = BTreeMap::new();
        let mut total = 0.0;
        for (tokens, probability) in &words {
            if let Some(&token) = tokens.strip_prefix(path).and_then(<[u32]>::first) {
                *next.entry(token).or_insert(0.0) += probability;
                total += probability;
            }
        }
        if path.is_empty() && total < 1.0 {
            *next.entry(other).or_insert(0.0) += 1.0 - total;
            total = 1.0;
        }
        if next.is_empty() {
            return Ok(logits(&[(EOS, 1.0)]));
        }
        Ok(logits(&next.into_iter().map(|(id, weight)| (id, weight / total)).collect::<Vec<_>>()))
    })
}

fn yes_or_no_script() -> Script {
    writes(&[("Yes", 0.6), ("No", 0.3)])
}

fn yes_or_no() -> Router {
    server(yes_or_no_script())
}

#[tokio::test]
async fn a_predicate_has_the_probability_of_yes_given_yes_or_no() {
    let app = yes_or_no();
    let questions = json!([{"type": "predicate", "name": "urgent", "instructions": "Is it urgent?"}]);
    let body = decisions(&app, json!({"model": "scripted", "input": "now!", "questions": questions})).await;
    let answer = &body["answers"][0];
    assert_eq!((&answer["type"], &answer["name"]), (&json!("predicate"), &json!("urgent")));
    assert!(close(&answer["probability"], 2.0 / 3.0), "{answer}");
    let mass = &answer["x_mass"];
    assert!(
        close(&mass["closed"], 0.9) && close(&mass["invalid"], 0.1) && close(&mass["open"], 0.0),
        "{mass}"
    );
    let [low, high] = [0, 1].map(|end| answer["x_bounds"]["probability"][end].as_f64().unwrap());
    assert!(low <= 2.0 / 3.0 + 1e-9 && 2.0 / 3.0 - 1e-9 <= high && high - low < 0.01, "{answer}");
    let usage = &body["usage"];
    assert!(usage["input_tokens"].as_u64().unwrap() > 0 && usage["output_tokens"] == 0, "{usage}");
    assert_eq!(usage["total_tokens"], usage["input_tokens"]);
    let other = system_one(
        &app,
        json!({"model": "jev-latest", "state": "now!", "seed": 7, "questions": {"any id 🎯": {"type": "noul", "instructions": "Is it urgent?"}}}),
    )
    .await;
    assert!(close(&other["answers"]["any id 🎯"]["noul"], 2.0 / 3.0), "{other}");
    assert_eq!(other["model"], "scripted");
    assert!(
        (metric(&app, "ntl_decisions_total{model=\"scripted\",type=\"predicate\"}").await - 2.0).abs() < 1e-9
    );
    assert!((metric(&app, "ntl_decision_mass_count{model=\"scripted\"}").await - 2.0).abs() < 1e-9);
}

/// A model that nearly always writes an `x`.
fn hardly_answers(probability: f64) -> Router {
    server(writes(&[("Yes", probability), ("yes", probability), ("7", probability)]))
}

#[tokio::test]
async fn a_model_that_hardly_answers_a_predicate_or_a_number_refuses() {
    let questions = json!([
        {"type": "predicate", "instructions": "Is it?"},
        {"type": "number", "instructions": "How many?", "minimum": 0, "maximum": 9, "step": 1},
        {"type": "choice", "instructions": "", "choices": [{"value": "yes"}, {"value": "no"}]}
    ]);
    let body = json!({"input": "a", "questions": questions, "x_read": "texts"});
    let noul = json!({"q": {"type": "noul", "instructions": "Is it?"}});
    for (probability, answers) in [(1e-34, false), (0.9e-30, false), (1.1e-30, true)] {
        let app = hardly_answers(probability);
        let all = decisions(&app, body.clone()).await["answers"].clone();
        assert_eq!(all[0]["type"] == "predicate", answers, "{all}");
        // Texts of options may be long, so their masses may be small.
        assert_eq!(all[2]["type"], "choice", "{all}");
        let one = system_one(&app, json!({"state": "a", "questions": noul})).await["answers"]["q"].clone();
        if answers {
            assert!(one["noul"].as_f64().unwrap() > 0.99, "{one}");
        } else {
            assert_eq!((&one["noul"], &one["x_mass"]["closed"]), (&json!(0.5), &json!(0.0)));
            assert_eq!(one["x_bounds"]["noul"], json!([0.0, 1.0]));
            assert!(all[1]["number"].is_null() && all[1]["distribution"]["reason"].is_string(), "{all}");
        }
    }
}

#[tokio::test]
async fn a_model_that_writes_no_option_refuses_or_has_equal_probabilities_and_no_mass() {
    let other = piece("x");
    let app = server(Box::new(move |_, _| Ok(logits(&[(other, 1.0)]))));
    let question = json!({"type": "predicate", "instructions": "Is it?"});
    let body = decisions(&app, json!({"input": "a", "questions": [question]})).await;
    let answer = &body["answers"][0];
    assert_eq!(
        (&answer["type"], &answer["name"], &answer["x_mass"]["closed"]),
        (&json!("refusal"), &Value::Null, &json!(0.0))
    );
    let questions = json!({"q": {"type": "choice", "criteria": {"yes": null, "no": null}}});
    let body = system_one(&app, json!({"state": {"a": 1}, "questions": questions, "x_read": "texts"})).await;
    let answer = &body["answers"]["q"];
    assert_eq!(answer["probabilities"], json!({"yes": 0.5, "no": 0.5}));
    assert_eq!((&answer["choice"], &answer["confidence"]), (&json!("yes"), &json!(0.0)));
    assert_eq!(answer["x_mass"]["closed"], json!(0.0));
}

/// Options of different lengths that share prefixes.
fn prefixed() -> Vec<String> {
    ["refund", "refund denied", "refund denied twice", "New York", "New Jersey"].map(str::to_owned).into()
}

/// The probabilities of answers after a prompt by the log-probabilities of `/v1/score`. An answer may end
/// with one or two line feeds, and a model without an encoder writes a space first.
async fn by_score(app: &Router, prompt: &Value, has_encoder: bool, line_ends: &[&str]) -> Vec<f64> {
    let answers: Vec<&str> =
        prompt["answers"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let score = async |before: &str, after: &str| {
        let candidates: Vec<String> =
            answers.iter().map(|answer| format!("{before}{answer}{after}")).collect();
        let items = json!([{"prompt": prompt["text"], "candidates": candidates}]);
        let body = json!({"items": items, "add_eos": after.is_empty()});
        let body = answered(post(app, "/v1/score", body).await).await;
        let scored = body["data"][0]["candidates"].as_array().unwrap().iter();
        let scored = scored.map(|one| {
            let ids: Vec<u64> =
                one["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
            (ids, one["logprob"].as_f64().unwrap().exp())
        });
        scored.collect::<Vec<_>>()
    };
    let before = if has_encoder { "" } else { " " };
    let ended = score(before, "").await;
    let mut sums: Vec<f64> = ended.iter().map(|(_, probability)| *probability).collect();
    for after in line_ends {
        let with_line_end = score(before, after).await;
        for ((sum, (ids, _)), (more, probability)) in sums.iter_mut().zip(&ended).zip(with_line_end) {
            if more.len() == ids.len() && more[..more.len() - 1] == ids[..ids.len() - 1] {
                *sum += probability;
            }
        }
    }
    let total: f64 = sums.iter().sum();
    sums.into_iter().map(|sum| sum / total).collect()
}

#[tokio::test]
async fn options_have_the_probabilities_of_scored_candidates_in_four_families() {
    let many: Vec<String> = (1..=255).map(|shelf| format!("shelf {shelf}")).collect();
    let mut compared = 0;
    for (app, has_encoder, line_ends) in [
        (tiny("qwen3", STATE), false, &["\n", "\n\n"][..]),
        (tiny("gpt2", STATE), false, &["\n", "\n\n"]),
        (tiny("t5gemma", STATE), true, &["\n", "\n\n"]),
        // Its vocabulary has no line feed.
        (tiny("t5-ntl-was", STATE), true, &[]),
    ] {
        for options in [prefixed(), many.clone()] {
            for read in ["labels", "texts"] {
                let choices: Vec<Value> = options.iter().map(|value| json!({"value": value})).collect();
                let question = json!({"type": "choice", "instructions": "Which?", "choices": choices});
                let mut body = json!({"input": "A letter.", "questions": [question], "x_read": read, "x_tolerance": 1e-12});
                let answer = post(&app, "/v1/decisions", body.clone()).await;
                if answer.status == 400 {
                    // The small vocabulary of T5 has the same tokens for several of these texts.
                    assert!(
                        answer.error()["message"].as_str().unwrap().contains("equal options"),
                        "{}",
                        answer.text
                    );
                    continue;
                }
                let got = answered(answer).await["answers"][0].clone();
                body["x_dry_run"] = json!(true);
                let prompts = decisions(&app, body).await;
                let want = by_score(&app, &prompts["prompts"][0], has_encoder, line_ends).await;
                assert_eq!(want.len(), options.len());
                let bounds = got["x_bounds"]["probabilities"].as_array().unwrap();
                for ((entry, bounds), want) in
                    got["probabilities"].as_array().unwrap().iter().zip(bounds).zip(want)
                {
                    let got = entry["probability"].as_f64().unwrap();
                    assert!((got - want).abs() < 1e-5, "{entry} {want} {read}");
                    let [low, high] = [0, 1].map(|end| bounds["probability"][end].as_f64().unwrap());
                    assert!(low - 1e-9 <= got && got <= high + 1e-9, "{bounds} {got}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 1500, "only {compared} options");
}

fn letter() -> Value {
    json!([
        {"type": "predicate", "name": "a", "instructions": "Is it urgent?"},
        {"type": "choice", "instructions": "Which?", "choices": [{"value": "x"}, {"value": true, "description": "y"}, {"value": "true"}]},
        {"type": "score", "name": "c", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high", "description": "d"}]},
        {"type": "number", "name": "d", "instructions": "How many?", "minimum": 0, "maximum": 100, "unit": "EUR"},
    ])
}

#[tokio::test]
async fn an_answer_depends_on_nothing_but_its_question_and_the_text() {
    for app in [demo(128), tiny("qwen3", None)] {
        let ask = async |questions: Value| {
            decisions(&app, json!({"input": "A letter.", "questions": questions})).await
        };
        let all = letter();
        let together = ask(all.clone()).await["answers"].clone();
        let without_counts = |mut answer: Value| {
            answer["name"] = Value::Null;
            // Depends on the rows that fit into a step.
            answer["distribution"]["forward_passes"] = Value::Null;
            answer
        };
        for (index, question) in all.as_array().unwrap().iter().enumerate() {
            let mut question = question.clone();
            let alone = ask(json!([question])).await["answers"][0].clone();
            let want = without_counts(together[index].clone());
            assert_eq!(without_counts(alone), want);
            question["name"] = json!("another name");
            let reversed: Vec<Value> =
                all.as_array().unwrap().iter().rev().cloned().chain([question]).collect();
            let answers = ask(json!(reversed)).await["answers"].clone();
            assert_eq!(without_counts(answers[3 - index].clone()), want);
            assert_eq!(without_counts(answers[4].clone()), want);
        }
    }
    let few = decisions(&demo(1), json!({"input": "A letter.", "questions": letter()})).await;
    let many = decisions(&demo(128), json!({"input": "A letter.", "questions": letter()})).await;
    assert_eq!(few["answers"][1], many["answers"][1]);
}

#[tokio::test]
async fn every_order_of_the_options_is_averaged() {
    let app = tiny("qwen3", None);
    let choices = json!([{"value": "red"}, {"value": "green"}, {"value": "blue"}]);
    let body = json!({"input": "A letter.", "x_tolerance": 1e-9,
        "questions": [{"type": "choice", "instructions": "Which?", "choices": choices, "x_orders": 255}]});
    let averaged = decisions(&app, body.clone()).await;
    let mut sums = [0.0; 3];
    for order in 0..3 {
        let mut rotated = body.clone();
        rotated["questions"][0]["x_orders"] = json!(1);
        rotated["questions"][0]["choices"].as_array_mut().unwrap().rotate_left(order);
        let answer = decisions(&app, rotated).await["answers"][0].clone();
        for entry in answer["probabilities"].as_array().unwrap() {
            let index = ["red", "green", "blue"].iter().position(|name| entry["value"] == **name).unwrap();
            sums[index] += entry["probability"].as_f64().unwrap() / 3.0;
        }
    }
    for (entry, want) in averaged["answers"][0]["probabilities"].as_array().unwrap().iter().zip(sums) {
        assert!(close(&entry["probability"], want), "{averaged} {want}");
    }
}

#[tokio::test]
async fn a_number_has_its_distribution_within_its_range_in_both_formats() {
    let app = demo(128);
    let question = json!({"type": "number", "instructions": "What is 3 + 4?", "minimum": 0, "maximum": 50, "unit": "EUR"});
    let body = decisions(&app, json!({"input": "", "questions": [question], "x_coverage": 0.8})).await;
    let answer = &body["answers"][0];
    assert_eq!(
        (&answer["type"], &answer["name"], &answer["unit"]),
        (&json!("number"), &Value::Null, &json!("EUR"))
    );
    let distribution = &answer["distribution"];
    assert_eq!(answer["number"], distribution["value"]);
    for entry in distribution["support"].as_array().unwrap() {
        assert!((0.0..=50.0).contains(&entry["value"].as_f64().unwrap()), "{entry}");
    }
    assert_eq!(answer["x_interval"]["coverage"], json!(0.8));
    assert_eq!(answer["x_interval"]["method"], json!("quantiles"));
    let criteria = json!({"minimum": 0, "maximum": 50, "unit": "EUR"});
    let questions = json!({"n": {"type": "number", "instructions": "What is 3 + 4?", "criteria": criteria}});
    let other = system_one(&app, json!({"state": "", "questions": questions, "x_coverage": 0.8})).await;
    assert_eq!(other["answers"]["n"]["distribution"], *distribution);
    let step = json!({"type": "number", "instructions": "Rate.", "minimum": 1, "maximum": 5, "step": 1});
    let body = decisions(&app, json!({"input": "x", "questions": [step]})).await;
    for entry in body["answers"][0]["distribution"]["support"].as_array().unwrap() {
        assert!([1.0, 2.0, 3.0, 4.0, 5.0].contains(&entry["value"].as_f64().unwrap()), "{entry}");
    }
}

#[tokio::test]
async fn a_coverage_adds_sets_of_the_most_probable_options() {
    let app = yes_or_no();
    let sets = async |coverage: f64| {
        let body =
            json!({"input": "a", "questions": [letter()[0]], "x_coverage": coverage, "x_read": "texts"});
        decisions(&app, body).await["answers"].clone()
    };
    let answers = sets(0.6).await;
    assert_eq!(answers[0]["x_set"], json!({"values": [true], "coverage": 0.6, "method": "probabilities"}));
    let answers = sets(0.9).await;
    assert_eq!(answers[0]["x_set"]["values"], json!([true, false]));
}

fn calibration(kind: &str, offset: f64) -> Value {
    json!({
        "format": "ntl-decision-calibration", "version": 1, "model": {"name": "scripted", "fingerprint": null},
        "task": {"name": "test", "route": "/v1/decisions"}, "alpha": 0.1, "n": 100, "offset": offset,
        "decision": {"type": kind, "read": "labels", "orders": 1},
    })
}

#[tokio::test]
async fn a_calibration_decides_which_options_a_set_has() {
    for (offset, values) in [(0.7, json!([true, false])), (0.5, json!([true])), (0.1, json!([true]))] {
        let app = calibrated_server_of(yes_or_no_script(), &[calibration("predicate", offset)]).unwrap();
        let body = json!({"input": "a", "questions": [letter()[0]], "x_coverage": 0.9});
        let answer = decisions(&app, body.clone()).await["answers"][0].clone();
        assert_eq!(answer["x_set"], json!({"values": values, "coverage": 0.9, "method": "conformal"}));
        let mut other = body;
        other["x_coverage"] = json!(0.8);
        let answer = decisions(&app, other).await["answers"][0].clone();
        assert_eq!(answer["x_set"]["method"], "probabilities");
        assert!(answer["x_set"]["reason"].as_str().unwrap().contains("another type, coverage"), "{answer}");
    }
    let script = yes_or_no_script();
    assert!(calibrated_server_of(script, &[calibration("choice", 0.1), calibration("choice", 0.2)]).is_err());
    assert!(calibrated_server_of(yes_or_no_script(), &[calibration("rank", 0.1)]).is_err());
}

#[tokio::test]
async fn a_calibration_widens_the_interval_of_a_score() {
    let script = || writes(&[("1", 0.3), ("2", 0.4), ("3", 0.3)]);
    let levels: Vec<Value> = ["a", "b", "c", "d", "e"].map(|label| json!({"label": label})).into();
    let questions = json!([{"type": "score", "instructions": "?", "levels": levels}]);
    let body = json!({"input": "a", "questions": questions, "x_coverage": 0.9});
    let plain = decisions(&server(script()), body.clone()).await["answers"][0]["x_interval"].clone();
    assert_eq!(
        (&plain["low"], &plain["high"], &plain["method"]),
        (&json!(1.0), &json!(3.0), &json!("quantiles"))
    );
    let app = calibrated_server_of(script(), &[calibration("score", 1.5)]).unwrap();
    let wide = decisions(&app, body).await["answers"][0]["x_interval"].clone();
    assert_eq!(
        (&wide["low"], &wide["high"], &wide["method"]),
        (&json!(0.0), &json!(4.0), &json!("conformal"))
    );
}

#[tokio::test]
async fn a_dry_run_shows_the_exact_prompt_and_what_is_read_after_it() {
    let app = demo(128);
    let body = json!({"input": "A letter.", "questions": letter(), "x_dry_run": true});
    let prompts = decisions(&app, body).await["prompts"].clone();
    let text = |index: usize| prompts[index]["text"].as_str().unwrap().to_owned();
    assert_eq!(text(0), "A letter.\n\nQuestion: Is it urgent?\nAnswer with Yes or No only.\nAnswer:");
    assert_eq!(
        text(1),
        "A letter.\n\nQuestion: Which?\nA: \"x\"\nB: true - y\nC: \"true\"\nAnswer with the letter of one option only.\nAnswer:"
    );
    assert_eq!(
        text(2),
        "A letter.\n\nQuestion: How?\n0: low\n1: high - d\nAnswer with the number of one level only.\nAnswer:"
    );
    assert_eq!(
        text(3),
        "A letter.\n\nQuestion: How many?\nAnswer with one number only, in EUR, at least 0, at most 100.\nAnswer:"
    );
    assert_eq!(prompts[1]["answers"], json!(["A", "B", "C"]));
    let questions = json!({
        "q": {"type": "choice", "criteria": {"a": {"b": [1, "ü"]}, " c": null, "d": "e"}},
        "n": {"type": "noul", "criteria": {"true": "T"}},
    });
    let body = json!({"state": {"k": [1, 2]}, "questions": questions, "x_read": "texts", "x_dry_run": true});
    let prompts = system_one(&app, body).await["prompts"].clone();
    assert_eq!(
        prompts[0]["text"],
        "{\"k\": [1, 2]}\n\n- a: {\"b\": [1, \"ü\"]}\n- \" c\"\n- d: e\nAnswer with one of these options only, without its description.\nAnswer:"
    );
    assert_eq!(prompts[1]["text"], "{\"k\": [1, 2]}\n\nYes: T\nAnswer with Yes or No only.\nAnswer:");
    assert_eq!(prompts[0]["answers"], json!(["a", "\" c\"", "d"]));
}

#[tokio::test]
async fn a_conversation_becomes_one_text_with_its_speakers() {
    let app = demo(128);
    let text = async |input: Value| {
        let questions = json!([{"type": "predicate", "instructions": [{"type": "input_text", "text": "Is it?"}, {"type": "input_json", "data": {"a": 1}}]}]);
        let body = json!({"input": input, "questions": questions, "x_dry_run": true,
            "prompt_cache_key": "k", "prompt_cache_options": {"mode": "implicit", "ttl": "30m"}, "safety_identifier": "u"});
        let text = decisions(&app, body).await["prompts"][0]["text"].as_str().unwrap().to_owned();
        text.split("\n\nQuestion: Is it?\n{\"a\": 1}\n").next().unwrap().to_owned()
    };
    let users = json!([
        {"role": "user", "content": "One."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Two."}, {"type": "input_json", "data": [{"b": null}]}]},
    ]);
    assert_eq!(text(users).await, "One.\n\nTwo.\n[{\"b\": null}]");
    let conversation = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Order?"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}, {"type": "refusal", "refusal": "No."}], "phase": "commentary"},
        {"type": "function_call", "call_id": "1", "name": "get", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "1", "output": "2"},
        {"type": "custom_tool_call", "call_id": "2", "name": "note", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "saved"}]},
    ]);
    let want = "Developer: Be brief.\n\nUser: Order?\n\nAssistant: I look.\nNo.\n\nCall of get: {}\n\nOutput: 2\n\nCall of note: x\n\nOutput: saved";
    assert_eq!(text(conversation).await, want);
}

#[tokio::test]
async fn an_invalid_decision_gets_an_error_that_names_the_field() {
    let app = demo(128);
    let base = json!({"input": "a", "questions": [{"type": "predicate", "instructions": "Is it?"}]});
    let question = |question: Value| json!({"input": "a", "questions": [question]});
    let choice =
        |choices: Value| question(json!({"type": "choice", "instructions": "?", "choices": choices}));
    let score = |levels: Value| question(json!({"type": "score", "instructions": "?", "levels": levels}));
    let number = |fields: Value| {
        let mut number = json!({"type": "number", "instructions": "?"});
        number.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        question(number)
    };
    let input = |input: Value| json!({"input": input, "questions": base["questions"]});
    let with = |name: &str, value: Value| {
        let mut body = base.clone();
        body[name] = value;
        body
    };
    let many = |count: usize| (0..count).map(|n| json!({"value": n.to_string()})).collect::<Value>();
    let levels = |count: usize| (0..count).map(|n| json!({"label": n.to_string()})).collect::<Value>();
    let deep = (0..33).fold(json!({}), |inner, _| json!({"a": inner}));
    let wide = json!({"a": vec![0; 10_001]});
    let data =
        |data: Value| input(json!([{"role": "user", "content": [{"type": "input_json", "data": data}]}]));
    for (body, param) in [
        (json!({"questions": base["questions"]}), "input"),
        (json!({"input": "a"}), "questions"),
        (with("questions", json!([])), "questions"),
        (with("questions", Value::Array(vec![base["questions"][0].clone(); 401])), "questions"),
        (with("question", json!([])), "question"),
        (with("x_read", json!("digits")), "x_read"),
        (with("x_orders", json!(256)), "x_orders"),
        (with("x_orders", json!(0)), "x_orders"),
        (with("x_coverage", json!(1)), "x_coverage"),
        (with("x_tolerance", json!(0)), "x_tolerance"),
        (with("prompt_cache_options", json!({"mode": "none"})), "prompt_cache_options.mode"),
        (with("prompt_cache_options", json!([null, null])), "prompt_cache_options"),
        (question(json!({"instructions": "?"})), "questions[0].type"),
        (question(json!({"type": "rank", "instructions": "?"})), "questions[0].type"),
        (question(json!({"type": "predicate"})), "questions[0].instructions"),
        (question(json!({"type": "predicate", "instructions": 5})), "questions[0].instructions"),
        (question(json!({"type": "predicate", "instructions": " \n"})), "questions[0].instructions"),
        (question(json!({"type": "predicate", "instructions": []})), "questions[0].instructions"),
        (question(json!({"type": "number", "instructions": ""})), "questions[0].instructions"),
        (question(json!({"type": "predicate", "instructions": "?", "levels": []})), "questions[0].levels"),
        (question(json!({"type": "predicate", "instructions": "?", "level": []})), "questions[0].level"),
        (choice(json!([{"value": "a"}])), "questions[0].choices"),
        (choice(many(256)), "questions[0].choices"),
        (choice(json!([{"value": "a"}, {"value": "a"}])), "questions[0].choices[1].value"),
        (choice(json!([{"value": "a"}, {"value": 1}])), "questions[0].choices[1].value"),
        (choice(json!([{"value": "a"}, {"value": ""}])), "questions[0].choices"),
        (choice(json!([{"value": "a"}, {"value": " \n"}])), "questions[0].choices"),
        (score(levels(1)), "questions[0].levels"),
        (score(levels(11)), "questions[0].levels"),
        (score(json!([{"label": "a"}, {"label": "a"}])), "questions[0].levels"),
        (number(json!({"minimum": 2, "maximum": 1})), "questions[0].minimum"),
        (number(json!({"step": 1})), "questions[0].step"),
        (number(json!({"minimum": 0, "maximum": 1, "step": 0})), "questions[0].step"),
        (number(json!({"minimum": 0, "maximum": 1e9, "step": 1})), "questions[0].step"),
        (number(json!({"objective": {"quantile": 2}})), "questions[0].objective"),
        (number(json!({"objective": "best"})), "questions[0].objective"),
        (input(json!([])), "input"),
        (input(json!(5)), "input"),
        (input(json!([{"role": "robot", "content": "a"}])), "input[0].role"),
        (input(json!([{"role": "user"}])), "input[0].content"),
        (input(json!([{"type": "image"}])), "input[0].type"),
        (input(json!([{"type": "function_call_output", "call_id": "9", "output": "1"}])), "input[0].call_id"),
        (
            input(
                json!([{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "x"}]}]),
            ),
            "input[0].content[1].type",
        ),
        (data(json!(["a"])), "input[0].content[0].data"),
        (data(deep), "input[0].content[0].data"),
        (data(wide), "input[0].content[0].data"),
        (data(json!({"a": "x".repeat(257 << 10)})), "input[0].content[0].data"),
    ] {
        let answer = post(&app, "/v1/decisions", body.clone()).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
        let error = answer.error();
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(&format!("`{param}`")), "{error}");
    }
    let missing = post(&app, "/v1/decisions", with("model", json!("none"))).await;
    assert_eq!((missing.status.as_u16(), &missing.error()["code"]), (404, &json!("model_not_found")));
}

#[tokio::test]
async fn an_invalid_request_of_system_one_gets_422_with_the_place_of_the_field() {
    let app = demo(128);
    let base = json!({"state": "a", "questions": {"q": {"type": "noul", "instructions": "Is it?"}}});
    let question = |question: Value| json!({"state": "a", "questions": {"q.1 \u{7}": question}});
    let choice = |criteria: Value| question(json!({"type": "choice", "criteria": criteria}));
    let score = |criteria: Value| question(json!({"type": "score", "criteria": criteria}));
    let state = |state: Value| json!({"state": state, "questions": base["questions"]});
    let many: serde_json::Map<String, Value> = (0..256).map(|n| (n.to_string(), Value::Null)).collect();
    let id = "q.1 \u{7}";
    for (body, loc) in [
        (json!({"questions": base["questions"]}), json!(["state"])),
        (state(Value::Null), json!(["state"])),
        (state(json!(7)), json!(["state"])),
        (json!({"state": "a"}), json!(["questions"])),
        (json!({"state": "a", "questions": {}}), json!(["questions"])),
        (json!({"state": "a", "questions": [base["questions"]["q"]]}), json!(["questions"])),
        (
            json!({"state": "a", "questions": {"": {"type": "noul", "instructions": "?"}}}),
            json!(["questions"]),
        ),
        (json!({"state": "a", "questions": base["questions"], "assets": {"a": 1}}), json!(["assets"])),
        (question(json!({"instructions": "?"})), json!(["questions", id, "type"])),
        (question(json!({"type": "box", "instructions": "?"})), json!(["questions", id, "type"])),
        (question(json!({"type": "boolean"})), json!(["questions", id, "type"])),
        (question(json!({"type": "noul"})), json!(["questions", id, "instructions"])),
        (question(json!({"type": "noul", "instructions": 5})), json!(["questions", id, "instructions"])),
        (question(json!({"type": "noul", "instructions": ""})), json!(["questions", id, "instructions"])),
        (
            question(json!({"type": "noul", "criteria": {"yes": "x"}})),
            json!(["questions", id, "criteria", "yes"]),
        ),
        (choice(json!({})), json!(["questions", id, "criteria"])),
        (choice(json!({"a": 1})), json!(["questions", id, "criteria", "a"])),
        (choice(json!({"a": null, "  ": null})), json!(["questions", id, "criteria"])),
        (choice(Value::Object(many)), json!(["questions", id, "criteria"])),
        (score(json!({"0": "a", "1": "b"})), json!(["questions", id, "criteria"])),
        (score(json!(["a", null])), json!(["questions", id, "criteria", 1])),
        (score(json!(["a", "a"])), json!(["questions", id, "criteria"])),
        (
            question(json!({"type": "number", "instructions": "?", "criteria": {"maximun": 1}})),
            json!(["questions", id, "criteria"]),
        ),
    ] {
        let answer = post(&app, "/v1/systemone", body.clone()).await;
        assert_eq!(answer.status, 422, "{body}: {}", answer.text);
        assert_eq!(answer.header(header::CONTENT_TYPE), Some("application/json"));
        let detail = answer.json()["detail"][0].clone();
        let mut want = vec![json!("body")];
        want.extend(loc.as_array().unwrap().clone());
        assert_eq!(detail["loc"], Value::Array(want), "{detail}");
        assert!(detail["msg"].is_string() && detail["type"].is_string(), "{detail}");
    }
    let not_json = Request::post("/v1/systemone").header(header::CONTENT_TYPE, "application/json");
    let answer = call(&app, not_json.body(Body::from("{\"state\": ")).unwrap()).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["detail"][0]["loc"]), (422, &json!(["body"])));
    let mut other = base.clone();
    other["model"] = json!("none");
    let answer = post(&app, "/v1/systemone", other).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["detail"]["error_type"]),
        (404, &json!("api_usage_error"))
    );
    assert_eq!(get(&app, "/v1/systemone").await.json()["detail"]["error_type"], json!("method_not_allowed"));
}

#[tokio::test]
async fn hostile_decisions_get_a_clear_error() {
    let app = demo(128);
    let long = "x ".repeat(5_000);
    let choices: Vec<Value> = (0..255).map(|n| json!({"value": format!("{n} {long}")})).collect();
    let question = |choices: &[Value]| json!({"input": "a", "questions": [{"type": "choice", "instructions": "?", "choices": choices}]});
    let answer = post(&app, "/v1/decisions", question(&choices)).await;
    assert_eq!(answer.status, 413, "{}", answer.text);
    let answer = post(&app, "/v1/decisions", question(&choices[..20])).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    let state = "x ".repeat(500_000);
    let questions = vec![json!({"type": "predicate", "instructions": "?"}); 400];
    let answer = post(&app, "/v1/decisions", json!({"input": state, "questions": questions})).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.error()["param"]),
        (400, &json!("questions")),
        "{}",
        answer.text
    );
    let values: Vec<Value> = (0..255).map(|n| json!({"value": n.to_string()})).collect();
    let question = json!({"type": "choice", "instructions": "?", "choices": values, "x_orders": 255});
    let answer = post(&app, "/v1/decisions", json!({"input": "a", "questions": vec![question; 17]})).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.error()["param"]),
        (400, &json!("questions")),
        "{}",
        answer.text
    );
    let questions = vec![json!({"type": "predicate", "instructions": "?"}); 401];
    let answer = post(&app, "/v1/decisions", json!({"input": "a", "questions": questions})).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("questions")));
    let answer = post(&app, "/v1/decisions", json!({"input": "a", "questions": questions[..400]})).await;
    assert_eq!(answered(answer).await["answers"].as_array().unwrap().len(), 400);
    let deep = format!("{{\"state\": {}1{}, \"questions\": {{}}}}", "[".repeat(100_000), "]".repeat(100_000));
    let request = Request::post("/v1/systemone").header(header::CONTENT_TYPE, "application/json");
    let answer = call(&app, request.body(Body::from(deep)).unwrap()).await;
    assert!([413, 422].contains(&answer.status.as_u16()), "{}", answer.text);
}

#[tokio::test]
async fn bodies_of_every_route_may_be_compressed() {
    let app = demo(128);
    let gzip = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let send = async |path: &str, coding: &str, body: Vec<u8>| {
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONTENT_ENCODING, coding);
        call(&app, request.body(Body::from(body)).unwrap()).await
    };
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "1 + 2"})),
        ("/tokenize", json!({"prompt": "1 + 2"})),
        ("/v1/systemone", json!({"state": "a", "questions": {"q": {"type": "noul", "instructions": "?"}}})),
    ] {
        let answer = send(path, "gzip", gzip(&body.to_string())).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let answer = send(path, "br", gzip(&body.to_string())).await;
        assert_eq!(answer.status, 415, "{path}: {}", answer.text);
    }
    let bomb = format!("{{\"prompt\": \"{}\"}}", " ".repeat(64 << 20));
    let mut deflate = ZlibEncoder::new(Vec::new(), Compression::best());
    deflate.write_all(bomb.as_bytes()).unwrap();
    let zstd = compress_to_vec(bomb.as_bytes(), CompressionLevel::Fastest);
    for (coding, bomb) in [("gzip", gzip(&bomb)), ("deflate", deflate.finish().unwrap()), ("zstd", zstd)] {
        assert!(bomb.len() < 200_000, "{coding}: {}", bomb.len());
        let answer = send("/tokenize", coding, bomb.clone()).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (413, &json!("body_too_large")));
        let answer = send("/v1/systemone", coding, bomb).await;
        assert_eq!(answer.status, 413, "{}", answer.text);
        let answer = send("/tokenize", coding, b"no such coding".to_vec()).await;
        assert_eq!(answer.status, 400, "{coding}: {}", answer.text);
    }
}

#[tokio::test]
async fn models_are_listed_in_both_forms_and_aliases_name_the_first_one() {
    let one = scripted(Box::new(|_, _| Ok(logits(&[(EOS, 1.0)]))));
    let two = scripted(Box::new(|_, _| Ok(logits(&[(EOS, 1.0)]))));
    let models = vec![("first", loaded(Box::new(one))), ("second", loaded(Box::new(two)))];
    let app = app::router(state_of(models, settings(), EngineLimits::default()));
    let body = get(&app, "/v1/models").await.json();
    assert_eq!(body["data"][1]["id"], "second");
    let model = &body["models"][1];
    assert_eq!(model["name"], "second");
    assert!(model["description"].is_string(), "{model}");
    assert_eq!(model["release_date"].as_str().unwrap().len(), "2026-11-27".len());
    for name in ["jev-latest", "gpt-6-luna", "first"] {
        let question = json!([{"type": "predicate", "instructions": "?"}]);
        let body = decisions(&app, json!({"model": name, "input": "a", "questions": question})).await;
        assert_eq!(body["model"], "first");
    }
}

#[tokio::test]
async fn options_that_do_not_fit_into_a_prompt_are_read_by_their_texts_and_the_answer_says_so() {
    let app = demo(128);
    let choices: Vec<Value> =
        (0..255).map(|n| json!({"value": format!("number {n}"), "description": "long"})).collect();
    let choice = json!({"type": "choice", "instructions": "Which?", "choices": choices, "x_orders": 3});
    let body = json!({"input": "A letter.", "questions": [choice, letter()[2]]});
    let answers = decisions(&app, body.clone()).await["answers"].clone();
    assert!(answers[0]["x_note"].as_str().unwrap().contains("do not fit"), "{}", answers[0]["x_note"]);
    let sum: f64 = answers[0]["probabilities"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["probability"].as_f64().unwrap())
        .sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    assert_eq!(answers[1]["x_note"], Value::Null);
    let mut dry = body;
    dry["x_dry_run"] = json!(true);
    let prompts = decisions(&app, dry).await["prompts"].clone();
    assert_eq!(prompts.as_array().unwrap().len(), 2);
    assert_eq!(prompts[0]["text"], "A letter.\n\nQuestion: Which?\nAnswer in a few words only.\nAnswer:");
    assert_eq!(prompts[0]["answers"][7], "number 7");
}

#[tokio::test]
async fn options_are_read_by_their_texts_if_any_order_of_them_does_not_fit() {
    let longer = "{{ state }}{% if options and options[0].text == \"b\" %}{{ state }}{{ state }}{% endif %}";
    let app = tiny("qwen3", Some(longer));
    let note = async |orders: u64| {
        let choices = json!([{"value": "a"}, {"value": "b"}, {"value": "c"}]);
        let choice =
            json!({"type": "choice", "instructions": "Which?", "choices": choices, "x_orders": orders});
        let body = decisions(&app, json!({"input": "1".repeat(200), "questions": [choice]})).await;
        body["answers"][0]["x_note"].clone()
    };
    assert_eq!(note(1).await, Value::Null);
    assert!(note(3).await.as_str().unwrap().contains("do not fit"), "the second order begins with `b`");
}

#[tokio::test]
async fn a_score_with_a_single_level_is_certain() {
    let app = calibrated_server_of(writes(&[("0", 0.3)]), &[calibration("score", 1.5)]).unwrap();
    let questions = json!({"a": {"type": "score", "instructions": "How?", "criteria": ["only"]}});
    let body = system_one(&app, json!({"state": "x", "questions": questions, "x_coverage": 0.9})).await;
    let answer = &body["answers"]["a"];
    assert_eq!((&answer["score"], &answer["confidence"]), (&json!(0.0), &json!(1.0)));
    assert_eq!(answer["probabilities"], json!({"0": 1.0}));
    assert_eq!(answer["x_bounds"], json!({"score": [0.0, 0.0], "probabilities": {"0": [1.0, 1.0]}}));
    let interval = &answer["x_interval"];
    assert_eq!((&interval["low"], &interval["high"]), (&json!(0.0), &json!(0.0)));
    let criteria = json!({"minimum": 3, "maximum": 3, "step": 1});
    let questions = json!({"n": {"type": "number", "instructions": "How many?", "criteria": criteria}});
    let body = system_one(&demo(128), json!({"state": "x", "questions": questions})).await;
    assert_eq!(body["answers"]["n"]["number"], json!(3.0));
}

#[tokio::test]
async fn options_with_numbers_are_an_error_if_all_numbers_are_one_token() {
    let app = tiny("t5-xval", STATE);
    let levels = json!([{"label": "low"}, {"label": "high"}]);
    let question = json!({"type": "score", "instructions": "?", "levels": levels});
    let answer = post(&app, "/v1/decisions", json!({"input": "A letter.", "questions": [question]})).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("questions[0].levels")));
    let message = answer.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("is read as `0`: this model writes all numbers with one token"), "{message}");
    decisions(&app, json!({"input": "A letter.", "questions": [question], "x_read": "texts"})).await;
}
