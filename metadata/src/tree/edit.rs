//! Making a new version out of an old one.
//!
//! The entries of each level are a sequence that the split rule cuts into nodes. An edit replaces
//! parts of the lowest sequence, and what it does there replaces parts of the next. A level is
//! either *in step* with the old tree (what it has made so far ends where an old node begins) or
//! *open*: it holds an unfinished node, and copies the old entries that come next. When it has just
//! cut, and the next old entry begins an old node, it is in step again: from here on, cutting would
//! give the old nodes until something differs. So it goes right to the node that the next change is
//! in, and the level above keeps the old entries in between.
//!
//! In the level above, an open level replaces the entries from that of the first node it opened up to
//! that of the node at which it is in step again. While a level is open, so is the one above.

use super::cursor::Cursor;
use super::node::{
    KEY_BYTES_MAX, KeyBuffer, LEVEL_MAX, Node, NodeBuilder, Position, VALUE_BYTES_MAX,
};
use super::split::SplitRule;
use super::store::Nodes;
use super::{Counters, Root, TreeError, measure};
use crate::tree::cursor::child_at;

/// A new version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edited {
    /// Its root.
    pub root: Root,
    /// What it holds.
    pub counters: Counters,
    /// What it cost.
    pub written: Written,
}

/// Nodes that were given to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Their number.
    pub nodes: u64,
    /// Their bytes, uncompressed.
    pub bytes: u64,
}

/// Makes a new version; the old one stays what it is. Changes come in ascending order of keys.
///
/// Holds one unfinished node and one path of nodes a level, however many changes there are.
///
/// An editor whose change failed or was dropped says [`TreeError::Broken`] to whatever comes after,
/// unless the change was refused for its order or length.
#[derive(Debug)]
pub struct Editor {
    nodes: Nodes,
    rule: SplitRule,
    old: Option<Node>,
    levels: Vec<Level>,
    last_key: Option<KeyBuffer>,
    written: Written,
    /// A change has begun and has not ended well.
    is_broken: bool,
}

/// One level of the new tree.
#[derive(Debug)]
struct Level {
    /// The next old entry that is neither kept nor replaced.
    old: Cursor,
    /// Whether all up to `old` is as it was, but for what the level above knows already.
    is_in_step: bool,
    builder: NodeBuilder,
    /// The last node that was cut.
    last: Option<Node>,
}

impl Level {
    /// Whether the new tree was cut where an old node begins.
    fn is_aligned(&self) -> bool {
        self.builder.count() == 0 && self.old.is_at_node_start()
    }
}

impl Editor {
    pub(super) async fn new(nodes: Nodes, rule: SplitRule, root: Root) -> Result<Self, TreeError> {
        let old = nodes.root(root).await?;
        Ok(Self {
            nodes,
            rule,
            old,
            levels: Vec::new(),
            last_key: None,
            written: Written::default(),
            is_broken: false,
        })
    }

