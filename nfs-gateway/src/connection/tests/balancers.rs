//! Connections that balancers make.

use super::*;
use crate::wire::proxy::{HEADER_BYTES_MAX, SIGNATURE};

/// What is taken for a balancer: the tests themselves.
const HERE: &[&str] = &["192.0.2.0/24", "127.0.0.1"];

/// For a client at 203.0.113.9, port 1023.
const FOR_CLIENT: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x09\x7f\0\0\x01\x03\xff\x08\x01";

/// For the balancer itself.
const FOR_ITSELF: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

fn client() -> SocketAddr {
    "203.0.113.9:1023".parse().unwrap()
}

/// Sends bytes and waits for the end; whether it came without a reply.
fn is_refused(server: &Fixture, bytes: &[u8]) -> bool {
    let mut stream = server.connect();
    stream.write_all(bytes).unwrap();
    reply(&mut stream).is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_is_the_one_that_the_balancer_says() {
    let server = serve_behind(HERE, ServerLimits::default()).await;
    let mut stream = server.connect();
    let bytes = [FOR_CLIENT, &call(1, ECHO), &call(2, HOLD)].concat();
    // However it is cut.
    for byte in bytes {
        stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(reply(&mut stream), Some((1, 24)));
    server
        .await_that("the call is held", |server| {
            server.service.held.lock().len() == 1
        })
        .await;
    {
        let held = server.service.held.lock();
        let connection = held[0].1.connection();
        assert_eq!(connection.peer(), client());
        let balancer = connection.balancer().unwrap();
        assert_eq!(balancer, stream.local_addr().unwrap());
    }
    server.answer_all();
    assert_eq!(reply(&mut stream), Some((2, 24)));
    assert_eq!(server.counters.proxied.value(), 1);
    assert_eq!(server.counters.ended_proxy.value(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_balancer_that_does_not_say_so_is_not_served() {
    let server = serve_behind(HERE, ServerLimits::default()).await;
    let text = b"PROXY TCP4 203.0.113.9 127.0.0.1 1023 2049\r\n";
    let mut long = FOR_CLIENT.to_vec();
    long[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
    long.extend(vec![0; HEADER_BYTES_MAX]);
    let datagram = {
        let mut bytes = FOR_CLIENT.to_vec();
        bytes[13] = 0x12;
        bytes
    };
    let echo = call(1, ECHO);
    let wrong = [
        echo.to_vec(),
        [text.as_slice(), &echo].concat(),
        [&long, echo.as_slice()].concat(),
        [&datagram, echo.as_slice()].concat(),
        [SIGNATURE.as_slice(), &echo, &echo].concat(),
        // Two headers are one too many: nobody stands behind the second.
        [FOR_CLIENT, FOR_CLIENT, &echo].concat(),
    ];
    for (at, bytes) in wrong.iter().enumerate() {
        assert!(is_refused(&server, bytes), "{at}");
    }
    assert_eq!(server.taken(), 0);
    server
        .await_that("all are counted", |server| {
            let counters = &server.counters;
            // The last came as a record that is none.
            (counters.ended_proxy.value(), counters.ended_garbage.value()) == (5, 1)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_does_not_come_is_not_waited_for() {
    let limits = ServerLimits {
        proxy_deadline: Duration::from_millis(50),
        ..ServerLimits::default()
    };
    let server = serve_behind(HERE, limits).await;
    for begun in [0, 1, 15, 27] {
        assert!(is_refused(&server, &FOR_CLIENT[..begun]), "{begun}");
    }
    let ended = |count| move |server: &Fixture| server.counters.ended_proxy.value() == count;
    server.await_that("all are counted", ended(4)).await;
    // One that ends without a byte, as some balancers look, is nothing to tell.
    drop(server.connect());
    server
        .await_that("it has ended", |server| server.counters.open() == 0)
        .await;
    let half = server.connect();
    (&half).write_all(&FOR_CLIENT[..20]).unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    server.await_that("what is cut off is", ended(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_balancers_own_connection_may_ask_whether_somebody_answers() {
    let server = serve_behind(HERE, ServerLimits::default()).await;
    let mut check = server.connect();
    check.write_all(FOR_ITSELF).unwrap();
    for xid in 0..3 {
        check.write_all(&call(xid, ECHO)).unwrap();
        assert_eq!(reply(&mut check), Some((xid, 24)));
    }
    check.write_all(&call(3, BIG)).unwrap();
    assert_eq!(reply(&mut check), None);
    assert_eq!(server.taken(), 3);
    let ended = |server: &Fixture| server.counters.ended_proxy.value() == 1;
    server.await_that("it is counted", ended).await;
    assert_eq!(server.counters.proxied.value(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn from_others_a_header_is_refused() {
    let server = serve_behind(&["192.0.2.0/24"], ServerLimits::default()).await;
    let mut plain = server.connect();
    plain.write_all(&call(1, ECHO)).unwrap();
    assert_eq!(reply(&mut plain), Some((1, 24)));
    for header in [FOR_CLIENT, FOR_ITSELF, b"PROXY TCP4 203.0.113.9 "] {
        assert!(is_refused(&server, &[header, &call(2, ECHO)].concat()));
    }
    let ended = |server: &Fixture| server.counters.ended_proxy.value() == 3;
    server.await_that("all are counted", ended).await;
    // Behind calls it is garbage like any other.
    plain.write_all(FOR_CLIENT).unwrap();
    assert_eq!(reply(&mut plain), None);
    assert_eq!(server.counters.ended_garbage.value(), 1);
    assert_eq!(server.taken(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_waits_for_no_header() {
    let server = serve_behind(HERE, ServerLimits::default()).await;
    let stream = server.connect();
    server
        .await_that("it is there", |server| server.counters.open() == 1)
        .await;
    server.tasks.begin_shutdown();
    drop(stream);
    server.tasks.join().await;
    assert_eq!(server.counters.ended_proxy.value(), 0);
}
