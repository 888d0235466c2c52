use base::{InodeId, Name};
use proptest::prelude::*;

use super::image::ImageKey;
use super::*;

fn ids() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..4_u64, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn moments() -> impl Strategy<Value = Timestamp> {
    (
        ids(),
        prop_oneof![Just(0), Just(999_999_999), 0..1_000_000_000_u32],
    )
        .prop_map(|(seconds, nanos)| Timestamp::new(seconds, nanos))
}

fn names() -> impl Strategy<Value = Name> {
    proptest::collection::vec(prop_oneof![Just(1_u8), Just(b'a'), Just(0xff)], 1..4)
        .prop_map(|name| Name::new(&name).unwrap())
}

fn image_keys() -> impl Strategy<Value = ImageKey> {
    let inodes = || ids().prop_map(InodeId::new);
    prop_oneof![
        inodes().prop_map(ImageKey::Inode),
        (inodes(), ids(), names()).prop_map(|(dir, hash, name)| ImageKey::Entry {
            dir,
            hash,
            name
        }),
        (inodes(), any::<u32>()).prop_map(|(inode, index)| ImageKey::Block { inode, index }),
        (inodes(), inodes(), names()).prop_map(|(inode, parent, name)| ImageKey::Link {
            inode,
            parent,
            name
        }),
        (inodes(), any::<u32>()).prop_map(|(inode, first)| ImageKey::Cut { inode, first }),
        any::<[u8; 16]>().prop_map(ImageKey::Conflict),
    ]
}

fn encode(key: &ImageKey) -> Vec<u8> {
    match key {
        ImageKey::Inode(inode) => image::inode(*inode),
        ImageKey::Entry { dir, hash, name } => image::entry(*dir, *hash, name.as_bytes()),
        ImageKey::Block { inode, index } => image::block(*inode, *index),
        ImageKey::Link {
            inode,
            parent,
            name,
        } => image::link(*inode, *parent, name),
        ImageKey::Cut { inode, first } => image::cut(*inode, *first),
        ImageKey::Conflict(id) => image::conflict(id),
    }
}

proptest! {
    #[test]
    fn image_keys_round_trip(key in image_keys()) {
        prop_assert_eq!(image::decode(&encode(&key)), Ok(key));
    }

    #[test]
    fn decode_is_total(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        if let Ok(key) = image::decode(&bytes) {
            prop_assert_eq!(encode(&key), bytes);
        }
    }

    /// The ranges hold what they say, and nothing else.
    #[test]
    fn ranges_are_exact(key in image_keys(), inode in ids(), first in any::<u32>(), hash in ids()) {
        let inode = InodeId::new(inode);
        let bytes = encode(&key);
        let owner = key.inode();
        // The last inode number is never given out: its range would end beyond all keys.
        if inode.raw() != u64::MAX {
            prop_assert_eq!(image::inode_range(inode).contains(&bytes), owner == inode);
        }
        let blocks = image::blocks_from(inode, first);
        let is_block = matches!(&key, ImageKey::Block { inode: at, index } if *at == inode && *index >= first);
        prop_assert_eq!(blocks.contains(&bytes), is_block);
        let entries = image::entries_from(inode, hash);
        let is_entry = matches!(&key, ImageKey::Entry { dir, hash: at, .. } if *dir == inode && *at >= hash);
        prop_assert_eq!(entries.contains(&bytes), is_entry);
        let cuts = image::cuts_from(inode, first);
        let is_cut = matches!(&key, ImageKey::Cut { inode: at, first: cut } if *at == inode && *cut >= first);
        prop_assert_eq!(cuts.contains(&bytes), is_cut);
        let is_conflict = matches!(&key, ImageKey::Conflict(_));
        prop_assert_eq!(image::conflicts().contains(&bytes), is_conflict);
    }

    #[test]
    fn replies_and_sessions_round_trip(session in ids(), xid in any::<u32>(), hash in any::<[u8; 16]>()) {
        let session = SessionId::new(session);
        let key = session_reply(session, xid, &hash);
        prop_assert_eq!(decode_session_reply(&key), Ok((xid, hash)));
        prop_assert!(session_replies(session).contains(&key));
        prop_assert!(session_all(session).contains(&key));
        let ids = (TenantId::DEFAULT, WorkspaceId::new(3), session);
        prop_assert_eq!(decode_session_of(&session_of(ids.0, ids.1, ids.2)), Ok(ids));
        prop_assert!(delta_all(session).contains(&delta(session, 7)));
    }

    #[test]
    fn changes_from_outside_are_in_the_order_of_positions(
        session in ids(), position in ids(), other in ids(), part in any::<u32>(),
    ) {
        let session = SessionId::new(session);
        let key = session_changed(session, position, part);
        prop_assert_eq!(decode_session_changed(&key), Ok(position));
        prop_assert!(session_changes(session).contains(&key));
        prop_assert!(session_all(session).contains(&key));
        let until = session_changes_until(session, other);
        prop_assert_eq!(until.contains(&key), position <= other);
    }

    /// The order of the keys of a log is the order of times, and its ranges are exact.
    #[test]
    fn logs_are_in_the_order_of_time(a in moments(), b in moments(), workspace in ids(), other in ids()) {
        let (workspace, other) = (WorkspaceId::new(workspace), WorkspaceId::new(other));
        let (main, tag) = (ref_name_hash("main"), ref_name_hash("tag"));
        let (one, two) = (ref_log(workspace, &main, a), ref_log(workspace, &main, b));
        prop_assert_eq!(one.cmp(&two), a.cmp(&b));
        prop_assert_eq!(ref_log_until(workspace, &main, a).contains(&two), b <= a);
        prop_assert!(ref_log_all(workspace, &main).contains(&one));
        for foreign in [ref_log(workspace, &tag, b), ref_log(other, &tag, b)] {
            prop_assert!(!ref_log_all(workspace, &main).contains(&foreign));
            prop_assert!(!ref_log_until(workspace, &main, a).contains(&foreign));
        }
        prop_assert_eq!(decode_ref_log(&one), Ok(a));
        let id = OperationId::new(7);
        let entry = operation_log(workspace, a, id);
        prop_assert_eq!(entry.cmp(&operation_log(workspace, b, id)), a.cmp(&b));
        prop_assert_eq!(operation_log_all(other).contains(&entry), workspace == other);
        prop_assert_eq!(decode_operation_log(&entry), Ok((a, id)));
        prop_assert_eq!(decode_time(&encode_time(a)), Ok(a));
        let name = reference(workspace, "main");
        prop_assert_eq!(references(other).contains(&name), workspace == other);
        prop_assert_eq!(decode_reference(&name), Ok((workspace, "main".to_owned())));
    }

    #[test]
    fn a_range_of_commits_has_both_ends(a in any::<[u8; 2]>(), b in any::<[u8; 2]>(), c in any::<[u8; 2]>()) {
        let id = |bytes: [u8; 2]| {
            let mut id = [0xff; 32];
            id[..2].copy_from_slice(&bytes);
            CommitId::new(id)
        };
        let workspace = WorkspaceId::new(1);
        let (first, last) = (id(a.min(b)), id(a.max(b)));
        let is_in = commits(workspace, first, last).contains(&commit(workspace, id(c)));
        prop_assert_eq!(is_in, (first..=last).contains(&id(c)));
        prop_assert!(!commits(workspace, first, last).contains(&commit(WorkspaceId::new(2), first)));
    }
}
