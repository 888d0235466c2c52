//! Trees: the bases of sessions and the images of commits.

use base::{CommitId, DomainId, WorkspaceId};

use super::image::Of;
use super::{Checker, Remedy};
use crate::image::Usage;
use crate::keyspace;
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::KvError;
use crate::layers::Base;
use crate::record::commit::CommitRecord;
use crate::record::workspace::{TenantRecord, WorkspaceRecord};
use crate::tree::{Counters, Root, Tree, TreeKeys};

/// What a sound tree holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verified {
    counters: Counters,
    /// Records of conflicts.
    conflicts: u64,
}

impl Checker<'_> {
    /// That every node of a tree is there, right, and where the content puts it, and that the keys
    /// are those of an image. What the tree holds, or `None` if it was told what is wrong. Each tree is
    /// read once; what is wrong is told to all who have it.
    pub(super) async fn check_tree(
        &mut self,
        of: Of,
        workspace: WorkspaceId,
        (tree, root): (&Tree, Root),
    ) -> Option<Verified> {
        let known = self.trees.get(&(workspace, root)).cloned();
        let checked = match known {
            Some(checked) => checked,
            None => {
                self.report.counts.trees += 1;
                let checked = verify(tree, root).await;
                self.trees.insert((workspace, root), checked.clone());
                self.progressed();
                checked
            }
        };
        let told = |what| self.report.add(of.to_string(), what, of.remedy());
        checked.map_err(told).ok()
    }

    /// That a commit's image is one, and uses what the commit says.
    pub(super) async fn check_commit_image(
        &mut self,
        workspace: WorkspaceId,
        id: CommitId,
        commit: &CommitRecord,
    ) -> Result<(), KvError> {
        let of = Of::Commit(workspace, id);
        let Some((record, tree)) = self.trees_of(workspace).await? else {
            return Ok(());
        };
        let root = Root::from_bytes(*commit.tree.as_bytes());
        let checked = self.check_tree(of, workspace, (&tree, root)).await;
        let Some(Verified {
            counters,
            conflicts,
        }) = checked
        else {
            return Ok(());
        };
        if conflicts != commit.conflicts {
            let said = commit.conflicts;
            let what =
                format!("says that its image holds {said} conflicts, but it holds {conflicts}");
            self.report.add(of.to_string(), what, Remedy::Store);
        }
        let uses = Usage {
            bytes: counters.bytes,
            // The root directory does not count.
            inodes: counters.inodes.saturating_sub(1),
        };
        if uses != commit.usage {
            let said = commit.usage;
            let what = format!(
                "says that its image uses {} bytes and {} inodes, but it uses {} and {}",
                said.bytes, said.inodes, uses.bytes, uses.inodes
            );
            self.report.add(of.to_string(), what, Remedy::Store);
        }
        if !self.images.contains_key(&(workspace, root)) {
            let base = Base::Tree { tree, root };
            let usage = self.check_base_image(of, workspace, &record, base).await?;
            self.images
                .extend(usage.map(|usage| ((workspace, root), usage)));
        }
        Ok(())
    }

    /// A workspace and its trees. Damaged records are told where they are read.
    async fn trees_of(
        &self,
        workspace: WorkspaceId,
    ) -> Result<Option<(WorkspaceRecord, Tree)>, KvError> {
        let Some(trees) = self.options.trees else {
            return Ok(None);
        };
        let found = self.reader.get(&keyspace::workspace(workspace)).await?;
        let record = found.and_then(|value| WorkspaceRecord::decode(&value).ok());
        let Some(record) = record else {
            return Ok(None);
        };
        let found = self.reader.get(&keyspace::tenant(record.tenant)).await?;
        let tenant = found.and_then(|value| TenantRecord::decode(&value).ok());
        Ok(tenant.map(|tenant| {
            let domain = DomainId::new(record.tenant.raw());
            let keys = TreeKeys::new(domain, &tenant.domain_key, &record.name_key);
            (record, trees.open(keys))
        }))
    }
}

/// What a tree holds, or what is wrong with it.
async fn verify(tree: &Tree, root: Root) -> Result<Verified, String> {
    let (mut foreign, mut conflicts) = (None, 0);
    let verified = tree.verify_each(root, |key, _| {
        let what = match keys::decode(key) {
            Ok(ImageKey::Cut { .. }) => "belongs into a layer".to_owned(),
            Ok(key) => {
                conflicts += u64::from(matches!(key, ImageKey::Conflict(_)));
                return;
            }
            Err(error) => error.to_string(),
        };
        foreign.get_or_insert_with(|| format!("tree holds key {}: {what}", key.escape_ascii()));
    });
    let counters = verified.await.map_err(|error| error.to_string())?;
    let verified = Verified {
        counters,
        conflicts,
    };
    foreign.map_or(Ok(verified), Err)
}
