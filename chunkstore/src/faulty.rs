//! A store that fails when told to, for tests of what stands above it.

use std::sync::Arc;
use std::time::Duration;

use base::{ChunkId, Clock, DomainId};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::{ChunkError, ChunkFuture, ChunkStore, Domain, Hold};

/// The calls that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`ChunkStore::put`].
    Put,
    /// [`ChunkStore::sync`].
    Sync,
    /// [`ChunkStore::get`].
    Get,
}

/// Whether a failing call takes effect all the same, as happens when only its answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The call does nothing.
    Nothing,
    /// The call is done, then reported as failed.
    Done,
}

#[derive(Clone, Debug)]
struct Fault {
    call: Call,
    error: ChunkError,
    effect: Effect,
    remaining: u32,
}

#[derive(Debug, Default)]
struct Plan {
    faults: Vec<Fault>,
    delays: Vec<(Call, Duration)>,
    full: bool,
}

/// Hands calls on to another store, unless a test wants otherwise.
#[derive(Debug)]
pub struct FaultyStore {
    inner: Arc<dyn ChunkStore>,
    clock: Arc<dyn Clock>,
    plan: Mutex<Plan>,
}

impl FaultyStore {
    /// Puts faults in front of `inner`; none as yet. Delays are slept on `clock`.
    #[must_use]
    pub fn new(inner: Arc<dyn ChunkStore>, clock: Arc<dyn Clock>) -> Self {
        Self {
            inner,
            clock,
            plan: Mutex::default(),
        }
    }

    /// Makes the next `times` calls of this kind fail.
    pub fn fail(&self, call: Call, error: ChunkError, effect: Effect, times: u32) {
        self.plan.lock().faults.push(Fault {
            call,
            error,
            effect,
            remaining: times,
        });
    }

    /// Delays every call of this kind from now on.
    pub fn delay(&self, call: Call, duration: Duration) {
        let mut plan = self.plan.lock();
        plan.delays.retain(|(delayed, _)| *delayed != call);
        plan.delays.push((call, duration));
    }

    /// Lets the device be full: every `put` fails with `NoSpace` and nothing is available.
    pub fn fill(&self) {
        self.plan.lock().full = true;
    }

    /// Ends all faults and delays; space returns.
    pub fn heal(&self) {
        *self.plan.lock() = Plan::default();
    }

    async fn pass<T>(
        &self,
        call: Call,
        inner: impl Future<Output = Result<T, ChunkError>> + Send,
    ) -> Result<T, ChunkError> {
        let (fault, delay, full) = self.plan.lock().of(call);
        if let Some(delay) = delay {
            self.clock.sleep(delay).await;
        }
        match fault {
            Some((error, Effect::Nothing)) => Err(error),
            Some((error, Effect::Done)) => {
                inner.await?;
                Err(error)
            }
            None if full && call == Call::Put => Err(ChunkError::NoSpace),
            None => inner.await,
        }
    }
}

impl Plan {
    /// What is to happen to the next call of this kind.
    fn of(&mut self, call: Call) -> (Option<(ChunkError, Effect)>, Option<Duration>, bool) {
        self.faults.retain(|fault| fault.remaining > 0);
        let fault = self.faults.iter_mut().find(|fault| fault.call == call);
        let fault = fault.map(|fault| {
            fault.remaining -= 1;
            (fault.error.clone(), fault.effect)
        });
        let delay = self.delays.iter().find(|(delayed, _)| *delayed == call);
        (fault, delay.map(|(_, duration)| *duration), self.full)
    }
}

impl ChunkStore for FaultyStore {
    fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId> {
        Box::pin(self.pass(Call::Put, self.inner.put(domain, content)))
    }

    fn sync(&self) -> ChunkFuture<'_, ()> {
        Box::pin(self.pass(Call::Sync, self.inner.sync()))
    }

    fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes> {
        Box::pin(self.pass(Call::Get, self.inner.get(domain, id)))
    }

    fn cached(&self, domain: Domain, id: ChunkId) -> Option<Bytes> {
        self.inner.cached(domain, id)
    }

    fn hold(&self) -> Hold {
        self.inner.hold()
    }

    fn touch(&self, domain: DomainId, id: ChunkId) {
        self.inner.touch(domain, id);
    }

    fn prefetch(&self, domain: Domain, ids: Vec<ChunkId>) -> ChunkFuture<'_, ()> {
        self.inner.prefetch(domain, ids)
    }

    fn read_ahead_bytes(&self) -> usize {
        self.inner.read_ahead_bytes()
    }

    fn available_bytes(&self) -> Option<u64> {
        if self.plan.lock().full {
            return Some(0);
        }
        self.inner.available_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use base::{ManualClock, SystemClock, Timestamp};

    use super::*;
    use crate::memory::MemoryStore;

    const DOMAIN: Domain = Domain {
        id: DomainId::new(1),
        key: [1; 32],
    };

    fn lost() -> ChunkError {
        ChunkError::Unavailable("injected".into())
    }

    #[tokio::test]
    async fn fails_as_told() {
        let store = FaultyStore::new(Arc::new(MemoryStore::new()), Arc::new(SystemClock::new()));
        let content = Bytes::from_static(b"x");
        let id = DOMAIN.chunk_id(&content);
        store.fail(Call::Put, lost(), Effect::Nothing, 1);
        assert_eq!(store.put(DOMAIN, content.clone()).await, Err(lost()));
        assert_eq!(store.get(DOMAIN, id).await, Err(ChunkError::NotFound(id)));

        store.fail(Call::Put, lost(), Effect::Done, 1);
        assert_eq!(store.put(DOMAIN, content.clone()).await, Err(lost()));
        assert_eq!(store.get(DOMAIN, id).await.unwrap(), content);

        store.fill();
        assert_eq!(store.available_bytes(), Some(0));
        let full = store.put(DOMAIN, content.clone()).await;
        assert_eq!(full, Err(ChunkError::NoSpace));
        store.heal();
        assert_eq!(store.put(DOMAIN, content).await, Ok(id));
    }

    #[tokio::test]
    async fn delays_on_the_clock() {
        let clock = Arc::new(ManualClock::new(Timestamp::new(0, 0)));
        let store = FaultyStore::new(Arc::new(MemoryStore::new()), clock.clone());
        store.delay(Call::Sync, Duration::from_secs(5));
        let mut sync = store.sync();
        let mut is_pending =
            async || poll_fn(|cx| Poll::Ready(sync.as_mut().poll(cx).is_pending())).await;
        clock.advance(Duration::from_secs(4));
        assert!(is_pending().await);
        clock.advance(Duration::from_secs(5));
        assert!(!is_pending().await);
    }
}
