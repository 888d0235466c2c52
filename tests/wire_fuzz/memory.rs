//! Counts memory, so that tests can bound it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tokio::sync::{Mutex, MutexGuard};

/// Counts the memory of each thread.
struct CountingAllocator;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static HELD_MOST: Cell<isize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[expect(unsafe_code, reason = "the trait is unsafe; this only counts")]
// SAFETY: every call goes to the system's allocator unchanged, which keeps its contract.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(isize::try_from(layout.size()).unwrap_or(isize::MAX));
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-isize::try_from(layout.size()).unwrap_or(isize::MAX));
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn count(bytes: isize) {
    // At a thread's end its counters are gone before its last memory is.
    let _gone = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        HELD_MOST.with(|most| most.set(most.get().max(held.get())));
    });
}

/// The most memory this thread held at any time during `work`, beyond what it held before.
pub(crate) fn memory_of<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = HELD.get();
    HELD_MOST.set(before);
    let value = work();
    (value, HELD_MOST.get() - before)
}

/// Tests that look at the whole process's memory, or make much of it, run one at a time.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

/// Memory of the whole process that is really there, in bytes.
pub(crate) fn resident_bytes() -> isize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.unwrap().trim().trim_end_matches(" kB");
    kibibytes.parse::<isize>().unwrap() * 1024
}
