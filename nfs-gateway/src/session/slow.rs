//! Calls that memory cannot answer: what they miss is fetched, and they run again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use base::{ChunkId, InodeId, Timestamp, Told};
use bytes::Bytes;
use chunkstore::ChunkError;
use metadata::image::{Image, InodeNumbers, Piece};
use metadata::kv::KvError;
use metadata::session::load;
use metadata::store::StoreError;
use metadata::{FsError, Miss, OpError, OpResult};

use super::{Attempt, Reading, Recipient, Request, Session, StableWrite, failure, writeback};
use crate::gateway::decode_request;
use crate::procedures::stable_reply;
use crate::wire::reply::Payload;

/// Loads for one call, at most: far more than the largest file or directory needs.
pub(super) const LOADS_MAX: u32 = 1_000_000;

/// How long a call waits for a store that fails, before the connection is closed so that the
/// client asks again.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Pause between tries at a store that fails.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// Why a call has to run again, or be finished elsewhere.
#[derive(Debug)]
pub(crate) enum Retry {
    /// Load these parts of the image.
    Load(Vec<Miss>),
    /// Fetch the data of this READ.
    Fetch(Reading),
    /// Store the data of this WRITE or COMMIT.
    Store(StableWrite),
    /// Let a flush go first.
    Flush,
    /// Wait until the image has been exchanged.
    Held,
    /// Run it from the start.
    Again,
}

/// Why a call ends without a result of its own.
pub(super) enum Stop {
    /// With this error.
    Fail(FsError),
    /// With no reply: the connection is closed and the client asks again.
    HangUp,
}

impl Session {
    /// Takes a call that memory could not answer to a task of its own.
    pub(super) fn go_slow(self: &Arc<Self>, record: Bytes, retry: Retry, to: Recipient) {
        let session = Arc::clone(self);
        self.shared
            .tasks
            .spawn(async move { session.run_slow(record, retry, to).await });
    }

    /// Starts a call anew whose session is no longer held in memory: whoever owns it now serves it.
    pub(super) fn go_elsewhere(self: &Arc<Self>, record: Bytes, to: Recipient) {
        self.shared.forget(self);
        let guard = match to {
            Recipient::Direct(guard) => Some(guard),
            Recipient::Table { key, .. } => self.lock().calls.abandon(key),
        };
        if let Some(guard) = guard {
            self.shared.dispatch_again(record, guard);
        }
    }

    async fn run_slow(self: Arc<Self>, record: Bytes, mut retry: Retry, mut to: Recipient) {
        let Some(decoded) = decode_request(&record, &self.shared) else {
            return self.hang_up(to);
        };
        let request = decoded.request(&record);
        let mut loading = None;
        let mut gone = None;
        for _ in 0..LOADS_MAX {
            if !matches!(retry, Retry::Load(_)) {
                loading = None;
            }
            let attempt = match retry {
                Retry::Load(misses) => {
                    if loading.is_none() {
                        loading = self.loaders.enter().await;
                    }
                    let loaded = self.load_all(&misses).await;
                    match self.still_owns(loaded).await {
                        Ok(()) => self.attempt(&request, to),
                        Err(stop) => return self.stop(&request, &stop, to),
                    }
                }
                Retry::Again => self.attempt(&request, to),
                Retry::Flush => {
                    if !self.wait_for_flush().await {
                        return self.hang_up(to);
                    }
                    self.attempt(&request, to)
                }
                Retry::Held => {
                    if !self.wait_for_release().await {
                        return self.hang_up(to);
                    }
                    self.attempt(&request, to)
                }
                Retry::Fetch(reading) => match self.fetch(&reading.read.pieces, &mut gone).await {
                    Ok(Some(payload)) => self.answer_read(&request, &reading, payload, to),
                    Ok(None) => self.attempt(&request, to),
                    Err(stop) => return self.stop(&request, &stop, to),
                },
                Retry::Store(stable) => match self.store_until(&stable).await {
                    Ok(()) => self.answer_stable(&request, &stable, to),
                    Err(stop) => return self.stop(&request, &stop, to),
                },
            };
            match attempt {
                Attempt::Reply(reply, to) => return self.deliver(reply, to),
                Attempt::Parked => return,
                Attempt::Lost(to) => return self.go_elsewhere(record.clone(), to),
                Attempt::Retry(again, back) => {
                    retry = again;
                    to = back;
                }
            }
        }
        tracing::error!(session = %self.view.session, "a call needs more loads than anything should");
        self.hang_up(to);
    }

