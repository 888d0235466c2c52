//! A session's files over NFS, changed by lines of a script and told as lines of text.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)] // Shared by several test binaries.

use nfs3_client::tokio::{TokioConnector, TokioIo};
use nfs3_client::{Nfs3Connection, Nfs3ConnectionBuilder};
use nfs3_types::nfs3::{
    CREATE3args, GETATTR3args, LINK3args, LOOKUP3args, MKDIR3args, Nfs3Option, Nfs3Result,
    READ3args, READDIR3args, READLINK3args, REMOVE3args, RENAME3args, RMDIR3args, SETATTR3args,
    SYMLINK3args, WRITE3args, cookieverf3, createhow3, diropargs3, fattr3, filename3, ftype3,
    nfs_fh3, nfspath3, sattr3, stable_how, symlinkdata3,
};
use nfs3_types::xdr_codec::Opaque;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::support::Server;

pub struct Files(Nfs3Connection<TokioIo<TcpStream>>);

impl Files {
    /// Mounts a session as `session open` told it.
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

    /// Runs lines: `write PATH TEXT`, `save` (through a new file), `mkdir`, `mv`, `ln`, `symlink`,
    /// `rm`, `rmdir`, `chmod PATH MODE`.
    pub async fn script(&mut self, lines: &[&str]) {
        for line in lines {
            self.line(line).await;
        }
    }

    async fn line(&mut self, line: &str) {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_default();
        let (verb, path, more) = (word(), word(), word());
        match verb {
            "write" => self.write(path.as_bytes(), more.as_bytes()).await,
            "save" => {
                self.write(b"new.tmp", more.as_bytes()).await;
                self.rename("new.tmp", path).await;
            }
            "mkdir" => {
                let (dir, name) = self.place(path.as_bytes()).await;
                let args = MKDIR3args {
                    where_: at(&dir, name),
                    attributes: with_mode(0o755),
                };
                done(line, self.0.mkdir(&args).await.unwrap());
            }
            "mv" => self.rename(path, more).await,
            "ln" => {
                let file = self.find(path.as_bytes()).await.unwrap();
                let (dir, name) = self.place(more.as_bytes()).await;
                let link = at(&dir, name);
                done(line, self.0.link(&LINK3args { file, link }).await.unwrap());
            }
            "symlink" => {
                let (dir, name) = self.place(path.as_bytes()).await;
                let args = SYMLINK3args {
                    where_: at(&dir, name),
                    symlink: symlinkdata3 {
                        symlink_attributes: with_mode(0o777),
                        symlink_data: nfspath3(Opaque::borrowed(more.as_bytes())),
                    },
                };
                done(line, self.0.symlink(&args).await.unwrap());
            }
            "rm" => {
                let (dir, name) = self.place(path.as_bytes()).await;
                let object = at(&dir, name);
                done(line, self.0.remove(&REMOVE3args { object }).await.unwrap());
            }
            "rmdir" => {
                let (dir, name) = self.place(path.as_bytes()).await;
                let object = at(&dir, name);
                done(line, self.0.rmdir(&RMDIR3args { object }).await.unwrap());
            }
            "chmod" => {
                let args = SETATTR3args {
                    object: self.find(path.as_bytes()).await.unwrap(),
                    new_attributes: with_mode(u32::from_str_radix(more, 8).unwrap()),
                    guard: Nfs3Option::None,
                };
                done(line, self.0.setattr(&args).await.unwrap());
            }
            _ => panic!("{line:?} is no line"),
        }
    }

    async fn rename(&mut self, from: &str, to: &str) {
        let (from_dir, from_name) = self.place(from.as_bytes()).await;
        let (to_dir, to_name) = self.place(to.as_bytes()).await;
        let args = RENAME3args {
            from: at(&from_dir, from_name),
            to: at(&to_dir, to_name),
        };
        done(from, self.0.rename(&args).await.unwrap());
    }

