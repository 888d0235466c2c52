//! A session's files over NFS, without a kernel.

use std::fmt::Debug;
use std::path::Path;

use nfs3_client::{Nfs3Connection, Nfs3ConnectionBuilder};
use nfs3_types::nfs3::{
    COMMIT3args, CREATE3args, GETATTR3args, LINK3args, LOOKUP3args, MKDIR3args, Nfs3Option,
    Nfs3Result, READ3args, REMOVE3args, RENAME3args, RMDIR3args, SETATTR3args, SYMLINK3args,
    WRITE3args, createhow3, diropargs3, fattr3, filename3, nfs_fh3, nfspath3, nfsstat3, sattr3,
    stable_how, symlinkdata3,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use serde_json::Value;

use super::socket::{Socket, Sockets};
use super::{Server, open};

/// Most bytes of a READ or a WRITE.
const PART_BYTES_MAX: usize = 1 << 20;

/// A mounted session. Paths begin at its root, and have `/` between names. What is not told as a
/// `Result` is to succeed.
pub struct Mount {
    /// For calls that have no method here.
    pub nfs: Nfs3Connection<Socket>,
}

impl Mount {
    /// Mounts what an answer with a `mount_path` is about.
    pub async fn of(server: &Server, opened: &Value) -> Self {
        let address = server.text("nfs_address");
        let (host, port) = address.split_once(':').unwrap();
        let port = port.parse().unwrap();
        let path = opened["mount_path"].as_str().unwrap().to_owned();
        let mount = Nfs3ConnectionBuilder::new(Sockets, host, path)
            .connect_from_privileged_port(false)
            .mount_port(port)
            .nfs3_port(port)
            .mount()
            .await;
        Self {
            nfs: mount.unwrap(),
        }
    }

    pub fn root(&self) -> nfs_fh3 {
        self.nfs.root_nfs_fh3()
    }

    /// The directory that a path's last name is in, and that name.
    async fn place<'p>(&mut self, path: &'p [u8]) -> diropargs3<'p> {
        let mut dir = self.root();
        let mut names = path.split(|byte| *byte == b'/');
        let last = names.next_back().unwrap();
        for name in names {
            let what = name_in(&dir, name);
            dir = done(path, answer(self.nfs.lookup(&LOOKUP3args { what }).await)).object;
        }
        name_in(&dir, last)
    }

    /// The handle of what is there; `None` also if the session is gone. The directory it is in has
    /// to be there.
    pub async fn find(&mut self, path: impl AsRef<[u8]>) -> Option<nfs_fh3> {
        let path = path.as_ref();
        if path.is_empty() {
            return Some(self.root());
        }
        let what = self.place(path).await;
        let found = answer(self.nfs.lookup(&LOOKUP3args { what }).await);
        found.ok().map(|found| found.object)
    }

    pub async fn attributes(&mut self, object: &nfs_fh3) -> Result<fattr3, nfsstat3> {
        let object = object.clone();
        let found = answer(self.nfs.getattr(&GETATTR3args { object }).await);
        found.map(|found| found.obj_attributes)
    }

    /// The attributes of what is at a path.
    pub async fn stat(&mut self, path: impl AsRef<[u8]>) -> fattr3 {
        let object = self.find(path).await.unwrap();
        self.attributes(&object).await.unwrap()
    }

    /// Makes a file, or takes the one that is there. Of a given size it is then.
    pub async fn open(&mut self, path: impl AsRef<[u8]>, size: Option<u64>) -> nfs_fh3 {
        let path = path.as_ref();
        let args = CREATE3args {
            where_: self.place(path).await,
            how: createhow3::UNCHECKED(sattr3 {
                size: size.map_or(Nfs3Option::None, Nfs3Option::Some),
                ..sattr3::default()
            }),
        };
        let made = done(path, answer(self.nfs.create(&args).await));
        some(made.obj).unwrap()
    }

    /// A single WRITE.
    pub async fn put(
        &mut self,
        file: &nfs_fh3,
        offset: u64,
        content: &[u8],
        how: stable_how,
    ) -> Result<(), nfsstat3> {
        let count = u32::try_from(content.len()).unwrap();
        let args = WRITE3args {
            file: file.clone(),
            offset,
            count,
            stable: how,
            data: Opaque::borrowed(content),
        };
        let written = answer(self.nfs.write(&args).await)?;
        assert_eq!((written.count, written.committed), (count, how));
        Ok(())
    }

    pub async fn commit(&mut self, file: &nfs_fh3) -> Result<(), nfsstat3> {
        let args = COMMIT3args {
            file: file.clone(),
            offset: 0,
            count: 0,
        };
        answer(self.nfs.commit(&args).await).map(|_| ())
    }

    async fn put_all(&mut self, file: &nfs_fh3, offset: u64, content: &[u8], how: stable_how) {
        for (number, part) in content.chunks(PART_BYTES_MAX).enumerate() {
            let offset = offset + u64::try_from(number * PART_BYTES_MAX).unwrap();
            self.put(file, offset, part, how).await.unwrap();
        }
    }

    /// Writes into a file, and does not commit it.
    pub async fn write_at(
        &mut self,
        path: impl AsRef<[u8]>,
        offset: u64,
        content: impl AsRef<[u8]>,
    ) {
        let file = self.open(path, None).await;
        self.put_all(&file, offset, content.as_ref(), stable_how::UNSTABLE)
            .await;
    }

    /// Writes a file anew, in place if it is there, and does not commit it.
    pub async fn write(&mut self, path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> nfs_fh3 {
        let file = self.open(path, Some(0)).await;
        self.put_all(&file, 0, content.as_ref(), stable_how::UNSTABLE)
            .await;
        file
    }

    /// The same, durably.
    pub async fn write_durably(&mut self, path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) {
        let file = self.open(path, Some(0)).await;
        self.put_all(&file, 0, content.as_ref(), stable_how::FILE_SYNC)
            .await;
    }

    /// A single READ.
    pub async fn read_at(&mut self, file: &nfs_fh3, offset: u64) -> Result<Vec<u8>, nfsstat3> {
        let args = READ3args {
            file: file.clone(),
            offset,
            count: u32::try_from(PART_BYTES_MAX).unwrap(),
        };
        answer(self.nfs.read(&args).await).map(|read| read.data.to_vec())
    }

    /// The content of a file that one READ takes; `None` if there is none.
    pub async fn read(&mut self, path: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        let file = self.find(path).await?;
        Some(self.read_at(&file, 0).await.unwrap())
    }

    pub async fn mkdir(&mut self, path: impl AsRef<[u8]>) {
        let path = path.as_ref();
        let args = MKDIR3args {
            where_: self.place(path).await,
            attributes: sattr3::default(),
        };
        done(path, answer(self.nfs.mkdir(&args).await));
    }

    pub async fn symlink(&mut self, path: &str, target: &str) {
        let args = SYMLINK3args {
            where_: self.place(path.as_bytes()).await,
            symlink: symlinkdata3 {
                symlink_attributes: sattr3::default(),
                symlink_data: nfspath3(Opaque::borrowed(target.as_bytes())),
            },
        };
        done(path, answer(self.nfs.symlink(&args).await));
    }

    /// Gives a file another name.
    pub async fn link(&mut self, path: &str, to: &str) {
        let args = LINK3args {
            file: self.find(path).await.unwrap(),
            link: self.place(to.as_bytes()).await,
        };
        done(path, answer(self.nfs.link(&args).await));
    }

    pub async fn chmod(&mut self, path: &str, mode: u32) {
        let args = SETATTR3args {
            object: self.find(path).await.unwrap(),
            new_attributes: sattr3 {
                mode: Nfs3Option::Some(mode),
                ..sattr3::default()
            },
            guard: Nfs3Option::None,
        };
        done(path, answer(self.nfs.setattr(&args).await));
    }

    pub async fn rename(&mut self, from: &str, to: &str) {
        let args = RENAME3args {
            from: self.place(from.as_bytes()).await,
            to: self.place(to.as_bytes()).await,
        };
        done(from, answer(self.nfs.rename(&args).await));
    }

    pub async fn remove(&mut self, path: impl AsRef<[u8]>) {
        let path = path.as_ref();
        let object = self.place(path).await;
        done(path, answer(self.nfs.remove(&REMOVE3args { object }).await));
    }

    pub async fn rmdir(&mut self, path: &str) {
        let object = self.place(path.as_bytes()).await;
        done(path, answer(self.nfs.rmdir(&RMDIR3args { object }).await));
    }
}

