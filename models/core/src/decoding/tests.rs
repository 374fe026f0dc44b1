//! Decodings driven by a scripted model, whose exact answers are known.

use std::time::Duration;

use super::*;
use crate::Prompt;
use crate::contract::{
    AfterMarker, BatchModel, ContextId, FieldOutcome, Job, NumberJob, NumberMethod, NumberOutcome, Precision,
    Row, Terminator, TextJob,
};
use crate::numbers::{Estimation, GrammarLimits, Interval, NumberValues, Objective};
use crate::sampling::SamplingParams;
use crate::scripted::{ScriptedModel, only_requested};

/// Pieces of the toy vocabulary; 0 starts and 1 ends a text. `12` is a token of two digits.
pub(super) const PIECES: [&str; 17] =
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

pub(super) fn vocabulary() -> Vocabulary {
    let texts = PIECES.iter().enumerate().map(|(id, piece)| (id > 1).then(|| (*piece).to_owned()));
    Vocabulary {
        decoder: Arc::new(Pieces),
        grammar: Arc::new(NumberGrammar::new(texts, vec![1])),
        number_values: (2..12).map(|id| (id, f64::from(id - 2))).chain([(16, 12.0)]).collect(),
        eos_ids: vec![1].into(),
        tokens: PIECES.len(),
    }
}

