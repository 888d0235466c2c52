//! The suite on the store in memory, and what only it can show.

use std::sync::Arc;

use base::{ManualClock, Timestamp};

use crate::kv::conformance::{Subject, suite};
use crate::kv::memory::MemoryKv;

#[tokio::test]
async fn memory_conforms() {
    suite(async || {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        Subject {
            kv: Arc::new(MemoryKv::new(clock.clone())),
            clock: Some(clock),
        }
    })
    .await;
}
