//! Commits that a policy lets go, sessions that are opened at commits, and the removal of the whole
//! workspace: `docs/design/0009-retention.md`.

use std::collections::HashSet;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use base::{ChunkId, Clock, CommitId, DomainId, SystemClock, Timestamp, WorkspaceId};
use metadata::keyspace::{self, Key};
use metadata::kv::{Isolation, Kv, RangeLimit};
use metadata::record::retention::{KEEP_SECONDS_MIN, Policy};
use metadata::references::References;
use metadata::store::{OpenSession, Removal, Store, StoreError};
use nfs_gateway::ChunkTrees;

use super::{Job, Process, TENANT, World, add, step};

/// The machine's clock, whose time of day can be put on.
#[derive(Debug)]
pub(crate) struct ShiftedClock {
    inner: SystemClock,
    seconds: AtomicU64,
}

impl Default for ShiftedClock {
    fn default() -> Self {
        Self {
            inner: SystemClock::new(),
            seconds: AtomicU64::new(0),
        }
    }
}

impl ShiftedClock {
    pub(crate) fn put_on(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, SeqCst);
    }
}

impl Clock for ShiftedClock {
    fn wall(&self) -> Timestamp {
        self.inner.wall().plus_seconds(self.seconds.load(SeqCst))
    }

    fn monotonic(&self) -> Duration {
        self.inner.monotonic()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.inner.sleep(duration)
    }
}

pub(crate) async fn set_policy(store: &Store, workspace: WorkspaceId) {
    let policy = Policy {
        keep_seconds: KEEP_SECONDS_MIN,
        keep_last: 0,
    };
    store.set_retention(workspace, Some(policy)).await.unwrap();
}

