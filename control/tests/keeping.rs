//! Workspaces that are removed, history that is let go, pins and tokens.
#![allow(missing_docs)]

mod support;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use base::{Clock, InodeId, ManualClock, NodeId, Rng, SystemClock, Tasks, TenantId, Timestamp};
    use chunkstore::ChunkStore;
    use chunkstore::local::{LocalOptions, LocalStore};
    use chunkstore::shared::{KnownCycle, SharedOptions, SharedParts, SharedStore};
    use metadata::keyspace;
    use metadata::kv::Kv;
    use metadata::kv::embedded::{EmbeddedKv, EmbeddedOptions};
    use metadata::record::inode::InodeRecord;
    use metadata::session::{session_layers, tree_of};
    use metadata::store::{NewCommit, Store};
    use nfs_gateway::{ChunkTrees, KvLedger};
    use serde_json::Value;

    use crate::support::files::{Mount, content, mounted};
    use crate::support::{Server, fails, id, json, publish, run};

    const USAGE: i32 = 2;
    const CONFLICT: i32 = 3;
    const NOT_FOUND: i32 = 4;

    /// Looks at something that comes by itself, each a tenth of a second apart.
    const LOOKS_MAX: u32 = 600;

    fn text(value: &Value) -> &str {
        value.as_str().unwrap()
    }

    /// Waits until nothing is being removed any more.
    async fn removed(dir: &Path) {
        for _ in 0..LOOKS_MAX {
            let removing = json(&["workspace", "ls", "--removing"], dir);
            if removing.as_array().unwrap().is_empty() {
                return;
            }
            SystemClock::new().sleep(Duration::from_millis(100)).await;
        }
        panic!("the workspace is still being removed");
    }

    fn collected(dir: &Path, more: &[&str]) -> Value {
        let run = json(&[&["gc"], more].concat(), dir);
        assert_eq!(run["state"], "done", "{run}");
        run
    }

    fn is_clean(dir: &Path) {
        let report = json(&["check", "--deep"], dir);
        assert_eq!(report["clean"], true, "{report}");
    }

    #[tokio::test]
    async fn a_workspace_is_removed_with_all_it_alone_has() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        let server = Server::start("up", dir);
        // The same content in two workspaces, and some in one.
        let mut sessions = Vec::new();
        for name in ["gone", "stays"] {
            json(&["workspace", "create", name], dir);
            let (session, mut mount) = mounted(&server, dir, &[name]).await;
            mount.write_durably("shared", &content(1, 200_000)).await;
            if name == "gone" {
                mount.write_durably("alone", &content(2, 300_000)).await;
            }
            publish(dir, &session, &[]);
            sessions.push((session, mount));
        }
        let before = collected(dir, &[]);
        fails(&["workspace", "delete", "gone"], dir, USAGE, &["--yes"]);
        let parts = ["a session is open", "force"];
        fails(
            &["workspace", "delete", "gone", "--yes"],
            dir,
            CONFLICT,
            &parts,
        );
        let force = ["workspace", "delete", "gone", "--yes", "--force"];
        assert_eq!(json(&force, dir)["name"], "gone");
        // At any moment.
        server.kill();
        let server = Server::start("up", dir);
        fails(&force, dir, NOT_FOUND, &["gone"]);
        json(&["workspace", "create", "gone"], dir);
        fails(&["log", "--workspace", "gone"], dir, NOT_FOUND, &[]);
        removed(dir).await;
        let listed = json(&["session", "ls"], dir).to_string();
        assert!(!listed.contains(id(&sessions[0].0)), "{listed}");
        let after = collected(dir, &[]);
        let live = |run: &Value| run["live_bytes"].as_u64().unwrap();
        let freed = live(&before) - live(&after);
        assert!((300_000..330_000).contains(&freed), "{freed}");
        let mut mount = Mount::of(&server, &sessions[1].0).await;
        assert_eq!(mount.read("shared").await, Some(content(1, 200_000)));
        drop(mount);
        let (_, mut mount) = mounted(&server, dir, &["gone"]).await;
        assert_eq!(mount.read("alone").await, None);
        drop((mount, sessions));
        assert_eq!(server.terminate(), Some(0));
        is_clean(dir);
    }

    /// The chunks in the metadata store.
    async fn shared(kv: Arc<dyn Kv>, clock: Arc<dyn Clock>) -> SharedStore {
        let rng = Arc::new(Rng::system().unwrap());
        let parts = SharedParts {
            ledger: Arc::new(KvLedger::new(kv, Arc::clone(&clock), rng)),
            cycles: Arc::new(KnownCycle::default()),
            objects: None,
            disk: None,
            clock,
            tasks: Tasks::new(),
        };
        let opened = SharedStore::open(parts, SharedOptions::default()).await;
        opened.unwrap()
    }

    /// Makes a commit that nothing names, two days ago, without a server. Gives its id.
    fn left_behind(dir: &Path, chunks: &str) -> String {
        let system: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let now = system.wall().seconds();
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp::new(now - 2 * 86_400, 0)));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let path = dir.join("meta.redb");
            let kv = EmbeddedKv::open(&path, &EmbeddedOptions::default(), Arc::clone(&system));
            let kv: Arc<dyn Kv> = Arc::new(kv.unwrap());
            let nodes: Arc<dyn ChunkStore> = if chunks == "kv" {
                Arc::new(shared(Arc::clone(&kv), system).await)
            } else {
                let chunks = dir.join("chunks");
                Arc::new(LocalStore::open(&chunks, LocalOptions::default(), system).unwrap())
            };
            let trees = ChunkTrees::new(nodes, 0);
            let store = Store::open(kv, clock, Arc::new(Rng::system().unwrap()));
            let store = store.await.unwrap();
            let tenant = store.tenant(TenantId::DEFAULT).await.unwrap();
            let workspace = store.workspace_by_name(TenantId::DEFAULT, "default").await;
            let workspace = workspace.unwrap();
            let sessions = store.sessions(TenantId::DEFAULT, None, None, 1).await;
            let session = sessions.unwrap().remove(0);
            let tree = tree_of(&trees, session.record.tenant, &tenant, &workspace.record);
            let layers = session_layers(session.id, &session.record, &workspace.record, tree);
            let key = keyspace::image::inode(InodeId::ROOT);
            let attributes = layers.base().get(&key).await.unwrap().unwrap();
            let mut record = InodeRecord::decode(InodeId::ROOT, &attributes).unwrap();
            // A tree that nothing else has.
            record.stat.mtime = Timestamp::new(1, 2);
            let made = layers.base().tree().build([(key, record.encode())]).await;
            let new = NewCommit {
                message: "left behind".into(),
                ..NewCommit::of_tree(NodeId::new(made.unwrap().root.to_bytes()))
            };
            let made = store.put_commit(workspace.id, new).await.unwrap();
            made.id.to_string()
        })
    }

    #[test]
    fn what_nobody_needs_is_let_go_by_a_policy() {
        for chunks in ["local", "kv"] {
            let_go(chunks);
        }
    }

    fn let_go(chunks: &str) {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        let start = || Server::start_with("up", dir, &["--chunks", chunks]);
        assert_eq!(start().terminate(), Some(0));
        let commit = left_behind(dir, chunks);
        let server = start();
        let retention = |more: &[&str]| {
            let args = [&["workspace", "retention", "default"], more].concat();
            json(&args, dir)
        };
        assert_eq!(retention(&[])["keep_seconds"], Value::Null);
        // Without a policy it stays.
        assert_eq!(collected(dir, &[])["expired_commits"], 0);
        let short = ["workspace", "retention", "default", "--keep-for", "59m"];
        fails(&short, dir, USAGE, &["at least one hour"]);
        let set = retention(&["--keep-for", "30h", "--keep-last", "1"]);
        assert_eq!(
            (&set["keep_seconds"], &set["keep_last"]),
            (&108_000.into(), &1.into())
        );
        assert_eq!(collected(dir, &["--dry-run"])["expired_commits"], 0);
        retention(&["--keep-for", "30h"]);
        let dry = collected(dir, &["--dry-run"]);
        let figures = ["expired_commits", "expired_nodes", "dead_chunks"];
        assert_eq!(
            figures.map(|figure| dry[figure].as_u64()),
            [Some(1); 3],
            "{dry}"
        );
        let told = run(&["gc", "--dry-run"], dir);
        let told = String::from_utf8(told.stdout).unwrap();
        assert!(told.contains("would let go 1 commits"), "{told}");
        json(&["show", &commit], dir);
        let pinned = json(&["pin", "add", &commit[..12], "--note", "release"], dir);
        assert_eq!(pinned["commit"], commit.as_str());
        assert_eq!(json(&["pin", "ls"], dir)[0]["note"], "release");
        assert_eq!(collected(dir, &[])["expired_commits"], 0);
        json(&["pin", "rm", &commit], dir);
        fails(&["pin", "rm", &commit], dir, NOT_FOUND, &["pin"]);
        assert_eq!(retention(&["--off"])["keep_seconds"], Value::Null);
        assert_eq!(collected(dir, &[])["expired_commits"], 0);
        retention(&["--keep-for", "30h"]);
        let run = collected(dir, &[]);
        assert_eq!(run["expired_commits"], 1, "{run}");
        assert_eq!(run["dead_chunks"], 1, "{run}");
        fails(&["show", &commit], dir, NOT_FOUND, &[]);
        fails(&["pin", "add", &commit], dir, NOT_FOUND, &[]);
        assert_eq!(server.terminate(), Some(0));
        if chunks == "local" {
            return is_clean(dir);
        }
        let report = json(&["check"], dir);
        assert_eq!(report["clean"], true, "{report}");
    }

    #[test]
    fn a_token_is_good_until_it_is_revoked() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        let server = Server::start("up", dir);
        let made = json(&["token", "create", "ci"], dir);
        let token = text(&made["token"]);
        let list = |token| server.call("GET", "/v1/workspaces", Some(token), b"").0;
        assert_eq!(list(token), 200);
        let shown = run(&["token", "ls"], dir);
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.contains("ci") && !shown.contains(token), "{shown}");
        let listed = json(&["token", "ls"], dir);
        let tokens = listed.as_array().unwrap();
        let own = tokens.iter().find(|token| token["name"] == "").unwrap();
        let parts = ["api-token", "stop the server"];
        fails(&["token", "revoke", id(own)], dir, CONFLICT, &parts);
        json(&["token", "revoke", id(&made)], dir);
        assert_eq!(list(token), 401);
        fails(&["token", "revoke", id(&made)], dir, NOT_FOUND, &["token"]);
        fails(&["token", "revoke", "x"], dir, USAGE, &["16 digits"]);
        fails(&["token", "create", ""], dir, USAGE, &["name"]);
        // As it was, for commands on this machine.
        assert_eq!(json(&["token", "ls"], dir).as_array().unwrap().len(), 1);
        assert_eq!(server.terminate(), Some(0));
        is_clean(dir);
    }
}
