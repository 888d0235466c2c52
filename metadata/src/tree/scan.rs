//! Reading a range of keys in order.

use bytes::Bytes;

use super::cursor::Cursor;
use super::store::Nodes;
use super::{Root, TreeError};
use crate::kv::KeyRange;

/// Reads a range. Holds one path of nodes and what it has asked for in advance.
#[derive(Debug)]
pub struct Scan {
    nodes: Nodes,
    root: Root,
    start: Bytes,
    /// First key that is not wanted.
    end: Option<Bytes>,
    cursor: Option<Cursor>,
    /// The entry at the cursor was given out.
    is_taken: bool,
}

impl Scan {
    pub(super) fn new(nodes: Nodes, root: Root, range: KeyRange) -> Self {
        Self {
            nodes,
            root,
            start: range.start,
            end: Some(range.end),
            cursor: None,
            is_taken: false,
        }
    }

    /// Reads everything.
    pub(super) fn all(nodes: Nodes, root: Root) -> Self {
        Self {
            nodes,
            root,
            start: Bytes::new(),
            end: None,
            cursor: None,
            is_taken: false,
        }
    }

    /// The next key and its value; `None` after the last. The value shares the memory of its node:
    /// copy what is kept for long.
    ///
    /// # Errors
    ///
    /// A node is missing or damaged, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Safe to drop; nothing is skipped.
    pub async fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, TreeError> {
        if self.end.as_ref().is_some_and(|end| *end <= self.start) {
            return Ok(None);
        }
        let cursor = match &mut self.cursor {
            Some(cursor) => cursor,
            None => {
                let mut cursor = Cursor::new(self.nodes.clone(), self.root, 0).await?;
                cursor.read_ahead(self.end.clone());
                self.cursor.insert(cursor)
            }
        };
        if self.is_taken {
            cursor.advance().await?;
            self.is_taken = false;
        } else {
            cursor.seek_item(&self.start).await?;
        }
        let Some((key, value, _)) = cursor.entry() else {
            return Ok(None);
        };
        if self.end.as_ref().is_some_and(|end| *key >= **end) {
            return Ok(None);
        }
        let key = Bytes::copy_from_slice(key);
        self.is_taken = true;
        Ok(Some((key, value)))
    }
}
