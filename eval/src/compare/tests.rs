//! Facts about comparisons.

use serde_json::{Value, json};

use super::*;
use crate::report::markdown;
use crate::store::saved::tests::run;

const BOOTSTRAP: Bootstrap = Bootstrap { resamples: 500, seed: 0 };

/// 200 truths from 1 to 200 with predictions that are off by what `error` says.
fn off_by(error: impl Fn(usize) -> Option<f64>) -> Run {
    let pairs =
        (0..200).map(|index| (index as f64 + 1.0, error(index).map(|error| index as f64 + 1.0 + error)));
    run(&pairs.collect::<Vec<_>>())
}

fn verdict_on<'a>(comparison: &'a Comparison, name: &str) -> &'a str {
    &comparison.metrics.iter().find(|metric| metric.name == name).unwrap().verdict
}

#[test]
fn the_better_run_is_named_whichever_side_it_is_on() {
    let (good, bad) = (off_by(|i| Some((i % 3) as f64)), off_by(|i| Some((i % 3) as f64 + 1.0)));
    let comparison = compare(&bad, &good, BOOTSTRAP, 3).unwrap();
    assert_eq!(verdict_on(&comparison, "mae"), "B is better on mae by 1 [1, 1]");
    assert!(verdict_on(&comparison, "accuracy").starts_with("B is better on accuracy by 0.3350 [0.2"));
    assert!(verdict_on(&comparison, "r2").starts_with("B is better on r2"));
    let back = compare(&good, &bad, BOOTSTRAP, 3).unwrap();
    assert_eq!(verdict_on(&back, "mae"), "A is better on mae by 1 [1, 1]");
    let test = comparison.mcnemar.unwrap();
    assert_eq!((test.only_a, test.only_b, test.exact), (0, 67, false));
    let test = comparison.sign_test.unwrap();
    assert_eq!((test.a_closer, test.b_closer, test.equal), (0, 200, 0));
}

#[test]
fn no_difference_is_claimed_between_a_run_and_itself() {
    let same = off_by(|i| Some((i % 5) as f64));
    let comparison = compare(&same, &same, BOOTSTRAP, 3).unwrap();
    for metric in &comparison.metrics {
        assert!(metric.verdict.starts_with("no difference shown on "), "{}", metric.verdict);
        assert!((metric.p.unwrap() - 1.0).abs() < 1e-12, "{}", metric.name);
    }
    assert!(comparison.items.is_empty());
}

#[test]
fn differences_within_chance_are_not_shown() {
    let (a, b) = (off_by(|i| Some(f64::from(i % 2 == 0))), off_by(|i| Some(f64::from(i % 2 == 1))));
    let comparison = compare(&a, &b, BOOTSTRAP, 3).unwrap();
    assert!(verdict_on(&comparison, "mae").starts_with("no difference shown on mae: B - A is 0 [-0.1"));
}

#[test]
fn errors_are_over_pairs_that_both_read_and_the_rest_is_counted() {
    let mut a = off_by(|i| (i >= 20).then_some(1.0));
    let b = off_by(|i| (i < 150).then_some(0.0));
    a.samples[199].error = Some("gone".to_owned());
    a.samples[199].prediction = None;
    a.samples[199].absolute_error = None;
    let comparison = compare(&a, &b, BOOTSTRAP, 3).unwrap();
    assert_eq!(
        comparison.counts,
        Counts {
            n: 200,
            both_read: 130,
            only_a_read: 49,
            only_b_read: 20,
            neither_read: 1,
            failed_a: 1,
            failed_b: 0
        }
    );
    let n = |name: &str| comparison.metrics.iter().find(|metric| metric.name == name).unwrap().n;
    assert_eq!((n("accuracy"), n("mae"), n("spearman")), (199, 130, 130));
}

