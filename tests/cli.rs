//! The binary from end to end: its HTTP API on one side, an independent NFS client on the other.
//!
//! The binary is `HOLDFAST_BIN`, else `target/release/holdfast`. What its commands say of bad input
//! is tested beside the crate `control`.

#[cfg(test)]
#[path = "support/server.rs"]
mod server;

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use nfs3_types::nfs3::{GETATTR3args, Nfs3Result, nfsstat3};
    use serde_json::{Value, json};

    use crate::server::{Mount, Server, binary, create, path_of, read, write};

    /// Looks at something that comes by itself, each [`LOOK_PAUSE`] apart.
    const LOOKS_MAX: usize = 300;
    const LOOK_PAUSE: Duration = Duration::from_millis(100);

    /// What a GETATTR of the root says, `None` if it is well.
    async fn root_status(mount: &mut Mount) -> Option<nfsstat3> {
        let object = mount.root_nfs_fh3();
        match mount.getattr(&GETATTR3args { object }).await.unwrap() {
            Nfs3Result::Ok(_) => None,
            Nfs3Result::Err((status, _)) => Some(status),
        }
    }

    #[tokio::test]
    async fn what_was_stable_is_there_after_a_kill_under_the_same_handle() {
        let root = tempfile::tempdir().unwrap();
        let mut server = Server::start(root.path(), "127.0.0.1:0");
        let mut mount = server.mount(server.text("mount_path")).await.unwrap();
        let small = create(&mut mount, b"small").await.unwrap();
        write(&mut mount, &small, b"hello").await;
        let large: Vec<u8> = (0..700_000_u32).map(|at| at.to_le_bytes()[1]).collect();
        let file = create(&mut mount, b"large").await.unwrap();
        write(&mut mount, &file, &large).await;
        server.kill();

        // The clients' mounts name the port.
        let again = Server::start(root.path(), server.text("nfs_address"));
        for field in ["mount_path", "mount_command", "mount_options", "session"] {
            assert_eq!(again.text(field), server.text(field));
        }
        let mut mount = again.mount(again.text("mount_path")).await.unwrap();
        assert_eq!(read(&mut mount, &small).await, b"hello");
        assert_eq!(read(&mut mount, &file).await, large);
        assert_eq!(
            create(&mut mount, b"small").await.unwrap_err(),
            nfsstat3::NFS3ERR_EXIST
        );
    }

    #[tokio::test]
    async fn a_closed_session_is_stale_and_cannot_be_mounted() {
        let root = tempfile::tempdir().unwrap();
        let server = Server::start(root.path(), "127.0.0.1:0");
        let opened = server.make("/v1/sessions", &json!({ "workspace": "default" }));
        let mut mount = server.mount(path_of(&opened)).await.unwrap();
        let mut other = server.mount(server.text("mount_path")).await.unwrap();
        create(&mut mount, b"f").await.unwrap();
        let path = format!("/v1/sessions/{}", opened["id"].as_str().unwrap());
        assert_eq!(server.call("DELETE", &path, &Value::Null).0, 204);
        let stale = Some(nfsstat3::NFS3ERR_STALE);
        assert_eq!(root_status(&mut mount).await, stale);
        assert_eq!(
            create(&mut mount, b"g").await.unwrap_err(),
            nfsstat3::NFS3ERR_STALE
        );
        assert_eq!(server.refusal(path_of(&opened)).await, "MNT3ERR_NOENT");
        assert_eq!(server.refusal("/").await, "MNT3ERR_NOENT");
        assert_eq!(server.refusal("/nonsense").await, "MNT3ERR_NOENT");
        // Sessions of one workspace know nothing of each other.
        assert_eq!(root_status(&mut other).await, None);
        create(&mut other, b"f").await.unwrap();
    }

    #[tokio::test]
    async fn a_session_ends_by_itself_also_where_it_is_mounted() {
        let root = tempfile::tempdir().unwrap();
        let server = Server::start(root.path(), "127.0.0.1:0");
        let asked = json!({ "workspace": "default", "ttl_seconds": 2 });
        let opened = server.make("/v1/sessions", &asked);
        let mut mount = server.mount(path_of(&opened)).await.unwrap();
        assert_eq!(root_status(&mut mount).await, None);
        let mut ended = None;
        for _ in 0..LOOKS_MAX {
            ended = root_status(&mut mount).await;
            if ended.is_some() {
                break;
            }
            std::thread::park_timeout(LOOK_PAUSE);
        }
        assert_eq!(ended, Some(nfsstat3::NFS3ERR_STALE));
        assert_eq!(server.refusal(path_of(&opened)).await, "MNT3ERR_NOENT");
    }

    #[tokio::test]
    async fn handles_outlive_one_rotation_of_keys() {
        let root = tempfile::tempdir().unwrap();
        let server = Server::start(root.path(), "127.0.0.1:0");
        let (address, path) = (
            server.text("nfs_address").to_owned(),
            path_of(&server.ready),
        );
        let path = path.to_owned();
        let mut mount = server.mount(&path).await.unwrap();
        let old = create(&mut mount, b"f").await.unwrap();
        let rotate = || {
            let mut command = Command::new(binary());
            let args = ["--json", "keys", "rotate", "--data-dir"];
            command.args(args).arg(root.path()).output().unwrap()
        };
        // Not under a running server, which would go on with the old ones.
        assert_eq!(rotate().status.code(), Some(3));
        let (root_handle, mut server) = (mount.root_nfs_fh3(), server);
        for stale in [None, Some(nfsstat3::NFS3ERR_STALE)] {
            server.kill();
            let rotated = rotate();
            assert!(rotated.status.success(), "{rotated:?}");
            server = Server::start(root.path(), &address);
            let mut mount = server.mount(&path).await.unwrap();
            for handle in [&root_handle, &old] {
                let object = handle.clone();
                let found = match mount.getattr(&GETATTR3args { object }).await.unwrap() {
                    Nfs3Result::Ok(_) => None,
                    Nfs3Result::Err((status, _)) => Some(status),
                };
                assert_eq!(found, stale);
            }
            // New mounts have new handles.
            assert_ne!(mount.root_nfs_fh3(), root_handle);
            assert_eq!(root_status(&mut mount).await, None);
        }
    }

    #[tokio::test]
    async fn tickets_grant_what_they_say() {
        let root = tempfile::tempdir().unwrap();
        let server = Server::start(root.path(), "127.0.0.1:0");
        let tickets = format!("/v1/sessions/{}/tickets", server.text("session"));
        let mut mount = server.mount(server.text("mount_path")).await.unwrap();
        create(&mut mount, b"f").await.unwrap();

        let reader = server.make(&tickets, &json!({ "read_only": true }));
        assert!(reader["mount_options"].as_str().unwrap().starts_with("ro,"));
        let mut reading = server.mount(path_of(&reader)).await.unwrap();
        assert_eq!(root_status(&mut reading).await, None);
        assert_eq!(
            create(&mut reading, b"g").await.unwrap_err(),
            nfsstat3::NFS3ERR_ROFS
        );

        let once = server.make(&tickets, &json!({ "single_use": true }));
        server.mount(path_of(&once)).await.unwrap();
        assert_eq!(server.refusal(path_of(&once)).await, "MNT3ERR_NOENT");

        let short = server.make(&tickets, &json!({ "ttl_seconds": 1 }));
        std::thread::park_timeout(Duration::from_millis(1_100));
        assert_eq!(server.refusal(path_of(&short)).await, "MNT3ERR_ACCES");

        let file = server.make(&tickets, &json!({ "directory": "f" }));
        assert_eq!(server.refusal(path_of(&file)).await, "MNT3ERR_NOTDIR");
    }
}
