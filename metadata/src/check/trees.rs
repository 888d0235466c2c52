//! Trees: the bases of sessions and the images of commits.

use std::collections::HashMap;

use base::{CommitId, DomainId, WorkspaceId};

use super::changes::{Changed, Changes};
use super::image::Of;
use super::{Checker, Owner, PendingCommit, Remedy};
use crate::keyspace;
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::KvError;
use crate::layers::Base;
use crate::record::workspace::{TenantRecord, WorkspaceRecord};
use crate::tree::{BadPlace, Counters, Root, Tree, TreeError, TreeKeys};

/// A tree that was compared with another one.
#[derive(Debug)]
struct Compared {
    verified: Verified,
    changed: Changed,
}

/// What a sound tree holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verified {
    counters: Counters,
    /// Records of conflicts.
    conflicts: u64,
}

impl Checker<'_> {
    /// That every node of a tree is there, right, and where the content puts it, and that the keys
    /// are those of an image; and that the image is one. What the tree holds, or `None` if it was
    /// told what is wrong with it. Each tree is read once, and only what it does not share with
    /// `like`, or else with the last one of its workspace. What is wrong with a tree is told to all
    /// who have it.
    pub(super) async fn check_tree(
        &mut self,
        owner: Owner,
        (record, tree): (&WorkspaceRecord, &Tree),
        like: Option<Root>,
    ) -> Result<Option<Verified>, KvError> {
        let (workspace, root) = (owner.workspace, owner.root);
        self.owners.push(owner);
        if let Some(checked) = self.trees.get(&(workspace, root)).cloned() {
            return Ok(self.told(owner, checked));
        }
        self.report.counts.trees += 1;
        let like = like
            .filter(|like| self.images.contains_key(&(workspace, *like)))
            .or_else(|| self.checked.get(&workspace).copied());
        let checked = match like {
            Some(like) => {
                let known = self.trees.get(&(workspace, like));
                let conflicts = known.and_then(|known| known.as_ref().ok());
                let conflicts = conflicts.map_or(0, |known| known.conflicts);
                compare(tree, (like, conflicts), root).await
            }
            None => verify(tree, root).await.map(|verified| Compared {
                verified,
                changed: Changed::Everything,
            }),
        };
        let checked = match checked {
            Err(error) if like.is_some() && !is_of_a_node(&error) => {
                // What is said of a tree is said by reading it alone.
                verify(tree, root).await.map(|verified| Compared {
                    verified,
                    changed: Changed::Everything,
                })
            }
            other => other,
        };
        self.progressed();
        let checked = match checked {
            Ok(checked) => checked,
            Err(error) => {
                self.is_damaged |= is_of_a_node(&error);
                let error = self.first_damage(tree, root, error).await;
                self.trees.insert((workspace, root), Err(error.clone()));
                return Ok(self.told(owner, Err(error)));
            }
        };
        let counters = checked.verified.counters;
        self.trees.insert((workspace, root), Ok(checked.verified));
        let base = Base::Tree {
            tree: tree.clone(),
            root,
        };
        let usage = counters.usage();
        let is_read = self
            .check_base_image((owner.of, workspace), record, base, checked.changed)
            .await?;
        if is_read {
            self.images.insert((workspace, root), usage);
            self.checked.insert(workspace, root);
        }
        Ok(Some(checked.verified))
    }

    fn told(&mut self, owner: Owner, checked: Result<Verified, String>) -> Option<Verified> {
        let of = owner.of;
        checked
            .map_err(|what| self.report.add(of.to_string(), what, of.remedy()))
            .ok()
    }

    /// What is wrong with a tree that cannot be read: always the first of it, whatever it was compared
    /// with.
    async fn first_damage(&mut self, tree: &Tree, root: Root, error: Failed) -> String {
        let Failed::Tree(error) = error else {
            return error.to_string();
        };
        let survey = self.survey.entry(tree.domain()).or_default();
        let surveyed = tree.survey(root, survey, &mut |_, _| false).await;
        let mut first = None;
        if surveyed.is_ok() {
            let listed = tree
                .bad_places(root, survey, &mut |_, _| false, &mut |place| {
                    if let BadPlace::Node { error, .. } = place {
                        first = Some(error);
                    }
                    false
                })
                .await;
            drop(listed);
        }
        first.unwrap_or(error).to_string()
    }

    /// That the images of commits are such, and use what the commits say. Parents come before their
    /// children.
    pub(super) async fn check_commit_images(&mut self) -> Result<(), KvError> {
        let mut commits = std::mem::take(&mut self.commits);
        commits.sort_by_key(|commit| (commit.workspace, commit.time, commit.id));
        let mut opened = None;
        let mut roots: HashMap<CommitId, Root> = HashMap::new();
        let mut last = None;
        for commit in commits {
            if last != Some(commit.workspace) {
                roots.clear();
                opened = self.trees_of(commit.workspace).await?;
                last = Some(commit.workspace);
            }
            let Some((record, tree)) = &opened else {
                continue;
            };
            let like = commit.parent.and_then(|parent| roots.get(&parent)).copied();
            roots.insert(commit.id, commit.root);
            self.check_commit_image(&commit, (record, tree), like)
                .await?;
        }
        Ok(())
    }

    async fn check_commit_image(
        &mut self,
        commit: &PendingCommit,
        opened: (&WorkspaceRecord, &Tree),
        like: Option<Root>,
    ) -> Result<(), KvError> {
        let owner = Owner {
            of: Of::Commit(commit.workspace, commit.id),
            workspace: commit.workspace,
            root: commit.root,
        };
        let checked = self.check_tree(owner, opened, like).await?;
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
            self.report.add(owner.of.to_string(), what, Remedy::Store);
        }
        let uses = counters.usage();
        if uses != commit.usage {
            let said = commit.usage;
            let what = format!(
                "says that its image uses {} bytes and {} inodes, but it uses {} and {}",
                said.bytes, said.inodes, uses.bytes, uses.inodes
            );
            self.report.add(owner.of.to_string(), what, Remedy::Store);
        }
        Ok(())
    }

    /// A workspace and its trees. Damaged records are told where they are read.
    pub(super) async fn trees_of(
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

/// What is wrong with a tree.
#[derive(Clone, Debug, thiserror::Error)]
enum Failed {
    #[error("{0}")]
    Tree(#[from] TreeError),
    #[error("{0}")]
    Foreign(String),
}

fn is_of_a_node(error: &Failed) -> bool {
    let Failed::Tree(error) = error else {
        return false;
    };
    matches!(error, TreeError::Missing(_) | TreeError::Damaged { .. })
}

/// What is wrong with a key of a tree.
fn foreign(key: &[u8]) -> Option<String> {
    let what = match keys::decode(key) {
        Ok(ImageKey::Cut { .. }) => "belongs into a layer".to_owned(),
        Ok(_) => return None,
        Err(error) => error.to_string(),
    };
    Some(format!("tree holds key {}: {what}", key.escape_ascii()))
}

/// What a tree holds, or what is wrong with it.
async fn verify(tree: &Tree, root: Root) -> Result<Verified, Failed> {
    let (mut found, mut conflicts) = (None, 0);
    let verified = tree.verify_each(root, |key, _| {
        if found.is_none() {
            found = foreign(key);
        }
        conflicts += u64::from(is_conflict(key));
    });
    let counters = verified.await?;
    let verified = Verified {
        counters,
        conflicts,
    };
    found.map_or(Ok(verified), |what| Err(Failed::Foreign(what)))
}

fn is_conflict(key: &[u8]) -> bool {
    matches!(keys::decode(key), Ok(ImageKey::Conflict(_)))
}

/// As [`verify`], by what differs from a tree that is right and holds some conflicts; and what that is.
async fn compare(
    tree: &Tree,
    (like, conflicts): (Root, u64),
    root: Root,
) -> Result<Compared, Failed> {
    let mut found = None;
    let mut changes = Changes::default();
    let (mut more, mut fewer) = (0, 0);
    let compared = tree.verify_change(like, root, |change| {
        if is_conflict(&change.key) {
            more += u64::from(change.new.is_some());
            fewer += u64::from(change.old.is_some());
        }
        match keys::decode(&change.key) {
            Ok(key) if !matches!(key, ImageKey::Cut { .. }) => changes.add(&key, change),
            _ if change.new.is_some() && found.is_none() => found = foreign(&change.key),
            _ => {}
        }
    });
    let counters = compared.await?;
    let compared = Compared {
        verified: Verified {
            counters,
            conflicts: (conflicts + more).saturating_sub(fewer),
        },
        changed: changes.finish(),
    };
    found.map_or(Ok(compared), |what| Err(Failed::Foreign(what)))
}
