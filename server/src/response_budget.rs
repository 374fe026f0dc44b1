//! The memory of responses, from the admission of a request until its client has read the response.
//!
//! In: an estimate of a response's size, which is made from the validated request. Out: reserved memory, or a
//! rejection. Invariant: no client holds more than three quarters of the budget, except with a single
//! response, so that clients that read slowly cannot block others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::IntGauge;

use crate::body_budget::ParsedShare;
use crate::error::AppError;

/// Responses of at most this many bytes are not counted: the limits of queues and connections cover them.
pub(crate) const UNCOUNTED_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct ResponseBudget {
    /// Limit of one response.
    response_bytes_max: usize,
    /// Limit of all responses.
    bytes_max: usize,
    /// Bytes that each client holds.
    clients: Mutex<HashMap<u64, usize>>,
    /// Shows their sum.
    gauge: IntGauge,
}

/// The estimated size of a response, and the request fields that it grows with.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ResponseSize {
    pub(crate) bytes: usize,
    pub(crate) fields: Vec<&'static str>,
}

impl ResponseBudget {
    pub(crate) fn new(response_bytes_max: usize, bytes_max: usize, gauge: IntGauge) -> Arc<Self> {
        Arc::new(Self { response_bytes_max, bytes_max, clients: Mutex::default(), gauge })
    }

    /// Reserves memory for a response.
    ///
    /// # Errors
    /// If the response may be larger than one response may be, or if other responses hold the memory.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        client: u64,
        size: ResponseSize,
    ) -> Result<ReservedResponse, AppError> {
        let ResponseSize { bytes, fields } = size;
        let bytes_max = self.response_bytes_max;
        if bytes > bytes_max {
            return Err(AppError::ResponseTooLarge { bytes, bytes_max, fields });
        }
        let mut reserved = ReservedResponse { budget: Arc::clone(self), client, estimate: bytes, bytes: 0 };
        let mut clients = self.clients();
        let client_bytes = clients.get(&client).copied().unwrap_or_default();
        let total: usize = clients.values().sum();
        let share_max = self.bytes_max - self.bytes_max / 4;
        let fits = total.saturating_add(bytes) <= self.bytes_max
            && (client_bytes == 0 || client_bytes.saturating_add(bytes) <= share_max);
        if counted(bytes) > 0 && !fits {
            drop(clients);
            return Err(AppError::ResponsesFull);
        }
        reserved.change(&mut clients, counted(bytes));
        drop(clients);
        Ok(reserved)
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn counted(bytes: usize) -> usize {
    if bytes > UNCOUNTED_BYTES_MAX { bytes } else { 0 }
}

/// The part of the budget that one response holds. Dropping it returns the part.
#[derive(Debug)]
pub(crate) struct ReservedResponse {
    budget: Arc<ResponseBudget>,
    client: u64,
    /// The estimated size of the response, in bytes.
    estimate: usize,
    /// The part that it holds, in bytes.
    bytes: usize,
}

impl ReservedResponse {
    pub(crate) fn client(&self) -> u64 {
        self.client
    }

    /// Returns the estimated size of the response, in bytes.
    pub(crate) fn estimate(&self) -> usize {
        self.estimate
    }

    /// Replaces the estimate by the actual number of bytes.
    pub(crate) fn set(&mut self, bytes: usize) {
        let budget = Arc::clone(&self.budget);
        self.change(&mut budget.clients(), counted(bytes));
    }

    fn change(&mut self, clients: &mut HashMap<u64, usize>, bytes: usize) {
        let held = clients.entry(self.client).or_default();
        *held = *held - self.bytes + bytes;
        if *held == 0 {
            clients.remove(&self.client);
        }
        self.budget.gauge.add(bytes as i64 - self.bytes as i64);
        self.bytes = bytes;
    }
}

impl Drop for ReservedResponse {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The memory of a request: of its parsed body, and later of its response.
#[derive(Debug)]
pub(crate) struct RequestMemory {
    parsed: ParsedShare,
    responses: Arc<ResponseBudget>,
    client: u64,
}

impl RequestMemory {
    pub(crate) fn new(parsed: ParsedShare, responses: &Arc<ResponseBudget>, client: u64) -> Self {
        Self { parsed, responses: Arc::clone(responses), client }
    }

    /// Releases the memory of the parsed body, whose prompts are tokenized, and reserves the memory of the
    /// response.
    ///
    /// # Errors
    /// As [`ResponseBudget::reserve`].
    pub(crate) fn into_response(self, size: ResponseSize) -> Result<ReservedResponse, AppError> {
        drop(self.parsed);
        self.responses.reserve(self.client, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    fn budget() -> (Arc<ResponseBudget>, IntGauge) {
        let gauge = IntGauge::new("bytes", "bytes").unwrap();
        (ResponseBudget::new(600 * KIB, 1000 * KIB, gauge.clone()), gauge)
    }

    fn size(kib: usize) -> ResponseSize {
        ResponseSize { bytes: kib * KIB, fields: vec!["n", "logprobs"] }
    }

    #[test]
    fn a_client_holds_at_most_three_quarters_and_others_the_rest() {
        let (budget, gauge) = budget();
        let reserve = |client, kib| budget.reserve(client, size(kib));
        let first = reserve(1, 500).unwrap();
        let second = reserve(1, 250).unwrap();
        for (client, kib) in [(1, 65), (2, 251)] {
            assert!(matches!(reserve(client, kib), Err(AppError::ResponsesFull)), "{client} {kib}");
        }
        let other = reserve(2, 250).unwrap();
        assert_eq!(gauge.get(), 1000 << 10);
        assert!(matches!(reserve(3, 65), Err(AppError::ResponsesFull)));
        assert!(reserve(3, 64).is_ok() && reserve(1, 64).is_ok(), "small responses are not counted");
        drop(second);
        drop(reserve(3, 250).unwrap());
        drop((first, other));
        assert_eq!((gauge.get(), budget.clients().len()), (0, 0));
    }

    #[test]
    fn a_response_that_is_too_large_is_rejected_with_its_fields() {
        let (budget, gauge) = budget();
        let error = budget.reserve(1, size(601)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the response may have 615424 bytes; at most 614400 are allowed. Lower or leave out `n` or `logprobs`"
        );
        assert_eq!(error.body().error.param.as_deref(), Some("n"));
        assert_eq!(gauge.get(), 0);
    }

    #[test]
    fn the_actual_size_replaces_the_estimate() {
        let (budget, gauge) = budget();
        let mut reserved = budget.reserve(1, size(100)).unwrap();
        for (kib, counted) in [(900, 900), (65, 65), (64, 0), (0, 0), (70, 70)] {
            reserved.set(kib * KIB);
            assert_eq!(gauge.get(), counted << 10, "{kib}");
        }
        drop(reserved);
        assert_eq!(gauge.get(), 0);
    }
}
