//! One budget of bytes for all request bodies that are being read or parsed.
//!
//! In: how large the buffer of each body has to be. Where a buffer does not fit, the largest body that is still arriving is
//! refused and gives up its bytes, so that large bodies, however slowly they arrive, cannot keep out small ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{AbortHandle, AbortRegistration};

#[derive(Debug)]
pub(crate) struct BodyBudget {
    bytes_max: usize,
    open: Mutex<OpenBodies>,
}

#[derive(Debug, Default)]
struct OpenBodies {
    seen: u64,
    /// Sum over `bodies`.
    bytes: usize,
    bodies: HashMap<u64, OpenBody>,
}

#[derive(Debug)]
struct OpenBody {
    bytes: usize,
    /// Ends the reading; `None` once the body has arrived.
    reading: Option<AbortHandle>,
}

impl OpenBodies {
    fn remove(&mut self, id: u64) -> Option<OpenBody> {
        let body = self.bodies.remove(&id)?;
        self.bytes -= body.bytes;
        Some(body)
    }

    /// The largest body that is still arriving, of those larger than this.
    fn largest(&self, bytes: usize) -> Option<u64> {
        let arriving = self.bodies.iter().filter(|(_, body)| body.reading.is_some() && body.bytes > bytes);
        arriving.max_by_key(|(_, body)| body.bytes).map(|(&id, _)| id)
    }
}

/// There is no room for a body, and all others are smaller or complete.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BudgetExhausted;

impl BodyBudget {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, open: Mutex::default() })
    }

    /// Begins a body. Its reading must be abortable by the registration: it is aborted to make room.
    pub(crate) fn begin(self: &Arc<Self>) -> (BodyCharge, AbortRegistration) {
        let (handle, registration) = AbortHandle::new_pair();
        let mut open = self.open();
        open.seen += 1;
        let id = open.seen;
        open.bodies.insert(id, OpenBody { bytes: 0, reading: Some(handle) });
        (BodyCharge { budget: Arc::clone(self), id }, registration)
    }

    fn open(&self) -> MutexGuard<'_, OpenBodies> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of the budget that one body takes. Dropping it returns the part.
#[derive(Debug)]
pub(crate) struct BodyCharge {
    budget: Arc<BodyBudget>,
    id: u64,
}

impl BodyCharge {
    /// Takes so many bytes in all, at the cost of larger bodies where that is needed.
    pub(crate) fn grow_to(&self, bytes: usize) -> Result<(), BudgetExhausted> {
        let mut open = self.budget.open();
        let taken = open.bodies.get(&self.id).ok_or(BudgetExhausted)?.bytes;
        while open.bytes - taken + bytes > self.budget.bytes_max {
            let largest = open.largest(bytes).ok_or(BudgetExhausted)?;
            if let Some(OpenBody { reading: Some(reading), .. }) = open.remove(largest) {
                reading.abort();
            }
        }
        open.bytes += bytes - taken;
        if let Some(body) = open.bodies.get_mut(&self.id) {
            body.bytes = bytes;
        }
        Ok(())
    }

    /// The body has arrived: it is not refused any more.
    pub(crate) fn complete(&self) {
        if let Some(body) = self.budget.open().bodies.get_mut(&self.id) {
            body.reading = None;
        }
    }
}

impl Drop for BodyCharge {
    fn drop(&mut self) {
        self.budget.open().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_arriving_body_makes_room_for_smaller_ones() {
        let budget = BodyBudget::new(100);
        let [(small, small_reading), (large, large_reading), (done, done_reading)] =
            [(); 3].map(|()| budget.begin());
        let is_refused = |reading: &AbortRegistration| reading.handle().is_aborted();
        done.grow_to(50).unwrap();
        done.complete();
        large.grow_to(40).unwrap();
        small.grow_to(10).unwrap();
        assert_eq!(small.grow_to(11), Ok(()));
        assert!(is_refused(&large_reading) && !is_refused(&done_reading) && !is_refused(&small_reading));
        assert_eq!(large.grow_to(1), Err(BudgetExhausted), "it was refused");
        assert_eq!(small.grow_to(50), Ok(()));
        assert_eq!(small.grow_to(51), Err(BudgetExhausted), "nothing larger is still arriving");
        drop(done);
        assert_eq!(small.grow_to(100), Ok(()));
        drop((small, large));
        assert_eq!(budget.open().bytes, 0);
        assert!(budget.open().bodies.is_empty());
    }

    #[test]
    fn a_body_does_not_make_room_by_one_of_its_own_size() {
        let budget = BodyBudget::new(10);
        let (first, first_reading) = budget.begin();
        let (second, _second_reading) = budget.begin();
        first.grow_to(6).unwrap();
        assert_eq!(second.grow_to(6), Err(BudgetExhausted));
        assert!(!first_reading.handle().is_aborted());
    }
}
