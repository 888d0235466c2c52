//! `holdfast keys`.

use std::sync::Arc;

use base::{Clock, Rng, SystemClock};
use metadata::record::workspace::HandleKeysRecord;

use super::metadata_of;
use crate::cli::KeysCommand;
use crate::data_dir::DataDir;
use crate::failure::Failure;
use crate::output;
use crate::place::Purpose;
use crate::server::of_store;
use crate::settings::Settings;

pub(super) fn run(command: KeysCommand, json: bool) -> Result<(), Failure> {
    match command {
        KeysCommand::Rotate { data } => {
            let settings = data.settings()?;
            rotate(&DataDir::open(&settings.data_dir)?, settings, json)
        }
    }
}

/// Makes the key that the next server signs file handles with.
fn rotate(dir: &DataDir, settings: Settings, json: bool) -> Result<(), Failure> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let rng = Rng::system().map_err(|error| Failure::io("read random numbers", &error))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("start", &error))?;
    let metadata =
        runtime.block_on(metadata_of(dir, settings, Purpose::Use, Arc::clone(&clock)))?;
    let rotated: Result<HandleKeysRecord, Failure> = runtime.block_on(async {
        // One that runs would not know handles of the new key.
        metadata.check_nobody_serves(&clock).await?;
        let store = metadata
            .store(dir, (&dir.tier()?, None), clock, Arc::new(rng))
            .await?;
        store.rotate_handle_keys().await.map_err(of_store)
    });
    metadata.close();
    let record = rotated?;
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
