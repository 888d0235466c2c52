//! Merges of filesystems over maps, and the check of what comes of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{ChunkId, DomainId, InodeId, ManualClock, Rng, SessionId, TenantId, Timestamp};
use bytes::Bytes;

use super::world::{
    BLOCK_BYTES, Chunks, Fs, NAME_KEY, NUMBERS, Pairs, content_of, index, store_chunk,
};
use crate::check::{CheckOptions, check};
use crate::image::{Block, InodeNumbers, NameHasher, Totals, Usage};
use crate::keyspace;
use crate::keyspace::image as keys;
use crate::kv::memory::MemoryKv;
use crate::kv::{Isolation, KeyRange, Kv};
use crate::layers::{ImageError, Scanned};
use crate::merge::{
    Content, ContentError, Difference, Differences, ImageView, MergeError, MergeFuture, MergeInput,
    MergeOptions, Merged, Origin, Pair, Policy, ShortId, conflicts, merge,
};
use crate::record::conflict::{Conflict, Sources};
use crate::record::inode::InodeRecord;
use crate::record::session::FlushRecord;
use crate::record::workspace::WorkspaceRecord;
use crate::store::{NewWorkspace, OpenSession, Store};

/// A map as an image that cannot change.
#[derive(Debug)]
struct View<'a>(&'a Pairs);

impl ImageView for View<'_> {
    fn get<'a>(&'a self, key: &'a [u8]) -> MergeFuture<'a, Option<Bytes>, ImageError> {
        Box::pin(async { Ok(self.0.get(key).cloned()) })
    }

    /// Short pages, so that reading goes on over their ends.
    fn scan<'a>(
        &'a self,
        range: &'a KeyRange,
        pairs_max: usize,
    ) -> MergeFuture<'a, Scanned, ImageError> {
        let mut pairs = self.0.range(range.start.to_vec()..range.end.to_vec());
        let page: Vec<(Bytes, Bytes)> = pairs
            .by_ref()
            .take(pairs_max.min(2))
            .map(|(key, value)| (Bytes::copy_from_slice(key), value.clone()))
            .collect();
        let covered_to = pairs.next().and(page.last().map(|(key, _)| key.clone()));
        Box::pin(async {
            Ok(Scanned {
                pairs: page,
                covered_to,
            })
        })
    }
}

/// Differences of two maps.
#[derive(Debug)]
struct Between(std::vec::IntoIter<Difference>);

impl Between {
    fn new(base: &Pairs, side: &Pairs) -> Self {
        let all: BTreeSet<&Vec<u8>> = base.keys().chain(side.keys()).collect();
        let difference = |key: &Vec<u8>| {
            let (old, new) = (base.get(key).cloned(), side.get(key).cloned());
            let key = Bytes::copy_from_slice(key);
            (old != new).then_some(Difference { key, old, new })
        };
        let found: Vec<Difference> = all.into_iter().filter_map(difference).collect();
        Self(found.into_iter())
    }
}

impl Differences for Between {
    fn next(&mut self) -> MergeFuture<'_, Option<Difference>, ImageError> {
        Box::pin(async { Ok(self.0.next()) })
    }
}

/// Content of the three maps.
#[derive(Debug)]
pub(super) struct Files<'a> {
    base: &'a Pairs,
    sides: Pair<&'a Pairs>,
    chunks: &'a Chunks,
}

/// The content of three filesystems.
pub(super) fn files<'a>(base: &'a Fs, ours: &'a Fs, theirs: &'a Fs) -> Files<'a> {
    Files {
        base: &base.store,
        sides: Pair {
            ours: &ours.store,
            theirs: &theirs.store,
        },
        chunks: &base.chunks,
    }
}

impl Content for Files<'_> {
    fn read<'a>(
        &'a self,
        origin: Origin,
        inode: InodeId,
        record: &'a InodeRecord,
    ) -> MergeFuture<'a, Bytes, ContentError> {
        let store = match origin {
            Origin::Base => self.base,
            Origin::Of(side) => self.sides.of(side),
        };
        assert_eq!(record.stat.inode, inode);
        assert_eq!(store.get(&keys::inode(inode)), Some(&record.encode()));
        Box::pin(async { Ok(content_of(store, self.chunks, record).into()) })
    }

    fn store(&self, content: Bytes) -> MergeFuture<'_, Vec<(u32, Block)>, ContentError> {
        let parts = content.chunks(index(BLOCK_BYTES)).enumerate();
        let blocks = parts.map(|(at, part)| {
            (
                u32::try_from(at).unwrap(),
                store_chunk(self.chunks, part.to_vec()),
            )
        });
        let blocks = blocks.collect();
        Box::pin(async { Ok(blocks) })
    }
}

