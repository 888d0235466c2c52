//! Futures.

use super::{
    Bytes, CString, Callback, Code, Parameter, RawFuture, RawKey, RawPair, Seen, Value, borrow,
    c_char, c_int, c_void, code, codes, length, put, quiet, share, take_back, value_of,
};

/// # Safety
///
/// `future` is one, and is not used again.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_future_destroy(future: *mut RawFuture) {
    quiet(|| {
        // SAFETY: as the caller promises.
        if let Some(raw) = unsafe { take_back(future) } {
            raw.future.abandon();
        }
    });
}

/// # Safety
///
/// `future` is one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_future_cancel(future: *mut RawFuture) {
    quiet(|| {
        // SAFETY: as the caller promises.
        if let Some(raw) = unsafe { share(future) } {
            raw.future.abandon();
        }
    });
}

/// # Safety
///
/// `future` is one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_future_is_ready(future: *mut RawFuture) -> c_int {
    // SAFETY: as the caller promises.
    let raw = unsafe { borrow(future) };
    c_int::from(raw.is_some_and(|raw| raw.future.outcome().is_some()))
}

/// # Safety
///
/// `future` is one; `callback` may be called once with it and `parameter`, on any thread.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_future_set_callback(
    future: *mut RawFuture,
    callback: Option<Callback>,
    parameter: *mut c_void,
) -> Code {
    code(|| {
        let callback = callback.ok_or(codes::CLIENT_INVALID_OPERATION)?;
        // SAFETY: as the caller promises.
        let raw = unsafe { share(future) }.ok_or(codes::CLIENT_INVALID_OPERATION)?;
        let parameter = Parameter(parameter);
        // Keeps the future until the callback has run, whoever destroys it meanwhile.
        let kept = std::sync::Arc::clone(&raw);
        let set = raw.future.set_callback(Box::new(move || {
            let parameter = parameter;
            let future = std::sync::Arc::as_ptr(&kept).cast_mut();
            // SAFETY: as the caller promises; `set_callback` runs it once.
            unsafe { callback(future, parameter.0) };
        }));
        if set {
            Ok(())
        } else {
            Err(codes::CLIENT_INVALID_OPERATION)
        }
    })
}

/// # Safety
///
/// `future` is one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_future_get_error(future: *mut RawFuture) -> Code {
    // SAFETY: as the caller promises.
    code(|| unsafe { value_of(future) }.map(drop))
}

/// # Safety
///
/// `future` is one; `out` may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_future_get_int64(
    future: *mut RawFuture,
    out: *mut i64,
) -> Code {
    // SAFETY: as the caller promises.
    code(|| match unsafe { value_of(future) }? {
        // SAFETY: as the caller promises.
        (_, Value::Number(number)) => unsafe { put(out, *number) },
        _ => Err(codes::CLIENT_INVALID_OPERATION),
    })
}

/// # Safety
///
/// `future` is one; `key` and `key_length` may be written. The key lives as long as the future.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_future_get_key(
    future: *mut RawFuture,
    key: *mut *const u8,
    key_length: *mut c_int,
) -> Code {
    // SAFETY: as the caller promises.
    code(|| match unsafe { value_of(future) }? {
        // SAFETY: as the caller promises.
        (_, Value::Key(found)) => unsafe { put_bytes(found, key, key_length) },
        _ => Err(codes::CLIENT_INVALID_OPERATION),
    })
}

/// # Safety
///
/// `out` and `out_length` are null or may be written.
unsafe fn put_bytes(
    bytes: &Bytes,
    out: *mut *const u8,
    out_length: *mut c_int,
) -> Result<(), Code> {
    // SAFETY: as the caller promises. An empty slice's pointer is not null either.
    unsafe { put(out, bytes.as_ptr()) }?;
    // SAFETY: as the caller promises.
    unsafe { put(out_length, length(bytes.len())) }
}

/// # Safety
///
/// `future` is one; the others may be written. The value lives as long as the future.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_future_get_value(
    future: *mut RawFuture,
    present: *mut c_int,
    value: *mut *const u8,
    value_length: *mut c_int,
) -> Code {
    // SAFETY: as the caller promises.
    code(|| match unsafe { value_of(future) }? {
        (_, Value::Value(found)) => {
            // SAFETY: as the caller promises.
            unsafe { put(present, c_int::from(found.is_some())) }?;
            match found {
                // SAFETY: as the caller promises.
                Some(found) => unsafe { put_bytes(found, value, value_length) },
                None => Ok(()),
            }
        }
        _ => Err(codes::CLIENT_INVALID_OPERATION),
    })
}

/// # Safety
///
/// `future` is one; the others may be written. The array lives as long as the future.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_future_get_keyvalue_array(
    future: *mut RawFuture,
    pairs: *mut *const RawPair,
    count: *mut c_int,
    more: *mut c_int,
) -> Code {
    // SAFETY: as the caller promises.
    code(|| match unsafe { value_of(future) }? {
        (raw, Value::Pairs(found, is_more)) => {
            let seen = raw
                .seen
                .get_or_init(|| Seen::Pairs(found.iter().map(raw_pair).collect()));
            let Seen::Pairs(array) = seen else {
                return Err(codes::INTERNAL_ERROR);
            };
            // SAFETY: as the caller promises.
            unsafe { put(pairs, array.as_ptr()) }?;
            // SAFETY: as the caller promises.
            unsafe { put(count, length(array.len())) }?;
            // SAFETY: as the caller promises.
            unsafe { put(more, c_int::from(*is_more)) }
        }
        _ => Err(codes::CLIENT_INVALID_OPERATION),
    })
}

