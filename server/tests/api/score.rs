//! `POST /v1/score`.

use axum::Router;
use ntl_core::labels::{LabelActivation, Labels};
use ntl_engine::EngineLimits;
use ntl_models::LoadOptions;
use ntl_server::app;
use serde_json::{Value, json};

use crate::support::{
    Answer, EOS, checkpoint, close, ids, loaded, logits, metric, piece, post, scripted, server, state_of,
};

async fn score(app: &Router, body: Value) -> Answer {
    post(app, "/v1/score", body).await
}

fn checkpoint_server(step_rows_max: usize) -> Router {
    let model = ntl_models::load(&checkpoint(), LoadOptions::default()).unwrap();
    let limits = EngineLimits { step_rows_max, ..EngineLimits::default() };
    app::router(state_of(vec![("t5", model)], crate::support::settings(), limits))
}

/// First 4 with 0.6, 5 with 0.3 or a letter with 0.1, then the end.
fn four_or_five() -> Router {
    crate::support::four_or_five()
}

/// One item's score.
async fn one(app: &Router, body: Value) -> Value {
    let answer = score(app, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["data"][0].clone()
}

fn item(target: &str) -> Value {
    json!([{"prompt": "x", "target": target}])
}

/// The first case of the shared goldens, computed by the paper's own classes on the same weights.
#[tokio::test]
async fn a_checkpoint_of_the_paper_has_the_losses_of_the_original() {
    let app = checkpoint_server(128);
    let got = one(&app, json!({"items": [{"prompt": "What is 336 - -20?", "target": "356"}]})).await;
    assert_eq!(got["token_ids"], json!([10, 73, 46, 45, 1]));
    let near = |got: &Value, want: f64| {
        let got = got.as_f64().unwrap();
        assert!((got - want).abs() <= 1e-4 * want.abs() + 1e-5, "{got} instead of {want}");
    };
    for (loss, want) in [
        ("ce", 0.111_176_23),
        ("ntl-was", 0.161_809_37),
        ("ntl-was-cdf", 0.161_809_36),
        ("ntl-mse", 0.036_204_588),
        ("ntl-mae", 0.154_355_526),
        ("ntl-huber", 0.018_102_294),
    ] {
        near(&got["losses"][loss], want);
    }
    near(&got["total"], 0.159_719_05);
    near(&got["perplexity"], 0.111_176_23_f64.exp());
    for (at, want) in [(0, 2.354_953), (1, 3.134_985), (2, 5.299_27), (3, 6.028_811), (4, 5.746_501)] {
        near(&got["number_values"][at], want);
    }
    near(&got["number_mass"][1], 0.997_479_88);
    near(&got["token_logprobs"][2], -0.368_960_26);
}

#[tokio::test]
async fn a_score_follows_from_the_distribution_at_each_token() {
    let app = four_or_five();
    let items = json!([{"prompt": "x", "target": [piece("4")]}]);
    let answer =
        score(&app, json!({"items": items, "lambda": 0.5, "losses": ["ntl-mae", "ce", "ntl-mse"]})).await;
    let body = answer.json();
    assert_eq!((&body["object"], &body["model"]), (&json!("list"), &json!("scripted")));
    let got = &body["data"][0];
    let tokens = (&got["index"], &got["token_ids"], &got["tokens"]);
    assert_eq!(tokens, (&json!(0), &json!([piece("4"), EOS]), &json!(["4", "</s>"])));
    // 4 and 5 share the number tokens' mass two to one; nothing is a number where the text ends.
    let ce = -(0.6_f64.ln()) / 2.0;
    let third = 1.0 / 3.0;
    assert!(close(&got["number_values"][0], 4.0 + third) && close(&got["number_mass"][0], 0.9), "{got}");
    assert_eq!((&got["number_values"][1], &got["number_mass"][1]), (&Value::Null, &Value::Null));
    assert!(close(&got["losses"]["ce"], ce) && close(&got["losses"]["ntl-mae"], third), "{got}");
    assert!(close(&got["losses"]["ntl-mse"], third * third), "{got}");
    assert_eq!(got["losses"].as_object().unwrap().len(), 3);
    assert!(close(&got["total"], ce + 0.5 * third), "the first number loss that is named counts: {got}");
    assert!(close(&got["perplexity"], ce.exp()), "{got}");
    let prompt = ids("x").len() as u64 + 1;
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": 2, "total_tokens": prompt + 2});
    assert_eq!(body["usage"], usage);
}

#[tokio::test]
async fn losses_come_as_mean_sum_or_one_a_token() {
    let app = four_or_five();
    let items = json!([{"prompt": "x", "target": [piece("4")]}]);
    let ask = |reduction: &'static str| {
        one(&app, json!({"items": items, "losses": ["ce", "ntl-was"], "reduction": reduction, "lambda": 3}))
    };
    let ce = -(0.6_f64.ln());
    let was = 1.0 / 3.0;
    let sum = ask("sum").await;
    assert!(close(&sum["losses"]["ce"], ce) && close(&sum["losses"]["ntl-was"], was), "{sum}");
    assert!(close(&sum["total"], ce + 3.0 * was), "{sum}");
    let none = ask("none").await;
    for (list, first) in
        [(&none["losses"]["ce"], ce), (&none["losses"]["ntl-was"], was), (&none["total"], ce + 3.0 * was)]
    {
        assert_eq!(list.as_array().unwrap().len(), 2, "{none}");
        assert!(close(&list[0], first) && close(&list[1], 0.0), "{none}");
    }
    assert!(close(&none["perplexity"], (ce / 2.0).exp()), "{none}");
    let no_losses = one(&app, json!({"items": items, "losses": []})).await;
    assert_eq!(no_losses["losses"], json!({}));
    assert!(close(&no_losses["total"], ce / 2.0), "{no_losses}");
}

