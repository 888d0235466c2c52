//! Trees in.

use std::sync::Arc;
use std::time::Duration;

use base::limits::INLINE_FILE_BYTES_MAX;
use base::{ChunkId, CommitId, InodeId, OperationId, SessionId, TenantId, Told, WorkspaceId};
use bytes::Bytes;
use chunkstore::{ChunkError, Domain, Hold};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use metadata::compare::Snapshot;
use metadata::image::{Block, Body, NameHasher, allocated};
use metadata::import::{Attributes, DIRS_AT_ONCE_MAX, FLUSH_BYTES, Import, ImportError, Special};
use metadata::record::commit::PARENTS_MAX;
use metadata::record::operation::Cause;
use metadata::record::reference::{RefKind, RefName, RefState};
use metadata::session::{Taker, take_over};
use metadata::store::{CommitInfo, NewCommit, StoreError, WorkspaceInfo};
use metadata::tree::{Root, Tree};

use super::TransferError;
use super::layout::{Laid, Parts};
use crate::gateway::Gateway;
use crate::history::{About, commit_of};

/// Chunks that are hashed, compressed and written at a time, for each import.
const FLIGHTS_MAX: usize = 16;

/// Bytes of chunks that are put before a flush.
const BATCH_BYTES: u64 = 64 << 20;

/// For so long a batch holds the chunk store at most, unless the store stalls: collections wait for
/// it.
const BATCH_TIME: Duration = Duration::from_secs(5);

/// After so many seconds without a sign of life the session of an import ends.
const TTL_SECONDS: u64 = 15 * 60;

/// How often that is put off.
const EXTENSION: Duration = Duration::from_secs(60);

/// Where what comes in is to go.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workspace's name.
    pub workspace: String,
    /// The branch that is moved, or made; `None` leaves the commit on no branch.
    pub branch: Option<RefName>,
    /// Commits that it comes from, instead of what the branch has.
    pub parents: Option<Vec<CommitId>>,
}

/// What an import came to.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The commit.
    pub commit: CommitInfo,
    /// It was made now. Otherwise the branch had the very same already.
    pub is_new: bool,
    /// The operation on the branch, which can be undone.
    pub operation: Option<OperationId>,
}

/// An import under way. Give it up with [`Importing::give_up`] rather than drop it: what it has
/// stored is then free at once.
pub struct Importing {
    gateway: Arc<Gateway>,
    tenant: TenantId,
    workspace: WorkspaceInfo,
    branch: Option<RefName>,
    /// What the branch had when the import began.
    head: Option<CommitId>,
    parents: Vec<CommitId>,
    /// Sessions of which each keeps a further parent, as the import's own keeps the first: no policy lets
    /// them go, and if this process dies they end by themselves.
    keeping: Vec<SessionId>,
    /// The parents were said: a commit is made whatever it changes.
    is_told: bool,
    tree: Tree,
    domain: Domain,
    import: Import,
    file: Option<File>,
    flights: FuturesUnordered<BoxFuture<'static, Flight>>,
    batch: Option<Batch>,
    extended: Duration,
}

/// A chunk on its way to the store.
struct Flight {
    file: InodeId,
    index: u32,
    block: Block,
    put: Result<ChunkId, ChunkError>,
}

/// What has been done since the last flush.
struct Batch {
    /// Keeps collections from taking what was put.
    _hold: Hold,
    since: Duration,
    bytes: u64,
}

/// The file whose content comes.
struct File {
    path: Vec<u8>,
    inode: InodeId,
    size: u64,
    /// The block whose parts come.
    index: u32,
    parts: Parts,
    used: u64,
}

impl std::fmt::Debug for Importing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Importing")
            .field("session", &self.import.session())
            .finish_non_exhaustive()
    }
}

