//! One bug or promise each.

use std::time::Duration;

use base::{Clock, InodeId};
use bytes::Bytes;
use chunkstore::ChunkError;
use chunkstore::faulty::{Call as ChunkCall, Effect};
use metadata::FsError;
use metadata::kv::faulty::FaultRates;
use metadata::kv::{Isolation, KeyRange, Kv, RangeLimit, pairs_of};
use metadata::ops::{How, Node};
use metadata::stat::SetAttrs;
use metadata::store::NewTicket;
use nfs_gateway::GatewayOptions;
use system_tests::subject::{Answer, Call, Op};

use crate::client::{End, Mishap};
use crate::codec::{self, Handles, Listing};
use crate::rig::{Mishaps, Rig};
use crate::server::Setting;
use crate::slow_kv::Pace;
use crate::steps::{create, large_blocks, lookup, mkdir, read, remove, root, write};

/// Everything is lost at once, until that is changed.
const OUTAGE: FaultRates = FaultRates {
    conflict: 0,
    too_old: 0,
    unavailable: 1000,
    unknown_applied: 0,
    unknown_not_applied: 0,
    unknown_late: 0,
};

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
        clock.sleep(Duration::from_secs(1)).await;
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
            clock.sleep(Duration::from_secs(5)).await;
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
    let (file, other) = (rig.made(create("f")), rig.made(create("other")));
    let verifier = rig.verifier(write(file, 0, b"buffered", false));
    rig.server.set_faults(OUTAGE, Pace::default());
    let (faulty, clock) = (rig.server.faulty.clone(), rig.server.clock.clone());
    rig.call_beside(vec![mkdir("d")], async {
        clock.sleep(Duration::from_secs(10)).await;
        faulty.set_rates(FaultRates::default());
    });
    assert_eq!(rig.client.closed_by_server, 0);
    assert_eq!(rig.verifier(Op::Commit { inode: file }), verifier);
    rig.good(lookup("d"));
    // A longer one makes the server hang up, and the client ask again: still no error, and data
    // that was buffered is not given up. What is durable can be read all the while.
    let verifier = rig.verifier(write(file, 0, b"buffered again", false));
    rig.server.set_faults(OUTAGE, Pace::default());
    let changing = rig.sent(mkdir("e"));
    for _ in 0..9 {
        rig.pass(10);
        assert_eq!(rig.error_beside(Op::Access { inode: other }), None);
    }
    assert!(rig.client.closed_by_server > 0);
    rig.server
        .set_faults(FaultRates::default(), Pace::default());
    assert_eq!(rig.reply(changing, &mkdir("e")).answer.error(), None);
    assert_eq!(rig.server.ownerships(), (1, 0));
    assert_eq!(rig.verifier(Op::Commit { inode: file }), verifier);
    rig.good(lookup("e"));
    rig.pass(30);
    assert_eq!(rig.server.gateway().buffered_bytes(), 0);
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

/// More data at once than the budget takes, in pieces large and small, over all connections.
#[test]
fn a_flood_of_writes_is_answered() {
    for (seed, budget) in [(30, 8 << 10), (31, 64 << 10), (32, 300 << 10)] {
        let mut setting = large_blocks();
        setting.gateway.dirty_bytes_max = budget;
        setting.gateway.session_memory_bytes = 2 << 10;
        let mut rig = Rig::new(setting, seed);
        let pace = Pace {
            read_ms_max: 3,
            commit_ms_max: 20,
        };
        rig.server.set_faults(FaultRates::all(20), pace);
        rig.server
            .chunks
            .delay(ChunkCall::Put, Duration::from_millis(30));
        let files: Vec<InodeId> = (0..6)
            .map(|at| rig.made(create(&format!("f{at}"))))
            .collect();
        for round in 1..4_u8 {
            let mut calls = Vec::new();
            for (at, file) in files.iter().enumerate() {
                for part in 0..6_u64 {
                    let bytes = if (at + usize::from(round)) % 2 == 0 {
                        40_000
                    } else {
                        3000
                    };
                    let stable = part == 5;
                    calls.push(root(write(
                        *file,
                        part * 40_000,
                        &vec![round; bytes],
                        stable,
                    )));
                }
            }
            for reply in rig.call_all(&calls, Mishaps::new()).unwrap() {
                assert_eq!(reply.answer.error(), None);
            }
        }
        // Connections tell what they count from time to time.
        rig.pass(20);
        assert!(rig.server.counted().paused > 0, "the gate never closed");
        for file in &files {
            rig.good(Op::Commit { inode: *file });
            let content = rig.content(*file);
            for part in 0..6 {
                assert_eq!(content[part * 40_000..part * 40_000 + 3000], [3; 3000]);
            }
        }
        rig.pass(10);
        assert_eq!(rig.server.gateway().buffered_bytes(), 0);
        // Clients only ask again when they are hung up on, and here they are not.
        assert_eq!(rig.client.closed_by_server, 0);
    }
}

/// Data that an idle session has in memory makes room for another session's.
#[test]
fn sessions_share_the_budget() {
    let mut rig = Rig::new(small_budget(), 33);
    let mine = rig.made(create("f"));
    let ticket = rig.server.open_another();
    let handle = rig.mount(&ticket).unwrap();
    let mut other = Handles::default();
    other.learn(InodeId::ROOT, &handle);
    rig.good(write(mine, 0, &[1; 12_000], false));
    std::mem::swap(&mut rig.handles, &mut other);
    let theirs = rig.made(create("f"));
    for round in 1..9 {
        rig.good(write(theirs, 0, &[round; 9_000], false));
        std::mem::swap(&mut rig.handles, &mut other);
        rig.good(write(mine, 0, &[round; 12_000], false));
        std::mem::swap(&mut rig.handles, &mut other);
    }
    assert_eq!(rig.content(theirs), [8; 9_000].as_slice());
    std::mem::swap(&mut rig.handles, &mut other);
    assert_eq!(rig.content(mine), [8; 12_000].as_slice());
    rig.pass(10);
    assert_eq!(rig.server.gateway().buffered_bytes(), 0);
}