    /// What was loaded counts only if the lease holds: another owner may have folded the layers that were
    /// read, and then there is nothing in them. If it does not hold it is waited for; a session that was
    /// taken over meanwhile is lost then, and the call runs elsewhere.
    async fn still_owns(&self, loaded: Result<(), Stop>) -> Result<(), Stop> {
        if !self.shared.wait_for_lease().await {
            return Err(Stop::HangUp);
        }
        if self.lock().lost { Ok(()) } else { loaded }
    }

    /// Runs a reading operation, loading what it misses. `None` if the store fails for long.
    pub(crate) async fn peek_with<T>(
        self: &Arc<Self>,
        operation: impl Fn(&mut Image, Timestamp) -> OpResult<T>,
    ) -> Option<OpResult<T>> {
        let _loading = self.loaders.enter().await;
        for _ in 0..LOADS_MAX {
            let now = self.shared.clock.wall();
            let (result, _) = self.lock().image.run(|image| operation(image, now));
            match result {
                Err(OpError::Miss(miss)) => match self.load_all(&[miss]).await {
                    Ok(()) => {}
                    Err(Stop::Fail(error)) => return Some(Err(error.into())),
                    Err(Stop::HangUp) => return None,
                },
                result => return Some(result),
            }
        }
        None
    }

    fn stop(&self, request: &Request<'_>, stop: &Stop, to: Recipient) {
        match stop {
            Stop::Fail(error) => self.deliver(failure(self, request, *error), to),
            Stop::HangUp => self.hang_up(to),
        }
    }

    /// Waits until there is room for more changes. `false` if the store has failed for long.
    pub(super) async fn wait_for_flush(self: &Arc<Self>) -> bool {
        let flushed = self.flushed.notified();
        let stalls = {
            let mut state = self.lock();
            if state.lost || state.image.pending_bytes() <= super::PENDING_BYTES_MAX {
                return true;
            }
            self.kick_flush(&mut state);
            state.stalls
        };
        flushed.await;
        self.lock().stalls == stalls
    }

