//! The open connections of a listener, and which one is evicted when a new one finds no place.
//!
//! A connection finds no place when all are taken, or when its address holds its share of them. Only a
//! connection whose client the server has waited for for `evict_after` is evicted: the longest waiting one of
//! all, or of the address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::connection::Closing;
use super::{Connection, ConnectionSettings};

pub(super) struct ConnectionTable {
    settings: ConnectionSettings,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    accepted: u64,
    connections: HashMap<u64, OpenConnection>,
}

struct OpenConnection {
    connection: Arc<Connection>,
    address: IpAddr,
}

/// Some of the open connections.
#[derive(Clone, Copy)]
enum Among {
    All,
    Address(IpAddr),
}

impl OpenConnections {
    /// Those that leave no place for one more of this address.
    fn crowd(&self, address: IpAddr, settings: &ConnectionSettings) -> Option<Among> {
        let of_address = self.connections.values().filter(|open| open.address == address).count();
        if of_address >= settings.address_connections_max {
            Some(Among::Address(address))
        } else {
            (self.connections.len() >= settings.connections_max).then_some(Among::All)
        }
    }

    /// The one whose client the server has waited for longest, for at least `evict_after`.
    fn slowest(&self, evict_after: Duration, among: Among) -> Option<u64> {
        let now = Instant::now();
        let mut slowest = None;
        for (&id, open) in &self.connections {
            if let Among::Address(address) = among
                && address != open.address
            {
                continue;
            }
            let Some(since) = open.connection.state().waiting_since() else { continue };
            if slowest.is_none_or(|earliest| (since, id) < earliest) {
                slowest = Some((since, id));
            }
        }
        let (since, id) = slowest?;
        (now.saturating_duration_since(since) >= evict_after).then_some(id)
    }

    fn close(&mut self, id: u64, closing: Closing) {
        match closing {
            Closing::Now(_) => {
                if let Some(open) = self.connections.remove(&id) {
                    open.connection.close(closing);
                }
            }
            // It keeps its place until it is closed.
            Closing::Gracefully(_) => {
                if let Some(open) = self.connections.get(&id) {
                    open.connection.close(closing);
                }
            }
        }
    }
}

impl ConnectionTable {
    pub(super) fn new(settings: ConnectionSettings) -> Self {
        Self { settings, open: Mutex::default() }
    }

    /// Returns whether there is a free slot, or a connection to evict.
    pub(super) fn has_room(&self) -> bool {
        let open = self.open();
        open.connections.len() < self.settings.connections_max
            || open.slowest(self.settings.evict_after, Among::All).is_some()
    }

    /// A place for a connection from this address, if there is one or a connection can be evicted for it.
    pub(super) fn add(self: &Arc<Self>, address: IpAddr) -> Option<Slot> {
        let mut open = self.open();
        if let Some(crowd) = open.crowd(address, &self.settings) {
            let evicted = open.slowest(self.settings.evict_after, crowd)?;
            open.close(evicted, Closing::Now("a new connection needed its place"));
        }
        Some(self.insert(&mut open, address))
    }

    /// A place for a connection from this address, if there is one.
    pub(super) fn add_to_free_place(self: &Arc<Self>, address: IpAddr) -> Option<Slot> {
        let mut open = self.open();
        open.crowd(address, &self.settings).is_none().then(|| self.insert(&mut open, address))
    }

    fn insert(self: &Arc<Self>, open: &mut OpenConnections, address: IpAddr) -> Slot {
        open.accepted += 1;
        let id = open.accepted;
        let connection = Arc::new(Connection::new());
        open.connections.insert(id, OpenConnection { connection: Arc::clone(&connection), address });
        Slot { table: Arc::clone(self), id, connection }
    }

    /// Evicts the connection whose client the server has waited for longest, if it has for long enough.
    pub(super) fn evict_slowest(&self) {
        let mut open = self.open();
        if let Some(slowest) = open.slowest(self.settings.evict_after, Among::All) {
            open.close(slowest, Closing::Now("no file descriptor is left"));
        }
    }

    /// Ends the streams and closes the connections that have passed a deadline.
    pub(super) fn close_overdue(&self) {
        let now = Instant::now();
        let mut open = self.open();
        let mut overdue = Vec::new();
        for (&id, connection) in &open.connections {
            let mut state = connection.connection.state();
            state.end_overdue_streams(&self.settings, now);
            if let Some(closing) = state.overdue(&self.settings, now) {
                overdue.push((id, closing));
            }
        }
        for (id, closing) in overdue {
            open.close(id, closing);
        }
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection in the table. Dropping it frees the place.
pub(super) struct Slot {
    table: Arc<ConnectionTable>,
    id: u64,
    connection: Arc<Connection>,
}

impl Slot {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.table.open().connections.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::FutureExt;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

    fn table(
        connections_max: usize,
        address_connections_max: usize,
        evict_after: Duration,
    ) -> Arc<ConnectionTable> {
        Arc::new(ConnectionTable::new(ConnectionSettings {
            connections_max,
            address_connections_max,
            waiting_max: 0,
            evict_after,
            header_time_max: Duration::MAX,
            idle_time_max: Duration::MAX,
            write_time_max: Duration::MAX,
            answer_time_max: Duration::MAX,
        }))
    }

    fn is_evicted(slot: &Slot) -> bool {
        slot.connection.closed(false).now_or_never().is_some()
    }

    #[test]
    fn a_new_connection_evicts_the_longest_waiting_one_and_never_one_at_work() {
        let table = table(3, 3, Duration::ZERO);
        let slots: Vec<Slot> = (0..3).map(|_| table.add(HERE).unwrap()).collect();
        let working = slots[0].connection.begin(None);
        let newcomer = table.add(HERE).unwrap();
        assert_eq!(slots.iter().map(is_evicted).collect::<Vec<_>>(), [false, true, false]);
        let more = [slots[2].connection.begin(None), newcomer.connection.begin(None)];
        assert!(!table.has_room() && table.add(HERE).is_none(), "all are at work");
        drop(working);
        assert!(table.has_room());
        drop(more);
        drop((slots, newcomer));
        assert_eq!(table.open().connections.len(), 0);
    }

    #[test]
    fn a_connection_that_has_just_come_is_not_evicted() {
        let table = table(2, 2, Duration::from_secs(1));
        let slots = [table.add(HERE).unwrap(), table.add(THERE).unwrap()];
        assert!(!table.has_room() && table.add(HERE).is_none());
        table.evict_slowest();
        assert!(!slots.iter().any(is_evicted));
    }

    #[test]
    fn an_address_that_holds_its_share_gets_only_the_places_of_its_own_connections() {
        let table = table(4, 2, Duration::ZERO);
        let other = table.add(THERE).unwrap();
        let busy = table.add(HERE).unwrap();
        let working = busy.connection.begin(None);
        let waiting = table.add(HERE).unwrap();
        let next = table.add(HERE).unwrap();
        assert!(is_evicted(&waiting) && !is_evicted(&other) && !is_evicted(&busy));
        let more = next.connection.begin(None);
        assert!(table.add(HERE).is_none() && table.has_room(), "there are places for others");
        assert!(table.add(THERE).is_some());
        drop((working, more));
        assert!(table.add(HERE).is_some());
    }
}
