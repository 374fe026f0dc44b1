//! A limit of concurrent work. Clients that wait for it are served round-robin, so that a client with many
//! jobs delays another client by one permit at most.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

pub(super) struct FairGate {
    permits: usize,
    state: Mutex<GateState>,
}

struct GateState {
    free: usize,
    /// Clients with waiters, in the order in which they will be served.
    clients: VecDeque<ClientWaiters>,
}

struct ClientWaiters {
    client: u64,
    waiters: VecDeque<oneshot::Sender<Permit>>,
}

/// The right to work. Dropping it passes it on.
pub(super) struct Permit {
    /// `None` once it is passed on.
    gate: Option<Arc<FairGate>>,
}

impl FairGate {
    pub(super) fn new(permits: usize) -> Arc<Self> {
        let permits = permits.max(1);
        let state = GateState { free: permits, clients: VecDeque::new() };
        Arc::new(Self { permits, state: Mutex::new(state) })
    }

    /// Number of permits that are taken.
    pub(super) fn taken(&self) -> usize {
        self.permits - self.lock().free
    }

    /// Waits for a permit. Dropping the future gives up the place in the queue.
    pub(super) async fn acquire(self: &Arc<Self>, client: u64) -> Permit {
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
        if state.free > 0 {
            state.free -= 1;
            return Ok(Permit { gate: Some(Arc::clone(self)) });
        }
        let (sender, receiver) = oneshot::channel();
        match state.clients.iter_mut().find(|waiting| waiting.client == client) {
            Some(waiting) => waiting.waiters.push_back(sender),
            None => state.clients.push_back(ClientWaiters { client, waiters: [sender].into() }),
        }
        Err(receiver)
    }

    /// Passes a permit to the next waiter that still waits.
    fn pass_on(self: Arc<Self>) {
        while let Some(waiter) = self.next_or_free() {
            match waiter.send(Permit { gate: Some(Arc::clone(&self)) }) {
                Ok(()) => return,
                // The waiter has given up. Its permit goes to the next one.
                Err(mut refused) => refused.gate = None,
            }
        }
    }

    /// Removes the next waiter of the next client. If nothing waits, the permit becomes free.
    fn next_or_free(&self) -> Option<oneshot::Sender<Permit>> {
        let mut state = self.lock();
        let Some(mut next) = state.clients.pop_front() else {
            state.free += 1;
            return None;
        };
        let waiter = next.waiters.pop_front();
        if !next.waiters.is_empty() {
            state.clients.push_back(next);
        }
        waiter
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.pass_on();
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
        assert_eq!(gate.lock().free, 1);
    }
}
