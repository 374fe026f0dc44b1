//! `number.interval` and calibration files.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use ntl_core::scripted::Script;
use ntl_engine::{CacheBudget, EngineLimits};
use ntl_server::app;
use ntl_server::calibration::{CalibrationFile, CalibrationFileError, calibrated};
use ntl_server::metrics::Metrics;
use ntl_server::served::ServedModel;
use ntl_server::state::AppState;
use serde_json::{Value, json};

use crate::support::{EOS, close, complete, loaded, logits, number, piece, scripted, server, settings};

/// 1 to 9, each with 0.1, and `x`.
fn script() -> Script {
    let digits: Vec<(u32, f64)> = (1..10).map(|digit| (piece(&digit.to_string()), 0.1)).collect();
    let letter = piece("x");
    Box::new(move |_, path| {
        let end =
            if path.is_empty() { [digits.as_slice(), &[(letter, 0.1)]].concat() } else { vec![(EOS, 1.0)] };
        Ok(logits(&end))
    })
}

fn file(change: impl FnOnce(&mut Value)) -> Value {
    let mut file = json!({
        "format": "ntl-calibration",
        "version": 1,
        "model": {"name": "scripted", "fingerprint": null},
        "task": {"name": "test", "route": "/v1/completions"},
        "number": {},
        "method": "cqr",
        "alpha": 0.2,
        "n": 100,
        "offset": 1.5
    });
    change(&mut file);
    file
}

/// A server of [`script`] with these calibrations.
fn calibrated_server(files: &[Value]) -> Result<Router, CalibrationFileError> {
    calibrated_server_of(script(), files)
}

/// A server of `scripted` with these calibrations.
pub(crate) fn calibrated_server_of(script: Script, files: &[Value]) -> Result<Router, CalibrationFileError> {
    let folder = tempfile::tempdir().unwrap();
    let write = |(index, file): (usize, &Value)| -> PathBuf {
        let path = folder.path().join(format!("{index}.json"));
        std::fs::write(&path, file.to_string()).unwrap();
        path
    };
    let paths: Vec<PathBuf> = files.iter().enumerate().map(write).collect();
    let files = paths.iter().map(|path| CalibrationFile::read(path)).collect::<Result<Vec<_>, _>>()?;
    let metrics = Arc::new(Metrics::new().unwrap());
    let state = AppState::new(settings(), Arc::clone(&metrics));
    let limits = EngineLimits::default();
    let budget = CacheBudget::new(limits.cache_bytes_max);
    let model = loaded(Box::new(scripted(script)));
    let (model, _) = ServedModel::start("scripted", model, limits, &budget, &metrics).unwrap();
    let model = calibrated(model.with_fingerprint("f00d".to_owned()), &files)?;
    state.models.publish(vec![model]);
    Ok(app::router(state))
}

async fn interval(app: &Router, options: Value) -> Value {
    number(app, options).await.1["interval"].clone()
}

#[tokio::test]
async fn without_a_calibration_an_interval_is_that_of_the_quantiles_and_says_so() {
    let app = server(script());
    let options = json!({"interval": 0.8, "quantiles": [0.1, 0.9]});
    let (_, answer) = number(&app, options).await;
    let [low, high] = [0, 1].map(|end| answer["quantiles"][end]["value"].as_f64().unwrap());
    let want = json!({"low": low, "high": high, "coverage": 0.8, "method": "quantiles"});
    assert_eq!(answer["interval"], want);
    assert!(number(&app, json!({})).await.1.get("interval").is_none());
    let refused = number(&app, json!({"interval": 0.8, "mass_min": 0.99})).await.1;
    assert!(refused.get("interval").is_none() && refused["reason"].is_string(), "{refused}");
}

#[tokio::test]
async fn an_interval_that_the_open_mass_can_move_anywhere_is_left_out_with_the_reason() {
    let app = server(script());
    let open = number(&app, json!({"interval": 0.8, "nodes_max": 5, "sampling": false})).await.1;
    assert!(open.get("interval").is_none(), "{open}");
    assert!(open["reason"].as_str().unwrap().contains("the interval is unbounded"), "{open}");
}