impl Process {
    /// As `control`'s collector does before a collection: all that was not named within the hour, and
    /// each time more than an hour has passed.
    pub(super) async fn expire(self: Rc<Self>) {
        self.clock.put_on(KEEP_SECONDS_MIN + 1);
        // What conflicts again and again is left for the next time.
        let Ok(mut expired) = self.store.expired(self.workspace.0).await else {
            return;
        };
        let before = expired.commits().len();
        while !expired.commits().is_empty() {
            match self.store.remove_expired(&mut expired).await {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
        let expired = &self.tally.expired;
        expired.set(expired.get() + u64::try_from(before).unwrap());
    }

    /// Opens a session at some commit, as the API does: without a hold.
    pub(super) async fn open_at(self: Rc<Self>, random: u64) -> Option<()> {
        let commits = self.commits().await;
        let count = u64::try_from(commits.len()).unwrap();
        let at = usize::try_from(random.checked_rem(count)?).unwrap();
        let open = OpenSession {
            version: Some(commits[at].to_string()),
            ..OpenSession::new("w")
        };
        let opened = self.store.open_session(TENANT, open).await.ok()?;
        add(&self.tally.opened);
        self.own(opened.session.id).await
    }

    async fn commits(&self) -> Vec<CommitId> {
        let range = keyspace::commits_of(self.workspace.0);
        let txn = self.kv.begin();
        let page = txn.get_range(&range, RangeLimit::pairs(100), Isolation::Snapshot);
        let pairs = page.await.unwrap().pairs;
        let ids = pairs.iter().map(|(key, _)| match keyspace::decode(key) {
            Ok(Key::Commit(_, id)) => id,
            other => panic!("{other:?}"),
        });
        ids.collect()
    }

    /// As `control`'s remover, one page at a time.
    async fn remove_workspace(self: Rc<Self>) -> Option<()> {
        let deletion = self.store.delete_workspace(TENANT, "w", true).await.ok()?;
        loop {
            match self.store.remove_deleted(&deletion, 2).await.ok()? {
                Removal::Sessions(sessions) => {
                    for id in sessions {
                        self.sessions.lose(id);
                        match self.store.close_session(TENANT, id).await {
                            Ok(()) | Err(StoreError::NotFound { .. }) => {}
                            Err(_) => return None,
                        }
                    }
                }
                Removal::Removed(_) => {}
                Removal::Done => return Some(()),
            }
        }
    }
}

impl World<'_> {
    /// Removes the workspace while others are at work and collections run. Nothing that is referred to
    /// is lost meanwhile, and in the end nothing at all is stored.
    pub(super) async fn remove_all(&mut self, seed: u64) -> Result<(), String> {
        let gate = Arc::clone(&self.process().chunks.gate);
        for number in 0..6 {
            if self.jobs.len() < 6 {
                self.jobs.extend(self.new_job());
            }
            let at = self.index(self.jobs.len().max(1));
            if let Some(job) = self.jobs.get_mut(at)
                && step(&gate, job).await.is_some()
            {
                drop(self.jobs.swap_remove(at));
            }
            // Some removals are begun anew by another process.
            if number == 3 && seed.is_multiple_of(2) {
                let mut removing: Job = Box::pin(self.process().remove_workspace());
                for _ in 0..self.pick(30) {
                    if step(&gate, &mut removing).await.is_some() {
                        break;
                    }
                }
            }
        }
        let mut removing: Job = Box::pin(self.process().go_on_removing());
        let mut is_removed = false;
        while !is_removed || !self.jobs.is_empty() || self.collecting.is_some() {
            match self.pick(3) {
                0 if !is_removed => is_removed = step(&gate, &mut removing).await.is_some(),
                1 if !self.jobs.is_empty() => {
                    let at = self.index(self.jobs.len());
                    if step(&gate, &mut self.jobs[at]).await.is_some() {
                        drop(self.jobs.swap_remove(at));
                    }
                }
                _ => {
                    if self.collecting.is_none() && !is_removed {
                        self.collecting = Some(Box::pin(self.process().collect(2)));
                    }
                    if let Some(collecting) = &mut self.collecting
                        && let Some(result) = step(&gate, collecting).await
                    {
                        self.collecting = None;
                        result.map_err(|lost| format!("seed {seed}, removing: {lost}"))?;
                        self.check().await?;
                    }
                }
            }
        }
        drop(removing);
        let mut collecting: super::Collecting = Box::pin(self.process().collect(9));
        loop {
            if let Some(result) = step(&gate, &mut collecting).await {
                result?;
                break;
            }
        }
        let left = self.referred().await;
        let stored = self.process().chunks.inner.counts();
        if left.is_empty() && stored.chunks == 0 {
            return Ok(());
        }
        Err(format!(
            "seed {seed}: {} references and {stored:?} are left",
            left.len()
        ))
    }

    /// All that is referred to.
    async fn referred(&self) -> HashSet<(DomainId, ChunkId)> {
        let local = self.process().chunks.inner.clone();
        let mut references = References::new(Arc::new(ChunkTrees::new(Arc::new(local), 0)));
        let mut all = HashSet::new();
        let mut each = |domain, id| {
            all.insert((domain, id));
        };
        while references
            .next(self.inner.as_ref(), &mut each)
            .await
            .unwrap()
        {}
        all
    }
}

impl Process {
    /// Removes the workspace, whoever has begun.
    async fn go_on_removing(self: Rc<Self>) -> Option<()> {
        loop {
            let removed = Rc::clone(&self).remove_workspace().await;
            if removed.is_some() {
                return removed;
            }
            let deletions = self.store.deletions().await.unwrap();
            let Some(deletion) = deletions.first() else {
                let named = self.store.workspace_by_name(TENANT, "w").await;
                if matches!(named, Err(StoreError::NotFound { .. })) {
                    // Whoever began has come to the end.
                    return Some(());
                }
                continue;
            };
            loop {
                match self.store.remove_deleted(deletion, 2).await {
                    Ok(Removal::Sessions(sessions)) => {
                        for id in sessions {
                            self.sessions.lose(id);
                            drop(self.store.close_session(TENANT, id).await);
                        }
                    }
                    Ok(Removal::Done) => return Some(()),
                    Ok(Removal::Removed(_)) | Err(_) => {}
                }
            }
        }
    }
}
