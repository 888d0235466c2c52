//! Streams between tasks and threads that may block, and calls of the API that carry them.

use std::io::{Error, Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use base::{Clock, SystemClock, Tasks};
use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use futures_util::stream::unfold;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use crate::client::{CONNECT_PATIENCE, Client, PATIENCE};
use crate::failure::{Failure, FailureKind};

/// Bytes that a thread collects before it sends them.
const PIECE_BYTES: usize = 256 * 1024;

/// Pieces on their way.
const PIECES_MAX: usize = 8;

/// Longest answer to an upload, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// An upload that was refused gets this long to say what it failed with itself.
const FAREWELL: Duration = Duration::from_secs(2);

/// A part of a stream.
#[derive(Debug)]
pub(crate) enum Piece {
    /// More of it.
    Bytes(Bytes),
    /// It ended well.
    End,
    /// It ended otherwise.
    Failed(Error),
}

/// Reads a stream in a thread that may block.
#[derive(Debug)]
pub(crate) struct ChannelReader {
    from: mpsc::Receiver<Piece>,
    bytes: Bytes,
    is_over: bool,
}

impl ChannelReader {
    /// Reads what comes by `from`. A stream that ends without [`Piece::End`] is broken.
    pub(crate) fn new(from: mpsc::Receiver<Piece>) -> Self {
        Self {
            from,
            bytes: Bytes::new(),
            is_over: false,
        }
    }
}

impl Read for ChannelReader {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        while self.bytes.is_empty() && !self.is_over {
            match self.from.blocking_recv() {
                Some(Piece::Bytes(bytes)) => self.bytes = bytes,
                Some(Piece::End) => self.is_over = true,
                Some(Piece::Failed(error)) => return Err(error),
                None => return Err(Error::other("the stream broke off")),
            }
        }
        let length = to.len().min(self.bytes.len());
        if let Some(to) = to.get_mut(..length) {
            self.bytes.copy_to_slice(to);
        }
        Ok(length)
    }
}

/// Writes a stream from a thread that may block.
#[derive(Debug)]
struct ChannelWriter {
    to: mpsc::Sender<Result<Bytes, Error>>,
    bytes: Vec<u8>,
}

impl Write for ChannelWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::replace(&mut self.bytes, Vec::with_capacity(PIECE_BYTES));
        let sent = self.to.blocking_send(Ok(bytes.into()));
        sent.map_err(|_| Error::from(std::io::ErrorKind::BrokenPipe))
    }
}

/// How writing a stream ended.
enum Produced {
    Whole,
    /// Nobody reads it any more.
    Unwanted,
    Failed(Failure),
}

impl Client {
    /// Sends what `produce` writes to `path`. If it fails, what was sent is no whole stream. It is
    /// given up when nothing has moved for ten to twenty minutes.
    ///
    /// # Errors
    ///
    /// What `produce` fails with; the server refuses, or does not answer.
    pub(crate) fn upload<A, P>(&self, path: &str, produce: P) -> Result<A, Failure>
    where
        A: DeserializeOwned,
        P: FnOnce(&mut dyn Write) -> Result<(), Failure> + Send + 'static,
    {
        self.upload_within(path, produce, PATIENCE)
    }

    fn upload_within<A, P>(&self, path: &str, produce: P, patience: Duration) -> Result<A, Failure>
    where
        A: DeserializeOwned,
        P: FnOnce(&mut dyn Write) -> Result<(), Failure> + Send + 'static,
    {
        let runtime = runtime()?;
        let sent = runtime.block_on(self.send(path, produce, patience));
        // Whoever still reads what is to be sent is not waited for.
        runtime.shutdown_background();
        let (status, answer) = sent?;
        self.outcome(path, status, &answer)?;
        self.answer(&answer)
    }

