//! Decodings driven by a scripted model, whose exact answers are known.

use super::*;
use crate::engine::{BatchModel, FinishReason, Job, NumberJob, NumberOutcome, Row, Terminator, TextJob};
use crate::numbers::{GrammarLimits, Objective};
use crate::sampling::Sampling;
use crate::scripted::ScriptedModel;

/// Pieces of the toy vocabulary; 0 starts and 1 ends a text. `12` is a token of two digits.
const PIECES: [&str; 17] =
    ["", "", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "-", ".", " ", "x", "12"];

struct Pieces;

impl TextDecoder for Pieces {
    fn decode(&self, ids: &[u32]) -> String {
        ids.iter().map(|&id| PIECES[id as usize]).collect()
    }
    fn token_text(&self, id: u32) -> String {
        PIECES[id as usize].to_owned()
    }
    fn settled_len(&self, text: &str) -> usize {
        text.len()
    }
}

fn vocabulary() -> Vocabulary {
    let texts = PIECES.iter().enumerate().map(|(id, piece)| (id > 1).then(|| (*piece).to_owned()));
    Vocabulary {
        decoder: Arc::new(Pieces),
        grammar: Arc::new(NumberGrammar::new(texts, vec![1])),
        eos_ids: vec![1].into(),
        tokens: PIECES.len(),
    }
}

