//! The paths of the API.

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";
pub(crate) const RESPONSES: &str = "/v1/responses";
pub(crate) const DECISIONS: &str = "/v1/decisions";
pub(crate) const SYSTEMONE: &str = "/v1/systemone";
pub(crate) const SCORE: &str = "/v1/score";
pub(crate) const CLASSIFY: &str = "/classify";
pub(crate) const POOLING: &str = "/pooling";
pub(crate) const EMBEDDINGS: &str = "/v1/embeddings";
pub(crate) const GENERATIVE_SCORING: &str = "/generative_scoring";
/// The path of text-embeddings-inference.
pub(crate) const PREDICT: &str = "/predict";
pub(crate) const RERANK: &str = "/rerank";
pub(crate) const RERANK_V1: &str = "/v1/rerank";
pub(crate) const MODELS: &str = "/v1/models";
/// Model names may contain slashes.
pub(crate) const MODEL: &str = "/v1/models/{*id}";
/// On the operators' port.
pub(crate) const LOAD_LORA: &str = "/v1/load_lora_adapter";
/// On the operators' port.
pub(crate) const UNLOAD_LORA: &str = "/v1/unload_lora_adapter";
pub(crate) const TOKENIZE: &str = "/tokenize";
pub(crate) const DETOKENIZE: &str = "/detokenize";
pub(crate) const TOKENIZER_INFO: &str = "/tokenizer_info";
pub(crate) const VERSION: &str = "/version";
pub(crate) const HEALTH: &str = "/health";
pub(crate) const HEALTH_LIVE: &str = "/health/live";
pub(crate) const HEALTH_READY: &str = "/health/ready";
pub(crate) const PING: &str = "/ping";
pub(crate) const LOAD: &str = "/get_load";
/// vLLM's path.
pub(crate) const SERVER_LOAD: &str = "/load";
pub(crate) const METRICS: &str = "/metrics";
pub(crate) const OPENAPI: &str = "/openapi.json";
pub(crate) const DOCS: &str = "/docs";
pub(crate) const PLAYGROUND: &str = "/";
pub(crate) const PLAYGROUND_FILE: &str = "/playground/{file}";

/// Returns whether a path serves monitoring or documentation. Public paths need no key, and a drain does not
/// wait for them.
pub(crate) fn is_public(path: &str) -> bool {
    let monitoring = [HEALTH, HEALTH_LIVE, HEALTH_READY, PING, LOAD, SERVER_LOAD, METRICS];
    let documentation = [OPENAPI, DOCS, PLAYGROUND, PLAYGROUND_FILE];
    monitoring.contains(&path) || documentation.contains(&path)
}

/// Returns whether the body or the query of a request names the model.
pub(crate) fn names_a_model(path: &str) -> bool {
    runs_a_model(path) || [TOKENIZE, DETOKENIZE, TOKENIZER_INFO].contains(&path)
}

/// Returns whether a path decodes, scores, classifies or embeds, so that the histogram of requests includes
/// its duration.
pub(crate) fn runs_a_model(path: &str) -> bool {
    let texts = [CHAT, COMPLETIONS, RESPONSES];
    let judgements = [DECISIONS, SYSTEMONE, SCORE, CLASSIFY, POOLING, GENERATIVE_SCORING];
    let others = [PREDICT, RERANK, RERANK_V1, EMBEDDINGS];
    texts.contains(&path) || judgements.contains(&path) || others.contains(&path)
}