#[tokio::test]
async fn a_calibration_moves_both_ends_outwards_by_its_offset() {
    let app = calibrated_server(&[file(|_| {})]).unwrap();
    let quantiles = interval(&server(script()), json!({"interval": 0.8})).await;
    let conformal = interval(&app, json!({"interval": 0.8})).await;
    assert_eq!(conformal["method"], "conformal");
    assert!(close(&conformal["low"], quantiles["low"].as_f64().unwrap() - 1.5), "{conformal}");
    assert!(close(&conformal["high"], quantiles["high"].as_f64().unwrap() + 1.5), "{conformal}");
}

#[tokio::test]
async fn a_rating_ends_at_values_of_its_scale() {
    let ordinal = file(|file| {
        file["number"] = json!({"scale": [1, 9], "mass_min": 0});
        file["method"] = json!("cqr-ordinal");
    });
    let app = calibrated_server(&[ordinal]).unwrap();
    let options = json!({"interval": 0.8, "scale": [1, 9]});
    let quantiles = interval(&server(script()), options.clone()).await;
    let conformal = interval(&app, options).await;
    let ends = |interval: &Value| ["low", "high"].map(|end| interval[end].as_f64().unwrap());
    let [low, high] = ends(&quantiles);
    let [own_low, own_high] = ends(&conformal);
    assert!(close(&json!(own_low), f64::max(low - 1.0, 1.0)), "{conformal} {quantiles}");
    assert!(close(&json!(own_high), f64::min(high + 1.0, 9.0)), "{conformal} {quantiles}");
}

#[tokio::test]
async fn a_calibration_of_another_coverage_or_of_other_numbers_is_not_used_and_the_answer_says_so() {
    let second = file(|file| {
        file["number"] = json!({"terminator": "eos"});
        file["offset"] = json!(0.25);
    });
    let app = calibrated_server(&[file(|_| {}), second]).unwrap();
    for (options, said) in [
        (json!({"interval": 0.9}), "is for an `interval` of 0.8"),
        (json!({"interval": 0.8, "range": [0, 9]}), "is for another `number."),
        (json!({"interval": 0.8, "decimals_max": 2}), "is for another `number."),
    ] {
        let found = interval(&app, options).await;
        assert_eq!(found["method"], "quantiles");
        assert!(found["reason"].as_str().unwrap().contains(said), "{found}");
    }
    for options in [
        json!({"interval": 0.8, "objective": "median", "support": 3, "trim": 0.1, "normalize": false, "decimals": 2}),
        json!({"interval": 0.8, "terminator": "eos"}),
    ] {
        assert_eq!(interval(&app, options).await["method"], "conformal", "any of the files may hold");
    }
}

#[tokio::test]
async fn the_reason_names_the_nearest_calibrations() {
    let ranged = |alpha: f64| {
        file(|file| {
            file["alpha"] = json!(alpha);
            file["number"] = json!({"range": [0, 9]});
        })
    };
    let app = calibrated_server(&[file(|_| {}), ranged(0.1), ranged(0.05)]).unwrap();
    for (options, said) in [
        (
            json!({"interval": 0.8, "range": [0, 99]}),
            "the calibration of this model is for another `number.range`",
        ),
        (
            json!({"interval": 0.9}),
            "the nearest calibrations of this model are for an `interval` of 0.8, or for another `number.range`",
        ),
        (
            json!({"interval": 0.7, "range": [0, 9]}),
            "the nearest calibrations of this model are for an `interval` of 0.9, or for an `interval` of 0.95",
        ),
        (
            json!({"interval": 0.9, "range": [0, 99], "decimals_max": 2}),
            "the calibration of this model is for another `number.range` and another `number.decimals_max`",
        ),
    ] {
        assert_eq!(interval(&app, options).await["reason"], said);
    }
}

