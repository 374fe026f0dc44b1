//! The engine contract over another inference server, such as vLLM or llama.cpp: numbers, scores and
//! candidates over the next-token probabilities that it reports.
//!
//! [`engine`] turns jobs into events. It sends queries through the trait [`NextTokens`].

pub mod engine;

pub use engine::{
    LookAhead, NextTokenAnswer, NextTokenQuery, NextTokenStep, NextTokens, QueryContext, RemoteEngine,
    RemoteLimits, TextDelta, TextEnd, TextQuery,
};
