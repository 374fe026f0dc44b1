//! Numbers that are not written in digits: tokens of one digit at one power of ten, number heads, models that
//! write nothing at all.

use std::sync::Arc;

use super::tests::{drive, number_job, tree};
use super::*;
use crate::Token;
use crate::contract::{
    BatchModel, FinishReason, NumberJob, NumberMethod, NumberOutcome, Prompt, Row, StopReason, TextJob,
};
use crate::numbers::{GrammarLimits, Interval, NumberPiece, NumberState, NumberValues, Scale, TokenEffect};
use crate::scripted::ScriptedModel;

/// Ids: 0 start, 1 end, 2 a space, 3 a minus, 4 `[NUM]`, 5 a letter, from 6 on the digits of four powers of
/// ten.
const TOKENS: usize = 46;

const HEAD: u32 = 4;

/// The token of a digit at a power of ten from -1 to 2.
fn at(digit: u32, place: i32) -> u32 {
    6 + 10 * (place + 1) as u32 + digit
}

struct Letters;

impl TextDecoder for Letters {
    fn decode(&self, ids: &[u32]) -> String {
        ids.iter().map(|&id| self.token_text(id)).collect()
    }
    fn decode_with_values(&self, tokens: &[Token]) -> String {
        let text = |token: &Token| match token.id {
            HEAD => token.value.unwrap().to_string(),
            id => self.token_text(id),
        };
        tokens.iter().map(text).collect()
    }
    fn token_text(&self, id: u32) -> String {
        ["", "", " ", "-", "#", "x"].get(id as usize).map_or("?", |text| text).to_owned()
    }
    fn settled_len(&self, text: &str) -> usize {
        text.len()
    }
}

fn vocabulary() -> Vocabulary {
    let piece = |id: u32| match id {
        0 | 1 => None,
        HEAD => Some(NumberPiece::Head),
        2 | 3 | 5 => Some(NumberPiece::from(Letters.token_text(id))),
        id => Some(NumberPiece::Place { digit: ((id - 6) % 10) as u8, place: ((id - 6) / 10) as i8 - 1 }),
    };
    Vocabulary {
        decoder: Arc::new(Letters),
        grammar: Arc::new(NumberGrammar::new((0..TOKENS as u32).map(piece), vec![1])),
        number_values: (6..TOKENS as u32).map(|id| (id, f64::from((id - 6) % 10))).collect(),
        eos_ids: vec![1].into(),
        tokens: TOKENS,
    }
}

/// A model that follows `next`: after these tokens, those with these probabilities.
fn model(next: impl Fn(&[u32]) -> Vec<(u32, f64)> + Send + 'static) -> ScriptedModel {
    let script = move |_: &[u32], path: &[u32]| {
        let mut logits = vec![f32::NEG_INFINITY; TOKENS];
        for (id, probability) in next(path) {
            logits[id as usize] = (probability as f32).ln();
        }
        Ok(logits)
    };
    ScriptedModel::new(TOKENS, Box::new(script))
}

fn run(mut model: ScriptedModel, vocabulary: &Vocabulary, request: &Request) -> Vec<Event> {
    let opened = model.open(&[(&Prompt::from(vec![5, 1])).into()]).unwrap()[0];
    let start = || vocabulary.decoding(request, &[], opened.first_token);
    drive(&mut model, opened.context, start, 4).unwrap()
}

