use base::{ManualClock, Timestamp};

use super::*;
use crate::kv::faulty::{FaultRates, FaultyKv};
use crate::kv::memory::MemoryKv;

const PACK: PackId = PackId([7; 16]);

fn name(number: u8) -> ChunkName {
    (DomainId::new(1), ChunkId::new([number; 32]))
}

fn entry(number: u8, len: usize) -> Bytes {
    vec![number; len].into()
}

fn stage(number: u8, len: usize) -> (ChunkName, Keep) {
    let keep = Keep::Stage {
        entry: entry(number, len),
        plain_bytes: 5,
    };
    (name(number), keep)
}

fn places() -> (Places, Arc<dyn Kv>) {
    let clock = Arc::new(ManualClock::new(Timestamp::new(1, 0)));
    let kv: Arc<dyn Kv> = Arc::new(MemoryKv::new(clock.clone()));
    let places = Places::new(Arc::clone(&kv), clock, Arc::new(Rng::seeded(1)));
    (places, kv)
}

async fn begin_cycle(kv: &dyn Kv, cycle: u64) {
    let mut txn = kv.begin();
    txn.set(&keyspace::cycle(), &CycleRecord { cycle }.encode());
    txn.commit().await.unwrap();
}

#[tokio::test]
async fn a_chunk_is_staged_found_and_raised() {
    let (places, kv) = places();
    let long = 2 * PIECE_BYTES_MAX + 1;
    let keeps = [stage(1, 10), stage(2, long), (name(3), Keep::Touch)];
    let first = places.keep(&keeps).await.unwrap();
    assert_eq!(first.kept, [Kept::Stored, Kept::Stored, Kept::Missing]);
    let bytes = u64::try_from(long).unwrap() + 10;
    assert_eq!((first.cycle, first.staged_bytes), (0, bytes));
    begin_cycle(&*kv, 4).await;
    let again = places.keep(&keeps[1..]).await.unwrap();
    assert_eq!(again.kept, [Kept::Found, Kept::Missing]);
    assert_eq!((again.cycle, again.staged_bytes), (4, bytes));
    let found = places.find(&[name(1), name(2), name(3)]).await.unwrap();
    let cycles: Vec<_> = found.iter().map(|it| it.map(|it| it.cycle)).collect();
    assert_eq!(cycles, [Some(0), Some(4), None]);
    places.keep(&[(name(1), Keep::Touch)]).await.unwrap();
    assert_eq!(places.find(&[name(1)]).await.unwrap()[0].unwrap().cycle, 4);
    let (record, read) = places.read(name(2)).await.unwrap().unwrap();
    assert_eq!((record.plain_bytes, read), (5, Some(entry(2, long))));
    assert_eq!(places.read(name(3)).await.unwrap(), None);
    assert_eq!(places.state().await.unwrap(), (4, bytes));
}

#[tokio::test]
async fn a_lost_piece_is_told() {
    let (places, kv) = places();
    places.keep(&[stage(1, 2 * PIECE_BYTES_MAX)]).await.unwrap();
    let mut txn = kv.begin();
    let (domain, chunk) = name(1);
    txn.clear(&keyspace::body(domain, chunk, 1));
    txn.commit().await.unwrap();
    let read = places.read(name(1)).await;
    assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{read:?}");
    let none = places.keep(&[stage(9, 0)]).await;
    assert!(matches!(none, Err(StoreError::Invalid { .. })), "{none:?}");
}

/// Pages end between chunks, wherever those of the store end.
#[tokio::test]
async fn staged_chunks_are_listed_whole() {
    let (places, _) = places();
    let lens = [10, 3 * PIECE_BYTES_MAX, 1, PIECE_BYTES_MAX, 20];
    for (number, len) in (1..).zip(lens) {
        places.keep(&[stage(number, len)]).await.unwrap();
    }
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let page = places.staged(after, 1).await.unwrap();
        seen.extend(page.chunks.iter().map(|it| (it.name, it.entry.clone())));
        after = seen.last().map(|(name, _)| *name);
        if !page.more {
            break;
        }
    }
    let all: Vec<_> = (1..)
        .zip(lens)
        .map(|(number, len)| (name(number), entry(number, len)))
        .collect();
    assert_eq!(seen, all);
}

