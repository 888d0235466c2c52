//! Stores without room.

use std::time::Duration;

use base::{Clock, InodeId};
use bytes::Bytes;
use chunkstore::ChunkError;
use chunkstore::faulty::{Call as ChunkCall, Effect};
use metadata::FsError;
use metadata::kv::faulty::FaultRates;
use metadata::record::session::FROZEN_LAYERS_MAX;
use metadata::stat::SetAttrs;
use nfs_gateway::FreezeError;
use system_tests::subject::{Answer, Op};

use crate::rig::{Mishaps, Rig};
use crate::server::Setting;
use crate::slow_kv::Pace;
use crate::steps::{create, large_blocks, lookup, mkdir, read, remove, root, write};

/// Bug: a metadata store that was full to the last byte lost the session, and calls were never
/// answered.
#[test]
fn a_full_store_refuses_and_serves() {
    let mut rig = Rig::new(Setting::default(), 6);
    let file = rig.made(create("f"));
    rig.good(write(file, 0, b"stored", true));
    let before = rig.verifier(write(file, 0, b"buffer", false));
    // Untouched by what follows.
    let other = rig.made(create("other"));
    rig.server.memory.set_available_bytes(Some(0));
    let commits = rig.server.faulty.commits();
    // These need no space that is asked for beforehand, and cannot be written all the same.
    assert_eq!(rig.error(remove("f")), Some(FsError::NoSpace));
    // What did not change has stayed in memory.
    let loads = rig.server.counted().loads;
    rig.good(Op::Getattr { inode: other });
    assert_eq!(rig.server.counted().loads, loads);
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
        clock.sleep(Duration::from_secs(120)).await;
        memory.set_available_bytes(None);
    });
    let tries = rig.server.faulty.commits() - commits;
    assert!(tries < 400, "{tries} tries in two minutes");
    rig.good(lookup("e"));
}

/// A write-back that was begun before the store was full ends after it. What it stored was given
/// up, and must not come back over what was written since.
#[test]
fn data_that_was_given_up_does_not_come_back() {
    let mut rig = Rig::new(large_blocks(), 21);
    let file = rig.made(create("f"));
    rig.made(create("g"));
    let before = rig.verifier(write(file, 0, &[1; 60_000], false));
    rig.server
        .chunks
        .delay(ChunkCall::Put, Duration::from_secs(5));
    let commit = rig.sent(Op::Commit { inode: file });
    rig.pass(1);
    rig.server.memory.set_available_bytes(Some(0));
    // Not refused beforehand, but by the flush.
    assert_eq!(rig.error_beside(remove("g")), Some(FsError::NoSpace));
    assert_eq!(rig.server.ownerships(), (1, 1));
    rig.server.memory.set_available_bytes(None);
    rig.pass(2);
    let late = rig.verifier_beside(write(file, 0, b"zz", true));
    assert_ne!(late, before);
    rig.pass(10);
    let commit = rig.reply(commit, &Op::Commit { inode: file });
    assert_ne!(commit.verifier, Some(before));
    assert_eq!(rig.content(file), b"zz".as_slice());
    rig.restart();
    assert_eq!(rig.content(file), b"zz".as_slice());
}

/// Bug: a stable WRITE that waited for another's write-back was answered with success when that
/// found no room and gave the data up.
#[test]
fn a_stable_write_without_room_is_refused() {
    let mut rig = Rig::new(large_blocks(), 22);
    let file = rig.made(create("f"));
    rig.good(write(file, 0, &[1; 60_000], true));
    rig.good(write(file, 0, &[2; 60_000], false));
    rig.server
        .chunks
        .delay(ChunkCall::Put, Duration::from_secs(2));
    rig.server
        .chunks
        .fail(ChunkCall::Put, ChunkError::NoSpace, Effect::Nothing, 1);
    let commit = rig.sent(Op::Commit { inode: file });
    rig.pass(1);
    let stable = write(file, 65_536, &[3; 60_000], true);
    let waiting = rig.sent(stable.clone());
    rig.pass(30);
    let commit = rig.reply(commit, &Op::Commit { inode: file });
    assert_eq!(commit.answer.error(), Some(FsError::NoSpace));
    let waiting = rig.reply(waiting, &stable);
    assert_eq!(waiting.answer.error(), Some(FsError::NoSpace));
    assert_eq!(rig.content(file), [1; 60_000].as_slice());
    rig.good(stable);
    rig.restart();
    assert_eq!(rig.content(file)[65_536..], [3; 60_000]);
}