#[tokio::test]
async fn reweigh_makes_text_cost_more_than_the_worst_digit() {
    let items = json!([{"prompt": "x", "target": [piece("4")]}]);
    let got = one(&four_or_five(), json!({"items": items, "losses": ["ntl-was"], "reweigh": true})).await;
    assert!(close(&got["losses"]["ntl-was"], 0.9 / 3.0 + 1.01 * 9.0 * 0.1), "{got}");
}

#[tokio::test]
async fn whole_numbers_and_squashed_distances_have_the_losses_of_ntloss() {
    let items = json!([{"prompt": "x", "target": [piece("4")]}]);
    let app = four_or_five();
    let losses = async |reweigh: bool| {
        let body = json!({"losses": ["ntl-level", "ntl-was"], "squash_factor": 2, "reweigh": reweigh, "items": items});
        one(&app, body).await
    };
    let got = losses(false).await;
    let third = 1.0 / 3.0;
    let level = third / (4.0 + 4.0 + third);
    assert!(close(&got["losses"]["ntl-level"], level), "{got}");
    assert!(close(&got["losses"]["ntl-was"], third), "{got}");
    assert!(close(&got["total"], -(0.6_f64.ln()) / 2.0 + 0.3 * level), "{got}");
    let got = losses(true).await;
    assert!(close(&got["losses"]["ntl-level"], 0.9 * level + 1.01 * 0.1), "{got}");
    assert!(close(&got["losses"]["ntl-was"], 0.9 * third + 1.01 * 2.0 * 0.1), "{got}");
    let alone = one(&app, json!({"items": items, "losses": ["ntl-level"], "reduction": "none"})).await;
    assert!(close(&alone["losses"]["ntl-level"][0], level), "{alone}");
}

