//! Fields of structured texts: compares their distributions with a brute force over the model's logits.

use std::collections::BTreeMap;
use std::sync::Arc;

use ntl_core::contract::{
    BatchModel, ContextId, ContextRequest, Event, FieldOutcome, FieldsJob, Job, NodeId, PathRow, Prompt,
    Request, Row, TextJob,
};
use ntl_core::guide::FieldValues;
use ntl_core::numbers::{Estimation, GrammarLimits, Objective};
use ntl_core::sampling::SamplingParams;
use ntl_core::text::TextDecoder;
use ntl_engine::{Engine, EngineLimits, NoObserver};
use ntl_models::{LoadOptions, LoadedModel, load};
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::guide::{Constraint, GuideCompiler, Whitespace};
use ntl_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::support::Fixtures;

const PROMPT: [u32; 4] = [1, 10, 14, 20];
const DIGITS_MAX: u8 = 2;
const DECIMALS_MAX: u8 = 1;

/// The open mass of the tree, and rounding.
const TOLERANCE: f64 = 1e-6;

pub(super) fn model() -> LoadedModel {
    let files = CheckpointFiles::folder(&Fixtures::Tiny.folder("llama-ntl")).unwrap();
    load(&files, LoadOptions::default()).unwrap()
}

pub(super) fn fields(objective: Objective) -> FieldsJob {
    FieldsJob {
        limits: GrammarLimits::new(DIGITS_MAX, DECIMALS_MAX, true).unwrap(),
        tolerance: TOLERANCE,
        nodes_max: 60_000,
        precision: None,
        time_max: None,
        objective,
        estimation: Estimation::default(),
        mass_min: 0.0,
        decimals: 6,
    }
}

/// A structured text with the fields that were found in it.
#[derive(Debug, Clone, Default)]
pub(super) struct Written {
    pub(super) ids: Vec<u32>,
    pub(super) text: String,
    pub(super) numbers: Vec<FieldOutcome>,
}

/// Writes `n` texts under a schema.
pub(super) fn write(schema: &Value, whitespace: Whitespace, job: TextJob) -> Vec<Written> {
    let LoadedModel { model, tokenizer, vocabulary, .. } = model();
    let compiler = GuideCompiler::new(&tokenizer, model.info()).unwrap();
    let constraint = Constraint::Json { schema: schema.clone(), whitespace };
    let guide = Some(compiler.compile(&constraint).unwrap());
    let mut texts = vec![Written::default(); job.n as usize];
    let job = TextJob { guide, logprobs: Some(0), max_tokens: 240, ..job };
    let engine = Engine::spawn(model, vocabulary, EngineLimits::default(), Arc::new(NoObserver)).unwrap().0;
    let mut events = engine.submit(Job::new(Prompt::from(PROMPT.to_vec()), Request::Text(job))).unwrap();
    let mut unfinished = texts.len();
    while unfinished > 0 {
        match events.next_blocking().unwrap() {
            Event::Text { choice, text, token, .. } => {
                let written = &mut texts[choice as usize];
                written.text += &text;
                written.ids.extend(token.map(|token| token.token.id));
            }
            Event::Field(number) => texts[number.choice as usize].numbers.push(number),
            Event::Finished { .. } => unfinished -= 1,
            other => panic!("{other:?}"),
        }
    }
    texts
}

/// Sums the probabilities of all numbers that the model would write, by walking all texts token by token.
pub(super) struct BruteForce {
    model: Box<dyn BatchModel>,
    tokenizer: Arc<Tokenizer>,
    admits: Box<dyn Fn(f64) -> bool>,
    /// Whether a number may begin with a space.
    has_spaces: bool,
    /// Probabilities by value, in units of the last decimal.
    closed: BTreeMap<i64, f64>,
}

/// A text before its next token.
struct Begun {
    context: ContextId,
    probabilities: Vec<f64>,
    parent: Option<NodeId>,
    nodes: u32,
}

impl BruteForce {
    pub(super) fn new(admits: impl Fn(f64) -> bool + 'static) -> Self {
        let LoadedModel { model, tokenizer, .. } = model();
        Self { model, tokenizer, admits: Box::new(admits), has_spaces: true, closed: BTreeMap::new() }
    }

    /// No number begins with a space.
    pub(super) fn without_spaces(self) -> Self {
        Self { has_spaces: false, ..self }
    }

