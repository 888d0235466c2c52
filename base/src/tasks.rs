//! Tasks with an owner.

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Spawns tasks and waits for them at shutdown. Cloning shares the owner.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    shutdown: CancellationToken,
}

impl Tasks {
    /// An owner of no tasks yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `future` as a task of its own, to its end.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn spawn<F>(&self, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        #[cfg(feature = "testing")]
        let future = crate::simulation::inherited(future);
        self.tracker.spawn(future);
    }

    /// Tells every task that asks to end soon.
    pub fn begin_shutdown(&self) {
        self.shutdown.cancel();
    }

    /// Whether shutdown has begun.
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.shutdown.is_cancelled()
    }

    /// Completes when shutdown begins. Safe to drop.
    pub async fn shutdown_begun(&self) {
        self.shutdown.cancelled().await;
    }

    /// How many tasks run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.tracker.len()
    }

    /// Waits until all tasks have ended. Safe to drop; the tasks go on.
    pub async fn join(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}