    async fn send<P>(
        &self,
        path: &str,
        produce: P,
        patience: Duration,
    ) -> Result<(u16, Bytes), Failure>
    where
        P: FnOnce(&mut dyn Write) -> Result<(), Failure> + Send + 'static,
    {
        let clock = SystemClock::new();
        let (to, from) = mpsc::channel(PIECES_MAX);
        let moved = Arc::new(AtomicU64::new(0));
        let taken = Arc::clone(&moved);
        let body = unfold((from, taken), |(mut from, taken)| async {
            let part: Result<Bytes, Error> = from.recv().await?;
            taken.fetch_add(1, Ordering::Relaxed);
            Some((part, (from, taken)))
        });
        let request = self.request("POST", path, Body::from_stream(body))?;
        let (mut sender, connection) = self.connect().await?;
        let producing = tokio::task::spawn_blocking(move || produced(to, produce));
        let answered = async {
            let response = sender.send_request(request).await;
            let response = response.map_err(|error| error.to_string())?;
            let (head, body) = response.into_parts();
            let bytes = axum::body::to_bytes(Body::new(body), ANSWER_BYTES_MAX).await;
            let bytes = bytes.map_err(|error| error.to_string())?;
            Ok((head.status.as_u16(), bytes))
        };
        let answered = tokio::select! {
            answered = answered => answered,
            () = stalled(&moved, patience, &clock) => Err(format!(
                "nothing was taken or answered for {} seconds", patience.as_secs()
            )),
        };
        // The connection goes, and with it what is still to be sent.
        drop((sender, connection));
        let produced = tokio::select! {
            produced = producing => produced.ok(),
            () = clock.sleep(FAREWELL) => None,
        };
        match (produced, answered) {
            (Some(Produced::Failed(failure)), _) => Err(failure),
            (_, Ok(answered)) => Ok(answered),
            (_, Err(error)) => Err(broken_off(path, &error)),
        }
    }

    /// Gives what `path` answers to `consume`, which reads it to its end. It breaks off when nothing
    /// comes for ten minutes.
    ///
    /// # Errors
    ///
    /// What `consume` fails with; the server refuses, or does not answer.
    pub(crate) fn download<T, C>(&self, path: &str, consume: C) -> Result<T, Failure>
    where
        T: Send + 'static,
        C: FnOnce(&mut dyn Read, Option<String>) -> Result<T, Failure> + Send + 'static,
    {
        self.download_within(path, consume, PATIENCE)
    }

