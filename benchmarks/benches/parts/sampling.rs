//! Samples one token from a full vocabulary.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use ntl_core::sampling::{Sampler, SamplingParams};

use crate::{VOCABULARY, logits};

pub(crate) fn sampling(criterion: &mut Criterion) {
    let logits = logits(1);
    let mut group = criterion.benchmark_group("sampling");
    group.throughput(Throughput::Elements(VOCABULARY as u64));
    for (name, sampling) in [
        ("greedy", SamplingParams::GREEDY),
        ("plain", SamplingParams::PLAIN),
        ("top_k 50", SamplingParams { top_k: 50, ..SamplingParams::PLAIN }),
        ("top_p 0.9", SamplingParams { top_p: 0.9, ..SamplingParams::PLAIN }),
        ("repetition 1.1", SamplingParams { repetition_penalty: 1.1, ..SamplingParams::GREEDY }),
    ] {
        let mut sampler = Sampler::new(sampling, 0).after_prompt(&[3, 4, 5]);
        group.bench_function(name, |bencher| {
            bencher.iter(|| sampler.choose(black_box(&logits)).unwrap());
        });
    }
    group.finish();
}
