//! Shared chunks: that what is staged is whole, and that all is counted right.

use std::collections::HashMap;

use base::{ChunkId, DomainId};

use super::{Checker, Remedy};
use crate::keyspace::{self, Key};
use crate::kv::KvError;
use crate::record::place::{CycleRecord, PackId, PackRecord, Place, PlaceRecord, TierRecord};

/// What has been seen of shared chunks. Bodies come before places, packs before both.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The chunk whose pieces are being read: the bytes so far, and those it should have.
    body: Option<(DomainId, ChunkId, u64, u64)>,
    staged_bytes: u64,
    counted_bytes: u64,
    /// Live bytes of packs: as their records say, and as places say.
    packs: HashMap<PackId, (u64, u64)>,
}

impl Checker<'_> {
    /// A key of shared chunks.
    pub(super) async fn check_shared(&mut self, key: Key, value: &[u8]) -> Result<(), KvError> {
        match key {
            Key::Pack(pack) => {
                let place = format!("pack {pack}");
                if let Some(record) = self.decoded(&place, PackRecord::decode(value)) {
                    self.shared.packs.insert(pack, (record.live_bytes, 0));
                }
            }
            Key::Body(domain, chunk, piece) => {
                self.check_body(domain, chunk, piece, value).await?;
            }
            Key::Place(domain, chunk) => {
                self.end_body();
                self.check_place(domain, chunk, value).await?;
            }
            Key::Cycle => {
                self.decoded("cycle of collections", CycleRecord::decode(value));
            }
            Key::StagedBytes => match value.try_into().map(u64::from_le_bytes) {
                Ok(bytes) => self.shared.counted_bytes = bytes,
                Err(_) => {
                    let place = "counter of staged bytes";
                    self.report.add(place, "is no number", Remedy::Store);
                }
            },
            Key::Tier => {
                self.decoded("place of chunks", TierRecord::decode(value));
            }
            // Not of this table.
            _ => {}
        }
        Ok(())
    }

    async fn check_body(
        &mut self,
        domain: DomainId,
        chunk: ChunkId,
        piece: u8,
        value: &[u8],
    ) -> Result<(), KvError> {
        let bytes = u64::try_from(value.len()).unwrap_or(u64::MAX);
        if let Some((in_domain, of, so_far, _)) = &mut self.shared.body
            && (*in_domain, *of) == (domain, chunk)
        {
            *so_far = so_far.saturating_add(bytes);
            return Ok(());
        }
        self.end_body();
        let place = format!("staged chunk {chunk}");
        if piece != 0 {
            self.report
                .add(&place, "lacks its beginning", Remedy::Store);
        }
        // One that cannot be decoded is told where it is read.
        match self.place(domain, chunk).await? {
            Some(Ok(record)) if record.place == Place::Staged => {
                let wanted = u64::from(record.entry_bytes);
                self.shared.body = Some((domain, chunk, bytes, wanted));
            }
            Some(Ok(_)) => self.report.add(place, "is in a pack, too", Remedy::Store),
            Some(Err(())) => {}
            None => self.report.add(place, "has no place", Remedy::Store),
        }
        Ok(())
    }

    /// After the last piece of a staged chunk.
    fn end_body(&mut self) {
        if let Some((_, chunk, bytes, wanted)) = self.shared.body.take()
            && bytes != wanted
        {
            let what = format!("has {bytes} bytes, and should have {wanted}");
            let place = format!("staged chunk {chunk}");
            self.report.add(place, what, Remedy::Store);
        }
    }

    async fn check_place(
        &mut self,
        domain: DomainId,
        chunk: ChunkId,
        value: &[u8],
    ) -> Result<(), KvError> {
        let place = format!("place of chunk {chunk}");
        let Some(record) = self.decoded(&place, PlaceRecord::decode(value)) else {
            return Ok(());
        };
        let bytes = u64::from(record.entry_bytes);
        match record.place {
            Place::Staged => {
                self.shared.staged_bytes = self.shared.staged_bytes.saturating_add(bytes);
                let first = keyspace::body(domain, chunk, 0);
                if self.reader.get(&first).await?.is_none() {
                    self.report.add(place, "nothing is staged", Remedy::Store);
                }
            }
            Place::Pack { pack, .. } => match self.shared.packs.get_mut(&pack) {
                Some((_, live)) => *live = live.saturating_add(bytes),
                None => {
                    let what = format!("leads to pack {pack}, which does not exist");
                    self.report.add(place, what, Remedy::Store);
                }
            },
        }
        Ok(())
    }

    /// When all is read: whether it is counted right.
    pub(super) fn check_shared_totals(&mut self) {
        self.end_body();
        let Seen {
            staged_bytes,
            counted_bytes,
            ..
        } = self.shared;
        if staged_bytes != counted_bytes {
            let what = format!("says {counted_bytes}, and {staged_bytes} are staged");
            self.report
                .add("counter of staged bytes", what, Remedy::Store);
        }
        let mut wrong: Vec<_> = std::mem::take(&mut self.shared.packs).into_iter().collect();
        wrong.retain(|(_, (said, found))| said != found);
        wrong.sort_unstable();
        for (pack, (said, found)) in wrong {
            let what = format!("says that {said} bytes are live, and {found} are");
            self.report.add(format!("pack {pack}"), what, Remedy::Store);
        }
    }

    async fn place(
        &self,
        domain: DomainId,
        chunk: ChunkId,
    ) -> Result<Option<Result<PlaceRecord, ()>>, KvError> {
        let value = self.reader.get(&keyspace::place(domain, chunk)).await?;
        Ok(value.map(|value| PlaceRecord::decode(&value).map_err(drop)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::{ManualClock, Rng, Timestamp};

    use crate::check::{CheckOptions, check};
    use crate::kv::Kv;
    use crate::kv::memory::MemoryKv;
    use crate::places::{Keep, Moved, PIECE_BYTES_MAX, Places};
    use crate::store::Store;

    use super::*;

    const PACK: PackId = PackId([7; 16]);

    fn name(number: u8) -> (DomainId, ChunkId) {
        (DomainId::new(1), ChunkId::new([number; 32]))
    }

    /// Three staged chunks, of which one is moved to a pack.
    async fn filled() -> Arc<dyn Kv> {
        let clock = Arc::new(ManualClock::new(Timestamp::new(1, 0)));
        let kv: Arc<dyn Kv> = Arc::new(MemoryKv::new(clock.clone()));
        let rng = Arc::new(Rng::seeded(1));
        Store::open(Arc::clone(&kv), clock.clone(), Arc::clone(&rng))
            .await
            .unwrap();
        let places = Places::new(Arc::clone(&kv), clock, rng);
        for (number, len) in [(1, 10), (2, 2 * PIECE_BYTES_MAX), (3, 30)] {
            let keep = Keep::Stage {
                entry: vec![1; len].into(),
                plain_bytes: 1,
            };
            places.keep(&[(name(number), keep)]).await.unwrap();
        }
        places.begin_pack(PACK, 50).await.unwrap();
        let moved = Moved {
            name: name(3),
            offset: 0,
            entry_bytes: 30,
        };
        places.settle(PACK, &[moved]).await.unwrap();
        kv
    }

    async fn problems(kv: &dyn Kv) -> Vec<String> {
        let report = check(kv, CheckOptions::default()).await.unwrap();
        let told = report.problems.into_iter();
        told.map(|it| format!("{} {}", it.place, it.what)).collect()
    }

    #[tokio::test]
    async fn what_is_wrong_with_shared_chunks_is_told() {
        assert_eq!(problems(&*filled().await).await, Vec::<String>::new());
        let (domain, two) = name(2);
        let (one, three) = (name(1).1, name(3).1);
        let body = |chunk, piece| keyspace::body(domain, chunk, piece);
        let at = |chunk| keyspace::place(domain, chunk);
        /// A key, the value that it gets, and what is found.
        type Case<'a> = (Vec<u8>, Option<&'a [u8]>, &'a str);
        let cases: [Case<'_>; 10] = [
            (
                body(two, 1),
                None,
                "has 90000 bytes, and should have 180000",
            ),
            (body(two, 0), None, "lacks its beginning"),
            (body(one, 0), None, "nothing is staged"),
            (body(three, 0), Some(b"x"), "is in a pack, too"),
            (body(ChunkId::new([9; 32]), 0), Some(b"x"), "has no place"),
            (at(one), Some(b"\x01\x09"), "impossible field: place"),
            (keyspace::staged_bytes(), Some(&[1; 8]), "are staged"),
            (keyspace::staged_bytes(), Some(b"x"), "is no number"),
            (keyspace::pack(PACK), None, "which does not exist"),
            (at(three), None, "says that 30 bytes are live, and 0 are"),
        ];
        for (key, value, wanted) in cases {
            let kv = filled().await;
            let mut txn = kv.begin();
            match value {
                Some(value) => txn.set(&key, value),
                None => txn.clear(&key),
            }
            txn.commit().await.unwrap();
            let told = problems(&*kv).await;
            assert!(
                told.iter().any(|it| it.contains(wanted)),
                "{wanted}: {told:?}"
            );
        }
    }
}
