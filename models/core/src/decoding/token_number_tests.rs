//! Numbers of dedicated tokens, compared with enumerations of all answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tests::drive;
use super::*;
use crate::contract::{
    BatchModel, Event, NumberJob, NumberMethod, NumberOutcome, OpenDraws, Precision, Prompt, TextJob,
};
use crate::numbers::{
    Distribution, Estimation, Interval, NotationError, NumberValues, Objective, Scale, SpecialValue,
    TokenFormat, TokenNotation,
};
use crate::sampling::SamplingParams;
use crate::scripted::ScriptedModel;

const BINARY: TokenFormat = TokenFormat::Ieee { base: 2, exponent_digits: 1, digits: 2 };
const WIDE: TokenFormat = TokenFormat::Ieee { base: 10, exponent_digits: 1, digits: 2 };
const TENS: TokenFormat = TokenFormat::P10 { digits: 1, exponent_max: 1 };
const EIGHTHS: TokenFormat = TokenFormat::Normalized { base: 2, digits: 3 };

fn names(format: TokenFormat) -> Vec<String> {
    let tokens: &[&str] = match format {
        WIDE => {
            &["<pad>", "<+>", "<->", "<0>", "<1>", "<2>", "<3>", "<4>", "<5>", "<6>", "<7>", "<8>", "<9>"]
        }
        TokenFormat::Ieee { .. } => &["<pad>", "<+>", "<->", "<0>", "<1>"],
        TokenFormat::P10 { .. } => &[
            "<pad>", "<+>", "<->", "<0>", "<1>", "<2>", "<3>", "<4>", "<5>", "<6>", "<7>", "<8>", "<9>",
            "<E-1>", "<E0>", "<E1>",
        ],
        TokenFormat::Normalized { .. } => &["<pad>", "<0>", "<1>"],
    };
    tokens.iter().map(|&name| name.to_owned()).collect()
}

fn vocabulary(format: TokenFormat, outputs: usize) -> Vocabulary {
    let notation = Arc::new(TokenNotation::new(names(format), format, outputs).unwrap());
    Vocabulary {
        decoder: Arc::clone(&notation) as Arc<dyn TextDecoder>,
        tokens: notation.tokens(),
        grammar: Arc::new(NumberGrammar::of_tokens(notation)),
        number_values: Arc::new([]),
        eos_ids: Arc::new([]),
    }
}

/// Logits that depend on all tokens of the path. Tokens that no number contains have some of the mass.
fn logits(tokens: usize, path: &[u32]) -> Vec<f32> {
    let hash = |id: usize| {
        let seed = path.iter().fold(id as u64 + 1, |hash, &id| {
            hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(u64::from(id) + 11)
        });
        ((seed ^ (seed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40) as f32 / (1 << 24) as f32
    };
    (0..tokens).map(|id| 4.0 * hash(id)).collect()
}

fn run(vocabulary: &Vocabulary, request: &Request) -> Vec<Event> {
    run_in_steps(vocabulary, request, 5)
}

fn run_in_steps(vocabulary: &Vocabulary, request: &Request, rows_max: usize) -> Vec<Event> {
    let tokens = vocabulary.tokens;
    let script = move |_: &[u32], path: &[u32]| Ok(logits(tokens, path));
    let mut model = ScriptedModel::new(tokens, Box::new(script));
    let opened = model.open(&[(&Prompt::from(vec![2, 1])).into()]).unwrap()[0];
    drive(&mut model, opened.context, || vocabulary.decoding(request, &[], 0), rows_max).unwrap()
}

/// The distribution of a model that follows `next`: after these tokens, those with these probabilities.
fn scripted(
    vocabulary: &Vocabulary,
    is_masked: bool,
    next: impl Fn(&str) -> &'static [(&'static str, f64)] + Copy + Send + 'static,
) -> Vec<(String, f64)> {
    let notation = Arc::clone(vocabulary.grammar.notation().unwrap());
    let tokens = vocabulary.tokens;
    let script = move |_: &[u32], path: &[u32]| {
        let mut logits = vec![-50.0; tokens];
        for (name, probability) in next(&notation.decode(path)) {
            logits[notation.encode(name).unwrap()[0] as usize] = (*probability as f32).ln();
        }
        Ok(logits)
    };
    let mut model = ScriptedModel::new(tokens, Box::new(script));
    let opened = model.open(&[(&Prompt::from(vec![2, 1])).into()]).unwrap()[0];
    let request = Request::Number(NumberJob { is_masked, ..tree(1e-6, 4096) });
    let events = drive(&mut model, opened.context, || vocabulary.decoding(&request, &[], 0), 5).unwrap();
    let Some(Event::Number(outcome)) = events.into_iter().next_back() else { panic!("no number") };
    let leaves = outcome.distribution.leaves().iter().filter(|leaf| leaf.probability > 1e-6);
    leaves.map(|leaf| (leaf.text.clone(), (leaf.probability * 1e4).round() / 1e4)).collect()
}

