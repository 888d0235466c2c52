//! Calls with keys: repeated, at once, after a kill at each commit, with other requests.

use std::convert::Infallible;

use axum::Router;
use base::{Clock, ManualClock, SystemClock, Timestamp};
use chunkstore::cached::CachedStore;
use chunkstore::local::{LocalOptions, LocalStore};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use metadata::kv::Kv;
use metadata::kv::embedded::{EmbeddedKv, EmbeddedOptions};
use metadata::kv::faulty::{CrashPoint, FaultRates, FaultyKv};
use metadata::kv::memory::MemoryKv;
use nfs_gateway::{Engines, GatewayOptions};
use serde_json::{Value, json};

use super::*;
use crate::api::serving::CALLS_MAX;
use crate::api::{Own, router};
use crate::collector::{Collected, Collector};
use crate::fleet::Addresses;
use crate::metrics::Counted;
use crate::mount_line::MountTarget;
use crate::remover::Remover;
use crate::tier::Content;

const TENANT: base::TenantId = base::TenantId::DEFAULT;

/// Stores that processes share.
struct World {
    kv: Arc<dyn Kv>,
    local: Arc<LocalStore>,
    clock: Arc<dyn Clock>,
    token: String,
    _dir: tempfile::TempDir,
}

/// A server without sockets.
struct Process {
    routes: TowerToHyperService<Router>,
    kv: FaultyKv,
    store: Store,
    tasks: Tasks,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    replayed: bool,
    retry_after: bool,
    body: Value,
}

impl World {
    async fn new(clock: Arc<dyn Clock>) -> Self {
        let kv = Arc::new(MemoryKv::new(Arc::clone(&clock)));
        Self::on(kv, clock, tempfile::tempdir().unwrap()).await
    }