/// A ticket may be for reading only, and for a part of the session.
#[test]
fn a_ticket_limits_its_mount() {
    let mut rig = Rig::new(Setting::default(), 34);
    let dir = rig.made(mkdir("d"));
    let file = Op::Create {
        dir,
        name: Bytes::from_static(b"f"),
        how: How::Guarded(SetAttrs::default()),
    };
    let file = rig.made(file);
    rig.good(write(file, 0, b"data", true));
    let ticket = rig.server.ticket(NewTicket {
        read_only: true,
        directory: b"d".to_vec(),
        ..NewTicket::of(rig.server.session)
    });
    let handle = rig.mount(&ticket).unwrap();
    let mut part = Handles::default();
    part.learn(dir, &handle);
    std::mem::swap(&mut rig.handles, &mut part);
    let name = Bytes::from_static(b"f");
    rig.good(Op::Lookup {
        dir,
        name: name.clone(),
    });
    assert_eq!(rig.content(file), b"data".as_slice());
    let refused = [
        Op::Remove {
            dir,
            name: name.clone(),
        },
        write(file, 0, b"x", true),
        Op::Setattr {
            inode: file,
            attrs: SetAttrs {
                size: Some(0),
                ..SetAttrs::default()
            },
            guard: None,
        },
    ];
    for op in refused {
        assert_eq!(rig.error(op), Some(FsError::ReadOnly));
    }
    // Twice with one ticket for one use.
    let ticket = rig.server.ticket(NewTicket {
        single_use: true,
        ..NewTicket::of(rig.server.session)
    });
    rig.server.set_faults(FaultRates::all(60), Pace::default());
    let xid = rig.client.xid();
    let granted = rig.mount_by(xid, &ticket).unwrap();
    assert!(rig.mount(&ticket).is_err());
    // The answer may have been lost, also with the server: the same call has it again.
    rig.restart();
    assert_eq!(rig.mount_by(xid, &ticket).unwrap(), granted);
    assert!(rig.mount(&ticket).is_err());
}

/// A commit whose outcome is unknown, an outage before that can be settled, and the commit made
/// late after all: it must not undo what came since.
#[test]
fn a_late_commit_does_not_undo_later_ones() {
    for seed in 40..52 {
        let mut rig = Rig::new(Setting::default(), seed);
        let (dir, other) = (rig.made(mkdir("d")), rig.made(mkdir("other")));
        let chmod = |mode| Op::Setattr {
            inode: dir,
            attrs: SetAttrs {
                mode: Some(mode),
                ..SetAttrs::default()
            },
            guard: None,
        };
        let late = FaultRates {
            unknown_late: 1000,
            ..FaultRates::default()
        };
        let pace = Pace {
            read_ms_max: 1,
            commit_ms_max: 200,
        };
        rig.server.set_faults(late, pace);
        let (faulty, clock) = (rig.server.faulty.clone(), rig.server.clock.clone());
        let commits = faulty.commits();
        rig.call_beside(vec![chmod(0o711)], async {
            while faulty.commits() == commits {
                clock.sleep(Duration::from_millis(1)).await;
            }
            faulty.set_rates(OUTAGE);
            clock.sleep(Duration::from_secs(3)).await;
            faulty.set_rates(FaultRates::default());
        });
        rig.good(chmod(0o700));
        for at in 0..6_u8 {
            rig.made(Op::Create {
                dir: other,
                name: Bytes::from(vec![b'a' + at]),
                how: How::Guarded(SetAttrs::default()),
            });
        }
        rig.restart();
        match rig.good(Op::Getattr { inode: dir }) {
            Answer::Attributes(Ok(stat)) => assert_eq!(stat.mode, 0o700, "seed {seed}"),
            other => panic!("{other:?}"),
        }
    }
}

/// A session that goes on and on is folded bit by bit, so that what a publish or a fork finds in its
/// layers is bounded.
#[test]
fn a_large_layer_is_folded_without_being_asked() {
    let delta_bytes = 16 << 10;
    let mut setting = Setting::default();
    setting.gateway.delta_bytes = delta_bytes;
    let mut rig = Rig::new(setting, 27);
    let content = |at: u64| at.to_be_bytes().repeat(20);
    let mut files = Vec::new();
    for at in 0..400 {
        let file = rig.made(create(&format!("f{at}")));
        rig.good(write(file, 0, &content(at), true));
        files.push((file, content(at)));
    }
    rig.pass(2);
    let folds = rig.server.counted().folds;
    assert!(folds >= 5, "{folds} folds");
    let txn = rig.server.memory.begin();
    let layers = KeyRange {
        start: Bytes::from_static(b"d"),
        end: Bytes::from_static(b"e"),
    };
    let limit = RangeLimit::pairs(100_000);
    let pairs = rig
        .server
        .run(pairs_of(&*txn, layers, limit, Isolation::Snapshot))
        .unwrap();
    let bytes: usize = pairs
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    assert!(bytes < 2 * delta_bytes, "{bytes} bytes are in layers");
    rig.restart();
    for (file, content) in files {
        assert_eq!(rig.content(file), content.as_slice());
    }
}