/// A model that follows `probabilities`: after this text, these pieces ("" is the end) with these weights.
pub(super) fn model(
    probabilities: impl Fn(&str) -> Vec<(&'static str, f64)> + Send + 'static,
) -> ScriptedModel {
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

/// Runs one request to its end with at most `rows_max` rows per step.
pub(super) fn run(
    model: ScriptedModel,
    request: Request,
    rows_max: usize,
) -> Result<Vec<Event>, EngineError> {
    run_behind(model, (&[], request), rows_max)
}

/// Does the same after the ids `asked.0` of the same sequence.
pub(super) fn run_behind(
    mut model: ScriptedModel,
    asked: (&[u32], Request),
    rows_max: usize,
) -> Result<Vec<Event>, EngineError> {
    let (before, request) = asked;
    let opened = model.open(&[(&Prompt::from(vec![2, 1])).into()]).unwrap()[0];
    let start = || vocabulary().decoding(&request, before, opened.first_token);
    drive(&mut model, opened.context, start, rows_max)
}

/// Runs a decoding under an opened context to its end. A second one gets only the logits that its rows
/// request, and must produce the same events.
pub(super) fn drive(
    model: &mut ScriptedModel,
    context: ContextId,
    start: impl Fn() -> Box<dyn Decoding>,
    rows_max: usize,
) -> Result<Vec<Event>, EngineError> {
    let mut decoding = start();
    let mut sparing = start();
    let mut events = Vec::new();
    let mut sparing_events = Vec::new();
    let mut nodes = 0;
    loop {
        let paths = decoding.next_rows(rows_max);
        assert!((1..=rows_max).contains(&paths.len()), "{} rows of {rows_max}", paths.len());
        assert_eq!(sparing.next_rows(rows_max), paths);
        let rows: Vec<_> = paths.into_iter().map(|path| Row { context, path }).collect();
        let logits = model.step(&rows).unwrap();
        let wanted = only_requested(&logits, &rows, model.info().tokens).unwrap();
        let result = StepResult { logits: &logits, first_row: 0, first_node: NodeId(nodes) };
        nodes += rows.len() as u32;
        let progress = decoding.advance(result, &mut events);
        let result = StepResult { logits: &wanted, ..result };
        assert_eq!(sparing.advance(result, &mut sparing_events), progress);
        if progress? == Progress::Done {
            assert_same(&sparing_events, &events);
            return Ok(events);
        }
    }
}

/// Asserts that texts are equal, and numbers equal except for rounding.
fn assert_same(got: &[Event], want: &[Event]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        let (got, want) = match (got, want) {
            (Event::Number(got), Event::Number(want)) => (got, want),
            (Event::Field(got), Event::Field(want)) => {
                let place = |number: &FieldOutcome| (number.choice, number.tokens.clone(), number.value);
                assert_eq!(place(got), place(want));
                (&got.outcome, &want.outcome)
            }
            (Event::Options(got), Event::Options(want)) => {
                assert_eq!((got.nodes, got.open.len()), (want.nodes, want.open.len()));
                for (got, want) in got.closed.iter().zip(&want.closed) {
                    assert!((got - want).abs() < 1e-6, "{got} {want}");
                }
                continue;
            }
            _ => {
                assert_eq!(got, want);
                continue;
            }
        };
        let texts = |outcome: &NumberOutcome| {
            outcome.distribution.leaves().iter().map(|leaf| leaf.text.clone()).collect()
        };
        let (got_texts, want_texts): (Vec<String>, Vec<String>) = (texts(got), texts(want));
        assert_eq!(got_texts, want_texts);
        for (got, want) in got.distribution.leaves().iter().zip(want.distribution.leaves()) {
            assert!((got.probability - want.probability).abs() < 1e-6, "{got:?} {want:?}");
        }
        let mass = want.distribution.mass();
        assert_masses(got, mass.closed, mass.invalid, mass.open);
        let counts = |outcome: &NumberOutcome| (outcome.nodes, outcome.forward_passes, outcome.truncated);
        assert_eq!(counts(got), counts(want));
        let value = |outcome: &NumberOutcome| outcome.token_value.map(|value| (value * 1e5).round());
        assert_eq!(value(got), value(want));
    }
}

pub(super) fn number_job() -> NumberJob {
    let limits = GrammarLimits::default();
    let terminator = Terminator::Eos;
    NumberJob { limits, terminator, ..NumberJob::new(tree(1e-9, 4096)) }
}

pub(super) fn tree(tolerance: f64, nodes_max: usize) -> NumberMethod {
    NumberMethod::Tree { tolerance, nodes_max, precision: None }
}

pub(super) fn trim(trim: f64) -> Estimation {
    Estimation { trim, ..Estimation::default() }
}

pub(super) fn number(model: ScriptedModel, job: NumberJob, rows_max: usize) -> NumberOutcome {
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

/// Signs, decimals, two spellings of 12, an end too early, and text that is not a number.
pub(super) fn small(text: &str) -> Vec<(&'static str, f64)> {
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
fn if_any_token_ends_a_number_a_full_stop_does_too() {
    let outcome = number(model(small), NumberJob { terminator: Terminator::Any, ..number_job() }, 16);
    let four = outcome.distribution.leaves().iter().find(|leaf| leaf.text == "4").unwrap();
    assert!((four.probability - 0.45).abs() < 1e-6, "`4.` and then the end reads as 4: {four:?}");
}

/// Another digit follows with probability 0.8, and all digits are equally likely, so length L has mass 0.2 *
/// 0.8^L; the rest is `x`.
pub(super) fn geometric(text: &str) -> Vec<(&'static str, f64)> {
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
        let job = || NumberJob { method: tree(tolerance, 500), ..number_job() };
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
        let outcome = number(model(small), NumberJob { method: tree(tolerance, 4096), ..number_job() }, 16);
        assert!(outcome.distribution.mass().open <= tolerance);
        for objective in [Objective::Mean, Objective::Median, Objective::Quantile(0.6)] {
            let value = exact.estimate(objective, &trim(0.25)).unwrap();
            let Some(bounds) = outcome.distribution.estimate_bounds(objective, &trim(0.25)) else { continue };
            let within = (bounds.low - 1e-9..=bounds.high + 1e-9).contains(&value);
            assert!(within, "{objective:?} at {tolerance}: {value} is not in {bounds:?}");
        }
        if let Some(bounds) = outcome.distribution.trimmed_mean_bounds(&trim(0.25)) {
            assert!(bounds.high - bounds.low <= width + 1e-12);
            width = bounds.high - bounds.low;
        }
    }
    assert!(width < 1e-9, "with next to nothing open, nothing is left to doubt");
}

#[test]
fn the_node_budget_ends_the_tree_and_is_reported() {
    let outcome = number(model(geometric), NumberJob { method: tree(1e-9, 20), ..number_job() }, 16);
    assert_eq!((outcome.nodes, outcome.truncated), (20, true));
    let mass = outcome.distribution.mass();
    assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-9 && mass.open > 0.1, "{mass:?}");
}

#[test]
fn broken_logits_are_an_error_and_not_a_number() {
    for request in [Request::Number(number_job()), Request::Text(TextJob::default())] {
        let broken = ScriptedModel::new(PIECES.len(), Box::new(|_, _| Ok(vec![f32::NAN; PIECES.len()])));
        assert!(matches!(run(broken, request, 4), Err(EngineError::Step(_))));
    }
}

#[test]
fn values_outside_the_range_are_invalid() {
    let values = NumberValues::Range(Interval { low: 0.0, high: 10.0 });
    let outcome = number(model(small), NumberJob { values, ..number_job() }, 16);
    assert_eq!(leaves(&outcome).iter().map(|leaf| leaf.0.as_str()).collect::<Vec<_>>(), ["4", "4.5"]);
    assert_masses(&outcome, 0.49, 0.51, 0.0);
}

#[test]
fn a_precision_ends_the_tree_as_soon_as_the_answer_is_certain_at_any_width() {
    let settle = |objective, width, rows_max| {
        let objectives = vec![objective];
        let precision = Some(Precision { width, objectives, estimation: trim(0.25) });
        let method = NumberMethod::Tree { tolerance: 1e-9, nodes_max: 4096, precision };
        let outcome = number(model(small), NumberJob { method, ..number_job() }, rows_max);
        NumberOutcome { forward_passes: 0, ..outcome }
    };
    let whole = number(model(small), number_job(), 16);
    for objective in [Objective::Mode, Objective::Median, Objective::Mean] {
        let early = settle(objective, 0.0, 16);
        assert!(early.nodes <= whole.nodes && !early.truncated);
        assert_eq!(early, settle(objective, 0.0, 1), "{objective:?}");
        let bounds = early.distribution.estimate_bounds(objective, &trim(0.25)).unwrap();
        let exact = whole.distribution.estimate(objective, &trim(0.25)).unwrap();
        assert!(
            (bounds.low - exact).abs() < 1e-9 && (bounds.high - exact).abs() < 1e-9,
            "{objective:?}: {bounds:?}"
        );
    }
    assert!(settle(Objective::Mode, 0.0, 16).nodes < whole.nodes, "the mode was certain earlier");
}

#[test]
fn a_tree_that_is_out_of_time_has_the_root_at_least_and_leaves_all_other_mass_open() {
    let within = |time_max| number(model(small), NumberJob { time_max, ..number_job() }, 16);
    let whole = within(None);
    assert!(!whole.truncated && whole.nodes > 1);
    let late = within(Some(Duration::ZERO));
    assert_eq!((late.nodes, late.forward_passes, late.truncated), (1, 1, true));
    // After nothing, `x` and the end are not numbers.
    assert_masses(&late, 0.0, 0.1, 0.9);
    // A step has fewer rows if time may end the search, so only their number differs.
    let early = within(Some(Duration::MAX));
    assert_eq!(NumberOutcome { forward_passes: whole.forward_passes, ..early }, whole);
}

fn by(method: NumberMethod) -> NumberJob {
    NumberJob { method, ..number_job() }
}

#[test]
fn draws_follow_the_distribution_and_repeat_with_their_seed_at_any_width() {
    let draw = |seed, rows_max| {
        let outcome = number(model(small), by(NumberMethod::sample(4000, seed)), rows_max);
        NumberOutcome { forward_passes: 0, ..outcome }
    };
    let outcome = draw(3, 16);
    let exact = number(model(small), number_job(), 16);
    for (drawn, exact) in outcome.distribution.leaves().iter().zip(exact.distribution.leaves()) {
        assert_eq!(drawn.text, exact.text);
        assert!((drawn.probability - exact.probability).abs() < 0.03, "{drawn:?} beside {exact:?}");
    }
    assert!((outcome.distribution.mass().invalid - 0.16).abs() < 0.03);
    assert_eq!(outcome, draw(3, 1));
    assert_ne!(outcome.distribution, draw(4, 16).distribution);
    assert!(outcome.nodes <= 12, "draws that begin alike share their rows: {}", outcome.nodes);
}

#[test]
fn beams_find_the_most_probable_numbers_and_call_the_rest_open() {
    let outcome = number(model(small), by(NumberMethod::Beam { beams: 2 }), 16);
    let want = [("-3", 0.15), ("4", 0.4)].map(|(text, p)| (text.to_owned(), p));
    assert_eq!(leaves(&outcome), want);
    let mass = outcome.distribution.mass();
    assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-9);
    let one_row = number(model(small), by(NumberMethod::Beam { beams: 2 }), 1);
    assert_eq!(one_row.distribution, outcome.distribution);
}