#[tokio::test]
async fn moving_keeps_the_cycle_and_leaves_alone_what_is_elsewhere() {
    let (places, kv) = places();
    places.keep(&[stage(1, 10), stage(2, 20)]).await.unwrap();
    begin_cycle(&*kv, 3).await;
    let moved = [1, 2, 3].map(|number| Moved {
        name: name(number),
        offset: u32::from(number),
        entry_bytes: u32::from(number) * 10,
    });
    let unknown = places.settle(PACK, &moved).await;
    assert!(matches!(unknown, Err(StoreError::NotFound { .. })));
    assert_eq!(places.state().await.unwrap().1, 30, "nothing was moved");
    places.begin_pack(PACK, 100).await.unwrap();
    let twice = places.begin_pack(PACK, 100).await;
    assert!(matches!(twice, Err(StoreError::Exists { .. })));
    let settled = places.settle(PACK, &moved).await.unwrap();
    let wanted = Settled {
        moved: 2,
        dropped: 1,
        staged_bytes: 0,
    };
    assert_eq!(settled, wanted);
    assert_eq!(places.settle(PACK, &moved).await.unwrap(), wanted);
    let (record, body) = places.read(name(2)).await.unwrap().unwrap();
    let place = Place::Pack {
        pack: PACK,
        offset: 2,
    };
    assert_eq!((record.place, record.cycle, body), (place, 0, None));
    let other = PackId([8; 16]);
    places.begin_pack(other, 100).await.unwrap();
    let late = places.settle(other, &moved).await.unwrap();
    assert_eq!((late.moved, late.dropped), (0, 3));
    let packs = places.packs(None, 9).await.unwrap();
    let live: Vec<_> = packs.iter().map(|(id, it)| (*id, it.live_bytes)).collect();
    assert_eq!(live, [(PACK, 30), (other, 0)]);
    assert_eq!(places.packs(Some(PACK), 9).await.unwrap().len(), 1);
    assert!(!places.forget_pack(PACK).await.unwrap());
    assert!(places.forget_pack(other).await.unwrap());
    assert!(places.staged(None, 1).await.unwrap().chunks.is_empty());
}

#[tokio::test]
async fn what_is_in_a_pack_already_needs_no_staging() {
    let (places, _) = places();
    let packed = |number| {
        let keep = Keep::Packed {
            pack: PACK,
            offset: 0,
            entry_bytes: 10,
            plain_bytes: 5,
        };
        (name(number), keep)
    };
    let unknown = places.keep(&[packed(1)]).await;
    assert!(matches!(unknown, Err(StoreError::NotFound { .. })));
    places.begin_pack(PACK, 100).await.unwrap();
    places.keep(&[stage(2, 10)]).await.unwrap();
    let kept = places.keep(&[packed(1), packed(2)]).await.unwrap();
    assert_eq!(kept.kept, [Kept::Stored, Kept::Found]);
    assert_eq!(kept.staged_bytes, 10);
    assert_eq!(places.packs(None, 1).await.unwrap()[0].1.live_bytes, 10);
}

/// Whatever the store does to its calls, the counter is the sum of what is staged.
#[tokio::test]
async fn the_counter_is_right_whatever_the_outcomes() {
    let clock = Arc::new(ManualClock::new(Timestamp::new(1, 0)));
    let inner: Arc<dyn Kv> = Arc::new(MemoryKv::new(clock.clone()));
    let faults = FaultRates {
        conflict: 100,
        too_old: 100,
        unknown_applied: 200,
        unknown_not_applied: 200,
        ..FaultRates::default()
    };
    for seed in 0..20 {
        let faulty = FaultyKv::new(Arc::clone(&inner), seed, faults);
        let system = Arc::new(base::SystemClock::new());
        let rng = Arc::new(Rng::seeded(seed));
        let places = Places::new(Arc::new(faulty), system, rng);
        let pack = PackId([u8::try_from(seed).unwrap(); 16]);
        let number = u8::try_from(seed % 7).unwrap();
        places
            .keep(&[stage(number, 10), stage(99, 7)])
            .await
            .unwrap();
        places.begin_pack(pack, 100).await.unwrap();
        if seed % 3 == 0 {
            let moved = Moved {
                name: name(number),
                offset: 0,
                entry_bytes: 10,
            };
            places.settle(pack, &[moved]).await.unwrap();
        }
    }
    let places = Places::new(inner, clock, Arc::new(Rng::seeded(1)));
    let staged = places.staged(None, usize::MAX).await.unwrap().chunks;
    let sum: usize = staged.iter().map(|staged| staged.entry.len()).sum();
    assert!(sum > 0);
    let counted = places.state().await.unwrap().1;
    assert_eq!(counted, u64::try_from(sum).unwrap());
}

