//! Every limit of the system, with units and the reason for the number.

use std::time::Duration;

/// Longest name of a directory entry, in bytes (NAME_MAX of Linux and POSIX).
pub const NAME_BYTES_MAX: usize = 255;

/// Longest symbolic link target, in bytes (PATH_MAX of Linux).
pub const SYMLINK_BYTES_MAX: usize = 4096;

/// Most hard links of one inode (what ext4 allows; a count needs a bound).
pub const LINKS_MAX: u32 = 65_000;

/// Longest key of the metadata store, in bytes (FoundationDB's limit).
pub const KV_KEY_BYTES_MAX: usize = 10_000;

/// Longest value of the metadata store, in bytes (FoundationDB's limit).
pub const KV_VALUE_BYTES_MAX: usize = 100_000;

/// Most affected bytes of one transaction (FoundationDB's limit).
pub const KV_TRANSACTION_BYTES_MAX: usize = 10_000_000;

/// Age at which a read version is too old, in milliseconds (FoundationDB's limit).
pub const KV_TRANSACTION_AGE_MS_MAX: u64 = 5_000;

/// Longest text that an installation's keys in FoundationDB begin with, in bytes: it is a part of each.
pub const FDB_PREFIX_BYTES_MAX: usize = 64;

/// How long one FoundationDB transaction may take unless the settings say otherwise: its reads end after
/// [`KV_TRANSACTION_AGE_MS_MAX`] in any case.
pub const FDB_TIMEOUT_DEFAULT: Duration = Duration::from_secs(4);

/// How long one FoundationDB transaction may take at most. What has timed out is looked up by another
/// transaction: there has to be time for that, too.
pub const FDB_TIMEOUT_MAX: Duration = Duration::from_secs(5);

/// Largest record accepted on the wire, in bytes: a 1 MiB WRITE and its headers.
pub const RECORD_BYTES_MAX: usize = READ_BYTES_MAX + 64 * 1024;

/// Most bytes one READ or WRITE carries. The Linux client takes at most 1 MiB.
pub const READ_BYTES_MAX: usize = 1024 * 1024;

/// Size of a file block unless the workspace says otherwise, in bytes.
pub const BLOCK_BYTES_DEFAULT: u32 = 128 * 1024;

/// Largest file that lives inside its attribute record, in bytes.
pub const INLINE_FILE_BYTES_MAX: usize = 4096;

/// Largest block body that lives in the metadata store instead of a chunk, in bytes.
pub const INLINE_BLOCK_BYTES_MAX: usize = 16 * 1024;

/// Most patch bytes a block carries in the metadata store before they are folded into a chunk.
pub const PATCH_BYTES_MAX: usize = 16 * 1024;

/// Most patches of one block: overlaying them must stay cheap.
pub const PATCHES_MAX: usize = 64;

/// Inode numbers handed to a session at a time.
pub const INODE_BLOCK: u64 = 1 << 20;

/// Largest chunk, in bytes of plain content.
pub const CHUNK_BYTES_MAX: usize = 1024 * 1024;

/// Largest file that a merge reads and merges by lines, in bytes: source code is smaller, and three
/// of them must fit into memory.
pub const MERGE_TEXT_BYTES_MAX: usize = 1024 * 1024;

/// Most differing keys that a merge takes in, of both sides together: some 200 bytes of memory each.
pub const MERGE_CHANGES_MAX: usize = 4_000_000;

/// Most names that the restore of paths holds in memory: some 200 bytes each. A whole session is
/// restored without.
pub const RESTORE_NAMES_MAX: usize = 2_000_000;

const _: () = assert!(INLINE_BLOCK_BYTES_MAX + PATCH_BYTES_MAX < KV_VALUE_BYTES_MAX / 2);
const _: () = assert!(INLINE_FILE_BYTES_MAX <= INLINE_BLOCK_BYTES_MAX);
