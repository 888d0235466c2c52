//! The least a server could do: take a record, send one back of the length asked for.
//!
//! A request is a record of call number, a word that is no RPC, the wanted length of the reply,
//! and filler; the reply is the call number and content. So the same driver, the same number of
//! bytes each way, the same slots, and no protocol in between.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use clap::ValueEnum;

use crate::driver::{Progress, STEPS_MAX, Workload};
use crate::inbox::Inbox;
use crate::report::{LoadSizes, Sizes, Step};
use crate::rpc::{LAST_FRAGMENT, RECORD_BYTES_MAX};
use crate::workload::{Kind, Seat};
use crate::{Error, Outgoing, Pattern};

/// Second word of a request, where a call of RPC has 0.
const MAGIC: u32 = 0x6563_686f;

/// Bytes of a request before its filler.
const HEAD_BYTES: usize = 12;

/// Bytes of a call number.
const XID_BYTES: usize = 4;

/// Most connections served at a time.
const CONNECTIONS_MAX: usize = 1024;

/// Replies are sent when this many bytes wait, or when no request does.
const BATCH_BYTES: usize = 64 * 1024;

/// Sizes as measured on real replies.
const SIZES: &str = include_str!("../echo/sizes.json");

impl Sizes {
    /// Reads the sizes from the JSON report of an earlier run.
    ///
    /// # Errors
    ///
    /// If it is no such report.
    pub fn parse(text: &str) -> Result<Self, Error> {
        serde_json::from_str(text).map_err(|error| Error::Setup(format!("sizes: {error}")))
    }

    /// The sizes that come with the suite.
    ///
    /// # Errors
    ///
    /// Never, as a test shows.
    pub fn built_in() -> Result<Self, Error> {
        Self::parse(SIZES)
    }

    fn of(&self, kind: Kind) -> Result<&[Step], Error> {
        let name = kind.name();
        let load = self
            .results
            .iter()
            .find(|load: &&LoadSizes| load.procedure == name);
        let steps = load.map(|load| load.steps.as_slice()).unwrap_or_default();
        if steps.is_empty() || steps.len() > STEPS_MAX {
            return Err(Error::Setup(format!("no sizes for {name}")));
        }
        for step in steps {
            let shortest = step.request_bytes < HEAD_BYTES || step.reply_bytes < XID_BYTES;
            let longest = step.request_bytes.max(step.reply_bytes) > RECORD_BYTES_MAX;
            if shortest || longest {
                return Err(Error::Setup(format!("impossible sizes for {name}")));
            }
        }
        Ok(steps)
    }
}

/// Requests and replies as long as those of a load.
#[derive(Debug)]
pub struct Echo {
    steps: Vec<Step>,
    at: Vec<usize>,
    content_bytes: u64,
}

impl Echo {
    /// A load of the same sizes as `kind`.
    ///
    /// # Errors
    ///
    /// If `sizes` does not tell them.
    pub fn new(sizes: &Sizes, kind: Kind, seat: Seat) -> Result<Self, Error> {
        Ok(Self {
            steps: sizes.of(kind)?.to_vec(),
            at: vec![0; seat.depth],
            content_bytes: kind.content_bytes(),
        })
    }

    fn step(&self, slot: usize) -> Option<&Step> {
        self.steps.get(*self.at.get(slot)?)
    }
}

impl Workload for Echo {
    fn start(&mut self, slot: usize) -> bool {
        match self.at.get_mut(slot) {
            Some(at) => {
                *at = 0;
                true
            }
            None => false,
        }
    }

    fn call(&mut self, slot: usize, call: &mut Outgoing) {
        if let Some(step) = self.step(slot) {
            call.set_call_name("ECHO");
            call.u32(MAGIC);
            call.u32(u32::try_from(step.reply_bytes).unwrap_or(0));
            call.filler(step.request_bytes - HEAD_BYTES);
        }
    }

