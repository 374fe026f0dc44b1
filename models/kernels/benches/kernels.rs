//! Matmuls by format and number of rows, attention by number of keys, and the other kernels, at T5-base's
//! sizes.

#![expect(clippy::unit_arg, reason = "kernels that work in place return nothing")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ntl_kernels::{
    Activation, AttentionGroup, AttentionQuery, Format, Heads, KvSlices, Matrix, Phase, Visible, attend,
    rms_norm,
};

const WIDTH: usize = 768;
const FEED_FORWARD: usize = 3072;

/// Returns numbers between -1 and 1, identical in every run.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index as f32 * 0.731).sin()).collect()
}

fn products(criterion: &mut Criterion) {
    let weight = numbers(FEED_FORWARD * WIDTH);
    let mut group = criterion.benchmark_group("product");
    for format in [Format::F32, Format::Bf16, Format::F16, Format::Int8, Format::Q8] {
        let matrix = Matrix::pack(&weight, [FEED_FORWARD, WIDTH], format);
        for rows in [1, 8, 32, 256] {
            let x = numbers(rows * WIDTH);
            group.throughput(Throughput::Elements((rows * weight.len()) as u64));
            group.bench_function(BenchmarkId::new(format!("{format:?}"), rows), |bencher| {
                bencher.iter(|| matrix.product(black_box(&x), rows));
            });
        }
    }
    group.finish();
}

fn attention(criterion: &mut Criterion) {
    let heads = Heads::unscaled(12);
    let mut group = criterion.benchmark_group("attention");
    for (rows, keys) in [(1, 32), (1, 512), (32, 32), (32, 512)] {
        let q = numbers(rows * WIDTH);
        let kv = numbers(keys * WIDTH);
        let query = AttentionQuery { visible: Visible::First(keys), hidden: 0, position: 0 };
        let groups = [AttentionGroup {
            before: Vec::new(),
            own: KvSlices { keys: &kv, values: &kv },
            queries: vec![query; rows],
            phase: Phase::Decode,
        }];
        group.throughput(Throughput::Elements((rows * keys) as u64));
        group.bench_function(BenchmarkId::new(format!("{rows} rows"), keys), |bencher| {
            bencher.iter(|| attend(black_box(&q), &groups, heads, None));
        });
    }
    group.finish();
}

/// The last positions of a prompt, at the sizes of SmolLM2-135M.
fn prefill(criterion: &mut Criterion) {
    const ROWS: usize = 256;
    let heads = Heads { queries: 9, keys: 3, scale: 0.125, cap: None };
    let mut group = criterion.benchmark_group("prefill attention");
    for keys in [256, 1024, 4096] {
        let q = numbers(ROWS * 576);
        let kv = numbers(keys * 192);
        let queries: Vec<_> = (keys - ROWS..keys)
            .map(|position| AttentionQuery { visible: Visible::First(position + 1), hidden: 0, position })
            .collect();
        let pairs: usize = queries.iter().map(|query| query.visible.count()).sum();
        // A multiplication and an addition for each number of a key and of a value.
        group.throughput(Throughput::Elements((4 * pairs * 576) as u64));
        for phase in [Phase::Prefill, Phase::Decode] {
            let own = KvSlices { keys: &kv, values: &kv };
            let groups = [AttentionGroup { before: Vec::new(), own, queries: queries.clone(), phase }];
            group.bench_function(BenchmarkId::new(format!("{phase:?}"), keys), |bencher| {
                bencher.iter(|| attend(black_box(&q), &groups, heads, None));
            });
        }
    }
    group.finish();
}

fn loops(criterion: &mut Criterion) {
    let x = numbers(32 * FEED_FORWARD);
    let weight = numbers(WIDTH);
    let mut group = criterion.benchmark_group("in place");
    group.throughput(Throughput::Elements(x.len() as u64));
    for activation in [Activation::Relu, Activation::GeluTanh, Activation::Silu] {
        group.bench_function(format!("{activation:?}"), |bencher| {
            let mut values = x.clone();
            bencher.iter(|| black_box(activation.apply_gated(&mut values, &x)));
        });
    }
    group.bench_function("rms_norm", |bencher| {
        let mut values = x.clone();
        bencher.iter(|| black_box(rms_norm(&mut values, &weight, 1e-6)));
    });
    group.finish();
}

criterion_group!(benches, products, attention, prefill, loops);
criterion_main!(benches);
