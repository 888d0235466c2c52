//! What is counted and told of calls.

use std::fmt;

use base::{ManualClock, Timestamp};
use tracing::field::{Field, Visit};
use tracing::span;

use super::*;

/// A whole record: READ of NFS, as far as that is looked at here. The service echoes it.
fn read_call(xid: u32) -> Vec<u8> {
    let words = [0x8000_0018, xid, ECHO, 100_003, 3, 6];
    let mut bytes = words.map(u32::to_be_bytes).concat();
    bytes.splice(12..12, 2_u32.to_be_bytes());
    bytes
}

/// What was counted of a procedure, without what did not come up.
fn counted(server: &Fixture, name: &str) -> (u64, Vec<(&'static str, u64)>) {
    let all = server.counters.calls.read();
    let counts = all.into_iter().find(|it| it.name == name).unwrap();
    let some = counts.outcomes.into_iter().filter(|(_, count)| *count > 0);
    (counts.took.count(), some.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_is_counted_once_however_it_ends() {
    let server = serve(ServerLimits::default()).await;
    let mut stream = server.connect();
    for xid in 0..3 {
        stream.write_all(&read_call(xid)).unwrap();
        assert_eq!(reply(&mut stream), Some((xid, 24)));
    }
    assert_eq!(counted(&server, "read"), (3, vec![("ok", 3)]));
    assert_eq!(counted(&server, "other"), (0, vec![]));
    for xid in 0..3 {
        stream.write_all(&call(xid, HOLD)).unwrap();
    }
    let is_held = |server: &Fixture| server.service.held.lock().len() == 3;
    server.await_that("calls are held", is_held).await;
    assert_eq!(counted(&server, "other"), (0, vec![]));
    let mut held = std::mem::take(&mut *server.service.held.lock()).into_iter();
    let (xid, guard) = held.next().unwrap();
    guard.send(rpc::refused(xid, rpc::Refusal::SystemError));
    drop(held.next());
    let (_, guard) = held.next().unwrap();
    guard.close();
    let ended = vec![("system_err", 1), ("hung_up", 2)];
    assert_eq!(counted(&server, "other"), (3, ended));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_panics_has_hung_up() {
    let server = serve(ServerLimits::default()).await;
    let mut stream = server.connect();
    stream.write_all(&call(1, PANIC)).unwrap();
    assert_eq!(reply(&mut stream), None);
    assert_eq!(counted(&server, "other"), (1, vec![("hung_up", 1)]));
}

/// Keeps what is told of calls.
#[derive(Default)]
struct Told {
    lines: Mutex<Vec<String>>,
}

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!(" {field}={value:?}"));
    }
}

/// Hears what is told at `info`.
struct Listener(Arc<Told>);

impl tracing::Subscriber for Listener {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "nfs_gateway::call" && *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = event.metadata().level().to_string();
        event.record(&mut Line(&mut line));
        self.0.lines.lock().push(line);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_calls_are_told_a_few_at_a_time() {
    let clock = Arc::new(ManualClock::new(Timestamp::new(1, 0)));
    let server = serve_at(&[], ServerLimits::default(), clock.clone()).await;
    let told = Arc::new(Told::default());
    let mut stream = server.connect();
    let peer = stream.local_addr().unwrap();
    let listener = tracing::Dispatch::new(Listener(Arc::clone(&told)));
    let mut answer = async |xids: std::ops::Range<u32>, took: Duration| {
        let calls = xids.len();
        for xid in xids {
            stream.write_all(&call(xid, HOLD)).unwrap();
        }
        let is_held = move |server: &Fixture| server.service.held.lock().len() == calls;
        server.await_that("calls are held", is_held).await;
        clock.advance(took);
        // The events come from this thread.
        tracing::dispatcher::with_default(&listener, || server.answer_all());
        std::mem::take(&mut *told.lines.lock())
    };
    let short = Duration::from_millis(999);
    assert_eq!(answer(0..2, short).await, [""; 0]);
    let told = answer(2..3, Duration::from_secs(1)).await;
    let line = format!(
        "INFO message=slow call procedure=\"other\" xid=2 peer={peer} outcome=\"ok\" micros=1000000 \
         passed_on=false untold=0"
    );
    assert_eq!(told, [line]);
    assert_eq!(answer(3..13, Duration::from_secs(1)).await.len(), 4);
    let told = answer(13..14, Duration::from_secs(10)).await;
    assert!(told[0].ends_with(" untold=6"), "{told:?}");
    assert_eq!(counted(&server, "other"), (14, vec![("ok", 14)]));
}
