//! A commit: an immutable image of a workspace, where it came from and who made it.
//!
//! The encoding is canonical: equal commits have equal bytes, and no other bytes are accepted. A
//! commit is named by the hash of its encoding.

use std::collections::BTreeMap;

use base::limits::KV_VALUE_BYTES_MAX;
use base::{CommitId, NodeId, SessionId, Timestamp};
use bytes::Bytes;

use super::{LABEL_BYTES_MAX, Reader, RecordError, Unacceptable, Writer, check_label};
use crate::image::Usage;
use crate::tree::Root;

const VERSION: u8 = 1;

/// What the hash of a commit is derived with; part of the format.
const CONTEXT: &str = "holdfast 2026 commit v1";

/// Most parents of a commit. Two are a merge; more are for imported histories.
pub const PARENTS_MAX: usize = 16;

/// Longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// Most free pairs of a commit.
pub const PAIRS_MAX: usize = 32;

/// Longest key of a pair, in bytes.
pub const PAIR_KEY_BYTES_MAX: usize = 64;

/// Longest value of a pair, in bytes.
pub const PAIR_VALUE_BYTES_MAX: usize = 1024;

// A record fits one value of the store, with room to spare.
const _: () = assert!(
    MESSAGE_BYTES_MAX
        + PAIRS_MAX * (PAIR_KEY_BYTES_MAX + PAIR_VALUE_BYTES_MAX + 8)
        + PARENTS_MAX * 32
        + 8 * (LABEL_BYTES_MAX + 4)
        + 1024
        < KV_VALUE_BYTES_MAX
);

/// Files, and the bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Number of files, directories and other objects.
    pub files: u64,
    /// Bytes of their content.
    pub bytes: u64,
}

/// What a commit changed against its first parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// What was not there before.
    pub added: Volume,
    /// What is different.
    pub changed: Volume,
    /// What is there no more.
    pub removed: Volume,
}

/// Who and what made a commit. A text is empty, and the session `None`, if it was not said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    /// The person or system on whose behalf.
    pub author: String,
    /// The agent.
    pub agent: String,
    /// The session.
    pub session: Option<SessionId>,
    /// The run.
    pub run: String,
    /// The model.
    pub model: String,
    /// The tool call.
    pub tool_call: String,
    /// Whatever else is to be known, by key.
    pub pairs: BTreeMap<String, String>,
}

/// A commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitRecord {
    /// Root of the tree that is its image.
    pub tree: NodeId,
    /// What the image uses.
    pub usage: Usage,
    /// Commits it comes from, none twice. The first is the one it was made on top of.
    pub parents: Vec<CommitId>,
    /// When it was made. Always after the times of its parents, whatever the clock says, so that
    /// the order of times is an order of the history.
    pub time: Timestamp,
    /// What it changed.
    pub statistics: Statistics,
    /// Number of unresolved conflicts in the image.
    pub conflicts: u64,
    /// What it is about.
    pub message: String,
    /// Who and what made it.
    pub provenance: Provenance,
}

/// Checks what a commit is to say: lengths and characters.
///
/// # Errors
///
/// Says which field is not acceptable, and why.
pub fn check_about(message: &str, provenance: &Provenance) -> Result<(), Unacceptable> {
    let plain = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\r' | '\t');
    if message.len() > MESSAGE_BYTES_MAX || !message.chars().all(plain) {
        return Err(Unacceptable::new(
            "commit message",
            "at most 32 KiB, no control characters but line breaks and tabs",
        ));
    }
    provenance.check()
}

impl CommitRecord {
    /// The version that is its image.
    #[must_use]
    pub fn root(&self) -> Root {
        Root::named(&self.tree)
    }

    /// The name of this commit.
    #[must_use]
    pub fn id(&self) -> CommitId {
        id_of(&self.encode())
    }

    /// Checks what the types do not: lengths, characters, and that no parent is there twice.
    ///
    /// # Errors
    ///
    /// Says which field is not acceptable, and why.
    pub fn check(&self) -> Result<(), Unacceptable> {
        let parents = &self.parents;
        let is_new = |(at, id): (usize, &CommitId)| !parents.iter().take(at).any(|seen| seen == id);
        if parents.len() > PARENTS_MAX || !parents.iter().enumerate().all(is_new) {
            return Err(Unacceptable::new(
                "list of parents",
                "at most 16, none of them twice",
            ));
        }
        check_about(&self.message, &self.provenance)
    }