impl Gateway {
    /// Begins an import.
    ///
    /// # Errors
    ///
    /// See [`TransferError`]; `NotFound` for the workspace or a parent.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: at worst a session is left that ends by itself.
    pub async fn begin_import(
        self: &Arc<Self>,
        tenant: TenantId,
        plan: Plan,
    ) -> Result<Importing, TransferError> {
        let store = &self.store;
        let workspace = store.workspace_by_name(tenant, &plan.workspace).await?;
        let head = match &plan.branch {
            Some(branch) => match store.reference(workspace.id, branch).await {
                Ok(found) if found.record.state.kind == RefKind::Branch => {
                    Some(found.record.state.commit)
                }
                Ok(_) => {
                    let why = format!("{:?} is a tag: import to a branch", branch.as_str());
                    return Err(StoreError::Refused { why }.into());
                }
                Err(StoreError::NotFound { .. }) => None,
                Err(error) => return Err(error.into()),
            },
            None => None,
        };
        let is_told = plan.parents.is_some();
        let parents = plan.parents.unwrap_or(head.into_iter().collect());
        if parents.len() > PARENTS_MAX {
            let why = format!("a commit has at most {PARENTS_MAX} parents");
            return Err(StoreError::Invalid { why }.into());
        }
        let tree = self.tree(tenant, &workspace.record).await?;
        let hasher = NameHasher::new(workspace.record.name_key);
        let mut old = None;
        for parent in parents.iter().rev() {
            let root = store.commit(workspace.id, *parent).await?.record.root();
            old = Some(Snapshot::new(tree.clone(), hasher.clone(), root));
        }
        let branch = plan.branch.as_ref().map_or("", RefName::as_str);
        let domain = self.domain(tenant).await?;
        let mut opened = Vec::new();
        let on = (tenant, workspace.id, branch, parents.as_slice());
        let import = match self.open_import(on, old, &mut opened).await {
            Ok(import) => import,
            Err(error) => {
                for session in opened {
                    close(self, tenant, session).await;
                }
                return Err(error);
            }
        };
        // The first is the import's own.
        let keeping = opened.split_off(1);
        Ok(Importing {
            gateway: Arc::clone(self),
            tenant,
            workspace,
            branch: plan.branch,
            head,
            parents,
            keeping,
            is_told,
            tree,
            domain,
            import,
            file: None,
            flights: FuturesUnordered::new(),
            batch: None,
            extended: self.clock.monotonic(),
        })
    }

    /// Opens the sessions of an import, and owns the first. Which are open is in `opened`, also after an
    /// error.
    async fn open_import(
        &self,
        (tenant, workspace, branch, parents): (TenantId, WorkspaceId, &str, &[CommitId]),
        old: Option<Snapshot>,
        opened: &mut Vec<SessionId>,
    ) -> Result<Import, TransferError> {
        let store = &self.store;
        let open = |parent| store.open_staging(tenant, workspace, (branch, parent), TTL_SECONDS);
        let session = open(parents.first().copied()).await?;
        opened.push(session);
        for parent in parents.iter().skip(1) {
            opened.push(open(Some(*parent)).await?);
        }
        let nonce = self.rng.u64();
        // Nobody else knows of it.
        let taker = Taker::alone(self.id, nonce);
        let owned = take_over(self.kv.as_ref(), &self.trees, session, taker).await?;
        let (kv, now) = (Arc::clone(&self.kv), self.clock.wall());
        Ok(Import::begin(kv, store.clone(), owned, old, now).await?)
    }
}

impl Importing {
    /// How many directories have come: those that were told of, and those that were made because
    /// something is in them.
    #[must_use]
    pub fn directories(&self) -> u64 {
        self.import.directories()
    }

    /// A directory, made or there already. The empty path is the root.
    ///
    /// # Errors
    ///
    /// See [`TransferError`]. The import is to be given up then, like after all errors below.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe, like all below: the import is to be given up then.
    pub async fn directory(&mut self, path: &[u8], with: Attributes) -> Result<(), TransferError> {
        self.parents(path).await?;
        self.import.directory(path, with).await?;
        self.made_one().await
    }

