//! `ntl-eval compare` and `ntl-eval report` on run directories that the binary itself or another program
//! wrote.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Mock, Scripted, err, ntl_eval, number, out, text};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Forty problems `i + i`, and two runs over them.
struct Fixture {
    folder: TempDir,
    a: PathBuf,
    b: PathBuf,
}

fn sum(prompt: &str) -> f64 {
    2.0 * prompt.split(' ').next().unwrap().parse::<f64>().unwrap()
}

/// A answers in texts and is 3 too high on every other item. B answers in numbers. It is incorrect on two
/// items, on one of which it returns no number.
fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("arithmetic_test_interpolate.txt");
    let pairs: Vec<String> = (1..=40).map(|i| format!("{i} + {i}\n{}\n", 2 * i)).collect();
    fs::write(&data, pairs.concat()).unwrap();
    let texts = Mock::start(&["greedy"], |prompt, _| match sum(prompt) {
        sum if sum % 4.0 < 1.0 => text(&format!(" {}", sum + 3.0)),
        sum => text(&format!(" {sum}")),
    });
    let numbers = Mock::start(&["regress"], |prompt, _| match sum(prompt) {
        sum if sum < 2.5 => refused(),
        sum if sum > 79.5 => number(sum + 9.0, sum + 9.0, sum + 9.0),
        sum => number(sum, sum, sum),
    });
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    ask(&texts, &data, &a, "text");
    ask(&numbers, &data, &b, "regress");
    Fixture { folder, a, b }
}

/// A number that was rejected for lack of mass.
fn refused() -> Scripted {
    let Scripted(status, headers, body) = number(1.0, 1.0, 1.0);
    let mut body: Value = serde_json::from_str(&body).unwrap();
    body["choices"][0]["number"]["value"] = Value::Null;
    Scripted(status, headers, body.to_string())
}

fn ask(mock: &Mock, data: &Path, folder: &Path, mode: &str) {
    let [data, folder] = [data, folder].map(|path| path.to_str().unwrap());
    let output = ntl_eval(
        &[
            &[
                "arithmetic",
                "--split",
                "interpolate",
                "--endpoint",
                &mock.url,
                "--data",
                data,
                "--out",
                folder,
            ],
            &["--mode", mode, "--quiet"][..],
        ]
        .concat(),
    );
    assert!(folder_of_run(folder), "{}", err(&output));
}

fn folder_of_run(folder: &str) -> bool {
    ["report.json", "samples.jsonl"].iter().all(|name| Path::new(folder).join(name).is_file())
}

impl Fixture {
    fn compare(&self, more: &[&str]) -> String {
        let sides = [&self.a, &self.b].map(|path| path.to_str().unwrap());
        let output = ntl_eval(&[&["compare", sides[0], sides[1], "--resamples", "500"], more].concat());
        assert_eq!((output.status.code(), err(&output)), (Some(0), String::new()));
        out(&output)
    }
}

#[test]
fn two_runs_of_this_program_are_compared() {
    let fixture = fixture();
    let found: Value = serde_json::from_str(&fixture.compare(&["--json", "--items", "2"])).unwrap();
    assert_eq!((&found["task"], &found["split"]), (&json!("arithmetic"), &json!("interpolate")));
    assert_eq!((&found["a"]["model"], &found["b"]["mode"]), (&json!("greedy"), &json!("regress")));
    let mae = found["metrics"].as_array().unwrap().iter().find(|metric| metric["name"] == "mae").unwrap();
    assert_eq!(
        (&mae["better"], &mae["difference"].as_f64().unwrap().is_sign_negative()),
        (&json!("lower"), &true)
    );
    assert!(mae["verdict"].as_str().unwrap().starts_with("B is better on mae: B - A is -1.308 ["), "{mae}");
    assert_eq!(found["mcnemar"]["only_b"], 19);
    let items: Vec<_> = found["items"].as_array().unwrap().iter().map(|item| &item["doc_id"]).collect();
    assert_eq!(items, [39, 1], "the largest difference is B's only incorrect number");
}

#[test]
fn terminals_and_markdown_get_the_same_content() {
    let fixture = fixture();
    let plain = fixture.compare(&[]);
    let markdown = fixture.compare(&["--markdown"]);
    assert!(plain.starts_with("arithmetic interpolate, 40 items\nA: greedy, text mode ("), "{plain}");
    assert!(markdown.starts_with("# arithmetic interpolate: A against B\n"), "{markdown}");
    for text in [&plain, &markdown] {
        assert!(text.contains("McNemar on accuracy: A alone is correct on 1, B alone on 19; p "), "{text}");
        assert!(text.contains("| mae "), "{text}");
    }
    assert_eq!(plain, fixture.compare(&[]), "the bootstrap is seeded");
}

