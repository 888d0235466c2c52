//! Calls in few words, for tests of one thing.

use std::time::Duration;

use base::{Caller, Clock, InodeId, Timestamp};
use bytes::Bytes;
use metadata::FsError;
use metadata::ops::{How, Node};
use metadata::stat::SetAttrs;
use system_tests::subject::{Answer, Call, Op};

use crate::client::End;
use crate::codec::{self, Listing, Reply};
use crate::rig::{Mishaps, Rig};
use crate::server::Setting;

pub(crate) const NOW: Timestamp = Timestamp::new(1_700_000_000, 0);

pub(crate) fn root(op: Op) -> Call {
    Call {
        caller: Caller::root(),
        now: NOW,
        op,
    }
}

pub(crate) fn create(name: &str) -> Op {
    Op::Create {
        dir: InodeId::ROOT,
        name: Bytes::copy_from_slice(name.as_bytes()),
        how: How::Guarded(SetAttrs::default()),
    }
}

pub(crate) fn mkdir(name: &str) -> Op {
    Op::Make {
        dir: InodeId::ROOT,
        name: Bytes::copy_from_slice(name.as_bytes()),
        node: Node::Directory,
        attrs: SetAttrs::default(),
    }
}

pub(crate) fn remove(name: &str) -> Op {
    Op::Remove {
        dir: InodeId::ROOT,
        name: Bytes::copy_from_slice(name.as_bytes()),
    }
}

pub(crate) fn lookup(name: &str) -> Op {
    Op::Lookup {
        dir: InodeId::ROOT,
        name: Bytes::copy_from_slice(name.as_bytes()),
    }
}

pub(crate) fn write(inode: InodeId, offset: u64, data: &[u8], stable: bool) -> Op {
    Op::Write {
        inode,
        offset,
        data: Bytes::copy_from_slice(data),
        stable,
    }
}

pub(crate) fn read(inode: InodeId) -> Op {
    Op::Read {
        inode,
        offset: 0,
        count: 1 << 20,
    }
}

/// Blocks so large that data goes to chunks.
pub(crate) fn large_blocks() -> Setting {
    Setting {
        block_bytes: 64 << 10,
        ..Setting::default()
    }
}

impl Rig {
    /// Makes a call that has to succeed.
    pub(crate) fn good(&mut self, op: Op) -> Answer {
        let reply = self.call(&root(op.clone())).unwrap();
        assert_eq!(reply.answer.error(), None, "{op:?}");
        reply.answer
    }

    pub(crate) fn error(&mut self, op: Op) -> Option<FsError> {
        self.call(&root(op)).unwrap().answer.error()
    }

    pub(crate) fn made(&mut self, op: Op) -> InodeId {
        match self.good(op) {
            Answer::Created(Ok(created)) => created.object.inode,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn content(&mut self, inode: InodeId) -> Bytes {
        match self.good(read(inode)) {
            Answer::Data(Ok(read)) => read.data,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn verifier(&mut self, op: Op) -> [u8; 8] {
        self.call(&root(op)).unwrap().verifier.unwrap()
    }

    pub(crate) fn pass(&self, seconds: u64) {
        let client = &self.client;
        self.server
            .run(async { client.idle(Duration::from_secs(seconds)).await });
    }

    /// Makes calls while something happens beside them.
    pub(crate) fn call_beside(
        &mut self,
        ops: Vec<Op>,
        beside: impl Future<Output = ()>,
    ) -> Vec<Bytes> {
        let client = &mut self.client;
        let mut xids = Vec::new();
        for op in ops {
            let xid = client.xid();
            let record = codec::encode(&self.handles, xid, &root(op), Listing::Plain);
            xids.push((xid, record));
        }
        let sent: Vec<u32> = xids.iter().map(|(xid, _)| *xid).collect();
        let end = self.server.run(async {
            for (xid, record) in xids {
                client.send(xid, record);
            }
            tokio::join!(client.wait(Mishaps::new()), beside).0
        });
        assert_eq!(end, End::Answered);
        sent.into_iter()
            .map(|xid| self.client.take(xid).unwrap())
            .collect()
    }

    /// Sends a call and does not wait for its reply.
    pub(crate) fn sent(&mut self, op: Op) -> u32 {
        let xid = self.client.xid();
        let record = codec::encode(&self.handles, xid, &root(op), Listing::Plain);
        let client = &mut self.client;
        let clock = self.server.clock.clone();
        self.server.run(async {
            client.send(xid, record);
            client.transmit().await;
            clock.sleep(Duration::from_millis(1)).await;
        });
        xid
    }

    /// The reply to a call that was sent.
    pub(crate) fn reply(&mut self, xid: u32, op: &Op) -> Reply {
        let client = &mut self.client;
        let end = self.server.run(client.wait(Mishaps::new()));
        assert_eq!(end, End::Answered);
        let reply = self.client.take(xid).unwrap();
        let result = codec::result(&reply);
        codec::decode(&mut self.handles, &root(op.clone()), Listing::Plain, result)
    }

    /// Makes a call while others are in progress.
    fn beside(&mut self, op: Op) -> Reply {
        let xid = self.client.xid();
        let record = codec::encode(&self.handles, xid, &root(op.clone()), Listing::Plain);
        let client = &mut self.client;
        let reply = self.server.run(async {
            client.send(xid, record);
            client.wait_for(xid).await
        });
        let reply = reply.unwrap();
        let result = codec::result(&reply);
        codec::decode(&mut self.handles, &root(op), Listing::Plain, result)
    }

    pub(crate) fn error_beside(&mut self, op: Op) -> Option<FsError> {
        self.beside(op).answer.error()
    }

    pub(crate) fn verifier_beside(&mut self, op: Op) -> [u8; 8] {
        self.beside(op).verifier.unwrap()
    }
}
