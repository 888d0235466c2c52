//! Packs in an object store: bounded calls, tries again, second requests for what is slow.
//!
//! Every call has a time limit for each try and a limit of tries, so none lasts for ever. The client below
//! makes no tries of its own.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Clock, Rng};
use bytes::Bytes;
use futures_util::future::{Either, select};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::sync::Semaphore;

use super::calls::{ObjectCounters, Verb};
use super::ledger::PackId;
use super::pace::{Latencies, Throttle};
use super::pack::TRAILER_BYTES;

/// Second requests are for at most one call in so many, and for a few more at the start.
const HEDGED_PART: u64 = 10;
const HEDGES_AT_START: u64 = 8;

/// The name of the object that says whose the prefix is.
const MARK: &str = "holdfast";

/// How an object store is used.
#[derive(Clone, Copy, Debug)]
pub struct ObjectOptions {
    /// Reads at the same time.
    pub gets_at_once: usize,
    /// Writes at the same time.
    pub puts_at_once: usize,
    /// Tries of a call before it fails.
    pub tries: u32,
    /// How long a try of a read may take.
    pub get_time: Duration,
    /// How long a try of a write, of one part at a time, may take.
    pub put_time: Duration,
    /// The first pause between two tries; the next are twice as long each, a random part of that.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// A read is asked for a second time after this at the earliest.
    pub hedge_after_min: Duration,
    /// Objects that are longer go in parts of this length.
    pub part_bytes: usize,
    /// Bytes a second that may come, and that may be sent: each by itself.
    pub bytes_per_second: Option<u64>,
}

impl Default for ObjectOptions {
    fn default() -> Self {
        Self {
            gets_at_once: 64,
            puts_at_once: 16,
            tries: 5,
            get_time: Duration::from_secs(10),
            put_time: Duration::from_secs(60),
            pause: Duration::from_millis(100),
            pause_max: Duration::from_secs(5),
            hedge_after_min: Duration::from_millis(20),
            part_bytes: 8 << 20,
            bytes_per_second: None,
        }
    }
}

/// Why a call to the object store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// There is no such object, or no such bucket, or it ends before what is asked for.
    #[error("there is no such object: {0}")]
    Missing(String),
    /// There is another object of that name.
    #[error("there is another object of that name: {0}")]
    Exists(String),
    /// The credentials are wrong or do not suffice.
    #[error("the object store refuses: {0}")]
    Refused(String),
    /// It did not answer, or cannot now. A later try may succeed.
    #[error("the object store does not answer: {0}")]
    Unavailable(String),
}

impl From<object_store::Error> for ObjectError {
    fn from(error: object_store::Error) -> Self {
        use object_store::Error;
        let told = told(&error);
        match error {
            Error::NotFound { .. } => Self::Missing(told),
            Error::AlreadyExists { .. } | Error::Precondition { .. } => Self::Exists(told),
            Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
            | Error::InvalidPath { .. }
            | Error::UnknownConfigurationKey { .. } => Self::Refused(told),
            _ => Self::Unavailable(told),
        }
    }
}

/// An error with what caused it: the causes say what happened.
pub(super) fn told(error: &dyn std::error::Error) -> String {
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !told.contains(&next) {
            told = format!("{told}: {next}");
        }
        cause = error.source();
    }
    told
}

