//! The model and the token counts of a request, for its metrics, its log line and its headers: a request
//! extension that the handler fills in.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::quota::{KeyQuota, QuotaExceeded, Unit};

/// The label of a request that names a model which is not served.
const UNKNOWN: &str = "unknown";

#[derive(Debug, Default)]
pub(crate) struct RequestRecord {
    model: OnceLock<RecordedModel>,
    prompt_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    /// The quota that the request uses.
    quota: OnceLock<KeyQuota>,
}

#[derive(Debug)]
struct RecordedModel {
    name: Arc<str>,
    label: Arc<str>,
    fingerprint: Option<String>,
}

impl RequestRecord {
    /// Sets the model and its label in metrics. Only the first call counts.
    pub(crate) fn set_model(&self, name: &Arc<str>, label: &Arc<str>, fingerprint: Option<String>) {
        let (name, label) = (Arc::clone(name), Arc::clone(label));
        let model = RecordedModel { name, label, fingerprint };
        let _ = self.model.set(model);
    }

    /// Records that the request names a model that is not served.
    pub(crate) fn set_unknown_model(&self) {
        let name: Arc<str> = Arc::from(UNKNOWN);
        let _ = self.model.set(RecordedModel { label: Arc::clone(&name), name, fingerprint: None });
    }

    /// The value of the label `model`.
    pub(crate) fn model(&self) -> &str {
        self.model.get().map_or("none", |model| &*model.label)
    }

    /// The model, if the request has one.
    pub(crate) fn known_model(&self) -> Option<&str> {
        self.model.get().map(|model| &*model.name)
    }

    /// The fingerprint of the model's checkpoint, if the model has one.
    pub(crate) fn fingerprint(&self) -> Option<&str> {
        self.model.get()?.fingerprint.as_deref()
    }

    pub(crate) fn add_prompt_tokens(&self, tokens: u64) {
        self.prompt_tokens.fetch_add(tokens, Ordering::Relaxed);
        self.use_quota(tokens);
    }

    pub(crate) fn add_completion_tokens(&self, tokens: u64) {
        self.completion_tokens.fetch_add(tokens, Ordering::Relaxed);
        self.use_quota(tokens);
    }

    /// Sets the quota that counts the tokens. Only the first call counts.
    pub(crate) fn set_quota(&self, quota: KeyQuota) {
        let _ = self.quota.set(quota);
    }

    /// Fails if the key has used up its budget of tokens of other engines.
    pub(crate) fn check_budget(&self) -> Result<(), QuotaExceeded> {
        self.quota.get().map_or(Ok(()), KeyQuota::check_upstream)
    }

    /// Counts tokens of prompts and answers of another engine.
    pub(crate) fn use_budget(&self, tokens: u64) {
        if let Some(quota) = self.quota.get() {
            quota.add(Unit::UpstreamTokens, tokens);
        }
    }

    /// Counts tokens of a response that did not end, which are in no metric and no log line.
    pub(crate) fn use_quota(&self, tokens: u64) {
        if let Some(quota) = self.quota.get() {
            quota.add(Unit::Tokens, tokens);
        }
    }

    /// The tokens of the prompts and of the finished responses, or `None` if none are known.
    pub(crate) fn tokens(&self) -> Option<(u64, u64)> {
        let prompt = self.prompt_tokens.load(Ordering::Relaxed);
        let completion = self.completion_tokens.load(Ordering::Relaxed);
        (prompt > 0 || completion > 0).then_some((prompt, completion))
    }
}
