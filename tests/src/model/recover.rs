//! After a crash: what unconfirmed data came to, and whether everything else is as it was.

use base::{Caller, InodeId, Timestamp};
use bytes::Bytes;
use metadata::stat::{FileKind, Stat};

use super::content::{Content, index};
use super::{Body, Model, Verdict, ensure};
use crate::subject::{Call, Op, Subject, perform};

/// Entries asked for at a time when a whole directory is compared.
const PAGE: usize = 7;

/// Runs `op` as the superuser.
fn call(now: Timestamp, op: Op) -> Call {
    Call {
        caller: Caller::root(),
        now,
        op,
    }
}

impl Model {
    /// Takes over what a crash left of unconfirmed data.
    ///
    /// # Errors
    ///
    /// A file holds something that was never in it, or lacks what was confirmed.
    pub fn recover(&mut self, subject: &mut impl Subject, now: Timestamp) -> Verdict {
        let unsettled: Vec<InodeId> = self
            .nodes
            .keys()
            .copied()
            .filter(|inode| self.unsettled(*inode) > 0)
            .collect();
        for inode in unsettled {
            self.take_over(subject, now, inode)?;
        }
        Ok(())
    }

    /// Takes over what is left of a file whose unconfirmed data was given up: it says so by a later
    /// ctime.
    ///
    /// # Errors
    ///
    /// As [`Model::recover`].
    pub fn discard(
        &mut self,
        subject: &mut impl Subject,
        now: Timestamp,
        inode: InodeId,
    ) -> Verdict {
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.ctime = node.ctime.tick();
            node.mtime = node.ctime;
            node.confirm_attributes();
        }
        self.take_over(subject, now, inode)
    }

    /// How many states a crash may bring a file back to, beside the present one, without looking
    /// at its blocks one by one.
    #[must_use]
    pub fn fallbacks(&self, inode: InodeId) -> usize {
        // Data and attributes are lost apart, the attributes not without the data.
        let states = self.unsettled(inode) + 1;
        states * (states + 1) / 2 - 1
    }

    /// A crash has brought a file back to one of [`Model::fallbacks`] states. What it holds is
    /// confirmed then.
    pub fn fall_back(&mut self, inode: InodeId, choice: usize) {
        let block_bytes = self.limits.block_bytes;
        let Some(node) = self.nodes.get_mut(&inode) else {
            return;
        };
        let (mode, mtime, ctime) = (node.mode, node.mtime, node.ctime);
        let Body::File(file) = &mut node.body else {
            return;
        };
        let states = file.older.len() + 1;
        let pairs = (0..states).flat_map(|data| (data..states).map(move |times| (data, times)));
        let Some((data, times)) = pairs.into_iter().nth(choice) else {
            return;
        };
        let kept = file.older.first().map(|version| version.content.clone());
        if let (Some(version), Some(kept)) = (file.older.get(data), kept) {
            let bytes = version.content.part(0, u64::MAX).to_vec();
            file.content = file.content.fall_back(&kept, &bytes, block_bytes);
        }
        let told = file.older.get(times);
        let told = told.map_or((mode, mtime, ctime), |it| (it.mode, it.mtime, it.ctime));
        file.older.clear();
        (node.mode, node.mtime, node.ctime) = told;
    }

    fn take_over(&mut self, subject: &mut impl Subject, now: Timestamp, inode: InodeId) -> Verdict {
        let root = Caller::root();
        let cx = metadata::ops::Context { caller: &root, now };
        let stat = subject
            .getattr(cx, inode)
            .map_err(|error| format!("{inode:?} is lost: {error}"))?;
        let count = u32::try_from(stat.size).map_err(|_| "size beyond reason".to_owned())?;
        let read = subject
            .read(cx, inode, 0, count)
            .map_err(|error| format!("{inode:?} cannot be read: {error}"))?;
        self.adopt(inode, &stat, &read.data)
            .map_err(|error| format!("{inode:?} without unconfirmed data: {error}"))
    }

    /// Accepts `stat` and `bytes` as what is left of an unsettled file.
    fn adopt(&mut self, inode: InodeId, stat: &Stat, bytes: &[u8]) -> Verdict {
        let block_bytes = self.limits.block_bytes;
        let Some(node) = self.nodes.get_mut(&inode) else {
            return Err("the model has lost it".to_owned());
        };
        let (mode, mtime, ctime) = (node.mode, node.mtime, node.ctime);
        let Body::File(file) = &mut node.body else {
            return Ok(());
        };
        let states: Vec<&Content> = file
            .older
            .iter()
            .map(|version| &version.content)
            .chain([&file.content])
            .collect();
        let least = states.first().map_or(0, |state| state.len());
        ensure((least..=file.content.len()).contains(&bytes.len()), || {
            format!(
                "size is {}, expected {least}..={}",
                bytes.len(),
                file.content.len()
            )
        })?;
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        for block in 0..size.div_ceil(block_bytes) {
            let (from, to) = (block * block_bytes, size.min((block + 1) * block_bytes));
            let found = bytes.get(index(from)..index(to)).unwrap_or_default();
            // A size is justified by data: the last block is not filled up with zeros.
            let is_last = to == size;
            let known = states.iter().any(|state| {
                if is_last && state.len() < bytes.len() {
                    return false;
                }
                let part = state.part(from, to);
                let (same, rest) = found.split_at(part.len().min(found.len()));
                same == part && rest.iter().all(|byte| *byte == 0)
            });
            ensure(known, || format!("block {block} was never like this"))?;
        }
        let mut times = file
            .older
            .iter()
            .map(|version| (version.mode, version.mtime, version.ctime))
            .chain([(mode, mtime, ctime)]);
        let now = (stat.mode, stat.mtime, stat.ctime);
        ensure(times.any(|known| known == now), || {
            format!("attributes were never like this: {stat:?}")
        })?;
        let written = states
            .first()
            .map_or_else(Content::default, |state| (*state).clone());
        let left = file.content.fall_back(&written, bytes, block_bytes);
        file.content = left;
        file.older.clear();
        (node.mode, node.mtime, node.ctime) = now;
        Ok(())
    }

    /// Compares everything in the filesystem with the model.
    ///
    /// # Errors
    ///
    /// Something differs.
    pub fn compare_all(&mut self, subject: &mut impl Subject, now: Timestamp) -> Verdict {
        let inodes: Vec<(InodeId, FileKind)> = self.inodes().collect();
        for (inode, kind) in inodes {
            self.ask(subject, now, Op::Getattr { inode })?;
            match kind {
                FileKind::File => {
                    let size = self.size(inode);
                    let count = u32::try_from(size).unwrap_or(u32::MAX).saturating_add(1);
                    let read = Op::Read {
                        inode,
                        offset: 0,
                        count,
                    };
                    self.ask(subject, now, read)?;
                }
                FileKind::Symlink => self.ask(subject, now, Op::Readlink { inode })?,
                FileKind::Directory => self.compare_listing(subject, now, inode)?,
                _ => {}
            }
        }
        let gone: Vec<InodeId> = self
            .born
            .iter()
            .copied()
            .filter(|inode| self.node(*inode).is_none())
            .collect();
        for inode in gone {
            self.ask(subject, now, Op::Getattr { inode })?;
        }
        Ok(())
    }

    fn compare_listing(
        &mut self,
        subject: &mut impl Subject,
        now: Timestamp,
        dir: InodeId,
    ) -> Verdict {
        let mut seen = 0;
        let mut cookie = 0;
        loop {
            let page = Op::List {
                dir,
                cookie,
                count: PAGE,
            };
            let page = call(now, page);
            let answer = perform(subject, &page);
            self.judge(&page, &answer)
                .map_err(|error| format!("{:?}: {error}", page.op))?;
            let crate::subject::Answer::Listed(Ok(reply)) = answer else {
                return Err("a listing failed".to_owned());
            };
            seen += reply.entries.len();
            match reply.entries.last() {
                Some(entry) if !reply.end => cookie = entry.cookie,
                _ => break,
            }
        }
        let expected = self.names(dir).count();
        ensure(seen == expected, || {
            format!("{dir:?} has {seen} entries, expected {expected}")
        })?;
        let names: Vec<Vec<u8>> = self.names(dir).map(|(name, _)| name.to_vec()).collect();
        for name in names {
            let name = name.into();
            self.ask(subject, now, Op::Lookup { dir, name })?;
        }
        self.ask(
            subject,
            now,
            Op::Lookup {
                dir,
                name: Bytes::from_static(b".."),
            },
        )
    }

    fn ask(&mut self, subject: &mut impl Subject, now: Timestamp, op: Op) -> Verdict {
        let call = call(now, op);
        let answer = perform(subject, &call);
        self.judge(&call, &answer)
            .map_err(|error| format!("{:?}: {error}", call.op))
    }
}
