//! Tests of comparisons.

use serde_json::{Value, json};

use super::*;
use crate::report::markdown;
use crate::store::saved::tests::run;

const BOOTSTRAP: Bootstrap = Bootstrap { resamples: 500, seed: 0 };

/// Returns a run over the truths 1 to 200 with predictions that are off by `error`.
fn off_by(error: impl Fn(usize) -> Option<f64>) -> Run {
    let pairs =
        (0..200).map(|index| (index as f64 + 1.0, error(index).map(|error| index as f64 + 1.0 + error)));
    run(&pairs.collect::<Vec<_>>())
}

fn verdict_on<'a>(comparison: &'a Comparison, name: &str) -> &'a str {
    &comparison.metrics.iter().find(|metric| metric.name == name).unwrap().verdict
}

#[test]
fn the_better_run_is_named_on_either_side() {
    let good = off_by(|i| Some((i % 3) as f64));
    let bad = off_by(|i| Some((i % 3) as f64 + 1.0));
    let comparison = compare(&bad, &good, BOOTSTRAP, 3).unwrap();
    // 11 tests whose 500 resamples do not reach 0, after accuracy, which has only swaps: 11 * 2 / 501.
    assert_eq!(verdict_on(&comparison, "mae"), "B is better on mae: B - A is -1 [-1, -1], p ≤ 0.044");
    assert!(verdict_on(&comparison, "accuracy").starts_with("B is better on accuracy: B - A is 0.3350 [0.2"));
    assert!(verdict_on(&comparison, "r2").starts_with("B is better on r2"));
    let back = compare(&good, &bad, BOOTSTRAP, 3).unwrap();
    assert_eq!(verdict_on(&back, "mae"), "A is better on mae: B - A is 1 [1, 1], p ≤ 0.044");
    let test = comparison.mcnemar.unwrap();
    assert_eq!((test.only_a, test.only_b), (0, 67));
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

/// Returns two runs over `n` items: B is exact, and A is off by about 1.
fn clear_lead(n: usize) -> [Run; 2] {
    let run = |error: &dyn Fn(usize) -> f64| {
        let pairs = (0..n).map(|index| (10.0 + index as f64, Some(10.0 + index as f64 + error(index))));
        run(&pairs.collect::<Vec<_>>())
    };
    [run(&|index| 1.0 + (index % 3) as f64 / 4.0), run(&|_| 0.0)]
}

#[test]
fn few_items_get_no_verdict_even_for_a_large_difference() {
    for n in [1, 2, 5] {
        let [a, b] = clear_lead(n);
        let comparison = compare(&a, &b, BOOTSTRAP, 0).unwrap();
        assert_eq!(comparison.tests, 0);
        for metric in &comparison.metrics {
            let said = format!("too few items to compare on {} (n = {n}; at least 6 needed)", metric.name);
            assert!(metric.verdict.starts_with(&said), "{}", metric.verdict);
            assert_eq!((metric.p, metric.p_holm, metric.interval), (None, None, None));
        }
        let text = render::text(&comparison);
        assert!(!text.contains("better") && !text.contains("tested together"), "{text}");
    }
    // The smallest p-value of 6 items, 2/2^6, is too large for several tests.
    let [a, b] = clear_lead(6);
    let comparison = compare(&a, &b, BOOTSTRAP, 0).unwrap();
    let mae = comparison.metrics.iter().find(|metric| metric.name == "mae").unwrap();
    assert!((mae.p.unwrap() - 1.0 / 32.0).abs() < 1e-12, "{mae:?}");
    assert!(comparison.metrics.iter().all(|metric| metric.p.unwrap() >= 1.0 / 32.0));
    assert!(mae.verdict.starts_with("no difference shown on mae: B - A is -1.2"), "{}", mae.verdict);
    assert!(mae.verdict.ends_with("; without the correction p 0.031"), "{}", mae.verdict);
}

#[test]
fn too_few_resamples_for_several_metrics_are_reported() {
    let [a, b] = clear_lead(40);
    let comparison = compare(&a, &b, Bootstrap { resamples: 100, seed: 0 }, 0).unwrap();
    let said = verdict_on(&comparison, "mae");
    assert!(said.ends_with(", p ≤ 0.22; more --resamples are needed to show one"), "{said}");
}

#[test]
fn p_values_of_several_metrics_are_corrected_together() {
    let a = off_by(|i| Some((i % 5) as f64));
    let b = off_by(|i| Some((i % 4) as f64));
    let comparison = compare(&a, &b, BOOTSTRAP, 0).unwrap();
    assert_eq!(comparison.tests, comparison.metrics.len());
    let smallest = comparison.metrics.iter().filter_map(|metric| metric.p).fold(1.0, f64::min);
    for metric in &comparison.metrics {
        let p = metric.p.unwrap();
        let corrected = metric.p_holm.unwrap();
        let least = (smallest * comparison.tests as f64).min(1.0);
        assert!(corrected >= p && corrected >= least - 1e-12, "{metric:?}");
        let is_shown = metric.verdict.contains(" is better on ");
        assert_eq!(is_shown, corrected <= 0.05, "{}", metric.verdict);
        assert!(metric.interval.unwrap().excludes_zero() || !is_shown, "{}", metric.verdict);
    }
    let json = serde_json::to_value(&comparison).unwrap();
    assert_eq!(json["tests"], comparison.tests);
    assert!(json["metrics"][0]["p_holm"].is_f64() && json["metrics"][0]["p_is_bound"].is_boolean());
    let text = render::text(&comparison);
    assert!(text.contains("12 metrics are tested together."), "{text}");
}

/// The errors are as skewed as squares, and the two sides have them in opposite order.
#[test]
fn metrics_of_ranks_and_medians_are_also_tested_by_swaps() {
    let error = |i: usize| ((i * i * 7 + i * 13) % 61) as f64 / 10.0;
    let a = off_by(|i| Some(error(i)));
    let b = off_by(|i| Some(error(199 - i)));
    let comparison = compare(&a, &b, BOOTSTRAP, 0).unwrap();
    for name in ["median_ae", "pearson", "spearman", "kendall"] {
        let said = verdict_on(&comparison, name);
        assert!(said.starts_with("no difference shown on "), "{said}");
    }
}

#[test]
fn differences_within_chance_are_not_shown() {
    let a = off_by(|i| Some(f64::from(i % 2 == 0)));
    let b = off_by(|i| Some(f64::from(i % 2 == 1)));
    let comparison = compare(&a, &b, BOOTSTRAP, 3).unwrap();
    assert!(verdict_on(&comparison, "mae").starts_with("no difference shown on mae: B - A is 0 [-0.1"));
}

#[test]
fn errors_cover_pairs_with_two_numbers_and_other_pairs_are_counted() {
    let mut a = off_by(|i| (i >= 20).then_some(1.0));
    let b = off_by(|i| (i < 150).then_some(0.0));
    a.samples[199].error = Some("gone".to_owned());
    a.samples[199].prediction = None;
    a.samples[199].absolute_error = None;
    let comparison = compare(&a, &b, BOOTSTRAP, 3).unwrap();
    assert_eq!(
        comparison.counts,
        PairCounts {
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
    assert!(verdict_on(&comparison, "strict").starts_with("B is better on strict: B - A is 0.5000 [0.4"));
    assert_eq!(comparison.sign_test, None);
}

#[test]
fn the_first_item_that_differs_is_named() {
    let a = run(&[(1.0, Some(1.0)), (2.0, None)]);
    let said = |b: &Run| compare(&a, b, BOOTSTRAP, 3).unwrap_err().to_string();
    assert_eq!(
        said(&run(&[(1.0, None), (3.0, None)])),
        "item 1 has a different target in each run: \"2\" in A, \"3\" in B"
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
fn a_comparison_is_rendered_as_sentences_and_tables() {
    let a = off_by(|i| Some((i % 3) as f64));
    let b = off_by(|i| (i > 0).then_some((i % 7 == 0).into()));
    let comparison = compare(&a, &b, Bootstrap { resamples: 1_000, seed: 0 }, 2).unwrap();
    insta::assert_snapshot!("comparison", markdown::render(&render::document(&comparison)));
    let text = render::text(&comparison);
    assert!(text.starts_with("arithmetic interpolate, 200 items\nA: tiny, text mode (run)\n"), "{text}");
}

#[test]
fn differences_between_requests_are_named() {
    let mut a = off_by(|_| Some(0.0));
    let mut b = off_by(|_| Some(1.0));
    let settings = |trim: Value| {
        let value = json!({ "data": trim, "request": { "number": { "support": 9, "trim": trim } } });
        value.as_object().unwrap().clone()
    };
    (a.report.settings, b.report.settings) = (settings(0.1.into()), settings(Value::Null));
    let comparison = compare(&a, &b, BOOTSTRAP, 0).unwrap();
    let text = render::text(&comparison);
    assert!(text.contains("The settings differ: request.number.trim (A: 0.1, B: not set)."), "{text}");
    // A run in another mode has different requests throughout.
    b.report.mode = "regress".to_owned();
    assert!(compare(&a, &b, BOOTSTRAP, 0).unwrap().settings.is_empty());
}

#[test]
fn different_element_types_are_named_if_both_servers_report_them() {
    let mut a = off_by(|_| Some(0.0));
    let mut b = off_by(|_| Some(1.0));
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
