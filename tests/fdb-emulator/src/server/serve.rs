//! The cluster behind a socket: a thread that reads and one that writes for each connection, and
//! one for what happens later. All ends with the process.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use base::{Clock, SystemClock, Timestamp};
use parking_lot::{Condvar, Mutex};

use super::cluster::{Action, Cluster};
use super::faults::Faults;
use crate::wire::{Answer, Call, read_frame};

/// Answers that wait for a client to read them; one that leaves more unread is cut off.
const ANSWERS_MAX: usize = 100_000;

/// The machine's clock, which a test may put forward.
#[derive(Debug, Default)]
pub struct MovableClock {
    clock: SystemClock,
    ahead_ms: AtomicU64,
}

impl MovableClock {
    /// Lets time pass at once.
    pub fn advance(&self, duration: Duration) {
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.ahead_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for MovableClock {
    fn wall(&self) -> Timestamp {
        self.clock.wall()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic() + Duration::from_millis(self.ahead_ms.load(Ordering::SeqCst))
    }

    fn sleep(&self, duration: Duration) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.clock.sleep(duration)
    }
}

/// A server of one cluster.
#[derive(Clone, Debug)]
pub struct Server {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Arc<MovableClock>,
    /// When things happen; not moved by tests.
    timing: SystemClock,
    state: Mutex<State>,
    later: Mutex<BTreeMap<(Duration, u64), Action>>,
    earlier: Condvar,
}

#[derive(Debug)]
struct State {
    cluster: Cluster,
    outgoing: HashMap<u64, (SyncSender<Answer>, TcpStream)>,
    connections: u64,
    timers: u64,
}

impl Server {
    /// Starts to serve on `listener`.
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub fn start(listener: TcpListener, faults: Faults) -> io::Result<(Self, SocketAddr)> {
        let clock = Arc::new(MovableClock::default());
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            clock: clock.clone(),
            timing: SystemClock::new(),
            state: Mutex::new(State {
                cluster: Cluster::new(clock, faults),
                outgoing: HashMap::new(),
                connections: 0,
                timers: 0,
            }),
            later: Mutex::new(BTreeMap::new()),
            earlier: Condvar::new(),
        });
        let server = Self { shared };
        let timer = server.clone();
        spawn("later", move || timer.shared.run_later())?;
        let accepting = server.clone();
        spawn("accept", move || {
            for stream in listener.incoming().flatten() {
                // A client that is gone already, or no thread for it: it finds out.
                let _gone = accepting.shared.accept(stream);
            }
        })?;
        Ok((server, address))
    }

    /// Takes other faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.shared.state.lock().cluster.set_faults(faults);
    }

    /// How often each fault has happened since they were set, how many transactions there are, and what was
    /// asked since the start: reads, read versions, commits that write.
    #[must_use]
    pub fn report(&self) -> String {
        let state = self.shared.state.lock();
        let transactions = state.cluster.transactions();
        let asked = state.cluster.asked();
        format!(
            "{}transactions {transactions}\nreads {}\nversions {}\ncommits {}\n",
            state.cluster.faults(),
            asked.reads,
            asked.versions,
            asked.commits
        )
    }

    /// Makes read versions older.
    pub fn advance(&self, duration: Duration) {
        self.shared.clock.advance(duration);
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let (sender, answers) = sync_channel(ANSWERS_MAX);
        let writing = stream.try_clone()?;
        let reading = stream.try_clone()?;
        let connection = {
            let mut state = self.state.lock();
            state.connections += 1;
            let connection = state.connections;
            state.cluster.connected(connection);
            state.outgoing.insert(connection, (sender, stream));
            connection
        };
        let shared = Arc::clone(self);
        spawn("write", move || write_answers(&writing, &answers))?;
        spawn("read", move || {
            let mut reading = BufReader::new(reading);
            while let Ok(Some(body)) = read_frame(&mut reading) {
                let Some(call) = Call::decode(body) else {
                    break;
                };
                let mut state = shared.state.lock();
                let actions = state.cluster.call(connection, call);
                shared.take(&mut state, actions);
            }
            shared.close(&mut shared.state.lock(), connection);
        })
    }

    fn close(&self, state: &mut State, connection: u64) {
        state.cluster.disconnected(connection);
        if let Some((_, stream)) = state.outgoing.remove(&connection) {
            // It may be closed already.
            let _closed = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn take(&self, state: &mut State, actions: Vec<Action>) {
        for action in actions {
            let delay = match &action {
                Action::Send { delay, .. } | Action::Resume { delay, .. } => *delay,
            };
            match action {
                Action::Send {
                    connection, answer, ..
                } if delay.is_zero() => self.send(state, connection, answer),
                later => {
                    state.timers += 1;
                    let due = self.timing.monotonic() + delay;
                    self.later.lock().insert((due, state.timers), later);
                    self.earlier.notify_one();
                }
            }
        }
    }

    fn send(&self, state: &mut State, connection: u64, answer: Answer) {
        let full = match state.outgoing.get(&connection) {
            Some((sender, _)) => sender.try_send(answer).is_err(),
            None => false,
        };
        if full {
            self.close(state, connection);
        }
    }

    /// Does what was put off, when its time comes.
    fn run_later(&self) {
        loop {
            let action = self.next_due();
            let mut state = self.state.lock();
            match action {
                Action::Send {
                    connection, answer, ..
                } => self.send(&mut state, connection, answer),
                Action::Resume { token, .. } => {
                    let actions = state.cluster.resume(token);
                    self.take(&mut state, actions);
                }
            }
        }
    }

    fn next_due(&self) -> Action {
        let mut later = self.later.lock();
        loop {
            let now = self.timing.monotonic();
            let wait = match later.first_entry() {
                Some(first) if first.key().0 <= now => return first.remove(),
                Some(first) => first.key().0.saturating_sub(now),
                None => Duration::from_secs(3600),
            };
            self.earlier.wait_for(&mut later, wait);
        }
    }
}

fn write_answers(mut stream: &TcpStream, answers: &Receiver<Answer>) {
    while let Ok(answer) = answers.recv() {
        let mut bytes = answer.frame();
        for answer in answers.try_iter().take(1000) {
            bytes.extend(answer.frame());
        }
        if stream.write_all(&bytes).is_err() {
            return;
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // Ends with its connection or with the process.
    std::thread::Builder::new()
        .name(format!("fdb-emulator-{name}"))
        .spawn(work)
        .map(drop)
}