#[tokio::test]
async fn a_target_of_no_probability_has_null_for_infinity() {
    let items = json!([{"prompt": "x", "target": [piece("7")]}, {"prompt": "x", "target": [piece("x")]}]);
    let body = score(&four_or_five(), json!({"items": items})).await.json();
    let impossible = &body["data"][0];
    assert_eq!(impossible["token_logprobs"][0], -9999.0);
    let nulls = (&impossible["losses"]["ce"], &impossible["total"], &impossible["perplexity"]);
    assert_eq!(nulls, (&Value::Null, &Value::Null, &Value::Null));
    assert!(close(&impossible["losses"]["ntl-was"], 3.0 - 1.0 / 3.0), "{impossible}");
    // A word has no number loss, and a mean over nothing is 0.
    assert!(close(&body["data"][1]["losses"]["ntl-was"], 0.0), "{body}");
}

#[tokio::test]
async fn the_end_of_the_sequence_is_scored_once_and_only_if_wanted() {
    let app = four_or_five();
    for (target, add_eos, want) in [
        (json!([piece("4")]), Value::Null, vec![piece("4"), EOS]),
        (json!([piece("4"), EOS]), json!(true), vec![piece("4"), EOS]),
        (json!([piece("4")]), json!(false), vec![piece("4")]),
        (json!([piece("4"), EOS]), json!(false), vec![piece("4"), EOS]),
        (json!("4"), Value::Null, [ids("4"), vec![EOS]].concat()),
        (json!("4"), json!(false), ids("4")),
    ] {
        let got = one(&app, json!({"items": [{"prompt": "x", "target": target}], "add_eos": add_eos})).await;
        assert_eq!(got["token_ids"], json!(want), "{target} {add_eos}");
    }
}

#[tokio::test]
async fn scores_are_the_same_alone_and_in_any_batch() {
    let prompts = ["What is 336 - -20?", "Add 3 and 4.", "What is 12 + 7?", "Calculate 5 - 100."];
    let targets = ["356", "7", "19 and a rather long answer with 12 words, 3.5 numbers and 42", "-95"];
    let items: Vec<Value> = prompts
        .iter()
        .zip(targets)
        .map(|(prompt, target)| json!({"prompt": prompt, "target": target}))
        .collect();
    let together = score(&checkpoint_server(5), json!({"items": items})).await.json();
    let app = checkpoint_server(4096);
    for (index, item) in items.iter().enumerate() {
        let mut alone = one(&app, json!({"items": [item]})).await;
        alone["index"] = json!(index);
        assert_eq!(together["data"][index], alone, "{item}");
    }
}

