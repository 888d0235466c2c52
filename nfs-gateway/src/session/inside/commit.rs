//! Trees of commits, below `at`. A tree is served as a session is: by the same operations on an image
//! of what was needed so far. It never changes, so nothing is ever outdated.

use std::sync::Arc;

use base::{CommitId, InodeId, WorkspaceId};
use metadata::image::{Image, ImageConfig, InodeNumbers, Totals};
use metadata::layers::Layers;
use metadata::ops::{self, Context};
use metadata::session::load;
use metadata::stat::Stat;
use metadata::store::{CommitInfo, StoreError};
use metadata::version::IdPrefix;
use metadata::{FsError, Miss, OpError};
use parking_lot::Mutex;

use super::super::slow::LOADS_MAX;
use super::trouble::Trouble;
use super::{Object, Request, Session};
use crate::handle::Selector;
use crate::procedures::{self, Scope, Space, Step, View};
use crate::wire::args::NfsCall;
use crate::wire::reply::Reply;
use crate::wire::results::{self, LookupOk, ReadOk};

/// Commits that are open at a time.
const OPEN_MAX: usize = 32;

/// About how much of one commit's image stays in memory, in bytes.
const IMAGE_BYTES_MAX: usize = 4 << 20;

/// What an open commit is known by.
pub(crate) type Key = (WorkspaceId, Selector);

/// The commits that were looked at last.
pub(crate) type OpenCommits = Recent<Key, OpenCommit>;

/// What was used last, and no more than [`OPEN_MAX`] of it.
#[derive(Debug)]
pub(crate) struct Recent<K, T> {
    /// The last is the one used last.
    open: Mutex<Vec<(K, Arc<T>)>>,
}

/// A commit that is being looked at.
#[derive(Debug)]
pub(crate) struct OpenCommit {
    id: CommitId,
    image: Mutex<Image>,
    layers: Layers,
    /// Held by a call from its first load until it has run with all it missed. Only who holds it
    /// evicts, so no load is in vain.
    loading: tokio::sync::Mutex<()>,
}

impl<K, T> Default for Recent<K, T> {
    fn default() -> Self {
        Self {
            open: Mutex::new(Vec::new()),
        }
    }
}

impl<K: PartialEq, T> Recent<K, T> {
    fn find(&self, key: K) -> Option<Arc<T>> {
        let mut open = self.open.lock();
        let at = open.iter().position(|(other, _)| *other == key)?;
        let found = open.remove(at);
        let kept = Arc::clone(&found.1);
        open.push(found);
        Some(kept)
    }

    /// Keeps it; if there is one under this key, that one.
    fn keep(&self, key: K, it: T) -> Arc<T> {
        let mut open = self.open.lock();
        if let Some((_, found)) = open.iter().find(|(other, _)| *other == key) {
            return Arc::clone(found);
        }
        let kept = Arc::new(it);
        if open.len() >= OPEN_MAX {
            // Who is using it goes on.
            open.remove(0);
        }
        open.push((key, Arc::clone(&kept)));
        kept
    }

    fn forget(&self, key: K) {
        self.open.lock().retain(|(other, _)| *other != key);
    }
}

impl Session {
    /// The handle and the attributes of the root of a commit's tree.
    pub(super) async fn root_of_commit(
        self: &Arc<Self>,
        commit: &CommitInfo,
    ) -> Result<(Selector, Stat), Trouble> {
        let selector = Selector::of_commit(commit.id);
        let key = (self.record.workspace, selector);
        let open = match self.shared.commits.find(key) {
            // Another one with the same beginning of its id is not told apart in handles.
            Some(open) if open.id != commit.id => return Err(FsError::Corrupt.into()),
            Some(open) => open,
            None => self.open_commit(commit).await?,
        };
        let stat = |image: &mut Image| ops::getattr(image, InodeId::ROOT);
        let mut loading = None;
        loop {
            let found = open.image.lock().run(stat).0;
            match found {
                Ok(stat) => return Ok((selector, stat)),
                Err(OpError::Fs(error)) => return Err(error.into()),
                Err(OpError::Miss(miss)) => {
                    if loading.is_none() {
                        loading = Some(open.loading.lock().await);
                    }
                    self.load_commit(&open, &[miss]).await?;
                }
            }
        }
    }

    /// Runs a call on an object of a commit's tree.
    pub(super) async fn run_on_commit(
        self: &Arc<Self>,
        request: &Request<'_>,
    ) -> Result<Reply, Trouble> {
        let open = self.commit_of(request.selector).await?;
        let view = self.view(request.flags).of(request.selector);
        if request.objects.first == InodeId::ROOT
            && let NfsCall::Lookup(args) = request.nfs
            && args.name == b".."
        {
            return Ok(self.above_commit(request, &open));
        }
        if matches!(request.nfs, NfsCall::Commit(_)) {
            return Err(FsError::ReadOnly.into());
        }
        let mut loading = None;
        let mut gone = None;
        for _ in 0..LOADS_MAX {
            let step = self.step_on_commit(&open, &view, request);
            match step {
                Step::Reply(reply) => {
                    if loading.is_some() {
                        let memory_max = self.shared.options.session_memory_bytes;
                        open.limit_memory(memory_max.min(IMAGE_BYTES_MAX));
                    }
                    return Ok(reply);
                }
                Step::Load(misses) => {
                    if loading.is_none() {
                        loading = Some(open.loading.lock().await);
                    }
                    self.load_commit(&open, &misses).await?;
                }
                Step::Read(read) => {
                    if let Some(payload) = self.fetch(&read.pieces, &mut gone).await? {
                        let attributes = Some(view.fattr(&read.file));
                        let eof = read.end;
                        let ok = ReadOk { attributes, eof };
                        return Ok(results::read(request.call.xid, &ok, payload));
                    }
                }
                // Nothing is written here.
                Step::Stable(_) => return Err(FsError::ReadOnly.into()),
            }
        }
        Err(Trouble::Unavailable)
    }

