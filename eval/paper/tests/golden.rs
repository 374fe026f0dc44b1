//! The paper's figures, compared with the results of its own code (`metrics` and
//! `*/golden/paper_eval.json` of the reference checkpoints).

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

use std::fs;
use std::path::Path;

use ntl_paper::bleu::NgramCounts;
use ntl_paper::figures::NumberFigures;
use ntl_paper::numbers::{NumberCounts, number_pair};
use ntl_paper::rouge::Rouge;
use ntl_paper::{Paper, Protocol};
use serde_json::Value;

fn golden(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tests/data/reference").join(file);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Null represents NaN.
fn float(value: &Value) -> f64 {
    match value {
        Value::String(text) => text.parse().unwrap(),
        other => other.as_f64().unwrap_or(f64::NAN),
    }
}

fn assert_same(what: &str, got: f64, want: &Value, tolerance: f64) {
    let want = float(want);
    let equal = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
    let close = (got - want).abs() <= tolerance * want.abs();
    assert!(equal || close, "{what}: {got:?}, want {want:?}");
}

/// Checks that the figures are equal. Only two kinds may have rounding differences: logarithms, which numpy
/// vectorises, and correlations, which scipy computes with BLAS.
fn assert_figures(name: &str, figures: &NumberFigures, total: usize, want: &Value) {
    for (key, got) in [
        ("MAE", figures.mae),
        ("MSE", figures.mse),
        ("R2", figures.r2),
        ("number_accuracy", figures.accuracy),
        ("median_absolute_error", figures.median_ae),
        ("count_not_produced_valid_results", figures.unparsed as f64),
        ("average_count_not_produced_valid_results", figures.unparsed as f64 / total as f64),
    ] {
        assert_same(&format!("{name} {key}"), got, &want[key], 0.0);
    }
    for (key, got) in [
        ("log_mae", figures.log_mae),
        ("log_r2", figures.log_r2),
        ("pearson", figures.pearson),
        ("spearman", figures.spearman),
    ] {
        assert_same(&format!("{name} {key}"), got, &want[key], 1e-12);
    }
}

fn texts(pair: &Value) -> (&str, &str) {
    (pair["prediction"].as_str().unwrap(), pair["label"].as_str().unwrap())
}

#[test]
fn every_pair_is_read_and_scored_like_the_paper_s_code() {
    let golden = golden("metrics/metrics_golden.json");
    for pair in golden["pairs"].as_array().unwrap() {
        let (prediction, label) = texts(pair);
        match number_pair(prediction, label) {
            Ok((value, truth)) => {
                assert_same(prediction, value, &pair["number_result"][0], 0.0);
                assert_same(prediction, truth, &pair["number_result"][1], 0.0);
            }
            Err(error) => assert!(pair["number_result"].is_null(), "{prediction:?}: {error}"),
        }
        let counts = NumberCounts::of(prediction);
        let want = &pair["check_number_predictions"];
        assert_eq!(
            (counts.malformed_count as u64, u64::from(counts.has_none)),
            (want[0].as_u64().unwrap(), want[1].as_u64().unwrap())
        );
        let rouge = Rouge::of(prediction, label);
        for (key, got) in [("rouge1", rouge.one), ("rouge2", rouge.two), ("rougeL", rouge.longest)] {
            assert_same(&format!("{prediction:?} {key}"), got, &pair["rouge"][key], 1e-12);
        }
        assert_same(prediction, NgramCounts::of(prediction, label).score(), &pair["bleu"], 1e-12);
    }
}

#[test]
fn every_group_has_the_paper_s_figures() {
    let golden = golden("metrics/metrics_golden.json");
    for group in golden["groups"].as_array().unwrap() {
        let name = group["name"].as_str().unwrap();
        let indices = group["pair_indices"].as_array().unwrap().iter();
        let pairs: Vec<(&str, &str)> =
            indices.map(|index| texts(&golden["pairs"][index.as_u64().unwrap() as usize])).collect();
        let numbers: Vec<(f64, f64)> = pairs.iter().map(|(a, b)| number_pair(a, b).unwrap()).collect();
        assert_figures(name, &NumberFigures::of(&numbers), pairs.len(), &group["calculate_metrics"]);
        let counts: Vec<NumberCounts> =
            pairs.iter().map(|(prediction, _)| NumberCounts::of(prediction)).collect();
        let want = &group["check_number_predictions"];
        assert_eq!(
            counts.iter().map(|counts| counts.malformed_count as u64).sum::<u64>(),
            want[0].as_u64().unwrap()
        );
        assert_eq!(counts.iter().filter(|counts| counts.has_none).count() as u64, want[1].as_u64().unwrap());
        let counts: Vec<NgramCounts> = pairs.iter().map(|(a, b)| NgramCounts::of(a, b)).collect();
        let bleu = NgramCounts::sum(counts.iter().map(|counts| (counts, 1))).score();
        assert_same(&format!("{name} bleu"), bleu, &group["bleu_corpus"]["score"], 1e-12);
        let rouges: Vec<Rouge> = pairs.iter().map(|(a, b)| Rouge::of(a, b)).collect();
        for (key, get) in [
            ("rouge1", (|rouge| rouge.one) as fn(&Rouge) -> f64),
            ("rouge2", |rouge| rouge.two),
            ("rougeL", |rouge| rouge.longest),
        ] {
            let mean = rouges.iter().map(get).sum::<f64>() / rouges.len() as f64;
            assert_same(&format!("{name} {key}"), mean, &group["rouge_mean_of_pairs"][key], 1e-12);
        }
    }
}

#[test]
fn whole_evaluations_have_the_paper_s_figures() {
    for checkpoint in ["t5-ntl-was", "t5-ntl-mse", "t5-ce", "t5-rt", "t5-rt-ntl", "t5-regression-head"] {
        let golden = golden(&format!("{checkpoint}/golden/paper_eval.json"));
        let column = |name: &str| -> Vec<String> {
            let texts = golden[name].as_array().unwrap().iter();
            texts.map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        let predictions = column("decoded_predictions");
        let labels = column("decoded_labels");
        let numbers: Vec<(f64, f64)> =
            predictions.iter().zip(&labels).map(|(a, b)| number_pair(a, b).unwrap()).collect();
        // The trainer adds a prefix to all names.
        let logged = golden["metrics"].as_object().unwrap().iter();
        let metrics: Value = logged
            .map(|(name, value)| (name.trim_start_matches("eval_").to_owned(), value.clone()))
            .collect();
        assert_figures(checkpoint, &NumberFigures::of(&numbers), numbers.len(), &metrics);
        let batch = golden["per_device_eval_batch_size"].as_u64().unwrap() as usize;
        let counts: Vec<NgramCounts> =
            predictions.iter().zip(&labels).map(|(a, b)| NgramCounts::of(a, b)).collect();
        let scores: Vec<f64> = counts
            .chunks(batch)
            .map(|batch| NgramCounts::sum(batch.iter().map(|c| (c, 1))).score())
            .collect();
        let bleu = scores.iter().sum::<f64>() / scores.len() as f64;
        assert_same(&format!("{checkpoint} bleu"), bleu, &metrics["bleu"], 1e-12);
    }
}

/// `/detokenize` writes `[NUM]` for each number of an xVal label.
#[test]
fn labels_of_xval_and_their_bleu_match_the_paper() {
    let golden = golden("t5-xval/golden/paper_eval.json");
    let texts = |name: &str| -> Vec<String> {
        golden[name].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let predictions = texts("decoded_predictions");
    let want = texts("decoded_labels");
    let labels: Vec<String> = golden["pairs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| {
            let written = pair[1].as_str().unwrap();
            let decoded = if written.starts_with('-') { "- [NUM]" } else { "[NUM]" };
            Paper::new(Some("xval")).label_text(decoded.to_owned(), written)
        })
        .collect();
    assert_eq!(labels, want);
    let counts: Vec<NgramCounts> =
        predictions.iter().zip(&labels).map(|(a, b)| NgramCounts::of(a, b)).collect();
    let batch = golden["per_device_eval_batch_size"].as_u64().unwrap() as usize;
    let scores: Vec<f64> =
        counts.chunks(batch).map(|batch| NgramCounts::sum(batch.iter().map(|c| (c, 1))).score()).collect();
    let bleu = scores.iter().sum::<f64>() / scores.len() as f64;
    assert_same("t5-xval bleu", bleu, &golden["metrics"]["eval_bleu"], 1e-12);
}
