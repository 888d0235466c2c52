//! Connections through balancers: whom a balancer speaks for, and what is said when that is not
//! as it should be.
//!
//! A peer in the server's list of balancers must begin each connection with a PROXY header
//! ([`crate::wire::proxy`]). Without one its own address would stand for that of its clients, so
//! there is no way to go on. A peer that is not in the list must not send one: anybody could say to
//! be anybody. What a header says is told in logs; no right depends on it.

use std::net::SocketAddr;
use std::time::Duration;

use base::GatewayId;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::wire::proxy::{FIXED_BYTES, Header, Progress, ProxyError, gateway_of, parse};

/// Complaints told within [`COMPLAINTS_EVERY`]; of the others only the number is.
const COMPLAINTS_MAX: u64 = 5;

/// How long a number of complaints counts.
const COMPLAINTS_EVERY: Duration = Duration::from_secs(10);

/// How a connection came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// From a peer that speaks for itself.
    Direct,
    /// From a balancer, for a client.
    Balancer,
    /// From a balancer, for itself.
    Check,
}

/// What a balancer said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It speaks for this client; as a link it says for which gateway.
    Client(SocketAddr, Option<GatewayId>),
    /// It looks whether somebody answers.
    Check,
    /// It closed the connection without a byte: that is how some look.
    Nothing,
    /// The socket failed.
    Broken,
    /// Not what it should.
    Wrong(Unheard),
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unheard {
    #[error(
        "{0}; peers in proxy_from must send one: let the balancer send PROXY v2, or take it off \
             the list"
    )]
    Header(ProxyError),
    #[error("it ended within its PROXY header")]
    Cut,
    #[error(
        "its PROXY header did not come in time: let the balancer send PROXY v2, or take it off \
             proxy_from"
    )]
    Late,
    #[error(
        "it is a balancer's own (LOCAL) and asks for more than NULL: those are for health checks"
    )]
    NoCheck,
    #[error(
        "it begins with a PROXY header, and the peer is not in proxy_from: add it if it is a \
             balancer of yours"
    )]
    Stranger,
    #[error(
        "it is for gateway {0}, and this is another one: the two tell the others the same address; set \
             peer_listen of each to an address that leads to it alone"
    )]
    Misled(GatewayId),
}

impl Unheard {
    /// The same, on the port for other gateways.
    fn told_of_link(self) -> String {
        match self {
            Self::Misled(_) => self.to_string(),
            Self::Header(error) => format!("{error}: only gateways connect there"),
            _ => "it is none of a gateway: only gateways connect there".to_owned(),
        }
    }
}

/// Reads a balancer's header and nothing behind it.
///
/// # Cancellation
///
/// Not safe: what was read is lost.
pub(crate) async fn hear(read: &mut (impl AsyncRead + Unpin)) -> Heard {
    let mut bytes = Vec::with_capacity(FIXED_BYTES);
    loop {
        let missing = match parse(&bytes) {
            Ok(Progress::Whole(Header::Client(client))) => {
                return Heard::Client(client, gateway_of(&bytes));
            }
            Ok(Progress::Whole(Header::Local)) => return Heard::Check,
            Ok(Progress::Missing(missing)) => missing,
            Err(error) => return Heard::Wrong(Unheard::Header(error)),
        };
        let missing = u64::try_from(missing).unwrap_or(u64::MAX);
        match (&mut *read).take(missing).read_buf(&mut bytes).await {
            Ok(0) if bytes.is_empty() => return Heard::Nothing,
            Ok(0) => return Heard::Wrong(Unheard::Cut),
            Ok(_) => {}
            Err(_) => return Heard::Broken,
        }
    }
}

/// Decides what is told of what may happen often, as connections that are refused: not more than
/// somebody can read.
#[derive(Debug)]
pub(crate) struct Complaints(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    since: Duration,
    number: u64,
}

impl Complaints {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Told {
            since: Duration::ZERO,
            number: 0,
        }))
    }

    /// Says why a connection of `peer` was refused, which may have come to the port for gateways.
    pub(crate) fn tell(&self, peer: SocketAddr, why: Unheard, is_link: bool, now: Duration) {
        let Some(untold) = self.turn(now) else {
            return;
        };
        if is_link {
            let why = why.told_of_link();
            tracing::warn!(%peer, untold, "connection to peer_listen refused: {why}");
        } else {
            tracing::warn!(%peer, untold, "connection refused: {why}");
        }
    }

    /// Whether it is to be told, and how many before it were not.
    pub(crate) fn turn(&self, now: Duration) -> Option<u64> {
        let mut told = self.0.lock();
        let mut untold = 0;
        if now.saturating_sub(told.since) >= COMPLAINTS_EVERY {
            untold = told.number.saturating_sub(COMPLAINTS_MAX);
            *told = Told {
                since: now,
                number: 0,
            };
        }
        told.number += 1;
        (told.number <= COMPLAINTS_MAX).then_some(untold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_header_is_read_and_nothing_behind_it() {
        let header =
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0f\x7f\0\0\x02\x7f\0\0\x01\xc0\0\x08\x01\x04\0\0";
        let stream = [header.as_slice(), b"call"].concat();
        let mut read = stream.as_slice();
        let client = "127.0.0.2:49152".parse().unwrap();
        assert_eq!(hear(&mut read).await, Heard::Client(client, None));
        assert_eq!(read, b"call");
        let mut cut = &header[..20];
        assert_eq!(hear(&mut cut).await, Heard::Wrong(Unheard::Cut));
        assert_eq!(hear(&mut b"".as_slice()).await, Heard::Nothing);
        let missing = Heard::Wrong(Unheard::Header(ProxyError::Missing));
        assert_eq!(hear(&mut b"\x80\0\0\x28".as_slice()).await, missing);
    }

    #[test]
    fn complaints_are_told_a_few_at_a_time_and_the_others_counted() {
        let complaints = Complaints::new();
        let second = Duration::from_secs;
        let first: Vec<_> = (0..8).map(|_| complaints.turn(second(1))).collect();
        assert_eq!(first[4..6], [Some(0), None]);
        assert_eq!(complaints.turn(second(11)), Some(3));
        assert_eq!(complaints.turn(second(12)), Some(0));
        assert_eq!(complaints.turn(second(40)), Some(0));
    }
}