/// 19 and 20 with probability 0.5 each: the carry is uncertain.
fn nineteen_or_twenty(text: &str) -> Vec<(&'static str, f64)> {
    match text {
        "" => vec![("1", 0.5), ("2", 0.5)],
        "1" => vec![("9", 1.0)],
        "2" => vec![("0", 1.0)],
        _ => vec![("", 1.0)],
    }
}

#[test]
fn token_by_token_expectation_is_wrong_if_a_carry_is_in_doubt() {
    let token = number(model(nineteen_or_twenty), by(NumberMethod::Token), 16);
    assert!((token.token_value.unwrap() - 24.0).abs() < 1e-6, "{token:?}");
    let exact = number(model(nineteen_or_twenty), number_job(), 16).distribution;
    assert!((exact.mean(&trim(0.0)).unwrap() - 19.5).abs() < 1e-6);
}

#[test]
fn token_by_token_expectation_keeps_signs_and_places() {
    let certain = |wanted: &'static str| {
        move |text: &str| match wanted.strip_prefix(text).and_then(|rest| rest.get(..1)) {
            None => vec![("", 1.0)],
            Some(next) => vec![(*PIECES.iter().find(|piece| **piece == next).unwrap(), 1.0)],
        }
    };
    for (text, value) in [("-36.5", -36.5), ("407", 407.0), ("0.25", 0.25)] {
        let outcome = number(model(certain(text)), by(NumberMethod::Token), 16);
        assert!((outcome.token_value.unwrap() - value).abs() < 1e-9, "{text}: {outcome:?}");
    }
    let no_number = number(model(|_: &str| vec![("x", 1.0)]), by(NumberMethod::Token), 16);
    assert_eq!(no_number.token_value, None);
}

