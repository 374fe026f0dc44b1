//! Reports of some ids against the exact distributions of the same models: the exact estimate always lies
//! within the bounds.

use std::collections::BTreeMap;

use super::property_tests::random;
use super::tests::{PIECES, model, number, number_job, tree, trim, vocabulary};
use super::*;
use crate::Prompt;
use crate::contract::{
    BatchModel, CandidatesJob, Continuation, NumberJob, NumberMethod, NumberOutcome, OpenDraws, OptionsJob,
    OptionsOutcome, Row, ScoreJob, Terminator, Token,
};
use crate::losses::{NumberLoss, NumberLossKind, NumberTokens};
use crate::numbers::{Distribution, Estimation, Interval, NumberValues, Objective, Scale};
use crate::scripted::{Reported, ScriptedModel};

const REPORTED: [Reported; 7] = [
    Reported::Best(1),
    Reported::Best(2),
    Reported::Best(3),
    Reported::Best(5),
    Reported::Requested,
    Reported::OnlyRequested,
    Reported::All,
];

/// Runs a request over reports of the model's logits.
fn run(mut model: ScriptedModel, request: &Request, reported: Reported) -> Result<Vec<Event>, EngineError> {
    let opened = model.open(&[(&Prompt::from(vec![2, 1])).into()]).unwrap()[0];
    let mut decoding = vocabulary().reported_decoding(request)?;
    let mut events = Vec::new();
    let mut nodes = 0;
    loop {
        let paths = decoding.next_rows(16);
        assert!((1..=16).contains(&paths.len()), "{} rows", paths.len());
        let rows: Vec<_> = paths.into_iter().map(|path| Row { context: opened.context, path }).collect();
        let logits = model.step(&rows).unwrap();
        let reports = rows.iter().enumerate();
        let reports =
            reports.map(|(index, row)| reported.of(logits.row(index), PIECES.len(), &row.path.logits));
        let reports = Logits::reported(reports);
        let result = StepResult { logits: &reports, first_row: 0, first_node: NodeId(nodes) };
        nodes += rows.len() as u32;
        if decoding.advance(result, &mut events)? == Progress::Done {
            return Ok(events);
        }
    }
}