    /// One whose commits take their time.
    async fn on_disk() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions::default();
        let kv = EmbeddedKv::open(&dir.path().join("kv"), &options, Arc::clone(&clock));
        Self::on(Arc::new(kv.unwrap()), clock, dir).await
    }

    async fn on(kv: Arc<dyn Kv>, clock: Arc<dyn Clock>, dir: tempfile::TempDir) -> Self {
        let options = LocalOptions {
            reserve_bytes: 0,
            ..LocalOptions::default()
        };
        let local = LocalStore::open(dir.path(), options, Arc::clone(&clock)).unwrap();
        let mut world = Self {
            kv,
            local: Arc::new(local),
            clock,
            token: String::new(),
            _dir: dir,
        };
        let first = world.process(1, true).await;
        world.token = first.store.create_token(TENANT).await.unwrap();
        world
    }

    async fn real() -> Self {
        Self::new(Arc::new(SystemClock::new())).await
    }

    async fn process(&self, seed: u64, is_alone: bool) -> Process {
        let clock = || Arc::clone(&self.clock);
        let rng = Arc::new(Rng::seeded(seed));
        let kv = FaultyKv::new(Arc::clone(&self.kv), seed, FaultRates::default());
        let shared: Arc<dyn Kv> = Arc::new(kv.clone());
        let store = Store::open(Arc::clone(&shared), clock(), Arc::clone(&rng));
        let store = store.await.unwrap();
        let local = Arc::clone(&self.local);
        let cached = Arc::new(CachedStore::new(Arc::<LocalStore>::clone(&local), 1 << 20));
        let engines = Engines {
            kv: Arc::clone(&shared),
            chunks: Arc::<CachedStore>::clone(&cached),
            clock: clock(),
            rng: Arc::clone(&rng),
        };
        let gateway = Gateway::new(GatewayOptions::default(), engines, store.clone());
        let gateway = gateway.await.unwrap();
        let tasks = Tasks::new();
        let chunks = Collected::Local(Arc::clone(&local));
        let collector = Collector::new(shared, store.clone(), chunks, clock(), tasks.clone());
        let served = Arc::clone(&gateway);
        let own = Own {
            token: [0; 8],
            remover: Remover::start(&tasks, store.clone(), served, clock()),
            rng,
            is_alone,
            drain_delay: Duration::ZERO,
            addresses: addresses(),
            started: Timestamp::EPOCH,
        };
        let counted = Counted {
            gateway,
            content: Content::Local(local),
            cached,
            collector,
            metadata: None,
        };
        let target = MountTarget::new("127.0.0.1:2049".parse().unwrap(), None);
        let state = ApiState::new(store.clone(), counted, clock(), tasks.clone(), target, own);
        Process {
            routes: TowerToHyperService::new(router(Arc::new(state))),
            kv,
            store,
            tasks,
        }
    }

    async fn send(&self, to: &Process, call: &Call<'_>, key: Option<&str>) -> Answer {
        let mut request = Request::builder()
            .method(call.method)
            .uri(call.path.as_ref())
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header(HEADER, key);
        }
        let request = request.body(Body::from(call.body.clone())).unwrap();
        let Ok(response) = to.routes.call(request).await;
        let (head, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: head.status.as_u16(),
            replayed: head.headers.contains_key(REPLAYED_HEADER),
            retry_after: head.headers.contains_key(header::RETRY_AFTER),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        }
    }

    /// A call that succeeds.
    async fn done(&self, to: &Process, call: &Call<'_>) -> Value {
        let answer = self.send(to, call, None).await;
        assert!(answer.status < 300, "{}: {answer:?}", call.path);
        answer.body
    }

    /// How many things of each kind there are: what is done twice shows.
    async fn shape(&self, of: &Process) -> Vec<(String, usize)> {
        let mut shape = Vec::new();
        let mut count = |path: String, items: &Value| {
            shape.push((path, items["items"].as_array().map_or(0, Vec::len)));
        };
        for list in ["workspaces", "tokens", "sessions"] {
            let items = self.done(of, &get(format!("/v1/{list}"))).await;
            count(list.into(), &items);
            if list != "sessions" {
                continue;
            }
            for session in items["items"].as_array().unwrap() {
                let id = session["id"].as_str().unwrap();
                let tickets = self
                    .done(of, &get(format!("/v1/sessions/{id}/tickets")))
                    .await;
                count("tickets".into(), &tickets);
            }
        }
        for list in ["refs", "pins", "operations", "log?version=main"] {
            let items = self
                .done(of, &get(format!("/v1/workspaces/w/{list}")))
                .await;
            count(list.into(), &items);
        }
        shape.sort();
        shape
    }
}

fn addresses() -> Addresses {
    Addresses {
        nfs: "127.0.0.1:2049".into(),
        peers: String::new(),
        api: String::new(),
    }
}

/// A request.
#[derive(Clone, Debug)]
struct Call<'a> {
    method: &'static str,
    path: std::borrow::Cow<'a, str>,
    body: Vec<u8>,
}

fn call<'a>(
    method: &'static str,
    path: impl Into<std::borrow::Cow<'a, str>>,
    body: &Value,
) -> Call<'a> {
    Call {
        method,
        path: path.into(),
        body: if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into()
        },
    }
}

fn get(path: String) -> Call<'static> {
    call("GET", path, &Value::Null)
}

fn post<'a>(path: impl Into<std::borrow::Cow<'a, str>>, body: &Value) -> Call<'a> {
    call("POST", path, body)
}

/// A tar archive with one file.
fn archive(path: &str, content: &str) -> Vec<u8> {
    let mut head = vec![0; 512];
    let mut put =
        |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, path);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{:011o}\0", content.len()));
    put(136, "00000000001\0");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    head.extend(content.as_bytes());
    head.resize(head.len().next_multiple_of(512) + 1024, 0);
    head
}

/// Names of what a furnished world has.
#[derive(Clone, Debug)]
struct Names {
    session: String,
    ticket: String,
    token: String,
    commit: String,
    operation: String,
}

