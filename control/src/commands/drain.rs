//! `holdfast drain`.

use std::time::Duration;

use base::{Clock, SystemClock};

use super::client;
use crate::cli::Drain as DrainArgs;
use crate::client::{Client, Look};
use crate::data_dir::ControlFile;
use crate::failure::{Failure, FailureKind};
use crate::output;
use crate::types::{Drain, DrainState};
use crate::units::Period;

/// Looks at a server that ends, each of which waits for half a second: more than the longest delay.
const LOOKS_MAX: u32 = 10_000;

/// Between two looks at a server that cannot be seen.
const UNSEEN_PAUSE: Duration = Duration::from_millis(500);

/// How long it may be unseen without a break, beside the time for which it serves on.
const UNSEEN_PATIENCE: Duration = Duration::from_secs(120);

/// Looks at a process that has only its store to close.
const CLOSING_LOOKS_MAX: u32 = 1200;

/// Between these.
const CLOSING_PAUSE: Duration = Duration::from_millis(50);

pub(super) fn run(args: &DrainArgs, json: bool) -> Result<(), Failure> {
    let client = client(&args.server)?;
    let asked: Drain = client.post("/v1/drain", &serde_json::json!({}))?;
    if args.wait {
        let delay = Duration::from_millis(asked.delay_ms);
        wait(&client, &asked, delay.saturating_add(UNSEEN_PATIENCE))?;
    }
    if json {
        return output::json(&serde_json::json!({ "ended": args.wait, "asked": asked }));
    }
    if args.wait {
        return output::text("drained: the server has ended");
    }
    let delay = Period(Duration::from_millis(asked.delay_ms));
    output::text(&format!(
        "draining: not ready from now on; it serves on for {delay}, then ends"
    ))
}

/// Waits until the server has ended. While it answers it has not; another that answers in its place
/// does not end. It may be unseen for `patience`, behind something that answers for it.
fn wait(client: &Client, asked: &Drain, patience: Duration) -> Result<(), Failure> {
    let clock = SystemClock::new();
    let mut seen = clock.monotonic();
    let mut last = asked.clone();
    let line = output::ProgressLine;
    for _ in 0..LOOKS_MAX {
        line.show(&shown(&last));
        match client.look::<Drain>("/v1/drain")? {
            Look::There(now) if now.state == DrainState::Serving => return Ok(()),
            Look::There(now) => {
                last = now;
                seen = clock.monotonic();
            }
            // On this machine the process is seen to end, too.
            Look::Gone => return client.control().map_or(Ok(()), closed),
            Look::Unseen(why) => {
                if clock.monotonic().saturating_sub(seen) >= patience {
                    return Err(unseen(&why));
                }
                std::thread::park_timeout(UNSEEN_PAUSE);
            }
        }
    }
    let message = "the server has not ended yet: `GET /v1/drain` and its log tell what it does";
    Err(Failure::new(FailureKind::Retry, message))
}

fn unseen(why: &str) -> Failure {
    let message = format!(
        "the server ends, and whether it has ended cannot be seen ({why}): give its own address, not \
         that of a balancer"
    );
    Failure::new(FailureKind::Retry, message)
}

/// Waits until the process that wrote `control` is gone: with it everything is closed.
fn closed(control: &ControlFile) -> Result<(), Failure> {
    for _ in 0..CLOSING_LOOKS_MAX {
        if !runs(control.pid) {
            return Ok(());
        }
        std::thread::park_timeout(CLOSING_PAUSE);
    }
    let message = format!(
        "process {} serves no more, and has not ended yet: see its log",
        control.pid
    );
    Err(Failure::new(FailureKind::Retry, message))
}

/// Whether a process runs, as far as can be seen. One that nobody has asked how it ended does not.
fn runs(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    // The name before it may have anything in it.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    !state.is_some_and(|state| state.starts_with(['Z', 'X']))
}

fn shown(drain: &Drain) -> String {
    let what = match drain.state {
        DrainState::Serving => "serving",
        DrainState::Draining => "not ready, serving on",
        DrainState::Stopping => "ending",
    };
    format!(
        "{what}: {} sessions, {} connections, {} bytes to store",
        drain.sessions, drain.connections, drain.dirty_bytes
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::told::Told;

    #[test]
    fn progress_tells_what_is_left() {
        let drain = Drain {
            state: DrainState::Draining,
            delay_ms: 0,
            sessions: 3,
            connections: 2,
            dirty_bytes: 1,
        };
        let told = "not ready, serving on: 3 sessions, 2 connections, 1 bytes to store";
        assert_eq!(shown(&drain), told);
    }

    /// As a server of an earlier release says it, too.
    fn answer(state: &str) -> String {
        format!("{{\"state\":\"{state}\",\"delay_ms\":0,\"connections\":1,\"dirty_bytes\":2}}")
    }

    #[test]
    fn another_server_in_its_place_ends_the_wait_and_a_refusal_fails() {
        let calls = AtomicU32::new(0);
        let server = Told::new(move |_, _| match calls.fetch_add(1, Ordering::SeqCst) {
            0 => (202, answer("draining")),
            1 => (200, answer("draining")),
            // A balancer, which knows of no server that is ready.
            2 => (503, "no server".into()),
            3 => (200, answer("stopping")),
            _ => (200, answer("serving")),
        });
        let args = DrainArgs {
            wait: true,
            server: server.args(),
        };
        assert_eq!(run(&args, true), Ok(()));
        assert_eq!(server.heard().len(), 5);
        let server = Told::new(|_, _| (403, "{\"detail\":\"no\"}".into()));
        let args = DrainArgs {
            wait: true,
            server: server.args(),
        };
        assert_eq!(run(&args, true).unwrap_err().kind, FailureKind::Denied);
        server.heard();
    }

    #[test]
    fn what_cannot_be_seen_has_not_ended_and_is_not_waited_for_for_ever() {
        let asked: Drain = serde_json::from_str(&answer("draining")).unwrap();
        for status in [429, 502, 503, 504] {
            let server = Told::new(move |_, _| (status, String::new()));
            let failure = wait(&server.client(), &asked, Duration::ZERO).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Retry);
            assert!(failure.message.contains("its own address"), "{failure}");
            assert!(failure.message.contains(&status.to_string()), "{failure}");
            assert_eq!(server.heard().len(), 1);
        }
        // One that takes connections and answers nothing, and one that takes none.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let api = listener.local_addr().unwrap().to_string();
        let client = Client::find(Some(&api), Some("token"), std::path::Path::new("/none"));
        let client = client.unwrap();
        let closes = std::thread::Builder::new().spawn(move || drop(listener.accept()));
        let failure = wait(&client, &asked, Duration::ZERO).unwrap_err();
        assert!(failure.message.contains("its own address"), "{failure}");
        closes.unwrap().join().unwrap();
        assert_eq!(wait(&client, &asked, Duration::ZERO), Ok(()));
    }

    #[test]
    fn processes_are_seen_to_run_and_to_have_ended() {
        assert!(runs(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        // Not waited for yet: it becomes a zombie, which is as good as gone.
        for _ in 0..CLOSING_LOOKS_MAX {
            if !runs(pid) {
                break;
            }
            std::thread::park_timeout(CLOSING_PAUSE);
        }
        assert!(!runs(pid));
        child.wait().unwrap();
        assert!(!runs(pid));
    }
}
