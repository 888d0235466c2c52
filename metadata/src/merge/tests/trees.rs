//! Merges of versions in snapshot trees.

use std::sync::Arc;

use base::{DomainId, Tasks};

use super::merging::{files, merge_with, options};
use super::world::Fs;
use crate::image::InodeNumbers;
use crate::merge::{MergeInput, Pair, Policy, TreeView, merge};
use crate::tree::{MemoryNodes, NodeCache, Root, Tree, TreeKeys};

async fn build(tree: &Tree, fs: &Fs) -> Root {
    tree.build(&fs.store).await.unwrap().root
}

/// Three filesystems that differ in many ways.
fn three() -> (Fs, Fs, Fs) {
    let mut base = Fs::new();
    for dir in 0..40 {
        base.mkdir(&format!("d{dir}")).unwrap();
        for file in 0..20 {
            let path = format!("d{dir}/f{file}");
            base.write(&path, &path).unwrap();
        }
    }
    base.write("large", vec![1; 400_000]).unwrap();
    let (mut ours, mut theirs) = (base.fork(2), base.fork(3));
    for file in 0..20 {
        ours.write(&format!("d1/f{file}"), "ours").unwrap();
        theirs.save(&format!("d{file}/f1"), "theirs").unwrap();
    }
    ours.rm_rf("d3").unwrap();
    ours.mv("d5", "d6/d5").unwrap();
    ours.ln("d7/f7", "d8/link").unwrap();
    ours.patch("large", 0, &[2; 20_000]).unwrap();
    theirs.write("d3/new", "new").unwrap();
    theirs.write("d5/new", "new").unwrap();
    theirs.truncate("large", 300_000).unwrap();
    (base, ours, theirs)
}

fn tree() -> Tree {
    let keys = TreeKeys::new(DomainId::new(1), &[1; 32], &[2; 32]);
    let cache = Arc::new(NodeCache::new(1 << 20));
    Tree::new(Arc::new(MemoryNodes::new()), cache, keys, Tasks::new())
}

/// The delta over our tree is the tree of the result, and says how its counters differ.
#[test]
fn trees_merge_as_maps_do() {
    let (mut base, mut ours, mut theirs) = three();
    let keep = options(Policy::KeepBoth);
    let (expected, by_map) = merge_with(&mut base, &mut ours, &mut theirs, &keep);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let tree = tree();
        let roots = (
            build(&tree, &base).await,
            build(&tree, &ours).await,
            build(&tree, &theirs).await,
        );
        let content = files(&base, &ours, &theirs);
        let view = |root| TreeView::new(tree.clone(), root);
        let views = (view(roots.1), view(roots.2));
        let (mut left, mut right) = (tree.diff(roots.0, roots.1), tree.diff(roots.0, roots.2));
        let input = MergeInput {
            views: Pair {
                ours: &views.0,
                theirs: &views.1,
            },
            differences: Pair {
                ours: &mut left,
                theirs: &mut right,
            },
            content: &content,
        };
        let mut numbers = InodeNumbers {
            next: 4 << 20,
            end: 5 << 20,
        };
        let merged = merge(input, &keep, &mut numbers).await.unwrap();
        assert_eq!(merged, by_map);
        let delta = merged
            .delta
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()));
        let result = tree.apply(roots.1, delta).await.unwrap();
        assert_eq!(result.root, build(&tree, &expected).await);
        let before = tree.counters(roots.1).await.unwrap();
        assert_eq!(
            before.bytes.checked_add_signed(merged.bytes),
            Some(result.counters.bytes)
        );
        assert_eq!(
            before.inodes.checked_add_signed(merged.inodes),
            Some(result.counters.inodes)
        );
    });
}