/// "x." or "xx.", then a number that depends on it.
fn thinks_first(text: &str) -> Vec<(&'static str, f64)> {
    match text {
        "" => vec![("x", 1.0)],
        "x" => vec![("x", 0.5), (".", 0.5)],
        "xx" => vec![(".", 1.0)],
        "x." => vec![("4", 0.75), ("5", 0.25)],
        "xx." => vec![("8", 1.0)],
        _ => vec![("", 1.0)],
    }
}

fn after(marker: &str, rationales: u32, sampling: SamplingParams) -> NumberJob {
    let after = AfterMarker { marker: marker.to_owned(), rationales, sampling, max_tokens: 6 };
    NumberJob { after: Some(after), ..number_job() }
}

#[test]
fn a_number_is_read_after_the_text_that_comes_first() {
    let events =
        run(model(thinks_first), Request::Number(after(". ", 1, SamplingParams::GREEDY)), 16).unwrap();
    let (Some(Event::Number(outcome)), shown) = (events.last(), shown(&events)) else { panic!("{events:?}") };
    let want = [("4", 0.75), ("5", 0.25)].map(|(text, p)| (text.to_owned(), p));
    assert_eq!((shown.as_str(), leaves(outcome)), ("x. ", want.to_vec()));
    assert_eq!((outcome.reached, outcome.nodes), (1, 5), "two rows of text and three of the tree");
}

