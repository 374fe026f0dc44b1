//! Compares RegressLM's exports with their classes under transformers 4.53, its PyTorch model with the
//! original code, and the distributions of their numbers with enumerations of all answers.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use ntl_core::contract::{
    Event, Job, NumberEncoding, NumberJob, NumberMethod, NumberOutcome, Prompt, Request, TextJob, Token,
};
use ntl_core::numbers::{Distribution, Estimation, Objective, Softmax, SpecialMass};
use ntl_core::sampling::SamplingParams;
use ntl_engine::{Engine, EngineLimits, NoObserver};
use ntl_models::{LoadOptions, LoadedModel, load};
use ntl_text::checkpoint::{CheckpointFiles, TruncationSide};
use serde_json::{Value, json};

use crate::corrupted::{change_json, files_of};
use crate::support::{Fixtures, assert_close, flat, ids, numbers, read_golden, reference, score, tokens};

const CHECKPOINTS: [(&str, &str, NumberEncoding); 4] = [
    ("regresslm-hf-ieee", "regresslm", NumberEncoding::Ieee),
    ("regresslm-hf-p10", "regresslm", NumberEncoding::P10),
    ("regresslm-pt", "regresslm-pt", NumberEncoding::P10),
    ("regresslm-pt-char", "regresslm-pt", NumberEncoding::Ieee),
];

fn open(folder: &Path) -> LoadedModel {
    load(&CheckpointFiles::folder(folder).unwrap(), LoadOptions::default()).unwrap()
}

struct Golden {
    name: &'static str,
    cases: Vec<Value>,
    tensors: HashMap<String, Tensor>,
}

fn for_each_checkpoint(check: impl Fn(Golden, LoadedModel)) {
    for (name, kind, encoding) in CHECKPOINTS {
        let folder = reference(name);
        let (json, tensors) = read_golden(&folder);
        let cases = json["cases"].as_array().unwrap().clone();
        let loaded = open(&folder);
        let info = loaded.model.info();
        assert_eq!((&*info.kind, info.number_encoding), (kind, encoding));
        check(Golden { name, cases, tensors }, loaded);
    }
}

/// All values of both numbers of an answer, from `data/tiny/regresslm.py`.
#[test]
fn a_tiny_model_gives_the_enumerated_distributions_of_both_numbers() {
    let folder = Fixtures::Tiny.folder("regresslm-hf-p10");
    let (json, tensors) = read_golden(&folder);
    let mut loaded = open(&folder);
    let cases = json["cases"].as_array().unwrap();
    for case in cases {
        let encoded = loaded.tokenizer.encode(case["prompt"].as_str().unwrap(), true).unwrap();
        assert_eq!(encoded, ids(&case["encoder_input_ids"]));
        check_logits(&mut loaded, case, &tensors);
    }
    let answers = Answers::new(loaded);
    for case in cases {
        for (kind, is_masked) in [("masked", true), ("raw", false)] {
            let outcome = answers.number(case, complete_tree(is_masked));
            for (outcome, want) in outcome.each().iter().zip(case[kind].as_array().unwrap()) {
                check_values(&outcome.distribution, want, &format!("{} {kind}", case["id"]));
            }
        }
    }
}

