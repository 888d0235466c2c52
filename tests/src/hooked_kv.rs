//! A metadata store whose calls a test slows down, stops, watches or hides something from.

use std::fmt::Debug;
use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use metadata::kv::{
    AtomicOp, Committed, Isolation, KeyRange, Kv, KvError, KvFuture, RangeLimit, RangePage,
    Transaction, Version,
};

/// What happens around the calls of one transaction. Each transaction has a clone of the hooks of its
/// store as they were when it began; what is shared between them is behind an `Arc`.
pub trait Hooks: Clone + Debug + Send + Sync + 'static {
    /// Runs before a read of a key or a range.
    fn before_read(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Runs after a read of a key or a range, before the caller has what was read.
    fn after_read(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Whether calls cannot reach the store now. Asked before a read or a commit, and after a commit,
    /// whose outcome is then unknown.
    fn is_cut(&self) -> bool {
        false
    }

    /// Whether a read of this range is to find nothing. The store is not asked then.
    fn hides(&self, _range: &KeyRange) -> bool {
        false
    }

    /// Sees the key of a set.
    fn sees_set(&mut self, _key: &[u8]) {}

    /// Runs before a commit.
    fn before_commit(&mut self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Runs after a commit, whether it succeeded or not, before the caller knows.
    fn after_commit(&mut self) -> impl Future<Output = ()> + Send {
        ready(())
    }
}

/// Hands on to another store, with hooks around its calls. Cloning shares the store.
#[derive(Clone, Debug)]
pub struct HookedKv<H> {
    inner: Arc<dyn Kv>,
    hooks: H,
}

impl<H: Hooks> HookedKv<H> {
    /// A store with hooks around the calls of `inner`.
    pub fn new(inner: Arc<dyn Kv>, hooks: H) -> Self {
        Self { inner, hooks }
    }

    /// The store without hooks.
    #[must_use]
    pub fn inner(&self) -> &dyn Kv {
        self.inner.as_ref()
    }

    /// The hooks that new transactions get.
    pub fn hooks(&self) -> &H {
        &self.hooks
    }
}

impl<H: Hooks> Kv for HookedKv<H> {
    fn begin(&self) -> Box<dyn Transaction> {
        Box::new(HookedTransaction {
            inner: self.inner.begin(),
            hooks: self.hooks.clone(),
        })
    }

    fn available_bytes(&self) -> Option<u64> {
        self.inner.available_bytes()
    }
}

#[derive(Debug)]
struct HookedTransaction<H> {
    inner: Box<dyn Transaction>,
    hooks: H,
}

impl<H: Hooks> HookedTransaction<H> {
    fn check(&self) -> Result<(), KvError> {
        if self.hooks.is_cut() {
            Err(cut())
        } else {
            Ok(())
        }
    }
}

fn cut() -> KvError {
    KvError::Unavailable("cut off from the store".to_owned())
}

impl<H: Hooks> Transaction for HookedTransaction<H> {
    fn read_version(&self) -> KvFuture<'_, Version> {
        self.inner.read_version()
    }

    fn set_read_version(&mut self, version: Version) {
        self.inner.set_read_version(version);
    }

    fn get<'a>(&'a self, key: &'a [u8], isolation: Isolation) -> KvFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            self.hooks.before_read().await;
            self.check()?;
            let value = self.inner.get(key, isolation).await;
            self.hooks.after_read().await;
            self.check()?;
            value
        })
    }

    fn get_range<'a>(
        &'a self,
        range: &'a KeyRange,
        limit: RangeLimit,
        isolation: Isolation,
    ) -> KvFuture<'a, RangePage> {
        Box::pin(async move {
            self.hooks.before_read().await;
            self.check()?;
            let page = if self.hooks.hides(range) {
                Ok(RangePage::default())
            } else {
                self.inner.get_range(range, limit, isolation).await
            };
            self.hooks.after_read().await;
            self.check()?;
            page
        })
    }

    fn set(&mut self, key: &[u8], value: &[u8]) {
        self.hooks.sees_set(key);
        self.inner.set(key, value);
    }

    fn clear(&mut self, key: &[u8]) {
        self.inner.clear(key);
    }

    fn clear_range(&mut self, range: &KeyRange) {
        self.inner.clear_range(range);
    }

    fn atomic(&mut self, op: AtomicOp, key: &[u8], operand: &[u8]) {
        self.inner.atomic(op, key, operand);
    }

    fn add_read_conflict_range(&mut self, range: &KeyRange) {
        self.inner.add_read_conflict_range(range);
    }

    fn add_write_conflict_range(&mut self, range: &KeyRange) {
        self.inner.add_write_conflict_range(range);
    }

    fn commit(self: Box<Self>) -> KvFuture<'static, Committed> {
        let Self { inner, mut hooks } = *self;
        Box::pin(async move {
            hooks.before_commit().await;
            if hooks.is_cut() {
                return Err(cut());
            }
            let committed = inner.commit().await;
            hooks.after_commit().await;
            if hooks.is_cut() {
                return Err(KvError::OutcomeUnknown);
            }
            committed
        })
    }
}
