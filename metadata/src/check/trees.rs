//! Trees: the bases of sessions and the images of commits.

use std::collections::HashMap;

use base::{CommitId, DomainId, WorkspaceId};

use super::changes::{Changed, Changes};
use super::image::Of;
use super::{Checker, Owner, PendingCommit, Remedy};
use crate::image::Usage;
use crate::keyspace;
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::KvError;
use crate::layers::Base;
use crate::record::workspace::{TenantRecord, WorkspaceRecord};
use crate::tree::{BadPlace, Counters, Root, Tree, TreeError, TreeKeys};

/// A tree that was compared with another one.
#[derive(Debug)]
struct Compared {
    counters: Counters,
    changed: Changed,
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
    ) -> Result<Option<Counters>, KvError> {
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
            Some(like) => compare(tree, like, root).await,
            None => verify(tree, root).await.map(|counters| Compared {
                counters,
                changed: Changed::Everything,
            }),
        };
        let checked = match checked {
            Err(error) if like.is_some() && !is_of_a_node(&error) => {
                // What is said of a tree is said by reading it alone.
                verify(tree, root).await.map(|counters| Compared {
                    counters,
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
        let counters = checked.counters;
        self.trees.insert((workspace, root), Ok(counters));
        let base = Base::Tree {
            tree: tree.clone(),
            root,
        };
        let usage = Usage {
            bytes: counters.bytes,
            // The root directory does not count.
            inodes: counters.inodes.saturating_sub(1),
        };
        let is_read = self
            .check_base_image((owner.of, workspace), record, base, checked.changed)
            .await?;
        if is_read {
            self.images.insert((workspace, root), usage);
            self.checked.insert(workspace, root);
        }
        Ok(Some(counters))
    }

    fn told(&mut self, owner: Owner, checked: Result<Counters, String>) -> Option<Counters> {
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
        let Some(counters) = self.check_tree(owner, opened, like).await? else {
            return Ok(());
        };
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
async fn verify(tree: &Tree, root: Root) -> Result<Counters, Failed> {
    let mut found = None;
    let verified = tree.verify_each(root, |key, _| {
        if found.is_none() {
            found = foreign(key);
        }
    });
    let counters = verified.await?;
    found.map_or(Ok(counters), |what| Err(Failed::Foreign(what)))
}

/// As [`verify`], by what differs from a tree that is right; and what that is.
async fn compare(tree: &Tree, like: Root, root: Root) -> Result<Compared, Failed> {
    let mut found = None;
    let mut changes = Changes::default();
    let compared = tree.verify_change(like, root, |change| match keys::decode(&change.key) {
        Ok(key) if !matches!(key, ImageKey::Cut { .. }) => changes.add(&key, change),
        _ if change.new.is_some() && found.is_none() => found = foreign(&change.key),
        _ => {}
    });
    let counters = compared.await?;
    let changed = changes.finish();
    found.map_or(Ok(Compared { counters, changed }), |what| {
        Err(Failed::Foreign(what))
    })
}
