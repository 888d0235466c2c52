//! An NFS client of a session, which tells what goes wrong instead of panicking: where a rule is left out
//! it does.

use base::Timestamp;
use metadata::import::Attributes;
use nfs3_client::Nfs3Connection;
use nfs3_client::tokio::TokioIo;
use nfs3_types::nfs3::{
    CREATE3args, GETATTR3args, LOOKUP3args, MKDIR3args, Nfs3Option, Nfs3Result, READ3args,
    REMOVE3args, WRITE3args, createhow3, diropargs3, filename3, nfs_fh3, nfsstat3, sattr3,
    set_mode3, stable_how,
};
use nfs3_types::xdr_codec::Opaque;
use tokio::net::TcpStream;

use super::copies::{Copied, PATHS, content, number_in};
use super::process::text;

/// A session as one client has it mounted.
pub(super) struct Client(pub(super) Nfs3Connection<TokioIo<TcpStream>>);

fn said<T, E>(of: &str, answer: Nfs3Result<T, E>) -> Result<T, (nfsstat3, String)> {
    match answer {
        Nfs3Result::Ok(done) => Ok(done),
        Nfs3Result::Err((status, _)) => Err((status, format!("{of}: {status:?}"))),
    }
}

fn permissions(mode: u32) -> sattr3 {
    sattr3 {
        mode: set_mode3::Some(mode),
        ..sattr3::default()
    }
}

fn place<'a>(directory: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
    diropargs3 {
        dir: directory.clone(),
        name: filename3(Opaque::borrowed(name.as_bytes())),
    }
}

impl Client {
    /// The directory of a path, and the last part of it.
    async fn parent<'a>(&mut self, path: &'a str) -> Result<(nfs_fh3, &'a str), String> {
        let root = self.0.root_nfs_fh3();
        let Some((directory, name)) = path.split_once('/') else {
            return Ok((root, path));
        };
        let found = self.find_in(&root, directory).await?;
        let found = found.ok_or_else(|| format!("directory {directory} is gone"))?;
        Ok((found, name))
    }

    async fn find_in(&mut self, dir: &nfs_fh3, name: &str) -> Result<Option<nfs_fh3>, String> {
        let what = place(dir, name);
        let answer = self.0.lookup(&LOOKUP3args { what }).await.map_err(text)?;
        match said(name, answer) {
            Ok(found) => Ok(Some(found.object)),
            Err((nfsstat3::NFS3ERR_NOENT, _)) => Ok(None),
            Err((_, why)) => Err(why),
        }
    }

    pub(super) async fn make_directory(&mut self, name: &str) -> Result<(), String> {
        let root = self.0.root_nfs_fh3();
        let args = MKDIR3args {
            where_: place(&root, name),
            attributes: permissions(0o755),
        };
        let answer = self.0.mkdir(&args).await.map_err(text)?;
        said(name, answer).map(drop).map_err(|(_, why)| why)
    }

    pub(super) async fn write(&mut self, path: &str, number: u64) -> Result<(), String> {
        let (directory, name) = self.parent(path).await?;
        let args = CREATE3args {
            where_: place(&directory, name),
            how: createhow3::UNCHECKED(permissions(0o644)),
        };
        let answer = self.0.create(&args).await.map_err(text)?;
        let made = said(path, answer).map_err(|(_, why)| why)?;
        let Nfs3Option::Some(file) = made.obj else {
            return Err("no handle".into());
        };
        let data = content(number);
        let args = WRITE3args {
            file,
            offset: 0,
            count: u32::try_from(data.len()).unwrap(),
            stable: stable_how::FILE_SYNC,
            data: Opaque::borrowed(&data),
        };
        let answer = self.0.write(&args).await.map_err(text)?;
        said(path, answer).map(drop).map_err(|(_, why)| why)
    }

    pub(super) async fn remove(&mut self, path: &str) -> Result<(), String> {
        let (directory, name) = self.parent(path).await?;
        let object = place(&directory, name);
        let answer = self.0.remove(&REMOVE3args { object }).await;
        said(path, answer.map_err(text)?)
            .map(drop)
            .map_err(|(_, why)| why)
    }

    /// All that it shows.
    pub(super) async fn look(&mut self) -> Result<Copied, String> {
        let mut files = Copied::new();
        for path in PATHS {
            let (directory, name) = self.parent(path).await?;
            let Some(file) = self.find_in(&directory, name).await? else {
                continue;
            };
            let args = READ3args {
                file,
                offset: 0,
                count: 1 << 20,
            };
            let answer = self.0.read(&args).await.map_err(text)?;
            let read = said(path, answer).map_err(|(_, why)| why)?;
            let number = number_in(&read.data);
            files.insert(path, number.ok_or_else(|| format!("{path} is torn"))?);
        }
        Ok(files)
    }

    /// The attributes that its files have, for an import that is to make such files.
    pub(super) async fn attributes(&mut self, path: &str) -> Result<Attributes, String> {
        let (directory, name) = self.parent(path).await?;
        let found = self.find_in(&directory, name).await?;
        let object = found.ok_or_else(|| format!("{path} is gone"))?;
        let answer = self.0.getattr(&GETATTR3args { object }).await;
        let answer = match answer.map_err(text)? {
            Nfs3Result::Ok(got) => got.obj_attributes,
            Nfs3Result::Err((status, _)) => return Err(format!("{path}: {status:?}")),
        };
        Ok(Attributes {
            mode: answer.mode & 0o7777,
            uid: answer.uid,
            gid: answer.gid,
            mtime: Timestamp::new(1, 0),
            atime: Timestamp::new(1, 0),
        })
    }
}