/// A workspace with two branches that come from nothing in common, a session that has what `other` has
/// and publishes to `main`, a pin, a tag.
async fn furnish(world: &World, on: &Process) -> Names {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    world
        .done(on, &post("/v1/workspaces", &json!({ "name": "w" })))
        .await;
    let mut commits = Vec::new();
    for (branch, file) in [("main", "a"), ("other", "b")] {
        let import = Call {
            body: archive(file, branch),
            ..post(
                format!("/v1/workspaces/w/import?branch={branch}"),
                &Value::Null,
            )
        };
        commits.push(text(&world.done(on, &import).await["commit"]["id"]));
    }
    let open = json!({ "workspace": "w" });
    let opened = world.done(on, &post("/v1/sessions", &open)).await;
    let session = text(&opened["id"]);
    let restore = json!({ "version": "other" });
    world
        .done(
            on,
            &post(format!("/v1/sessions/{session}/restore"), &restore),
        )
        .await;
    let tag = json!({ "name": "v1", "version": "main", "tag": true });
    world.done(on, &post("/v1/workspaces/w/refs", &tag)).await;
    let pin = json!({ "version": "main" });
    world.done(on, &post("/v1/workspaces/w/pins", &pin)).await;
    let token = world
        .done(on, &post("/v1/tokens", &json!({ "name": "t" })))
        .await;
    let log = world
        .done(on, &get("/v1/workspaces/w/operations".into()))
        .await;
    Names {
        session,
        ticket: text(&opened["ticket_id"]),
        token: text(&token["id"]),
        commit: commits[0].clone(),
        operation: text(&log["items"][0]["id"]),
    }
}

/// All kinds of calls that take effect in one transaction or several, for a furnished world.
fn calls(of: &Names) -> Vec<Call<'static>> {
    let Names {
        session,
        ticket,
        token,
        commit,
        operation,
    } = of;
    let none = &Value::Null;
    vec![
        post("/v1/workspaces", &json!({ "name": "new" })),
        call("DELETE", "/v1/workspaces/w/retention", none),
        call(
            "PUT",
            "/v1/workspaces/w/retention",
            &json!({ "keep_seconds": 3600 }),
        ),
        post(
            "/v1/workspaces/w/pins",
            &json!({ "version": "other", "note": "n" }),
        ),
        call("DELETE", format!("/v1/workspaces/w/pins/{commit}"), none),
        post(
            "/v1/workspaces/w/refs",
            &json!({ "name": "new", "version": "main" }),
        ),
        call("DELETE", "/v1/workspaces/w/refs/v1", none),
        call("PUT", "/v1/workspaces/w/protected/main", none),
        call("DELETE", "/v1/workspaces/w/protected/main", none),
        post("/v1/workspaces/w/undo", &json!({ "operation": operation })),
        post("/v1/tokens", &json!({ "name": "new" })),
        call("DELETE", format!("/v1/tokens/{token}"), none),
        post("/v1/sessions", &json!({ "workspace": "w", "agent": "a" })),
        post(format!("/v1/sessions/{session}/fork"), &json!({})),
        call("DELETE", format!("/v1/sessions/{session}"), none),
        post(
            format!("/v1/sessions/{session}/tickets"),
            &json!({ "read_only": true }),
        ),
        call(
            "DELETE",
            format!("/v1/sessions/{session}/tickets/{ticket}"),
            none,
        ),
        post(
            format!("/v1/sessions/{session}/checkpoint"),
            &json!({ "message": "m" }),
        ),
        post(
            format!("/v1/sessions/{session}/publish"),
            &json!({ "branch": "new" }),
        ),
        post(format!("/v1/sessions/{session}/publish"), &json!({})),
        post(
            format!("/v1/sessions/{session}/restore"),
            &json!({ "version": "main" }),
        ),
        post(format!("/v1/sessions/{session}/sync"), &json!({})),
        post(
            format!("/v1/sessions/{session}/changed"),
            &json!({ "position": 1 }),
        ),
    ]
}