async fn set(kv: &dyn Kv, key: &[u8], value: &[u8]) {
    let mut txn = kv.begin();
    txn.set(key, value);
    txn.commit().await.unwrap();
}

/// A damaged record is in the way of no other chunk, and a put of its chunk stores it anew.
#[tokio::test]
async fn a_damaged_record_is_replaced_by_a_put() {
    let (places, kv) = places();
    places.keep(&[stage(1, 10), stage(2, 20)]).await.unwrap();
    let (domain, chunk) = name(1);
    set(&*kv, &keyspace::place(domain, chunk), b"damaged").await;
    set(&*kv, &keyspace::staged_bytes(), b"x").await;
    let touches = [1, 2].map(|number| (name(number), Keep::Touch));
    let touched = places.keep(&touches).await.unwrap();
    assert_eq!(touched.kept, [Kept::Missing, Kept::Found]);
    places.begin_pack(PACK, 100).await.unwrap();
    let moved = [1, 2].map(|number| Moved {
        name: name(number),
        offset: 0,
        entry_bytes: u32::from(number) * 10,
    });
    let settled = places.settle(PACK, &moved).await.unwrap();
    assert_eq!((settled.moved, settled.dropped), (1, 1));
    let put = places.keep(&[stage(1, 7), stage(3, 5)]).await.unwrap();
    assert_eq!(put.kept, [Kept::Stored, Kept::Stored]);
    let read = places.read(name(1)).await.unwrap().unwrap();
    assert_eq!(read.1, Some(entry(1, 7)));
}

/// What is found to be lost where its record leads is stored anew, once, and counted right.
#[tokio::test]
async fn what_is_lost_is_replaced() {
    let (places, _) = places();
    places.keep(&[stage(1, 10), stage(2, 20)]).await.unwrap();
    places.begin_pack(PACK, 100).await.unwrap();
    let moved = Moved {
        name: name(1),
        offset: 4,
        entry_bytes: 10,
    };
    places.settle(PACK, &[moved]).await.unwrap();
    let replace = |number: u8, bad, len| {
        let keep = Keep::Replace {
            bad,
            entry: entry(number + 100, len),
            plain_bytes: 5,
        };
        (name(number), keep)
    };
    let place = Place::Pack {
        pack: PACK,
        offset: 4,
    };
    let both = [replace(1, place, 11), replace(2, Place::Staged, 22)];
    let replaced = places.keep(&both).await.unwrap();
    assert_eq!(replaced.kept, [Kept::Stored, Kept::Stored]);
    assert_eq!(replaced.staged_bytes, 33);
    assert_eq!(places.state().await.unwrap().1, 33);
    assert_eq!(places.packs(None, 1).await.unwrap()[0].1.live_bytes, 0);
    let again = places.keep(&both[..1]).await.unwrap();
    assert_eq!(again.kept, [Kept::Found]);
    let read = places.read(name(1)).await.unwrap().unwrap();
    assert_eq!(read.1, Some(entry(101, 11)));
}

/// A pack that has another entry than the one that is staged is not led to.
#[tokio::test]
async fn an_entry_of_another_length_is_not_moved() {
    let (places, _) = places();
    places.keep(&[stage(1, 10)]).await.unwrap();
    places.begin_pack(PACK, 100).await.unwrap();
    let moved = Moved {
        name: name(1),
        offset: 0,
        entry_bytes: 9,
    };
    let settled = places.settle(PACK, &[moved]).await.unwrap();
    assert_eq!((settled.moved, settled.dropped), (0, 1));
    let read = places.read(name(1)).await.unwrap().unwrap();
    assert_eq!(read.1, Some(entry(1, 10)));
}
