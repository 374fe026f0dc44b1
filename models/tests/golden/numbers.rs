//! Compares exact number distributions with distributions that were expanded or enumerated by brute force in
//! float64: `numeric.json`.

use std::collections::HashMap;
use std::sync::Arc;

use ntl_core::Prompt;
use ntl_core::contract::{
    BatchModel, Event, Job, NumberJob, NumberMethod, NumberOutcome, Precision, Request, Terminator, TextJob,
};
use ntl_core::decoding::Vocabulary;
use ntl_core::numbers::{
    Distribution, Estimation, GrammarLimits, Interval, NumberGrammar, NumberValues, Objective, Softmax,
};
use ntl_engine::{Engine, EngineLimits, JobEvents, NoObserver};
use ntl_models::{DtypeChoice, KvCacheDtype, LoadOptions, LoadedModel, load};
use ntl_text::checkpoint::{CheckpointFiles, Choices};
use ntl_text::tokenizer::Tokenizer;

use crate::stored::read;
use crate::support::{Fixtures, chain, ids, prompt, reference};
use serde_json::Value;

/// A checkpoint with a numeric golden.
#[derive(Clone, Copy)]
struct Checkpoint {
    name: &'static str,
    /// Ids that end a number in the golden file: the end-of-sequence id and other terminators.
    terminators: &'static [u32],
    /// Text of the other terminators.
    ending: Option<&'static str>,
}

/// Numbers of the T5 end with the end-of-sequence token; numbers of the Llama may also end with a newline.
const CHECKPOINTS: [Checkpoint; 2] = [
    Checkpoint { name: "t5-ntl-was", terminators: &[1], ending: None },
    Checkpoint { name: "llama-ntl", terminators: &[2, 13], ending: Some("\n") },
];

const T5: Checkpoint = CHECKPOINTS[0];

impl Checkpoint {
    fn terminator(self) -> Terminator {
        self.ending.map_or(Terminator::Eos, |text| Terminator::Texts(vec![text.to_owned()]))
    }

    /// Returns a job with the grammar of the golden file: up to 8 digits on both sides.
    fn job(self, tolerance: f64) -> NumberJob {
        let limits = GrammarLimits::new(8, 8, true).unwrap();
        let method = NumberMethod::Tree { tolerance, nodes_max: 100_000, precision: None };
        NumberJob { limits, terminator: self.terminator(), ..NumberJob::new(method) }
    }
}

/// Starts an engine on a checkpoint, after an optional change to its vocabulary.
fn open(
    Checkpoint { name, .. }: Checkpoint,
    options: LoadOptions,
    change: impl FnOnce(&mut Vocabulary, &Tokenizer),
) -> Engine {
    let files = CheckpointFiles::folder(&reference(name)).unwrap();
    let LoadedModel { model, mut vocabulary, tokenizer, .. } = load(&files, options).unwrap();
    change(&mut vocabulary, &tokenizer);
    Engine::spawn(model, vocabulary, EngineLimits::default(), Arc::new(NoObserver)).unwrap().0
}

/// Returns the brute-force results of a checkpoint.
fn numeric_golden(Checkpoint { name, .. }: Checkpoint) -> Value {
    let golden = std::fs::read(reference(name).join("golden/numeric.json")).unwrap();
    serde_json::from_slice(&golden).unwrap()
}

/// Like [`open`], in f32; also returns the checkpoint's numeric golden file.
fn changed_engine(
    checkpoint: Checkpoint,
    change: impl FnOnce(&mut Vocabulary, &Tokenizer),
) -> (Engine, Value) {
    (open(checkpoint, LoadOptions::default(), change), numeric_golden(checkpoint))
}

fn engine(checkpoint: Checkpoint) -> (Engine, Value) {
    changed_engine(checkpoint, |_, _| {})
}

fn submit_job(engine: &Engine, prompt: &Value, job: NumberJob) -> JobEvents {
    let job = Job::new(ids(&prompt["input_ids"]), Request::Number(job));
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
    assert!((got - want).abs() <= 1e-4 * want.abs().max(1e-12), "{what}: got {got}, expected {want}");
}

