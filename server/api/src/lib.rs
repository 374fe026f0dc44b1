//! Wire types of ntl-server: what travels as JSON between a client and the server, and nothing else.
//!
//! Requests follow the OpenAI API, plus the `number` object. Every optional request field takes an explicit
//! `null` for "default". Validation beyond JSON types belongs to the server.

mod chat;
mod completions;
mod error;
mod models;
mod number;
mod score;
mod tokens;
mod whole;

pub use chat::{
    ChatAnswer, ChatChoice, ChatChunk, ChatChunkChoice, ChatContent, ChatLogprobs, ChatMessage, ChatRequest,
    ChatRequestMessage, ChatResponse, ChatToken, ChatTokenLogprobs, ContentPart,
};
pub use completions::{
    Choice, CompletionChunk, CompletionRequest, CompletionResponse, EarlyStopping, FinishReason, Logprobs,
    NamedSchema, Never, Prompt, PromptLogprob, PromptLogprobs, ResponseFormat, Stop, StreamEvent,
    StreamOptions, Usage,
};
pub use error::{ErrorBody, ErrorDetail};
pub use models::{Health, Model, ModelList, Version};
pub use number::{
    Bounds, Mass, MethodName, Number, NumberOptions, NumberRequest, Objective, ObjectiveName, Quantile,
    SupportPoint, Terminator, TerminatorName, Thousands,
};
pub use score::{Loss, LossName, ReductionName, Score, ScoreItem, ScoreRequest, ScoreResponse, TextOrIds};
pub use tokens::{
    DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse, TokenizerInfo,
    TokenizerInfoQuery,
};
