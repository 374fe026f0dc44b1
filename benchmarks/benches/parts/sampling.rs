//! Choosing one token out of a whole vocabulary.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use ntl_core::sampling::{Sampler, Sampling};

use crate::{VOCABULARY, logits};

pub(crate) fn sampling(criterion: &mut Criterion) {
    let logits = logits(1);
    let mut group = criterion.benchmark_group("sampling");
    group.throughput(Throughput::Elements(VOCABULARY as u64));
    for (name, sampling) in [
        ("greedy", Sampling::GREEDY),
        ("plain", Sampling::PLAIN),
        ("top_k 50", Sampling { top_k: 50, ..Sampling::PLAIN }),
        ("top_p 0.9", Sampling { top_p: 0.9, ..Sampling::PLAIN }),
        ("repetition 1.1", Sampling { repetition_penalty: 1.1, ..Sampling::GREEDY }),
    ] {
        let mut sampler = Sampler::new(sampling, 0).behind(&[3, 4, 5]);
        group.bench_function(name, |bencher| {
            bencher.iter(|| sampler.choose(black_box(&logits)).unwrap());
        });
    }
    group.finish();
}