    fn step_on_commit(&self, open: &OpenCommit, view: &View, request: &Request<'_>) -> Step {
        let caller = self.caller(&request.call.credential);
        let now = self.shared.clock.wall();
        let mut image = open.image.lock();
        let (step, _) = image.run(|image| {
            let cx = Context {
                caller: &caller,
                now,
            };
            let scope = Scope {
                xid: request.call.xid,
                image,
                cx,
                view,
                space: Space {
                    available: Some(0),
                    refuses: false,
                },
                inside: None,
            };
            procedures::execute(scope, request.nfs, request.objects)
        });
        step
    }

    /// LOOKUP of `..` in the root of a commit's tree: the directory that versions are looked up in.
    fn above_commit(&self, request: &Request<'_>, open: &OpenCommit) -> Reply {
        let below = self.view(request.flags).of(request.selector);
        let root = open.image.lock().peek(InodeId::ROOT);
        let view = below.of(Selector::INSIDE);
        let handle = view.handle(Object::At.inode(0));
        results::ok(
            request.call.xid,
            &LookupOk {
                object: handle.wire(),
                attributes: Some(view.fattr(&self.inside.directory(Object::At))),
                dir: root.map(|root| below.fattr(&root)),
            },
        )
    }

    /// The commit that handles name by the beginning of its id.
    async fn commit_of(&self, selector: Selector) -> Result<Arc<OpenCommit>, Trouble> {
        let workspace = self.record.workspace;
        if let Some(open) = self.shared.commits.find((workspace, selector)) {
            return Ok(open);
        }
        let digits: String = selector
            .as_bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let prefix: IdPrefix = digits.parse().map_err(|_| FsError::Stale)?;
        let store = &self.shared.store;
        let found = match store.commit_by_prefix(workspace, &prefix).await {
            Ok(id) => store.commit(workspace, id).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(commit) => self.open_commit(&commit).await,
            Err(StoreError::NotFound { .. } | StoreError::Ambiguous { .. }) => {
                Err(FsError::Stale.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn open_commit(&self, commit: &CommitInfo) -> Result<Arc<OpenCommit>, Trouble> {
        let store = &self.shared.store;
        let (tenant, workspace) = (self.record.tenant, self.record.workspace);
        let config = store.workspace(workspace).await?.record;
        let tree = self.shared.tree(tenant, &config).await?;
        let image = ImageConfig {
            name_key: config.name_key,
            block_bytes: config.block_bytes,
            bytes_max: commit.record.usage.bytes,
            inodes_max: commit.record.usage.inodes,
            read_only: true,
        };
        let totals = Totals {
            usage: commit.record.usage,
            numbers: InodeNumbers::default(),
        };
        let root = commit.record.root();
        let open = OpenCommit {
            id: commit.id,
            image: Mutex::new(Image::new(image, totals)),
            layers: Layers::of_tree(tree, root),
            loading: tokio::sync::Mutex::new(()),
        };
        let key = (workspace, Selector::of_commit(commit.id));
        Ok(self.shared.commits.keep(key, open))
    }

    async fn load_commit(&self, open: &OpenCommit, misses: &[Miss]) -> Result<(), Trouble> {
        for miss in misses {
            self.shared.counters.loads.count();
            match load(self.shared.kv.as_ref(), &open.layers, *miss).await {
                Ok(Some(loaded)) => loaded.install(&mut open.image.lock()),
                Ok(None) => {}
                Err(error) => {
                    let trouble = Trouble::from(&error);
                    if trouble != Trouble::Fail(FsError::Corrupt) {
                        return Err(trouble);
                    }
                    return self.explain_damage(open, &error.to_string()).await;
                }
            }
        }
        Ok(())
    }

    /// A tree that cannot be read is damaged, unless its commit is gone.
    async fn explain_damage(&self, open: &OpenCommit, error: &str) -> Result<(), Trouble> {
        let workspace = self.record.workspace;
        let selector = Selector::of_commit(open.id);
        self.shared.commits.forget((workspace, selector));
        match self.shared.store.commit(workspace, open.id).await {
            Err(StoreError::NotFound { .. }) => Err(FsError::Stale.into()),
            Err(StoreError::Unavailable(_)) => Err(Trouble::Unavailable),
            Ok(_) | Err(_) => {
                tracing::error!(commit = %open.id, error, "stored data is damaged");
                self.shared.counters.corrupt.count();
                Err(FsError::Corrupt.into())
            }
        }
    }
}

impl OpenCommit {
    /// Called by who holds `loading`.
    fn limit_memory(&self, bytes_max: usize) {
        let mut image = self.image.lock();
        if image.memory_bytes() > bytes_max {
            image.evict(bytes_max / 4 * 3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_is_kept() {
        let recent: Recent<usize, usize> = Recent::default();
        let first = recent.keep(0, 0);
        for number in 1..OPEN_MAX {
            recent.keep(number, number);
        }
        assert_eq!(recent.find(0), Some(Arc::clone(&first)));
        recent.keep(OPEN_MAX, OPEN_MAX);
        assert_eq!(recent.find(1), None);
        // There is one of each: a second one is dropped.
        assert!(Arc::ptr_eq(&recent.keep(0, 99), &first));
        assert_eq!(recent.open.lock().len(), OPEN_MAX);
        recent.forget(0);
        assert_eq!(recent.find(0), None);
        assert_eq!(*first, 0);
    }
}
