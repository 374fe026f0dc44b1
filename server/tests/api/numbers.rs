//! The `number` object of `POST /v1/completions`: its shape, estimates and masses. Not here: methods
//! (`methods`).

use crate::support::{
    EOS, close, complete, four_or_five, ids, logits, metric, number, piece, says, server, without_names,
};
use axum::Router;
use serde_json::{Value, json};

#[tokio::test]
async fn a_number_has_the_shape_of_the_contract() {
    let body = json!({"prompt": "x", "number": {"objective": "median", "quantiles": [0.5, 0.9]}});
    let answer = complete(&four_or_five(), body).await;
    insta::assert_json_snapshot!("number", without_names(answer.json()), {
        ".choices[].number.mean" => insta::rounded_redaction(4),
        ".choices[].number.trimmed_mean" => insta::rounded_redaction(4),
        ".choices[].number.std" => insta::rounded_redaction(4),
        ".choices[].number.mass.*" => insta::rounded_redaction(4),
        ".choices[].number.support[].probability" => insta::rounded_redaction(4),
        ".choices[].number.bounds.trimmed_mean[]" => insta::rounded_redaction(4),
    });
}

#[tokio::test]
async fn each_objective_gives_its_own_value_and_prints_it() {
    let app = four_or_five();
    for (options, want, text) in [
        (json!({"objective": "mean", "trim": 0, "decimals": 2}), 13.0 / 3.0, "4.33"),
        (json!({"objective": "mean", "trim": 0, "decimals": 0}), 13.0 / 3.0, "4"),
        (json!({"objective": "median"}), 4.0, "4"),
        (json!({"objective": "mode"}), 4.0, "4"),
        (json!({"objective": {"quantile": 0.9}, "decimals": 1}), 5.0, "5.0"),
    ] {
        let (printed, number) = number(&app, options.clone()).await;
        assert!(close(&number["value"], want), "{options}: {number}");
        assert_eq!(printed, text, "{options}");
    }
}

#[tokio::test]
async fn masses_add_up_and_the_open_mass_keeps_to_the_tolerance() {
    // Any number of digits; each further digit is ten times less probable.
    let digits: Vec<(u32, f64)> = (0..10).map(|digit| (piece(&digit.to_string()), 0.05)).collect();
    let app = server(Box::new(move |_, path| {
        let end = if path.is_empty() { (piece("x"), 0.5) } else { (EOS, 0.5) };
        Ok(logits(&[digits.as_slice(), &[end]].concat()))
    }));
    for options in [
        json!({"tolerance": 0.1, "sampling": false}),
        json!({"tolerance": 0.1, "nodes_max": 5}),
        json!({"digits_max": 1, "decimals_max": 0}),
    ] {
        let (_, number) = number(&app, options.clone()).await;
        let mass: f64 =
            ["closed", "invalid", "open"].iter().map(|part| number["mass"][part].as_f64().unwrap()).sum();
        assert!((mass - 1.0).abs() < 1e-6, "{options}: {number}");
        let limited = options.get("nodes_max").is_some();
        assert_eq!(number["truncated"], limited, "{options}: {number}");
    }
}

#[tokio::test]
async fn a_search_that_is_out_of_time_returns_what_it_has_found() {
    let app = four_or_five();
    let (_, whole) = number(&app, json!({})).await;
    let (_, unhurried) = number(&app, json!({"time_max": 1e9})).await;
    assert_eq!((&unhurried["mass"], &unhurried["truncated"]), (&whole["mass"], &json!(false)));
    let (_, late) = number(&app, json!({"time_max": 1e-9, "sampling": false})).await;
    assert_eq!((&late["truncated"], &late["nodes"]), (&json!(true), &json!(1)), "{late}");
    assert!(late["mass"]["open"].as_f64().unwrap() > 0.5, "{late}");
    assert_eq!((&late["value"], &late["reason"]), (&Value::Null, &json!("no closed mass")));
}