    /// The probability of each of these JSON values after the prompt and `before`, written in any tokens and
    /// followed by anything that JSON allows.
    fn listed(mut self, before: &[u32], values: &[&str]) -> Vec<f64> {
        let mut sums = vec![0.0; values.len()];
        let Begun { context, probabilities, parent, mut nodes } = self.begin(before);
        let mut pending = vec![(Vec::new(), 1.0, probabilities, parent)];
        while let Some((text, probability, next, parent)) = pending.pop() {
            for id in 0..self.tokenizer.len() as u32 {
                let probability = probability * next[id as usize];
                let is_end = Some(id) == self.tokenizer.eos_id();
                let piece = self.tokenizer.piece_bytes(id).filter(|piece| !piece.is_empty() && !is_end);
                let Some(longer) =
                    piece.map(|piece| [text.as_slice(), &piece].concat()).or(is_end.then(|| text.clone()))
                else {
                    continue;
                };
                if longer.starts_with(b" ") && !self.has_spaces {
                    continue;
                }
                let written = longer.strip_prefix(b" ").unwrap_or(&longer);
                for (sum, value) in sums.iter_mut().zip(values) {
                    let Some(rest) = written.strip_prefix(value.as_bytes()) else { continue };
                    // Unlike `trim_ascii`, JSON knows no form feeds.
                    let follows = rest.iter().find(|byte| !b" \t\r\n".contains(byte));
                    let is_word = !value.ends_with('"');
                    let ends = if rest.is_empty() {
                        !is_word || is_end
                    } else {
                        follows.is_none_or(|byte| b",]}".contains(byte))
                    };
                    *sum += if ends { probability } else { 0.0 };
                }
                let is_begun = values.iter().any(|value| {
                    let is_open = value.len() > written.len() || !value.ends_with('"');
                    is_open && value.as_bytes().starts_with(written)
                });
                if is_begun && !is_end {
                    let row = Row { context, path: PathRow::new(parent, id) };
                    let after = softmax(self.model.step(&[row]).unwrap().row(0));
                    pending.push((longer, probability, after, Some(NodeId(nodes))));
                    nodes += 1;
                }
            }
        }
        sums
    }

    fn begin(&mut self, before: &[u32]) -> Begun {
        let prompt = Prompt::from(PROMPT.to_vec());
        let opened = self.model.open(&[ContextRequest::from(&prompt)]).unwrap()[0];
        let mut parent = None;
        let mut nodes = 0;
        let mut probabilities = Vec::new();
        for &token in [opened.first_token].iter().chain(before) {
            let row = Row { context: opened.context, path: PathRow::new(parent, token) };
            probabilities = softmax(self.model.step(&[row]).unwrap().row(0));
            parent = Some(NodeId(nodes));
            nodes += 1;
        }
        Begun { context: opened.context, probabilities, parent, nodes }
    }

    /// The numbers after the prompt and `before`.
    pub(super) fn numbers(mut self, before: &[u32]) -> BTreeMap<i64, f64> {
        let Begun { context, probabilities, parent, mut nodes } = self.begin(before);
        let mut pending = vec![(String::new(), 1.0, probabilities, parent)];
        while let Some((text, probability, next, parent)) = pending.pop() {
            for id in 0..self.tokenizer.len() as u32 {
                let probability = probability * next[id as usize];
                let piece = self.tokenizer.number_piece(id);
                let longer = match piece {
                    _ if Some(id) == self.tokenizer.eos_id() => {
                        self.close(&text, probability);
                        continue;
                    }
                    Some(ntl_core::numbers::NumberPiece::Text(piece)) => text.clone() + &piece,
                    _ => continue,
                };
                if longer.starts_with(' ') && !self.has_spaces {
                    continue;
                }
                if is_prefix(&longer) && probability > 1e-10 {
                    let row = Row { context, path: PathRow::new(parent, id) };
                    let after = softmax(self.model.step(&[row]).unwrap().row(0));
                    pending.push((longer, probability, after, Some(NodeId(nodes))));
                    nodes += 1;
                } else if let Some((end, _)) =
                    longer.char_indices().skip(1).find(|&(_, at)| ",}] \n\r\t".contains(at))
                    && (longer[end..].trim().is_empty() || longer[end..].trim().starts_with([',', '}', ']']))
                {
                    self.close(&longer[..end], probability);
                }
            }
        }
        self.closed
    }

