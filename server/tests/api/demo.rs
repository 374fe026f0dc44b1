//! The embedded demo checkpoint, from its archive to the answer.

use axum::Router;
use ntl_models::LoadOptions;
use ntl_models::batch::EngineLimits;
use ntl_server::state::HttpSettings;
use ntl_server::{app, demo};
use serde_json::json;

use crate::support::{complete, get, state_of};

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