/// Opens a session and mounts it.
pub async fn mounted(server: &Server, dir: &Path, more: &[&str]) -> (Value, Mount) {
    let session = open(dir, more);
    let mount = Mount::of(server, &session).await;
    (session, mount)
}

/// A name in a directory.
pub fn name_in<'n>(dir: &nfs_fh3, name: &'n (impl AsRef<[u8]> + ?Sized)) -> diropargs3<'n> {
    diropargs3 {
        dir: dir.clone(),
        name: filename3(Opaque::borrowed(name.as_ref())),
    }
}

/// What a call gives, or its status. That there is an answer is taken for granted.
pub fn answer<T, E, F: Debug>(called: Result<Nfs3Result<T, E>, F>) -> Result<T, nfsstat3> {
    match called.unwrap() {
        Nfs3Result::Ok(given) => Ok(given),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

pub fn some<T: Pack + Unpack>(option: Nfs3Option<T>) -> Option<T> {
    match option {
        Nfs3Option::Some(it) => Some(it),
        Nfs3Option::None => None,
    }
}

fn done<T>(path: impl AsRef<[u8]>, answer: Result<T, nfsstat3>) -> T {
    answer.unwrap_or_else(|status| panic!("{}: {status:?}", path.as_ref().escape_ascii()))
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
