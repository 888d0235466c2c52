//! One bug or promise each.

use std::time::Duration;

use base::{Caller, InodeId, Timestamp};
use bytes::Bytes;
use chunkstore::ChunkError;
use chunkstore::faulty::{Call as ChunkCall, Effect};
use metadata::FsError;
use metadata::kv::faulty::FaultRates;
use metadata::ops::{How, Node};
use metadata::stat::SetAttrs;
use nfs_gateway::GatewayOptions;
use system_tests::subject::{Answer, Call, Op};

use crate::client::{End, Mishap};
use crate::codec::{self, Listing};
use crate::rig::{Mishaps, Rig};
use crate::server::Setting;
use crate::slow_kv::Pace;

const NOW: Timestamp = Timestamp::new(1_700_000_000, 0);

fn root(op: Op) -> Call {
    Call {
        caller: Caller::root(),
        now: NOW,
        op,
    }
}

fn create(name: &str) -> Op {
    Op::Create {
        dir: InodeId::ROOT,
        name: Bytes::copy_from_slice(name.as_bytes()),
        how: How::Guarded(SetAttrs::default()),
    }
}

fn mkdir(name: &str) -> Op {
    Op::Make {
        dir: InodeId::ROOT,
        name: Bytes::copy_from_slice(name.as_bytes()),
        node: Node::Directory,
        attrs: SetAttrs::default(),
    }
}

fn remove(name: &str) -> Op {
    Op::Remove {
        dir: InodeId::ROOT,
        name: Bytes::copy_from_slice(name.as_bytes()),
    }
}

fn lookup(name: &str) -> Op {
    Op::Lookup {
        dir: InodeId::ROOT,
        name: Bytes::copy_from_slice(name.as_bytes()),
    }
}

fn write(inode: InodeId, offset: u64, data: &[u8], stable: bool) -> Op {
    Op::Write {
        inode,
        offset,
        data: Bytes::copy_from_slice(data),
        stable,
    }
}

fn read(inode: InodeId) -> Op {
    Op::Read {
        inode,
        offset: 0,
        count: 1 << 20,
    }
}

/// Everything is lost at once, until that is changed.
const OUTAGE: FaultRates = FaultRates {
    conflict: 0,
    too_old: 0,
    unavailable: 1000,
    unknown_applied: 0,
    unknown_not_applied: 0,
    unknown_late: 0,
};

impl Rig {
    /// Makes a call that has to succeed.
    fn good(&mut self, op: Op) -> Answer {
        let reply = self.call(&root(op.clone())).unwrap();
        assert_eq!(reply.answer.error(), None, "{op:?}");
        reply.answer
    }

    fn error(&mut self, op: Op) -> Option<FsError> {
        self.call(&root(op)).unwrap().answer.error()
    }

    fn made(&mut self, op: Op) -> InodeId {
        match self.good(op) {
            Answer::Created(Ok(created)) => created.object.inode,
            other => panic!("{other:?}"),
        }
    }

    fn content(&mut self, inode: InodeId) -> Bytes {
        match self.good(read(inode)) {
            Answer::Data(Ok(read)) => read.data,
            other => panic!("{other:?}"),
        }
    }

    fn verifier(&mut self, op: Op) -> [u8; 8] {
        self.call(&root(op)).unwrap().verifier.unwrap()
    }

    fn pass(&self, seconds: u64) {
        let client = &self.client;
        self.server
            .run(async { client.idle(Duration::from_secs(seconds)).await });
    }