#[test]
fn runs_over_different_items_are_rejected_with_the_first_difference() {
    let fixture = fixture();
    let samples = fixture.b.join("samples.jsonl");
    let changed = fs::read_to_string(&samples).unwrap().replace("7 + 7", "7 + 6");
    fs::write(&samples, changed).unwrap();
    let sides = [&fixture.a, &fixture.b].map(|path| path.to_str().unwrap());
    let output = ntl_eval(&["compare", sides[0], sides[1]]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        err(&output),
        "error: item 6 has a different question in each run: \"7 + 7\" in A, \"7 + 6\" in B\n"
    );
}

#[test]
fn a_directory_without_a_run_is_rejected() {
    let fixture = fixture();
    let folder = fixture.folder.path().to_str().unwrap();
    let output = ntl_eval(&["compare", folder, fixture.b.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("holds no report.json; there is one in "), "{}", err(&output));
    let empty = tempfile::tempdir().unwrap();
    let output = ntl_eval(&["report", empty.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("holds no report.json"), "{}", err(&output));
}

#[cfg(unix)]
#[test]
fn a_report_replaces_a_link_and_not_the_file_that_it_points_to() {
    let fixture = fixture();
    let other = fixture.folder.path().join("other");
    fs::write(&other, "mine").unwrap();
    let page = fixture.b.join("report.html");
    // The second name belongs to the file that becomes the page.
    for name in ["report.html", "report.html.tmp"] {
        std::os::unix::fs::symlink(&other, fixture.b.join(name)).unwrap();
        let output = ntl_eval(&["report", fixture.b.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
        assert!(!page.is_symlink() && fs::read_to_string(&page).unwrap().contains("<html"));
    }
}

#[test]
fn a_report_is_two_self_contained_files() {
    let fixture = fixture();
    let folder = fixture.b.to_str().unwrap();
    let output = ntl_eval(&["report", folder]);
    assert_eq!((output.status.code(), err(&output)), (Some(0), String::new()));
    assert_eq!(out(&output), format!("{folder}/report.html\n{folder}/report.md\n"));
    let page = fs::read_to_string(fixture.b.join("report.html")).unwrap();
    for heading in [
        "Figures",
        "Comparison with the paper",
        "Predicted against true",
        "Errors",
        "Closed mass",
        "Largest errors",
    ] {
        assert!(page.contains(&format!("{heading}</h")), "{heading}");
    }
    for fetched in ["<script", "<link", "src=", "url(", "@import", "NaN"] {
        assert!(!page.contains(fetched), "{fetched}");
    }
    let text = fs::read_to_string(fixture.b.join("report.md")).unwrap();
    assert!(text.starts_with("# arithmetic interpolate\n\nregress · regress mode · 40 items · "), "{text}");
    assert!(text.contains("| T5-small, NTL-WAS, λ 0.3 "), "{text}");
}

#[test]
fn a_directory_of_runs_gets_a_page_with_links_to_each() {
    let fixture = fixture();
    let folder = fixture.folder.path();
    let output = ntl_eval(&["report", folder.to_str().unwrap()]);
    assert_eq!(out(&output).lines().count(), 6, "{}", out(&output));
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    for run in ["a", "b"] {
        assert!(page.contains(&format!("<a href=\"./{run}/report.html\">{run}</a>")), "{page}");
        assert!(folder.join(run).join("report.html").is_file());
    }
}

/// A run of another program: 43,246 items with hostile texts, wild predictions, modules, quirks and
/// calibration.
fn large_run(folder: &Path) {
    let metric = json!({ "value": 0.5, "low": 0.4, "high": 0.6, "n": 43_246 });
    let report = json!({
        "task": "rjokes", "split": "test", "model": "<b>m</b>", "endpoint": "http://h", "mode": "regress",
        "n": 43_246, "n_valid": 43_246, "seed": null, "settings": { "x": null }, "metrics": { "accuracy": metric },
        "baselines": {}, "versions": {}, "started": "", "seconds": 1.0,
        "modules": {
            "one": { "n": 9, "n_valid": 9, "metrics": { "accuracy": metric } },
            "two": { "n": 8, "n_valid": 7, "metrics": { "accuracy": metric } },
        },
        "quirks": [{ "name": "isclose", "paper": 0.52, "sane": 0.5, "note": "1e-5 of the truth" }],
        "calibration": { "pit": vec![2162; 20], "coverage": [{ "q": 0.5, "covered": 21_000, "n": 43_246 }] },
        "unparsed_rule": "rule of <the> run",
    });
    fs::write(folder.join("report.json"), report.to_string()).unwrap();
    let sample = |id: u64| {
        let value = ((id * 7_919) % 10_007) as f64 - 5_000.0;
        let wild = if id.is_multiple_of(1_000) { 1e12 } else { value + (id % 13) as f64 };
        json!({
            "doc_id": id, "doc": { "question": format!("<script>alert({id})</script> & \"'`|"), "answer": "x" },
            "target": value.to_string(), "resps": [["</td>"]], "accuracy": u8::from(id.is_multiple_of(13)),
            "truth": value, "prediction": { "mean": wild, "median": wild, "mode": wild }, "mass_closed": 0.999,
        })
        .to_string()
    };
    let samples: Vec<String> = (0..43_246).map(sample).collect();
    fs::write(folder.join("samples.jsonl"), samples.join("\n")).unwrap();
}

#[test]
fn the_report_of_a_large_run_stays_small_and_its_texts_stay_texts() {
    let folder = tempfile::tempdir().unwrap();
    large_run(folder.path());
    let output = ntl_eval(&["report", folder.path().to_str().unwrap()]);
    assert_eq!((output.status.code(), err(&output)), (Some(0), String::new()));
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
    for (wanted, shown) in [
        ("&lt;script&gt;alert(", true),
        ("<script", false),
        ("<b>m", false),
        ("Rule of &lt;the&gt; run.", true),
        ("Accuracy by module</h3>", true),
        ("Calibration</h3>", true),
        ("Coverage of quantiles</h3>", true),
        ("The paper's quirks</h2>", true),
        ("Predictions beyond the axis, drawn on its edge: 44.", true),
    ] {
        assert_eq!(page.contains(wanted), shown, "{wanted}");
    }
}

#[test]
fn directories_of_runs_are_compared_run_by_run_and_reported_from_two_levels_up() {
    let fixture = fixture();
    let root = fixture.folder.path().join("results");
    for (mode, run) in [("text", &fixture.a), ("regress", &fixture.b)] {
        for split in ["interpolate", "extrapolate"] {
            let folder = root.join(mode).join(split);
            fs::create_dir_all(&folder).unwrap();
            fs::copy(run.join("samples.jsonl"), folder.join("samples.jsonl")).unwrap();
            let mut report: Value =
                serde_json::from_slice(&fs::read(run.join("report.json")).unwrap()).unwrap();
            report["split"] = json!(split);
            fs::write(folder.join("report.json"), report.to_string()).unwrap();
        }
    }
    let path = |name: &str| root.join(name).to_str().unwrap().to_owned();
    let output = ntl_eval(&["compare", &path("text"), &path("regress"), "--resamples", "500"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("arithmetic ")).collect();
    assert_eq!(headings, ["arithmetic extrapolate, 40 items", "arithmetic interpolate, 40 items"], "{text}");
    let output = ntl_eval(&["report", root.to_str().unwrap()]);
    assert_eq!((output.status.code(), out(&output).lines().count()), (Some(0), 10), "{}", err(&output));
    let page = fs::read_to_string(root.join("report.html")).unwrap();
    for run in ["text/interpolate", "regress/extrapolate"] {
        assert!(page.contains(&format!("<a href=\"./{run}/report.html\">{run}</a>")), "{page}");
    }
    fs::remove_dir_all(root.join("regress/extrapolate")).unwrap();
    let output = ntl_eval(&["compare", &path("text"), &path("regress"), "--resamples", "500"]);
    assert_eq!(output.status.code(), Some(1));
    let message = err(&output);
    assert!(message.contains("text holds runs in extrapolate, interpolate; "), "{message}");
    assert!(message.contains("regress holds runs in interpolate; name two runs"), "{message}");
}

#[test]
fn the_reports_of_several_directories_are_written_with_one_command() {
    let fixture = fixture();
    let output = ntl_eval(&["report", fixture.a.to_str().unwrap(), fixture.b.to_str().unwrap()]);
    assert_eq!((output.status.code(), out(&output).lines().count()), (Some(0), 4), "{}", err(&output));
    for run in [&fixture.a, &fixture.b] {
        assert!(run.join("report.html").is_file() && run.join("report.md").is_file());
    }
}

/// A is the number in the text, B is read from a distribution.
#[test]
fn tables_name_the_estimate_that_a_metric_uses() {
    let fixture = fixture();
    let plain = fixture.compare(&[]);
    for (metric, estimate) in [("mae", "median"), ("rmse", "trimmed mean"), ("accuracy", "mode")] {
        let line = plain.lines().find(|line| line.starts_with(&format!("| {metric} "))).unwrap();
        assert!(line.contains(&format!("A: the text's number, B: {estimate}")), "{line}");
    }
    let folder = fixture.folder.path().to_str().unwrap();
    ntl_eval(&["compare", "--leaderboard", folder, "--resamples", "500", "--metric", "mae"]);
    let board = fs::read_to_string(fixture.folder.path().join("leaderboard.md")).unwrap();
    assert!(board.contains("Runs in regress mode use the mode for accuracy; the median for mae"), "{board}");
    ntl_eval(&["report", folder]);
    let index = fs::read_to_string(fixture.folder.path().join("report.md")).unwrap();
    assert!(index.contains("Runs in regress mode use the mode for accuracy; the median for mae"), "{index}");
    let run = fs::read_to_string(fixture.b.join("report.md")).unwrap();
    let line = run.lines().find(|line| line.starts_with("| rmse ")).unwrap();
    assert!(line.contains("| trimmed mean "), "{line}");
}

#[test]
fn many_runs_are_ranked_with_simultaneous_intervals() {
    let fixture = fixture();
    let copy = fixture.folder.path().join("more").join("copy");
    fs::create_dir_all(&copy).unwrap();
    for file in ["report.json", "samples.jsonl"] {
        fs::copy(fixture.b.join(file), copy.join(file)).unwrap();
    }
    // The only run over other items has a separate table.
    let other = fixture.folder.path().join("other");
    let mock = Mock::start(&["third"], |prompt, _| text(&sum(prompt).to_string()));
    let data = fixture.folder.path().join("few.txt");
    fs::write(&data, "1 + 1\n2\n2 + 2\n4\n").unwrap();
    ask(&mock, &data, &other, "text");
    let folder = fixture.folder.path().to_str().unwrap();
    let board = |more: &[&str]| {
        let output = ntl_eval(&[&["compare", "--leaderboard", folder, "--resamples", "500"], more].concat());
        assert_eq!((output.status.code(), err(&output)), (Some(0), String::new()));
        out(&output)
    };
    let found: Value = serde_json::from_str(&board(&["--json"])).unwrap();
    assert_eq!(
        (&found[0]["metric"], &found[0]["items"], &found[0]["compared"]),
        (&json!("accuracy"), &json!(40), &json!(40))
    );
    assert_eq!((&found[1]["items"], &found[1]["standings"][0]["ranks"]), (&json!(2), &Value::Null));
    let standings = found[0]["standings"].as_array().unwrap();
    let models: Vec<&Value> = standings.iter().map(|standing| &standing["model"]).collect();
    assert_eq!(models, ["regress", "regress", "greedy"]);
    assert_eq!(standings[0]["behind"], Value::Null);
    let ranks: Vec<&Value> = standings.iter().map(|standing| &standing["ranks"]).collect();
    assert_eq!(ranks, [&json!([1, 2]), &json!([1, 2]), &json!([3, 3])]);
    let [same, worse] = [&standings[1]["behind"], &standings[2]["behind"]];
    assert_eq!(same["difference"], json!(0.0));
    assert!(same["low"].as_f64().unwrap() < 0.0 && same["high"].as_f64().unwrap() > 0.0, "{same}");
    assert!(worse["difference"].as_f64().unwrap() < -0.4 && worse["high"].as_f64().unwrap() < 0.0, "{worse}");
    // The page has the same order, and another metric may have another one.
    let plain = board(&[]);
    assert!(
        plain.contains("leaderboard.html") && plain.starts_with("arithmetic interpolate, 40 items\n"),
        "{plain}"
    );
    let page = fs::read_to_string(fixture.folder.path().join("leaderboard.md")).unwrap();
    assert!(
        page.contains("[more/copy](./more/copy/report.md)")
            && page.contains("Ranked by accuracy (higher is better)."),
        "{page}"
    );
    let errors: Value = serde_json::from_str(&board(&["--json", "--metric", "mae"])).unwrap();
    assert_eq!((&errors[0]["compared"], &errors[0]["standings"][2]["ranks"]), (&json!(39), &json!([3, 3])));
    assert!(board(&["--metric", "unparsed", "--markdown"]).contains("Ranked by unparsed (lower is better)."));
    let html = fs::read_to_string(fixture.folder.path().join("leaderboard.html")).unwrap();
    assert!(html.contains("href=\"./more/copy/report.html\""), "{html}");
}

#[test]
fn a_leaderboard_needs_runs_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    for (args, status, want) in [
        (&["compare", "--leaderboard", path][..], 1, "holds no report.json"),
        (&["compare", "a", "b", "--leaderboard", path], 2, "cannot be used with"),
        (&["compare", "--leaderboard", path, "--models", "a,b"], 2, "--models runs a task on two models"),
        (&["compare", "a", "b", "--metric", "mae"], 2, "--metric ranks the runs of --leaderboard"),
        (
            &["compare", "--leaderboard", path, "nupa", "--endpoint", "http://127.0.0.1:9"],
            2,
            "--leaderboard ranks finished runs: leave out the task",
        ),
    ] {
        let output = ntl_eval(args);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {}", err(&output));
        assert!(err(&output).contains(want), "{args:?}: {}", err(&output));
    }
}
