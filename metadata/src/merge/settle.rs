//! Attributes and content of identities in which both sides have a say.

use base::{InodeId, Timestamp};

use super::object::{Body, Read, Settled};
use super::report::Found;
use super::{Merge, MergeError, Object, Origin, Pair, Side, text};
use crate::image::InodeNumbers;
use crate::record::conflict::ConflictKind;
use crate::record::inode::InodeRecord;
use crate::stat::FileKind;

/// Any execute bit.
const EXECUTE_BITS: u32 = 0o111;

/// An identity's inode and attributes on one side.
type Version = (InodeId, InodeRecord);

/// An identity that both sides have and changed.
struct Versions {
    base: Option<Version>,
    ours: Version,
    theirs: Version,
}

impl Versions {
    fn of(&self, side: Side) -> &Version {
        match side {
            Side::Ours => &self.ours,
            Side::Theirs => &self.theirs,
        }
    }

    fn read(&self, side: Side) -> Read<'_> {
        let (inode, record) = self.of(side);
        (Origin::Of(side), *inode, record)
    }

    /// A field, if it is not changed by both in different ways.
    fn merge<T: PartialEq>(&self, field: impl Fn(&InodeRecord) -> T) -> Result<T, Pair<T>> {
        let (ours, theirs) = (field(&self.ours.1), field(&self.theirs.1));
        let base = self.base.as_ref().map(|(_, record)| field(record));
        if ours == theirs || base.as_ref() == Some(&theirs) {
            Ok(ours)
        } else if base.as_ref() == Some(&ours) {
            Ok(theirs)
        } else {
            Err(Pair { ours, theirs })
        }
    }

    /// A time: the later one, if both changed it.
    fn time(&self, field: impl Fn(&InodeRecord) -> Timestamp) -> Timestamp {
        let later = |both: Pair<Timestamp>| both.ours.max(both.theirs);
        self.merge(field).unwrap_or_else(later)
    }
}

