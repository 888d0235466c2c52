//! Every invariant of a stored image, checked on the bare keys and values.
//!
//! Shares the codecs with `metadata`, and no rule: counts are counted, sums are summed.

use std::collections::{BTreeMap, BTreeSet};

use base::{InodeId, Name};
use bytes::Bytes;
use metadata::image::{Block, Totals, allocated};
use metadata::keyspace::image::{self as keys, ImageKey};
use metadata::record::entry::Entry;
use metadata::record::inode::InodeRecord;
use metadata::stat::FileKind;

/// Everything in an image, by what it is.
#[derive(Debug, Default)]
struct Contents {
    inodes: BTreeMap<InodeId, InodeRecord>,
    entries: BTreeMap<(InodeId, Name), (u64, Entry)>,
    blocks: BTreeMap<InodeId, BTreeMap<u32, Block>>,
    links: BTreeSet<(InodeId, InodeId, Name)>,
}

/// Says what is wrong with a stored image; nothing if it is sound.
#[must_use]
pub fn check(
    store: &BTreeMap<Vec<u8>, Bytes>,
    totals: &Totals,
    root: &InodeRecord,
    block_bytes: u32,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut contents = read(store, &mut wrong);
    contents
        .inodes
        .entry(InodeId::ROOT)
        .or_insert_with(|| root.clone());
    contents.check_entries(&mut wrong);
    for (inode, record) in &contents.inodes {
        contents.check_links(*inode, record, &mut wrong);
        match record.stat.kind {
            FileKind::Directory => contents.check_directory(*inode, record, &mut wrong),
            FileKind::File => contents.check_file(*inode, record, block_bytes, &mut wrong),
            _ => {}
        }
    }
    for inode in contents.blocks.keys() {
        let kind = contents.inodes.get(inode).map(|record| record.stat.kind);
        if kind != Some(FileKind::File) {
            wrong.push(format!("blocks of {inode:?}, which is {kind:?}"));
        }
    }
    let bytes: u64 = contents.inodes.values().map(|it| it.stat.used).sum();
    let inodes = u64::try_from(contents.inodes.len()).unwrap_or(u64::MAX);
    if (totals.usage.bytes, totals.usage.inodes) != (bytes, inodes) {
        wrong.push(format!(
            "usage is {:?}; counted {bytes} bytes, {inodes} inodes",
            totals.usage
        ));
    }
    let last = contents.inodes.keys().next_back().map(|it| it.raw());
    if last >= Some(totals.numbers.next) && last > Some(InodeId::ROOT.raw()) {
        wrong.push(format!("{last:?} exists, but {:?}", totals.numbers));
    }
    wrong
}