    /// Bytes of its texts, about.
    pub(crate) fn text_bytes(&self) -> usize {
        let made = &self.provenance;
        let labels = [
            &made.author,
            &made.agent,
            &made.run,
            &made.model,
            &made.tool_call,
        ];
        let pairs = made.pairs.iter();
        let pairs: usize = pairs.map(|(key, value)| key.len() + value.len()).sum();
        self.message.len() + pairs + labels.map(String::len).iter().sum::<usize>()
    }

    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.raw(self.tree.as_bytes());
        to.u64(self.usage.bytes);
        to.u64(self.usage.inodes);
        to.u8(u8::try_from(self.parents.len()).unwrap_or(u8::MAX));
        for parent in &self.parents {
            to.raw(parent.as_bytes());
        }
        to.time(self.time);
        let Statistics {
            added,
            changed,
            removed,
        } = self.statistics;
        for volume in [added, changed, removed] {
            to.u64(volume.files);
            to.u64(volume.bytes);
        }
        to.u64(self.conflicts);
        to.bytes(self.message.as_bytes());
        self.provenance.encode(&mut to);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let tree = NodeId::new(from.array()?);
        let usage = Usage {
            bytes: from.u64()?,
            inodes: from.u64()?,
        };
        let count = usize::from(from.u8()?);
        if count > PARENTS_MAX {
            return Err(RecordError::Field("number of parents"));
        }
        let mut parents = Vec::with_capacity(count);
        for _ in 0..count {
            parents.push(CommitId::new(from.array()?));
        }
        let time = from.time()?;
        let mut volume = || {
            Ok::<_, RecordError>(Volume {
                files: from.u64()?,
                bytes: from.u64()?,
            })
        };
        let statistics = Statistics {
            added: volume()?,
            changed: volume()?,
            removed: volume()?,
        };
        let commit = Self {
            tree,
            usage,
            parents,
            time,
            statistics,
            conflicts: from.u64()?,
            message: from.text()?,
            provenance: Provenance::decode(&mut from)?,
        };
        from.end()?;
        commit.check()?;
        Ok(commit)
    }
}

impl Provenance {
    fn check(&self) -> Result<(), Unacceptable> {
        let labels = [
            ("author", &self.author),
            ("agent", &self.agent),
            ("run", &self.run),
            ("model", &self.model),
            ("tool call", &self.tool_call),
        ];
        for (what, label) in labels {
            check_label(what, label)?;
        }
        let is_good = |(key, value): (&String, &String)| {
            !key.is_empty()
                && key.len() <= PAIR_KEY_BYTES_MAX
                && value.len() <= PAIR_VALUE_BYTES_MAX
                && !key.chars().chain(value.chars()).any(char::is_control)
        };
        if self.pairs.len() > PAIRS_MAX || !self.pairs.iter().all(is_good) {
            return Err(Unacceptable::new(
                "list of pairs",
                "at most 32, with keys of 1 to 64 bytes and values of at most 1024 bytes, no \
                 control characters",
            ));
        }
        Ok(())
    }

    fn encode(&self, to: &mut Writer) {
        to.bytes(self.author.as_bytes());
        to.bytes(self.agent.as_bytes());
        to.u8(u8::from(self.session.is_some()));
        to.u64(self.session.map_or(0, SessionId::raw));
        to.bytes(self.run.as_bytes());
        to.bytes(self.model.as_bytes());
        to.bytes(self.tool_call.as_bytes());
        to.u32(u32::try_from(self.pairs.len()).unwrap_or(u32::MAX));
        for (key, value) in &self.pairs {
            to.bytes(key.as_bytes());
            to.bytes(value.as_bytes());
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        let (author, agent) = (from.text()?, from.text()?);
        let session = match (from.flag()?, from.u64()?) {
            (true, raw) => Some(SessionId::new(raw)),
            (false, 0) => None,
            (false, _) => return Err(RecordError::Field("session")),
        };
        let (run, model, tool_call) = (from.text()?, from.text()?, from.text()?);
        let count = usize::try_from(from.u32()?).unwrap_or(usize::MAX);
        if count > PAIRS_MAX {
            return Err(RecordError::Field("number of pairs"));
        }
        let mut pairs = BTreeMap::new();
        for _ in 0..count {
            let (key, value) = (from.text()?, from.text()?);
            // One order only, so that equal commits have equal bytes.
            if pairs.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return Err(RecordError::Field("order of pairs"));
            }
            pairs.insert(key, value);
        }
        Ok(Self {
            author,
            agent,
            session,
            run,
            model,
            tool_call,
            pairs,
        })
    }
}