/// All values of all numbers of an answer, from `data/tiny/regresslm_torch.py` and, for the last model, from
/// the original code (`regresslm_original.py`). The first model has vanilla layers, special values and
/// padding between its two numbers, the others T5Gemma's encoders.
#[test]
fn tiny_pytorch_models_give_the_enumerated_distributions_and_separate_masses() {
    for (name, encoding) in [
        ("regresslm-pt", NumberEncoding::P10),
        ("regresslm-pt-gemma", NumberEncoding::Normalized),
        ("regresslm-pt-gemma2", NumberEncoding::Normalized),
    ] {
        let folder = Fixtures::Tiny.folder(name);
        let (json, tensors) = read_golden(&folder);
        let mut loaded = open(&folder);
        let info = loaded.model.info();
        assert_eq!((&*info.kind, info.number_encoding), ("regresslm-pt", encoding));
        let tokens_max = info.prompt_tokens_max;
        let cases = json["cases"].as_array().unwrap();
        for case in cases {
            let encoded = loaded.tokenizer.encode_prompt(case["prompt"].as_str().unwrap(), true).unwrap();
            let encoded = loaded.tokenizer.truncate(encoded, tokens_max, TruncationSide::Right);
            assert_eq!(encoded, prompt_of(case));
            check_logits(&mut loaded, case, &tensors);
        }
        let answers = Answers::new(loaded);
        for case in cases {
            for (kind, is_masked) in [("masked", true), ("raw", false)] {
                let outcome = answers.number(case, complete_tree(is_masked));
                let what = format!("{name} {} {kind}", case["id"]);
                let want = case[kind].as_array().unwrap();
                assert_eq!(outcome.each().len(), want.len(), "{what}");
                for (outcome, want) in outcome.each().iter().zip(want) {
                    check_enumerated(&outcome.distribution, want, &what);
                }
            }
        }
    }
}

#[test]
fn all_layers_of_an_encoder_attend_to_all_positions_on_request() {
    let folder = Fixtures::Tiny.folder("regresslm-pt-gemma2");
    let (golden, tensors) = read_golden(&folder);
    let mut files = files_of(&folder);
    change_json(&mut files, "ntl.json", "/encoder/all_global_attn", &json!(true));
    let mut loaded = load(&CheckpointFiles::memory("m", files), LoadOptions::default()).unwrap();
    for case in golden["cases"].as_array().unwrap() {
        check_logits_of(&mut loaded, case, &tensors, "global");
    }
}

fn complete_tree(is_masked: bool) -> NumberJob {
    let method = NumberMethod::Tree { tolerance: 1e-12, nodes_max: 65_536, precision: None };
    NumberJob { is_masked, ..NumberJob::new(method) }
}

/// Compares the logits of a case's greedy answer.
fn check_logits(loaded: &mut LoadedModel, case: &Value, tensors: &HashMap<String, Tensor>) {
    check_logits_of(loaded, case, tensors, "case");
}

/// Like [`check_logits`], with tensors whose names begin with `kind`.
fn check_logits_of(loaded: &mut LoadedModel, case: &Value, tensors: &HashMap<String, Tensor>, kind: &str) {
    let greedy = ids(&case["greedy"]);
    let input = tokens(&[&[0], &greedy[..greedy.len() - 1]].concat(), &[]);
    let (logits, _) = score(&mut *loaded.model, &[prompt_of(case)], &[input]);
    let got: Vec<f32> = (0..logits.rows()).flat_map(|row| logits.row(row).to_vec()).collect();
    let id = case["id"].as_str().unwrap();
    assert_close(&got, &flat(&tensors[&format!("{kind}.{id}.logits")]), 1e-4, id);
}

/// Compares a distribution with `[value, probability]` of all values.
fn check_values(found: &Distribution, want: &Value, what: &str) {
    let want: Vec<Vec<f64>> = want.as_array().unwrap().iter().map(numbers).collect();
    assert_eq!(found.leaves().len(), want.len(), "{what}");
    for (leaf, want) in found.leaves().iter().zip(want) {
        let is_near = (leaf.value - want[0]).abs() < 1e-12 && (leaf.probability - want[1]).abs() < 1e-6;
        assert!(is_near, "{what}: {leaf:?}, {want:?}");
    }
}

fn check_enumerated(found: &Distribution, want: &Value, what: &str) {
    check_values(found, &want["values"], what);
    for (name, got) in special_masses(found) {
        let want = want["special"][name].as_f64().unwrap_or(0.0);
        assert!((got - want).abs() < 1e-6, "{what}: mass of {name} {got}, {want}");
    }
    let mass = found.mass();
    assert!((mass.closed + mass.invalid - 1.0).abs() < 1e-9, "{what}: {mass:?}");
}

