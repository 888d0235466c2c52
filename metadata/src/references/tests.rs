use std::collections::BTreeSet;
use std::sync::Arc;

use base::{InodeId, ManualClock, TenantId, Timestamp, WorkspaceId};

use base::SessionId;

use super::*;
use crate::image::Block;
use crate::keyspace::image as keys;
use crate::kv::memory::MemoryKv;
use crate::record::session::{Identity, SessionState};

fn session_record(tenant: u64) -> SessionRecord {
    SessionRecord {
        tenant: TenantId::new(tenant),
        workspace: WorkspaceId::new(1),
        state: SessionState::Open,
        read_only: false,
        identity: Identity::Passthrough,
        generation: 1,
        revocation: 0,
        frozen: Vec::new(),
        base: None,
        frozen_usage: crate::image::Usage::default(),
        agent: String::new(),
        run: String::new(),
        created: Timestamp::EPOCH,
        expires: None,
    }
}

fn kv() -> MemoryKv {
    MemoryKv::new(Arc::new(ManualClock::new(Timestamp::EPOCH)))
}

fn chunk(number: u64) -> ChunkId {
    let mut id = [0; 32];
    for (to, from) in id.iter_mut().zip(number.to_be_bytes()) {
        *to = from;
    }
    ChunkId::new(id)
}

fn delta_key(session: u64, generation: u32, image: &[u8]) -> Vec<u8> {
    let mut key = keyspace::delta(SessionId::new(session), generation);
    key.extend_from_slice(image);
    key
}

fn stored(block: &Block) -> Vec<u8> {
    let mut value = vec![1];
    value.extend_from_slice(&block::encode(block));
    value
}

async fn set(kv: &dyn Kv, pairs: &[(Vec<u8>, Vec<u8>)]) {
    let mut txn = kv.begin();
    for (key, value) in pairs {
        txn.set(key, value);
    }
    txn.commit().await.unwrap();
}

async fn walk(kv: &dyn Kv) -> Result<(BTreeSet<(u64, ChunkId)>, ReferenceCounts), ReferenceError> {
    let mut seen = BTreeSet::new();
    let mut references = References::new();
    while references
        .next(kv, |domain, id| {
            seen.insert((domain.raw(), id));
        })
        .await?
    {}
    Ok((seen, references.counts()))
}

/// Blocks of all sessions, tenants and generations; patched and cut ones too. Over several pages.
#[tokio::test]
async fn every_reference_is_seen_under_its_domain() {
    let kv = kv();
    let mut expected = BTreeSet::new();
    for session in 1..=5_u64 {
        let tenant = 1 + session % 2;
        let meta = keyspace::session_meta(SessionId::new(session));
        let mut pairs = vec![(meta, session_record(tenant).encode().to_vec())];
        for index in 0..700_u32 {
            let number = session * 1000 + u64::from(index);
            let mut block = Block::chunk(chunk(number), 100);
            match index % 3 {
                0 => block.cut(7),
                1 => block.patches.insert(5, Bytes::from_static(b"x")),
                _ => {}
            }
            let generation = 1 + index % 2;
            let key = keys::block(InodeId::new(9), index);
            pairs.push((delta_key(session, generation, &key), stored(&block)));
            expected.insert((tenant, chunk(number)));
        }
        // What refers to nothing.
        let inline = Block::inline(Bytes::from_static(b"x"));
        for (index, value) in [(900, vec![0]), (901, stored(&inline))] {
            let key = keys::block(InodeId::new(9), index);
            pairs.push((delta_key(session, 1, &key), value));
        }
        set(&kv, &pairs).await;
    }
    let (seen, counts) = walk(&kv).await.unwrap();
    assert_eq!(seen, expected);
    assert_eq!((counts.keys, counts.references), (5 * 702, 5 * 700));
    assert_eq!(
        walk(&self::kv()).await.unwrap().1,
        ReferenceCounts::default()
    );
}

/// What cannot be read may refer to anything.
#[tokio::test]
async fn nothing_damaged_is_passed_over() {
    let block = delta_key(1, 1, &keys::block(InodeId::new(2), 3));
    let value = stored(&Block::chunk(chunk(1), 10));
    let meta = keyspace::session_meta(SessionId::new(1));
    let record = session_record(1).encode().to_vec();
    let mut misplaced = block.clone();
    misplaced[1] ^= 1;
    let cases = [
        (vec![(block.clone(), value.clone())], "no record"),
        (
            vec![(block.clone(), value.clone()), (meta.clone(), vec![9])],
            "session",
        ),
        (
            vec![
                (block.clone(), value[..9].to_vec()),
                (meta.clone(), record.clone()),
            ],
            "key d",
        ),
        (
            vec![(block.clone(), vec![7]), (meta.clone(), record.clone())],
            "key d",
        ),
        (
            vec![(misplaced, value.clone()), (meta.clone(), record.clone())],
            "key d",
        ),
        (
            vec![
                (delta_key(1, 1, b"short"), value.clone()),
                (meta.clone(), record.clone()),
            ],
            "key d",
        ),
    ];
    for (pairs, part) in cases {
        let kv = kv();
        set(&kv, &pairs).await;
        let refused = walk(&kv).await.unwrap_err();
        assert!(
            matches!(refused, ReferenceError::Corrupt { .. }),
            "{refused}"
        );
        assert!(refused.to_string().contains(part), "{refused}");
    }
    let kv = kv();
    set(&kv, &[(block, value), (meta, record)]).await;
    assert_eq!(walk(&kv).await.unwrap().0.len(), 1);
}
