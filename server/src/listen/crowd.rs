//! All connections of a listener: who may stay, and who makes room.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Connection, ConnectionSettings};

/// The open connections.
pub(super) struct Crowd {
    settings: ConnectionSettings,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    seen: u64,
    connections: HashMap<u64, Arc<Connection>>,
}

impl Inside {
    /// The connection that has kept the server waiting for longest.
    fn slowest(&self) -> Option<u64> {
        let waiting = |(&id, connection): (&u64, &Arc<Connection>)| Some((connection.waiting_since()?, id));
        self.connections.iter().filter_map(waiting).min().map(|(_, id)| id)
    }

    fn send_away(&mut self, id: u64, why: &'static str) {
        if let Some(connection) = self.connections.remove(&id) {
            connection.go(why);
        }
    }
}

impl Crowd {
    /// Nobody yet.
    pub(super) fn new(settings: ConnectionSettings) -> Self {
        Self { settings, inside: Mutex::default() }
    }

    /// Whether one more may come: there is a place, or somebody whose place it can have.
    pub(super) fn has_room(&self) -> bool {
        let inside = self.inside();
        inside.connections.len() < self.settings.connections_max || inside.slowest().is_some()
    }

    /// Lets one more in; where all places are taken, the slowest makes room.
    pub(super) fn enter(self: &Arc<Self>) -> Member {
        let mut inside = self.inside();
        if inside.connections.len() >= self.settings.connections_max
            && let Some(slowest) = inside.slowest()
        {
            inside.send_away(slowest, "it made room for another");
        }
        inside.seen += 1;
        let (id, connection) = (inside.seen, Arc::new(Connection::new()));
        inside.connections.insert(id, Arc::clone(&connection));
        Member { crowd: Arc::clone(self), id, connection }
    }

    /// Closes the connection that has kept the server waiting for longest, if there is one.
    pub(super) fn close_slowest(&self) {
        let mut inside = self.inside();
        if let Some(slowest) = inside.slowest() {
            inside.send_away(slowest, "no descriptor is left");
        }
    }

    /// Closes all connections that are beyond a deadline.
    pub(super) fn close_overdue(&self) {
        let mut inside = self.inside();
        let overdue = |(&id, connection): (&u64, &Arc<Connection>)| {
            connection.overdue(&self.settings).map(|why| (id, why))
        };
        let overdue: Vec<_> = inside.connections.iter().filter_map(overdue).collect();
        for (id, why) in overdue {
            inside.send_away(id, why);
        }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place, until this is dropped.
pub(super) struct Member {
    crowd: Arc<Crowd>,
    id: u64,
    connection: Arc<Connection>,
}

impl Member {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.crowd.inside().connections.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn is_sent_away(member: &Member) -> bool {
        member.connection.told_to_go().now_or_never().is_some()
    }

    #[test]
    fn a_newcomer_takes_the_place_of_the_longest_waiting_and_never_of_one_at_work() {
        let crowd =
            Arc::new(Crowd::new(ConnectionSettings { connections_max: 3, ..ConnectionSettings::default() }));
        let members: Vec<Member> = (0..3).map(|_| crowd.enter()).collect();
        let working = members[0].connection.begin();
        let newcomer = crowd.enter();
        assert_eq!(members.iter().map(is_sent_away).collect::<Vec<_>>(), [false, true, false]);
        let more = [members[2].connection.begin(), newcomer.connection.begin()];
        assert!(!crowd.has_room(), "all are at work");
        drop(working);
        assert!(crowd.has_room());
        drop(more);
        drop((members, newcomer));
        assert_eq!(crowd.inside().connections.len(), 0);
    }
}