    fn close(&mut self, text: &str, probability: f64) {
        let digits = text.strip_prefix(' ').unwrap_or(text);
        let is_number = is_prefix(text) && digits.ends_with(|last: char| last.is_ascii_digit());
        let Some(value) = digits.parse::<f64>().ok().filter(|value| is_number && (self.admits)(*value))
        else {
            return;
        };
        *self.closed.entry((value * 10.0).round() as i64).or_default() += probability;
    }
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits.iter().map(|logit| f64::from(logit - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// Returns whether a number of JSON within the limits begins with `text`.
fn is_prefix(text: &str) -> bool {
    let text = text.strip_prefix(' ').unwrap_or(text);
    let text = text.strip_prefix('-').unwrap_or(text);
    let (integer, decimals) =
        text.split_once('.').map_or((text, None), |(integer, decimals)| (integer, Some(decimals)));
    let are_digits = |text: &str, max: u8| {
        text.len() <= usize::from(max) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_integer = are_digits(integer, DIGITS_MAX) && !(integer.len() > 1 && integer.starts_with('0'));
    is_integer && decimals.is_none_or(|decimals| !integer.is_empty() && are_digits(decimals, DECIMALS_MAX))
}

fn is_price(value: f64) -> bool {
    (0.0..90.0).contains(&value)
}

fn is_rooms(value: f64) -> bool {
    (1.0..=12.0).contains(&value) && value.fract().abs() < 1e-9
}

#[test]
fn each_number_of_a_structured_text_has_the_distribution_of_a_brute_force() {
    let schema = json!({
        "type": "object", "required": ["price", "rooms"], "additionalProperties": false,
        "properties": {
            "price": {"type": "number", "minimum": 0, "exclusiveMaximum": 90},
            "rooms": {"type": ["integer", "null"], "minimum": 1, "maximum": 12}
        }
    });
    let sampling = SamplingParams { seed: 3, ..SamplingParams::PLAIN };
    let mut compared = 0;
    let job = TextJob { n: 3, sampling, fields: Some(fields(Objective::Median)), ..TextJob::default() };
    for written in write(&schema, Whitespace::default(), job) {
        let answer: Value = serde_json::from_str(&written.text).unwrap();
        for number in &written.numbers {
            let (admits, name): (fn(f64) -> bool, _) = match number.field.path.as_str() {
                "$.price" => (is_price, "price"),
                "$.rooms" => (is_rooms, "rooms"),
                other => panic!("{other}"),
            };
            let want = BruteForce::new(admits).numbers(&written.ids[..number.tokens.start]);
            let found = &number.outcome.distribution;
            assert!(want.values().sum::<f64>() > 1e-6 && want.len() > 5, "{want:?}");
            for leaf in found.leaves() {
                let exact = want.get(&((leaf.value * 10.0).round() as i64)).copied().unwrap_or_default();
                assert!(
                    (leaf.probability - exact).abs() < TOLERANCE,
                    "{}: {} {exact}",
                    leaf.text,
                    leaf.probability
                );
            }
            let mass = found.mass();
            assert!((mass.closed - want.values().sum::<f64>()).abs() < TOLERANCE, "{mass:?}");
            assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-6, "{mass:?}");
            // The text has the median, which is one of the numbers.
            assert_eq!(answer[name].as_f64(), number.value);
            assert_eq!(found.quantile(0.5), number.value);
            compared += 1;
        }
        assert_eq!(written.numbers.len(), 2 - usize::from(answer["rooms"].is_null()));
    }
    assert!(compared >= 4, "{compared}");
}

#[test]
fn each_listed_value_of_a_structured_text_has_the_probability_of_a_brute_force() {
    let schema = json!({
        "type": "object", "required": ["color", "ok", "note", "kind"], "additionalProperties": false,
        "properties": {
            "color": {"enum": ["a", "ab", "é", "\"", "pear"]}, "ok": {"type": "boolean"},
            "note": {"anyOf": [{"const": "no"}, {"type": "null"}]}, "kind": {"const": "k"}
        }
    });
    let places: [(&str, &[&str]); 3] = [
        ("$.color", &["\"a\"", "\"ab\"", "\"é\"", "\"\\\"\"", "\"pear\""]),
        ("$.ok", &["true", "false"]),
        ("$.note", &["\"no\"", "null"]),
    ];
    let sampling = SamplingParams { seed: 3, ..SamplingParams::PLAIN };
    let job = TextJob { n: 2, sampling, fields: Some(fields(Objective::Median)), ..TextJob::default() };
    let tokenizer = model().tokenizer;
    for written in write(&schema, Whitespace::default(), job) {
        let answer: Value = serde_json::from_str(&written.text).unwrap();
        assert_eq!(written.numbers.len(), places.len(), "{}: a constant is certain", written.text);
        for (field, (path, values)) in written.numbers.iter().zip(places) {
            let FieldValues::Listed(listed) = &field.field.values else { panic!("{field:?}") };
            assert_eq!(
                (field.field.path.as_str(), listed.texts()),
                (path, &*values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>())
            );
            let brute_force =
                BruteForce { has_spaces: field.field.may_follow_space, ..BruteForce::new(|_| true) };
            let want = brute_force.listed(&written.ids[..field.tokens.start], values);
            let found = &field.outcome.distribution;
            let mass = found.mass();
            // The weights are random, so the model hardly ever writes one of the values.
            let total: f64 = want.iter().sum();
            let slack = 1e-3 * total;
            assert!(total > 0.0, "{path}: {want:?}");
            for (index, want) in want.iter().enumerate() {
                let leaf = found.leaves().iter().find(|leaf| leaf.value as usize == index);
                let got = leaf.map_or(0.0, |leaf| leaf.probability);
                assert!(
                    got <= want + slack && *want <= got + mass.open + slack,
                    "{path} {index}: {got} {want} {mass:?}"
                );
            }
            assert!(mass.open <= TOLERANCE * mass.closed + slack, "{mass:?}");
            let best = (0..want.len()).max_by(|&a, &b| want[a].total_cmp(&want[b])).unwrap();
            assert_eq!(field.value, Some(best as f64), "{path}: {want:?}");
            assert_eq!(answer[&path[2..]].to_string(), values[best]);
            let text =
                written.ids[field.tokens.clone()].iter().flat_map(|&id| tokenizer.piece_bytes(id).unwrap());
            let text = text.collect::<Vec<u8>>();
            assert_eq!(String::from_utf8(text).unwrap().trim_start(), values[best]);
        }
    }
}

#[test]
fn a_text_has_the_estimate_of_the_objective_within_its_schema() {
    let item = json!({"type": "object", "properties": {
        "area": {"type": "number", "multipleOf": 0.5}, "floor": {"type": "integer", "minimum": -3},
        "stars": {"enum": [1.0, 2.5, 5, "none"]}}, "required": ["area", "floor", "stars"], "additionalProperties": false});
    let schema = json!({"type": "array", "items": item, "minItems": 2, "maxItems": 2});
    let sampling = SamplingParams { seed: 5, ..SamplingParams::PLAIN };
    for objective in [Objective::Mean, Objective::Mode, Objective::Quantile(0.9)] {
        let job = TextJob { sampling, fields: Some(fields(objective)), ..TextJob::default() };
        let written = write(&schema, Whitespace::None, job).remove(0);
        let answer: Value = serde_json::from_str(&written.text).unwrap();
        assert!(written.numbers.len() >= 4, "{}", written.text);
        let mut end = 0;
        for number in &written.numbers {
            let FieldsJob { estimation, .. } = fields(objective);
            let numbers = number.field.values.numbers().unwrap();
            let estimation = Estimation { range: numbers.interval(), ..estimation };
            let estimate = number.outcome.distribution.bounded_estimate(objective, &estimation).unwrap();
            let nearest = numbers.nearest(estimate, 6).unwrap();
            assert_eq!(number.value, Some(nearest.value));
            let pointer = number.field.path.replace("$[", "/").replace("].", "/");
            assert_eq!(answer.pointer(&pointer).and_then(Value::as_f64), number.value, "{pointer}");
            let tokenizer = model().tokenizer;
            let text: String =
                written.ids[number.tokens.clone()].iter().map(|&id| tokenizer.token_text(id)).collect();
            assert!(text.ends_with(&nearest.text), "{text:?} {}", nearest.text);
            assert!(number.tokens.start >= end && !number.tokens.is_empty());
            end = number.tokens.end;
        }
        assert!(
            answer
                .as_array()
                .unwrap()
                .iter()
                .all(|item| (item["area"].as_f64().unwrap() * 2.0).fract().abs() < 1e-9)
        );
    }
}

#[test]
fn without_nodes_to_search_the_model_writes_the_numbers() {
    let schema = json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 3, "maxItems": 3});
    let mut job = fields(Objective::Mean);
    job.nodes_max = 1;
    let written =
        write(&schema, Whitespace::None, TextJob { fields: Some(job), ..TextJob::default() }).remove(0);
    let answer: Vec<f64> = serde_json::from_str(&written.text).unwrap();
    assert_eq!(answer.len(), 3, "{}", written.text);
    let paths: Vec<&str> = written.numbers.iter().map(|number| number.field.path.as_str()).collect();
    assert_eq!(paths, ["$[0]", "$[1]", "$[2]"]);
    assert!(written.numbers.iter().all(|number| number.value.is_none() && number.outcome.truncated));
}
