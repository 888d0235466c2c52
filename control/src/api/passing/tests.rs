//! Two gateways on one store, each with its API on a socket.

use std::net::SocketAddr;

use axum::http;
use base::{Clock, Rng, SystemClock, Tasks, TenantId, Timestamp};
use chunkstore::cached::CachedStore;
use chunkstore::local::{LocalOptions, LocalStore};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use metadata::kv::Kv;
use metadata::kv::faulty::{FaultRates, FaultyKv};
use metadata::kv::memory::MemoryKv;
use metadata::store::Store;
use nfs_gateway::{Engines, FleetOptions, Gateway, GatewayOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::api::{Own, Serving, router};
use crate::collector::Collector;
use crate::fleet::Addresses;
use crate::metrics::Counted;
use crate::mount_line::MountTarget;
use crate::remover::Remover;
use crate::tier::Content;

/// Long enough that a slow machine takes nobody for dead.
const LEASE: Duration = Duration::from_secs(4);

/// What gateways share.
struct World {
    kv: Arc<dyn Kv>,
    clock: Arc<dyn Clock>,
    dir: tempfile::TempDir,
    token: String,
}

/// A server with its API on a socket.
struct Process {
    gateway: Arc<Gateway>,
    kv: FaultyKv,
    store: Store,
    state: Arc<ApiState>,
    routes: TowerToHyperService<axum::Router>,
    api: SocketAddr,
    tasks: Tasks,
}

fn options(addresses: &Addresses, lease: Duration) -> GatewayOptions {
    GatewayOptions {
        fleet: Some(FleetOptions {
            lease,
            nfs: addresses.nfs.clone(),
            peers: addresses.peers.clone(),
            api: addresses.api.clone(),
            token: [0; 8],
        }),
        ..GatewayOptions::default()
    }
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Value,
}

impl World {
    fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        Self {
            kv: Arc::new(MemoryKv::new(Arc::clone(&clock))),
            clock,
            dir: tempfile::tempdir().unwrap(),
            token: String::new(),
        }
    }

    /// Two gateways, the second of which knows of the first; and a workspace.
    async fn two(lease: Duration) -> (Self, Process, Process) {
        let mut world = Self::new();
        let first = world.process(1, None, lease).await;
        world.token = first.store.create_token(TenantId::DEFAULT).await.unwrap();
        let second = world.process(2, None, lease).await;
        let made = world.ask(&first, "POST", "/v1/workspaces", json!({ "name": "w" }));
        assert_eq!(made.await.status, 201);
        (world, first, second)
    }

    /// A server; others are told that its API is at `api` if that is given.
    async fn process(&self, number: u8, api: Option<SocketAddr>, lease: Duration) -> Process {
        let clock = || Arc::clone(&self.clock);
        let rng = Arc::new(Rng::seeded(number.into()));
        let kv = FaultyKv::new(Arc::clone(&self.kv), number.into(), FaultRates::default());
        let shared: Arc<dyn Kv> = Arc::new(kv.clone());
        let store = Store::open(Arc::clone(&shared), clock(), Arc::clone(&rng));
        let store = store.await.unwrap();
        let chunks = self.dir.path().join(number.to_string());
        let local = LocalStore::open(&chunks, LocalOptions::default(), clock());
        let local = Arc::new(local.unwrap());
        let cached = Arc::new(CachedStore::new(Arc::<LocalStore>::clone(&local), 1 << 20));
        let engines = Engines {
            kv: Arc::clone(&shared),
            chunks: Arc::<CachedStore>::clone(&cached),
            clock: clock(),
            rng: Arc::clone(&rng),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own_api = listener.local_addr().unwrap();
        let addresses = Addresses {
            nfs: format!("10.0.0.{number}:2049"),
            peers: "127.0.0.1:1".into(),
            api: format!("http://{}", api.unwrap_or(own_api)),
        };
        let options = options(&addresses, lease);
        let gateway = Gateway::new(options, engines, store.clone()).await.unwrap();
        let tasks = Tasks::new();
        let collector = Collector::new(
            shared,
            store.clone(),
            Arc::clone(&local),
            clock(),
            tasks.clone(),
        );
        let own = Own {
            token: [0; 8],
            remover: Remover::start(&tasks, store.clone(), Arc::clone(&gateway), clock()),
            rng,
            is_alone: false,
            drain_delay: Duration::ZERO,
            addresses,
            started: Timestamp::EPOCH,
        };
        let counted = Counted {
            gateway: Arc::clone(&gateway),
            content: Content::Local(local),
            cached,
            collector: Some(collector),
            metadata: None,
        };
        let target = MountTarget::new("127.0.0.1:9".parse().unwrap(), None);
        let state = ApiState::new(store.clone(), counted, clock(), tasks.clone(), target, own);
        let state = Arc::new(state);
        let routes = router(Arc::clone(&state));
        let serving = Serving::new(routes.clone(), clock(), tasks.clone());
        tasks.spawn(serving.run(listener));
        Process {
            gateway,
            kv,
            store,
            state,
            routes: TowerToHyperService::new(routes),
            api: own_api,
            tasks,
        }
    }

    async fn send(&self, to: &Process, request: http::Request<Body>) -> Answer {
        let Ok(response) = to.routes.call(request).await;
        let (head, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: head.status,
            headers: head.headers,
            body: serde_json::from_slice(&body).unwrap_or_default(),
        }
    }

    fn request(&self, method: &str, path: &str) -> http::request::Builder {
        http::Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json")
    }

    async fn ask(&self, to: &Process, method: &str, path: &str, body: Value) -> Answer {
        let request = self.request(method, path);
        let body = match body.is_null() {
            true => Body::empty(),
            false => Body::from(body.to_string()),
        };
        self.send(to, request.body(body).unwrap()).await
    }

    /// A session that a gateway has in memory; the path of its calls.
    async fn session_of(&self, process: &Process) -> String {
        let open = json!({ "workspace": "w" });
        let opened = self.ask(process, "POST", "/v1/sessions", open).await;
        assert_eq!(opened.status, 201);
        let path = format!("/v1/sessions/{}", opened.body["id"].as_str().unwrap());
        let kept = self.checkpoint(process, &path, None).await;
        assert!(kept.status.is_success(), "{}", kept.body);
        assert_eq!(process.gateway.sessions_in_memory(), 1);
        path
    }

    async fn checkpoint(&self, to: &Process, path: &str, header: Option<(&str, &str)>) -> Answer {
        let path = format!("{path}/checkpoint");
        let body = json!({ "message": "kept" });
        let mut request = self.request("POST", &path);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let request = request.body(Body::from(body.to_string())).unwrap();
        self.send(to, request).await
    }
}

#[tokio::test]
async fn calls_are_done_where_their_session_is() {
    let (world, first, second) = World::two(LEASE).await;
    let path = world.session_of(&first).await;
    let key = Some(("idempotency-key", "one"));
    let kept = world.checkpoint(&second, &path, key).await;
    assert!(kept.status.is_success(), "{}", kept.body);
    assert_eq!(second.gateway.sessions_in_memory(), 0);
    assert_eq!(first.gateway.counters().takeovers.value(), 1);
    // The key is one, wherever it comes.
    for to in [&second, &first] {
        let again = world.checkpoint(to, &path, key).await;
        assert_eq!(again.status, kept.status);
        assert_eq!(again.body, kept.body);
        assert!(again.headers.contains_key("idempotent-replayed"));
    }
    // Both say where it is best mounted.
    for to in [&second, &first] {
        let shown = world.ask(to, "GET", &path, Value::Null).await;
        assert_eq!(shown.body["gateway"], "10.0.0.1:2049");
        let listed = world.ask(to, "GET", "/v1/sessions", Value::Null).await;
        assert_eq!(listed.body["items"][0]["gateway"], "10.0.0.1:2049");
        let tickets = format!("{path}/tickets");
        let ticket = world.ask(to, "POST", &tickets, json!({})).await;
        let source = ticket.body["mount_source"].to_string();
        assert!(source.starts_with("\"10.0.0.1:/"), "{source}");
    }
    // Also a call that has it in its query.
    let id = path.trim_start_matches("/v1/sessions/");
    let diff = format!("/v1/workspaces/w/diff?path=%ff&session={id}");
    let diff = world.ask(&second, "GET", &diff, Value::Null).await;
    assert_eq!(diff.status, 200, "{}", diff.body);
    assert_eq!(second.gateway.sessions_in_memory(), 0);
    // By the first digits of its id, and errors are those of the other one.
    let short = &path[..path.len() - 4];
    let short = format!("{short}/sync");
    let bad = world
        .ask(&second, "POST", &short, json!({ "policy": "x" }))
        .await;
    assert_eq!(bad.status, 400, "{}", bad.body);
    assert!(
        bad.body["detail"]
            .as_str()
            .is_some_and(|it| it.contains('x'))
    );
    assert_eq!(second.gateway.sessions_in_memory(), 0);
    // A fork is made there, and closed from here.
    let fork = world
        .ask(&second, "POST", &format!("{path}/fork"), json!({}))
        .await;
    assert_eq!(fork.status, 201);
    assert_eq!(fork.body["gateway"], "10.0.0.1:2049");
    let closed = world.ask(&second, "DELETE", &path, Value::Null).await;
    assert_eq!(closed.status, 204);
    assert_eq!(first.gateway.sessions_in_memory(), 0);
}

/// A gateway that is at the address of another one by mistake does nothing in its place.
#[tokio::test]
async fn calls_for_another_gateway_are_refused() {
    let (world, first, second) = World::two(LEASE).await;
    let path = world.session_of(&first).await;
    for (meant, status) in [
        ("0000000000000007", 421),
        (&*first.gateway.id().to_string(), 200),
    ] {
        let request = world
            .request("GET", &path)
            .header(HEADER, second.gateway.id().to_string())
            .header(FOR_HEADER, meant);
        let answer = world
            .send(&first, request.body(Body::empty()).unwrap())
            .await;
        assert_eq!(answer.status, status, "{}", answer.body);
    }
    // The one that asks does not take it for an answer.
    let mistaken = Other {
        id: GatewayId::new(7),
        authority: first.api.to_string(),
    };
    let (head, ()) = world.request("GET", &path).body(()).unwrap().into_parts();
    let answer = ask(&second.state, &mistaken, &head, Bytes::new()).await;
    assert!(matches!(answer, Err(Failed::Unsent(_))), "{answer:?}");
}

/// Each stays where it is.
#[tokio::test]
async fn sessions_of_two_gateways_are_compared() {
    let (world, first, second) = World::two(LEASE).await;
    let one = world.session_of(&first).await;
    let two = world.session_of(&second).await;
    let id = two.trim_start_matches("/v1/sessions/");
    let clashes = format!("{one}/clashes?with={id}");
    while first.gateway.others_alive() == 0 {
        world.clock.sleep(Duration::from_millis(20)).await;
    }
    for to in [&first, &second] {
        let found = world.ask(to, "GET", &clashes, Value::Null).await;
        assert_eq!(found.status, 200, "{}", found.body);
        assert_eq!(first.gateway.sessions_in_memory(), 1);
        assert_eq!(second.gateway.sessions_in_memory(), 1);
    }
    assert_eq!(second.gateway.counters().notices.value(), 0);
}

/// Whoever knows no token learns nothing, and moves nothing.
#[tokio::test]
async fn calls_without_a_good_token_are_refused_where_they_come() {
    let (mut world, first, second) = World::two(LEASE).await;
    let path = world.session_of(&first).await;
    world.token = "wrong".into();
    assert_eq!(world.checkpoint(&second, &path, None).await.status, 401);
    assert_eq!(second.gateway.sessions_in_memory(), 0);
}

#[tokio::test]
async fn a_call_is_passed_on_once() {
    let (world, first, second) = World::two(LEASE).await;
    let path = world.session_of(&first).await;
    let passed = Some((HEADER, "0000000000000007"));
    let kept = world.checkpoint(&second, &path, passed).await;
    assert!(kept.status.is_success(), "{}", kept.body);
    assert_eq!(second.gateway.sessions_in_memory(), 1);
    assert_eq!(
        first.gateway.sessions_in_memory(),
        0,
        "it was told to give it up"
    );
}

/// A session that is closed behind the gateway that has it leaves its memory.
#[tokio::test]
async fn what_is_closed_elsewhere_is_dropped() {
    let (world, first, second) = World::two(LEASE).await;
    let path = world.session_of(&first).await;
    let close = world
        .request("DELETE", &path)
        .header(HEADER, "0000000000000007");
    let closed = world
        .send(&second, close.body(Body::empty()).unwrap())
        .await;
    assert_eq!(closed.status, 204, "{}", closed.body);
    assert_eq!(second.gateway.sessions_in_memory(), 0);
    while first.gateway.sessions_in_memory() > 0 {
        world.clock.sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(first.gateway.counters().notices.value(), 1);
}

/// A gateway that drains has new sessions mounted at another, and calls for those that nobody has are
/// done there.
#[tokio::test]
async fn a_gateway_that_drains_sends_what_comes_to_another() {
    let (world, first, second) = World::two(LEASE).await;
    let path = world.session_of(&second).await;
    assert_eq!(second.gateway.drain().await, 0);
    assert_eq!(second.gateway.sessions_in_memory(), 0);
    let kept = world.checkpoint(&second, &path, None).await;
    assert!(kept.status.is_success(), "{}", kept.body);
    assert_eq!(second.gateway.sessions_in_memory(), 0);
    assert_eq!(first.gateway.sessions_in_memory(), 1);
    let open = json!({ "workspace": "w" });
    let opened = world.ask(&second, "POST", "/v1/sessions", open).await;
    assert_eq!(opened.body["gateway"], "10.0.0.1:2049");
    let source = opened.body["mount_source"].as_str().unwrap();
    assert!(source.starts_with("10.0.0.1:/"), "{source}");
}

/// A gateway that nobody can reach with HTTP has heard nothing: the session is taken over.
#[tokio::test]
async fn what_was_not_sent_is_done_here() {
    let mut world = World::new();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = gone.local_addr().unwrap();
    drop(gone);
    let first = world.process(1, Some(api), LEASE).await;
    world.token = first.store.create_token(TenantId::DEFAULT).await.unwrap();
    let second = world.process(2, None, LEASE).await;
    let made = world.ask(&first, "POST", "/v1/workspaces", json!({ "name": "w" }));
    assert_eq!(made.await.status, 201);
    let path = world.session_of(&first).await;
    let kept = world
        .checkpoint(&second, &path, Some(("idempotency-key", "k")))
        .await;
    assert!(kept.status.is_success(), "{}", kept.body);
    assert_eq!(second.gateway.sessions_in_memory(), 1);
    let shown = world.ask(&second, "GET", &path, Value::Null).await;
    assert_eq!(shown.body["gateway"], "10.0.0.2:2049");
}

/// One that has heard the call may have done it: nothing is done here, and the caller is told.
#[tokio::test]
async fn what_may_have_been_done_is_not_done_here() {
    let mut world = World::new();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = silent.local_addr().unwrap();
    let first = world.process(1, Some(api), LEASE).await;
    world.token = first.store.create_token(TenantId::DEFAULT).await.unwrap();
    let second = world.process(2, None, LEASE).await;
    let made = world.ask(&first, "POST", "/v1/workspaces", json!({ "name": "w" }));
    assert_eq!(made.await.status, 201);
    let path = world.session_of(&first).await;
    let heard = async {
        let (mut stream, _) = silent.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"{\"message\":\"kept\"}") {
            let mut part = [0; 1024];
            let read = stream.read(&mut part).await.unwrap();
            head.extend_from_slice(&part[..read]);
        }
        stream.write_all(b"HTTP/1.1 2").await.unwrap();
        String::from_utf8(head).unwrap()
    };
    let key = Some(("idempotency-key", "k"));
    let (answer, heard) = tokio::join!(world.checkpoint(&second, &path, key), heard);
    assert_eq!(answer.status, 503, "{}", answer.body);
    let detail = answer.body["detail"].as_str().unwrap();
    assert!(detail.contains("Idempotency-Key"), "{detail}");
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(second.gateway.sessions_in_memory(), 0);
    assert!(
        heard.starts_with(&format!("POST {path}/checkpoint HTTP/1.1\r\n")),
        "{heard}"
    );
    for line in [
        format!("authorization: Bearer {}", world.token),
        format!("holdfast-passed-on: {}", second.gateway.id()),
        "idempotency-key: k".to_owned(),
        format!("host: {api}"),
    ] {
        assert!(
            heard.contains(&format!("\r\n{line}\r\n")),
            "{line}: {heard}"
        );
    }
}

#[tokio::test]
async fn gateways_are_listed_for_the_operator() {
    let (world, first, second) = World::two(LEASE).await;
    drop(world.session_of(&first).await);
    let listed = world.ask(&second, "GET", "/v1/gateways", Value::Null).await;
    assert_eq!(listed.status, 200);
    let items = listed.body["items"].as_array().unwrap();
    assert_eq!(items.len(), 2);
    assert_eq!(items[0]["id"], second.gateway.id().to_string());
    assert_eq!(items[0]["this"], true);
    assert_eq!(items[1]["id"], first.gateway.id().to_string());
    assert_eq!(items[1]["alive"], true);
    assert_eq!(items[1]["state"], "serving");
    assert_eq!(items[1]["nfs"], "10.0.0.1:2049");
    assert_eq!(items[1]["api"], format!("http://{}", first.api));
    let tenant = second.store.create_token(TenantId::new(7)).await.unwrap();
    let other = World {
        token: tenant,
        ..world
    };
    let refused = other.ask(&second, "GET", "/v1/gateways", Value::Null).await;
    assert_eq!(refused.status, 403);
}

/// Each of two does not see that the other is to do what one does for all; and of one that ended the
/// next takes it over.
#[tokio::test]
async fn one_gateway_takes_care() {
    let (world, first, second) = World::two(LEASE).await;
    // The first sees the second with its next renewal.
    while first.gateway.others_alive() == 0 {
        world.clock.sleep(Duration::from_millis(10)).await;
    }
    let (smaller, larger) = match first.gateway.id().raw() < second.gateway.id().raw() {
        true => (&first, &second),
        false => (&second, &first),
    };
    assert!(smaller.gateway.is_caretaker());
    assert!(!larger.gateway.is_caretaker());
    smaller.tasks.begin_shutdown();
    smaller.gateway.shutdown().await;
    assert!(!smaller.gateway.is_caretaker());
    while !larger.gateway.is_caretaker() {
        world.clock.sleep(Duration::from_millis(10)).await;
    }
}

/// A gateway that is cut off from the store says that it is not ready, and is again when it is not.
#[tokio::test]
async fn without_a_lease_it_is_not_ready() {
    let (world, _first, second) = World::two(Duration::from_millis(500)).await;
    let wait = async |status: u16| loop {
        let answer = world.ask(&second, "GET", "/readyz", Value::Null).await;
        if answer.status == status {
            return answer;
        }
        world.clock.sleep(Duration::from_millis(10)).await;
    };
    drop(wait(200).await);
    let down = FaultRates {
        unavailable: 1000,
        ..FaultRates::default()
    };
    second.kv.set_rates(down);
    let told = wait(503).await.body["detail"].to_string();
    // Whatever of the two comes first.
    assert!(told.contains("lease") || told.contains("store"), "{told}");
    while second.gateway.holds_lease() {
        world.clock.sleep(Duration::from_millis(10)).await;
    }
    let told = wait(503).await.body["detail"].to_string();
    assert!(told.contains("lease has lapsed"), "{told}");
    second.kv.set_rates(FaultRates::default());
    drop(wait(200).await);
    assert!(second.gateway.counters().lapses.value() > 0);
}

/// What callers say of their connection ends with it, and what they ask for does not.
#[test]
fn headers_of_a_connection_stay_on_it() {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        (
            "connection",
            "close, X-Mine, Authorization, idempotency-key",
        ),
        ("x-mine", "1"),
        ("authorization", "Bearer t"),
        ("idempotency-key", "k"),
        ("transfer-encoding", "chunked"),
        ("host", "a"),
        ("content-type", "application/json"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    without_connection(&mut headers);
    let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
    left.sort_unstable();
    assert_eq!(left, ["authorization", "content-type", "idempotency-key"]);
}
