//! A session's files, changed by lines of a script and told as lines of text.

use nfs3_types::nfs3::{READDIR3args, READLINK3args, cookieverf3, fattr3, ftype3};

use super::files::{Mount, answer};

impl Mount {
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
            "write" => {
                self.write(path, more).await;
            }
            "save" => {
                self.write("new.tmp", more).await;
                self.rename("new.tmp", path).await;
            }
            "mkdir" => self.mkdir(path).await,
            "mv" => self.rename(path, more).await,
            "ln" => self.link(path, more).await,
            "symlink" => self.symlink(path, more).await,
            "rm" => self.remove(path).await,
            "rmdir" => self.rmdir(path).await,
            "chmod" => {
                let mode = u32::from_str_radix(more, 8).unwrap();
                self.chmod(path, mode).await;
            }
            _ => panic!("{line:?} is no line"),
        }
    }

    /// Everything, a line each, in the order of the paths.
    pub async fn lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut dirs = vec![String::new()];
        while let Some(dir) = dirs.pop() {
            for name in self.names(&dir).await {
                let path = match dir.as_str() {
                    "" => name,
                    dir => format!("{dir}/{name}"),
                };
                let stat = self.stat(&path).await;
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
        let (mut line, usual) = match stat.type_ {
            ftype3::NF3DIR => (format!("{path}/"), 0o755),
            ftype3::NF3LNK => {
                let symlink = self.find(path).await.unwrap();
                let read = answer(self.nfs.readlink(&READLINK3args { symlink }).await).unwrap();
                let target = String::from_utf8_lossy(read.data.0.as_ref()).into_owned();
                (format!("{path} -> {target}"), 0o777)
            }
            _ => {
                let content = self.read(path).await.unwrap();
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
    pub async fn names(&mut self, dir: &str) -> Vec<String> {
        let args = READDIR3args {
            dir: self.find(dir).await.unwrap(),
            cookie: 0,
            cookieverf: cookieverf3([0; 8]),
            count: 60_000,
        };
        let list = answer(self.nfs.readdir(&args).await).unwrap();
        assert!(list.reply.eof);
        let entries = list.reply.entries.into_inner().into_iter();
        let names =
            entries.map(|entry| String::from_utf8_lossy(entry.name.0.as_ref()).into_owned());
        names
            .filter(|name| !matches!(name.as_str(), "." | ".."))
            .collect()
    }
}
