//! The connection of a database to its cluster. It is made anew when it is lost; what was on its
//! way then fails as it does with a real cluster.

use std::collections::HashMap;
use std::io::{self, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::network::network;
use crate::codes::{self, Code};
use crate::wire::{Answer, Call, Reply, Request, read_frame};

/// Most bytes that wait to be sent.
const OUTBOX_BYTES_MAX: usize = 64 << 20;

/// Between two attempts to connect.
const RECONNECT: Duration = Duration::from_millis(50);

/// How long an attempt to connect may take.
const CONNECT: Duration = Duration::from_secs(1);

type Finish = Box<dyn FnOnce(Result<Reply, Code>) + Send>;

/// A connection that comes and goes.
pub(super) struct Link {
    address: SocketAddr,
    outbox: Mutex<Outbox>,
    more: Condvar,
    pending: Mutex<HashMap<u64, Pending>>,
    names: AtomicU64,
}

#[derive(Default)]
struct Outbox {
    bytes: Vec<u8>,
    /// How often the connection was lost.
    generation: u64,
    stream: Option<TcpStream>,
    closed: bool,
}

/// A call that waits for its answer.
struct Pending {
    commit: bool,
    finish: Finish,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Starts to connect, and goes on until it is closed.
    pub(super) fn open(address: SocketAddr) -> io::Result<Arc<Self>> {
        let link = Arc::new(Self {
            address,
            outbox: Mutex::default(),
            more: Condvar::new(),
            pending: Mutex::default(),
            names: AtomicU64::new(1),
        });
        let running = Arc::clone(&link);
        spawn("fdb-link", move || running.run())?;
        Ok(link)
    }

    /// Ends the connection; its threads end by themselves.
    pub(super) fn close(&self) {
        let mut outbox = self.outbox.lock();
        outbox.closed = true;
        if let Some(stream) = outbox.stream.take() {
            // It may be closed already.
            let _closed = stream.shutdown(Shutdown::Both);
        }
        self.more.notify_all();
    }

    /// Where the cluster is.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A number for a transaction or a call.
    pub(super) fn name(&self) -> u64 {
        self.names.fetch_add(1, Ordering::Relaxed)
    }

    /// How often the connection was lost. What the cluster knew of a transaction is lost with it.
    pub(super) fn generation(&self) -> u64 {
        self.outbox.lock().generation
    }

    /// Sends a call without an answer.
    pub(super) fn tell(
        &self,
        generation: u64,
        transaction: u64,
        request: Request,
    ) -> Result<(), Code> {
        self.send(
            generation,
            &Call {
                transaction,
                id: 0,
                request,
            },
        )
    }

    /// Sends a call. `finish` runs on the network thread with its answer, unless this fails.
    pub(super) fn ask(
        &self,
        generation: u64,
        transaction: u64,
        id: u64,
        request: Request,
        finish: Finish,
    ) -> Result<(), Code> {
        let commit = request == Request::Commit;
        self.pending.lock().insert(id, Pending { commit, finish });
        let sent = self.send(
            generation,
            &Call {
                transaction,
                id,
                request,
            },
        );
        if sent.is_err() {
            self.pending.lock().remove(&id);
        }
        sent
    }

    /// Forgets a call; its answer will be ignored.
    pub(super) fn forget(&self, id: u64) {
        self.pending.lock().remove(&id);
    }

    fn send(&self, generation: u64, call: &Call) -> Result<(), Code> {
        let frame = call.frame();
        let mut outbox = self.outbox.lock();
        if outbox.generation != generation {
            return Err(codes::TRANSACTION_TOO_OLD);
        }
        if outbox.bytes.len() + frame.len() > OUTBOX_BYTES_MAX {
            return Err(codes::COMMIT_PROXY_MEMORY_LIMIT);
        }
        let idle = outbox.bytes.is_empty();
        outbox.bytes.extend(frame);
        if idle {
            self.more.notify_all();
        }
        Ok(())
    }

    fn run(self: &Arc<Self>) {
        loop {
            match TcpStream::connect_timeout(&self.address, CONNECT) {
                Ok(stream) => {
                    // Not connected means that all that was sent is lost, as below.
                    let _lost = self.serve(stream);
                    self.lost();
                }
                Err(_) => {
                    let mut outbox = self.outbox.lock();
                    if !outbox.closed {
                        self.more.wait_for(&mut outbox, RECONNECT);
                    }
                }
            }
            if self.outbox.lock().closed {
                self.lost();
                return;
            }
        }
    }

    /// Sends what is to be sent until the connection is lost.
    fn serve(self: &Arc<Self>, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let reading = stream.try_clone()?;
        {
            let mut outbox = self.outbox.lock();
            if outbox.closed {
                return Ok(());
            }
            outbox.stream = Some(stream.try_clone()?);
        }
        let link = Arc::clone(self);
        let reader = std::thread::Builder::new()
            .name("fdb-read".to_owned())
            .spawn(move || link.read(reading))?;
        let result = loop {
            let bytes = {
                let mut outbox = self.outbox.lock();
                while outbox.bytes.is_empty() && outbox.stream.is_some() {
                    self.more.wait(&mut outbox);
                }
                if outbox.stream.is_none() {
                    break Ok(());
                }
                std::mem::take(&mut outbox.bytes)
            };
            if let Err(error) = stream.write_all(&bytes) {
                break Err(error);
            }
        };
        // It may be closed already; then the reader has ended too.
        let _closed = stream.shutdown(Shutdown::Both);
        let _ended = reader.join();
        result
    }

    fn read(self: &Arc<Self>, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Ok(Some(body)) = read_frame(&mut stream) {
            let Some(answer) = Answer::decode(body) else {
                break;
            };
            let link = Arc::clone(self);
            network().post(move || link.finish(answer));
        }
        self.outbox.lock().stream = None;
        self.more.notify_all();
    }

    fn finish(&self, answer: Answer) {
        let pending = self.pending.lock().remove(&answer.id);
        if let Some(pending) = pending {
            (pending.finish)(answer.outcome);
        }
    }

    /// Fails what was on its way.
    fn lost(&self) {
        {
            let mut outbox = self.outbox.lock();
            outbox.generation += 1;
            outbox.bytes.clear();
            outbox.stream = None;
        }
        let pending = std::mem::take(&mut *self.pending.lock());
        network().post(move || {
            for (_, call) in pending {
                let code = if call.commit {
                    codes::COMMIT_UNKNOWN_RESULT
                } else {
                    codes::TRANSACTION_TOO_OLD
                };
                (call.finish)(Err(code));
            }
        });
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // Ends when the link is closed.
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
}
