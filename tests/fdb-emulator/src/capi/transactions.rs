//! Transactions.

use super::{
    Code, Future, RangeQuery, RawFuture, Transaction, borrow, bytes, c_int, code, codes, future_of,
    put, quiet, raw, selector, share, take_back, with,
};

/// # Safety
///
/// `transaction` is one, and is not used again.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_destroy(transaction: *mut Transaction) {
    quiet(|| {
        // SAFETY: as the caller promises.
        if let Some(transaction) = unsafe { take_back(transaction) } {
            transaction.cancel();
        }
    });
}

/// # Safety
///
/// `transaction` is one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_cancel(transaction: *mut Transaction) {
    // SAFETY: as the caller promises.
    unsafe { with(transaction, |transaction| transaction.cancel()) };
}

/// # Safety
///
/// `transaction` is one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_reset(transaction: *mut Transaction) {
    // SAFETY: as the caller promises.
    unsafe { with(transaction, |transaction| transaction.reset()) };
}

/// # Safety
///
/// `transaction` is one; `value` points to `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_set_option(
    transaction: *mut Transaction,
    option: c_int,
    value: *const u8,
    length: c_int,
) -> Code {
    code(|| {
        // SAFETY: as the caller promises.
        let transaction = unsafe { share(transaction) }.ok_or(codes::CLIENT_INVALID_OPERATION)?;
        // SAFETY: as the caller promises.
        transaction.set_option(option, &unsafe { bytes(value, length) })
    })
}

/// # Safety
///
/// `transaction` is one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_set_read_version(
    transaction: *mut Transaction,
    version: i64,
) {
    // SAFETY: as the caller promises.
    unsafe {
        with(transaction, |transaction| {
            transaction.set_read_version(version);
        });
    };
}

/// # Safety
///
/// `transaction` is one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_get_read_version(
    transaction: *mut Transaction,
) -> *mut RawFuture {
    // SAFETY: as the caller promises.
    unsafe { future_of(transaction, Transaction::read_version) }
}

/// # Safety
///
/// `transaction` is one; `key` points to `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_get(
    transaction: *mut Transaction,
    key: *const u8,
    length: c_int,
    snapshot: c_int,
) -> *mut RawFuture {
    // SAFETY: as the caller promises.
    let key = unsafe { bytes(key, length) };
    // SAFETY: as the caller promises.
    unsafe {
        future_of(transaction, |transaction| {
            transaction.get(key, snapshot != 0)
        })
    }
}

/// # Safety
///
/// `transaction` is one; `key` points to `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_get_key(
    transaction: *mut Transaction,
    key: *const u8,
    length: c_int,
    or_equal: c_int,
    offset: c_int,
    snapshot: c_int,
) -> *mut RawFuture {
    // SAFETY: as the caller promises.
    let selector = unsafe { selector(key, length, or_equal, offset) };
    // SAFETY: as the caller promises.
    unsafe {
        future_of(transaction, |transaction| {
            transaction.get_key(selector, snapshot != 0)
        })
    }
}

/// # Safety
///
/// `transaction` is one; the keys point to as many bytes as their lengths say.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_get_range(
    transaction: *mut Transaction,
    begin: *const u8,
    begin_length: c_int,
    begin_or_equal: c_int,
    begin_offset: c_int,
    end: *const u8,
    end_length: c_int,
    end_or_equal: c_int,
    end_offset: c_int,
    limit: c_int,
    target_bytes: c_int,
    mode: c_int,
    iteration: c_int,
    snapshot: c_int,
    reverse: c_int,
) -> *mut RawFuture {
    // SAFETY: as the caller promises.
    let begin = unsafe { selector(begin, begin_length, begin_or_equal, begin_offset) };
    // SAFETY: as the caller promises.
    let end = unsafe { selector(end, end_length, end_or_equal, end_offset) };
    let query = RangeQuery {
        begin,
        end,
        limit,
        target_bytes,
        mode,
        iteration,
        snapshot: snapshot != 0,
        reverse: reverse != 0,
    };
    // SAFETY: as the caller promises.
    unsafe { future_of(transaction, |transaction| transaction.get_range(query)) }
}

/// # Safety
///
/// `transaction` is one; the key points to `length` bytes, the value to `value_length`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_set(
    transaction: *mut Transaction,
    key: *const u8,
    length: c_int,
    value: *const u8,
    value_length: c_int,
) {
    // SAFETY: as the caller promises.
    let (key, value) = unsafe { (bytes(key, length), bytes(value, value_length)) };
    // SAFETY: as the caller promises.
    unsafe { with(transaction, |transaction| transaction.set(key, value)) };
}

/// # Safety
///
/// `transaction` is one; `key` points to `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_clear(
    transaction: *mut Transaction,
    key: *const u8,
    length: c_int,
) {
    // SAFETY: as the caller promises.
    let key = unsafe { bytes(key, length) };
    // SAFETY: as the caller promises.
    unsafe { with(transaction, |transaction| transaction.clear(key)) };
}

