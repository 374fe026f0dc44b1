//! `ntl-eval calibrate` on the directory of a run: the file, the coverage on held-out items, and rejected
//! runs.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::{Mock, err, error, ntl_eval, number, out};
use ntl_api::{Calibration, CalibrationMethod};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A run over 40 items whose truths are 0 to 39. The model always answers 20, with the quantiles 16 and 21.
struct Fixture {
    folder: TempDir,
    mock: Mock,
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let items: String = (0..40).map(|truth| format!("{truth}\tjoke {truth}\n")).collect();
    fs::write(folder.path().join("test.tsv"), items).unwrap();
    let mock = Mock::start(&["tiny"], |prompt, _| {
        if prompt == "joke 39" { error(400, "too long") } else { number(20.0, 20.0, 20.0) }
    });
    Fixture { folder, mock }
}

impl Fixture {
    /// Runs all items in regress mode. The last one fails.
    fn ask(&self, name: &str, more: &[&str]) -> PathBuf {
        let data = self.folder.path().join("test.tsv");
        let to = self.folder.path().join(name);
        let flags = ["rjokes", "--quiet", "--endpoint", &self.mock.url];
        let files = ["--data", data.to_str().unwrap(), "--out", to.to_str().unwrap()];
        let output = ntl_eval(&[&flags[..], &files, more].concat());
        assert!(to.join("report.json").is_file(), "{}", err(&output));
        to
    }

    fn calibrate(&self, run: &Path, more: &[&str]) -> Output {
        let file = self.file();
        let files = ["calibrate", run.to_str().unwrap(), "--out", file.to_str().unwrap()];
        ntl_eval(&[&files[..], more].concat())
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("calibration.json")
    }
}

