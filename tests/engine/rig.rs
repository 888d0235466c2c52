//! Server and client together: calls by the model's words, over the wire.

use std::collections::VecDeque;
use std::time::Duration;

use base::{Caller, InodeId};
use bytes::Bytes;
use metadata::ops::Context;
use nfs3_types::nfs3::{self as wire, NFS_PROGRAM, Nfs3Result};
use nfs3_types::xdr_codec::Opaque;
use system_tests::subject::{Answer, Asks, Call, Op};

use crate::client::{Client, End, Mishap};
use crate::codec::{self, Handles, Listing, Raw, Reply};
use crate::server::{Server, Setting};

/// Times at which something goes wrong, from when the calls are sent.
pub(crate) type Mishaps = VecDeque<(Duration, Mishap)>;

/// What the session said it has, in bytes and inodes: used and free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) used_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) used_inodes: u64,
}

/// Server and client.
pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) client: Client,
    pub(crate) handles: Handles,
    /// Calls that were answered.
    pub(crate) calls: u64,
    /// Whether the store crashes with the gateway when it is killed.
    pub(crate) stores_crash: bool,
    asks: u64,
}

impl Rig {
    /// A server that is running, and a client that has mounted its session.
    pub(crate) fn new(setting: Setting, seed: u64) -> Self {
        let mut server = Server::new(setting, seed);
        let address = server.start();
        let mut client = Client::new(server.clock.clone(), seed);
        server.run(async { client.move_to(address) });
        let mut rig = Self {
            server,
            client,
            handles: Handles::default(),
            calls: 0,
            stores_crash: false,
            asks: 0,
        };
        let root = rig.mount(&rig.server.ticket.clone()).unwrap();
        rig.handles.learn(InodeId::ROOT, &root);
        rig
    }

    /// Sends records, waits for all replies; survives deaths of the server among the mishaps.
    pub(crate) fn exchange(
        &mut self,
        records: Vec<(u32, Bytes)>,
        mishaps: Mishaps,
    ) -> Result<Vec<Bytes>, String> {
        let xids: Vec<u32> = records.iter().map(|(xid, _)| *xid).collect();
        let client = &mut self.client;
        let mut end = self.server.run(async {
            for (xid, record) in records {
                client.send(xid, record);
            }
            client.wait(mishaps).await
        });
        while end == End::Kill {
            self.restart();
            let client = &mut self.client;
            end = self.server.run(client.wait(Mishaps::new()));
        }
        if end == End::Hangs {
            let buffered = self.server.gateway().buffered_bytes();
            return Err(format!("nothing is answered; {buffered} bytes buffered"));
        }
        Ok(xids
            .into_iter()
            .map(|xid| self.client.take(xid).unwrap())
            .collect())
    }

    /// Kills the server where it is, and starts it again.
    pub(crate) fn restart(&mut self) {
        self.server.kill(self.stores_crash);
        let address = self.server.start();
        let client = &mut self.client;
        self.server.run(async { client.move_to(address) });
    }

    /// Goes over to a fork of the session, whose handles are to be those of the same inodes.
    pub(crate) fn fork(&mut self, close: bool) -> Result<(), String> {
        self.server.fork(close)?;
        // Copies of calls to the source have nothing to say here.
        for answered in &mut self.client.history {
            (answered.tracked, answered.stored) = (false, false);
        }
        let keys = self.server.handle_keys();
        self.handles.move_to(self.server.session, &keys);
        let root = self
            .mount(&self.server.ticket.clone())
            .map_err(|status| format!("MNT of the fork fails with {status}"))?;
        self.handles.learn(InodeId::ROOT, &root);
        Ok(())
    }

    /// Starts one more gateway, to which the client goes. The one before lives on.
    pub(crate) fn hand_over(&mut self) {
        let address = self.server.start();
        let client = &mut self.client;
        self.server.run(async { client.move_to(address) });
    }

    /// Makes calls at the same time.
    pub(crate) fn call_all(
        &mut self,
        calls: &[Call],
        mishaps: Mishaps,
    ) -> Result<Vec<Reply>, String> {
        let mut records = Vec::new();
        let mut listings = Vec::new();
        for call in calls {
            self.server.clock.set_wall(call.now);
            self.asks += 1;
            let listing = if self.asks.is_multiple_of(2) {
                Listing::Plain
            } else {
                Listing::Plus
            };
            let xid = self.client.xid();
            let record = codec::encode(&self.handles, xid, call, listing);
            records.push((xid, record));
            listings.push(listing);
        }
        let sent = records.clone();
        let before = self.server.owner();
        let replies = self.exchange(records, mishaps)?;
        let mut decoded = Vec::new();
        for (at, reply) in replies.into_iter().enumerate() {
            let (call, (xid, record)) = (&calls[at], &sent[at]);
            let result = codec::result(&reply);
            let read = codec::decode(&mut self.handles, call, listings[at], result);
            let mut answered = Client::answered(*xid, record.clone(), reply);
            answered.tracked = codec::is_tracked(&call.op);
            answered.stored = codec::is_stored(&call.op, &read.answer);
            answered.owner = (self.server.owner() == before).then_some(before);
            self.client.remember(answered);
            decoded.push(read);
            self.calls += 1;
        }
        let complaints = [&mut self.client.complaints, &mut self.handles.complaints];
        match complaints.into_iter().find_map(Vec::pop) {
            Some(complaint) => Err(complaint),
            None => Ok(decoded),
        }
    }

