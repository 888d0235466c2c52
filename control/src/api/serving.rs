//! The API's connections: not too many, none that keeps the others out, and room for those that
//! ask whether the server lives.
//!
//! A connection either waits for its peer, to send a whole request or to take a part of an answer,
//! or works on a request or the next part. One that waits for too long is closed. When there are
//! too many, the one that waits longest goes, of the address that has most: so whoever sends half
//! requests stands in their own way only. Work on `/v1` is bounded below the number of connections,
//! so that some can always go.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use base::{Clock, Tasks, Told};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

use super::BODY_BYTES_MAX;
use super::lingering::Lingering;
use super::sending::Sending;
use crate::status::ApiError;

/// Most connections.
const CONNECTIONS_MAX: usize = 256;

/// Most calls of `/v1` that are worked on at a time; further ones are told to try again.
pub(super) const CALLS_MAX: usize = 192;

/// A peer gets this long to send a whole request, from when it connects or was answered.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest head of a request, in bytes: many times what any client sends.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Pause after `accept` failed for want of something, file descriptors mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const _: () = assert!(CALLS_MAX < CONNECTIONS_MAX);

/// Serves routes on a listener.
#[derive(Clone, Debug)]
pub(crate) struct Serving {
    routes: TowerToHyperService<Router>,
    guests: Arc<Guests>,
    calls: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
}

impl Serving {
    /// Connections run as `tasks`, whose shutdown ends them: they finish the request that they
    /// work on.
    pub(crate) fn new(routes: Router, clock: Arc<dyn Clock>, tasks: Tasks) -> Self {
        Self {
            routes: TowerToHyperService::new(routes),
            guests: Arc::default(),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            clock,
            tasks,
        }
    }

    /// Accepts connections until shutdown begins.
    ///
    /// # Cancellation
    ///
    /// Safe: no further connections are accepted.
    pub(crate) async fn run(self, listener: TcpListener) {
        loop {
            tokio::select! {
                biased;
                () = self.tasks.shutdown_begun() => return,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.start(stream, peer),
                    Err(error) => {
                        tracing::warn!(error = %Told(&error), "cannot accept an API connection, trying again");
                        self.clock.sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    }

    fn start(&self, stream: TcpStream, peer: SocketAddr) {
        // Answers are small: each is to leave at once, not with the next one.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, error = %Told(&error), "API connection was gone before its call");
            return;
        }
        let Some(guest) = self.guests.admit(peer.ip(), self.clock.monotonic()) else {
            tracing::warn!(%peer, "too many API connections are at work, refusing one");
            return;
        };
        let serving = self.clone();
        self.tasks.spawn(async move {
            serving.serve(stream, &guest).await;
            serving.guests.leave(guest.id);
        });
    }

    async fn serve(&self, stream: TcpStream, guest: &Arc<Guest>) {
        let answer = |request: Request<Incoming>| {
            let (serving, guest) = (self.clone(), Arc::clone(guest));
            async move {
                let answer = serving.answer(request, &guest).await;
                let sending = |body| Sending::new(body, guest, serving.clock);
                Ok::<_, Infallible>(answer.map(sending))
            }
        };
        let mut builder = http1::Builder::new();
        builder.max_buf_size(HEAD_BYTES_MAX);
        let interrupted = Arc::clone(&guest.is_interrupted);
        let stream = Lingering::new(stream, Arc::clone(&self.clock), interrupted);
        let connection = builder.serve_connection(TokioIo::new(stream), service_fn(answer));
        let mut connection = std::pin::pin!(connection);
        let mut is_ending = false;
        loop {
            let patience = guest.patience(self.clock.monotonic());
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(peer = %guest.peer, error = %Told(&error), "API connection ends");
                    }
                    return;
                }
                () = guest.sent_away.notified() => return,
                () = self.clock.sleep(patience) => {
                    if guest.patience(self.clock.monotonic()).is_zero() {
                        tracing::debug!(peer = %guest.peer, "API connection waits for too long");
                        return;
                    }
                }
                () = self.tasks.shutdown_begun(), if !is_ending => {
                    is_ending = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>, guest: &Arc<Guest>) -> Response {
        let (head, body) = request.into_parts();
        let body = Body::new(body);
        // Until all of it is known to be read.
        guest.is_interrupted.store(true, Ordering::Relaxed);
        let body = if super::transfer::takes_a_stream(&head) {
            // It has patience of its own with its peer.
            body
        } else {
            match axum::body::to_bytes(body, BODY_BYTES_MAX).await {
                Ok(body) => {
                    guest.is_interrupted.store(false, Ordering::Relaxed);
                    Body::from(body)
                }
                Err(error) => return bad_body(&error).into_response(),
            }
        };
        let working = guest.work(&self.clock);
        let is_call = head.uri.path().starts_with("/v1/");
        let call = if is_call {
            match self.calls.try_acquire() {
                Ok(call) => Some(call),
                Err(_) => {
                    let detail = "too many calls at once: try again";
                    return ApiError::not_ready(detail).into_response();
                }
            }
        } else {
            None
        };
        let request = Request::from_parts(head, body);
        let Ok(response) = self.routes.call(request).await;
        if response.status().is_success() {
            guest.is_interrupted.store(false, Ordering::Relaxed);
        }
        // What runs on without its caller, or sends its answer in parts, is bounded elsewhere.
        drop(call);
        drop(working);
        response
    }
}

fn bad_body(error: &axum::Error) -> ApiError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<hyper::Error>() {
            return ApiError::invalid("the body of the request is not whole");
        }
        cause = error.source();
    }
    let detail = format!("the body of the request is longer than {BODY_BYTES_MAX} bytes");
    ApiError::rejected(StatusCode::PAYLOAD_TOO_LARGE, detail)
}

