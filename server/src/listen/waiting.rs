//! Connections that are accepted but not read yet, because their address already uses its share of the slots.
//!
//! Waiting connections get slots in order of arrival. A connection that has waited longer than `evict_after`
//! is *overdue*: slow clients hold the slots of its address, and its own client has probably given up.
//! Overdue connections are served last, newest first, and evict others one by one, so that a new connection
//! nearly always finds one that it may evict.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::ConnectionSettings;
use super::connection_table::{ConnectionTable, Slot};

/// The table is searched at every eviction.
const PACE_MIN: Duration = Duration::from_millis(5);

/// An accepted connection without a slot.
pub(super) struct WaitingConnection<S> {
    pub(super) stream: S,
    /// The address that it counts for.
    pub(super) address: IpAddr,
    pub(super) since: Instant,
}

pub(super) struct WaitingList<S> {
    waiting_max: usize,
    overdue_after: Duration,
    /// Time between two evictions for those that are overdue, so that they take the places of an address in
    /// `evict_after`.
    pace: Duration,
    next_eviction: Instant,
    /// In order of arrival.
    connections: VecDeque<WaitingConnection<S>>,
}

impl<S> WaitingList<S> {
    pub(super) fn new(settings: &ConnectionSettings) -> Self {
        let places = u32::try_from(settings.address_connections_max).unwrap_or(u32::MAX).max(1);
        Self {
            waiting_max: settings.waiting_max,
            overdue_after: settings.evict_after,
            pace: (settings.evict_after / places).max(PACE_MIN),
            next_eviction: Instant::now(),
            connections: VecDeque::new(),
        }
    }

    /// Adds a connection. If there are too many, returns the one to close: the first one if it is overdue,
    /// otherwise the new one.
    #[must_use]
    pub(super) fn push(&mut self, newcomer: WaitingConnection<S>) -> Option<WaitingConnection<S>> {
        let now = newcomer.since;
        if self.connections.len() < self.waiting_max {
            self.connections.push_back(newcomer);
            return None;
        }
        let first = self.connections.pop_front_if(|first| is_overdue(first, self.overdue_after, now));
        match first {
            Some(first) => {
                self.connections.push_back(newcomer);
                Some(first)
            }
            None => Some(newcomer),
        }
    }

    /// Serves those that find a place now.
    pub(super) fn serve(
        &mut self,
        table: &Arc<ConnectionTable>,
        now: Instant,
        mut serve: impl FnMut(S, Slot),
    ) {
        // Those that arrived first are overdue first.
        let overdue = self.connections.partition_point(|one| is_overdue(one, self.overdue_after, now));
        let in_turn = (overdue..self.connections.len()).chain((0..overdue).rev());
        let mut full = HashSet::new();
        let mut served = Vec::new();
        for index in in_turn {
            let address = self.connections[index].address;
            if full.contains(&address) {
                continue;
            }
            let slot = if index >= overdue {
                table.add(address)
            } else if now < self.next_eviction {
                table.add_to_free_place(address)
            } else {
                self.next_eviction = now + self.pace;
                table.add(address)
            };
            match slot {
                Some(slot) => served.push((index, slot)),
                None => {
                    full.insert(address);
                }
            }
        }
        // From the last one, so that the others keep their numbers.
        served.sort_unstable_by_key(|&(index, _)| std::cmp::Reverse(index));
        for (index, slot) in served {
            if let Some(connection) = self.connections.remove(index) {
                serve(connection.stream, slot);
            }
        }
    }

    /// Returns when an overdue connection may evict another one next, or `None` if none is waiting.
    pub(super) fn next_eviction(&self) -> Option<Instant> {
        let first = self.connections.front()?;
        Some(self.next_eviction.max(first.since + self.overdue_after))
    }
}

fn is_overdue<S>(one: &WaitingConnection<S>, overdue_after: Duration, now: Instant) -> bool {
    now.saturating_duration_since(one.since) >= overdue_after
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const SECOND: Duration = Duration::from_secs(1);

    /// Four places, which silent clients hold, and others who wait.
    struct Crowd {
        list: WaitingList<&'static str>,
        table: Arc<ConnectionTable>,
        slots: Vec<Slot>,
        now: Instant,
    }

    impl Crowd {
        fn new(evict_after: Duration, waiting_max: usize, names: &[&'static str]) -> Self {
            let settings = ConnectionSettings {
                connections_max: 8,
                address_connections_max: 4,
                waiting_max,
                evict_after: SECOND,
                header_time_max: Duration::MAX,
                idle_time_max: Duration::MAX,
                write_time_max: Duration::MAX,
                answer_time_max: Duration::MAX,
            };
            let table = Arc::new(ConnectionTable::new(ConnectionSettings { evict_after, ..settings }));
            let slots = (0..4).map(|_| table.add(HERE).unwrap()).collect();
            let mut crowd = Self { list: WaitingList::new(&settings), table, slots, now: Instant::now() };
            for name in names {
                assert_eq!(crowd.arrive(name), None);
            }
            crowd
        }

        fn arrive(&mut self, stream: &'static str) -> Option<&'static str> {
            self.list
                .push(WaitingConnection { stream, address: HERE, since: self.now })
                .map(|closed| closed.stream)
        }

        fn served(&mut self) -> Vec<&'static str> {
            let mut served = Vec::new();
            self.list.serve(&self.table, self.now, |name, slot| {
                served.push(name);
                self.slots.push(slot);
            });
            served.sort_unstable();
            served
        }
    }

    #[test]
    fn clients_are_served_in_order_of_arrival_while_places_come_free() {
        let mut crowd = Crowd::new(Duration::MAX, 9, &["a", "b", "c"]);
        assert_eq!(crowd.served(), [""; 0]);
        crowd.slots.truncate(2);
        assert_eq!(crowd.served(), ["a", "b"]);
        crowd.slots.remove(0);
        assert_eq!(crowd.served(), ["c"]);
    }

    #[test]
    fn overdue_clients_evict_one_by_one_the_newest_first_and_newcomers_evict_at_once() {
        let mut crowd = Crowd::new(Duration::ZERO, 9, &["a", "b", "c", "d"]);
        crowd.now += SECOND;
        assert_eq!(crowd.arrive("newcomer"), None);
        assert_eq!(crowd.served(), ["d", "newcomer"]);
        assert_eq!(crowd.served(), [""; 0]);
        assert_eq!(crowd.list.next_eviction(), Some(crowd.now + SECOND / 4));
        crowd.now += SECOND / 4;
        assert_eq!(crowd.served(), ["c"]);
        crowd.slots.pop();
        assert_eq!(crowd.served(), ["b"], "a place that is free needs no eviction");
    }

    #[test]
    fn where_too_many_wait_the_first_is_closed_once_it_is_overdue_else_the_newcomer() {
        let mut crowd = Crowd::new(Duration::MAX, 2, &["a", "b"]);
        assert_eq!(crowd.arrive("c"), Some("c"));
        crowd.now += SECOND;
        assert_eq!(crowd.arrive("d"), Some("a"));
    }
}
