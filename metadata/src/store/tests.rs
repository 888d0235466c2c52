mod deletion;
mod looks;

use super::*;
use crate::kv::memory::MemoryKv;
use crate::record::session::Identity;
use base::{ManualClock, SessionId, Timestamp, WorkspaceId};

fn open(workspace: &str) -> OpenSession {
    OpenSession {
        workspace: workspace.into(),
        read_only: false,
        identity: Identity::Passthrough,
        agent: "a".into(),
        run: String::new(),
        ttl_seconds: None,
        version: None,
        branch: None,
    }
}

async fn store() -> (Store, Arc<ManualClock>, Arc<dyn Kv>) {
    let clock = Arc::new(ManualClock::new(Timestamp::new(1_000_000, 0)));
    let kv: Arc<dyn Kv> = Arc::new(MemoryKv::new(clock.clone()));
    let rng = Arc::new(Rng::seeded(1));
    let store = Store::open(Arc::clone(&kv), clock.clone(), rng)
        .await
        .unwrap();
    (store, clock, kv)
}

fn workspace(name: &str) -> NewWorkspace {
    NewWorkspace {
        name: name.into(),
        root: (0o777, 0, 0),
    }
}

#[tokio::test]
async fn opening_again_changes_nothing_and_another_version_is_refused() {
    let (store, clock, kv) = store().await;
    let keys = store.handle_keys().await.unwrap();
    let again = Store::open(Arc::clone(&kv), clock.clone(), Arc::new(Rng::seeded(2)))
        .await
        .unwrap();
    assert_eq!(again.handle_keys().await.unwrap(), keys);
    for found in [1, 9] {
        let mut txn = kv.begin();
        let format = FormatRecord {
            data_version: found,
            ..store.format().await.unwrap()
        };
        txn.set(&keyspace::format(), &format.encode());
        txn.commit().await.unwrap();
        let rng = Arc::new(Rng::seeded(3));
        let refused = Store::open(Arc::clone(&kv), clock.clone(), rng).await;
        assert_eq!(
            refused.unwrap_err(),
            StoreError::Version {
                found,
                supported: DATA_VERSION
            }
        );
    }
}

