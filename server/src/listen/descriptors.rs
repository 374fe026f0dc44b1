//! File descriptors: every connection takes one, and the operating system limits them (`ulimit -n`). Clients
//! and engines on other servers share them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{ADMIN_CONNECTIONS_MAX, ADMIN_WAITING_MAX, ConnectionSettings};

/// Descriptors that are kept free of clients: for files, the sockets that listen, the runtime.
const OTHERS: usize = 32;

/// Descriptors of the operators' connections.
const ADMIN: usize = ADMIN_CONNECTIONS_MAX + ADMIN_WAITING_MAX;

impl ConnectionSettings {
    /// Raises the limit of file descriptors. If there are still too few, lowers the number of connections of
    /// clients, and of `upstream` connections to engines, until each has a descriptor. The connections of the
    /// operators' port, if there is one, keep theirs.
    pub(crate) fn within_descriptors(self, upstream: usize, has_admin: bool) -> (Self, usize) {
        let admin = if has_admin { ADMIN } else { 0 };
        let needed = self.connections_max + self.waiting_max + upstream + OTHERS + admin;
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let wanted = u64::try_from(needed).ok().map(|needed| needed.min(maximum.unwrap_or(needed)));
        let limit = match (current, wanted) {
            (Some(current), Some(wanted)) if current < wanted => {
                let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
                raised.map_or(current, |()| wanted)
            }
            (Some(current), _) => current,
            (None, _) => return (self, upstream),
        };
        let shared = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(admin);
        let fitting = self.divided(upstream, shared);
        if fitting != (self, upstream) {
            let (ConnectionSettings { connections_max: connections, .. }, to_engines) = fitting;
            tracing::warn!(
                limit,
                connections,
                to_engines,
                "file descriptors (`ulimit -n`) limit the connections"
            );
        }
        fitting
    }

    /// Divides this many descriptors. If there are too few, connections to engines get at most a third.
    fn divided(self, upstream: usize, descriptors: usize) -> (Self, usize) {
        let clients = self.connections_max + self.waiting_max + OTHERS;
        if clients.saturating_add(upstream) <= descriptors {
            return (self, upstream);
        }
        let upstream = upstream.min(descriptors.saturating_sub(OTHERS) / 3);
        (self.within(descriptors.saturating_sub(upstream)), upstream)
    }

    /// Returns the settings for this many descriptors. If there are too few, a quarter of them is for waiting
    /// connections.
    fn within(self, descriptors: usize) -> Self {
        let available = descriptors.saturating_sub(OTHERS).max(2);
        if available >= self.connections_max + self.waiting_max {
            return self;
        }
        let waiting_max = self.waiting_max.min(available / 4);
        let connections_max = self.connections_max.min(available - waiting_max);
        let share = self.address_connections_max * connections_max / self.connections_max;
        Self { connections_max, waiting_max, address_connections_max: share.max(1), ..self }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::config::{Args, Config};

    #[test]
    fn few_descriptors_are_shared_out_and_enough_of_them_change_nothing() {
        let config = Config::try_from(Args::try_parse_from(["ntl-server"]).unwrap()).unwrap();
        let limits = |descriptors| {
            let fitting = config.connections.within(descriptors);
            (fitting.connections_max, fitting.address_connections_max, fitting.waiting_max)
        };
        assert_eq!(limits(4096), (2048, 1792, 1024));
        assert_eq!(limits(1024), (744, 651, 248));
        assert_eq!(limits(64), (24, 21, 8));
        assert_eq!(limits(8), (2, 1, 0));
    }

    #[test]
    fn connections_to_engines_count_and_get_at_most_a_third_of_few_descriptors() {
        let config = Config::try_from(Args::try_parse_from(["ntl-server"]).unwrap()).unwrap();
        let divided = |descriptors| {
            let (clients, upstream) = config.connections.divided(418, descriptors);
            assert!(clients.connections_max + clients.waiting_max + upstream + 32 <= descriptors.max(34));
            (clients.connections_max, upstream)
        };
        assert_eq!(divided(3104 + 418), (2048, 418));
        assert_eq!(divided(3104 + 417), (2048, 418));
        assert_eq!(divided(1024), (497, 330));
        assert_eq!(divided(32), (2, 0));
    }
}