    fn download_within<T, C>(
        &self,
        path: &str,
        consume: C,
        patience: Duration,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        C: FnOnce(&mut dyn Read, Option<String>) -> Result<T, Failure> + Send + 'static,
    {
        let clock = SystemClock::new();
        let silence = format!("nothing came for {} seconds", patience.as_secs());
        let runtime = runtime()?;
        runtime.block_on(async {
            let request = self.request("GET", path, Body::empty())?;
            let (mut sender, _connection) = self.connect().await?;
            let response = tokio::select! {
                response = sender.send_request(request) => response,
                () = clock.sleep(patience) => return Err(broken_off(path, &silence)),
            };
            let response = response.map_err(|error| broken_off(path, &error.to_string()))?;
            let (head, body) = response.into_parts();
            let mut body = Body::new(body);
            if !head.status.is_success() {
                let answer = tokio::select! {
                    answer = axum::body::to_bytes(body, ANSWER_BYTES_MAX) => answer,
                    () = clock.sleep(patience) => return Err(broken_off(path, &silence)),
                };
                let answer = answer.map_err(|error| broken_off(path, &error.to_string()))?;
                self.outcome(path, head.status.as_u16(), &answer)?;
                body = Body::empty();
            }
            let commit = head.headers.get("holdfast-commit");
            let commit = commit.and_then(|value| Some(value.to_str().ok()?.to_owned()));
            let (to, from) = mpsc::channel(PIECES_MAX);
            let consuming =
                tokio::task::spawn_blocking(move || consume(&mut ChannelReader::new(from), commit));
            let mut stream = body.into_data_stream();
            loop {
                let part = tokio::select! {
                    part = stream.next() => part.transpose().map_err(|error| error.to_string()),
                    () = clock.sleep(patience) => Err(silence.clone()),
                };
                let piece = match part {
                    Ok(Some(bytes)) => Piece::Bytes(bytes),
                    Ok(None) => Piece::End,
                    Err(error) => Piece::Failed(Error::other(format!(
                        "the server broke off ({error}); its log may say why"
                    ))),
                };
                let is_last = !matches!(piece, Piece::Bytes(_));
                if to.send(piece).await.is_err() || is_last {
                    break;
                }
            }
            drop(to);
            let consumed = consuming.await;
            consumed.map_err(|error| Failure::error(format_args!("read {path}: {error}")))?
        })
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        body: Body,
    ) -> Result<hyper::Request<Body>, Failure> {
        let wrong = |error: hyper::http::Error| {
            Failure::new(FailureKind::Usage, format_args!("call {path}: {error}"))
        };
        let (host, base) = self.place();
        hyper::Request::builder()
            .method(method)
            .uri(format!("{base}{path}"))
            .header("host", host)
            .header("authorization", self.authorization())
            .header("content-type", "application/x-tar")
            .body(body)
            .map_err(wrong)
    }

    /// Connects. The connection ends when the second part of what is given is dropped.
    async fn connect(&self) -> Result<(http1::SendRequest<Body>, oneshot::Sender<()>), Failure> {
        let (authority, _) = self.place();
        let failed = |error: &dyn std::fmt::Display| {
            let message = format!("call http://{authority}: {error}; is the server running?");
            Failure::new(FailureKind::Retry, message)
        };
        let with_port = match authority.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => authority.to_owned(),
            _ => format!("{authority}:80"),
        };
        let addresses = with_port
            .to_socket_addrs()
            .map_err(|error| failed(&error))?;
        let addresses: Vec<SocketAddr> = addresses.collect();
        let stream = connect_to_any(&addresses)
            .and_then(|stream| stream.set_nonblocking(true).map(|()| stream))
            .and_then(TcpStream::from_std)
            .map_err(|error| failed(&error))?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| failed(&error))?;
        let (held, let_go) = oneshot::channel();
        Tasks::new().spawn(async move {
            tokio::select! {
                ended = connection => drop(ended),
                // Never told: dropped.
                gone = let_go => drop(gone),
            }
        });
        Ok((sender, held))
    }
}

