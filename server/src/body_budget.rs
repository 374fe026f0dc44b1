//! The memory of request bodies: while they arrive, and once they are parsed, until their prompts are
//! tokenized. Both are counted separately, with the same limit.
//!
//! If the buffer of an arriving body does not fit, the server rejects the largest body that is still arriving
//! and releases its bytes, so that large bodies that arrive slowly cannot keep out small ones. A parsed body
//! waits for its share, which clients get round-robin. Its share is a bound that is read off the text before
//! anything is built of it: a body of 2 MiB may become 190 times as large.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{AbortHandle, AbortRegistration};

use crate::blocking::run_blocking;
use crate::error::AppError;
use crate::fair_permits::{FairPermits, Permits};

/// Maximum memory of a list or an object with at most four values, in bytes. Both the buffer of an untagged
/// field and its value allocate room for four.
const LIST_BYTES: usize = 768;

/// Maximum memory of each further value, in bytes; lists and objects grow by doubling.
const ELEMENT_BYTES: usize = 288;

/// Maximum additional memory of each name in an object, in bytes.
const NAME_BYTES: usize = 192;

#[derive(Debug)]
pub(crate) struct BodyBudget {
    bytes_max: usize,
    arriving: Mutex<ArrivingBodies>,
    /// Free bytes for parsed bodies.
    parsed: Arc<FairPermits>,
}

/// The part of the budget that a parsed body holds. Dropping it returns the part.
pub(crate) type ParsedShare = Permits;

#[derive(Debug, Default)]
struct ArrivingBodies {
    seen: u64,
    /// Sum over `bodies`.
    bytes: usize,
    bodies: HashMap<u64, ArrivingBody>,
}

#[derive(Debug)]
struct ArrivingBody {
    bytes: usize,
    /// Ends the reading; `None` once the body has arrived.
    reading: Option<AbortHandle>,
}

impl ArrivingBodies {
    fn remove(&mut self, id: u64) -> Option<ArrivingBody> {
        let body = self.bodies.remove(&id)?;
        self.bytes -= body.bytes;
        Some(body)
    }

    /// Returns the largest body that is still arriving and has more than `bytes` bytes.
    fn largest(&self, bytes: usize) -> Option<u64> {
        let arriving = self.bodies.iter().filter(|(_, body)| body.reading.is_some() && body.bytes > bytes);
        arriving.max_by_key(|(_, body)| body.bytes).map(|(&id, _)| id)
    }
}

impl BodyBudget {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        let parsed = FairPermits::new(bytes_max, bytes_max - bytes_max / 4);
        Arc::new(Self { bytes_max, arriving: Mutex::default(), parsed })
    }

    /// Begins a body. Its reading must be abortable by the registration: it is aborted to make room.
    pub(crate) fn begin(self: &Arc<Self>) -> (BodyCharge, AbortRegistration) {
        let (handle, registration) = AbortHandle::new_pair();
        let mut arriving = self.arriving();
        arriving.seen += 1;
        let id = arriving.seen;
        arriving.bodies.insert(id, ArrivingBody { bytes: 0, reading: Some(handle) });
        (BodyCharge { budget: Arc::clone(self), id }, registration)
    }

    fn arriving(&self) -> MutexGuard<'_, ArrivingBodies> {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of the budget that one body holds until it is parsed. Dropping it returns the part.
#[derive(Debug)]
pub(crate) struct BodyCharge {
    budget: Arc<BodyBudget>,
    id: u64,
}

impl BodyCharge {
    /// Grows the charge to `bytes` bytes, at the cost of larger bodies if necessary.
    ///
    /// # Errors
    /// If there is no room, and all other bodies are smaller or complete.
    pub(crate) fn grow_to(&self, bytes: usize) -> Result<(), AppError> {
        let mut arriving = self.budget.arriving();
        let taken = arriving.bodies.get(&self.id).ok_or(AppError::BodiesFull)?.bytes;
        while arriving.bytes - taken + bytes > self.budget.bytes_max {
            let largest = arriving.largest(bytes).ok_or(AppError::BodiesFull)?;
            if let Some(ArrivingBody { reading: Some(reading), .. }) = arriving.remove(largest) {
                reading.abort();
            }
        }
        arriving.bytes += bytes - taken;
        if let Some(body) = arriving.bodies.get_mut(&self.id) {
            body.bytes = bytes;
        }
        Ok(())
    }

    /// Records that the body has arrived: it is not rejected any more to make room for others.
    pub(crate) fn arrived(&self) {
        if let Some(arrived) = self.budget.arriving().bodies.get_mut(&self.id) {
            arrived.reading = None;
        }
    }

