//! Whole answers of the demo checkpoint, text beside exact numbers.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use ntl_bench::{demo, engine};
use ntl_core::engine::{Job, NumberJob, NumberMethod, Request, Terminator, TextJob};
use ntl_core::numbers::GrammarLimits;

const QUESTIONS: [&str; 4] =
    ["What is 336 - -20?", "What is -17 + 4?", "Calculate 481 + 132.", "What is 77 - 1533?"];

pub(crate) fn answers(criterion: &mut Criterion) {
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
