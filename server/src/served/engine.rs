//! The engine of a served model: the batch engine of this process, or jobs over another server.

use std::sync::Arc;

use ntl_core::contract::{Adapter, EngineError, Job, ModelInfo};
use ntl_engine::{CacheUse, Engine, JobEvents};
use ntl_remote::{EngineMeter, RemoteEngine, Upstream};

#[derive(Clone)]
pub(super) enum ServedEngine {
    Local(Engine),
    Remote(RemoteTexts),
}

/// A model that another engine computes. It writes texts by itself.
#[derive(Clone)]
pub(crate) struct RemoteTexts {
    pub(crate) jobs: RemoteEngine,
    pub(crate) upstream: Arc<Upstream>,
    /// Fields that are forwarded although they make the engine connect to an address of the client's choice.
    pub(crate) fields: Arc<[String]>,
}

impl ServedEngine {
    pub(super) fn info(&self) -> &ModelInfo {
        match self {
            Self::Local(engine) => engine.info(),
            Self::Remote(remote) => remote.jobs.info(),
        }
    }

    /// `meter` counts the work of another engine.
    pub(super) fn submit_all(
        &self,
        jobs: Vec<Job>,
        meter: &EngineMeter,
    ) -> Result<Vec<JobEvents>, EngineError> {
        match self {
            Self::Local(engine) => engine.submit_all(jobs),
            Self::Remote(remote) => remote.jobs.submit_all(jobs, meter),
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
            Self::Remote(_) => true,
        }
    }

    /// Returns why its device cannot be used any more, if that ended it.
    pub(super) fn lost_device(&self) -> Option<&str> {
        match self {
            Self::Local(engine) => engine.lost_device(),
            Self::Remote(_) => None,
        }
    }

    /// Returns whether it can compute now.
    pub(super) fn is_ready(&self) -> bool {
        match self {
            Self::Local(engine) => engine.is_alive(),
            Self::Remote(remote) => remote.upstream.is_available(),
        }
    }

    /// The memory that it uses in this process.
    pub(super) fn cache_use(&self) -> CacheUse {
        match self {
            Self::Local(engine) => engine.cache_use(),
            Self::Remote(remote) => remote.jobs.cache_use(),
        }
    }

    pub(super) fn remote(&self) -> Option<&RemoteTexts> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => Some(remote),
        }
    }
}
