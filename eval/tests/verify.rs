//! `ntl-eval verify`: a scripted judge compares candidate answers.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::path::Path;

use common::judging::scores;
use common::{Mock, err, ntl_eval, out};
use serde_json::{Value, json};

/// Prefers answers with a higher number, and a little the answer that is shown second. By the criterion
/// `short`, all answers are equally good.
fn comparer() -> Mock {
    Mock::start(&["tiny"], |prompt, _| {
        let worth = |part: usize| -> f64 {
            prompt.split("worth ").nth(part).unwrap().split('\n').next().unwrap().parse().unwrap()
        };
        let difference = if prompt.contains("criterion: short") { 0.0 } else { worth(2) - worth(1) };
        let score: f64 = 4.5 + 0.2 * difference;
        scores(&[(score.floor(), 1.0 - score.fract()), (score.floor() + 1.0, score.fract())], 1.0)
    })
}

fn verify(mock: &Mock, folder: &Path, lines: &[Value], more: &[&str]) -> (Option<i32>, String, String) {
    let data = folder.join("candidates.jsonl");
    fs::write(&data, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let args =
        ["verify", "--data", data.to_str().unwrap(), "--endpoint", &mock.url, "--quiet", "--overwrite"];
    let results = folder.join("out");
    let output = ntl_eval(&[&args[..], &["--out", results.to_str().unwrap()], more].concat());
    (output.status.code(), out(&output), err(&output))
}

fn rankings(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("out/rankings.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn candidates_are_ranked_by_several_criteria_in_both_orders() {
    let folder = tempfile::tempdir().unwrap();
    let mock = comparer();
    let lines = [
        json!({
            "input": "q", "answers": ["worth 1", "worth 3", "worth 1", "worth 2"], "quality": [0.1, 0.9, 0.1, 0.6]
        }),
        json!({ "input": "r", "answers": ["worth 5", "worth 4"], "quality": [true, false] }),
        json!({ "input": "alone", "answers": ["worth 7"] }),
    ];
    let criteria = ["--criterion", "right", "--criterion", "short"];
    let (status, printed, said) = verify(&mock, folder.path(), &lines, &criteria);
    assert_eq!(status, Some(0), "{said}");
    // Three and one pair, two criteria, two orders.
    assert_eq!(mock.bodies().len(), 16);
    let notice = "4 comparisons of the answers to 3 questions, at most 3 per question; in both orders, for each of 2 \
                  criteria: 16 requests\n";
    assert_eq!(said, notice);
    let quality =
        "quality over 2 questions: 0.9500 of the best-rated answers, 0.4625 of all, 0.9500 of the best ones";
    assert!(printed.contains(quality), "{printed}");
    let found = rankings(folder.path());
    assert_eq!((&found[0]["ranking"], &found[0]["best"]), (&json!([1, 3, 0, 2]), &json!("worth 3")));
    assert_eq!((&found[1]["ranking"], &found[2]["ranking"]), (&json!([0, 1]), &json!([0])));
    // A difference of 1 is worth 0.2 of 3 points by the first criterion, and nothing by the other.
    let rating = |index: usize| found[0]["ratings"][index].as_f64().unwrap();
    assert!((rating(1) - rating(0) - 2.0 * 0.2 / 3.0 / 2.0).abs() < 1e-9, "{found:?}");
    assert_eq!((&found[0]["comparisons"], &found[0]["missing"]), (&json!(3), &json!(0)));
    let start = "Compare them only by this criterion: right\n\n[Question]\nq\n";
    let bodies = mock.bodies();
    let asked = bodies.iter().filter(|body| body["prompt"].as_str().unwrap().contains(start)).count();
    // Three pairs of the first question in both orders.
    assert_eq!(asked, 6, "{bodies:?}");
}

#[test]
fn a_tournament_of_many_candidates_keeps_its_limit_and_finds_the_order() {
    let folder = tempfile::tempdir().unwrap();
    let mock = comparer();
    let answers: Vec<String> = (0..12).map(|index| format!("worth {}", index * 5 % 12)).collect();
    let lines = [json!({ "input": "q", "answers": answers })];
    let (status, _, said) = verify(&mock, folder.path(), &lines, &["--comparisons", "30", "--json"]);
    assert_eq!((status, mock.bodies().len()), (Some(0), 48), "{said}");
    let want: Vec<usize> = (0..12).rev().map(|worth| worth * 5 % 12).collect();
    assert_eq!(rankings(folder.path())[0]["ranking"], json!(want));
}

#[test]
fn unusable_candidates_are_rejected_with_file_line_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let mock = comparer();
    let answers = json!(["a", "b", "c"]);
    for (line, more, code, complaint) in [
        (
            json!({ "input": "q", "answers": "a" }),
            &[][..],
            1,
            "line 1: field `answers`: expected a list of texts",
        ),
        (
            json!({ "input": "q", "answers": [1] }),
            &[],
            1,
            "line 1: field `answers`: expected a list of texts",
        ),
        (json!({ "input": "q" }), &[], 1, "line 1: there is no field `answers`; it has input"),
        (
            json!({ "input": "q", "answers": answers, "quality": [1] }),
            &[],
            1,
            "line 1: field `quality`: expected a list of 3 numbers or booleans",
        ),
        (
            json!({ "input": "q", "answers": answers }),
            &["--comparisons", "2"],
            1,
            "line 1: 3 different answers need at least as many comparisons: raise --comparisons",
        ),
        (
            json!({ "input": "q", "answers": answers }),
            &["--criterion", "x", "--template", "{answer} {answer_b}"],
            2,
            "--template does not name {criterion}, which --criterion gives",
        ),
    ] {
        let (status, _, said) = verify(&mock, folder.path(), &[line], more);
        assert_eq!(status, Some(code), "{said}");
        assert!(said.contains(complaint), "{said}");
    }
    let without = ntl_eval(&["verify", "--endpoint", &mock.url]);
    assert!(err(&without).contains("verify needs --data FILE with lists of answers, and --out DIR"));
    assert!(mock.bodies().is_empty());
}
