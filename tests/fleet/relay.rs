//! The network in front of a gateway's listener for other gateways, which can be cut.

use std::net::SocketAddr;
use std::time::Duration;

use base::{Clock, SystemClock, Tasks};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Most bytes on their way in one direction.
const BYTES_MAX: usize = 256 * 1024;

/// Pause between tries to have the address again.
const PAUSE: Duration = Duration::from_millis(100);

/// What the network does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// It carries everything.
    Through,
    /// Nobody can connect, and connections are reset.
    Resets,
    /// Nobody can connect, and what is sent over connections arrives when the network is whole again.
    Stalls,
    /// It leads to another gateway.
    Astray(SocketAddr),
    /// The gateway is gone.
    Ended,
}

/// One gateway's network.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    flow: watch::Sender<Flow>,
}

impl Relay {
    /// Begins to carry what comes to `target`.
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((target.ip(), 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (flow, seen) = watch::channel(Flow::Through);
        Tasks::new().spawn(carry(listener, target, seen));
        Self { address, flow }
    }

    pub(crate) fn set(&self, flow: Flow) {
        self.flow.send_replace(flow);
    }
}

async fn carry(listener: TcpListener, target: SocketAddr, mut flow: watch::Receiver<Flow>) {
    let address = listener.local_addr().unwrap();
    let mut listener = Some(listener);
    loop {
        let now = *flow.borrow_and_update();
        match now {
            Flow::Ended => return,
            Flow::Resets | Flow::Stalls => {
                listener = None;
                if flow.changed().await.is_err() {
                    return;
                }
            }
            Flow::Through | Flow::Astray(_) => {
                let target = match now {
                    Flow::Astray(other) => other,
                    _ => target,
                };
                let listener = match &listener {
                    Some(listener) => listener,
                    None => listener.insert(bind_again(address).await),
                };
                tokio::select! {
                    changed = flow.changed() => if changed.is_err() { return },
                    accepted = listener.accept() => if let Ok((near, _)) = accepted {
                        Tasks::new().spawn(connect(near, target, flow.clone()));
                    }
                }
            }
        }
    }
}

async fn bind_again(address: SocketAddr) -> TcpListener {
    let clock = SystemClock::new();
    loop {
        if let Ok(listener) = TcpListener::bind(address).await {
            return listener;
        }
        clock.sleep(PAUSE).await;
    }
}

async fn connect(near: TcpStream, target: SocketAddr, mut flow: watch::Receiver<Flow>) {
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let (mut there, mut back) = (Vec::new(), Vec::new());
    loop {
        let now = *flow.borrow_and_update();
        match now {
            Flow::Ended | Flow::Resets => return,
            Flow::Stalls => {
                if flow.changed().await.is_err() {
                    return;
                }
            }
            Flow::Through | Flow::Astray(_) => {
                tokio::select! {
                    biased;
                    changed = flow.changed() => if changed.is_err() { return },
                    () = something(&near, &far, &there, &back) => {
                        let forth = step(&near, &far, &mut there);
                        let back = step(&far, &near, &mut back);
                        if !(forth && back) {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// Completes when bytes can be moved.
async fn something(near: &TcpStream, far: &TcpStream, there: &[u8], back: &[u8]) {
    // A socket that fails shows it when it is used.
    tokio::select! {
        _ = near.readable(), if there.len() < BYTES_MAX => {}
        _ = far.readable(), if back.len() < BYTES_MAX => {}
        _ = far.writable(), if !there.is_empty() => {}
        _ = near.writable(), if !back.is_empty() => {}
    }
}

/// Moves what can be moved. `false` at the end.
fn step(from: &TcpStream, to: &TcpStream, on_the_way: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 64 * 1024];
    let mut goes_on = true;
    while on_the_way.len() < BYTES_MAX {
        match from.try_read(&mut buffer) {
            Ok(0) => {
                goes_on = false;
                break;
            }
            Ok(count) => on_the_way.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(_) => return false,
        }
    }
    while !on_the_way.is_empty() {
        match to.try_write(on_the_way) {
            Ok(count) => drop(on_the_way.drain(..count)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(_) => return false,
        }
    }
    goes_on
}
