//! Requests through trusted proxies become requests of their clients.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Request, State};

use crate::state::AppState;

/// A layer that replaces the address of a trusted proxy by its client's.
pub(crate) async fn resolve(State(app): State<AppState>, mut request: Request) -> Request {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| *peer);
    if let Some(peer) = peer {
        let client = app.settings.trusted_proxies.client(peer.ip(), request.headers());
        request.extensions_mut().insert(ConnectInfo(SocketAddr::new(client, peer.port())));
    }
    request
}
