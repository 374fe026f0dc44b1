//! File descriptors: every connection takes one, and the operating system limits them (`ulimit -n`).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{ADMIN_CONNECTIONS_MAX, ADMIN_WAITING_MAX, ConnectionSettings};

/// Descriptors that are kept free of clients: for files, the sockets that listen, the runtime.
const OTHERS: usize = 32;

/// Descriptors of the operators' connections.
const ADMIN: usize = ADMIN_CONNECTIONS_MAX + ADMIN_WAITING_MAX;

impl ConnectionSettings {
    /// Raises the limit of file descriptors, and returns settings with at most as many connections as there
    /// are descriptors, apart from those of the operators' port if there is one.
    pub(crate) fn within_descriptors(self, has_admin: bool) -> Self {
        let admin = if has_admin { ADMIN } else { 0 };
        let needed = self.connections_max + self.waiting_max + OTHERS + admin;
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let wanted = u64::try_from(needed).ok().map(|needed| needed.min(maximum.unwrap_or(needed)));
        let limit = match (current, wanted) {
            (Some(current), Some(wanted)) if current < wanted => {
                let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
                raised.map_or(current, |()| wanted)
            }
            (Some(current), _) => current,
            (None, _) => return self,
        };
        let limit_of_clients = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(admin);
        let fitting = self.within(limit_of_clients);
        if fitting != self {
            let connections = fitting.connections_max;
            tracing::warn!(limit, connections, "file descriptors (`ulimit -n`) limit the connections");
        }
        fitting
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
}