/// Connects to the first address of a host where somebody listens.
fn connect_to_any(addresses: &[SocketAddr]) -> std::io::Result<StdStream> {
    let mut failed = Error::other("no such host");
    let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    for address in addresses {
        match StdStream::connect_timeout(address, CONNECT_PATIENCE / count) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Runs a producer, and tells how it ended.
fn produced(
    to: mpsc::Sender<Result<Bytes, Error>>,
    produce: impl FnOnce(&mut dyn Write) -> Result<(), Failure>,
) -> Produced {
    let mut writer = ChannelWriter {
        to,
        bytes: Vec::new(),
    };
    let produced = produce(&mut writer);
    let flushed = writer.flush();
    match produced {
        // Whatever a writer says whose reader is gone.
        Err(_) if writer.to.is_closed() => Produced::Unwanted,
        Err(failure) => {
            // The stream must not look whole.
            let broken = Error::other(failure.message.clone());
            drop(writer.to.blocking_send(Err(broken)));
            Produced::Failed(failure)
        }
        Ok(()) if flushed.is_err() => Produced::Unwanted,
        Ok(()) => Produced::Whole,
    }
}

/// Ends when nothing has moved for `patience`.
async fn stalled(moved: &AtomicU64, patience: Duration, clock: &dyn Clock) {
    let mut seen = moved.load(Ordering::Relaxed);
    loop {
        clock.sleep(patience).await;
        let now = moved.load(Ordering::Relaxed);
        if now == seen {
            return;
        }
        seen = now;
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Failure::io("start the runtime", &error))
}

fn broken_off(path: &str, error: &str) -> Failure {
    let message = format!("call {path}: {error}; is the server running?");
    Failure::new(FailureKind::Retry, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::path::Path;
    use std::thread::JoinHandle;

    const SHORT: Duration = Duration::from_millis(200);

    fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let thread = std::thread::Builder::new().name("peer".into());
        thread.spawn(work).unwrap()
    }

    fn client(listener: &TcpListener, base: &str) -> Client {
        let api = format!("http://{}{base}", listener.local_addr().unwrap());
        Client::find(Some(&api), Some("token"), Path::new("/none")).unwrap()
    }

    /// Takes one connection, reads the head of its request, and gives that and the connection.
    fn takes_one(listener: TcpListener) -> JoinHandle<(String, StdStream)> {
        spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = lines.next().unwrap().unwrap();
            while lines.next().unwrap().unwrap() != "" {}
            (first, stream)
        })
    }

    fn listener() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").unwrap()
    }

    fn read_all(from: &mut dyn Read, _: Option<String>) -> Result<String, Failure> {
        let mut text = String::new();
        let read = from.read_to_string(&mut text);
        read.map_err(|error| Failure::new(FailureKind::Retry, error))?;
        Ok(text)
    }

    #[test]
    fn a_path_before_the_apis_is_kept() {
        let listener = listener();
        let client = client(&listener, "/behind/a/proxy");
        let server = spawn(move || {
            let (first, mut stream) = takes_one(listener).join().unwrap();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
                .unwrap();
            first
        });
        assert_eq!(client.download("/v1/x?y=z", read_all).unwrap(), "hi");
        assert_eq!(
            server.join().unwrap(),
            "GET /behind/a/proxy/v1/x?y=z HTTP/1.1"
        );
    }

    #[test]
    fn each_address_is_tried() {
        let gone = listener().local_addr().unwrap();
        let listener = listener();
        let there = listener.local_addr().unwrap();
        let stream = connect_to_any(&[gone, there]).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), there);
        assert!(connect_to_any(&[gone, gone]).is_err());
        let error = connect_to_any(&[]).unwrap_err().to_string();
        assert!(error.contains("no such host"), "{error}");
    }

    #[test]
    fn a_server_that_says_nothing_is_given_up() {
        let silent = listener();
        let down = client(&silent, "");
        let server = takes_one(silent);
        let failure = down.download_within("/v1/x", read_all, SHORT).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Retry);
        assert!(failure.message.contains("nothing came"), "{failure}");
        drop(server.join().unwrap());

        for status in ["200 OK", "404 Not Found"] {
            let half = listener();
            let down = client(&half, "");
            let server = spawn(move || {
                let (_, mut stream) = takes_one(half).join().unwrap();
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 9\r\n\r\nhalf");
                stream.write_all(answer.as_bytes()).unwrap();
                stream
            });
            let failure = down.download_within("/v1/x", read_all, SHORT).unwrap_err();
            assert!(failure.message.contains("nothing came"), "{failure}");
            drop(server.join().unwrap());
        }
    }

    #[test]
    fn a_server_that_takes_nothing_is_given_up() {
        let silent = listener();
        let up = client(&silent, "");
        let server = takes_one(silent);
        let endless = |to: &mut dyn Write| {
            while to.write_all(&[7; PIECE_BYTES]).is_ok() {}
            Err(Failure::error("nobody takes it"))
        };
        let failure = up
            .upload_within::<String, _>("/v1/x", endless, SHORT)
            .unwrap_err();
        assert_eq!(failure.kind, FailureKind::Retry);
        assert!(failure.message.contains("nothing was taken"), "{failure}");
        drop(server.join().unwrap());
    }
}
