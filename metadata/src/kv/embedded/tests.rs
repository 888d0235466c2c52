//! The suite on the store in a file, and what only a file can show.

use base::{ManualClock, Timestamp};

use super::*;
use crate::kv::conformance::{Subject, suite};

#[tokio::test]
async fn embedded_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    suite(async || {
        count.set(count.get() + 1);
        let path = dir.path().join(format!("{}.kv", count.get()));
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let kv = EmbeddedKv::open(&path, &EmbeddedOptions::default(), clock.clone()).unwrap();
        Subject {
            kv: Arc::new(kv),
            clock: Some(clock),
        }
    })
    .await;
}
