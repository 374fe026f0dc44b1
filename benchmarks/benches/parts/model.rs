//! The model alone: the time of a decoder step by number of rows, and the time of prefill (the encoder).

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use ntl_bench::setup::demo;
use ntl_core::contract::{BatchModel, ContextRequest, PathRow, Prompt, Row};

const ROWS: [u64; 3] = [1, 8, 32];

/// Times the prefill of all prompts, and one decoder step in which each row has a separate context.
fn timed(model: &mut dyn BatchModel, requests: &[ContextRequest<'_>]) -> (Duration, Duration) {
    let started = Instant::now();
    let opened = model.open(requests).unwrap();
    let opening = started.elapsed();
    let rows: Vec<Row> = opened
        .iter()
        .map(|opened| Row { context: opened.context, path: PathRow::new(None, opened.first_token) })
        .collect();
    let started = Instant::now();
    black_box(model.step(&rows).unwrap());
    let stepping = started.elapsed();
    for opened in opened {
        model.close(opened.context);
    }
    (opening, stepping)
}

pub(crate) fn step(criterion: &mut Criterion) {
    by_rows(criterion, "step", |rows| rows, |(_, stepping)| stepping);
}

pub(crate) fn open(criterion: &mut Criterion) {
    by_rows(criterion, "encoder", |prompts| prompts * prompt().1.len() as u64, |(opening, _)| opening);
}

fn prompt() -> (Box<dyn BatchModel>, Prompt) {
    let loaded = demo().unwrap();
    let prompt = loaded.tokenizer.encode_prompt("What is 336 - -20?", true).unwrap();
    (loaded.model, prompt)
}

fn by_rows(
    criterion: &mut Criterion,
    name: &str,
    elements: impl Fn(u64) -> u64,
    of: impl Fn((Duration, Duration)) -> Duration,
) {
    let mut group = criterion.benchmark_group(name);
    let (mut model, prompt) = prompt();
    for rows in ROWS {
        let prompts: Vec<ContextRequest<'_>> = (0..rows).map(|_| (&prompt).into()).collect();
        group.throughput(Throughput::Elements(elements(rows)));
        group.bench_function(BenchmarkId::from_parameter(rows), |bencher| {
            bencher.iter_custom(|times| (0..times).map(|_| of(timed(&mut *model, &prompts))).sum());
        });
    }
    group.finish();
}
