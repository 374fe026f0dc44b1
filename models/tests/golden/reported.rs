//! Numbers over the K most probable ids, or over requested ids, of real checkpoints: the exact estimates lie
//! within the bounds.

use ntl_core::contract::{
    BatchModel, Event, Logits, LogitsRequest, NodeId, NumberJob, NumberMethod, NumberOutcome, PathRow,
    Prompt, Request, Row, Terminator,
};
use ntl_core::decoding::{Decoding, Progress, StepResult, Vocabulary};
use ntl_core::numbers::{Distribution, Estimation, Interval, NumberValues, Objective, Scale};
use ntl_core::scripted::Reported;
use ntl_models::{LoadOptions, LoadedModel, load};
use ntl_text::checkpoint::CheckpointFiles;

use crate::support::{Fixtures, over_fixtures};

const REPORTED: [Reported; 5] =
    [Reported::Best(5), Reported::Best(20), Reported::Requested, Reported::OnlyRequested, Reported::All];

/// Estimates of a distribution with more open mass than this are not exact.
const EXACT_OPEN_MAX: f64 = 1e-7;

fn job(values: NumberValues, terminator: Terminator, tolerance: f64) -> Request {
    let method = NumberMethod::Tree { tolerance, nodes_max: 256, precision: None };
    Request::Number(NumberJob { values, terminator, ..NumberJob::new(method) })
}

