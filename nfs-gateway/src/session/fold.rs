//! Folding a session's frozen layers into its base (`docs/design/0004-history.md`).
//!
//! Clients notice nothing. The layers in memory are exchanged before those in the store: both make
//! the same image, and a load that began before the exchange is not installed after it, so nobody
//! reads a layer that is cleared under him.

use std::sync::Arc;
use std::time::Duration;

use metadata::kv::KvError;
use metadata::layers::{Base, ImageError, Layers};
use metadata::session::fold;
use metadata::store::StoreError;
use metadata::tree::{Root, TreeError};
use tokio::sync::oneshot;

use super::Session;
use super::freeze::{ATTEMPTS_MAX, FreezeError};

/// Frozen layers from which a session is folded without being asked. Reads look through all of them.
const FROZEN_MAX: usize = 4;

/// Frozen layers from which a session is not frozen again before it has been folded: freezes wait for
/// folds that do not keep up, and fail with those that fail. Well below `FROZEN_LAYERS_MAX`, since
/// freezes that have passed go on.
const FROZEN_FULL: usize = 128;

/// Tries to put a tree in place of layers, each of which has patience of its own.
const REPLACE_ATTEMPTS_MAX: u32 = 6;

/// Pause between them.
const REPLACE_PAUSE: Duration = Duration::from_secs(1);

/// What a fold is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// The session reads fewer layers.
    Itself,
    /// Something else will refer to the tree.
    Sharing,
}

impl crate::gateway::Gateway {
    /// Stores what clients have written so far, and makes a tree of the session's image as of some
    /// moment during this call. The tree is durable, and the session's base. Calls of clients go on
    /// meanwhile.
    ///
    /// Whoever is going to refer to the tree from elsewhere holds the chunk store from before this
    /// call until that reference is durable: the session may soon have another base.
    ///
    /// # Errors
    ///
    /// See [`FreezeError`].
    ///
    /// # Cancellation
    ///
    /// Safe to drop: a fold that was begun is done all the same.
    pub async fn snapshot(self: &Arc<Self>, session: base::SessionId) -> Result<Root, FreezeError> {
        for _ in 0..ATTEMPTS_MAX {
            self.freeze(session).await?;
            let owned = self.session(session).await?;
            if let Some(root) = owned.fold(For::Sharing).await? {
                return Ok(root);
            }
        }
        Err(FreezeError::Unavailable)
    }
}

impl Session {
    /// Folds the frozen layers in the background if there are many.
    pub(super) fn fold_if_deep(self: &Arc<Self>) {
        if self.lock().layers.frozen().len() < FROZEN_MAX {
            return;
        }
        let session = Arc::clone(self);
        self.shared.tasks.spawn(async move {
            if let Err(error) = session.fold(For::Itself).await {
                tracing::warn!(session = %session.view.session, error = %base::Told(&error), "layers were not folded");
            }
        });
    }

