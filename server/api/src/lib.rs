//! Wire types of ntl-server: the JSON bodies that a client and the server exchange.
//!
//! Requests follow the OpenAI API, plus the `number` object. In every optional request field an explicit
//! `null` means the default. The server validates everything beyond JSON types. Doc comments become
//! `docs/openapi.json`.

mod calibration;
mod chat;
mod classify;
mod completions;
mod decision_calibration;
mod decisions;
mod embeddings;
mod error;
mod fields;
mod in_order;
mod labels;
mod lora;
mod models;
mod number;
mod object;
mod predict;
mod rerank;
mod responses;
mod score;
mod systemone;
mod text_or_list;
mod tokens;
mod tools;
mod whole;

pub use calibration::{
    CalibratedModel, CalibratedOffset, CalibratedSettings, CalibratedTask, Calibration, CalibrationError,
    CalibrationMethod,
};
pub use chat::{
    ChatAnswer, ChatChoice, ChatChunk, ChatChunkChoice, ChatContent, ChatLogprobs, ChatRequest,
    ChatRequestMessage, ChatResponse, ChatResponseMessage, ChatToken, ChatTokenLogprobs, ContentPart,
};
pub use classify::{Classification, ClassificationRequest, ClassificationResponse, Pooled, PoolingResponse};
pub use completions::{
    Choice, CompletionRequest, CompletionResponse, CompletionTokensDetails, EarlyStoppingOption,
    EngineTokens, FinishReasonName, Logprobs, NamedSchema, Never, PromptLogprob, PromptLogprobs,
    PromptTokensDetails, Prompts, ResponseFormat, Stop, StopReasonValue, StreamEvent, StreamOptions,
    StructuredOutputs, Usage,
};
pub use decision_calibration::{CalibratedDecision, CalibratedKind, DecisionCalibration};
pub use decisions::{
    AnswersOrPrompts, ChoiceBounds, DecisionAnswer, DecisionChoice, DecisionItem, DecisionLevel,
    DecisionPart, DecisionPrompt, DecisionPrompts, DecisionQuestion, DecisionsInputDetails,
    DecisionsOutputDetails, DecisionsRequest, DecisionsResponse, DecisionsUsage, LevelBounds,
    LevelProbability, OptionSet, OptionValue, PredicateBounds, PromptCacheOptions, ReadName, ScoreBounds,
    SetMethod, ValueBounds, ValueProbability,
};
pub use embeddings::{
    Embedding, EmbeddingRequest, EmbeddingResponse, EmbeddingVector, EncodingFormat, PoolingName,
};
pub use error::{ErrorBody, ErrorDetail};
pub use fields::{FieldProbability, LocatedChoice, LocatedField};
pub use in_order::InOrder;
pub use labels::{
    LabelItems, LabelProbabilities, LabelRequest, LabelScore, LabelScores, ScoreAnswer, ScoreBody,
};
pub use lora::{LoadLoraAdapter, UnloadLoraAdapter};
pub use models::{
    Alternatives, FINGERPRINT_HEADER, Health, Load, Model, ModelList, NamedModel, ServerLoad, TruncationSide,
    Version,
};
pub use number::{
    Bounds, EstimateName, IntervalMethod, LocatedNumber, MethodName, Number, NumberDraws, NumberInterval,
    NumberMass, NumberOptions, NumberRequest, NumberScale, ObjectiveName, ObjectiveOption, Quantile,
    ScaleNumbers, SpecialMass, SupportPoint, TerminatorName, TerminatorOption, Thousands, WrongScaleLength,
};
pub use predict::{PredictInputs, PredictRequest, PredictResponse, PredictText, Prediction};
pub use rerank::{RerankDocument, RerankRequest, RerankResponse, RerankResult, RerankText};
pub use responses::{
    IncompleteDetails, InputTokensDetails, NamedStreamEvent, OutputTokensDetails, ResponsesAllowedChoice,
    ResponsesContent, ResponsesError, ResponsesEvent, ResponsesEventBody, ResponsesFormat,
    ResponsesFunctionChoice, ResponsesInput, ResponsesInputItem, ResponsesOutputItem, ResponsesOutputPart,
    ResponsesPart, ResponsesReasoning, ResponsesRequest, ResponsesResponse, ResponsesSettings,
    ResponsesStatus, ResponsesText, ResponsesTool, ResponsesToolChoice, ResponsesUsage,
};
pub use score::{
    CandidateLosses, CandidateScore, CandidateScores, Loss, LossName, ReductionName, Score, ScoreItem,
    ScoreRequest, ScoreResponse, ScoredItem, TextOrIds,
};
pub use systemone::{
    InvalidField, NamedBounds, NoulBounds, NumberCriteria, PathStep, SystemOneAnswer, SystemOneDetail,
    SystemOneError, SystemOneQuestion, SystemOneRequest, SystemOneResponse, SystemOneUsage,
};
pub use text_or_list::TextOrList;
pub use tokens::{
    DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse, TokenizerInfo,
    TokenizerInfoQuery,
};
pub use tools::{
    AllowedToolChoice, AllowedTools, ChatTool, ChatToolChoice, FunctionCall, FunctionCallDelta,
    FunctionDefinition, FunctionName, NamedToolChoice, ToolCall, ToolCallDelta, ToolChoiceMode,
};
