//! Places where calls wait, by themselves.

use std::task::Poll;

use base::{Clock, Rng, SystemClock, TenantId};
use chunkstore::memory::MemoryStore;
use metadata::kv::memory::MemoryKv;
use metadata::store::{NewWorkspace, OpenSession, Store};

use super::super::{Engines, GatewayOptions};
use super::*;
use crate::fleet::{FleetOptions, LEASE_DEFAULT};

/// A gateway among others, and a session that it has not looked for yet.
async fn gateway() -> (Arc<Gateway>, SessionId) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let kv = Arc::new(MemoryKv::new(Arc::clone(&clock)));
    let rng = Arc::new(Rng::seeded(1));
    let store = Store::open(kv.clone(), Arc::clone(&clock), Arc::clone(&rng));
    let store = store.await.unwrap();
    let new = NewWorkspace {
        name: "w".into(),
        root: (0o777, 0, 0),
    };
    let tenant = TenantId::DEFAULT;
    store.create_workspace(tenant, new).await.unwrap();
    let open = OpenSession::new("w");
    let opened = store.open_session(tenant, open).await.unwrap();
    let options = GatewayOptions {
        fleet: Some(FleetOptions {
            lease: LEASE_DEFAULT,
            nfs: String::new(),
            peers: String::new(),
            api: String::new(),
            token: [0; 8],
        }),
        ..GatewayOptions::default()
    };
    let engines = Engines {
        kv,
        chunks: Arc::new(MemoryStore::new()),
        clock,
        rng,
    };
    let gateway = Gateway::new(options, engines, store).await.unwrap();
    (gateway, opened.session.id)
}

/// A session that is served, once it is found; not for ever.
async fn found(gateway: &Arc<Gateway>, id: SessionId) -> Arc<Session> {
    let clock = Arc::clone(&gateway.clock);
    tokio::select! {
        found = gateway.session(id) => found.unwrap(),
        () = clock.sleep(TAKEOVER_PATIENCE * 10) => panic!("nobody looks for the session"),
    }
}

/// Bug: who looked for a session and went away left a place that nobody filled, and whoever came for
/// the session afterwards waited for ever.
#[tokio::test(start_paused = true)]
async fn who_goes_away_keeps_nobody_waiting() {
    let (gateway, id) = gateway().await;
    {
        let mut leaving = std::pin::pin!(gateway.session(id));
        // It waits for the store, or for the task that asks it.
        std::future::poll_fn(|cx| Poll::Ready(leaving.as_mut().poll(cx).is_ready())).await;
        assert!(matches!(
            gateway.sessions.read().get(&id),
            Some(Slot::Opening(_))
        ));
    }
    found(&gateway, id).await;
}

/// A place is emptied also if whoever fills it ends in the middle.
#[tokio::test(start_paused = true)]
async fn what_ends_in_the_middle_keeps_nobody_waiting() {
    let (gateway, id) = gateway().await;
    let place = Slot::Opening(gateway.opening(Vec::new()));
    gateway.sessions.write().insert(id, place);
    drop(Filling {
        gateway: Arc::clone(&gateway),
        id,
        is_filled: false,
    });
    assert!(gateway.sessions.read().is_empty());
    found(&gateway, id).await;
}

/// Bug: a session that was taken by another gateway while it was let go of was put back, and answered
/// from what it had been.
#[tokio::test(start_paused = true)]
async fn what_is_taken_while_it_is_let_go_of_is_not_put_back() {
    let (gateway, id) = gateway().await;
    let session = found(&gateway, id).await;
    assert!(gateway.begin_leaving(&session));
    // As a notice says, or a close.
    let told = gateway.void(id).unwrap();
    assert!(Arc::ptr_eq(&told, &session));
    session.give_up();
    gateway.end_leaving(id, Some(Arc::clone(&session)));
    assert!(!Arc::ptr_eq(&found(&gateway, id).await, &session));
    // One that nobody took is put back.
    let session = found(&gateway, id).await;
    assert!(gateway.begin_leaving(&session));
    gateway.end_leaving(id, Some(Arc::clone(&session)));
    assert!(Arc::ptr_eq(&found(&gateway, id).await, &session));
}

/// A lapse while a session is let go of is looked into, too.
#[tokio::test(start_paused = true)]
async fn what_is_let_go_of_is_held_still() {
    let (gateway, id) = gateway().await;
    let session = found(&gateway, id).await;
    assert!(gateway.begin_leaving(&session));
    let held = gateway.held_sessions();
    assert!(held.iter().any(|it| Arc::ptr_eq(it, &session)));
    assert!(gateway.open_sessions().is_empty());
}

/// Calls that wait in a place that goes away are not left to wait.
#[tokio::test(start_paused = true)]
async fn a_place_that_goes_away_wakes_who_waits() {
    let (gateway, id) = gateway().await;
    gateway
        .sessions
        .write()
        .insert(id, Slot::Opening(gateway.opening(Vec::new())));
    let clock = Arc::clone(&gateway.clock);
    let waiting = found(&gateway, id);
    let ended = async {
        clock.sleep(Duration::from_secs(1)).await;
        gateway.sessions.write().clear();
    };
    tokio::join!(waiting, ended);
}
