//! `holdfast up` and `holdfast serve`.

use std::path::Path;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli;
use crate::failure::Failure;
use crate::logging;
use crate::output;
use crate::place;
use crate::server::{Furnish, Ready, ReadySession, Server};
use crate::settings::{Given, Settings};

/// Exit code of a server whose shutdown was cut short, as shells say it for SIGINT.
const INTERRUPTED: i32 = 130;

pub(super) fn up(up: cli::Up, json: bool) -> Result<(), Failure> {
    let settings = settings(up.given, up.config.as_deref())?;
    run(&settings, Furnish::Session, json)
}

pub(super) fn serve(serve: cli::Serve, json: bool) -> Result<(), Failure> {
    let settings = settings(serve.given, serve.config.as_deref())?;
    if serve.print_config {
        if json {
            return output::json(&settings);
        }
        return output::text(settings.to_toml()?.trim_end());
    }
    if serve.check_config {
        if json {
            return output::json(&serde_json::json!({ "ok": true }));
        }
        return output::text("settings are good");
    }
    run(&settings, Furnish::Nothing, json)
}

fn settings(given: Given, config: Option<&Path>) -> Result<Settings, Failure> {
    // What everybody knows from other programs is worth more than nothing.
    let usual = Given {
        log: std::env::var("RUST_LOG").ok().filter(|log| !log.is_empty()),
        ..Given::default()
    };
    given.or_of(config)?.or(usual).complete()
}

fn run(settings: &Settings, furnish: Furnish, json: bool) -> Result<(), Failure> {
    logging::start(&settings.log, settings.log_format)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("start", &error))?;
    runtime.block_on(async {
        // Before anything is begun, so that an early signal ends it well, too.
        let mut signals = Signals::new()?;
        let server = tokio::select! {
            started = Server::start(settings, furnish) => started?,
            // Reading a large store takes long. Nothing was promised to anybody yet.
            () = signals.next() => exit(0),
        };
        if let Err(failure) = print_ready(server.ready(), json) {
            // Whoever wants to know finds it in the data directory.
            tracing::warn!(%failure, "serving all the same");
        }
        tracing::info!(nfs = %server.ready().nfs_address, api = %server.ready().api_address, "serving");
        notify(&[NotifyState::Ready]);
        let (is_asked, mut cuts) = tokio::select! {
            () = signals.next() => (false, 1),
            // What sent the call may send a signal, too, as Kubernetes does: one is nothing new.
            () = server.drain_asked() => (true, 2),
        };
        tracing::info!(is_asked, "told to end");
        notify(&[NotifyState::Stopping]);
        let mut stopped = std::pin::pin!(server.stop());
        loop {
            tokio::select! {
                () = &mut stopped => break,
                () = signals.next() => cuts -= 1,
            }
            if cuts == 0 {
                exit(INTERRUPTED);
            }
        }
        Ok(())
    })
}

/// Ends the process at once, whatever still runs.
fn exit(code: i32) -> ! {
    place::end();
    std::process::exit(code)
}

/// Tells the service manager, if one wants to know.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(error = %base::Told(&error), "cannot tell the service manager");
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::io("listen for signals", &error));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn print_ready(ready: &Ready, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(ready);
    }
    let mut lines = vec![
        format!("NFS  {}", ready.nfs_address),
        format!("API  http://{}", ready.api_address),
    ];
    if let Some(session) = &ready.session {
        lines.extend(describe(session));
    }
    output::text(&lines.join("\n"))
}

fn describe(session: &ReadySession) -> Vec<String> {
    vec![
        String::new(),
        format!(
            "Session {} of workspace {} is ready. Mount it with:",
            session.session, session.workspace
        ),
        String::new(),
        format!("  {}", session.mount_command),
        String::new(),
        "Without mount.nfs, mount(2) takes type nfs, flag MS_NOATIME, and".to_owned(),
        String::new(),
        format!("  source  {}", session.mount_source),
        format!("  data    {}", session.mount_options),
        String::new(),
        "Whoever has this path can read and write the session. Ctrl-C stops the server.".to_owned(),
    ]
}
