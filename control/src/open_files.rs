//! How many files a server has open at most, sockets included: as many as the system lets it, and a part of
//! them for NFS connections, so that these cannot take what the API, the stores and links to gateways need.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Files that are no NFS connections: 256 of the API, those of the stores, and some to spare.
const OTHERS: u64 = 512;

/// A connection whose session is elsewhere has a link there, and other gateways have as many here.
const FILES_OF_SHARED: u64 = 3;

/// Raises this process's limit of open files to what it may be. Gives the limit, if there is one.
pub(crate) fn raise() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current;
    limit.current = limit.maximum;
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.current,
        Err(error) => {
            tracing::warn!(%error, ?before, "the limit of open files stays as it is");
            before
        }
    }
}

/// How many NFS connections there may be of the `wanted` ones: says so if that is fewer.
pub(crate) fn connections(wanted: u32, limit: Option<u64>, is_shared: bool) -> usize {
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    let Some(limit) = limit else { return wanted };
    let room = room(limit, is_shared);
    if room < wanted {
        tracing::warn!(
            open_files = limit,
            connections_max = wanted,
            "the limit of open files (ulimit -Hn, LimitNOFILE) has room for {room} NFS connections: further \
             ones wait until others are closed"
        );
    }
    wanted.min(room)
}

/// How many NFS connections a limit has room for; a few in any case.
fn room(limit: u64, is_shared: bool) -> usize {
    let each = if is_shared { FILES_OF_SHARED } else { 1 };
    let room = limit.saturating_sub(OTHERS).max(limit / 8) / each;
    usize::try_from(room).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_the_rest() {
        assert_eq!(connections(8192, None, true), 8192);
        assert_eq!(connections(8192, Some(65_536), true), 8192);
        assert_eq!(connections(8192, Some(20_512), false), 8192);
        assert_eq!(connections(8192, Some(20_512), true), 6666);
        assert_eq!(connections(8192, Some(1024), false), 512);
        assert_eq!(connections(100, Some(1024), false), 100);
        assert_eq!(connections(8192, Some(64), false), 8);
        assert_eq!(connections(8192, Some(0), true), 1);
    }
}