/// Packs in an object store.
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    /// The same store, if it takes objects in parts.
    parts: Option<Arc<dyn MultipartStore>>,
    prefix: Path,
    options: ObjectOptions,
    clock: Arc<dyn Clock>,
    rng: Arc<Rng>,
    gets: Semaphore,
    puts: Semaphore,
    down: Throttle,
    up: Throttle,
    latencies: Latencies,
    reads: AtomicU64,
    counters: ObjectCounters,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The store's own may have secrets.
        f.debug_struct("Objects")
            .field("prefix", &self.prefix)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Objects {
    /// Packs below `prefix` of `store`, which makes no tries of its own.
    #[must_use]
    pub fn new(
        store: Arc<dyn ObjectStore>,
        parts: Option<Arc<dyn MultipartStore>>,
        prefix: Path,
        options: ObjectOptions,
        clock: Arc<dyn Clock>,
        rng: Arc<Rng>,
    ) -> Self {
        let throttle = || Throttle::new(options.bytes_per_second, Arc::clone(&clock));
        Self {
            store,
            parts,
            prefix,
            options,
            gets: Semaphore::new(options.gets_at_once.clamp(1, 1024)),
            puts: Semaphore::new(options.puts_at_once.clamp(1, 1024)),
            down: throttle(),
            up: throttle(),
            latencies: Latencies::default(),
            reads: AtomicU64::new(0),
            counters: ObjectCounters::default(),
            clock,
            rng,
        }
    }

    /// What was counted of calls.
    #[must_use]
    pub fn counters(&self) -> &ObjectCounters {
        &self.counters
    }

    /// Random bytes for the name of a pack.
    pub(super) fn new_pack(&self) -> PackId {
        PackId(self.rng.bytes())
    }

    /// Where a pack is.
    fn path(&self, pack: PackId) -> Path {
        let name = pack.to_string();
        let shard: String = name.chars().take(2).collect();
        self.prefix.clone().join("packs").join(shard).join(name)
    }

    /// Takes the prefix for the installation `owner`, or finds that it is its own. Shows that objects can be
    /// written and read, and that none is replaced. If the installation `has_packs` the prefix must be its own
    /// already.
    ///
    /// # Errors
    ///
    /// `Exists` if it is another installation's, `Missing` if it should be its own and is nobody's, or there is
    /// no such bucket; others say what is in the way.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: it is taken, or not.
    pub async fn claim(&self, owner: &str, has_packs: bool) -> Result<(), ObjectError> {
        let path = self.prefix.clone().join(MARK);
        let content = Bytes::from(format!("holdfast chunks 1\n{owner}\n"));
        if has_packs && self.read(&path, None).await? == content {
            return Ok(());
        }
        match self.put_new(&path, content.clone()).await {
            Ok(()) => {}
            Err(ObjectError::Exists(_)) => {
                let found = self.read(&path, None).await?;
                if found == content {
                    return Ok(());
                }
                return Err(ObjectError::Exists(path.to_string()));
            }
            Err(error) => return Err(error),
        }
        if self.read(&path, None).await? != content {
            return Err(ObjectError::Exists(path.to_string()));
        }
        match self.put_new(&path, Bytes::from_static(b"replaced")).await {
            Err(ObjectError::Exists(_)) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(ObjectError::Refused(
                "it replaces objects although told not to (`If-None-Match: *`), so that it cannot be \
                 used safely"
                    .into(),
            )),
        }
    }

    /// Stores a pack under its name, which is new.
    ///
    /// # Errors
    ///
    /// It may be stored or not.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: it may be stored or not.
    pub async fn put_pack(&self, pack: PackId, bytes: Bytes) -> Result<(), ObjectError> {
        let _permit = self.puts.acquire().await;
        let path = self.path(pack);
        let stored = match &self.parts {
            Some(parts) if bytes.len() > self.options.part_bytes => {
                self.put_parts(&**parts, &path, &bytes).await
            }
            _ => self.put_new(&path, bytes.clone()).await,
        };
        match stored {
            // Our own try before this one, whose answer was lost?
            Err(ObjectError::Exists(told)) => {
                let end = bytes.len().saturating_sub(TRAILER_BYTES)..bytes.len();
                let wanted = bytes.slice(end.clone());
                if self.len(&path).await? == bytes.len()
                    && self.read(&path, Some(end)).await? == wanted
                {
                    return Ok(());
                }
                Err(ObjectError::Exists(told))
            }
            other => other,
        }
    }

    /// A part of a pack. Asked for twice if it is slow to come.
    ///
    /// # Errors
    ///
    /// It is not there, or does not come in time.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn get(&self, pack: PackId, range: Range<usize>) -> Result<Bytes, ObjectError> {
        let _permit = self.gets.acquire().await;
        self.read(&self.path(pack), Some(range)).await
    }

    /// Removes a pack; one that is not there is no error.
    ///
    /// # Errors
    ///
    /// It may be removed or not.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn delete(&self, pack: PackId) -> Result<(), ObjectError> {
        let path = self.path(pack);
        let deleted = self.attempt(Verb::Delete, self.options.get_time, || async {
            Ok(self.store.delete(&path).await?)
        });
        match deleted.await {
            Err(ObjectError::Missing(_)) => Ok(()),
            other => other,
        }
    }

    async fn len(&self, path: &Path) -> Result<usize, ObjectError> {
        let head = self.attempt(Verb::Head, self.options.get_time, || async {
            Ok(self.store.head(path).await?)
        });
        let size = head.await?.size;
        Ok(usize::try_from(size).unwrap_or(usize::MAX))
    }

    async fn put_new(&self, path: &Path, bytes: Bytes) -> Result<(), ObjectError> {
        self.up.pass(bytes.len()).await;
        let put = self.attempt(Verb::Put, self.options.put_time, || async {
            let options = PutOptions::from(PutMode::Create);
            let payload = PutPayload::from(bytes.clone());
            self.store.put_opts(path, payload, options).await?;
            Ok(())
        });
        put.await?;
        self.counters.sent_bytes.add_len(bytes.len());
        Ok(())
    }

    /// In parts, several at the same time. Nothing is there before the last step.
    async fn put_parts(
        &self,
        store: &dyn MultipartStore,
        path: &Path,
        bytes: &Bytes,
    ) -> Result<(), ObjectError> {
        let time = self.options.put_time;
        let begun = self.attempt(Verb::Put, time, || async {
            Ok(store.create_multipart(path).await?)
        });
        let upload = begun.await?;
        let upload = &upload;
        let starts = (0..bytes.len()).step_by(self.options.part_bytes.max(1));
        let parts = stream::iter(starts.enumerate().map(|(number, start)| async move {
            let end = start
                .saturating_add(self.options.part_bytes)
                .min(bytes.len());
            let part = bytes.slice(start..end);
            self.up.pass(part.len()).await;
            let put = self.attempt(Verb::Put, time, || async {
                let payload = PutPayload::from(part.clone());
                Ok(store.put_part(path, upload, number, payload).await?)
            });
            put.await
        }));
        let parts: Result<Vec<PartId>, _> = parts.buffered(4).try_collect().await;
        let completed = match parts {
            Ok(parts) => {
                let complete = self.attempt(Verb::Put, time, || async {
                    store
                        .complete_multipart(path, upload, parts.clone())
                        .await?;
                    Ok(())
                });
                complete.await
            }
            Err(error) => Err(error),
        };
        match completed {
            Ok(()) => {
                self.counters.sent_bytes.add_len(bytes.len());
                Ok(())
            }
            // One try more may find it complete already: then it is there.
            Err(ObjectError::Missing(told)) => match self.len(path).await {
                Ok(len) if len == bytes.len() => Ok(()),
                _ => Err(ObjectError::Unavailable(told)),
            },
            Err(error) => {
                // What is left of it costs money until it is given up.
                drop(store.abort_multipart(path, upload).await);
                Err(error)
            }
        }
    }

    async fn read(&self, path: &Path, range: Option<Range<usize>>) -> Result<Bytes, ObjectError> {
        let wanted = range.as_ref().map(Range::len);
        self.down.pass(wanted.unwrap_or(0)).await;
        let range = range.as_ref();
        let got = self.attempt(Verb::Get, self.options.get_time, || async move {
            let got = self.hedged(path, range).await?;
            if wanted.is_some_and(|wanted| wanted != got.len()) {
                return Err(ObjectError::Unavailable(format!(
                    "{path}: an answer is cut short"
                )));
            }
            Ok(got)
        });
        let got = match (got.await, range) {
            (Err(ObjectError::Unavailable(told)), Some(range)) => {
                return Err(self.is_short(path, range, told).await);
            }
            (got, _) => got?,
        };
        self.counters.received_bytes.add_len(got.len());
        Ok(got)
    }

    /// Why a range does not come: an object that ends before it is damaged, however often it is asked for.
    async fn is_short(&self, path: &Path, range: &Range<usize>, told: String) -> ObjectError {
        // Once: if that fails, too, it is an outage.
        let head = Box::pin(self.store.head(path));
        let found = match select(head, self.clock.sleep(self.options.get_time)).await {
            Either::Left((Ok(found), _)) => found.size,
            _ => return ObjectError::Unavailable(told),
        };
        if usize::try_from(found).is_ok_and(|found| found < range.end) {
            let wanted = range.end;
            return ObjectError::Missing(format!(
                "{path} is cut short: it has {found} bytes of at least {wanted}"
            ));
        }
        ObjectError::Unavailable(told)
    }

    async fn once(&self, path: &Path, range: Option<&Range<usize>>) -> Result<Bytes, ObjectError> {
        let began = self.clock.monotonic();
        let got = match range {
            Some(range) => {
                let at = |bytes| u64::try_from(bytes).unwrap_or(u64::MAX);
                let range = at(range.start)..at(range.end);
                self.store.get_range(path, range).await?
            }
            None => self.store.get(path).await?.bytes().await?,
        };
        self.latencies
            .add(self.clock.monotonic().saturating_sub(began));
        Ok(got)
    }

    /// Asks once more for what takes longer than nearly all calls do, and takes what comes first.
    async fn hedged(
        &self,
        path: &Path,
        range: Option<&Range<usize>>,
    ) -> Result<Bytes, ObjectError> {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        let Some(slow) = self.latencies.slow() else {
            return self.once(path, range).await;
        };
        let first = Box::pin(self.once(path, range));
        // Twice: one in twenty is slower than `slow`, and a store that is short of bandwidth gains nothing
        // by being asked twice.
        let wait = slow.saturating_mul(2).max(self.options.hedge_after_min);
        let first = match select(first, self.clock.sleep(wait)).await {
            Either::Left((got, _)) => return got,
            Either::Right(((), first)) => first,
        };
        let hedges = self.counters.hedges.count();
        if hedges >= reads / HEDGED_PART + HEDGES_AT_START {
            return first.await;
        }
        self.counters.hedges.increment();
        let second = Box::pin(self.once(path, range));
        match select(first, second).await {
            Either::Left((Ok(got), _)) => Ok(got),
            Either::Left((Err(_), second)) => second.await,
            Either::Right((Ok(got), _)) => {
                self.counters.hedges_won.increment();
                Ok(got)
            }
            Either::Right((Err(_), first)) => first.await,
        }
    }

    /// Makes a call until it succeeds, fails for good, or enough tries were made.
    async fn attempt<T, F>(
        &self,
        verb: Verb,
        time: Duration,
        call: impl Fn() -> F + Send,
    ) -> Result<T, ObjectError>
    where
        F: Future<Output = Result<T, ObjectError>> + Send,
    {
        let counters = self.counters.of(verb);
        let mut pause = self.options.pause;
        let mut tries = self.options.tries.max(1);
        loop {
            let began = self.clock.monotonic();
            let result = {
                let call = Box::pin(call());
                match select(call, self.clock.sleep(time)).await {
                    Either::Left((result, _)) => Some(result),
                    Either::Right(_) => None,
                }
            };
            counters.took(self.clock.monotonic().saturating_sub(began));
            let error = match result {
                Some(Ok(value)) => {
                    counters.done.increment();
                    return Ok(value);
                }
                Some(Err(error)) => {
                    counters.failed.increment();
                    error
                }
                None => {
                    counters.late.increment();
                    ObjectError::Unavailable(format!("no answer within {time:?}"))
                }
            };
            tries -= 1;
            if tries == 0 || !matches!(error, ObjectError::Unavailable(_)) {
                return Err(error);
            }
            tracing::debug!(%error, verb = verb.name(), "a call to the object store is made again");
            self.counters.retries.increment();
            self.clock.sleep(self.part_of(pause)).await;
            pause = pause.saturating_mul(2).min(self.options.pause_max);
        }
    }

    /// At random between half of `whole` and the whole, so that those who failed together do not come
    /// together again.
    fn part_of(&self, whole: Duration) -> Duration {
        let half = u64::try_from(whole.as_micros() / 2).unwrap_or(u64::MAX);
        let random = self.rng.u64().checked_rem(half).unwrap_or(0);
        Duration::from_micros(half.saturating_add(random))
    }
}
