//! Compares our models with the reference implementation: with all of its outputs in the fixtures.

#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests fail by panicking")]

mod beams;
mod candidates;
mod causal;
mod corrupted;
mod dtypes;
mod embeddings;
mod families;
mod fields;
mod gemma;
mod gemma_errors;
mod gguf;
mod heads;
mod kinds;
mod load_errors;
mod load_forms;
mod losses;
mod notation;
mod ntloss;
mod numbers;
mod prefill;
mod regresslm;
mod regresslm_errors;
mod reported;
mod scale;
mod schemas;
mod score;
mod stored;
mod streams;
mod support;
mod t5;
mod tokenizers;
mod variants;
