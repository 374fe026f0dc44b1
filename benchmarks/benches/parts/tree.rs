//! Expands a number tree with a model that costs almost nothing: digits are likely, and about one position in
//! three ends the number.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion};
use ntl_bench::setup::{demo, number_request, tree};
use ntl_core::contract::Job;
use ntl_core::scripted::ScriptedModel;
use ntl_engine::{Engine, EngineLimits, NoObserver};

pub(crate) fn expansion(criterion: &mut Criterion) {
    let vocabulary = demo().unwrap().vocabulary;
    let mut logits = vec![-12.0f32; vocabulary.tokens];
    for &(id, value) in &*vocabulary.number_values {
        logits[id as usize] = -0.1 * value as f32;
    }
    for &id in &*vocabulary.eos_ids {
        logits[id as usize] = 1.0;
    }
    let model = ScriptedModel::new(vocabulary.tokens, Box::new(move |_, _| Ok(logits.clone())));
    let limits = EngineLimits::default();
    let observer = Arc::new(NoObserver);
    let (engine, _thread) = Engine::spawn(Box::new(model), vocabulary, limits, observer).unwrap();
    let mut group = criterion.benchmark_group("tree");
    for tolerance in [1e-2, 1e-3] {
        let request = number_request(tree(tolerance));
        group.bench_function(BenchmarkId::from_parameter(tolerance), |bencher| {
            bencher.iter(|| {
                let mut answer = engine.submit(Job::new(vec![3], request.clone())).unwrap();
                while let Some(event) = answer.next_blocking() {
                    black_box(event);
                }
            });
        });
    }
    group.finish();
}