#[tokio::test]
async fn wrong_requests_are_refused_by_field() {
    let app = four_or_five();
    let many = vec![json!({"prompt": "x", "target": "4"}); 1025];
    let candidates = json!([{"prompt": "x", "candidates": ["4"]}]);
    for (body, param, message) in [
        (json!({}), "items", "`items` is missing"),
        (json!({"items": null}), "items", "`items` is missing"),
        (json!({"items": []}), "items", "1 to 1024"),
        (json!({"items": many}), "items", "not 1025"),
        (json!({"items": "x"}), "items", "expected a list"),
        (json!({"items": [{"prompt": "x"}]}), "items[0].target", "has a `target` or `candidates`"),
        (json!({"items": [{"target": "4"}]}), "items[0]", "missing field `prompt`"),
        (json!({"items": [{"prompt": 5, "target": "4"}]}), "items[0].prompt", "a list of token ids"),
        (json!({"items": [{"prompt": "x", "target": ""}]}), "items[0].target", "must not be empty"),
        (json!({"items": [{"prompt": "x", "target": []}]}), "items[0].target", "must not be empty"),
        (json!({"items": [{"prompt": "x", "target": [99_999]}]}), "items[0].target", "token id 99999"),
        (json!({"items": [{"prompt": [99_999], "target": "4"}]}), "items[0].prompt", "token id 99999"),
        (
            json!({"items": [{"prompt": "x", "target": vec![5; 4096]}]}),
            "items[0].target",
            "4097 tokens, at most 4096",
        ),
        (json!({"items": [{"prompt": vec![5; 600], "target": "4"}]}), "items[0].prompt", "601 tokens"),
        (json!({"items": item("4"), "losses": ["ce", "ntl-foo"]}), "losses[1]", "unknown variant `ntl-foo`"),
        (json!({"items": item("4"), "losses": "ce"}), "losses", "expected a list"),
        (json!({"items": item("4"), "lambda": -0.1}), "lambda", "from 0 to 1000000"),
        (json!({"items": item("4"), "lambda": 1e7}), "lambda", "from 0 to 1000000"),
        (json!({"items": item("4"), "lambda": "x"}), "lambda", "expected a number"),
        (json!({"items": item("4"), "reduction": "max"}), "reduction", "unknown variant `max`"),
        (json!({"items": item("4"), "reweigh": 1}), "reweigh", "a boolean"),
        (json!({"items": item("4"), "tau": 2}), "tau", "only allowed with `candidates`"),
        (json!({"items": candidates, "tau": 2}), "tau", "that have a `value`"),
        (
            json!({"items": item("4"), "normalize_by_length": true}),
            "normalize_by_length",
            "with `candidates`",
        ),
        (json!({"items": candidates, "lambda": 1}), "lambda", "only allowed with a `target`"),
        (json!({"items": candidates, "reduction": "sum"}), "reduction", "with a `target`"),
        (json!({"items": candidates, "reweigh": true}), "reweigh", "with a `target`"),
        (json!({"items": item("4"), "squash_factor": 1}), "squash_factor", "above 1"),
        (json!({"items": item("4"), "squash_factor": 1e7}), "squash_factor", "at most 1000000"),
        (
            json!({"items": item("4"), "squash_factor": 2, "losses": ["ce"]}),
            "squash_factor",
            "the loss `ntl-was`",
        ),
        (json!({"items": candidates, "squash_factor": 2}), "squash_factor", "the loss `ntl-was`"),
        (json!({"items": candidates, "losses": ["ce"]}), "losses", "with a `target`"),
    ] {
        let answer = score(&app, body.clone()).await;
        let shown = body.to_string();
        let shown = &shown[..shown.len().min(120)];
        assert_eq!(answer.status, 400, "{shown}: {}", answer.text);
        let error = answer.error();
        assert_eq!(error["param"], param, "{shown}: {error}");
        assert!(error["message"].as_str().unwrap().contains(message), "{shown}: {error}");
    }
    let unknown = score(&app, json!({"items": item("4"), "lamda": 1})).await.error();
    assert!(unknown["message"].as_str().unwrap().ends_with("did you mean `lambda`?"), "{unknown}");
}

#[tokio::test]
async fn a_regression_head_has_nothing_to_score() {
    let model = scripted(Box::new(|_, _| Ok(logits(&[(EOS, 1.0)]))));
    let model = model.with_info(|info| {
        info.kind = "t5-regression-head".to_owned();
        let activation = LabelActivation::Identity;
        info.labels = Some(Labels { names: vec!["LABEL_0".to_owned()], activation });
    });
    let models = vec![("head", loaded(Box::new(model)))];
    let app = app::router(state_of(models, crate::support::settings(), EngineLimits::default()));
    let answer = score(&app, json!({"items": item("4")})).await;
    assert_eq!(answer.status, 400);
    let message = "`model` is of kind t5-regression-head, which has no distribution over tokens to score";
    assert_eq!((&answer.error()["param"], &answer.error()["message"]), (&json!("model"), &json!(message)));
}

#[tokio::test]
async fn a_decoder_only_target_is_what_the_joined_text_adds_to_the_prompt() {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = std::sync::Arc::clone(&seen);
    let four = piece("4");
    let model = scripted(Box::new(move |prompt, path| {
        log.lock().unwrap().push((prompt.to_vec(), path.to_vec()));
        Ok(logits(&[(four, 0.5), (EOS, 0.5)]))
    }));
    let model = model.with_info(|info| (info.encoder_decoder, info.prompt_tokens_max) = (false, 8));
    let models = vec![("decoder", loaded(Box::new(model)))];
    let app = app::router(state_of(models, crate::support::settings(), EngineLimits::default()));
    let joined = ids("1 + 3 = 4");
    let prompt = ids("1 + 3 =");
    let got = one(&app, json!({"items": [{"prompt": "1 + 3 =", "target": " 4"}], "add_eos": false})).await;
    assert_eq!(joined[..prompt.len()], prompt);
    assert_eq!(got["token_ids"], json!(joined[prompt.len()..]));
    assert_eq!(seen.lock().unwrap()[0].0, prompt);
    let long = json!({"items": [{"prompt": "1 + 3 =", "target": " 4 4 4 4 4 4 4 4"}]});
    let error = score(&app, long).await.error();
    assert_eq!(error["param"], "items[0].target");
    assert!(
        error["message"].as_str().unwrap().contains("behind a prompt of 6, the model takes at most 8"),
        "{error}"
    );
}