/// A model that follows `probabilities`: after this text, these pieces ("" is the end) with these weights.
fn model(probabilities: impl Fn(&str) -> Vec<(&'static str, f64)> + Send + 'static) -> ScriptedModel {
    let script = move |_: &[u32], path: &[u32]| {
        let mut logits = vec![f32::NEG_INFINITY; PIECES.len()];
        for (piece, probability) in probabilities(&Pieces.decode(path)) {
            let id = if piece.is_empty() { 1 } else { PIECES.iter().rposition(|p| *p == piece).unwrap() };
            logits[id] = (probability as f32).ln();
        }
        Ok(logits)
    };
    ScriptedModel::new(PIECES.len(), Box::new(script))
}

/// Runs one request to its end with at most `rows_max` rows a step.
fn run(mut model: ScriptedModel, request: Request, rows_max: usize) -> Result<Vec<Event>, EngineError> {
    let job = Job { prompt: vec![2, 1], request, deadline: None };
    let opened = model.open(&[&job.prompt]).unwrap()[0];
    let mut decoding = vocabulary().decoding(&job.request, opened.first_token);
    let (mut events, mut nodes) = (Vec::new(), 0);
    loop {
        let paths = decoding.next_rows(rows_max);
        assert!((1..=rows_max).contains(&paths.len()), "{} rows of {rows_max}", paths.len());
        let rows: Vec<_> = paths.iter().map(|&path| Row { context: opened.context, path }).collect();
        let logits = model.step(&rows).unwrap();
        let result = StepResult { logits: &logits, first_row: 0, first_node: NodeId(nodes) };
        nodes += rows.len() as u32;
        if decoding.advance(result, &mut events)? == Progress::Done {
            return Ok(events);
        }
    }
}

fn number_job() -> NumberJob {
    let limits = GrammarLimits::default();
    NumberJob { tolerance: 1e-9, nodes_max: 4096, limits, terminator: Terminator::Eos }
}

fn number(model: ScriptedModel, job: NumberJob, rows_max: usize) -> NumberOutcome {
    match run(model, Request::Number(job), rows_max).unwrap().pop() {
        Some(Event::Number(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

fn leaves(outcome: &NumberOutcome) -> Vec<(String, f64)> {
    let leaves = outcome.distribution.leaves().iter();
    leaves.map(|leaf| (leaf.text.clone(), (leaf.probability * 1e6).round() / 1e6)).collect()
}

fn assert_masses(outcome: &NumberOutcome, closed: f64, invalid: f64, open: f64) {
    let mass = outcome.distribution.mass();
    for (name, got, want) in
        [("closed", mass.closed, closed), ("invalid", mass.invalid, invalid), ("open", mass.open, open)]
    {
        assert!((got - want).abs() < 1e-6, "{name}: {got} instead of {want}");
    }
    assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-9);
}

/// Signs, decimals, two spellings of 12, an end too early and text that is no number.
fn small(text: &str) -> Vec<(&'static str, f64)> {
    match text {
        "" => vec![("4", 0.5), ("-", 0.2), ("1", 0.1), ("12", 0.1), ("x", 0.05), ("", 0.05)],
        "4" => vec![("", 0.8), (".", 0.2)],
        "4." => vec![("5", 0.5), ("0", 0.4), ("", 0.1)],
        "-" => vec![("3", 0.75), ("x", 0.25)],
        "1" => vec![("2", 1.0)],
        _ => vec![("", 1.0)],
    }
}

#[test]
fn a_small_tree_is_found_exactly() {
    let outcome = number(model(small), number_job(), 16);
    let want = [("-3", 0.15), ("4", 0.44), ("4.5", 0.05), ("12", 0.2)].map(|(text, p)| (text.to_owned(), p));
    assert_eq!(leaves(&outcome), want);
    assert_masses(&outcome, 0.84, 0.16, 0.0);
    assert!(!outcome.truncated);
}

#[test]
fn where_anything_ends_a_number_a_full_stop_does_too() {
    let outcome = number(model(small), NumberJob { terminator: Terminator::Any, ..number_job() }, 16);
    let four = outcome.distribution.leaves().iter().find(|leaf| leaf.text == "4").unwrap();
    assert!((four.probability - 0.45).abs() < 1e-6, "`4.` and then the end reads as 4: {four:?}");
}

/// Every digit goes on with probability 0.8, all digits alike, so length L has mass 0.2 * 0.8^L; the rest is `x`.
fn geometric(text: &str) -> Vec<(&'static str, f64)> {
    let digits = PIECES[2..12].iter().map(|digit| (*digit, 0.08));
    let rest = if text.is_empty() { ("x", 0.2) } else { ("", 0.2) };
    digits.chain([rest]).collect()
}

#[test]
fn lengths_beyond_the_limit_stay_open() {
    let limits = GrammarLimits::new(3, 0, true).unwrap();
    let outcome = number(model(geometric), NumberJob { limits, ..number_job() }, 16);
    let closed: f64 = (1..=3).map(|length| 0.2 * 0.8_f64.powi(length)).sum();
    assert_masses(&outcome, closed, 0.2, 0.8_f64.powi(4));
    assert_eq!(outcome.nodes, 1 + 10 + 100 + 1000, "every prefix that can lead to a number was expanded");
}

#[test]
fn the_answer_is_the_same_at_any_width() {
    for tolerance in [0.3, 0.1, 1e-3] {
        let job = || NumberJob { tolerance, nodes_max: 500, ..number_job() };
        let narrow = number(model(geometric), job(), 1);
        for width in [2, 7, 16, 64] {
            let wide = number(model(geometric), job(), width);
            assert!(wide.forward_passes < narrow.forward_passes);
            let comparable = NumberOutcome { forward_passes: narrow.forward_passes, ..wide };
            assert_eq!(comparable, narrow, "tolerance {tolerance}, width {width}");
        }
    }
}

#[test]
fn a_tighter_tolerance_tightens_the_bounds_around_the_exact_answer() {
    let exact = number(model(small), number_job(), 16).distribution;
    let mut width = f64::INFINITY;
    for tolerance in [0.2, 0.1, 0.05, 0.01] {
        let outcome = number(model(small), NumberJob { tolerance, ..number_job() }, 16);
        assert!(outcome.distribution.mass().open <= tolerance);
        for objective in [Objective::Mean, Objective::Median, Objective::Quantile(0.6)] {
            let value = exact.estimate(objective, 0.25).unwrap();
            let Some(bounds) = outcome.distribution.estimate_bounds(objective, 0.25) else { continue };
            let within = (bounds.low - 1e-9..=bounds.high + 1e-9).contains(&value);
            assert!(within, "{objective:?} at {tolerance}: {value} is not in {bounds:?}");
        }
        if let Some(bounds) = outcome.distribution.trimmed_mean_bounds(0.25) {
            assert!(bounds.high - bounds.low <= width + 1e-12);
            width = bounds.high - bounds.low;
        }
    }
    assert!(width < 1e-9, "with next to nothing open, nothing is left to doubt");
}

#[test]
fn the_budget_of_nodes_ends_the_tree_and_says_so() {
    let outcome = number(model(geometric), NumberJob { nodes_max: 20, ..number_job() }, 16);
    assert_eq!((outcome.nodes, outcome.truncated), (20, true));
    let mass = outcome.distribution.mass();
    assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-9 && mass.open > 0.1, "{mass:?}");
}

#[test]
fn broken_logits_are_an_error_and_not_a_number() {
    for request in [Request::Number(number_job()), Request::Text(text_job())] {
        let broken = ScriptedModel::new(PIECES.len(), Box::new(|_, _| Ok(vec![f32::NAN; PIECES.len()])));
        assert!(matches!(run(broken, request, 4), Err(EngineError::Step(_))));
    }
}

fn text_job() -> TextJob {
    TextJob { n: 1, max_tokens: 10, sampling: Sampling::GREEDY, stop: Vec::new(), logprobs: None }
}

/// The text, reason and length of each choice.
fn texts(events: &[Event]) -> Vec<(String, FinishReason, usize)> {
    let finished = events.iter().filter_map(|event| match event {
        Event::Finished { choice, reason, tokens } => Some((*choice, *reason, *tokens)),
        _ => None,
    });
    let mut finished: Vec<_> = finished.collect();
    finished.sort_by_key(|&(choice, ..)| choice);
    let text_of = |wanted| {
        let pieces = events.iter().filter_map(move |event| match event {
            Event::Text { choice, text, .. } if *choice == wanted => Some(text.as_str()),
            _ => None,
        });
        pieces.collect::<String>()
    };
    finished.into_iter().map(|(choice, reason, tokens)| (text_of(choice), reason, tokens)).collect()
}

#[test]
fn greedy_text_ends_at_the_end_the_limit_or_a_stop_string() {
    let says_4x5 = |text: &str| match text {
        "" => vec![("4", 0.9), ("x", 0.1)],
        "4" => vec![("x", 1.0)],
        "4x" => vec![("5", 0.6), ("", 0.4)],
        _ => vec![("", 1.0)],
    };
    for (job, want) in [
        (text_job(), ("4x5", FinishReason::Stop, 4)),
        (TextJob { max_tokens: 2, ..text_job() }, ("4x", FinishReason::Length, 2)),
        (TextJob { max_tokens: 0, ..text_job() }, ("", FinishReason::Length, 0)),
        (TextJob { stop: vec!["x".to_owned()], ..text_job() }, ("4", FinishReason::Stop, 2)),
        (TextJob { stop: vec!["x5".to_owned()], ..text_job() }, ("4", FinishReason::Stop, 3)),
    ] {
        let got = texts(&run(model(says_4x5), Request::Text(job.clone()), 4).unwrap());
        assert_eq!(got, [(want.0.to_owned(), want.1, want.2)], "{job:?}");
    }
}

#[test]
fn sampled_texts_are_the_same_at_any_width_and_differ_from_each_other() {
    let sampling = Sampling { temperature: 1.0, top_p: 1.0, seed: 5 };
    let job = || Request::Text(TextJob { n: 6, sampling, ..text_job() });
    let wide = texts(&run(model(geometric), job(), 64).unwrap());
    let narrow = texts(&run(model(geometric), job(), 2).unwrap());
    assert_eq!(wide, narrow);
    assert!(wide.iter().any(|text| *text != wide[0]), "{wide:?}");
}

#[test]
fn asking_for_log_probabilities_reports_them_and_changes_nothing() {
    let job = TextJob { logprobs: Some(2), ..text_job() };
    let events = run(model(small), Request::Text(job), 4).unwrap();
    let tokens: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Text { token, .. } => token.clone(),
            _ => None,
        })
        .collect();
    assert_eq!(texts(&events), texts(&run(model(small), Request::Text(text_job()), 4).unwrap()));
    assert_eq!(tokens.iter().map(|token| token.token.id).collect::<Vec<_>>(), [6, 1], "`4` and the end");
    assert!((tokens[0].token.logprob - 0.5_f64.ln()).abs() < 1e-6);
    assert_eq!(tokens[0].top.iter().map(|top| top.id).collect::<Vec<_>>(), [6, 12]);
}
