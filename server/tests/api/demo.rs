//! The embedded demo checkpoint, from its archive to the answer.

use axum::Router;
use ntl_engine::EngineLimits;
use ntl_models::LoadOptions;
use ntl_server::{app, demo};
use serde_json::{Value, json};

use crate::support::{Answer, complete, get, metric, post, state_of};

fn demo_server() -> Router {
    let model = ntl_models::load(&demo::files().unwrap(), LoadOptions::default()).unwrap();
    app::router(state_of(vec![(demo::NAME, model)], crate::support::settings(), EngineLimits::default()))
}

#[tokio::test]
async fn the_demo_subtracts_and_its_number_agrees_with_its_text() {
    let app = demo_server();
    let prompt = "What is 336 - -20?";
    let text = complete(&app, json!({"prompt": prompt, "temperature": 0})).await.json();
    assert_eq!(text["choices"][0]["text"], "356", "{text}");
    let answer = complete(&app, json!({"prompt": prompt, "number": {"objective": "mode"}})).await.json();
    let choice = &answer["choices"][0];
    let number = &answer["choices"][0]["number"];
    assert_eq!((&choice["text"], &number["mode"]), (&json!("356"), &json!(356.0)));
    let mass: f64 =
        ["closed", "invalid", "open"].iter().map(|part| number["mass"][part].as_f64().unwrap()).sum();
    assert!((mass - 1.0).abs() < 1e-6, "{number}");
    assert_eq!(get(&app, "/v1/models").await.json()["data"][0]["kind"], "t5");
}

#[tokio::test]
async fn a_truncated_prompt_keeps_the_side_that_the_model_reports_unless_the_request_states_one() {
    let app = demo_server();
    assert_eq!(get(&app, "/v1/models").await.json()["data"][0]["truncation_side"], "right");
    let request = async |fields: Value| {
        let mut body = json!({"prompt": "What is 336 - -20?", "max_tokens": 1, "return_token_ids": true});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        complete(&app, body).await
    };
    let ids = async |fields: Value| -> Vec<u64> {
        let answer = request(fields).await.json();
        let ids = answer["choices"][0]["prompt_token_ids"].as_array().unwrap().clone();
        ids.iter().map(|id| id.as_u64().unwrap()).collect()
    };
    let whole = ids(json!({})).await;
    let (end, text) = whole.split_last().unwrap();
    let right = [&text[..3], &[*end]].concat();
    let left = [&text[text.len() - 3..], &[*end]].concat();
    assert_ne!(left, right);
    assert_eq!(ids(json!({"truncate_prompt_tokens": 4})).await, right);
    assert_eq!(ids(json!({"truncate_prompt_tokens": 4, "truncation_side": "right"})).await, right);
    assert_eq!(ids(json!({"truncate_prompt_tokens": 4, "truncation_side": "left"})).await, left);
    assert_eq!(ids(json!({"truncate_prompt_tokens": -1})).await, whole);
    let refused = request(json!({"truncate_prompt_tokens": 0})).await;
    assert_eq!(refused.status, 400);
    let error = refused.error();
    assert_eq!(error["param"], "truncate_prompt_tokens", "{error}");
}

/// Questions that the demo was not trained on, with their answers (`lab/recipes/generated.py`).
fn unseen(lines: &str) -> Vec<(String, f64)> {
    let row = |line: &str| -> (String, f64) {
        let row: Value = serde_json::from_str(line).unwrap();
        (row["question"].as_str().unwrap().to_owned(), row["answer"].as_str().unwrap().parse().unwrap())
    };
    lines.lines().map(row).collect()
}

