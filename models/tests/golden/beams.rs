//! Beam search against the original's `generate(num_beams=4, num_return_sequences=4)`.

use std::sync::Arc;

use crate::support::{fixtures, ids, numbers};
use ntl_core::engine::{BeamJob, EarlyStopping, Event, Job, Request};
use ntl_models::batch::{Engine, EngineLimits, JobEvents, NoObserver};
use ntl_models::checkpoint::CheckpointFiles;
use ntl_models::{LoadOptions, load};
use serde_json::Value;

const CHECKPOINTS: [&str; 6] = ["t5-ce", "t5-ntl-was", "t5-ntl-mse", "t5-v11", "t5-rt", "t5-rt-ntl"];

/// Texts with their log-probabilities and numbers of tokens, best first.
fn found(mut events: JobEvents) -> Vec<(String, f64, usize)> {
    let (mut written, mut found) = (String::new(), Vec::new());
    while let Some(event) = events.next_blocking() {
        match event {
            Event::Text { text, .. } => written.push_str(&text),
            Event::Finished { tokens, cumulative_logprob, .. } => {
                found.push((std::mem::take(&mut written), cumulative_logprob.unwrap(), tokens));
            }
            other => panic!("{other:?}"),
        }
    }
    found
}

/// Compares with one golden; the largest difference of scores.
fn compare(found: &[(String, f64, usize)], golden: &Value, what: &str) -> f64 {
    // Regression Transformers write places, which are read as the original reads them.
    let field = if what.starts_with("t5-rt") { "human" } else { "text" };
    let (texts, scores) = (golden[field].as_array().unwrap(), numbers(&golden["scores"]));
    let mut worst = 0.0_f64;
    for (rank, (text, logprob, tokens)) in found.iter().enumerate() {
        let score = logprob / *tokens as f64;
        let difference = (score - scores[rank]).abs();
        assert!(difference < 1e-4, "{what}, beam {rank}: score {score} instead of {}", scores[rank]);
        assert_eq!(*text, texts[rank].as_str().unwrap(), "{what}, beam {rank}");
        worst = worst.max(difference);
    }
    worst
}

#[test]
fn four_beams_find_the_texts_and_scores_of_the_original() {
    let Some(fixtures) = fixtures() else { return };
    for name in CHECKPOINTS {
        let folder = fixtures.join(name);
        let golden: Value =
            serde_json::from_slice(&std::fs::read(folder.join("golden/golden.json")).unwrap()).unwrap();
        let loaded = load(&CheckpointFiles::folder(&folder).unwrap(), LoadOptions::default()).unwrap();
        let limits = EngineLimits::default();
        let (engine, _) =
            Engine::spawn(loaded.model, loaded.vocabulary, limits, Arc::new(NoObserver)).unwrap();
        let submit = |case: &Value| {
            let job = BeamJob {
                beams: 4,
                n: 4,
                max_tokens: 32,
                length_penalty: 1.0,
                early_stopping: EarlyStopping::No,
            };
            let prompt = ids(&case["input_ids"]);
            engine.submit(Job::new(prompt, Request::Beams(job))).unwrap()
        };
        let cases = golden["cases"].as_array().unwrap();
        // All at once: beams of many requests share their steps.
        let running: Vec<JobEvents> = cases.iter().map(submit).collect();
        let mut worst = 0.0_f64;
        for (case, events) in cases.iter().zip(running) {
            worst = worst.max(compare(&found(events), &case["beam4"], &format!("{name} {}", case["id"])));
        }
        println!("{name}: {} cases of 4 beams, scores differ by at most {worst:e}", cases.len());
    }
}
