//! The state that all handlers share: settings, models, metrics, and whether the server accepts work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use tokio::sync::watch;

use crate::body_budget::BodyBudget;
use crate::memory::MemoryGuard;
use crate::metrics::Metrics;
use crate::quota::{Clock, Quotas};
use crate::response_budget::ResponseBudget;
use crate::served::Models;
use crate::settings::HttpSettings;

/// The state of a router. Clones share it.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

pub struct Shared {
    pub settings: HttpSettings,
    pub models: Models,
    pub metrics: Arc<Metrics>,
    pub lifecycle: Lifecycle,
    pub(crate) bodies: Arc<BodyBudget>,
    pub(crate) responses: Arc<ResponseBudget>,
    pub(crate) memory: MemoryGuard,
    pub(crate) quotas: Arc<Quotas>,
}

/// The state of a router that may be gone. Unlike [`AppState`], it does not keep the engines running.
#[derive(Clone)]
pub struct WeakAppState(Weak<Shared>);

impl WeakAppState {
    pub(crate) fn upgrade(&self) -> Option<AppState> {
        self.0.upgrade().map(AppState)
    }
}

impl std::ops::Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl AppState {
    /// A server without models: it answers 503 until [`Models::publish`].
    pub fn new(settings: HttpSettings, metrics: Arc<Metrics>) -> Self {
        Self::with_clock(settings, metrics, Arc::new(Instant::now))
    }

    /// The same with another clock for the quotas of keys.
    pub fn with_clock(settings: HttpSettings, metrics: Arc<Metrics>, clock: Clock) -> Self {
        let models = Models::new(&settings);
        let lifecycle = Lifecycle::default();
        let bodies = BodyBudget::new(settings.bodies_bytes_max);
        let HttpSettings { response_bytes_max, responses_bytes_max, .. } = settings;
        let reserved = metrics.ntl_response_bytes.clone();
        let responses = ResponseBudget::new(response_bytes_max, responses_bytes_max, reserved);
        let memory = MemoryGuard::new(settings.memory_bytes_max);
        metrics.set_memory_bytes_max(memory.bytes_max());
        let quotas = Arc::new(Quotas::new(settings.quota, clock));
        Self(Arc::new(Shared { settings, models, metrics, lifecycle, bodies, responses, memory, quotas }))
    }

    pub fn downgrade(&self) -> WeakAppState {
        WeakAppState(Arc::downgrade(&self.0))
    }
}

/// Whether new work is accepted, and how many requests are in flight.
#[derive(Debug, Default)]
pub struct Lifecycle {
    ending: AtomicBool,
    draining: AtomicBool,
    cut_off: AtomicBool,
    in_flight: watch::Sender<usize>,
}

impl Lifecycle {
    /// Refuses readiness from now on, so that routers send no more; work that still comes is accepted.
    pub fn announce_end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    /// Refuses readiness and new work from now on.
    pub fn drain(&self) {
        self.announce_end();
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Records that the drain is over and cuts off the requests that are still in flight.
    pub(crate) fn cut_off(&self) {
        self.cut_off.store(true, Ordering::SeqCst);
    }

    /// Returns whether the drain has cut off requests.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::SeqCst)
    }

    /// Returns whether the server rejects work or is about to.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Requests whose response is not complete.
    pub fn in_flight(&self) -> usize {
        *self.in_flight.borrow()
    }

    /// Returns when no request is in flight.
    pub async fn idle(&self) {
        // `self` keeps the sender alive, so the wait cannot fail.
        let _ = self.in_flight.subscribe().wait_for(|&count| count == 0).await;
    }

    pub(crate) fn enter(&self) {
        self.in_flight.send_modify(|count| *count += 1);
    }

    pub(crate) fn leave(&self) {
        self.in_flight.send_modify(|count| *count -= 1);
    }
}