    /// Makes calls while something happens beside them.
    fn call_beside(&mut self, ops: Vec<Op>, beside: impl Future<Output = ()>) -> Vec<Bytes> {
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
}

/// Blocks so large that data goes to chunks.
fn large_blocks() -> Setting {
    Setting {
        block_bytes: 64 << 10,
        ..Setting::default()
    }
}

fn small_budget() -> Setting {
    Setting {
        gateway: GatewayOptions {
            dirty_bytes_max: 16 << 10,
            ..GatewayOptions::default()
        },
        ..Setting::default()
    }
}

/// Bug: what was settled in memory was never given back, and the gate stayed closed.
#[test]
fn settled_data_is_given_back_to_the_budget() {
    let mut rig = Rig::new(small_budget(), 1);
    let files: Vec<InodeId> = (0..12)
        .map(|at| rig.made(create(&format!("f{at}"))))
        .collect();
    for round in 0..4 {
        for file in &files {
            rig.good(write(*file, 0, &[round; 3000], false));
        }
    }
    rig.pass(10);
    assert_eq!(rig.server.gateway().buffered_bytes(), 0);
    for file in &files {
        rig.good(write(*file, 0, &[9; 3000], false));
        rig.good(Op::Commit { inode: *file });
        assert_eq!(rig.content(*file), [9; 3000].as_slice());
    }
    assert_eq!(rig.server.gateway().buffered_bytes(), 0);
}

/// Bug: calls that need several objects loaded them for ever, since each load evicted another.
#[test]
fn loading_ends_with_little_memory() {
    let setting = Setting {
        gateway: GatewayOptions {
            session_memory_bytes: 600,
            ..GatewayOptions::default()
        },
        ..Setting::default()
    };
    let mut rig = Rig::new(setting, 2);
    for at in 0..30 {
        let file = rig.made(create(&format!("f{at}")));
        rig.good(write(file, 0, &[1; 5000], true));
    }
    let list = || Op::List {
        dir: InodeId::ROOT,
        cookie: 0,
        count: 40,
    };
    let calls: Vec<Call> = (0..12)
        .map(|at| match at % 3 {
            0 => root(list()),
            1 => root(lookup(&format!("f{at}"))),
            _ => root(Op::Rename {
                from_dir: InodeId::ROOT,
                from_name: Bytes::from(format!("f{at}")),
                to_dir: InodeId::ROOT,
                to_name: Bytes::from(format!("g{at}")),
            }),
        })
        .collect();
    for reply in rig.call_all(&calls, Mishaps::new()).unwrap() {
        assert_eq!(reply.answer.error(), None);
    }
    // Nobody was hung up on, and the loads were about as many as there are objects.
    assert_eq!(rig.client.closed_by_server, 0);
    let loads = rig.server.gateway().counters().loads.value();
    assert!(loads < 2000, "{loads} loads");
}

/// Bug: a session that was lost while data was being stored kept its share of the budget.
#[test]
fn a_lost_session_gives_its_budget_back_once() {
    let mut rig = Rig::new(large_blocks(), 3);
    let file = rig.made(create("f"));
    rig.good(write(file, 0, &[1; 60_000], false));
    assert_eq!(rig.server.gateway().buffered_bytes(), 60_000);
    rig.server
        .chunks
        .delay(ChunkCall::Put, Duration::from_secs(5));
    let lost = ChunkError::Unavailable("injected".into());
    rig.server
        .chunks
        .fail(ChunkCall::Put, lost, Effect::Nothing, 1);
    let (gateway, clock) = (rig.server.gateway().clone(), rig.server.clock.clone());
    let session = rig.server.session;
    let commit = Op::Commit { inode: file };
    rig.call_beside(vec![commit], async {
        base::Clock::sleep(&*clock, Duration::from_secs(1)).await;
        gateway.drop_session(session);
    });
    rig.pass(20);
    assert_eq!(rig.server.gateway().buffered_bytes(), 0);
    rig.good(write(file, 0, &[2; 60_000], false));
    assert_eq!(rig.server.gateway().buffered_bytes(), 60_000);
    // Another owner: the first one loses the session with data in memory.
    let first = rig.server.gateway().clone();
    rig.hand_over();
    rig.good(read(file));
    rig.pass(60);
    assert_eq!(first.buffered_bytes(), 0);
}

/// Bug: MOUNT failed when the store did for a moment.
#[test]
fn a_mount_waits_for_the_store() {
    let mut rig = Rig::new(Setting::default(), 4);
    let ticket = rig.server.ticket.clone();
    for round in 0..40 {
        rig.server.set_faults(FaultRates::all(120), Pace::default());
        assert!(rig.mount(&ticket).is_ok(), "mount {round}");
        if round % 4 == 0 {
            rig.server
                .set_faults(FaultRates::default(), Pace::default());
            rig.restart();
        }
    }
    rig.server
        .set_faults(FaultRates::default(), Pace::default());
    rig.restart();
    // An outage of some seconds, with a takeover to make.
    rig.server.set_faults(OUTAGE, Pace::default());
    let faulty = rig.server.faulty.clone();
    let clock = rig.server.clock.clone();
    let xid = rig.client.xid();
    let path = nfs3_types::xdr_codec::Opaque::owned(format!("/{ticket}").into_bytes());
    let record = codec::mount(1, xid, &path);
    let client = &mut rig.client;
    let end = rig.server.run(async {
        client.send(xid, record);
        let heal = async {
            base::Clock::sleep(&*clock, Duration::from_secs(5)).await;
            faulty.set_rates(FaultRates::default());
        };
        tokio::join!(client.wait(Mishaps::new()), heal).0
    });
    assert_eq!(end, End::Answered);
    let reply = rig.client.take(xid).unwrap();
    assert_eq!(codec::result(&reply)[..4], [0; 4]);
}

/// Bug: one failed commit lost the session, with all data in memory.
#[test]
fn an_outage_is_a_pause() {
    let mut rig = Rig::new(Setting::default(), 5);
    let file = rig.made(create("f"));
    let verifier = rig.verifier(write(file, 0, b"buffered", false));
    rig.server.set_faults(OUTAGE, Pace::default());
    let (faulty, clock) = (rig.server.faulty.clone(), rig.server.clock.clone());
    rig.call_beside(vec![mkdir("d")], async {
        base::Clock::sleep(&*clock, Duration::from_secs(10)).await;
        faulty.set_rates(FaultRates::default());
    });
    assert_eq!(rig.client.closed_by_server, 0);
    assert_eq!(rig.verifier(Op::Commit { inode: file }), verifier);
    rig.good(lookup("d"));
    // A longer one makes the server hang up, and the client ask again: still no error.
    rig.server.set_faults(OUTAGE, Pace::default());
    let (faulty, clock) = (rig.server.faulty.clone(), rig.server.clock.clone());
    rig.call_beside(vec![mkdir("e")], async {
        base::Clock::sleep(&*clock, Duration::from_secs(90)).await;
        faulty.set_rates(FaultRates::default());
    });
    assert!(rig.client.closed_by_server > 0);
    rig.good(lookup("e"));
    rig.pass(30);
    assert_eq!(rig.server.gateway().buffered_bytes(), 0);
}

/// Bug: a metadata store that was full to the last byte lost the session, and calls were never
/// answered.
#[test]
fn a_full_store_refuses_and_serves() {
    let mut rig = Rig::new(Setting::default(), 6);
    let file = rig.made(create("f"));
    rig.good(write(file, 0, b"stored", true));
    let before = rig.verifier(write(file, 0, b"buffer", false));
    rig.server.memory.set_available_bytes(Some(0));
    let commits = rig.server.faulty.commits();
    // These need no space that is asked for beforehand, and cannot be written all the same.
    assert_eq!(rig.error(remove("f")), Some(FsError::NoSpace));
    let attrs = SetAttrs {
        mode: Some(0o600),
        ..SetAttrs::default()
    };
    let chmod = Op::Setattr {
        inode: file,
        attrs,
        guard: None,
    };
    assert_eq!(rig.error(chmod.clone()), Some(FsError::NoSpace));
    assert_eq!(rig.error(mkdir("d")), Some(FsError::NoSpace));
    assert_eq!(
        rig.error(write(file, 0, b"more", true)),
        Some(FsError::NoSpace)
    );
    assert_eq!(rig.error(lookup("d")), Some(FsError::NotFound));
    // What could not be kept is given up, and the verifier says so.
    assert_eq!(rig.content(file), b"stored".as_slice());
    assert_ne!(rig.verifier(Op::Commit { inode: file }), before);
    // Longer than an idle session is kept otherwise.
    rig.pass(330);
    rig.good(lookup("f"));
    assert_eq!(rig.client.closed_by_server, 0);
    assert_eq!(rig.server.ownerships().0, 1);
    let tries = rig.server.faulty.commits() - commits;
    assert!(tries < 20, "{tries} commits to a full store");
    rig.server.memory.set_available_bytes(None);
    rig.pass(2);
    rig.good(chmod);
    rig.good(mkdir("d"));
    rig.good(write(file, 0, b"better", true));
    rig.good(remove("f"));
    rig.restart();
    rig.good(lookup("d"));
    assert_eq!(rig.error(lookup("f")), Some(FsError::NotFound));
}

/// Replies that wait for a flush which then finds no space: changes are refused, and what only
/// looked is answered from what is stored.
#[test]
fn what_waits_for_a_full_store_is_answered() {
    let mut rig = Rig::new(Setting::default(), 7);
    rig.good(mkdir("old"));
    let pace = Pace {
        read_ms_max: 1,
        commit_ms_max: 60,
    };
    rig.server.set_faults(FaultRates::default(), pace);
    rig.server.memory.set_available_bytes(Some(0));
    let calls = [
        root(Op::Rename {
            from_dir: InodeId::ROOT,
            from_name: Bytes::from_static(b"old"),
            to_dir: InodeId::ROOT,
            to_name: Bytes::from_static(b"new"),
        }),
        root(lookup("old")),
        root(lookup("new")),
        root(Op::Getattr {
            inode: InodeId::ROOT,
        }),
    ];
    for _ in 0..10 {
        let replies = rig.call_all(&calls, Mishaps::new()).unwrap();
        let errors: Vec<_> = replies.iter().map(|it| it.answer.error()).collect();
        let expected = [Some(FsError::NoSpace), None, Some(FsError::NotFound), None];
        assert_eq!(errors, expected);
        rig.pass(2);
    }
    rig.server.memory.set_available_bytes(None);
    rig.pass(2);
    rig.good(calls[0].op.clone());
    assert_eq!(rig.client.closed_by_server, 0);
}

/// A takeover has to write. On a full store it waits, at a bounded rate, and goes on with space.
#[test]
fn a_takeover_waits_for_space() {
    let mut rig = Rig::new(Setting::default(), 8);
    rig.good(mkdir("d"));
    rig.server.memory.set_available_bytes(Some(0));
    rig.restart();
    let commits = rig.server.faulty.commits();
    let (memory, clock) = (rig.server.memory.clone(), rig.server.clock.clone());
    rig.call_beside(vec![lookup("d"), mkdir("e")], async {
        base::Clock::sleep(&*clock, Duration::from_secs(120)).await;
        memory.set_available_bytes(None);
    });
    let tries = rig.server.faulty.commits() - commits;
    assert!(tries < 400, "{tries} tries in two minutes");
    rig.good(lookup("e"));
}

/// Bug: a WRITE was taken for a copy of another with the same transaction id, length and first
/// kilobyte, and its data was lost.
#[test]
fn a_reused_transaction_id_is_no_copy() {
    let mut rig = Rig::new(Setting::default(), 9);
    let file = rig.made(create("f"));
    let xid = rig.client.xid();
    for last in [1, 2] {
        let mut data = vec![7; 40_000];
        data[39_999] = last;
        let record = codec::encode(
            &rig.handles,
            xid,
            &root(write(file, 0, &data, false)),
            Listing::Plain,
        );
        rig.exchange(vec![(xid, record)], Mishaps::new()).unwrap();
        assert_eq!(rig.content(file)[39_999], last);
    }
}

/// A copy of a WRITE that arrives late does not overwrite what was written since.
#[test]
fn a_late_copy_of_a_write_does_nothing() {
    let mut rig = Rig::new(Setting::default(), 10);
    let file = rig.made(create("f"));
    for stable in [false, true] {
        rig.good(write(file, 0, b"first", stable));
        let copy = rig.client.history.back().unwrap().clone();
        rig.good(write(file, 0, b"later", stable));
        let end = rig.server.run(async {
            rig.client.send_copy(&copy);
            rig.client.wait(Mishaps::new()).await
        });
        assert_eq!(end, End::Answered);
        assert_eq!(rig.client.take(copy.xid).unwrap(), copy.reply);
        assert_eq!(rig.content(file), b"later".as_slice());
    }
}

/// Bug: a busy writer pushed the replies of other calls out of the table and out of the store.
#[test]
fn writes_do_not_push_replies_out() {
    let mut rig = Rig::new(Setting::default(), 11);
    let file = rig.made(create("f"));
    rig.made(create("g"));
    rig.good(remove("g"));
    let copy = rig.client.history.back().unwrap().clone();
    for at in 0..1100 {
        rig.good(write(file, at, b"x", false));
    }
    for restart in [false, true] {
        if restart {
            rig.restart();
        }
        let end = rig.server.run(async {
            rig.client.send_copy(&copy);
            rig.client.wait(Mishaps::new()).await
        });
        assert_eq!(end, End::Answered);
        assert_eq!(rig.client.take(copy.xid).unwrap(), copy.reply);
    }
}

/// Every call that must run once, sent again after the server was killed.
#[test]
fn replies_outlive_the_server() {
    let mut rig = Rig::new(Setting::default(), 12);
    let file = rig.made(create("file"));
    let ops = [
        create("guarded"),
        Op::Create {
            dir: InodeId::ROOT,
            name: Bytes::from_static(b"exclusive"),
            how: How::Exclusive([7; 8]),
        },
        mkdir("dir"),
        Op::Make {
            dir: InodeId::ROOT,
            name: Bytes::from_static(b"symlink"),
            node: Node::Symlink(Bytes::from_static(b"target")),
            attrs: SetAttrs::default(),
        },
        Op::Make {
            dir: InodeId::ROOT,
            name: Bytes::from_static(b"fifo"),
            node: Node::Fifo,
            attrs: SetAttrs::default(),
        },
        Op::Link {
            inode: file,
            dir: InodeId::ROOT,
            name: Bytes::from_static(b"link"),
        },
        Op::Rename {
            from_dir: InodeId::ROOT,
            from_name: Bytes::from_static(b"fifo"),
            to_dir: InodeId::ROOT,
            to_name: Bytes::from_static(b"pipe"),
        },
        Op::Setattr {
            inode: file,
            attrs: SetAttrs {
                mode: Some(0o600),
                ..SetAttrs::default()
            },
            guard: None,
        },
        remove("link"),
        Op::Rmdir {
            dir: InodeId::ROOT,
            name: Bytes::from_static(b"dir"),
        },
    ];
    for op in ops {
        rig.good(op.clone());
        let copy = rig.client.history.back().unwrap().clone();
        rig.restart();
        let end = rig.server.run(async {
            rig.client.send_copy(&copy);
            rig.client.wait(Mishaps::new()).await
        });
        assert_eq!(end, End::Answered);
        assert_eq!(rig.client.take(copy.xid).unwrap(), copy.reply, "{op:?}");
        let counters = rig.server.gateway().counters();
        assert_eq!(counters.replayed_from_store.value(), 1, "{op:?}");
    }
}

/// A call in progress whose connection breaks is answered over the next one, and runs once.
#[test]
fn a_copy_of_a_running_call_gets_its_reply() {
    let mut rig = Rig::new(Setting::default(), 13);
    let pace = Pace {
        read_ms_max: 1,
        commit_ms_max: 2_000,
    };
    rig.server.set_faults(FaultRates::default(), pace);
    for at in 0..20 {
        let cuts = (0..3).map(|on| (Duration::from_millis(5), Mishap::Cut(on)));
        let call = root(mkdir(&format!("d{at}")));
        let replies = rig.call_all(&[call], cuts.collect()).unwrap();
        assert_eq!(replies[0].answer.error(), None);
    }
    let counters = rig.server.gateway().counters();
    assert!(counters.duplicates_running.value() > 5);
}

/// A read-only session, and a read-only mount of a writable one.
#[test]
fn read_only_refuses_changes() {
    let mut rig = Rig::new(Setting::default(), 14);
    let file = rig.made(create("f"));
    rig.good(write(file, 0, b"data", true));
    rig.server.set_read_only(true);
    rig.restart();
    for op in [mkdir("d"), remove("f"), write(file, 0, b"x", false)] {
        assert_eq!(rig.error(op), Some(FsError::ReadOnly));
    }
    assert_eq!(rig.content(file), b"data".as_slice());
    rig.good(Op::Commit { inode: file });
    rig.server.set_read_only(false);
    rig.restart();
    rig.good(write(file, 0, b"atad", true));
    assert_eq!(rig.content(file), b"atad".as_slice());
}

/// The write that goes beyond the quota changes nothing.
#[test]
fn quotas_refuse_and_change_nothing() {
    let setting = Setting {
        bytes_max: 3 * 4096,
        inodes_max: 2,
        ..Setting::default()
    };
    let mut rig = Rig::new(setting, 15);
    let file = rig.made(create("f"));
    rig.good(write(file, 0, &[1; 8192], true));
    assert_eq!(
        rig.error(write(file, 8192, &[2; 4097], false)),
        Some(FsError::QuotaExceeded)
    );
    rig.good(write(file, 8192, &[2; 4096], true));
    assert_eq!(
        rig.error(write(file, 12_288, b"x", true)),
        Some(FsError::QuotaExceeded)
    );
    rig.made(create("g"));
    assert_eq!(rig.error(mkdir("d")), Some(FsError::QuotaExceeded));
    let space = rig.fsstat().unwrap();
    assert_eq!(
        (space.used_bytes, space.free_bytes, space.used_inodes),
        (12_288, 0, 2)
    );
    rig.good(remove("f"));
    rig.restart();
    assert_eq!(rig.fsstat().unwrap().used_bytes, 0);
}

/// The attributes in the reply of a slow WRITE are those around it, whatever ran meanwhile.
#[test]
fn attributes_of_a_stable_write_are_its_own() {
    let mut rig = Rig::new(large_blocks(), 16);
    let file = rig.made(create("f"));
    rig.server
        .chunks
        .delay(ChunkCall::Put, Duration::from_millis(50));
    let calls = [
        root(write(file, 0, &[1; 60_000], true)),
        root(write(file, 60_000, &[2; 100], false)),
    ];
    for _ in 0..5 {
        let replies = rig.call_all(&calls, Mishaps::new()).unwrap();
        let Answer::Changed(Ok(stable)) = &replies[0].answer else {
            panic!("{:?}", replies[0]);
        };
        let Answer::Changed(Ok(other)) = &replies[1].answer else {
            panic!("{:?}", replies[1]);
        };
        // One came first, and the other's attributes from before are its from after.
        let links = [
            other.before.ctime == stable.after.ctime,
            stable.before.ctime == other.after.ctime,
        ];
        assert_eq!(links.iter().filter(|it| **it).count(), 1);
    }
}

/// The answer of a slow WRITE is not ESTALE because the file left memory meanwhile.
#[test]
fn an_evicted_file_is_not_stale() {
    let setting = Setting {
        gateway: GatewayOptions {
            session_memory_bytes: 1,
            ..GatewayOptions::default()
        },
        ..large_blocks()
    };
    let mut rig = Rig::new(setting, 17);
    let pace = Pace {
        read_ms_max: 3,
        commit_ms_max: 3,
    };
    rig.server.set_faults(FaultRates::default(), pace);
    let files: Vec<InodeId> = (0..4)
        .map(|at| rig.made(create(&format!("f{at}"))))
        .collect();
    for round in 0..20 {
        let calls: Vec<Call> = files
            .iter()
            .flat_map(|file| {
                [
                    root(write(*file, 0, &[round; 50_000], round % 2 == 0)),
                    root(Op::Commit { inode: *file }),
                    root(Op::Getattr { inode: *file }),
                ]
            })
            .collect();
        for reply in rig.call_all(&calls, Mishaps::new()).unwrap() {
            assert_eq!(reply.answer.error(), None);
        }
    }
}