    /// A symbolic link, a device, a pipe or a socket.
    ///
    /// # Errors
    ///
    /// See [`TransferError`].
    pub async fn special(
        &mut self,
        path: &[u8],
        with: Attributes,
        special: Special,
    ) -> Result<(), TransferError> {
        self.parents(path).await?;
        self.import.special(path, with, special).await?;
        self.made_one().await
    }

    /// A further name of what is at `target` already.
    ///
    /// # Errors
    ///
    /// See [`TransferError`].
    pub async fn link(&mut self, path: &[u8], target: &[u8]) -> Result<(), TransferError> {
        self.parents(path).await?;
        self.import.link(path, target).await?;
        self.made_one().await
    }

    /// Makes what is missing above a path of very many directories, with flushes between them.
    async fn parents(&mut self, path: &[u8]) -> Result<(), TransferError> {
        let depth = path.iter().filter(|byte| **byte == b'/').count();
        if depth > DIRS_AT_ONCE_MAX {
            while !self.import.parents(path).await? {
                self.made_one().await?;
            }
        }
        Ok(())
    }

    /// What the parent has at this path, which is no directory.
    ///
    /// # Errors
    ///
    /// See [`TransferError`].
    pub async fn keep(&mut self, path: &[u8]) -> Result<(), TransferError> {
        self.parents(path).await?;
        let (chunks, domain) = (Arc::clone(&self.gateway.chunks), self.domain.id);
        if let Some(mut keeping) = self.import.keep(path).await? {
            loop {
                // The hold is there before anything is touched.
                self.batch();
                let touch = |id| chunks.touch(domain, id);
                if !self.import.keep_blocks(&mut keeping, touch).await? {
                    break;
                }
                self.flush().await?;
            }
        }
        self.made_one().await
    }

    /// A file of `size` bytes. Its content comes by [`Importing::data`]; what does not come is holes.
    /// [`Importing::end_file`] ends it.
    ///
    /// # Errors
    ///
    /// See [`TransferError`].
    pub async fn file(
        &mut self,
        path: &[u8],
        with: Attributes,
        size: u64,
    ) -> Result<(), TransferError> {
        // Before anything of it comes: blocks have numbers only up to there.
        self.import.check_size(path, size)?;
        self.parents(path).await?;
        let inode = self.import.file(path, with).await?;
        self.file = Some(File {
            path: path.to_vec(),
            inode,
            size,
            index: 0,
            parts: Parts::default(),
            used: 0,
        });
        Ok(())
    }

    /// Content of the file, from `offset` on. Offsets rise, and it ends within the file's size.
    ///
    /// # Errors
    ///
    /// See [`TransferError`].
    pub async fn data(&mut self, mut offset: u64, data: &[u8]) -> Result<(), TransferError> {
        let block_bytes = u64::from(self.workspace.record.block_bytes.max(1));
        if let Some(file) = &self.file {
            let end = offset.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
            self.import.check_size(&file.path, end)?;
        }
        let mut rest = data;
        while !rest.is_empty() {
            // It fits: that was checked.
            let index = u32::try_from(offset / block_bytes).unwrap_or(u32::MAX);
            if self.file.as_ref().is_some_and(|file| file.index != index) {
                self.seal().await?;
            }
            let within = offset % block_bytes;
            let room = usize::try_from(block_bytes - within).unwrap_or(usize::MAX);
            let (part, after) = rest.split_at(room.min(rest.len()));
            if let Some(file) = &mut self.file {
                file.index = index;
                file.parts
                    .push(u32::try_from(within).unwrap_or(u32::MAX), part);
            }
            offset += u64::try_from(part.len()).unwrap_or(u64::MAX);
            rest = after;
        }
        // However slowly a block comes, what came before it is not held for long.
        let now = self.gateway.clock.monotonic();
        let since = self.batch.as_ref().map(|batch| batch.since);
        if since.is_some_and(|since| now.saturating_sub(since) >= BATCH_TIME) {
            self.flush().await?;
        }
        Ok(())
    }