/// Returns the masses of values that are not finite, by the names of their tokens.
fn special_masses(found: &Distribution) -> [(&'static str, f64); 4] {
    let SpecialMass { nan, infinity, negative_infinity, invalid } = found.special();
    [("NAN", nan), ("INF", infinity), ("NINF", negative_infinity), ("INVALID", invalid)]
}

fn prompt_of(case: &Value) -> Prompt {
    ids(&case["encoder_input_ids"]).into()
}

fn decoder_input(target: &Value) -> Vec<Token> {
    tokens(&ids(&target["decoder_input_ids"]), &[])
}

#[test]
fn logits_match_the_reference_alone_and_in_a_batch() {
    for_each_checkpoint(|Golden { name, cases, tensors }, mut loaded| {
        let model = &mut *loaded.model;
        let tokens_max = model.info().prompt_tokens_max;
        let mut worst = 0.0_f32;
        for case in &cases {
            let id = case["id"].as_str().unwrap();
            let encoded = loaded.tokenizer.encode_prompt(case["prompt"].as_str().unwrap(), true).unwrap();
            let encoded = loaded.tokenizer.truncate(encoded, tokens_max, TruncationSide::Right);
            assert_eq!(encoded, prompt_of(case), "{name} {id}");
            for (index, target) in case["targets"].as_array().unwrap().iter().enumerate() {
                let (logits, _) = score(model, &[prompt_of(case)], &[decoder_input(target)]);
                let got: Vec<f32> = (0..logits.rows()).flat_map(|row| logits.row(row).to_vec()).collect();
                let want = flat(&tensors[&format!("case.{id}.logits")].get(index).unwrap());
                worst = worst.max(assert_close(&got, &want, 1e-4, &format!("{name} {id} {index}")));
                let labels = ids(&target["ids"]);
                let labels = labels.iter().zip(numbers(&target["token_logprobs"])).enumerate();
                // Padding has no log-probability in the reference.
                for (row, (label, want)) in labels.filter(|(_, (label, _))| **label != 0) {
                    let got = Softmax::new(logits.row(row)).unwrap().log_probability(*label);
                    assert!((got - want).abs() < 1e-4, "{name} {id} {index}, label {row}: {got}, {want}");
                }
            }
        }
        let inputs: Vec<Vec<Token>> = cases.iter().map(|case| decoder_input(&case["targets"][0])).collect();
        let prompts: Vec<Prompt> = cases.iter().map(prompt_of).collect();
        let (logits, starts) = score(model, &prompts, &inputs);
        for (case, (start, input)) in starts.into_iter().zip(&inputs).enumerate() {
            let got: Vec<f32> =
                (start..start + input.len()).flat_map(|row| logits.row(row).to_vec()).collect();
            let id = cases[case]["id"].as_str().unwrap();
            let want = flat(&tensors[&format!("case.{id}.logits")].get(0).unwrap());
            worst = worst.max(assert_close(&got, &want, 1e-4, &format!("{name} batch row {case}")));
        }
        println!("{name}: logits differ by at most {worst:e}");
    });
}

/// Answers requests to one checkpoint.
struct Answers(Engine);

impl Answers {
    fn new(loaded: LoadedModel) -> Self {
        let LoadedModel { model, vocabulary, .. } = loaded;
        Self(Engine::spawn(model, vocabulary, EngineLimits::default(), Arc::new(NoObserver)).unwrap().0)
    }

    fn all(&self, case: &Value, request: Request) -> Vec<Event> {
        let mut events = self.0.submit(Job::new(prompt_of(case), request)).unwrap();
        std::iter::from_fn(|| events.next_blocking()).collect()
    }

    fn number(&self, case: &Value, job: NumberJob) -> NumberOutcome {
        match self.all(case, Request::Number(job)).pop() {
            Some(Event::Number(outcome)) => outcome,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn greedy_texts_are_the_tokens_of_the_reference() {
    for_each_checkpoint(|Golden { name, cases, .. }, loaded| {
        let notation = Arc::clone(loaded.vocabulary.grammar.notation().unwrap());
        let answers = Answers::new(loaded);
        for case in &cases {
            let events = answers.all(case, Request::Text(TextJob::default()));
            let text = |event: &Event| match event {
                Event::Text { text, .. } => Some(text.clone()),
                _ => None,
            };
            let text: String = events.iter().filter_map(text).collect();
            let mut want = ids(&case["greedy"]["ids"]);
            // Texts do not show padding.
            want.truncate(want.iter().rposition(|id| *id != 0).map_or(0, |last| last + 1));
            assert_eq!(notation.encode(&text), Some(want), "{name} {}", case["id"]);
        }
    });
}

/// Returns the enumerated probabilities of all finite values, by their texts.
fn enumerated(tensors: &HashMap<String, Tensor>, logprobs: &str) -> HashMap<String, f64> {
    let values: Vec<f64> = tensors["leaf_values"].to_vec1().unwrap();
    let mut merged = HashMap::new();
    let all = values.into_iter().zip(flat(&tensors[logprobs]));
    for (value, logprob) in all.filter(|(value, _)| value.is_finite()) {
        // Spellings of one value differ in the last bit in the reference.
        let key = if value == 0.0 { "0".to_owned() } else { format!("{value:.9e}") };
        *merged.entry(key).or_default() += f64::from(logprob).exp();
    }
    merged
}

/// Returns the mass of all finite values.
fn finite_mass(golden: &Value) -> f64 {
    golden.get("finite_mass").unwrap_or(&golden["mass"]).as_f64().unwrap()
}

fn compare(found: &Distribution, enumerated: &HashMap<String, f64>, golden: &Value, what: &str) {
    assert_eq!(found.leaves().len(), enumerated.len(), "{what}");
    for leaf in found.leaves() {
        let key = if leaf.value == 0.0 { "0".to_owned() } else { format!("{:.9e}", leaf.value) };
        let want = enumerated[&key];
        assert!((leaf.probability - want).abs() < 1e-6, "{what}, {}: {} {want}", leaf.text, leaf.probability);
    }
    let same = |got: f64, want: &Value| {
        let want = want.as_f64().unwrap();
        (got - want).abs() <= 1e-12 * want.abs()
    };
    let closed = found.mass().closed;
    assert!((closed - finite_mass(golden)).abs() < 1e-6, "{what}: closed mass {closed}");
    for (name, got) in special_masses(found) {
        let want = golden["special_masses"][name].as_f64().unwrap_or(0.0);
        assert!((got - want).abs() < 1e-6, "{what}: mass of {name} {got}, {want}");
    }
    assert!(same(found.mode().unwrap(), &golden["mode"]), "{what}: mode");
    for (q, want) in golden["quantiles"].as_object().unwrap() {
        // A quantile that lies on a step of the distribution function may fall on either side of it.
        if golden["quantile_cdf_gap"][q].as_f64().unwrap() >= 1e-4 {
            let got = found.quantile(q.parse().unwrap()).unwrap();
            assert!(same(got, want), "{what}, quantile {q}: {got}, {want}");
        }
    }
    let mean = found.mean(&Estimation::default()).unwrap();
    let off = (mean - golden["mean"].as_f64().unwrap()).abs() / golden["mean_abs"].as_f64().unwrap();
    assert!(off < 1e-4, "{what}: mean {mean}");
}

/// A tree that counts every prefix of the first number. The second one, if there is one, needs more nodes.
fn exact(is_masked: bool) -> NumberJob {
    let method = NumberMethod::Tree { tolerance: 1e-12, nodes_max: 3000, precision: None };
    NumberJob { is_masked, ..NumberJob::new(method) }
}

#[test]
fn distributions_equal_the_enumerated_ones_with_and_without_the_mask() {
    for_each_checkpoint(|Golden { name, cases, tensors, .. }, loaded| {
        let answers = Answers::new(loaded);
        for case in &cases {
            let id = case["id"].as_str().unwrap();
            for (kind, is_masked) in [("constrained", true), ("raw", false)] {
                let found = answers.number(case, exact(is_masked)).distribution;
                let enumerated = enumerated(&tensors, &format!("dist.{id}.{kind}_logp"));
                compare(&found, &enumerated, &case["distribution"][kind], &format!("{name} {id} {kind}"));
                let mass = found.mass();
                assert!((mass.closed + mass.invalid - 1.0).abs() < 1e-9, "{name} {id}: {mass:?}");
            }
        }
    });
}

#[test]
fn default_trees_bound_the_exact_estimates_of_every_number() {
    for_each_checkpoint(|Golden { name, cases, .. }, loaded| {
        let answers = Answers::new(loaded);
        let method = NumberMethod::Tree { tolerance: 1e-3, nodes_max: 4096, precision: None };
        let objectives = [Objective::Mean, Objective::Median, Objective::Mode, Objective::Quantile(0.95)];
        let estimation = Estimation::default();
        for case in &cases {
            let outcome = answers.number(case, NumberJob::new(method.clone()));
            let truth = answers.number(case, exact(true)).distribution;
            for objective in objectives {
                let want = truth.estimate(objective, &estimation).unwrap();
                let bounds = outcome.distribution.estimate_bounds(objective, &estimation).unwrap();
                let off = 1e-6 * want.abs();
                let holds = bounds.low - off <= want && want <= bounds.high + off;
                assert!(holds, "{name} {} {objective:?}: {want}, {bounds:?}", case["id"]);
            }
            for further in &outcome.further {
                let bounds = further.estimate_bounds(Objective::Median, &estimation).unwrap();
                assert!(bounds.low.is_finite() && bounds.high.is_finite());
                let Some(second) = case["distribution"]["second_given_first"]["constrained"].as_object()
                else {
                    panic!("{name}: no golden of the second number")
                };
                // The likeliest first number is followed by the likeliest second one: that alone has this
                // mass.
                let spelling =
                    case["distribution"]["constrained"]["mode_sequence"]["log_prob"].as_f64().unwrap();
                let least = spelling.exp() * second["mode_probability"].as_f64().unwrap();
                let mode = second["mode"].as_f64().unwrap();
                let leaf =
                    further.leaves().iter().find(|leaf| (leaf.value - mode).abs() <= 1e-9 * mode.abs());
                let got = leaf.map_or(0.0, |leaf| leaf.probability) + further.mass().open;
                assert!(got >= least - 1e-6, "{name} {}: {got}, {least}", case["id"]);
            }
        }
    });
}

#[test]
fn samples_follow_the_recipe_of_the_reference() {
    for_each_checkpoint(|Golden { name, cases, .. }, loaded| {
        let answers = Answers::new(loaded);
        for case in &cases[..3] {
            for (kind, top_p) in [("constrained", 1.0), ("sampler_top_p_0_95", 0.95)] {
                let golden = &case["distribution"][kind];
                // The reference's own model cuts nothing off.
                if golden.is_null() {
                    continue;
                }
                let finite = finite_mass(golden);
                let sampling = SamplingParams { top_p, seed: 1, ..SamplingParams::PLAIN };
                let drawn = NumberJob::new(NumberMethod::Sample { samples: 2000, sampling, precision: None });
                let drawn = answers.number(case, drawn).distribution;
                let mode = golden["mode"].as_f64().unwrap();
                let leaf = drawn.leaves().iter().find(|leaf| (leaf.value - mode).abs() <= 1e-9 * mode.abs());
                let got = leaf.map_or(0.0, |leaf| leaf.probability);
                let want = finite * golden["mode_probability"].as_f64().unwrap();
                assert!(
                    (got - want).abs() < 0.045,
                    "{name} {} {kind}: {got} of {mode}, not {want}",
                    case["id"]
                );
                let below = |value: f64| value < 0.0;
                let negative: f64 =
                    drawn.leaves().iter().filter(|leaf| below(leaf.value)).map(|leaf| leaf.probability).sum();
                let want = finite * golden["probability_negative"].as_f64().unwrap();
                assert!((negative - want).abs() < 0.045, "{name} {} {kind}: {negative}, {want}", case["id"]);
            }
        }
    });
}
