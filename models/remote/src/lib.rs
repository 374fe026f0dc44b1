//! The engine contract over another inference server, such as vLLM or llama.cpp: numbers, scores and
//! candidates over the next-token probabilities that it reports, or over answers that are sampled from it.
//!
//! [`engine`] turns jobs into events. It sends queries through the trait [`NextTokens`], which [`Upstream`]
//! implements over HTTP: `wire` has the formats of engines, `replicas` chooses among several URLs, and
//! `client` sends requests.

mod byte_tokenizer;
mod client;
pub mod engine;
mod replicas;
mod upstream;
pub mod wire;

pub use byte_tokenizer::byte_tokenizer;
pub use client::{
    ApiKey, BaseUrl, ClientError, Code, IDLE_CONNECTIONS_MAX, InvalidKey, InvalidUrl, UpstreamError,
};
pub use engine::{
    Ahead, ChatAnswer, ChatEnd, ChatJob, ChatQuery, ChatWanted, EngineMeter, EngineUsage, LookAhead,
    NextTokenAnswer, NextTokenQuery, NextTokenStep, NextTokens, QueryContext, RemoteEngine, RemoteLimits,
    SampledOptions, TextDelta, TextEnd, TextQuery, TextTurn, estimated_tokens,
};
pub use replicas::{NoObserver, UpstreamObserver};
pub use upstream::{
    Connecting, DetectError, EngineFacts, EngineKind, Forwarded, Reports, TokenizationError, Upstream,
    UpstreamConfig,
};
pub use wire::chat::ChatFields;
pub use wire::texts::TokenTexts;
