//! One TCP connection, used a call at a time or, through `driver`, with many in flight.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base::Rng;

use crate::inbox::Inbox;
use crate::nfs::{self, Attributes, Handle};
use crate::xdr::Decoder;
use crate::{Error, Outgoing, Pattern, rpc};

/// How long a connection, a reply or room to send is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) inbox: Inbox,
    pub(crate) outgoing: Outgoing,
    xid: u32,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    ///
    /// If the operating system gives no connection or no randomness.
    pub fn open(address: SocketAddr) -> Result<Self, Error> {
        let stream =
            TcpStream::connect_timeout(&address, PATIENCE).map_err(Error::io("connect"))?;
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(PATIENCE)))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .map_err(Error::io("set up the connection"))?;
        // Servers remember replies by number, so that each connection starts elsewhere.
        let seed: [u8; 4] = Rng::system()
            .map_err(Error::io("draw a call number"))?
            .bytes();
        Ok(Self {
            stream,
            inbox: Inbox::new(),
            outgoing: Outgoing::new(),
            xid: u32::from_ne_bytes(seed),
        })
    }

    /// Gives up the buffers and keeps the connection open.
    #[must_use]
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// A number no call of this connection carries at the moment.
    pub(crate) fn next_xid(&mut self) -> u32 {
        self.xid = self.xid.wrapping_add(1);
        self.xid
    }

    /// Makes one call and waits for its reply.
    pub(crate) fn call<T>(
        &mut self,
        encode: impl FnOnce(&mut Outgoing),
        decode: impl FnOnce(Decoder<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.call_with_pattern(encode, |decoder, _| decode(decoder))
    }

    /// The same for replies that are compared with content.
    pub(crate) fn call_with_pattern<T>(
        &mut self,
        encode: impl FnOnce(&mut Outgoing),
        decode: impl FnOnce(Decoder<'_>, &Pattern) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let xid = self.next_xid();
        self.outgoing.open(xid);
        encode(&mut self.outgoing);
        self.outgoing.close()?;
        self.outgoing.flush(&mut self.stream)?;
        loop {
            if let Some(range) = self.inbox.next()? {
                let (number, reply) = split_xid(self.inbox.bytes(range))?;
                if number != xid {
                    return Err(Error::Stream("a reply to a call not made"));
                }
                return decode(rpc::results(reply)?, self.outgoing.pattern());
            }
            if !self.inbox.fill(&mut self.stream)? {
                return Err(Error::Stream("the server closed the connection"));
            }
        }
    }

    /// Asks for the root of an export.
    ///
    /// # Errors
    ///
    /// If the call fails or the server does not grant the mount.
    pub fn mount(&mut self, export: &str) -> Result<Handle, Error> {
        self.call(|call| call.mnt(export), nfs::mounted)
    }

    /// Does nothing, there and back.
    ///
    /// # Errors
    ///
    /// If the call fails.
    pub fn null(&mut self) -> Result<(), Error> {
        self.call(Outgoing::null, |decoder| decoder.end())
    }

    /// Asks for attributes and forgets them, as the last step of mounting does.
    ///
    /// # Errors
    ///
    /// If the call fails.
    pub fn touch(&mut self, handle: &Handle) -> Result<(), Error> {
        self.attributes(handle).map(drop)
    }

    pub(crate) fn attributes(&mut self, handle: &Handle) -> Result<Attributes, Error> {
        self.call(|call| call.getattr(handle), nfs::attributes)
    }
}

/// Takes the number off a reply.
pub(crate) fn split_xid(record: &[u8]) -> Result<(u32, &[u8]), Error> {
    let (xid, reply) = record
        .split_first_chunk::<4>()
        .ok_or(Error::Stream("a record without a number"))?;
    Ok((u32::from_be_bytes(*xid), reply))
}
