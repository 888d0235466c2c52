//! A process among others on one runtime: it may stand still, go on, and die.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

thread_local! {
    /// The process whose task runs.
    static PRESENT: RefCell<Option<Process>> = const { RefCell::new(None) };
}

/// A process. Tasks that are spawned by [`crate::Tasks`] belong to the process of the task that
/// spawns them. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Process {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    stands_still: bool,
    is_dead: bool,
    next: u64,
    /// Whom to wake of its tasks, in the order in which they were spawned.
    tasks: BTreeMap<u64, Option<Waker>>,
}

impl Process {
    /// A process without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `work` as the process would: tasks that are spawned are its own.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = PRESENT.replace(Some(self.clone()));
        let result = work();
        PRESENT.set(before);
        result
    }

    /// Nothing in it goes on from now on. What arrives for it waits, and time passes.
    pub fn stop(&self) {
        self.lock().stands_still = true;
    }

    /// Goes on after [`Process::stop`], with everything at once.
    pub fn go_on(&self) {
        self.lock().stands_still = false;
        self.wake();
    }

    /// Ends it where it is: each task is dropped as soon as the runtime gets to it.
    pub fn kill(&self) {
        self.lock().is_dead = true;
        self.wake();
    }

    /// How many tasks it has.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.lock().tasks.len()
    }

    fn wake(&self) {
        let mut wakers = Vec::new();
        for waker in self.lock().tasks.values_mut() {
            wakers.extend(waker.take());
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task of the present process.
pub(crate) fn inherited<F>(future: F) -> Task<F>
where
    F: Future<Output = ()> + Send + 'static,
{
    let process = PRESENT.with_borrow(Clone::clone);
    let number = process.as_ref().map(|process| {
        let mut state = process.lock();
        state.next += 1;
        let number = state.next;
        state.tasks.insert(number, None);
        number
    });
    Task {
        process: process.zip(number),
        future: Some(Box::pin(future)),
    }
}

/// A task that belongs to a process, or to none.
pub(crate) struct Task<F> {
    process: Option<(Process, u64)>,
    future: Option<Pin<Box<F>>>,
}

impl<F: Future<Output = ()>> Future for Task<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let Some(future) = &mut this.future else {
            return Poll::Ready(());
        };
        let Some((process, number)) = &this.process else {
            return future.as_mut().poll(cx);
        };
        {
            let mut state = process.lock();
            if !state.is_dead {
                let waker = Some(cx.waker().clone());
                state.tasks.insert(*number, waker);
                if state.stands_still {
                    return Poll::Pending;
                }
            } else {
                drop(state);
                this.future = None;
                return Poll::Ready(());
            }
        }
        process.within(|| future.as_mut().poll(cx))
    }
}

impl<F> Drop for Task<F> {
    fn drop(&mut self) {
        if let Some((process, number)) = &self.process {
            process.lock().tasks.remove(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::{Clock, SystemClock, Tasks};

    #[tokio::test(start_paused = true)]
    async fn a_process_stands_still_goes_on_and_dies() {
        let process = Process::new();
        let clock = Arc::new(SystemClock::new());
        let count = Arc::new(AtomicU32::new(0));
        let child = {
            let (clock, count) = (Arc::clone(&clock), Arc::clone(&count));
            async move {
                loop {
                    clock.sleep(Duration::from_secs(1)).await;
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }
        };
        // The child is spawned by a task of the process.
        process.within(|| {
            Tasks::new().spawn(async move { Tasks::new().spawn(child) });
        });
        let half = Duration::from_millis(500);
        clock.sleep(Duration::from_secs(3) + half).await;
        assert_eq!(count.load(Ordering::SeqCst), 3);
        process.stop();
        clock.sleep(Duration::from_secs(10)).await;
        assert_eq!(count.load(Ordering::SeqCst), 3);
        process.go_on();
        clock.sleep(half).await;
        assert_eq!(count.load(Ordering::SeqCst), 4);
        assert_eq!(process.tasks(), 1);
        process.kill();
        clock.sleep(Duration::from_secs(10)).await;
        assert_eq!((count.load(Ordering::SeqCst), process.tasks()), (4, 0));
    }
}