#[tokio::test]
async fn scores_are_counted() {
    let app = server(Box::new(|_, _| Ok(logits(&[(EOS, 1.0)]))));
    let items = json!([{"prompt": "x", "target": [piece("4")]}, {"prompt": "x", "target": [piece("4")]}]);
    assert_eq!(score(&app, json!({"items": items})).await.status, 200);
    assert_eq!(score(&app, json!({"items": []})).await.status, 400);
    for (series, want) in [
        ("ntl_requests_total{code=\"200\",model=\"scripted\",route=\"/v1/score\"}", 1.0),
        ("ntl_requests_total{code=\"400\",model=\"scripted\",route=\"/v1/score\"}", 1.0),
        ("ntl_finished_total{model=\"scripted\",reason=\"stop\"}", 2.0),
        ("ntl_generation_tokens_total{model=\"scripted\"}", 4.0),
        ("ntl_request_duration_seconds_count{model=\"scripted\"}", 2.0),
    ] {
        assert!((metric(&app, series).await - want).abs() < 1e-9, "{series}");
    }
}

#[tokio::test]
async fn logits_that_are_not_finite_fail_the_request() {
    let app = server(Box::new(|_, _| Ok(vec![f32::NAN; 2100])));
    let answer = score(&app, json!({"items": item("4")})).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (500, &json!("decoding_failed")));
}

/// Three-digit numbers that begin alike.
fn fifty() -> Vec<String> {
    (100..150).map(|number| number.to_string()).collect()
}

const QUESTION: &str = "What is 336 - -20?";

#[tokio::test]
async fn candidates_have_the_log_probabilities_that_they_have_alone() {
    let app = checkpoint_server(128);
    let texts = ["356", "35", "-20", "3560", "356", "yes", "4.5"];
    for (add_eos, step_rows_max) in [(true, 128), (false, 3)] {
        let small = checkpoint_server(step_rows_max);
        let items = json!([{"prompt": QUESTION, "candidates": texts}]);
        let got = one(&small, json!({"items": items, "add_eos": add_eos})).await;
        let mut sum = 0.0;
        let mut logprobs = Vec::new();
        // The fifth candidate is the first one again, and counts once.
        let repeated = 4;
        for (place, text) in texts.iter().enumerate() {
            let items = json!([{"prompt": QUESTION, "target": text}]);
            let alone = one(&app, json!({"items": items, "losses": [], "add_eos": add_eos})).await;
            let each = alone["token_logprobs"].as_array().unwrap();
            let want: f64 = each.iter().map(|logprob| logprob.as_f64().unwrap()).sum();
            let own = &got["candidates"][place];
            assert!(
                (own["logprob"].as_f64().unwrap() - want).abs() < 1e-6,
                "{text}: {own} instead of {want}"
            );
            assert_eq!((&own["token_ids"], &own["text"]), (&alone["token_ids"], &json!(text)));
            sum += if place == repeated { 0.0 } else { want.exp() };
            logprobs.push(want);
        }
        for (place, logprob) in logprobs.iter().enumerate() {
            let got = got["candidates"][place]["probability"].as_f64().unwrap();
            assert!((got - logprob.exp() / sum).abs() < 1e-6, "{got}");
        }
        assert!(got.get("losses").is_none() && got["index"] == 0, "{got}");
    }
}

