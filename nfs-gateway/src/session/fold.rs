//! Folding a session's frozen layers into its base (`docs/design/0004-history.md`).
//!
//! Clients notice nothing. The layers in memory are exchanged before those in the store: both make
//! the same image, and a load that began before the exchange is not installed after it, so nobody
//! reads a layer that is cleared under him.

use std::sync::Arc;

use metadata::layers::{Base, ImageError, Layers};
use metadata::session::fold;
use metadata::store::StoreError;
use metadata::tree::{Root, TreeError};

use super::Session;
use super::freeze::FreezeError;

/// Frozen layers from which a session is folded without being asked. Reads look through all of them.
const FROZEN_MAX: usize = 4;

impl crate::gateway::Gateway {
    /// Stores what clients have written so far, and makes a tree of the session's image as of some
    /// moment during this call. The tree is durable, and the session's base. Calls of clients go on
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// See [`FreezeError`].
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn snapshot(self: &Arc<Self>, session: base::SessionId) -> Result<Root, FreezeError> {
        for _ in 0..super::freeze::ATTEMPTS_MAX {
            self.freeze(session).await?;
            let owned = self.session(session).await?;
            if let Some(root) = owned.fold().await? {
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
            if let Err(error) = session.fold().await {
                tracing::warn!(session = %session.view.session, %error, "layers were not folded");
            }
        });
    }

    /// Makes the frozen layers and the base a new base; returns its root. `None` if the session is
    /// lost or its layers changed under the fold: nothing has happened then.
    pub(super) async fn fold(self: &Arc<Self>) -> Result<Option<Root>, FreezeError> {
        let _one_at_a_time = self.folding.lock().await;
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
        let Some(exchanged) = self.exchange(&before, root) else {
            return Ok(None);
        };
        let store = &self.shared.store;
        let id = self.view.session;
        let old_base = before.base().root();
        let replaced = store
            .replace_layers(id, before.frozen(), old_base, root)
            .await;
        match replaced {
            Ok(true) => {}
            Ok(false) => {
                self.exchange_back(&exchanged, before);
                return Ok(None);
            }
            Err(error) => {
                // It may have been written or not: what is in the store decides.
                self.retire();
                self.shared.forget(self);
                return Err(error.into());
            }
        }
        let took = self.shared.clock.monotonic().saturating_sub(began);
        self.shared.counters.folds.count();
        tracing::debug!(
            session = %id, layers = before.frozen().len(), nodes = folded.written.nodes,
            bytes = folded.written.bytes, ?took, "layers folded"
        );
        Ok(Some(root))
    }

    /// Puts the folded layers in place of those before; layers frozen meanwhile stay above.
    fn exchange(&self, before: &Arc<Layers>, root: Root) -> Option<Arc<Layers>> {
        let mut state = self.lock();
        let now = state.layers.frozen();
        let newer = now.len().checked_sub(before.frozen().len())?;
        let (newer, rest) = now.split_at_checked(newer)?;
        if state.lost
            || rest != before.frozen()
            || state.layers.base().root() != before.base().root()
        {
            return None;
        }
        let base = Base::Tree {
            tree: before.base().tree().clone(),
            root,
        };
        let layers = Arc::new(Layers::new(state.layers.open(), newer.to_vec(), base));
        state.layers = Arc::clone(&layers);
        Some(layers)
    }

    /// The store keeps the layers that were there before: their image is the same.
    fn exchange_back(&self, exchanged: &Arc<Layers>, before: Arc<Layers>) {
        let mut state = self.lock();
        if Arc::ptr_eq(&state.layers, exchanged) {
            state.layers = before;
        } else {
            // Frozen since; the record in the store has it right.
            drop(state);
            self.retire();
        }
    }
}

impl From<ImageError> for FreezeError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Kv(_) | ImageError::Tree(TreeError::Unavailable(_)) => Self::Unavailable,
            ImageError::Tree(TreeError::NoSpace) => Self::NoSpace,
            ImageError::Record(_) | ImageError::Key(_) | ImageError::Tree(_) => {
                tracing::error!(%error, "an image cannot be read");
                Self::Corrupt
            }
        }
    }
}

impl From<StoreError> for FreezeError {
    fn from(error: StoreError) -> Self {
        use metadata::kv::KvError;
        match error {
            StoreError::Unavailable(KvError::NoSpace) => Self::NoSpace,
            StoreError::Unavailable(_) => Self::Unavailable,
            StoreError::NotFound { .. } => Self::Own(metadata::session::OwnError::NotFound),
            _ => Self::Corrupt,
        }
    }
}
