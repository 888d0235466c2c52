//! A real S3 server, `s3s` with `s3s-fs`, behind a layer that does what networks and busy servers do.
#![allow(dead_code, clippy::unwrap_used)] // Shared by test binaries.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::{Clock, Rng, SystemClock, Tasks};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::{Service, service_fn};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub(crate) const BUCKET: &str = "chunks";
pub(crate) const KEY: &str = "access";
pub(crate) const SECRET: &str = "topsecret";

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<UnsyncBoxBody<Bytes, Failure>>;

/// What goes wrong, in thousandths of the calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// 503 SlowDown.
    pub(crate) busy: u64,
    /// Bodies of reads that end in the middle.
    pub(crate) cut: u64,
    /// Answers that are lost after the call is done.
    pub(crate) lost: u64,
    /// Reads that come only after [`SLOW`].
    pub(crate) slow: u64,
}

/// How long a slow read takes.
pub(crate) const SLOW: Duration = Duration::from_millis(1500);

#[derive(Debug)]
struct Shared {
    faults: Mutex<Faults>,
    /// Nobody is answered, connections are closed.
    down: AtomicBool,
    /// Writes wait while this says so.
    held: watch::Sender<bool>,
    put_delay: Mutex<Duration>,
    pace: Mutex<Pace>,
    rng: Rng,
    clock: SystemClock,
    puts: AtomicU64,
    gets: AtomicU64,
}

/// How reads come: after a while, and all together no faster than so.
#[derive(Debug, Default)]
struct Pace {
    latency: Duration,
    bytes_per_second: Option<u64>,
    paid_at: Duration,
}

impl Pace {
    /// How long an answer of so many bytes takes.
    fn wait(&mut self, bytes: usize, now: Duration) -> Duration {
        let Some(rate) = self.bytes_per_second else {
            return self.latency;
        };
        let micros = u64::try_from(bytes).unwrap() * 1_000_000 / rate;
        self.paid_at = self.paid_at.max(now) + Duration::from_micros(micros);
        self.latency + (self.paid_at - now)
    }
}

/// The server. It ends with this.
pub(crate) struct S3 {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    root: tempfile::TempDir,
    tasks: Tasks,
}

impl S3 {
    pub(crate) async fn start(seed: u64) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join(BUCKET)).unwrap();
        let mut builder = S3ServiceBuilder::new(FileSystem::new(root.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = builder.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            faults: Mutex::default(),
            down: AtomicBool::new(false),
            held: watch::channel(false).0,
            put_delay: Mutex::default(),
            pace: Mutex::default(),
            rng: Rng::seeded(seed),
            clock: SystemClock::new(),
            puts: AtomicU64::new(0),
            gets: AtomicU64::new(0),
        });
        let tasks = Tasks::new();
        let (accepting, until) = (Arc::clone(&shared), tasks.clone());
        tasks.spawn(async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap().0,
                    () = until.shutdown_begun() => return,
                };
                if accepting.down.load(Ordering::SeqCst) {
                    continue;
                }
                let (shared, service) = (Arc::clone(&accepting), service.clone());
                until.spawn(async move {
                    let handle = service_fn(move |request| {
                        answer(Arc::clone(&shared), service.clone(), request)
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    // Clients hang up in the middle, and answers are cut.
                    drop(http.serve_connection(TokioIo::new(accepted), handle).await);
                });
            }
        });
        Self {
            address,
            shared,
            root,
            tasks,
        }
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        *self.shared.faults.lock() = faults;
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.shared.down.store(down, Ordering::SeqCst);
    }

    /// Lets writes wait, or go on.
    pub(crate) fn hold_puts(&self, held: bool) {
        self.shared.held.send_replace(held);
    }

    /// Lets reads begin after `latency`, and come with so many bytes a second, all together.
    pub(crate) fn pace_gets(&self, latency: Duration, bytes_per_second: Option<u64>) {
        *self.shared.pace.lock() = Pace {
            latency,
            bytes_per_second,
            paid_at: Duration::ZERO,
        };
    }

    /// Lets each write take so much longer.
    pub(crate) fn delay_puts(&self, delay: Duration) {
        *self.shared.put_delay.lock() = delay;
    }

    /// Writes that came, and reads.
    pub(crate) fn calls(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        (count(&self.shared.puts), count(&self.shared.gets))
    }

    /// Where its bucket is on disk.
    pub(crate) fn bucket(&self) -> PathBuf {
        self.root.path().join(BUCKET)
    }

    /// The files of all packs.
    pub(crate) fn packs(&self, prefix: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        walk(&self.bucket().join(prefix).join("packs"), &mut found);
        found
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.tasks.begin_shutdown();
    }
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path);
        }
    }
}

async fn answer(
    shared: Arc<Shared>,
    service: S3Service,
    request: Request<Incoming>,
) -> Result<Answer, Failure> {
    let faults = *shared.faults.lock();
    let happens = |rate: u64| shared.rng.u64() % 1000 < rate;
    let is_get = *request.method() == Method::GET;
    let is_put = *request.method() == Method::PUT || *request.method() == Method::POST;
    if is_put {
        shared.puts.fetch_add(1, Ordering::SeqCst);
        let mut held = shared.held.subscribe();
        held.wait_for(|held| !held).await?;
        let delay = *shared.put_delay.lock();
        shared.clock.sleep(delay).await;
    }
    if is_get {
        shared.gets.fetch_add(1, Ordering::SeqCst);
        if happens(faults.slow) {
            shared.clock.sleep(SLOW).await;
        }
    }
    if shared.down.load(Ordering::SeqCst) {
        return Err("down".into());
    }
    // `s3s-fs` makes a bucket that is not there; S3 does not.
    let bucket = request.uri().path().split('/').nth(1).unwrap_or_default();
    if bucket != BUCKET {
        return error(404, "NoSuchBucket");
    }
    if happens(faults.busy) {
        return error(503, "SlowDown");
    }
    let answer = Service::call(&service, request).await;
    let answer = answer.map_err(|error| format!("{error:?}"))?;
    if happens(faults.lost) {
        return Err("the answer is lost".into());
    }
    let (head, body) = answer.into_parts();
    let body = body
        .collect()
        .await
        .map_err(|error| error.to_string())?
        .to_bytes();
    if is_get {
        let wait = (shared.pace.lock()).wait(body.len(), shared.clock.monotonic());
        if !wait.is_zero() {
            shared.clock.sleep(wait).await;
        }
    }
    let is_cut = is_get && body.len() > 1 && happens(faults.cut);
    let body = if is_cut {
        Cut(Some(body.slice(..body.len() / 2)), body.len()).boxed_unsync()
    } else {
        Full::new(body)
            .map_err(|never| match never {})
            .boxed_unsync()
    };
    Ok(Response::from_parts(head, body))
}

fn error(status: u16, code: &str) -> Result<Answer, Failure> {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {});
    Ok(Response::builder()
        .status(status)
        .body(body.boxed_unsync())?)
}

/// A body that ends in the middle, with the connection. Its length is that of the whole.
struct Cut(Option<Bytes>, usize);

impl Body for Cut {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Failure>>> {
        std::task::Poll::Ready(Some(match self.0.take() {
            Some(half) => Ok(Frame::data(half)),
            None => Err("cut".into()),
        }))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(u64::try_from(self.1).unwrap())
    }
}