#[tokio::test]
async fn fifty_candidates_cost_less_than_a_quarter_of_the_rows_of_fifty_requests_and_one_prompt() {
    let rows = async |app: &Router| metric(app, "ntl_batch_rows_sum{model=\"t5\"}").await;
    let together = checkpoint_server(128);
    one(&together, json!({"items": [{"prompt": QUESTION, "candidates": fifty()}]})).await;
    let alone = checkpoint_server(128);
    for target in fifty() {
        one(&alone, json!({"items": [{"prompt": QUESTION, "target": target}]})).await;
    }
    let together_rows = rows(&together).await;
    let alone_rows = rows(&alone).await;
    assert!(together_rows * 4.0 < alone_rows, "{together_rows} rows beside {alone_rows}");
    let prompts = async |app: &Router| metric(app, "ntl_prompt_tokens_total{model=\"t5\"}").await;
    let one_prompt = prompts(&together).await;
    let fifty_prompts = prompts(&alone).await;
    assert!((one_prompt * 50.0 - fifty_prompts).abs() < 1e-9, "{one_prompt} {fifty_prompts}");
}

#[tokio::test]
async fn candidates_may_be_ids_and_lengths_may_be_divided_out() {
    let app = four_or_five();
    let [four, five, letter] = ["4", "5", "x"].map(piece);
    let candidates = json!([[four], [five], [letter]]);
    let got =
        one(&app, json!({"items": [{"prompt": "x", "candidates": candidates}], "add_eos": false})).await;
    assert_eq!(got["candidates"][0]["text"], "4");
    for (place, want) in [0.6, 0.3].into_iter().enumerate() {
        assert!(close(&got["candidates"][place]["logprob"], f64::ln(want)), "{got}");
        assert!(close(&got["candidates"][place]["probability"], want), "{got}");
    }
    // With the end, each has two tokens.
    let items = json!([{"prompt": "x", "candidates": [[four], [five]]}]);
    let got = one(&app, json!({"items": items, "normalize_by_length": true})).await;
    let four = 0.6_f64.sqrt();
    let five = 0.3_f64.sqrt();
    assert!(close(&got["candidates"][0]["probability"], four / (four + five)), "{got}");
    assert!(close(&got["candidates"][0]["logprob"], 0.6_f64.ln()), "{got}");
}

#[tokio::test]
async fn candidates_that_are_numbers_have_losses_over_them() {
    let items = json!([{"prompt": QUESTION, "candidates": ["355", "356"], "value": 356}]);
    let got = one(&checkpoint_server(128), json!({"items": items, "tau": 2})).await;
    let [first, second] = [0, 1].map(|place| got["candidates"][place]["logprob"].as_f64().unwrap());
    let raft = (356.0 - (355.0 * first.exp() + 356.0 * second.exp())).powi(2);
    assert!(close(&got["losses"]["raft"], raft), "{got}");
    let near = (-0.5_f64).exp() / (1.0 + (-0.5_f64).exp());
    let share = first.exp() / (first.exp() + second.exp());
    let dist2 = near * (near / share).ln() + (1.0 - near) * ((1.0 - near) / (1.0 - share)).ln();
    assert!(close(&got["losses"]["dist2"], dist2), "{got}");
}

#[tokio::test]
async fn candidates_of_equal_tokens_count_once_and_each_has_their_whole_probability() {
    let app = checkpoint_server(128);
    let losses = async |candidates: Value| {
        one(&app, json!({"items": [{"prompt": QUESTION, "candidates": candidates, "value": 350}]})).await
    };
    for (few, many) in [
        (json!(["356"]), json!(["356", " 356", "356"])),
        (json!(["356", "355"]), json!(["356", " 356", "355", "355"])),
        (json!(["356", "356.0"]), json!(["356", "356.0", "356.0", " 356"])),
    ] {
        let want = losses(few.clone()).await;
        let got = losses(many).await;
        assert_eq!(got["losses"], want["losses"], "{few}");
        for one in got["candidates"].as_array().unwrap() {
            let same = |other: &&Value| other["token_ids"] == one["token_ids"];
            let want = want["candidates"].as_array().unwrap().iter().find(same).unwrap();
            assert_eq!(one["probability"], want["probability"], "{one}");
        }
    }
}

