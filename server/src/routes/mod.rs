//! The handlers, and the paths they are found at. A handler converts, calls, converts.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod docs;
pub(crate) mod models;
pub(crate) mod ops;
pub(crate) mod score;
pub(crate) mod tokens;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";
pub(crate) const SCORE: &str = "/v1/score";
pub(crate) const MODELS: &str = "/v1/models";
/// Names may hold slashes.
pub(crate) const MODEL: &str = "/v1/models/{*id}";
pub(crate) const TOKENIZE: &str = "/tokenize";
pub(crate) const DETOKENIZE: &str = "/detokenize";
pub(crate) const TOKENIZER_INFO: &str = "/tokenizer_info";
pub(crate) const VERSION: &str = "/version";
pub(crate) const HEALTH: &str = "/health";
pub(crate) const HEALTH_LIVE: &str = "/health/live";
pub(crate) const HEALTH_READY: &str = "/health/ready";
pub(crate) const METRICS: &str = "/metrics";
pub(crate) const OPENAPI: &str = "/openapi.json";
pub(crate) const DOCS: &str = "/docs";

/// Whether a path is for whoever watches the server or reads about it: open without a key, and no work that a drain
/// waits for.
pub(crate) fn is_public(route: &str) -> bool {
    [HEALTH, HEALTH_LIVE, HEALTH_READY, METRICS, OPENAPI, DOCS].contains(&route)
}