/// The examples of `docs/numbers.md`.
#[test]
fn worked_examples_are_found_exactly() {
    let of = |names: &[&str], format| {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        let notation = Arc::new(TokenNotation::new(names, format, 1).unwrap());
        Vocabulary {
            decoder: Arc::clone(&notation) as Arc<dyn TextDecoder>,
            tokens: notation.tokens(),
            grammar: Arc::new(NumberGrammar::of_tokens(notation)),
            ..vocabulary(TENS, 1)
        }
    };
    let want = |rows: &[(&str, f64)]| -> Vec<(String, f64)> {
        rows.iter().map(|&(text, probability)| (text.to_owned(), probability)).collect()
    };
    let tens = names(TENS);
    let tens: Vec<&str> = tens.iter().map(String::as_str).collect();
    let ieee = of(&tens[..13], TokenFormat::Ieee { base: 10, exponent_digits: 1, digits: 2 });
    let next = |path: &str| -> &'static [(&'static str, f64)] {
        match path {
            "" => &[("<+>", 0.8), ("<->", 0.1), ("<pad>", 0.1)],
            "<+>" => &[("<+>", 0.75), ("<->", 0.25)],
            "<->" => &[("<+>", 1.0)],
            "<+><+>" => &[("<0>", 0.5), ("<1>", 0.5)],
            "<+><+><0>" | "<+><+><1><0>" | "<+><-><2>" => &[("<4>", 1.0)],
            "<+><+><0><4>" => &[("<0>", 0.6), ("<2>", 0.4)],
            "<+><->" => &[("<2>", 1.0)],
            "<-><+><0>" => &[("<3>", 1.0)],
            "<-><+><0><3>" => &[("<5>", 1.0)],
            _ => &[("<0>", 1.0)],
        }
    };
    let masked = [("-3.5", 0.1111), ("0.04", 0.2222), ("4", 0.5333), ("4.2", 0.1333)];
    assert_eq!(scripted(&ieee, true, next), want(&masked));
    let raw = [("-3.5", 0.1), ("0.04", 0.2), ("4", 0.48), ("4.2", 0.12)];
    assert_eq!(scripted(&ieee, false, next), want(&raw));

    let p10 = of(&tens, TokenFormat::P10 { digits: 2, exponent_max: 1 });
    let next = |path: &str| -> &'static [(&'static str, f64)] {
        match path {
            "" => &[("<+>", 0.9), ("<->", 0.1)],
            "<+>" => &[("<1>", 0.5), ("<0>", 0.5)],
            "<+><1>" => &[("<2>", 1.0)],
            "<+><0>" => &[("<4>", 1.0)],
            "<+><1><2>" => &[("<E0>", 0.5), ("<E-1>", 0.3), ("<E1>", 0.2)],
            "<+><0><4>" => &[("<E1>", 0.6), ("<E0>", 0.4)],
            "<-><0><0>" => &[("<E-1>", 0.2), ("<E0>", 0.3), ("<E1>", 0.5)],
            _ => &[("<0>", 1.0)],
        }
    };
    let found = [("0", 0.1), ("1.2", 0.135), ("4", 0.18), ("12", 0.225), ("40", 0.27), ("120", 0.09)];
    assert_eq!(scripted(&p10, true, next), want(&found));
}

