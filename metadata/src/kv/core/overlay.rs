//! A transaction's own writes: what it reads back, what it commits, whom it makes conflict.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::ops::Bound;

use bytes::Bytes;

use super::super::{AtomicOp, KeyRange, KvError, Version};
use super::atomic;
use super::ranges::RangeSet;
use super::stamp::Template;

/// What FoundationDB adds to a transaction's size for a write, besides its key and value.
const WRITE_OVERHEAD_BYTES: usize = 40;

/// Buffered writes. A key's own entry counts before a cleared range.
#[derive(Debug, Default)]
pub(in crate::kv) struct Overlay {
    cleared: RangeSet,
    entries: BTreeMap<Bytes, Entry>,
    /// Keys that the commit completes, by the key with its placeholder.
    stamped_keys: BTreeMap<Bytes, (Template, Bytes)>,
    /// Keys whose value only the commit knows.
    unreadable: RangeSet,
}

/// What a transaction does to one key: a first value, then operations on it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) base: Base,
    pub(super) operations: Vec<(AtomicOp, Bytes)>,
}

/// Where an entry starts from.
#[derive(Clone, Debug)]
pub(super) enum Base {
    /// The value in the store.
    Stored,
    /// Set, or cleared. Has no operations: they are applied at once.
    Known(Option<Bytes>),
    /// Set to a value that the commit completes.
    Stamped(Template),
}

/// What the overlay says of a key.
#[derive(Debug)]
pub(super) enum Seen<'a> {
    /// Nothing: the stored value holds.
    Stored,
    /// The value, whatever is stored.
    Known(Option<Bytes>),
    /// The stored value with these operations applied.
    Derived(&'a [(AtomicOp, Bytes)]),
}

impl Overlay {
    /// Whether nothing is written.
    pub(super) fn is_empty(&self) -> bool {
        self.cleared.is_empty() && self.entries.is_empty() && self.stamped_keys.is_empty()
    }

    /// Whether any value may be set, rather than keys only cleared.
    pub(super) fn adds_values(&self) -> bool {
        let sets = |entry: &Entry| !matches!(entry.base, Base::Known(None));
        !self.stamped_keys.is_empty() || self.entries.values().any(sets)
    }

    /// Bytes that count towards the size of a transaction.
    pub(super) fn bytes(&self) -> usize {
        let cleared = self.cleared.bytes() + self.cleared.len() * WRITE_OVERHEAD_BYTES;
        let entries = self.entries.iter().map(|(key, entry)| {
            let write = |value: usize| key.len() + value + WRITE_OVERHEAD_BYTES;
            let base = match &entry.base {
                Base::Stored => 0,
                Base::Known(None) => write(key.len() + 1),
                Base::Known(Some(value)) => write(value.len()),
                Base::Stamped(template) => write(template.len()),
            };
            let operations = entry.operations.iter();
            base + operations
                .map(|(_, operand)| write(operand.len()))
                .sum::<usize>()
        });
        let stamped = self.stamped_keys.iter();
        let stamped =
            stamped.map(|(key, (_, value))| key.len() + value.len() + WRITE_OVERHEAD_BYTES);
        cleared + entries.sum::<usize>() + stamped.sum::<usize>()
    }

    /// Sets `key`. A key that was unreadable stays so, as in FoundationDB.
    pub(super) fn set(&mut self, key: Bytes, value: Bytes) {
        self.entries.insert(key, Entry::known(Some(value)));
    }

    /// Clears `key`.
    pub(super) fn clear(&mut self, key: Bytes) {
        self.unreadable.remove(&KeyRange::key(&key));
        self.stamped_keys.remove(&key);
        if self.cleared.contains(&key) {
            self.entries.remove(&key);
        } else {
            self.entries.insert(key, Entry::known(None));
        }
    }

