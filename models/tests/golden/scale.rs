//! Ratings on real tokenizers: compares the tree over a scale with the tree over all numbers.

use std::sync::Arc;

use ntl_core::contract::{Event, Job, NumberJob, NumberMethod, NumberOutcome, Prompt, Request};
use ntl_core::numbers::{NumberValues, Scale};
use ntl_engine::{Engine, EngineLimits, NoObserver};
use ntl_models::{LoadOptions, load};
use ntl_text::checkpoint::{CheckpointFiles, Choices};

use crate::support::{Fixtures, over_fixtures};

/// Open mass at which a tree stops: as a probability, or with a scale as a share of the mass on the scale.
const TOLERANCE: f64 = 1e-4;

fn engine(fixtures: Fixtures, name: &str) -> Engine {
    let choices = Choices { log_scale_embeddings: Some(true), ..Choices::default() };
    let files = CheckpointFiles::folder(&fixtures.folder(name)).unwrap();
    let loaded = load(&files, LoadOptions { choices, ..LoadOptions::default() }).unwrap();
    let observer = Arc::new(NoObserver);
    Engine::spawn(loaded.model, loaded.vocabulary, EngineLimits::default(), observer).unwrap().0
}

fn find(engine: &Engine, values: NumberValues, nodes_max: usize) -> NumberOutcome {
    let method = NumberMethod::Tree { tolerance: TOLERANCE, nodes_max, precision: None };
    let job = NumberJob { values, ..NumberJob::new(method) };
    let job = Job::new(Prompt::from(vec![3, 10, 14, 20]), Request::Number(job));
    match engine.submit(job).unwrap().next_blocking() {
        Some(Event::Number(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

fn probability(outcome: &NumberOutcome, value: f64) -> f64 {
    let leaves = outcome.distribution.leaves().iter();
    leaves.filter(|leaf| (leaf.value - value).abs() < 1e-9).map(|leaf| leaf.probability).sum()
}

/// The pieces of the fixtures have one digit or several, spaces, points and signs, or are digits at powers of
/// ten.
fn a_scale_has_the_probabilities_of_the_full_tree(fixtures: Fixtures) {
    for name in fixtures.only(&["t5-ntl-was", "t5-ce", "t5-rt", "llama-ntl"]) {
        let engine = engine(fixtures, name);
        let whole = find(&engine, NumberValues::All, 4096);
        for (low, high, step) in [(1.0, 5.0, 1.0), (1.0, 10.0, 1.0), (0.0, 2.0, 0.5)] {
            let scale = Scale::new(low, high, step).unwrap();
            let rated = find(&engine, NumberValues::Scale(scale), 4096);
            let what =
                format!("{name} {low} to {high}: {} nodes, {} without the scale", rated.nodes, whole.nodes);
            println!("{what}, masses {:?}", rated.distribution.mass());
            let open = rated.distribution.mass().open;
            let open_whole = whole.distribution.mass().open;
            for value in scale.values() {
                let got = probability(&rated, value);
                let want = probability(&whole, value);
                assert!(
                    got <= want + open_whole + 1e-6 && want <= got + open + 1e-6,
                    "{what}: {value}: {got} {want}"
                );
            }
            let on_scale: f64 = scale.values().map(|value| probability(&rated, value)).sum();
            assert!(
                (on_scale - rated.distribution.mass().closed).abs() < 1e-9,
                "{what}: a value off the scale"
            );
            // Mass beyond the digit limits never closes: then the budget ends the tree.
            let open_max = TOLERANCE * rated.distribution.mass().closed;
            assert!(rated.truncated || open <= open_max + 1e-12, "{what}: {open} of mass is open");
        }
    }
}

over_fixtures!(a_scale_has_the_probabilities_of_the_full_tree);
