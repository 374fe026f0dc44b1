//! The demo checkpoint's tokenizer: encodes and decodes one question and a page of questions.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use ntl_bench::load::workload::arithmetic_questions;
use ntl_bench::setup::demo;

pub(crate) fn tokenizer(criterion: &mut Criterion) {
    let tokenizer = demo().unwrap().tokenizer;
    let mut group = criterion.benchmark_group("tokenizer");
    for questions in [1, 64] {
        let text = arithmetic_questions(questions, 0).join(" ");
        let ids = tokenizer.encode(&text, true).unwrap();
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(BenchmarkId::new("encode", questions), |bencher| {
            bencher.iter(|| tokenizer.encode(black_box(&text), true).unwrap());
        });
        group.bench_function(BenchmarkId::new("decode", questions), |bencher| {
            bencher.iter(|| tokenizer.decode_tokens(black_box(&ids)));
        });
    }
    group.finish();
}