fn number(model: ScriptedModel, job: NumberJob) -> NumberOutcome {
    match run(model, &vocabulary(), &Request::Number(job)).pop() {
        Some(Event::Number(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

fn leaves(outcome: &NumberOutcome) -> Vec<(String, f64)> {
    let leaves = outcome.distribution.leaves().iter();
    leaves.map(|leaf| (leaf.text.clone(), (leaf.probability * 1e6).round() / 1e6)).collect()
}

fn expected(leaves: &[(&str, f64)]) -> Vec<(String, f64)> {
    leaves.iter().map(|&(text, probability)| (text.to_owned(), probability)).collect()
}

/// 36 (0.5), -36 (0.2), and 30 without its ones (0.1); 6 then 3 is a 6 followed by something else (0.1); `x`
/// (0.1).
fn places() -> ScriptedModel {
    model(|path| match path {
        [] => vec![(at(3, 1), 0.6), (2, 0.2), (at(6, 0), 0.1), (5, 0.1)],
        [2] => vec![(3, 1.0)],
        [2, 3] => vec![(at(3, 1), 1.0)],
        [.., last] if *last == at(3, 1) && path.len() == 1 => vec![(at(6, 0), 5.0 / 6.0), (1, 1.0 / 6.0)],
        [.., last] if *last == at(3, 1) => vec![(at(6, 0), 1.0)],
        [first] if *first == at(6, 0) => vec![(at(3, 1), 1.0)],
        _ => vec![(1, 1.0)],
    })
}

#[test]
fn digits_at_descending_places_are_one_number_and_omitted_places_are_zeros() {
    let by_default = number(places(), NumberJob { terminator: Default::default(), ..number_job() });
    assert_eq!(leaves(&by_default), expected(&[("-36", 0.2), ("6", 0.1), ("30", 0.1), ("36", 0.5)]));
    let ended = number(places(), number_job());
    assert_eq!(leaves(&ended), expected(&[("-36", 0.2), ("30", 0.1), ("36", 0.5)]));
    assert!((ended.distribution.mass().invalid - 0.2).abs() < 1e-6, "{:?}", ended.distribution.mass());
}

#[test]
fn a_scale_is_read_from_digits_at_powers_of_ten() {
    // 7 with 0.5, 10 with 0.3, 25 with 0.2.
    let next = |path: &[u32]| match path {
        [] => vec![(at(7, 0), 0.5), (at(1, 1), 0.3), (at(2, 1), 0.2)],
        [tens] if *tens == at(1, 1) => vec![(at(0, 0), 1.0)],
        [tens] if *tens == at(2, 1) => vec![(at(5, 0), 1.0)],
        _ => vec![(1, 1.0)],
    };
    let values = NumberValues::Scale(Scale::new(1.0, 10.0, 1.0).unwrap());
    let outcome = number(model(next), NumberJob { values, ..number_job() });
    assert_eq!(leaves(&outcome), expected(&[("7", 0.5), ("10", 0.3)]));
    assert!((outcome.distribution.mass().invalid - 0.2).abs() < 1e-6);
    assert_eq!(outcome.nodes, 4, "the root, 7, 1_ and 10");
}

/// Checks several prefixes of numbers, with a uniform distribution.
#[test]
fn the_masses_of_a_prefix_add_up_to_all_of_the_probability() {
    let vocabulary = vocabulary();
    let rules = vocabulary.grammar.rules(GrammarLimits::default(), Default::default(), NumberValues::All);
    let logits = [0.0_f32; TOKENS + 2];
    let softmax = Softmax::new(&logits).unwrap();
    for path in [&[][..], &[2], &[2, 3], &[at(3, 2)], &[3, at(3, 1), at(0, -1)]] {
        for head in [None, Some(2.5), Some(f32::INFINITY)] {
            let state = path.iter().fold(NumberState::START, |state, &id| {
                match vocabulary.grammar.effect(state, id, &rules) {
                    TokenEffect::Continues(next) => next,
                    other => panic!("{path:?}: {other:?}"),
                }
            });
            let state = state.with_head_value(head);
            let expansion = vocabulary.grammar.expand(state, &softmax, &rules, 0.0);
            let children: f64 = expansion.children.iter().map(|child| child.probability).sum();
            let closed: f64 = expansion.closed.iter().map(|closing| closing.probability).sum();
            let all = children + closed + expansion.invalid + expansion.left_open;
            assert!((all - 1.0).abs() < 1e-12, "{path:?} {head:?}: {all}");
            let effects = (0..TOKENS as u32).map(|id| vocabulary.grammar.effect(state, id, &rules));
            let continuing = effects.filter(|effect| matches!(effect, TokenEffect::Continues(_))).count();
            assert_eq!(continuing, expansion.children.len(), "{path:?} {head:?}");
        }
    }
}

#[test]
fn places_beyond_the_limits_stay_open() {
    let limits = GrammarLimits::new(1, 0, true).unwrap();
    let outcome = number(places(), NumberJob { limits, ..number_job() });
    assert_eq!(leaves(&outcome), expected(&[]));
    assert!((outcome.distribution.mass().open - 0.8).abs() < 1e-6, "{:?}", outcome.distribution.mass());
}

#[test]
fn expectations_of_tokens_are_at_the_indices_of_the_tokens() {
    let model = model(|path| match path {
        [] => vec![(at(2, 1), 0.6), (at(1, 1), 0.4)],
        [_] => vec![(at(5, 0), 1.0)],
        [_, _] => vec![(at(5, -1), 1.0)],
        _ => vec![(1, 1.0)],
    });
    let outcome = number(model, NumberJob { method: NumberMethod::Token, ..number_job() });
    assert!((outcome.token_value.unwrap() - 21.5).abs() < 1e-6, "{:?}", outcome.token_value);
}

/// `[NUM]` (0.6), `-[NUM]` (0.3), `x` (0.1); the head says 12.5 at the start and 4 after a minus.
fn headed() -> ScriptedModel {
    let text = model(|path| match path {
        [] => vec![(HEAD, 0.6), (3, 0.3), (5, 0.1)],
        [3] => vec![(HEAD, 1.0)],
        _ => vec![(1, 1.0)],
    });
    text.with_number_head(Box::new(|_, path| if path.is_empty() { 12.5 } else { 4.0 }))
}

#[test]
fn the_value_of_a_number_head_has_the_probability_of_its_token() {
    for method in [tree(1e-9, 64), NumberMethod::Beam { beams: 4 }] {
        let outcome = number(headed(), NumberJob { method, ..number_job() });
        assert_eq!(leaves(&outcome), expected(&[("-4", 0.3), ("12.5", 0.6)]));
        assert!((outcome.distribution.mass().invalid - 0.1).abs() < 1e-6);
    }
    let samples = NumberMethod::sample(100, 1);
    let drawn = number(headed(), NumberJob { method: samples, ..number_job() });
    assert_eq!(drawn.distribution.mode().map(|mode| mode.to_string()).as_deref(), Some("12.5"));
}

#[test]
fn values_of_a_number_head_outside_the_range_or_the_grammar_are_not_numbers() {
    let values = NumberValues::Range(Interval { low: 0.0, high: 100.0 });
    let outcome = number(headed(), NumberJob { values, ..number_job() });
    assert_eq!(leaves(&outcome), expected(&[("12.5", 0.6)]));
    assert!((outcome.distribution.mass().invalid - 0.4).abs() < 1e-6);
    let unsigned = GrammarLimits::new(3, 2, false).unwrap();
    let negative = headed().with_number_head(Box::new(|_, _| -1.0));
    let outcome = number(negative, NumberJob { limits: unsigned, ..number_job() });
    assert!((outcome.distribution.mass().invalid - 1.0).abs() < 1e-6, "{:?}", outcome.distribution.mass());
    let broken = headed().with_number_head(Box::new(|_, _| f32::NAN));
    let outcome = number(broken, number_job());
    assert!((outcome.distribution.mass().open - 0.9).abs() < 1e-6, "{:?}", outcome.distribution.mass());
}

fn text_job() -> TextJob {
    TextJob { max_tokens: 8, logprobs: Some(0), ..TextJob::default() }
}

#[test]
fn numbers_of_a_head_appear_in_the_text_and_with_log_probabilities() {
    let events = run(headed(), &vocabulary(), &Request::Text(text_job()));
    let Event::Text { text, token: Some(token), .. } = &events[0] else { panic!("{events:?}") };
    assert_eq!((text.as_str(), token.token.id), ("12.5", HEAD));
    let number = token.number.unwrap();
    assert!((number.value - 12.5).abs() < 1e-9 && (number.mass - 0.6).abs() < 1e-6, "{number:?}");
}

/// A model that writes nothing. Its logits are the values of its labels.
fn labels(values: Vec<f32>) -> (ScriptedModel, Vocabulary) {
    let model = ScriptedModel::new(values.len(), Box::new(move |_, _| Ok(values.clone())));
    (model, Vocabulary { grammar: Arc::new(NumberGrammar::point()), ..vocabulary() })
}

fn point(value: f32) -> (ScriptedModel, Vocabulary) {
    labels(vec![value])
}

#[test]
fn a_model_that_writes_nothing_answers_with_its_number() {
    let (model, vocabulary) = point(-354.5);
    let Some(Event::Number(outcome)) = run(model, &vocabulary, &Request::Number(number_job())).pop() else {
        panic!("no number")
    };
    assert_eq!(leaves(&outcome), expected(&[("-354.5", 1.0)]));
    let (model, vocabulary) = point(-354.5);
    let values = NumberValues::Range(Interval { low: 0.0, high: 1.0 });
    let job = NumberJob { values, ..number_job() };
    let Some(Event::Number(outcome)) = run(model, &vocabulary, &Request::Number(job)).pop() else {
        panic!("no number")
    };
    assert!((outcome.distribution.mass().invalid - 1.0).abs() < 1e-12);
}

#[test]
fn its_text_has_twelve_decimals_and_ends_before_a_stop_string() {
    for (stop, max_tokens, want, reason) in [
        (vec![], 8, "-354.500000000000", FinishReason::Stop),
        (vec![".".to_owned()], 8, "-354", FinishReason::Stop),
        (vec![], 0, "", FinishReason::Length),
    ] {
        let (model, vocabulary) = point(-354.5);
        let job = TextJob { stop: stop.clone(), max_tokens, n: 2, ..text_job() };
        let events = run(model, &vocabulary, &Request::Text(job));
        let of = |choice| {
            let text = Event::Text { choice, text: want.to_owned(), tokens: 0, token: None, offset: 0 };
            let stop_reason = stop.first().cloned().map(StopReason::Text);
            [text, Event::Finished { choice, reason, stop_reason, tokens: 0, cumulative_logprob: None }]
        };
        assert_eq!(events, [of(0), of(1)].concat());
    }
}

/// Runs one row of a request to a model that writes nothing.
fn advanced(values: Vec<f32>, request: &Request) -> Result<Vec<Event>, EngineError> {
    let (mut model, vocabulary) = labels(values);
    let opened = model.open(&[(&Prompt::from(vec![1])).into()]).unwrap()[0];
    let mut decoding = vocabulary.decoding(request, &[], opened.first_token);
    let path = decoding.next_rows(1).remove(0);
    let logits = model.step(&[Row { context: opened.context, path }]).unwrap();
    let result = StepResult { logits: &logits, first_row: 0, first_node: NodeId(0) };
    let mut events = Vec::new();
    decoding.advance(result, &mut events).map(|_| events)
}

#[test]
fn a_broken_head_is_an_error_of_the_request() {
    assert!(advanced(vec![f32::NAN], &Request::Text(text_job())).is_err());
    assert!(advanced(vec![0.0, f32::INFINITY], &Request::Labels).is_err());
}

#[test]
fn several_labels_are_values_but_neither_a_number_nor_a_text() {
    let values = vec![1.0, -2.5, 0.0];
    assert_eq!(advanced(values.clone(), &Request::Labels), Ok(vec![Event::Values(values.clone())]));
    for request in [Request::Number(number_job()), Request::Text(text_job())] {
        let error = advanced(values.clone(), &request).unwrap_err();
        assert_eq!(error.to_string(), "the model predicts 3 labels, not a number");
    }
}
