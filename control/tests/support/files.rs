//! Files of a session, over NFS.
#![allow(clippy::panic)] // For tests.

use nfs3_client::tokio::{TokioConnector, TokioIo};
use nfs3_client::{Nfs3Connection, Nfs3ConnectionBuilder};
use nfs3_types::nfs3::{
    CREATE3args, LOOKUP3args, Nfs3Option, Nfs3Result, READ3args, WRITE3args, createhow3,
    diropargs3, filename3, nfs_fh3, sattr3, stable_how,
};
use nfs3_types::xdr_codec::Opaque;
use serde_json::Value;
use tokio::net::TcpStream;

use super::Server;

/// A mounted session.
pub struct Mount(Nfs3Connection<TokioIo<TcpStream>>);

impl Mount {
    /// Mounts what `session open` has printed.
    pub async fn of(server: &Server, opened: &Value) -> Self {
        let address = server.text("nfs_address");
        let (host, port) = address.split_once(':').unwrap();
        let port = port.parse().unwrap();
        let path = opened["mount_path"].as_str().unwrap().to_owned();
        let mount = Nfs3ConnectionBuilder::new(TokioConnector, host, path)
            .connect_from_privileged_port(false)
            .mount_port(port)
            .nfs3_port(port)
            .mount()
            .await;
        Self(mount.unwrap())
    }

    fn place<'a>(&self, name: &'a str) -> diropargs3<'a> {
        diropargs3 {
            dir: self.0.root_nfs_fh3(),
            name: filename3(Opaque::borrowed(name.as_bytes())),
        }
    }

    /// The handle of a file of the root directory. `None` also if the session is gone.
    pub async fn find(&mut self, name: &str) -> Option<nfs_fh3> {
        let what = self.place(name);
        match self.0.lookup(&LOOKUP3args { what }).await.unwrap() {
            Nfs3Result::Ok(found) => Some(found.object),
            Nfs3Result::Err(_) => None,
        }
    }

    /// Writes a file, durably.
    pub async fn write(&mut self, name: &str, content: &[u8]) {
        let args = CREATE3args {
            where_: self.place(name),
            how: createhow3::UNCHECKED(sattr3 {
                size: Nfs3Option::Some(0),
                ..sattr3::default()
            }),
        };
        let Nfs3Result::Ok(made) = self.0.create(&args).await.unwrap() else {
            panic!("{name} is not created");
        };
        let Nfs3Option::Some(file) = made.obj else {
            panic!("no handle");
        };
        let args = WRITE3args {
            file,
            offset: 0,
            count: u32::try_from(content.len()).unwrap(),
            stable: stable_how::FILE_SYNC,
            data: Opaque::borrowed(content),
        };
        let written = self.0.write(&args).await.unwrap();
        assert!(matches!(written, Nfs3Result::Ok(_)));
    }

    /// The content of a file.
    pub async fn read(&mut self, name: &str) -> Option<Vec<u8>> {
        let file = self.find(name).await?;
        let args = READ3args {
            file,
            offset: 0,
            count: 1 << 20,
        };
        match self.0.read(&args).await.unwrap() {
            Nfs3Result::Ok(read) => Some(read.data.as_ref().to_vec()),
            Nfs3Result::Err(_) => panic!("{name} is not read"),
        }
    }
}

/// Content that does not compress.
pub fn content(number: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new()
        .update(&number.to_be_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}