#[tokio::test]
async fn an_empty_prompt_is_an_error_on_both_routes_or_on_none() {
    let texts = crate::support::says("4");
    let (decoder_only, seen) = crate::chat::chatting(texts);
    for (app, status) in [(four_or_five(), 400), (decoder_only, 200)] {
        for prompt in [json!(""), json!([])] {
            let completed = post(&app, "/v1/completions", json!({"prompt": prompt, "max_tokens": 1})).await;
            let scored = score(&app, json!({"items": [{"prompt": prompt, "target": "4"}]})).await;
            let chosen = score(&app, json!({"items": [{"prompt": prompt, "candidates": ["4", "5"]}]})).await;
            // An empty list is a list of no prompts on completions, and a prompt of no ids here.
            let completed = if prompt.is_array() { status } else { completed.status.as_u16() };
            let got = [completed, scored.status.as_u16(), chosen.status.as_u16()];
            assert_eq!(got, [status; 3], "{prompt}: {}", scored.text);
            if status == 400 {
                assert_eq!(scored.error()["param"], "items[0].prompt");
                assert_eq!(scored.error()["message"], "`items[0].prompt` must not be empty");
            }
        }
    }
    assert_eq!(seen.lock().unwrap().last(), Some(&Vec::new()), "the model began with its start token");
}

#[tokio::test]
async fn options_without_effect_pass_with_their_defaults_and_where_any_item_has_them() {
    let app = four_or_five();
    let (target, candidates) =
        (json!({"prompt": "x", "target": "4"}), json!({"prompt": "x", "candidates": ["4"], "value": 4}));
    let all = json!({"lambda": 0.3, "reduction": "mean", "reweigh": false, "losses": [], "tau": 1, "normalize_by_length": false});
    let other = json!({"lambda": 1, "reduction": "sum", "reweigh": true, "losses": ["ce"], "tau": 2,
                       "normalize_by_length": true});
    for (items, options) in
        [(json!([target]), &all), (json!([candidates]), &all), (json!([target, candidates]), &other)]
    {
        let mut body = options.clone();
        body["items"] = items;
        let answer = score(&app, body.clone()).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    }
}

#[tokio::test]
async fn wrong_candidates_are_refused_by_name() {
    for (item, param) in [
        (json!({"prompt": "x"}), "items[0].target"),
        (json!({"prompt": "x", "target": "4", "candidates": ["4"]}), "items[0].candidates"),
        (json!({"prompt": "x", "candidates": []}), "items[0].candidates"),
        (json!({"prompt": "x", "candidates": vec!["4"; 1001]}), "items[0].candidates"),
        (json!({"prompt": "x", "candidates": ["4", ""]}), "items[0].candidates[1]"),
        (json!({"prompt": "x", "candidates": ["4", [1_000_000]]}), "items[0].candidates[1]"),
        (json!({"prompt": "x", "target": "4", "value": 4}), "items[0].value"),
        (json!({"prompt": "x", "candidates": ["4", "four"], "value": 4}), "items[0].candidates[1]"),
        (json!({"prompt": "x", "candidates": ["4", [5]], "value": 4}), "items[0].candidates[1]"),
    ] {
        let answer = score(&four_or_five(), json!({"items": [item.clone()]})).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!(param)), "{item}");
    }
    let many: Vec<Value> = (0..17).map(|_| json!({"prompt": "x", "candidates": vec!["4"; 1000]})).collect();
    assert_eq!(score(&four_or_five(), json!({"items": many})).await.error()["param"], "items");
    let items = json!([{"prompt": "x", "candidates": ["4"]}]);
    for tau in [json!(0), json!(-1), json!(1e7)] {
        let answer = score(&four_or_five(), json!({"items": items, "tau": tau})).await;
        assert_eq!(answer.error()["param"], "tau");
    }
}