/// All connections.
#[derive(Debug, Default)]
struct Guests {
    next_id: AtomicU64,
    present: Mutex<BTreeMap<u64, Arc<Guest>>>,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Guest {
    id: u64,
    peer: IpAddr,
    /// Since when it waits for its peer; nothing while it works.
    waits: Mutex<Option<Duration>>,
    /// Whether it may be answered before all it sends was read.
    is_interrupted: Arc<AtomicBool>,
    sent_away: Notify,
}

impl Guests {
    /// Takes in a connection. If there are too many, one that waits has to go; nothing if none
    /// does.
    fn admit(&self, peer: IpAddr, now: Duration) -> Option<Arc<Guest>> {
        let mut present = self.present.lock();
        if present.len() >= CONNECTIONS_MAX {
            let gone = longest_waiting(&present)?;
            if let Some(gone) = present.remove(&gone) {
                gone.sent_away.notify_one();
            }
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let guest = Arc::new(Guest {
            id,
            peer,
            waits: Mutex::new(Some(now)),
            is_interrupted: Arc::default(),
            sent_away: Notify::new(),
        });
        present.insert(id, Arc::clone(&guest));
        Some(guest)
    }

    fn leave(&self, id: u64) {
        self.present.lock().remove(&id);
    }
}

/// Of those that wait, the one that waits longest, of the address that has most connections.
fn longest_waiting(present: &BTreeMap<u64, Arc<Guest>>) -> Option<u64> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for guest in present.values() {
        *counts.entry(guest.peer).or_default() += 1;
    }
    let waiting = present.values().filter_map(|guest| {
        let since = (*guest.waits.lock())?;
        let count = counts.get(&guest.peer).copied().unwrap_or_default();
        Some((std::cmp::Reverse(count), since, guest.id))
    });
    waiting.min().map(|(_, _, id)| id)
}

impl Guest {
    /// How long it may wait on.
    fn patience(&self, now: Duration) -> Duration {
        let since = *self.waits.lock();
        since.map_or(PATIENCE, |since| (since + PATIENCE).saturating_sub(now))
    }

    /// It works, or waits for its peer from now on.
    pub(super) fn set_working(&self, works: bool, now: Duration) {
        *self.waits.lock() = (!works).then_some(now);
    }

