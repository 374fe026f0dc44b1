//! An adapter: weights that a model adds to its own for some contexts, such as a LoRA.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// A handle to the weights of an adapter. Clones share the weights, which are freed with the last clone, so
/// the requests that use an adapter keep it. Only the model for which it was read can use it.
#[derive(Clone)]
pub struct Adapter {
    id: u64,
    weights: Arc<dyn Any + Send + Sync>,
    _resource: Option<Arc<dyn Any + Send + Sync>>,
}

impl Adapter {
    pub fn new(weights: impl Any + Send + Sync) -> Self {
        Self { id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1, weights: Arc::new(weights), _resource: None }
    }

    /// Returns the same adapter, which also keeps `resource` until its last clone is dropped.
    #[must_use]
    pub fn keeping(self, resource: impl Any + Send + Sync) -> Self {
        Self { _resource: Some(Arc::new(resource)), ..self }
    }

    /// Returns its number: never 0, and never reused within a process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the weights if they have this type.
    pub fn weights<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.weights).downcast().ok()
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").field("id", &self.id).finish_non_exhaustive()
    }
}
