//! The header that a balancer puts before a client's bytes: PROXY protocol, version 2.
//!
//! ```text
//! 12 bytes  signature 0d0a0d0a 000d0a51 5549540a
//!  1 byte   2 for the version, and 0 for LOCAL or 1 for PROXY
//!  1 byte   family and transport: 11 TCP over IPv4, 21 TCP over IPv6, 00 unspecified
//!  2 bytes  how many bytes follow
//!           addresses: 12 bytes for IPv4, 36 for IPv6
//!           TLVs: type, length in two bytes, value
//! ```
//!
//! Strict: what a balancer in front of an NFS server does not send is an error. The text form,
//! version 1, is one of them: it has no length and no checksum.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use base::GatewayId;

/// Largest header, in bytes: addresses and far more TLVs than balancers of TCP send.
pub const HEADER_BYTES_MAX: usize = 2048;

/// What every header begins with.
pub const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// The fixed part, in bytes: with it the length is known.
pub const FIXED_BYTES: usize = 16;

/// How the text form begins.
const TEXT: &[u8] = b"PROXY ";

/// The type of the TLV that has the header's checksum.
const TLV_CRC32C: u8 = 0x03;

/// Type and length of a TLV, in bytes.
const TLV_HEAD_BYTES: usize = 3;

/// A checksum, in bytes.
const CRC_BYTES: usize = 4;

/// The type of the TLV, one of those for own use, with the number of the gateway that a link is for.
const TLV_GATEWAY: u8 = 0xe0;

/// The number of a gateway, in bytes.
const GATEWAY_BYTES: u8 = 8;

const _: () = assert!(FIXED_BYTES <= HEADER_BYTES_MAX);

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The balancer speaks for itself: a health check.
    Local,
    /// It speaks for a client at this address.
    Client(SocketAddr),
}

/// What is known after some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many further bytes are a part of the header.
    Missing(usize),
    /// This is the header, the whole of what was given.
    Whole(Header),
}

/// Why bytes are no header that is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// It begins as something else, as a call does.
    #[error("it does not begin with a PROXY header")]
    Missing,
    /// It is the text form.
    #[error("its PROXY header is of version 1, and only version 2 is taken")]
    Text,
    /// Not version 2.
    #[error("its PROXY header is of version {0}, and only version 2 is taken")]
    Version(u8),
    /// Neither LOCAL nor PROXY.
    #[error("its PROXY header has the unknown command {0}")]
    Command(u8),
    /// A client that is not at a TCP address.
    #[error("its PROXY header is for family and transport {0:#04x}, and only TCP is taken")]
    Family(u8),
    /// Longer than [`HEADER_BYTES_MAX`].
    #[error("its PROXY header has {0} bytes, more than {HEADER_BYTES_MAX}")]
    TooLong(usize),
    /// Too short for its addresses.
    #[error("its PROXY header is too short for its addresses")]
    TooShort,
    /// A TLV is cut off, or the checksum is not one.
    #[error("its PROXY header has a malformed TLV")]
    Tlv,
    /// The checksum is of other bytes.
    #[error("the checksum of its PROXY header is wrong")]
    Checksum,
}

/// The header of a connection for `client`. Where the client connected to is not said.
#[must_use]
pub fn header_for(client: SocketAddr) -> Vec<u8> {
    made(client, &[])
}

/// The header of a link to a gateway, over which calls of `client` are passed on. It names the gateway, so that
/// another one which is at that address by mistake is found out.
#[must_use]
pub fn header_of_link(client: SocketAddr, gateway: GatewayId) -> Vec<u8> {
    let number = gateway.raw().to_be_bytes();
    let mut tlv = vec![TLV_GATEWAY, 0, GATEWAY_BYTES];
    tlv.extend(number);
    made(client, &tlv)
}

fn made(client: SocketAddr, tlvs: &[u8]) -> Vec<u8> {
    let (family, [source, target]) = match client.ip().to_canonical() {
        IpAddr::V4(ip) => (0x11, [ip.octets().to_vec(), vec![0; 4]]),
        IpAddr::V6(ip) => (0x21, [ip.octets().to_vec(), vec![0; 16]]),
    };
    let rest = [
        &*source,
        &*target,
        &client.port().to_be_bytes(),
        &[0, 0],
        tlvs,
    ]
    .concat();
    let length = u16::try_from(rest.len()).unwrap_or(u16::MAX);
    let mut header = SIGNATURE.to_vec();
    header.extend([0x21, family]);
    header.extend(length.to_be_bytes());
    header.extend(rest);
    header
}

