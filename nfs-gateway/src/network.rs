//! Ranges of addresses, as people write them: `10.0.0.7`, `10.0.0.0/24`, `fd00::/8`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address, or all that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    prefix: u8,
}

/// Text that is no range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// No address, or no number of bits.
    #[error("{0:?} is no address: write an IP address, or a range as in 10.0.0.0/24")]
    Form(String),
    /// The address has bits beyond the prefix: either of the two may be meant.
    #[error("{0} has bits beyond its prefix: write {1}, or the address alone")]
    Bits(String, Network),
}

impl Network {
    /// All addresses there are.
    #[must_use]
    pub const fn everywhere() -> [Self; 2] {
        [
            Self {
                first: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                prefix: 0,
            },
            Self {
                first: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                prefix: 0,
            },
        ]
    }

    /// Whether `address` is in it. One of IPv4 in the form of IPv6 is one of IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.first.is_ipv4() && masked(address, self.prefix) == self.first
    }
}

/// `address` with only its first `prefix` bits.
fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(ip) => {
            let beyond = 32_u32.saturating_sub(u32::from(prefix));
            let mask = u32::MAX.checked_shl(beyond).unwrap_or(0);
            Ipv4Addr::from_bits(ip.to_bits() & mask).into()
        }
        IpAddr::V6(ip) => {
            let beyond = 128_u32.saturating_sub(u32::from(prefix));
            let mask = u128::MAX.checked_shl(beyond).unwrap_or(0);
            Ipv6Addr::from_bits(ip.to_bits() & mask).into()
        }
    }
}

const fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let form = || NetworkError::Form(text.into());
        let (address, prefix) = match text.trim().split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text.trim(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| form())?;
        let prefix = match prefix {
            Some(prefix) if prefix.bytes().all(|it| it.is_ascii_digit()) => {
                prefix.parse().map_err(|_| form())?
            }
            Some(_) => return Err(form()),
            None => bits(address),
        };
        // That peers are compared in the form of IPv4 would make these say nothing.
        if prefix > bits(address) || address.to_canonical() != address {
            return Err(form());
        }
        let first = masked(address, prefix);
        let network = Self { first, prefix };
        if first != address {
            return Err(NetworkError::Bits(text.into(), network));
        }
        Ok(network)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        if self.prefix == bits(self.first) {
            return Ok(());
        }
        write!(f, "/{}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_written_and_matched() {
        for (text, inside, outside) in [
            ("10.0.0.7", "10.0.0.7", "10.0.0.8"),
            ("10.0.0.0/24", "10.0.0.255", "10.0.1.0"),
            ("10.0.0.0/24", "::ffff:10.0.0.1", "::ffff:10.0.1.1"),
            ("0.0.0.0/0", "255.1.2.3", "::1"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("::/0", "1::2", "10.0.0.1"),
            ("::1", "::1", "::2"),
        ] {
            let network: Network = text.parse().unwrap();
            assert_eq!(network.to_string(), text);
            assert!(network.contains(inside.parse().unwrap()), "{text}");
            assert!(!network.contains(outside.parse().unwrap()), "{text}");
        }
        for bad in [
            "",
            "here",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "fd00::/129",
            "10.0.0",
            "::ffff:10.0.0.1",
            "10.0.0.1:2049",
        ] {
            assert_eq!(
                bad.parse::<Network>(),
                Err(NetworkError::Form(bad.into())),
                "{bad}"
            );
        }
        let error = "10.0.0.1/24".parse::<Network>().unwrap_err().to_string();
        assert!(error.contains("write 10.0.0.0/24"), "{error}");
    }
}
