//! Streams between tasks and threads that may block, and calls of the API that carry them.

use std::io::{Error, Read, Write};
use std::net::{TcpStream as StdStream, ToSocketAddrs};

use axum::body::Body;
use base::Tasks;
use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use futures_util::stream::unfold;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::client::{CONNECT_PATIENCE, Client};
use crate::failure::{Failure, FailureKind};

/// Bytes that a thread collects before it sends them.
const PIECE_BYTES: usize = 256 * 1024;

/// Pieces on their way.
const PIECES_MAX: usize = 8;

/// Longest answer to an upload, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

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
    /// Sends what `produce` writes to `path`. If it fails, what was sent is no whole stream.
    ///
    /// # Errors
    ///
    /// What `produce` fails with; the server refuses, or does not answer.
    pub(crate) fn upload<A, P>(&self, path: &str, produce: P) -> Result<A, Failure>
    where
        A: DeserializeOwned,
        P: FnOnce(&mut dyn Write) -> Result<(), Failure> + Send + 'static,
    {
        let runtime = runtime()?;
        let (status, answer) = runtime.block_on(async {
            let (to, from) = mpsc::channel(PIECES_MAX);
            let body = unfold(from, |mut from| async {
                from.recv().await.map(|part| (part, from))
            });
            let request = self.request("POST", path, Body::from_stream(body))?;
            let mut sender = self.connect().await?;
            let producing = tokio::task::spawn_blocking(move || {
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
            });
            let answered = async {
                let response = sender.send_request(request).await?;
                let (head, body) = response.into_parts();
                Ok::<_, hyper::Error>((head.status.as_u16(), body))
            };
            let answered = answered.await;
            let answered = match answered {
                Ok((status, body)) => {
                    let bytes = axum::body::to_bytes(Body::new(body), ANSWER_BYTES_MAX).await;
                    bytes
                        .map(|bytes| (status, bytes))
                        .map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            // The connection goes, and with it what is still to be sent.
            drop(sender);
            match (producing.await, answered) {
                (Ok(Produced::Failed(failure)), _) => Err(failure),
                (_, Ok(answered)) => Ok(answered),
                (_, Err(error)) => Err(broken_off(path, &error)),
            }
        })?;
        self.outcome(path, status, &answer)?;
        self.answer(&answer)
    }

    /// Gives what `path` answers to `consume`, which reads it to its end.
    ///
    /// # Errors
    ///
    /// What `consume` fails with; the server refuses, or does not answer.
    pub(crate) fn download<T, C>(&self, path: &str, consume: C) -> Result<T, Failure>
    where
        T: Send + 'static,
        C: FnOnce(&mut dyn Read, Option<String>) -> Result<T, Failure> + Send + 'static,
    {
        let runtime = runtime()?;
        runtime.block_on(async {
            let request = self.request("GET", path, Body::empty())?;
            let mut sender = self.connect().await?;
            let response = sender.send_request(request).await;
            let response = response.map_err(|error| broken_off(path, &error.to_string()))?;
            let (head, body) = response.into_parts();
            let mut body = Body::new(body);
            if !head.status.is_success() {
                let answer = axum::body::to_bytes(body, ANSWER_BYTES_MAX).await;
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
                let piece = match stream.next().await {
                    Some(Ok(bytes)) => Piece::Bytes(bytes),
                    Some(Err(error)) => Piece::Failed(Error::other(format!(
                        "the server broke off ({error}); its log may say why"
                    ))),
                    None => Piece::End,
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
        let host = self.authority();
        hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("host", host)
            .header("authorization", self.authorization())
            .header("content-type", "application/x-tar")
            .body(body)
            .map_err(wrong)
    }

    async fn connect(&self) -> Result<http1::SendRequest<Body>, Failure> {
        let authority = self.authority();
        let failed = |error: &dyn std::fmt::Display| {
            let message = format!("call http://{authority}: {error}; is the server running?");
            Failure::new(FailureKind::Retry, message)
        };
        let with_port = match authority.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => authority.to_owned(),
            _ => format!("{authority}:80"),
        };
        let mut addresses = with_port
            .to_socket_addrs()
            .map_err(|error| failed(&error))?;
        let address = addresses.next().ok_or_else(|| failed(&"no such host"))?;
        let connected = StdStream::connect_timeout(&address, CONNECT_PATIENCE);
        let stream = connected
            .and_then(|stream| stream.set_nonblocking(true).map(|()| stream))
            .and_then(TcpStream::from_std)
            .map_err(|error| failed(&error))?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| failed(&error))?;
        // It ends with the runtime, if not before.
        Tasks::new().spawn(async move {
            drop(connection.await);
        });
        Ok(sender)
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