fn raw_pair((key, value): &(Bytes, Bytes)) -> RawPair {
    RawPair {
        key: key.as_ptr(),
        key_length: length(key.len()),
        value: value.as_ptr(),
        value_length: length(value.len()),
    }
}

/// # Safety
///
/// `future` is one; the others may be written. The strings live as long as the future.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_future_get_string_array(
    future: *mut RawFuture,
    strings: *mut *const *const c_char,
    count: *mut c_int,
) -> Code {
    // SAFETY: as the caller promises.
    code(|| match unsafe { value_of(future) }? {
        (raw, Value::Addresses(found)) => {
            let seen = raw.seen.get_or_init(|| {
                let texts = found.iter().map(String::as_bytes);
                let strings: Vec<CString> =
                    texts.filter_map(|text| CString::new(text).ok()).collect();
                Seen::Strings {
                    pointers: strings.iter().map(|string| string.as_ptr()).collect(),
                    _strings: strings,
                }
            });
            let Seen::Strings { pointers, .. } = seen else {
                return Err(codes::INTERNAL_ERROR);
            };
            // SAFETY: as the caller promises.
            unsafe { put(strings, pointers.as_ptr()) }?;
            // SAFETY: as the caller promises.
            unsafe { put(count, length(pointers.len())) }
        }
        _ => Err(codes::CLIENT_INVALID_OPERATION),
    })
}

/// Only of calls that are not supported, so that there is never an array.
///
/// # Safety
///
/// `future` is one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_future_get_key_array(
    future: *mut RawFuture,
    _keys: *mut *const RawKey,
    _count: *mut c_int,
) -> Code {
    // SAFETY: as the caller promises.
    code(|| unsafe { value_of(future) }.and(Err(codes::UNSUPPORTED_OPERATION)))
}

/// Only of calls that are not supported, so that there is never an array.
///
/// # Safety
///
/// `future` is one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_future_get_mappedkeyvalue_array(
    future: *mut RawFuture,
    _pairs: *mut *const c_void,
    _count: *mut c_int,
    _more: *mut c_int,
) -> Code {
    // SAFETY: as the caller promises.
    code(|| unsafe { value_of(future) }.and(Err(codes::UNSUPPORTED_OPERATION)))
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::{Arc, Future, raw};
    use super::*;

    /// Counts its calls.
    unsafe extern "C" fn count(future: *mut RawFuture, parameter: *mut c_void) {
        // SAFETY: the future is kept until this returns.
        assert_eq!(unsafe { fdb_future_is_ready(future) }, 1);
        // SAFETY: the test gives a counter that it keeps.
        unsafe { &*parameter.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn destroying_runs_the_callback_once_and_frees_the_future() {
        let called = AtomicUsize::new(0);
        let parameter = (&raw const called).cast_mut().cast::<c_void>();
        let future = Future::new();
        let pointer = raw(Arc::clone(&future));
        // SAFETY: the future and the counter live.
        let set = unsafe { fdb_future_set_callback(pointer, Some(count), parameter) };
        assert_eq!(set, 0);
        // SAFETY: the future lives.
        assert_eq!(unsafe { fdb_future_is_ready(pointer) }, 0);
        // SAFETY: it is not used again.
        unsafe { fdb_future_destroy(pointer) };
        assert_eq!(called.load(Ordering::SeqCst), 1);
        future.complete(Ok(Value::Done));
        assert_eq!(called.load(Ordering::SeqCst), 1);
        assert_eq!(Arc::strong_count(&future), 1, "nothing else keeps it");
    }

    #[test]
    fn arrays_have_the_headers_layout_and_stay_where_they_are() {
        assert_eq!(size_of::<RawPair>(), 24);
        assert_eq!(size_of::<RawKey>(), 12);
        let pair = |key, value| (Bytes::from_static(key), Bytes::from_static(value));
        let pairs = vec![pair(b"a", b""), pair(b"", b"1")];
        let future = raw(Future::ready(Ok(Value::Pairs(pairs, true))));
        let ask = || {
            let (mut array, mut count, mut more) = (ptr::null(), 0, 0);
            // SAFETY: all pointers are good.
            let code = unsafe {
                fdb_future_get_keyvalue_array(future, &raw mut array, &raw mut count, &raw mut more)
            };
            assert_eq!((code, count, more), (0, 2, 1));
            array
        };
        let array = ask();
        assert_eq!(array, ask());
        // SAFETY: the array has two pairs and lives as long as the future.
        let array = unsafe { std::slice::from_raw_parts(array.cast::<[u8; 24]>(), 2) };
        for pair in array {
            assert!(pair[12..20].iter().any(|byte| *byte != 0), "a null value");
        }
        let mut number = 0;
        // SAFETY: both pointers are good.
        let wrong = unsafe { fdb_future_get_int64(future, &raw mut number) };
        assert_eq!(wrong, codes::CLIENT_INVALID_OPERATION);
        // SAFETY: it is not used again.
        unsafe { fdb_future_destroy(future) };
    }
}
