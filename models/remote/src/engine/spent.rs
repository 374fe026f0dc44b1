//! The tokens of sampled answers, counted as they arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ntl_core::contract::EngineUsage;

/// The tokens of answers that have arrived, also if their job never ends, as the engine reports them. Clones
/// share the count.
#[derive(Debug, Clone, Default)]
pub struct SpentTokens(Arc<AtomicU64>);

impl SpentTokens {
    pub(super) fn add(&self, usage: EngineUsage) {
        self.0.fetch_add(Self::tokens(usage), Ordering::Relaxed);
    }

    /// Leaves out answers that are counted elsewhere.
    pub fn subtract(&self, usage: EngineUsage) {
        self.0.fetch_sub(Self::tokens(usage).min(self.total()), Ordering::Relaxed);
    }

    pub fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn tokens(usage: EngineUsage) -> u64 {
        usage.prompt_tokens.saturating_add(usage.completion_tokens)
    }
}