/// The responses to `body` for each of the questions.
async fn choices(app: &Router, questions: &[(String, f64)], mut body: Value) -> Vec<Value> {
    let mut choices = Vec::new();
    for some in questions.chunks(50) {
        body["prompt"] = some.iter().map(|(question, _)| question.as_str()).collect();
        let answer = complete(app, body.clone()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        choices.extend(answer.json()["choices"].as_array().unwrap().iter().cloned());
    }
    choices
}

fn text(choice: &Value) -> f64 {
    choice["text"].as_str().unwrap().parse().unwrap_or(f64::NAN)
}

#[tokio::test]
async fn the_demo_is_right_on_96_of_100_unseen_sums() {
    let questions = unseen(include_str!("../../demo/sums.jsonl"));
    let texts = choices(&demo_server(), &questions, json!({"temperature": 0, "max_tokens": 12})).await;
    let right = |(choice, (_, answer)): &(&Value, &(String, f64))| (text(choice) - answer).abs() < 1e-9;
    let right = texts.iter().zip(&questions).filter(right).count();
    assert!(questions.len() == 300 && right >= 288, "{right} of {}", questions.len());
}

#[tokio::test]
async fn the_mean_of_a_rating_is_closer_than_its_greedy_text_and_the_distribution_has_both_peaks() {
    let app = demo_server();
    let questions = unseen(include_str!("../../demo/reviews.jsonl"));
    let texts = choices(&app, &questions, json!({"temperature": 0, "max_tokens": 4})).await;
    let numbers = choices(&app, &questions, json!({"number": true})).await;
    let squares = |values: Vec<f64>| -> f64 {
        values.iter().zip(&questions).map(|(value, (_, answer))| (value - answer).powi(2)).sum()
    };
    let greedy = squares(texts.iter().map(text).collect());
    let mean = squares(numbers.iter().map(|choice| choice["number"]["value"].as_f64().unwrap()).collect());
    assert!(questions.len() == 300 && mean < 0.9 * greedy, "{mean} against {greedy}");

    let divided = json!({"prompt": "How many stars: decent room, opinions are divided?", "number": true});
    let number = complete(&app, divided).await.json()["choices"][0]["number"].take();
    let share = |rating: f64| {
        let support = number["support"].as_array().unwrap().iter();
        support
            .filter(|point| point["value"] == rating)
            .map(|point| point["probability"].as_f64().unwrap())
            .sum::<f64>()
    };
    // Drawn as 40%, 10%, 0, 10%, 40%.
    assert!(share(1.0) > 0.25 && share(5.0) > 0.25 && share(3.0) < 0.15, "{number}");
}

#[tokio::test]
async fn all_methods_find_the_same_most_probable_number() {
    let app = demo_server();
    for method in ["tree", "sample", "beam", "token"] {
        let number = json!({"method": method, "objective": "mode"});
        let body = json!({"prompt": "What is 336 - -20?", "seed": 7, "number": number});
        let answer = complete(&app, body).await.json();
        let number = &answer["choices"][0]["number"];
        assert_eq!((&number["method"], &number["mode"]), (&json!(method), &json!(356.0)), "{number}");
        let labels = format!("method=\"{method}\",model=\"{}\",truncated=\"false\"", demo::NAME);
        let series = format!("ntl_number_decodes_total{{{labels}}}");
        assert!((metric(&app, &series).await - 1.0).abs() < 1e-9, "{series}");
    }
}

#[tokio::test]
async fn answers_do_not_depend_on_who_else_asks() {
    let app = demo_server();
    let prompts = ["What is 336 - -20?", "Add 3 and 4.", "What is 12 + 7?", "Calculate 5 - 100."];
    let ask =
        |prompt: serde_json::Value| complete(&app, json!({"prompt": prompt, "seed": 7, "max_tokens": 8}));
    let together = ask(json!(prompts)).await.json();
    for (index, prompt) in prompts.into_iter().enumerate() {
        let alone = ask(json!(prompt)).await.json();
        assert_eq!(alone["choices"][0]["text"], together["choices"][index]["text"], "{prompt}");
    }
}

/// Kinds of completions that [`mixed`] makes.
const KINDS: u64 = 12;

/// The number of each prompt, without what depends on load by design.
async fn numbers(app: &Router, prompts: &[String]) -> Vec<Value> {
    let ask = |prompt| complete(app, json!({"prompt": prompt, "number": {"tolerance": 0.01}}));
    let answers = futures::future::join_all(prompts.iter().map(ask)).await;
    let number = |answer: Answer| {
        assert_eq!(answer.status, 200, "{}", answer.text);
        let mut choice = answer.json()["choices"][0].take();
        choice["number"]["forward_passes"].take();
        choice
    };
    answers.into_iter().map(number).collect()
}

#[tokio::test]
async fn sixty_four_numbers_asked_for_at_once_are_those_asked_for_alone() {
    let app = demo_server();
    let prompts: Vec<String> = (0..64).map(|k| format!("What is {} - {}?", 7 * k, 90 - k * k)).collect();
    let together = numbers(&app, &prompts).await;
    for (prompt, together) in prompts.iter().zip(together) {
        let alone = numbers(&app, std::slice::from_ref(prompt)).await.remove(0);
        assert_eq!(together, alone, "{prompt}");
    }
}

/// A completion that differs from the concurrent ones.
fn mixed(k: u64) -> Value {
    let prompt = format!("What is {} - {}?", 7 * k, 90 + k * k % 301);
    let mut body = json!({"prompt": prompt, "max_tokens": 4 + k % 9, "seed": k});
    let options = match k % KINDS {
        0 => json!({"temperature": 0}),
        1 => json!({"temperature": 1.3, "n": 3}),
        2 => json!({"top_k": 5, "min_p": 0.01, "logprobs": 3}),
        3 => json!({"presence_penalty": 1.5, "frequency_penalty": -0.5, "top_p": 0.9}),
        4 => json!({"repetition_penalty": 1.3, "min_tokens": 4, "logit_bias": {"5": -3}}),
        5 => json!({"number": {"tolerance": 0.01}}),
        6 => json!({"number": {"method": "sample", "samples": 16}}),
        7 => json!({"best_of": 4, "n": 2, "stop": ["1", "22"]}),
        8 => json!({"guided_regex": "-?[0-9]{1,4}", "temperature": 0.7}),
        9 => json!({"use_beam_search": true, "beam_width": 4, "n": 2}),
        10 => json!({"number": {"method": "token"}}),
        _ => json!({"number": {"method": "beam"}, "prompt": ["What is 1 + 1?", "What is 5 - 9?"]}),
    };
    for (field, value) in options.as_object().unwrap() {
        body[field] = value.clone();
    }
    body
}

#[tokio::test]
async fn two_hundred_mixed_requests_at_once_get_the_answers_that_they_get_alone() {
    let app = demo_server();
    let answer = async |k: u64| {
        if k % (KINDS + 1) == KINDS {
            let items = json!([{"prompt": format!("What is {k} + 5?"), "target": (k + 5).to_string()}]);
            let answer = post(&app, "/v1/score", json!({"items": items, "reduction": "none"})).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            return answer.json()["data"].take();
        }
        let answer = complete(&app, mixed(k)).await;
        assert_eq!(answer.status, 200, "{}: {}", mixed(k), answer.text);
        let mut choices = answer.json()["choices"].take();
        for choice in choices.as_array_mut().unwrap() {
            if let Some(number) = choice.get_mut("number") {
                number["forward_passes"].take();
            }
        }
        choices
    };
    let together = futures::future::join_all((0..200).map(&answer)).await;
    for (k, together) in (0..200).zip(together) {
        assert_eq!(together, answer(k).await, "request {k}");
    }
}

#[tokio::test]
async fn asking_for_log_probabilities_changes_no_text() {
    let app = demo_server();
    for k in (0..40).filter(|k| !matches!(k % KINDS, 5 | 6 | 9..)) {
        let mut body = mixed(k);
        body["logprobs"].take();
        let plain = complete(&app, body.clone()).await.json();
        body["logprobs"] = 20.into();
        let told = complete(&app, body.clone()).await.json();
        let texts = |answer: &Value| {
            let choices = answer["choices"].as_array().unwrap().iter();
            choices.map(|choice| choice["text"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(texts(&plain), texts(&told), "{body}");
    }
}

#[tokio::test]
async fn guided_texts_of_the_demo_are_what_was_asked_for_or_a_400_says_why_not() {
    let app = demo_server();
    let text = async |options: Value| {
        let mut body = json!({"prompt": "What is 336 - -20?", "temperature": 0});
        for (field, value) in options.as_object().unwrap() {
            body[field] = value.clone();
        }
        let answer = complete(&app, body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(text(json!({"guided_regex": "[0-9]{2}"})).await.len(), 2);
    assert_eq!(text(json!({"guided_regex": "-?[0-9]+"})).await, "356", "as without it");
    assert_eq!(text(json!({"guided_choice": ["5", "356", "no"]})).await, "356");
    assert_eq!(text(json!({"guided_choice": ["no"]})).await, "no");
    let small = text(json!({"guided_json": {"type": "integer", "minimum": 10, "maximum": 99}})).await;
    assert!((10..=99).contains(&small.parse::<i32>().unwrap()), "{small}");
    for (field, value) in [
        ("guided_regex", json!("(")),
        ("guided_choice", json!(["☃"])),
        ("guided_json", json!({"type": "nonsense"})),
        ("response_format", json!({"type": "json_object"})),
    ] {
        let answer = complete(&app, json!({"prompt": "x", field: value})).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert_eq!(answer.error()["param"], field, "{}", answer.text);
    }
}