/// Ends when the process's store has crashed.
async fn died(process: &Process) {
    while !process.kv.has_crashed() {
        tokio::task::yield_now().await;
    }
}

/// The process dies at its commit of that number, if it makes so many; another one gets the same call.
/// Returns whether the first lived.
async fn dies(
    which: usize,
    commit: u64,
    point: CrashPoint,
    wanted: &(u16, Vec<(String, usize)>),
) -> bool {
    let world = World::real().await;
    let first = world.process(2, true).await;
    let names = furnish(&world, &first).await;
    let call = &calls(&names)[which];
    let what = format!("{} {}, {point:?} commit {commit}", call.method, call.path);
    first.kv.crash_at(first.kv.commits() + commit, point);
    let answer = tokio::select! {
        answer = world.send(&first, call, Some("key")) => Some(answer),
        () = died(&first) => None,
    };
    let answer = answer.filter(|_| !first.kv.has_crashed());
    // Nothing of the first process goes on.
    first.tasks.begin_shutdown();
    let second = world.process(3, true).await;
    let again = world.send(&second, call, Some("key")).await;
    assert_eq!(again.status, wanted.0, "{what}: {again:?}");
    let third = world.send(&second, call, Some("key")).await;
    assert_eq!(
        (third.status, &third.body),
        (again.status, &again.body),
        "{what}"
    );
    assert!(third.replayed, "{what}");
    assert_eq!(world.shape(&second).await, wanted.1, "{what}");
    if let Some(answer) = &answer {
        assert_eq!(
            (answer.status, &answer.body),
            (again.status, &again.body),
            "{what}"
        );
        assert!(again.replayed && !answer.replayed, "{what}");
    }
    second.tasks.begin_shutdown();
    answer.is_some()
}

#[tokio::test]
async fn a_call_is_done_once_wherever_its_server_is_killed() {
    let count = calls(&Names {
        session: String::new(),
        ticket: String::new(),
        token: String::new(),
        commit: String::new(),
        operation: String::new(),
    })
    .len();
    for which in 0..count {
        let world = World::real().await;
        let process = world.process(2, true).await;
        let names = furnish(&world, &process).await;
        let call = &calls(&names)[which];
        let clean = world.send(&process, call, None).await;
        assert!(
            clean.status < 300,
            "{} {}: {clean:?}",
            call.method,
            call.path
        );
        let wanted = (clean.status, world.shape(&process).await);
        process.tasks.begin_shutdown();
        for point in [CrashPoint::Before, CrashPoint::After] {
            let mut commit = 0;
            while !dies(which, commit, point, &wanted).await {
                commit += 1;
                assert!(commit < 50);
            }
            // It begins and takes effect.
            assert!(commit >= 2, "{} {}", call.method, call.path);
        }
    }
}

#[tokio::test]
async fn calls_at_once_do_it_once_also_in_several_processes() {
    let world = World::real().await;
    let (one, two) = (world.process(2, false).await, world.process(3, false).await);
    furnish(&world, &one).await;
    let before = world.done(&one, &get("/v1/sessions".into())).await;
    let open = post("/v1/sessions", &json!({ "workspace": "w" }));
    let sent = (0..12).map(|number| {
        let to = if number % 2 == 0 { &one } else { &two };
        world.send(to, &open, Some("key"))
    });
    let answers = join_all(sent).await;
    for answer in &answers {
        assert_eq!((answer.status, &answer.body), (201, &answers[0].body));
    }
    assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1);
    let ticket = answers[0].body["ticket"].as_str().unwrap();
    let found = two.store.find_ticket(ticket).await.unwrap();
    assert_eq!(answers[0].body["id"], found.session.to_string());
    let after = world.done(&two, &get("/v1/sessions".into())).await;
    let count = |page: &Value| page["items"].as_array().unwrap().len();
    assert_eq!(count(&after), count(&before) + 1);
}

