//! Publishing through the mount, on stores that fail and servers that die.

use std::collections::VecDeque;
use std::time::Duration;

use base::{Caller, ChunkId, Clock, CommitId, TenantId};
use bytes::Bytes;
use chunkstore::ChunkError;
use chunkstore::faulty::{Call as ChunkCall, Effect};
use metadata::keyspace;
use metadata::kv::Kv;
use metadata::kv::faulty::FaultRates;
use metadata::ops::How;
use metadata::record::reference::RefName;
use metadata::stat::SetAttrs;
use metadata::store::{CommitInfo, LogFilter, LogHeads, LogQuery, Walk};
use nfs3_types::nfs3::{
    COMMIT3args, COMMIT3res, LOOKUP3args, LOOKUP3res, NFS_PROGRAM, Nfs3Option, Nfs3Result,
    READ3args, READ3res, READDIRPLUS3args, READDIRPLUS3res, WRITE3args, WRITE3res, cookieverf3,
    diropargs3, filename3, nfs_fh3, nfsstat3, sattr3, stable_how,
};
use nfs3_types::xdr_codec::{Opaque, Pack};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use system_tests::subject::Op;

use crate::client::{Client, Mishap};
use crate::codec::{self, Raw};
use crate::rig::{Mishaps, Rig};
use crate::server::Setting;
use crate::slow_kv::Pace;
use crate::steps::{create, large_blocks, write};

/// Everything is lost at once, until that is changed.
const OUTAGE: FaultRates = FaultRates {
    conflict: 0,
    too_old: 0,
    unavailable: 1000,
    unknown_applied: 0,
    unknown_not_applied: 0,
    unknown_late: 0,
};

/// Stores at which a publish takes a while.
const PACE: Pace = Pace {
    read_ms_max: 2,
    commit_ms_max: 12,
};

pub(crate) fn look(rig: &mut Rig, path: &str) -> nfs_fh3 {
    try_look(rig, path).unwrap_or_else(|status| panic!("{path}: {status}"))
}

fn try_look(rig: &mut Rig, path: &str) -> Result<nfs_fh3, nfsstat3> {
    let mut at = rig.handles.of(base::InodeId::ROOT);
    for name in path.split('/') {
        let xid = rig.client.xid();
        let what = diropargs3 {
            dir: at.clone(),
            name: filename3(Opaque::borrowed(name.as_bytes())),
        };
        let procedure = NFS_PROGRAM::NFSPROC3_LOOKUP;
        let record = codec::nfs(procedure, xid, &Caller::root(), &LOOKUP3args { what });
        let reply = rig.exchange(vec![(xid, record)], Mishaps::new()).unwrap();
        let result = Bytes::copy_from_slice(codec::result(&reply[0]));
        at = match codec::unpack::<LOOKUP3res>(&result) {
            Nfs3Result::Ok(ok) => ok.object,
            Nfs3Result::Err((status, _)) => return Err(status),
        };
    }
    Ok(at)
}

pub(crate) fn read(rig: &mut Rig, path: &str) -> Vec<u8> {
    let file = look(rig, path);
    data(rig, &file).unwrap_or_else(|status| panic!("{path}: {status}"))
}

/// What a file has.
fn data(rig: &mut Rig, file: &nfs_fh3) -> Result<Vec<u8>, nfsstat3> {
    let sent = reading(rig, file);
    let reply = rig.exchange(vec![sent], Mishaps::new()).unwrap();
    had(&reply[0])
}

/// A READ of all of a file.
fn reading(rig: &mut Rig, file: &nfs_fh3) -> (u32, Bytes) {
    let xid = rig.client.xid();
    let args = READ3args {
        file: file.clone(),
        offset: 0,
        count: 1 << 20,
    };
    let procedure = NFS_PROGRAM::NFSPROC3_READ;
    (xid, codec::nfs(procedure, xid, &Caller::root(), &args))
}

