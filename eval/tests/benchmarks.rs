//! The tasks `nupa`, `regression-in-context` and `densities`: answers and distributions against an
//! independent computation (`data/benchmarks/make.py`), and runs against a scripted server.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use common::{Mock, Scripted, err, ntl_eval, number, out, text};
use ntl_eval::metrics::distribution::Predicted;
use ntl_eval::metrics::law::{Law, LawScores};
use ntl_eval::run::answer_extraction::stated;
use ntl_eval::stats::least_squares;
use ntl_eval::tasks::densities::Experiment;
use ntl_eval::tasks::nupa::problem::Kind;
use ntl_eval::tasks::regression_in_context::Function;
use serde_json::{Value, json};

fn golden(name: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("data/benchmarks/golden.json")).unwrap();
    all[name].as_array().unwrap().clone()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

fn assert_near(got: f64, want: f64, what: &str) {
    assert!((got - want).abs() <= 1e-9 * want.abs().max(1.0), "{what}: {got}, want {want}");
}

#[test]
fn answers_of_nupa_are_those_of_fractions_and_decimal() {
    let kinds = Kind::all();
    let mut checked = 0;
    for row in golden("nupa") {
        let [name, first, second, answer] =
            [0, 1, 2, 3].map(|column| row[column].as_str().unwrap().to_owned());
        let kind = kinds.iter().find(|kind| kind.name() == name).unwrap();
        assert_eq!(kind.answer(&first, &second), Some(answer), "{name} of {first} and {second}");
        checked += 1;
    }
    assert_eq!(checked, 41 * 5);
}

#[test]
fn distributions_of_experiments_are_those_of_scipy() {
    for row in golden("densities") {
        let at: Vec<u32> = floats(&row[1]).into_iter().map(|value| value as u32).collect();
        let experiment = match row[0].as_str().unwrap() {
            "dice" => Experiment::Dice { count: at[0], sides: at[1] },
            "uniform" => Experiment::Uniform { low: at[0], high: at[1] },
            "binomial" => Experiment::Binomial { trials: at[0], percent: at[1] },
            "geometric" => Experiment::Geometric { percent: at[0] },
            "poisson" => Experiment::Poisson { tenths: at[0] },
            "hypergeometric" => Experiment::Hypergeometric { red: at[0], blue: at[1], drawn: at[2] },
            _ => Experiment::Normal { mean: at[0], sd: at[1] },
        };
        let Law::Discrete(points) = experiment.law() else { panic!("{experiment:?}") };
        let want: Vec<Vec<f64>> = row[2].as_array().unwrap().iter().map(floats).collect();
        let mut total = 0.0;
        for point in &want {
            let found = points.iter().find(|(value, _)| (value - point[0]).abs() < 0.5).unwrap();
            assert_near(found.1, point[1], &format!("{experiment:?} at {}", point[0]));
            total += found.1;
        }
        // The listed values have nearly all probability, so that no other value has too much.
        assert!((total - 1.0).abs() < 1e-5, "{experiment:?}: {total}");
    }
}

#[test]
fn functions_and_least_squares_are_those_of_scikit_learn_and_numpy() {
    for row in golden("functions") {
        let function = match row[0].as_str().unwrap() {
            "friedman1" => Function::Friedman1,
            "friedman2" => Function::Friedman2,
            "friedman3" => Function::Friedman3,
            _ => Function::Linear,
        };
        assert_near(function.value(&floats(&row[1]), &floats(&row[2])), row[3].as_f64().unwrap(), "value");
    }
    for case in golden("least_squares") {
        let rows: Vec<Vec<f64>> = case["rows"].as_array().unwrap().iter().map(floats).collect();
        let found = least_squares::predict(&rows, &floats(&case["values"]), &floats(&case["at"])).unwrap();
        assert_near(found.value, case["value"].as_f64().unwrap(), "prediction");
        assert_near(found.sd, case["sd"].as_f64().unwrap(), "standard deviation");
    }
}

#[test]
fn scores_against_a_known_distribution_are_those_of_scipy() {
    for case in golden("scores") {
        let points = |name: &str| -> Vec<(f64, f64)> {
            floats(&case["values"]).into_iter().zip(floats(&case[name])).collect()
        };
        let support = points("predicted");
        let predicted = Predicted { quantiles: &[], support: &support, mass: 1.0, range: None };
        let found = LawScores::of_reply(&Law::discrete(points("truth")), predicted);
        for (name, got) in
            [("crps_excess", found.crps_excess), ("kl", found.kl), ("total_variation", found.total_variation)]
        {
            assert_near(got.unwrap(), case[name].as_f64().unwrap(), name);
        }
    }
}