fn read(store: &BTreeMap<Vec<u8>, Bytes>, wrong: &mut Vec<String>) -> Contents {
    let mut contents = Contents::default();
    for (key, value) in store {
        let damage = match keys::decode(key) {
            Ok(ImageKey::Inode(inode)) => InodeRecord::decode(inode, value)
                .map(|record| {
                    contents.inodes.insert(inode, record);
                })
                .map_err(|error| error.to_string()),
            Ok(ImageKey::Entry { dir, hash, name }) => Entry::decode(value)
                .map(|entry| {
                    contents.entries.insert((dir, name), (hash, entry));
                })
                .map_err(|error| error.to_string()),
            Ok(ImageKey::Block { inode, index }) => metadata::record::block::decode(value)
                .map(|block| {
                    contents
                        .blocks
                        .entry(inode)
                        .or_default()
                        .insert(index, block);
                })
                .map_err(|error| error.to_string()),
            Ok(ImageKey::Link {
                inode,
                parent,
                name,
            }) => {
                contents.links.insert((inode, parent, name));
                Ok(())
            }
            Ok(key @ (ImageKey::Cut { .. } | ImageKey::Conflict(_))) => {
                Err(format!("{key:?} in an image that never needed it"))
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = damage {
            wrong.push(format!("{}: {error}", key.escape_ascii()));
        }
    }
    contents
}

impl Contents {
    fn check_entries(&self, wrong: &mut Vec<String>) {
        for ((dir, name), (_, entry)) in &self.entries {
            let parent = self.inodes.get(dir).map(|record| record.stat.kind);
            if parent != Some(FileKind::Directory) {
                wrong.push(format!("{name:?} is in {dir:?}, which is {parent:?}"));
            }
            let kind = self.inodes.get(&entry.inode).map(|record| record.stat.kind);
            if kind != Some(entry.kind) {
                wrong.push(format!("{name:?} leads to {entry:?}, which is {kind:?}"));
            }
        }
    }

    /// The names an inode has, by the directories, and the names it says it has.
    fn check_links(&self, inode: InodeId, record: &InodeRecord, wrong: &mut Vec<String>) {
        let names: BTreeSet<(InodeId, Name)> = self
            .entries
            .iter()
            .filter(|(_, (_, entry))| entry.inode == inode)
            .map(|(place, _)| place.clone())
            .collect();
        let further: Vec<(InodeId, Name)> = self
            .links
            .iter()
            .filter(|(of, _, _)| *of == inode)
            .map(|(_, parent, name)| (*parent, name.clone()))
            .collect();
        let told: Vec<(InodeId, Name)> = record.link.iter().cloned().chain(further).collect();
        let told_set: BTreeSet<(InodeId, Name)> = told.iter().cloned().collect();
        if told_set != names || told.len() != names.len() {
            wrong.push(format!("{inode:?} has names {names:?}, says {told:?}"));
        }
        if inode == InodeId::ROOT {
            return;
        }
        let one = record.stat.kind == FileKind::Directory;
        let links = usize::try_from(record.stat.nlink).unwrap_or(usize::MAX);
        if names.is_empty() || (one && names.len() != 1) || (!one && names.len() != links) {
            wrong.push(format!(
                "{inode:?} has {} names, nlink {links}",
                names.len()
            ));
        }
    }

    fn check_directory(&self, inode: InodeId, record: &InodeRecord, wrong: &mut Vec<String>) {
        let children: Vec<Entry> = self
            .entries
            .iter()
            .filter(|((dir, _), _)| *dir == inode)
            .map(|(_, (_, entry))| *entry)
            .collect();
        if usize::try_from(record.entries) != Ok(children.len()) {
            let (count, said) = (children.len(), record.entries);
            wrong.push(format!("{inode:?} has {count} entries, says {said}"));
        }
        let dirs = children
            .iter()
            .filter(|entry| entry.kind == FileKind::Directory)
            .count();
        if usize::try_from(record.stat.nlink) != Ok(dirs + 2) {
            let said = record.stat.nlink;
            wrong.push(format!("{inode:?} has {dirs} directories, nlink {said}"));
        }
        // Up to the root, without going around.
        let (mut at, mut steps) = (inode, 0);
        while at != InodeId::ROOT {
            let parent = self.inodes.get(&at).and_then(|record| record.link.as_ref());
            let Some((parent, _)) = parent else {
                wrong.push(format!("{inode:?} is not below the root"));
                return;
            };
            (at, steps) = (*parent, steps + 1);
            if steps > self.inodes.len() {
                wrong.push(format!("{inode:?} is in a circle"));
                return;
            }
        }
    }

    fn check_file(
        &self,
        inode: InodeId,
        record: &InodeRecord,
        block_bytes: u32,
        wrong: &mut Vec<String>,
    ) {
        let stat = &record.stat;
        let mut blocks = self.blocks.get(&inode).cloned().unwrap_or_default();
        if let Some(inline) = &record.inline {
            if !blocks.is_empty() {
                wrong.push(format!("{inode:?} has content in two places"));
            }
            blocks.insert(0, Block::inline(inline.clone()));
        }
        let used: u64 = blocks
            .values()
            .map(|block| allocated(Some(block), [None, None]))
            .sum();
        if used != stat.used {
            wrong.push(format!("{inode:?} uses {used}, says {}", stat.used));
        }
        for (at, block) in &blocks {
            let end = u64::from(*at) * u64::from(block_bytes) + u64::from(block.end());
            if block.is_hole() {
                wrong.push(format!("block {at} of {inode:?} is a hole"));
            }
            if block.end() > block_bytes || end > stat.size {
                let size = stat.size;
                wrong.push(format!("block {at} of {inode:?} ends at {end} of {size}"));
            }
        }
    }
}
