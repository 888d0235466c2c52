//! Where a node ends: a function of its own keys and sizes.
//!
//! The aim is nodes of about one size, cut at places that only the content decides. Think of a
//! node that grows byte by byte and may break at each of them, ever more likely: the probability
//! that it is still whole at `s` bytes shall be `S(s) = exp(-(s/λ)^4)` with λ = 16 KiB, the Weibull
//! distribution of shape 4. (A memoryless rule has as many nodes of four times the mean as a tree
//! pays dearly for: what is touched is more likely to lie in a large node.) An entry that takes
//! the node from `a` to `b` bytes then breaks it with the probability
//!
//! `p = 1 - S(b)/S(a) = 1 - exp(-(b^4 - a^4)/λ^4)`.
//!
//! Chance comes from the entry's key: a 64-bit keyed hash of level and key, `h`. With
//! `u = (h+1)/2^64`, which is uniform in (0, 1], the node ends after the entry if and only if
//!
//! `-ln(u) < (b^4 - a^4)/λ^4`,
//!
//! because `-ln(u)` is below `x` with the probability `1 - exp(-x)`. The key of the hash is a secret
//! of the workspace: without it nobody can choose names that make nodes break everywhere or nowhere.
//!
//! Floating point is not the same on every machine, so this is done in integers. λ is a power of
//! two, so `(b^4 - a^4)` is the right side in units of `λ^-4`, exactly. The left side is
//! `log2` by repeated squaring, cut off after 32 binary digits, times `ln 2` in units of 2^-32
//! ([`LN_2`]). Whatever rounding this has, it is the same everywhere.

use super::node::{ENTRY_BYTES_MAX, NODE_BYTES_MAX};

/// `ln 2` in units of 2^-32, rounded up.
const LN_2: u128 = 2_977_044_472;

/// Smallest node that ends before it must, in bytes: bounds the number of nodes.
const BYTES_MIN: usize = 2 * 1024;

/// λ is two to this power. Nodes have about 0.9 λ bytes on average.
const SCALE_BITS: u32 = 14;

/// A node of this many bytes ends, so that the largest entry fits into any node that has not
/// ended. Reached by chance once in 100,000 nodes.
const BYTES_CUT: usize = NODE_BYTES_MAX - ENTRY_BYTES_MAX;

/// Least number of entries of an inner node that ends before it must: each level then has at most
/// half as many nodes as the one below, whatever the sizes.
const CHILDREN_MIN: usize = 2;

const _: () = assert!(BYTES_MIN < 1 << SCALE_BITS && 1 << SCALE_BITS < BYTES_CUT);

/// The rule, with a workspace's secret.
#[derive(Clone)]
pub(super) struct SplitRule {
    key: [u8; 32],
    bytes_min: usize,
    scale_bits: u32,
    bytes_cut: usize,
}

impl SplitRule {
    /// The rule under this secret.
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self {
            key,
            bytes_min: BYTES_MIN,
            scale_bits: SCALE_BITS,
            bytes_cut: BYTES_CUT,
        }
    }

    /// The rule with small nodes, so that few keys make a deep tree.
    #[cfg(test)]
    pub(super) fn small(key: [u8; 32]) -> Self {
        Self {
            key,
            bytes_min: 64,
            scale_bits: 8,
            bytes_cut: 2048,
        }
    }

    /// Whether the node ends after the entry of `key`, its `count`th, that took it from `before`
    /// to `after` bytes.
    pub(super) fn ends(
        &self,
        level: u8,
        key: &[u8],
        before: usize,
        after: usize,
        count: usize,
    ) -> bool {
        if (level > 0 && count < CHILDREN_MIN) || after < self.bytes_min {
            return false;
        }
        after >= self.bytes_cut || breaks(self.hash(level, key), before, after, self.scale_bits)
    }

    /// An order of keys that has nothing to do with theirs.
    #[cfg(test)]
    pub(super) fn ends_hash(&self, seed: u64, key: &[u8]) -> u64 {
        self.hash(0, &[&seed.to_be_bytes(), key].concat())
    }

    fn hash(&self, level: u8, key: &[u8]) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&[level]);
        hasher.update(key);
        let hash = hasher.finalize();
        u64::from_be_bytes(hash.as_bytes().first_chunk().copied().unwrap_or_default())
    }
}

impl std::fmt::Debug for SplitRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SplitRule").finish_non_exhaustive()
    }
}