/// Runs a decoding over logits that `change` makes from full rows and their requests.
fn run(
    model: &mut dyn BatchModel,
    prompt: &Prompt,
    mut decoding: Box<dyn Decoding>,
    change: impl Fn(&[&[f32]], &[LogitsRequest]) -> Logits,
) -> NumberOutcome {
    let opened = model.open(&[prompt.into()]).unwrap()[0];
    let mut nodes = 0;
    let mut events = Vec::new();
    loop {
        let paths = decoding.next_rows(16);
        let requests: Vec<LogitsRequest> = paths.iter().map(|path| path.logits.clone()).collect();
        let row = |mut path: PathRow| {
            if path.parent.is_none() {
                path.token = opened.first_token.into();
            }
            Row { context: opened.context, path: path.with_logits(LogitsRequest::All) }
        };
        let rows: Vec<Row> = paths.into_iter().map(row).collect();
        let logits = model.step(&rows).unwrap();
        let full: Vec<&[f32]> = (0..rows.len()).map(|row| logits.row(row)).collect();
        let logits = change(&full, &requests);
        let result = StepResult { logits: &logits, first_row: 0, first_node: NodeId(nodes) };
        nodes += rows.len() as u32;
        if decoding.advance(result, &mut events).unwrap() == Progress::Done {
            break;
        }
    }
    model.close(opened.context);
    match events.pop() {
        Some(Event::Number(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

/// Searches in the model's own logits.
fn exact(
    model: &mut dyn BatchModel,
    vocabulary: &Vocabulary,
    prompt: &Prompt,
    job: &Request,
) -> Distribution {
    let whole = |rows: &[&[f32]], _: &[LogitsRequest]| Logits::new(rows.concat(), rows[0].len()).unwrap();
    run(model, prompt, vocabulary.decoding(job, &[], 0), whole).distribution
}

fn reported(
    model: &mut dyn BatchModel,
    vocabulary: &Vocabulary,
    prompt: &Prompt,
    job: &Request,
    reported: Reported,
) -> NumberOutcome {
    let cut = |rows: &[&[f32]], requests: &[LogitsRequest]| {
        let rows = rows.iter().zip(requests);
        Logits::reported(rows.map(|(row, request)| reported.of(row, vocabulary.tokens, request)))
    };
    run(model, prompt, vocabulary.reported_decoding(job).unwrap(), cut)
}

/// Asserts that the found distribution can still become the exact one.
fn assert_possible(found: &NumberOutcome, exact: &Distribution, what: &str) {
    let (mass, whole) = (found.distribution.mass(), exact.mass());
    assert!((mass.closed + mass.invalid + mass.open - 1.0).abs() < 1e-6, "{what}: {mass:?}");
    assert!(mass.invalid <= whole.invalid + whole.open + 1e-5, "{what}: {mass:?} {whole:?}");
    assert!(found.unreported <= mass.open + 1e-9, "{what}: {} of {mass:?}", found.unreported);
    for leaf in found.distribution.leaves() {
        let same = exact.leaves().iter().find(|other| other.value.total_cmp(&leaf.value).is_eq());
        let most = same.map_or(0.0, |other| other.probability) + whole.open;
        assert!(leaf.probability <= most + 1e-5, "{what}, {}: {} of {most}", leaf.text, leaf.probability);
    }
    for other in exact.leaves() {
        let same = found.distribution.leaves().iter().find(|leaf| leaf.value.total_cmp(&other.value).is_eq());
        let most = same.map_or(0.0, |leaf| leaf.probability) + mass.open;
        assert!(other.probability <= most + 1e-5, "{what}, {}: {} of {most}", other.text, other.probability);
    }
}

/// Asserts that the exact estimates lie within the bounds. Returns the number of bounds.
fn assert_bounded(found: &Distribution, exact: &Distribution, range: Option<Interval>, what: &str) -> usize {
    let mut bounded = 0;
    for trim in [0.0, 0.1] {
        let estimation = Estimation { trim, normalize: true, range };
        let objectives = [Objective::Mean, Objective::Median, Objective::Mode, Objective::Quantile(0.9)];
        for objective in objectives {
            let bounds = found.estimate_bounds(objective, &estimation);
            let (Some(bounds), Some(value)) = (bounds, exact.estimate(objective, &estimation)) else {
                continue;
            };
            let slack = 1e-4 * value.abs().max(1.0);
            let within = bounds.low - slack <= value && value <= bounds.high + slack;
            assert!(within, "{what}, {objective:?}, trim {trim}: {value} is not in {bounds:?}");
            bounded += 1;
        }
    }
    bounded
}

fn exact_estimates_lie_within_the_bounds_of_partial_reports(fixtures: Fixtures) {
    let scale = |low, high, step| NumberValues::Scale(Scale::new(low, high, step).unwrap());
    let range = Interval { low: 0.0, high: 99.0 };
    let mut bounded = 0;
    for name in fixtures.only(&["t5-ntl-was", "t5-rt", "llama-ntl", "qwen3"]) {
        let files = CheckpointFiles::folder(&fixtures.folder(name)).unwrap();
        let LoadedModel { mut model, vocabulary, .. } = load(&files, LoadOptions::default()).unwrap();
        let prompts = [vec![3, 10, 14, 20], vec![7, 5]].map(Prompt::from);
        for (index, prompt) in prompts.iter().enumerate() {
            for (values, terminator) in [
                (scale(1.0, 9.0, 1.0), Terminator::Any),
                (scale(0.0, 30.0, 10.0), Terminator::Eos),
                (NumberValues::Range(range), Terminator::Any),
                (NumberValues::All, Terminator::Any),
                (NumberValues::All, Terminator::Texts(vec!["\n".to_owned(), ".".to_owned()])),
            ] {
                let exact = exact(&mut *model, &vocabulary, prompt, &job(values, terminator.clone(), 1e-8));
                for kind in REPORTED {
                    let what = format!("{name} {index}, {values:?}, {terminator:?}, {kind:?}");
                    let job = job(values, terminator.clone(), 1e-3);
                    let found = reported(&mut *model, &vocabulary, prompt, &job, kind);
                    assert_possible(&found, &exact, &what);
                    let is_complete = !matches!(kind, Reported::Best(_));
                    assert!(!is_complete || found.unreported < 1e-6, "{what}: {}", found.unreported);
                    if exact.mass().open <= EXACT_OPEN_MAX * exact.mass().closed {
                        bounded += assert_bounded(&found.distribution, &exact, values.interval(), &what);
                    }
                }
            }
        }
    }
    println!("{bounded} bounds hold");
    assert!(bounded >= 150, "{bounded}");
}
over_fixtures! { exact_estimates_lie_within_the_bounds_of_partial_reports }
