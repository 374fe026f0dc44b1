//! Candidates through the engine, on every architecture, have the same log-probabilities as when scored
//! individually.

use std::sync::Arc;

use ntl_core::Token;
use ntl_core::contract::{CandidatesJob, Event, Job, Prompt, Request, ScoreJob};
use ntl_core::losses::NumberTokens;
use ntl_engine::{Engine, EngineLimits, NoObserver};
use ntl_models::{LoadOptions, load};
use ntl_text::checkpoint::{CheckpointFiles, Choices};

use crate::support::{Fixtures, over_fixtures};

fn logprobs(engine: &Engine, request: Request) -> Vec<f64> {
    let job = Job::new(Prompt::from(vec![3, 10, 14, 20]), request);
    match engine.submit(job).unwrap().next_blocking() {
        Some(Event::Scored(outcome)) => outcome.tokens.iter().map(|score| score.token.logprob).collect(),
        other => panic!("{other:?}"),
    }
}

fn candidates_have_the_log_probabilities_of_targets_scored_alone(fixtures: Fixtures) {
    let ids: [&[u32]; 6] = [&[5, 6, 7], &[5, 6, 8, 9, 10], &[5], &[11, 6], &[5, 6, 7], &[12, 13, 14, 15]];
    let candidates: Vec<Vec<Token>> =
        ids.iter().map(|ids| ids.iter().copied().map(Token::from).collect()).collect();
    for name in fixtures.only(&["t5-ntl-was", "t5-rt", "llama-ntl"]) {
        for step_rows_max in [128, 4] {
            let choices = Choices { log_scale_embeddings: Some(true), ..Choices::default() };
            let files = CheckpointFiles::folder(&fixtures.folder(name)).unwrap();
            let loaded = load(&files, LoadOptions { choices, ..LoadOptions::default() }).unwrap();
            let limits = EngineLimits { step_rows_max, ..EngineLimits::default() };
            let (engine, _) =
                Engine::spawn(loaded.model, loaded.vocabulary, limits, Arc::new(NoObserver)).unwrap();
            let together = logprobs(&engine, Request::Candidates(CandidatesJob::new(&candidates)));
            let alone = candidates.iter().flat_map(|target| {
                let number_tokens = Arc::new(NumberTokens::default());
                let job =
                    ScoreJob { target: target.clone(), number_tokens, losses: Vec::new(), digits: false };
                logprobs(&engine, Request::Score(job))
            });
            let alone: Vec<f64> = alone.collect();
            assert_eq!(together.len(), alone.len());
            for (place, (got, want)) in together.iter().zip(&alone).enumerate() {
                assert!((got - want).abs() < 1e-6, "{name}, token {place}: got {got}, expected {want}");
            }
        }
    }
}

over_fixtures!(candidates_have_the_log_probabilities_of_targets_scored_alone);