#[tokio::test]
async fn without_enough_closed_mass_there_is_no_value_but_a_reason() {
    let app = four_or_five();
    let (text, refused) = number(&app, json!({"mass_min": 0.95})).await;
    assert_eq!((text.as_str(), &refused["value"]), ("", &Value::Null));
    assert_eq!(
        refused["reason"],
        "closed mass 0.9 is below mass_min 0.95; the model would write \"x\" (0.1)"
    );
    assert_eq!(refused["bounds"]["value"], Value::Null);
    assert!(close(&refused["mode"], 4.0));
    let mute = server(Box::new(|_, _| Ok(logits(&[(piece("x"), 1.0)]))));
    let (text, none) = number(&mute, json!(true)).await;
    assert_eq!((text.as_str(), &none["value"], &none["mean"]), ("", &Value::Null, &Value::Null));
    assert_eq!(none["reason"], "no closed mass");
}

#[tokio::test]
async fn what_would_be_minus_zero_or_infinite_is_plain_json() {
    let minus = piece("-");
    let zero = piece("0");
    let app = server(Box::new(move |_, path| {
        Ok(match path.len() {
            0 => logits(&[(minus, 1.0)]),
            1 => logits(&[(zero, 1.0)]),
            _ => logits(&[(EOS, 1.0)]),
        })
    }));
    let (text, number) = number(&app, json!({"decimals": 2})).await;
    assert!(!number.to_string().contains("-0"), "{number}");
    assert_eq!(text, "0.00");
}

#[tokio::test]
async fn a_streamed_number_is_one_chunk() {
    let app = four_or_five();
    let mut body = json!({"prompt": ["a", "b"], "number": true, "stream": true});
    let chunks = complete(&app, body.clone()).await.chunks();
    assert_eq!(chunks.len(), 2);
    for chunk in &chunks {
        assert_eq!(chunk["choices"][0]["finish_reason"], "stop");
        assert!(chunk["choices"][0]["number"]["value"].is_f64(), "{chunk}");
    }
    body["stream_options"] = json!({"include_usage": true});
    let chunks = complete(&app, body.clone()).await.chunks();
    assert_eq!(chunks.len(), 3);
    body["stream"] = false.into();
    body["stream_options"] = Value::Null;
    let whole = complete(&app, body).await.json();
    assert_eq!(chunks[2]["usage"], whole["usage"]);
    let choices = whole["choices"].as_array().unwrap();
    let tokens: usize = choices.iter().map(|choice| ids(choice["text"].as_str().unwrap()).len()).sum();
    assert_eq!(whole["usage"]["completion_tokens"], tokens);
}

#[tokio::test]
async fn usage_counts_the_tokens_of_the_printed_number_and_nodes_have_a_metric_of_their_own() {
    for stream in [false, true] {
        let app = four_or_five();
        let number = json!({"trim": 0, "decimals": 6});
        let mut body = json!({"prompt": "x", "number": number, "stream": stream});
        if stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        let answer = complete(&app, body).await;
        let usage = if stream { answer.chunks().pop().unwrap() } else { answer.json() }["usage"].clone();
        let tokens = ids("4.333333").len();
        assert!(tokens > 3, "more tokens than the tree has nodes");
        assert_eq!(usage["completion_tokens"], tokens, "{}", answer.text);
        assert!(
            (metric(&app, "ntl_generation_tokens_total{model=\"scripted\"}").await - tokens as f64).abs()
                < 1e-9
        );
        assert!((metric(&app, "ntl_number_nodes_sum{model=\"scripted\"}").await - 3.0).abs() < 1e-9);
    }
}