    /// It works until the result is dropped.
    fn work(self: &Arc<Self>, clock: &Arc<dyn Clock>) -> Working {
        *self.waits.lock() = None;
        Working {
            guest: Arc::clone(self),
            clock: Arc::clone(clock),
        }
    }
}

/// A connection that works on a request.
struct Working {
    guest: Arc<Guest>,
    clock: Arc<dyn Clock>,
}

impl Drop for Working {
    fn drop(&mut self) {
        *self.guest.waits.lock() = Some(self.clock.monotonic());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use axum::body::Bytes;
    use axum::routing::{get, post};
    use base::{ManualClock, SystemClock, Timestamp};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    struct Fixture {
        address: SocketAddr,
        held: Arc<Semaphore>,
        tasks: Tasks,
        guests: Arc<Guests>,
    }

    /// Serves `/quick`, `/v1/body`, which tells a body's length, `/v1/held`, which ends when the
    /// test lets it, `/v1/parts`, whose parts come when the test lets them, and `/v1/endless`.
    async fn serve(clock: Arc<dyn Clock>) -> Fixture {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let held = Arc::new(Semaphore::new(0));
        let (wait, part) = (Arc::clone(&held), Arc::clone(&held));
        let parts = move || {
            let stream = futures_util::stream::unfold(Arc::clone(&part), async |part| {
                part.acquire().await.unwrap().forget();
                Some((Ok::<_, Infallible>(Bytes::from_static(b"part")), part))
            });
            std::future::ready(Body::from_stream(stream))
        };
        let endless = async || {
            let part = Bytes::from_static(&[0; 65536]);
            let parts =
                futures_util::stream::repeat_with(move || Ok::<_, Infallible>(part.clone()));
            Body::from_stream(parts)
        };
        let routes = Router::new()
            .route("/v1/parts", get(parts))
            .route("/v1/endless", get(endless))
            .route("/quick", get(async || "ok"))
            .route("/v1/body", post(async |body: Bytes| body.len().to_string()))
            .route(
                "/v1/held",
                get(async move || {
                    wait.acquire().await.unwrap().forget();
                    "ok"
                }),
            );
        let tasks = Tasks::new();
        let serving = Serving::new(routes, clock, tasks.clone());
        let guests = Arc::clone(&serving.guests);
        tasks.spawn(serving.run(listener));
        Fixture {
            address,
            held,
            tasks,
            guests,
        }
    }

    impl Fixture {
        async fn send(&self, text: &str) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            stream
        }
    }

