//! Which chunks are referred to, in little memory: more may seem so, never fewer.

use base::{ChunkId, DomainId};

/// Names for which the first layer has room.
const FIRST_CAPACITY: u64 = 1 << 16;

/// Bits for each name that a layer has room for. With [`PROBES`] one of 300 names that are not there seems so.
const BITS_PER_NAME: u64 = 12;

/// Bits that are set for a name.
const PROBES: u64 = 8;

/// A set of names of chunks, a Bloom filter that grows: layers, each with twice the room of the one before.
#[derive(Debug)]
pub(super) struct Marks {
    /// Another each time, so that what seems to be there is another chunk the next time.
    seed: u64,
    layers: Vec<Layer>,
    first_capacity: u64,
}

#[derive(Debug)]
struct Layer {
    words: Vec<u64>,
    capacity: u64,
    count: u64,
}

impl Marks {
    pub(super) fn new(seed: u64) -> Self {
        Self::with_capacity(seed, FIRST_CAPACITY)
    }

    fn with_capacity(seed: u64, first_capacity: u64) -> Self {
        Self {
            seed,
            layers: Vec::new(),
            first_capacity,
        }
    }

    /// Whether a chunk is marked. All that are marked seem so, and a few others.
    pub(super) fn contains(&self, domain: DomainId, id: ChunkId) -> bool {
        let hash = self.hash(domain, id);
        self.layers.iter().any(|layer| layer.contains(hash))
    }

    /// Marks a chunk. Tells whether it did not seem marked.
    pub(super) fn insert(&mut self, domain: DomainId, id: ChunkId) -> bool {
        let hash = self.hash(domain, id);
        if self.layers.iter().any(|layer| layer.contains(hash)) {
            return false;
        }
        let last = self.layers.last();
        let (is_full, capacity) = match last {
            Some(last) => (last.count >= last.capacity, last.capacity.saturating_mul(2)),
            None => (true, self.first_capacity),
        };
        if is_full {
            self.layers.push(Layer::new(capacity));
        }
        if let Some(last) = self.layers.last_mut() {
            last.insert(hash);
        }
        true
    }

    /// Two numbers that depend on all of the name that is random, and on the seed.
    fn hash(&self, domain: DomainId, id: ChunkId) -> (u64, u64) {
        let bytes = id.as_bytes();
        let word = |at: usize| {
            let part = bytes.get(at..at.saturating_add(8));
            let part = part.and_then(|part| <[u8; 8]>::try_from(part).ok());
            u64::from_be_bytes(part.unwrap_or_default())
        };
        let of = mixed(domain.raw() ^ self.seed);
        (mixed(word(0) ^ of), mixed(word(8) ^ of.rotate_left(32)))
    }
}

impl Layer {
    fn new(capacity: u64) -> Self {
        let words = capacity.saturating_mul(BITS_PER_NAME).div_ceil(64).max(1);
        Self {
            words: vec![0; usize::try_from(words).unwrap_or(usize::MAX)],
            capacity,
            count: 0,
        }
    }

    /// Where the bits of a name are: word and mask.
    fn bits(&self, (first, step): (u64, u64)) -> impl Iterator<Item = (usize, u64)> + use<> {
        let bits = u64::try_from(self.words.len()).unwrap_or(u64::MAX) * 64;
        (0..PROBES).map(move |probe| {
            let bit = first.wrapping_add(probe.wrapping_mul(step | 1)) % bits;
            let word = usize::try_from(bit / 64).unwrap_or(usize::MAX);
            (word, 1 << (bit % 64))
        })
    }

    fn contains(&self, hash: (u64, u64)) -> bool {
        let mut bits = self.bits(hash);
        bits.all(|(word, mask)| self.words.get(word).is_some_and(|it| it & mask != 0))
    }

    fn insert(&mut self, hash: (u64, u64)) {
        for (word, mask) in self.bits(hash) {
            if let Some(word) = self.words.get_mut(word) {
                *word |= mask;
            }
        }
        self.count += 1;
    }
}

/// A number each of whose bits depends on each of `from` (the end of `SplitMix64`).
fn mixed(from: u64) -> u64 {
    let mut it = from.wrapping_add(0x9e37_79b9_7f4a_7c15);
    it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    it ^ (it >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use base::Rng;

    use super::*;

    fn name(rng: &Rng) -> (DomainId, ChunkId) {
        (DomainId::new(rng.u64() % 3), ChunkId::new(rng.bytes()))
    }

    /// Those of `names` that seem marked.
    fn seeming(marks: &Marks, names: &[(DomainId, ChunkId)]) -> HashSet<ChunkId> {
        let seem = names
            .iter()
            .filter(|(domain, id)| marks.contains(*domain, *id));
        seem.map(|(_, id)| *id).collect()
    }

    #[test]
    fn what_is_marked_is_and_few_others_seem_so() {
        let rng = Rng::seeded(1);
        let there: Vec<_> = (0..20_000).map(|_| name(&rng)).collect();
        let others: Vec<_> = (0..20_000).map(|_| name(&rng)).collect();
        let mut seeds = Vec::new();
        for seed in [1, 2] {
            // Through six layers.
            let mut marks = Marks::with_capacity(seed, 500);
            let new = there
                .iter()
                .filter(|(domain, id)| marks.insert(*domain, *id));
            assert!(new.count() > 19_500);
            assert!(
                there
                    .iter()
                    .all(|(domain, id)| marks.contains(*domain, *id))
            );
            assert!(!there.iter().any(|(domain, id)| marks.insert(*domain, *id)));
            let seem = seeming(&marks, &others);
            // One of 300 for each layer.
            assert!(seem.len() < 800, "{}", seem.len());
            assert!(!seem.is_empty());
            seeds.push(seem);
        }
        // Those that seem so twice are as few of them as of all.
        let both = seeds[0].intersection(&seeds[1]).count();
        assert!(both * 10 < seeds[0].len().max(10), "{both}");
    }

    #[test]
    fn the_domain_is_of_the_name() {
        let mut marks = Marks::new(7);
        let id = ChunkId::new([9; 32]);
        assert!(!marks.contains(DomainId::new(1), id));
        assert!(marks.insert(DomainId::new(1), id));
        assert!(marks.contains(DomainId::new(1), id));
        assert!(!marks.contains(DomainId::new(2), id));
    }
}
