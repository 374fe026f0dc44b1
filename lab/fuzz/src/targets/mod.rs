//! The targets, grouped by the input that they read.

mod adapters;
mod answers;
mod calls;
mod checkpoints;
mod engines;
mod evaluation;
mod gguf;
mod numbers;
mod requests;
mod templates;
mod weights;

use std::fmt::Display;

use crate::{Outcome, Target};

pub const TARGETS: [Target; 18] = [
    weights::SAFETENSORS,
    weights::TORCH,
    gguf::GGUF,
    checkpoints::SENTENCEPIECE,
    checkpoints::TOKENIZER,
    checkpoints::CONFIG,
    adapters::ADAPTER,
    templates::TEMPLATE,
    calls::CALLS,
    requests::REQUESTS,
    numbers::GRAMMAR,
    numbers::NOTATION,
    answers::EXTRACTION,
    answers::REPLIES,
    engines::ENGINES,
    evaluation::JOURNAL,
    evaluation::REPORT,
    evaluation::DATA,
];

/// Returns whether a reader accepts its input. Asserts that an error contains `name`.
fn outcome<T, E: Display>(read: Result<T, E>, name: &str) -> Outcome {
    match read.map_err(|error| error.to_string()) {
        Ok(_) => Outcome::Accepted,
        Err(error) => {
            assert!(error.contains(name), "the error does not name {name}: {error}");
            Outcome::Refused
        }
    }
}