#[test]
fn other_scores_of_samples_are_compared_by_their_means() {
    let scored = |strict: &dyn Fn(u64) -> f64| {
        let mut run = off_by(|_| Some(0.0));
        for sample in &mut run.samples {
            let line = json!({
                "doc_id": sample.doc_id, "doc": { "question": sample.doc.question }, "target": sample.target,
                "metrics": ["strict", "novel"], "strict": strict(sample.doc_id), "novel": sample.doc_id,
            });
            *sample = serde_json::from_value(line).unwrap();
        }
        run
    };
    let comparison = compare(&scored(&|_| 0.0), &scored(&|id| (id % 2) as f64), BOOTSTRAP, 3).unwrap();
    let names: Vec<&str> = comparison.metrics.iter().map(|metric| metric.name.as_str()).collect();
    assert_eq!(names, ["strict", "novel"]);
    assert!(verdict_on(&comparison, "strict").starts_with("B is better on strict by 0.5000 [0.4"));
    assert_eq!(comparison.sign_test, None);
}

#[test]
fn the_first_item_that_differs_is_named() {
    let a = run(&[(1.0, Some(1.0)), (2.0, None)]);
    let said = |b: &Run| compare(&a, b, BOOTSTRAP, 3).unwrap_err().to_string();
    assert_eq!(
        said(&run(&[(1.0, None), (3.0, None)])),
        "item 1 has another target in B: \"3\", and in A \"2\""
    );
    assert_eq!(
        said(&run(&[(1.0, None)])),
        "A has 2 items, B has 1; only runs of the same items can be compared"
    );
    let mut other = a.clone();
    other.report.split = "extrapolate".to_owned();
    assert_eq!(
        said(&other),
        "A is a run of arithmetic interpolate, B of arithmetic extrapolate; only runs of the same items can be compared"
    );
}

#[test]
fn a_comparison_reads_as_sentences_and_tables() {
    let (a, b) = (off_by(|i| Some((i % 3) as f64)), off_by(|i| (i > 0).then_some((i % 7 == 0).into())));
    let comparison = compare(&a, &b, Bootstrap { resamples: 100, seed: 0 }, 2).unwrap();
    insta::assert_snapshot!("comparison", markdown::render(&render::document(&comparison)));
    let text = render::text(&comparison);
    assert!(text.starts_with("arithmetic interpolate, 200 items\nA: tiny, text mode (run)\n"), "{text}");
}

#[test]
fn requests_that_differ_are_named() {
    let (mut a, mut b) = (off_by(|_| Some(0.0)), off_by(|_| Some(1.0)));
    let settings = |trim: Value| {
        let value = json!({ "data": trim, "request": { "number": { "support": 9, "trim": trim } } });
        value.as_object().unwrap().clone()
    };
    (a.report.settings, b.report.settings) = (settings(0.1.into()), settings(Value::Null));
    let comparison = compare(&a, &b, BOOTSTRAP, 0).unwrap();
    let text = render::text(&comparison);
    assert!(text.contains("The settings differ: request.number.trim (A: 0.1, B: not set)."), "{text}");
    // Another mode is another request throughout.
    b.report.mode = "regress".to_owned();
    assert!(compare(&a, &b, BOOTSTRAP, 0).unwrap().settings.is_empty());
}

#[test]
fn element_types_of_models_that_differ_are_named_where_both_servers_say_them() {
    let (mut a, mut b) = (off_by(|_| Some(0.0)), off_by(|_| Some(1.0)));
    b.report.mode = "regress".to_owned();
    let dtypes = |run: &mut Run, weights: Value, keys: Value| {
        let value = json!({ "model_dtype": weights, "model_kv_cache_dtype": keys });
        run.report.settings = value.as_object().unwrap().clone();
    };
    dtypes(&mut a, "f32".into(), Value::Null);
    dtypes(&mut b, "int8".into(), "bf16".into());
    let text = render::text(&compare(&a, &b, BOOTSTRAP, 0).unwrap());
    assert!(text.contains("The settings differ: model_dtype (A: f32, B: int8)."), "{text}");
}
