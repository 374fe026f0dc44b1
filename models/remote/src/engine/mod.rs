//! Turns jobs into events with the next-token probabilities of an engine elsewhere.

mod next_tokens;

pub use next_tokens::{
    NextTokenAnswer, NextTokenQuery, NextTokenStep, NextTokens, QueryContext, TextDelta, TextEnd, TextQuery,
};
