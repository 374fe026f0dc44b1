//! The addresses of clients behind reverse proxies (`--trusted-proxies`).

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Networks of reverse proxies whose `X-Forwarded-For` is believed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }

    fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Returns the last address on the way to the server that is not a trusted proxy. Each proxy appends the
    /// address that it was connected from, so the addresses before that may be made up.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer;
        let values = headers.get_all(FORWARDED_FOR).iter().rev();
        let named = values.flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b','));
        for address in named {
            if !self.has(client) {
                break;
            }
            let Some(before) = address_of(address) else { break };
            client = before;
        }
        client
    }
}

/// Reads an address, which some proxies write with its port.
fn address_of(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let address = match text.parse::<IpAddr>() {
        Ok(address) => address,
        Err(_) => text.parse::<SocketAddr>().ok()?.ip(),
    };
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_the_last_address_that_no_trusted_proxy_has() {
        let proxies = ["10.0.0.0/8", "2001:db8::/32"].map(|network| network.parse().unwrap());
        let proxies = TrustedProxies::new(proxies.to_vec());
        for (peer, forwarded, want) in [
            ("10.0.0.1", &["1.1.1.1"][..], "1.1.1.1"),
            ("::ffff:10.0.0.1", &["1.1.1.1"], "1.1.1.1"),
            ("10.0.0.1", &["6.6.6.6, 1.1.1.1"], "1.1.1.1"),
            ("10.0.0.1", &["6.6.6.6", "1.1.1.1,10.0.0.2"], "1.1.1.1"),
            ("10.0.0.1", &["1.1.1.1:80 , [2001:db8::1]:443"], "1.1.1.1"),
            ("10.0.0.1", &["10.0.0.3"], "10.0.0.3"),
            ("10.0.0.1", &["1.1.1.1, unknown"], "10.0.0.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("6.6.6.6", &["1.1.1.1"], "6.6.6.6"),
        ] {
            let forwarded = forwarded.iter().map(|value| (FORWARDED_FOR, value.parse().unwrap()));
            let client = proxies.client(peer.parse().unwrap(), &forwarded.collect());
            assert_eq!(client, want.parse::<IpAddr>().unwrap(), "{peer}");
        }
        let headers = [(FORWARDED_FOR, "1.1.1.1".parse().unwrap())].into_iter().collect();
        let peer = "10.0.0.1".parse().unwrap();
        assert_eq!(TrustedProxies::default().client(peer, &headers), peer);
    }
}