fn search(seed: u64, job: &NumberJob, reported: Reported) -> NumberOutcome {
    let request = Request::Number(job.clone());
    match run(model(move |text| random(seed, text)), &request, reported).unwrap().pop() {
        Some(Event::Number(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

fn exact(seed: u64, job: &NumberJob) -> Distribution {
    let job = NumberJob { method: tree(1e-12, 65_536), ..job.clone() };
    number(model(move |text| random(seed, text)), job, 16).distribution
}

/// Numbers that end and are restricted in different ways.
fn jobs() -> Vec<NumberJob> {
    let texts = Terminator::Texts(vec!["x".to_owned(), " ".to_owned()]);
    let range = NumberValues::Range(Interval { low: -20.0, high: 50.0 });
    let scale = NumberValues::Scale(Scale::new(0.0, 9.0, 1.0).unwrap());
    let jobs = [
        (Terminator::Any, NumberValues::All),
        (Terminator::Eos, NumberValues::All),
        (texts, NumberValues::All),
        (Terminator::Any, range),
        (Terminator::Any, scale),
        (Terminator::Eos, scale),
    ];
    jobs.map(|(terminator, values)| NumberJob { terminator, values, ..number_job() }).into()
}

#[test]
fn the_open_mass_of_reports_is_sampled_without_bias() {
    const SEEDS: u64 = 200;
    let raw = Estimation { normalize: false, ..trim(0.0) };
    let exact = exact(3, &number_job()).mean(&raw).unwrap();
    for reported in REPORTED {
        let (mut sum, mut squares) = (0.0, 0.0);
        for seed in 0..SEEDS {
            let open_draws = Some(OpenDraws { search_nodes_max: 2, draws: 16, seed });
            let outcome = search(3, &NumberJob { open_draws, ..number_job() }, reported);
            let mass = outcome.estimated().mass();
            assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-9, "{reported:?}: {mass:?}");
            let unreported = outcome.unreported;
            assert!(unreported <= mass.open + 1e-9, "{reported:?}: {unreported} of {mass:?}");
            let error = outcome.estimated().mean(&raw).unwrap() - exact;
            sum += error;
            squares += error * error;
        }
        if matches!(reported, Reported::All) {
            let (mean, square) = (sum / SEEDS as f64, squares / SEEDS as f64);
            assert!(mean.abs() <= 4.0 * (square / SEEDS as f64).sqrt(), "{reported:?}: {mean} {square}");
        }
    }
}

/// Asserts that `found` leaves every part of the exact distribution possible.
fn assert_possible(found: &NumberOutcome, exact: &Distribution, context: &str) {
    let mass = found.distribution.mass();
    let sum = mass.closed + mass.invalid + mass.open;
    assert!((sum - 1.0).abs() < 1e-6, "{context}: {mass:?}");
    assert!(mass.invalid <= exact.mass().invalid + 1e-6, "{context}: {mass:?} of {:?}", exact.mass());
    assert!(found.unreported <= mass.open + 1e-9, "{context}: {} of {mass:?}", found.unreported);
    let probability: BTreeMap<u64, f64> =
        exact.leaves().iter().map(|leaf| (leaf.value.to_bits(), leaf.probability)).collect();
    for leaf in found.distribution.leaves() {
        let exact = probability.get(&leaf.value.to_bits()).copied().unwrap_or(0.0);
        assert!(leaf.probability <= exact + 1e-6, "{context}, {}: {} > {exact}", leaf.text, leaf.probability);
    }
}

#[test]
fn exact_estimates_lie_within_the_bounds_regardless_of_what_an_engine_reports() {
    // For each kind of report: the number of bounds, and the number of those that are wider than a value.
    let mut bounded: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for seed in 0..40 {
        for job in jobs() {
            let exact = exact(seed, &job);
            let range = job.values.interval();
            for reported in REPORTED {
                let context = format!("seed {seed}, {reported:?}, {:?}, {:?}", job.terminator, job.values);
                let job = NumberJob { method: tree(1e-3, 4096), ..job.clone() };
                let found = search(seed, &job, reported);
                assert_possible(&found, &exact, &context);
                assert!(!found.truncated, "{context}: {} nodes", found.nodes);
                let counts = bounded.entry(format!("{reported:?}")).or_default();
                for estimation in [
                    Estimation { range, ..trim(0.1) },
                    Estimation { range, ..trim(0.0) },
                    Estimation { normalize: false, range, ..trim(0.2) },
                ] {
                    let fixed = [Objective::Mean, Objective::Median, Objective::Mode, Objective::Auto];
                    for objective in fixed.into_iter().chain([0.05, 0.9].map(Objective::Quantile)) {
                        let bounds = found.distribution.estimate_bounds(objective, &estimation);
                        let value = exact.estimate(objective, &estimation);
                        let (Some(bounds), Some(value)) = (bounds, value) else { continue };
                        let slack = 1e-5 * value.abs().max(1.0);
                        let within = bounds.low - slack <= value && value <= bounds.high + slack;
                        assert!(within, "{context}, {objective:?} {estimation:?}: {value}, {bounds:?}");
                        counts.0 += 1;
                        counts.1 += usize::from(bounds.high > bounds.low + slack);
                    }
                }
            }
        }
    }
    assert_eq!(bounded.len(), REPORTED.len(), "{bounded:#?}");
    let enough = |(reported, &(all, wide)): (&String, &(usize, usize))| {
        all >= 300 && (wide >= 100 || reported == "Best(1)")
    };
    assert!(bounded.iter().all(enough), "{bounded:#?}");
}

#[test]
fn requested_ids_leave_nothing_unreported_even_if_no_other_id_is_reported() {
    for seed in 0..20 {
        for job in jobs() {
            let native = number(model(move |text| random(seed, text)), job.clone(), 16);
            for reported in [Reported::OnlyRequested, Reported::Requested, Reported::All] {
                let found = search(seed, &job, reported);
                let counts = |outcome: &NumberOutcome| (outcome.nodes, outcome.distribution.leaves().len());
                assert_eq!(counts(&found), counts(&native), "seed {seed}, {reported:?}");
                assert!(found.unreported < 1e-9, "seed {seed}, {reported:?}: {}", found.unreported);
                let (mass, want) = (found.distribution.mass(), native.distribution.mass());
                assert!((mass.closed - want.closed).abs() < 1e-6, "seed {seed}: {mass:?} {want:?}");
                assert!((mass.open - want.open).abs() < 1e-6, "seed {seed}: {mass:?} {want:?}");
            }
        }
    }
}

#[test]
fn rows_after_probable_digits_name_the_ids_that_continue_the_number() {
    let script = |text: &str| match text {
        "" => vec![("5", 0.9), ("7", 0.005), ("x", 0.095)],
        _ => vec![("", 0.9), (".", 0.1)],
    };
    let continuations = |values| {
        let request = Request::Number(NumberJob { values, method: tree(1e-3, 64), ..number_job() });
        let mut model = model(script);
        let opened = model.open(&[(&Prompt::from(vec![2, 1])).into()]).unwrap()[0];
        let mut decoding = vocabulary().reported_decoding(&request).unwrap();
        let first = decoding.next_rows(16).remove(0);
        assert_eq!(first.continuation, Continuation::Any);
        let logits = model.step(&[Row { context: opened.context, path: first.clone() }]).unwrap();
        let report = Reported::Requested.of(logits.row(0), PIECES.len(), &first.logits);
        let reports = Logits::reported([report]);
        let result = StepResult { logits: &reports, first_row: 0, first_node: NodeId(0) };
        assert_eq!(decoding.advance(result, &mut Vec::new()).unwrap(), Progress::Running);
        decoding.next_rows(16).into_iter().map(|row| row.continuation).collect::<Vec<_>>()
    };
    let rating = NumberValues::Scale(Scale::new(1.0, 9.0, 1.0).unwrap());
    assert_eq!(continuations(rating), [Continuation::Among([13].into()), Continuation::Unlikely]);
    let digits_and_point: Vec<u32> = (2..12).chain([13, 16]).collect();
    let want = [Continuation::Among(digits_and_point.into()), Continuation::Unlikely];
    assert_eq!(continuations(NumberValues::All), want);
}

#[test]
fn a_tree_ends_when_only_unreported_mass_is_open_and_reports_it() {
    // Ten digits are possible after every prefix, and the engine reports three of them.
    let digits = |_: &str| {
        let digits = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
        digits.map(|digit| (digit, 0.09)).into_iter().chain([("", 0.1)]).collect::<Vec<_>>()
    };
    let request = Request::Number(NumberJob { method: tree(1e-3, 65_536), ..number_job() });
    let outcome = match run(model(digits), &request, Reported::Best(3)).unwrap().pop() {
        Some(Event::Number(outcome)) => outcome,
        other => panic!("{other:?}"),
    };
    assert!(outcome.nodes < 100 && !outcome.truncated, "{} nodes", outcome.nodes);
    let mass = outcome.distribution.mass();
    assert!(outcome.unreported > 0.7 && mass.open >= outcome.unreported, "{mass:?} {}", outcome.unreported);
}

#[test]
fn unreported_ids_can_only_have_as_much_mass_as_the_least_probable_reported_one() {
    // `1` has 0.6, the end 0.3, and four more digits share 0.1.
    let script = |text: &str| match text {
        "" => vec![("1", 0.6), ("", 0.3), ("2", 0.04), ("3", 0.03), ("4", 0.02), ("5", 0.01)],
        _ => vec![("", 1.0)],
    };
    let request = |values| Request::Number(NumberJob { values, ..number_job() });
    let open = |values, reported| match run(model(script), &request(values), reported).unwrap().pop() {
        Some(Event::Number(outcome)) => outcome.distribution.mass().open,
        other => panic!("{other:?}"),
    };
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}");
    let only = |low, high| NumberValues::Scale(Scale::new(low, high, 1.0).unwrap());
    near(open(NumberValues::All, Reported::Best(2)), 0.1);
    near(open(NumberValues::All, Reported::Best(4)), 0.03);
    // Only a space, a 3 and a 03 may begin an admitted number.
    near(open(only(3.0, 3.0), Reported::Best(5)), 0.01);
    near(open(only(1.0, 1.0), Reported::All), 0.0);
}

#[test]
fn draws_and_beams_of_reports_have_only_possible_numbers() {
    let mut draws_with_open_mass = 0;
    for seed in 0..20 {
        for job in jobs() {
            let exact = exact(seed, &job);
            for reported in REPORTED {
                let context = format!("seed {seed}, {reported:?}, {:?}", job.terminator);
                let beams = NumberJob { method: NumberMethod::Beam { beams: 4 }, ..job.clone() };
                assert_possible(&search(seed, &beams, reported), &exact, &context);
                let draws = NumberMethod::sample(2000, seed);
                let found = search(seed, &NumberJob { method: draws, ..job.clone() }, reported);
                let (mass, want) = (found.distribution.mass(), exact.mass());
                assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-9, "{context}");
                assert!((found.unreported - mass.open).abs() < 1e-9, "{context}");
                let is_near = mass.closed <= want.closed + 0.06
                    && mass.invalid <= want.invalid + 0.06
                    && mass.closed + mass.open >= want.closed - 0.06;
                assert!(is_near, "{context}: {mass:?} {want:?}");
                draws_with_open_mass += usize::from(mass.open > 0.0);
                let is_complete = !matches!(reported, Reported::Best(_));
                assert!(!is_complete || mass.open <= 0.0, "{context}: {mass:?}");
            }
        }
    }
    assert!(draws_with_open_mass > 100, "{draws_with_open_mass}");
}

#[test]
fn the_expectation_along_the_greedy_path_needs_all_number_tokens() {
    let job = NumberJob { method: NumberMethod::Token, ..number_job() };
    let script = |text: &str| match text {
        "" => vec![("4", 0.6), ("2", 0.3), ("x", 0.1)],
        _ => vec![("", 1.0)],
    };
    let value = |reported| match run(model(script), &Request::Number(job.clone()), reported).unwrap().pop() {
        Some(Event::Number(outcome)) => (outcome.token_value, outcome.unreported > 0.0),
        other => panic!("{other:?}"),
    };
    for reported in [Reported::All, Reported::Requested] {
        let (value, is_unreported) = value(reported);
        assert!((value.unwrap() - (0.6 * 4.0 + 0.3 * 2.0) / 0.9).abs() < 1e-6 && !is_unreported);
    }
    assert_eq!(value(Reported::Best(2)), (None, true));
}

#[test]
fn refused_texts_are_those_that_the_engine_reports() {
    let script = |_: &str| vec![("x", 0.7), ("1", 0.2), (".", 0.06), (" ", 0.04)];
    let job = NumberJob { reports_refused: true, ..number_job() };
    let refused = |reported| match run(model(script), &Request::Number(job.clone()), reported).unwrap().pop()
    {
        Some(Event::Number(outcome)) => outcome.refused.first().map(|refused| refused.text.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(Reported::Requested), Some("x".to_owned()), "the most probable token");
    assert_eq!(refused(Reported::Best(1)), Some("x".to_owned()));
    assert_eq!(refused(Reported::OnlyRequested), Some("1\u{2026}".to_owned()), "`x` is not requested");
}

/// Logits that depend on the whole path.
fn mixed() -> ScriptedModel {
    let script = |_: &[u32], path: &[u32]| {
        let mix = path.iter().fold(17_u32, |mix, &id| mix.wrapping_mul(31).wrapping_add(id));
        Ok((0..17).map(|id| ((mix.wrapping_mul(id + 7) % 97) as f32) / 20.0).collect())
    };
    ScriptedModel::new(17, Box::new(script))
}

/// Runs a request on the model itself.
fn natively(request: &Request) -> Vec<Event> {
    super::tests::run(mixed(), request.clone(), 16).unwrap()
}

fn assert_scores(got: &[Event], want: &[Event]) {
    let ([Event::Scored(got)], [Event::Scored(want)]) = (got, want) else { panic!("{got:?} {want:?}") };
    assert_eq!(got.tokens.len(), want.tokens.len());
    for (got, want) in got.tokens.iter().zip(&want.tokens) {
        assert_eq!(got.token.id, want.token.id);
        assert!((got.token.logprob - want.token.logprob).abs() < 1e-6, "{got:?} {want:?}");
        assert_eq!(got.losses.len(), want.losses.len());
        for (got, want) in got.losses.iter().zip(&want.losses) {
            assert_eq!(got.is_some(), want.is_some());
            assert!((got.unwrap_or(0.0) - want.unwrap_or(0.0)).abs() < 1e-5, "{got:?} {want:?}");
        }
        let (got, want) = (got.number.unwrap(), want.number.unwrap());
        assert!((got.mass - want.mass).abs() < 1e-6 && (got.value - want.value).abs() < 1e-5);
    }
}

#[test]
fn losses_of_requested_ids_are_exact_and_missing_ids_are_errors_that_say_so() {
    let number_tokens = Arc::new(NumberTokens::new((2..12).map(|id| (id, f64::from(id - 2)))));
    let kinds = [NumberLossKind::Was, NumberLossKind::Mse, NumberLossKind::WasCdf];
    let losses: Vec<NumberLoss> = kinds.map(NumberLoss::of).into();
    let target: Vec<Token> = [3, 15, 7, 1].map(Token::from).into();
    let request = Request::Score(ScoreJob { target, number_tokens, losses, digits: false });
    for reported in [Reported::Requested, Reported::OnlyRequested, Reported::All] {
        assert_scores(&run(mixed(), &request, reported).unwrap(), &natively(&request));
    }
    for (count, names) in [(2, "token id"), (15, "most probable tokens")] {
        match run(mixed(), &request, Reported::Best(count)) {
            Err(EngineError::Unsupported(reason)) => assert!(reason.contains(names), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn candidates_of_requested_ids_are_exact_and_missing_ids_are_errors_that_name_them() {
    let candidates = [vec![3, 4, 5], vec![3, 4, 6], vec![15], vec![]];
    let candidates = candidates.map(|ids| ids.into_iter().map(Token::from).collect::<Vec<_>>());
    let request = Request::Candidates(CandidatesJob::new(&candidates));
    let logprobs = |events: &[Event]| match events {
        [Event::Scored(outcome)] => {
            outcome.tokens.iter().map(|score| score.token.logprob).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let want = logprobs(&natively(&request));
    for reported in [Reported::Requested, Reported::OnlyRequested, Reported::All] {
        let got = logprobs(&run(mixed(), &request, reported).unwrap());
        assert!(got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-6), "{got:?} {want:?}");
    }
    let error = run(mixed(), &request, Reported::Best(1)).unwrap_err();
    assert!(matches!(error, EngineError::Unsupported(reason) if reason.contains("token id")));
}

#[test]
fn reports_are_not_enough_for_texts_and_number_heads() {
    let text = Request::Text(crate::contract::TextJob::default());
    let is_unsupported = |vocabulary: &Vocabulary, request: &Request| {
        matches!(vocabulary.reported_decoding(request), Err(EngineError::Unsupported(_)))
    };
    assert!(is_unsupported(&vocabulary(), &text));
    let number = Request::Number(number_job());
    assert!(!is_unsupported(&vocabulary(), &number));
    let point = Vocabulary { grammar: Arc::new(NumberGrammar::point()), ..vocabulary() };
    assert!(is_unsupported(&point, &number));
}

fn options_of(events: &[Event]) -> OptionsOutcome {
    match events {
        [Event::Options(outcome)] => outcome.clone(),
        other => panic!("{other:?}"),
    }
}

/// Options that share prefixes, and one that is a prefix of others.
fn options_request(tolerance: f64) -> Request {
    let options = [&[3, 4, 5][..], &[3, 4], &[3, 4, 5, 2], &[15], &[3, 6], &[8, 3, 3]];
    let options = options.map(|ids| ids.iter().copied().map(Token::from).collect());
    Request::Options(OptionsJob::new(&options, &[1], tolerance).unwrap())
}

#[test]
fn options_have_the_log_probabilities_of_candidates_that_end() {
    let candidates = [&[3, 4, 5, 1][..], &[3, 4, 1], &[3, 4, 5, 2, 1], &[15, 1], &[3, 6, 1], &[8, 3, 3, 1]];
    let tokens = |ids: &[u32]| ids.iter().copied().map(Token::from).collect::<Vec<_>>();
    for seed in 0..40 {
        let model = || model(move |text| random(seed, text));
        let scored = Request::Candidates(CandidatesJob::new(&candidates.map(tokens)));
        let scored = super::tests::run(model(), scored, 16).unwrap();
        let [Event::Scored(scored)] = scored.as_slice() else { panic!("{scored:?}") };
        let mut left = scored.tokens.as_slice();
        let mut want = Vec::new();
        for ids in candidates {
            let (own, rest) = left.split_at(ids.len());
            want.push(own.iter().map(|score| score.token.logprob).sum::<f64>().exp());
            left = rest;
        }
        for rows_max in [1, 2, 5, 64] {
            let found = options_of(&super::tests::run(model(), options_request(1e-12), rows_max).unwrap());
            for (got, want) in found.closed.iter().zip(&want) {
                assert!((got - want).abs() < 1e-6, "seed {seed}: {:?} {want:?}", found.closed);
            }
        }
    }
}

#[test]
fn a_search_for_options_does_not_depend_on_the_rows_of_a_step_and_stops_at_its_tolerance() {
    for seed in 0..40 {
        for tolerance in [1e-9, 0.01, 0.2, 0.9] {
            let model = || model(move |text| random(seed, text));
            let run = |rows_max| {
                options_of(&super::tests::run(model(), options_request(tolerance), rows_max).unwrap())
            };
            let first = run(1);
            for rows_max in [2, 3, 64] {
                assert_eq!(run(rows_max), first, "seed {seed}, {rows_max} rows");
            }
            let mass = first.mass();
            assert!(mass.open <= tolerance * mass.closed + 1e-12, "{mass:?}");
            assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-12 && mass.invalid >= 0.0);
        }
    }
}

#[test]
fn bounds_of_options_contain_the_exact_probabilities_whatever_is_reported() {
    let mut bounded = 0;
    for seed in 0..60 {
        let model = || model(move |text| random(seed, text));
        let exact = options_of(&super::tests::run(model(), options_request(1e-12), 16).unwrap());
        let Some(want) = exact.probabilities() else { continue };
        let index = |(place, share): (usize, &f64)| place as f64 * share;
        let want_index: f64 = want.iter().enumerate().map(index).sum();
        for reported in REPORTED {
            for tolerance in [1e-9, 0.3] {
                let found = options_of(&run(model(), &options_request(tolerance), reported).unwrap());
                for (bounds, want) in found.bounds().iter().zip(&want) {
                    let holds = bounds.low <= want + 1e-6 && want - 1e-6 <= bounds.high;
                    assert!(holds, "seed {seed} {reported:?}: {bounds:?} {want}");
                    bounded += usize::from(bounds.high - bounds.low < 0.5);
                }
                let bounds = found.expected_index_bounds();
                let holds = bounds.low <= want_index + 1e-5 && want_index - 1e-5 <= bounds.high;
                assert!(holds, "seed {seed} {reported:?}: {bounds:?} {want_index}");
            }
        }
    }
    assert!(bounded > 500, "only {bounded} bounds are narrow");
}