pub(super) fn options(policy: Policy) -> MergeOptions {
    MergeOptions {
        policy,
        hasher: NameHasher::new(NAME_KEY),
        labels: Pair {
            ours: ShortId::new("o1").unwrap(),
            theirs: ShortId::new("t1").unwrap(),
        },
        sources: Sources::default(),
        unite_execute_bits: false,
    }
}

/// Runs a future that never waits.
pub(super) fn now<T>(future: impl Future<Output = T>) -> T {
    use futures_util::FutureExt;
    future.now_or_never().expect("maps do not wait")
}

/// Merges, and says nothing of the result.
pub(super) fn try_merge(
    base: &mut Fs,
    ours: &mut Fs,
    theirs: &mut Fs,
    options: &MergeOptions,
    numbers: &mut InodeNumbers,
) -> Result<Merged, MergeError> {
    for fs in [&mut *base, ours, theirs] {
        fs.flush();
    }
    let (our_view, their_view) = (View(&ours.store), View(&theirs.store));
    let files = files(base, ours, theirs);
    let differences = || {
        (
            Between::new(&base.store, &ours.store),
            Between::new(&base.store, &theirs.store),
        )
    };
    let input = |differences: &mut (Between, Between), act: &mut dyn FnMut(MergeInput<'_>)| {
        act(MergeInput {
            views: Pair {
                ours: &our_view,
                theirs: &their_view,
            },
            differences: Pair {
                ours: &mut differences.0,
                theirs: &mut differences.1,
            },
            content: &files,
        });
    };
    let (mut warned, mut merged) = (None, None);
    input(&mut differences(), &mut |input| {
        warned = Some(now(conflicts(input, options)));
    });
    input(&mut differences(), &mut |input| {
        merged = Some(now(merge(input, options, numbers)));
    });
    let (warned, merged) = (warned.unwrap(), merged.unwrap()?);
    // A warning says what the merge says, but for inodes that are not made yet.
    let known = |conflicts: &[Conflict]| -> Vec<Conflict> {
        let mut conflicts = conflicts.to_vec();
        for aside in conflicts.iter_mut().filter_map(|it| it.aside.as_mut()) {
            aside.inode = InodeId::ROOT;
        }
        conflicts
    };
    assert_eq!(known(&warned?), known(&merged.conflicts));
    Ok(merged)
}

/// Merges, and checks that the result is sound. Conflicts are compared with those in the image.
pub(super) fn merge_with(
    base: &mut Fs,
    ours: &mut Fs,
    theirs: &mut Fs,
    options: &MergeOptions,
) -> (Fs, Merged) {
    for fs in [&mut *base, ours, theirs] {
        fs.flush();
    }
    // Numbers that none of the three has.
    let number = |key: &Vec<u8>| keys::decode(key).unwrap().inode().raw();
    let stores = [&base.store, &ours.store, &theirs.store].into_iter();
    let block = 1 + stores.flat_map(Pairs::keys).map(number).max().unwrap() / NUMBERS;
    let mut numbers = InodeNumbers {
        next: block * NUMBERS,
        end: (block + 1) * NUMBERS,
    };
    let merged = try_merge(base, ours, theirs, options, &mut numbers).unwrap();
    let mut store = ours.store.clone();
    for (key, value) in &merged.delta {
        let before = match value {
            Some(value) => store.insert(key.to_vec(), value.clone()),
            None => store.remove(&key[..]),
        };
        assert_ne!(
            before.as_ref(),
            value.as_ref(),
            "{:?} did not change",
            keys::decode(key)
        );
    }
    let usage = Usage {
        bytes: ours
            .totals
            .usage
            .bytes
            .checked_add_signed(merged.bytes)
            .unwrap(),
        inodes: ours
            .totals
            .usage
            .inodes
            .checked_add_signed(merged.inodes)
            .unwrap(),
    };
    let chunks = Arc::clone(&ours.chunks);
    let now = ours.now.max(theirs.now);
    let mut result = Fs::over(store, usage, chunks, block + 1, now);
    assert_sound(&mut result);
    if options.policy == Policy::KeepBoth {
        let key = |conflict: &Conflict| keys::conflict(&Conflict::id(&conflict.encode()));
        for conflict in &merged.conflicts {
            let stored = &result.store[&key(conflict)];
            assert_eq!(&Conflict::decode(stored).unwrap(), conflict);
        }
    }
    // Without a result there are no places in it.
    let placed = merged
        .conflicts
        .iter()
        .filter(|_| options.policy != Policy::Fail);
    for conflict in placed {
        let told = [Some(&conflict.place), conflict.aside.as_ref()];
        for place in told.into_iter().flatten() {
            let path = String::from_utf8_lossy(&place.path).into_owned();
            if result.store.contains_key(&keys::inode(place.inode)) {
                assert_eq!(result.inode(&path), Ok(place.inode), "{conflict:?}");
            }
        }
    }
    (result, merged)
}

