//! A limit of concurrent work that no client can use up: a quarter of the permits is reserved for clients
//! that hold none. Clients that wait are served round-robin.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

pub(crate) struct FairGate {
    permits: usize,
    /// Permits that only clients without a permit get.
    reserved: usize,
    state: Mutex<GateState>,
}

/// Invariant: no waiter may get a permit now.
#[derive(Default)]
struct GateState {
    taken: usize,
    /// The number of permits of each client that has any.
    held: HashMap<u64, usize>,
    /// Clients with waiters, in the order in which they will be served.
    clients: VecDeque<ClientWaiters>,
}

struct ClientWaiters {
    client: u64,
    waiters: VecDeque<oneshot::Sender<Permit>>,
}

/// The right to work. Dropping it passes it on.
pub(crate) struct Permit {
    /// `None` once it is passed on.
    gate: Option<Arc<FairGate>>,
    client: u64,
    /// Whether its client held no other permit when it got this one.
    pub(crate) is_first: bool,
}

impl FairGate {
    pub(crate) fn new(permits: usize) -> Arc<Self> {
        let permits = permits.max(1);
        let reserved = permits.div_ceil(4).min(permits - 1);
        Arc::new(Self { permits, reserved, state: Mutex::default() })
    }

    /// Number of permits that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.lock().taken
    }

    /// Waits for a permit. Dropping the future gives up the position in the queue.
    pub(crate) async fn acquire(self: &Arc<Self>, client: u64) -> Permit {
        loop {
            match self.enter(client) {
                Ok(permit) => return permit,
                Err(receiver) => {
                    if let Ok(permit) = receiver.await {
                        return permit;
                    }
                }
            }
        }
    }

    fn enter(self: &Arc<Self>, client: u64) -> Result<Permit, oneshot::Receiver<Permit>> {
        let mut state = self.lock();
        if self.admits(&state, client) {
            return Ok(self.grant(&mut state, client));
        }
        let (sender, receiver) = oneshot::channel();
        match state.clients.iter_mut().find(|waiting| waiting.client == client) {
            Some(waiting) => waiting.waiters.push_back(sender),
            None => state.clients.push_back(ClientWaiters { client, waiters: [sender].into() }),
        }
        Err(receiver)
    }

    fn admits(&self, state: &GateState, client: u64) -> bool {
        let holds_none = !state.held.contains_key(&client);
        let limit = if holds_none { self.permits } else { self.permits - self.reserved };
        state.taken < limit
    }

    fn grant(self: &Arc<Self>, state: &mut GateState, client: u64) -> Permit {
        state.taken += 1;
        let held = state.held.entry(client).or_default();
        *held += 1;
        Permit { gate: Some(Arc::clone(self)), client, is_first: *held == 1 }
    }

    /// Takes a permit back and passes it to the next waiter that may have it and still waits.
    fn take_back(self: &Arc<Self>, client: u64) {
        let mut state = self.lock();
        state.release(client);
        while let Some((next, waiter)) = self.next_waiter(&mut state) {
            let permit = self.grant(&mut state, next);
            if let Err(mut refused) = waiter.send(permit) {
                // The waiter has given up.
                refused.gate = None;
                state.release(next);
            }
        }
    }

    /// Removes the first waiter of the first client that may have a permit.
    fn next_waiter(&self, state: &mut GateState) -> Option<(u64, oneshot::Sender<Permit>)> {
        loop {
            let index = state.clients.iter().position(|waiting| self.admits(state, waiting.client))?;
            let mut next = state.clients.remove(index)?;
            let waiter = next.waiters.pop_front();
            let client = next.client;
            if !next.waiters.is_empty() {
                state.clients.push_back(next);
            }
            if let Some(waiter) = waiter {
                return Some((client, waiter));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GateState {
    fn release(&mut self, client: u64) {
        self.taken -= 1;
        if let Some(held) = self.held.get_mut(&client) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&client);
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.take_back(self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn clients_take_turns_and_waiters_that_give_up_are_skipped() {
        let gate = FairGate::new(1);
        let first = gate.acquire(1).now_or_never().unwrap();
        let mut waiting: Vec<_> =
            [1, 1, 1, 2, 3].into_iter().map(|client| (client, Box::pin(gate.acquire(client)))).collect();
        assert!(waiting.iter_mut().all(|(_, waiter)| waiter.now_or_never().is_none()));
        // The second waiter of client 1 and the only one of client 3 give up.
        drop((waiting.remove(4), waiting.remove(1)));
        let mut held = Some(first);
        let mut served = Vec::new();
        while !waiting.is_empty() {
            held = None;
            let next = waiting.iter_mut().position(|(_, waiter)| {
                held = waiter.now_or_never();
                held.is_some()
            });
            served.push(waiting.remove(next.unwrap()).0);
        }
        assert_eq!(served, [1, 2, 1]);
        drop(held);
        assert!(gate.acquire(9).now_or_never().is_some(), "a permit was lost");
        assert_eq!((gate.taken(), gate.lock().held.len()), (0, 0));
    }

    #[test]
    fn a_client_takes_three_quarters_and_the_rest_is_for_clients_without_a_permit() {
        for (permits, general) in [(1, 1), (2, 1), (3, 2), (4, 3), (5, 3), (64, 48), (256, 192)] {
            let gate = FairGate::new(permits);
            let take = |client| gate.acquire(client).now_or_never();
            let mut held: Vec<Permit> = std::iter::from_fn(|| take(1)).collect();
            assert_eq!(held.len(), general, "of {permits}");
            let others = (2..).map_while(take).collect::<Vec<_>>();
            assert_eq!(held.len() + others.len(), permits);
            assert!(others.iter().all(|permit| permit.is_first));
            held.pop();
            assert_eq!(take(1).is_some(), general == 1, "a client that still holds some gets no more");
            assert!(take(999).is_some());
        }
    }

    #[test]
    fn a_client_whose_last_permit_ends_gets_the_next_one_from_the_reserve() {
        let gate = FairGate::new(4);
        let _many: Vec<Permit> = std::iter::from_fn(|| gate.acquire(1).now_or_never()).collect();
        let only = gate.acquire(2).now_or_never().unwrap();
        let mut first = Box::pin(gate.acquire(1));
        let mut second = Box::pin(gate.acquire(2));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        drop(only);
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_some_and(|permit| permit.is_first));
    }
}