/// # Safety
///
/// `transaction` is one; the keys point to as many bytes as their lengths say.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_clear_range(
    transaction: *mut Transaction,
    begin: *const u8,
    begin_length: c_int,
    end: *const u8,
    end_length: c_int,
) {
    // SAFETY: as the caller promises.
    let (begin, end) = unsafe { (bytes(begin, begin_length), bytes(end, end_length)) };
    // SAFETY: as the caller promises.
    unsafe {
        with(transaction, |transaction| {
            transaction.clear_range(begin, end);
        });
    };
}

/// # Safety
///
/// `transaction` is one; the key points to `length` bytes, the operand to `operand_length`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_atomic_op(
    transaction: *mut Transaction,
    key: *const u8,
    length: c_int,
    operand: *const u8,
    operand_length: c_int,
    op: c_int,
) {
    // SAFETY: as the caller promises.
    let (key, operand) = unsafe { (bytes(key, length), bytes(operand, operand_length)) };
    let work = |transaction: &std::sync::Arc<Transaction>| match u32::try_from(op) {
        Ok(op) => transaction.atomic(key, operand, op),
        Err(_) => transaction.fail_later(codes::INVALID_MUTATION_TYPE),
    };
    // SAFETY: as the caller promises.
    unsafe { with(transaction, work) };
}

/// # Safety
///
/// `transaction` is one; the keys point to as many bytes as their lengths say.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_add_conflict_range(
    transaction: *mut Transaction,
    begin: *const u8,
    begin_length: c_int,
    end: *const u8,
    end_length: c_int,
    kind: c_int,
) -> Code {
    code(|| {
        // SAFETY: as the caller promises.
        let (begin, end) = unsafe { (bytes(begin, begin_length), bytes(end, end_length)) };
        // SAFETY: as the caller promises.
        let transaction = unsafe { borrow(transaction) }.ok_or(codes::CLIENT_INVALID_OPERATION)?;
        match kind {
            0 | 1 => transaction.add_conflict_range(begin, end, kind == 1),
            _ => Err(codes::CLIENT_INVALID_OPERATION),
        }
    })
}

/// # Safety
///
/// `transaction` is one; `key` points to `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_watch(
    transaction: *mut Transaction,
    key: *const u8,
    length: c_int,
) -> *mut RawFuture {
    // SAFETY: as the caller promises.
    let key = unsafe { bytes(key, length) };
    // SAFETY: as the caller promises.
    unsafe { future_of(transaction, |transaction| transaction.watch(key)) }
}

/// # Safety
///
/// `transaction` is one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_commit(
    transaction: *mut Transaction,
) -> *mut RawFuture {
    // SAFETY: as the caller promises.
    unsafe { future_of(transaction, Transaction::commit) }
}

/// # Safety
///
/// `transaction` is one; `out` may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_get_committed_version(
    transaction: *mut Transaction,
    out: *mut i64,
) -> Code {
    code(|| {
        // SAFETY: as the caller promises.
        let transaction = unsafe { borrow(transaction) }.ok_or(codes::CLIENT_INVALID_OPERATION)?;
        // SAFETY: as the caller promises.
        unsafe { put(out, transaction.committed_version()) }
    })
}

/// # Safety
///
/// `transaction` is one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_get_versionstamp(
    transaction: *mut Transaction,
) -> *mut RawFuture {
    // SAFETY: as the caller promises.
    unsafe { future_of(transaction, Transaction::versionstamp) }
}

/// # Safety
///
/// `transaction` is one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_get_approximate_size(
    transaction: *mut Transaction,
) -> *mut RawFuture {
    // SAFETY: as the caller promises.
    unsafe { future_of(transaction, |transaction| transaction.approximate_size()) }
}

/// # Safety
///
/// `transaction` is one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_get_addresses_for_key(
    transaction: *mut Transaction,
    _key: *const u8,
    _length: c_int,
) -> *mut RawFuture {
    // SAFETY: as the caller promises.
    unsafe { future_of(transaction, |transaction| transaction.addresses()) }
}

/// # Safety
///
/// `transaction` is one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdb_transaction_on_error(
    transaction: *mut Transaction,
    error: Code,
) -> *mut RawFuture {
    // SAFETY: as the caller promises.
    unsafe { future_of(transaction, |transaction| transaction.on_error(error)) }
}

fn unsupported() -> *mut RawFuture {
    raw(Future::ready(Err(codes::UNSUPPORTED_OPERATION)))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn fdb_transaction_get_estimated_range_size_bytes(
    _transaction: *mut Transaction,
    _begin: *const u8,
    _begin_length: c_int,
    _end: *const u8,
    _end_length: c_int,
) -> *mut RawFuture {
    unsupported()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn fdb_transaction_get_range_split_points(
    _transaction: *mut Transaction,
    _begin: *const u8,
    _begin_length: c_int,
    _end: *const u8,
    _end_length: c_int,
    _chunk_bytes: i64,
) -> *mut RawFuture {
    unsupported()
}

/// Its many parameters are not looked at: what the caller passes beyond those is its own affair in
/// the C calling convention.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fdb_transaction_get_mapped_range(
    _transaction: *mut Transaction,
) -> *mut RawFuture {
    unsupported()
}