#[test]
fn a_server_accepts_a_calibration_and_it_covers_held_out_items() {
    let fixture = fixture();
    let run = fixture.ask("run", &["--mode", "regress"]);
    let output = fixture.calibrate(&run, &["--items", "19", "--seed", "0", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let calibration = Calibration::read(&fs::read_to_string(fixture.file()).unwrap()).unwrap();
    assert_eq!(
        (calibration.model.name.as_str(), calibration.model.fingerprint.as_deref()),
        ("tiny", Some("00ff"))
    );
    assert_eq!(
        (calibration.task.name.as_str(), calibration.task.route.as_str()),
        ("rjokes", "/v1/completions")
    );
    assert_eq!((calibration.method, calibration.n), (CalibrationMethod::Cqr, 19));
    assert!(calibration.created.is_some());
    let mut settings = fixture.mock.bodies()[0]["number"].clone();
    let defaults = json!({
        "tolerance": 0.001, "sampling": true, "digits_max": 12, "decimals_max": 6, "sign": true, "terminator": "any",
        "mass_min": 0.0
    });
    settings.as_object_mut().unwrap().extend(defaults.as_object().cloned().unwrap());
    assert_eq!(json!(calibration.number), settings);
    let found: Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!((&found["left_out"], &found["held_out"]["n"]), (&json!(1), &json!(20)));
    assert_eq!(found["calibration"]["offset"], json!(calibration.offset));
    let figures = |name: &str| {
        let figures = &found["held_out"][name];
        (figures["coverage"]["value"].as_f64().unwrap(), figures["width"]["value"].as_f64().unwrap())
    };
    let ((before, narrow), (after, wide)) = (figures("quantiles"), figures("conformal"));
    assert!(before < 0.5 && after > 0.7, "{before} {after}");
    assert!((narrow - 5.0).abs() < 1e-12 && (wide - 5.0 - 2.0 * calibration.offset).abs() < 1e-12);
    // The same seed draws the same items.
    let again = fixture.calibrate(&run, &["--items", "19", "--seed", "0", "--json", "--overwrite"]);
    let again: Value = serde_json::from_str(&out(&again)).unwrap();
    assert_eq!(again["held_out"], found["held_out"]);
}

#[test]
fn a_table_shows_coverage_and_width_before_and_after() {
    let fixture = fixture();
    let run = fixture.ask("run", &["--mode", "regress"]);
    let shown = out(&fixture.calibrate(&run, &[]));
    assert!(shown.contains("from 20 items of rjokes test, model tiny"), "{shown}");
    assert!(shown.contains("1 items have no interval or no true number and are left out"), "{shown}");
    assert!(shown.contains("| quantiles ") && shown.contains("| conformal "), "{shown}");
    let all = out(&fixture.calibrate(&run, &["--items", "39", "--overwrite"]));
    assert!(all.contains("no items are held out"), "{all}");
}

#[test]
fn an_existing_file_is_kept_without_overwrite() {
    let fixture = fixture();
    let run = fixture.ask("run", &["--mode", "regress"]);
    fs::write(fixture.file(), "notes").unwrap();
    let refused = fixture.calibrate(&run, &[]);
    let complaint = format!("{} exists: replace it with --overwrite", fixture.file().display());
    assert_eq!(refused.status.code(), Some(1));
    assert!(err(&refused).contains(&complaint), "{}", err(&refused));
    assert_eq!(fs::read_to_string(fixture.file()).unwrap(), "notes");
    assert_eq!(fixture.calibrate(&run, &["--overwrite"]).status.code(), Some(0));
    assert!(Calibration::read(&fs::read_to_string(fixture.file()).unwrap()).is_ok());
}

#[test]
fn a_calibration_records_the_settings_of_the_run() {
    let fixture = fixture();
    for (flags, field, want) in [
        (&["--tolerance", "0.5"][..], "tolerance", json!(0.5)),
        (&["--digits-max", "4"], "digits_max", json!(4)),
        (&["--after", "#"], "rationales", json!(1)),
    ] {
        let run = fixture.ask(field, &[&["--mode", "regress"][..], flags].concat());
        let made = fixture.calibrate(&run, &["--overwrite"]);
        assert_eq!(made.status.code(), Some(0), "{}", err(&made));
        let file: Value = serde_json::from_str(&fs::read_to_string(fixture.file()).unwrap()).unwrap();
        assert_eq!(file["number"][field], want, "{file}");
        assert_eq!(file["temperature"], if field == "rationales" { json!(0.0) } else { Value::Null });
    }
}

#[test]
fn ratings_get_the_ordinal_method() {
    let fixture = fixture();
    let words = ["--template", "{question}", "--api", "chat", "--system", "Rate it."];
    let run = fixture.ask("run", &[&["--mode", "regress", "--scale", "0,50"][..], &words].concat());
    assert_eq!(fixture.calibrate(&run, &[]).status.code(), Some(0));
    let calibration = Calibration::read(&fs::read_to_string(fixture.file()).unwrap()).unwrap();
    assert_eq!(calibration.method, CalibrationMethod::CqrOrdinal);
    assert_eq!(calibration.task.route, "/v1/chat/completions");
    assert_eq!(calibration.task.template.as_deref(), Some("{question}"));
    assert_eq!(calibration.task.system.as_deref(), Some("Rate it."));
}

#[test]
fn runs_that_cannot_be_calibrated_are_rejected_with_the_reason() {
    let fixture = fixture();
    let [regress, short, plain] = [
        fixture.ask("regress", &["--mode", "regress"]),
        fixture.ask("short", &["--mode", "regress", "--limit", "8"]),
        fixture.ask("plain", &[]),
    ];
    for (run, flags, complaint) in [
        (&plain, &[][..], "is a run in text mode; intervals need --mode regress"),
        (
            &regress,
            &["--alpha", "0.2"],
            "alpha 0.2 needs the quantile 0.1, but the requests of the run only had",
        ),
        (&regress, &["--items", "40"], "--items 40 is more than the 39 items with an interval"),
        (&short, &["--items", "8"], "8 items are too few for alpha 0.1:"),
    ] {
        let refused = fixture.calibrate(run, flags);
        assert_eq!(refused.status.code(), Some(1), "{flags:?}");
        assert!(err(&refused).contains(complaint), "{flags:?}: {}", err(&refused));
        assert!(!fixture.file().exists());
    }
}
