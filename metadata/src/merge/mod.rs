//! Merging two images that came from one: what the result must be is in `docs/design/0005-merge.md`.
//!
//! The merge works on *identities*, of which an inode is one unless it was replaced or made twice
//! (`identity`), and on *slots*: the names at which a side differs from base (`slots`). First it
//! decides which identities live and which slots they claim (`survive`), then it mends what does
//! not fit together (`repair`), then it merges attributes and content (`settle`), and last it
//! writes down how the result differs from ours (`emit`). Nothing before the last step depends on
//! numbers of new inodes, and all I/O is behind the traits of `view`.

mod changes;
mod emit;
mod identity;
mod object;
mod repair;
mod report;
mod settle;
mod slots;
mod survive;
mod text;
mod trees;
mod view;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use base::InodeId;
use bytes::Bytes;

use crate::image::{InodeNumbers, NameHasher};
use crate::keyspace::KeyError;
use crate::layers::ImageError;
use crate::record::RecordError;
use crate::record::conflict::{Conflict, Sources};

use changes::Changes;
use identity::Identities;
use object::Object;
use report::Found;
use slots::Slots;

pub use text::merge_texts;
pub use trees::TreeView;
pub use view::{Content, ContentError, Difference, Differences, ImageView, Origin, Pair, Side};
pub use view::{MergeFuture, ShortId, ShortIdError};

/// What to do where both sides changed the same thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Merge only if there is no conflict.
    Fail,
    /// Keep both versions and record it in the image.
    #[default]
    KeepBoth,
    /// Take ours.
    Ours,
    /// Take theirs.
    Theirs,
}

/// How to merge.
#[derive(Clone, Debug)]
pub struct MergeOptions {
    /// What to do where both sides changed the same thing.
    pub policy: Policy,
    /// Hashes names, as in all images of the workspace.
    pub hasher: NameHasher,
    /// What names the sides in suffixes.
    pub labels: Pair<ShortId>,
    /// The commits that are merged, for the records of conflicts.
    pub sources: Sources,
    /// Where both sides changed only execute bits of a mode, set those that either has.
    pub unite_execute_bits: bool,
}

/// The images to merge.
#[derive(Debug)]
pub struct MergeInput<'a> {
    /// The two sides.
    pub views: Pair<&'a dyn ImageView>,
    /// How each side differs from base: all keys, in order.
    pub differences: Pair<&'a mut dyn Differences>,
    /// File content.
    pub content: &'a dyn Content,
}

/// The result of a merge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Image keys in which the result differs from ours: a value, or none if the key is gone.
    /// Empty if the policy is `Fail` and there are conflicts.
    pub delta: BTreeMap<Bytes, Option<Bytes>>,
    /// What could not be decided, in the order of their paths.
    pub conflicts: Vec<Conflict>,
    /// Allocated bytes that the result has more than ours.
    pub bytes: i64,
    /// Inodes that the result has more than ours.
    pub inodes: i64,
}

