//! What a server tells other gateways on the same stores of itself.
//!
//! Clients are told what the operator says (`advertise`), which may be a balancer's address. Other
//! gateways mean this one and no other, so they are told the addresses that it listens on, if these say
//! anything, and `advertise` only where they do not.

use std::net::{IpAddr, SocketAddr};

use nfs_gateway::FleetOptions;

use crate::mount_line::{MountTarget, authority};
use crate::settings::Settings;

/// Where a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// By clients, with NFS, as host and port.
    pub(crate) nfs: String,
    /// By other gateways, as host and port; empty if there are none.
    pub(crate) peers: String,
    /// Its API, as a URL; empty if other machines cannot reach it.
    pub(crate) api: String,
}

/// What a server listens on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listening {
    pub(crate) api: SocketAddr,
    /// For other gateways, if there may be any.
    pub(crate) peers: Option<SocketAddr>,
}

impl Addresses {
    pub(crate) fn new(settings: &Settings, target: &MountTarget, listening: Listening) -> Self {
        let nfs = target.authority();
        let advertised = settings.advertise.as_deref().unwrap_or(&target.host);
        let Some(peers) = listening.peers else {
            let host = specific(listening.api).unwrap_or_else(|| target.host.clone());
            return Self {
                nfs,
                peers: String::new(),
                api: url(&host, listening.api.port()),
            };
        };
        let host = specific(peers).unwrap_or_else(|| advertised.to_owned());
        let api = match specific(listening.api) {
            // Other machines would find themselves there.
            Some(_) if listening.api.ip().is_loopback() && !peers.ip().is_loopback() => {
                String::new()
            }
            Some(own) => url(&own, listening.api.port()),
            None => url(&host, listening.api.port()),
        };
        Self {
            nfs,
            peers: authority(&host, peers.port()),
            api,
        }
    }

    /// How the gateway joins others; `None` if its stores are its own. `token` is the one of commands on this machine.
    pub(crate) fn fleet_options(
        &self,
        settings: &Settings,
        token: [u8; 8],
    ) -> Option<FleetOptions> {
        if !settings.is_shared() {
            return None;
        }
        if is_loopback(&self.peers) && !settings.listen.ip().is_loopback() {
            tracing::warn!(
                peers = self.peers,
                "peer_listen is a loopback address and listen is none: gateways on other machines do not reach \
                 this one there, and take its sessions instead of passing calls on. Set peer_listen to an address \
                 of this machine"
            );
        }
        if is_of_another_machine(&self.peers) {
            tracing::warn!(
                peers = self.peers,
                "other gateways are told an address that this machine does not have: it must lead to this server \
                 alone, and not to a balancer. Set peer_listen to an address of this machine"
            );
        }
        if self.api.is_empty() {
            tracing::warn!(
                "api_listen is a loopback address and peer_listen is none: API calls for sessions of \
                 this gateway that come to others cannot be passed on, and take the sessions there"
            );
        }
        let Self { nfs, peers, api } = self.clone();
        tracing::info!(nfs, peers, api, "other gateways are told these addresses");
        Some(FleetOptions {
            lease: settings.lease.0,
            nfs,
            peers,
            api,
            token,
        })
    }
}

/// Where to listen for other gateways, if there may be any.
pub(crate) fn peer_listen(settings: &Settings) -> Option<SocketAddr> {
    let any_port = SocketAddr::new(settings.listen.ip(), 0);
    let address = settings.peer_listen.unwrap_or(any_port);
    settings.is_shared().then_some(address)
}

/// Whether an address, host and port, is one that only this machine reaches.
fn is_loopback(authority: &str) -> bool {
    let address = authority.parse::<SocketAddr>();
    address.is_ok_and(|address| address.ip().is_loopback())
}

/// Whether an address, host and port, is an IP address that this machine does not have.
fn is_of_another_machine(authority: &str) -> bool {
    let Ok(address) = authority.parse::<SocketAddr>() else {
        return false;
    };
    // Only what a machine has can be bound. No datagram is sent.
    let bound = std::net::UdpSocket::bind((address.ip(), 0));
    bound.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrNotAvailable)
}

/// The IP address as text, unless it means any.
fn specific(address: SocketAddr) -> Option<String> {
    Some(address.ip())
        .filter(|ip: &IpAddr| !ip.is_unspecified())
        .map(|ip| ip.to_string())
}

fn url(host: &str, port: u16) -> String {
    format!("http://{}", authority(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_other_machines_are_known() {
        assert!(is_of_another_machine("192.0.2.1:2049"));
        assert!(!is_of_another_machine("127.0.0.1:2049"));
        assert!(!is_of_another_machine("files.example:2049"));
        assert!(is_loopback("127.0.0.1:1") && !is_loopback("192.0.2.1:1"));
    }
    use crate::settings::Given;

    fn addresses(advertise: Option<&str>, listen: [&str; 3]) -> [String; 3] {
        let [nfs, peers, api] = listen.map(|text| text.parse().unwrap());
        let given = Given {
            advertise: advertise.map(ToOwned::to_owned),
            ..Given::default()
        };
        let settings = given.complete().unwrap();
        let target = MountTarget::new(nfs, advertise);
        let listening = Listening {
            api,
            peers: Some(peers),
        };
        let made = Addresses::new(&settings, &target, listening);
        [made.nfs, made.peers, made.api]
    }

    #[test]
    fn clients_are_told_what_is_advertised_and_gateways_where_it_listens() {
        for (advertise, listen, told) in [
            (
                None,
                ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3"],
                ["10.0.0.1:1", "10.0.0.1:2", "http://10.0.0.1:3"],
            ),
            // A balancer.
            (
                Some("nfs.example"),
                ["0.0.0.0:1", "10.0.0.1:2", "0.0.0.0:3"],
                ["nfs.example:1", "10.0.0.1:2", "http://10.0.0.1:3"],
            ),
            // A machine's name.
            (
                Some("a.example"),
                ["[::]:1", "[::]:2", "[::]:3"],
                ["a.example:1", "a.example:2", "http://a.example:3"],
            ),
            (
                Some("fd00::1"),
                ["[::]:1", "[::]:2", "[fd00::2]:3"],
                ["[fd00::1]:1", "[fd00::1]:2", "http://[fd00::2]:3"],
            ),
            // Nobody else reaches the API.
            (
                None,
                ["10.0.0.1:1", "10.0.0.1:2", "127.0.0.1:3"],
                ["10.0.0.1:1", "10.0.0.1:2", ""],
            ),
            (
                None,
                ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"],
                ["127.0.0.1:1", "127.0.0.1:2", "http://127.0.0.1:3"],
            ),
        ] {
            assert_eq!(addresses(advertise, listen), told, "{listen:?}");
        }
    }

    #[test]
    fn stores_of_its_own_mean_no_other_gateways() {
        let settings = Given::default().complete().unwrap();
        assert_eq!(peer_listen(&settings), None);
        let target = MountTarget::new(settings.listen, None);
        let listening = Listening {
            api: settings.api_listen,
            peers: None,
        };
        let made = Addresses::new(&settings, &target, listening);
        assert_eq!(made.api, "http://127.0.0.1:12080");
        assert!(made.fleet_options(&settings, [0; 8]).is_none());
    }
}