    /// Clears a range. Earlier writes in it are as if they had not been.
    pub(super) fn clear_range(&mut self, range: &KeyRange) {
        let keys: Vec<Bytes> = keys_in(&self.entries, range)
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.entries.remove(&key);
        }
        let stamped = keys_in(&self.stamped_keys, range);
        let stamped: Vec<Bytes> = stamped.map(|(key, _)| key.clone()).collect();
        for key in stamped {
            self.stamped_keys.remove(&key);
        }
        self.unreadable.remove(range);
        self.cleared.insert(range);
    }

    /// Applies an operation that takes no versionstamp.
    pub(super) fn operate(&mut self, op: AtomicOp, key: Bytes, operand: Bytes) {
        let cleared = self.cleared.contains(&key);
        let entry = self.entries.entry(key).or_insert_with(|| Entry {
            base: if cleared {
                Base::Known(None)
            } else {
                Base::Stored
            },
            operations: Vec::new(),
        });
        match &mut entry.base {
            Base::Known(value) => *value = atomic::apply(op, value.as_ref(), &operand),
            Base::Stored | Base::Stamped(_) => entry.operations.push((op, operand)),
        }
    }

    /// Sets `key` to a value that the commit completes. The key cannot be read from here on.
    pub(super) fn set_stamped_value(&mut self, key: Bytes, value: Template) {
        self.unreadable.insert(&KeyRange::key(&key));
        self.entries.insert(
            key,
            Entry {
                base: Base::Stamped(value),
                operations: Vec::new(),
            },
        );
    }

    /// Sets a key that the commit completes. No key it may become can be read from here on.
    pub(super) fn set_stamped_key(&mut self, key: Template, value: Bytes, read: Version) {
        self.unreadable.insert(&key.possible_keys(read));
        self.stamped_keys.insert(key.raw().clone(), (key, value));
    }

    /// What a read of `key` sees.
    pub(super) fn see(&self, key: &[u8]) -> Result<Seen<'_>, KvError> {
        if self.unreadable.contains(key) {
            return Err(unreadable());
        }
        Ok(match self.entries.get(key) {
            Some(entry) => entry.see(),
            None if self.cleared.contains(key) => Seen::Known(None),
            None => Seen::Stored,
        })
    }

    /// The first unreadable key of `range`, and the key after the last.
    pub(super) fn unreadable_in(&self, range: &KeyRange) -> Option<KeyRange> {
        self.unreadable.overlap(range)
    }

    /// Whether a stored value of `key` was cleared. A key's own entry counts before this.
    pub(super) fn hides(&self, key: &[u8]) -> bool {
        self.cleared.contains(key)
    }

    /// The keys in `range` that have an entry.
    pub(super) fn entries_in<'a>(&'a self, range: &KeyRange) -> Range<'a, Bytes, Entry> {
        keys_in(&self.entries, range)
    }

    /// The parts of `range` whose content depends on what is stored: only those can conflict.
    pub(super) fn dependent_parts(&self, range: &KeyRange) -> RangeSet {
        let mut parts = RangeSet::default();
        for gap in self.cleared.gaps(range) {
            parts.insert(&gap);
        }
        for (key, entry) in self.entries_in(range) {
            match entry.base {
                Base::Stored => parts.insert(&KeyRange::key(key)),
                Base::Known(_) | Base::Stamped(_) => parts.remove(&KeyRange::key(key)),
            }
        }
        parts
    }

    /// Adds the keys written to `conflicts`. For a key with a versionstamp these are all keys
    /// it may become, as in FoundationDB.
    pub(super) fn add_conflicts(&self, read: Version, conflicts: &mut RangeSet) {
        for (start, end) in self.cleared.iter() {
            conflicts.insert(&KeyRange {
                start: start.clone(),
                end: end.clone(),
            });
        }
        for key in self.entries.keys() {
            conflicts.insert(&KeyRange::key(key));
        }
        for (template, _) in self.stamped_keys.values() {
            conflicts.insert(&template.possible_keys(read));
        }
    }

    /// The cleared ranges; to be applied before anything else.
    pub(super) fn cleared(&self) -> &RangeSet {
        &self.cleared
    }

    /// The entries in order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&Bytes, &Entry)> {
        self.entries.iter()
    }

    /// The keys that the commit completes, with their values.
    pub(super) fn stamped_keys(&self) -> impl Iterator<Item = &(Template, Bytes)> {
        self.stamped_keys.values()
    }
}

impl Entry {
    fn known(value: Option<Bytes>) -> Self {
        Self {
            base: Base::Known(value),
            operations: Vec::new(),
        }
    }

    /// What a read of the key sees.
    pub(super) fn see(&self) -> Seen<'_> {
        match &self.base {
            Base::Known(value) => Seen::Known(value.clone()),
            // A stamped value is unreadable, or was cleared and has another entry by now.
            Base::Stored | Base::Stamped(_) => Seen::Derived(&self.operations),
        }
    }
}

impl Seen<'_> {
    /// The value, given the stored one.
    pub(super) fn value(&self, stored: Option<Bytes>) -> Option<Bytes> {
        match self {
            Self::Stored => stored,
            Self::Known(value) => value.clone(),
            Self::Derived(operations) => applied(operations, stored),
        }
    }
}

/// `value` after `operations`.
pub(super) fn applied(operations: &[(AtomicOp, Bytes)], value: Option<Bytes>) -> Option<Bytes> {
    operations.iter().fold(value, |value, (op, operand)| {
        atomic::apply(*op, value.as_ref(), operand)
    })
}

/// The error of a read that depends on the commit.
pub(super) fn unreadable() -> KvError {
    KvError::Usage("read of a key that this transaction wrote with a versionstamp")
}

fn keys_in<'a, V>(map: &'a BTreeMap<Bytes, V>, range: &KeyRange) -> Range<'a, Bytes, V> {
    // An inverted range would panic in the standard library.
    let end = range.end.clone().max(range.start.clone());
    map.range((Bound::Included(range.start.clone()), Bound::Excluded(end)))
}