/// Conflicts as lines of text.
pub(super) fn told(merged: &Merged) -> Vec<String> {
    let line = |conflict: &Conflict| {
        let path = |path: &Bytes| String::from_utf8_lossy(path).into_owned();
        let mut line = format!("{} {}", conflict.kind.word(), path(&conflict.place.path));
        if let Some(aside) = &conflict.aside {
            line += &format!(" beside {}", path(&aside.path));
        }
        let has = |version: bool, letter: &str| {
            if version {
                letter.to_owned()
            } else {
                "-".into()
            }
        };
        let versions = has(conflict.base.is_some(), "b")
            + &has(conflict.ours.is_some(), "o")
            + &has(conflict.theirs.is_some(), "t");
        format!("{line} {versions} {:?}", conflict.resolution)
    };
    merged.conflicts.iter().map(line).collect()
}

/// Whether the real check finds nothing wrong with an image that is a session's.
pub(super) fn assert_sound(fs: &mut Fs) {
    fs.flush();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let problems = runtime.block_on(problems(fs));
    assert!(problems.is_empty(), "{problems}\n{:#?}", fs.lines());
}

async fn problems(fs: &Fs) -> String {
    let clock = Arc::new(ManualClock::new(Timestamp::new(1_000_000, 0)));
    let kv: Arc<dyn Kv> = Arc::new(MemoryKv::new(clock.clone()));
    let store = Store::open(Arc::clone(&kv), clock, Arc::new(Rng::seeded(1)))
        .await
        .unwrap();
    let new = NewWorkspace {
        name: "w".into(),
        root: (0o755, 0, 0),
    };
    let workspace = store
        .create_workspace(TenantId::DEFAULT, new)
        .await
        .unwrap();
    let open = OpenSession::new("w");
    let opened = store.open_session(TenantId::DEFAULT, open).await.unwrap();
    let session: SessionId = opened.session.id;
    let mut txn = kv.begin();
    let key = keyspace::workspace(workspace.id);
    let value = txn.get(&key, Isolation::Snapshot).await.unwrap().unwrap();
    let record = WorkspaceRecord {
        name_key: NAME_KEY,
        block_bytes: BLOCK_BYTES,
        ..WorkspaceRecord::decode(&value).unwrap()
    };
    txn.set(&key, &record.encode());
    txn.set(
        &keyspace::inodes(workspace.id),
        &(1_u64 << 40).to_le_bytes(),
    );
    let key = keyspace::session_flush(session);
    let value = txn.get(&key, Isolation::Snapshot).await.unwrap();
    let flush = value.map(|value| FlushRecord::decode(&value).unwrap());
    let flush = FlushRecord {
        totals: Totals {
            usage: fs.totals.usage,
            numbers: InodeNumbers::default(),
        },
        ..flush.unwrap_or_default()
    };
    txn.set(&key, &flush.encode());
    let prefix = keyspace::delta(session, 1);
    for (key, value) in &fs.store {
        txn.set(&[&prefix[..], key].concat(), &[&[1], &value[..]].concat());
    }
    txn.commit().await.unwrap();
    let chunks = fs.chunks.lock().unwrap().clone();
    let exists = |_: DomainId, id: ChunkId| chunks.contains_key(&id);
    let options = CheckOptions {
        trees: None,
        chunk_exists: Some(&exists),
        progress: None,
    };
    let report = check(kv.as_ref(), options).await.unwrap();
    report.problems.iter().map(|it| format!("{it}\n")).collect()
}
