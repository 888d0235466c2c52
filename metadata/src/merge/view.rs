//! What a merge reads and stores, seen from inside.

use std::fmt::{self, Debug};
use std::pin::Pin;

use base::InodeId;
use bytes::Bytes;

use super::MergeError;
use crate::image::Block;
use crate::kv::KeyRange;
use crate::layers::{ImageError, Scanned};
use crate::record::inode::InodeRecord;

/// Longest label of a side, in bytes.
const LABEL_BYTES_MAX: usize = 16;

/// A future of a call that a merge makes.
pub type MergeFuture<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// An immutable image.
pub trait ImageView: Send + Sync + Debug {
    /// The value of an image key.
    fn get<'a>(&'a self, key: &'a [u8]) -> MergeFuture<'a, Option<Bytes>, ImageError>;

    /// The first pairs of a range, at most `pairs_max`.
    fn scan<'a>(
        &'a self,
        range: &'a KeyRange,
        pairs_max: usize,
    ) -> MergeFuture<'a, Scanned, ImageError>;
}

/// A key in which an image differs from base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The image key.
    pub key: Bytes,
    /// Its value in base.
    pub old: Option<Bytes>,
    /// Its value in the image.
    pub new: Option<Bytes>,
}

/// How an image differs from base.
pub trait Differences: Send + Debug {
    /// The next differing key; `None` after the last.
    fn next(&mut self) -> MergeFuture<'_, Option<Difference>, ImageError>;
}

/// Why content could not be read or stored.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct ContentError {
    /// What was to be done.
    pub what: &'static str,
    /// Why it failed.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// File content.
pub trait Content: Send + Sync + Debug {
    /// The whole content of a file. Called only for files of at most `MERGE_TEXT_BYTES_MAX` bytes.
    fn read<'a>(
        &'a self,
        origin: Origin,
        inode: InodeId,
        record: &'a InodeRecord,
    ) -> MergeFuture<'a, Bytes, ContentError>;

    /// Merges two texts that came from `base` by lines, as [`merge_texts`](super::merge_texts) does.
    /// Whoever has other things to do meanwhile has it done elsewhere: it may take a second.
    fn merge_texts(
        &self,
        base: Bytes,
        ours: Bytes,
        theirs: Bytes,
    ) -> MergeFuture<'_, Option<Bytes>, ContentError> {
        Box::pin(async move { Ok(super::merge_texts(&base, &ours, &theirs)) })
    }

    /// Stores content, and returns its blocks by their index. Chunks are durable after it.
    fn store(&self, content: Bytes) -> MergeFuture<'_, Vec<(u32, Block)>, ContentError>;
}

/// An image that is merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The one the result is written over.
    Ours,
    /// The other.
    Theirs,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Ours, Self::Theirs];

    /// The other side.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Ours => Self::Theirs,
            Self::Theirs => Self::Ours,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Theirs => "theirs",
        }
    }
}

/// An image that takes part in a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// What both sides came from.
    Base,
    /// A side.
    Of(Side),
}

/// Something for each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pair<T> {
    /// For ours.
    pub ours: T,
    /// For theirs.
    pub theirs: T,
}

impl<T> Pair<T> {
    /// That of `side`.
    pub fn of(&self, side: Side) -> &T {
        match side {
            Side::Ours => &self.ours,
            Side::Theirs => &self.theirs,
        }
    }

    /// That of `side`.
    pub fn of_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Ours => &mut self.ours,
            Side::Theirs => &mut self.theirs,
        }
    }
}

/// What names a side in a suffix: the start of a commit's id, or a session's.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ShortId(String);

/// A label that cannot be part of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a label has 1 to {LABEL_BYTES_MAX} letters and digits")]
pub struct ShortIdError;

impl ShortId {
    /// Checks a label.
    ///
    /// # Errors
    ///
    /// It is empty, too long, or has other characters than ASCII letters and digits.
    pub fn new(text: &str) -> Result<Self, ShortIdError> {
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if text.is_empty() || text.len() > LABEL_BYTES_MAX || !plain {
            return Err(ShortIdError);
        }
        Ok(Self(text.to_owned()))
    }

    /// A label for a side of which nothing is known.
    #[must_use]
    pub fn unnamed() -> Self {
        Self("x".to_owned())
    }

    /// The suffix of what is put aside, for a side with this label.
    pub(super) fn suffix(&self, side: Side) -> String {
        format!("~{}.{}", side.word(), self.0)
    }
}

impl Debug for ShortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&self.0, f)
    }
}

/// All pairs of a range.
pub(super) async fn scan_all(
    view: &dyn ImageView,
    range: &KeyRange,
) -> Result<Vec<(Bytes, Bytes)>, MergeError> {
    const PAGE: usize = 1000;
    let mut pairs = Vec::new();
    let mut rest = range.clone();
    loop {
        let page = view.scan(&rest, PAGE).await?;
        pairs.extend(page.pairs);
        let Some(covered) = page.covered_to else {
            return Ok(pairs);
        };
        let mut after = covered.to_vec();
        after.push(0);
        rest.start = after.into();
    }
}
