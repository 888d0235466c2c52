//! Finding the commit that a version expression means.

use base::WorkspaceId;

use super::super::{Store, StoreError};
use super::commits::CommitInfo;
use crate::record::reference::RefName;
use crate::version::{ACCEPTED, IdPrefix, Start, Step, Time, Version};

impl Store {
    /// The commit that a version expression means; see [`crate::version`] for what may be said.
    ///
    /// # Errors
    ///
    /// `Invalid` for a text that is no version; `NotFound` for one that there is not; `Ambiguous`
    /// for the digits of several ids; or the store fails.
    pub async fn resolve_version(
        &self,
        workspace: WorkspaceId,
        text: &str,
    ) -> Result<CommitInfo, StoreError> {
        let version: Version = text
            .parse()
            .map_err(|error: crate::version::VersionError| StoreError::Invalid {
                why: error.to_string(),
            })?;
        let mut commit = self.resolve_start(workspace, &version.start).await?;
        for step in version.steps {
            commit = self.step(workspace, commit, step).await?;
        }
        Ok(commit)
    }

    async fn resolve_start(
        &self,
        workspace: WorkspaceId,
        start: &Start,
    ) -> Result<CommitInfo, StoreError> {
        let id = match start {
            Start::Id(id) => *id,
            Start::Name(name, prefix) => match self.reference(workspace, name).await {
                Ok(found) => found.record.state.commit,
                Err(StoreError::NotFound { .. }) => {
                    let prefix = prefix.as_ref();
                    return self.resolve_prefix(workspace, name, prefix).await;
                }
                Err(error) => return Err(error),
            },
            // Not by the log: its last entry may be later than this clock says it is.
            Start::At(name, Time::Now) => {
                self.reference(workspace, name).await?.record.state.commit
            }
            Start::At(name, time) => {
                let time = time
                    .at(self.clock.wall())
                    .map_err(|error| StoreError::Invalid {
                        why: error.to_string(),
                    })?;
                self.reference_at(workspace, name, time).await?.commit
            }
        };
        self.commit(workspace, id).await
    }

    async fn resolve_prefix(
        &self,
        workspace: WorkspaceId,
        name: &RefName,
        prefix: Option<&IdPrefix>,
    ) -> Result<CommitInfo, StoreError> {
        let unknown = |why| StoreError::NotFound {
            what: format!("version {:?}: {why}; {ACCEPTED}", name.as_str()),
        };
        if name.as_str() == "main" && self.refs(workspace, None, 1).await?.is_empty() {
            return Err(unknown("nothing was published yet"));
        }
        let Some(prefix) = prefix else {
            return Err(unknown("no ref is called so"));
        };
        match self.commit_by_prefix(workspace, prefix).await {
            Ok(id) => self.commit(workspace, id).await,
            Err(StoreError::NotFound { .. }) => {
                Err(unknown("no ref is called so, and no commit id begins so"))
            }
            Err(error) => Err(error),
        }
    }

    async fn step(
        &self,
        workspace: WorkspaceId,
        commit: CommitInfo,
        step: Step,
    ) -> Result<CommitInfo, StoreError> {
        let (ups, number) = match step {
            Step::Up(ups) => (ups, 1),
            Step::Parent(0) => return Ok(commit),
            Step::Parent(number) => (1, number),
        };
        let mut commit = commit;
        for _ in 0..ups {
            let parents = &commit.record.parents;
            let Some(parent) = parents.get(number - 1) else {
                let what = match parents.len() {
                    0 => format!(
                        "version: commit {} is the first and has no parent",
                        commit.id
                    ),
                    count => format!(
                        "version: commit {} has {count} parents and no parent {number}",
                        commit.id
                    ),
                };
                return Err(StoreError::NotFound { what });
            };
            let parent = *parent;
            commit = self.parent(workspace, &commit, parent).await?;
        }
        Ok(commit)
    }
}
