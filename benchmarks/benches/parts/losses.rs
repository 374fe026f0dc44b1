//! Losses of one 32-token target over a full vocabulary with ten digits.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use ntl_core::losses::{NumberLoss, NumberLossKind, NumberTokens, Position};

use crate::{VOCABULARY, logits};

const TARGET: usize = 32;

pub(crate) fn losses(criterion: &mut Criterion) {
    let logits = logits(TARGET);
    let tokens = NumberTokens::new((100..110).map(|id| (id, f64::from(id - 100))));
    let rows = logits.chunks_exact(VOCABULARY);
    let mut group = criterion.benchmark_group("losses");
    group.throughput(Throughput::Elements(TARGET as u64));
    group.bench_function("cross entropy", |bencher| {
        bencher.iter(|| -> f64 {
            let positions = rows.clone().map(|row| Position::new(black_box(row), &tokens).unwrap());
            positions.map(|position| -position.log_probability(103)).sum()
        });
    });
    let positions: Vec<Position<'_>> = rows.map(|row| Position::new(row, &tokens).unwrap()).collect();
    for (name, kind) in [
        ("was", NumberLossKind::Was),
        ("was-cdf", NumberLossKind::WasCdf),
        ("mse", NumberLossKind::Mse),
        ("mae", NumberLossKind::Mae),
        ("huber", NumberLossKind::Huber),
    ] {
        let loss = NumberLoss::of(kind);
        group.bench_function(name, |bencher| {
            bencher.iter(|| -> f64 {
                positions.iter().filter_map(|position| loss.at(black_box(position), 103)).sum()
            });
        });
    }
    group.finish();
}
