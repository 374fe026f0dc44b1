//! The work of another engine for a request.

use ntl_remote::EngineUsage;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EngineWork {
    pub(crate) usage: EngineUsage,
    /// Whether its answers were sampled. The request then has no other tokens.
    pub(crate) is_sampled: bool,
}

impl EngineWork {
    pub(crate) fn of_samples(self) -> Option<EngineUsage> {
        self.is_sampled.then_some(self.usage)
    }
}