/// As many with keys as without: what such a call does has room beside what sees to its key.
#[tokio::test]
async fn as_many_calls_with_keys_at_once_are_done_as_are_taken() {
    let world = World::real().await;
    let process = world.process(2, true).await;
    let make = post("/v1/workspaces", &json!({ "name": "w" }));
    world.done(&process, &make).await;
    let opens: Vec<_> = (0..CALLS_MAX)
        .map(|number| {
            let open = json!({ "workspace": "w", "agent": number.to_string() });
            (post("/v1/sessions", &open), number.to_string())
        })
        .collect();
    let sent = opens
        .iter()
        .map(|(open, key)| world.send(&process, open, Some(key)));
    for answer in join_all(sent).await {
        assert_eq!(answer.status, 201, "{answer:?}");
    }
}

/// A key that is taken is not left with nothing done, however early the caller goes away.
#[tokio::test]
async fn a_caller_that_goes_away_at_once_has_it_done() {
    let world = World::on_disk().await;
    let process = world.process(2, true).await;
    let idle = process.tasks.running();
    let make = post("/v1/workspaces", &json!({ "name": "w" }));
    let before = process.kv.commits();
    {
        let mut call = std::pin::pin!(world.send(&process, &make, Some("key")));
        while process.kv.commits() == before {
            assert!(futures_util::poll!(call.as_mut()).is_pending());
            tokio::task::yield_now().await;
        }
    }
    while process.tasks.running() > idle {
        tokio::task::yield_now().await;
    }
    let other = post("/v1/workspaces", &json!({ "name": "x" }));
    let refused = world.send(&process, &other, Some("key")).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    let made = world
        .send(&process, &get("/v1/workspaces/w".into()), None)
        .await;
    assert_eq!(made.status, 200, "{made:?}");
    let again = world.send(&process, &make, Some("key")).await;
    assert_eq!((again.status, again.replayed), (201, true));
}

