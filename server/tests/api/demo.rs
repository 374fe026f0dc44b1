//! The embedded demo checkpoint, from its archive to the answer.

use axum::Router;
use ntl_models::LoadOptions;
use ntl_models::batch::EngineLimits;
use ntl_server::state::HttpSettings;
use ntl_server::{app, demo};
use serde_json::{Value, json};

use crate::support::{Answer, complete, get, metric, state_of};

fn demo_server() -> Router {
    let model = ntl_models::load(&demo::files().unwrap(), LoadOptions::default()).unwrap();
    app::router(state_of(vec![(demo::NAME, model)], HttpSettings::default(), EngineLimits::default()))
}

#[tokio::test]
async fn the_demo_subtracts_and_its_number_agrees_with_its_text() {
    let app = demo_server();
    let prompt = "What is 336 - -20?";
    let text = complete(&app, json!({"prompt": prompt, "temperature": 0})).await.json();
    assert_eq!(text["choices"][0]["text"], "356", "{text}");
    let answer = complete(&app, json!({"prompt": prompt, "number": {"objective": "mode"}})).await.json();
    let (choice, number) = (&answer["choices"][0], &answer["choices"][0]["number"]);
    assert_eq!((&choice["text"], &number["mode"]), (&json!("356"), &json!(356.0)));
    let mass: f64 =
        ["closed", "invalid", "open"].iter().map(|part| number["mass"][part].as_f64().unwrap()).sum();
    assert!((mass - 1.0).abs() < 1e-6, "{number}");
    assert_eq!(get(&app, "/v1/models").await.json()["data"][0]["kind"], "t5");
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