#[tokio::test]
async fn a_range_makes_the_numbers_outside_invalid_and_bounds_the_plain_mean() {
    let (_, inside) = number(&four_or_five(), json!({"range": [4.5, 100]})).await;
    assert!(close(&inside["value"], 5.0) && close(&inside["mass"]["invalid"], 0.7), "{inside}");
    // A number may continue, so that one position leaves mass open: on values that only the range bounds.
    let four = piece("4");
    let five = piece("5");
    let app = server(Box::new(move |_, path| {
        Ok(if path.is_empty() {
            logits(&[(four, 0.9), (five, 0.1)])
        } else {
            logits(&[(EOS, 0.5), (five, 0.5)])
        })
    }));
    let options = |range: Value| json!({"trim": 0, "nodes_max": 2, "range": range});
    let (_, free) = number(&app, options(Value::Null)).await;
    assert!(free["mass"]["open"].as_f64().unwrap() > 0.1 && free["bounds"]["value"].is_null(), "{free}");
    let (_, bounded) = number(&app, options(json!([0, 60]))).await;
    let bound = |end: usize| bounded["bounds"]["value"][end].as_f64().unwrap();
    let value = bounded["value"].as_f64().unwrap();
    assert!(0.0 <= bound(0) && bound(0) <= value && value <= bound(1) && bound(1) <= 60.0, "{bounded}");
    assert_eq!(bounded["bounds"]["value"], bounded["bounds"]["trimmed_mean"]);
}

/// Says 4; a 1 follows with `more`, and again after that.
fn goes_on(more: f64) -> Router {
    let four = piece("4");
    let one = piece("1");
    server(Box::new(move |_, path| {
        Ok(if path.is_empty() { logits(&[(four, 1.0)]) } else { logits(&[(EOS, 1.0 - more), (one, more)]) })
    }))
}

#[tokio::test]
async fn an_estimate_that_the_open_mass_leaves_unbounded_gives_way_to_the_median_or_to_none() {
    let mean = json!({});
    let median = json!({"objective": "median"});
    let quantile = json!({"objective": {"quantile": 0.95}});
    // With two nodes, `more` is the open mass.
    for (more, options, estimate, reason) in [
        (0.2, &mean, "median", "open mass 0.2 exceeds trim 0.005: the trimmed mean is unbounded"),
        (0.2, &json!({"trim": 0}), "median", "open mass 0.2 exceeds trim 0: the trimmed mean is unbounded"),
        (0.2, &quantile, "median", "open mass 0.2: the quantile 0.95 is unbounded"),
        (
            0.6,
            &mean,
            "",
            "open mass 0.6 exceeds trim 0.005: the trimmed mean is unbounded, and so is the median",
        ),
        (0.6, &median, "", "open mass 0.6: the median is unbounded"),
        (0.6, &json!({"objective": "mode"}), "mode", ""),
        (0.6, &json!({"range": [0, 100], "objective": "median"}), "median", ""),
        (0.2, &median, "median", ""),
        (0.001, &mean, "trimmed_mean", ""),
    ] {
        let mut limited = options.clone();
        limited["nodes_max"] = 2.into();
        limited["sampling"] = false.into();
        let (text, found) = number(&goes_on(more), limited).await;
        assert_eq!(found["estimate"].as_str().unwrap_or_default(), estimate, "{options}: {found}");
        assert_eq!(found["reason"].as_str().unwrap_or_default(), reason, "{options}: {found}");
        if estimate.is_empty() {
            assert_eq!((text.as_str(), &found["value"]), ("", &Value::Null), "{options}: {found}");
        } else {
            assert_eq!((text.as_str(), &found["value"]), ("4", &json!(4.0)), "{options}: {found}");
        }
        let bounds = found["bounds"]["value"].is_array();
        assert_eq!(bounds, reason.is_empty() && estimate != "mode", "{options}: {found}");
    }
}

