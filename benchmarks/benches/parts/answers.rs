//! Complete answers from the demo checkpoint: greedy text and exact numbers.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use ntl_bench::setup::{demo, engine, number_request, tree};
use ntl_core::contract::{Job, Request, TextJob};

const QUESTIONS: [&str; 4] =
    ["What is 336 - -20?", "What is -17 + 4?", "Calculate 481 + 132.", "What is 77 - 1533?"];

pub(crate) fn answers(criterion: &mut Criterion) {
    let loaded = demo().unwrap();
    let prompts: Vec<_> = QUESTIONS.iter().map(|text| loaded.tokenizer.encode(text, true).unwrap()).collect();
    let engine = engine(loaded).unwrap();
    let requests = [
        ("text", Request::Text(TextJob::default())),
        ("number 1e-2", number_request(tree(1e-2))),
        ("number 1e-3", number_request(tree(1e-3))),
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