fn number(vocabulary: &Vocabulary, job: NumberJob) -> NumberOutcome {
    match run(vocabulary, &Request::Number(job)).pop() {
        Some(Event::Number(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

fn tree(tolerance: f64, nodes_max: usize) -> NumberJob {
    NumberJob::new(NumberMethod::Tree { tolerance, nodes_max, precision: None })
}

fn all(outcome: &NumberOutcome) -> Vec<&Distribution> {
    std::iter::once(&outcome.distribution).chain(&outcome.further).collect()
}

#[test]
fn draws_of_each_of_several_numbers_are_unbiased() {
    const SEEDS: u64 = 200;
    let vocabulary = vocabulary(TENS, 2);
    let exact = number(&vocabulary, tree(1e-12, 65_536));
    let raw = Estimation { trim: 0.0, normalize: false, range: None };
    for nodes in [3, 40] {
        let mut errors = [(0.0, 0.0); 2];
        for seed in 0..SEEDS {
            let open_draws = Some(OpenDraws { search_nodes_max: nodes, draws: 16, seed });
            let outcome = number(&vocabulary, NumberJob { open_draws, ..tree(1e-12, 65_536) });
            assert_eq!((outcome.sampled.len(), outcome.truncated), (2, true));
            for ((sampled, exact), (sum, squares)) in outcome.sampled.iter().zip(all(&exact)).zip(&mut errors)
            {
                let error = sampled.distribution().mean(&raw).unwrap() - exact.mean(&raw).unwrap();
                *sum += error;
                *squares += error * error;
            }
        }
        for (sum, squares) in errors {
            let (mean, square) = (sum / SEEDS as f64, squares / SEEDS as f64);
            assert!(mean.abs() <= 4.0 * (square / SEEDS as f64).sqrt() + 1e-9, "{nodes}: {errors:?}");
        }
        // The tree has found the first number in 40 nodes.
        assert_eq!([errors[0].1 > 1e-9, errors[1].1 > 1e-9], [nodes == 3, true], "{errors:?}");
    }
}

/// The value of the tokens of one number, by the definition of its format.
fn value(format: TokenFormat, names: &[&str]) -> f64 {
    let sign = |name: &str| if name == "<->" { -1.0 } else { 1.0 };
    let inner = |name: &str| name.trim_matches(['<', '>', 'E']).parse::<i32>().unwrap();
    match (format, names) {
        (TokenFormat::Ieee { .. }, [first, second, exponent, one, half]) => {
            let power = sign(second) * f64::from(inner(exponent));
            sign(first) * 2.0_f64.powf(power) * (f64::from(inner(one)) + f64::from(inner(half)) / 2.0)
        }
        (TokenFormat::P10 { .. }, [first, digit, exponent]) => {
            let value: f64 = format!("{}e{}", inner(digit), inner(exponent)).parse().unwrap();
            sign(first) * value
        }
        (TokenFormat::Normalized { .. }, [half, quarter, eighth]) => {
            f64::from(4 * inner(half) + 2 * inner(quarter) + inner(eighth)) / 8.0
        }
        _ => panic!("{names:?}"),
    }
}

/// The ids that are allowed at a position of a number.
fn allowed(format: TokenFormat, position: usize) -> Vec<u32> {
    match (format, position) {
        (TokenFormat::Ieee { .. }, 0 | 1) | (TokenFormat::P10 { .. }, 0) => vec![1, 2],
        (TokenFormat::Ieee { .. }, _) => vec![3, 4],
        (TokenFormat::P10 { .. }, 1) => (3..13).collect(),
        (TokenFormat::P10 { .. }, _) => (13..16).collect(),
        (TokenFormat::Normalized { .. }, _) => vec![1, 2],
    }
}

/// The probabilities of all values of each number, and the mass of valid tokens up to its end.
fn enumerate(format: TokenFormat, outputs: usize, is_masked: bool) -> Vec<(BTreeMap<String, f64>, f64)> {
    let names = names(format);
    let length = if matches!(format, TokenFormat::Ieee { .. }) { 5 } else { 3 };
    let mut paths = vec![(Vec::new(), 1.0_f64)];
    let mut found = Vec::new();
    for _ in 0..outputs {
        for position in 0..length {
            let allowed = allowed(format, position);
            let longer = |(path, probability): &(Vec<u32>, f64)| {
                let logits = logits(names.len(), path);
                let mass =
                    |ids: &[u32]| ids.iter().map(|&id| f64::from(logits[id as usize]).exp()).sum::<f64>();
                let everything: Vec<u32> = (0..names.len() as u32).collect();
                let total = mass(if is_masked { &allowed } else { &everything });
                let next = |&id: &u32| {
                    let path = [path.as_slice(), &[id]].concat();
                    (path, probability * mass(&[id]) / total)
                };
                allowed.iter().map(next).collect::<Vec<_>>()
            };
            paths = paths.iter().flat_map(longer).collect();
        }
        let mut values: BTreeMap<String, f64> = BTreeMap::new();
        for (path, probability) in &paths {
            let number: Vec<&str> =
                path[path.len() - length..].iter().map(|&id| names[id as usize].as_str()).collect();
            *values.entry((value(format, &number) + 0.0).to_string()).or_default() += probability;
        }
        let mass = paths.iter().map(|(_, probability)| probability).sum();
        found.push((values, mass));
    }
    found
}

#[test]
fn distributions_of_all_numbers_of_an_answer_are_the_enumerated_ones() {
    for (format, outputs) in [(BINARY, 1), (BINARY, 3), (TENS, 1), (TENS, 2), (EIGHTHS, 1), (EIGHTHS, 2)] {
        let vocabulary = vocabulary(format, outputs);
        for is_masked in [true, false] {
            let outcome = number(&vocabulary, NumberJob { is_masked, ..tree(1e-12, 65_536) });
            let want = enumerate(format, outputs, is_masked);
            assert_eq!(all(&outcome).len(), outputs);
            for (found, (values, mass)) in all(&outcome).into_iter().zip(want) {
                let got: BTreeMap<String, f64> = found
                    .leaves()
                    .iter()
                    .map(|leaf| ((leaf.value + 0.0).to_string(), leaf.probability))
                    .collect();
                assert_eq!(got.keys().collect::<Vec<_>>(), values.keys().collect::<Vec<_>>());
                for (value, want) in &values {
                    assert!((got[value] - want).abs() < 1e-6, "{format:?} {value}: {} {want}", got[value]);
                }
                let found = found.mass();
                assert!((found.closed - mass).abs() < 1e-6 && found.open < 1e-9, "{found:?}, {mass}");
                assert!((found.closed + found.invalid + found.open - 1.0).abs() < 1e-9, "{found:?}");
                assert!(!is_masked || found.invalid < 1e-9, "{found:?}");
            }
        }
    }
}

#[test]
fn every_estimate_of_a_tree_that_ran_out_of_nodes_has_finite_bounds_that_hold() {
    let estimation = Estimation { trim: 0.0, ..Estimation::default() };
    let objectives = [
        Objective::Mean,
        Objective::Median,
        Objective::Mode,
        Objective::Auto,
        Objective::Quantile(0.01),
        Objective::Quantile(0.9),
    ];
    let mut open = 0;
    for (format, outputs) in [(BINARY, 2), (TENS, 2), (EIGHTHS, 2)] {
        let vocabulary = vocabulary(format, outputs);
        for is_masked in [true, false] {
            let exact = number(&vocabulary, NumberJob { is_masked, ..tree(1e-12, 65_536) });
            for nodes_max in [1, 2, 5, 9, 20, 60, 200] {
                let outcome = number(&vocabulary, NumberJob { is_masked, ..tree(1e-9, nodes_max) });
                for (found, exact) in all(&outcome).into_iter().zip(all(&exact)) {
                    open += usize::from(found.mass().open > 1e-6);
                    let mass = found.mass();
                    assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-9, "{mass:?}");
                    for objective in objectives.into_iter().filter(|_| mass.closed > 0.0) {
                        let want = exact.estimate(objective, &estimation).unwrap();
                        let Interval { low, high } = found.estimate_bounds(objective, &estimation).unwrap();
                        assert!(low.is_finite() && high.is_finite());
                        let off = 1e-6 * want.abs().max(1.0);
                        let holds = low - off <= want && want <= high + off;
                        assert!(
                            holds,
                            "{format:?}, {nodes_max} nodes, {objective:?}: {want}, {low} to {high}"
                        );
                    }
                }
            }
        }
    }
    assert!(open > 20, "{open}");
}

/// A tree that seeks these quantiles.
fn quantile_tree(objectives: &[Objective], width: f64, nodes_max: usize) -> NumberMethod {
    let precision = Precision { width, objectives: objectives.to_vec(), estimation: Estimation::default() };
    NumberMethod::Tree { tolerance: 1e-12, nodes_max, precision: Some(precision) }
}

#[test]
fn quantiles_of_every_truncated_search_lie_within_their_bounds_and_a_complete_search_is_certain() {
    let objectives = [Objective::Quantile(0.05), Objective::Median, Objective::Quantile(0.95)];
    let range = NumberValues::Range(Interval { low: -20.0, high: 0.5 });
    let mut truncated = 0;
    for (format, outputs) in [(WIDE, 1), (TENS, 1), (TENS, 2), (BINARY, 1), (EIGHTHS, 1)] {
        let vocabulary = vocabulary(format, outputs);
        for (is_masked, values) in
            [(true, NumberValues::All), (true, range), (false, NumberValues::All), (false, range)]
        {
            let job = |method| NumberJob { is_masked, values, ..NumberJob::new(method) };
            let exact = number(&vocabulary, job(tree(1e-12, 65_536).method));
            for (nodes_max, width) in
                [(1, 0.0), (7, 0.0), (40, 0.0), (250, 0.0), (65_536, 0.1), (65_536, 0.0)]
            {
                let found = number(&vocabulary, job(quantile_tree(&objectives, width, nodes_max)));
                truncated += usize::from(found.truncated);
                for (found, exact) in all(&found).into_iter().zip(all(&exact)) {
                    let mass = found.mass();
                    assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-9, "{mass:?}");
                    for objective in objectives.into_iter().filter(|_| mass.closed > 0.0) {
                        let estimation = Estimation { range: values.interval(), ..Estimation::default() };
                        let want = exact.estimate(objective, &estimation).unwrap();
                        let got = found.estimate(objective, &estimation).unwrap();
                        let Interval { low, high } = found.estimate_bounds(objective, &estimation).unwrap();
                        let holds = low <= want && want <= high && low <= got && got <= high;
                        assert!(
                            holds,
                            "{format:?}, {nodes_max}, {objective:?}: {want}, {got}, {low} to {high}"
                        );
                        let is_complete = nodes_max == 65_536;
                        assert!(!is_complete || high - low <= width, "{format:?}: {low} to {high}");
                    }
                }
            }
        }
    }
    assert!(truncated > 30, "{truncated}");
}

#[test]
fn a_tree_for_quantiles_leaves_out_prefixes_that_cannot_contain_them_at_any_width_of_steps() {
    let vocabulary = vocabulary(WIDE, 1);
    let whole = number(&vocabulary, tree(1e-12, 65_536));
    assert_eq!(whole.nodes, 1 + 2 + 4 + 40 + 400);
    for (objectives, nodes_max) in [
        (vec![Objective::Median], 60),
        (vec![Objective::Quantile(0.05), Objective::Median, Objective::Quantile(0.95)], 120),
    ] {
        let method = quantile_tree(&objectives, 0.0, 65_536);
        let request = Request::Number(NumberJob::new(method));
        let search = |rows_max| match run_in_steps(&vocabulary, &request, rows_max).pop() {
            Some(Event::Number(outcome)) => NumberOutcome { forward_passes: 0, ..outcome },
            other => panic!("{other:?}"),
        };
        let found = search(16);
        assert!(found.nodes <= nodes_max && !found.truncated, "{}", found.nodes);
        assert_eq!(found, search(1));
        assert!(found.distribution.mass().open > 0.5, "{:?}", found.distribution.mass());
    }
    // The mean depends on all numbers.
    let mean = number(
        &vocabulary,
        NumberJob::new(quantile_tree(&[Objective::Median, Objective::Mean], 0.0, 65_536)),
    );
    assert!(mean.nodes > 300, "{}", mean.nodes);
}

#[test]
fn the_first_number_does_not_wait_for_the_others() {
    let alone = number(&vocabulary(TENS, 1), tree(1e-3, 4096));
    let both = number(&vocabulary(TENS, 2), tree(2e-3, 4096));
    assert_eq!(both.distribution, alone.distribution);
    assert!(both.further[0].mass().open <= 2e-3 && !both.truncated);
}

#[test]
fn values_that_are_not_admitted_are_invalid_and_their_prefixes_are_not_computed() {
    let vocabulary = vocabulary(TENS, 1);
    let whole = number(&vocabulary, tree(1e-12, 4096));
    for (values, admits) in [
        (
            NumberValues::Range(Interval { low: 0.2, high: 5.0 }),
            (|value| (0.2..=5.0).contains(&value)) as fn(f64) -> bool,
        ),
        (NumberValues::Scale(Scale::new(-40.0, 40.0, 10.0).unwrap()), |value: f64| {
            value.abs() <= 40.0 && value % 10.0 == 0.0
        }),
        (NumberValues::Scale(Scale::new(0.1, 0.5, 0.2).unwrap()), |value| {
            [0.1, 0.3, 0.5].iter().any(|step: &f64| (step - value).abs() < 1e-9)
        }),
    ] {
        let outcome = number(&vocabulary, NumberJob { values, ..tree(1e-12, 4096) });
        let want: Vec<_> = whole.distribution.leaves().iter().filter(|leaf| admits(leaf.value)).collect();
        let got: Vec<_> = outcome.distribution.leaves().iter().collect();
        assert_eq!(got.len(), want.len(), "{values:?}");
        for (got, want) in got.iter().zip(&want) {
            assert!(
                (got.value - want.value).abs() < 1e-12 && (got.probability - want.probability).abs() < 1e-9
            );
        }
        let mass = outcome.distribution.mass();
        assert!((mass.closed + mass.invalid - 1.0).abs() < 1e-9, "{mass:?}");
        let prunes_a_sign = !matches!(values, NumberValues::Scale(scale) if scale.interval().low < 0.0);
        assert!(!prunes_a_sign || outcome.nodes < whole.nodes, "{values:?}: {}", outcome.nodes);
    }
}

#[test]
fn samples_follow_the_distribution() {
    for (outputs, is_masked) in [(1, true), (1, false), (2, true)] {
        let vocabulary = vocabulary(TENS, outputs);
        let exact = number(&vocabulary, NumberJob { is_masked, ..tree(1e-9, 65_536) });
        let method = NumberMethod::sample(4000, 3);
        let drawn = number(&vocabulary, NumberJob { is_masked, ..NumberJob::new(method) });
        for (drawn, exact) in all(&drawn).into_iter().zip(all(&exact)) {
            assert!((drawn.mass().invalid - exact.mass().invalid).abs() < 0.03);
            for leaf in exact.leaves() {
                let found = drawn.leaves().iter().find(|found| (found.value - leaf.value).abs() < 1e-12);
                let share = found.map_or(0.0, |found| found.probability);
                assert!((share - leaf.probability).abs() < 0.03, "{}: {share}", leaf.value);
            }
        }
    }
}

#[test]
fn a_draw_is_invalid_if_the_cut_offs_leave_no_token_that_may_follow() {
    let vocabulary = vocabulary(TENS, 1);
    let best = |ids: std::ops::Range<usize>| {
        let logits = logits(16, &[]);
        ids.max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap()
    };
    assert!(best(1..16) > 2, "the most probable token is not a sign");
    for (top_k, invalid) in [(1, 1.0), (0, 0.0)] {
        let sampling = SamplingParams { top_k, ..SamplingParams::PLAIN };
        let drawn = number(
            &vocabulary,
            NumberJob::new(NumberMethod::Sample { samples: 8, sampling, precision: None }),
        );
        assert!((drawn.distribution.mass().invalid - invalid).abs() < 1e-12, "{top_k}");
    }
}

#[test]
fn texts_are_complete_answers_and_end_without_a_further_row() {
    for outputs in [1, 2] {
        let vocabulary = vocabulary(BINARY, outputs);
        let notation = vocabulary.grammar.notation().unwrap();
        for sampling in [SamplingParams::GREEDY, SamplingParams { seed: 5, ..SamplingParams::PLAIN }] {
            let events = run(&vocabulary, &Request::Text(TextJob { sampling, ..TextJob::default() }));
            let text: String = events
                .iter()
                .filter_map(|event| match event {
                    Event::Text { text, .. } => Some(text.as_str()),
                    _ => None,
                })
                .collect();
            let ids = notation.encode(&text).unwrap();
            assert_eq!(ids.len(), 5 * outputs, "{text}");
            for (position, id) in ids.iter().enumerate() {
                assert!(allowed(BINARY, position % 5).contains(id), "{text}");
            }
            let last = events.last().unwrap();
            assert!(matches!(last, Event::Finished { tokens, .. } if *tokens == ids.len()), "{last:?}");
        }
    }
}

/// A notation of one digit with NaN and infinity, and padding after each of two numbers.
fn with_additions() -> TokenNotation {
    let mut names = names(TENS);
    names.extend(["<INF>", "<NAN>"].map(str::to_owned));
    let special = [("<NAN>".to_owned(), SpecialValue::Nan), ("<INF>".to_owned(), SpecialValue::Infinity)];
    let notation = TokenNotation::new(names, TENS, 2).unwrap();
    notation.with_special_values(&special).unwrap().with_separator().unwrap()
}

#[test]
fn special_values_and_padding_are_parts_of_answers_and_texts_leave_out_the_padding() {
    let notation = with_additions();
    assert_eq!((notation.number_tokens(), notation.answer_tokens()), (4, 8));
    assert!(notation.has_special_values());
    let ids = notation.encode("<+><3><E1><NAN><NAN><NAN>").unwrap();
    assert_eq!(ids, [1, 6, 15, 0, 17, 17, 17]);
    assert_eq!(notation.encode(&notation.decode(&ids)), Some(ids.clone()));
    assert_eq!(notation.encode("<+><3><E1><pad><NAN>"), Some(ids[..5].to_vec()));
    let next = |path: &[u32]| {
        let mut state = crate::numbers::TokenState::default();
        for id in path {
            let part = notation.allowed(state).iter().find(|(allowed, _)| allowed == id).unwrap().1;
            state = notation.advance(state, part).0;
        }
        notation.allowed(state).iter().map(|(id, _)| *id).collect::<Vec<_>>()
    };
    assert_eq!(next(&[]), [1, 2, 16, 17]);
    assert_eq!((next(&[16]), next(&[16, 16]), next(&[16, 16, 16])), (vec![16], vec![16], vec![0]));
    assert_eq!((next(&[1, 6, 15]), next(&ids)), (vec![0], vec![0]));
    assert!(next(&[ids, vec![0]].concat()).is_empty());
}

#[test]
fn special_values_have_separate_masses_and_every_estimate_has_finite_bounds() {
    let notation = Arc::new(with_additions());
    let vocabulary = Vocabulary {
        decoder: Arc::clone(&notation) as Arc<dyn TextDecoder>,
        tokens: notation.tokens(),
        grammar: Arc::new(NumberGrammar::of_tokens(notation)),
        ..vocabulary(TENS, 1)
    };
    let probability = |path: &[u32], id: u32, allowed: Option<&[u32]>| {
        let logits = logits(18, path);
        let mass = |ids: &[u32]| ids.iter().map(|&id| f64::from(logits[id as usize]).exp()).sum::<f64>();
        let everything: Vec<u32> = (0..18).collect();
        mass(&[id]) / mass(allowed.unwrap_or(&everything))
    };
    for is_masked in [true, false] {
        let outcome = number(&vocabulary, NumberJob { is_masked, ..tree(1e-12, 65_536) });
        let found = &outcome.distribution;
        let first = probability(&[], 17, is_masked.then_some(&[1, 2, 16, 17]));
        let again: f64 = (1..3).map(|length| probability(&vec![17; length], 17, None)).product();
        let nan = if is_masked { first } else { first * again };
        assert!((found.special().nan - nan).abs() < 1e-9, "{is_masked}: {:?}, {nan}", found.special());
        for found in all(&outcome) {
            let mass = found.mass();
            assert!((mass.closed + mass.invalid - 1.0).abs() < 1e-9, "{mass:?}");
            let special = found.special();
            assert!(special.infinity > 0.0 && special.nan > 0.0, "{special:?}");
            assert!(!is_masked || (special.nan + special.infinity - mass.invalid).abs() < 1e-9);
        }
        let method = NumberMethod::sample(4000, 9);
        let drawn = number(&vocabulary, NumberJob { is_masked, ..NumberJob::new(method) });
        assert!((drawn.distribution.special().nan - nan).abs() < 0.03);
        let short = number(&vocabulary, NumberJob { is_masked, ..tree(1e-9, 9) });
        for found in all(&short).into_iter().filter(|found| found.mass().closed > 0.0) {
            let bounds = found.estimate_bounds(Objective::Median, &Estimation::default()).unwrap();
            assert!(bounds.low.is_finite() && bounds.high.is_finite());
        }
    }
}

#[test]
fn vocabularies_that_cannot_write_a_format_are_rejected() {
    let of = |format, outputs| TokenNotation::new(names(TENS), format, outputs).map(|_| ());
    let ieee = |base, exponent_digits, digits| TokenFormat::Ieee { base, exponent_digits, digits };
    let missing = |name: &str| Err(NotationError::Missing(name.to_owned()));
    assert_eq!(of(TENS, 2), Ok(()));
    assert_eq!(of(TokenFormat::P10 { digits: 1, exponent_max: 2 }, 1), missing("<E-2>"));
    assert_eq!(of(ieee(12, 1, 1), 1), missing("<10>"));
    assert_eq!(of(ieee(10, 2, 5), 1), Ok(()));
    assert_eq!(of(ieee(10, 3, 5), 1), Err(NotationError::TooLarge));
    assert_eq!(of(ieee(10, 1, 17), 1), Err(NotationError::TooLarge));
    assert_eq!(of(ieee(1, 1, 1), 1), Err(NotationError::Base(1)));
    assert_eq!(of(ieee(10, 1, 0), 1), Err(NotationError::NoDigits));
    assert_eq!(of(ieee(10, usize::MAX, 9), 1), Err(NotationError::TooLong(usize::MAX)));
    assert_eq!(of(TENS, 0), Err(NotationError::TooLong(0)));
    assert_eq!(of(TENS, 22), Err(NotationError::TooLong(66)));
    let notation = TokenNotation::new(names(TENS), TENS, 1).unwrap();
    assert_eq!(notation.encode("<-><3><E-1>"), Some(vec![2, 6, 13]));
    assert_eq!([notation.encode("<->3"), notation.encode("1.5"), notation.encode("<x>")], [None, None, None]);
}