/// Which gateway a link is for, if its header says so. `header` is whole.
#[must_use]
pub fn gateway_of(header: &[u8]) -> Option<GatewayId> {
    let (fixed, rest) = header.split_first_chunk::<FIXED_BYTES>()?;
    let [.., family, _, _] = *fixed;
    let (_, mut tlvs) = addresses(family, rest).ok()?;
    while let Some((head, rest)) = tlvs.split_first_chunk::<TLV_HEAD_BYTES>() {
        let [kind, high, low] = *head;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (value, rest) = rest.split_at_checked(length)?;
        if kind == TLV_GATEWAY {
            let number = value.try_into().ok()?;
            return Some(GatewayId::new(u64::from_be_bytes(number)));
        }
        tlvs = rest;
    }
    None
}

/// Reads what has arrived of a header. Give it all bytes from the first on, and never more than it
/// said were missing: then nothing of what comes behind the header is among them.
///
/// # Errors
///
/// These bytes cannot become a header, whatever comes.
pub fn parse(bytes: &[u8]) -> Result<Progress, ProxyError> {
    let begun = bytes.get(..SIGNATURE.len()).unwrap_or(bytes);
    if !SIGNATURE.starts_with(begun) {
        let text = begun.get(..TEXT.len()).unwrap_or(begun);
        return Err(if TEXT.starts_with(text) {
            ProxyError::Text
        } else {
            ProxyError::Missing
        });
    }
    let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED_BYTES>() else {
        return Ok(Progress::Missing(FIXED_BYTES.saturating_sub(bytes.len())));
    };
    let [.., command, family, high, low] = *fixed;
    if command >> 4 != 2 {
        return Err(ProxyError::Version(command >> 4));
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    if FIXED_BYTES + length > HEADER_BYTES_MAX {
        return Err(ProxyError::TooLong(FIXED_BYTES + length));
    }
    let is_local = match command & 0xf {
        0 => true,
        1 => false,
        other => return Err(ProxyError::Command(other)),
    };
    if !is_local && !matches!(family, 0x11 | 0x21) {
        return Err(ProxyError::Family(family));
    }
    let Some(rest) = rest.get(..length) else {
        return Ok(Progress::Missing(length.saturating_sub(rest.len())));
    };
    let (client, tlvs) = addresses(family, rest)?;
    check_tlvs(bytes.get(..FIXED_BYTES + length).unwrap_or(bytes), tlvs)?;
    match client {
        Some(client) if !is_local => Ok(Progress::Whole(Header::Client(client))),
        // What a balancer says of its own connection is of no use.
        _ => Ok(Progress::Whole(Header::Local)),
    }
}

/// The client's address, if it has one here, and what follows the addresses.
fn addresses(family: u8, bytes: &[u8]) -> Result<(Option<SocketAddr>, &[u8]), ProxyError> {
    match family >> 4 {
        1 => {
            let (block, tlvs) = bytes
                .split_first_chunk::<12>()
                .ok_or(ProxyError::TooShort)?;
            let [a, b, c, d, _, _, _, _, high, low, _, _] = *block;
            let source = IpAddr::V4(Ipv4Addr::new(a, b, c, d));
            let port = u16::from_be_bytes([high, low]);
            Ok((Some(SocketAddr::new(source, port)), tlvs))
        }
        2 => {
            let short = ProxyError::TooShort;
            let (source, rest) = bytes.split_first_chunk::<16>().ok_or(short)?;
            let (_, rest) = rest.split_first_chunk::<16>().ok_or(short)?;
            let (port, rest) = rest.split_first_chunk::<2>().ok_or(short)?;
            let (_, tlvs) = rest.split_first_chunk::<2>().ok_or(short)?;
            let source = IpAddr::V6(Ipv6Addr::from(*source)).to_canonical();
            let port = u16::from_be_bytes(*port);
            Ok((Some(SocketAddr::new(source, port)), tlvs))
        }
        3 => {
            let (_, tlvs) = bytes
                .split_first_chunk::<216>()
                .ok_or(ProxyError::TooShort)?;
            Ok((None, tlvs))
        }
        // Of LOCAL, whose family says nothing.
        _ => Ok((None, bytes)),
    }
}

/// Skips TLVs, and compares a checksum that is among them.
fn check_tlvs(header: &[u8], mut tlvs: &[u8]) -> Result<(), ProxyError> {
    let mut checksum: Option<(usize, [u8; CRC_BYTES])> = None;
    while let Some((head, rest)) = tlvs.split_first_chunk::<TLV_HEAD_BYTES>() {
        let [kind, high, low] = *head;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (value, rest) = rest.split_at_checked(length).ok_or(ProxyError::Tlv)?;
        if kind == TLV_CRC32C {
            let value = value.try_into().map_err(|_| ProxyError::Tlv)?;
            let at = header.len() - rest.len() - CRC_BYTES;
            if checksum.replace((at, value)).is_some() {
                return Err(ProxyError::Tlv);
            }
        }
        tlvs = rest;
    }
    if !tlvs.is_empty() {
        return Err(ProxyError::Tlv);
    }
    match checksum {
        Some((at, value)) if crc32c(header, at) != u32::from_be_bytes(value) => {
            Err(ProxyError::Checksum)
        }
        _ => Ok(()),
    }
}

/// CRC32c of `bytes`, with those of the checksum itself, which begins at `hole`, taken as zero.
/// Bit by bit: a header is short, and comes once in a connection.
fn crc32c(bytes: &[u8], hole: usize) -> u32 {
    let mut crc = !0_u32;
    for (at, byte) in bytes.iter().enumerate() {
        let is_hole = (hole..hole + CRC_BYTES).contains(&at);
        crc ^= if is_hole { 0 } else { u32::from(*byte) };
        for _ in 0..8 {
            let carry = if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            crc = (crc >> 1) ^ carry;
        }
    }
    !crc
}

/// Whether the first bytes of a connection are those of a PROXY header, of either version. Four
/// bytes tell: no record can be as long as they would say as a mark.
#[must_use]
pub fn is_header(bytes: &[u8]) -> bool {
    let Some(first) = bytes.get(..4) else {
        return false;
    };
    SIGNATURE.starts_with(first) || TEXT.starts_with(first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A header as a balancer sends it.
    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([0x20 | command, family]);
        bytes.extend(u16::try_from(rest.len()).unwrap().to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend(u16::try_from(value.len()).unwrap().to_be_bytes());
        bytes.extend(value);
        bytes
    }

    fn block(client: SocketAddr) -> (u8, Vec<u8>) {
        let mut bytes = Vec::new();
        let family = match client.ip() {
            IpAddr::V4(ip) => {
                bytes.extend(ip.octets());
                bytes.extend([192, 0, 2, 1]);
                0x11
            }
            IpAddr::V6(ip) => {
                bytes.extend(ip.octets());
                bytes.extend([0x20; 16]);
                0x21
            }
        };
        bytes.extend(client.port().to_be_bytes());
        bytes.extend(2049_u16.to_be_bytes());
        (family, bytes)
    }

    fn with_checksum(command: u8, family: u8, mut rest: Vec<u8>) -> Vec<u8> {
        rest.extend(tlv(TLV_CRC32C, &[0; 4]));
        let mut bytes = header(command, family, &rest);
        let at = bytes.len() - CRC_BYTES;
        let crc = crc32c(&bytes, at);
        bytes[at..].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    fn whole(header: Header) -> Result<Progress, ProxyError> {
        Ok(Progress::Whole(header))
    }

    #[test]
    fn the_header_of_a_link_names_its_gateway() {
        let gateway = GatewayId::new(0x0102_0304_0506_0708);
        for client in ["192.0.2.7:700", "[2001:db8::7]:700"] {
            let client = client.parse().unwrap();
            let header = header_of_link(client, gateway);
            assert_eq!(parse(&header), whole(Header::Client(client)));
            assert_eq!(gateway_of(&header), Some(gateway));
            let plain = header_for(client);
            assert_eq!(parse(&plain), whole(Header::Client(client)));
            assert_eq!(gateway_of(&plain), None);
            for cut in 0..header.len() {
                assert_eq!(gateway_of(&header[..cut]), None);
            }
        }
    }

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(crc32c(b"123456789", 100), 0xe306_9283);
    }

    #[test]
    fn bytes_as_a_balancer_sends_them_are_read() {
        // HAProxy 2.6: `send-proxy-v2` for a client at 127.0.0.2, and its health check.
        let sent = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x02\x7f\0\0\x01\xc0\0\x08\x01";
        let client = "127.0.0.2:49152".parse().unwrap();
        assert_eq!(parse(sent), whole(Header::Client(client)));
        let check = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
        assert_eq!(parse(check), whole(Header::Local));
        // An address of the old kind in the clothes of the new one is the old one.
        let (family, bytes) = block("[::ffff:10.0.0.7]:80".parse().unwrap());
        let told = parse(&header(1, family, &bytes));
        assert_eq!(told, whole(Header::Client("10.0.0.7:80".parse().unwrap())));
        // LOCAL has what addresses it likes.
        assert_eq!(parse(&header(0, family, &bytes)), whole(Header::Local));
        assert_eq!(parse(&header(0, 0x31, &[0; 216])), whole(Header::Local));
    }

    #[test]
    fn what_is_not_accepted_is_told_apart() {
        let (family, bytes) = block("10.0.0.7:80".parse().unwrap());
        let with = |tlvs: &[u8]| header(1, family, &[bytes.as_slice(), tlvs].concat());
        let mut wrong = with_checksum(1, family, bytes.clone());
        wrong[20] ^= 1;
        let mut version = header(1, family, &bytes);
        version[12] = 0x11;
        let twice = [tlv(3, &[0; 4]), tlv(3, &[0; 4])].concat();
        let long = header(1, family, &vec![0; HEADER_BYTES_MAX - FIXED_BYTES + 1]);
        for (bytes, error) in [
            (b"\x80\0\0\x28\0\0\0\x01".to_vec(), ProxyError::Missing),
            (b"PROXY TCP4 1.2.3.4 ".to_vec(), ProxyError::Text),
            (b"P".to_vec(), ProxyError::Text),
            (b"PROXIES".to_vec(), ProxyError::Missing),
            (version, ProxyError::Version(1)),
            (header(2, family, &bytes), ProxyError::Command(2)),
            (header(1, 0x00, &[]), ProxyError::Family(0)),
            (header(1, 0x12, &bytes), ProxyError::Family(0x12)),
            (header(1, 0x31, &[0; 216]), ProxyError::Family(0x31)),
            (header(1, 0x21, &bytes), ProxyError::TooShort),
            (header(0, 0x11, &bytes[..11]), ProxyError::TooShort),
            (long, ProxyError::TooLong(HEADER_BYTES_MAX + 1)),
            (with(&[4]), ProxyError::Tlv),
            (with(&[4, 0, 1]), ProxyError::Tlv),
            (with(&tlv(3, &[0; 3])), ProxyError::Tlv),
            (with(&twice), ProxyError::Tlv),
            (wrong, ProxyError::Checksum),
        ] {
            assert_eq!(parse(&bytes), Err(error), "{bytes:?}");
        }
    }

    #[test]
    fn both_versions_are_recognised_where_none_belongs() {
        assert!(is_header(&SIGNATURE) && is_header(b"PROXY UNKNOWN\r\n"));
        assert!(!is_header(b"\x80\0\0\x28") && !is_header(b"PRO"));
    }

    fn client() -> impl Strategy<Value = SocketAddr> {
        let v4 = any::<[u8; 4]>().prop_map(IpAddr::from);
        let v6 = any::<[u8; 16]>().prop_map(IpAddr::from);
        (prop_oneof![v4, v6], any::<u16>()).prop_map(SocketAddr::from)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_however_it_arrives(
            client in client(),
            tlvs in proptest::collection::vec((4_u8.., proptest::collection::vec(any::<u8>(), 0..40)), 0..8),
        ) {
            let (family, mut rest) = block(client);
            for (kind, value) in &tlvs {
                rest.extend(tlv(*kind, value));
            }
            let bytes = with_checksum(1, family, rest);
            let told = SocketAddr::new(client.ip().to_canonical(), client.port());
            for until in 0..bytes.len() {
                let missing = match parse(&bytes[..until]) {
                    Ok(Progress::Missing(missing)) => missing,
                    other => return Err(TestCaseError::fail(format!("{until}: {other:?}"))),
                };
                prop_assert!(missing > 0 && until + missing <= bytes.len());
            }
            prop_assert_eq!(parse(&bytes), whole(Header::Client(told)));
        }

        #[test]
        fn a_damaged_header_with_a_checksum_is_never_another_address(
            client in client(), at in 0_usize..64, bit in 0_u8..8,
        ) {
            let (family, rest) = block(client);
            let mut bytes = with_checksum(1, family, rest);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let told = parse(&bytes);
            // Without its type the checksum is none.
            let same = SocketAddr::new(client.ip().to_canonical(), client.port());
            let is_another = matches!(told, Ok(Progress::Whole(it)) if it != Header::Client(same));
            prop_assert!(!is_another, "{told:?}");
        }

        #[test]
        fn any_bytes_come_to_something_bounded(
            rest in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let bytes = [SIGNATURE.as_slice(), &rest].concat();
            if let Ok(Progress::Missing(missing)) = parse(&bytes) {
                prop_assert!(missing > 0 && bytes.len() + missing <= HEADER_BYTES_MAX);
            }
        }
    }
}