#[tokio::test]
async fn auto_is_the_mode_of_a_majority_and_otherwise_the_mean() {
    let auto = |app: Router, options: Value| async move {
        let mut options = options;
        options["objective"] = json!("auto");
        number(&app, options).await.1
    };
    // 4 has two thirds of the closed mass.
    let sure = auto(four_or_five(), json!({})).await;
    assert_eq!((&sure["value"], &sure["estimate"]), (&json!(4.0), &json!("mode")), "{sure}");
    assert_eq!(
        (&sure["bounds"]["value"], &sure["objective"]),
        (&json!([4.0, 4.0]), &json!("auto")),
        "{sure}"
    );
    let [four, six, nine] = ["4", "6", "9"].map(piece);
    let split = || {
        server(Box::new(move |_, path| {
            let first = [(four, 0.4), (six, 0.35), (nine, 0.25)];
            Ok(logits(if path.is_empty() { &first } else { &[(EOS, 1.0)] }))
        }))
    };
    let unsure = auto(split(), json!({})).await;
    assert_eq!((&unsure["value"], &unsure["estimate"]), (&unsure["trimmed_mean"], &json!("trimmed_mean")));
    assert!(close(&auto(split(), json!({"trim": 0})).await["value"], 5.95), "{unsure}");
    // 4 has 0.4 of the closed mass, but the open mass of 0.6 may close at any value.
    let open = auto(goes_on(0.6), json!({"nodes_max": 2, "sampling": false})).await;
    assert_eq!((&open["value"], &open["bounds"]["value"]), (&Value::Null, &Value::Null), "{open}");
    // 4 has 0.8, which the rest cannot overtake.
    let settled = auto(goes_on(0.2), json!({"nodes_max": 2, "sampling": false})).await;
    assert_eq!((&settled["value"], &settled["bounds"]["value"]), (&json!(4.0), &json!([4.0, 4.0])));
    assert!(settled["reason"].is_null(), "{settled}");
}

#[tokio::test]
async fn open_mass_is_sampled_and_only_estimates_use_the_draws() {
    let app = goes_on(0.6);
    let (_, alone) = number(&app, json!({"nodes_max": 2, "sampling": false})).await;
    assert_eq!((&alone["sampled"], &alone["value"]), (&Value::Null, &Value::Null), "{alone}");
    let (text, found) = number(&app, json!({"nodes_max": 2, "interval": 0.5})).await;
    for part in ["mass", "bounds"] {
        assert_eq!(found[part], alone[part], "{found}");
    }
    assert_eq!((&found["sampled"]["draws"], &found["truncated"]), (&json!(64), &json!(true)), "{found}");
    assert!(found["sampled"]["standard_error"].as_f64().unwrap() > 0.0, "{found}");
    assert_eq!((&found["estimate"], &found["reason"]), (&json!("trimmed_mean"), &Value::Null), "{found}");
    // 4 has 0.4 of the mass, exactly; 41 has 0.24, and 411 and longer numbers have the rest.
    assert!(close(&found["median"], 41.0) && text.parse::<f64>().unwrap() > 4.0, "{found}");
    assert!(found["interval"].is_object() && close(&found["support"][0]["probability"], 0.4), "{found}");
    let (_, closed) = number(&app, json!({"nodes_max": 2, "mass_min": 0.9})).await;
    assert!(closed["value"].is_number(), "{closed}");

    // Without a seed, the draws depend on the prompt alone.
    assert_eq!(number(&app, json!({"nodes_max": 2, "interval": 0.5})).await, (text, found));
    let seeded = async |seed: u64| {
        let body = json!({"prompt": "x", "seed": seed, "number": {"nodes_max": 2}});
        complete(&app, body).await.json()["choices"][0]["number"].clone()
    };
    assert_eq!(seeded(1).await, seeded(1).await);
    assert_ne!(seeded(1).await["mean"], seeded(2).await["mean"]);

    // A mode has no standard error, and a number that ends within the budget no draws.
    let (_, mode) = number(&app, json!({"nodes_max": 2, "objective": "mode"})).await;
    assert_eq!(mode["sampled"], json!({"draws": 64, "standard_error": null}), "{mode}");
    let (_, sure) = number(&four_or_five(), json!({})).await;
    assert_eq!((&sure["sampled"], &sure["truncated"]), (&Value::Null, &json!(false)), "{sure}");
}

