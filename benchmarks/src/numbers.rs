//! Number methods beside greedy text on one checkpoint: what each costs, and how far from the exact answer it is.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::bail;
use ntl_core::engine::{
    Event, Job, NumberJob, NumberMethod, NumberOutcome, Precision, Request, Terminator, TextJob,
};
use ntl_core::numbers::{Estimation, GrammarLimits, Objective};
use ntl_engine::Engine;
use ntl_models::LoadedModel;

use crate::engine;

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

/// Prompts in flight at once.
const CONCURRENT: [usize; 2] = [1, 16];

/// One line of the table.
struct Row {
    name: &'static str,
    request: Request,
    /// Of one answer to each question, by round.
    times: Vec<Duration>,
    outcomes: Vec<NumberOutcome>,
}

fn requests() -> Vec<Row> {
    let row = |name, request| Row { name, request, times: Vec::new(), outcomes: Vec::new() };
    let number = |name, method| {
        let (limits, terminator) = (GrammarLimits::default(), Terminator::Any);
        row(name, Request::Number(NumberJob { method, limits, terminator, range: None, after: None }))
    };
    let tree = |tolerance, precision| NumberMethod::Tree { tolerance, nodes_max: 4096, precision };
    let certain = |objective| Some(Precision { width: 0.0, objective, estimation: Estimation::default() });
    let sample = |samples| NumberMethod::Sample { samples, seed: 1 };
    vec![
        row("greedy text", Request::Text(TextJob::default())),
        number("tree, certain mode", tree(1e-3, certain(Objective::Mode))),
        number("tree, certain median", tree(1e-3, certain(Objective::Median))),
        number("tree 1e-2", tree(1e-2, None)),
        number("tree 1e-3", tree(1e-3, None)),
        number("tree 1e-4", tree(1e-4, None)),
        number("sample 16", sample(16)),
        number("sample 64", sample(64)),
        number("sample 256", sample(256)),
    ]
}

/// Measures all methods in turn and writes one Markdown table for each number of concurrent requests.
///
/// # Errors
/// When a request fails, or the table cannot be written.
pub fn table(loaded: LoadedModel, rounds: usize, out: &mut dyn Write) -> anyhow::Result<()> {
    let prompts: Vec<Vec<u32>> =
        QUESTIONS.iter().map(|text| loaded.tokenizer.encode(text, true)).collect::<Result<_, _>>()?;
    let engine = engine(loaded)?;
    for concurrent in CONCURRENT {
        let mut rows = requests();
        for _ in 0..rounds {
            for row in &mut rows {
                measure(&engine, &prompts, concurrent, row)?;
            }
        }
        write_table(&mut rows, concurrent, out)?;
    }
    Ok(())
}

/// Asks every question once, `concurrent` of them at a time.
fn measure(engine: &Engine, prompts: &[Vec<u32>], concurrent: usize, row: &mut Row) -> anyhow::Result<()> {
    row.outcomes.clear();
    let started = Instant::now();
    for together in prompts.chunks(concurrent) {
        let job = |prompt: &Vec<u32>| Job::new(prompt.clone(), row.request.clone());
        let answers: Vec<_> =
            together.iter().map(|prompt| engine.submit(job(prompt))).collect::<Result<_, _>>()?;
        for mut answer in answers {
            while let Some(event) = answer.next_blocking() {
                match event {
                    Event::Number(outcome) => row.outcomes.push(outcome),
                    Event::Failed(error) => bail!(error),
                    Event::Prompt(_) | Event::Text { .. } | Event::Finished { .. } | Event::Scored(_) => {}
                }
            }
        }
    }
    row.times.push(started.elapsed());
    Ok(())
}

fn write_table(rows: &mut [Row], concurrent: usize, out: &mut dyn Write) -> anyhow::Result<()> {
    let exact: Vec<f64> =
        rows.iter().find(|row| row.name == "tree 1e-4").map_or(vec![], |row| medians(&row.outcomes));
    let text = rows.first_mut().map_or(f64::NAN, |row| median_seconds(&mut row.times));
    writeln!(out, "{concurrent} at a time, {} questions:\n", QUESTIONS.len())?;
    writeln!(out, "| method | time | × greedy text | rows | rows/s | passes | open mass | median off by |")?;
    writeln!(out, "|---|---:|---:|---:|---:|---:|---:|---:|")?;
    for row in rows {
        let seconds = median_seconds(&mut row.times);
        write!(
            out,
            "| {} | {:.1} ms | {:.2} |",
            row.name,
            seconds * 1e3 / QUESTIONS.len() as f64,
            seconds / text
        )?;
        if row.outcomes.is_empty() {
            writeln!(out, " | | | | |")?;
            continue;
        }
        let mean = |of: fn(&NumberOutcome) -> f64| {
            row.outcomes.iter().map(of).sum::<f64>() / row.outcomes.len() as f64
        };
        let off =
            medians(&row.outcomes).iter().zip(&exact).map(|(got, want)| (got - want).abs()).sum::<f64>()
                / row.outcomes.len() as f64;
        // A few draws may not hold a single number, and then have no median.
        let off = if off.is_finite() { format!("{off:.2}") } else { "no number".to_owned() };
        writeln!(
            out,
            " {:.1} | {:.0} | {:.1} | {:.4} | {off} |",
            mean(|outcome| outcome.nodes as f64),
            row.outcomes.iter().map(|outcome| outcome.nodes as f64).sum::<f64>() / seconds,
            mean(|outcome| outcome.forward_passes as f64),
            mean(|outcome| outcome.distribution.mass().open)
        )?;
    }
    writeln!(out)?;
    Ok(())
}

fn medians(outcomes: &[NumberOutcome]) -> Vec<f64> {
    outcomes.iter().map(|outcome| outcome.distribution.quantile(0.5).unwrap_or(f64::NAN)).collect()
}

fn median_seconds(times: &mut [Duration]) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(f64::NAN, Duration::as_secs_f64)
}
