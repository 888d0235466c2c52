//! Randomness, as something that is handed in.

use std::sync::Mutex;

use rand::rngs::SysRng;
use rand::{Rng as _, SeedableRng, TryRng};
use rand_chacha::ChaCha20Rng;

/// A source of random bytes: from the operating system, or repeatable from a seed.
#[derive(Debug)]
pub struct Rng {
    stream: Mutex<ChaCha20Rng>,
}

impl Rng {
    /// Seeds a cryptographic generator from the operating system.
    ///
    /// # Errors
    ///
    /// If the operating system has no randomness to give.
    pub fn system() -> Result<Self, std::io::Error> {
        let mut seed = [0; 32];
        SysRng
            .try_fill_bytes(&mut seed)
            .map_err(std::io::Error::other)?;
        Ok(Self {
            stream: Mutex::new(ChaCha20Rng::from_seed(seed)),
        })
    }

    /// The same bytes for the same seed. For tests and simulation only.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self {
            stream: Mutex::new(ChaCha20Rng::seed_from_u64(seed)),
        }
    }

    /// Fills an array.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .fill_bytes(&mut bytes);
        bytes
    }

    /// A uniform number.
    pub fn u64(&self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
}
