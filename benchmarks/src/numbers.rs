//! `ntl-bench numbers`: compares number methods with greedy text on one checkpoint: the cost of each method,
//! and its distance from the exact answer.

use std::io::Write;
use std::time::Instant;

use ntl_core::contract::{Event, Job, NumberMethod, NumberOutcome, Precision, Request, TextJob};
use ntl_core::numbers::{Estimation, Objective};
use ntl_engine::Engine;
use ntl_models::LoadedModel;

use crate::setup::{engine, events, number_request, tree};
use crate::stats::Spread;
use crate::table::write_table;

const QUESTIONS: [&str; 16] = [
    "What is 336 - -20?",
    "What is -17 + 4?",
    "Calculate 481 + 132.",
    "What is 77 - 1533?",
    "Work out 0.3 + 4.",
    "What is 8 - 150?",
    "Put together 3 and -442.",
    "What is 154 less than -102?",
    "What is 12 + 7?",
    "Add 25 and 75.",
    "What is 900 - 1?",
    "Calculate 14 - -2.",
    "What is 3.14 + 2.5?",
    "Sum 64 and 36.",
    "What is 5 take away 9?",
    "What is -40 + 38?",
];

/// The method whose medians serve as the exact ones.
const EXACT: &str = "tree 1e-4";

struct Method {
    name: &'static str,
    request: Request,
    /// Seconds that each round took for all questions.
    seconds: Vec<f64>,
    /// Outcomes of the last round; empty for text.
    outcomes: Vec<NumberOutcome>,
}

impl Method {
    fn new(name: &'static str, request: Request) -> Self {
        Self { name, request, seconds: Vec::new(), outcomes: Vec::new() }
    }

    fn number(name: &'static str, method: NumberMethod) -> Self {
        Self::new(name, number_request(method))
    }

    fn median_seconds(&self) -> f64 {
        Spread::of(self.seconds.iter().copied()).median
    }
}

fn methods() -> Vec<Method> {
    vec![
        Method::new("greedy text", Request::Text(TextJob::default())),
        Method::number("tree, certain mode", certain(Objective::Mode)),
        Method::number("tree, certain median", certain(Objective::Median)),
        Method::number("tree 1e-2", tree(1e-2)),
        Method::number("tree 1e-3", tree(1e-3)),
        Method::number(EXACT, tree(1e-4)),
        Method::number("sample 16", NumberMethod::sample(16, 1)),
        Method::number("sample 64", NumberMethod::sample(64, 1)),
        Method::number("sample 256", NumberMethod::sample(256, 1)),
    ]
}

/// The method of a number tree that stops when the value of an objective is certain.
fn certain(objective: Objective) -> NumberMethod {
    let objectives = vec![objective];
    let precision = Some(Precision { width: 0.0, objectives, estimation: Estimation::default() });
    NumberMethod::Tree { tolerance: 1e-3, nodes_max: 4096, precision }
}

/// Measures all methods in alternation and writes one Markdown table for each number of concurrent requests.
/// If there are too few questions, they repeat.
pub fn run(
    loaded: LoadedModel,
    concurrencies: &[usize],
    rounds: usize,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let prompts: Vec<Vec<u32>> =
        QUESTIONS.iter().map(|text| loaded.tokenizer.encode(text, true)).collect::<Result<_, _>>()?;
    let engine = engine(loaded)?;
    for &concurrency in concurrencies {
        let prompts: Vec<_> = prompts.iter().cycle().take(prompts.len().max(concurrency)).cloned().collect();
        let mut methods = methods();
        for _ in 0..rounds {
            for method in &mut methods {
                measure(&engine, &prompts, concurrency, method)?;
            }
        }
        writeln!(out, "{concurrency} at a time, {} questions:\n", prompts.len())?;
        write_methods(&methods, prompts.len(), out)?;
        writeln!(out)?;
    }
    Ok(())
}

/// Sends every question once, `concurrency` of them at a time.
fn measure(
    engine: &Engine,
    prompts: &[Vec<u32>],
    concurrency: usize,
    method: &mut Method,
) -> anyhow::Result<()> {
    method.outcomes.clear();
    let started = Instant::now();
    for group in prompts.chunks(concurrency) {
        let mut answers = Vec::with_capacity(group.len());
        for prompt in group {
            answers.push(engine.submit(Job::new(prompt.clone(), method.request.clone()))?);
        }
        for event in answers.into_iter().flat_map(events) {
            if let Event::Number(outcome) = event? {
                method.outcomes.push(outcome);
            }
        }
    }
    method.seconds.push(started.elapsed().as_secs_f64());
    Ok(())
}

fn write_methods(methods: &[Method], questions: usize, out: &mut dyn Write) -> anyhow::Result<()> {
    let text_seconds = methods.first().map_or(f64::NAN, Method::median_seconds);
    let exact = methods.iter().find(|method| method.name == EXACT);
    let exact = exact.map_or(vec![], |method| medians(&method.outcomes));
    let header = "method | time | × greedy text | rows | rows/s | passes | open mass | median error";
    let mut rows = Vec::with_capacity(methods.len());
    for method in methods {
        let seconds = method.median_seconds();
        let time = seconds * 1e3 / questions as f64;
        let ratio = seconds / text_seconds;
        rows.push(format!(
            "{} | {time:.1} ms | {ratio:.2} | {}",
            method.name,
            outcome_cells(&method.outcomes, seconds, &exact)
        ));
    }
    Ok(write_table(out, 1, header, rows)?)
}

/// The cells about numbers, which are empty for text. `exact` are the medians that count as exact.
fn outcome_cells(outcomes: &[NumberOutcome], seconds: f64, exact: &[f64]) -> String {
    if outcomes.is_empty() {
        return "| | | |".to_owned();
    }
    let count = outcomes.len() as f64;
    let rows: f64 = outcomes.iter().map(|outcome| outcome.nodes as f64).sum();
    let passes: f64 = outcomes.iter().map(|outcome| outcome.forward_passes as f64).sum();
    let open: f64 = outcomes.iter().map(|outcome| outcome.distribution.mass().open).sum();
    let errors = medians(outcomes).into_iter().zip(exact).map(|(got, want)| (got - want).abs());
    let error = errors.sum::<f64>() / count;
    // If none of a few samples is a number, there is no median.
    let error = if error.is_finite() { format!("{error:.2}") } else { "no number".to_owned() };
    format!(
        "{:.1} | {:.0} | {:.1} | {:.4} | {error}",
        rows / count,
        rows / seconds,
        passes / count,
        open / count
    )
}

fn medians(outcomes: &[NumberOutcome]) -> Vec<f64> {
    outcomes.iter().map(|outcome| outcome.distribution.quantile(0.5).unwrap_or(f64::NAN)).collect()
}
