//! The C functions. The only module with `unsafe` code.
//!
//! Each pointer that is handed out is an `Arc` turned into a raw pointer, and is turned back once,
//! by the function that destroys it. What a future points to lives in that `Arc` and never moves.
//! No panic leaves a function: it becomes an internal error.
#![expect(unsafe_code, reason = "the C API is made of raw pointers")]

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::client::database::Database;
use crate::client::future::{Future, Value};
use crate::client::network::{API_VERSION_MAX, network};
use crate::client::options;
use crate::client::transaction::{RangeQuery, Transaction};
use crate::codes::{self, Code};
use crate::wire::Selector;

/// `FDBKey`: packed, as the header says.
#[repr(C, packed(4))]
struct RawKey {
    key: *const u8,
    key_length: c_int,
}

/// `FDBKeyValue`: packed, as the header says.
#[repr(C, packed(4))]
struct RawPair {
    key: *const u8,
    key_length: c_int,
    value: *const u8,
    value_length: c_int,
}

/// `FDBFuture`: a future, and what C sees of its outcome once it was asked for.
pub(crate) struct RawFuture {
    future: Arc<Future>,
    seen: OnceLock<Seen>,
}

/// Arrays that point into the outcome.
enum Seen {
    Pairs(Box<[RawPair]>),
    Strings {
        pointers: Box<[*const c_char]>,
        /// What they point to.
        _strings: Vec<CString>,
    },
}

// SAFETY: the pointers lead to memory that `RawFuture` keeps and that nobody writes.
unsafe impl Send for Seen {}
// SAFETY: as above; they are only read.
unsafe impl Sync for Seen {}

type Callback = unsafe extern "C" fn(*mut RawFuture, *mut c_void);

/// The parameter of a callback, on its way to the network thread.
struct Parameter(*mut c_void);

// SAFETY: the C API says that callbacks run on the network thread; whoever sets one provides for it.
unsafe impl Send for Parameter {}

/// Something that `Arc` keeps and that C holds.
fn hand_out<T>(thing: Arc<T>) -> *mut T {
    Arc::into_raw(thing).cast_mut()
}

/// # Safety
///
/// `pointer` is null or came from [`hand_out`] and was not taken back.
unsafe fn borrow<'a, T>(pointer: *mut T) -> Option<&'a T> {
    // SAFETY: as the caller promises; an `Arc`'s content does not move.
    unsafe { pointer.as_ref() }
}

/// # Safety
///
/// As [`borrow`].
unsafe fn share<T>(pointer: *mut T) -> Option<Arc<T>> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the pointer came from an `Arc` that C still holds.
    unsafe { Arc::increment_strong_count(pointer) };
    // SAFETY: the count that was just added is this one's.
    Some(unsafe { Arc::from_raw(pointer) })
}

/// # Safety
///
/// As [`borrow`], and the pointer is not used again.
unsafe fn take_back<T>(pointer: *mut T) -> Option<Arc<T>> {
    // SAFETY: the pointer came from `Arc::into_raw`, and C gives up its count.
    (!pointer.is_null()).then(|| unsafe { Arc::from_raw(pointer) })
}

/// # Safety
///
/// `data` points to `length` bytes, or `length` is not positive.
unsafe fn bytes(data: *const u8, length: c_int) -> Bytes {
    match usize::try_from(length) {
        Ok(length) if length > 0 && !data.is_null() => {
            // SAFETY: as the caller promises.
            Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(data, length) })
        }
        _ => Bytes::new(),
    }
}

/// # Safety
///
/// `out` is null or may be written.
unsafe fn put<T>(out: *mut T, value: T) -> Result<(), Code> {
    if out.is_null() {
        return Err(codes::CLIENT_INVALID_OPERATION);
    }
    // SAFETY: as the caller promises; the API has its caller's variables aligned.
    unsafe { out.write(value) };
    Ok(())
}

/// A code, of work that may fail or panic.
fn code(work: impl FnOnce() -> Result<(), Code>) -> Code {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => codes::INTERNAL_ERROR,
    }
}

/// Work that cannot say that it failed.
fn quiet(work: impl FnOnce()) {
    // A panic was printed; the caller cannot be told.
    let _panicked = catch_unwind(AssertUnwindSafe(work));
}

/// A future of a transaction, never null.
///
/// # Safety
///
/// `transaction` as [`borrow`].
unsafe fn future_of(
    transaction: *mut Transaction,
    work: impl FnOnce(&Arc<Transaction>) -> Arc<Future>,
) -> *mut RawFuture {
    let made = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: as the caller promises.
        match unsafe { share(transaction) } {
            Some(transaction) => work(&transaction),
            None => Future::ready(Err(codes::CLIENT_INVALID_OPERATION)),
        }
    }));
    let future = made.unwrap_or_else(|_| Future::ready(Err(codes::INTERNAL_ERROR)));
    raw(future)
}

fn raw(future: Arc<Future>) -> *mut RawFuture {
    hand_out(Arc::new(RawFuture {
        future,
        seen: OnceLock::new(),
    }))
}

/// Does something with a transaction that returns nothing.
///
/// # Safety
///
/// `transaction` as [`borrow`].
unsafe fn with(transaction: *mut Transaction, work: impl FnOnce(&Arc<Transaction>)) {
    quiet(|| {
        // SAFETY: as the caller promises.
        if let Some(transaction) = unsafe { share(transaction) } {
            work(&transaction);
        }
    });
}

/// The value of a future that is ready.
///
/// # Safety
///
/// `future` as [`borrow`].
unsafe fn value_of<'a>(future: *mut RawFuture) -> Result<(&'a RawFuture, &'a Value), Code> {
    // SAFETY: as the caller promises.
    let raw = unsafe { borrow(future) }.ok_or(codes::CLIENT_INVALID_OPERATION)?;
    match raw.future.outcome() {
        Some(Ok(value)) => Ok((raw, value)),
        Some(Err(code)) => Err(*code),
        None => Err(codes::CLIENT_INVALID_OPERATION),
    }
}

fn length(bytes: usize) -> c_int {
    c_int::try_from(bytes).unwrap_or(c_int::MAX)
}

/// # Safety
///
/// `key` points to `key_length` bytes.
unsafe fn selector(key: *const u8, key_length: c_int, or_equal: c_int, offset: c_int) -> Selector {
    Selector {
        // SAFETY: as the caller promises.
        key: unsafe { bytes(key, key_length) },
        or_equal: or_equal != 0,
        offset,
    }
}

mod databases;
mod futures;
mod transactions;
