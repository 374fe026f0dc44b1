//! Wire types of ntl-server: the JSON bodies that a client and the server exchange.
//!
//! Requests follow the OpenAI API, plus the `number` object. In every optional request field an explicit `null` means
//! the default. The server validates everything beyond JSON types. Doc comments become `docs/openapi.json`.

mod calibration;
mod chat;
mod completions;
mod error;
mod models;
mod number;
mod score;
mod tokens;
mod whole;

pub use calibration::{
    CalibratedModel, CalibratedOffset, CalibratedTask, Calibration, CalibrationError, CalibrationMethod,
};
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
pub use models::{Health, Load, Model, ModelList, Version};
pub use number::{
    Bounds, EstimateName, IntervalMethod, Mass, MethodName, Number, NumberInterval, NumberOptions,
    NumberRequest, NumberScale, Objective, ObjectiveName, Quantile, ScaleNumbers, SupportPoint, Terminator,
    TerminatorName, Thousands, WrongScaleLength,
};
pub use score::{
    CandidateLosses, CandidateScore, CandidateScores, Loss, LossName, ReductionName, Score, ScoreItem,
    ScoreRequest, ScoreResponse, ScoredItem, TextOrIds,
};
pub use tokens::{
    DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse, TokenizerInfo,
    TokenizerInfoQuery,
};