    /// The file is whole.
    ///
    /// # Errors
    ///
    /// See [`TransferError`].
    pub async fn end_file(&mut self) -> Result<(), TransferError> {
        let small = self.file.as_ref().and_then(|file| {
            let content = file.parts.whole().filter(|_| file.index == 0)?;
            let is_all = u64::try_from(content.len()).ok() == Some(file.size);
            let fits = content.len() <= INLINE_FILE_BYTES_MAX;
            (is_all && fits).then(|| (file.inode, Bytes::copy_from_slice(content)))
        });
        if let Some((inode, content)) = small {
            self.file = None;
            self.import.small(inode, content).await?;
            return self.made_one().await;
        }
        self.seal().await?;
        if let Some(file) = self.file.take() {
            let at = (file.path.as_slice(), file.inode);
            self.import.resize(at, file.size, file.used).await?;
        }
        self.made_one().await
    }

    /// Stores the block whose parts have come.
    async fn seal(&mut self) -> Result<(), TransferError> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let parts = std::mem::take(&mut file.parts);
        if parts.is_empty() {
            return Ok(());
        }
        let Laid { block, chunk } = parts.lay();
        file.used += allocated(Some(&block), [None, None]);
        let start = u64::from(file.index) * u64::from(self.workspace.record.block_bytes);
        let end = start + u64::from(block.end());
        let at = (file.path.as_slice(), file.inode);
        self.import.resize(at, end, file.used).await?;
        let (inode, index) = (file.inode, file.index);
        let Some(content) = chunk else {
            self.import.block(inode, index, &block).await?;
            return self.made_one().await;
        };
        if self.gateway.space().available == Some(0) {
            let why = "no space is left for the import: remove something, or make the disk larger";
            return Err(ImportError::NoSpace(why.into()).into());
        }
        // The hold is there before the put begins.
        let batch = self.batch();
        batch.bytes += u64::try_from(content.len()).unwrap_or(u64::MAX);
        let (chunks, domain) = (Arc::clone(&self.gateway.chunks), self.domain);
        let flight = async move {
            let put = chunks.put(domain, content).await;
            Flight {
                file: inode,
                index,
                block,
                put,
            }
        };
        self.flights.push(Box::pin(flight));
        while self.flights.len() >= FLIGHTS_MAX {
            self.land().await?;
        }
        self.made_one().await
    }

    /// Waits until a chunk is stored.
    async fn land(&mut self) -> Result<(), TransferError> {
        if let Some(flight) = self.flights.next().await {
            let Flight {
                file,
                index,
                mut block,
                put,
            } = flight;
            let stored = put?;
            if let Body::Chunk { id, .. } = &mut block.body {
                *id = stored;
            }
            self.import.block(file, index, &block).await?;
        }
        Ok(())
    }

    fn batch(&mut self) -> &mut Batch {
        let (chunks, clock) = (&self.gateway.chunks, &self.gateway.clock);
        self.batch.get_or_insert_with(|| Batch {
            _hold: chunks.hold(),
            since: clock.monotonic(),
            bytes: 0,
        })
    }

    /// After each thing that was made: flushes if there is enough to flush, or it has waited.
    async fn made_one(&mut self) -> Result<(), TransferError> {
        let now = self.gateway.clock.monotonic();
        let batch = self.batch();
        let is_due = batch.bytes >= BATCH_BYTES || now.saturating_sub(batch.since) >= BATCH_TIME;
        if is_due || self.import.pending_bytes() >= FLUSH_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    /// To be called when nothing comes for a while: what has come does not wait on.
    ///
    /// # Errors
    ///
    /// See [`TransferError`].
    pub async fn idle(&mut self) -> Result<(), TransferError> {
        self.flush().await
    }

    /// How long [`Importing::idle`] may be waited with.
    #[must_use]
    pub fn patience(&self) -> Duration {
        BATCH_TIME
    }

    async fn flush(&mut self) -> Result<(), TransferError> {
        while !self.flights.is_empty() {
            self.land().await?;
        }
        let gateway = Arc::clone(&self.gateway);
        if self.batch.as_ref().is_some_and(|batch| batch.bytes > 0) {
            gateway.chunks.sync().await?;
        }
        self.import.flush().await?;
        self.batch = None;
        let now = gateway.clock.monotonic();
        if now.saturating_sub(self.extended) >= EXTENSION {
            self.extended = now;
            self.extend(TTL_SECONDS).await?;
        }
        Ok(())
    }

    async fn extend(&mut self, seconds: u64) -> Result<(), TransferError> {
        self.import.extend(seconds).await?;
        for session in &self.keeping {
            let store = &self.gateway.store;
            store.extend_session(self.tenant, *session, seconds).await?;
        }
        Ok(())
    }

    /// Makes a commit of what came in, and moves the branch to it. If the branch has the very same
    /// already there is no new commit.
    ///
    /// # Errors
    ///
    /// See [`TransferError`]. No branch has moved then, unless an outcome is unknown; after `Moved` there may be a commit that is on
    /// no branch.
    pub async fn finish(mut self, about: About) -> Result<Imported, TransferError> {
        let finished = self.try_finish(about).await;
        self.close().await;
        finished
    }

    /// Drops all that came in.
    pub async fn give_up(self) {
        self.close().await;
    }

    async fn close(self) {
        let (gateway, session) = (self.gateway, self.import.session());
        // No put of this import comes after its end.
        drop(self.flights);
        for session in self.keeping.into_iter().chain([session]) {
            close(&gateway, self.tenant, session).await;
        }
    }

    async fn try_finish(&mut self, about: About) -> Result<Imported, TransferError> {
        self.flush().await?;
        // Folding may take long, and nobody extends the session meanwhile.
        self.extend(4 * TTL_SECONDS).await?;
        let gateway = Arc::clone(&self.gateway);
        let (store, workspace) = (&gateway.store, self.workspace.id);
        let _hold = gateway.chunks.hold();
        let root = gateway.snapshot(self.import.session()).await?;
        let first = match self.parents.first() {
            Some(parent) => Some(store.commit(workspace, *parent).await?),
            None => None,
        };
        let before = first.as_ref().map(|first| first.record.root());
        let commit = match first {
            Some(commit) if before == Some(root) && !self.is_told => {
                return Ok(Imported {
                    commit,
                    is_new: false,
                    operation: None,
                });
            }
            _ => self.commit(about, before, root).await?,
        };
        let operation = self.move_branch(workspace, &commit).await?;
        tracing::info!(workspace = %workspace, commit = %commit.id, "tree imported");
        Ok(Imported {
            commit,
            is_new: true,
            operation,
        })
    }

    async fn commit(
        &mut self,
        about: About,
        before: Option<Root>,
        root: Root,
    ) -> Result<CommitInfo, TransferError> {
        let (tree, store) = (&self.tree, &self.gateway.store);
        let hasher = NameHasher::new(self.workspace.record.name_key);
        let new = NewCommit {
            parents: self.parents.clone(),
            message: about.message,
            provenance: about.provenance,
            ..commit_of::<TransferError>(tree, &hasher, before, root).await?
        };
        Ok(store.put_commit(self.workspace.id, new).await?)
    }

    async fn move_branch(
        &mut self,
        workspace: WorkspaceId,
        commit: &CommitInfo,
    ) -> Result<Option<OperationId>, TransferError> {
        let Some(branch) = &self.branch else {
            return Ok(None);
        };
        let store = &self.gateway.store;
        let moved = match self.head {
            Some(head) => {
                if !store.is_ancestor(workspace, head, commit.id).await? {
                    let why = format!(
                        "branch {:?} has commits that the imported ones do not come from: import \
                         to another branch",
                        branch.as_str()
                    );
                    return Err(StoreError::Refused { why }.into());
                }
                store
                    .move_ref(workspace, branch, head, commit.id, Cause::Asked)
                    .await
            }
            None => {
                let state = RefState {
                    commit: commit.id,
                    kind: RefKind::Branch,
                    protected: false,
                };
                let made = store.create_ref(workspace, branch, state, Cause::Asked);
                made.await.map(Some)
            }
        };
        match moved {
            Ok(operation) => Ok(operation),
            Err(
                StoreError::Changed { .. }
                | StoreError::Exists { .. }
                | StoreError::NotFound { .. },
            ) => {
                let branch = branch.as_str().to_owned();
                Err(TransferError::Moved { branch })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Ends the session of an import.
async fn close(gateway: &Gateway, tenant: TenantId, session: SessionId) {
    match gateway.store.close_session(tenant, session).await {
        Ok(()) | Err(StoreError::NotFound { .. }) => {}
        // It ends by itself.
        Err(error) => {
            tracing::warn!(%session, error = %Told(&error), "close the session of an import");
        }
    }
    gateway.drop_session(session);
}

#[cfg(test)]
mod tests {
    use base::{Clock, ManualClock, NodeId, Rng, Timestamp};
    use chunkstore::memory::MemoryStore;
    use metadata::keyspace;
    use metadata::kv::Kv;
    use metadata::kv::memory::MemoryKv;
    use metadata::store::{NewWorkspace, Store};

    use super::*;
    use crate::{Engines, GatewayOptions};

    const TENANT: TenantId = TenantId::DEFAULT;

    struct World {
        memory: Arc<MemoryKv>,
        store: Store,
        gateway: Arc<Gateway>,
        plan: Plan,
    }

    impl World {
        async fn new() -> Self {
            let wall = Timestamp::new(1_000_000, 0);
            let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(wall));
            let memory = Arc::new(MemoryKv::new(Arc::clone(&clock)));
            let rng = Arc::new(Rng::seeded(1));
            let store = Store::open(memory.clone(), Arc::clone(&clock), Arc::clone(&rng));
            let store = store.await.unwrap();
            let new = NewWorkspace {
                name: "w".into(),
                root: (0o777, 0, 0),
            };
            let workspace = store.create_workspace(TENANT, new).await.unwrap().id;
            let mut parents = Vec::new();
            for number in 1..=3 {
                let new = NewCommit::of_tree(NodeId::new([number; 32]));
                parents.push(store.put_commit(workspace, new).await.unwrap().id);
            }
            let engines = Engines {
                kv: memory.clone(),
                chunks: Arc::new(MemoryStore::new()),
                clock,
                rng,
            };
            let gateway = Gateway::new(GatewayOptions::default(), engines, store.clone());
            Self {
                memory,
                store,
                gateway: gateway.await.unwrap(),
                plan: Plan {
                    workspace: "w".into(),
                    branch: None,
                    parents: Some(parents),
                },
            }
        }

        async fn sessions(&self) -> usize {
            let sessions = self.store.sessions(TENANT, None, None, 99).await;
            sessions.unwrap().len()
        }
    }

    /// Bug: its sessions stayed until they ended by themselves.
    #[tokio::test]
    async fn an_import_that_cannot_begin_leaves_no_session() {
        let world = World::new().await;
        let begun = world.gateway.begin_import(TENANT, world.plan.clone());
        let begun = begun.await.unwrap();
        assert_eq!(world.sessions().await, 3);
        begun.give_up().await;
        assert_eq!(world.sessions().await, 0);

        // What it begins with is damaged.
        let workspace = world.store.workspace_by_name(TENANT, "w").await.unwrap();
        let mut txn = world.memory.begin();
        txn.clear(&keyspace::inodes(workspace.id));
        txn.commit().await.unwrap();
        let begun = world.gateway.begin_import(TENANT, world.plan.clone()).await;
        let error = begun.unwrap_err().to_string();
        assert!(error.contains("inode counter"), "{error}");
        assert_eq!(world.sessions().await, 0);
    }
}
