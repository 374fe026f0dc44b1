//! Criterion benchmarks of single components, on the demo checkpoint and on synthetic logits. They share one
//! binary, so that they link only once.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot run should stop")]

mod answers;
mod losses;
mod model;
mod sampling;
mod tokenizer;
mod tree;

use criterion::{criterion_group, criterion_main};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Size of T5's output layer.
const VOCABULARY: usize = 32_128;

/// Returns logits for `rows` positions, identical in every run.
fn logits(rows: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    (0..rows * VOCABULARY).map(|_| 6.0 * rng.random::<f32>()).collect()
}

criterion_group!(
    benches,
    model::step,
    model::open,
    answers::answers,
    tree::expansion,
    tokenizer::tokenizer,
    sampling::sampling,
    losses::losses
);
criterion_main!(benches);
