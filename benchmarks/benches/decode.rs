//! The demo checkpoint: one step by its number of rows, and whole answers, text beside exact numbers.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot run should stop")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ntl_bench::{demo, engine};
use ntl_core::engine::{
    BatchModel, Job, NumberJob, NumberMethod, PathRow, Prompt, Request, Row, Terminator, TextJob,
};
use ntl_core::numbers::GrammarLimits;

const QUESTIONS: [&str; 4] =
    ["What is 336 - -20?", "What is -17 + 4?", "Calculate 481 + 132.", "What is 77 - 1533?"];

/// Time of one decoder step whose rows each have a context of their own.
fn timed_step(model: &mut dyn BatchModel, prompts: &[&Prompt]) -> Duration {
    let opened = model.open(prompts).unwrap();
    let row = |(context, token)| Row { context, path: PathRow::new(None, token) };
    let rows: Vec<Row> = opened.iter().map(|opened| row((opened.context, opened.first_token))).collect();
    let started = Instant::now();
    black_box(model.step(&rows).unwrap());
    let elapsed = started.elapsed();
    for opened in opened {
        model.close(opened.context);
    }
    elapsed
}

fn step(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("step");
    let mut loaded = demo().unwrap();
    let prompt = loaded.tokenizer.encode_prompt(QUESTIONS[0], true).unwrap();
    for rows in [1, 8, 32] {
        let prompts: Vec<&Prompt> = (0..rows).map(|_| &prompt).collect();
        group.throughput(Throughput::Elements(rows));
        group.bench_function(BenchmarkId::from_parameter(rows), |bencher| {
            bencher.iter_custom(|times| (0..times).map(|_| timed_step(&mut *loaded.model, &prompts)).sum());
        });
    }
    group.finish();
}

fn answers(criterion: &mut Criterion) {
    let loaded = demo().unwrap();
    let prompts: Vec<_> = QUESTIONS.iter().map(|text| loaded.tokenizer.encode(text, true).unwrap()).collect();
    let engine = engine(loaded).unwrap();
    let text = TextJob::default();
    let number = |tolerance| NumberJob {
        method: NumberMethod::Tree { tolerance, nodes_max: 4096, precision: None },
        limits: GrammarLimits::default(),
        terminator: Terminator::Any,
        range: None,
        after: None,
    };
    let requests = [
        ("text", Request::Text(text)),
        ("number 1e-2", Request::Number(number(1e-2))),
        ("number 1e-3", Request::Number(number(1e-3))),
    ];
    let mut group = criterion.benchmark_group("answer");
    for concurrent in [1, 16] {
        group.throughput(Throughput::Elements(concurrent));
        for (name, request) in &requests {
            group.bench_function(BenchmarkId::new(*name, concurrent), |bencher| {
                bencher.iter(|| {
                    let jobs = prompts
                        .iter()
                        .cycle()
                        .take(concurrent as usize)
                        .map(|prompt| Job::new(prompt.clone(), request.clone()));
                    let answers: Vec<_> = jobs.map(|job| engine.submit(job).unwrap()).collect();
                    for mut answer in answers {
                        while let Some(event) = answer.next_blocking() {
                            black_box(event);
                        }
                    }
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, step, answers);
criterion_main!(benches);
