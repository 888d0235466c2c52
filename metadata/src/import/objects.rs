//! Inodes: new ones, and those in memory.

use base::{InodeId, Timestamp};
use bytes::Bytes;

use super::{Attributes, Import, ImportError, Place, entry_of};
use crate::image::{DIRECTORY_BYTES, InodeNumbers};
use crate::keyspace::image as keys;
use crate::layers::ImageError;
use crate::record::RecordError;
use crate::record::inode::InodeRecord;
use crate::stat::{Device, FileKind, Stat};

/// Directories that stay in memory after a flush.
const DIRS_HELD_MAX: usize = 16 * 1024;

/// Most bytes that an inode adds to a transaction beside its name and what lives in it: the key, the
/// fixed part of the record, and what each key costs.
const INODE_BYTES: usize = 256;

/// What each key costs a transaction beside its bytes and those of its value: the layer's prefix, and
/// bookkeeping of the write and of its conflict range.
const KEY_OVERHEAD_BYTES: usize = 112;

/// An inode in memory.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) record: InodeRecord,
    /// All blocks so far are those that the image before has.
    pub(super) same_content: bool,
    /// It was flushed before, and read again.
    pub(super) is_again: bool,
    /// What it adds to the next flush: 0 if the layer has it as it is here.
    pub(super) waiting: usize,
}

impl Held {
    fn cost(record: &InodeRecord) -> usize {
        let name = record
            .link
            .as_ref()
            .map_or(0, |(_, name)| name.as_bytes().len());
        INODE_BYTES + name + record.inline.as_ref().map_or(0, Bytes::len)
    }
}

/// Sets attributes that come from outside.
pub(super) fn set(record: &mut InodeRecord, with: Attributes) {
    let stat = &mut record.stat;
    (stat.mode, stat.uid, stat.gid) = (with.mode & 0o7777, with.uid, with.gid);
    (stat.mtime, stat.atime) = (with.mtime, with.atime);
}

impl Import {
    /// Something new at a path where nothing is.
    pub(super) async fn make(
        &mut self,
        path: &[u8],
        kind: FileKind,
        with: Attributes,
    ) -> Result<InodeId, ImportError> {
        let place = self.place(path, kind).await?;
        let mut record = self.new_record(&place, kind).await?;
        set(&mut record, with);
        let entry = entry_of(&record);
        self.hold_new(record)?;
        self.enter(place.0, &place.1, entry).await?;
        Ok(entry.inode)
    }

    /// A record of something new, with the number that the image before has for it.
    pub(super) async fn new_record(
        &mut self,
        place: &Place,
        kind: FileKind,
    ) -> Result<InodeRecord, ImportError> {
        let before = self.before(place, kind).await?;
        let inode = match &before {
            Some(before) => before.stat.inode,
            None => self.next_number().await?,
        };
        let is_dir = kind == FileKind::Directory;
        let mut record = InodeRecord {
            stat: Stat {
                inode,
                kind,
                mode: 0o755,
                nlink: if is_dir { 2 } else { 1 },
                uid: 0,
                gid: 0,
                size: if is_dir { DIRECTORY_BYTES } else { 0 },
                used: 0,
                device: Device::default(),
                atime: self.now,
                mtime: self.now,
                ctime: self.now,
            },
            entries: 0,
            link: Some(place.clone()),
            verifier: None,
            inline: None,
        };
        // What nobody tells attributes of keeps those that it had.
        if let Some(Stat {
            mode,
            uid,
            gid,
            mtime,
            atime,
            ..
        }) = before.map(|before| before.stat)
        {
            set(
                &mut record,
                Attributes {
                    mode,
                    uid,
                    gid,
                    mtime,
                    atime,
                },
            );
        }
        Ok(record)
    }

    /// What the image before has in the same place, if it is of the same kind and not used already.
    async fn before(
        &mut self,
        (parent, name): &Place,
        kind: FileKind,
    ) -> Result<Option<InodeRecord>, ImportError> {
        let Some(old) = &self.old else {
            return Ok(None);
        };
        // A directory that is new has no entries there.
        if parent.raw() >= self.fresh {
            return Ok(None);
        }
        let Some(entry) = old.entry(*parent, name.as_bytes()).await? else {
            return Ok(None);
        };
        if entry.kind != kind {
            return Ok(None);
        }
        let before = old.attributes(entry.inode).await?;
        let is_taken = self.held.contains_key(&entry.inode)
            || self.value(&keys::inode(entry.inode)).await?.is_some();
        Ok(before.filter(|_| !is_taken))
    }

    async fn next_number(&mut self) -> Result<InodeId, ImportError> {
        if self.numbers.next >= self.numbers.end {
            self.numbers = self.store.allocate_inodes(self.workspace).await?;
        }
        let InodeNumbers { next, .. } = self.numbers;
        self.numbers.next += 1;
        Ok(InodeId::new(next))
    }