/// Returns the reports of a successful run, and what it printed on standard error.
fn run(mock: &Mock, args: &[&str]) -> (Vec<Value>, String) {
    let output =
        ntl_eval(&[&args[..1], &["--endpoint", &mock.url, "--json", "--quiet"], &args[1..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    (out(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect(), err(&output))
}

fn assert_close(report: &Value, name: &str, want: f64) {
    let got = report["metrics"][name]["value"].as_f64();
    assert!(got.is_some(), "no {name} in {report}");
    let got = got.unwrap();
    assert!((got - want).abs() < 1e-9, "{name}: {got}, want {want}");
}

/// Adds the integers of a question exactly.
fn add(prompt: &str) -> String {
    let (_, sum) = prompt.rsplit_once(". ").unwrap();
    let operands = sum.trim_end_matches(" =").split(" + ").map(|operand| operand.parse::<u128>().unwrap());
    operands.sum::<u128>().to_string()
}

#[test]
fn nupa_counts_exact_answers_and_digits_per_task_and_length() {
    let mock = Mock::start(&["tiny"], |prompt, _| match prompt {
        prompt if prompt.contains(" / ") => text("0/0"),
        prompt => text(&format!("{} {}.", prompt.rsplit_once(". ").unwrap().1, add(prompt))),
    });
    let modules =
        ["--module", "integer_add,integer_truediv", "--split", "short,very-long", "--per-module", "6"];
    let (reports, _) = run(&mock, &[&["nupa"], &modules[..]].concat());
    assert_eq!(reports.len(), 2);
    for (report, split) in reports.iter().zip(["short", "very-long"]) {
        assert_eq!((&report["split"], &report["n"]), (&json!(split), &json!(12)));
        let sums = &report["modules"]["integer_add"];
        for (name, want) in
            [("accuracy", 1.0), ("exact_digits", 1.0), ("digit_match", 1.0), ("length_difference", 0.0)]
        {
            assert_close(sums, name, want);
        }
        assert_close(&report["modules"]["integer_truediv"], "accuracy", 0.0);
        assert_eq!(report["first_metrics"][0], "accuracy");
    }
    // An answer may have about as many tokens as characters.
    let longest = mock.bodies().iter().map(|body| body["max_tokens"].as_u64().unwrap()).max().unwrap();
    assert!((16 + 31..=16 + 41).contains(&longest), "{longest}");
}

#[test]
fn nupa_needs_the_requested_form_and_reads_a_repeated_question() {
    let mut read = 0;
    for row in golden("nupa") {
        let [name, first, second, answer] = [0, 1, 2, 3].map(|column| row[column].as_str().unwrap());
        let kind = Kind::all().into_iter().find(|kind| kind.name() == name).unwrap();
        let prompt = kind.question(first, second);
        let (_, question) = prompt.split_once(". ").unwrap();
        for text in [
            format!(" {answer}"),
            format!("{answer}."),
            format!("{question} {answer}"),
            format!("{question} {answer}."),
            format!("{question} **{answer}**, which is the result.\n1 + 1 = 2"),
            format!("The answer is {answer}."),
        ] {
            assert_eq!(stated(&text, kind.answer_form()), Some(answer), "{name}: {text}");
            read += 1;
        }
    }
    assert_eq!(read, 6 * 41 * 5);
    // A model that copies the number of a conversion.
    let mock = Mock::start(&["tiny"], |prompt, _| {
        let question = prompt.split_once(". ").unwrap().1;
        text(question.split(' ').next().unwrap())
    });
    let conversions = "fraction_to_float,scientific_to_float,integer_to_scientific,float_to_scientific";
    let (reports, _) =
        run(&mock, &["nupa", "--module", conversions, "--split", "short", "--per-module", "9"]);
    for name in ["accuracy", "exact_digits"] {
        assert_close(&reports[0], name, 0.0);
    }
}

#[test]
fn nupa_does_not_round_long_numbers() {
    let mock = Mock::start(&["tiny"], |prompt, _| {
        let sum: u128 = add(prompt).parse().unwrap();
        text(&(sum ^ 1).to_string())
    });
    let args = ["nupa", "--module", "integer_add", "--split", "very-long", "--per-module", "8"];
    let (reports, _) = run(&mock, &args);
    assert_close(&reports[0], "accuracy", 0.0);
    assert_close(&reports[0], "exact_digits", 0.0);
    assert_close(&reports[0], "length_difference", 0.0);
    let matched = reports[0]["metrics"]["digit_match"]["value"].as_f64().unwrap();
    assert!((0.9..1.0).contains(&matched), "{matched}");
}

/// A number with its text, as servers return it.
fn exactly(value: &str) -> Scripted {
    let Scripted(status, headers, body) = number(1.0, 1.0, 1.0);
    let mut body: Value = serde_json::from_str(&body).unwrap();
    let found = &mut body["choices"][0]["number"];
    let nearest: f64 = value.parse().unwrap();
    for name in ["value", "trimmed_mean", "median", "mode", "mean"] {
        found[name] = json!(nearest);
    }
    found["support"] = json!([{ "value": nearest, "text": value, "probability": 0.75 }]);
    Scripted(status, headers, body.to_string())
}

#[test]
fn nupa_reads_all_digits_of_the_most_probable_number() {
    let mock = Mock::start(&["tiny"], |prompt, _| exactly(&add(prompt)));
    let modules = "integer_add,integer_truediv,float_to_scientific";
    let args =
        ["nupa", "--mode", "regress", "--module", modules, "--split", "very-long", "--per-module", "4"];
    let (reports, messages) = run(&mock, &args);
    assert!(messages.starts_with("--mode regress covers 1 of 3 tasks: "), "{messages}");
    assert_eq!(reports[0]["n"], 4);
    assert_close(&reports[0], "accuracy", 1.0);
    assert_close(&reports[0], "exact_digits", 1.0);
    let number = &mock.bodies()[0]["number"];
    assert_eq!((&number["digits_max"], &number["decimals_max"]), (&json!(20), &json!(20)));
}

#[test]
fn regression_is_compared_with_simple_methods_and_the_true_function() {
    // The value of the last example.
    let last = |prompt: &str| -> f64 {
        let mut values = prompt.lines().filter_map(|line| line.split_once(" -> y = "));
        values.next_back().unwrap().1.parse().unwrap()
    };
    let mock = Mock::start(&["tiny"], move |prompt, _| text(&last(prompt).to_string()));
    let args =
        ["regression-in-context", "--split", "friedman1,linear", "--per-function", "60", "--examples", "9"];
    let (reports, _) = run(&mock, &args);
    let names: Vec<&Value> = reports.iter().map(|report| &report["split"]).collect();
    assert_eq!(names, ["friedman1", "linear"]);
    for report in &reports {
        let rmse = |metrics: &Value| metrics["rmse"]["value"].as_f64().unwrap();
        let of = |name: &str| rmse(&report["baselines"][name]);
        let noise = report["settings"]["noise_sd"].as_f64().unwrap();
        assert!((0.7..1.4).contains(&(of("true_function") / noise)), "{report}");
        assert!(rmse(&report["metrics"]) > of("mean_of_examples"), "{report}");
        assert!(of("mean_of_examples") > of("true_function"), "{report}");
        let excess = report["baselines"]["true_function"]["crps_excess"]["value"].as_f64().unwrap();
        assert!(excess.abs() < 1e-9, "{excess}");
        assert!(report["metrics"]["crps_excess"]["value"].as_f64().unwrap() > 1.0);
    }
    let linear = &reports[1]["baselines"];
    assert!(
        linear["least_squares"]["rmse"]["value"].as_f64()
            < linear["mean_of_examples"]["rmse"]["value"].as_f64()
    );
    // The table shows them, too.
    let table = ntl_eval(&[
        "regression-in-context",
        "--endpoint",
        &mock.url,
        "--quiet",
        "--limit",
        "5",
        "--split",
        "linear",
    ]);
    assert!(
        out(&table).contains("| this run ") && out(&table).contains("| least squares "),
        "{}",
        out(&table)
    );
}

#[test]
fn numbers_of_regression_have_a_crps_and_a_coverage() {
    let mock = Mock::start(&["tiny"], |_, _| number(10.0, 10.0, 10.0));
    let (reports, _) = run(
        &mock,
        &["regression-in-context", "--mode", "regress", "--split", "friedman1", "--per-function", "20"],
    );
    // The number is 10 in any case, and its interval is from 6 to 11.
    for name in ["crps", "crps_excess", "coverage", "true_coverage", "rmse", "sharpness"] {
        assert!(reports[0]["metrics"][name]["value"].is_f64(), "{name}: {}", reports[0]["metrics"]);
    }
    assert_close(&reports[0], "sharpness", 5.0 / (2.0 * 1.644_853_626_951_472));
}

/// Returns the true distribution of a uniform experiment, and a certain number for any other one.
fn uniform(prompt: &str, _: usize) -> Scripted {
    let Some(range) = prompt.strip_prefix("Draw an integer from ") else { return number(3.0, 3.0, 3.0) };
    let mut ends = range.split([' ', ',']).filter_map(|word| word.parse::<u32>().ok());
    let (low, high) = (ends.next().unwrap(), ends.next().unwrap());
    let Scripted(status, headers, body) = number(3.0, 3.0, 3.0);
    let mut body: Value = serde_json::from_str(&body).unwrap();
    let share = 0.75 / f64::from(high - low + 1);
    let point = |value: u32| json!({ "value": value, "text": value.to_string(), "probability": share });
    body["choices"][0]["number"]["support"] = (low..=high).map(point).collect();
    Scripted(status, headers, body.to_string())
}

#[test]
fn densities_are_scored_against_the_distribution_itself() {
    let mock = Mock::start(&["tiny"], uniform);
    let (reports, _) = run(&mock, &["densities", "--mode", "regress", "--per-module", "5"]);
    let report = &reports[0];
    assert_eq!((&report["n"], report["modules"].as_object().unwrap().len()), (&json!(35), 7));
    for name in ["crps_excess", "kl", "total_variation"] {
        assert_close(&report["modules"]["uniform"], name, 0.0);
    }
    let geometric = &report["modules"]["geometric"]["metrics"];
    assert!(geometric["total_variation"]["value"].as_f64().unwrap() > 0.2);
    // Only one of the possible results has a probability, so the divergence is infinite.
    assert_eq!(geometric["kl"], Value::Null);
    assert_eq!(report["first_metrics"][0], "crps_excess");
    assert!(report["baselines"]["true_distribution"]["crps"]["value"].is_f64());
}

#[test]
fn a_text_is_a_certain_prediction_of_a_density() {
    let mock = Mock::start(&["tiny"], |_, _| text("3"));
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("run");
    let (reports, _) = run(&mock, &["densities", "--per-module", "3", "--out", results.to_str().unwrap()]);
    assert!(reports[0]["metrics"]["crps_excess"]["value"].as_f64().unwrap() > 0.0);
    assert!(reports[0]["metrics"]["kl"].is_null() && reports[0]["metrics"]["true_coverage"].is_null());
    let written = ntl_eval(&["report", results.to_str().unwrap()]);
    assert_eq!(written.status.code(), Some(0), "{}", err(&written));
    let page = std::fs::read_to_string(results.join("report.md")).unwrap();
    assert!(page.contains("## Simple methods") && page.contains("true distribution"), "{page}");
    let same = results.to_str().unwrap();
    let compared = ntl_eval(&["compare", same, same, "--json", "--resamples", "100"]);
    assert!(out(&compared).contains("\"name\":\"crps_excess\""), "{}", err(&compared));
}

#[test]
fn settings_that_generated_tasks_cannot_follow_are_rejected() {
    for (args, want) in [
        (&["nupa", "--data", "x.txt"][..], "nupa generates its items from --seed: leave out --data"),
        (&["densities", "--mode", "paper"], "densities is no task of the NTL paper: it has no --mode paper"),
        (
            &["nupa", "--module", "integer_root"],
            "--module integer_root: there is no such task; there are all, ",
        ),
        (
            &["nupa", "--module", "fraction_add", "--mode", "regress"],
            "the answers of these tasks are fractions or in scientific notation, which --mode regress does not read",
        ),
        (&["nupa", "--split", "tiny"], "invalid value 'tiny' for '--split <LENGTH,...>'"),
        (
            &["regression-in-context", "--noise=-1"],
            "invalid value '-1' for '--noise <FACTOR>': must be at least 0",
        ),
        (&["data", "nupa"], "nupa generates its items in each run, from --seed: it has no files"),
    ] {
        let more = if args[0] == "data" { &[][..] } else { &["--endpoint", "http://127.0.0.1:9"] };
        let output = ntl_eval(&[args, more].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", err(&output));
        assert!(err(&output).contains(want), "{args:?}: {}", err(&output));
    }
}
