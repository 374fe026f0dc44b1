//! Exact number distributions against those that a brute-force expansion in float64 found: `numeric.json`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::support::{chain, fixtures, ids};
use ntl_core::engine::{BatchModel, Event, Job, NumberJob, NumberOutcome, Request, Terminator};
use ntl_core::numbers::{Distribution, GrammarLimits, Softmax};
use ntl_models::batch::{Engine, EngineLimits, JobEvents, NoObserver};
use ntl_models::checkpoint::CheckpointFiles;
use ntl_models::{LoadOptions, LoadedModel, load};
use serde_json::Value;

fn engine(name: &str) -> Option<(Engine, Value)> {
    let folder = fixtures()?.join(name);
    let golden = std::fs::read(folder.join("golden/numeric.json")).unwrap();
    let files = CheckpointFiles::folder(&folder).unwrap();
    let LoadedModel { model, vocabulary, .. } = load(&files, LoadOptions::default()).unwrap();
    let (engine, _) =
        Engine::spawn(model, vocabulary, EngineLimits::default(), Arc::new(NoObserver)).unwrap();
    Some((engine, serde_json::from_slice(&golden).unwrap()))
}

/// The golden grammar: up to 8 digits on both sides, ended by the end of the sequence only.
fn submit(engine: &Engine, prompt: &Value, tolerance: f64) -> JobEvents {
    let limits = GrammarLimits::new(8, 8, true).unwrap();
    let job = NumberJob { tolerance, nodes_max: 65_536, limits, terminator: Terminator::Eos };
    let job = Job { prompt: ids(&prompt["input_ids"]), request: Request::Number(job), deadline: None };
    engine.submit(job).unwrap()
}

fn outcome(mut events: JobEvents) -> NumberOutcome {
    match events.next_blocking() {
        Some(Event::Number(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_relative(got: f64, want: &Value, what: &str) {
    let want = want.as_f64().unwrap();
    assert!((got - want).abs() <= 1e-4 * want.abs().max(1e-12), "{what}: {got} instead of {want}");
}

/// Values of numbers are equal; the last bit may differ where texts were read in another order.
fn same_value(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

fn compare(numbers: &Distribution, golden: &Value) {
    let text = golden["text"].as_str().unwrap();
    assert_relative(numbers.mass().closed, &golden["covered_mass"], &format!("{text}: covered mass"));
    assert!(same_value(numbers.mode().unwrap(), golden["mode"]["value"].as_f64().unwrap()), "{text}: mode");
    for (q, want) in golden["quantiles"].as_object().unwrap() {
        // A quantile that lies on a step of the distribution function may fall on either side of it.
        if golden["quantile_cdf_gap"][q].as_f64().unwrap() < 1e-5 {
            continue;
        }
        assert_relative(
            numbers.quantile(q.parse().unwrap()).unwrap(),
            want,
            &format!("{text}: quantile {q}"),
        );
    }
    let mode = numbers.most_probable(1)[0].probability;
    assert_relative(mode, &golden["mode"]["probability"], &format!("{text}: probability of the mode"));
    for want in golden["top20"].as_array().unwrap() {
        // The golden lists texts, a leaf is a value: it may have more, from spellings such as `4.0`.
        let (value, text_alone) = (want["value"].as_f64().unwrap(), want["probability"].as_f64().unwrap());
        let found = numbers.leaves().iter().find(|leaf| same_value(leaf.value, value));
        let got = found.unwrap_or_else(|| panic!("{text}: {value} was not found")).probability;
        assert!(got >= text_alone * (1.0 - 1e-4), "{text}: {got} for {value}, less than {text_alone}");
    }
}

/// All ways to cut `text` into pieces.
fn cuts(text: &str, pieces: &HashMap<String, Vec<u32>>) -> Vec<Vec<u32>> {
    if text.is_empty() {
        return vec![Vec::new()];
    }
    let mut found = Vec::new();
    for end in 1..=text.len() {
        for &id in pieces.get(&text[..end]).into_iter().flatten() {
            found.extend(cuts(&text[end..], pieces).into_iter().map(|rest| [&[id], &rest[..]].concat()));
        }
    }
    found
}

/// Probability that the model writes exactly this path and then ends, from the logits of a chain of rows.
fn path_probability(model: &mut dyn BatchModel, prompt: &[u32], path: &[u32]) -> f64 {
    let opened = model.open(&[prompt]).unwrap()[0];
    let tokens = [&[opened.first_token], path].concat();
    let logits = model.step(&chain(opened.context, &tokens, 0)).unwrap();
    model.close(opened.context);
    let next = path.iter().copied().chain([1]).enumerate();
    next.map(|(row, id)| Softmax::new(logits.row(row)).unwrap().probability(id)).product()
}

#[test]
fn probabilities_of_texts_summed_over_their_tokens_equal_the_golden_ones() {
    let Some(folder) = fixtures() else { return };
    let files = CheckpointFiles::folder(&folder.join("t5-ntl-was")).unwrap();
    let LoadedModel { mut model, tokenizer, .. } = load(&files, LoadOptions::default()).unwrap();
    let mut pieces: HashMap<String, Vec<u32>> = HashMap::new();
    for id in 0..tokenizer.len() as u32 {
        if let Some(text) = tokenizer.piece_text(id) {
            pieces.entry(text).or_default().push(id);
        }
    }
    let golden: Value =
        serde_json::from_slice(&std::fs::read(folder.join("t5-ntl-was/golden/numeric.json")).unwrap())
            .unwrap();
    for prompt in golden["prompts"].as_array().unwrap() {
        let prompt_ids = ids(&prompt["input_ids"]);
        for want in prompt["top20"].as_array().unwrap() {
            let text = want["text"].as_str().unwrap();
            let spellings = [text.to_owned(), format!(" {text}")];
            let paths = spellings.iter().flat_map(|spelling| cuts(spelling, &pieces));
            let got: f64 = paths.map(|path| path_probability(&mut *model, &prompt_ids, &path)).sum();
            assert_relative(got, &want["probability"], &format!("{}: {text}", prompt["text"]));
        }
    }
}

#[test]
fn distributions_equal_the_brute_force_ones() {
    let Some((engine, golden)) = engine("t5-ntl-was") else { return };
    let prompts = golden["prompts"].as_array().unwrap();
    let streams: Vec<_> = prompts.iter().map(|prompt| submit(&engine, prompt, 1e-6)).collect();
    for (stream, prompt) in streams.into_iter().zip(prompts) {
        let outcome = outcome(stream);
        println!("{}: {} nodes, golden {}", prompt["text"], outcome.nodes, prompt["nodes"]);
        compare(&outcome.distribution, prompt);
    }
}

#[test]
fn a_loose_tolerance_still_settles_mode_and_median() {
    let Some((engine, golden)) = engine("t5-ntl-was") else { return };
    for prompt in golden["prompts"].as_array().unwrap() {
        let outcome = outcome(submit(&engine, prompt, 1e-3));
        let (numbers, text) = (&outcome.distribution, &prompt["text"]);
        let mode = numbers.mode().unwrap();
        assert!(same_value(mode, prompt["mode"]["value"].as_f64().unwrap()), "{text}: mode {mode}");
        let median = numbers.quantile_bounds(0.5).unwrap();
        let want = prompt["median"].as_f64().unwrap();
        assert!(median.low <= want && want <= median.high, "{text}: {want} is not in {median:?}");
        assert!(outcome.nodes < 2000, "{text}: {} nodes", outcome.nodes);
    }
}