    /// The body has arrived. Waits for the memory that it may need once it is parsed, and returns this share
    /// with the body.
    ///
    /// # Errors
    /// If the share exceeds the whole budget, or has not become free in time.
    pub(crate) async fn complete(
        &self,
        client: u64,
        body: Vec<u8>,
    ) -> Result<(ParsedShare, Vec<u8>), AppError> {
        self.arrived();
        let (bytes, body) =
            run_blocking(client, body.len(), move || Ok((parsed_bytes_max(&body), body))).await?;
        let bytes_max = self.budget.bytes_max;
        if bytes > bytes_max {
            return Err(AppError::BodyHasTooManyValues { bytes, bytes_max });
        }
        Ok((self.budget.parsed.acquire(client, bytes).await?, body))
    }
}

impl Drop for BodyCharge {
    fn drop(&mut self) {
        self.budget.arriving().remove(self.id);
    }
}

/// Returns the maximum memory that JSON needs during and after parsing, in bytes, by its punctuation outside
/// of strings.
fn parsed_bytes_max(json: &[u8]) -> usize {
    let mut bytes = json.len();
    let mut is_string = false;
    let mut is_escaped = false;
    for &byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            _ if is_string => {}
            b'[' | b'{' => bytes += LIST_BYTES,
            b',' => bytes += ELEMENT_BYTES,
            b':' => bytes += NAME_BYTES,
            _ => {}
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn is_full(grown: Result<(), AppError>) -> bool {
        matches!(grown, Err(AppError::BodiesFull))
    }

    #[tokio::test]
    async fn the_largest_arriving_body_makes_room_for_smaller_ones() {
        let budget = BodyBudget::new(2000);
        let [(small, small_reading), (large, large_reading), (done, done_reading)] =
            [(); 3].map(|()| budget.begin());
        let is_refused = |reading: &AbortRegistration| reading.handle().is_aborted();
        done.grow_to(1000).unwrap();
        let _share = done.complete(1, b"1".to_vec()).await.unwrap();
        large.grow_to(800).unwrap();
        small.grow_to(200).unwrap();
        small.grow_to(220).unwrap();
        assert!(is_refused(&large_reading) && !is_refused(&done_reading) && !is_refused(&small_reading));
        assert!(is_full(large.grow_to(20)), "it was refused");
        small.grow_to(1000).unwrap();
        assert!(is_full(small.grow_to(1001)), "nothing larger is still arriving");
        drop(done);
        small.grow_to(2000).unwrap();
        drop((small, large));
        assert_eq!(budget.arriving().bytes, 0);
        assert!(budget.arriving().bodies.is_empty());
    }

    #[test]
    fn a_body_does_not_make_room_by_one_of_its_own_size() {
        let budget = BodyBudget::new(10);
        let (first, first_reading) = budget.begin();
        let (second, _second_reading) = budget.begin();
        first.grow_to(6).unwrap();
        assert!(is_full(second.grow_to(6)));
        assert!(!first_reading.handle().is_aborted());
    }

    #[test]
    fn a_body_that_has_arrived_makes_no_room_for_smaller_ones() {
        let budget = BodyBudget::new(10);
        let (first, first_reading) = budget.begin();
        let (second, _second_reading) = budget.begin();
        first.grow_to(9).unwrap();
        first.arrived();
        assert!(is_full(second.grow_to(2)));
        assert!(!first_reading.handle().is_aborted());
        first.grow_to(10).unwrap();
    }

    #[test]
    fn texts_count_as_they_are_and_values_by_what_they_may_become() {
        for (json, want) in [
            (&br#""x""#[..], 3),
            (br#""[{,:\"[,:\\""#, 13),
            (br#""\\",1"#, 6 + ELEMENT_BYTES),
            (b"[1,2]", 5 + LIST_BYTES + ELEMENT_BYTES),
            (br#"{"a":[]}"#, 8 + 2 * LIST_BYTES + NAME_BYTES),
        ] {
            assert_eq!(parsed_bytes_max(json), want, "{}", String::from_utf8_lossy(json));
        }
    }

    #[tokio::test]
    async fn a_request_waits_for_its_share_and_more_than_all_is_refused() {
        let budget = BodyBudget::new(3 * LIST_BYTES);
        let share = async |client, json: &[u8]| budget.begin().0.complete(client, json.to_vec()).await;
        let error = share(1, b"[[[]]]").await.unwrap_err();
        assert!(matches!(error, AppError::BodyHasTooManyValues { .. }), "{error}");
        let first = share(1, b"[[]]").await.unwrap();
        let mut second = Box::pin(share(1, b"[[]]"));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(share(2, b"1").now_or_never().is_some(), "another client's small body does not wait");
        drop(first);
        drop(second.await.unwrap());
    }
}