#[tokio::test]
async fn intervals_that_claim_a_calibration_cover_as_often_as_it_says_at_every_budget() {
    // 5 with 0.5, and each number of three digits that begins with 1 or 2 with 0.0025.
    let app = calibrated_server_of(spread(), &[spread_calibration()]).unwrap();
    let all = number(&app, json!({"range": [0, 999], "support": 1000})).await.1;
    let truths: Vec<(f64, f64)> = all["support"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["value"].as_f64().unwrap(), row["probability"].as_f64().unwrap()))
        .collect();
    assert!(truths.len() >= 201, "{}", truths.len());
    let mut claimed = 0;
    for budget in [
        json!({}),
        json!({"nodes_max": 10}),
        json!({"nodes_max": 40}),
        json!({"tolerance": 0.5}),
        json!({"tolerance": 0.9}),
        json!({"tolerance": 0.0005}),
    ] {
        let mut options = json!({"interval": 0.9, "range": [0, 999]});
        options.as_object_mut().unwrap().extend(budget.as_object().cloned().unwrap());
        let found = interval(&app, options).await;
        let [low, high] = ["low", "high"].map(|end| found[end].as_f64().unwrap());
        let inside = truths.iter().filter(|(value, _)| (low..=high).contains(value));
        let covered: f64 = inside.map(|(_, probability)| probability).sum();
        if found["method"] == "conformal" {
            assert!(covered >= 0.9 - 1e-3, "{budget}: {found} covers {covered}");
            claimed += 1;
        } else {
            let field = budget.as_object().unwrap().keys().next().unwrap();
            let reason = format!("the calibration of this model is for another `number.{field}`");
            assert_eq!(found["reason"], json!(reason));
        }
    }
    assert_eq!(claimed, 1, "the settings of the calibration alone");
}

/// 5 with 0.5, and 100 to 299 with 0.0025 each.
fn spread() -> Script {
    let [one, two, five] = ["1", "2", "5"].map(piece);
    let digits: Vec<(u32, f64)> = (0..10).map(|digit| (piece(&digit.to_string()), 0.1)).collect();
    Box::new(move |_, path| {
        Ok(match path {
            [] => logits(&[(five, 0.5), (one, 0.25), (two, 0.25)]),
            [first] if *first == five => logits(&[(EOS, 1.0)]),
            [_] | [_, _] => logits(&digits),
            _ => logits(&[(EOS, 1.0)]),
        })
    })
}

fn spread_calibration() -> Value {
    file(|file| {
        file["number"] = json!({"range": [0, 999]});
        file["alpha"] = json!(0.1);
        file["offset"] = json!(0);
    })
}

#[tokio::test]
async fn every_setting_that_changes_the_distribution_or_its_presence_must_be_that_of_the_calibration() {
    let app = calibrated_server(&[file(|_| {})]).unwrap();
    for (field, value) in [
        ("tolerance", json!(0.01)),
        ("nodes_max", json!(4095)),
        ("precision", json!(0.5)),
        ("time_max", json!(0.5)),
        ("method", json!("sample")),
        ("range", json!([0, 9])),
        ("scale", json!([0, 9])),
        ("terminator", json!("eos")),
        ("digits_max", json!(11)),
        ("decimals_max", json!(5)),
        ("sign", json!(false)),
        ("thousands", json!(true)),
        ("mass_min", json!(0.25)),
    ] {
        let found = interval(&app, json!({"interval": 0.8, field: value})).await;
        let reason = format!("the calibration of this model is for another `number.{field}`");
        assert_eq!((&found["method"], &found["reason"]), (&json!("quantiles"), &json!(reason)));
    }
    let exact = interval(&app, json!({"interval": 0.8, "sampling": false})).await;
    assert!(exact["reason"].as_str().unwrap().contains("another `number.sampling`"), "{exact}");
    let sampled = file(|file| file["number"] = json!({"method": "sample", "samples": 32}));
    let app = calibrated_server(&[sampled]).unwrap();
    for (samples, method) in [(32, "conformal"), (33, "quantiles")] {
        let options = json!({"interval": 0.8, "method": "sample", "samples": samples});
        assert_eq!(interval(&app, options).await["method"], method);
    }
}