/// The name of the commit with this encoding.
#[must_use]
pub fn id_of(encoded: &[u8]) -> CommitId {
    CommitId::new(blake3::derive_key(CONTEXT, encoded))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn commit() -> CommitRecord {
        CommitRecord {
            tree: NodeId::new([1; 32]),
            usage: Usage {
                bytes: 2,
                inodes: 3,
            },
            parents: vec![CommitId::new([4; 32]), CommitId::new([5; 32])],
            time: Timestamp::new(6, 7),
            statistics: Statistics {
                added: Volume { files: 8, bytes: 9 },
                changed: Volume {
                    files: 10,
                    bytes: 11,
                },
                removed: Volume {
                    files: 12,
                    bytes: 13,
                },
            },
            conflicts: 14,
            message: "m\n".into(),
            provenance: Provenance {
                author: "w".into(),
                agent: "a".into(),
                session: Some(SessionId::new(15)),
                run: "r".into(),
                model: "o".into(),
                tool_call: "t".into(),
                pairs: [("k".into(), "v".into())].into(),
            },
        }
    }

    /// The same by hand: the format is frozen.
    fn golden() -> Vec<u8> {
        let mut bytes = vec![1];
        bytes.extend([1; 32]);
        let number = |value: u8| [0, 0, 0, 0, 0, 0, 0, value];
        bytes.extend([number(2), number(3)].concat());
        bytes.push(2);
        bytes.extend([4; 32]);
        bytes.extend([5; 32]);
        bytes.extend(number(6));
        bytes.extend([0, 0, 0, 7]);
        for value in 8..=14 {
            bytes.extend(number(value));
        }
        bytes.extend([0, 0, 0, 2, b'm', b'\n']);
        bytes.extend([0, 0, 0, 1, b'w', 0, 0, 0, 1, b'a', 1]);
        bytes.extend(number(15));
        bytes.extend([0, 0, 0, 1, b'r', 0, 0, 0, 1, b'o', 0, 0, 0, 1, b't']);
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, b'k', 0, 0, 0, 1, b'v']);
        bytes
    }

    #[test]
    fn golden_bytes() {
        assert_eq!(commit().encode(), golden());
        assert_eq!(CommitRecord::decode(&golden()), Ok(commit()));
        assert_eq!(
            commit().id().to_string(),
            "01efae5d794b03f9f0a7c2cdd876bb1767b0373f86fff3a21f57f1f59800e116"
        );
        assert_eq!(commit().id(), id_of(&golden()));
    }

    #[test]
    fn every_field_is_in_the_name() {
        type Change = fn(&mut CommitRecord);
        let changes: [Change; 17] = [
            |c| c.tree = NodeId::new([9; 32]),
            |c| c.usage.bytes += 1,
            |c| c.usage.inodes += 1,
            |c| c.parents.reverse(),
            |c| c.parents.truncate(1),
            |c| c.time = c.time.tick(),
            |c| c.statistics.added.files += 1,
            |c| c.statistics.removed.bytes += 1,
            |c| c.conflicts += 1,
            |c| c.message.push('x'),
            |c| c.provenance.author.clear(),
            |c| c.provenance.agent.clear(),
            |c| c.provenance.session = None,
            |c| c.provenance.run.clear(),
            |c| c.provenance.model.clear(),
            |c| c.provenance.tool_call.clear(),
            |c| c.provenance.pairs.clear(),
        ];
        let mut seen = std::collections::HashSet::from([commit().id()]);
        for (index, change) in changes.into_iter().enumerate() {
            let mut changed = commit();
            change(&mut changed);
            assert!(seen.insert(changed.id()), "change {index}");
            assert_eq!(CommitRecord::decode(&changed.encode()), Ok(changed));
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_by_name() {
        type Change = fn(&mut CommitRecord);
        let cases: [(Change, &str); 12] = [
            (|c| c.parents = vec![c.parents[0]; 2], "parents"),
            (
                |c| c.parents = (0..17).map(|n| CommitId::new([n; 32])).collect(),
                "parents",
            ),
            (|c| c.message = "x".repeat(MESSAGE_BYTES_MAX + 1), "message"),
            (|c| c.message = "\u{1b}[2J".into(), "message"),
            (|c| c.provenance.author = "x".repeat(257), "author"),
            (|c| c.provenance.agent = "a\n".into(), "agent"),
            (|c| c.provenance.run = "\0".into(), "run"),
            (|c| c.provenance.model = "x".repeat(257), "model"),
            (|c| c.provenance.tool_call = "\t".into(), "tool call"),
            (
                |c| drop(c.provenance.pairs.insert(String::new(), "v".into())),
                "pairs",
            ),
            (
                |c| drop(c.provenance.pairs.insert("k".into(), "x".repeat(1025))),
                "pairs",
            ),
            (
                |c| {
                    c.provenance.pairs = (0..33).map(|n| (n.to_string(), "".into())).collect();
                },
                "pairs",
            ),
        ];
        for (change, field) in cases {
            let mut changed = commit();
            change(&mut changed);
            let refused = changed.check().unwrap_err();
            assert!(refused.to_string().contains(field), "{refused}: {field}");
            let decoded = CommitRecord::decode(&changed.encode());
            assert!(matches!(decoded, Err(RecordError::Field(_))), "{field}");
        }
    }

    /// Whatever the bounds allow fits a value of the store.
    #[test]
    fn the_largest_commit_can_be_stored() {
        let label = "x".repeat(LABEL_BYTES_MAX);
        let pair = |n: usize| (format!("{n:064}"), "v".repeat(PAIR_VALUE_BYTES_MAX));
        let largest = CommitRecord {
            parents: (0..16).map(|n| CommitId::new([n; 32])).collect(),
            message: "m".repeat(MESSAGE_BYTES_MAX),
            provenance: Provenance {
                author: label.clone(),
                agent: label.clone(),
                session: Some(SessionId::new(u64::MAX)),
                run: label.clone(),
                model: label.clone(),
                tool_call: label,
                pairs: (0..PAIRS_MAX).map(pair).collect(),
            },
            ..commit()
        };
        let bytes = largest.encode();
        assert!(bytes.len() <= KV_VALUE_BYTES_MAX);
        assert_eq!(CommitRecord::decode(&bytes), Ok(largest));
    }

    proptest! {
        /// A decoder that accepts anything but the one encoding would give a commit two names.
        #[test]
        fn only_the_canonical_encoding_is_accepted(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<prop::sample::Index>(),
            whole in any::<bool>(),
        ) {
            let mut bytes = golden();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if !whole {
                bytes.truncate(cut.index(bytes.len()));
            }
            if let Ok(commit) = CommitRecord::decode(&bytes) {
                prop_assert_eq!(commit.encode(), bytes);
            }
        }

        #[test]
        fn decode_is_total(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let bytes = [&[VERSION], &bytes[..]].concat();
            if let Ok(commit) = CommitRecord::decode(&bytes) {
                prop_assert_eq!(commit.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_byte_too_many_and_another_version_are_told() {
        let mut bytes = golden();
        bytes.push(0);
        assert_eq!(CommitRecord::decode(&bytes), Err(RecordError::Trailing));
        bytes[0] = 2;
        assert_eq!(CommitRecord::decode(&bytes), Err(RecordError::Version(2)));
        assert_eq!(CommitRecord::decode(&[]), Err(RecordError::Truncated));
    }

    #[test]
    fn pairs_are_in_one_order_only() {
        let mut commit = commit();
        commit.provenance.pairs.insert("l".into(), "v".into());
        let good = commit.encode();
        let mut bytes = good.to_vec();
        let at = bytes.len() - 10;
        bytes[at + 4] = b'k';
        // Twice `k`, and then the greater one first.
        assert_eq!(
            CommitRecord::decode(&bytes),
            Err(RecordError::Field("order of pairs"))
        );
        bytes[at - 6] = b'm';
        assert_eq!(
            CommitRecord::decode(&bytes),
            Err(RecordError::Field("order of pairs"))
        );
    }
}
