//! The identity of a client. Requests of different clients take turns, so that the batch of one does not delay the others.

use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;

use crate::state::AppState;

/// The same number for the same client: for its API key where keys are checked, else for its address, which the accept
/// loop stores in [`ConnectInfo`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Client(pub(crate) u64);

impl FromRequestParts<AppState> for Client {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Infallible> {
        let key = app.settings.api_keys.matched(&parts.headers);
        let address = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(from)| from.ip());
        let mut hasher = DefaultHasher::new();
        match key {
            Some(key) => key.hash(&mut hasher),
            None => address.hash(&mut hasher),
        }
        Ok(Self(hasher.finish()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::{Request, header};
    use clap::Parser;

    use super::*;
    use crate::config::{Args, Config};
    use crate::metrics::Metrics;
    use crate::settings::{ApiKeys, HttpSettings};

    async fn client(keys: &[&str], key: &str, address: &str) -> Client {
        let api_keys = ApiKeys::new(keys.iter().map(|&key| key.to_owned()));
        let config = Config::try_from(Args::try_parse_from(["ntl-server"]).unwrap()).unwrap();
        let settings = HttpSettings { api_keys, ..config.http };
        let app = AppState::new(settings, Arc::new(Metrics::new().unwrap()));
        let address: SocketAddr = address.parse().unwrap();
        let request = Request::builder().header(header::AUTHORIZATION, key).extension(ConnectInfo(address));
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let Ok(client) = Client::from_request_parts(&mut parts, &app).await;
        client
    }

    #[tokio::test]
    async fn a_client_is_its_key_where_keys_are_checked_and_else_its_address() {
        let keys = ["a", "b"];
        let of = async |keys: &[&str], key, address| client(keys, key, address).await;
        assert_eq!(of(&keys, "Bearer a", "1.1.1.1:5").await, of(&keys, "Bearer a", "2.2.2.2:6").await);
        assert_eq!(of(&keys, "Bearer a", "1.1.1.1:5").await, of(&keys, "bEaReR  a ", "1.1.1.1:5").await);
        assert_ne!(of(&keys, "Bearer a", "1.1.1.1:5").await, of(&keys, "Bearer b", "1.1.1.1:5").await);
        assert_eq!(of(&[], "Bearer a", "1.1.1.1:5").await, of(&[], "Bearer b", "1.1.1.1:6").await);
        assert_ne!(of(&[], "Bearer a", "1.1.1.1:5").await, of(&[], "Bearer a", "2.2.2.2:5").await);
    }
}