/// Chunks have no room: COMMIT says so, and the verifier makes the client send everything again.
#[test]
fn a_commit_without_room_gives_the_data_up() {
    let mut rig = Rig::new(large_blocks(), 23);
    let (file, other) = (rig.made(create("f")), rig.made(create("g")));
    rig.good(write(file, 0, &[1; 50_000], true));
    rig.good(write(file, 0, &[2; 50_000], false));
    let before = rig.verifier(write(other, 0, b"small", false));
    rig.server.chunks.fill();
    assert_eq!(
        rig.error(Op::Commit { inode: file }),
        Some(FsError::NoSpace)
    );
    assert_eq!(rig.content(file), [1; 50_000].as_slice());
    assert_ne!(rig.verifier(Op::Commit { inode: other }), before);
    assert_eq!(rig.content(other), b"small".as_slice());
    assert_eq!(
        rig.error(write(file, 0, b"x", false)),
        Some(FsError::NoSpace)
    );
    rig.good(remove("g"));
    rig.server.chunks.heal();
    rig.good(write(file, 0, &[4; 50_000], true));
    rig.restart();
    assert_eq!(rig.content(file), [4; 50_000].as_slice());
}

/// A READ that fetches its data while the store turns out to be full looks again: what it saw was
/// set back.
#[test]
fn a_read_in_progress_looks_again() {
    let mut rig = Rig::new(large_blocks(), 24);
    let file = rig.made(create("f"));
    rig.good(write(file, 0, &[1; 60_000], true));
    rig.server.forgetful.forget_all();
    rig.server
        .chunks
        .delay(ChunkCall::Get, Duration::from_millis(300));
    let pace = Pace {
        read_ms_max: 1,
        commit_ms_max: 60,
    };
    rig.server.set_faults(FaultRates::default(), pace);
    rig.server.memory.set_available_bytes(Some(0));
    let attrs = SetAttrs {
        mode: Some(0o600),
        ..SetAttrs::default()
    };
    let chmod = Op::Setattr {
        inode: file,
        attrs,
        guard: None,
    };
    let changing = rig.sent(chmod.clone());
    let reading = rig.sent(read(file));
    let changing = rig.reply(changing, &chmod);
    assert_eq!(changing.answer.error(), Some(FsError::NoSpace));
    match rig.reply(reading, &read(file)).answer {
        Answer::Data(Ok(read)) => assert_eq!((read.file.mode, read.data.len()), (0o644, 60_000)),
        other => panic!("{other:?}"),
    }
}

/// Bug: while chunks had no room for trees, layers could grow beyond what a session's record may
/// list. The session was damaged then.
#[test]
fn layers_stay_few_when_they_cannot_be_folded() {
    let mut rig = Rig::new(large_blocks(), 25);
    let file = rig.made(create("f"));
    rig.server.chunks.fail(
        ChunkCall::Put,
        ChunkError::NoSpace,
        Effect::Nothing,
        u32::MAX,
    );
    let freeze = |rig: &Rig| {
        let (gateway, session) = (rig.server.gateway().clone(), rig.server.session);
        rig.server.run(gateway.freeze(session))
    };
    let mut last = 0_u64;
    let refused = (0..FROZEN_LAYERS_MAX + 10).find_map(|_| {
        last += 1;
        rig.good(write(file, 0, &last.to_be_bytes(), true));
        freeze(&rig).err()
    });
    assert_eq!(refused, Some(FreezeError::NoSpace));
    // Files are served all the same, and what was acknowledged is there.
    last += 1;
    rig.good(write(file, 0, &last.to_be_bytes(), true));
    rig.restart();
    assert_eq!(rig.content(file), last.to_be_bytes().as_slice());
    assert_eq!(freeze(&rig), Err(FreezeError::NoSpace));
    rig.server.chunks.heal();
    assert_eq!(freeze(&rig), Ok(()));
    rig.restart();
    assert_eq!(rig.content(file), last.to_be_bytes().as_slice());
}

/// Bug: who asked for a freeze while a flush was under way that found no room was never told. So
/// publishing, forking and restoring waited for ever.
#[test]
fn a_freeze_beside_a_flush_without_room_ends() {
    let mut rig = Rig::new(Setting::default(), 26);
    rig.good(create("f"));
    let pace = Pace {
        read_ms_max: 1,
        commit_ms_max: 2000,
    };
    let (gateway, session) = (rig.server.gateway().clone(), rig.server.session);
    let clock = rig.server.clock.clone();
    for _ in 0..5 {
        rig.server.set_faults(FaultRates::default(), pace);
        rig.server.memory.set_available_bytes(Some(0));
        let removing = rig.sent(remove("f"));
        let frozen = rig.server.run(async {
            clock.sleep(Duration::from_millis(20)).await;
            tokio::select! {
                frozen = gateway.freeze(session) => Some(frozen),
                () = clock.sleep(Duration::from_secs(300)) => None,
            }
        });
        assert_eq!(frozen, Some(Err(FreezeError::NoSpace)));
        let removing = rig.reply(removing, &remove("f"));
        assert_eq!(removing.answer.error(), Some(FsError::NoSpace));
        rig.server.memory.set_available_bytes(None);
        rig.pass(2);
    }
    rig.server
        .set_faults(FaultRates::default(), Pace::default());
    assert_eq!(rig.server.run(gateway.freeze(session)), Ok(()));
    rig.good(lookup("f"));
}