/// What a path does not have is said first, whatever the key was used for.
#[tokio::test]
async fn methods_and_paths_come_before_keys() {
    let world = World::real().await;
    let process = world.process(2, true).await;
    let make = post("/v1/workspaces", &json!({ "name": "w" }));
    let made = world.send(&process, &make, Some("key")).await;
    assert_eq!(made.status, 201);
    for (method, path, wanted) in [
        ("PUT", "/v1/workspaces", 405),
        ("DELETE", "/v1/sessions", 405),
        ("POST", "/v1/nothing", 404),
        ("DELETE", "/v1/workspaces/w", 422),
    ] {
        for key in ["key", "a b"] {
            let answer = world
                .send(&process, &call(method, path, &Value::Null), Some(key))
                .await;
            let wanted = match (wanted, key) {
                (422, "a b") => 400,
                (wanted, _) => wanted,
            };
            assert_eq!(answer.status, wanted, "{method} {path} {key}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn a_key_is_checked_and_is_for_one_request() {
    let world = World::real().await;
    let process = world.process(2, true).await;
    let open = post("/v1/sessions", &json!({ "workspace": "w" }));
    // What failed has done nothing, and may be tried again.
    let early = world.send(&process, &open, Some("key")).await;
    assert_eq!(early.status, 404);
    let make = post("/v1/workspaces", &json!({ "name": "w" }));
    world.done(&process, &make).await;
    let opened = world.send(&process, &open, Some("key")).await;
    assert_eq!((opened.status, opened.replayed), (201, false));
    let other = post("/v1/sessions", &json!({ "workspace": "w", "agent": "b" }));
    let refused = world.send(&process, &other, Some("key")).await;
    assert_eq!(refused.status, 422);
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains("another request"), "{detail}");
    let further = world.send(&process, &other, Some("key2")).await;
    assert_ne!(further.body["id"], opened.body["id"]);
    assert_eq!(world.send(&process, &open, Some("a b")).await.status, 400);
    let import = post("/v1/workspaces/w/import", &Value::Null);
    let refused = world.send(&process, &import, Some("key3")).await;
    assert_eq!(refused.status, 400);
    assert!(refused.body["detail"].as_str().unwrap().contains("import"));
    // What only reads has no use for one.
    let list = world
        .send(&process, &get("/v1/sessions".into()), Some("a b"))
        .await;
    assert_eq!((list.status, list.replayed), (200, false));
    // A token that is none has no keys.
    let stranger = World {
        token: "nobody".into(),
        kv: Arc::clone(&world.kv),
        local: world.local.clone(),
        clock: world.clock.clone(),
        _dir: tempfile::tempdir().unwrap(),
    };
    assert_eq!(
        stranger.send(&process, &open, Some("key")).await.status,
        401
    );
}

#[tokio::test]
async fn who_waits_for_too_long_is_told_to_try_again() {
    let clock = Arc::new(ManualClock::new(Timestamp::new(1_000_000, 0)));
    let world = World::new(clock.clone()).await;
    let process = world.process(2, false).await;
    let make = post("/v1/workspaces", &json!({ "name": "w" }));
    let head = Request::builder()
        .method("POST")
        .uri("/v1/workspaces")
        .body(());
    let id = CallId {
        tenant: TENANT,
        key: *blake3::hash(b"key").as_bytes(),
        request: hash_of(&head.unwrap().into_parts().0, &make.body),
    };
    let holder = Holder {
        process: 9,
        attempt: 9,
    };
    let begun = process.store.begin_call(id, holder, LIMITS, |_| false);
    let BegunCall::Run(theirs) = begun.await.unwrap() else {
        panic!("not begun");
    };
    // Only so many wait.
    let calls = (0..WAITING_MAX + 6).map(|_| world.send(&process, &make, Some("key")));
    let mut calls: FuturesUnordered<_> = calls.collect();
    for _ in 0..6 {
        assert_eq!(calls.next().await.unwrap().status, 503);
    }
    drop(calls);
    let living = async || -> Infallible {
        loop {
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            clock.advance(Duration::from_secs(1));
            assert!(process.store.renew_call(&theirs).await.unwrap());
        }
    };
    let answer = tokio::select! {
        answer = world.send(&process, &make, Some("key")) => answer,
        never = living() => match never {},
    };
    assert_eq!((answer.status, answer.retry_after), (503, true));
    // Nothing is heard of it any more.
    clock.advance(LEASE);
    let answer = world.send(&process, &make, Some("key")).await;
    assert_eq!((answer.status, answer.replayed), (201, false));
}

#[test]
fn keys_are_checked() {
    let of = |keys: &[&[u8]]| {
        let mut headers = HeaderMap::new();
        for key in keys {
            headers.append(HEADER, HeaderValue::from_bytes(key).unwrap());
        }
        key_of(&headers)
    };
    assert_eq!(of(&[b"a~!"]), Ok(b"a~!".to_vec()));
    assert!(of(&[&[b'x'; 255]]).is_ok());
    for wrong in [
        &[&b""[..]][..],
        &[&[b'x'; 256]],
        &[b"a b"],
        &[b"\xff"],
        &[b"a", b"a"],
    ] {
        assert!(of(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_request_is_told_by_all_its_parts() {
    let of = |method: &str, uri: &str, body: &[u8]| {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        hash_of(&request.into_parts().0, body)
    };
    let one = of("POST", "/v1/a?b=c", b"d");
    assert_eq!(one, of("POST", "/v1/a?b=c", b"d"));
    for other in [
        of("PUT", "/v1/a?b=c", b"d"),
        of("POST", "/v1/b?b=c", b"d"),
        of("POST", "/v1/a?b=d", b"d"),
        of("POST", "/v1/a?b=c", b"e"),
        of("POST", "/v1/a", b"b=cd"),
    ] {
        assert_ne!(one, other);
    }
}
