//! Minimal server, replaced by the next commits.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]
use base::*;
use metadata::store::*;
use nfs_gateway::*;
use std::sync::Arc;

fn arg(name: &str, default: &str) -> String {
    let args: Vec<String> = std::env::args().collect();
    args.iter()
        .position(|a| a == name)
        .and_then(|i| args.get(i + 1))
        .cloned()
        .unwrap_or(default.into())
}

#[tokio::main]
async fn main() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let dir = std::path::PathBuf::from(arg("--data-dir", "holdfast-data"));
    std::fs::create_dir_all(&dir).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let rng = Arc::new(Rng::system().unwrap());
    let kv: Arc<dyn metadata::kv::Kv> = Arc::new(
        metadata::kv::embedded::EmbeddedKv::open(
            &dir.join("meta.redb"),
            &Default::default(),
            clock.clone(),
        )
        .unwrap(),
    );
    let chunks: Arc<dyn chunkstore::ChunkStore> = Arc::new(chunkstore::cached::CachedStore::new(
        Arc::new(
            chunkstore::local::LocalStore::open(
                &dir.join("chunks"),
                Default::default(),
                clock.clone(),
            )
            .unwrap(),
        ),
        256 << 20,
    ));
    let store = Store::open(kv.clone(), clock.clone(), rng.clone())
        .await
        .unwrap();
    let ticket_file = dir.join("ticket");
    let ticket = match std::fs::read_to_string(&ticket_file) {
        Ok(text) => text,
        Err(_) => {
            store
                .create_workspace(
                    TenantId::DEFAULT,
                    NewWorkspace {
                        name: "default".into(),
                        root: (0o777, 0, 0),
                    },
                )
                .await
                .unwrap();
            let opened = store
                .open_session(
                    TenantId::DEFAULT,
                    OpenSession {
                        workspace: "default".into(),
                        read_only: false,
                        identity: metadata::record::session::Identity::Passthrough,
                        agent: String::new(),
                        run: String::new(),
                        ttl_seconds: None,
                    },
                )
                .await
                .unwrap();
            std::fs::write(&ticket_file, &opened.ticket).unwrap();
            opened.ticket
        }
    };
    let gateway = Gateway::new(
        GatewayOptions::default(),
        Engines {
            kv,
            chunks,
            clock,
            rng,
        },
        store,
    )
    .await
    .unwrap();
    let listener = tokio::net::TcpListener::bind(arg("--listen", "127.0.0.1:12049"))
        .await
        .unwrap();
    println!(
        "{{\"mount_path\":\"/{ticket}\",\"nfs_address\":\"{}\"}}",
        listener.local_addr().unwrap()
    );
    let serving = gateway.clone();
    let mut term =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
    tokio::select! { () = serving.serve(listener) => {}, _ = term.recv() => {} }
    gateway.shutdown().await;
}