    pub(super) async fn load_all(self: &Arc<Self>, misses: &[Miss]) -> Result<(), Stop> {
        for miss in misses {
            let began = self.shared.clock.monotonic();
            while let Err(error) = self.load_one(*miss).await {
                let stop = match error {
                    LoadFailure::Corrupt(error) => {
                        tracing::error!(session = %self.view.session, ?miss, error, "stored data is damaged");
                        self.shared.counters.corrupt.count();
                        return Err(Stop::Fail(FsError::Corrupt));
                    }
                    LoadFailure::NoSpace => return Err(Stop::Fail(FsError::NoSpace)),
                    LoadFailure::Unavailable => Stop::HangUp,
                };
                if self.shared.clock.monotonic().saturating_sub(began) > PATIENCE {
                    return Err(stop);
                }
                self.shared.clock.sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    async fn load_one(self: &Arc<Self>, miss: Miss) -> Result<(), LoadFailure> {
        self.shared.counters.loads.count();
        if miss == Miss::InodeNumbers {
            let numbers = self.more_numbers().await?;
            self.lock().image.add_numbers(numbers);
            return Ok(());
        }
        loop {
            let (evictions, layers) = {
                let state = self.lock();
                (state.image.evictions(), Arc::clone(&state.layers))
            };
            let loaded = load(self.shared.kv.as_ref(), &layers, miss).await;
            let mut state = self.lock();
            // What was read may be older than a cell that was evicted meanwhile. That is rare: the
            // caller keeps evictions off. And layers may have been dropped that others replace, and
            // nodes of a base that is none any more been collected.
            if !Arc::ptr_eq(&state.layers, &layers) {
                continue;
            }
            let loaded = loaded?;
            if state.image.evictions() == evictions {
                if let Some(loaded) = loaded {
                    loaded.install(&mut state.image);
                }
                return Ok(());
            }
        }
    }

    async fn more_numbers(&self) -> Result<InodeNumbers, LoadFailure> {
        let allocated = self
            .shared
            .store
            .allocate_inodes(self.record.workspace)
            .await;
        allocated.map_err(|error| {
            tracing::warn!(session = %self.view.session, error = %Told(&error), "no inode numbers");
            match error {
                StoreError::Unavailable(KvError::NoSpace) => LoadFailure::NoSpace,
                _ => LoadFailure::Unavailable,
            }
        })
    }

    /// Fetches the chunks among `pieces`. `None`, with the chunk in `gone`, if one is not stored:
    /// the file may have changed since the call looked at it, and the chunk been collected. That
    /// cannot be if the call names the same chunk when it has run again.
    async fn fetch(
        &self,
        pieces: &[Piece],
        gone: &mut Option<ChunkId>,
    ) -> Result<Option<Payload>, Stop> {
        let fetched = self.try_fetch(pieces, gone).await;
        fetched.map_err(|failure| match failure {
            FetchFailure::Damaged(error) => {
                tracing::error!(session = %self.view.session, error = %Told(&error), "file data is damaged");
                self.shared.counters.corrupt.count();
                Stop::Fail(FsError::Corrupt)
            }
            FetchFailure::Unavailable => Stop::HangUp,
        })
    }

    /// As [`Session::fetch`], for one who knows better what it means if there is no such data.
    pub(super) async fn try_fetch(
        &self,
        pieces: &[Piece],
        gone: &mut Option<ChunkId>,
    ) -> Result<Option<Payload>, FetchFailure> {
        let mut fetched = self.fetch_at_once(pieces).await;
        let began = self.shared.clock.monotonic();
        for piece in pieces {
            let Piece::Chunk { id, .. } = piece else {
                continue;
            };
            while !fetched.contains_key(id) {
                match self.shared.chunks.get(self.domain, *id).await {
                    Ok(content) => {
                        fetched.insert(*id, content);
                    }
                    Err(ChunkError::NotFound(_)) if gone.replace(*id) != Some(*id) => {
                        return Ok(None);
                    }
                    Err(error @ (ChunkError::NotFound(_) | ChunkError::Corrupt(_))) => {
                        return Err(FetchFailure::Damaged(error));
                    }
                    Err(error) => {
                        if self.shared.clock.monotonic().saturating_sub(began) > PATIENCE {
                            tracing::warn!(session = %self.view.session, error = %Told(&error), "read failed");
                            return Err(FetchFailure::Unavailable);
                        }
                        self.shared.clock.sleep(PAUSE).await;
                    }
                }
            }
        }
        let payload = writeback::payload(pieces, |id| fetched.get(&id).cloned());
        payload.map(Some).map_err(|_| FetchFailure::Unavailable)
    }

    /// Fetches the chunks among `pieces` that are there, at the same time. What fails is left out.
    async fn fetch_at_once(&self, pieces: &[Piece]) -> HashMap<ChunkId, Bytes> {
        let ids: HashSet<ChunkId> = pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Chunk { id, .. } => Some(*id),
                _ => None,
            })
            .collect();
        if ids.len() < 2 {
            return HashMap::new();
        }
        let fetches = ids.into_iter().map(|id| async move {
            let content = self.shared.chunks.get(self.domain, id).await;
            content.ok().map(|content| (id, content))
        });
        let fetched = futures_util::future::join_all(fetches).await;
        fetched.into_iter().flatten().collect()
    }

    /// Stores a file's data until all of the write or commit is in the block map.
    async fn store_until(self: &Arc<Self>, stable: &StableWrite) -> Result<(), Stop> {
        let waits_for = stable.write.is_some();
        self.store(stable.inode, stable.until, waits_for).await
    }

    /// Stores a file's data of writes up to number `until`, unless it has been given up.
    pub(super) async fn store_writes(
        self: &Arc<Self>,
        inode: InodeId,
        until: u64,
    ) -> Result<(), Stop> {
        self.store(inode, until, false).await
    }

    /// Stores a file's data. If it has been given up that is an error for one who wrote it.
    async fn store(self: &Arc<Self>, inode: InodeId, until: u64, wrote: bool) -> Result<(), Stop> {
        let began = self.shared.clock.monotonic();
        loop {
            if !self.wait_for_flush().await {
                return Err(Stop::HangUp);
            }
            let written = self.written.notified();
            let job = {
                let mut state = self.lock();
                if state.lost {
                    return Err(Stop::HangUp);
                }
                if wrote && state.lost_writes.contains(inode, until) {
                    return Err(Stop::Fail(FsError::NoSpace));
                }
                if !state.image.has_unwritten_until(inode, until) {
                    return Ok(());
                }
                self.next_job(&mut state, inode)
            };
            let result = match job {
                Some(job) => self.write_back(job).await,
                None => {
                    written.await;
                    Ok(())
                }
            };
            match result {
                Ok(()) => {}
                Err(ChunkError::NoSpace) => return Err(Stop::Fail(FsError::NoSpace)),
                Err(ChunkError::NotFound(_) | ChunkError::Corrupt(_)) => {
                    return Err(Stop::Fail(FsError::Corrupt));
                }
                Err(ChunkError::TooLarge(_) | ChunkError::Unavailable(_)) => {
                    if self.shared.clock.monotonic().saturating_sub(began) > PATIENCE {
                        return Err(Stop::HangUp);
                    }
                    self.shared.clock.sleep(PAUSE).await;
                }
            }
        }
    }

    fn answer_stable(
        self: &Arc<Self>,
        request: &Request<'_>,
        stable: &StableWrite,
        to: Recipient,
    ) -> Attempt {
        let mut state = self.lock();
        if state.lost {
            return Attempt::Lost(to);
        }
        if stable.write.is_some() && state.lost_writes.contains(stable.inode, stable.until) {
            return Attempt::Retry(Retry::Again, to);
        }
        let mut view = self.view(request.flags);
        view.verifier = self.verifier(&state);
        // To know what the reply waits for. A file that is not in memory any more is durable.
        let (_, ran) = state
            .image
            .run(|image| metadata::ops::getattr(image, stable.inode).ok());
        let reply = stable_reply(request.call.xid, &view, stable);
        self.answer(&mut state, request.record, reply, to, ran)
    }
}

/// Why file data could not be fetched.
pub(super) enum FetchFailure {
    /// It is not stored, or not as it was.
    Damaged(ChunkError),
    /// The store fails for long.
    Unavailable,
}

/// Why a load failed.
enum LoadFailure {
    Corrupt(String),
    NoSpace,
    Unavailable,
}

impl From<metadata::layers::ImageError> for LoadFailure {
    fn from(error: metadata::layers::ImageError) -> Self {
        use metadata::layers::ImageError;
        use metadata::tree::TreeError;
        match error {
            ImageError::Kv(KvError::Corrupt(why)) => Self::Corrupt(why),
            ImageError::Tree(TreeError::NoSpace) => Self::NoSpace,
            ImageError::Kv(_) | ImageError::Tree(TreeError::Unavailable(_)) => Self::Unavailable,
            ImageError::Tree(error) => Self::Corrupt(error.to_string()),
            ImageError::Record(error) => Self::Corrupt(error.to_string()),
            ImageError::Key(error) => Self::Corrupt(error.to_string()),
        }
    }
}
