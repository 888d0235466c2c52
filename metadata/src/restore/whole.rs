//! A whole image made as another.

use base::{ChunkId, InodeId};
use bytes::Bytes;

use super::{Rules, chunk_of, differs};
use crate::compare::SnapshotError;
use crate::keyspace::image::{self as keys, ImageKey};
use crate::record::inode::InodeRecord;
use crate::tree::{Change, Diff, Editor, Root, Tree};

/// Makes the tree that `from` has to become to be as `to`. It is durable afterwards. It is `from` if
/// nothing differs that counts.
///
/// `touch` is called for each chunk that the new part of the tree refers to, before anything refers
/// to it. The caller holds the chunk store (`docs/design/0002-collection.md`).
///
/// # Errors
///
/// The store fails or something is damaged. Nothing but unused nodes is left then.
///
/// # Cancellation
///
/// Safe to drop, as after an error.
pub async fn whole(
    tree: &Tree,
    (from, to): (Root, Root),
    rules: Rules,
    touch: impl FnMut(ChunkId) + Send,
) -> Result<Root, SnapshotError> {
    let mut making = Making {
        tree,
        roots: (from, to),
        rules,
        touch,
        diff: tree.diff(from, to),
        ahead: None,
        editor: tree.edit(from).await?,
        is_changed: false,
    };
    while let Some((key, change)) = making.take().await? {
        match key {
            // Of the commit, and of no file.
            ImageKey::Conflict(_) => making.write(&key, &change).await?,
            _ => making.inode(key, change).await?,
        }
    }
    if !making.is_changed {
        return Ok(from);
    }
    Ok(making.editor.finish().await?.root)
}

/// Makes of `made`, which [`whole`] made of `before` to be as `to`, what it makes of `now`: what was changed
/// between these two is all that is looked at.
///
/// # Errors
///
/// As [`whole`].
///
/// # Cancellation
///
/// Safe to drop, as after an error.
pub async fn whole_again(
    tree: &Tree,
    made: Root,
    (before, now): (Root, Root),
    to: Root,
    rules: Rules,
) -> Result<Root, SnapshotError> {
    let mut editor = tree.edit(made).await?;
    let mut diff = tree.diff(before, now);
    let mut last = None;
    while let Some(change) = diff.next().await? {
        let inode = keys::decode(&change.key)?.inode();
        if last.replace(inode) == Some(inode) {
            continue;
        }
        // Whatever it is now, it has what the version has. Its times have to be later than they are
        // now.
        let key = keys::inode(inode);
        let Some(new) = tree.get(to, &key).await? else {
            continue;
        };
        let old = tree.get(now, &key).await?;
        let old = old.as_ref().map(|old| decode(inode, old)).transpose()?;
        let record = rules.renewed(old.as_ref(), &decode(inode, &new)?, true);
        editor.put(&key, &record.encode()).await?;
    }
    Ok(editor.finish().await?.root)
}

/// Whether `to` differs from `from` in nothing that counts.
///
/// # Errors
///
/// A tree cannot be read, or something is damaged.
///
/// # Cancellation
///
/// Safe to drop.
pub async fn is_as(tree: &Tree, (from, to): (Root, Root)) -> Result<bool, SnapshotError> {
    let mut diff = tree.diff(from, to);
    while let Some(change) = diff.next().await? {
        let inode = keys::decode(&change.key)?.inode();
        let (Some(old), Some(new)) = (&change.old, &change.new) else {
            return Ok(false);
        };
        // More than the attributes differs.
        if change.key != keys::inode(inode) {
            return Ok(false);
        }
        if differs(&decode(inode, old)?, &decode(inode, new)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn decode(inode: InodeId, value: &Bytes) -> Result<InodeRecord, SnapshotError> {
    InodeRecord::decode(inode, value).map_err(|error| SnapshotError::Record { inode, error })
}

struct Making<'a, T> {
    tree: &'a Tree,
    roots: (Root, Root),
    rules: Rules,
    touch: T,
    diff: Diff,
    /// A key that was read and not taken yet.
    ahead: Option<(ImageKey, Change)>,
    editor: Editor,
    is_changed: bool,
}

impl<T: FnMut(ChunkId) + Send> Making<'_, T> {
    /// The next key that differs.
    async fn take(&mut self) -> Result<Option<(ImageKey, Change)>, SnapshotError> {
        self.peek().await?;
        Ok(self.ahead.take())
    }

    async fn peek(&mut self) -> Result<Option<&ImageKey>, SnapshotError> {
        if self.ahead.is_none()
            && let Some(change) = self.diff.next().await?
        {
            self.ahead = Some((keys::decode(&change.key)?, change));
        }
        Ok(self.ahead.as_ref().map(|(key, _)| key))
    }

    /// Writes what differs of an inode, of which `change` is the first.
    async fn inode(&mut self, key: ImageKey, change: Change) -> Result<(), SnapshotError> {
        let inode = key.inode();
        let mut first = None;
        let (old, new) = if key == ImageKey::Inode(inode) {
            (change.old, change.new)
        } else {
            first = Some((key, change));
            let attributes = keys::inode(inode);
            let (from, to) = self.roots;
            (
                self.tree.get(from, &attributes).await?,
                self.tree.get(to, &attributes).await?,
            )
        };
        let next = match &first {
            Some((key, _)) => Some(key.clone()),
            None => self.peek().await?.cloned(),
        };
        let next = next.filter(|key| key.inode() == inode);
        let entries_differ = matches!(next, Some(ImageKey::Entry { .. }));
        self.attributes(inode, (old, new), next.is_some(), entries_differ)
            .await?;
        if let Some((key, change)) = first {
            self.write(&key, &change).await?;
        }
        while self.peek().await?.is_some_and(|key| key.inode() == inode) {
            if let Some((key, change)) = self.take().await? {
                self.write(&key, &change).await?;
            }
        }
        Ok(())
    }

    async fn attributes(
        &mut self,
        inode: InodeId,
        (old, new): (Option<Bytes>, Option<Bytes>),
        more_differs: bool,
        entries_differ: bool,
    ) -> Result<(), SnapshotError> {
        let decode = |value: &Bytes| decode(inode, value);
        let key = keys::inode(inode);
        let old = old.as_ref().map(decode).transpose()?;
        let Some(new) = new.as_ref().map(decode).transpose()? else {
            if old.is_some() {
                self.editor.remove(&key).await?;
                self.is_changed = true;
            }
            return Ok(());
        };
        if let Some(old) = &old
            && !more_differs
            && !differs(old, &new)
            && !self.rules.takes_times(old, &new)
        {
            return Ok(());
        }
        let record = self.rules.renewed(old.as_ref(), &new, entries_differ);
        self.editor.put(&key, &record.encode()).await?;
        self.is_changed = true;
        Ok(())
    }

    async fn write(&mut self, key: &ImageKey, change: &Change) -> Result<(), SnapshotError> {
        match &change.new {
            Some(value) => {
                if let Some(chunk) = chunk_of(key, value)? {
                    (self.touch)(chunk);
                }
                self.editor.put(&change.key, value).await?;
            }
            None => self.editor.remove(&change.key).await?,
        }
        self.is_changed = true;
        Ok(())
    }
}