/// Why a merge failed. Nothing was changed, though content may have been stored that nobody needs.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// An image cannot be read.
    #[error("read an image to merge")]
    Image(#[from] ImageError),
    /// File content cannot be read or stored.
    #[error("read or store file content to merge")]
    Content(#[from] ContentError),
    /// More keys differ than a merge takes in.
    #[error("more than {} keys differ", base::limits::MERGE_CHANGES_MAX)]
    TooLarge,
    /// The numbers handed in do not suffice for new inodes.
    #[error("no inode numbers are left for the merge")]
    NoNumbers,
    /// No suffix makes a free name.
    #[error("no free name beside a name that is taken")]
    NoName,
    /// An image contradicts itself, or the differences are not between these images.
    #[error("the images to merge are damaged: {0}")]
    Damaged(&'static str),
}

impl From<RecordError> for MergeError {
    fn from(error: RecordError) -> Self {
        Self::Image(error.into())
    }
}

impl From<KeyError> for MergeError {
    fn from(error: KeyError) -> Self {
        Self::Image(error.into())
    }
}

/// Merges theirs into ours. New inodes get their numbers from `numbers`.
///
/// # Errors
///
/// An image or content cannot be read or stored, or a limit is reached.
///
/// # Cancellation
///
/// Safe to drop: nothing is written but content.
pub async fn merge(
    input: MergeInput<'_>,
    options: &MergeOptions,
    numbers: &mut InodeNumbers,
) -> Result<Merged, MergeError> {
    let MergeInput {
        views,
        differences,
        content,
    } = input;
    let changes = Changes::read(differences).await?;
    let source = Source {
        views,
        changes: &changes,
        content,
        options,
    };
    if options.policy == Policy::Fail {
        let conflicts = source.conflicts().await?;
        if !conflicts.is_empty() {
            return Ok(Merged {
                conflicts,
                ..Merged::default()
            });
        }
    }
    let mut merge = Box::new(Merge::new(source, Some(*numbers)));
    merge.decide().await?;
    let merged = merge.finish().await?;
    if let Some(left) = merge.numbers {
        *numbers = left;
    }
    Ok(merged)
}

/// The conflicts that [`merge`] would have. Stores nothing and takes no numbers.
///
/// # Errors
///
/// As [`merge`].
///
/// # Cancellation
///
/// Safe to drop.
pub async fn conflicts(
    input: MergeInput<'_>,
    options: &MergeOptions,
) -> Result<Vec<Conflict>, MergeError> {
    let changes = Changes::read(input.differences).await?;
    let source = Source {
        views: input.views,
        changes: &changes,
        content: input.content,
        options,
    };
    source.conflicts().await
}

/// What a merge reads.
#[derive(Clone, Copy, Debug)]
struct Source<'a> {
    views: Pair<&'a dyn ImageView>,
    changes: &'a Pair<Changes>,
    content: &'a dyn Content,
    options: &'a MergeOptions,
}

impl Source<'_> {
    async fn conflicts(self) -> Result<Vec<Conflict>, MergeError> {
        let mut merge = Box::new(Merge::new(self, None));
        merge.decide().await?;
        merge.report().await
    }
}

/// A merge under way.
#[derive(Debug)]
struct Merge<'a> {
    source: Source<'a>,
    /// Whose version is taken where only one can be.
    preferred: Side,
    /// Numbers for new inodes; none if the merge is only tried.
    numbers: Option<InodeNumbers>,
    /// New inodes of a merge that is only tried.
    tried: u64,
    identities: Identities,
    slots: Slots,
    objects: BTreeMap<InodeId, Object>,
    found: Vec<Found>,
    queues: Queues,
}

/// What is left to mend.
#[derive(Debug, Default)]
struct Queues {
    /// Directories that are gone and hold a name, with what holds it.
    orphaned: VecDeque<InodeId>,
    /// The same where a conflict tells already.
    excused: VecDeque<InodeId>,
    /// Directories that may hang in a loop.
    moved: VecDeque<InodeId>,
    /// Slots with two claims.
    contested: VecDeque<usize>,
}

impl<'a> Merge<'a> {
    fn new(source: Source<'a>, numbers: Option<InodeNumbers>) -> Self {
        let preferred = match source.options.policy {
            Policy::Fail | Policy::KeepBoth | Policy::Ours => Side::Ours,
            Policy::Theirs => Side::Theirs,
        };
        Self {
            source,
            preferred,
            numbers,
            tried: 0,
            identities: Identities::default(),
            slots: Slots::default(),
            objects: BTreeMap::new(),
            found: Vec::new(),
            queues: Queues::default(),
        }
    }

    /// Whether the policy takes one side where keeping both is possible, too.
    fn takes_one(&self) -> bool {
        matches!(self.source.options.policy, Policy::Ours | Policy::Theirs)
    }

    /// Decides everything but numbers and new content.
    async fn decide(&mut self) -> Result<(), MergeError> {
        self.identify().await?;
        self.find_slots();
        self.find_objects();
        self.survive().await?;
        self.repair().await?;
        self.settle().await
    }
}
