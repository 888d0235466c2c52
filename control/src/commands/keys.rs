//! `holdfast keys`.

use std::sync::Arc;

use base::{Clock, Rng, SystemClock};
use metadata::kv::embedded::{EmbeddedKv, EmbeddedOptions};
use metadata::store::Store;

use crate::cli::KeysCommand;
use crate::data_dir::DataDir;
use crate::failure::Failure;
use crate::output;
use crate::server::{of_open, of_store};

pub(super) fn run(command: KeysCommand, json: bool) -> Result<(), Failure> {
    match command {
        KeysCommand::Rotate { data_dir } => rotate(&DataDir::open(&data_dir)?, json),
    }
}

/// Makes the key that the next server signs file handles with.
fn rotate(dir: &DataDir, json: bool) -> Result<(), Failure> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let rng = Rng::system().map_err(|error| Failure::io("read random numbers", &error))?;
    let options = EmbeddedOptions::default();
    let kv = EmbeddedKv::open(&dir.metadata(), &options, Arc::clone(&clock))
        .map_err(|error| of_open(&error))?;
    let kv = Arc::new(kv);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("start", &error))?;
    let shared = Arc::<EmbeddedKv>::clone(&kv);
    let rotated = runtime.block_on(async move {
        let store = Store::open(shared, clock, Arc::new(rng)).await?;
        store.rotate_handle_keys().await
    });
    kv.close();
    let record = rotated.map_err(of_store)?;
    let mut ids = record.keys.iter().map(|(id, _)| *id);
    let (signs, accepted) = (ids.next(), ids.next());
    if json {
        return output::json(&serde_json::json!({ "signs": signs, "accepted": accepted }));
    }
    output::text(
        "the next start signs file handles with a new key; handles of the last one stay good until \
         the next rotation, those of older ones are stale from now on",
    )
}