    /// Folds in the background if much was flushed to the open layer, so that neither it nor the fold
    /// that a publish waits for grows without end.
    pub(super) fn fold_if_large(self: &Arc<Self>) {
        {
            let mut state = self.lock();
            if state.open_bytes < self.shared.options.delta_bytes {
                return;
            }
            // If it fails it is tried again after as much.
            state.open_bytes = 0;
        }
        let session = Arc::clone(self);
        self.shared.tasks.spawn(async move {
            let folded = match session.freeze_stored().await {
                Ok(Some(())) => session.fold(For::Itself).await.map(drop),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = folded {
                tracing::warn!(session = %session.view.session, error = %base::Told(&error), "a large layer was not folded");
            }
        });
    }

    /// Waits until the session has room for one more frozen layer.
    pub(super) async fn make_room_for_layer(self: &Arc<Self>) -> Result<(), FreezeError> {
        for _ in 0..ATTEMPTS_MAX {
            {
                let state = self.lock();
                if state.lost || state.layers.frozen().len() < FROZEN_FULL {
                    return Ok(());
                }
            }
            self.fold(For::Itself).await?;
        }
        Err(FreezeError::Unavailable)
    }

    /// Makes the frozen layers and the base a new base; returns its root. `None` if the session is
    /// lost or its layers changed under the fold: nothing has happened then.
    pub(super) async fn fold(self: &Arc<Self>, purpose: For) -> Result<Option<Root>, FreezeError> {
        let (tell, done) = oneshot::channel();
        let session = Arc::clone(self);
        // A task of its own, so that the hold outlives the transaction whoever gives up.
        self.shared.tasks.spawn(async move {
            let folded = {
                let _one_at_a_time = session.folding.lock().await;
                let folded = session.fold_now().await;
                if let (For::Sharing, Ok(Some(root))) = (purpose, &folded) {
                    // While something has it: no other fold can replace the base yet, and what an
                    // exchange replaces is in the commit that its log calls `before`.
                    let workspace = session.record.workspace;
                    session.shared.store.copying(workspace, *root);
                }
                folded
            };
            drop(tell.send(folded));
        });
        done.await.unwrap_or(Ok(None))
    }

    /// One at a time.
    async fn fold_now(self: &Arc<Self>) -> Result<Option<Root>, FreezeError> {
        let before = {
            let state = self.lock();
            if state.lost {
                return Ok(None);
            }
            Arc::clone(&state.layers)
        };
        if let (true, Some(root)) = (before.frozen().is_empty(), before.base().root()) {
            return Ok(Some(root));
        }
        let began = self.shared.clock.monotonic();
        // Until the record that leads to the new tree is durable.
        let _hold = self.shared.chunks.hold();
        let (chunks, domain) = (&self.shared.chunks, self.domain.id);
        let kv = self.shared.kv.as_ref();
        let touch = |id| chunks.touch(domain, id);
        let folded = fold(kv, before.frozen(), before.base(), touch).await?;
        let root = folded.root;
        if !self.exchange(&before, root) {
            return Ok(None);
        }
        if !self.replace(&before, root).await? {
            return Ok(None);
        }
        let id = self.view.session;
        let took = self.shared.clock.monotonic().saturating_sub(began);
        self.shared.counters.folds.count();
        tracing::debug!(
            session = %id, layers = before.frozen().len(), nodes = folded.written.nodes,
            bytes = folded.written.bytes, ?took, "layers folded"
        );
        Ok(Some(root))
    }

    /// Puts the tree in place of the layers in the store. `false` if they are not what they were;
    /// those in memory are then, as after an error, what they were before.
    async fn replace(self: &Arc<Self>, before: &Layers, root: Root) -> Result<bool, FreezeError> {
        let (store, id) = (&self.shared.store, self.view.session);
        let owner = (self.shared.id, self.epoch);
        let old_base = before.base().root();
        let mut attempt = 0;
        loop {
            attempt += 1;
            let replaced = store
                .replace_layers(id, owner, (before.frozen(), old_base), root)
                .await;
            match replaced {
                Ok(true) => return Ok(true),
                Ok(false) => {
                    self.exchange_back(before, root);
                    return Ok(false);
                }
                Err(StoreError::Unavailable(KvError::NoSpace)) => {
                    // Nothing was written, and to take the session over anew needs space.
                    self.exchange_back(before, root);
                    return Err(FreezeError::NoSpace);
                }
                Err(StoreError::Unavailable(error)) if attempt < REPLACE_ATTEMPTS_MAX => {
                    tracing::debug!(session = %id, error = %base::Told(&error), "layers are replaced again");
                    self.shared.clock.sleep(REPLACE_PAUSE).await;
                }
                Err(error) => {
                    // It may have been written or not: what is in the store decides.
                    self.retire();
                    self.shared.forget(self);
                    return Err(error.into());
                }
            }
        }
    }

    /// Puts the folded layers in place of those before; layers frozen meanwhile stay above.
    fn exchange(&self, before: &Layers, root: Root) -> bool {
        let mut state = self.lock();
        let Some(newer) = state.layers.frozen().strip_suffix(before.frozen()) else {
            return false;
        };
        if state.lost || state.layers.base().root() != before.base().root() {
            return false;
        }
        let base = Base::Tree {
            tree: before.base().tree().clone(),
            root,
        };
        state.layers = Arc::new(Layers::new(state.layers.open(), newer.to_vec(), base));
        true
    }

    /// The store keeps the layers that were there before: their image is the same.
    fn exchange_back(&self, before: &Layers, root: Root) {
        let mut state = self.lock();
        if state.layers.base().root() == Some(root) {
            let mut frozen = state.layers.frozen().to_vec();
            frozen.extend_from_slice(before.frozen());
            let base = before.base().clone();
            state.layers = Arc::new(Layers::new(state.layers.open(), frozen, base));
        }
    }
}

impl From<ImageError> for FreezeError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Kv(_) | ImageError::Tree(TreeError::Unavailable(_)) => Self::Unavailable,
            ImageError::Tree(TreeError::NoSpace) => Self::NoSpace,
            ImageError::Record(_) | ImageError::Key(_) | ImageError::Tree(_) => {
                tracing::error!(error = %base::Told(&error), "an image cannot be read");
                Self::Corrupt
            }
        }
    }
}

impl From<StoreError> for FreezeError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(KvError::NoSpace) => Self::NoSpace,
            StoreError::Unavailable(_) => Self::Unavailable,
            StoreError::NotFound { .. } => Self::Own(metadata::session::OwnError::NotFound),
            _ => Self::Corrupt,
        }
    }
}
