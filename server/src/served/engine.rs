//! The engine of a served model: the batch engine of this process, or jobs over another server.

use std::sync::Arc;

use ntl_core::contract::{Adapter, EngineError, Job, ModelInfo};
use ntl_engine::{CacheUse, Engine, JobEvents};
use ntl_remote::{RemoteEngine, Upstream};

#[derive(Clone)]
pub(super) enum ServedEngine {
    Local(Engine),
    Remote { jobs: RemoteEngine, upstream: Arc<Upstream> },
}

impl ServedEngine {
    pub(super) fn info(&self) -> &ModelInfo {
        match self {
            Self::Local(engine) => engine.info(),
            Self::Remote { jobs, .. } => jobs.info(),
        }
    }

    pub(super) fn submit_all(&self, jobs: Vec<Job>) -> Result<Vec<JobEvents>, EngineError> {
        match self {
            Self::Local(engine) => engine.submit_all(jobs),
            Self::Remote { jobs: engine, .. } => engine.submit_all(jobs),
        }
    }

    /// Copies the weights of an adapter to its device.
    pub(super) fn prepare_adapter(&self, adapter: &Adapter) -> Result<(), EngineError> {
        match self {
            Self::Local(engine) => engine.prepare_adapter(adapter),
            Self::Remote { .. } => Ok(()),
        }
    }

    /// Returns whether it runs. An engine that does not never will again.
    pub(super) fn is_alive(&self) -> bool {
        match self {
            Self::Local(engine) => engine.is_alive(),
            Self::Remote { .. } => true,
        }
    }

    /// Returns why its device cannot be used any more, if that ended it.
    pub(super) fn lost_device(&self) -> Option<&str> {
        match self {
            Self::Local(engine) => engine.lost_device(),
            Self::Remote { .. } => None,
        }
    }

    /// Returns whether it can compute now.
    pub(super) fn is_ready(&self) -> bool {
        match self {
            Self::Local(engine) => engine.is_alive(),
            Self::Remote { upstream, .. } => upstream.is_available(),
        }
    }

    /// The memory that it uses in this process, if it has caches here.
    pub(super) fn cache_use(&self) -> Option<CacheUse> {
        match self {
            Self::Local(engine) => Some(engine.cache_use()),
            Self::Remote { .. } => None,
        }
    }

    pub(super) fn upstream(&self) -> Option<&Arc<Upstream>> {
        match self {
            Self::Local(_) => None,
            Self::Remote { upstream, .. } => Some(upstream),
        }
    }
}