#[tokio::test]
async fn a_search_ends_after_320_positions_unless_the_request_has_a_limit() {
    // Four digits, all equally probable.
    let digits: Vec<(u32, f64)> = (0..10).map(|digit| (piece(&digit.to_string()), 0.1)).collect();
    let script =
        move |_: &[u32], path: &[u32]| Ok(logits(if path.len() < 4 { &digits } else { &[(EOS, 1.0)] }));
    let app = server(Box::new(script));
    let (_, found) = number(&app, json!({"range": [0, 9999]})).await;
    let nodes = found["nodes"].as_u64().unwrap();
    assert!((321..=320 + 64 * 5).contains(&nodes), "{found}");
    let value = found["value"].as_f64().unwrap();
    let error = found["sampled"]["standard_error"].as_f64().unwrap();
    assert!((value - 4999.5).abs() < 4.0 * error && error < 300.0, "{found}");
    let (_, whole) = number(&app, json!({"range": [0, 9999], "sampling": false})).await;
    assert_eq!((&whole["nodes"], &whole["sampled"]), (&json!(4096), &Value::Null));
    let (_, more) = number(&app, json!({"range": [0, 9999], "nodes_max": 5000})).await;
    assert!(more["nodes"].as_u64().unwrap() > 5000 && more["sampled"].is_object(), "{more}");
}

#[tokio::test]
async fn methods_without_bounds_keep_their_estimates() {
    for (method, estimate) in [("sample", "trimmed_mean"), ("beam", "trimmed_mean"), ("token", "expectation")]
    {
        let (_, found) = number(&goes_on(0.2), json!({"method": method})).await;
        assert!(found["value"].is_f64() && found["reason"].is_null(), "{found}");
        assert_eq!(found["estimate"], estimate, "{found}");
    }
}

#[tokio::test]
async fn without_normalizing_a_mean_is_the_raw_sum() {
    let (text, raw) = number(&four_or_five(), json!({"normalize": false, "trim": 0, "decimals": 1})).await;
    assert!(close(&raw["value"], 3.9) && close(&raw["mean"], 3.9), "{raw}");
    assert!(close(&raw["median"], 4.0) && text == "3.9", "{raw}");
}

#[tokio::test]
async fn a_precision_ends_the_search_as_soon_as_the_value_is_certain() {
    // 7 is certain after one position, although each number can continue forever.
    let seven = piece("7");
    let digit = piece("1");
    let app = server(Box::new(move |_, path| {
        let first = [(seven, 0.9), (digit, 0.1)];
        Ok(if path.is_empty() { logits(&first) } else { logits(&[(EOS, 0.8), (digit, 0.2)]) })
    }));
    let (_, all) = number(&app, json!({"objective": "mode", "tolerance": 1e-6})).await;
    let (text, enough) = number(&app, json!({"objective": "mode", "tolerance": 1e-6, "precision": 0})).await;
    assert_eq!((text.as_str(), &enough["bounds"]["value"]), ("7", &json!([7.0, 7.0])));
    assert!(enough["nodes"].as_u64() < all["nodes"].as_u64(), "{enough} {all}");
    assert!(enough["mass"]["open"].as_f64() > all["mass"]["open"].as_f64(), "{enough} {all}");
    assert_eq!((&enough["truncated"], &enough["mode"]), (&json!(false), &all["mode"]));
}

#[tokio::test]
async fn groups_of_three_digits_are_one_number_when_asked_for() {
    let app = server(says("1,234"));
    for (thousands, want) in
        [(Value::Null, 1.0), (json!(true), 1234.0), (json!(","), 1234.0), (json!("_"), 1.0)]
    {
        let (_, found) = number(&app, json!({"objective": "mode", "thousands": thousands})).await;
        assert!(close(&found["value"], want), "{thousands}: {found}");
    }
}
