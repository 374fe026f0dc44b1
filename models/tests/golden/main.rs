//! Our models beside the original code: everything in the fixtures that it computed, computed by us.

#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests fail by panicking")]

mod beams;
mod candidates;
mod causal;
mod dtypes;
mod families;
mod kinds;
mod load_errors;
mod load_forms;
mod losses;
mod ntloss;
mod numbers;
mod scale;
mod score;
mod spoilt;
mod stored;
mod streams;
mod support;
mod t5;
mod tokenizers;
mod variants;