/// Whether `-ln((hash+1)/2^64) < (after^4 - before^4)/λ^4`, λ being two to the power `scale_bits`.
fn breaks(hash: u64, before: usize, after: usize, scale_bits: u32) -> bool {
    let fourth = |bytes: usize| u128::try_from(bytes).unwrap_or(0).saturating_pow(4);
    // In units of 2^-64. Sizes are at most 2^16, so nothing is lost to the left.
    let hazard = fourth(after).saturating_sub(fourth(before)) << (64 - 4 * scale_bits);
    // -ln(u) is at least 1 - u, so most keys need no logarithm.
    if u128::from(!hash) >= hazard {
        return false;
    }
    u128::from(minus_log2(hash)) * LN_2 < hazard
}

/// `-log2((hash+1)/2^64)` in units of 2^-32, rounded up.
fn minus_log2(hash: u64) -> u64 {
    let Some(number) = hash.checked_add(1) else {
        return 0;
    };
    let zeros = number.leading_zeros();
    // The number as a binary fraction 1.xxx, its top bit being the one before the point.
    let mut fraction = u128::from(number << zeros);
    let mut log = 0_u64;
    for _ in 0..32 {
        fraction = (fraction * fraction) >> 63;
        log <<= 1;
        if fraction >> 64 != 0 {
            fraction >>= 1;
            log |= 1;
        }
    }
    ((u64::from(zeros) + 1) << 32) - log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::as_conversions, reason = "floats have no other conversion")]
    fn float(number: u64) -> f64 {
        number as f64
    }

    /// Numbers that look random, always the same.
    fn hashes() -> impl Iterator<Item = u64> {
        std::iter::successors(Some(1_u64), |last| {
            Some(
                last.wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407),
            )
        })
    }

    #[test]
    fn the_logarithm_is_one() {
        let edges = [0, 1, 2, 3, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1];
        for hash in edges.into_iter().chain(hashes().take(10_000)) {
            let is = float(minus_log2(hash)) / 2_f64.powi(32);
            let ought = 64.0 - (float(hash) + 1.0).log2();
            assert!((is - ought).abs() < 1e-8, "{hash}: {is} {ought}");
        }
    }

    /// The short cut never decides otherwise than the logarithm.
    #[test]
    fn the_short_cut_is_one() {
        for hash in hashes().take(100_000) {
            assert!(
                u128::from(minus_log2(hash)) * LN_2 >= u128::from(!hash),
                "{hash}"
            );
        }
    }

    /// The decision for one hash at one size, pinned: other numbers would be other trees.
    #[test]
    fn decisions_are_pinned() {
        let least = |before, after| {
            // The least hash that breaks, by bisection.
            let (mut no, mut yes) = (0_u64, u64::MAX);
            while yes - no > 1 {
                let middle = no + (yes - no) / 2;
                if breaks(middle, before, after, SCALE_BITS) {
                    yes = middle;
                } else {
                    no = middle;
                }
            }
            yes
        };
        let ought = |before: f64, after: f64| {
            let hazard = (after.powi(4) - before.powi(4)) / 16384_f64.powi(4);
            2_f64.powi(64) * (-hazard).exp()
        };
        for (before, after, pinned) in PINNED {
            let is = least(before, after);
            let wanted = ought(
                float(before.try_into().unwrap()),
                float(after.try_into().unwrap()),
            );
            assert!((float(is) / wanted - 1.0).abs() < 1e-8, "{is} {wanted}");
            assert_eq!(is, pinned, "{before} {after}");
        }
    }

    const PINNED: [(usize, usize, u64); 3] = [
        (2000, 2050, 18_446_318_861_394_371_244),
        (16_000, 16_100, 18_028_186_721_413_521_550),
        (28_000, 30_000, 1_226_231_077_501_596_921),
    ];

    /// Sizes of nodes that break by the rule: mean and deviation of a Weibull distribution.
    #[test]
    fn sizes_are_as_wanted() {
        let (mut sizes, mut size) = (Vec::new(), 0);
        for hash in hashes().take(400_000) {
            let before = size;
            size += 45;
            if size >= BYTES_CUT || size >= BYTES_MIN && breaks(hash, before, size, SCALE_BITS) {
                sizes.push(float(size.try_into().unwrap()));
                size = 0;
            }
        }
        let count = float(sizes.len().try_into().unwrap());
        let mean = sizes.iter().sum::<f64>() / count;
        let deviation =
            (sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>() / count).sqrt();
        // λ·Γ(1.25) = 14,850 and half an entry; λ·sqrt(Γ(1.5) - Γ(1.25)²) = 4,167.
        assert!((mean - 14_870.0).abs() < 400.0, "{mean}");
        assert!((deviation - 4167.0).abs() < 300.0, "{deviation}");
    }
}
