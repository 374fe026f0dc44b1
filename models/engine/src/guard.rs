//! Converts a panic in a model or a decoding into an error of the affected requests, so that the engine
//! continues.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ntl_core::contract::{EngineError, ModelError};

use crate::observer::EngineObserver;

/// Returns the result of `call`, or an error if it panics.
pub(crate) fn guarded<T, E: From<Panicked>>(
    observer: &dyn EngineObserver,
    call: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        observer.on_panic();
        Err(Panicked.into())
    })
}

pub(crate) struct Panicked;

impl From<Panicked> for ModelError {
    fn from(_: Panicked) -> Self {
        Self::Compute("the model panicked".into())
    }
}

impl From<Panicked> for EngineError {
    fn from(_: Panicked) -> Self {
        Self::Step("the decoding panicked".to_owned())
    }
}
