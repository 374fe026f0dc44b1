//! The HTTP API from the outside: a router over scripted models, or over the embedded demo checkpoint.
//!
//! One binary, so that the server is linked once. No network but the loopback, no fixed port, no waiting by
//! the clock.

// All of this is test code; the attribute says so to clippy, which knows test functions but not their
// helpers.
#[cfg(test)]
mod chat;
#[cfg(test)]
mod classify;
#[cfg(test)]
mod completions;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod decisions;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod docs;
#[cfg(test)]
mod embeddings;
#[cfg(test)]
mod encodings;
#[cfg(test)]
mod every_field;
#[cfg(test)]
mod failures;
#[cfg(test)]
mod fairness;
#[cfg(test)]
mod fields;
#[cfg(test)]
mod fingerprint;
#[cfg(test)]
mod hooked;
#[cfg(test)]
mod intervals;
#[cfg(test)]
mod labels;
#[cfg(test)]
mod life;
#[cfg(test)]
mod lora;
#[cfg(test)]
mod methods;
#[cfg(test)]
mod numbers;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod ops;
#[cfg(test)]
mod playground;
#[cfg(test)]
mod quotas;
#[cfg(test)]
mod ratings;
#[cfg(test)]
mod remote;
#[cfg(test)]
mod rerank;
#[cfg(test)]
mod responses;
#[cfg(test)]
mod responses_api;
#[cfg(test)]
mod sampled;
#[cfg(test)]
mod score;
#[cfg(test)]
mod structured_numbers;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tools;