impl Merge<'_> {
    /// Settles all that both sides changed.
    pub(super) async fn settle(&mut self) -> Result<(), MergeError> {
        let both = |(identity, object): (&InodeId, &Object)| {
            let touched = |side| self.touches(side, *identity);
            let both = object.alive && object.is_on_both();
            (both && touched(Side::Ours) && touched(Side::Theirs)).then_some(*identity)
        };
        let identities: Vec<InodeId> = self.objects.iter().filter_map(both).collect();
        for identity in identities {
            self.settle_one(identity).await?;
        }
        Ok(())
    }

    /// Whether a side changed attributes or content of an identity.
    pub(super) fn touches(&self, side: Side, identity: InodeId) -> bool {
        let inode = self.identities.inode(side, identity);
        self.source.changes.of(side).touch(inode)
    }

    async fn settle_one(&mut self, identity: InodeId) -> Result<(), MergeError> {
        let versions = Versions {
            base: self.version(Origin::Base, identity).await?,
            ours: self.side_version(Side::Ours, identity).await?,
            theirs: self.side_version(Side::Theirs, identity).await?,
        };
        let (mut record, is_disputed) = self.merge_attributes(&versions);
        let body = self.merge_content(&versions).await?;
        let is_contested = body.is_none();
        let is_kept_aside = is_contested && !self.takes_one();
        let body = body.unwrap_or_else(|| {
            let (inode, _) = versions.of(self.preferred);
            Body::Of(self.preferred, *inode)
        });
        if let Body::Of(side, _) = &body {
            let (_, from) = versions.of(*side);
            record.inline.clone_from(&from.inline);
            record.stat.size = from.stat.size;
            record.stat.used = from.stat.used;
            record.stat.device = from.stat.device;
        }
        if is_contested {
            let kind = match record.stat.kind {
                FileKind::File => ConflictKind::Content,
                _ => ConflictKind::Target,
            };
            let mut found = self.found_of(kind, self.one_side(), identity).await?;
            if is_kept_aside {
                found.resolution = crate::record::conflict::Resolution::KeptBoth;
                self.keep_aside(identity, &versions, &mut found).await?;
            }
            self.found.push(found);
        }
        // What is kept aside has its own attributes.
        if is_disputed && !is_kept_aside {
            let kind = ConflictKind::Attributes;
            let found = self.found_of(kind, self.one_side(), identity).await?;
            self.found.push(found);
        }
        if let Some(object) = self.objects.get_mut(&identity) {
            object.settled = Some(Box::new(Settled { record, body }));
        }
        Ok(())
    }

    /// The merged attributes, and whether some were changed by both in different ways.
    fn merge_attributes(&self, versions: &Versions) -> (InodeRecord, bool) {
        let mut is_disputed = false;
        let mut prefer = |field: Result<u32, Pair<u32>>| {
            field.unwrap_or_else(|both| {
                is_disputed = true;
                *both.of(self.preferred)
            })
        };
        let mode = versions.merge(|record| record.stat.mode);
        let mode = mode.or_else(|both| {
            let only_execute = (both.ours ^ both.theirs) & !EXECUTE_BITS == 0;
            if self.source.options.unite_execute_bits && only_execute {
                Ok(both.ours | both.theirs)
            } else {
                Err(both)
            }
        });
        let mode = prefer(mode);
        let uid = prefer(versions.merge(|record| record.stat.uid));
        let gid = prefer(versions.merge(|record| record.stat.gid));
        let changed = versions.merge(|record| record.stat.ctime);
        let mut record = versions.ours.1.clone();
        record.verifier = versions.merge(|record| record.verifier).unwrap_or(None);
        let stat = &mut record.stat;
        (stat.mode, stat.uid, stat.gid) = (mode, uid, gid);
        stat.atime = versions.time(|record| record.stat.atime);
        stat.ctime = changed.unwrap_or_else(|both| both.ours.max(both.theirs).tick());
        let modified = versions.merge(|record| record.stat.mtime);
        stat.mtime = modified.unwrap_or_else(|both| match stat.kind {
            // Entries of both came together now.
            FileKind::Directory => stat.ctime,
            _ => both.ours.max(both.theirs),
        });
        (record, is_disputed)
    }

    /// The merged content; `None` if both changed it and it cannot be merged.
    async fn merge_content(&self, versions: &Versions) -> Result<Option<Body>, MergeError> {
        let (ours, theirs) = (versions.read(Side::Ours), versions.read(Side::Theirs));
        let of = |side| Ok(Some(Body::Of(side, versions.of(side).0)));
        if ours.2.stat.is_dir() || self.is_same_content(ours, theirs).await? {
            return of(Side::Ours);
        }
        let Some((inode, record)) = &versions.base else {
            return Ok(None);
        };
        let base = (Origin::Base, *inode, record);
        if self.is_same_content(base, theirs).await? {
            return of(Side::Ours);
        }
        if self.is_same_content(base, ours).await? {
            return of(Side::Theirs);
        }
        if record.stat.kind != FileKind::File {
            return Ok(None);
        }
        let (Some(base), Some(ours), Some(theirs)) = (
            self.small_content(base).await?,
            self.small_content(ours).await?,
            self.small_content(theirs).await?,
        ) else {
            return Ok(None);
        };
        if ![&base, &ours, &theirs]
            .into_iter()
            .all(|it| text::is_text(it))
        {
            return Ok(None);
        }
        let merged = self.source.content.merge_texts(base, ours, theirs).await?;
        Ok(merged.map(Body::Merged))
    }

    /// Puts their version beside ours, as an inode of its own.
    async fn keep_aside(
        &mut self,
        identity: InodeId,
        versions: &Versions,
        found: &mut Found,
    ) -> Result<(), MergeError> {
        let place = self.main_place(identity).await?;
        let (dir, name) = place.ok_or(MergeError::Damaged("an inode without a name"))?;
        let slot = self.add_aside(dir, &name, Side::Theirs).await?;
        let (ours, (theirs, record)) = (versions.ours.0, &versions.theirs);
        let inode = if *theirs != ours && *theirs != identity {
            // They made a new inode for it, which ours does not need.
            if let Some(object) = self.objects.get_mut(&identity) {
                object.number = Some(ours);
            }
            *theirs
        } else {
            self.new_inode()?
        };
        let object = Object {
            kind: Some(record.stat.kind),
            alive: true,
            excused: true,
            settled: Some(Box::new(Settled {
                record: record.clone(),
                body: Body::Of(Side::Theirs, *theirs),
            })),
            number: Some(inode),
            ..Object::default()
        };
        self.objects.insert(inode, object);
        self.claim(inode, vec![slot]);
        found.slot = self.slots.find(dir, &name);
        found.aside = Some((inode, slot));
        Ok(())
    }

    /// A number for a new inode; if the merge is only tried, one that nobody has.
    fn new_inode(&mut self) -> Result<InodeId, MergeError> {
        let Some(numbers) = &mut self.numbers else {
            self.tried += 1;
            return Ok(InodeId::new(u64::MAX - self.tried));
        };
        let InodeNumbers { next, end } = *numbers;
        if next >= end {
            return Err(MergeError::NoNumbers);
        }
        numbers.next = next + 1;
        Ok(InodeId::new(next))
    }
}