    /// The status and the body of the next answer, 0 if there is none.
    async fn answer(stream: &mut TcpStream) -> (u16, String) {
        let mut text = String::new();
        let mut chunk = [0; 4096];
        loop {
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: "));
                if body.len() == length.unwrap().parse::<usize>().unwrap() {
                    return (head[9..12].parse().unwrap(), body.to_owned());
                }
            }
            match stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return (0, text),
                Ok(read) => text.push_str(std::str::from_utf8(&chunk[..read]).unwrap()),
            }
        }
    }

    fn request(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")
    }

    const HALF_HEAD: &str = "GET /quick HTTP/1.1\r\nhost: ";
    const HALF_BODY: &str = "POST /v1/body HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf";

    #[tokio::test]
    async fn requests_are_answered_one_after_another() {
        let server = serve(Arc::new(SystemClock::new())).await;
        let mut stream = server.send(&request("/quick")).await;
        assert_eq!(answer(&mut stream).await, (200, "ok".into()));
        stream
            .write_all(request("/quick").as_bytes())
            .await
            .unwrap();
        assert_eq!(answer(&mut stream).await, (200, "ok".into()));
        let mut stream = server.send(&format!("{HALF_BODY}whole")).await;
        assert_eq!(answer(&mut stream).await, (200, "9".into()));
        let mut stream = server.send("nonsense\r\n\r\n").await;
        assert_eq!(answer(&mut stream).await.0, 400);
        let long = "POST /v1/body HTTP/1.1\r\nhost: x\r\ncontent-length: 70000\r\n\r\n";
        let mut stream = server.send(&format!("{long}{}", "x".repeat(66_000))).await;
        assert_eq!(answer(&mut stream).await.0, 413);
        let chunked =
            "POST /v1/body HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n";
        let mut stream = server.send(chunked).await;
        assert_eq!(answer(&mut stream).await.0, 400);
    }

    /// Bug: the connection was closed with bytes unread. The reset took the answer along.
    #[tokio::test]
    async fn who_is_still_sending_hears_why_it_is_refused() {
        let server = serve(Arc::new(SystemClock::new())).await;
        let head = "POST /v1/body HTTP/1.1\r\nhost: x\r\ncontent-length: 40000000\r\n\r\n";
        let mut stream = server.send(head).await;
        // It listens only after all was sent.
        stream.write_all(&vec![b'x'; 40_000_000]).await.unwrap();
        assert_eq!(answer(&mut stream).await.0, 413);
        drop(stream);
        // So it is with what is refused before anybody here sees it, whatever came before on the connection.
        for (head, status) in [("GET /", 431), ("GET / nonsense\r\n\r\n", 400)] {
            let mut stream = server.send(&request("/quick")).await;
            assert_eq!(answer(&mut stream).await.0, 200);
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(&vec![b'x'; 40_000_000]).await.unwrap();
            assert_eq!(answer(&mut stream).await.0, status, "{head}");
        }
        let mut quick = server.send(&request("/quick")).await;
        assert_eq!(answer(&mut quick).await.0, 200);
    }

    /// However much it sends, it is listened to for a while only.
    #[tokio::test]
    async fn who_never_ends_sending_is_left() {
        let server = serve(Arc::new(SystemClock::new())).await;
        let head = "POST /v1/body HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n";
        let mut stream = server.send(head).await;
        let part = vec![b'x'; 1 << 20];
        while stream.write_all(&part).await.is_ok() {}
        while !server.guests.present.lock().is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn half_requests_keep_nobody_out() {
        let server = serve(Arc::new(SystemClock::new())).await;
        let mut working = server.send(&request("/v1/held")).await;
        let mut half = Vec::new();
        for number in 0..2 * CONNECTIONS_MAX {
            let text = if number % 2 == 0 {
                HALF_HEAD
            } else {
                HALF_BODY
            };
            half.push(server.send(text).await);
        }
        for _ in 0..3 {
            let mut stream = server.send(&request("/quick")).await;
            assert_eq!(answer(&mut stream).await, (200, "ok".into()));
        }
        // The oldest had to go, the newest are still served, and so is what was worked on.
        assert_eq!(answer(&mut half[0]).await.0, 0);
        let last = half.last_mut().unwrap();
        last.write_all(b"whole").await.unwrap();
        assert_eq!(answer(last).await, (200, "9".into()));
        server.held.add_permits(1);
        assert_eq!(answer(&mut working).await, (200, "ok".into()));
    }

    #[tokio::test]
    async fn calls_at_work_leave_room_for_others() {
        let server = serve(Arc::new(SystemClock::new())).await;
        let mut working = Vec::new();
        for _ in 0..CALLS_MAX {
            working.push(server.send(&request("/v1/held")).await);
        }
        let mut refused = server.send(&request("/v1/held")).await;
        // Which of them came last is for the scheduler to say; one of them is refused.
        let (status, body) = tokio::select! {
            answer = answer(&mut refused) => answer,
            answer = answer(&mut working[CALLS_MAX - 1]) => answer,
        };
        assert_eq!(status, 503, "{body}");
        let mut quick = server.send(&request("/quick")).await;
        assert_eq!(answer(&mut quick).await.0, 200);
        server.held.add_permits(CALLS_MAX);
        assert_eq!(answer(&mut working[0]).await.0, 200);
    }

    #[tokio::test]
    async fn who_has_most_connections_gives_way() {
        let guests = Guests::default();
        let addresses: [IpAddr; 2] = [[127, 0, 0, 1].into(), [127, 0, 0, 2].into()];
        let modest = guests.admit(addresses[0], Duration::ZERO).unwrap();
        let second = Duration::from_secs(1);
        let hogs: Vec<_> = (1..CONNECTIONS_MAX)
            .map(|_| guests.admit(addresses[1], second).unwrap())
            .collect();
        guests.admit(addresses[0], second).unwrap();
        let is_present = |id: u64| guests.present.lock().contains_key(&id);
        assert!(is_present(modest.id) && !is_present(hogs[0].id));
        // None waits: there is no room.
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let present: Vec<_> = guests.present.lock().values().cloned().collect();
        let mut working: Vec<_> = present.iter().map(|guest| guest.work(&clock)).collect();
        assert!(guests.admit(addresses[0], second).is_none());
        working.pop();
        assert!(guests.admit(addresses[0], second).is_some());
        assert_eq!(guests.present.lock().len(), CONNECTIONS_MAX);
    }

    #[tokio::test]
    async fn a_peer_that_does_not_go_on_is_given_up() {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let server = serve(clock.clone()).await;
        let mut streams = vec![server.send(HALF_HEAD).await, server.send(HALF_BODY).await];
        let mut answered = server.send(&request("/quick")).await;
        assert_eq!(answer(&mut answered).await.0, 200);
        streams.push(answered);
        let mut working = server.send(&request("/v1/held")).await;
        // What has been sent is known to be read when a later request is answered.
        let mut later = server.send(&request("/quick")).await;
        assert_eq!(answer(&mut later).await.0, 200);
        for stream in &mut streams {
            clock.advance(PATIENCE);
            assert_eq!(answer(stream).await.0, 0);
        }
        server.held.add_permits(1);
        assert_eq!(answer(&mut working).await.0, 200);
    }

    /// An answer may take as long as it likes, as long as its parts are taken.
    #[tokio::test]
    async fn an_answer_of_many_parts_is_sent_to_its_end() {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let server = serve(clock.clone()).await;
        let mut stream = server.send(&request("/v1/parts")).await;
        let mut text = String::new();
        let mut chunk = [0; 4096];
        for parts in 1..=5 {
            server.held.add_permits(1);
            while text.matches("part").count() < parts {
                let read = stream.read(&mut chunk).await.unwrap();
                assert!(read > 0, "it ended after {text}");
                text.push_str(std::str::from_utf8(&chunk[..read]).unwrap());
            }
            clock.advance(2 * PATIENCE);
            // The connection has seen what time it is when a later call is answered.
            let mut later = server.send(&request("/quick")).await;
            assert_eq!(answer(&mut later).await.0, 200);
        }
    }

    #[tokio::test]
    async fn a_peer_that_takes_no_more_of_an_answer_is_given_up() {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let server = serve(clock.clone()).await;
        let mut stream = server.send(&request("/v1/endless")).await;
        let mut chunk = vec![0; 65536];
        stream.read_exact(&mut chunk).await.unwrap();
        while !server.guests.present.lock().is_empty() {
            clock.advance(PATIENCE);
            tokio::task::yield_now().await;
        }
        // It ends, whatever was on its way.
        while !matches!(stream.read(&mut chunk).await, Ok(0) | Err(_)) {}
    }

    #[tokio::test]
    async fn shutdown_ends_what_waits_and_answers_what_works() {
        let server = serve(Arc::new(SystemClock::new())).await;
        let mut idle = server.send(&request("/quick")).await;
        assert_eq!(answer(&mut idle).await.0, 200);
        let mut working = server.send(&request("/v1/held")).await;
        let mut later = server.send(&request("/quick")).await;
        assert_eq!(answer(&mut later).await.0, 200);
        server.tasks.begin_shutdown();
        assert_eq!(answer(&mut idle).await.0, 0);
        server.held.add_permits(1);
        assert_eq!(answer(&mut working).await.0, 200);
        server.tasks.join().await;
    }
}