/// Returns whether two numbers are equal. The last bit may differ if texts were parsed in a different order.
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
        // The golden file lists texts, while a leaf is a value. A leaf may have more probability, from
        // spellings such as `4.0`.
        let value = want["value"].as_f64().unwrap();
        let text_alone = want["probability"].as_f64().unwrap();
        let found = numbers.leaves().iter().find(|leaf| same_value(leaf.value, value));
        let got = found.unwrap_or_else(|| panic!("{text}: {value} was not found")).probability;
        assert!(got >= text_alone * (1.0 - 1e-4), "{text}: {got} for {value}, less than {text_alone}");
    }
}

/// Returns all ways to split `text` into pieces.
pub(crate) fn cuts(text: &str, pieces: &HashMap<String, Vec<u32>>) -> Vec<Vec<u32>> {
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

/// Returns the probability that the model writes exactly this path and then ends, from the logits of a chain
/// of rows.
pub(crate) fn path_probability(
    model: &mut dyn BatchModel,
    prompt: &[u32],
    path: &[u32],
    ends: &[u32],
) -> f64 {
    let opened = model.open(&[(&Prompt::from(prompt.to_vec())).into()]).unwrap()[0];
    let tokens = [&[opened.first_token], path].concat();
    let logits = model.step(&chain(opened.context, &tokens, 0)).unwrap();
    model.close(opened.context);
    let probability = |row, id| Softmax::new(logits.row(row)).unwrap().probability(id);
    let written: f64 = path.iter().enumerate().map(|(row, &id)| probability(row, id)).product();
    written * ends.iter().map(|&id| probability(path.len(), id)).sum::<f64>()
}

#[test]
fn probabilities_of_texts_summed_over_their_tokens_match_the_golden_ones() {
    for Checkpoint { name, terminators, .. } in CHECKPOINTS {
        let folder = reference(name);
        let files = CheckpointFiles::folder(&folder).unwrap();
        let LoadedModel { mut model, tokenizer, .. } = load(&files, LoadOptions::default()).unwrap();
        let mut pieces: HashMap<String, Vec<u32>> = HashMap::new();
        for id in 0..tokenizer.len() as u32 {
            if let Some(text) = tokenizer.piece_text(id) {
                pieces.entry(text).or_default().push(id);
            }
        }
        let golden = std::fs::read(folder.join("golden/numeric.json")).unwrap();
        let golden: Value = serde_json::from_slice(&golden).unwrap();
        for prompt in golden["prompts"].as_array().unwrap() {
            let prompt_ids = ids(&prompt["input_ids"]);
            for want in prompt["top20"].as_array().unwrap() {
                let text = want["text"].as_str().unwrap();
                let spellings = [text.to_owned(), format!(" {text}")];
                let paths = spellings.iter().flat_map(|spelling| cuts(spelling, &pieces));
                let got: f64 =
                    paths.map(|path| path_probability(&mut *model, &prompt_ids, &path, terminators)).sum();
                // The golden file may not have expanded all spellings of a number.
                let left = prompt["unexplored_mass"].as_f64().unwrap();
                let want = want["probability"].as_f64().unwrap();
                let fits = want * (1.0 - 1e-4) <= got && got <= want * (1.0 + 1e-4) + left;
                assert!(fits, "{name} {}: {text}: got {got}, expected {want}", prompt["text"]);
            }
        }
    }
}

#[test]
fn distributions_equal_the_brute_force_ones() {
    for checkpoint in CHECKPOINTS {
        let (engine, golden) = engine(checkpoint);
        let prompts = golden["prompts"].as_array().unwrap();
        let submit = |prompt| submit_job(&engine, prompt, checkpoint.job(1e-6));
        let streams: Vec<_> = prompts.iter().map(submit).collect();
        for (stream, prompt) in streams.into_iter().zip(prompts) {
            let outcome = outcome(stream);
            println!("{}: {} nodes, golden {}", prompt["text"], outcome.nodes, prompt["nodes"]);
            compare(&outcome.distribution, prompt);
        }
    }
}

#[test]
fn a_loose_tolerance_still_settles_mode_and_median() {
    for checkpoint in CHECKPOINTS {
        let (engine, golden) = engine(checkpoint);
        for prompt in golden["prompts"].as_array().unwrap() {
            let outcome = outcome(submit_job(&engine, prompt, checkpoint.job(1e-3)));
            let numbers = &outcome.distribution;
            let text = &prompt["text"];
            let mode = numbers.mode().unwrap();
            assert!(same_value(mode, prompt["mode"]["value"].as_f64().unwrap()), "{text}: mode {mode}");
            let median = numbers.quantile_bounds(0.5, None).unwrap();
            let want = prompt["median"].as_f64().unwrap();
            assert!(median.low <= want && want <= median.high, "{text}: {want} is not in {median:?}");
            assert!(outcome.nodes < 3000, "{text}: {} nodes", outcome.nodes);
        }
    }
}

/// No trimming: the golden values are plain means.
const PLAIN: Estimation = Estimation { trim: 0.0, normalize: true, range: None };

#[test]
fn within_a_range_mass_mean_and_spread_equal_the_brute_force_ones() {
    for checkpoint in CHECKPOINTS {
        let (engine, golden) = engine(checkpoint);
        // Values below 1e4 have at most 4 digits before the point.
        let range = Interval { low: -9_999.999_999_99, high: 9_999.999_999_99 };
        for prompt in golden["prompts"].as_array().unwrap() {
            let text = &prompt["text"];
            let want = &prompt["abs_below_1e4"];
            let job = NumberJob { values: NumberValues::Range(range), ..checkpoint.job(1e-6) };
            let numbers = outcome(submit_job(&engine, prompt, job)).distribution;
            assert_relative(numbers.mass().closed, &want["mass"], &format!("{text}: mass"));
            // Both leave up to 1e-6 unexpanded, and each part of it can have a value of up to 1e4.
            let slack = 0.02;
            let mean = want["mean"].as_f64().unwrap();
            let got = numbers.mean(&PLAIN).unwrap();
            assert!((got - mean).abs() <= slack + 1e-4 * mean.abs(), "{text}: mean {got}, expected {mean}");
            let bounds = numbers.trimmed_mean_bounds(&Estimation { range: Some(range), ..PLAIN }).unwrap();
            assert!(
                bounds.low - slack <= mean && mean <= bounds.high + slack,
                "{text}: {mean} is not in {bounds:?}"
            );
        }
    }
}

/// Compares with a small grammar that the golden file enumerates completely: at most 3 digits, in one-digit
/// pieces.
fn compare_exhaustive(
    checkpoint: Checkpoint,
    field: &str,
    prompts_max: usize,
    keep: impl Fn(&Tokenizer, u32) -> bool,
) {
    let single = |vocabulary: &mut Vocabulary, tokenizer: &Tokenizer| {
        let one_digit = |text: &String| text.chars().filter(char::is_ascii_digit).count() <= 1;
        let text = |id| tokenizer.piece_text(id).filter(one_digit).filter(|_| keep(tokenizer, id));
        let texts = (0..tokenizer.len() as u32).map(text);
        vocabulary.grammar = Arc::new(NumberGrammar::new(texts, vocabulary.eos_ids.to_vec()));
    };
    let (engine, golden) = changed_engine(checkpoint, single);
    for prompt in golden["prompts"].as_array().unwrap().iter().take(prompts_max) {
        let text = &prompt["text"];
        let want = &prompt[field];
        let limits = GrammarLimits::new(3, 0, true).unwrap();
        // A missing 999 changes the variance by a million times its probability.
        let job = NumberJob { limits, ..checkpoint.job(1e-13) };
        let numbers = outcome(submit_job(&engine, prompt, job)).distribution;
        assert_relative(numbers.mass().closed, &want["covered_mass"], &format!("{text}: covered mass"));
        assert_relative(numbers.mean(&PLAIN).unwrap(), &want["mean"], &format!("{text}: mean"));
        assert_relative(numbers.std().unwrap().powi(2), &want["variance"], &format!("{text}: variance"));
        let probability = numbers.most_probable(1)[0].probability;
        let what = format!("{text}: probability of the mode");
        assert_relative(probability, &want["mode"]["probability"], &what);
    }
}

#[test]
fn the_small_grammar_enumerated_completely_equals_the_golden_one() {
    compare_exhaustive(T5, "exhaustive_int3", 10, |_, _| true);
    let is_byte =
        |tokenizer: &Tokenizer, id| tokenizer.token(id).is_some_and(|token| token.starts_with("<0x"));
    let [_, llama] = CHECKPOINTS;
    compare_exhaustive(llama, "exhaustive_int3_no_byte_tokens", 10, |tokenizer, id| {
        !is_byte(tokenizer, id) || llama.terminators.contains(&id)
    });
    // With two tokens per digit, it has 84,210 nodes.
    compare_exhaustive(llama, "exhaustive_int3", 1, |_, _| true);
}

#[test]
fn a_precision_of_zero_settles_mode_and_median_within_few_nodes() {
    for checkpoint in CHECKPOINTS {
        let (engine, golden) = engine(checkpoint);
        for prompt in golden["prompts"].as_array().unwrap() {
            for (objective, field) in
                [(Objective::Mode, &prompt["mode"]["value"]), (Objective::Median, &prompt["median"])]
            {
                let objectives = vec![objective];
                let precision = Some(Precision { width: 0.0, objectives, estimation: PLAIN });
                let method = NumberMethod::Tree { tolerance: 1e-6, nodes_max: 65_536, precision };
                let outcome =
                    outcome(submit_job(&engine, prompt, NumberJob { method, ..checkpoint.job(1e-6) }));
                let got = outcome.distribution.estimate(objective, &PLAIN).unwrap();
                println!("{} {objective:?}: {} nodes", prompt["text"], outcome.nodes);
                assert!(
                    same_value(got, field.as_f64().unwrap()),
                    "{}: got {got}, expected {field}",
                    prompt["text"]
                );
            }
        }
    }
}

/// Maximum change of the probability of all numbers, or of the most probable one, and of the trimmed mean as a
/// share of the standard deviation, due to rounding of weights or of keys and values.
const CHANGES: [(DtypeChoice, KvCacheDtype, f64); 6] = [
    (DtypeChoice::F32, KvCacheDtype::Auto, 0.001),
    (DtypeChoice::F32, KvCacheDtype::Bf16, 0.01),
    (DtypeChoice::F32, KvCacheDtype::Fp8, 0.3),
    (DtypeChoice::Bf16, KvCacheDtype::Auto, 0.02),
    (DtypeChoice::Int8, KvCacheDtype::Auto, 0.1),
    (DtypeChoice::Int8, KvCacheDtype::Bf16, 0.1),
];

#[test]
fn trees_with_smaller_weights_and_keys_are_close_to_f32_and_bit_identical_in_a_batch() {
    let mut far = Vec::new();
    for checkpoint in CHECKPOINTS {
        let golden = numeric_golden(checkpoint);
        let prompts = golden["prompts"].as_array().unwrap();
        let mut exact = HashMap::new();
        for (dtype, kv_cache_dtype, bound) in CHANGES {
            let options = LoadOptions { dtype, kv_cache_dtype, ..LoadOptions::default() };
            let engine = open(checkpoint, options, |_, _| {});
            let submit = |prompt| submit_job(&engine, prompt, checkpoint.job(1e-4));
            let together: Vec<JobEvents> = prompts.iter().map(submit).collect();
            for (prompt, together) in prompts.iter().zip(together) {
                let found = outcome(together).distribution;
                let alone = outcome(submit(prompt)).distribution;
                let text = prompt["text"].as_str().unwrap();
                assert_eq!(found.leaves(), alone.leaves(), "{text}");
                assert_eq!(found.mass(), alone.mass(), "{text}");
                let want = prompt["covered_mass"].as_f64().unwrap();
                let closed = (found.mass().closed - want).abs();
                let mode = found.most_probable(1)[0].probability;
                let mode = (mode - prompt["mode"]["probability"].as_f64().unwrap()).abs();
                let mean = found.trimmed_mean(&Estimation::default()).unwrap();
                let &mut (exact, std) = exact.entry(text).or_insert((mean, found.std().unwrap()));
                let mean = (mean - exact).abs() / std;
                let change = closed.max(mode).max(mean);
                let kind = format!("{}, {}", dtype.name(), kv_cache_dtype.name());
                println!("{text}, {kind}: {closed:.4} {mode:.4} {mean:.4}");
                if change.is_nan() || change > bound {
                    far.push((text.to_owned(), dtype, kv_cache_dtype, change));
                }
            }
        }
    }
    assert!(far.is_empty(), "{far:?}");
}

#[test]
fn token_expectations_match_the_loss_along_the_label() {
    let (engine, _) = engine(T5);
    let golden = reference(T5.name).join("golden/golden.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let mut compared = 0;
    for case in golden["cases"].as_array().unwrap() {
        // The golden file has them along the label; they are comparable only if the model writes the label.
        if ids(&case["greedy"]["ids"])[1..] != ids(&case["label_ids"]) {
            continue;
        }
        let text = TextJob { max_tokens: 32, logprobs: Some(0), ..TextJob::default() };
        let job = Job::new(ids(&case["input_ids"]), Request::Text(text));
        let mut events = engine.submit(job).unwrap();
        let mut position = 0;
        while let Some(event) = events.next_blocking() {
            let Event::Text { token: Some(token), .. } = event else { continue };
            let value = &case["yhat"][position];
            let mass = case["number_mass"][position].as_f64().unwrap();
            let number = token.number.unwrap();
            assert!((number.value - value.as_f64().unwrap()).abs() < 1e-4, "{case} {position}: {number:?}");
            assert!((number.mass - mass).abs() < 1e-5, "{position}: got {number:?}, expected {mass}");
            position += 1;
        }
        compared += position;
    }
    assert!(compared > 4, "no case was compared");
}

/// For every kind of model that writes numbers: all numbers of at most two digits, each with all token
/// sequences that write it.
#[test]
fn small_distributions_match_an_enumeration_in_double_precision() {
    for name in ["t5-ce", "t5-ntl-was", "t5-rt", "t5-xval", "llama-ntl"] {
        let choices = Choices { log_scale_embeddings: Some(true), ..Choices::default() };
        let files = CheckpointFiles::folder(&Fixtures::Tiny.folder(name)).unwrap();
        let LoadedModel { model, vocabulary, .. } =
            load(&files, LoadOptions { choices, ..LoadOptions::default() }).unwrap();
        let (engine, _) =
            Engine::spawn(model, vocabulary, EngineLimits::default(), Arc::new(NoObserver)).unwrap();
        for want in read(Fixtures::Tiny, name, "numeric.json")["prompts"].as_array().unwrap() {
            let limits = GrammarLimits::new(2, 0, true).unwrap();
            let method = NumberMethod::Tree { tolerance: 1e-13, nodes_max: 100_000, precision: None };
            let job = NumberJob { limits, terminator: Terminator::Eos, ..NumberJob::new(method) };
            let events = engine.submit(Job::new(prompt(want), Request::Number(job))).unwrap();
            let numbers = outcome(events).distribution;
            let what = format!("{name} {}", want["text"]);
            assert_relative(numbers.mass().closed, &want["covered_mass"], &format!("{what}: covered mass"));
            assert_relative(numbers.mean(&PLAIN).unwrap(), &want["mean"], &format!("{what}: mean"));
            let variance = numbers.std().unwrap().powi(2);
            assert_relative(variance, &want["variance"], &format!("{what}: variance"));
            assert_eq!(numbers.leaves().len() as u64, want["values"].as_u64().unwrap(), "{what}: values");
            let likeliest = want["top20"].as_array().unwrap();
            assert_eq!(likeliest.len(), 20, "{what}");
            for (got, want) in numbers.most_probable(20).iter().zip(likeliest) {
                assert_relative(got.value, &want[0], &what);
                assert_relative(got.probability, &want[1], &what);
            }
        }
    }
}
