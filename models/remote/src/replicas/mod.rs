//! The replicas of one model: where requests go, what happens when one fails, and health checks.
//!
//! Invariant: a request that has failed on one replica is repeated from its beginning on another one. An
//! answer is used only if it is complete and valid, so a failover never changes a result.

mod health;
mod pool;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::{BaseUrl, Client, Code, UpstreamError};
pub(crate) use health::{Check, supervise};
pub(crate) use pool::{Lease, ReplicaPool};
pub use pool::{NoObserver, UpstreamObserver};

/// How often a request is sent to all replicas.
const ROUNDS_MAX: u32 = 4;

/// The first pause between two rounds. Each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(100);

/// Maximum `Retry-After` of overloaded replicas that a request waits for. The client gets a longer one.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2);

/// The use of a request's response, which decides where it goes and when it is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A part of the tree with this number. Every replica computes the same response.
    Tree(u64),
    /// An answer that is drawn at random, for the tree with this number.
    Sample(u64),
    /// The response is the client's, who can repeat the request after `Retry-After`.
    Client,
}

impl Purpose {
    /// The number of its tree.
    fn affinity(self) -> Option<u64> {
        match self {
            Self::Tree(tree) | Self::Sample(tree) => Some(tree),
            Self::Client => None,
        }
    }

    /// Returns whether the request is not sent again after this error.
    fn ends_with(self, error: &UpstreamError) -> bool {
        match self {
            Self::Tree(_) => false,
            Self::Sample(_) => error.may_depend_on_answer(),
            // A text that takes too long takes as long on every replica.
            Self::Client => error.is_timeout(),
        }
    }
}

/// The replicas of one model, with the client that they share.
pub(crate) struct Replicas {
    pub(crate) client: Client,
    pub(crate) pool: Arc<ReplicaPool>,
}

impl Replicas {
    pub(crate) fn new(client: Client, replicas: Vec<BaseUrl>, observer: Arc<dyn UpstreamObserver>) -> Self {
        Self { client, pool: Arc::new(ReplicaPool::new(replicas, observer)) }
    }

    /// Sends a request to one replica after another until one answers.
    pub(crate) async fn request<T, E: Future<Output = Result<T, UpstreamError>> + Send>(
        &self,
        purpose: Purpose,
        exchange: impl Fn(BaseUrl) -> E + Sync,
    ) -> Result<T, UpstreamError> {
        self.request_and_hold(purpose, exchange).await.map(|(response, _)| response)
    }

    /// Like [`request`](Self::request), but also returns the lease: the request is in flight until it is
    /// dropped.
    pub(crate) async fn request_and_hold<T, E: Future<Output = Result<T, UpstreamError>> + Send>(
        &self,
        purpose: Purpose,
        exchange: impl Fn(BaseUrl) -> E + Sync,
    ) -> Result<(T, Lease), UpstreamError> {
        let mut round = 0;
        loop {
            let error = match self.one_round(purpose, &exchange).await {
                Err(error) if error.is_transient() && !purpose.ends_with(&error) => error,
                result => return result,
            };
            round += 1;
            let asked = error.retry_after();
            let is_long = asked.is_some_and(|asked| purpose == Purpose::Client || asked > RETRY_AFTER_MAX);
            if round == ROUNDS_MAX || is_long {
                return Err(error);
            }
            tokio::time::sleep(pause(round).max(asked.unwrap_or_default())).await;
        }
    }

    /// Tries each replica at most once. Fails with the last error.
    async fn one_round<T, E: Future<Output = Result<T, UpstreamError>> + Send>(
        &self,
        purpose: Purpose,
        exchange: &(impl Fn(BaseUrl) -> E + Sync),
    ) -> Result<(T, Lease), UpstreamError> {
        let mut tried = Vec::new();
        let mut last = None;
        while let Some(lease) = self.pool.lease(purpose.affinity(), &tried) {
            let was_up = self.pool.is_up(lease.index);
            let result = tokio::select! {
                result = exchange(lease.base().clone()) => result,
                () = self.pool.goes_down(lease.index), if was_up => {
                    Err(UpstreamError::Unhealthy { replica: lease.base().to_string() })
                }
            };
            lease.ended(result.as_ref().map_or_else(UpstreamError::code, |_| Code::Status(200)));
            match result {
                Err(error) if purpose.ends_with(&error) => return Err(error),
                // Another replica may compute what one replica cannot.
                Err(error) if !error.is_clients_fault() && !error.is_local() => {
                    let is_unavailable = error.is_unreachable() || error.is_other_model();
                    if is_unavailable && self.pool.set_up(lease.index, false, Instant::now()) {
                        tracing::warn!(%error, "a replica is unavailable");
                    }
                    tried.push(lease.index);
                    // That a replica is overloaded says more than that another one is not there.
                    if !matches!(last, Some(UpstreamError::Overloaded { .. })) {
                        last = Some(error);
                    }
                }
                result => return result.map(|response| (response, lease)),
            }
        }
        Err(last.unwrap_or_else(|| UpstreamError::Unreachable {
            replica: String::new(),
            reason: "the model has no replicas".to_owned(),
        }))
    }
}

/// The pause after a round. Half of it is random, so that requests do not return together.
fn pause(round: u32) -> Duration {
    let full = PAUSE.saturating_mul(1 << round.min(8));
    // The operating system seeds `RandomState`, which is random enough for a pause.
    let random = RandomState::new().hash_one(round) as f64 / u64::MAX as f64;
    full.mul_f64(0.5 + random / 2.0)
}