/// What the reply to a READ has.
fn had(reply: &Bytes) -> Result<Vec<u8>, nfsstat3> {
    let result = Bytes::copy_from_slice(codec::result(reply));
    match codec::unpack::<READ3res<'_>>(&result) {
        Nfs3Result::Ok(ok) => Ok(ok.data.as_ref().to_vec()),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

/// A WRITE of a message.
pub(crate) fn say(rig: &mut Rig, file: &nfs_fh3, text: &str, stable: stable_how) -> (u32, Bytes) {
    say_at(rig, file, 0, text, stable)
}

/// A WRITE of a part of a message.
fn say_at(
    rig: &mut Rig,
    file: &nfs_fh3,
    offset: u64,
    text: &str,
    stable: stable_how,
) -> (u32, Bytes) {
    let xid = rig.client.xid();
    let args = WRITE3args {
        file: file.clone(),
        offset,
        count: u32::try_from(text.len()).unwrap(),
        stable,
        data: Opaque::borrowed(text.as_bytes()),
    };
    let procedure = NFS_PROGRAM::NFSPROC3_WRITE;
    (xid, codec::nfs(procedure, xid, &Caller::root(), &args))
}

fn commit(rig: &mut Rig, file: &nfs_fh3) -> (u32, Bytes) {
    let xid = rig.client.xid();
    let args = COMMIT3args {
        file: file.clone(),
        offset: 0,
        count: 0,
    };
    let procedure = NFS_PROGRAM::NFSPROC3_COMMIT;
    (xid, codec::nfs(procedure, xid, &Caller::root(), &args))
}

/// The status of a WRITE, and its verifier.
pub(crate) fn written(reply: &Bytes) -> Result<[u8; 8], nfsstat3> {
    let result = Bytes::copy_from_slice(codec::result(reply));
    match codec::unpack::<WRITE3res>(&result) {
        Nfs3Result::Ok(ok) => Ok(ok.verf.0),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

fn committed(reply: &Bytes) -> Result<[u8; 8], nfsstat3> {
    let result = Bytes::copy_from_slice(codec::result(reply));
    match codec::unpack::<COMMIT3res>(&result) {
        Nfs3Result::Ok(ok) => Ok(ok.verf.0),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

/// What `main` has come through, newest first.
fn log(rig: &Rig) -> Vec<CommitInfo> {
    let (store, id) = (rig.server.store(), rig.server.session);
    rig.server.run(async {
        let session = store.session(TenantId::DEFAULT, id).await.unwrap();
        let workspace = session.record.workspace;
        let main = store.reference(workspace, &RefName::main()).await.unwrap();
        let query = LogQuery {
            heads: LogHeads::of(main.record.state.commit),
            walk: Walk::AllParents,
            filter: LogFilter::default(),
            limit: 500,
        };
        store.log(workspace, query).await.unwrap().commits
    })
}

fn count(rig: &Rig, message: &str) -> usize {
    let is_it = |commit: &&CommitInfo| commit.record.message == message;
    log(rig).iter().filter(is_it).count()
}

/// A client whose WRITE gets no answer sends it again, to whoever is there: it is published once.
#[test]
fn a_publish_that_comes_again_publishes_once() {
    for seed in 0..6 {
        let mut rig = Rig::new(Setting::default(), seed);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rig.stores_crash = seed % 2 == 0;
        let file = rig.made(create("file"));
        let publish = look(&mut rig, ".holdfast/publish");
        for round in 0..8_u8 {
            let faults = FaultRates::all(if seed < 3 { 0 } else { 20 });
            rig.server
                .set_faults(FaultRates::default(), Pace::default());
            rig.good(write(file, 0, &[round; 9000], true));
            let text = format!("round {round}");
            let (xid, record) = say(&mut rig, &publish, &text, stable_how::FILE_SYNC);
            rig.server.set_faults(faults, PACE);
            let mut wanted = vec![Mishap::Cut(0), Mishap::Cut(1), Mishap::Cut(2)];
            wanted.push(Mishap::Duplicate);
            wanted.extend((round % 4 != 3).then_some(Mishap::Kill));
            let at = |mishap| (Duration::from_millis(rng.random_range(0..120)), mishap);
            let mut mishaps: VecDeque<_> = wanted.into_iter().map(at).collect();
            mishaps.make_contiguous().sort_by_key(|(at, _)| *at);
            let replies = rig.exchange(vec![(xid, record)], mishaps).unwrap();
            assert!(written(&replies[0]).is_ok(), "seed {seed}, round {round}");
            rig.server
                .set_faults(FaultRates::default(), Pace::default());
            assert_eq!(count(&rig, &text), 1, "seed {seed}, round {round}");
            let published = read(&mut rig, ".holdfast/at/main/file");
            assert_eq!(published, [round; 9000], "seed {seed}, round {round}");
        }
        assert_eq!(log(&rig).len(), 8, "seed {seed}");
    }
}

/// A copy that comes late gets the reply of the first, whatever was published since.
#[test]
fn a_late_copy_of_a_publish_does_nothing() {
    let mut rig = Rig::new(Setting::default(), 21);
    let file = rig.made(create("file"));
    let publish = look(&mut rig, ".holdfast/publish");
    let mut copies = Vec::new();
    for round in 0..3_u8 {
        rig.good(write(file, 0, &[round; 10], true));
        let text = format!("round {round}");
        let (xid, record) = say(&mut rig, &publish, &text, stable_how::FILE_SYNC);
        let sent = vec![(xid, record.clone())];
        let reply = rig.exchange(sent, Mishaps::new()).unwrap().remove(0);
        assert!(written(&reply).is_ok());
        copies.push((xid, record, reply));
    }
    // Something that a publish would take up.
    rig.good(write(file, 0, &[9; 10], true));
    for (xid, record, reply) in copies {
        let again = rig.exchange(vec![(xid, record)], Mishaps::new()).unwrap();
        assert_eq!(again[0], reply);
    }
    assert_eq!(log(&rig).len(), 3);
    assert_eq!(read(&mut rig, ".holdfast/at/main/file"), [2; 10]);
}

/// In parts: what COMMIT publishes is told again to a COMMIT that comes again, and is lost with the
/// server before it, which the verifier tells.
#[test]
fn a_message_in_parts_is_published_by_commit() {
    let mut rig = Rig::new(Setting::default(), 22);
    let file = rig.made(create("file"));
    let publish = look(&mut rig, ".holdfast/publish");
    rig.good(write(file, 0, b"one", true));
    let sent = say(&mut rig, &publish, "first", stable_how::UNSTABLE);
    let reply = rig.exchange(vec![sent], Mishaps::new()).unwrap().remove(0);
    let before = written(&reply).unwrap();
    rig.restart();
    let asked = commit(&mut rig, &publish);
    let reply = rig.exchange(vec![asked], Mishaps::new()).unwrap().remove(0);
    assert_ne!(committed(&reply).unwrap(), before);
    // The client sends it again.
    let sent = say(&mut rig, &publish, "first", stable_how::UNSTABLE);
    let reply = rig.exchange(vec![sent], Mishaps::new()).unwrap().remove(0);
    let verifier = written(&reply).unwrap();
    rig.server.set_faults(FaultRates::default(), PACE);
    let asked = [commit(&mut rig, &publish), commit(&mut rig, &publish)];
    let cuts = (0..3).map(|on| (Duration::from_millis(20), Mishap::Cut(on)));
    for reply in rig.exchange(asked.to_vec(), cuts.collect()).unwrap() {
        assert_eq!(committed(&reply), Ok(verifier));
    }
    assert_eq!(count(&rig, "first"), 1);
    // One that fails is told again, too.
    let sent = say(&mut rig, &publish, "\u{7}", stable_how::UNSTABLE);
    rig.exchange(vec![sent], Mishaps::new()).unwrap();
    for _ in 0..2 {
        let asked = commit(&mut rig, &publish);
        let reply = rig.exchange(vec![asked], Mishaps::new()).unwrap().remove(0);
        assert_eq!(committed(&reply), Err(nfsstat3::NFS3ERR_INVAL));
    }
    assert_eq!(log(&rig).len(), 1);
}

/// The tree of a commit is looked at as a session is: what is looked for is loaded and nothing else,
/// and what a call has loaded is not taken from it, however little memory there is.
#[test]
fn looking_at_a_version_loads_what_is_looked_for() {
    let files = 600;
    let setting = |session_memory_bytes| Setting {
        gateway: nfs_gateway::GatewayOptions {
            session_memory_bytes,
            ..nfs_gateway::GatewayOptions::default()
        },
        ..Setting::default()
    };
    for (seed, memory) in [(24, 256 << 20), (25, 600)] {
        let mut rig = Rig::new(setting(memory), seed);
        let dir = rig.made(crate::steps::mkdir("dir"));
        for at in 0..files {
            let file = rig.made(create_in(dir, &format!("f{at}")));
            if at % 100 == 0 {
                rig.good(write(file, 0, format!("content {at}").as_bytes(), true));
            }
        }
        let publish = look(&mut rig, ".holdfast/publish");
        let sent = say(&mut rig, &publish, "many", stable_how::FILE_SYNC);
        rig.exchange(vec![sent], Mishaps::new()).unwrap();
        rig.restart();
        let before = rig.server.counted().loads;
        let content = read(&mut rig, ".holdfast/at/main/dir/f300");
        assert_eq!(content, b"content 300");
        let loads = rig.server.counted().loads - before;
        // The live root, then root, entry, directory, entry, file; a little memory loads some again.
        assert!(loads <= if memory > 600 { 8 } else { 20 }, "{loads} loads");
        let root = look(&mut rig, ".holdfast/at/main/dir");
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let xid = rig.client.xid();
            let args = READDIRPLUS3args {
                dir: root.clone(),
                cookie,
                cookieverf: cookieverf3::default(),
                dircount: 4096,
                maxcount: 16_384,
            };
            let procedure = NFS_PROGRAM::NFSPROC3_READDIRPLUS;
            let record = codec::nfs(procedure, xid, &Caller::root(), &args);
            let reply = rig.exchange(vec![(xid, record)], Mishaps::new()).unwrap();
            let result = Bytes::copy_from_slice(codec::result(&reply[0]));
            let Nfs3Result::Ok(ok) = codec::unpack::<READDIRPLUS3res<'_>>(&result) else {
                panic!("the directory is not listed");
            };
            for entry in ok.reply.entries.into_inner() {
                cookie = entry.cookie;
                let name = String::from_utf8(entry.name.0.as_ref().to_vec()).unwrap();
                names.extend((name != "." && name != "..").then_some(name));
            }
            if ok.reply.eof {
                break;
            }
        }
        names.sort();
        let mut wanted: Vec<_> = (0..files).map(|at| format!("f{at}")).collect();
        wanted.sort();
        assert_eq!(names, wanted);
    }
}

pub(crate) fn create_in(dir: base::InodeId, name: &str) -> Op {
    Op::Create {
        dir,
        name: Bytes::copy_from_slice(name.as_bytes()),
        how: How::Guarded(SetAttrs::default()),
    }
}

/// Packs arguments one after the other.
macro_rules! packed {
    ($($part:expr),+) => {{
        let mut bytes = Vec::new();
        $($part.pack(&mut bytes).unwrap();)+
        Raw(bytes)
    }};
}

/// Every procedure with this object, this one beside it, and this name.
fn all_calls(rig: &mut Rig, first: &nfs_fh3, second: &nfs_fh3, name: &str) -> Vec<(u32, Bytes)> {
    use NFS_PROGRAM as P;
    let name = Opaque::borrowed(name.as_bytes());
    let target = Opaque::borrowed(b"target");
    let (none, mode) = (sattr3::default(), Nfs3Option::Some(0o7777));
    let mode = sattr3 { mode, ..none };
    let none = sattr3::default();
    let size = sattr3 {
        size: Nfs3Option::Some(7),
        ..sattr3::default()
    };
    let made = || packed!(first, name, none);
    let calls = [
        (P::NFSPROC3_GETATTR, packed!(first)),
        (P::NFSPROC3_READLINK, packed!(first)),
        (P::NFSPROC3_FSSTAT, packed!(first)),
        (P::NFSPROC3_FSINFO, packed!(first)),
        (P::NFSPROC3_PATHCONF, packed!(first)),
        (P::NFSPROC3_LOOKUP, packed!(first, name)),
        (P::NFSPROC3_REMOVE, packed!(first, name)),
        (P::NFSPROC3_RMDIR, packed!(first, name)),
        (P::NFSPROC3_RENAME, packed!(first, name, second, name)),
        (P::NFSPROC3_RENAME, packed!(second, name, first, name)),
        (P::NFSPROC3_LINK, packed!(first, second, name)),
        (P::NFSPROC3_ACCESS, packed!(first, 0x3f_u32)),
        (P::NFSPROC3_READ, packed!(first, 1_u64, 10_u32)),
        (P::NFSPROC3_READ, packed!(first, u64::MAX, u32::MAX)),
        (P::NFSPROC3_COMMIT, packed!(first, 0_u64, 0_u32)),
        (P::NFSPROC3_READDIR, packed!(first, 0_u64, 0_u64, 0_u32)),
        (P::NFSPROC3_READDIR, packed!(first, 3_u64, 0_u64, 4096_u32)),
        (
            P::NFSPROC3_READDIRPLUS,
            packed!(first, u64::MAX, 0_u64, 512_u32, 4096_u32),
        ),
        (P::NFSPROC3_MKDIR, made()),
        (P::NFSPROC3_CREATE, packed!(first, name, 1_u32, none)),
        (P::NFSPROC3_CREATE, packed!(first, name, 2_u32, 7_u64)),
        (P::NFSPROC3_SYMLINK, packed!(first, name, none, target)),
        (P::NFSPROC3_MKNOD, packed!(first, name, 7_u32, none)),
        (P::NFSPROC3_SETATTR, packed!(first, mode, 0_u32)),
        (P::NFSPROC3_SETATTR, packed!(first, size, 0_u32)),
    ];
    let encode = |(procedure, args): (P, Raw)| {
        let xid = rig.client.xid();
        (xid, codec::nfs(procedure, xid, &Caller::root(), &args))
    };
    calls.into_iter().map(encode).collect()
}

/// Whatever is asked of whatever object gets an answer, and changes nothing.
#[test]
fn every_call_on_every_object_is_answered() {
    let mut rig = Rig::new(Setting::default(), 26);
    let file = rig.made(create("file"));
    rig.good(write(file, 0, b"content", true));
    let publish = look(&mut rig, ".holdfast/publish");
    let sent = say(&mut rig, &publish, "one", stable_how::FILE_SYNC);
    rig.exchange(vec![sent], Mishaps::new()).unwrap();
    let inside = [
        ".holdfast",
        ".holdfast/at",
        ".holdfast/status",
        ".holdfast/diff",
        ".holdfast/publish",
        ".holdfast/checkpoint",
        ".holdfast/changed",
        ".holdfast/at/main",
        ".holdfast/at/main/file",
    ];
    let objects: Vec<nfs_fh3> = inside.map(|path| look(&mut rig, path)).into();
    let root = rig.handles.of(base::InodeId::ROOT);
    let (status, before) = (read(&mut rig, ".holdfast/status"), log(&rig));
    for first in &objects {
        for second in objects.iter().chain([&root]) {
            for name in ["file", ".", "..", "publish", "", "a/b", &"x".repeat(300)] {
                let calls = all_calls(&mut rig, first, second, name);
                let count = calls.len();
                let replies = rig.exchange(calls, Mishaps::new()).unwrap();
                assert_eq!(replies.len(), count);
                for reply in replies {
                    let result = codec::result(&reply);
                    let status = u32::from_be_bytes(*result.first_chunk().unwrap());
                    // Not EIO, and not SERVERFAULT.
                    assert!(status != 5 && status != 10_006, "{status}");
                }
            }
        }
    }
    assert_eq!(rig.client.closed_by_server, 0);
    assert_eq!(read(&mut rig, ".holdfast/status"), status);
    assert_eq!(log(&rig), before);
    assert_eq!(read(&mut rig, ".holdfast/diff"), b"");
    assert_eq!(read(&mut rig, ".holdfast/at/main/file"), b"content");
}

/// Without room nothing is published, `close` says so, and the next one publishes.
#[test]
fn a_publish_without_room_fails_and_is_made_later() {
    let mut rig = Rig::new(large_blocks(), 27);
    let file = rig.made(create("file"));
    rig.good(write(file, 0, &[1; 60_000], true));
    for full in ["metadata", "chunks"] {
        let publish = look(&mut rig, ".holdfast/publish");
        if full == "metadata" {
            rig.server.memory.set_available_bytes(Some(0));
        } else {
            rig.server.chunks.fill();
        }
        let sent = say(&mut rig, &publish, full, stable_how::FILE_SYNC);
        let reply = rig.exchange(vec![sent], Mishaps::new()).unwrap().remove(0);
        assert_eq!(written(&reply), Err(nfsstat3::NFS3ERR_NOSPC), "{full}");
        let said = String::from_utf8(read(&mut rig, ".holdfast/publish")).unwrap();
        assert!(said.starts_with("failed      no space"), "{said}");
        // What costs nothing can be read all the while; a diff costs what a publish does.
        assert!(read(&mut rig, ".holdfast/status").starts_with(b"session"));
        let diff = try_look(&mut rig, ".holdfast/diff");
        assert_eq!(diff.err(), Some(nfsstat3::NFS3ERR_NOSPC), "{full}");
        rig.server.memory.set_available_bytes(None);
        rig.server.chunks.heal();
        rig.pass(2);
        let sent = say(&mut rig, &publish, full, stable_how::FILE_SYNC);
        let reply = rig.exchange(vec![sent], Mishaps::new()).unwrap().remove(0);
        assert!(written(&reply).is_ok(), "{full}");
        assert_eq!(count(&rig, full), 1);
        assert_eq!(read(&mut rig, ".holdfast/at/main/file").len(), 60_000);
        rig.good(write(file, 0, &[2; 60_000], true));
    }
    assert_eq!(rig.client.closed_by_server, 0);
}

/// Stores that fail are a pause: for a publish, for texts, and for the tree of a commit.
#[test]
fn an_outage_is_no_error() {
    let mut rig = Rig::new(Setting::default(), 23);
    let file = rig.made(create("file"));
    rig.good(write(file, 0, &[1; 50_000], true));
    let publish = look(&mut rig, ".holdfast/publish");
    let sent = say(&mut rig, &publish, "before", stable_how::FILE_SYNC);
    rig.exchange(vec![sent], Mishaps::new()).unwrap();
    let old = look(&mut rig, ".holdfast/at/main/file");
    rig.good(write(file, 0, &[2; 50_000], true));
    // Nothing of the commit is in memory afterwards.
    rig.restart();
    rig.good(crate::steps::read(file));
    let read_old = {
        let xid = rig.client.xid();
        let args = READ3args {
            file: old,
            offset: 0,
            count: 10,
        };
        let procedure = NFS_PROGRAM::NFSPROC3_READ;
        (xid, codec::nfs(procedure, xid, &Caller::root(), &args))
    };
    let sent = say(&mut rig, &publish, "during", stable_how::FILE_SYNC);
    let xids = [sent.0, read_old.0];
    rig.server.set_faults(OUTAGE, Pace::default());
    let (faulty, clock) = (rig.server.faulty.clone(), rig.server.clock.clone());
    let client: &mut Client = &mut rig.client;
    rig.server.run(async {
        client.send(sent.0, sent.1);
        client.send(read_old.0, read_old.1);
        let heal = async {
            clock.sleep(Duration::from_secs(50)).await;
            faulty.set_rates(FaultRates::default());
        };
        tokio::join!(client.wait(Mishaps::new()), heal).0
    });
    let replies = xids.map(|xid| rig.client.take(xid).unwrap());
    assert!(rig.client.closed_by_server > 0);
    assert!(written(&replies[0]).is_ok());
    let result = Bytes::copy_from_slice(codec::result(&replies[1]));
    let Nfs3Result::Ok(ok) = codec::unpack::<READ3res<'_>>(&result) else {
        panic!("the old version is not read");
    };
    assert_eq!(ok.data.as_ref(), [1; 10]);
    assert_eq!(count(&rig, "during"), 1);
    assert_eq!(read(&mut rig, ".holdfast/at/main/file"), [2; 50_000]);
}

/// Bug: a part of a message that was too long was published, if it came after the one that was too much.
#[test]
fn nothing_of_a_message_that_is_too_long_is_published() {
    let mut rig = Rig::new(Setting::default(), 29);
    publish(&mut rig);
    rig.good(create("file"));
    let file = look(&mut rig, ".holdfast/publish");
    let part = "x".repeat(30_000);
    let put = |rig: &mut Rig, offset| {
        let sent = say_at(rig, &file, offset, &part, stable_how::UNSTABLE);
        let reply = rig.exchange(vec![sent], Mishaps::new()).unwrap();
        written(&reply[0]).map(drop)
    };
    let invalid = Err(nfsstat3::NFS3ERR_INVAL);
    for _ in 0..2 {
        assert_eq!(put(&mut rig, 30_000), Ok(()));
        for offset in [90_000, 0, 60_000] {
            assert_eq!(put(&mut rig, offset), invalid, "{offset}");
        }
        // Who has heard of it begins anew.
        let sent = commit(&mut rig, &file);
        let reply = rig.exchange(vec![sent], Mishaps::new()).unwrap();
        assert_eq!(committed(&reply[0]).map(drop), invalid);
        assert_eq!(log(&rig).len(), 1);
    }
    // Who opens it anew does so, too, whatever comes of the one before.
    assert_eq!(put(&mut rig, 30_000), Ok(()));
    assert_eq!(put(&mut rig, 90_000), invalid);
    let anew = look(&mut rig, ".holdfast/publish");
    let sent = say_at(&mut rig, &anew, 40, "sh", stable_how::UNSTABLE);
    let reply = rig.exchange(vec![sent], Mishaps::new()).unwrap();
    assert!(written(&reply[0]).is_ok());
    assert_eq!(put(&mut rig, 0), invalid);
    let sent = say_at(&mut rig, &anew, 42, "ort", stable_how::FILE_SYNC);
    let reply = rig.exchange(vec![sent], Mishaps::new()).unwrap();
    assert!(written(&reply[0]).is_ok());
    assert_eq!(count(&rig, "short"), 1);
    assert_eq!(log(&rig).len(), 2);
}

/// Publishes what the session has.
fn publish(rig: &mut Rig) -> CommitId {
    let publish = look(rig, ".holdfast/publish");
    let sent = say(rig, &publish, "all", stable_how::FILE_SYNC);
    let reply = rig.exchange(vec![sent], Mishaps::new()).unwrap();
    written(&reply[0]).unwrap();
    log(rig)[0].id
}

/// Bug: when the content of a commit that was removed had been collected, reading it was an I/O error,
/// and damage was reported.
#[test]
fn a_file_of_a_removed_commit_is_stale() {
    let mut rig = Rig::new(large_blocks(), 28);
    let file = rig.made(create("f"));
    rig.good(write(file, 0, &[1; 60_000], true));
    let commit = publish(&mut rig);
    let file = look(&mut rig, ".holdfast/at/main/f");
    assert_eq!(data(&mut rig, &file).unwrap(), [1; 60_000]);
    rig.server.forgetful.forget_all();
    let collect = |rig: &Rig| {
        let gone = ChunkError::NotFound(ChunkId::new([0; 32]));
        let chunks = &rig.server.chunks;
        chunks.fail(ChunkCall::Get, gone, Effect::Nothing, u32::MAX);
    };
    let corrupt = |rig: &Rig| rig.server.gateway().counters().corrupt.value();
    // As long as there is the commit its content has to be there.
    collect(&rig);
    assert_eq!(data(&mut rig, &file), Err(nfsstat3::NFS3ERR_IO));
    assert_eq!(corrupt(&rig), 1);
    rig.server.chunks.heal();
    assert_eq!(data(&mut rig, &file).unwrap(), [1; 60_000]);
    let (store, session) = (rig.server.store(), rig.server.session);
    rig.server.run(async {
        let session = store.session(TenantId::DEFAULT, session).await.unwrap();
        let mut txn = rig.server.memory.begin();
        txn.clear(&keyspace::commit(session.record.workspace, commit));
        txn.commit().await.unwrap();
    });
    collect(&rig);
    assert_eq!(data(&mut rig, &file), Err(nfsstat3::NFS3ERR_STALE));
    assert_eq!(corrupt(&rig), 1);
}

/// Bug: while the content of one file of a version was fetched, nothing else of it could be looked at.
#[test]
fn a_slow_read_of_a_version_is_in_nobodys_way() {
    let mut rig = Rig::new(large_blocks(), 29);
    for name in ["f", "g"] {
        let file = rig.made(create(name));
        rig.good(write(file, 0, &[1; 60_000], true));
    }
    publish(&mut rig);
    rig.restart();
    let dir = look(&mut rig, ".holdfast/at/main");
    let file = look(&mut rig, ".holdfast/at/main/f");
    rig.server.forgetful.forget_all();
    let chunks = &rig.server.chunks;
    chunks.delay(ChunkCall::Get, Duration::from_secs(10));
    let read = reading(&mut rig, &file);
    let xid = rig.client.xid();
    let what = diropargs3 {
        dir,
        name: filename3(Opaque::borrowed(b"g")),
    };
    let procedure = NFS_PROGRAM::NFSPROC3_LOOKUP;
    let lookup = codec::nfs(procedure, xid, &Caller::root(), &LOOKUP3args { what });
    let (client, clock) = (&mut rig.client, rig.server.clock.clone());
    let looked_up = rig.server.run(async {
        client.send(read.0, read.1);
        client.transmit().await;
        clock.sleep(Duration::from_millis(100)).await;
        client.send(xid, lookup);
        client.wait_for(xid).await
    });
    let result = Bytes::copy_from_slice(codec::result(&looked_up.unwrap()));
    let found = codec::unpack::<LOOKUP3res>(&result);
    assert!(matches!(found, Nfs3Result::Ok(_)));
    assert_eq!(rig.client.take(read.0), None, "it was not slow");
    rig.server.run(rig.client.wait(Mishaps::new()));
    let reply = rig.client.take(read.0).unwrap();
    assert_eq!(had(&reply).unwrap(), [1; 60_000]);
}