#[tokio::test]
async fn a_calibration_after_a_text_is_for_texts_of_its_temperature() {
    // The first digit is the marker, the second one the number.
    let after = |temperature: Value| {
        file(|file| {
            file["number"] = json!({"after": "5"});
            file["temperature"] = temperature;
        })
    };
    let [five, six] = ["5", "6"].map(piece);
    let script = || -> Script {
        Box::new(move |_, path| Ok(logits(&[([five, six].get(path.len()).copied().unwrap_or(EOS), 1.0)])))
    };
    for (calibrated, fields, reason) in [
        (json!(0.0), json!({"temperature": 0, "top_p": 0.5}), None),
        (Value::Null, json!({"temperature": 0}), None),
        (json!(0.0), json!({}), Some("temperature")),
        (json!(1.0), json!({}), None),
        (json!(1.0), json!({"top_p": 0.5}), Some("top_p")),
        (json!(1.0), json!({"presence_penalty": 0.5}), Some("presence_penalty")),
    ] {
        let app = calibrated_server_of(script(), &[after(calibrated)]).unwrap();
        let mut body = json!({"prompt": "x", "number": {"after": "5", "interval": 0.8}});
        body.as_object_mut().unwrap().extend(fields.as_object().cloned().unwrap());
        let answer = complete(&app, body).await;
        let found = &answer.json()["choices"][0]["number"]["interval"];
        let said = reason.map(|field| format!("the calibration of this model is for another `{field}`"));
        assert_eq!(found["reason"].as_str(), said.as_deref(), "{fields}: {found}");
        assert_eq!(found["method"] == "conformal", reason.is_none(), "{found}");
    }
}

#[tokio::test]
async fn an_older_calibration_of_ratings_is_for_requests_with_the_mass_min_of_its_time() {
    let older = file(|file| {
        file["number"] = json!({"scale": [1, 9]});
        file["method"] = json!("cqr-ordinal");
    });
    let app = calibrated_server(&[older]).unwrap();
    for (options, method) in [
        (json!({"interval": 0.8, "scale": [1, 9], "mass_min": 0.5}), "conformal"),
        (json!({"interval": 0.8, "scale": [1, 9]}), "quantiles"),
    ] {
        assert_eq!(interval(&app, options).await["method"], method);
    }
}

#[test]
fn a_file_of_another_model_is_refused_at_the_start() {
    let refusal = |file| calibrated_server(&[file]).map(drop).unwrap_err();
    let text = |error: CalibrationFileError| {
        let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        format!("{error}: {source}")
    };
    for (file, said) in [
        (
            file(|file| file["model"]["name"] = json!("other")),
            "belongs to the model `other`, not to `scripted`",
        ),
        (
            file(|file| file["model"]["fingerprint"] = json!("beef")),
            "its fingerprint is beef, the fingerprint of `scripted` is f00d",
        ),
        (file(|file| file["version"] = json!(2)), "`version` is 2; this program reads 1"),
        (file(|file| file["number"] = json!({"method": "xval"})), "does not fit the model `scripted`"),
    ] {
        let error = text(refusal(file));
        assert!(error.contains(said), "{error}");
    }
    let renamed = file(|file| {
        file["model"] = json!({"name": "other", "fingerprint": "f00d"});
    });
    assert!(calibrated_server(&[renamed]).is_ok(), "the fingerprint decides where there is one");
    let missing = CalibrationFile::read(std::path::Path::new("/nothing.json")).unwrap_err();
    assert!(missing.to_string().contains("nothing.json"), "{missing}");
}

#[test]
fn files_that_contradict_each_other_are_refused_at_the_start() {
    let with = |offset: f64, coverage_missed: f64| {
        file(|file| {
            file["offset"] = json!(offset);
            file["alpha"] = json!(coverage_missed);
        })
    };
    let error = calibrated_server(&[with(1.5, 0.2), with(1.0, 0.1), with(2.0, 0.2)]).map(drop).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("0.json") && message.contains("2.json") && message.contains("1.5 and 2"),
        "{message}"
    );
    assert!(calibrated_server(&[with(1.5, 0.2), with(1.0, 0.1), with(1.5, 0.2)]).is_ok());
}

#[tokio::test]
async fn wrong_coverages_are_refused() {
    for coverage in [json!(0), json!(1), json!(-0.1), json!("90%")] {
        let answer =
            complete(&server(script()), json!({"prompt": "x", "number": {"interval": coverage}})).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("number.interval")));
    }
}