    /// Sets `key`. Setting it to what it is costs reads only.
    ///
    /// # Errors
    ///
    /// [`TreeError::Order`] if `key` is not greater than the key before, [`TreeError::TooLong`]: the
    /// edit is as it was. [`TreeError::Broken`]; a node is missing or damaged, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the editor is broken then. The store is none the worse.
    pub async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), TreeError> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(TreeError::TooLong);
        }
        self.change(key, Some(value)).await
    }

    /// Removes `key`. Removing what is not there costs reads only.
    ///
    /// # Errors
    ///
    /// As [`Editor::put`].
    ///
    /// # Cancellation
    ///
    /// As [`Editor::put`].
    pub async fn remove(&mut self, key: &[u8]) -> Result<(), TreeError> {
        self.change(key, None).await
    }

    /// Says which keys will be changed next, so that their nodes are asked for in advance.
    pub fn expect<'a>(&mut self, keys: impl Iterator<Item = &'a [u8]>) {
        if let Some(level) = self.levels.first_mut() {
            level.old.hint_keys(keys);
        }
    }

    async fn change(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), TreeError> {
        if key.len() > KEY_BYTES_MAX {
            return Err(TreeError::TooLong);
        }
        if self.last_key.as_ref().is_some_and(|last| **last >= *key) {
            return Err(TreeError::Order);
        }
        if self.is_broken {
            return Err(TreeError::Broken);
        }
        self.is_broken = true;
        self.last_key = Some(KeyBuffer::from_slice(key));
        self.make(key, value).await?;
        self.is_broken = false;
        Ok(())
    }

    /// Makes a change that is right.
    async fn make(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), TreeError> {
        self.fall_in_step(0).await?;
        let leaves = self.level(0)?;
        if leaves.is_in_step {
            leaves.old.seek_node(key).await?;
            let stored = leaves.old.node().and_then(|node| node.value(key));
            if stored.as_deref() == value {
                return Ok(());
            }
        }
        self.copy_until(0, key).await?;
        let leaves = self.level(0)?;
        if leaves.old.key() == Some(key) {
            leaves.old.advance().await?;
        }
        match value {
            Some(value) => self.append(0, key, value, measure(key, value)).await,
            None => Ok(()),
        }
    }

    /// A level, made when it is first needed.
    fn level(&mut self, number: usize) -> Result<&mut Level, TreeError> {
        while self.levels.len() <= number {
            let level = u8::try_from(self.levels.len()).unwrap_or(u8::MAX);
            if level > LEVEL_MAX {
                return Err(TreeError::TooDeep);
            }
            let old = Cursor::below(self.nodes.clone(), self.old.clone(), level);
            self.levels.push(Level {
                is_in_step: !old.is_empty(),
                old,
                builder: NodeBuilder::new(level),
                last: None,
            });
        }
        self.levels.get_mut(number).ok_or(TreeError::TooDeep)
    }

    /// If an open level was cut where an old node begins, it is in step: the level above goes on
    /// with the old entry of that node.
    async fn fall_in_step(&mut self, number: usize) -> Result<(), TreeError> {
        let level = self.level(number)?;
        if level.is_in_step || !level.is_aligned() {
            return Ok(());
        }
        let first = KeyBuffer::from_slice(level.old.key().unwrap_or_default());
        let above = self.level(number + 1)?;
        if above.old.is_empty() {
            // The node is the old root. Nothing above knows it, so it cannot be kept by leaving it.
            return Ok(());
        }
        above.old.seek_item(&first).await?;
        self.level(number)?.is_in_step = true;
        Ok(())
    }

    /// Opens the node at which a level is in step: the level above keeps all entries before that
    /// node's, and waits for what comes in its place.
    async fn open(&mut self, number: usize) -> Result<(), TreeError> {
        let level = self.level(number)?;
        level.is_in_step = false;
        let first = KeyBuffer::from_slice(level.old.key().unwrap_or_default());
        Box::pin(self.copy_until(number + 1, &first)).await
    }

    /// Keeps the old entries before `key`, by copying them or by leaving their nodes as they are,
    /// and leaves the level open.
    async fn copy_until(&mut self, number: usize, key: &[u8]) -> Result<(), TreeError> {
        loop {
            self.fall_in_step(number).await?;
            let level = self.level(number)?;
            if level.is_in_step {
                level.old.seek_node(key).await?;
                self.open(number).await?;
            }
            let next = self.level(number)?.old.key();
            if next.is_none_or(|next| next >= key) {
                return Ok(());
            }
            self.copy(number).await?;
        }
    }

    /// Copies one old entry.
    async fn copy(&mut self, number: usize) -> Result<(), TreeError> {
        let level = self.level(number)?;
        let Some((key, value, counters)) = level.old.entry() else {
            return Ok(());
        };
        let key = KeyBuffer::from_slice(key);
        level.old.advance().await?;
        self.append(number, &key, &value, counters).await
    }

    /// Adds an entry to an open level. If that cuts a node, the level above gets an entry, and so on.
    async fn append(
        &mut self,
        number: usize,
        key: &[u8],
        value: &[u8],
        counters: Counters,
    ) -> Result<(), TreeError> {
        let mut number = number;
        let mut cut = self.push(number, key, value, counters)?;
        while let Some(node) = cut {
            self.store(&node).await?;
            number += 1;
            cut = self.push(number, node.first_key(), &node.entry(), node.counters())?;
        }
        Ok(())
    }

    /// Adds an entry to the unfinished node; the node, if it ends there.
    fn push(
        &mut self,
        number: usize,
        key: &[u8],
        value: &[u8],
        counters: Counters,
    ) -> Result<Option<Node>, TreeError> {
        let rule = self.rule.clone();
        let level = self.level(number)?;
        let before = level.builder.len();
        level.builder.push(key, value, counters);
        let (after, count) = (level.builder.len(), level.builder.count());
        let ends = rule.ends(level.builder.level(), key, before, after, count);
        if ends {
            self.cut(number).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Finishes the unfinished node of a level.
    fn cut(&mut self, number: usize) -> Result<Node, TreeError> {
        let keys = self.nodes.keys().clone();
        let level = self.level(number)?;
        let node = level.builder.finish(&keys);
        level.last = Some(node.clone());
        Ok(node)
    }

    async fn store(&mut self, node: &Node) -> Result<(), TreeError> {
        self.nodes.put(node).await?;
        self.written.nodes += 1;
        self.written.bytes += u64::try_from(node.bytes().len()).unwrap_or(u64::MAX);
        Ok(())
    }

    /// The new version, which is durable with all its nodes when this returns.
    ///
    /// # Errors
    ///
    /// [`TreeError::Broken`]; a node is missing or damaged, or the store fails. The old version stays.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: at worst nodes are stored that nobody names.
    pub async fn finish(mut self) -> Result<Edited, TreeError> {
        if self.is_broken {
            return Err(TreeError::Broken);
        }
        self.level(0)?;
        let mut number = 0;
        // Finishing a level may add the one above.
        while number + 1 < self.levels.len() {
            self.finish_level(number).await?;
            number += 1;
        }
        let root = if self.level(number)?.is_in_step {
            self.old.clone()
        } else {
            self.finish_top(number).await?
        };
        if self.written.nodes > 0 {
            self.nodes.sync().await?;
        }
        Ok(Edited {
            root: Root(root.as_ref().map(Node::id)),
            counters: root.map_or_else(Counters::default, |root| root.counters()),
            written: self.written,
        })
    }

    /// Copies until the level is in step or the old tree ends.
    async fn finish_level(&mut self, number: usize) -> Result<(), TreeError> {
        loop {
            self.fall_in_step(number).await?;
            let level = self.level(number)?;
            if level.is_in_step {
                return Ok(());
            }
            if level.old.key().is_none() {
                break;
            }
            self.copy(number).await?;
        }
        if self.level(number)?.builder.count() > 0 {
            let node = self.cut(number)?;
            self.store(&node).await?;
            self.append(number + 1, node.first_key(), &node.entry(), node.counters())
                .await?;
        }
        self.level(number + 1)?.old.seek_end();
        Ok(())
    }

    /// The root node: the lowest that is alone in its level. The top level has no old entries.
    async fn finish_top(&mut self, number: usize) -> Result<Option<Node>, TreeError> {
        let count = self.level(number)?.builder.count();
        if count == 0 {
            return Ok(None);
        }
        let below = number.checked_sub(1).filter(|_| count == 1);
        let Some(below) = below else {
            let node = self.cut(number)?;
            self.store(&node).await?;
            return Ok(Some(node));
        };
        let mut root = self.level(below)?.last.clone();
        // What became of a large tree from which much was removed.
        while let Some(node) = &root
            && node.level() > 0
            && node.count() == 1
        {
            root = Some(self.nodes.child(&child_at(&Position::first(node))?).await?);
        }
        Ok(root)
    }
}