    fn reply(&mut self, slot: usize, reply: &[u8], pattern: &Pattern) -> Result<Progress, Error> {
        let Some(step) = self.step(slot) else {
            return Err(Error::Stream("a reply for no slot"));
        };
        // Compared because the loads compare what they read.
        if reply.len() + XID_BYTES != step.reply_bytes || !is_content(reply, pattern) {
            return Err(Error::Wrong("echo of another length or content".into()));
        }
        if let Some(at) = self.at.get_mut(slot) {
            *at += 1;
            if *at < self.steps.len() {
                return Ok(Progress::More);
            }
        }
        Ok(Progress::Done(self.content_bytes))
    }
}

/// Whether a reply is the pattern from its start, which goes on for ever.
fn is_content(reply: &[u8], pattern: &Pattern) -> bool {
    let whole = pattern.prefix(reply.len());
    match reply.split_at_checked(whole.len()) {
        Some((head, tail)) => head == whole && pattern.prefix(tail.len()) == tail,
        None => false,
    }
}

/// How the echo server sends replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Replies {
    /// Those of all requests that came together, together: the most the sockets can do.
    Batched,
    /// Each with a system call of its own, as most servers do.
    Single,
}

/// Serves until the process ends, a thread for each connection.
///
/// # Errors
///
/// If the listener fails.
pub fn serve(listener: &TcpListener, replies: Replies) -> Result<(), Error> {
    let pattern = Pattern::new();
    std::thread::scope(|scope| {
        let mut threads: Vec<std::thread::ScopedJoinHandle<'_, ()>> = Vec::new();
        loop {
            let (stream, _) = listener.accept().map_err(Error::io("accept"))?;
            threads.retain(|thread| !thread.is_finished());
            if threads.len() >= CONNECTIONS_MAX {
                continue;
            }
            let pattern = &pattern;
            let thread = std::thread::Builder::new()
                .name("echo".into())
                .spawn_scoped(scope, move || {
                    // A connection that fails ends; its client sees that.
                    drop(serve_connection(stream, pattern, replies));
                })
                .map_err(Error::io("start a thread"))?;
            threads.push(thread);
        }
    })
}

fn serve_connection(mut stream: TcpStream, pattern: &Pattern, style: Replies) -> Result<(), Error> {
    stream.set_nodelay(true).map_err(Error::io("set up"))?;
    let mut inbox = Inbox::new();
    let mut replies = Vec::with_capacity(2 * BATCH_BYTES);
    while inbox.fill(&mut stream)? {
        while let Some(range) = inbox.next()? {
            let request = inbox.bytes(range);
            let (xid, length) = parse(request)?;
            let mark = u32::try_from(length).unwrap_or(0) | LAST_FRAGMENT;
            replies.extend_from_slice(&mark.to_be_bytes());
            replies.extend_from_slice(&xid);
            let content = length - XID_BYTES;
            let whole = pattern.prefix(content);
            replies.extend_from_slice(whole);
            replies.extend_from_slice(pattern.prefix(content - whole.len()));
            if replies.len() >= BATCH_BYTES || style == Replies::Single {
                send(&mut stream, &mut replies)?;
            }
        }
        send(&mut stream, &mut replies)?;
    }
    Ok(())
}

fn send(stream: &mut TcpStream, replies: &mut Vec<u8>) -> Result<(), Error> {
    stream
        .write_all(replies)
        .map_err(Error::io("send replies"))?;
    replies.clear();
    Ok(())
}

/// Call number and wanted length of a request.
fn parse(request: &[u8]) -> Result<([u8; XID_BYTES], usize), Error> {
    let broken = || Error::Stream("not an echo request");
    let (xid, rest) = request.split_first_chunk().ok_or_else(broken)?;
    let (magic, rest) = rest.split_first_chunk().ok_or_else(broken)?;
    let length = rest.first_chunk().ok_or_else(broken)?;
    let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| broken())?;
    let in_bounds = (XID_BYTES..=RECORD_BYTES_MAX).contains(&length);
    if u32::from_be_bytes(*magic) != MAGIC || !in_bounds {
        return Err(broken());
    }
    Ok((*xid, length))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::Sizes;
    use crate::workload::Kind;

    #[test]
    fn built_in_sizes_cover_every_load() {
        let sizes = Sizes::built_in().unwrap();
        for kind in Kind::value_variants() {
            assert!(sizes.of(*kind).is_ok(), "{}", kind.name());
        }
    }
}