#[tokio::test]
async fn workspaces_are_unique_by_name_and_listed() {
    let (store, ..) = store().await;
    for name in ["b", "a"] {
        store
            .create_workspace(TenantId::DEFAULT, workspace(name))
            .await
            .unwrap();
    }
    let again = store
        .create_workspace(TenantId::DEFAULT, workspace("a"))
        .await;
    assert!(matches!(again, Err(StoreError::Exists { .. })));
    for bad in ["", "a/b", "-x", "ü", &"x".repeat(65)] {
        let refused = store
            .create_workspace(TenantId::DEFAULT, workspace(bad))
            .await;
        assert!(matches!(refused, Err(StoreError::Invalid { .. })), "{bad}");
    }
    let list = store.workspaces(TenantId::DEFAULT, None, 10).await.unwrap();
    let names: Vec<_> = list.iter().map(|info| info.record.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let after = store
        .workspaces(TenantId::DEFAULT, Some("a"), 10)
        .await
        .unwrap();
    assert_eq!(after.len(), 1);
}

#[tokio::test]
async fn inode_numbers_are_never_given_twice() {
    let (store, ..) = store().await;
    let info = store
        .create_workspace(TenantId::DEFAULT, workspace("w"))
        .await
        .unwrap();
    let first = store.allocate_inodes(info.id).await.unwrap();
    let second = store.allocate_inodes(info.id).await.unwrap();
    assert!(first.next > 1);
    assert_eq!(first.end, second.next);
}

#[tokio::test]
async fn a_session_lives_from_open_to_close() {
    let (store, ..) = store().await;
    store
        .create_workspace(TenantId::DEFAULT, workspace("w"))
        .await
        .unwrap();
    let missing = store.open_session(TenantId::DEFAULT, open("x")).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
    let opened = store
        .open_session(TenantId::DEFAULT, open("w"))
        .await
        .unwrap();
    let id = opened.session.id;
    assert_eq!(
        store
            .resolve_ticket(&opened.ticket, 1)
            .await
            .unwrap()
            .session,
        id
    );
    assert_eq!(
        store
            .sessions(TenantId::DEFAULT, None, None, 10)
            .await
            .unwrap()
            .len(),
        1
    );
    let foreign = store.session(TenantId::new(7), id).await;
    assert!(matches!(foreign, Err(StoreError::NotFound { .. })));
    store.close_session(TenantId::DEFAULT, id).await.unwrap();
    assert!(store.session(TenantId::DEFAULT, id).await.is_err());
    assert!(store.resolve_ticket(&opened.ticket, 1).await.is_err());
    assert!(
        store
            .sessions(TenantId::DEFAULT, None, None, 10)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn first_digits_name_a_session() {
    let (store, _, kv) = store().await;
    let mut txn = kv.begin();
    // The first and last numbers of each workspace lie on both sides of what is looked for.
    let spread = [0x1234_5678, 0x1234_5679, 0x1235_0000, 0xffff_ffff];
    for (workspace, numbers) in [(1, [0, 1, 2, 0xabcd_0000]), (2, spread), (9, [5, 6, 7, 8])] {
        for number in numbers {
            let id = SessionId::new(number << 32 | workspace);
            let key = keyspace::session_of(TenantId::DEFAULT, WorkspaceId::new(workspace), id);
            txn.set(&key, &[]);
        }
    }
    let foreign = SessionId::new(0xabcd_1111 << 32);
    let key = keyspace::session_of(TenantId::new(7), WorkspaceId::new(3), foreign);
    txn.set(&key, &[]);
    txn.commit().await.unwrap();
    let look = async |digits: &str| store.session_by_digits(TenantId::DEFAULT, digits).await;
    for (digits, number) in [
        ("abcd", 0xabcd_0000_0000_0001),
        ("1235", 0x1235_0000_0000_0002),
        ("12345679", 0x1234_5679_0000_0002),
        ("FFFF", 0xffff_ffff_0000_0002),
        ("0000000500000009", 0x0000_0005_0000_0009),
        // Whoever gives all digits is not asked again.
        ("1111111111111111", 0x1111_1111_1111_1111),
    ] {
        assert_eq!(look(digits).await, Ok(SessionId::new(number)), "{digits}");
    }
    let Err(StoreError::Ambiguous { candidates, .. }) = look("1234").await else {
        panic!("one of two");
    };
    assert_eq!(candidates, ["1234567800000002", "1234567900000002"]);
    // Of two workspaces.
    assert!(matches!(
        look("0000").await,
        Err(StoreError::Ambiguous { .. })
    ));
    assert!(matches!(
        look("4444").await,
        Err(StoreError::NotFound { .. })
    ));
    assert!(matches!(look("123").await, Err(StoreError::Invalid { .. })));
}

#[tokio::test]
async fn sessions_that_ended_by_themselves_are_found() {
    let (store, clock, kv) = store().await;
    store
        .create_workspace(TenantId::DEFAULT, workspace("w"))
        .await
        .unwrap();
    let mut sessions = Vec::new();
    for ttl_seconds in [None, Some(10), Some(20)] {
        let open = OpenSession {
            ttl_seconds,
            ..open("w")
        };
        let opened = store.open_session(TenantId::DEFAULT, open).await.unwrap();
        sessions.push((TenantId::DEFAULT, opened.session.id));
    }
    let expired = async || store.expired_sessions(None).await.unwrap().sessions;
    assert_eq!(expired().await, []);
    clock.advance(std::time::Duration::from_secs(10));
    assert_eq!(expired().await, sessions[1..2]);
    // A damaged record hides none of the others.
    let mut txn = kv.begin();
    txn.set(&keyspace::session_meta(sessions[0].1), b"x");
    txn.commit().await.unwrap();
    clock.advance(std::time::Duration::from_secs(10));
    assert_eq!(expired().await.len(), 2);
    for (tenant, id) in &sessions[1..] {
        store.close_session(*tenant, *id).await.unwrap();
    }
    assert_eq!(expired().await, []);
}

/// A session that is extended ends at its new time, and not at the old one; when it is closed nothing
/// says any more when it was to end.
#[tokio::test]
async fn an_extended_session_ends_later() {
    let (store, clock, kv) = store().await;
    let made = store.create_workspace(TenantId::DEFAULT, workspace("w"));
    made.await.unwrap();
    let open = OpenSession {
        ttl_seconds: Some(10),
        ..open("w")
    };
    let opened = store.open_session(TenantId::DEFAULT, open).await.unwrap();
    let id = opened.session.id;
    let extended = store.extend_session(TenantId::DEFAULT, id, 100);
    extended.await.unwrap();
    let expired = async || store.expired_sessions(None).await.unwrap().sessions;
    clock.advance(std::time::Duration::from_secs(20));
    assert_eq!(expired().await, []);
    clock.advance(std::time::Duration::from_secs(80));
    assert_eq!(expired().await, [(TenantId::DEFAULT, id)]);
    store.close_session(TenantId::DEFAULT, id).await.unwrap();
    let all = keyspace::expired_until(Timestamp::new(u64::MAX, 0));
    let left = kv.begin();
    let left = left.get_range(&all, RangeLimit::pairs(1), Isolation::Snapshot);
    assert!(left.await.unwrap().pairs.is_empty());
}

#[tokio::test]
async fn expired_sessions_are_found_page_by_page() {
    let (store, clock, _) = store().await;
    store
        .create_workspace(TenantId::DEFAULT, workspace("w"))
        .await
        .unwrap();
    for _ in 0..1_001 {
        let open = OpenSession {
            ttl_seconds: Some(1),
            version: None,
            branch: None,
            ..open("w")
        };
        store.open_session(TenantId::DEFAULT, open).await.unwrap();
    }
    clock.advance(std::time::Duration::from_secs(1));
    let (mut found, mut pages, mut after) = (0, 0, None);
    loop {
        let page = store.expired_sessions(after).await.unwrap();
        found += page.sessions.len();
        pages += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((found, pages), (1_001, 3));
}

#[tokio::test]
async fn tickets_expire_and_are_spent() {
    let (store, clock, _) = store().await;
    store
        .create_workspace(TenantId::DEFAULT, workspace("w"))
        .await
        .unwrap();
    let id = store
        .open_session(TenantId::DEFAULT, open("w"))
        .await
        .unwrap()
        .session
        .id;
    let once = NewTicket {
        single_use: true,
        ..NewTicket::of(id)
    };
    let once = store.create_ticket(TenantId::DEFAULT, once).await.unwrap();
    // The call that used it may come again: its answer may have been lost.
    for _ in 0..2 {
        store.resolve_ticket(&once, 1).await.unwrap();
        let spent = store.resolve_ticket(&once, 2).await;
        assert!(matches!(spent, Err(StoreError::NotFound { .. })));
    }
    let listed = store.tickets(TenantId::DEFAULT, id).await.unwrap();
    assert_eq!(listed.len(), 1);
    let expires = Some(Timestamp::new(1_000_010, 0));
    let short = NewTicket {
        expires,
        ..NewTicket::of(id)
    };
    let short = store.create_ticket(TenantId::DEFAULT, short).await.unwrap();
    store.resolve_ticket(&short, 3).await.unwrap();
    clock.advance(std::time::Duration::from_secs(11));
    let expired = store.resolve_ticket(&short, 3).await;
    assert!(matches!(expired, Err(StoreError::Expired { .. })));
    let listed = store.tickets(TenantId::DEFAULT, id).await.unwrap();
    assert_eq!(listed.len(), 2);
    let foreign = store.tickets(TenantId::new(7), id).await;
    assert!(matches!(foreign, Err(StoreError::NotFound { .. })));
    for info in &listed {
        let revoke = || store.revoke_ticket(TenantId::DEFAULT, id, &info.id);
        revoke().await.unwrap();
        assert!(matches!(revoke().await, Err(StoreError::NotFound { .. })));
    }
    assert!(
        store
            .tickets(TenantId::DEFAULT, id)
            .await
            .unwrap()
            .is_empty()
    );
    let token = store.create_token(TenantId::DEFAULT).await.unwrap();
    assert_eq!(store.check_token(&token).await.unwrap(), TenantId::DEFAULT);
    assert!(store.check_token("nonsense").await.is_err());
    // What logs show of it is where it is stored, and no more.
    let stored = keyspace::token(blake3::hash(token.as_bytes()).as_bytes());
    assert!(stored[1..].starts_with(&token_prefix(&token)));
}

#[tokio::test]
async fn two_handle_keys_live_at_a_time() {
    let (store, ..) = store().await;
    let first = store.handle_keys().await.unwrap().keys;
    let second = store.rotate_handle_keys().await.unwrap().keys;
    assert_eq!(second[1..], first);
    let third = store.rotate_handle_keys().await.unwrap();
    assert_eq!((third.keys.len(), third.keys[1]), (2, second[0]));
    assert_ne!(third.keys[0], second[0]);
    assert_eq!(store.handle_keys().await.unwrap(), third);
    for _ in 0..300 {
        store.rotate_handle_keys().await.unwrap();
    }
    let keys = store.handle_keys().await.unwrap().keys;
    assert!(keys[0].0 != keys[1].0 && keys[0].0 != 0);
}

#[tokio::test]
async fn expired_tickets_make_room_for_new_ones() {
    let (store, clock, kv) = store().await;
    store
        .create_workspace(TenantId::DEFAULT, workspace("w"))
        .await
        .unwrap();
    let opened = store
        .open_session(TenantId::DEFAULT, open("w"))
        .await
        .unwrap();
    let id = opened.session.id;
    let ends = NewTicket {
        expires: Some(clock.wall().plus_seconds(10)),
        ..NewTicket::of(id)
    };
    let make = async || store.create_ticket(TenantId::DEFAULT, ends.clone()).await;
    for _ in 0..999 {
        make().await.unwrap();
    }
    let refused = make().await;
    assert!(matches!(refused, Err(StoreError::Invalid { .. })));
    clock.advance(std::time::Duration::from_secs(10));
    make().await.unwrap();
    let left = store.tickets(TenantId::DEFAULT, id).await.unwrap();
    assert_eq!(left.len(), 2);
    store.close_session(TenantId::DEFAULT, id).await.unwrap();
    let closed = make().await;
    assert!(matches!(closed, Err(StoreError::NotFound { .. })));
    // Nothing of a ticket is left.
    let all = KeyRange::prefix(b"");
    let txn = kv.begin();
    let limit = RangeLimit::pairs(1000);
    let page = txn.get_range(&all, limit, Isolation::Snapshot);
    let ticket = keyspace::ticket(&[0; 32])[0];
    let index = keyspace::tickets_of(id).start[0];
    assert!(
        page.await
            .unwrap()
            .pairs
            .iter()
            .all(|(key, _)| key[0] != ticket && key[0] != index)
    );
}
