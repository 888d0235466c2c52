//! Errors, the network, databases.

use super::{
    API_VERSION_MAX, CStr, Code, Database, Future, OsStr, OsStrExt, Path, RawFuture, Transaction,
    borrow, bytes, c_char, c_int, code, codes, hand_out, network, options, put, quiet, raw, share,
    take_back,
};

#[unsafe(no_mangle)]
pub(crate) extern "C" fn fdb_get_error(code: Code) -> *const c_char {
    codes::text(code).as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn fdb_error_predicate(predicate: c_int, code: Code) -> c_int {
    c_int::from(match predicate {
        50_000 => codes::is_retryable(code),
        50_001 => codes::is_maybe_committed(code),
        50_002 => codes::is_retryable_not_committed(code),
        _ => false,
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn fdb_get_max_api_version() -> c_int {
    API_VERSION_MAX
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn fdb_select_api_version_impl(version: c_int, header: c_int) -> Code {
    code(|| network().select_api(version, header))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn fdb_network_set_option(
    option: c_int,
    _value: *const u8,
    _length: c_int,
) -> Code {
    code(|| options::check_network(option))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn fdb_setup_network() -> Code {
    code(|| network().set_up())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn fdb_run_network() -> Code {
    code(|| network().run())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn fdb_stop_network() -> Code {
    code(|| network().stop())
}

/// # Safety
///
/// `file` is null or a C string; `out` may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_create_database(
    file: *const c_char,
    out: *mut *mut Database,
) -> Code {
    code(|| {
        // SAFETY: not null, and a C string, as the caller promises.
        let file = (!file.is_null()).then(|| unsafe { CStr::from_ptr(file) });
        let file = file.filter(|file| !file.is_empty());
        let database =
            Database::open(file.map(|file| Path::new(OsStr::from_bytes(file.to_bytes()))))?;
        // SAFETY: as the caller promises.
        unsafe { put(out, hand_out(database)) }
    })
}

/// # Safety
///
/// `database` came from [`fdb_create_database`] and is not used again.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_database_destroy(database: *mut Database) {
    // SAFETY: as the caller promises.
    quiet(|| drop(unsafe { take_back(database) }));
}

/// # Safety
///
/// `database` is one; `value` points to `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_database_set_option(
    database: *mut Database,
    option: c_int,
    value: *const u8,
    length: c_int,
) -> Code {
    code(|| {
        // SAFETY: as the caller promises.
        let database = unsafe { borrow(database) }.ok_or(codes::CLIENT_INVALID_OPERATION)?;
        // SAFETY: as the caller promises.
        database.set_option(option, &unsafe { bytes(value, length) })
    })
}

/// # Safety
///
/// `database` is one; `out` may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_database_create_transaction(
    database: *mut Database,
    out: *mut *mut Transaction,
) -> Code {
    code(|| {
        // SAFETY: as the caller promises.
        let database = unsafe { share(database) }.ok_or(codes::CLIENT_INVALID_OPERATION)?;
        // SAFETY: as the caller promises.
        unsafe { put(out, hand_out(database.begin())) }
    })
}

/// # Safety
///
/// None; the database is not looked at.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_database_get_main_thread_busyness(_: *mut Database) -> f64 {
    0.0
}

/// # Safety
///
/// None; the database is not looked at.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_database_get_client_status(_: *mut Database) -> *mut RawFuture {
    raw(Future::ready(Err(codes::UNSUPPORTED_OPERATION)))
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn databases_need_a_network() {
        let mut database = ptr::null_mut();
        // SAFETY: both pointers are good.
        let refused = unsafe { fdb_create_database(c"nowhere".as_ptr(), &raw mut database) };
        assert_eq!(refused, codes::NETWORK_NOT_SETUP);
        assert!(database.is_null());
    }
}
