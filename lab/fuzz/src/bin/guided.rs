//! The targets under libFuzzer, which keeps inputs that reach new code. `NTL_FUZZ_TARGET` names the target,
//! and `NTL_FUZZ_SEEDS` a directory for its corpus. `lab/fuzz/run` runs it.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use ntl_fuzz::mutate::mutate;
use ntl_fuzz::{Target, target};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[expect(clippy::expect_used, reason = "without a target there is nothing to run")]
static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("NTL_FUZZ_TARGET").unwrap_or_default();
    target(&name).expect("NTL_FUZZ_TARGET names a target")
});

/// Writes the target's corpus to the directory from which libFuzzer reads it.
#[expect(clippy::expect_used, reason = "without a corpus there is nothing to begin with")]
fn begin() {
    // libFuzzer's hook ends the process on every panic, even on panics that the readers catch. Uncaught
    // panics still end it.
    drop(std::panic::take_hook());
    let folder = std::env::var("NTL_FUZZ_SEEDS").expect("NTL_FUZZ_SEEDS names a directory");
    for (number, input) in (TARGET.corpus)().iter().enumerate() {
        std::fs::write(format!("{folder}/{number}"), input).expect("the directory is writable");
    }
}

fuzz_target!(init: begin(), |input: &[u8]| {
    (TARGET.read)(input);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mut random = ChaCha8Rng::seed_from_u64(seed.into());
    if random.random_bool(0.5) {
        return fuzzer_mutate(data, size, max_size);
    }
    let input = data[..size].to_vec();
    let changed = mutate(&input, &input, TARGET.words, max_size, &mut random);
    data[..changed.len()].copy_from_slice(&changed);
    changed.len()
});