    /// The directory of a path, and the name in it.
    async fn place<'p>(&mut self, path: &'p [u8]) -> (nfs_fh3, &'p [u8]) {
        match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => {
                let dir = self.find(&path[..slash]).await.unwrap();
                (dir, &path[slash + 1..])
            }
            None => (self.0.root_nfs_fh3(), path),
        }
    }

    pub async fn find(&mut self, path: &[u8]) -> Option<nfs_fh3> {
        let mut found = self.0.root_nfs_fh3();
        for name in path.split(|byte| *byte == b'/') {
            if name.is_empty() {
                continue;
            }
            let what = at(&found, name);
            match self.0.lookup(&LOOKUP3args { what }).await.unwrap() {
                Nfs3Result::Ok(next) => found = next.object,
                Nfs3Result::Err(_) => return None,
            }
        }
        Some(found)
    }

    /// Writes a file anew, in place if it exists, and does not commit it.
    pub async fn write(&mut self, path: &[u8], content: &[u8]) {
        let (dir, name) = self.place(path).await;
        let args = CREATE3args {
            where_: at(&dir, name),
            how: createhow3::UNCHECKED(sattr3 {
                mode: Nfs3Option::Some(0o644),
                size: Nfs3Option::Some(0),
                ..sattr3::default()
            }),
        };
        let Nfs3Result::Ok(made) = self.0.create(&args).await.unwrap() else {
            panic!("{path:?} is not created");
        };
        let Nfs3Option::Some(file) = made.obj else {
            panic!("no handle");
        };
        let args = WRITE3args {
            file,
            offset: 0,
            count: u32::try_from(content.len()).unwrap(),
            stable: stable_how::UNSTABLE,
            data: Opaque::borrowed(content),
        };
        done("write", self.0.write(&args).await.unwrap());
    }

    pub async fn read(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        let file = self.find(path).await?;
        Some(self.content(file).await)
    }

    async fn content(&mut self, file: nfs_fh3) -> Vec<u8> {
        let args = READ3args {
            file,
            offset: 0,
            count: 1 << 20,
        };
        match self.0.read(&args).await.unwrap() {
            Nfs3Result::Ok(read) => read.data.as_ref().to_vec(),
            Nfs3Result::Err(_) => panic!("not read"),
        }
    }

    pub async fn attributes(&mut self, path: &[u8]) -> fattr3 {
        let object = self.find(path).await.unwrap();
        match self.0.getattr(&GETATTR3args { object }).await.unwrap() {
            Nfs3Result::Ok(found) => found.obj_attributes,
            Nfs3Result::Err(_) => panic!("no attributes"),
        }
    }

    /// Everything, a line each, in the order of the paths.
    pub async fn lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut dirs = vec![String::new()];
        while let Some(dir) = dirs.pop() {
            for name in self.names(dir.as_bytes()).await {
                let path = match dir.as_str() {
                    "" => name,
                    dir => format!("{dir}/{name}"),
                };
                let stat = self.attributes(path.as_bytes()).await;
                lines.push(self.described(&path, &stat).await);
                if stat.type_ == ftype3::NF3DIR {
                    dirs.push(path);
                }
            }
        }
        lines.sort();
        lines
    }

    async fn described(&mut self, path: &str, stat: &fattr3) -> String {
        let object = self.find(path.as_bytes()).await.unwrap();
        let (mut line, usual) = match stat.type_ {
            ftype3::NF3DIR => (format!("{path}/"), 0o755),
            ftype3::NF3LNK => {
                let args = READLINK3args { symlink: object };
                let Nfs3Result::Ok(read) = self.0.readlink(&args).await.unwrap() else {
                    panic!("{path} is not read");
                };
                let target = String::from_utf8_lossy(read.data.0.as_ref()).into_owned();
                (format!("{path} -> {target}"), 0o777)
            }
            _ => {
                let content = self.content(object).await;
                let content = String::from_utf8_lossy(&content).into_owned();
                (format!("{path} = {content}"), 0o644)
            }
        };
        if stat.mode != usual {
            line += &format!(" {:o}", stat.mode);
        }
        if stat.nlink > 1 && stat.type_ != ftype3::NF3DIR {
            line += &format!(" x{}", stat.nlink);
        }
        line
    }

    /// Names in a directory, which fit into one reply.
    pub async fn names(&mut self, dir: &[u8]) -> Vec<String> {
        let args = READDIR3args {
            dir: self.find(dir).await.unwrap(),
            cookie: 0,
            cookieverf: cookieverf3([0; 8]),
            count: 60_000,
        };
        let Nfs3Result::Ok(list) = self.0.readdir(&args).await.unwrap() else {
            panic!("no listing");
        };
        assert!(list.reply.eof);
        let entries = list.reply.entries.into_inner().into_iter();
        let names =
            entries.map(|entry| String::from_utf8_lossy(entry.name.0.as_ref()).into_owned());
        names
            .filter(|name| !matches!(name.as_str(), "." | ".."))
            .collect()
    }
}

fn at<'a>(dir: &nfs_fh3, name: &'a [u8]) -> diropargs3<'a> {
    diropargs3 {
        dir: dir.clone(),
        name: filename3(Opaque::borrowed(name)),
    }
}

fn with_mode(mode: u32) -> sattr3 {
    sattr3 {
        mode: Nfs3Option::Some(mode),
        ..sattr3::default()
    }
}

fn done<T, E>(what: &str, result: Nfs3Result<T, E>) {
    assert!(matches!(result, Nfs3Result::Ok(_)), "{what} fails");
}