    /// Takes in a new inode.
    pub(super) fn hold_new(&mut self, record: InodeRecord) -> Result<(), ImportError> {
        self.usage.inodes += 1;
        if self.usage.inodes > self.owned.inodes_max {
            let max = self.owned.inodes_max;
            let why = format!("the import has more than the {max} files that its tenant may have");
            return Err(ImportError::NoSpace(why));
        }
        let held = Held {
            same_content: record.stat.inode.raw() < self.fresh,
            is_again: false,
            waiting: Held::cost(&record),
            record,
        };
        self.waiting += held.waiting;
        self.held.insert(held.record.stat.inode, held);
        Ok(())
    }

    /// Changes an inode, which the next flush writes then.
    pub(super) async fn change<T>(
        &mut self,
        inode: InodeId,
        how: impl FnOnce(&mut InodeRecord) -> Result<T, ImportError>,
    ) -> Result<T, ImportError> {
        let held = self.hold(inode).await?;
        let changed = how(&mut held.record)?;
        let before = std::mem::replace(&mut held.waiting, Held::cost(&held.record));
        let now = held.waiting;
        self.waiting = (self.waiting + now).saturating_sub(before);
        Ok(changed)
    }

    /// An inode that exists, in memory.
    pub(super) async fn hold(&mut self, inode: InodeId) -> Result<&mut Held, ImportError> {
        if !self.held.contains_key(&inode) {
            let value = self.value(&keys::inode(inode)).await?;
            // What is entered somewhere has attributes; the root has them always.
            let value = value.ok_or(RecordError::Truncated)?;
            let held = Held {
                record: InodeRecord::decode(inode, &value)?,
                same_content: true,
                is_again: true,
                waiting: 0,
            };
            self.held.insert(inode, held);
        }
        let held = self.held.get_mut(&inode);
        held.ok_or_else(|| ImageError::from(RecordError::Truncated).into())
    }

    /// Sets an image key by the next flush.
    pub(super) fn set(&mut self, key: Vec<u8>, value: Bytes) {
        // The key is there for the write, and twice for the conflict range.
        self.written += 3 * key.len() + value.len() + KEY_OVERHEAD_BYTES;
        self.changes.set(key, value);
    }

    /// The value of an image key, as it is now. Inodes in memory are not looked at.
    pub(super) async fn value(&self, key: &[u8]) -> Result<Option<Bytes>, ImportError> {
        if let Some(value) = self.changes.value(key) {
            return Ok(Some(value.clone()));
        }
        let txn = self.kv.begin();
        Ok(self.owned.layers.get(txn.as_ref(), key).await?)
    }

    /// Puts what is in memory among the changes, and forgets what is not likely to be used again.
    pub(super) async fn write_held(&mut self) -> Result<(), ImportError> {
        let (old, fresh, now) = (self.old.clone(), self.fresh, self.now);
        for (inode, held) in &mut self.held {
            if std::mem::take(&mut held.waiting) == 0 {
                continue;
            }
            let before = match &old {
                Some(old) if inode.raw() < fresh => old.attributes(*inode).await?,
                _ => None,
            };
            let is_root_of_nothing = *inode == InodeId::ROOT && before.is_none();
            if !is_root_of_nothing {
                settle_times(held, before.as_ref(), now);
            }
            self.changes.set(keys::inode(*inode), held.record.encode());
        }
        self.waiting = 0;
        let keep_dirs = self.held.len() <= DIRS_HELD_MAX;
        // Files stay while their content is still coming: whether it is the same is known here.
        self.held.retain(|inode, held| {
            keep_dirs && held.record.stat.is_dir() || Some(*inode) == self.open
        });
        Ok(())
    }
}

/// Says when an inode was changed last: when it was in the image before, if it is what it was there.
/// That somebody has read it since is no change.
fn settle_times(held: &mut Held, before: Option<&InodeRecord>, now: Timestamp) {
    let stat = &mut held.record.stat;
    let Some(before) = before else {
        stat.ctime = now;
        return;
    };
    let is_file = !before.stat.is_dir();
    if is_file && held.is_again && stat.ctime != before.stat.ctime {
        // Found to differ when it was written first.
        return;
    }
    let mut as_before = held.record.clone();
    as_before.stat.ctime = before.stat.ctime;
    as_before.stat.atime = before.stat.atime;
    as_before.verifier = before.verifier;
    if is_file {
        // Further names come later; they are told of by the count and not by the time.
        as_before.stat.nlink = before.stat.nlink;
    }
    let stat = &mut held.record.stat;
    if held.same_content && as_before == *before {
        (stat.ctime, stat.atime) = (before.stat.ctime, before.stat.atime);
    } else {
        stat.ctime = now.max(before.stat.ctime.tick());
    }
}
