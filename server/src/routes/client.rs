//! The identity of a client. The engine schedules clients fairly, so that the batch of one does not delay the
//! others.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use axum::http::request::Parts;

use crate::keys::ClientKey;
use crate::listen::client_address;
use crate::request::Client;
use crate::state::AppState;

/// Identifies a client: by its API key, which the check of keys has found, otherwise by its address, which
/// the accept loop stores in [`ConnectInfo`] (in IPv6 the /64 network).
pub(super) fn client(app: &AppState, parts: &Parts) -> Client {
    let key: Option<&ClientKey> = parts.extensions.get();
    let address = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(from)| from.ip());
    let has_own_prefixes = key.is_some() && !app.settings.share_prefix_cache;
    let id = match key {
        Some(key) => key.id(),
        None => {
            let mut hasher = DefaultHasher::new();
            address.map(client_address).hash(&mut hasher);
            hasher.finish()
        }
    };
    Client { id, has_own_prefixes }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::{Request, header};
    use clap::Parser;

    use super::*;
    use crate::config::{Args, Config};
    use crate::keys::ApiKeys;
    use crate::metrics::Metrics;
    use crate::settings::HttpSettings;

    fn id(keys: &[&str], key: &str, address: &str) -> u64 {
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        let api_keys = ApiKeys::read(keys, None).unwrap();
        let config = Config::try_from(Args::try_parse_from(["ntl-server"]).unwrap()).unwrap();
        let settings = HttpSettings { api_keys, ..config.http };
        let app = AppState::new(settings, Arc::new(Metrics::new().unwrap()));
        let address: SocketAddr = address.parse().unwrap();
        let request = Request::builder().header(header::AUTHORIZATION, key).extension(ConnectInfo(address));
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        if let Some(key) = app.settings.api_keys.matched(&parts.headers) {
            parts.extensions.insert(key);
        }
        client(&app, &parts).id
    }

    #[test]
    fn requests_share_a_salt_if_their_text_is_equal_and_their_key_or_all_keys_share_a_cache() {
        let salts = |own| {
            let client = |id| Client { id, has_own_prefixes: own };
            [(1, None), (2, None), (1, Some("a")), (2, Some("a")), (1, Some("b"))]
                .map(|(id, text)| client(id).cache_salt(text))
        };
        let [first, second, first_a, second_a, first_b] = salts(false);
        assert_eq!((first, second), (0, 0));
        assert!(first_a == second_a && first_a != first && first_a != first_b);
        let own = salts(true);
        for (index, salt) in own.iter().enumerate() {
            assert!(*salt != 0 && !own[..index].contains(salt), "{own:?}");
        }
    }

    #[test]
    fn a_client_is_identified_by_its_key_if_keys_are_checked_and_otherwise_by_its_address() {
        let keys = ["a", "b"];
        assert_eq!(id(&keys, "Bearer a", "1.1.1.1:5"), id(&keys, "Bearer a", "2.2.2.2:6"));
        assert_eq!(id(&keys, "Bearer a", "1.1.1.1:5"), id(&keys, "bEaReR  a ", "1.1.1.1:5"));
        assert_ne!(id(&keys, "Bearer a", "1.1.1.1:5"), id(&keys, "Bearer b", "1.1.1.1:5"));
        assert_eq!(id(&[], "Bearer a", "1.1.1.1:5"), id(&[], "Bearer b", "1.1.1.1:6"));
        assert_ne!(id(&[], "Bearer a", "1.1.1.1:5"), id(&[], "Bearer a", "2.2.2.2:5"));
        assert_eq!(id(&[], "", "[2001:db8::1]:5"), id(&[], "", "[2001:db8::ffff:2]:6"));
        assert_ne!(id(&[], "", "[2001:db8::1]:5"), id(&[], "", "[2001:db8:0:1::1]:5"));
        assert_eq!(id(&[], "", "1.1.1.1:5"), id(&[], "", "[::ffff:1.1.1.1]:5"));
    }
}
