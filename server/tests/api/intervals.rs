//! `number.interval` and calibration files.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use ntl_engine::{CacheBudget, EngineLimits};
use ntl_server::app;
use ntl_server::calibration::{CalibrationFile, CalibrationFileError, calibrated};
use ntl_server::engine::ServedModel;
use ntl_server::metrics::Metrics;
use ntl_server::state::AppState;
use serde_json::{Value, json};

use crate::support::{EOS, close, complete, loaded, logits, number, piece, scripted, server, settings};

/// 1 to 9, each with 0.1, and `x`.
fn script() -> ntl_core::scripted::Script {
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

/// A server of `scripted` with these calibrations.
fn calibrated_server(files: &[Value]) -> Result<Router, CalibrationFileError> {
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
    let model = loaded(Box::new(scripted(script())));
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
    let open = number(&app, json!({"interval": 0.8, "nodes_max": 5})).await.1;
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
        file["number"] = json!({"scale": [1, 9]});
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
        json!({"interval": 0.8, "objective": "median", "support": 3, "tolerance": 0.0005}),
        json!({"interval": 0.8, "terminator": "eos"}),
    ] {
        assert_eq!(interval(&app, options).await["method"], "conformal", "any of the files may hold");
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
        (file(|file| file["model"]["name"] = json!("other")), "is of the model `other`, not of `scripted`"),
        (
            file(|file| file["model"]["fingerprint"] = json!("beef")),
            "its fingerprint is beef, that of `scripted` is f00d",
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

#[tokio::test]
async fn wrong_coverages_are_refused() {
    for coverage in [json!(0), json!(1), json!(-0.1), json!("90%")] {
        let answer =
            complete(&server(script()), json!({"prompt": "x", "number": {"interval": coverage}})).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("number.interval")));
    }
}
