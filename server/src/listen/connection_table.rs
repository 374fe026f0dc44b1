//! The open connections of a listener, and which one is evicted when all slots are taken.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    connections: HashMap<u64, Arc<Connection>>,
}

impl OpenConnections {
    /// The connection whose client the server has waited for longest; `None` if the server works on all of them.
    fn slowest(&self) -> Option<u64> {
        let waiting =
            |(&id, connection): (&u64, &Arc<Connection>)| Some((connection.state().waiting_since()?, id));
        self.connections.iter().filter_map(waiting).min().map(|(_, id)| id)
    }

    fn evict(&mut self, id: u64, reason: &'static str) {
        if let Some(connection) = self.connections.remove(&id) {
            connection.close(Closing::Now(reason));
        }
    }
}

impl ConnectionTable {
    pub(super) fn new(settings: ConnectionSettings) -> Self {
        Self { settings, open: Mutex::default() }
    }

    /// Whether one more connection can be accepted: a slot is free, or a connection can be evicted.
    pub(super) fn has_room(&self) -> bool {
        let open = self.open();
        open.connections.len() < self.settings.connections_max || open.slowest().is_some()
    }

    /// A slot for a new connection. Where all slots are taken, the slowest connection is evicted.
    pub(super) fn add(self: &Arc<Self>) -> Slot {
        let mut open = self.open();
        if open.connections.len() >= self.settings.connections_max
            && let Some(slowest) = open.slowest()
        {
            open.evict(slowest, "a new connection needed its slot");
        }
        open.accepted += 1;
        let (id, connection) = (open.accepted, Arc::new(Connection::new()));
        open.connections.insert(id, Arc::clone(&connection));
        Slot { table: Arc::clone(self), id, connection }
    }

    /// Evicts the connection whose client the server has waited for longest, if there is one.
    pub(super) fn evict_slowest(&self) {
        let mut open = self.open();
        if let Some(slowest) = open.slowest() {
            open.evict(slowest, "no file descriptor is left");
        }
    }

    /// Ends the streams and closes the connections that have passed a deadline.
    pub(super) fn close_overdue(&self) {
        let now = Instant::now();
        let mut open = self.open();
        let overdue = |(&id, connection): (&u64, &Arc<Connection>)| {
            let mut state = connection.state();
            state.end_overdue_streams(&self.settings, now);
            state.overdue(&self.settings, now).map(|closing| (id, closing))
        };
        let overdue: Vec<_> = open.connections.iter().filter_map(overdue).collect();
        for (id, closing) in overdue {
            match closing {
                Closing::Now(reason) => open.evict(id, reason),
                Closing::Gracefully(_) => {
                    if let Some(connection) = open.connections.get(&id) {
                        connection.close(closing);
                    }
                }
            }
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
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;

    fn is_evicted(slot: &Slot) -> bool {
        slot.connection.closed(false).now_or_never().is_some()
    }

    #[test]
    fn a_new_connection_evicts_the_longest_waiting_one_and_never_one_at_work() {
        let settings = ConnectionSettings {
            connections_max: 3,
            header_time_max: Duration::MAX,
            idle_time_max: Duration::MAX,
            write_time_max: Duration::MAX,
            answer_time_max: Duration::MAX,
        };
        let table = Arc::new(ConnectionTable::new(settings));
        let slots: Vec<Slot> = (0..3).map(|_| table.add()).collect();
        let working = slots[0].connection.begin(None);
        let newcomer = table.add();
        assert_eq!(slots.iter().map(is_evicted).collect::<Vec<_>>(), [false, true, false]);
        let more = [slots[2].connection.begin(None), newcomer.connection.begin(None)];
        assert!(!table.has_room(), "all are at work");
        drop(working);
        assert!(table.has_room());
        drop(more);
        drop((slots, newcomer));
        assert_eq!(table.open().connections.len(), 0);
    }
}
