//! Compares beam search with Hugging Face's `generate(num_beams=4, num_return_sequences=4)`.

use std::sync::Arc;

use ntl_core::contract::{BeamJob, EarlyStopping, Event, Job, Request};
use ntl_core::text::TextDecoder;
use ntl_engine::{Engine, EngineLimits, JobEvents, NoObserver};
use ntl_models::{LoadOptions, load};
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::tokenizer::Tokenizer;

use crate::support::{Fixtures, ids, numbers, reference};
use serde_json::Value;

const CHECKPOINTS: [&str; 9] =
    ["t5-ce", "t5-ntl-was", "t5-ntl-mse", "t5-v11", "t5-rt", "t5-rt-ntl", "llama-ce", "llama-ntl", "gpt2"];

/// Returns the texts with their log-probabilities and numbers of tokens, best first.
fn found(mut events: JobEvents) -> Vec<(String, f64, usize)> {
    let mut written = String::new();
    let mut found = Vec::new();
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

/// Returns the expected results of a case. If versions of transformers differ, version 4.42 is the reference.
/// Its texts are not in the files of decoder-only models.
fn wanted(case: &Value, tokenizer: &Tokenizer) -> Value {
    let mut golden = case.get("beam4_transformers_4_42_4").unwrap_or(&case["beam4"]).clone();
    if golden["text"].is_null() {
        let texts = golden["ids"].as_array().unwrap().iter().map(|text| tokenizer.decode(&ids(text)));
        golden["text"] = texts.collect();
    }
    golden
}

/// Compares with one golden result and returns the largest difference of scores.
fn compare(found: &[(String, f64, usize)], golden: &Value, what: &str) -> f64 {
    // Regression Transformers write digits with place values, which are read like the reference
    // implementation reads them.
    let field = if what.starts_with("t5-rt") { "human" } else { "text" };
    let texts = golden[field].as_array().unwrap();
    let scores = numbers(&golden["scores"]);
    let mut worst = 0.0_f64;
    for (rank, (text, logprob, tokens)) in found.iter().enumerate() {
        let score = logprob / *tokens as f64;
        let difference = (score - scores[rank]).abs();
        assert!(difference < 1e-4, "{what}, beam {rank}: score {score}, expected {}", scores[rank]);
        // The reference decodes an answer without its prompt, so a space between the two may be lost.
        let wanted = texts[rank].as_str().unwrap().trim_start_matches(' ');
        assert_eq!(text.trim_start_matches(' '), wanted, "{what}, beam {rank}");
        worst = worst.max(difference);
    }
    worst
}

#[test]
fn four_beams_find_the_texts_and_scores_of_the_reference() {
    for name in Fixtures::Reference.only(&CHECKPOINTS) {
        let folder = reference(name);
        let golden: Value =
            serde_json::from_slice(&std::fs::read(folder.join("golden/golden.json")).unwrap()).unwrap();
        let loaded = load(&CheckpointFiles::folder(&folder).unwrap(), LoadOptions::default()).unwrap();
        let tokenizer = loaded.tokenizer;
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
            let field = if case["prompt_ids"].is_null() { "input_ids" } else { "prompt_ids" };
            engine.submit(Job::new(ids(&case[field]), Request::Beams(job))).unwrap()
        };
        // The reference generates nothing for empty prompts.
        let cases = golden["cases"].as_array().unwrap();
        let cases: Vec<&Value> = cases.iter().filter(|case| !case["beam4"].is_null()).collect();
        // All cases run concurrently: beams of many requests share their steps.
        let running: Vec<JobEvents> = cases.iter().copied().map(submit).collect();
        let mut worst = 0.0_f64;
        for (case, events) in cases.iter().zip(running) {
            worst = worst.max(compare(
                &found(events),
                &wanted(case, &tokenizer),
                &format!("{name} {}", case["id"]),
            ));
        }
        println!("{name}: {} cases of 4 beams, scores differ by at most {worst:e}", cases.len());
    }
}