    /// Makes one call without mishaps.
    pub(crate) fn call(&mut self, call: &Call) -> Result<Reply, String> {
        let mut replies = self.call_all(std::slice::from_ref(call), Mishaps::new())?;
        Ok(replies.remove(0))
    }

    /// MNT: the handle, or the status.
    pub(crate) fn mount(&mut self, path: &str) -> Result<Vec<u8>, u32> {
        let xid = self.client.xid();
        self.mount_by(xid, path)
    }

    /// MNT as the call `xid`, maybe again.
    pub(crate) fn mount_by(&mut self, xid: u32, path: &str) -> Result<Vec<u8>, u32> {
        let path = format!("/{path}").into_bytes();
        let record = codec::mount(1, xid, &Opaque::owned(path));
        let reply = self.exchange(vec![(xid, record)], Mishaps::new()).unwrap();
        let result = codec::result(&reply[0]);
        let status = u32::from_be_bytes(*result.first_chunk().unwrap());
        if status != 0 {
            return Err(status);
        }
        let length = u32::from_be_bytes(result[4..8].try_into().unwrap());
        Ok(result[8..8 + usize::try_from(length).unwrap()].to_vec())
    }

    /// A procedure without arguments, by program and number. Returns its result.
    pub(crate) fn plain(&mut self, mount: bool, procedure: u32) -> Result<Bytes, String> {
        let xid = self.client.xid();
        let nothing = Raw(Vec::new());
        let record = if mount {
            codec::mount(procedure, xid, &nothing)
        } else {
            codec::record((100_003, procedure), xid, &Caller::root(), &nothing)
        };
        let reply = self.exchange(vec![(xid, record)], Mishaps::new())?;
        Ok(Bytes::copy_from_slice(codec::result(&reply[0])))
    }

    fn about_root(&mut self, procedure: NFS_PROGRAM) -> Result<Bytes, String> {
        let xid = self.client.xid();
        let root = self.handles.of(InodeId::ROOT);
        let record = codec::nfs(procedure, xid, &Caller::root(), &root);
        let reply = self.exchange(vec![(xid, record)], Mishaps::new())?;
        Ok(Bytes::copy_from_slice(codec::result(&reply[0])))
    }

    /// FSSTAT.
    pub(crate) fn fsstat(&mut self) -> Result<Space, String> {
        let bytes = self.about_root(NFS_PROGRAM::NFSPROC3_FSSTAT)?;
        match codec::unpack::<wire::FSSTAT3res>(&bytes) {
            Nfs3Result::Ok(ok) => Ok(Space {
                used_bytes: ok.tbytes - ok.fbytes,
                free_bytes: ok.abytes,
                used_inodes: ok.tfiles - ok.ffiles,
            }),
            Nfs3Result::Err((status, _)) => Err(format!("FSSTAT fails: {status}")),
        }
    }

    /// FSINFO and PATHCONF, whose results never change.
    pub(crate) fn constants(&mut self) -> Result<(), String> {
        let bytes = self.about_root(NFS_PROGRAM::NFSPROC3_FSINFO)?;
        let Nfs3Result::Ok(info) = codec::unpack::<wire::FSINFO3res>(&bytes) else {
            return Err("FSINFO fails".to_owned());
        };
        let max = u64::from(self.server.setting.block_bytes) << 32;
        if (info.rtmax, info.wtmax, info.maxfilesize) != (1 << 20, 1 << 20, max) {
            return Err(format!("FSINFO: {info:?}"));
        }
        let bytes = self.about_root(NFS_PROGRAM::NFSPROC3_PATHCONF)?;
        let Nfs3Result::Ok(conf) = codec::unpack::<wire::PATHCONF3res>(&bytes) else {
            return Err("PATHCONF fails".to_owned());
        };
        if (conf.linkmax, conf.name_max, conf.no_trunc) != (65_000, 255, true) {
            return Err(format!("PATHCONF: {conf:?}"));
        }
        Ok(())
    }
}

impl Asks for Rig {
    fn ask(&mut self, cx: Context<'_>, op: Op) -> Answer {
        let call = Call {
            caller: cx.caller.clone(),
            now: cx.now,
            op,
        };
        self.call(&call).unwrap().answer
    }
}