fn shown(events: &[Event]) -> String {
    let text = events.iter().filter_map(|event| match event {
        Event::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    text.collect()
}

#[test]
fn distributions_after_several_texts_are_averaged_at_any_width() {
    let sampling = SamplingParams { seed: 11, ..SamplingParams::PLAIN };
    let ask = |rows_max| {
        let outcome = number(model(thinks_first), after(".", 64, sampling), rows_max);
        NumberOutcome { forward_passes: 0, ..outcome }
    };
    let outcome = ask(16);
    let half =
        |text| outcome.distribution.leaves().iter().find(|leaf| leaf.text == text).unwrap().probability;
    assert!((half("8") - 0.5).abs() < 0.2 && (half("4") / half("5") - 3.0).abs() < 1e-3, "{outcome:?}");
    assert_eq!(outcome, ask(3));
}

#[test]
fn a_text_that_never_reaches_the_marker_is_not_a_number() {
    let outcome = number(model(thinks_first), after("####", 1, SamplingParams::GREEDY), 16);
    assert_eq!(outcome.reached, 0);
    assert_masses(&outcome, 0.0, 1.0, 0.0);
}

#[test]
fn a_marker_inside_a_token_leaves_the_rest_to_the_number() {
    // The marker is a digit here, so that the token `12` holds it and the first digit after it.
    let says_12 = |text: &str| if text.is_empty() { vec![("12", 1.0)] } else { vec![("5", 0.5), ("", 0.5)] };
    let limits = GrammarLimits::new(2, 0, true).unwrap();
    let outcome = number(model(says_12), NumberJob { limits, ..after("1", 1, SamplingParams::GREEDY) }, 16);
    assert_eq!(leaves(&outcome), [("2".to_owned(), 0.5), ("25".to_owned(), 0.25)]);
}

/// After any text, every digit and the end, with probabilities that depend on the text.
fn endless_digits(text: &str) -> Vec<(&'static str, f64)> {
    let hash = |piece: usize| {
        let seed = text.bytes().fold(piece as u64 + 1, |hash, byte| (hash * 31 + u64::from(byte)) % 1009);
        1.0 + (seed * 7919 % 101) as f64
    };
    let weights = PIECES[1..12].iter().enumerate().map(|(piece, text)| (*text, hash(piece)));
    let total: f64 = weights.clone().map(|(_, weight)| weight).sum();
    weights.map(|(text, weight)| (text, weight / total)).collect()
}

/// The closed mass after the `budget` most probable prefixes, found by sorting all of them again each time.
fn closed_by_sorting(budget: usize) -> f64 {
    let mut open = vec![(1.0_f64, String::new())];
    let mut closed = 0.0;
    for _ in 0..budget {
        open.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (probability, prefix) = open.pop().unwrap();
        for (piece, given) in endless_digits(&prefix) {
            match piece {
                "" if !prefix.is_empty() => closed += probability * given,
                "" => {}
                _ => open.push((probability * given, format!("{prefix}{piece}"))),
            }
        }
    }
    closed
}

/// A step of a search.
pub(super) struct SearchStep {
    rows: usize,
    /// Memory of the search after the step, in bytes.
    pub(super) bytes: usize,
}

/// Runs the search of a number alone, and returns its outcome and its steps.
pub(super) fn steps_of(
    job: &Job,
    script: impl Fn(&str) -> Vec<(&'static str, f64)> + Send + 'static,
    rows_max: usize,
) -> (NumberOutcome, Vec<SearchStep>) {
    let mut model = model(script);
    let context = model.open(&[(&job.prompt).into()]).unwrap()[0].context;
    let mut decoding = vocabulary().decoding(&job.request, &[], 0);
    let mut events = Vec::new();
    let mut steps = Vec::new();
    let mut first_node = 0;
    loop {
        let step = decoding.next_rows(rows_max);
        let step: Vec<Row> = step.into_iter().map(|path| Row { context, path }).collect();
        let logits = model.step(&step).unwrap();
        let result = StepResult { logits: &logits, first_row: 0, first_node: NodeId(first_node) };
        first_node += step.len() as u32;
        let progress = decoding.advance(result, &mut events).unwrap();
        steps.push(SearchStep { rows: step.len(), bytes: decoding.search_bytes() });
        if progress == Progress::Done {
            break;
        }
    }
    let Some(Event::Number(outcome)) = events.pop() else { panic!("no number") };
    (outcome, steps)
}

#[test]
fn a_trees_memory_is_limited_by_its_budget_and_its_result_is_that_of_all_prefixes() {
    for budget in [1, 7, 100, 400] {
        for rows_max in [1, 16] {
            let request = NumberJob { method: tree(1e-12, budget), ..number_job() };
            let job = Job::new(vec![2, 1], Request::Number(request));
            let (outcome, steps) = steps_of(&job, endless_digits, rows_max);
            assert_eq!((outcome.nodes, outcome.truncated), (budget, true));
            let got = outcome.distribution.mass().closed;
            let want = closed_by_sorting(budget);
            assert!((got - want).abs() < 1e-6, "{got} instead of {want} after {budget} nodes");
            let rows: usize = steps.iter().map(|step| step.rows).sum();
            assert!(rows <= budget + 256, "{rows} rows for {budget} nodes");
            let bytes = steps.iter().map(|step| step.bytes).max().unwrap();
            let expected = job.host_bytes(budget + 256) as usize;
            assert!(bytes <= expected, "{bytes} bytes for {budget} nodes, {expected} expected");
        }
    }
}
